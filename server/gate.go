package server

import (
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// gate bounds the growing writes that are in the engine at once, so that what is
// offered beyond what the broker can do is refused and not queued: queued calls
// make everybody slower, and the work on those whose callers have left is lost.
//
// The bound follows what the engine finishes: gateDelay's worth of calls, and at
// least gateLeast. Calls over it wait in line. A line that comes and goes is a
// burst, and its calls wait as long as they have to, up to the hold. So does a
// line of at most gateLine calls: some hundred clients that each wait for their
// answer are no overload, however long they go on. A longer line that has stood
// for gateStands is one: who would wait longer than gatePatience is refused, so
// that those who get in are answered fast and the others soon (controlled delay).
type gate struct {
	now     func() time.Time
	hold    time.Duration
	refused *atomic.Int64

	mu struct {
		sync.Mutex
		used    int
		waiting []*gateWaiter
		empty   time.Time // when the line was empty last; time without progress is not counted

		rate  float64   // calls a second that the engine finishes
		done  int       // since the start of the measuring window
		start time.Time // of that window
		last  time.Time // a call was finished
	}
}

const (
	gateLeast    = 128
	gateLine     = 512
	gateDelay    = 40 * time.Millisecond
	gateStands   = time.Second
	gatePatience = 20 * time.Millisecond
	gateWindow   = 100 * time.Millisecond // of measuring the rate; longer without a finished call is a stall
)

type gateWaiter struct {
	since   time.Time
	verdict chan bool // capacity 1: in, or refused
}

func newGate(hold time.Duration, now func() time.Time, refused *atomic.Int64) *gate {
	return &gate{hold: hold, now: now, refused: refused}
}

// tryEnter takes a place (in), or a place in the line (w). Neither: the call is
// refused, the line is as long as the patience already.
func (g *gate) tryEnter() (in bool, w *gateWaiter) {
	now := g.now()
	g.mu.Lock()
	defer g.mu.Unlock()
	g.shedLocked(now)
	if len(g.mu.waiting) == 0 {
		g.mu.empty = now
		if g.mu.used < g.limitLocked() {
			g.mu.used++
			return true, nil
		}
	}
	if g.fullLocked(now) {
		g.refused.Add(1)
		return false, nil
	}
	w = &gateWaiter{since: now, verdict: make(chan bool, 1)}
	g.mu.waiting = append(g.mu.waiting, w)
	return false, w
}

// full reports whether a call would be refused now, so that its body need not be
// read. It is counted as refused then.
func (g *gate) full() bool {
	now := g.now()
	g.mu.Lock()
	defer g.mu.Unlock()
	g.shedLocked(now)
	full := g.fullLocked(now)
	if full {
		g.refused.Add(1)
	}
	return full
}

// fullLocked: the line stands, and who joins it now would lose patience.
func (g *gate) fullLocked(now time.Time) bool {
	return g.standsLocked(now) && len(g.mu.waiting) >= max(gateLine, int(g.mu.rate*gatePatience.Seconds()))
}

// standsLocked: the line has stood for long while calls were finished. When none
// has been for a while the engine stalls, and time counts up to then.
func (g *gate) standsLocked(now time.Time) bool {
	if now.Sub(g.mu.last) > gateWindow {
		now = g.mu.last
	}
	return len(g.mu.waiting) > 0 && now.Sub(g.mu.empty) > gateStands
}

// await waits for a place until the hold is over or gone is closed. What was
// taken is given back with leave.
func (g *gate) await(w *gateWaiter, gone <-chan struct{}) bool {
	// Jitter, so that those refused together do not come back together.
	timer := time.NewTimer(g.hold - g.hold/4 + rand.N(g.hold/2+1))
	defer timer.Stop()
	select {
	case in := <-w.verdict:
		return in
	case <-timer.C:
	case <-gone:
	}
	return g.giveUp(w)
}

// giveUp leaves the line; true when the place came at the last moment.
func (g *gate) giveUp(w *gateWaiter) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	for i, o := range g.mu.waiting {
		if o == w {
			g.mu.waiting = append(g.mu.waiting[:i], g.mu.waiting[i+1:]...)
			g.refused.Add(1)
			return false
		}
	}
	return <-w.verdict
}

// leave gives a place back.
func (g *gate) leave() {
	now := g.now()
	g.mu.Lock()
	defer g.mu.Unlock()
	g.mu.used--
	g.finishedLocked(now)
	g.shedLocked(now)
	for len(g.mu.waiting) > 0 && g.mu.used < g.limitLocked() {
		w := g.mu.waiting[0]
		g.mu.waiting = g.mu.waiting[1:]
		g.mu.used++
		w.verdict <- true
	}
	if len(g.mu.waiting) == 0 {
		g.mu.empty = now
	}
}

func (g *gate) limitLocked() int { return max(gateLeast, int(g.mu.rate*gateDelay.Seconds())) }

// finishedLocked measures the rate. A stall says nothing about the load.
func (g *gate) finishedLocked(now time.Time) {
	if stall := now.Sub(g.mu.last); stall > gateWindow && !g.mu.last.IsZero() {
		g.mu.empty = g.mu.empty.Add(stall)
		g.mu.done, g.mu.start = 0, now
	}
	if g.mu.start.IsZero() {
		g.mu.start = now
	}
	g.mu.last = now
	g.mu.done++
	if took := now.Sub(g.mu.start); took >= gateWindow {
		g.mu.rate += 0.3 * (float64(g.mu.done)/took.Seconds() - g.mu.rate)
		g.mu.done, g.mu.start = 0, now
	}
}

// shedLocked refuses who has waited too long in a line that stands.
func (g *gate) shedLocked(now time.Time) {
	if !g.standsLocked(now) {
		return
	}
	for len(g.mu.waiting) > gateLine && now.Sub(g.mu.waiting[0].since) > gatePatience {
		w := g.mu.waiting[0]
		g.mu.waiting = g.mu.waiting[1:]
		g.refused.Add(1)
		w.verdict <- false
	}
}

// state is for the metrics.
func (g *gate) state() (used, waiting int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.mu.used, len(g.mu.waiting)
}

// enterGate takes a place for w, whose body has come whole: a client that sends
// slowly holds none. When there is none it answers 429 and returns false.
func (x *exchange) enterGate(w *work) bool {
	if x.s.admission.limit <= 0 || w.entered {
		return true
	}
	in, place := x.s.gate.tryEnter()
	if place != nil {
		x.held = true
		in = x.s.gate.await(place, x.c.Request.Context().Done())
	}
	if !in {
		x.refuseOverload()
	}
	w.entered = in
	return in
}

// gateFull refuses a call before its body is read when it would not get in.
func (x *exchange) gateFull() bool {
	full := x.s.admission.limit > 0 && x.s.gate.full()
	if full {
		x.refuseOverload()
	}
	return full
}

func (x *exchange) refuseOverload() {
	x.retryAfter(1 + rand.IntN(5))
	x.fail(http.StatusTooManyRequests, "overloaded", "more writes are offered than the broker can do; nothing was applied")
}
