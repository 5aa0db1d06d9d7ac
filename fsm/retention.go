package fsm

import (
	"slices"
	"sort"
	"sync/atomic"
)

// Retention moves the log start of partitions, and takes idle partitions away. The leader decides by the time of the
// plan and says so in absolute rows; what that frees on a disk is another matter, of each node.
//
// A pass looks at all partitions in slices, so that no number of them holds the loop. Times of messages are on disk:
// where memory does not tell whether the oldest message is too old, a slice asks and is planned again with the answer.

// retention is how far the leader's pass is. None of it is a row.
type retention struct {
	next     int64  // when there is something to do
	began    int64  // of the pass
	cleanup  int64  // when a pass looks for idle partitions again
	walking  bool   // within a pass
	cleaning bool   // this pass looks for idle partitions
	waiting  bool   // a slice waits for its look-ups
	queue    string // key of the queue that comes next
	part     uint64 // id of the partition in it
}

// Removed counts what retention has removed since this process leads, by rule. It is safe to read at any time.
type Removed struct {
	Aged, Completed, Waited atomic.Int64 // messages: retentionSeconds, completedRetentionSeconds, maxWaitTimeSeconds
	Partitions              atomic.Int64 // idle ones
	Failed                  atomic.Int64 // look-ups that failed; the next pass makes them again
}

// Removed is what retention has removed.
func (m *Machine) Removed() *Removed { return &m.removed }

// retire is a slice that needed look-ups.
type retire struct{ items []retireItem }

type retireItem struct {
	partition uint64
	cuts      cuts
	start     uint64 // the log start after the slice
}

// cuts are the times before which a partition's messages are too old; 0: no such rule.
type cuts struct {
	age   int64 // whoever has consumed them
	done  int64 // once every group has passed them
	waits bool  // age is that of maxWaitTimeSeconds
}

// past is now less a number of seconds; 0 when that is before the first time there is.
func past(now, seconds int64) int64 { return max(now-span(seconds, 1_000_000), 0) }

func (o *Options) cuts(now int64) (c cuts) {
	if o.RetentionEnabled && o.RetentionSeconds > 0 {
		c.age = past(now, o.RetentionSeconds)
	}
	if o.RetentionEnabled && o.CompletedRetentionSeconds > 0 {
		c.done = past(now, o.CompletedRetentionSeconds)
	}
	if o.MaxWaitTimeSeconds > 0 {
		if t := past(now, o.MaxWaitTimeSeconds); t > c.age {
			c.age, c.waits = t, true
		}
	}
	return c
}

// outlives is how long, in microseconds, the id of a message is kept although the message is gone: for the window of
// deduplication, and as long as a repeated ack is recognised.
func (o *Options) outlives(least int64) int64 {
	keep := max(o.window(), least)
	if o.RetentionEnabled {
		keep = max(keep, span(o.RetentionSeconds, 1_000_000), span(o.CompletedRetentionSeconds, 1_000_000))
	}
	return keep
}

// retain looks at the next slice of partitions.
func (m *Machine) retain() {
	r := &m.ret
	if r.waiting || m.now < r.next || m.s.queueOrder.Len() == 0 {
		return
	}
	if !r.walking {
		*r = retention{walking: true, began: m.now, cleanup: r.cleanup, cleaning: m.cfg.PartitionCleanup > 0 && m.now >= r.cleanup}
		if r.cleaning {
			r.cleanup = m.now + m.cfg.CleanupEvery
		}
	}
	slice := &retire{}
	c := &Call{Body: slice, internal: true, Done: func(error) {}}
	budget, through := m.cfg.RetentionBatch, true
	m.s.queueOrder.Ascend(r.queue, func(key string, q *queue) bool {
		if budget <= 0 {
			through = false
			return false
		}
		if key != r.queue {
			r.queue, r.part = key, 0
		}
		if cut := q.opts.cuts(m.now); cut != (cuts{}) || r.cleaning {
			through = m.retainQueue(c, slice, q, cut, &budget)
		}
		if budget--; through {
			r.queue, r.part = key+"\x00", 0 // the next one has a name above
		}
		return through
	})
	r.next = m.now + int64(m.cfg.RetentionBatch)*1_000_000/int64(m.cfg.RetentionScan)
	if through {
		r.walking, r.next = false, max(r.began+m.cfg.RetentionEvery, m.now+1)
	}
	if len(slice.items) > 0 {
		r.waiting = true
		m.prepare = append(m.prepare, c)
	}
}

