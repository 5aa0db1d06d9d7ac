package server

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"queen/fsm"
	"queen/internal/vfs"
	"queen/raftlog"
	"queen/recovery"
)

// StorageConfig is what Open needs: the data directory and how the group and
// the planner on it run.
type StorageConfig struct {
	FS     vfs.FS
	Dir    string
	NodeID uint64
	Logger *slog.Logger
	// ReserveBytes is kept free on the data volume for a start and for acks when
	// it is full otherwise; 0: nothing is.
	ReserveBytes int64
	// Group carries paces and sizes; Open fills in the rest.
	Group   raftlog.Config
	Planner fsm.Config
	// Fatal is called when the broker can go on no more (a failed write or
	// fsync): the process should end.
	Fatal func(error)
}

// Broker is a running engine: the group on a data directory, driving the state
// machine. It implements Engine.
type Broker struct {
	group    *raftlog.Group
	machine  *machine
	report   recovery.Report
	reserve  *recovery.Reserve
	fatal    func(error)
	bounds   bounds
	observed observed
}

var _ Engine = (*Broker)(nil)

// observed lets measurements begin before the server that collects them is
// there.
type observed struct {
	mu  sync.RWMutex
	obs *Observations
}

func (o *observed) get() *Observations {
	o.mu.RLock()
	defer o.mu.RUnlock()
	return o.obs
}

// Observe gives the broker somewhere to report its measurements.
func (b *Broker) Observe(o *Observations) {
	b.observed.mu.Lock()
	defer b.observed.mu.Unlock()
	b.observed.obs = o
}

// Open boots the data directory and starts the group on it. Stop ends it.
func Open(cfg StorageConfig) (*Broker, error) {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	b := &Broker{fatal: cfg.Fatal, reserve: recovery.NewReserve(cfg.FS, cfg.Dir, cfg.ReserveBytes, cfg.Logger)}
	b.bounds = bounds{cfg.Planner.WithDefaults(), cfg.Group.WithDefaults()}
	b.machine = &machine{Machine: fsm.New(cfg.Planner), observed: &b.observed}
	b.machine.preparing.calls = map[*fsm.Call]struct{}{}
	g := cfg.Group
	g.FS, g.Dir, g.NodeID, g.Logger, g.Fatal = cfg.FS, cfg.Dir, cfg.NodeID, cfg.Logger, cfg.Fatal
	g.Machine = b.machine
	g.Kept = func() raftlog.Kept { return fsm.NewKept(cfg.Planner) }
	started := make(chan struct{})
	g.Prepare = func(call any) {
		<-started // the group that a prepared call goes back to
		b.prepare(call.(*fsm.Call))
	}
	g.Observer = b.observer()
	group, report, err := recovery.Open(recovery.Config{Group: g, Reserve: b.reserve})
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", cfg.Dir, err)
	}
	b.group, b.report = group, report
	close(started)
	return b, nil
}

// Report tells what the boot found and did.
func (b *Broker) Report() recovery.Report { return b.report }

// KeepReserve is told how full the data volume is, roomy when it is below its
// high water: it releases the volume's reserve or makes it anew. full: the
// reserve is in use, growing writes are to be refused. spent: it is used up.
func (b *Broker) KeepReserve(u vfs.Usage, roomy bool) (full, spent bool) {
	spent, err := b.reserve.Release(u.Free)
	if err == nil && roomy {
		err = b.reserve.Fill(u.Free)
	}
	if err != nil {
		b.fatal(err) // a failed write or sync, like any other
	}
	return b.reserve.Released(), spent
}

// Submit hands a call to the planner.
func (b *Broker) Submit(c *fsm.Call) error { return b.group.Submit(c) }

// Reader reads the queue logs.
func (b *Broker) Reader() raftlog.Reader { return b.group.Reader() }

// LogSize counts the files and bytes of the log that holds a queue.
func (b *Broker) LogSize(queue uint64) (segments int, bytes int64) { return b.group.LogSize(queue) }

