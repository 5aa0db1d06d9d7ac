package fsm

import "slices"

// What listings show of consumer groups and leases. A page looks at a slice's
// worth; a walk over more goes on in another read (F24).

// GroupInfo is a consumer group on one queue.
type GroupInfo struct {
	Group, Queue  string
	QueueID       uint64
	Members       int64            // partitions on which it has a place
	Behind        int64            // partitions of which it owes messages
	Consumed      bool             // it has passed a message somewhere
	Mode          SubscriptionMode // as it registered, or subscribed since
	From, Created int64            // microseconds; From with SubscribeFrom
	Paused        bool
	Conflates     bool

	key string
}

// Cursor is where a walk over Groups goes on after this one.
func (g *GroupInfo) Cursor() string { return g.key }

// Groups lists consumer groups by name and then queue, those after the cursor
// (empty: from the first), at most limit and at most a slice's worth.
func (s *State) Groups(tenant, after string, limit int) (out []GroupInfo, more bool) {
	s.groupOrder.Ascend(max(tenant, after), func(key string, g *group) bool {
		if g.q.tenant != tenant {
			return false
		}
		if key == after {
			return true
		}
		if len(out) >= min(limit, viewSlice) {
			more = true
			return false
		}
		out = append(out, g.info(key))
		return true
	})
	return out, more
}

// GroupsNamed is Groups for the groups of one name.
func (s *State) GroupsNamed(tenant, name, after string, limit int) (out []GroupInfo, more bool) {
	s.groupOrder.Ascend(max(groupKeyOf(tenant, name, ""), after), func(key string, g *group) bool {
		if g.name != name || g.q.tenant != tenant {
			return false
		}
		if key == after {
			return true
		}
		if len(out) >= min(limit, viewSlice) {
			more = true
			return false
		}
		out = append(out, g.info(key))
		return true
	})
	return out, more
}

func (g *group) info(key string) GroupInfo {
	return GroupInfo{
		Group: g.name, Queue: g.q.name, QueueID: g.q.id, Members: g.members(), Behind: g.owed(false).behind, Consumed: g.counts.consumed > 0,
		Mode: g.mode, From: g.from, Created: g.created, Paused: g.paused(),
		Conflates: g.conflates, key: key,
	}
}

// GroupPartition is a consumer group on one partition: one where it has a place,
// or of which it owes messages.
type GroupPartition struct {
	ID         uint64
	Name       string
	Member     bool   // it has a place there
	Position   uint64 // next offset that it reads, as committed; below LogStart when that was removed
	LogStart   uint64
	Next       uint64
	First      uint64 // the lowest offset that it has not settled; Next: none
	Created    int64  // of the partition, microseconds: no message is older
	LastAppend int64  // microseconds
	From       int64  // not 0: its place, and First, is the first message at or after this time, which must be looked up
	Leased     bool
	Worker     string // of the lease
	Metadata   string // stored with its position
}

// Lag is what the group is behind, in messages: from its position to the end of
// what is retained.
func (p *GroupPartition) Lag() int64 { return int64(p.Next - min(max(p.Position, p.LogStart), p.Next)) }

// GroupPartitions lists the partitions of a queue for a group in the order of
// their creation, those with an id of at least from, a slice's worth. next is
// where to go on; 0: that was all.
func (s *State) GroupPartitions(tenant, group, queue string, from uint64, limit int) (out []GroupPartition, next uint64) {
	q := s.findQueue(tenant, queue)
	if q == nil || q.byGroup[group] == nil {
		return nil, 0
	}
	g := q.byGroup[group]
	i := q.partsAt(from)
	for n := 0; i < len(q.parts); n, i = n+1, i+1 {
		if n == viewSlice/2 || len(out) == limit {
			return out, q.parts[i].id
		}
		if p, ok := s.groupPartition(q.parts[i], g); ok {
			out = append(out, p)
		}
	}
	return out, 0
}

// GroupPartition is one row of GroupPartitions; ok false: the group has no place
// on that partition and owes nothing of it.
func (s *State) GroupPartition(tenant, group, queue, partition string) (row GroupPartition, ok bool) {
	q := s.findQueue(tenant, queue)
	if q == nil || q.byGroup[group] == nil || q.byName[partition] == nil {
		return row, false
	}
	return s.groupPartition(q.byName[partition], q.byGroup[group])
}

func (s *State) groupPartition(p *partition, g *group) (row GroupPartition, ok bool) {
	row = GroupPartition{
		ID: p.id, Name: p.name, LogStart: p.start, Next: p.next, Created: p.created, LastAppend: p.lastAppend,
		Member: g.places(p), First: p.start, Position: p.start,
	}
	c := p.cursor(g)
	switch {
	case c != nil && c.row:
		row.Member, row.Position, row.First = true, uint64(c.committed+1), c.firstUnsettled()
		if l := c.liveLease(max(s.time, s.now)); l != nil {
			row.Leased, row.Worker = true, l.worker
		}
		if c.metadata != nil {
			row.Metadata = *c.metadata
		}
		return row, true
	case p.id >= g.rule.partition || g.rule.mode == SubscribeAll:
	case g.rule.mode == SubscribeNew, p.lastAppend < g.rule.from:
		row.Position, row.First = p.next, p.next
	case p.created >= g.rule.from, p.start == p.next:
	default:
		row.From = g.rule.from
	}
	return row, row.Member || row.First < p.next
}