// retainQueue looks at partitions of a queue from r.part on. It reports whether that were all.
func (m *Machine) retainQueue(c *Call, slice *retire, q *queue, cut cuts, budget *int) bool {
	r := &m.ret
	from := sort.Search(len(q.parts), func(i int) bool { return q.parts[i].id >= r.part })
	i, gone := from, 0
	for ; i < len(q.parts) && *budget > 0; i++ {
		p := q.parts[i]
		r.part = p.id + 1
		*budget--
		if p.start < p.next && cut != (cuts{}) {
			rows, lookup := m.retainPartition(c, p, cut)
			if *budget -= rows; lookup {
				slice.items = append(slice.items, retireItem{partition: p.id, cuts: cut})
			}
		}
		if r.cleaning && m.idle(p) {
			m.dropPartition(p)
			*budget -= 2 + len(p.cursors)
			gone++
		}
	}
	if gone > 0 {
		q.closeGap(from, i, gone)
	}
	return i-gone == len(q.parts)
}

// planRetire plans a slice again, with its look-ups made.
func (m *Machine) planRetire(c *Call, slice *retire) verdict {
	m.ret.waiting = false
	for i := range slice.items {
		it := &slice.items[i]
		p := m.s.partitions[it.partition]
		if p == nil || p.q.deleted {
			continue
		}
		if it.start = p.start; p.start == p.next {
			continue
		}
		// An option that was changed meanwhile may keep more; the next pass asks again.
		if now := p.q.opts.cuts(m.now); it.cuts.age <= now.age && it.cuts.done <= now.done {
			m.retainPartition(c, p, it.cuts)
			it.start = p.start
		}
	}
	for i := range c.needs {
		if c.needs[i].err != nil {
			m.removed.Failed.Add(1)
		}
	}
	return instantly
}

// retainPartition moves the log start of a partition as far as its rules say. rows is how many rows that wrote.
func (m *Machine) retainPartition(c *Call, p *partition, cut cuts) (rows int, lookup bool) {
	aged, need := p.start, false
	if cut.age > 0 {
		aged, need = m.firstSince(c, p, cut.age)
	}
	done := p.start
	if floor := p.floor(); cut.done > cut.age && floor > p.start && !need {
		done, need = m.firstSince(c, p, cut.done)
		done = min(done, floor)
	}
	if need {
		return 0, true
	}
	if n := int64(max(aged, p.start) - p.start); cut.waits {
		m.removed.Waited.Add(n)
	} else {
		m.removed.Aged.Add(n)
	}
	m.removed.Completed.Add(int64(max(done, aged, p.start) - max(aged, p.start)))
	if start := max(aged, done); start > p.start {
		rows = m.moveStart(p, start)
	}
	return rows, false
}

// firstSince is the first retained offset that was appended at or after t. What is not known stays.
func (m *Machine) firstSince(c *Call, p *partition, t int64) (offset uint64, lookup bool) {
	switch {
	case p.lastAppend < t:
		return p.next, false
	case p.oldest >= t || p.created >= t:
		return p.start, false
	}
	n := c.needAt(need{kind: needRetire, queue: p.q.id, partition: p.id, time: t})
	switch {
	case n == nil:
		return p.start, true
	case n.err != nil || !n.found || len(n.runs) == 0:
		return p.start, false
	}
	if n.at >= p.start || n.runs[0].end() > p.start {
		p.oldest = max(p.oldest, min(n.runs[0].time, p.lastAppend))
	}
	return max(n.at, p.start), false
}

