package fsm

import (
	"container/heap"
	"sync/atomic"

	"queen/index"
	"queen/internal/entry"
)

// Config are the limits and paces of a machine. Zero fields get the defaults
// named here.
type Config struct {
	EntryBytes            int              // largest planned part of a command; 96 MiB
	CycleBytes            int              // a cycle ends when its entry has reached this; 1 MiB
	DefaultMode           SubscriptionMode // where a group starts that does not say; new
	DedupBytes            int64            // memory for recent transactionIds; 256 MiB
	TimersOff             bool             // never fire
	TimerTick             int64            // shortest time between two firing passes, microseconds; 50,000
	TimerFireBatch        int              // timers a pass; 256
	TimerFireBytes        int              // message bytes a pass; 4 MiB
	TimerBackoffMin       int64            // microseconds; 1 s
	TimerBackoffMax       int64            // microseconds; 60 s
	TimerTransientBackoff int64            // microseconds, after a failure that was not the timer's; 1 s
	TimerMaxAttempts      int64            // counted attempts before a timer is filed; 5
	KVSweepEvery          int64            // microseconds; 1 s
	KVSweepLimit          int              // rows a pass; 512
	KVReadBytes           int              // value bytes that one call reads; 4 MiB
	RetentionEvery        int64            // microseconds between two passes; 5 s
	RetentionBatch        int              // partitions and rows a slice of a pass; 1,000
	RetentionScan         int              // partitions a second; 50,000
	TxnWindowMin          int64            // microseconds for which ids outlive their messages at least; 900 s
	TraceRetention        int64            // microseconds that traces are kept; 7 days
	PartitionCleanup      int64            // microseconds without a write after which an empty partition goes; below 0: never; 30 days
	CleanupEvery          int64            // microseconds between two looks for such partitions; 1 h
	OutcomeWindow         int64            // microseconds for which the outcome of a keyed call is kept; 600 s
	OutcomeBytes          int64            // memory for outcomes; 256 MiB
	StatQueues            int              // queues with statistics of their own; below 0: none; 1,000
	StatDays              int64            // days for which statistics are kept; 90
}

func (c *Config) defaults() {
	set := func(v *int, def int) {
		if *v <= 0 {
			*v = def
		}
	}
	set64 := func(v *int64, def int64) {
		if *v <= 0 {
			*v = def
		}
	}
	set(&c.EntryBytes, 96<<20)
	set(&c.CycleBytes, 1<<20)
	if c.DefaultMode == SubscribeDefault {
		c.DefaultMode = SubscribeNew
	}
	set64(&c.DedupBytes, 256<<20)
	set64(&c.TimerTick, 50_000)
	set(&c.TimerFireBatch, 256)
	set(&c.TimerFireBytes, 4<<20)
	set64(&c.TimerBackoffMin, 1_000_000)
	set64(&c.TimerBackoffMax, 60_000_000)
	set64(&c.TimerTransientBackoff, 1_000_000)
	set64(&c.TimerMaxAttempts, 5)
	set64(&c.KVSweepEvery, 1_000_000)
	set(&c.KVSweepLimit, 512)
	set(&c.KVReadBytes, 4<<20)
	set64(&c.RetentionEvery, 5_000_000)
	set(&c.RetentionBatch, 1000)
	set(&c.RetentionScan, 50_000)
	set64(&c.TxnWindowMin, 900_000_000)
	set64(&c.TraceRetention, 7*dayMicros)
	if c.PartitionCleanup == 0 {
		c.PartitionCleanup = 30 * 86400 * 1_000_000
	}
	set64(&c.CleanupEvery, 3600_000_000)
	set64(&c.OutcomeWindow, 600_000_000)
	set64(&c.OutcomeBytes, 256<<20)
	if c.StatQueues == 0 {
		c.StatQueues = 1000
	}
	set64(&c.StatDays, 90)
}

// WithDefaults is the configuration that a machine runs with.
func (c Config) WithDefaults() Config {
	c.defaults()
	return c
}

