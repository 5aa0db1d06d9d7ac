package server

import (
	"errors"
	"sync"

	"queen/fsm"
	"queen/raftlog"
)

// What a group is behind on one partition, in messages and in time. The state
// knows offsets; when a message was pushed is in the queue's log, and is looked
// up here, off the loop.

// lag is what a group is behind on a partition.
type lag struct {
	fsm.GroupPartition
	messages int64
	oldest   int64 // when its first message that it has not settled was pushed, microseconds; 0: there is none
}

// seconds is how long its first message waits.
func (l *lag) seconds(now int64) int64 {
	if l.oldest == 0 {
		return 0
	}
	return max(now-l.oldest, 0) / 1_000_000
}

// place looks up where a group stands that a time has put on the partition.
func (s *Server) place(queue uint64, p *fsm.GroupPartition) {
	if p.From == 0 {
		return
	}
	at, found, err := s.engine.Reader().FindTime(queue, p.ID, p.From)
	if err != nil || !found {
		s.lookupFailed(queue, p.Name, err)
		return
	}
	p.Position = min(max(at, p.LogStart), p.Next)
	p.First, p.From = p.Position, 0
}

// lagOf makes the lag of a partition. Where the first message is not older than
// younger it does not matter when it was pushed, and is not looked up (0: it
// always is).
func (s *Server) lagOf(queue uint64, p *fsm.GroupPartition, younger int64) lag {
	s.place(queue, p)
	l := lag{GroupPartition: *p, messages: p.Lag()}
	switch {
	case p.First >= p.Next:
	case p.First == p.Next-1:
		l.oldest = p.LastAppend
	case younger != 0 && p.Created >= younger:
		l.oldest = p.Created
	default:
		l.oldest = s.appendTime(queue, p)
	}
	return l
}

// appendTime is when the first unsettled message of a partition was pushed; when
// that cannot be read, the earliest that it can have been.
func (s *Server) appendTime(queue uint64, p *fsm.GroupPartition) int64 {
	key := [2]uint64{p.ID, p.First}
	if t, ok := s.times.get(key); ok {
		return t
	}
	times, err := s.engine.Reader().AppendTimes(queue, p.ID, p.First, 1)
	if err != nil || len(times) == 0 {
		s.lookupFailed(queue, p.Name, err)
		return p.Created
	}
	s.times.put(key, times[0].Time)
	return times[0].Time
}

func (s *Server) lookupFailed(queue uint64, partition string, err error) {
	if err != nil && !errors.Is(err, raftlog.ErrNoLog) { // no log: removed since
		s.log.Warn("the time of a message could not be read", "queue", queue, "partition", partition, "error", err)
	}
}

// timeCache remembers when messages were pushed, by partition and offset. That
// never changes, and whoever watches groups asks again and again. It keeps the
// newest half of what it is full of.
type timeCache struct {
	mu         sync.Mutex
	young, old map[[2]uint64]int64
}

// timeCacheHalf is half of the messages that are remembered: 2 MB or so.
const timeCacheHalf = 16 << 10

func (c *timeCache) get(key [2]uint64) (t int64, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if t, ok = c.young[key]; !ok {
		if t, ok = c.old[key]; ok {
			c.putLocked(key, t)
		}
	}
	return t, ok
}

func (c *timeCache) put(key [2]uint64, t int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.putLocked(key, t)
}

func (c *timeCache) putLocked(key [2]uint64, t int64) {
	if c.young == nil || len(c.young) >= timeCacheHalf {
		c.young, c.old = map[[2]uint64]int64{}, c.young
	}
	c.young[key] = t
}
