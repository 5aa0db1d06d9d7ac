package main

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"strings"
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
)

// world is one simulated broker with its disk, its clocks and its clients.
// Everything in it follows from the seed.
type world struct {
	seed uint64
	rng  *rand.Rand
	goal goal
	set  settings

	now   raftlog.Times
	disk  *vfs.Mem
	node  *node // nil: down
	book  *book
	load  *load
	chaos chaos

	nextTick int64 // Mono
	trace    *xxhash.Digest
	word     [24]byte
	totals   totals
	verbose  io.Writer // nil: quiet
}

// goal is what a run has to reach at least.
type goal struct {
	commands, disruptions int
	minutes               int64
	sameKernel            bool // the machine survives a failed sync
}

// totals count what a run did.
type totals struct {
	Commands, Answered, Lost                    int
	Kills, PowerCuts, Faults, CleanStops, Boots int
	FailedBoots, Replayed, Cuts, Digests        int
	Entries, Messages, Checkpoints, Repeats     int
	Syncs                                       uint64
	SimSeconds                                  int64
}

func (t totals) disruptions() int { return t.Kills + t.PowerCuts + t.Faults }

// node is one process.
type node struct {
	step    *raftlog.Stepper
	machine *machine
	fatal   error
}

// settings are the sizes and paces of a run: mostly tiny, so that files roll, are
// sealed, checkpointed and compacted all the time.
type settings struct {
	group   raftlog.Config
	planner fsm.Config
	clients int
	// storm: everything at once; else there are pauses in between.
	storm bool
}

func choose[T any](rng *rand.Rand, from ...T) T { return from[rng.IntN(len(from))] }

func drawSettings(rng *rand.Rand) settings {
	return settings{
		group: raftlog.Config{
			SegmentBytes:       choose[int64](rng, 2<<10, 4<<10, 8<<10, 32<<10, 256<<10),
			Shards:             choose(rng, 0, 0, 1, 3),
			UnsealedMax:        choose[int64](rng, 16<<10, 128<<10, 1<<20, 64<<20),
			OpenFiles:          choose(rng, 8, 16, 64, 512),
			CheckpointBytes:    choose[int64](rng, 4<<10, 32<<10, 128<<10, 1<<20),
			CheckpointInterval: time.Duration(choose(rng, 1, 5, 30)) * time.Second,
			CompactSlack:       choose[int64](rng, 1, 16<<10, 1<<20),
			MaxInFlight:        choose(rng, 1, 2, 2, 4),
			MaxCycleCalls:      choose(rng, 2, 16, 4096),
			CompactMinDeadPct:  choose(rng, 1, 20, 50),
			ReclaimRest:        -1,
			SealAge:            time.Duration(choose(rng, 1, 60)) * time.Second,
		},
		planner: fsm.Config{
			DedupBytes:   choose[int64](rng, 1, 8<<10, 64<<10, 1<<20),
			CycleBytes:   choose(rng, 1<<10, 16<<10, 1<<20),
			TimerTick:    choose[int64](rng, 1, 50_000),
			KVSweepLimit: choose(rng, 2, 512),
			// Of broker time, which also jumps: some outcomes are still there when a call comes again, some are not.
			OutcomeWindow: choose[int64](rng, 2_000_000, 600_000_000),
		},
		clients: choose(rng, 2, 6, 12, 24),
		storm:   rng.IntN(3) == 0,
	}
}

// errViolation is the panic value of a broken rule.
type errViolation string

func (e errViolation) Error() string { return string(e) }

func (w *world) fail(format string, args ...any) {
	panic(errViolation(fmt.Sprintf(format, args...)))
}

func (w *world) logf(format string, args ...any) {
	if w.verbose != nil {
		fmt.Fprintf(w.verbose, "%10.4fs %s\n", float64(w.now.Mono)/1e9, fmt.Sprintf(format, args...))
	}
}

// note adds to the trace.
func (w *world) note(what byte, a, b uint64) {
	w.word[0] = what
	for i := range 8 {
		w.word[1+i] = byte(a >> (8 * i))
		w.word[9+i] = byte(b >> (8 * i))
	}
	w.trace.Write(w.word[:17])
}

func newWorld(seed uint64, g goal, verbose io.Writer) *world {
	rng := rand.New(rand.NewPCG(seed, 0x51))
	w := &world{
		seed: seed, rng: rng, goal: g, set: drawSettings(rng), disk: vfs.NewMem(rng.Uint64()),
		now: raftlog.Times{Mono: 1, Wall: startWall}, trace: xxhash.New(), verbose: verbose,
	}
	w.book = newBook(w)
	w.load = newLoad(w)
	w.chaos.w = w
	w.chaos.plan()
	return w
}

