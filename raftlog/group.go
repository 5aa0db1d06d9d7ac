package raftlog

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	pb "go.etcd.io/raft/v3/raftpb"

	"queen/index"
)

// ErrCutShort: a stop had no time left for the last checkpoint or the pad.
// Everything that was answered is durable; the next start replays.
var ErrCutShort = errors.New("no time was left for the last checkpoint, the next start replays")

// Boot is what recovery found in a data directory and hands to Start. The
// machine has been loaded, replayed and told that it is ready.
type Boot struct {
	Store     *Store
	Rows      *index.Rows
	State     State
	Footer    Footer      // of the newest checkpoint; zero when there is none
	Terms     []TermRun   // of the entries from the first one that is kept on
	Kept      KeptLog     // what the log keeps below the checkpoint; First 0: nothing
	Last      uint64      // newest complete entry
	Applied   uint64      // newest entry replayed into the machine
	Commit    uint64      // newest entry known to be committed, >= Applied
	Unapplied []*pb.Entry // entries (Applied, Last]
	Replayed  int         // entries replayed that had effects
	Lock      io.Closer   // closed last
	// Extra makes the footer's bytes about the logs; recovery reads them back.
	Extra func(*Store) []byte
	// Reread reads a state into a machine: the rows of a checkpoint, and the log
	// up to an entry that is applied here. It writes, locks and cuts nothing, and
	// may run while the group does. stop tells it to give up.
	// Entries reads applied entries of the log, from one on.
	Entries func(s *Store, from, upTo uint64) EntrySource
	Reread  func(s *Store, rows *index.RowsSnapshot, upTo uint64, m Machine, stop func() bool) error
}

// Close gives back what the boot holds, for who does not start a group on it.
func (b *Boot) Close() error {
	return errors.Join(b.Store.Close(), b.Rows.Close(), b.Lock.Close())
}

// Group is one raft node with its log, its loop and its state machine.
//
// Start starts these goroutines, and Stop ends them all: the loop, the log
// writer and its sync workers, the rows writer, the sealer, the reclaimer, the
// scrubber and the preparers.
// Raft and the machine are touched only by who holds turning.
//
// Its methods are safe for concurrent use.
type Group struct {
	cfg      Config
	store    *Store
	boot     Boot
	stats    stats
	reader   *reader
	in       *inbox
	writer   *writerLoop
	rows     *rowsLoop
	sealer   *sealer
	scrub    *scrubber
	prep     *preparers
	rereader *rereader
	ahead    *aheadReader
	failed   sync.Once

	// turning is held for a turn of the core, and guards what follows.
	turning sync.Mutex
	core    *core
	wake    Timer // of the machine's own work
	armed   int64 // broker time that wake is set to; 0: it is not
	over    bool  // no turns any more

	stopOnce sync.Once
	drained  chan struct{} // over
	stopErr  error
}

// Start runs a group on what the boot found. The caller stops it.
func Start(cfg Config, b Boot) (*Group, error) {
	g, w, err := newGroup(cfg, b)
	if err != nil {
		return nil, err
	}
	g.writer = startWriter(w, &g.cfg, &g.stats, g.written, g.fatal)
	g.rows = startRows(b.Rows, b.Store, g.footerExtra, g.post, g.fatal)
	g.sealer = startSealer(b.Store, &g.cfg, g.writer.submit, g.post, g.rows.replace, g.fatal)
	g.scrub = newScrubber(b.Store, &g.cfg, nil, g.rows.replace)
	g.scrub.snapshot = func() (*index.RowsSnapshot, error) { return g.rows.read(g.scrub.quit) }
	startScrubber(g.scrub)
	g.prep = startPreparers(g.cfg.Prepare)
	g.rereader = newRereader(g)
	g.ahead = startAhead(g)
	g.begin()
	g.in.signal()
	go g.loop()
	return g, nil
}

// newGroup makes a group that nothing drives yet: core and log writer on what
// the boot found.
func newGroup(cfg Config, b Boot) (*Group, *logWriter, error) {
	cfg = cfg.WithDefaults()
	if err := cfg.validate(); err != nil {
		return nil, nil, err
	}
	g := &Group{cfg: cfg, store: b.Store, boot: b, drained: make(chan struct{})}
	g.in, g.wake = newInbox(), cfg.Clock.NewTimer()
	g.reader = &reader{store: b.Store}
	first := b.Footer.From + 1
	if b.Kept.First != 0 {
		first = b.Kept.First
	}
	c, err := newCore(cfg, g.corePorts(), coreStart{
		state: b.State, first: first, runs: b.Terms, last: b.Last, applied: b.Applied, commit: b.Commit,
		ents: b.Unapplied, footer: b.Footer.From,
	})
	if err != nil {
		return nil, nil, fmt.Errorf("start the group: %w", err)
	}
	g.core = c
	g.core.now = cfg.Clock.Now()
	g.core.ckpt.last = g.core.now.Mono
	if b.Replayed > 0 {
		g.core.ckpt.bytes = 1 // what was replayed is worth a checkpoint
	}
	b.Store.SetApplied(b.Applied)
	b.Store.keptFirst.Store(first)
	b.Rows.SetCompactSlack(cfg.CompactSlack)
	newest, _ := b.Store.timesOf()
	b.Store.newest.Store(newest)
	unsealed, _ := b.Store.bytes()
	b.Store.unsealed.Store(unsealed)
	g.stats.durable.Store(b.Last)
	w := &logWriter{store: b.Store, stateDir: StateDir(cfg.Dir), state: b.State, last: b.Last, durable: b.Last}
	return g, w, nil
}

