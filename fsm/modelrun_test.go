package fsm

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"queen/internal/entry"

	"github.com/cespare/xxhash/v2"
)

// A modelRun drives a machine and the model side by side with random calls and
// times. pick(n) gives a number below n; everything that happens follows from
// what it gives.
type modelRun struct {
	pick  func(n int) int
	r     *rig
	m     *model
	trace []string

	held   []*Call // looked up already, not submitted again yet
	pops   []*Call // answered with claims
	fires  map[*fire][]*mTimer
	jobs   map[[16]byte]*mJob
	jobIDs [][16]byte
	// judgedPart is the slice of a redrive that the model has taken over last.
	judgedPart *redrivePart
	leases     []string // names, the newest last
	leaseN     int
	steps      int

	answerN int            // of keyed calls
	carried map[*Call]bool // calls with a next batch whose effects the model has

	// planted is called around each planning cycle; it breaks the machine (plants_test.go).
	planted plant
}

// plant is a planted bug: before and after are called around each Plan.
type plant interface {
	before(r *rig, calls []*Call)
	after(r *rig, calls []*Call)
}

var otherTenant = strings.Replace(tenantA, "1", "2", 1)

// newModelRun makes a run whose settings are picked too.
func newModelRun(t fataler, pick func(n int) int) *modelRun {
	cfg := Config{EntryBytes: 5000, TimerTick: 1, KVSweepEvery: 500_000, KVSweepLimit: 2, DedupBytes: 64 << 20}
	if pick(3) == 0 {
		cfg.DedupBytes = 1 // everything that is sealed leaves memory, chunk by chunk
	}
	if pick(3) == 0 {
		cfg.CycleBytes = 600
	}
	if pick(4) == 0 {
		cfg.DefaultMode = SubscribeAll
	}
	// A pass of retention every now and then, in slices of a few partitions.
	cfg.RetentionEvery, cfg.RetentionBatch, cfg.RetentionScan = choose(&modelRun{pick: pick}, int64(1_000_000), 20_000_000), 1+pick(6), 1_000_000
	cfg.TxnWindowMin, cfg.CleanupEvery = 1_000_000, 1_000_000
	cfg.OutcomeWindow = int64(1_000_000) << (3 * pick(4))
	if pick(3) == 0 {
		cfg.OutcomeBytes = 3 * outcomeBytes
	}
	if cfg.PartitionCleanup = -1; pick(2) == 0 {
		cfg.PartitionCleanup = 3_000_000
	}
	cfg.StatQueues = 1 + pick(3)
	x := &modelRun{pick: pick, r: newRig(t, cfg), m: newModel(cfg), fires: map[*fire][]*mTimer{}, carried: map[*Call]bool{}, jobs: map[[16]byte]*mJob{}}
	x.m.value = func(id uint64) []byte { return x.r.store.values[id].Data }
	x.r.applies = 1 + pick(2)
	x.r.batches = pick(3) > 0
	return x
}

func (x *modelRun) oneIn(n int) bool { return x.pick(n) == 0 }

func choose[T any](x *modelRun, list ...T) T { return list[x.pick(len(list))] }

// run makes a number of steps: a step is one call.
func (x *modelRun) run(steps int) {
	for x.steps < steps {
		x.advance()
		switch x.pick(40) {
		case 0:
			x.tracef("checkpoint")
			x.checkpointStep()
		case 1:
			x.restart()
		case 2:
			x.tracef("seal")
			x.r.seal()
		default:
			var calls []*Call
			for n := 1 + x.pick(3); n > 0; n-- {
				calls = append(calls, x.next())
				x.steps++
			}
			x.submit(calls)
		}
		if always := os.Getenv("ALWAYS") != ""; x.oneIn(16) || always {
			x.compare()
		}
	}
	x.settleHeld()
	x.settleGroups()
	x.compare()
	x.settleRedrives()
	x.settleRetention()
	if x.planted == nil {
		x.r.checkpoint(true)
	}
}

func (x *modelRun) tracef(format string, args ...any) {
	x.trace = append(x.trace, fmt.Sprintf(format, args...))
	if len(x.trace) > 120 {
		x.trace = slices.Delete(x.trace, 0, 60)
	}
}

func (x *modelRun) check() {
	if x.m.problem != "" {
		x.r.t.Fatalf("%s\nafter %d steps:\n%s", x.m.problem, x.steps, strings.Join(x.trace, "\n"))
	}
}

