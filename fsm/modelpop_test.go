package fsm

import (
	"slices"

	"queen/index"
)

// Pop.

// arrive is what a pop does when it comes: it makes the queue and the group.
func (m *model) arrive(c *Call, p *Pop) {
	if c.Gone.Load() {
		m.expect("claims of a pop that is gone", len(p.Claims), 0)
		return
	}
	if p.Queue == "" {
		return
	}
	q := m.needQueue(c.Tenant, p.Queue)
	g := m.contact(q, p)
	g.waiters = append(g.waiters, &mWait{c, p, p.deadline})
}

// claims checks what a pop got of a group, in its order, and takes it over. It
// returns what the pop may still get of the batch budget.
func (m *model) claims(g *mGroup, q *mQueue, p *Pop, claims []*Claim, budget int, seconds int64) int {
	for _, cl := range claims {
		part := q.parts[cl.Partition]
		if part == nil || part.id != 0 && part.id != cl.PartitionID {
			m.fail("a claim of partition %q id %d, which the model does not have", cl.Partition, cl.PartitionID)
			return 0
		}
		want := m.deliverable(g, part)
		if len(want) == 0 {
			m.fail("claim of %s/%s for group %s, where nothing is deliverable", q.name, part.name, g.name)
			return 0
		}
		from := want[0]
		if g.newest {
			want = want[len(want)-1:]
		}
		want = want[:min(len(want), m.oneAtATime(g, part, part.cursors[g.name], want[0], budget))]
		if got := claimOffsets(cl); !slices.Equal(got, want) {
			m.fail("claim of %s/%s for %s by %s at %d has offsets %v, want %v; appended at %v", q.name, part.name, g.name, p.LeaseID[:], m.now-startTime, got, want, part.times())
		}
		m.expect("count of a claim", cl.Count, len(want))
		budget -= len(want)
		m.claim(g, part, p, cl, from, want, seconds)
	}
	return budget
}

// charge reads what the last lease of a cursor tells when it has expired with
// something unsettled. It is asked when the cursor can be claimed.
func (m *model) charge(g *mGroup, c *mCursor, first uint64) {
	if c.alone != first {
		c.alone, c.died = first, 0
	}
	if l := c.lease; l != nil && first <= l.to {
		c.single = max(c.single, l.to+1)
		if l.from == l.to || g.newest {
			c.died++
		}
	}
	c.lease = nil
	if c.single <= first {
		c.single, c.died = 0, 0
	}
}

// oneAtATime is how many messages a claim of a partition may have.
func (m *model) oneAtATime(g *mGroup, p *mPart, c *mCursor, first uint64, budget int) int {
	if c == nil {
		return budget
	}
	limit := p.q.opts.MaxDeliveries
	if limit == 0 {
		c.single, c.died = 0, 0
		return budget
	}
	m.charge(g, c, first)
	if c.died >= limit {
		m.fail("a claim of %s/%s has offset %d, whose lease of it alone expired %d times", p.q.name, p.name, first, c.died)
	}
	if c.single > first {
		return 1
	}
	return budget
}

// putAside takes over what a pop put aside of a queue since it was last looked at.
func (m *model) putAside(q *mQueue, g *mGroup, p *Pop) {
	for ; m.aside[p] < len(p.Poisoned) && p.Poisoned[m.aside[p]].Queue == q.name; m.aside[p]++ {
		bad := &p.Poisoned[m.aside[p]]
		part := q.parts[bad.Partition]
		if part == nil || part.cursors[g.name] == nil {
			m.fail("%s/%s has no cursor of %s, and offset %d is put aside", q.name, bad.Partition, g.name, bad.Offset)
			return
		}
		c, opts := part.cursors[g.name], &q.opts
		ready := m.deliverable(g, part)
		if g.newest && len(ready) > 0 {
			ready = ready[len(ready)-1:]
		}
		if len(ready) == 0 || ready[0] != bad.Offset {
			m.fail("offset %d of %s/%s is put aside, deliverable are %v", bad.Offset, q.name, part.name, ready)
			return
		}
		m.charge(g, c, bad.Offset)
		if opts.MaxDeliveries == 0 || c.died < opts.MaxDeliveries {
			m.fail("offset %d of %s/%s is put aside after %d of %d deliveries", bad.Offset, q.name, part.name, c.died, opts.MaxDeliveries)
		}
		m.expect("deliveries of what is put aside", int64(bad.Deliveries), c.died)
		keeps := opts.DeadLetterQueue || opts.DLQAfterMaxRetries
		m.expect("what is put aside is filed", bad.Filed, keeps)
		if keeps {
			m.file(&mLetter{
				q: q, part: part.name, offset: bad.Offset, group: g.name, err: "maxDeliveries", retries: c.retries,
				failed: m.now, raw: part.msgs[bad.Offset].raw,
			})
		}
		c.floor, c.retries = int64(bad.Offset), 0
		c.normalise()
	}
}

