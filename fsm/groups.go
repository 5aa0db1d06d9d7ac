package fsm

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
)

// This file is the life of a consumer group: where it starts, how it gets new
// cursors all at once, and how it goes.
//
// A seek of a whole queue and the removal of a group concern all cursors of the
// group, and may not look at them (F24). So cursors belong to an incarnation of
// their group, which is its id: such a call ends the incarnation and begins
// another one of the same name without cursors, and with a rule that says where
// it starts. What is asked from then on (pops, acks, counts) finds the new one;
// the cursors of the old one are removed in slices.

// startRule says where a group stands on the partitions that it has no cursor on.
type startRule struct {
	mode SubscriptionMode
	from int64 // SubscribeFrom, microseconds
	// partition is the partition counter when the rule was made: a partition with
	// a lower id existed then. The others are read from their first message.
	partition uint64
	// moved: a seek has put the group on every partition that existed, so it has a
	// place there, with or without a cursor.
	moved bool
	// placed: every partition that needed a look-up has its cursor (moved and
	// SubscribeFrom only).
	placed bool
}

// groupMark is what a group's row of the first version has no room for. It has a
// row of its own, which only groups have that were paused, moved or removed.
type groupMark struct {
	g       *group
	deleted bool // the group is gone; its cursors wait for the sweeper
	paused  bool
	rule    *startRule // nil: that of the registration
	exists  bool
	dirty   bool
}

const (
	markDeleted = 1
	markPaused  = 2
	markRule    = 4
	markMoved   = 8
	markPlaced  = 16
	markFlags   = 31
)

func (k *groupMark) encode(dst []byte) []byte {
	flags := flag(k.deleted)*markDeleted | flag(k.paused)*markPaused
	if r := k.rule; r != nil {
		flags |= markRule | flag(r.moved)*markMoved | flag(r.placed)*markPlaced
	}
	dst = append(dst, flags)
	if r := k.rule; r != nil {
		dst = append(dst, byte(r.mode))
		dst = binary.AppendVarint(dst, r.from)
		dst = binary.AppendUvarint(dst, r.partition)
	}
	return dst
}

func (k *groupMark) decode(b []byte) error {
	r := rowReader{b: b}
	flags := r.byte()
	if flags&^markFlags != 0 {
		return fmt.Errorf("marks of a group with flags %#x, this build reads %#x: they were written by a newer build, start that one", flags, markFlags)
	}
	k.deleted, k.paused, k.rule = flags&markDeleted != 0, flags&markPaused != 0, nil
	if flags&markRule != 0 {
		k.rule = &startRule{
			mode: SubscriptionMode(r.byte()), from: r.varint(), partition: r.uvarint(),
			moved: flags&markMoved != 0, placed: flags&markPlaced != 0,
		}
	}
	return r.end()
}

func (k *groupMark) appendKey(dst []byte) []byte {
	return rowKey(dst, rowGroupMark, k.g.q.id, k.g.id)
}
func (k *groupMark) alive() bool          { return k.exists }
func (k *groupMark) setDirty(v bool) bool { return swap(&k.dirty, v) }

// loadMark puts or removes a group's marks.
func (m *Machine) loadMark(qid, gid uint64, keyErr error, value []byte, changed bool) error {
	if keyErr != nil {
		return keyErr
	}
	g := m.s.loadGroup(qid, gid)
	if value == nil {
		if g.mark != nil {
			g.mark.exists = false
		}
		return nil
	}
	if g.mark == nil {
		g.mark = &groupMark{g: g}
	}
	g.mark.exists = true
	if changed {
		m.touch(g.mark)
	}
	return g.mark.decode(value)
}

// dying reports whether a group is gone and its cursors are not yet.
func (g *group) dying() bool { return !g.exists && g.mark != nil && g.mark.exists && g.mark.deleted }

func (g *group) paused() bool { return g.mark != nil && g.mark.paused }

// setRule makes the rule from the rows.
func (g *group) setRule() {
	g.rule = startRule{mode: g.mode, from: g.from, partition: g.startPartition}
	if g.mark != nil && g.mark.exists && g.mark.rule != nil {
		g.rule = *g.mark.rule
	}
}

// places reports whether a seek has put the group on the partition.
func (g *group) places(p *partition) bool { return g.rule.moved && p.id < g.rule.partition }

// groupKeyOf is a group's key in the order of all groups: by tenant and name,
// those of one name by queue. NUL in a name is escaped, so that no name runs
// into the next one.
func groupKeyOf(tenant, group, queue string) string {
	if strings.IndexByte(group, 0) >= 0 {
		group = strings.ReplaceAll(group, "\x00", "\x00\xff")
	}
	return tenant + group + "\x00\x01" + queue
}

func (g *group) orderKey() string { return groupKeyOf(g.q.tenant, g.name, g.q.name) }

// addGroup makes a group known by its name.
func (m *Machine) addGroup(g *group) {
	m.s.groups[g.id] = g
	g.q.groups = append(g.q.groups, g)
	g.q.byGroup[g.name] = g
	m.s.groupOrder.Set(g.orderKey(), g)
}

