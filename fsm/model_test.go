package fsm

import (
	"bytes"
	"fmt"
	"math"
	"math/big"
	"slices"
	"sort"
	"strconv"

	"queen/index"
)

// A model of the planner: what the contract says, in plain maps and slices. It
// is written from the contract, keeps every message and looks at all of them.
// It judges a call when the machine has decided it; where the contract leaves
// a choice (which ready partition, which id or version) it checks that the
// machine's is a legal one and takes it over.
type model struct {
	cfg     Config
	now     int64
	queues  map[string]*mQueue // by tenant + name
	kv      map[string]*mKV    // by tenant, ns, NUL, key
	timers  map[string]*mTimer // by tenant, queue, NUL, key
	letters map[[16]byte]*mLetter
	orphans map[string][]*mWait // pops whose queue was deleted
	// everything that was ever given out, so that nothing is twice
	usedParts map[uint64]bool
	versions  map[int64]bool
	highest   map[string]int64 // highest version of a key, also of deleted ones
	problem   string           // the first difference that was found
}

type mQueue struct {
	tenant, name string
	opts         Options
	parts        map[string]*mPart
	order        []*mPart
	groups       map[string]*mGroup
}

type mPart struct {
	q       *mQueue
	name    string
	id      uint64 // 0: not known yet
	msgs    []mMsg
	cursors map[string]*mCursor // by group
}

type mMsg struct {
	txn  string
	raw  []byte
	time int64
}

type mGroup struct {
	name    string
	mode    SubscriptionMode
	from    int64
	old     map[*mPart]bool // partitions that were there before it
	waiters []*mWait
}

type mCursor struct {
	floor    int64 // everything at or below is settled
	above    map[uint64]bool
	lease    *mLease
	released *mReleased
	retries  int64
	hold     int64 // nacked with a delay: not delivered before
	first    uint64
	attempts int
}

type mLease struct {
	id       [16]byte
	from, to uint64
	expires  int64
}

type mReleased struct {
	id                               [16]byte
	completed, nacked, dead, dropped bool
}

type mWait struct {
	call     *Call
	pop      *Pop
	deadline int64
}

type mKV struct {
	value            string
	version, expires int64
	updated          int64
}

type mTimer struct {
	tenant, queue, part, key string
	txn                      string
	hasTxn                   bool
	id                       [16]byte
	raw                      []byte
	due, deliver             int64
	updated                  int64
	attempts                 int64
	flying                   bool // a fire of it waits for look-ups
}

type mLetter struct {
	q        *mQueue
	part     string
	offset   uint64
	group    string
	err      string
	retries  int64
	failed   int64
	raw      []byte
	timerKey string
}

func newModel(cfg Config) *model {
	cfg.defaults()
	return &model{
		cfg: cfg, queues: map[string]*mQueue{}, kv: map[string]*mKV{}, timers: map[string]*mTimer{},
		letters: map[[16]byte]*mLetter{}, orphans: map[string][]*mWait{}, usedParts: map[uint64]bool{},
		versions: map[int64]bool{}, highest: map[string]int64{},
	}
}

func (m *model) fail(format string, args ...any) {
	if m.problem == "" {
		m.problem = fmt.Sprintf(format, args...)
	}
}

// expect compares one fact of an answer.
func (m *model) expect(what string, got, want any) {
	if got != want {
		m.fail("%s: the machine says %v, the model %v", what, got, want)
	}
}

// Queues, partitions, groups.

func (m *model) queue(tenant, name string) *mQueue { return m.queues[tenant+name] }

func (m *model) addQueue(tenant, name string, opts Options) *mQueue {
	q := &mQueue{tenant: tenant, name: name, opts: opts, parts: map[string]*mPart{}, groups: map[string]*mGroup{}}
	m.queues[tenant+name] = q
	for _, w := range m.orphans[tenant+name] {
		g := m.group(q, w.pop.Group, w.pop.Mode, w.pop.From)
		g.waiters = append(g.waiters, w)
	}
	delete(m.orphans, tenant+name)
	return q
}

