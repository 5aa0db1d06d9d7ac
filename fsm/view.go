package fsm

import "math"

// This file is what reads see of the state: copies, bounded by their limits.

// Queues lists queues by name, those after the given one; limit at least 1.
func (s *State) Queues(tenant, after string, limit int) []QueueInfo {
	var out []QueueInfo
	s.queueOrder.Ascend(tenant+after, func(key string, q *queue) bool {
		if q.tenant != tenant || len(out) == limit {
			return false
		}
		if after == "" || q.name != after {
			out = append(out, s.queueInfo(q))
		}
		return true
	})
	return out
}

// Queue describes one queue.
func (s *State) Queue(tenant, name string) (QueueInfo, bool) {
	q := s.findQueue(tenant, name)
	if q == nil {
		return QueueInfo{}, false
	}
	return s.queueInfo(q), true
}

func (s *State) queueInfo(q *queue) QueueInfo {
	info := QueueInfo{
		ID: q.id, Name: q.name, Created: q.created, Options: q.opts, Partitions: len(q.parts), DeadLetters: int64(q.letters.Len()),
	}
	for _, p := range q.parts {
		b := p.backlog(max(s.time, s.now), nil)
		info.Total += b.total
		info.Pending += b.pending
		info.Processing += b.processing
		info.Completed += b.total - b.pending
		if b.total > 0 {
			info.NewestMessage = max(info.NewestMessage, p.lastAppend)
			if info.OldestMessage == 0 || p.created < info.OldestMessage {
				info.OldestMessage = p.created
			}
		}
	}
	return info
}

type backlog struct{ total, pending, processing int64 }

// backlog counts a partition's messages for one group, or (g nil) for the
// slowest. A group without a cursor owes the whole retained range.
func (p *partition) backlog(now int64, g *group) backlog {
	b := backlog{total: int64(p.next - p.start)}
	if g == nil && len(p.q.groups) == 0 {
		b.pending = b.total
		return b
	}
	for _, o := range p.q.groups {
		if g != nil && o != g {
			continue
		}
		pending, processing := b.total, int64(0)
		if c := p.cursor(o); c != nil && c.row {
			pending, processing = c.backlog(now)
		} else if o.mode == SubscribeNew && p.id < o.startPartition && g == nil {
			pending = 0 // it starts after what is there
		}
		if pending > b.pending || pending == b.pending && processing > b.processing {
			b.pending, b.processing = pending, processing
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

// Partitions lists a queue's partitions in the order of their creation.
func (s *State) Partitions(tenant, queue string, offset, limit int) []PartitionInfo {
	q := s.findQueue(tenant, queue)
	if q == nil || offset >= len(q.parts) {
		return nil
	}
	parts := q.parts[max(offset, 0):]
	out := make([]PartitionInfo, 0, min(limit, len(parts)))
	for _, p := range parts[:min(limit, len(parts))] {
		b := p.backlog(max(s.time, s.now), nil)
		out = append(out, PartitionInfo{
			ID: p.id, Name: p.name, Created: p.created, LogStart: p.start, Next: p.next, LastAppend: p.lastAppend,
			Total: b.total, Pending: b.pending, Processing: b.processing, DeadLetters: int64(p.letters),
		})
	}
	return out
}

// Depth counts the backlog of a queue; at most limit partitions are listed by
// themselves.
func (s *State) Depth(tenant, queue, groupName string, hasGroup bool, limit int) (DepthInfo, bool) {
	q := s.findQueue(tenant, queue)
	if q == nil {
		return DepthInfo{}, false
	}
	var g *group
	unmet := false
	if hasGroup {
		g = q.byGroup[groupName]
		unmet = g == nil
	}
	var d DepthInfo
	for _, p := range q.parts {
		b := p.backlog(max(s.time, s.now), g)
		if unmet {
			b.pending, b.processing = b.total, 0
		}
		d.Pending += b.pending
		d.Processing += b.processing
		if b.pending > 0 {
			d.PartitionsPending++
		}
		if b.pending > b.processing {
			d.PartitionsReady++
		}
		if len(d.Partitions) < limit {
			d.Partitions = append(d.Partitions, PartitionDepth{Name: p.name, Pending: b.pending, Processing: b.processing})
		}
	}
	return d, true
}

// DeadLetters lists dead letters, newest failure first.
func (s *State) DeadLetters(tenant string, f DeadLetterFilter) []DeadLetterInfo {
	var out []DeadLetterInfo
	skip := f.Offset
	visit := func(l *deadLetter) bool {
		if f.Group != "" && l.group != f.Group || f.Partition != "" && l.partition != f.Partition ||
			f.From != 0 && l.failed < f.From || f.To != 0 && l.failed > f.To {
			return true
		}
		if skip > 0 {
			skip--
			return true
		}
		if len(out) == f.Limit {
			return false
		}
		out = append(out, l.info())
		return true
	}
	if f.Queue != "" {
		if q := s.findQueue(tenant, f.Queue); q != nil {
			q.letters.Reverse(func(_ string, l *deadLetter) bool { return visit(l) })
		}
		return out
	}
	for _, l := range s.lettersOf(tenant) {
		if !visit(l) {
			break
		}
	}
	return out
}

// lettersOf merges the dead letters of all queues of a tenant, newest first.
func (s *State) lettersOf(tenant string) []*deadLetter {
	var all []*deadLetter
	s.queueOrder.Ascend(tenant, func(_ string, q *queue) bool {
		if q.tenant != tenant {
			return false
		}
		q.letters.Scan(func(_ string, l *deadLetter) bool { all = append(all, l); return true })
		return true
	})
	sortLetters(all)
	return all
}

func (l *deadLetter) info() DeadLetterInfo {
	return DeadLetterInfo{
		ID: l.id, Queue: l.q.name, Partition: l.partition, QueueID: l.q.id, PartitionID: l.partitionID, Offset: l.offset,
		Group: l.group, Error: l.err, RetryCount: l.retries, Failed: l.failed,
		Content: l.message, ContentID: l.value, ContentQueue: l.q.id,
	}
}

// DeadLetterAt finds the newest dead letter of a message.
func (s *State) DeadLetterAt(tenant string, partitionID uint64, match func(DeadLetterInfo) bool) (DeadLetterInfo, bool) {
	p := s.findPartition(tenant, partitionID)
	if p == nil {
		return DeadLetterInfo{}, false
	}
	var found DeadLetterInfo
	ok := false
	p.q.letters.Reverse(func(_ string, l *deadLetter) bool {
		if l.partitionID == partitionID {
			if info := l.info(); match(info) {
				found, ok = info, true
			}
		}
		return !ok
	})
	return found, ok
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

// CountTimers counts the pending timers of a queue whose key starts with prefix.
func (s *State) CountTimers(tenant, queue, prefix string) int {
	n := 0
	s.scanTimers(tenant, queue, prefix, func(t *timer) bool {
		if len(t.name) < len(prefix) || t.name[:len(prefix)] != prefix {
			return false
		}
		n++
		return true
	})
	return n
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

// Messages is the number of retained messages of a queue; -1: no such queue.
// It is what a metric shows, so it looks at no group.
func (s *State) Messages(tenant, name string) int64 {
	q := s.findQueue(tenant, name)
	if q == nil {
		return -1
	}
	n := int64(0)
	for _, p := range q.parts {
		n += int64(min(p.next-p.start, math.MaxInt32))
	}
	return n
}
