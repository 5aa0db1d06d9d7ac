package fsm

import (
	"fmt"
	"slices"
)

// Consumer groups in the model: a seek and a removal change every cursor at once.

// findGroup is a group that is there already; nil: it is not.
func (m *model) findGroup(tenant, queue, name string) (*mQueue, *mGroup) {
	q := m.queue(tenant, queue)
	if q == nil {
		return nil, nil
	}
	return q, q.groups[name]
}

func (m *model) seek(tenant string, s *Seek) {
	q, g := m.findGroup(tenant, s.Queue, s.Group)
	want := SeekDone
	switch {
	case q == nil:
		want = SeekNoQueue
	case s.OnPartition && q.parts[s.Partition] == nil, !s.OnPartition && len(q.order) == 0:
		want = SeekNoPartition
	case g == nil:
		want = SeekNoGroup
	}
	m.expect("outcome of a seek", s.Outcome, want)
	if want != SeekDone {
		m.expect("partitions of a refused seek", s.Partitions, 0)
		return
	}
	parts := q.order
	if s.OnPartition {
		parts = []*mPart{q.parts[s.Partition]}
	} else {
		g.moved, g.bytime = true, s.To == SeekTime && s.Time <= m.now
	}
	m.expect("partitions of a seek", s.Partitions, len(parts))
	for _, p := range parts {
		p.cursors[g.name] = newMCursor(int64(m.seekTo(p, s)) - 1)
	}
}

// seekTo is the offset that a group reads next on a partition after a seek.
func (m *model) seekTo(p *mPart, s *Seek) uint64 {
	switch s.To {
	case SeekBeginning:
		return p.start
	case SeekOffset:
		return min(max(s.Offset, p.start), uint64(len(p.msgs)))
	case SeekTime:
		for o, msg := range p.msgs {
			if msg.time >= s.Time && uint64(o) >= p.start {
				return uint64(o)
			}
		}
	}
	return uint64(len(p.msgs))
}

func (m *model) deleteGroup(tenant string, d *DeleteGroup) {
	removed, cursors := 0, int64(0)
	for _, q := range m.sorted(tenant) {
		g := q.groups[d.Group]
		if g == nil || d.OneQueue && q.name != d.Queue {
			continue
		}
		removed++
		for _, p := range q.order {
			if p.cursors[d.Group] != nil {
				cursors++
				delete(p.cursors, d.Group)
			}
		}
		delete(q.groups, d.Group)
		if d.Metadata {
			m.sentAway = append(m.sentAway, g.waiters...)
			continue
		}
		again := *g
		again.moved, again.bytime = false, false
		if again.mode, again.from = again.base.mode, again.base.from; again.mode == SubscribeNew {
			again.mode, again.from = SubscribeFrom, again.created
		}
		again.old = map[*mPart]bool{}
		for _, p := range q.order {
			again.old[p] = true
		}
		q.groups[d.Group] = &again
	}
	m.expect("queues that a group was removed from", d.Removed, removed)
	m.expect("cursors of a removed group", d.Cursors, cursors)
}

func (m *model) pause(tenant string, p *PauseGroup) {
	_, g := m.findGroup(tenant, p.Queue, p.Group)
	m.expect("a group to be paused is found", p.Found, g != nil)
	if g != nil {
		g.paused = p.Paused
	}
}

func (m *model) subscribe(tenant string, s *Subscribe) {
	n := 0
	for _, q := range m.sorted(tenant) {
		g := q.groups[s.Group]
		if g == nil {
			continue
		}
		n++
		g.base.mode, g.base.from = SubscribeFrom, s.From
		if !g.moved {
			g.mode, g.from = g.base.mode, g.base.from
		}
	}
	m.expect("registrations changed", s.Updated, n)
}

func (m *model) releaseWorker(tenant string, r *ReleaseWorker) {
	n := 0
	for _, q := range m.sorted(tenant) {
		for _, p := range q.order {
			for _, c := range p.cursors {
				if l := c.live(m.now); l != nil && l.worker == r.Worker {
					c.lease = nil
					n++
				}
			}
		}
	}
	m.expect("leases released", r.Released, n)
}