func (m *model) needQueue(tenant, name string) *mQueue {
	if q := m.queue(tenant, name); q != nil {
		return q
	}
	opts := DefaultOptions()
	opts.LeaseTime = 60
	var parts [2]string
	n := 0
	for _, r := range name {
		if r == '.' {
			if n++; n > 1 {
				break
			}
			continue
		}
		parts[n] += string(r)
	}
	opts.Namespace, opts.Task = parts[0], parts[1]
	return m.addQueue(tenant, name, opts)
}

func (m *model) needPart(q *mQueue, name string) *mPart {
	if p := q.parts[name]; p != nil {
		return p
	}
	p := &mPart{q: q, name: name, cursors: map[string]*mCursor{}}
	q.parts[name] = p
	q.order = append(q.order, p)
	return p
}

func (m *model) group(q *mQueue, name string, mode SubscriptionMode, from int64) *mGroup {
	if g := q.groups[name]; g != nil {
		return g
	}
	if mode == SubscribeDefault {
		mode = m.cfg.DefaultMode
	}
	if name == QueueMode {
		mode = SubscribeAll
	}
	g := &mGroup{name: name, mode: mode, from: from, old: map[*mPart]bool{}}
	for _, p := range q.order {
		g.old[p] = true
	}
	q.groups[name] = g
	return g
}

func (m *model) part(tenant string, id uint64) *mPart {
	for _, q := range m.queues {
		for _, p := range q.order {
			if q.tenant == tenant && id != 0 && p.id == id {
				return p
			}
		}
	}
	return nil
}

func (p *mPart) lastAppend() int64 {
	if len(p.msgs) == 0 {
		return 0
	}
	return p.msgs[len(p.msgs)-1].time
}

// starts is the floor of a group that meets the partition now; ok is false when
// there is nothing for it to read.
func (g *mGroup) starts(p *mPart) (floor int64, ok bool) {
	switch {
	case len(p.msgs) == 0:
		return 0, false
	case !g.old[p] || g.mode == SubscribeAll:
		return -1, true
	case g.mode == SubscribeFrom:
		for o, msg := range p.msgs {
			if msg.time >= g.from {
				return int64(o) - 1, true
			}
		}
	}
	return 0, false
}

// append stores messages and gives every group that begins with them its cursor.
func (m *model) append(p *mPart, msgs []mMsg) {
	first, before := len(p.msgs), p.lastAppend()
	p.msgs = append(p.msgs, msgs...)
	for _, g := range p.q.groups {
		if p.cursors[g.name] != nil {
			continue
		}
		floor := int64(first) - 1
		switch {
		case !g.old[p] || g.mode == SubscribeAll:
			floor = -1
		case g.mode == SubscribeFrom && (m.now < g.from || first > 0 && before >= g.from):
			// Still to come, or among the messages before: found at a claim.
			continue
		}
		p.cursors[g.name] = newMCursor(floor)
	}
}

func newMCursor(floor int64) *mCursor {
	return &mCursor{floor: floor, above: map[uint64]bool{}}
}

// Cursors.

func (c *mCursor) settled(o uint64) bool { return int64(o) <= c.floor || c.above[o] }

func (c *mCursor) normalise() {
	for c.above[uint64(c.floor+1)] {
		c.floor++
	}
	for o := range c.above {
		if int64(o) <= c.floor {
			delete(c.above, o)
		}
	}
}

func (c *mCursor) live(now int64) *mLease {
	if c.lease != nil && now < c.lease.expires {
		return c.lease
	}
	return nil
}

