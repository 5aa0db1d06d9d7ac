package fsm

import (
	"container/heap"
	"slices"

	"queen/index"
)

// waiter is a pop in the waiting list of its group. Pops that do not wait
// stand there too, until the end of the cycle that planned them: so all are
// served in arrival order, and with what the same cycle has pushed.
type waiter struct {
	call    *Call
	pop     *Pop
	g       *group
	heapIdx int
	gone    bool // served, or answered empty
	effects bool // its group was registered in this cycle, or it comes with a call's effects
}

// waiters is the waiting list of a group, in arrival order.
type waiters struct {
	list   []*waiter
	n      int // those that are not gone
	pinned int // those that name a partition
}

type deadlineHeap []*waiter

func (h deadlineHeap) Len() int           { return len(h) }
func (h deadlineHeap) Less(i, j int) bool { return h[i].pop.deadline < h[j].pop.deadline }
func (h deadlineHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].heapIdx, h[j].heapIdx = i, j
}
func (h *deadlineHeap) Push(x any) {
	w := x.(*waiter)
	w.heapIdx = len(*h)
	*h = append(*h, w)
}
func (h *deadlineHeap) Pop() any {
	old := *h
	w := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	w.heapIdx = -1
	return w
}

// maxLeaseSeconds bounds a lease, so that its end stays within the range of
// broker time: 10 years.
const maxLeaseSeconds = 10 * 365 * 86400

func (m *Machine) planPop(c *Call, p *Pop) verdict {
	p.Claims, p.Paused = nil, false
	p.forgetGroups()
	if c.Gone.Load() {
		return instantly
	}
	if !p.parked {
		p.parked = true
		p.deadline = m.now + p.WaitMicros
	}
	if p.Queue == "" {
		return m.planDiscovery(c, p)
	}
	q := m.pushQueue(c.Tenant, p.Queue)
	g, registered := m.ensureGroup(q, p)
	m.takeStarts(c, g)
	w := &waiter{call: c, pop: p, g: g, heapIdx: -1, effects: registered || c.Body != any(p)}
	g.waiters.add(w)
	heap.Push(&m.deadlines, w)
	m.parkedN++
	q.parked++
	m.heat(g)
	return parked
}

func (ws *waiters) add(w *waiter) {
	ws.list = append(ws.list, w)
	ws.n++
	if w.pop.Partition != "" {
		ws.pinned++
	}
}

// heat notes that a group is to be served at the end of the cycle.
func (m *Machine) heat(g *group) {
	if !g.pending {
		g.pending = true
		m.hot = append(m.hot, g)
	}
}

// ensureGroup registers a group at its first contact with a queue. Where it
// starts is decided here, once.
func (m *Machine) ensureGroup(q *queue, p *Pop) (*group, bool) {
	if g := q.byGroup[p.Group]; g != nil {
		p.meets(g)
		return g, false
	}
	mode := p.Mode
	if mode == SubscribeDefault {
		mode = m.cfg.DefaultMode
	}
	if p.Group == QueueMode {
		mode = SubscribeAll
	}
	g := m.newGroup(q, p.Group, mode, p.From, p.Conflate && p.Group != QueueMode)
	p.meets(g)
	return g, true
}

func (m *Machine) newGroup(q *queue, name string, mode SubscriptionMode, from int64, conflates bool) *group {
	g := &group{
		id: m.s.meta.group, q: q, name: name, mode: mode, created: m.now,
		startPartition: m.s.meta.partition, conflates: conflates, exists: true,
	}
	if mode == SubscribeFrom {
		g.from = from
	}
	m.s.meta.group++
	g.setRule()
	m.addGroup(g)
	m.put(g)
	return g
}

// serve answers the pops that can be answered: those of groups where something
// became ready or a pop came, then those whose time is over.
func (m *Machine) serve() {
	for i := 0; i < len(m.hot); i++ { // serving may heat another group
		g := m.hot[i]
		g.pending = false
		if !g.q.deleted {
			m.serveGroup(g)
		}
	}
	m.hot = m.hot[:0]
	for len(m.deadlines) > 0 && (m.deadlines[0].pop.deadline <= m.now || m.released) {
		if w := m.deadlines[0]; m.searching(w) {
			w.pop.deadline = m.now + 1
			heap.Fix(&m.deadlines, 0)
			continue
		}
		m.dismiss(m.deadlines[0])
	}
}