// dropGroup ends an incarnation of a group: by one row, whatever it has read.
func (m *Machine) dropGroup(g *group) {
	q := g.q
	g.exists = false
	q.groups = slices.DeleteFunc(q.groups, func(o *group) bool { return o == g })
	delete(q.byGroup, g.name)
	m.s.groupOrder.Delete(g.orderKey())
	m.remove(g)
	if g.mark == nil {
		g.mark = &groupMark{g: g}
	}
	g.mark.exists, g.mark.deleted, g.mark.paused, g.mark.rule = true, true, false, nil
	m.put(g.mark)
	g.readyHead, g.readyTail, g.ready, g.swept = nil, nil, 0, 0
	q.dying = append(q.dying, g)
	m.s.dying = append(m.s.dying, g)
}

// renewGroup begins another incarnation of a group, without cursors: rule is where it
// starts. What waits goes on waiting.
func (m *Machine) renewGroup(g *group, rule startRule) *group {
	n := new(group)
	*n = *g
	n.id, n.exists, n.dirty = m.s.meta.group, true, false
	m.s.meta.group++
	n.readyHead, n.readyTail, n.ready, n.sweep, n.swept, n.epoch = nil, nil, 0, 0, 0, 0
	n.counts, n.pending = groupCounts{}, false
	n.mark = &groupMark{g: n, paused: g.paused(), rule: &rule, exists: true}
	n.setRule()
	g.waiters = waiters{}
	for _, w := range n.waiters.list {
		w.g = n
	}
	m.dropGroup(g)
	m.addGroup(n)
	m.put(n)
	m.put(n.mark)
	m.heat(n)
	return n
}

// sweepDying removes cursors of incarnations that have ended.
func (m *Machine) sweepDying() {
	for budget := sweepSliceRows; budget > 0 && len(m.s.dying) > 0; {
		g := m.s.dying[0]
		if !g.q.deleted && !m.sweepGroupOf(g, &budget) {
			return
		}
		m.s.dying = m.s.dying[1:] // of a deleted queue, its own sweeper takes them
	}
}

// sweepGroupOf removes the cursors of an incarnation that has ended, and it with
// the last of them; false: there are more than the budget allows.
func (m *Machine) sweepGroupOf(g *group, budget *int) bool {
	q := g.q
	i := q.partsAt(g.swept)
	for ; *budget > 0 && i < len(q.parts); i++ {
		p := q.parts[i]
		g.swept = p.id + 1
		*budget--
		if c := p.cursor(g); c != nil {
			m.removeCursor(c)
		}
	}
	if i < len(q.parts) {
		return false
	}
	*budget--
	g.mark.exists = false
	m.remove(g.mark)
	delete(m.s.groups, g.id)
	q.dying = slices.DeleteFunc(q.dying, func(o *group) bool { return o == g })
	return true
}

// removeCursor removes the cursor of a group that is gone. Rows of sets that it
// had passed may stay in checkpoints until the next whole one: nothing finds
// them, since the group's id does not come back.
func (m *Machine) removeCursor(c *cursor) {
	m.clearLease(c)
	m.setWake(c, 0)
	if c.row {
		if c.sets != nil {
			m.removeRange(c.settledRange())
		}
		c.row, c.sets = false, nil
		m.remove(c)
	}
	c.p.takeCursor(c)
}

func (p *partition) takeCursor(c *cursor) {
	if i := p.cursorAt(c.g); i < len(p.cursors) && p.cursors[i] == c {
		p.cursors = slices.Delete(p.cursors, i, i+1)
	}
}

// partsAt is the index of the queue's first partition with an id of at least id.
func (q *queue) partsAt(id uint64) int {
	i, _ := slices.BinarySearchFunc(q.parts, id, func(p *partition, id uint64) int { return compareID(p.id, id) })
	return i
}

// stale reports whether a cursor without a row was made under a start of its
// group that is not true any more.
func (c *cursor) stale() bool { return c.epoch != c.g.epoch && !c.row }

// forget drops a stale cursor: the group meets the partition anew.
func (m *Machine) forget(c *cursor) {
	m.unready(c)
	m.setWake(c, 0)
	c.p.takeCursor(c)
}

// met is the cursor of a group on a partition; nil: the group has not met it
// since its start was last changed.
func (m *Machine) met(p *partition, g *group) *cursor {
	c := p.cursor(g)
	if c != nil && c.stale() {
		m.forget(c)
		return nil
	}
	return c
}

// place gives the cursor, with or without a row, of a group on a partition where
// a seek has put it. Where a time has put it that takes a look-up.
func (m *Machine) place(call *Call, p *partition, g *group) (c *cursor, lookup bool) {
	if c = m.met(p, g); c != nil {
		return c, false
	}
	next, lookup := m.placeOf(call, p, g.rule.mode, g.rule.from)
	if lookup {
		return nil, true
	}
	c = m.newCursor(p, g, int64(next)-1)
	m.refresh(c)
	return c, false
}

// placeOf is the next offset of a group that a seek moves, or has moved, on a
// partition. A time that the partition reaches must be looked up; the answer is
// the same whenever it is asked, since what is appended later is later.
func (m *Machine) placeOf(call *Call, p *partition, mode SubscriptionMode, from int64) (next uint64, lookup bool) {
	switch {
	case mode == SubscribeNew, mode == SubscribeFrom && p.lastAppend < from:
		return p.next, false
	case mode == SubscribeAll, p.start == p.next, p.created >= from:
		return p.start, false
	}
	n := call.needAt(need{kind: needTime, queue: p.q.id, partition: p.id, time: from})
	if n == nil {
		return 0, true
	}
	if !n.found && n.err == nil {
		n.done = false // the newest append is late enough, but was not written yet
	}
	if !n.found {
		return 0, true
	}
	return max(n.at, p.start), false
}
