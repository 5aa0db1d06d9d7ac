package server

import (
	"context"
	"errors"
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
	// Cluster says who else is there; nil: this node is alone.
	Cluster *ClusterConfig
	// Fatal is called when the broker can go on no more (a failed write or
	// fsync): the process should end.
	Fatal func(error)
}

// Broker is a running engine: the group on a data directory, driving the state
// machine. It implements Engine.
type Broker struct {
	group    *raftlog.Group
	machine  atomic.Pointer[machine] // another one when the state was read again
	waiting  preparing
	report   recovery.Report
	reserve  *recovery.Reserve
	fatal    func(error)
	bounds   bounds
	observed observed
	peers    *peers // nil: this node is alone
	ready    readiness
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
	b := &Broker{fatal: func(err error) { cfg.Fatal(recovery.AdviseFull(err, cfg.Dir)) }, reserve: recovery.NewReserve(cfg.FS, cfg.Dir, cfg.ReserveBytes, cfg.Logger)}
	b.bounds = bounds{cfg.Planner.WithDefaults(), cfg.Group.WithDefaults()}
	b.waiting.calls = map[*fsm.Call]struct{}{}
	b.machine.Store(&machine{Machine: fsm.New(cfg.Planner), observed: &b.observed, preparing: &b.waiting})
	g := cfg.Group
	g.FS, g.Dir, g.NodeID, g.Logger, g.Fatal = cfg.FS, cfg.Dir, cfg.NodeID, cfg.Logger, b.fatal
	g.Machine = b.machine.Load()
	g.Refuse = func(call any, err error) {
		if c := call.(*fsm.Call); c.Done != nil {
			c.Done(err)
		}
	}
	g.Renew = func() (raftlog.Machine, func()) {
		fresh := &machine{Machine: fsm.New(cfg.Planner), observed: &b.observed, preparing: &b.waiting}
		return fresh, func() { b.machine.Store(fresh) }
	}
	g.Kept = func() raftlog.Kept { return fsm.NewKept(cfg.Planner) }
	started := make(chan struct{})
	g.Prepare = func(call any) {
		<-started // the group that a prepared call goes back to
		b.prepare(call.(*fsm.Call))
	}
	g.Observer = b.observer()
	boot := recovery.Config{Group: g, Reserve: b.reserve}
	if cfg.Cluster != nil {
		b.peers = &peers{cfg: cfg.Cluster}
		b.ready = readiness{cfg.Cluster.ReadyLagEntries, cfg.Cluster.ReadyLag}
		boot.Group.Send = b.peers.send
		boot.Voters, boot.NewClusterID = cfg.Cluster.identity()
	}
	group, report, err := recovery.Open(boot)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", cfg.Dir, err)
	}
	b.group, b.report = group, report
	close(started)
	if cfg.Cluster == nil && group.Status().Voters > 1 {
		return nil, errors.Join(fmt.Errorf("open %s: %w", cfg.Dir, ErrOfCluster), group.Abandon())
	}
	if b.peers != nil {
		if err := b.peers.start(b, &cfg); err != nil {
			return nil, errors.Join(err, group.Abandon())
		}
	}
	return b, nil
}

