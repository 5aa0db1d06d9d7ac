package fsm

import (
	"fmt"
	"math"
	"slices"
	"sort"
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
	aside     map[*Pop]int     // messages that a pop put aside, and the model too
	off       Switches
	sentAway  []*mWait // pops whose group was removed: answered empty
	problem   string   // the first difference that was found
	outcomes  map[string]*mOutcome
	outcomeN  int
	value     func(id uint64) []byte // of a value record
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
	msgs    []mMsg // all there ever were, also those that retention has taken
	start   uint64 // lowest retained offset
	created int64
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
	newest  bool            // it conflates: only the newest message of a partition is handed out
	old     map[*mPart]bool // partitions that were there before it
	waiters []*mWait

	created int64
	base    mStart // as it registered, or subscribed since
	moved   bool   // by a seek of the whole queue
	bytime  bool   // to a time
	paused  bool
}

type mStart struct {
	mode SubscriptionMode
	from int64
	old  map[*mPart]bool
}

type mCursor struct {
	floor    int64 // everything at or below is settled
	above    map[uint64]bool
	lease    *mLease
	released *mReleased
	retries  int64
	hold     int64 // nacked with a delay: not delivered before
	handed   int64 // the cycle whose commitOnDelivery batch is being answered: nothing more in it
	first    uint64
	attempts int

	// maxDeliveries: messages below single go one at a time; alone is one that
	// went alone, and died the number of its leases that expired.
	single, alone uint64
	died          int64
}

type mLease struct {
	id       [16]byte
	from, to uint64
	expires  int64
	worker   string
}

type mReleased struct {
	id                    [16]byte
	completed             bool
	nacked, dead, dropped map[uint64]bool // by offset
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
		versions: map[int64]bool{}, highest: map[string]int64{}, aside: map[*Pop]int{}, outcomes: map[string]*mOutcome{},
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
		g := m.contact(q, w.pop)
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
	p := &mPart{q: q, name: name, created: m.now, cursors: map[string]*mCursor{}}
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
	g := &mGroup{name: name, mode: mode, from: from, old: map[*mPart]bool{}, created: m.now}
	for _, p := range q.order {
		g.old[p] = true
	}
	g.base = mStart{mode, from, g.old}
	q.groups[name] = g
	return g
}

// contact is a pop that comes to a queue: it makes the group, or learns of it.
func (m *model) contact(q *mQueue, p *Pop) *mGroup {
	old := q.groups[p.Group]
	g := m.group(q, p.Group, p.Mode, p.From)
	if old == nil {
		g.newest = p.Conflate && p.Group != QueueMode
	}
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
	case len(p.msgs) == int(p.start):
		return 0, false
	case !g.old[p] || g.mode == SubscribeAll:
		return int64(p.start) - 1, true
	case g.mode == SubscribeFrom:
		for o, msg := range p.msgs {
			if uint64(o) >= p.start && msg.time >= g.from {
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
			floor = int64(p.start) - 1
		case g.mode == SubscribeFrom && (m.now < g.from || first > int(p.start) && before >= g.from):
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
	if c.live(m.now) != nil || m.now < c.hold || c.handed == m.now && m.now != 0 || o.WindowBuffer > 0 && m.now < p.lastAppend()+o.WindowBuffer*1_000_000 {
		return nil
	}
	var out []uint64
	for i := max(c.floor+1, int64(p.start)); i < int64(len(p.msgs)); i++ {
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

// depth counts what a group still owes of a partition, and how much of that is
// under a live lease.
func (m *model) depth(group string, p *mPart) (pending, processing int64) {
	c := p.cursors[group]
	if c == nil {
		return int64(len(p.msgs)) - int64(p.start), 0
	}
	l := c.live(m.now)
	for o := range uint64(len(p.msgs)) {
		if o < p.start || c.settled(o) {
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