// begin is the first thing that a group does: the only voter asks for its
// election at once.
func (g *Group) begin() {
	if g.boot.State.Conf.OnlyVoter(g.cfg.NodeID) {
		g.core.campaign()
	}
	g.stats.publish(g.core)
}

func (g *Group) footerExtra() []byte { return g.boot.Extra(g.store) }

// corePorts joins the core to the goroutines around it.
func (g *Group) corePorts() ports {
	p := ports{
		write: func(r appendRequest) {
			g.stats.entries.Add(uint64(len(r.entries)))
			g.writer.submit(writerRequest{append: &r})
		},
		saveConf: func(m Membership, index uint64) {
			g.writer.submit(writerRequest{conf: &confRequest{conf: m, index: index}})
		},
		pad:        func(commit uint64) { g.writer.submit(writerRequest{pad: commit + 1}) },
		send:       g.send,
		prepare:    func(calls []any) { g.prep.submit(calls) },
		sealBefore: func(t int64) { g.sealer.sealBefore(t) },
		rows:       lateRows{g},
		fatal:      g.fatal,
	}
	if g.cfg.Refuse != nil {
		p.refuse = g.refuse
	}
	if g.cfg.Renew != nil && g.boot.Reread != nil {
		p.reread = func(upTo uint64) { g.rereader.ask(upTo) }
	}
	if g.boot.Entries != nil {
		p.readAhead = func(from, upTo uint64) { g.ahead.ask(from, upTo) }
		p.keep = g.store.keep
	}
	return p
}

// lateRows lets the core be made before the rows writer starts.
type lateRows struct{ g *Group }

func (l lateRows) needsCompaction() bool { return l.g.rows.needsCompaction() }
func (l lateRows) begin(full bool)       { l.g.rows.begin(full) }
func (l lateRows) put(b *rowBatch)       { l.g.rows.put(b) }
func (l lateRows) finish(f Footer)       { l.g.rows.finish(f) }
func (l lateRows) abandon()              { l.g.rows.abandon() }

func (g *Group) send(p Parcel) {
	if g.cfg.Send != nil {
		g.cfg.Send(p)
	}
}

func (g *Group) refuse(calls []any, err error) {
	for _, c := range calls {
		g.cfg.Refuse(c, err)
	}
}

// fatal reports the first fatal error, from any goroutine of the group.
func (g *Group) fatal(err error) {
	g.failed.Do(func() {
		g.stats.failed.Store(true)
		g.cfg.Logger.Error("the group cannot go on", slog.Any("err", err))
		g.post(event{fn: func() {
			if g.core.dead == nil {
				g.core.dead = err
			}
		}})
		g.cfg.Fatal(err)
	})
}

// post leaves an event to the loop.
func (g *Group) post(e event) {
	g.in.event(e)
	g.in.signal()
}

// written is post for the log writer, which goes on in the turn that its news
// makes possible.
func (g *Group) written(e event) {
	g.in.event(e)
	g.drive()
}

// Submit queues a call for the machine's next Plan; it may run that turn. It
// does not wait for the outcome: the machine answers, and it may do so before
// Submit returns. It returns ErrStopped once Stop was called.
func (g *Group) Submit(call any) error {
	due, err := g.in.call(call)
	if due {
		g.drive()
	}
	return err
}

// Do runs fn between turns, and returns when it has run: for readers that need
// a consistent look at the machine. fn must be short, under 1 ms, and must not
// call the group.
func (g *Group) Do(fn func()) error {
	done := make(chan struct{})
	if !g.in.event(event{fn: func() { fn(); close(done) }}) {
		return ErrStopped
	}
	g.drive()
	<-done
	return nil
}

// Receive takes what a peer sent.
func (g *Group) Receive(p *Parcel) {
	if g.in.event(event{parcel: p, at: g.cfg.Clock.Now().Mono}) {
		g.drive()
	}
}

