package fsm

// How a group meets partitions that were there before it: its start is one row,
// and cursors are made when a pop looks for them, in slices (F24).

// sweepSlice bounds how many partitions one pop looks at to find cursors that
// do not exist yet (F24).
const sweepSlice = 256

// sweeping reports whether partitions of the queue have not been looked at.
func (g *group) sweeping() bool {
	return g.rule.mode != SubscribeNew && g.sweep < len(g.q.parts)
}

// sweepGroup looks at the next partitions that were there before the group
// was, and makes cursors (without rows) for those with messages for it.
func (m *Machine) sweepGroup(c *Call, g *group, want int) (lookup bool) {
	for n := 0; n < sweepSlice && g.sweeping() && g.ready < want; n++ {
		p := g.q.parts[g.sweep]
		if p.id >= g.rule.partition {
			g.sweep = len(g.q.parts) // later ones meet the group by their first append
			return lookup
		}
		if m.met(p, g) == nil {
			cur, need := m.meet(c, p, g)
			if need {
				lookup = true
				if len(c.needs) >= 64 {
					return true
				}
				// Go on collecting: the next pass takes what was found.
				return m.askStarts(c, g)
			}
			if cur != nil {
				m.refresh(cur)
			}
		}
		g.sweep++
	}
	if g.sweeping() && g.ready < want {
		m.later = append(m.later, g) // go on in the next cycle
	}
	return lookup
}

// askStarts asks for the start offsets of the next unmet partitions.
func (m *Machine) askStarts(c *Call, g *group) bool {
	for i := g.sweep; i < len(g.q.parts) && len(c.needs) < 64; i++ {
		if p := g.q.parts[i]; p.id < g.rule.partition && m.met(p, g) == nil {
			m.meet(c, p, g)
		}
	}
	return true
}

// meet makes the cursor of a group and a partition that was there before it,
// when the partition holds messages for the group: for SubscribeFrom that
// takes a look-up of a time.
func (m *Machine) meet(c *Call, p *partition, g *group) (cur *cursor, lookup bool) {
	if p.next == p.start {
		return nil, false
	}
	switch {
	case p.id >= g.rule.partition || g.rule.mode == SubscribeAll:
		return m.newCursor(p, g, int64(p.start)-1), false
	case g.rule.mode == SubscribeNew || p.lastAppend < g.rule.from:
		return nil, false
	}
	n := c.needAt(need{kind: needTime, queue: p.q.id, partition: p.id, time: g.rule.from})
	if n == nil {
		return nil, true
	}
	if !n.found {
		// The newest append is late enough, but was not written yet.
		n.done = false
		return nil, true
	}
	return m.newCursor(p, g, int64(max(n.at, p.start))-1), false
}

// takeStarts makes cursors from the start offsets that a pop has looked up.
func (m *Machine) takeStarts(c *Call, g *group) {
	for i := range c.needs {
		n := &c.needs[i]
		if n.kind != needTime || !n.done {
			continue
		}
		p := m.s.partitions[n.partition]
		if p == nil || p.q != g.q || m.met(p, g) != nil {
			continue
		}
		if cur, _ := m.meet(c, p, g); cur != nil {
			m.refresh(cur)
		}
	}
}
