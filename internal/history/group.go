package history

import (
	"fmt"
	"slices"
)

// Group is what a consumer group was delivered and has settled. Acks of a
// transaction are booked once its Unit is known.
type Group struct {
	name    string
	now     int64
	streams map[string]map[int64]*settling
}

// settling is what is known of one message.
type settling struct {
	at    int64 // when a settling ack had been answered; 0: none was
	maybe bool  // an ack of it has no answer
	filed bool  // it is in the dead-letter queue
}

// NewGroup returns the books of a group.
func NewGroup(name string) *Group {
	return &Group{name: name, streams: map[string]map[int64]*settling{}}
}

func (g *Group) of(stream string, offset int64) *settling {
	if g.streams[stream] == nil {
		g.streams[stream] = map[int64]*settling{}
	}
	s := g.streams[stream][offset]
	if s == nil {
		s = &settling{}
		g.streams[stream][offset] = s
	}
	return s
}

// Begin returns the moment at which a pop is sent, for Delivered.
func (g *Group) Begin() int64 {
	g.now++
	return g.now
}

// Settled books that an ack which settles a message was answered.
func (g *Group) Settled(stream string, offset int64) {
	g.now++
	if s := g.of(stream, offset); s.at == 0 {
		s.at = g.now
	}
}

// MaybeSettled books that an ack which may settle a message has no answer.
func (g *Group) MaybeSettled(stream string, offset int64) { g.of(stream, offset).maybe = true }

// Filed books that a message was found in the dead-letter queue.
func (g *Group) Filed(stream string, offset int64) error {
	s := g.of(stream, offset)
	switch {
	case s.filed:
		return fmt.Errorf("group %s: %s offset %d is in the dead-letter queue twice", g.name, stream, offset)
	case s.at != 0:
		return fmt.Errorf("group %s: %s offset %d was completed, and is in the dead-letter queue", g.name, stream, offset)
	}
	s.filed = true
	return nil
}

// Delivered books a batch that a pop got; begun is what Begin gave when it was
// sent.
func (g *Group) Delivered(stream string, offsets []int64, begun int64) error {
	for i, o := range offsets {
		if i > 0 && o <= offsets[i-1] {
			return fmt.Errorf("group %s: %s offset %d was delivered after %d", g.name, stream, o, offsets[i-1])
		}
		s := g.of(stream, o)
		if s.at != 0 && s.at < begun {
			return fmt.Errorf("group %s: %s offset %d was delivered again after its ack was answered", g.name, stream, o)
		}
		if s.filed {
			return fmt.Errorf("group %s: %s offset %d was delivered again after it was filed", g.name, stream, o)
		}
	}
	return nil
}

// Balance closes a drain, after which nothing more was delivered: each of the
// first count messages of a stream has been settled, or may have been.
func (g *Group) Balance(stream string, count int64) error {
	for o := range count {
		if s := g.streams[stream][o]; s == nil || s.at == 0 && !s.maybe && !s.filed {
			return fmt.Errorf("group %s: %s offset %d was never settled and is not delivered: it is lost", g.name, stream, o)
		}
	}
	return nil
}

// Streams lists the streams with messages, sorted.
func (g *Group) Streams() []string {
	var names []string
	for name := range g.streams {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}
