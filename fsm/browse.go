package fsm

// What browsing sees: which partitions were written last, and where each group
// stands with a message. All of it in slices (F24).

// BrowseFilter selects the queues of a browse; empty names match all, labels
// when they are to be matched.
type BrowseFilter struct {
	Queue, Partition, Namespace, Task string
	From                              int64 // a queue that was written before is left out, microseconds
}

// BrowseQueue is a queue that may have messages for a browse.
type BrowseQueue struct {
	ID                    uint64
	Name, Namespace, Task string
	HasQueueMode          bool  // the group of pops without a group is there
	Groups                int   // others
	Written               bool  // since From
	LastAppend            int64 // of the partition that was written last, microseconds
	Partition             *RecentPartition
}

// RecentPartition is a partition with its bounds.
type RecentPartition struct {
	ID          uint64
	Name        string
	Start, Next uint64
	LastAppend  int64 // microseconds
	Place       uint64
}

func (p *partition) recent() RecentPartition {
	return RecentPartition{ID: p.id, Name: p.name, Start: p.start, Next: p.next, LastAppend: p.lastAppend, Place: p.place}
}

// BrowseQueues lists the queues that a filter selects, those after the given
// name, a slice's worth. next is where to go on; empty: that was all.
func (s *State) BrowseQueues(tenant string, f *BrowseFilter, after string) (out []BrowseQueue, next string) {
	add := func(q *queue) {
		if f.Namespace != "" && q.opts.Namespace != f.Namespace || f.Task != "" && q.opts.Task != f.Task {
			return
		}
		b := BrowseQueue{ID: q.id, Name: q.name, Namespace: q.opts.Namespace, Task: q.opts.Task, Groups: len(q.groups)}
		if q.byGroup[QueueMode] != nil {
			b.HasQueueMode = true
			b.Groups--
		}
		if f.Partition != "" {
			if p := q.byName[f.Partition]; p != nil {
				one := p.recent()
				b.Partition, b.Written, b.LastAppend = &one, p.lastAppend >= f.From, p.lastAppend
			}
		} else {
			q.recency.descend(0, func(p *partition) bool {
				b.Written, b.LastAppend = p.lastAppend >= f.From, p.lastAppend
				return false
			})
		}
		out = append(out, b)
	}
	if f.Queue != "" {
		if q := s.findQueue(tenant, f.Queue); q != nil {
			add(q)
		}
		return out, ""
	}
	seen, last := 0, ""
	s.queueOrder.Ascend(tenant+after, func(_ string, q *queue) bool {
		if q.tenant != tenant {
			return false
		}
		if after != "" && q.name == after {
			return true
		}
		if seen == viewSlice {
			next = last
			return false
		}
		seen++
		last = q.name
		add(q)
		return true
	})
	return out, next
}

// RecentWalk is how far a walk over the partitions of a queue has come.
type RecentWalk struct {
	From   int64 // none that was written before, microseconds
	top    uint64
	before uint64
	begun  bool
}

// Recent lists a slice's worth of the partitions of a queue, the one that was
// written last first. What was written since the walk began is listed again, in
// front of everything else, so that none is missed that moved on meanwhile.
// bound: no partition that is still to come was written later; more: there are
// such.
func (s *State) Recent(queueID uint64, w *RecentWalk) (out []RecentPartition, bound int64, more bool) {
	const slice = viewSlice / 4
	q := s.queues[queueID]
	if q == nil || q.deleted {
		return nil, 0, false
	}
	if !w.begun {
		w.begun, w.top = true, q.recency.next
	}
	q.recency.ascend(w.top, func(p *partition) bool {
		if more = len(out) == slice; more {
			return false
		}
		w.top = p.place
		out = append(out, p.recent())
		return true
	})
	if more {
		return out, s.now + 1, true
	}
	q.recency.descend(w.before, func(p *partition) bool {
		switch {
		case p.place > w.top:
			return true
		case p.lastAppend < w.From:
			return false
		case len(out) >= slice:
			bound, more = p.lastAppend, true
			return false
		}
		w.before = p.place
		out = append(out, p.recent())
		return true
	})
	return out, bound, more
}

// Now is the broker time of the cycle in which the state is read, microseconds.
func (s *State) Now() int64 { return max(s.time, s.now) }

// MessageStatus is where a message stands.
type MessageStatus uint8

// Statuses of a message.
const (
	StatusNone       MessageStatus = iota
	StatusPending                  // somebody owes it, or nobody reads the queue
	StatusProcessing               // somebody holds it under a live lease
	StatusCompleted                // every group has settled it
	StatusDeadLetter               // a dead letter of it is there
)