func (p *mPart) times() (out []int64) {
	for _, msg := range p.msgs {
		out = append(out, msg.time-startTime)
	}
	return out
}

func claimOffsets(cl *Claim) (out []uint64) {
	for o := cl.From; o <= cl.To; o++ {
		if !slices.ContainsFunc(cl.Settled, func(r index.Range) bool { return r.Lo <= o && o <= r.Hi }) {
			out = append(out, o)
		}
	}
	return out
}

// claim takes a claim over that covers from up to the last of the offsets.
func (m *model) claim(g *mGroup, part *mPart, p *Pop, cl *Claim, from uint64, offsets []uint64, seconds int64) {
	c := part.cursors[g.name]
	if c == nil {
		floor, _ := g.starts(part)
		c = newMCursor(floor)
		part.cursors[g.name] = c
	}
	to := offsets[len(offsets)-1]
	if p.CommitOnDelivery {
		m.expect("attempt of a claim without a lease", cl.Attempt, 1)
		m.expect("lease end of a claim without a lease", cl.Expires, int64(0))
		c.floor, c.handed = int64(to), m.now
		c.normalise()
		return
	}
	if c.first != from {
		c.first, c.attempts = from, 0
	}
	c.attempts++
	m.expect("attempt of a claim", cl.Attempt, c.attempts)
	c.lease = &mLease{id: p.LeaseID, from: from, to: to, expires: m.now + seconds*1_010_000, worker: p.Worker}
	m.expect("lease end", cl.Expires, c.lease.expires)
}

// nothingLeft expects that a pop could not have got anything more.
func (m *model) nothingLeft(g *mGroup, q *mQueue, p *Pop, why string) {
	if g.paused {
		return
	}
	for _, part := range q.order {
		if p.Partition != "" && part.name != p.Partition {
			continue
		}
		if left := m.deliverable(g, part); len(left) > 0 {
			m.fail("pop of %s for %s %s, and %s still delivers %v", q.name, g.name, why, part.name, left)
		}
	}
}

// lookups reports whether claims of a group may need the disk, so that a pop
// can be content with less than there is.
func (g *mGroup) lookups(q *mQueue) bool {
	return g.mode == SubscribeFrom || g.bytime || q.opts.DelayedProcessing > 0 || q.opts.MaxDeliveries > 0
}

// serve checks the waiting pops of all groups, in arrival order. state says
// what became of a pop in this cycle.
func (m *model) serve(state func(*Call) popState) {
	for _, q := range m.queues {
		for _, g := range q.groups {
			m.serveGroup(q, g, state)
		}
	}
	for _, w := range m.sentAway {
		m.expect("a pop whose group was removed waits", state(w.call) == popAnswered && len(w.pop.Claims) == 0, true)
	}
	m.sentAway = nil
	for name, list := range m.orphans {
		m.orphans[name] = slices.DeleteFunc(list, func(w *mWait) bool {
			s := state(w.call)
			m.expect("pop without a queue waits", s == popWaits, w.deadline > m.now)
			if s != popWaits {
				m.decidedNext(w.call)
			}
			return s != popWaits
		})
	}
}

type popState uint8

const (
	popWaits popState = iota
	popAnswered
	popPrepares
)

func (m *model) serveGroup(q *mQueue, g *mGroup, state func(*Call) popState) {
	var still []*mWait
	for _, w := range g.waiters {
		p := w.pop
		s := state(w.call)
		m.expect("a pop conflates", p.Conflates, g.newest)
		m.expect("a pop is in conflict", p.Conflict, p.Conflate && !g.newest)
		if p.DefaultPartitions && g.newest {
			m.expect("partitions of a pop that conflates", p.Partitions, min(max(p.Batch, 1), 64))
		}
		m.putAside(q, g, p)
		switch {
		case s == popPrepares:
			if !g.lookups(q) {
				m.fail("pop of %s for %s wants look-ups", q.name, g.name)
			}
		case s == popAnswered && len(p.Claims) > 0:
			m.decidedNext(w.call)
			m.expect("a pop whose caller left gets messages", w.call.Gone.Load(), false)
			m.expect("a pop of a paused group gets messages", g.paused, false)
			m.served(q, g, p)
		case s == popAnswered:
			m.decidedNext(w.call)
			if !w.call.Gone.Load() {
				m.expect("an empty answer is due", w.deadline <= m.now, true)
				m.expect("an empty answer says that the group is paused", p.Paused, g.paused)
				m.nothingLeft(g, q, p, "was answered empty")
			}
		default:
			if w.deadline <= m.now {
				m.fail("pop of %s for %s waits beyond its deadline", q.name, g.name)
			}
			if !w.call.Gone.Load() {
				m.nothingLeft(g, q, p, "waits")
			}
			still = append(still, w)
		}
	}
	g.waiters = still
}