// searching reports whether a pop that does not wait has partitions before it
// that nobody has looked at yet: it is empty only when there are none left.
func (m *Machine) searching(w *waiter) bool {
	return w.pop.WaitMicros == 0 && w.pop.Partition == "" && !m.released && !w.call.Gone.Load() && !w.g.paused() &&
		(w.g.q.reviewed != reviewDone || m.wakeDue() || slices.Contains(m.later, w.g))
}

// youngGroup is how long, in microseconds, an empty pop waits for confirmation
// after its group was registered: longer than an entry is in flight.
const youngGroup = 60_000_000

// dismiss answers a pop as empty. That needs no confirmation, unless the
// group's registration may still be on its way: an answered pop says that the
// group has begun, also one that did not register it.
func (m *Machine) dismiss(w *waiter) {
	m.leave(w)
	m.countEmpty(w)
	m.answerEmpty(w)
}

// answerEmpty answers a pop that has left the waiting list.
func (m *Machine) answerEmpty(w *waiter) {
	w.pop.Paused = w.g.paused() && !w.g.q.deleted
	m.decidedNext(w.call)
	if w.effects || m.now-w.g.created < youngGroup {
		m.done = append(m.done, w.call)
	} else {
		m.instant = append(m.instant, w.call)
	}
}

// leave takes a pop out of the heap; its group's list drops it at the next pass.
func (m *Machine) leave(w *waiter) {
	if w.gone {
		return
	}
	w.gone = true
	m.parkedN--
	w.g.q.parked--
	if w.heapIdx >= 0 {
		heap.Remove(&m.deadlines, w.heapIdx)
	}
	ws := &w.g.waiters
	ws.n--
	if w.pop.Partition != "" {
		ws.pinned--
	}
	if n := len(ws.list); n > 0 && ws.list[n-1] == w {
		ws.list = ws.list[:n-1] // the common case: a pop that did not wait
	} else if n > 0 && ws.list[0] == w {
		ws.list = ws.list[1:]
	} else if n >= 64 && n > 2*m.parkedN {
		ws.compact()
	}
}

func (ws *waiters) compact() {
	var kept []*waiter // a new slice: serveGroup may be walking the old one
	for _, w := range ws.list {
		if !w.gone {
			kept = append(kept, w)
		}
	}
	ws.list = kept
}

// takeParked empties all waiting lists.
func (m *Machine) takeParked() []*waiter {
	all := make([]*waiter, 0, len(m.deadlines))
	for len(m.deadlines) > 0 {
		w := m.deadlines[0]
		m.leave(w)
		all = append(all, w)
	}
	return all
}

func (m *Machine) serveGroup(g *group) {
	list := g.waiters.list
	if len(list) == 0 || g.paused() {
		return // paused: they wait for their deadline
	}
	for _, w := range list {
		if g.ready == 0 && g.waiters.pinned == 0 && !g.sweeping() {
			break
		}
		if w.gone {
			continue
		}
		if w.call.Gone.Load() {
			m.dismiss(w)
			continue
		}
		m.serveWaiter(w)
	}
	if g.waiters.pinned == 0 && len(g.waiters.list) > 0 && g.waiters.list[0].gone {
		g.waiters.compact()
	}
}

// serveWaiter claims for one pop; when something must be looked up on disk
// first it leaves the list and comes back as a new one.
func (m *Machine) serveWaiter(w *waiter) {
	p := w.pop
	seconds := p.LeaseSeconds
	if seconds <= 0 {
		seconds = w.g.q.opts.LeaseTime
	}
	if p.AutoPartitions && !w.g.conflates {
		p.Partitions = w.g.share()
	}
	lookup := false
	if p.Partition != "" {
		lookup = m.claimPinned(w, seconds)
	} else {
		lookup = m.claimReady(w.call, p, w.g, seconds)
	}
	switch {
	case len(p.Claims) > 0:
		m.leave(w)
		m.decidedNext(w.call)
		m.done = append(m.done, w.call)
	case lookup:
		m.leave(w)
		m.prepare = append(m.prepare, w.call)
	}
}

