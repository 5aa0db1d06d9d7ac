package raftlog

import (
	"fmt"
	"log/slog"
	"math"
	"runtime/debug"
	"sync"
	"time"

	pb "go.etcd.io/raft/v3/raftpb"
)

// This file is about who runs the core's turns. Waking a goroutine that sleeps
// costs more than most turns, so whoever brings something in runs the turn
// itself when the core is free: the submitter of a call plans it, and the log
// writer answers what it has made durable. When the core is busy it is enough to
// leave the thing in the inbox, because whoever holds the core looks there again
// after letting go. The loop's goroutine runs what time brings, and what is too
// much for a passer-by.

// event is what the background goroutines report to the core.
type event struct {
	written     []appendRequest
	confSaved   uint64
	rowBytes    int
	footer      *Footer
	sealed      bool
	checkpoint  bool // one is wanted although nothing has changed
	fn          func()
	parcel      *Parcel
	at          int64   // when the parcel came
	fresh       Machine // the state was read again
	adopt       func()
	ahead       []*pb.Entry // read for a follower
	stopPlanner bool
}

// inbox is the way to the core. One hand-over of its lock takes everything
// that has gathered.
type inbox struct {
	mu struct {
		sync.Mutex
		calls   []any
		events  []event
		wanted  int  // calls that make a turn worth it
		stopped bool // no calls any more
		closed  bool // no functions any more
	}
	wake chan struct{}
}

func newInbox() *inbox {
	in := &inbox{wake: make(chan struct{}, 1)}
	in.mu.wanted = 1
	return in
}

// signal wakes the loop.
func (in *inbox) signal() {
	select {
	case in.wake <- struct{}{}:
	default:
	}
}

// call adds a call. It reports whether there are enough of them for a turn.
func (in *inbox) call(c any) (due bool, err error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.mu.stopped {
		return false, ErrStopped
	}
	in.mu.calls = append(in.mu.calls, c)
	return len(in.mu.calls) >= in.mu.wanted, nil
}

// event adds an event. false: the group is over, and nobody listens.
func (in *inbox) event(e event) bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.mu.closed {
		return false
	}
	in.mu.events = append(in.mu.events, e)
	return true
}

func (in *inbox) take() (calls []any, events []event) {
	in.mu.Lock()
	defer in.mu.Unlock()
	calls, events = in.mu.calls, in.mu.events
	in.mu.calls, in.mu.events = nil, nil
	return calls, events
}

func (in *inbox) due() bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	return len(in.mu.events) > 0 || len(in.mu.calls) > 0 && len(in.mu.calls) >= in.mu.wanted
}

// want says how many calls are worth a turn from now on.
func (in *inbox) want(calls int) {
	in.mu.Lock()
	in.mu.wanted = calls
	in.mu.Unlock()
}

// passing is how many turns somebody who passes by runs before he leaves the
// rest to the loop: while others bring more, each of them would hold up what he
// came for.
const passing = 2

// drive runs turns for what is in the inbox, unless somebody else does.
func (g *Group) drive() {
	for n := 0; g.in.due(); n++ {
		if n == passing {
			g.in.signal()
			return
		}
		if !g.turning.TryLock() {
			return
		}
		if g.turnAndUnlock() {
			g.in.signal()
			return
		}
	}
}

// turnAndUnlock runs a turn and lets go of the core. A panic in it ends the
// group: it may stand in the goroutine of somebody who would go on after a
// panic, and nothing could be trusted that the core, half way through, does next.
func (g *Group) turnAndUnlock() (again bool) {
	defer g.turning.Unlock()
	defer func() {
		if p := recover(); p != nil {
			g.cfg.Logger.Error("a turn panicked", slog.Any("panic", p), slog.String("stack", string(debug.Stack())))
			g.core.fail(fmt.Errorf("a turn of the core panicked, nothing after this was answered: %v", p))
		}
	}()
	return g.turn()
}

// turn takes what has gathered in the inbox and runs one turn on it. It reports
// whether another one should follow at once. The caller holds g.turning.
func (g *Group) turn() (again bool) {
	if g.over {
		return false
	}
	g.take()
	begun := g.cfg.Clock.Now()
	again = g.core.turn(begun)
	g.store.SetApplied(g.core.applied)
	g.stats.publish(g.core)
	if g.cfg.Observer.Hold != nil {
		g.cfg.Observer.Hold(time.Duration(g.cfg.Clock.Now().Mono - begun.Mono))
	}
	if g.core.stopping && g.core.stopped() {
		g.end()
		return false
	}
	g.in.want(g.core.callsWanted())
	if at := g.core.wakeAt(); at != 0 && at != g.armed {
		g.armed = at
		g.wake.Set(time.Duration(at-g.core.brokerNow()) * time.Microsecond)
	}
	return again
}

// end closes the inbox: functions that came too late still run.
func (g *Group) end() {
	g.over = true
	g.in.mu.Lock()
	g.in.mu.closed = true
	g.in.mu.Unlock()
	g.take()
	close(g.drained)
}

// take moves everything that has gathered in the inbox into the core.
func (g *Group) take() {
	calls, events := g.in.take()
	for i := range events {
		g.handle(&events[i])
	}
	if len(calls) > 0 {
		g.core.submit(calls)
	}
}

// loop runs turns when time brings something, when a background goroutine
// reports something that nobody waits for, and when others leave turns to it.
func (g *Group) loop() {
	tick := g.cfg.Clock.NewTimer()
	defer tick.Stop()
	defer g.wake.Stop()
	tick.Set(g.cfg.TickInterval)
	for {
		select {
		case <-g.in.wake:
		case <-tick.C():
			g.tick(tick)
		case <-g.wake.C():
			g.turning.Lock()
			g.armed = 0
			g.turning.Unlock()
		case <-g.drained:
			return
		}
		for again := true; again || g.in.due(); {
			g.turning.Lock()
			again = g.turnAndUnlock()
			select {
			case <-tick.C():
				g.tick(tick)
				again = true
			default:
			}
		}
	}
}

func (g *Group) tick(tick Timer) {
	tick.Set(g.cfg.TickInterval)
	g.turning.Lock()
	if !g.over {
		g.core.tick(g.cfg.Clock.Now())
	}
	g.turning.Unlock()
	g.sealer.kick()
}

// callsWanted is how many calls there must be before a turn can plan them.
func (c *core) callsWanted() int {
	switch n := len(c.inflight); {
	case n == 0 || c.more || !c.leading || c.dead != nil:
		return 1
	case n >= c.cfg.MaxInFlight || c.inflightLen >= c.cfg.MaxInFlightBytes:
		return math.MaxInt // what ends the wait is an event
	default:
		return max(1, c.inflight[n-1].calls-len(c.calls))
	}
}