// PartitionBytes implements Engine.
func (b *Broker) PartitionBytes(queue, partition, from uint64, max int) (bytes int64, messages uint64, err error) {
	return b.group.PartitionBytes(queue, partition, from, max)
}

// Reclaimed counts what reclaim has done, safe to read at any time.
func (b *Broker) Reclaimed() *raftlog.Reclaimed { return b.group.Reclaimed() }

// Removed counts what retention has removed, safe to read at any time.
func (b *Broker) Removed() *fsm.Removed { return b.machine.Removed() }

// MemoryBytes is about what is in memory: the rows of the state (as they are encoded), recent transactionIds, and the
// positions of unsealed files. It walks every row: it is for tests.
func (b *Broker) MemoryBytes() (rows, dedup, index int64, err error) {
	err = b.group.Do(func() { rows, dedup = b.machine.RowBytes(), b.machine.DedupBytes() })
	return rows, dedup, b.group.IndexBytes(), err
}

// Stop ends the group, and then what was still being prepared.
func (b *Broker) Stop(ctx context.Context) error {
	err := b.group.Stop(ctx)
	for _, c := range b.machine.takePreparing() {
		if c.Done != nil {
			c.Abort(fsm.ErrStopped)
		}
	}
	return err
}

// stuckWrite is how long a write may take before the node says that it does
// not serve.
const stuckWrite = 3 * time.Second

// Status translates the group's numbers.
func (b *Broker) Status() Status {
	g := b.group.Status()
	st := Status{
		Role: "candidate", HasLeader: g.Leader, Term: g.Term, Log: g.Durable, Commit: g.Commit, Applied: g.Applied,
		Durable: g.Durable, InFlight: g.InFlight, Parked: int(b.machine.waiting.Load()),
		NodeID: g.NodeID, Cluster: b.report.Identity.Cluster, LogBytes: g.LogBytes, OldestWrite: g.OldestWrite,
	}
	st.Scrub = b.group.Scrubbed()
	st.Outcomes = b.machine.loadOutcomes()
	b.bounds.fill(&st)
	st.DedupBytes, st.UnsealedBytes = b.machine.dedup.Load(), b.group.UnsealedBytes()
	m, r := b.Removed(), b.Reclaimed()
	st.Freed = Freed{
		Aged: m.Aged.Load(), Completed: m.Completed.Load(), Waited: m.Waited.Load(),
		Partitions: m.Partitions.Load(), FailedLookups: m.Failed.Load(),
		Bytes: r.Bytes.Load(), Files: r.Files.Load(), Rewrites: r.Rewrites.Load(), Merges: r.Merges.Load(),
		Logs: r.Logs.Load(), Failures: r.Failures.Load(),
	}
	switch {
	case g.Failed:
		st.Role, st.Reason = "stopped", "the log cannot be written"
	case g.OldestWrite > stuckWrite:
		st.Reason = "a write to the log has not finished for " + g.OldestWrite.Round(time.Second).String()
	case !g.Leader:
		st.Reason = "no leader is known"
	}
	if g.Leader && !g.Failed {
		st.Role = "leader"
	}
	return st
}

func (b *Broker) observer() raftlog.Observer {
	return raftlog.Observer{
		Sync: func(d time.Duration, logs int) {
			if o := b.observed.get(); o != nil {
				o.Sync(d, logs)
			}
		},
		Written: func(entries, bytes int) {
			if o := b.observed.get(); o != nil {
				o.Written(entries, bytes)
			}
		},
		Hold: func(d time.Duration) {
			if o := b.observed.get(); o != nil {
				o.Hold(d)
			}
		},
		Checkpoint: func(_ time.Duration, rows int, bytes int64) {
			if o := b.observed.get(); o != nil {
				o.Checkpoint(rows, bytes)
			}
		},
	}
}