func (m *Machine) claimPinned(w *waiter, seconds int64) (lookup bool) {
	part := w.g.q.byName[w.pop.Partition]
	if part == nil {
		return false
	}
	c := m.met(part, w.g)
	if c == nil {
		if c, lookup = m.meet(w.call, part, w.g); c == nil {
			return lookup
		}
		m.refresh(c)
	}
	if !c.inReady && (w.g.q.reviewed != reviewDone || m.wakeDue()) {
		m.refresh(c) // its turn may not have come yet
	}
	if !c.inReady {
		return false
	}
	return m.claim(w.call, w.pop, c, w.pop.Batch, seconds)
}

// claimReady claims from the group's ready list, which a sweep fills up, until
// the pop's budgets are used up.
func (m *Machine) claimReady(c *Call, p *Pop, g *group, seconds int64) (lookup bool) {
	for from := g.sweep; ; {
		if g.ready < p.Partitions {
			lookup = m.sweepGroup(c, g, p.Partitions)
		}
		if m.claimListed(c, p, g, seconds) {
			return len(p.Claims) == 0
		}
		if len(p.Claims) > 0 || lookup || !g.sweeping() {
			return lookup && len(p.Claims) == 0
		}
		// What was listed is not deliverable yet after all: look further.
		if g.sweep-from >= sweepSlice {
			m.later = append(m.later, g)
			return false
		}
	}
}

// claimListed claims from the ready list as it is. Each cursor is tried once:
// one that cannot deliver yet leaves the list.
func (m *Machine) claimListed(c *Call, p *Pop, g *group, seconds int64) (lookup bool) {
	budget := p.left()
	for tries := g.ready; tries > 0 && g.readyHead != nil && budget > 0 && len(p.Claims) < p.Partitions; tries-- {
		before := len(p.Claims)
		if m.claim(c, p, g.readyHead, budget, seconds) {
			return true
		}
		if len(p.Claims) > before {
			budget -= p.Claims[before].Count
		}
	}
	return false
}

// claim gives a pop what a ready cursor can deliver. It reports whether
// something must be looked up on disk first.
func (m *Machine) claim(call *Call, p *Pop, c *cursor, budget int, seconds int64) (lookup bool) {
	if c.stale() {
		m.forget(c)
		return false
	}
	first := c.firstUnsettled()
	limit, _, unknown := m.visible(call, c.p, first)
	if unknown {
		return true
	}
	target := first
	for aside := asideDone; aside == asideDone && first < limit; first = c.firstUnsettled() {
		if target, unknown = m.target(call, c, first, limit); unknown {
			return true
		}
		switch aside = m.setAside(call, p, c, target); aside {
		case asideLookup:
			return true
		case asideHeld:
			return false
		}
	}
	if first < limit {
		budget = m.isolate(c, target, budget)
	}
	var cl *Claim
	if c.g.conflates {
		cl = c.newestOf(first, limit, target)
	} else {
		cl = c.batch(first, limit, budget)
	}
	if cl == nil {
		m.refresh(c)
		return false
	}
	p.Claims = append(p.Claims, cl)
	m.countClaim(p, cl, c.p.q)
	cl.Attempt = 1
	cl.group = c.g.id
	if p.CommitOnDelivery {
		was := c.committed
		m.settleThrough(c, cl.To)
		m.countSettled(c, was)
		cl.after, c.holdUntil = c.committed, m.now+handTime
		m.keep(c)
		m.refresh(c)
		return false
	}
	c.attempt = countUp(c.attempt)
	if c.firstTry != first || c.attempt < 1 {
		c.attempt, c.firstTry = 1, first
	}
	cl.Attempt = int(c.attempt)
	// 1% more than asked for: the slew of broker time ends no lease early (F14).
	seconds = min(seconds, maxLeaseSeconds)
	cl.Expires = m.now + seconds*1_010_000
	cl.Batch = &Batch{}
	m.setLease(c, &lease{id: p.LeaseID, from: first, end: cl.To, expires: cl.Expires, worker: p.Worker, batch: cl.Batch})
	m.keep(c)
	m.refresh(c)
	return false
}