// floor is the offset up to which every group has settled the partition; the log start when none reads it.
func (p *partition) floor() uint64 {
	floor, read := p.next, false
	for _, g := range p.q.groups {
		c := p.cursor(g)
		if c != nil && c.stale() {
			c = nil
		}
		switch {
		case c != nil:
			floor, read = min(floor, uint64(c.committed+1)), true
		case g.rule.mode == SubscribeNew && p.id < g.rule.partition, g.places(p) && g.rule.mode == SubscribeFrom && p.lastAppend < g.rule.from:
			// It starts after what is there. One that a seek has put there has passed it.
			read = read || g.places(p)
		default:
			return p.start
		}
	}
	if !read {
		return p.start
	}
	return max(floor, p.start)
}

// moveStart makes start the lowest retained offset. A cursor that is below it goes on there.
func (m *Machine) moveStart(p *partition, start uint64) (rows int) {
	p.start = start
	if start == p.next {
		p.oldest = 0
	}
	m.put(p)
	m.countMessages(p)
	rows = 1
	for _, c := range p.cursors {
		if !c.g.exists {
			continue
		}
		if c.committed+1 < int64(start) {
			m.passStart(c)
			m.refresh(c)
			rows++
		} else {
			m.count(c)
		}
	}
	return rows
}

// passStart moves a cursor that is below its partition's log start there.
func (m *Machine) passStart(c *cursor) {
	if c.committed+1 >= int64(c.p.start) {
		return
	}
	c.committed, c.retries = int64(c.p.start)-1, 0 // what was retried is gone
	m.absorb(c)
	if c.row {
		m.put(c)
	}
	m.count(c)
}

// idle reports whether nothing of a partition would be missed: no message, no dead letter, no lease, no write for long,
// and no id that a push could still repeat.
func (m *Machine) idle(p *partition) bool {
	quiet := max(m.cfg.PartitionCleanup, p.q.opts.outlives(m.cfg.TxnWindowMin))
	if p.start < p.next || p.letters > 0 || m.now-max(p.lastAppend, p.created) < quiet {
		return false
	}
	return !slices.ContainsFunc(p.cursors, func(c *cursor) bool {
		return c.g.exists && (c.liveLease(m.now) != nil || c.holdUntil > m.now)
	})
}

// dropPartition removes an idle partition with its cursors. Its place in the queue's list stays for closeGap.
func (m *Machine) dropPartition(p *partition) {
	for _, c := range p.cursors {
		m.clearLease(c)
		m.setWake(c, 0)
		m.unready(c)
		c.row = false
		m.count(c)
	}
	p.exists = false
	p.q.recency.remove(p)
	p.q.names.removed(p)
	m.forgetWatched(p)
	delete(m.s.partitions, p.id)
	delete(p.q.byName, p.name)
	for _, kind := range []byte{rowCursor, rowSettled} {
		m.removeRange(rowKey(nil, kind, p.q.id, p.id), rowKey(nil, kind, p.q.id, p.id+1))
	}
	m.remove(p)
	m.removed.Partitions.Add(1)
	s := m.tally(p.q)
	s.cur.PartitionsDeleted++
	s.up.cur.PartitionsDeleted++
}

// closeGap takes the partitions that are gone, all of them in [from, to), out of the list. Groups that were sweeping
// look at a few again.
func (q *queue) closeGap(from, to, gone int) {
	kept := slices.DeleteFunc(q.parts[from:to], func(p *partition) bool { return !p.exists })
	q.parts = slices.Delete(q.parts, from+len(kept), to)
	q.names.shifted(from, gone)
	for _, g := range q.groups {
		if g.sweep > from {
			g.sweep = max(from, g.sweep-gone)
		}
	}
	if q.reviewed > from {
		q.reviewed = max(from, q.reviewed-gone)
	}
}