// advance moves time: a little, by something that options speak of, or to just
// about where the machine has something to do.
func (x *modelRun) advance() {
	r := x.r
	switch x.pick(8) {
	case 0:
		r.now += choose(x, int64(1000), 400_000, 1_000_000, 1_010_000, 2_000_000)
	case 1:
		if x.oneIn(10) {
			r.now += choose(x, int64(61_000_000), 3600_000_000)
		}
	case 2, 3:
		if wake := r.m.nextWake(); wake > r.now {
			r.now = wake + int64(x.pick(3)) - 1
		}
	}
	if r.now <= r.last {
		r.now = r.last + 1
	}
}

func (x *modelRun) checkpointStep() {
	if x.planted != nil {
		return
	}
	r := x.r
	switch {
	case r.taking == nil:
		r.beginCapture(x.oneIn(3))
	case x.oneIn(10):
		r.endCapture(false)
	default:
		r.captureSome(1 + x.pick(20))
	}
}

// restart puts a machine made of the checkpoint and the log into place. Calls
// in flight end with an error.
func (x *modelRun) restart() {
	if x.planted != nil || x.pick(3) > 0 {
		return
	}
	x.tracef("restart")
	x.held = nil
	x.fires = map[*fire][]*mTimer{}
	x.r.m.backlog = nil
	x.r.restart()
	for _, q := range x.m.queues {
		for _, g := range q.groups {
			g.waiters = nil
		}
	}
	x.m.orphans = map[string][]*mWait{}
	for _, o := range x.m.outcomes {
		o.waiting, o.repeats = nil, nil
	}
	for _, t := range x.m.timers {
		t.flying = false
	}
	x.cycle(nil)
}

// submit plans calls, with those that were held back before or after them.
func (x *modelRun) submit(calls []*Call) {
	if len(x.held) > 0 && x.oneIn(2) {
		if x.oneIn(2) {
			calls = append(x.held, calls...)
		} else {
			calls = append(calls, x.held...)
		}
		x.held = nil
	}
	x.cycle(calls)
	for len(x.r.m.backlog) > 0 {
		x.cycle(nil)
	}
}

func (x *modelRun) settleHeld() {
	for n := 0; len(x.held) > 0; n++ {
		if n > 50 {
			x.r.t.Fatalf("calls are prepared again and again")
		}
		calls := x.held
		x.held = nil
		x.submit(calls)
	}
}

// cycle plans once and lets the model judge what was decided.
func (x *modelRun) cycle(calls []*Call) {
	r := x.r
	all := append(slices.Clone(r.m.backlog), calls...)
	for _, c := range all {
		if c.Gone.Load() {
			claimOf(c).Claims = nil
		}
	}
	if x.planted != nil {
		x.planted.before(r, all)
	}
	p := r.plan(calls...)
	if x.planted != nil {
		x.planted.after(r, all)
	}
	planned := all[:len(all)-len(r.m.backlog)]
	x.m.now = r.last
	x.judge(planned, p.Prepare)
	x.learn()
	for _, c := range planned {
		if claimOf(c) != nil {
			x.pops = append(x.pops, c)
		}
	}
	if len(x.pops) > 32 {
		x.pops = slices.Delete(x.pops, 0, 16)
	}
	for _, c := range p.Prepare {
		r.resolve(c)
		x.held = append(x.held, c)
	}
	if next, wake := x.m.nextEvent(), r.m.nextWake(); !r.reported && next != 0 && (wake == 0 || wake > max(next, r.last+1)) {
		x.m.fail("something is due at %d, and the machine wants to be woken at %d", next-startTime, wake-startTime)
	}
	x.check()
}

func (x *modelRun) judge(planned, prepare []*Call) {
	later := map[*Call]bool{}
	for _, c := range prepare {
		later[c] = true
	}
	for _, c := range planned {
		p, isPop := c.Body.(*Pop)
		switch {
		case isPop && p.Queue == "":
			x.m.discover(c, p, later[c])
		case isPop:
			x.m.arrive(c, p)
		case x.carried[c]:
			x.arriveNext(c)
		case !later[c] || nextOf(c).planned():
			x.applyKeyed(c)
		}
		delete(later, c)
		x.check()
	}
	for c := range later {
		if _, ok := c.Body.(*Pop); ok {
			delete(later, c) // a waiter that needs look-ups, judged below
		}
	}
	x.fireDue(later)
	x.retain()
	x.redriven(x.r.m.redriving.slice)
	x.compareJobs()
	x.m.serve(func(c *Call) popState {
		switch {
		case slices.Contains(prepare, c):
			return popPrepares
		case x.r.waits(c):
			return popWaits
		}
		return popAnswered
	})
}