// Now implements raftlog.Clock.
func (w *world) Now() raftlog.Times { return w.now }

// NewTimer implements raftlog.Clock: the world looks itself at what time brings.
func (w *world) NewTimer() raftlog.Timer { return noTimer{} }

type noTimer struct{}

func (noTimer) C() <-chan time.Time { return nil }
func (noTimer) Set(time.Duration)   {}
func (noTimer) Stop()               {}

// result is the outcome of a run.
type result struct {
	totals totals
	hash   uint64
	err    error
}

// run runs a seed to its end.
func run(seed uint64, g goal, verbose io.Writer) result {
	return runWith(seed, g, verbose, func(*world) {})
}

// runWith is run with a look at the world before everything that happens.
func runWith(seed uint64, g goal, verbose io.Writer, look func(*world)) (r result) {
	restore := seedRaft(seed)
	defer restore()
	w := newWorld(seed, g, verbose)
	w.logf("%s", w.describe())
	defer func() {
		r.totals, r.hash = w.totals, w.trace.Sum64()
		switch v := recover().(type) {
		case nil:
		case errViolation:
			r.err = v
		default:
			panic(v)
		}
	}()
	for !w.reached() {
		look(w)
		w.tickle()
	}
	w.drain()
	return r
}

func (w *world) reached() bool {
	t := &w.totals
	t.SimSeconds = w.now.Mono / 1e9
	return t.Commands >= w.goal.commands && t.disruptions() >= w.goal.disruptions && w.now.Mono >= w.goal.minutes*60e9
}

// tickle lets one thing happen.
func (w *world) tickle() {
	if w.node == nil {
		w.boot()
		return
	}
	if w.rng.IntN(8) == 0 && w.chaos.strike() {
		return
	}
	w.act(true)
	w.look()
}

// look finds out whether the process has died of what was just done.
func (w *world) look() {
	if w.node == nil {
		return
	}
	if image := w.chaos.image; image != nil {
		w.died(image, "in the middle of a call")
		return
	}
	if err := w.node.fatal; err != nil {
		if w.chaos.faulted == "" {
			w.fail("the group cannot go on, and nothing was broken: %v", err)
		}
		w.logf("the process ends: %v", err)
		w.totals.Faults++
		w.died(w.afterFault(), "after "+w.chaos.faulted)
	}
}

// act makes one step of the process or its clients, or lets time pass.
func (w *world) act(send bool) {
	n := w.node
	var can [raftlog.NumSteps + 2]raftlog.Step
	k := 0
	for s := range raftlog.NumSteps {
		if n.step.Can(s) {
			can[k] = s
			k++
		}
	}
	sender := send && w.load.ready(w.now.Mono)
	const sendStep, timeStep = raftlog.NumSteps, raftlog.NumSteps + 1
	if sender {
		can[k] = sendStep
		k++
	}
	if k == 0 {
		w.idle(send)
		return
	}
	// Time passes beside everything else, too: as long as a disk or a network takes.
	if w.rng.IntN(3) == 0 {
		w.pass(int64(w.rng.IntN(w.pace())) + 1)
	}
	if w.now.Mono >= w.nextTick {
		w.tick()
		return
	}
	s := can[w.rng.IntN(k)]
	w.note(byte(s), uint64(w.now.Mono), 0)
	switch s {
	case sendStep:
		w.load.send()
	default:
		n.step.Do(s)
	}
}

func (w *world) pace() int {
	switch w.rng.IntN(20) {
	case 0:
		return 20_000_000
	case 1, 2:
		return 2_000_000
	}
	return 100_000
}

// idle moves time to what comes next.
func (w *world) idle(send bool) {
	next := w.nextTick
	if at := w.node.step.WakeAt(); at != 0 {
		if bt := w.node.step.BrokerTime(); bt != 0 {
			next = min(next, w.now.Mono+max(at-bt, 1)*1000)
		}
	}
	if send {
		next = min(next, w.load.nextAt(w.now.Mono))
	}
	w.pass(max(next-w.now.Mono, 1000))
	if w.now.Mono >= w.nextTick {
		w.tick()
		return
	}
	if at := w.node.step.WakeAt(); at != 0 && w.node.step.BrokerTime() >= at {
		w.note('w', uint64(w.now.Mono), 0)
		w.node.step.Do(raftlog.StepLoop)
	}
}

