package raftlog

import (
	"errors"
	"fmt"
	"sync"
	"time"
)

// Step is a piece of a group's work that one of its goroutines would do.
type Step uint8

// Steps of a Stepper, in no order. A batch of the log writer goes through
// Write, Sync and Report.
const (
	StepLoop    Step = iota // the loop takes what has gathered and runs a turn
	StepWrite               // the log writer takes what is queued and writes it
	StepSync                // what it has written is synced
	StepReport              // the loop is told that it is durable
	StepRows                // the rows writer does the oldest request
	StepSeal                // the sealer looks once
	StepLook                // the oldest call that needs the disk is prepared
	StepReclaim             // files are freed by the newest checkpoint
	StepReread              // the state is read again (F7)
	StepAhead               // entries are read for a follower (F18)
	StepScrub               // a whole pass of the scrub; always possible, so Can does not name it
	NumSteps
)

var stepNames = [NumSteps]string{"loop", "write", "sync", "report", "rows", "seal", "look", "reclaim", "reread", "ahead", "scrub"}

func (s Step) String() string { return stepNames[s] }

// Stepper is a group without goroutines: the same core, log writer, rows
// writer and sealer, and whoever drives it decides what happens next. It is for
// a simulator, which needs every interleaving to follow from a seed. It is not
// safe for concurrent use, and reads only the clock that it was given.
//
// After a step that failed Config.Fatal has been called, as in a Group, and
// nothing may be called any more.
type Stepper struct {
	g       *Group
	batch   []writerRequest // in the log writer's hands
	phase   writerPhase
	entries int
	again   bool // the last turn asked for another one
	reread  *rereadJob
}

type writerPhase uint8

const (
	writerIdle writerPhase = iota
	writerWrote
	writerSynced
)

// NewStepper makes a group that is driven by hand of what the boot found.
func NewStepper(cfg Config, b Boot) (*Stepper, error) {
	g, w, err := newGroup(cfg, b)
	if err != nil {
		return nil, err
	}
	// The parts as their starters make them, without what they start.
	g.writer = &writerLoop{w: w, cfg: &g.cfg, stats: &g.stats, post: func(e event) { g.in.event(e) }, fatal: g.fatal}
	g.rows = newRows(b.Rows, b.Store, g.footerExtra, g.post, g.fatal)
	g.sealer = newSealer(b.Store, &g.cfg, g.writer.submit, g.post, g.fatal)
	g.sealer.reclaimer = newReclaimer(b.Store, &g.cfg, g.writer.submit, g.rows.replace, g.post, g.fatal)
	g.scrub = newScrubber(b.Store, &g.cfg, b.Rows.Snapshot, g.rows.replace)
	g.prep = &preparers{fn: g.cfg.Prepare}
	g.prep.more = sync.NewCond(&g.prep.mu)
	s := &Stepper{g: g, again: true}
	g.rereader = newRereader(g)
	g.rereader.start = func(job rereadJob) { s.reread = &job }
	g.ahead = newAhead(g)
	g.begin()
	return s, nil
}

// Receive takes what a peer sent; the next turn looks at it.
func (s *Stepper) Receive(p *Parcel) {
	s.g.in.event(event{parcel: p, at: s.g.cfg.Clock.Now().Mono})
}

// HandOver asks for leadership to go to the voter that has most of the log.
func (s *Stepper) HandOver(patience time.Duration) {
	s.g.in.event(event{fn: func() { s.g.core.handOver(0, false, patience, func(bool) {}) }})
}

// Leading reports whether this node plans.
func (s *Stepper) Leading() bool { return s.g.core.leading }

// Settled reports whether the state holds exactly the entries up to applied:
// nothing is planned ahead, or being read again.
func (s *Stepper) Settled() (applied uint64, ok bool) {
	c := s.g.core
	return c.applied, len(c.inflight) == 0 && c.reread == nil && c.dead == nil
}

// Submit queues a call for the next turn.
func (s *Stepper) Submit(call any) {
	s.g.in.mu.calls = append(s.g.in.mu.calls, call)
}

// Reader reads the queue logs.
func (s *Stepper) Reader() Reader { return s.g.reader }

// Tick passes one tick of raft's clock; the sealer will look. It is called
// every Config.TickInterval.
func (s *Stepper) Tick() {
	s.g.core.tick(s.g.cfg.Clock.Now())
	s.g.sealer.kick()
	s.again = true
}

