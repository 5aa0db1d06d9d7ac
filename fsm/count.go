package fsm

import (
	"slices"

	"queen/internal/invariants"
)

// What listings and metrics say of a queue is kept in counters, so that nobody
// has to look at all partitions for it (F24). They are derived: built at the end
// of a replay, and brought up to date where a partition or a cursor changes. A
// lease that expires changes them when its cursor is woken.

// queueCounts are over the partitions of a queue.
type queueCounts struct {
	total int64 // retained messages
	full  int64 // partitions that retain some
}

// groupCounts are over the partitions that have a cursor of a group.
type groupCounts struct {
	total, pending, processing int64
	full                       int64 // partitions that retain messages
	behind                     int64 // those that owe some
	leased                     int64 // those under a live lease
	ready                      int64 // those that owe more than is leased
	// cursors are there; old of them on partitions that are older than the
	// group's start; consumed of them have passed a message.
	cursors, old, consumed int64
}

// cursorCount is what a cursor has in the counters of its group.
type cursorCount struct{ total, pending, processing int64 }

func (g *groupCounts) add(c cursorCount, by int64) {
	g.total += by * c.total
	g.pending += by * c.pending
	g.processing += by * c.processing
	if c.total > 0 {
		g.full += by
	}
	if c.pending > 0 {
		g.behind += by
	}
	if c.pending > c.processing {
		g.ready += by
	}
	if c.processing > 0 {
		g.leased += by
	}
}

// count brings the counters of a group in line with one of its cursors.
func (m *Machine) count(c *cursor) {
	var now cursorCount
	if c.row {
		now.pending, now.processing = c.backlog(m.now)
		now.total = c.p.total()
	}
	if c.row != c.tallied || c.row && c.consumed != (c.committed >= 0) {
		c.tally()
	}
	if now != c.counted {
		c.g.counts.add(c.counted, -1)
		c.g.counts.add(now, 1)
		c.counted = now
	}
}

// tally brings the numbers of a group's cursors in line with one of them.
func (c *cursor) tally() {
	g, old := &c.g.counts, c.p.id < c.g.rule.partition
	by := func(row, consumed bool, n int64) {
		if row {
			g.cursors += n
		}
		if row && old {
			g.old += n
		}
		if row && consumed {
			g.consumed += n
		}
	}
	by(c.tallied, c.consumed, -1)
	c.tallied, c.consumed = c.row, c.row && c.committed >= 0
	by(c.tallied, c.consumed, 1)
}

// members is on how many partitions a group has a place.
func (g *group) members() int64 {
	n := g.counts.cursors
	if g.rule.moved {
		n += int64(g.q.partsAt(g.rule.partition)) - g.counts.old
	}
	return n
}

// countMessages brings the counters of a queue in line with one of its
// partitions. Those of the groups follow with its cursors (refresh).
func (m *Machine) countMessages(p *partition) {
	q, now := &p.q.counts, p.total()
	if was := p.counted; was == 0 && now > 0 {
		q.full++
	} else if was > 0 && now == 0 {
		q.full--
	}
	q.total += now - p.counted
	p.counted = now
}

func (p *partition) total() int64 { return int64(p.next - p.start) }

// owed are the counters of a group over all partitions of its queue. One that
// the group has not met owes all that it retains; named false: unless the group
// starts after what is there.
func (g *group) owed(named bool) groupCounts {
	c := g.counts
	if q := &g.q.counts; named && !g.rule.moved || g.rule.mode != SubscribeNew {
		unmet := q.full - c.full
		c.pending += q.total - c.total
		c.behind += unmet
		c.ready += unmet
	}
	return c
}

// slowest is the group of a queue that owes most; nil: the queue has none.
func (q *queue) slowest() (g *group, c groupCounts) {
	for _, o := range q.groups {
		if b := o.owed(false); g == nil || b.pending > c.pending || b.pending == c.pending && b.processing > c.processing {
			g, c = o, b
		}
	}
	if g == nil {
		c = groupCounts{pending: q.counts.total, behind: q.counts.full, ready: q.counts.full}
	}
	return g, c
}

// recountLimit is up to how many partitions of a queue the counters are checked.
const recountLimit = 200

// checkCounts compares the counters with what is counted anew.
func (m *Machine) checkCounts() {
	if !invariants.Enabled || !m.derived {
		return
	}
	m.s.checkSpaces()
	for _, q := range m.s.queues {
		if q.deleted || len(q.parts) > recountLimit {
			continue
		}
		var want queueCounts
		groups := map[*group]groupCounts{}
		for _, p := range q.parts {
			if p.total() > 0 {
				want.full++
			}
			want.total += p.total()
			sorted := slices.IsSortedFunc(p.cursors, func(a, b *cursor) int { return compareID(a.g.id, b.g.id) })
			invariants.Check(sorted, "the cursors of partition %d are ordered by group", p.id)
			for _, c := range p.cursors {
				if c.row {
					g := groups[c.g]
					pending, processing := c.backlog(m.now)
					g.add(cursorCount{p.total(), pending, processing}, 1)
					g.cursors++
					g.old += int64(flag(p.id < c.g.rule.partition))
					g.consumed += int64(flag(c.committed >= 0))
					groups[c.g] = g
				}
			}
		}
		invariants.Check(q.counts == want, "the counters of queue %d: kept %+v, counted %+v", q.id, q.counts, want)
		for _, g := range q.groups {
			invariants.Check(g.counts == groups[g], "the counters of group %d: kept %+v, counted %+v", g.id, g.counts, groups[g])
		}
	}
}