func (w *world) tick() {
	w.note('t', uint64(w.now.Mono), 0)
	w.nextTick = w.now.Mono + 100_000_000
	w.node.step.Tick()
}

// pass lets nanoseconds pass on both clocks; the wall clock drifts.
func (w *world) pass(nanos int64) {
	w.now.Mono += nanos
	w.now.Wall = startWall + w.now.Mono/1000 + w.chaos.skew
}

// boot starts a process on the disk as it is.
func (w *world) boot() {
	w.totals.Boots++
	w.chaos.beforeBoot()
	n := &node{machine: &machine{Machine: fsm.New(w.set.planner), w: w}}
	cfg := w.set.group
	cfg.FS, cfg.Dir, cfg.NodeID, cfg.Machine, cfg.Clock = w.disk, dataDir, 1, n.machine, w
	cfg.Fatal = func(err error) {
		if n.fatal == nil {
			n.fatal = err
		}
	}
	cfg.Prepare = func(call any) { n.prepare(call.(*fsm.Call)) }
	cfg.Kept = func() raftlog.Kept { return fsm.NewKept(w.set.planner) }
	if w.verbose != nil {
		cfg.Logger = slog.New(slog.NewTextHandler(w.verbose, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return a
		}}))
	}
	found, report, err := recovery.Recover(recovery.Config{Group: cfg, Random: zeros{}})
	if err == nil {
		n.step, err = raftlog.NewStepper(cfg, found)
	}
	if image := w.chaos.image; image != nil {
		w.totals.FailedBoots++
		w.chaos.landed(image, "in a boot")
		return
	}
	if err != nil {
		if w.chaos.faulted == "" {
			w.fail("the boot refuses, and nothing is damaged: %v", err)
		}
		if errors.Is(err, recovery.ErrRefused) {
			w.fail("a call failed (%s), and the boot takes it for damage: %v", w.chaos.faulted, err)
		}
		w.logf("the boot fails: %v", err)
		w.totals.FailedBoots++
		w.totals.Faults++
		w.chaos.landed(w.afterFault(), "after "+w.chaos.faulted)
		return
	}
	w.node = n
	w.nextTick = w.now.Mono + 100_000_000
	w.totals.Replayed += report.Replayed
	if report.Cut != 0 {
		w.totals.Cuts++
	}
	w.note('b', report.Last, n.machine.Digest())
	w.logf("boot: from %d to %d, last %d, replayed %d, cut %d", report.From, report.To, report.Last, report.Replayed, report.Cut)
	w.book.booted(n)
	w.look() // the audit may have hit an armed fault
}

// died ends the process: the disk is what is left of it.
func (w *world) died(image *vfs.Mem, how string) {
	w.logf("dead: %s", how)
	st := w.node.step.Status()
	w.totals.Checkpoints += int(st.Checkpoints)
	w.totals.Syncs += st.Syncs
	w.node = nil
	w.chaos.landed(image, how)
	w.load.died()
}

// stop is a clean stop. It reports false when the process died on the way.
func (w *world) stop() bool {
	n := w.node
	w.logf("clean stop")
	call := &fsm.Call{Tenant: tenant, Body: &fsm.ReleaseParked{}, Done: func(error) {}}
	n.step.Submit(call)
	n.step.Do(raftlog.StepLoop)
	n.step.Stop()
	for range 1_000_000 {
		if w.look(); w.node == nil {
			return false
		}
		if n.step.Stopped() {
			break
		}
		w.act(false)
	}
	if !n.step.Stopped() {
		w.fail("the stop does not end")
	}
	w.book.stopped(n)
	err := n.step.Close()
	if err != nil && n.fatal == nil {
		n.fatal = err
	}
	if w.look(); w.node == nil {
		return false
	}
	w.totals.CleanStops++
	w.died(w.disk.Kill(), "stopped")
	w.book.clean = true
	return true
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
		n.machine.w.logf("a look-up failed: %v", err)
		c.Done(err)
		return
	}
	n.step.Submit(c)
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) {
	clear(b)
	return len(b), nil
}

func (w *world) describe() string {
	g := w.set.group
	return fmt.Sprintf("segments %d, shards %d, checkpoint %d bytes %s, unsealed %d, files %d, in flight %d, dedup %d, clients %d, storm %v",
		g.SegmentBytes, g.Shards, g.CheckpointBytes, g.CheckpointInterval, g.UnsealedMax, g.OpenFiles, g.MaxInFlight, w.set.planner.DedupBytes, w.set.clients, w.set.storm)
}

func oneLine(s string) string { return strings.ReplaceAll(s, "\n", " ") }
