package fsm

// The life of a lease after its claim: renewed, handed back, ended; and of a
// batch that was committed on delivery until it was delivered.

// setLease gives a cursor a lease and notes it under its id.
func (m *Machine) setLease(c *cursor, l *lease) {
	m.clearLease(c)
	c.lease = l
	l.c = c
	if m.leases == nil {
		m.leases = map[[16]byte]*lease{}
	}
	l.sibling = m.leases[l.id]
	m.leases[l.id] = l
	m.leaseSeq++
	l.seq = m.leaseSeq
	c.p.q.leased++
	if l.worker != "" {
		m.enlist(l)
	}
}

func (m *Machine) clearLease(c *cursor) {
	l := c.lease
	if l == nil {
		return
	}
	c.lease = nil
	if l.c == nil {
		return // of a cursor that was on its way out when it was read
	}
	m.delist(l)
	c.p.q.leased--
	head := m.leases[l.id]
	if head == l {
		if l.sibling == nil {
			delete(m.leases, l.id)
		} else {
			m.leases[l.id] = l.sibling
		}
		return
	}
	for ; head != nil; head = head.sibling {
		if head.sibling == l {
			head.sibling = l.sibling
			return
		}
	}
}

// handTime is how long, in microseconds, a batch that was committed on delivery
// may be in the edge's hands; unreadableTime how long a partition is left alone
// whose payload could not be read.
const (
	handTime       = 60_000_000
	unreadableTime = 5_000_000
)

// planHandBack ends the leases of a pop that nobody received, and takes back
// what was committed on its delivery; the attempt does not count.
func (m *Machine) planHandBack(h *HandBack) verdict {
	for _, cl := range h.Claims {
		c := m.cursorOf(cl)
		switch {
		case c == nil:
			continue
		case cl.Batch == nil && c.holdUntil != 0 && c.committed == cl.after:
			m.takeBack(c, cl)
		case c.lease != nil && c.lease.id == h.LeaseID:
			m.clearLease(c)
			c.attempt = max(c.attempt-1, 0)
			m.put(c)
		}
		c.holdUntil = 0
		if h.Unreadable {
			c.holdUntil = m.now + unreadableTime
		}
		m.refresh(c)
	}
	return answered
}

// planDelivered lets the partitions of a pop go on. Nothing of it is a row.
func (m *Machine) planDelivered(d *Delivered) verdict {
	for _, cl := range d.Claims {
		if c := m.cursorOf(cl); c != nil {
			c.holdUntil = 0
			m.refresh(c)
		}
	}
	return instantly
}

func (m *Machine) cursorOf(cl *Claim) *cursor {
	p, g := m.s.partitions[cl.PartitionID], m.s.groups[cl.group]
	if p == nil || g == nil || !g.exists || p.q.deleted {
		return nil
	}
	return p.cursor(g)
}

// takeBack moves a cursor back to before a claim that was committed on
// delivery. What was settled above it, inside the claim and behind it, stays so.
func (m *Machine) takeBack(c *cursor, cl *Claim) {
	old := c.sets
	m.resetSets(c)
	c.committed = int64(cl.span) - 1
	m.put(c)
	add := func(set byte, lo, hi uint64) bool {
		m.settleRange(c, set, lo, hi)
		return true
	}
	for _, r := range cl.Settled {
		add(0, r.Lo, r.Hi)
	}
	if cl.after > int64(cl.To) {
		add(0, cl.To+1, uint64(cl.after))
	}
	if old != nil {
		old.settled.Ranges(func(lo, hi uint64) bool { return add(0, lo, hi) })
		old.other.Ranges(func(lo, hi uint64) bool { return add(1, lo, hi) })
	}
	m.passStart(c) // retention has taken a part of it meanwhile
}

func (m *Machine) planExtend(e *Extend, tenant string) verdict {
	e.Renewed, e.Expires = 0, 0
	seconds := min(max(e.Seconds, 1), maxLeaseSeconds)
	until := m.now + seconds*1_010_000
	for l := m.leases[e.LeaseID]; l != nil; l = l.sibling {
		if m.now >= l.expires || l.c.p.q.deleted || !l.c.g.exists || l.c.p.q.tenant != tenant {
			continue
		}
		if until > l.expires {
			l.expires = until
			m.put(l.c)
			m.refresh(l.c)
		}
		e.Renewed++
		if e.Expires == 0 || l.expires < e.Expires {
			e.Expires = l.expires
		}
	}
	return answered
}
