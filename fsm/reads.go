package fsm

// What reads by offset and by time see of partitions: their bounds, and which
// were written last.

// Time is that of the newest entry, microseconds: what is pushed from now on
// is stamped later.
func (s *State) Time() int64 { return s.time }

// PartitionBounds say what a partition holds.
type PartitionBounds struct {
	QueueFound, Found    bool
	QueueID, PartitionID uint64
	Start, Next          uint64
	LastAppend           int64 // microseconds
}

// Bounds looks a partition up.
func (s *State) Bounds(tenant, queue, partition string) (b PartitionBounds) {
	q := s.findQueue(tenant, queue)
	if q == nil {
		return b
	}
	b.QueueFound, b.QueueID = true, q.id
	if p := q.byName[partition]; p != nil {
		b.Found, b.PartitionID, b.Start, b.Next, b.LastAppend = true, p.id, p.start, p.next, p.lastAppend
	}
	return b
}

// ChangedPartition is a partition with its bounds.
type ChangedPartition struct {
	Name        string
	Start, Next uint64
	LastAppend  int64 // microseconds
}

func (p *partition) changed() ChangedPartition {
	return ChangedPartition{Name: p.name, Start: p.start, Next: p.next, LastAppend: p.lastAppend}
}

// PartitionsByName lists the partitions of a queue whose names are above after,
// at most limit and at most a slice's worth. more: there are others; the same
// call with the last name, or after none with the same one, goes on.
func (s *State) PartitionsByName(tenant, queue, after string, limit int) (out []ChangedPartition, found, more bool) {
	q := s.findQueue(tenant, queue)
	if q == nil {
		return nil, false, false
	}
	if !q.fillNames() {
		return nil, true, true
	}
	q.names.tree.Ascend(after, func(name string, p *partition) bool {
		if name == after {
			return true
		}
		if more = len(out) == min(limit, viewSlice); more {
			return false
		}
		out = append(out, p.changed())
		return true
	})
	return out, true, more
}

// ChangedWalk is how far a walk over the partitions that were written since a
// time has come.
type ChangedWalk struct {
	Since int64 // microseconds
	begun bool
	place uint64
}

// Changed lists a slice's worth of the partitions of a queue that were written
// at or after a time, in the order of their last write. One that is written
// during the walk comes again. more: the walk goes on.
func (s *State) Changed(tenant, queue string, w *ChangedWalk) (out []ChangedPartition, found, more bool) {
	q := s.findQueue(tenant, queue)
	if q == nil {
		return nil, false, false
	}
	if !w.begun {
		w.begun, w.place = true, q.recency.since(w.Since)
	}
	q.recency.ascend(w.place, func(p *partition) bool {
		if more = len(out) == viewSlice; more {
			return false
		}
		w.place = p.place
		out = append(out, p.changed())
		return true
	})
	return out, true, more
}