// fireDue expects the due timers to fire at the end of the calls, or to wait
// for look-ups as a whole.
func (x *modelRun) fireDue(later map[*Call]bool) {
	due := x.m.dueTimers()
	for c := range later {
		f, ok := c.Body.(*fire)
		if !ok {
			continue // a slice of retention
		}
		x.m.expect("timers of a pass", len(f.timers), len(due))
		for _, t := range due {
			t.flying = true
		}
		x.fires[f] = due
		return
	}
	x.m.fire(due)
}

// applyKeyed is apply for a call that may have a key, and a next batch.
func (x *modelRun) applyKeyed(c *Call) {
	if c.Key != nil && x.m.keyed(c) {
		return
	}
	x.apply(c)
	committed := committedHere(c)
	if c.Key != nil {
		x.m.keep(c, committed)
	}
	if p := nextOf(c); p != nil {
		x.m.expect("a batch is claimed", p.planned(), committed)
		if committed {
			x.carried[c] = true
			x.arriveNext(c)
		}
	}
}

// arriveNext is the claim of a call that was carried out.
func (x *modelRun) arriveNext(c *Call) {
	p := nextOf(c)
	x.m.arrive(c, p)
	if c.Gone.Load() {
		x.m.decidedNext(c)
	}
}

func (x *modelRun) apply(c *Call) {
	m := x.m
	switch b := c.Body.(type) {
	case *Push:
		m.push(c.Tenant, b)
	case *Ack:
		m.acks(c.Tenant, b.Items)
	case *Extend:
		m.extend(c.Tenant, b)
	case *Txn:
		m.txn(c.Tenant, b)
	case *SetSwitches:
		m.setSwitches(b)
	case *KV:
		if m.expect("a kv call is turned off", b.Disabled, m.off.KVOff); m.off.KVOff {
			return
		}
		i := m.kvCall(c.Tenant, b.Ops, true)
		m.expect("index of the lost gate of a kv call", b.Failed, i)
		m.kvCall(c.Tenant, b.Ops, false)
	case *Locks:
		if m.expect("a call of locks is turned off", b.Disabled, m.off.KVOff); !m.off.KVOff {
			m.locks(c.Tenant, b)
		}
	case *Timers:
		off := m.off.ScheduleOff && slices.ContainsFunc(b.Ops, func(op TimerOp) bool { return !op.Cancel })
		if m.expect("a call of timers is turned off", b.Disabled, off); !off {
			m.timerOps(c.Tenant, b.Ops)
		}
	case *Configure:
		m.configure(c.Tenant, b)
	case *DeleteQueue:
		m.deleteQueue(c.Tenant, b)
	case *HandBack:
		m.handBack(b)
	case *ReplayDeadLetter:
		m.replay(c.Tenant, b)
	case *PurgeDeadLetters:
		m.purge(c.Tenant, b)
	case *Redrive:
		x.redrive(c.Tenant, b)
	case *CancelRedrive:
		x.cancelRedrive(c.Tenant, b)
	case *redrivePart:
		x.redriven(b)
	case *retire:
		for _, it := range b.items {
			x.moveStart(it.partition, it.start)
		}
	case *placing:
	case *Seek:
		m.seek(c.Tenant, b)
	case *DeleteGroup:
		m.deleteGroup(c.Tenant, b)
	case *PauseGroup:
		m.pause(c.Tenant, b)
	case *Subscribe:
		m.subscribe(c.Tenant, b)
	case *ReleaseWorker:
		m.releaseWorker(c.Tenant, b)
	case *fire:
		m.fire(x.fires[b])
		delete(x.fires, b)
	default:
		x.r.t.Fatalf("the model does not know %T", b)
	}
}

// learn takes over the ids that the machine minted.
func (x *modelRun) learn() {
	for _, q := range x.m.queues {
		for _, p := range q.order {
			if p.id != 0 {
				continue
			}
			real := x.r.m.s.findQueue(q.tenant, q.name)
			if real == nil || real.byName[p.name] == nil {
				x.m.fail("the machine has no partition %s of %s", p.name, q.name)
				return
			}
			p.id = real.byName[p.name].id
			if x.m.usedParts[p.id] {
				x.m.fail("partition id %d is given out twice", p.id)
			}
			x.m.usedParts[p.id] = true
		}
	}
	x.learnLetters()
	x.compareOutcomes()
}