// batch is what a cursor delivers of [first, limit), at most budget messages.
func (c *cursor) batch(first, limit uint64, budget int) *Claim {
	if first >= limit || budget < 1 {
		return nil
	}
	cl := &Claim{
		Queue: c.p.q.name, Partition: c.p.name, QueueID: c.p.q.id, PartitionID: c.p.id, From: first, span: first,
	}
	if c.sets == nil {
		cl.Count = int(min(limit-first, uint64(budget)))
		cl.To = first + uint64(cl.Count) - 1
		return cl
	}
	holes := 0
	for o := first; o < limit && cl.Count < budget; {
		if c.sets.settled.Contains(o) {
			next := c.sets.settled.NextAbsent(o)
			cl.Settled = append(cl.Settled, index.Range{Lo: o, Hi: next - 1})
			o = next
			continue
		}
		cl.To, holes = o, len(cl.Settled)
		cl.Count++
		o++
	}
	cl.Settled = cl.Settled[:holes]
	return cl
}

// settleThrough moves a cursor so that everything at or below offset is
// settled, and past what was settled above it already.
func (m *Machine) settleThrough(c *cursor, offset uint64) {
	c.committed = max(c.committed, int64(offset))
	m.absorb(c)
}

func (m *Machine) absorb(c *cursor) {
	if c.sets == nil {
		return
	}
	c.committed = int64(c.sets.settled.NextAbsent(uint64(c.committed+1))) - 1
	c.dropSettled()
}

// refresh puts a cursor into its group's ready list or takes it out, and sets
// when to look again. It is called after every change that can matter.
func (m *Machine) refresh(c *cursor) {
	if !c.g.exists || c.stale() {
		m.unready(c) // nobody reads with it any more
		m.setWake(c, 0)
		return
	}
	m.count(c)
	first := c.firstUnsettled()
	if first >= c.p.next {
		m.unready(c)
		m.setWake(c, 0)
		return
	}
	at := max(c.delayUntil, c.holdUntil)
	if l := c.liveLease(m.now); l != nil {
		at = l.expires // whatever else holds it: the counters change then
	}
	if at <= m.now {
		limit, wake, unknown := m.visible(nil, c.p, first)
		if unknown || limit > first {
			m.setWake(c, 0)
			m.makeReady(c)
			return
		}
		at = wake
	}
	m.unready(c)
	m.setWake(c, at)
}

func (m *Machine) makeReady(c *cursor) {
	m.heat(c.g)
	if c.inReady {
		return
	}
	g := c.g
	c.inReady, c.prev, c.succ = true, g.readyTail, nil
	if g.readyTail == nil {
		g.readyHead = c
	} else {
		g.readyTail.succ = c
	}
	g.readyTail = c
	g.ready++
}

func (m *Machine) unready(c *cursor) {
	if !c.inReady {
		return
	}
	g := c.g
	if c.prev == nil {
		g.readyHead = c.succ
	} else {
		c.prev.succ = c.succ
	}
	if c.succ == nil {
		g.readyTail = c.prev
	} else {
		c.succ.prev = c.prev
	}
	c.prev, c.succ, c.inReady = nil, nil, false
	g.ready--
}

// planDiscovery claims from every queue whose labels match, by name. It never
// waits. It is the group's first contact with all of them, also with those that
// its budgets do not reach.
func (m *Machine) planDiscovery(c *Call, p *Pop) verdict {
	seconds := p.LeaseSeconds
	if seconds <= 0 {
		seconds = 60
	}
	lookup, paused := false, false
	m.s.queueOrder.Ascend(c.Tenant, func(_ string, q *queue) bool {
		if q.tenant != c.Tenant {
			return false
		}
		if p.MatchNamespace && q.opts.Namespace != p.Namespace || p.MatchTask && q.opts.Task != p.Task {
			return true
		}
		g, _ := m.ensureGroup(q, p)
		paused = paused || g.paused()
		if len(p.Claims) < p.Partitions && p.left() > 0 && !g.paused() {
			m.takeStarts(c, g)
			need := m.claimReady(c, p, g, seconds)
			lookup = lookup || need
		}
		return true
	})
	if lookup && len(p.Claims) == 0 {
		return again
	}
	p.Conflates = p.Conflates || p.Conflate && !p.Conflict // also where no queue matches
	p.Paused = paused && len(p.Claims) == 0
	return answered
}

func (p *Pop) left() int {
	n := p.Batch
	for _, cl := range p.Claims {
		n -= cl.Count
	}
	return n
}