// ErrOfCluster: the directory is that of a node of several, which must not run alone.
var ErrOfCluster = errors.New("this directory belongs to a node of a cluster: start it with QUEEN_RAFT_REPLICATOR=raft and the QUEEN_RAFT_PEERS that it was made with")

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
	if m := b.machine.Load(); m != nil {
		m.PauseJobs(!roomy || b.reserve.Released())
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
func (b *Broker) Removed() *fsm.Removed { return b.machine.Load().Removed() }

// MemoryBytes is about what is in memory: the rows of the state (as they are encoded), recent transactionIds, and the
// positions of unsealed files. It walks every row: it is for tests.
func (b *Broker) MemoryBytes() (rows, dedup, index int64, err error) {
	err = b.group.Do(func() { rows, dedup = b.machine.Load().RowBytes(), b.machine.Load().DedupBytes() })
	return rows, dedup, b.group.IndexBytes(), err
}

// Stop ends the group, and then what was still being prepared.
func (b *Broker) Stop(ctx context.Context) error {
	err := b.group.Stop(ctx)
	for _, c := range b.waiting.take() {
		if c.Done != nil {
			c.Abort(fsm.ErrStopped)
		}
	}
	if b.peers != nil {
		err = errors.Join(err, b.peers.stop())
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
		Role: "candidate", HasLeader: g.Lead != 0 || g.Leader, Term: g.Term, Log: g.Durable, Commit: g.Commit, Applied: g.Applied,
		Durable: g.Durable, InFlight: g.InFlight, Parked: int(b.machine.Load().waiting.Load()), Leader: g.Lead,
		NodeID: g.NodeID, Cluster: b.report.Identity.Cluster, LogBytes: g.LogBytes, OldestWrite: g.OldestWrite,
	}
	st.Scrub = b.group.Scrubbed()
	st.Outcomes = b.machine.Load().loadOutcomes()
	b.bounds.fill(&st)
	st.DedupBytes, st.UnsealedBytes = b.machine.Load().dedup.Load(), b.group.UnsealedBytes()
	m, r := b.Removed(), b.Reclaimed()
	st.Freed = Freed{
		Aged: m.Aged.Load(), Completed: m.Completed.Load(), Waited: m.Waited.Load(),
		Partitions: m.Partitions.Load(), FailedLookups: m.Failed.Load(),
		Bytes: r.Bytes.Load(), Files: r.Files.Load(), Rewrites: r.Rewrites.Load(), Merges: r.Merges.Load(),
		Logs: r.Logs.Load(), Failures: r.Failures.Load(),
	}
	switch {
	case g.Failed:
		st.Role = "stopped"
	case g.Leader:
		st.Role = "leader"
	case g.Lead != 0 && g.Lead != g.NodeID:
		st.Role = "follower"
		if g.PeerCommit > g.Applied+b.ready.entries {
			st.Lag = time.Duration(max(g.BrokerTime-g.StateTime, 0)) * time.Microsecond
		}
	}
	st.Reason = b.unready(&g, &st)
	return st
}

// readiness is how far a node may be behind and still be called well.
type readiness struct {
	entries uint64
	lag     time.Duration
}

// unready says why the node does not serve; "": it does.
func (b *Broker) unready(g *raftlog.Status, st *Status) string {
	if b.peers != nil {
		if problem := b.peers.problem(); problem != "" {
			return problem
		}
	}
	switch {
	case g.Failed:
		return "the log cannot be written"
	case g.OldestWrite > stuckWrite:
		return "a write to the log has not finished for " + g.OldestWrite.Round(time.Second).String()
	case g.Leader:
		return ""
	case g.Lead == 0 && g.Voters > 1:
		return "no leader is known: a majority of the nodes is needed"
	case g.Lead == 0 || g.Lead == g.NodeID:
		return "no leader is known"
	case st.Lag > b.ready.lag:
		return fmt.Sprintf("this node is %d entries behind", g.PeerCommit-g.Applied)
	}
	return ""
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
	if !b.waiting.end(c) {
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

	preparing *preparing
	batch     []*fsm.Call
	waiting   atomic.Int64    // pops that wait
	kept      [4]atomic.Int64 // the last fsm.OutcomeStats
	dedup     atomic.Int64    // bytes of recent transactionIds
}

// preparing are the calls that something is looked up for.
type preparing struct {
	sync.Mutex
	calls map[*fsm.Call]struct{}
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

// end ends the keeping of a call; false: somebody else ended it.
func (p *preparing) end(c *fsm.Call) bool {
	p.Lock()
	defer p.Unlock()
	_, kept := p.calls[c]
	delete(p.calls, c)
	return kept
}

func (p *preparing) take() (calls []*fsm.Call) {
	p.Lock()
	defer p.Unlock()
	for c := range p.calls {
		calls = append(calls, c)
	}
	clear(p.calls)
	return calls
}