var messageStatuses = [...]string{"", "pending", "processing", "completed", "dead_letter"}

func (m MessageStatus) String() string { return messageStatuses[m] }

// MessageState is one message to be judged, and where it stands.
type MessageState struct {
	PartitionID, Offset uint64
	Time                int64 // when it was pushed, microseconds

	// Result.
	Gone             bool // it is not retained any more
	Status           MessageStatus
	QueueStatus      MessageStatus // for pops without a group; none: there were none
	Consumed, Groups int           // groups that have settled it; of these
	LeaseExpires     int64         // the earliest end of a lease on it, microseconds; 0: none

	at              int    // groups that were looked at
	letter          string // the last dead letter that was looked at
	pending, leased bool
	filed           bool
	anyone, decided bool
}

// GroupState is where one group stands with a message.
type GroupState struct {
	Name         string
	Consumed     bool
	LeaseExpires int64 // microseconds; 0: no live lease holds it
}

// Judge judges messages from the first that is not decided on, a slice's worth of groups;
// decided is how many are, from the first on. each: called for every group that
// is looked at; nil: nobody wants to know.
func (s *State) Judge(rows []MessageState, each func(GroupState)) (decided int) {
	budget := viewSlice
	for i := range rows {
		if rows[i].decided {
			decided++
			continue
		}
		if budget <= 0 || !s.judge(&rows[i], &budget, each) {
			break
		}
		decided++
	}
	return decided
}

func (s *State) judge(r *MessageState, budget *int, each func(GroupState)) (whole bool) {
	*budget--
	p := s.partitions[r.PartitionID]
	if p == nil || p.q.deleted || r.Offset < p.start {
		r.Gone, r.decided = true, true
		return true
	}
	now := max(s.time, s.now)
	groups := p.q.groups
	for ; r.at < len(groups); r.at++ {
		if *budget <= 0 {
			return false
		}
		*budget--
		g := groups[r.at]
		settled, lease := p.stands(g, r.Offset, r.Time, now)
		r.anyone = true
		if lease != 0 {
			r.leased = true
			if r.LeaseExpires == 0 || lease < r.LeaseExpires {
				r.LeaseExpires = lease
			}
		}
		r.pending = r.pending || !settled
		if g.name == QueueMode {
			r.QueueStatus = statusOf(settled, lease != 0)
		} else {
			r.Groups++
			if settled {
				r.Consumed++
			}
		}
		if each != nil {
			each(GroupState{Name: g.name, Consumed: settled, LeaseExpires: lease})
		}
	}
	if p.letters > 0 && !r.judgeLetters(p, budget) {
		return false
	}
	if r.Status = statusOf(r.anyone && !r.pending, r.leased); r.filed {
		r.Status = StatusDeadLetter
	}
	r.decided = true
	return true
}

// judgeLetters looks at the dead letters in the place of a message, of which
// timers can leave any number there.
func (r *MessageState) judgeLetters(p *partition, budget *int) (whole bool) {
	whole = true
	p.q.byPlace.Ascend(max(string(placeKey(p.id, r.Offset)), r.letter), func(key string, l *deadLetter) bool {
		if l.partitionID != p.id || l.offset != r.Offset {
			return false
		}
		if key == r.letter {
			return true
		}
		if whole = *budget > 0; !whole {
			return false
		}
		*budget--
		r.letter = key
		r.filed = r.filed || l.group != TimerGroup
		if l.group == QueueMode {
			r.QueueStatus = StatusDeadLetter
		}
		return true
	})
	return whole
}

func statusOf(settled, leased bool) MessageStatus {
	switch {
	case settled:
		return StatusCompleted
	case leased:
		return StatusProcessing
	}
	return StatusPending
}

// stands says whether a group has settled a message that was pushed at a time,
// or does not read it at all, and until when it holds it under a live lease.
func (p *partition) stands(g *group, offset uint64, pushed, now int64) (settled bool, lease int64) {
	c := p.cursor(g)
	if c != nil && c.stale() {
		c = nil // a seek has moved it
	}
	switch {
	case c != nil && c.settled(offset):
		return true, 0
	case c != nil:
		if l := c.liveLease(now); l != nil && l.from <= offset && offset <= l.end {
			return false, l.expires
		}
		return false, 0
	case p.id >= g.rule.partition || g.rule.mode == SubscribeAll:
		return false, 0
	case g.rule.mode == SubscribeFrom:
		return pushed < g.rule.from, 0
	}
	return true, 0 // it starts behind what was there
}