// Machine plans calls on the state and applies entries to it. All methods
// belong to one goroutine. A machine that leads runs ahead of commit by the
// entries it has planned.
type Machine struct {
	cfg   Config
	s     *State
	dedup *index.DedupMemory

	leading bool
	derived bool // what build makes is there

	// The cycle being planned.
	now     int64
	b       entry.Builder
	metaWas counters
	done    []*Call // answered when the cycle's entry has committed
	instant []*Call // answered at once
	prepare []*Call
	backlog []*Call  // left over when a cycle was full
	hot     []*group // to be served at the end of the cycle
	later   []*group // to be served in the next cycle
	reviews []*queue // options changed; see review
	scratch []byte
	// Memory that the planning of one call uses and the next one uses again.
	acks     ackPlan
	messages [][]byte
	hashes   []uint64

	// What becomes due by time.
	wakes     wakeHeap
	expiries  expiryHeap
	due       dueHeap
	deadlines deadlineHeap
	nextFire  int64
	nextSweep int64
	leases    map[[16]byte]*lease // by id; those of one pop are chained
	leaseSeq  uint64              // of the newest lease
	workers   map[workerKey]*workerLeases
	placing   []*group             // moved by a seek to a time, and not placed everywhere yet
	orphans   map[string][]*waiter // waiting pops of queues that were deleted
	parkedN   int
	released  bool // ReleaseParked came: nothing waits any more
	// placingNow: a slice of placing waits for its look-ups.
	placingNow bool
	ret        retention
	stats      statistics
	removed    Removed
	redriving  redriving
	watches    watches
	paused     atomic.Bool // jobs wait; see PauseJobs

	fresh        []*outcome // those whose rows the cycle owes
	nextOutcomes int64      // sweep of outcomes

	// Rows that changed since the last checkpoint.
	dirty   dirtyRows
	capture capture
}

// New makes a machine with an empty state.
func New(cfg Config) *Machine {
	cfg.defaults()
	s := newState()
	s.outcomes.window = cfg.OutcomeWindow
	return &Machine{
		cfg: cfg, s: s, dedup: index.NewDedupMemory(cfg.DedupBytes),
		orphans: map[string][]*waiter{}, derived: true,
	}
}

// Plan is the outcome of a planning cycle; see the machine interface of the
// log that drives this one.
type Plan struct {
	Data        []byte
	Answer      func(err error)
	Now         func()
	Prepare     []*Call
	Wake        int64
	More        bool
	SealThrough int64
}

// Lead tells that calls will be planned here from now on.
func (m *Machine) Lead(uint64) {
	m.leading = true
	if !m.derived {
		m.build()
	}
}

// Follow tells that this node no longer plans: what waits is answered with
// ErrNotLeader.
func (m *Machine) Follow() {
	m.leading = false
	m.derived = false // what leads next begins anew: timers that were about to fire are due again
	for _, w := range m.takeParked() {
		w.call.giveUp(ErrNotLeader)
	}
	for _, c := range m.backlog {
		c.giveUp(ErrNotLeader)
	}
	m.backlog = nil
	for _, c := range m.takeWatches() {
		c.Done(ErrNotLeader)
	}
}

// Time is the time of the newest entry that the state holds.
func (m *Machine) Time() int64 { return m.s.time }

// SealedThrough tells that every append with a time at or below t is in a
// sealed file, so its id can be found on disk.
func (m *Machine) SealedThrough(t int64) { m.dedup.Evict(t) }

// View is the state, for reads on the machine's goroutine.
func (m *Machine) View() *State { return m.s }

// Parked is the number of pops that wait.
func (m *Machine) Parked() int { return m.parkedN }

// DedupBytes is the memory that recent transactionIds use.
func (m *Machine) DedupBytes() int64 { return m.dedup.Bytes() }

// verdict is what becomes of a call in the cycle that planned it.
type verdict uint8

const (
	answered verdict = iota // with the cycle's entry, or a confirmation of leadership
	instantly
	again // when lookups have been made
	parked
	unfinished // goes on in the next cycle
)

// Plan judges calls in order at broker time now, and then whatever is owed by
// itself: due timers, expired keys, waiting pops.
func (m *Machine) Plan(now int64, calls []*Call) Plan {
	m.begin(now)
	m.wakeCursors()
	if len(m.backlog) > 0 {
		calls = append(m.backlog, calls...)
		m.backlog = nil
	}
	for i, c := range calls {
		if m.b.Size() >= m.cfg.CycleBytes {
			m.backlog = append(m.backlog, calls[i:]...)
			break
		}
		m.route(c, m.planCall(c))
	}
	m.fireTimers()
	m.sweepKeys()
	m.sweepDead()
	m.sweepDying()
	m.placeGroups()
	m.retain()
	m.redrive()
	m.review()
	m.endWatches()
	m.serve()
	m.sweepOutcomes()
	m.writeBuckets()
	m.sweepBuckets()
	return m.finish()
}