// deliverable is the unsettled visible offsets of a partition for a group, in
// order; none while the partition is leased or held.
func (m *model) deliverable(g *mGroup, p *mPart) []uint64 {
	c := p.cursors[g.name]
	if c == nil {
		floor, ok := g.starts(p)
		if !ok {
			return nil
		}
		c = newMCursor(floor)
	}
	o := &p.q.opts
	if c.live(m.now) != nil || m.now < c.hold || o.WindowBuffer > 0 && m.now < p.lastAppend()+o.WindowBuffer*1_000_000 {
		return nil
	}
	var out []uint64
	for i := c.floor + 1; i < int64(len(p.msgs)); i++ {
		if m.now < p.msgs[i].time+o.DelayedProcessing*1_000_000 {
			break
		}
		if !c.above[uint64(i)] {
			out = append(out, uint64(i))
		}
	}
	return out
}

// Push.

// judgePush is the expected status and offset of each item, for items of one
// partition in request order.
func (m *model) judgePush(tenant string, items []*PushItem) (status []PushStatus, offsets []uint64) {
	var p *mPart
	q := m.queue(tenant, items[0].Queue)
	window := int64(3600)
	if q != nil {
		p, window = q.parts[items[0].Partition], q.opts.DedupWindowSeconds
	}
	status, offsets = make([]PushStatus, len(items)), make([]uint64, len(items))
	next := uint64(0)
	if p != nil {
		next = uint64(len(p.msgs))
	}
	seen := map[string]int{}
	size := 64
	for i, it := range items {
		txn := itemTxn(it)
		if j, ok := seen[txn]; ok {
			status[i], offsets[i] = Duplicate, offsets[j]
			continue
		}
		seen[txn] = i
		if o, ok := m.inWindow(p, txn, window); ok {
			status[i], offsets[i] = Duplicate, o
			continue
		}
		status[i], offsets[i] = Queued, next
		next++
		size += len(it.Packed)
	}
	if size > m.cfg.EntryBytes {
		for i := range status {
			status[i] = Refused
		}
	}
	return status, offsets
}

func (m *model) inWindow(p *mPart, txn string, seconds int64) (offset uint64, ok bool) {
	if p == nil {
		return 0, false
	}
	for o := len(p.msgs) - 1; o >= 0; o-- {
		if p.msgs[o].txn == txn {
			return uint64(o), m.now-p.msgs[o].time < seconds*1_000_000
		}
	}
	return 0, false
}

func itemTxn(it *PushItem) string {
	if it.Txn != nil {
		return string(it.Txn)
	}
	return uuidText(it.ID)
}

func uuidText(id [16]byte) string {
	return fmt.Sprintf("%x-%x-%x-%x-%x", id[:4], id[4:6], id[6:8], id[8:10], id[10:])
}

// push expects a push's answers and stores what was queued. strict is a
// transaction's: the caller has judged it, nothing is refused.
func (m *model) push(tenant string, p *Push) {
	for _, group := range byPlace(p) {
		status, offsets := m.judgePush(tenant, group)
		var msgs []mMsg
		for i, it := range group {
			m.expect("status of a pushed item", it.Status, status[i])
			if status[i] == Queued {
				msgs = append(msgs, mMsg{itemTxn(it), it.Packed, m.now})
			}
			if status[i] != Refused {
				m.expect("offset of a pushed item", it.Offset, offsets[i])
			}
		}
		if len(msgs) > 0 {
			q := m.needQueue(tenant, group[0].Queue)
			m.append(m.needPart(q, group[0].Partition), msgs)
		}
	}
}

// byPlace groups the items by queue and partition, in order of first mention.
func byPlace(p *Push) [][]*PushItem {
	var groups [][]*PushItem
	at := map[string]int{}
	for i := range p.Items {
		it := &p.Items[i]
		key := it.Queue + "\x00" + it.Partition
		g, ok := at[key]
		if !ok {
			g = len(groups)
			at[key] = g
			groups = append(groups, nil)
		}
		groups[g] = append(groups[g], it)
	}
	return groups
}

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
	g := m.group(q, p.Group, p.Mode, p.From)
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
		want = want[:min(len(want), budget)]
		if got := claimOffsets(cl); !slices.Equal(got, want) {
			m.fail("claim of %s/%s for %s by %s at %d has offsets %v, want %v; appended at %v", q.name, part.name, g.name, p.LeaseID[:], m.now-startTime, got, want, part.times())
		}
		m.expect("count of a claim", cl.Count, len(want))
		budget -= len(want)
		m.claim(g, part, p, cl, want, seconds)
	}
	return budget
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