// Registered describes a queue (ID 0: there is none), and tells whether a group is
// registered on it.
func (s *State) Registered(tenant, group, queue string) (q QueueInfo, found bool) {
	at := s.findQueue(tenant, queue)
	if at == nil {
		return q, false
	}
	return s.queueInfo(at), at.byGroup[group] != nil
}

// QueueID is the id of a queue; 0: there is none.
func (s *State) QueueID(tenant, queue string) uint64 {
	if q := s.findQueue(tenant, queue); q != nil {
		return q.id
	}
	return 0
}

// PartitionNamed is the partition of a queue with a name, in a list of one; an
// empty list: there is none.
func (s *State) PartitionNamed(tenant, queue, name string) []PartitionInfo {
	q := s.findQueue(tenant, queue)
	if q == nil || q.byName[name] == nil {
		return nil
	}
	p := q.byName[name]
	return []PartitionInfo{{ID: p.id, Name: p.name, Created: p.created, LogStart: p.start, Next: p.next, LastAppend: p.lastAppend}}
}

// Settled counts how many messages of a partition from an offset on a group has
// settled, or never had to read: what it would get again there. ids and offsets
// belong together; a partition that is gone counts nothing.
func (s *State) Settled(tenant, group, queue string, ids, offsets []uint64) (n int64) {
	q := s.findQueue(tenant, queue)
	if q == nil || q.byGroup[group] == nil {
		return 0
	}
	g := q.byGroup[group]
	for i, id := range ids {
		p := s.partitions[id]
		if p == nil || p.q != q {
			continue
		}
		n += p.settledFrom(p.cursor(g), g, max(offsets[i], p.start))
	}
	return n
}

func (p *partition) settledFrom(c *cursor, g *group, from uint64) (n int64) {
	position := p.next
	switch {
	case c != nil && c.row:
		position = uint64(c.committed + 1)
	case p.id >= g.rule.partition, g.rule.mode != SubscribeNew:
		position = p.start
	}
	if position = min(position, p.next); position > from {
		n = int64(position - from)
	}
	if c != nil && c.row && c.sets != nil {
		c.sets.settled.Ranges(func(lo, hi uint64) bool {
			if hi >= from {
				n += int64(hi - max(lo, from) + 1)
			}
			return true
		})
	}
	return n
}

// LeaseInfo is one live lease of a group on a partition.
type LeaseInfo struct {
	ID               [16]byte
	Queue, Partition string
	PartitionID      uint64
	Group            string
	GroupID          uint64
	From, To         uint64
	Expires          int64 // microseconds
	Attempt          int
	Worker           string
}

// LeaseFilter selects leases; empty strings match all. A walk that is not
// through goes on with the same filter.
type LeaseFilter struct {
	Queue, Group string
	Limit        int // rows of a page

	// Where it goes on: behind the group of this id on this partition.
	AfterQueue                 string
	AfterPartition, AfterGroup uint64
}

// Leases lists live leases by queue, partition and group, a slice's worth; more:
// there may be others.
func (s *State) Leases(tenant string, f *LeaseFilter) (out []LeaseInfo, more bool) {
	budget := viewSlice
	visit := func(q *queue) bool {
		if q.name != f.AfterQueue {
			f.AfterQueue, f.AfterPartition, f.AfterGroup = q.name, 0, 0
		}
		more = !s.queueLeases(q, f, &out, &budget)
		return !more
	}
	if f.Queue != "" {
		if q := s.findQueue(tenant, f.Queue); q != nil {
			visit(q)
		}
		return out, more
	}
	s.queueOrder.Ascend(tenant+f.AfterQueue, func(_ string, q *queue) bool {
		budget--
		return q.tenant == tenant && visit(q)
	})
	return out, more
}

// queueLeases visits the leases of a queue; false: it is not through.
func (s *State) queueLeases(q *queue, f *LeaseFilter, out *[]LeaseInfo, budget *int) bool {
	if q.leased == 0 {
		return *budget > 0
	}
	now := max(s.time, s.now)
	for i := q.partsAt(f.AfterPartition); i < len(q.parts); i++ {
		p := q.parts[i]
		if p.id != f.AfterPartition {
			f.AfterPartition, f.AfterGroup = p.id, 0
		}
		at, _ := slices.BinarySearchFunc(p.cursors, f.AfterGroup+1, func(c *cursor, id uint64) int { return compareID(c.g.id, id) })
		for _, c := range p.cursors[at:] {
			if *budget <= 0 || len(*out) >= f.Limit {
				return false
			}
			*budget--
			f.AfterGroup = c.g.id
			if l := c.liveLease(now); l != nil && c.g.exists && (f.Group == "" || c.g.name == f.Group) {
				*out = append(*out, LeaseInfo{
					ID: l.id, Queue: q.name, Partition: p.name, PartitionID: p.id, Group: c.g.name, GroupID: c.g.id, From: l.from, To: l.end,
					Expires: l.expires, Attempt: int(c.attempt), Worker: l.worker,
				})
			}
		}
		if *budget--; *budget <= 0 {
			return false
		}
	}
	f.AfterPartition, f.AfterGroup = 1<<63, 0
	return true
}
