package fsm

// The next batch of a worker, claimed with the commit of what it did with the
// last one. The claim is a pop that waits from the moment when the effects of
// its call are in the entry, so it is served at the end of the cycle, in arrival
// order, with everything that the same cycle has pushed. The commit does not
// depend on it: whatever becomes of the claim, the call was carried out.

// nextOf is the claim that a call asks for; nil: none.
func nextOf(c *Call) *Pop {
	switch b := c.Body.(type) {
	case *Txn:
		return b.Next
	case *Ack:
		return b.Next
	}
	return nil
}

// planNext begins, or goes on with, the claim of a call whose effects have been
// emitted.
func (m *Machine) planNext(c *Call, p *Pop) verdict {
	if p == nil {
		return answered
	}
	if !p.parked && p.WaitMicros > 0 {
		// While it waits the node may stop leading: the call is answered all the
		// same when its entry has committed.
		m.done = append(m.done, &Call{Done: func(err error) { p.certain = p.certain || err == nil }})
	}
	if !p.hopeless && m.planPop(c, p) == parked {
		return parked
	}
	m.decidedNext(c)
	return answered
}

// planned reports whether a claim's call was carried out in an earlier cycle.
func (p *Pop) planned() bool { return p != nil && p.parked }

// giveUp answers a call that waits, without a batch when it is one that was
// carried out for certain, and with err otherwise.
func (c *Call) giveUp(err error) {
	if p := nextOf(c); p != nil && p.certain {
		err = nil
	}
	if c.Key != nil {
		for _, r := range c.Key.repeats {
			r.Done(ErrNotLeader)
		}
		c.Key.repeats = nil
	}
	c.Done(err)
}

// Abort answers a call that was being prepared, with err: nothing will plan it
// any more. The group must have stopped.
func (c *Call) Abort(err error) { c.giveUp(err) }