// Unreachable tells that what was sent to a peer is lost.
func (g *Group) Unreachable(id uint64) {
	g.post(event{fn: func() {
		if g.core.dead == nil {
			g.core.rn.ReportUnreachable(id)
		}
	}})
}

// HandOver gives leadership to another voter, to the one with most of the log when to
// is 0: nothing is planned any more, what is in flight is waited for, and raft is
// asked until ctx ends. It reports whether this node does not lead any more. leaving
// tells that it is about to stop.
func (g *Group) HandOver(ctx context.Context, to uint64, leaving bool) bool {
	patience := handOverPatience
	if end, ok := ctx.Deadline(); ok {
		patience = min(patience, time.Until(end))
	}
	done := make(chan bool, 1)
	if !g.in.event(event{fn: func() { g.core.handOver(to, leaving, patience, func(gone bool) { done <- gone }) }}) {
		return true
	}
	g.drive()
	select {
	case gone := <-done:
		return gone
	case <-ctx.Done():
		return false
	case <-g.drained:
		return true
	}
}

// handOverPatience is how long a hand-over may take.
const handOverPatience = 3 * time.Second

// Reader reads the queue logs.
func (g *Group) Reader() Reader { return g.reader }

func (g *Group) handle(e *event) {
	c := g.core
	for _, r := range e.written {
		c.written(r)
	}
	switch {
	case e.confSaved != 0:
		c.confSaved = max(c.confSaved, e.confSaved)
	case e.rowBytes != 0:
		c.rowsWritten(e.rowBytes)
	case e.footer != nil:
		c.checkpointDone(*e.footer)
		g.stats.checkpoints.Add(1)
	case e.sealed:
		c.m.SealedThrough(g.store.sealedThrough())
	case e.parcel != nil:
		c.received(e.parcel, e.at)
	case e.ahead != nil:
		c.log.addAhead(e.ahead)
	case e.fresh != nil:
		e.adopt()
		c.rereadDone(e.fresh)
	case e.checkpoint:
		c.ckpt.bytes++
	case e.fn != nil:
		e.fn()
	case e.stopPlanner:
		c.stopping = true
	}
}

// Stop ends the group: no new calls, what is queued is planned, what is in
// flight is waited for, a last checkpoint is taken so that the next start
// replays nothing, a pad says what is durable, and files and lock are closed.
// When ctx ends first, or the group has failed, the rest is skipped; the next
// start then replays. The error is ErrCutShort when only checkpoint and pad
// were skipped, and something else when work was undecided.
func (g *Group) Stop(ctx context.Context) error {
	g.stopOnce.Do(func() { g.stopErr = g.stop(ctx) })
	return g.stopErr
}

// Abandon ends the group without a checkpoint or a pad, as a crash would, but
// gives files and lock back. It is for tests and tools.
func (g *Group) Abandon() error {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return g.Stop(ctx)
}

func (g *Group) stop(ctx context.Context) error {
	if g.cfg.Send != nil && ctx.Err() == nil {
		g.HandOver(ctx, 0, true)
	}
	g.in.mu.Lock()
	g.in.mu.stopped = true
	g.in.mu.Unlock()
	g.post(event{stopPlanner: true})
	var err error
	select {
	case <-g.drained:
	case <-ctx.Done():
		err = g.cutShort(ctx.Err())
	}
	g.rereader.stop()
	g.ahead.stop()
	g.sealer.stop()
	g.scrub.stop()
	g.prep.stop()
	g.rows.stop()
	stopped := make(chan error, 1)
	if err == nil && g.core.dead == nil && g.core.padded != g.core.log.last {
		g.writer.submit(writerRequest{pad: g.core.commit + 1})
	}
	g.writer.submit(writerRequest{stop: func(err error) { stopped <- err }})
	<-g.writer.done
	select {
	case werr := <-stopped:
		if werr != nil && (err == nil || errors.Is(err, ErrCutShort)) {
			err = werr
		}
	default: // it had failed before
	}
	if err == nil {
		err = g.core.dead
	}
	for _, closer := range []func() error{g.boot.Rows.Close, g.store.Close, g.boot.Lock.Close} {
		if cerr := closer(); cerr != nil && (err == nil || errors.Is(err, ErrCutShort)) {
			err = cerr
		}
	}
	return err
}

// cutShort ends the loop at once and says what that left undone; nil when the
// group had failed, which core.dead tells.
func (g *Group) cutShort(cause error) error {
	left := fmt.Errorf("stop: %w: %w", ErrCutShort, cause)
	g.post(event{fn: func() {
		c := g.core
		switch {
		case c.dead != nil:
			left = nil
			return
		case !c.idle() || len(c.writes) > 0:
			left = fmt.Errorf("stop: work was still in flight: %w", cause)
		}
		c.dead = ErrStopped
	}})
	<-g.drained
	return left
}