// placedCursor is the machine's cursor, also where a seek has put the group
// without a row of its own; unknown: that is still being looked up.
func placedCursor(p *partition, g *group) (c *cursor, unknown bool) {
	if c = p.cursor(g); c != nil && c.row || !g.places(p) {
		return c, false
	}
	c = &cursor{p: p, g: g, row: true}
	switch {
	case g.rule.mode == SubscribeNew, p.lastAppend < g.rule.from:
		c.committed = int64(p.next) - 1
	case g.rule.mode == SubscribeAll, p.start == p.next:
		c.committed = int64(p.start) - 1
	default:
		return nil, !g.rule.placed
	}
	return c, false
}

// placedAll reports whether the machine can count what its groups on a queue owe.
func placedAll(q *queue) bool {
	return !slices.ContainsFunc(q.groups, func(g *group) bool { return g.rule.moved && g.rule.mode == SubscribeFrom && !g.rule.placed })
}

// settleGroups lets the sweepers of groups come to their end.
func (x *modelRun) settleGroups() {
	if x.planted != nil {
		return
	}
	m := x.r.m
	for n := 0; len(m.s.dying) > 0 || len(m.placing) > 0; n++ {
		if n > 200 {
			x.r.t.Fatalf("%d groups are still dying, %d being placed", len(m.s.dying), len(m.placing))
		}
		x.r.now = x.r.last + 1
		x.cycle(nil)
		x.settleHeld()
	}
	for _, q := range m.s.queues {
		for _, p := range q.parts {
			for _, c := range p.cursors {
				x.m.expect("the group of a cursor exists", c.g.exists || q.deleted, true)
			}
		}
	}
}

func (x *modelRun) groupCall() (any, string) {
	switch x.pick(9) {
	default:
		return x.seek()
	case 5:
		d := &DeleteGroup{Group: x.groupName(), Queue: x.queueName(), OneQueue: !x.oneIn(3), Metadata: !x.oneIn(3)}
		return d, fmt.Sprintf("delete group %+v", *d)
	case 6:
		p := &PauseGroup{Queue: x.queueName(), Group: x.groupName(), Paused: x.oneIn(3)}
		return p, fmt.Sprintf("pause %+v", *p)
	case 7:
		s := &Subscribe{Group: x.groupName(), From: x.someTime()}
		return s, fmt.Sprintf("subscribe %s %d", s.Group, s.From-startTime)
	case 8:
		r := &ReleaseWorker{Worker: choose(x, "w1", "w2")}
		return r, "release " + r.Worker
	}
}

func (x *modelRun) seek() (any, string) {
	s := &Seek{Queue: x.queueName(), Group: x.groupName(), OnPartition: x.oneIn(2), To: SeekTarget(x.pick(4)), Time: x.someTime(), Offset: uint64(x.pick(12))}
	switch {
	case s.OnPartition:
		s.Partition = x.partName()
	case s.To == SeekOffset:
		s.To = SeekTime
	}
	if list := x.places(false); len(list) > 0 && !x.oneIn(4) {
		at := list[x.pick(len(list))]
		s.Queue, s.Group = at.part.q.name, at.group
	}
	return s, fmt.Sprintf("seek %s/%s of %s (%v) to %d: time %d offset %d", s.Queue, s.Partition, s.Group, s.OnPartition, s.To, s.Time-startTime, s.Offset)
}

// someTime is now, around the time of some message, or what is to come.
func (x *modelRun) someTime() int64 {
	if list := x.places(false); len(list) > 0 && !x.oneIn(4) {
		if p := list[x.pick(len(list))].part; len(p.msgs) > 0 {
			return p.msgs[x.pick(len(p.msgs))].time + int64(x.pick(3)) - 1
		}
	}
	return x.r.now + choose(x, int64(-2_000_000), -1, 0, 1_000_000)
}
