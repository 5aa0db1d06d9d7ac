package main

import (
	"crypto/rand"
	"fmt"
	"io"
	"log/slog"
	mrand "math/rand/v2"
	"runtime/debug"
	"time"

	"github.com/cespare/xxhash/v2"

	"queen/fsm"
	"queen/internal/vfs"
	"queen/raftlog"
	"queen/recovery"
)

const (
	dataDir   = "data"
	tenant    = "00000000-0000-0000-0000-000000000001"
	startWall = int64(1_800_000_000_000_000)
	tickEvery = 100 * time.Millisecond
	second    = int64(time.Second)
)

// goal is what a run has to reach at least.
type goal struct {
	nodes, commands, faults int
	seconds                 int64
}

// totals count what a run did.
type totals struct {
	Commands, Answered, Unknown, Refused       int
	Faults, Kills, PowerCuts, Boots, Leaders   int
	Rereads, Cuts, Packets, Lost, Digests      int
	Entries, Partitions, Pauses, Hangs, Leases int
	SimSeconds                                 int64
}

// world is a simulated cluster. Everything in it follows from the seed.
type world struct {
	seed    uint64
	rng     *mrand.Rand
	goal    goal
	group   raftlog.Config
	planner fsm.Config

	now     int64 // true time, nanoseconds
	nodes   []*node
	net     network
	clients *clients
	chaos   chaos
	digests map[uint64]stateAt

	trace   *xxhash.Digest
	totals  totals
	verbose io.Writer
}

type stateAt struct {
	digest uint64
	node   int
}

// node is one machine: its disk and clocks, and the process that runs on it.
type node struct {
	w    *world
	id   uint64
	disk *vfs.Mem
	mono int64 // where its monotonic clock began
	skew int64 // of its wall clock, microseconds

	step     *raftlog.Stepper // nil: down
	machine  *machine
	fatal    error
	nextTick int64
	bootAt   int64
	paused   int64 // until then nothing runs
	hung     int64 // until then the disk does not answer
	led      bool
	timed    bool // this process has heard of the broker's time
}

// errViolation is the panic value of a broken rule.
type errViolation string

func (e errViolation) Error() string { return string(e) }

func (w *world) fail(format string, args ...any) { panic(errViolation(fmt.Sprintf(format, args...))) }

func (w *world) logf(format string, args ...any) {
	if w.verbose != nil {
		fmt.Fprintf(w.verbose, "%10.4fs %s\n", float64(w.now)/1e9, fmt.Sprintf(format, args...))
	}
}

// noteTrace adds to the trace.
func (w *world) noteTrace(what byte, a, b uint64) {
	var word [17]byte
	word[0] = what
	for i := range 8 {
		word[1+i], word[9+i] = byte(a>>(8*i)), byte(b>>(8*i))
	}
	_, _ = w.trace.Write(word[:])
}

func choose[T any](rng *mrand.Rand, from ...T) T { return from[rng.IntN(len(from))] }

func newWorld(seed uint64, g goal, verbose io.Writer) *world {
	rng := mrand.New(mrand.NewPCG(seed, 0xc1))
	w := &world{
		seed: seed, rng: rng, goal: g, digests: map[uint64]stateAt{}, trace: xxhash.New(), verbose: verbose, now: 1,
		group: raftlog.Config{
			SegmentBytes:       choose[int64](rng, 4<<10, 16<<10, 256<<10),
			UnsealedMax:        choose[int64](rng, 32<<10, 1<<20),
			OpenFiles:          64,
			CheckpointBytes:    choose[int64](rng, 16<<10, 128<<10, 1<<20),
			CheckpointInterval: time.Duration(choose(rng, 2, 20)) * time.Second,
			CompactSlack:       choose[int64](rng, 1, 64<<10),
			MaxInFlight:        choose(rng, 1, 2, 4),
			TickInterval:       tickEvery,
		},
		planner: fsm.Config{DedupBytes: choose[int64](rng, 8<<10, 1<<20), CycleBytes: choose(rng, 4<<10, 1<<20)},
	}
	w.net.w = w
	for i := range g.nodes {
		n := &node{w: w, id: uint64(i + 1), disk: vfs.NewMem(rng.Uint64()), mono: rng.Int64N(1000 * second), skew: rng.Int64N(600_000_000) - 300_000_000}
		n.bootAt = rng.Int64N(second)
		w.nodes = append(w.nodes, n)
	}
	w.clients = newClients(w)
	w.chaos.w = w
	w.chaos.plan()
	return w
}

