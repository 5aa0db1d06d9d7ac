package fsm

// SeekTarget says where a seek moves a group.
type SeekTarget uint8

// Targets of a seek.
const (
	SeekEnd       SeekTarget = iota // behind the last message
	SeekBeginning                   // to the oldest retained message
	SeekTime                        // to the first message at or after Seek.Time
	SeekOffset                      // to Seek.Offset; one partition only
)

// Seek moves a group on all partitions of a queue that exist now, or on one. Its
// leases there end and its retries are forgotten; what it has yet to read again
// is served at once.
type Seek struct {
	Queue, Group string
	Partition    string // with OnPartition
	OnPartition  bool
	To           SeekTarget
	Time         int64  // SeekTime: microseconds
	Offset       uint64 // SeekOffset; outside of what is retained: the nearest that is

	// Result.
	Outcome    SeekOutcome
	Partitions int // moved
}

// SeekOutcome is what became of a seek.
type SeekOutcome uint8

// Outcomes of a seek. All but the first changed nothing.
const (
	SeekDone SeekOutcome = iota + 1
	SeekNoQueue
	SeekNoPartition // no such partition; of a queue: it has none
	SeekNoGroup
)

func (m *Machine) planSeek(c *Call, s *Seek) verdict {
	s.Partitions = 0
	q := m.s.findQueue(c.Tenant, s.Queue)
	if q == nil {
		s.Outcome = SeekNoQueue
		return answered
	}
	p := q.byName[s.Partition]
	if s.OnPartition && p == nil || !s.OnPartition && len(q.parts) == 0 {
		s.Outcome = SeekNoPartition
		return answered
	}
	g := q.byGroup[s.Group]
	if g == nil {
		s.Outcome = SeekNoGroup
		return answered
	}
	rule := s.rule(m.now)
	rule.partition = m.s.meta.partition
	if !s.OnPartition {
		g = m.renewGroup(g, rule)
		if rule.mode == SubscribeFrom {
			m.placing = append(m.placing, g)
		}
		s.Outcome, s.Partitions = SeekDone, len(q.parts)
		return answered
	}
	next := min(max(s.Offset, p.start), p.next)
	if s.To != SeekOffset {
		var lookup bool
		if next, lookup = m.placeOf(c, p, rule.mode, rule.from); lookup {
			return again
		}
	}
	cur := m.met(p, g)
	if cur == nil {
		cur = m.newCursor(p, g, -1)
	}
	m.moveCursor(cur, int64(next)-1)
	m.keep(cur)
	m.refresh(cur)
	s.Outcome, s.Partitions = SeekDone, 1
	return answered
}

// rule is the start that a seek gives. A time that has not come is behind
// everything.
func (s *Seek) rule(now int64) startRule {
	switch {
	case s.To == SeekBeginning:
		return startRule{mode: SubscribeAll, moved: true}
	case s.To == SeekTime && s.Time <= now:
		return startRule{mode: SubscribeFrom, from: s.Time, moved: true}
	}
	return startRule{mode: SubscribeNew, moved: true}
}

// moveCursor puts a cursor elsewhere: whatever was under way there is over.
func (m *Machine) moveCursor(c *cursor, committed int64) {
	m.clearLease(c)
	if c.sets != nil || committed < c.committed {
		m.resetSets(c)
	}
	c.committed = committed
	c.retries, c.attempt, c.delayUntil, c.holdUntil, c.released, c.metadata, c.suspect = 0, 0, 0, 0, nil, nil, nil
}

// placing is a slice of the sweep that gives a group its cursors where a seek to
// a time has moved it: until then nobody could count what it has yet to read
// without looking times up.
type placing struct {
	g    *group
	from uint64 // partition id
}

// placeSlice bounds how many partitions such a slice looks at.
const placeSlice = 256

// placeGroups goes on with the next group that a seek to a time has moved.
func (m *Machine) placeGroups() {
	if m.placingNow || len(m.placing) == 0 {
		return
	}
	g := m.placing[0]
	body := &placing{g: g, from: g.swept}
	c := &Call{Body: body, internal: true, Done: func(error) {}}
	if m.placeSome(c, body) {
		m.placingNow = true
		m.prepare = append(m.prepare, c)
	}
}

// planPlacing plans a slice again, with its look-ups made.
func (m *Machine) planPlacing(c *Call, b *placing) verdict {
	if m.placingNow = false; len(m.placing) == 0 || m.placing[0] != b.g {
		return instantly // begun anew meanwhile
	}
	for i := range c.needs {
		if c.needs[i].err != nil {
			// The disk has no answer now. The cursor is made when it is claimed.
			m.removed.Failed.Add(1)
			m.placing = m.placing[1:]
			return instantly
		}
	}
	if m.placeSome(c, b) {
		m.placingNow = true
		return again
	}
	return instantly
}

// placeSome makes the cursors of a slice of partitions. It reports whether
// something must be looked up first.
func (m *Machine) placeSome(c *Call, b *placing) (lookup bool) {
	g, q := b.g, b.g.q
	if !g.exists || q.deleted {
		m.placing = m.placing[1:]
		return false
	}
	end := q.partsAt(g.rule.partition)
	i, n := q.partsAt(b.from), 0
	for ; i < end && n < placeSlice; i, n = i+1, n+1 {
		p := q.parts[i]
		if cur := m.met(p, g); cur != nil && cur.row || p.start == p.next {
			continue
		}
		cur, need := m.place(c, p, g)
		if need {
			lookup = true
			continue
		}
		m.keep(cur)
		m.refresh(cur)
	}
	if lookup {
		return true
	}
	if i < end {
		g.swept = q.parts[i].id
		return false
	}
	m.placing = m.placing[1:]
	g.rule.placed, g.mark.rule.placed = true, true
	m.put(g.mark)
	return false
}
