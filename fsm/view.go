package fsm

// This file is what reads see of the state: copies, bounded by their limits.

// viewSlice is about how many cursors and groups one read looks at: well under a
// millisecond.
const viewSlice = 1000

// Queues lists queues by name, those after the given one, at most limit (at
// least 1) and at most a slice's worth; more: there are others after them.
func (s *State) Queues(tenant, after string, limit int) (out []QueueInfo, more bool) {
	work := 0
	s.queueOrder.Ascend(tenant+after, func(key string, q *queue) bool {
		if q.tenant != tenant {
			return false
		}
		if after != "" && q.name == after {
			return true
		}
		if len(out) == limit || work > viewSlice {
			more = true
			return false
		}
		work += 1 + len(q.groups)
		out = append(out, s.queueInfo(q))
		return true
	})
	return out, more
}

// Queue describes one queue.
func (s *State) Queue(tenant, name string) (QueueInfo, bool) {
	q := s.findQueue(tenant, name)
	if q == nil {
		return QueueInfo{}, false
	}
	return s.queueInfo(q), true
}

// PlaceOf names the queue and the partition of a partition's id.
func (s *State) PlaceOf(tenant string, partition uint64) (queue, name string, found bool) {
	p := s.findPartition(tenant, partition)
	if p == nil {
		return "", "", false
	}
	return p.q.name, p.name, true
}

func (s *State) queueInfo(q *queue) QueueInfo {
	_, owed := q.slowest()
	return QueueInfo{
		ID: q.id, Name: q.name, Created: q.created, Options: q.opts, Partitions: len(q.parts), DeadLetters: int64(q.letters.Len()),
		Total: q.counts.total, Pending: owed.pending, Processing: owed.processing, Completed: q.counts.total - owed.pending,
	}
}

type backlog struct{ total, pending, processing int64 }

// owed counts what a group owes of a partition; named as in group.owed.
func (p *partition) owed(g *group, c *cursor, now int64, named bool) backlog {
	b := backlog{total: p.total(), pending: p.total()}
	switch {
	case c != nil && c.row:
		b.pending, b.processing = c.backlog(now)
	case (!named || g.places(p)) && g.rule.mode == SubscribeNew && p.id < g.rule.partition:
		b.pending = 0 // it starts after what is there
	}
	return b
}

// backlog counts a partition's messages for the slowest group.
func (p *partition) backlog(now int64) backlog {
	b := backlog{total: p.total()}
	if len(p.q.groups) == 0 {
		b.pending = b.total
		return b
	}
	at := 0
	for _, g := range p.q.groups {
		var c *cursor
		for at < len(p.cursors) && p.cursors[at].g.id < g.id {
			at++
		}
		if at < len(p.cursors) && p.cursors[at].g == g {
			c = p.cursors[at]
		}
		if o := p.owed(g, c, now, false); o.pending > b.pending || o.pending == b.pending && o.processing > b.processing {
			b.pending, b.processing = o.pending, o.processing
		}
	}
	return b
}

func (c *cursor) backlog(now int64) (pending, processing int64) {
	from := max(c.committed+1, int64(c.p.start))
	pending = max(int64(c.p.next)-from, 0)
	if c.sets != nil {
		pending -= int64(c.sets.settled.Len())
	}
	if l := c.liveLease(now); l != nil {
		processing = max(int64(l.end)-max(c.committed, int64(l.from)-1), 0)
		if c.sets != nil {
			c.sets.settled.Ranges(func(lo, hi uint64) bool {
				if lo > l.end {
					return false
				}
				processing -= int64(min(hi, l.end) - lo + 1)
				return true
			})
		}
	}
	return pending, min(max(processing, 0), pending)
}

// Partitions lists a queue's partitions in the order of their creation, from
// the offset-th on, at most limit and at most a slice's worth; more: there are
// others after them.
func (s *State) Partitions(tenant, queue string, offset, limit int) (out []PartitionInfo, more bool) {
	q := s.findQueue(tenant, queue)
	if q == nil || offset >= len(q.parts) {
		return nil, false
	}
	parts := q.parts[max(offset, 0):]
	n := min(limit, len(parts), max(1, viewSlice/(1+len(q.groups))))
	for _, p := range parts[:n] {
		b := p.backlog(max(s.time, s.now))
		out = append(out, PartitionInfo{
			ID: p.id, Name: p.name, Created: p.created, LogStart: p.start, Next: p.next, LastAppend: p.lastAppend,
			Total: b.total, Pending: b.pending, Processing: b.processing, DeadLetters: int64(p.letters),
		})
	}
	return out, n < len(parts)
}