func (m *Machine) begin(now int64) {
	m.now, m.s.now = now, now
	m.stats.begin(now)
	m.dedup.Evict(0) // what was sealed before may be over the budget only now
	m.b.Reset()
	m.metaWas = m.s.meta
	m.done, m.instant, m.prepare = nil, nil, nil // their calls are answered later
	for _, g := range m.later {
		m.heat(g)
	}
	m.later = m.later[:0]
}

func (m *Machine) route(c *Call, v verdict) {
	switch v {
	case answered:
		m.done = append(m.done, c)
	case instantly:
		m.instant = append(m.instant, c)
	case again:
		m.prepare = append(m.prepare, c)
	case parked:
	case unfinished:
		m.backlog = append(m.backlog, c)
	}
}

// planCall plans a call, and keeps its outcome when it came with a key.
func (m *Machine) planCall(c *Call) verdict {
	if c.Key == nil {
		return m.plan(c)
	}
	if v, decided := m.planKeyed(c); decided {
		return v
	}
	v := m.plan(c)
	if b, ok := c.Body.(committer); ok && !c.Misfit && !c.Key.Kept && (v == answered || v == parked) && b.committed() {
		m.keepOutcome(c, v == parked)
	}
	return v
}

func (m *Machine) plan(c *Call) verdict {
	m.stats.call++
	switch b := c.Body.(type) {
	case *Txn:
		return m.planTxn(c, b)
	case *Pop:
		return m.planPop(c, b)
	case *Push:
		return m.planPush(c, b)
	case *Ack:
		return m.planAck(c, b)
	case *Extend:
		return m.planExtend(b, c.Tenant)
	case *KV:
		return m.planKV(c.Tenant, b)
	case *Locks:
		return m.planLocks(c, b)
	case *Timers:
		return m.planTimers(c, b)
	case *HandBack:
		return m.planHandBack(b)
	case *Delivered:
		return m.planDelivered(b)
	case *fire:
		return m.planFire(c, b)
	case *retire:
		return m.planRetire(c, b)
	case *Trace:
		return m.planTrace(c, b)
	case *FindTraces:
		return m.planFindTraces(c.Tenant, b)
	case *Configure:
		return m.planConfigure(c.Tenant, b)
	case *DeleteQueue:
		return m.planDeleteQueue(c.Tenant, b)
	case *ReplayDeadLetter:
		return m.planReplay(c, b)
	case *PurgeDeadLetters:
		return m.planPurge(c.Tenant, b)
	case *SetSwitches:
		return m.planSwitches(b)
	case *Redrive:
		return m.planRedrive(c.Tenant, b)
	case *CancelRedrive:
		return m.planCancelRedrive(c.Tenant, b)
	case *Watch:
		return m.planWatch(c, b)
	case *Locate:
		return m.planLocate(c, b)
	case *DeleteLetters:
		return m.planDeleteLetters(c.Tenant, b)
	case *redrivePart:
		return m.planRedrivePart(c, b)
	case *Read:
		b.Do(m.s)
		return answered
	case *Seek:
		return m.planSeek(c, b)
	case *DeleteGroup:
		return m.planDeleteGroup(c.Tenant, b)
	case *PauseGroup:
		return m.planPause(c.Tenant, b)
	case *Subscribe:
		return m.planSubscribe(c.Tenant, b)
	case *ReleaseWorker:
		return m.planReleaseWorker(c.Tenant, b)
	case *placing:
		return m.planPlacing(c, b)
	case *ReleaseParked:
		m.released, m.stats.closing = true, true
		m.instant = append(m.instant, m.takeWatches()...)
		for _, w := range m.takeParked() {
			m.answerEmpty(w)
		}
		return instantly
	default:
		panic("fsm: a call without a known body")
	}
}

// ReleaseParked answers every waiting pop as empty, now and from now on: the
// broker stops.
type ReleaseParked struct{}