// learnLetters matches new dead letters with those that the model expects.
func (x *modelRun) learnLetters() {
	s := x.r.m.s
	for id, want := range x.m.letters {
		if id[1] != 0xff {
			continue
		}
		found := false
		want.q.eachLetter(s, func(i DeadLetterInfo) {
			if found || x.m.letters[i.ID] != nil {
				return
			}
			content := i.Content
			if i.ContentID != 0 {
				content = x.r.store.values[i.ContentID].Data
			}
			if want.same(i, content) {
				delete(x.m.letters, id)
				x.m.letters[i.ID] = want
				found = true
			}
		})
		if !found {
			x.m.fail("no dead letter of %s/%s offset %d group %s error %q retries %d", want.q.name, want.part, want.offset, want.group, want.err, want.retries)
		}
	}
}

func (q *mQueue) eachLetter(s *State, fn func(DeadLetterInfo)) {
	filter := DeadLetterFilter{Queue: q.name, Limit: 1 << 30}
	for more := true; more; {
		var letters []DeadLetterInfo
		letters, more = s.DeadLetters(q.tenant, &filter)
		for _, l := range letters {
			fn(l)
		}
	}
}

// compare checks the whole state.
func (x *modelRun) compare() {
	s := x.r.m.s
	m := x.m
	m.expect("queues", len(s.queueName), len(m.queues))
	for _, q := range m.queues {
		real := s.findQueue(q.tenant, q.name)
		if real == nil {
			m.fail("no queue %s", q.name)
			continue
		}
		x.compareQueue(q, real)
	}
	m.expect("dead letters", x.liveLetters(), len(m.letters))
	x.compareJobs()
	x.compareKV()
	m.expect("timers", s.timers.Len(), len(m.timers))
	m.expect("what is turned off", s.Switches(), m.off)
	for _, t := range m.timers {
		i, ok := s.Timer(t.tenant, t.queue, t.key)
		if !ok {
			m.fail("no timer %s of %s", t.key, t.queue)
			continue
		}
		m.expect("due time of a timer", i.DeliverAt, t.due)
		m.expect("attempts of a timer", i.Attempts, t.attempts)
		m.expect("txn of a timer", string(i.Txn), t.txn)
		m.expect("partition of a timer", i.Partition, t.part)
	}
	x.check()
}

func (x *modelRun) liveLetters() int {
	n := 0
	for _, l := range x.r.m.s.letters {
		if !l.q.deleted {
			n++
		}
	}
	return n
}

func (x *modelRun) compareKV() {
	m := x.m
	n := 0
	x.r.m.s.kv.Scan(func(key string, k *kvRow) bool {
		if k.live(m.now) {
			n++
			if want := m.liveKV(key); want == nil || want.text("") != (KVRow{"", nil, k.version, k.expires, k.updated}).text()+string(k.value) {
				m.fail("row %q differs", key)
			}
		}
		return true
	})
	live := 0
	for key := range m.kv {
		if m.liveKV(key) != nil {
			live++
		}
	}
	m.expect("live keys", n, live)
}

func (x *modelRun) compareQueue(q *mQueue, real *queue) {
	m := x.m
	m.expect("options", real.opts, q.opts)
	m.expect("partitions", len(real.parts), len(q.parts))
	m.expect("groups", len(real.groups), len(q.groups))
	if placedAll(real) {
		x.compareTotals(q)
	}
	for name, g := range q.groups {
		rg := real.byGroup[name]
		if rg == nil {
			m.fail("no group %s of %s", name, q.name)
			return
		}
		m.expect("mode of a group", rg.mode, g.base.mode)
		m.expect("a group conflates", rg.conflates, g.newest)
		m.expect("a group is paused", rg.paused(), g.paused)
		if placedAll(real) {
			x.compareDepth(q, name)
		}
	}
	for name, p := range q.parts {
		rp := real.byName[name]
		if rp == nil {
			m.fail("no partition %s of %s", name, q.name)
			return
		}
		m.expect("next offset", rp.next, uint64(len(p.msgs)))
		m.expect("log start of "+q.name+"/"+name, rp.start, p.start)
		m.expect("last append", rp.lastAppend, p.lastAppend())
		for group, c := range p.cursors {
			if rc, unknown := placedCursor(rp, real.byGroup[group]); !unknown {
				x.compareCursor(q.name+"/"+name+" "+group, c, rc, len(p.msgs))
			}
		}
		for _, c := range rp.cursors {
			if c.row && c.g.exists && p.cursors[c.g.name] == nil {
				m.fail("a cursor of %s at %s/%s that the model does not have", c.g.name, q.name, name)
			}
		}
	}
}