// Now implements raftlog.Clock: a node's monotonic clock runs at the rate of all
// others and began when the node did, its wall clock shows what it likes.
func (n *node) Now() raftlog.Times {
	return raftlog.Times{Mono: n.w.now + n.mono, Wall: startWall + n.w.now/1000 + n.skew}
}

// NewTimer implements raftlog.Clock: the world looks itself at what time brings.
func (n *node) NewTimer() raftlog.Timer { return noTimer{} }

type noTimer struct{}

func (noTimer) C() <-chan time.Time { return nil }
func (noTimer) Set(time.Duration)   {}
func (noTimer) Stop()               {}

func (n *node) awake() bool { return n.step != nil && n.w.now >= n.paused }

// boot starts a process on the disk as it is.
func (n *node) boot() {
	w := n.w
	w.totals.Boots++
	n.fatal, n.led, n.timed = nil, false, false
	n.machine = newMachine(n)
	voters := make([]uint64, len(w.nodes))
	for i := range voters {
		voters[i] = uint64(i + 1)
	}
	cfg := w.group
	cfg.FS, cfg.Dir, cfg.NodeID, cfg.Machine, cfg.Clock = n.disk, dataDir, n.id, n.machine, n
	cfg.Fatal = func(err error) {
		if n.fatal == nil {
			n.fatal = err
		}
	}
	cfg.Send = func(p raftlog.Parcel) { w.net.send(n, p) }
	cfg.Refuse = func(call any, err error) { call.(*fsm.Call).Done(err) }
	cfg.Prepare = func(call any) { n.prepare(call.(*fsm.Call)) }
	cfg.Renew = func() (raftlog.Machine, func()) {
		w.totals.Rereads++
		fresh := newMachine(n)
		return fresh, func() { n.machine = fresh }
	}
	if w.verbose != nil {
		cfg.Logger = slog.New(slog.NewTextHandler(w.verbose, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey {
				return slog.Int("node", int(n.id))
			}
			return a
		}}))
	}
	found, report, err := recovery.Recover(recovery.Config{Group: cfg, Voters: voters, ClusterID: "00000000000000000000000000000001", Random: zeros{}})
	if err == nil {
		n.step, err = raftlog.NewStepper(cfg, found)
	}
	if err != nil {
		w.fail("node %d: the boot refuses, and nothing is damaged: %v", n.id, err)
	}
	if report.Cut != 0 {
		w.totals.Cuts++
	}
	n.nextTick = w.now + w.rng.Int64N(int64(tickEvery))
	w.noteTrace('b', n.id, report.Last)
	w.logf("node %d: boot, last %d, replayed %d, cut %d", n.id, report.Last, report.Replayed, report.Cut)
}

// die ends the process; disk is what is left of it.
func (n *node) die(disk *vfs.Mem, how string) {
	w := n.w
	w.logf("node %d: %s", n.id, how)
	w.noteTrace('d', n.id, uint64(w.now))
	n.disk, n.step, n.paused, n.hung = disk, nil, 0, 0
	n.bootAt = w.now + w.rng.Int64N(choose(w.rng, second/10, 3*second, 20*second))
	w.clients.died(n)
}

// prepare makes the look-ups of a call, as the edge's goroutines do.
func (n *node) prepare(c *fsm.Call) {
	r := n.step.Reader()
	err := c.Resolve(r, func(queue, partition, from uint64, max int, fn func(uint64, uint32, int64)) error {
		times, err := r.AppendTimes(queue, partition, from, max)
		for _, t := range times {
			fn(t.First, t.Count, t.Time)
		}
		return err
	})
	if err != nil {
		n.w.fail("node %d: a look-up failed: %v", n.id, err)
	}
	n.step.Submit(c)
}

// result is the outcome of a run.
type result struct {
	totals totals
	hash   uint64
	err    error
}