func (m *Machine) finish() Plan {
	m.checkCounts()
	m.putOutcomes()
	p := Plan{Prepare: m.prepare, Wake: m.nextWake(), More: len(m.backlog) > 0 || len(m.later) > 0 || len(m.reviews) > 0 || len(m.s.dying) > 0 || len(m.placing) > 0 && !m.placingNow || m.stats.closing && len(m.stats.due) > 0, SealThrough: m.dedup.WantSealed()}
	if m.s.meta != m.metaWas {
		m.putRaw([]byte{rowMeta}, m.s.encodeMeta(m.scratch[:0]))
	}
	if !m.b.Empty() {
		m.s.time = m.now
		p.Data = m.b.Encode(m.now)
	}
	if done := m.done; len(done) > 0 {
		p.Answer = func(err error) { answerAll(done, err) }
	}
	if instant := m.instant; len(instant) > 0 {
		p.Now = func() { answerAll(instant, nil) }
	}
	return p
}

func answerAll(calls []*Call, err error) {
	for _, c := range calls {
		c.Done(err)
	}
}

// nextWake is when Plan has something to do without a call.
func (m *Machine) nextWake() int64 {
	wake := int64(0)
	at := func(t int64) {
		if wake == 0 || t < wake {
			wake = t
		}
	}
	if len(m.wakes) > 0 {
		at(m.wakes[0].wakeAt)
	}
	if len(m.deadlines) > 0 {
		at(m.deadlines[0].pop.deadline)
	}
	if len(m.due) > 0 && !m.cfg.TimersOff && !m.s.switches.FireOff {
		at(max(m.due[0].deliverAt, m.nextFire))
	}
	if len(m.expiries) > 0 {
		at(max(m.expiries[0].expires, m.nextSweep))
	}
	if wake := m.outcomesWake(); wake != 0 {
		at(wake)
	}
	if len(m.s.dead) > 0 {
		at(m.now + 1)
	}
	if len(m.watches.due) > 0 {
		at(m.watches.due[0].deadline)
	}
	if next := m.nextRedrive(); next != 0 {
		at(next)
	}
	if m.s.queueOrder.Len() > 0 && !m.ret.waiting {
		at(max(m.ret.next, m.now+1))
	}
	if len(m.stats.due) > 0 {
		at(max((m.stats.due[0].minute+1)*microsPerMinute, m.now+1))
	}
	if len(m.stats.all) > 0 {
		at(max(m.stats.sweepAt, m.now+1))
	}
	return wake
}

// rowObject is an object of the state that is one row (a cursor: one row and
// those of its sets).
type rowObject interface {
	appendKey(dst []byte) []byte
	encode(dst []byte) []byte
	alive() bool
	setDirty(bool) (was bool)
}

func (m *Machine) touch(o rowObject) {
	if !o.setDirty(true) {
		m.dirty.objects.add(o)
	}
}

func (m *Machine) touchQueue(q *queue)         { m.touch(q) }
func (m *Machine) touchPartition(p *partition) { m.touch(p) }
func (m *Machine) touchGroup(g *group)         { m.touch(g) }
func (m *Machine) touchCursor(c *cursor)       { m.touch(c) }
func (m *Machine) touchLetter(l *deadLetter)   { m.touch(l) }
func (m *Machine) touchKV(k *kvRow)            { m.touch(k) }
func (m *Machine) touchTimer(t *timer)         { m.touch(t) }

// put emits the effect that an object's row is now what the object says.
func (m *Machine) put(o rowObject) {
	m.touch(o)
	buf := o.appendKey(m.scratch[:0])
	n := len(buf)
	buf = o.encode(buf)
	m.scratch = buf
	m.putRaw(buf[:n], buf[n:])
}

func (m *Machine) putRaw(key, value []byte) {
	e := append(m.b.Effects, effectPut)
	e = putString(e, key)
	m.b.Effects = putString(e, value)
}

// remove emits the effect that an object's row is gone.
func (m *Machine) remove(o rowObject) {
	key := o.appendKey(m.scratch[:0])
	m.scratch = key
	m.b.Effects = putString(append(m.b.Effects, effectDelete), key)
	m.dirty.deletes.add(string(key))
}

func (m *Machine) removeRange(lo, hi []byte) {
	e := putString(append(m.b.Effects, effectDeleteRange), lo)
	m.b.Effects = putString(e, hi)
	m.dirty.ranges.add([2]string{string(lo), string(hi)})
}

func (q *queue) appendKey(dst []byte) []byte      { return queueKey(dst, q) }
func (p *partition) appendKey(dst []byte) []byte  { return partitionKey(dst, p) }
func (g *group) appendKey(dst []byte) []byte      { return groupKey(dst, g) }
func (c *cursor) appendKey(dst []byte) []byte     { return cursorKey(dst, c) }
func (l *deadLetter) appendKey(dst []byte) []byte { return letterKey(dst, l) }
func (k *kvRow) appendKey(dst []byte) []byte      { return append(append(dst, rowKV), k.key...) }
func (t *timer) appendKey(dst []byte) []byte      { return append(append(dst, rowTimer), t.key...) }

