package history

import "fmt"

// Push is one message of a producer. A stream is a partition of a queue.
type Push struct {
	ID     string
	Stream string
	Offset int64 // as answered; -1 when it was not
	Fate   Fate
	Unit   *Unit // the transaction that it is part of; nil when it came by the push route

	seen bool
}

// Seen reports whether the message was read back.
func (p *Push) Seen() bool { return p.seen }

// Messages is everything that was pushed and everything that was read back.
// Reads come in stream order, each message once; so a difference is found when
// it is read, or at the end of a reading by Balance.
type Messages struct {
	pushes map[string]*Push // by stream and id
	next   map[string]int64 // stream -> next offset to read
	sent   []*Push          // to be balanced
}

// NewMessages returns empty books.
func NewMessages() *Messages {
	return &Messages{pushes: map[string]*Push{}, next: map[string]int64{}}
}

// Add books messages whose fate is as known when the load ended.
func (b *Messages) Add(ps ...*Push) {
	for _, p := range ps {
		b.pushes[p.Stream+" "+p.ID] = p
	}
	b.sent = append(b.sent, ps...)
}

// Read books one message that was read back.
func (b *Messages) Read(stream, id string, offset int64) error {
	if want := b.next[stream]; offset != want {
		return fmt.Errorf("%s: read offset %d, expected %d: a gap or a repeat", stream, offset, want)
	}
	b.next[stream]++
	p := b.pushes[stream+" "+id]
	switch {
	case p == nil:
		return fmt.Errorf("%s offset %d: id %s was never pushed", stream, offset, id)
	case p.seen:
		return fmt.Errorf("%s offset %d: id %s is there twice", stream, offset, id)
	case p.Fate == Refused:
		return fmt.Errorf("%s offset %d: id %s was refused", stream, offset, id)
	case p.Offset >= 0 && p.Offset != offset:
		return fmt.Errorf("%s: id %s is at offset %d, and was answered %d", stream, id, offset, p.Offset)
	}
	p.seen, p.Offset = true, offset
	return nil
}

// Count returns how many messages of a stream were read.
func (b *Messages) Count(stream string) int64 { return b.next[stream] }

// Balance closes a reading: everything was read, so what was not seen is not
// there.
func (b *Messages) Balance() error {
	for _, p := range b.sent {
		if p.Fate == Answered && !p.seen {
			return fmt.Errorf("push %s to %s was answered at offset %d and is not there", p.ID, p.Stream, p.Offset)
		}
		if p.Unit != nil {
			if err := p.Unit.Saw("its message in "+p.Stream, p.seen); err != nil {
				return err
			}
		}
	}
	for _, p := range b.sent { // one that is read from now on was never pushed
		delete(b.pushes, p.Stream+" "+p.ID)
	}
	b.sent = nil
	return nil
}