func (m *model) served(q *mQueue, g *mGroup, p *Pop) {
	seconds := p.LeaseSeconds
	if seconds <= 0 {
		seconds = q.opts.LeaseTime
	}
	if p.Partition != "" {
		m.expect("claims of a pop of one partition", len(p.Claims), 1)
		m.expect("partition of a pop", p.Claims[0].Partition, p.Partition)
	}
	if len(p.Claims) > p.Partitions {
		m.fail("%d claims of at most %d", len(p.Claims), p.Partitions)
	}
	left := m.claims(g, q, p, p.Claims, p.Batch, seconds)
	if p.Partition == "" && left > 0 && len(p.Claims) < p.Partitions && !g.lookups(q) {
		m.nothingLeft(g, q, p, "got less than it asked for")
	}
}

// discover checks a pop by labels.
func (m *model) discover(c *Call, p *Pop, prepares bool) {
	if c.Gone.Load() {
		return
	}
	budget := p.Batch
	left := p.Claims
	conflates, conflict := false, false
	for _, q := range m.sorted(c.Tenant) {
		if p.MatchNamespace && q.opts.Namespace != p.Namespace || p.MatchTask && q.opts.Task != p.Task {
			continue
		}
		g := m.contact(q, p)
		conflates, conflict = conflates || g.newest, conflict || p.Conflate && !g.newest
		m.putAside(q, g, p)
		if prepares || g.paused {
			continue
		}
		n := 0
		for n < len(left) && left[n].Queue == q.name {
			n++
		}
		seconds := p.LeaseSeconds
		if seconds <= 0 {
			seconds = 60
		}
		taken := len(p.Claims) - len(left) + n
		budget = m.claims(g, q, p, left[:n], budget, seconds)
		left = left[n:]
		if budget > 0 && taken < p.Partitions && !g.lookups(q) {
			m.nothingLeft(g, q, p, "found less than there is")
		}
	}
	if len(left) > 0 {
		m.fail("claims of queues that do not match: %s", left[0].Queue)
	}
	m.expect("a pop by labels conflates", p.Conflates, !prepares && (conflates || p.Conflate && !conflict) || prepares && conflates)
	m.expect("a pop by labels is in conflict", p.Conflict, conflict)
}

// nextEvent is when something is due by time alone: a waiting pop's deadline or
// what it can get then, a timer. 0: nothing.
func (m *model) nextEvent() int64 {
	next := int64(0)
	at := func(t int64) {
		if next == 0 || t < next {
			next = t
		}
	}
	for _, t := range m.timers {
		if !t.flying && !m.off.FireOff {
			at(t.deliver)
		}
	}
	for _, list := range m.orphans {
		for _, w := range list {
			at(w.deadline)
		}
	}
	for _, q := range m.queues {
		for _, g := range q.groups {
			for _, w := range g.waiters {
				at(w.deadline)
				for _, p := range q.order {
					if g.paused {
						break
					}
					if t, ok := m.deliverableFrom(g, p); ok && (w.pop.Partition == "" || w.pop.Partition == p.name) {
						at(t)
					}
				}
			}
		}
	}
	return next
}

// deliverableFrom is when a partition will deliver something to a group if
// nothing else happens.
func (m *model) deliverableFrom(g *mGroup, p *mPart) (t int64, ok bool) {
	c := p.cursors[g.name]
	if c == nil {
		floor, ok := g.starts(p)
		if !ok {
			return 0, false
		}
		c = newMCursor(floor)
	}
	for i := max(c.floor+1, int64(p.start)); i < int64(len(p.msgs)); i++ {
		if c.above[uint64(i)] {
			continue
		}
		t = max(c.hold, p.lastAppend()+p.q.opts.WindowBuffer*1_000_000, p.msgs[i].time+p.q.opts.DelayedProcessing*1_000_000)
		if c.lease != nil {
			t = max(t, c.lease.expires)
		}
		return t, true
	}
	return 0, false
}