func (q *queue) alive() bool      { return q.exists }
func (p *partition) alive() bool  { return p.exists }
func (g *group) alive() bool      { return g.exists }
func (c *cursor) alive() bool     { return c.row }
func (l *deadLetter) alive() bool { return !l.dead }
func (k *kvRow) alive() bool      { return !k.dead }
func (t *timer) alive() bool      { return !t.dead }

func swap(b *bool, v bool) bool { was := *b; *b = v; return was }

func (q *queue) setDirty(v bool) bool      { return swap(&q.dirty, v) }
func (p *partition) setDirty(v bool) bool  { return swap(&p.dirty, v) }
func (g *group) setDirty(v bool) bool      { return swap(&g.dirty, v) }
func (c *cursor) setDirty(v bool) bool     { return swap(&c.dirty, v) }
func (l *deadLetter) setDirty(v bool) bool { return swap(&l.dirty, v) }
func (k *kvRow) setDirty(v bool) bool      { return swap(&k.dirty, v) }
func (t *timer) setDirty(v bool) bool      { return swap(&t.dirty, v) }

// newQueue creates a queue with the labels and lease time of its maker.
func (m *Machine) newQueue(tenant, name string, opts Options) *queue {
	q := &queue{
		id: m.s.meta.queue, tenant: tenant, name: name, opts: opts, created: m.now, exists: true,
		byName: map[string]*partition{}, byGroup: map[string]*group{}, reviewed: reviewDone,
	}
	m.s.meta.queue++
	m.s.queues[q.id] = q
	m.s.queueName[tenant+name] = q
	m.s.queueOrder.Set(tenant+name, q)
	m.put(q)
	m.adoptOrphans(q)
	return q
}

// pushQueue finds a queue, or creates it as a push does.
func (m *Machine) pushQueue(tenant, name string) *queue {
	if q := m.s.findQueue(tenant, name); q != nil {
		return q
	}
	opts := DefaultOptions()
	opts.LeaseTime = PushLeaseTime
	opts.Namespace, opts.Task = labels(name)
	return m.newQueue(tenant, name, opts)
}

// labels are the first and second dot-separated part of a queue's name; an
// undotted name is its own namespace.
func labels(name string) (namespace, task string) {
	dot := -1
	for i := range len(name) {
		if name[i] != '.' {
			continue
		}
		if dot >= 0 {
			return name[:dot], name[dot+1 : i]
		}
		dot = i
	}
	if dot < 0 {
		return name, ""
	}
	return name[:dot], name[dot+1:]
}

func (m *Machine) pushPartition(q *queue, name string) *partition {
	if p := q.byName[name]; p != nil {
		return p
	}
	p := &partition{id: m.s.meta.partition, q: q, name: name, created: m.now, exists: true}
	m.s.meta.partition++
	m.s.partitions[p.id] = p
	q.parts = append(q.parts, p)
	q.byName[name] = p
	q.names.added(p, len(q.parts))
	m.put(p)
	s := m.tally(q)
	s.cur.PartitionsCreated++
	s.up.cur.PartitionsCreated++
	return p
}

// wakeDue reports whether a cursor's time has come that nobody has looked at yet.
func (m *Machine) wakeDue() bool { return len(m.wakes) > 0 && m.wakes[0].wakeAt <= m.now }

// setWake places a cursor in the heap of things to look at again; 0 takes it out.
func (m *Machine) setWake(c *cursor, at int64) {
	if c.wakeAt == at {
		return
	}
	c.wakeAt = at
	switch {
	case at == 0 && c.heapIdx >= 0:
		heap.Remove(&m.wakes, int(c.heapIdx))
	case at == 0:
	case c.heapIdx >= 0:
		heap.Fix(&m.wakes, int(c.heapIdx))
	default:
		heap.Push(&m.wakes, c)
	}
}

// wakeSlice bounds how many cursors a cycle looks at because their time has
// come; the wake that is left over calls for the next cycle (F24).
const wakeSlice = 512

func (m *Machine) wakeCursors() {
	for n := 0; n < wakeSlice && m.wakeDue(); n++ {
		c := m.wakes[0]
		m.setWake(c, 0)
		m.refresh(c)
	}
}