func (m *model) claim(g *mGroup, part *mPart, p *Pop, cl *Claim, offsets []uint64, seconds int64) {
	c := part.cursors[g.name]
	if c == nil {
		floor, _ := g.starts(part)
		c = newMCursor(floor)
		part.cursors[g.name] = c
	}
	from, to := offsets[0], offsets[len(offsets)-1]
	if p.CommitOnDelivery {
		m.expect("attempt of a claim without a lease", cl.Attempt, 1)
		m.expect("lease end of a claim without a lease", cl.Expires, int64(0))
		c.floor = int64(to)
		c.normalise()
		return
	}
	if c.first != from {
		c.first, c.attempts = from, 0
	}
	c.attempts++
	m.expect("attempt of a claim", cl.Attempt, c.attempts)
	c.lease = &mLease{id: p.LeaseID, from: from, to: to, expires: m.now + seconds*1_010_000}
	m.expect("lease end", cl.Expires, c.lease.expires)
}

// nothingLeft expects that a pop could not have got anything more.
func (m *model) nothingLeft(g *mGroup, q *mQueue, p *Pop, why string) {
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
	return g.mode == SubscribeFrom || q.opts.DelayedProcessing > 0
}

// serve checks the waiting pops of all groups, in arrival order. state says
// what became of a pop in this cycle.
func (m *model) serve(state func(*Call) popState) {
	for _, q := range m.queues {
		for _, g := range q.groups {
			m.serveGroup(q, g, state)
		}
	}
	for name, list := range m.orphans {
		m.orphans[name] = slices.DeleteFunc(list, func(w *mWait) bool {
			s := state(w.call)
			m.expect("pop without a queue waits", s == popWaits, w.deadline > m.now)
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
		switch {
		case s == popPrepares:
			if !g.lookups(q) {
				m.fail("pop of %s for %s wants look-ups", q.name, g.name)
			}
		case s == popAnswered && len(p.Claims) > 0:
			m.expect("a pop whose caller left gets messages", w.call.Gone.Load(), false)
			m.served(q, g, p)
		case s == popAnswered:
			if !w.call.Gone.Load() {
				m.expect("an empty answer is due", w.deadline <= m.now, true)
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
	for _, q := range m.sorted(c.Tenant) {
		if p.MatchNamespace && q.opts.Namespace != p.Namespace || p.MatchTask && q.opts.Task != p.Task {
			continue
		}
		g := m.group(q, p.Group, p.Mode, p.From)
		if prepares {
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
		if !t.flying {
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
	for i := c.floor + 1; i < int64(len(p.msgs)); i++ {
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

// depth counts what a group still owes of a partition, and how much of that is
// under a live lease.
func (m *model) depth(group string, p *mPart) (pending, processing int64) {
	c := p.cursors[group]
	if c == nil {
		return int64(len(p.msgs)), 0
	}
	l := c.live(m.now)
	for o := range uint64(len(p.msgs)) {
		if c.settled(o) {
			continue
		}
		pending++
		if l != nil && l.from <= o && o <= l.to {
			processing++
		}
	}
	return pending, processing
}

func (m *model) sorted(tenant string) (out []*mQueue) {
	for _, q := range m.queues {
		if q.tenant == tenant {
			out = append(out, q)
		}
	}
	sort.Slice(out, func(i, j int) bool { return out[i].name < out[j].name })
	return out
}

func (m *model) handBack(h *HandBack) {
	for _, q := range m.queues {
		for _, p := range q.order {
			for _, c := range p.cursors {
				if c.lease != nil && c.lease.id == h.LeaseID && slices.ContainsFunc(h.Claims, func(cl *Claim) bool { return cl.PartitionID == p.id }) {
					c.lease = nil
					c.attempts = max(c.attempts-1, 0)
				}
			}
		}
	}
}

func (m *model) extend(tenant string, e *Extend) {
	n, earliest := 0, int64(math.MaxInt64)
	for _, q := range m.queues {
		for _, p := range q.order {
			for _, c := range p.cursors {
				if l := c.live(m.now); l != nil && l.id == e.LeaseID && q.tenant == tenant {
					l.expires = max(l.expires, m.now+max(e.Seconds, 1)*1_010_000)
					earliest = min(earliest, l.expires)
					n++
				}
			}
		}
	}
	m.expect("leases extended", e.Renewed, n)
	if n > 0 {
		m.expect("earliest lease end", e.Expires, earliest)
	}
}

// Key/value.

func (m *model) liveKV(key string) *mKV {
	if k := m.kv[key]; k != nil && (k.expires == 0 || m.now < k.expires) {
		return k
	}
	return nil
}

// judgeKV gives the reason why an operation does not apply, empty when it does;
// value is what it would write. done holds the keys that operations of the call
// write, with their index.
func (m *model) judgeKV(tenant string, ops []KVOp, i int, done map[string]int) (reason, value string) {
	op := &ops[i]
	key := tenant + op.NS + "\x00" + op.Key
	k := m.liveKV(key)
	if w, ok := done[key]; ok && op.Kind == KVCheck {
		switch {
		case ops[w].Kind == KVDelete:
			k = nil
		case op.Expect == 0:
			return "exists", ""
		default:
			return "version", ""
		}
	}
	has, expect := op.HasExpect, op.Expect
	if op.Kind == KVPutIfAbsent {
		has, expect = true, 0
	}
	switch {
	case has && expect == 0 && k != nil:
		return "exists", ""
	case has && expect != 0 && k == nil:
		return "absent", ""
	case has && expect != 0 && k.version != expect:
		return "version", ""
	case op.Kind == KVDelete && k == nil:
		return "absent", ""
	case op.Kind == KVIncr:
		old := 0.0
		if k != nil {
			v, err := strconv.ParseFloat(k.value, 64)
			if err != nil {
				return "type", ""
			}
			old = v
		}
		sum := new(big.Rat).Add(rat(old), rat(op.Delta))
		crosses := func(limit float64, by int) bool { return sum.Cmp(rat(limit)) == by }
		if op.HasMin && crosses(op.Min, -1) || op.HasMax && crosses(op.Max, 1) || crosses(1<<53, 1) || crosses(-1<<53, -1) {
			return "limit", ""
		}
		rounded, _ := sum.Float64()
		return "", strconv.FormatFloat(rounded, 'f', -1, 64)
	}
	return "", string(op.Value)
}

// kvCall checks the operations of a call. It returns the index of the first
// lost required one, or -1. With dry nothing is compared or written.
func (m *model) kvCall(tenant string, ops []KVOp, dry bool) int {
	done := map[string]int{}
	reasons, values := make([]string, len(ops)), make([]string, len(ops))
	lost := map[int]*mKV{} // a lost operation answers the row that it met
	for i := range ops {
		op := &ops[i]
		if !op.Kind.Write() && op.Kind != KVCheck {
			continue
		}
		key := tenant + op.NS + "\x00" + op.Key
		reasons[i], values[i] = m.judgeKV(tenant, ops, i, done)
		if k := m.liveKV(key); k != nil {
			copied := *k
			lost[i] = &copied
		}
		if w, ok := done[key]; ok && ops[w].Kind == KVDelete {
			lost[i] = nil
		}
		if reasons[i] == "" && op.Kind.Write() {
			done[key] = i
		}
		if reasons[i] != "" && op.Required {
			if !dry {
				m.expect("reason of a lost gate", op.Result.Reason, reasons[i])
				m.expectCurrent("lost gate", op, lost[i])
			}
			return i
		}
	}
	if dry {
		return -1
	}
	for i := range ops {
		if op := &ops[i]; op.Kind.Write() || op.Kind == KVCheck {
			m.expect("kv reason", op.Result.Reason, reasons[i])
			m.expect("kv applied", op.Result.Applied, reasons[i] == "")
		}
	}
	for i := range ops {
		if ops[i].Kind.Write() && reasons[i] == "" {
			m.kvWrite(tenant, &ops[i], values[i])
		}
	}
	for i := range ops {
		op := &ops[i]
		if reasons[i] == "" {
			m.kvRead(tenant, op)
			continue
		}
		key := tenant + op.NS + "\x00" + op.Key
		if w, ok := done[key]; ok && w < i {
			lost[i] = m.liveKV(key)
		}
		m.expectCurrent("lost kv operation", op, lost[i])
	}
	return -1
}

func rat(v float64) *big.Rat { return new(big.Rat).SetFloat64(v) }

func (m *model) expectCurrent(what string, op *KVOp, k *mKV) {
	if k == nil {
		m.expect(what+": version of an absent key", op.Result.Version, int64(0))
		m.expect(what+": value of an absent key", op.Result.Value == nil, true)
		return
	}
	m.expect(what+": version", op.Result.Version, k.version)
	m.expect(what+": value", string(op.Result.Value), k.value)
}

func (m *model) kvWrite(tenant string, op *KVOp, value string) {
	key := tenant + op.NS + "\x00" + op.Key
	old := m.liveKV(key)
	if op.Kind == KVDelete {
		m.expect("version of a delete", op.Result.Version, old.version)
		m.expect("value of a delete", op.Result.Value == nil, true)
		delete(m.kv, key)
		return
	}
	v := op.Result.Version
	if v <= m.highest[key] || v >= 1<<53 || m.versions[v] {
		m.fail("version %d of key %q was used before, or is not above %d", v, op.Key, m.highest[key])
	}
	m.versions[v], m.highest[key] = true, v
	m.expect("written value", string(op.Result.Value), value)
	k := &mKV{value: value, version: v, updated: m.now}
	if op.TTL > 0 {
		k.expires = m.now + op.TTL*1_000_000
	}
	if op.Kind == KVIncr && old != nil {
		k.expires = old.expires
	}
	m.kv[key] = k
}

func (m *model) kvRead(tenant string, op *KVOp) {
	r := &op.Result
	row := func(key string) *mKV { return m.liveKV(tenant + op.NS + "\x00" + key) }
	switch op.Kind {
	case KVCheck:
		want := int64(0)
		if op.Expect != 0 {
			want = op.Expect
		}
		m.expect("version of a check that holds", r.Version, want)
		m.expect("value of a check that holds", r.Value == nil, true)
	case KVGet:
		k := row(op.Key)
		m.expect("found", r.Found, k != nil)
		if k != nil {
			m.expect("read", KVRow{op.Key, nil, r.Version, r.Expires, r.Updated}.text()+string(r.Value), k.text(op.Key))
		}
	case KVGetMany:
		var rows, missing string
		for _, key := range op.Keys {
			if k := row(key); k != nil {
				rows += k.text(key) + ";"
			} else {
				missing += key + ";"
			}
		}
		m.expect("rows", rowsText(r.Rows), rows)
		got := ""
		for _, key := range r.Missing {
			got += key + ";"
		}
		m.expect("missing keys", got, missing)
	case KVGetPrefix:
		m.readPrefix(tenant, op)
	}
}

func (m *model) readPrefix(tenant string, op *KVOp) {
	base := tenant + op.NS + "\x00"
	var keys []string
	for full := range m.kv {
		if key, ok := cutPrefix(full, base); ok && m.liveKV(full) != nil && key > op.After {
			if _, ok := cutPrefix(key, op.Prefix); ok {
				keys = append(keys, key)
			}
		}
	}
	sort.Strings(keys)
	more := len(keys) > op.Limit
	keys = keys[:min(len(keys), op.Limit)]
	want := ""
	for _, key := range keys {
		want += m.kv[base+key].text(key) + ";"
	}
	m.expect("rows of a prefix", rowsText(op.Result.Rows), want)
	m.expect("more keys", op.Result.Truncated, more)
}

func cutPrefix(s, prefix string) (string, bool) {
	if len(s) < len(prefix) || s[:len(prefix)] != prefix {
		return "", false
	}
	return s[len(prefix):], true
}

func (k *mKV) text(key string) string {
	return KVRow{key, nil, k.version, k.expires, k.updated}.text() + k.value
}

func (r KVRow) text() string {
	return fmt.Sprintf("%s@%d until %d from %d=", r.Key, r.Version, r.Expires, r.Updated)
}

func rowsText(rows []KVRow) (out string) {
	for _, r := range rows {
		out += r.text() + string(r.Value) + ";"
	}
	return out
}

// Timers.

func (m *model) timerOps(tenant string, ops []TimerOp) {
	for i := range ops {
		op := &ops[i]
		key := tenant + op.Queue + "\x00" + op.Key
		old := m.timers[key]
		if op.Cancel {
			want, txn := "absent", string(op.Txn)
			if old != nil {
				want, txn = "cancelled", old.txn
				delete(m.timers, key)
			}
			m.expect("cancel", op.Status, want)
			m.expect("ok of a cancel", op.OK, old != nil)
			m.expect("txn of a cancel", string(op.OldTxn), txn)
			continue
		}
		want := "scheduled"
		if old != nil {
			want = "rescheduled"
		}
		m.expect("schedule", op.Status, want)
		m.expect("ok of a schedule", op.OK, true)
		t := &mTimer{
			tenant: tenant, queue: op.Queue, part: op.Partition, key: op.Key, txn: string(op.Txn), hasTxn: op.Txn != nil,
			id: op.MessageID, raw: op.Message, due: m.now + max(op.DelayMs, 0)*1000, updated: m.now,
		}
		if !t.hasTxn {
			t.txn = uuidText(op.MessageID)
		}
		t.deliver = t.due
		m.expect("deliverAt", op.DeliverAt, t.due)
		m.timers[key] = t
	}
}

// dueTimers are those to fire now, in due order.
func (m *model) dueTimers() (due []*mTimer) {
	for _, t := range m.timers {
		if !t.flying && t.deliver <= m.now {
			due = append(due, t)
		}
	}
	sort.Slice(due, func(i, j int) bool {
		a, b := due[i], due[j]
		if a.deliver != b.deliver {
			return a.deliver < b.deliver
		}
		if a.updated != b.updated {
			return a.updated < b.updated
		}
		return timerKey(a.tenant, a.queue, a.key) < timerKey(b.tenant, b.queue, b.key)
	})
	return due
}

// fire fires what is still pending of the timers of a pass.
func (m *model) fire(list []*mTimer) {
	for _, t := range list {
		key := t.tenant + t.queue + "\x00" + t.key
		if m.timers[key] != t {
			continue
		}
		t.flying = false
		it := &PushItem{Queue: t.queue, Partition: t.part, ID: t.id, Packed: t.raw}
		if t.hasTxn {
			it.Txn = []byte(t.txn)
		}
		status, _ := m.judgePush(t.tenant, []*PushItem{it})
		if status[0] != Refused {
			if status[0] == Queued {
				m.append(m.needPart(m.needQueue(t.tenant, t.queue), t.part), []mMsg{{t.txn, t.raw, m.now}})
			}
			delete(m.timers, key)
			continue
		}
		t.attempts++
		t.updated = m.now
		if t.attempts < m.cfg.TimerMaxAttempts {
			t.deliver = m.now + min(m.cfg.TimerBackoffMin<<(t.attempts-1), m.cfg.TimerBackoffMax)
			continue
		}
		delete(m.timers, key)
		m.file(&mLetter{
			q: m.needQueue(t.tenant, t.queue), part: t.part, group: TimerGroup, retries: t.attempts, failed: m.now, raw: t.raw, timerKey: t.key,
		})
	}
}

// file notes a dead letter; its id is learned when the state is compared.
func (m *model) file(l *mLetter) {
	var id [16]byte
	for n := byte(1); ; n++ {
		id[0], id[1] = n, 0xff // no id that the machine mints
		if m.letters[id] == nil {
			break
		}
	}
	m.letters[id] = l
}

func (l *mLetter) same(i DeadLetterInfo, content []byte) bool {
	return l.q.name == i.Queue && l.part == i.Partition && l.offset == i.Offset && l.group == i.Group &&
		(l.err == i.Error || l.timerKey != "") && l.retries == i.RetryCount && l.failed == i.Failed && bytes.Equal(l.raw, content)
}

// Queues: configure, delete, dead letters.

func (m *model) configure(tenant string, c *Configure) {
	q := m.queue(tenant, c.Queue)
	opts := DefaultOptions()
	if q != nil && !c.Replace {
		opts = q.opts
	}
	for _, v := range c.Set {
		def, _ := FindOption(v.Name)
		switch {
		case v.Null && def.Kind == OptionInt:
			*def.num(&opts) = def.defNum
		case v.Null && def.Kind == OptionBool:
			*def.flag(&opts) = def.defFlag
		case def.Kind == OptionInt:
			*def.num(&opts) = max(v.Num, 0)
		case def.Kind == OptionBool:
			*def.flag(&opts) = v.Flag
		}
	}
	m.expect("options", c.Options, opts)
	if q == nil {
		m.addQueue(tenant, c.Queue, opts)
		return
	}
	q.opts = opts
}

func (m *model) deleteQueue(tenant string, d *DeleteQueue) {
	q := m.queue(tenant, d.Queue)
	m.expect("existed", d.Existed, q != nil)
	if q == nil {
		return
	}
	delete(m.queues, tenant+d.Queue)
	for id, l := range m.letters {
		if l.q == q {
			delete(m.letters, id)
		}
	}
	var waiting []*mWait
	for _, g := range q.groups {
		waiting = append(waiting, g.waiters...)
	}
	m.orphans[tenant+d.Queue] = append(m.orphans[tenant+d.Queue], waiting...)
}

func (m *model) replay(tenant string, r *ReplayDeadLetter) {
	l := m.letters[r.ID]
	switch {
	case l == nil || l.q.tenant != tenant:
		m.expect("replay", r.Outcome, "gone")
		return
	case l.group == TimerGroup:
		m.expect("replay", r.Outcome, "timer")
		return
	}
	q, p := r.Queue, r.Partition
	if q == "" {
		q = l.q.name
	}
	if p == "" {
		p = l.part
	}
	it := &PushItem{Queue: q, Partition: p, Txn: []byte("dlq:" + uuidText(r.ID)), Packed: r.Item.Packed}
	status, offsets := m.judgePush(tenant, []*PushItem{it})
	want := map[PushStatus]string{Queued: "moved", Duplicate: "duplicate", Refused: "refused"}[status[0]]
	m.expect("replay", r.Outcome, want)
	if status[0] == Refused {
		return
	}
	m.expect("offset of a replay", r.Item.Offset, offsets[0])
	if status[0] == Queued {
		m.append(m.needPart(m.needQueue(tenant, q), p), []mMsg{{string(it.Txn), it.Packed, m.now}})
		delete(m.letters, r.ID)
	}
}

func (m *model) purge(tenant string, p *PurgeDeadLetters) {
	n := 0
	for id, l := range m.letters {
		if l.q == m.queue(tenant, p.Queue) && (p.AnyGroup || l.group == p.Group) {
			delete(m.letters, id)
			n++
		}
	}
	m.expect("purged", p.Deleted, n)
}