func (x *modelRun) compareDepth(q *mQueue, group string) {
	want := DepthInfo{Group: group, HasGroup: true, Conflates: q.groups[group].newest}
	var parts []PartitionDepth
	for _, p := range q.order {
		pending, processing := x.m.depth(group, p)
		want.Pending += pending
		want.Processing += processing
		if pending > 0 {
			want.PartitionsPending++
		}
		if pending > processing {
			want.PartitionsReady++
		}
		parts = append(parts, PartitionDepth{p.name, pending, processing})
	}
	got, _ := x.r.m.s.Depth(q.tenant, q.name, group, true)
	x.m.expect("depth of "+q.name+" for "+group, got, want)
	list, more := x.r.m.s.Depths(q.tenant, q.name, &got, true, 0, 100)
	x.m.expect("depths of "+q.name+" for "+group, fmt.Sprintf("%+v %v", list, more), fmt.Sprintf("%+v false", parts))
}

// compareTotals checks what a listing shows of a queue: it is measured from the
// group that owes most.
func (x *modelRun) compareTotals(q *mQueue) {
	want := QueueInfo{Name: q.name, Partitions: len(q.parts)}
	for _, p := range q.order {
		want.Total += int64(len(p.msgs)) - int64(p.start)
	}
	if len(q.groups) == 0 {
		want.Pending = want.Total
	}
	for name, g := range q.groups {
		pending, processing := int64(0), int64(0)
		for _, p := range q.order {
			if p.cursors[name] == nil && g.mode == SubscribeNew && g.old[p] {
				continue // it begins after what is there
			}
			a, b := x.m.depth(name, p)
			pending, processing = pending+a, processing+b
		}
		if pending > want.Pending || pending == want.Pending && processing > want.Processing {
			want.Pending, want.Processing = pending, processing
		}
	}
	want.Completed = want.Total - want.Pending
	got, _ := x.r.m.s.Queue(q.tenant, q.name)
	want.ID, want.Created, want.Options, want.DeadLetters = got.ID, got.Created, got.Options, got.DeadLetters
	x.m.expect("totals of "+q.name, got, want)
}

func (x *modelRun) compareCursor(what string, c *mCursor, real *cursor, n int) {
	m := x.m
	if real == nil || !real.row {
		m.fail("no cursor %s", what)
		return
	}
	for o := range uint64(n) {
		if real.settled(o) != c.settled(o) {
			m.fail("%s: offset %d settled: the machine says %v, the model %v; machine %s, model at %d above %v", what, o, real.settled(o), c.settled(o),
				cursorText(real), c.floor, c.above)
			return
		}
	}
	m.expect(what+" committed", real.committed, c.floor)
	m.expect(what+" retries", int64(real.retries), c.retries)
	l, rl := c.live(m.now), real.liveLease(m.now)
	m.expect(what+" is leased", rl != nil, l != nil)
	if l != nil && rl != nil {
		m.expect(what+" lease", *l, mLease{rl.id, rl.from, rl.end, rl.expires, rl.worker})
	}
	m.expect(what+" is held back", real.delayUntil > m.now, c.hold > m.now)
}

// leaseID of a name, as in scripts.
func (x *modelRun) newLease() [16]byte {
	x.leaseN++
	name := fmt.Sprintf("L%d", x.leaseN)
	x.leases = append(x.leases, name)
	return leaseID(name)
}

func (x *modelRun) someLease() [16]byte {
	n := len(x.leases)
	if n == 0 || x.oneIn(20) {
		return leaseID("none")
	}
	back := x.pick(min(n, 6))
	return leaseID(x.leases[n-1-back])
}

func txnHash(txn string) uint64 { return xxhash.Sum64String(txn) }

// packed makes the item of a message.
func (x *modelRun) item(queue, partition string) PushItem {
	txn := ""
	if !x.oneIn(6) {
		txn = fmt.Sprintf("t%d", x.pick(12))
		if x.r.cfg.DedupBytes == 1 {
			txn += strings.Repeat(".", 500) // fills chunks of memory fast
		}
	}
	size := choose(x, 2, 2, 2, 2, 300, 2000)
	it := x.r.item(queue, partition, txn, []byte(strings.Repeat("x", size)))
	if _, _, err := entry.NextMessage(it.Packed); err != nil {
		x.r.t.Fatalf("%v", err)
	}
	return it
}