// run runs a seed to its end.
func run(seed uint64, g goal, verbose io.Writer) (r result) {
	old := rand.Reader
	rand.Reader = mrand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8), byte(seed >> 16), byte(seed >> 24), 2}) // raft's only other source (F25)
	defer func() { rand.Reader = old }()
	w := newWorld(seed, g, verbose)
	defer func() {
		w.totals.SimSeconds = w.now / second
		r.totals, r.hash = w.totals, w.trace.Sum64()
		switch v := recover().(type) {
		case nil:
		case errViolation:
			r.err = v
		default: // raft panics when it is told what cannot be
			w.logf("%s", debug.Stack())
			r.err = errViolation(fmt.Sprintf("panic: %v", v))
		}
	}()
	for w.totals.Commands < g.commands || w.totals.Faults < g.faults || w.now < g.seconds*second {
		w.tickle(true)
	}
	w.drain()
	return r
}

// tickle lets one thing happen.
func (w *world) tickle(send bool) {
	if send {
		w.chaos.strike()
	}
	for _, n := range w.nodes {
		if n.step == nil && w.now >= n.bootAt {
			n.boot()
		}
	}
	if w.rng.IntN(4) == 0 {
		w.now += 1 + w.rng.Int64N(choose[int64](w.rng, 20_000, 200_000, 1_000_000))
	}
	if w.net.deliver() || w.clients.act(send) || w.runSomeNode() {
		return
	}
	w.idle(send)
}

// runSomeNode makes one step of a process that can make one.
func (w *world) runSomeNode() bool {
	from := w.rng.IntN(len(w.nodes))
	for i := range w.nodes {
		if n := w.nodes[(from+i)%len(w.nodes)]; n.awake() && n.act() {
			n.look()
			return true
		}
	}
	return false
}

func (n *node) act() bool {
	w := n.w
	if w.now >= n.nextTick {
		n.nextTick = w.now + int64(tickEvery)
		w.noteTrace('t', n.id, uint64(w.now))
		n.step.Tick()
		return true
	}
	var can [raftlog.NumSteps]raftlog.Step
	k := 0
	for s := range raftlog.NumSteps {
		if n.step.Can(s) && (w.now >= n.hung || s == raftlog.StepLoop) {
			can[k] = s
			k++
		}
	}
	if k == 0 {
		if at := n.step.WakeAt(); at == 0 || n.step.BrokerTime() < at {
			return false
		}
		can[0], k = raftlog.StepLoop, 1
	}
	s := can[w.rng.IntN(k)]
	w.noteTrace('s', n.id<<8|uint64(s), uint64(w.now))
	n.step.Do(s)
	return true
}

// look finds out what a step has brought.
func (n *node) look() {
	w := n.w
	if n.fatal != nil {
		w.fail("node %d cannot go on, and nothing was broken: %v", n.id, n.fatal)
	}
	if leading := n.step.Leading(); leading != n.led {
		n.led = leading
		if leading {
			w.totals.Leaders++
			w.logf("node %d leads", n.id)
			if !n.timed { // nobody that it met knew the time: it goes by its wall clock
				clear(w.clients.book.leases)
			}
			n.timed = true
		}
	}
	if w.rng.IntN(200) == 0 {
		n.compare()
	}
}

// compare holds the node's state against that of the others at the same index.
func (n *node) compare() {
	w := n.w
	applied, ok := n.step.Settled()
	if !ok || applied == 0 {
		return
	}
	d := n.machine.Digest()
	w.totals.Digests++
	w.noteTrace('g', applied, d)
	if have, ok := w.digests[applied]; !ok {
		w.digests[applied] = stateAt{d, int(n.id)}
	} else if have.digest != d {
		w.fail("after entry %d node %d holds %016x and node %d held %016x", applied, n.id, d, have.node, have.digest)
	}
}

// idle moves time to what comes next.
func (w *world) idle(send bool) {
	next := min(w.net.next(), w.now+second)
	if send {
		next = min(next, w.clients.next())
	}
	for _, n := range w.nodes {
		switch {
		case n.step == nil:
			next = min(next, n.bootAt)
		case w.now < n.paused:
			next = min(next, n.paused)
		default:
			next = min(next, n.nextTick)
			if w.now < n.hung {
				next = min(next, n.hung)
			}
			if at := n.step.WakeAt(); at != 0 && n.step.BrokerTime() != 0 {
				next = min(next, w.now+max(at-n.step.BrokerTime(), 1)*1000)
			}
		}
	}
	w.now = max(next, w.now+1000)
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) {
	clear(b)
	return len(b), nil
}
