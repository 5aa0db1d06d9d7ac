package fsm

// How a message that kills its worker is found and put aside (maxDeliveries).
// Nobody reports it: its lease just expires. So once a leased batch has expired
// with something unsettled, its messages are handed out one at a time until the
// batch is past, and an expired lease of a single message charges that message.
// A lease that ends otherwise (an ack of any status, a hand-back) charges
// nothing here, and an expired one nothing of retryLimit.

// reasonMaxDeliveries is the error of a dead letter that was filed for it.
const reasonMaxDeliveries = "maxDeliveries"

// suspicion is what a cursor knows of batches that expired.
type suspicion struct {
	through uint64 // messages below it are handed out one at a time
	at      uint64 // the message that count is of
	count   int32  // leases of it alone that expired
}

// suspected is the suspicion of a cursor whose first unsettled message is
// first, with what its last lease adds to it. It is asked when the cursor can
// be claimed: a lease that is still there has expired. Of a group that conflates
// first is the newest message: that one was handed out, alone.
func (c *cursor) suspected(first uint64) suspicion {
	var s suspicion
	if c.suspect != nil {
		s = *c.suspect
	}
	if s.at != first {
		s.at, s.count = first, 0
	}
	if l := c.lease; l != nil && first <= l.end {
		s.through = max(s.through, l.end+1)
		if l.from == l.end || c.g.conflates {
			s.count++
		}
	}
	return s
}

// suspect notes a suspicion of the message at first. The lease that it was
// drawn from goes, so that it is charged once.
func (m *Machine) suspect(c *cursor, first uint64, s suspicion) {
	m.clearLease(c)
	c.suspect = nil
	if first < s.through {
		kept := s
		c.suspect = &kept
	}
}

// absolve forgets a suspicion whose messages are past.
func (c *cursor) absolve() {
	if c.suspect != nil && c.suspect.through <= c.firstUnsettled() {
		c.suspect = nil
	}
}

// isolate bounds a claim of the message at first by what is suspected.
func (m *Machine) isolate(c *cursor, first uint64, budget int) int {
	if c.p.q.opts.MaxDeliveries == 0 {
		c.suspect = nil
		return budget
	}
	m.suspect(c, first, c.suspected(first))
	if c.suspect != nil {
		return 1
	}
	return budget
}

// putAside is what became of a message that was to be put aside.
type putAside uint8

const (
	asideNot    putAside = iota // it is not to be
	asideDone                   // filed or dropped: the cursor is past it
	asideLookup                 // its payload must be read first
	asideHeld                   // it cannot be read now: the partition is left alone for a while
)

// setAside files or drops the message at first when it was handed out alone
// maxDeliveries times. Its payload goes into the same entry as the cursor's move.
func (m *Machine) setAside(call *Call, p *Pop, c *cursor, first uint64) putAside {
	opts := &c.p.q.opts
	s := c.suspected(first)
	if opts.MaxDeliveries == 0 || int64(s.count) < opts.MaxDeliveries {
		return asideNot
	}
	if opts.DeadLetters() {
		n := call.needAt(need{kind: needMessage, queue: c.p.q.id, partition: c.p.id, offset: first, lenient: true})
		switch {
		case n == nil:
			return asideLookup
		case !n.found:
			n.done = false // asked again once the partition is looked at again
			c.holdUntil = m.now + unreadableTime
			m.refresh(c)
			return asideHeld
		case m.b.Size() > 0 && m.b.Size()+len(n.data) > m.cfg.EntryBytes:
			return asideLookup // in an entry with more room
		}
		m.fileLetter(&deadLetter{
			q: c.p.q, partitionID: c.p.id, partition: c.p.name, offset: first, group: c.g.name,
			err: reasonMaxDeliveries, retries: int64(c.retries), failed: m.now,
		}, n.data)
	}
	p.Poisoned = append(p.Poisoned, Poisoned{
		Queue: c.p.q.name, Partition: c.p.name, PartitionID: c.p.id, Offset: first,
		Deliveries: int(s.count), Filed: opts.DeadLetters(),
	})
	m.settleThrough(c, first)
	c.retries = 0
	m.suspect(c, c.firstUnsettled(), s)
	m.put(c)
	return asideDone
}