// prepare looks up what a call needs from the disk and submits it again.
func (b *Broker) prepare(c *fsm.Call) {
	begun := mark()
	r := b.group.Reader()
	err := c.Resolve(r, func(queue, partition, from uint64, max int, fn func(uint64, uint32, int64)) error {
		times, err := r.AppendTimes(queue, partition, from, max)
		for _, t := range times {
			fn(t.First, t.Count, t.Time)
		}
		return err
	})
	prepared := mark()
	if !b.machine.prepared(c) {
		return // the stop has answered it
	}
	if err == nil {
		c.Marks.Prepare, c.Marks.Prepared = begun, prepared
		err = b.group.Submit(c)
	}
	if err != nil && c.Done != nil {
		c.Done(err)
	}
}

// machine adapts the planner to the interface of the group, which knows no
// calls, and keeps the calls that are being prepared, so that none is lost
// when the group stops.
type machine struct {
	*fsm.Machine
	observed *observed

	preparing struct {
		sync.Mutex
		calls map[*fsm.Call]struct{}
	}
	batch   []*fsm.Call
	waiting atomic.Int64    // pops that wait
	kept    [4]atomic.Int64 // the last fsm.OutcomeStats
	dedup   atomic.Int64    // bytes of recent transactionIds
}

var _ raftlog.Machine = (*machine)(nil)

// Plan is the planner's, in the group's terms.
func (m *machine) Plan(now int64, calls []any) raftlog.Plan {
	m.batch = m.batch[:0]
	begun := mark()
	for _, c := range calls {
		c := c.(*fsm.Call)
		if c.Marks.Replan = begun; c.Marks.Plan == 0 {
			c.Marks.Plan = begun
		}
		m.batch = append(m.batch, c)
	}
	p := m.Machine.Plan(now, m.batch)
	planned := mark()
	for _, c := range m.batch {
		c.Marks.Planned = planned
	}
	clear(m.batch)
	m.waiting.Store(int64(m.Machine.Parked()))
	m.storeOutcomes()
	m.dedup.Store(m.DedupBytes())
	if o := m.observed.get(); o != nil && p.Data != nil {
		o.Planned(len(calls), len(p.Data))
	}
	out := raftlog.Plan{Data: p.Data, Answer: p.Answer, Now: p.Now, Wake: p.Wake, More: p.More, SealThrough: p.SealThrough}
	if len(p.Prepare) > 0 {
		out.Prepare = m.keepPreparing(p.Prepare)
	}
	return out
}

// bounds are the configurations that bound what the engine keeps.
type bounds struct {
	planner fsm.Config
	group   raftlog.Config
}

func (b *bounds) fill(st *Status) {
	st.OutcomeLimit, st.OutcomeWindow = b.planner.OutcomeBytes, b.planner.OutcomeWindow
	st.DedupLimit, st.UnsealedLimit = b.planner.DedupBytes, b.group.UnsealedMax
}

// storeOutcomes shows what is kept to those who do not stand on the loop.
func (m *machine) storeOutcomes() {
	s := m.OutcomeStats()
	for i, n := range [4]int64{s.Kept, s.Bytes, s.Evicted, s.Repeats} {
		if m.kept[i].Load() != n {
			m.kept[i].Store(n)
		}
	}
}

func (m *machine) loadOutcomes() fsm.OutcomeStats {
	return fsm.OutcomeStats{Kept: m.kept[0].Load(), Bytes: m.kept[1].Load(), Evicted: m.kept[2].Load(), Repeats: m.kept[3].Load()}
}

func (m *machine) keepPreparing(calls []*fsm.Call) []any {
	out := make([]any, len(calls))
	m.preparing.Lock()
	defer m.preparing.Unlock()
	for i, c := range calls {
		out[i] = c
		m.preparing.calls[c] = struct{}{}
	}
	return out
}

// prepared ends the keeping of a call; false: somebody else ended it.
func (m *machine) prepared(c *fsm.Call) bool {
	m.preparing.Lock()
	defer m.preparing.Unlock()
	_, kept := m.preparing.calls[c]
	delete(m.preparing.calls, c)
	return kept
}

func (m *machine) takePreparing() (calls []*fsm.Call) {
	m.preparing.Lock()
	defer m.preparing.Unlock()
	for c := range m.preparing.calls {
		calls = append(calls, c)
	}
	clear(m.preparing.calls)
	return calls
}