// WakeAt is the broker time, in microseconds, at which the machine wants a turn
// without a call; 0: none.
func (s *Stepper) WakeAt() int64 { return s.g.core.wakeAt() }

// BrokerTime is the broker's clock in microseconds; 0: it leads not yet.
func (s *Stepper) BrokerTime() int64 {
	if !s.g.core.clock.started {
		return 0
	}
	return s.g.core.clock.at(s.g.cfg.Clock.Now())
}

// Can reports whether a step has something to do.
func (s *Stepper) Can(step Step) bool {
	g := s.g
	switch step {
	case StepLoop:
		return s.again || len(g.in.mu.calls) > 0 || len(g.in.mu.events) > 0
	case StepWrite:
		return s.phase == writerIdle && len(g.writer.mu.queue) > 0
	case StepSync:
		return s.phase == writerWrote
	case StepReport:
		return s.phase == writerSynced
	case StepRows:
		return len(g.rows.in) > 0
	case StepSeal:
		return len(g.sealer.wake) > 0
	case StepLook:
		return len(g.prep.mu.queue) > 0
	case StepReread:
		return s.reread != nil
	case StepAhead:
		return len(g.ahead.wake) > 0
	case StepReclaim:
		return len(g.sealer.reclaimer.wake) > 0
	}
	return false
}

// Do makes a step that Can be made.
func (s *Stepper) Do(step Step) {
	g := s.g
	switch step {
	case StepLoop:
		s.again = g.turn()
	case StepWrite:
		s.batch, g.writer.mu.queue = g.writer.mu.queue, nil
		s.phase = writerWrote
		entries, _, err := g.writer.write(s.batch)
		s.entries = entries
		s.failOn(err, "the log cannot be written")
	case StepSync:
		s.phase = writerSynced
		s.failOn(g.writer.sync(s.entries), "the log cannot be written")
	case StepReport:
		s.phase = writerIdle
		g.writer.report(s.batch)
	case StepRows:
		s.failOn(g.rows.do(<-g.rows.in), "the checkpoint cannot be written")
	case StepSeal:
		<-g.sealer.wake
		s.failOn(g.sealer.work(), "a file cannot be sealed")
	case StepLook:
		call := g.prep.mu.queue[0]
		g.prep.mu.queue = g.prep.mu.queue[1:]
		g.prep.fn(call)
	case StepAhead:
		<-g.ahead.wake
		g.ahead.work()
	case StepReread:
		job := *s.reread
		s.reread = nil
		g.rereader.run(job)
	case StepReclaim:
		<-g.sealer.reclaimer.wake
		s.failOn(g.sealer.reclaimer.work(), "files cannot be freed")
	case StepScrub:
		_ = g.scrub.pass() // what it finds is for Scrubbed to tell
	}
}

func (s *Stepper) failOn(err error, what string) {
	if err != nil {
		s.g.fatal(fmt.Errorf("%s: %w", what, err))
	}
}

// Stop begins a stop: what is queued is still planned, and a last checkpoint is
// taken. Steps go on until Stopped.
func (s *Stepper) Stop() { s.g.post(event{stopPlanner: true}) }

// Stopped reports whether a stop has nothing left to do but Close.
func (s *Stepper) Stopped() bool { return s.g.over }

// Close ends a stop as a Group does: a pad, and files and lock are closed.
func (s *Stepper) Close() error {
	g := s.g
	g.store.closing.Store(true)
	for len(g.rows.in) > 0 {
		if err := g.rows.do(<-g.rows.in); err != nil {
			return err
		}
	}
	if g.core.padded != g.core.log.last {
		g.writer.submit(writerRequest{pad: g.core.commit + 1})
	}
	if _, err := g.writer.do(g.writer.mu.queue); err != nil {
		return err
	}
	g.sealer.reclaimer.take(true)
	g.ahead.close(0)
	return errors.Join(g.boot.Rows.Close(), g.store.Close(), g.boot.Lock.Close())
}

// Scrubbed is what the scrub has done.
func (s *Stepper) Scrubbed() Scrubbed { return s.g.scrub.status() }

// Status reads the group's counters.
func (s *Stepper) Status() Status { return s.g.Status() }