// Depth counts the backlog of a queue: that of a group, or (named false) of the
// slowest one. Group is then its name; empty and Named false: there is none.
func (s *State) Depth(tenant, queue, group string, named bool) (DepthInfo, bool) {
	q := s.findQueue(tenant, queue)
	if q == nil {
		return DepthInfo{}, false
	}
	var c groupCounts
	g := q.byGroup[group]
	switch {
	case !named:
		g, c = q.slowest()
	case g != nil:
		c = g.owed(true)
	default:
		c = groupCounts{pending: q.counts.total, behind: q.counts.full, ready: q.counts.full}
	}
	d := DepthInfo{Pending: c.pending, Processing: c.processing, PartitionsPending: c.behind, PartitionsReady: c.ready}
	if g != nil {
		d.Group, d.HasGroup, d.Conflates = g.name, true, g.conflates
	}
	return d, true
}

// Depths counts the backlog of a queue's partitions, in the order of their
// creation, as Depth does: d is what it said. from and limit as in Partitions.
func (s *State) Depths(tenant, queue string, d *DepthInfo, named bool, from, limit int) (out []PartitionDepth, more bool) {
	q := s.findQueue(tenant, queue)
	if q == nil || from >= len(q.parts) {
		return nil, false
	}
	g := q.byGroup[d.Group]
	n := min(limit, len(q.parts)-from, viewSlice/2)
	for _, p := range q.parts[from : from+n] {
		b := backlog{pending: p.total()}
		if d.HasGroup && g != nil {
			b = p.owed(g, p.cursor(g), max(s.time, s.now), named)
		}
		out = append(out, PartitionDepth{Name: p.name, Pending: b.pending, Processing: b.processing})
	}
	return out, from+n < len(q.parts)
}

func (l *deadLetter) info() DeadLetterInfo {
	return DeadLetterInfo{
		ID: l.id, Queue: l.q.name, Partition: l.partition, QueueID: l.q.id, PartitionID: l.partitionID, Offset: l.offset,
		Group: l.group, Error: l.err, RetryCount: l.retries, Failed: l.failed,
		Content: l.message, ContentID: l.value, ContentQueue: l.q.id,
	}
}

// Timer describes a pending timer.
func (s *State) Timer(tenant, queue, key string) (TimerInfo, bool) {
	t, ok := s.timers.Get(timerKey(tenant, queue, key))
	if !ok {
		return TimerInfo{}, false
	}
	return t.info(), true
}

func (t *timer) info() TimerInfo {
	return TimerInfo{
		Queue: t.queue, Partition: t.partition, Key: t.name, DeliverAt: t.due, Txn: t.txnText(), MessageID: t.messageID,
		Attempts: t.attempts, LastError: t.lastError, Created: t.created, Updated: t.updated, Message: t.message, ValueID: t.value,
	}
}

// ListTimers lists pending timers of a queue by key, those after the given one.
func (s *State) ListTimers(tenant, queue, after string, limit int) (rows []TimerInfo, more bool) {
	s.scanTimers(tenant, queue, after, func(t *timer) bool {
		if t.name == after && after != "" {
			return true
		}
		if len(rows) == limit {
			more = true
			return false
		}
		rows = append(rows, t.info())
		return true
	})
	return rows, more
}

// CountTimers counts the pending timers of a queue whose key starts with prefix,
// those after the given key (empty: from the first), a slice's worth. next is
// where to go on; empty: that was all.
func (s *State) CountTimers(tenant, queue, prefix, after string) (n int, next string) {
	s.scanTimers(tenant, queue, max(prefix, after), func(t *timer) bool {
		if len(t.name) < len(prefix) || t.name[:len(prefix)] != prefix {
			return false
		}
		if after != "" && t.name == after {
			return true
		}
		n++
		if n == viewSlice {
			next = t.name
		}
		return n < viewSlice
	})
	return n, next
}

func (s *State) scanTimers(tenant, queue, from string, fn func(*timer) bool) {
	base := timerKey(tenant, queue, "")
	s.timers.Ascend(base+from, func(key string, t *timer) bool {
		return len(key) >= len(base) && key[:len(base)] == base && fn(t)
	})
}

// Counts are the sizes of the state, for metrics and tests.
type Counts struct {
	Queues, Partitions, Groups, Keys, Timers, DeadLetters int
}

// Counts counts the objects of the state.
func (s *State) Counts() Counts {
	return Counts{
		Queues: len(s.queueName), Partitions: len(s.partitions), Groups: len(s.groups), Keys: s.kv.Len(),
		Timers: s.timers.Len(), DeadLetters: len(s.letters),
	}
}
