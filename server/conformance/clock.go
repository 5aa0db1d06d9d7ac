package conformance

import (
	"sync"
	"time"

	"queen/raftlog"
)

// start is the time at which every broker here begins.
var start = time.Date(2026, 11, 3, 8, 15, 0, 0, time.UTC)

// clock is a raftlog.Clock that moves only when it is told to.
type clock struct {
	mu struct {
		sync.Mutex
		passed time.Duration
		timers map[*clockTimer]struct{}
	}
}

var _ raftlog.Clock = (*clock)(nil)

func newClock() *clock {
	c := &clock{}
	c.mu.timers = map[*clockTimer]struct{}{}
	return c
}

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return start.Add(c.mu.passed)
}

// Now implements raftlog.Clock.
func (c *clock) Now() raftlog.Times {
	c.mu.Lock()
	defer c.mu.Unlock()
	return raftlog.Times{Mono: int64(c.mu.passed), Wall: start.Add(c.mu.passed).UnixMicro()}
}

// NewTimer implements raftlog.Clock.
func (c *clock) NewTimer() raftlog.Timer {
	return &clockTimer{clock: c, c: make(chan time.Time, 1)}
}

// advance moves the clock and fires the timers that became due.
func (c *clock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.passed += d
	for t := range c.mu.timers { // each has a channel of its own: the order does not matter
		if t.due <= c.mu.passed {
			t.fireLocked()
		}
	}
}

// clockTimer fires when its clock passes due.
type clockTimer struct {
	clock *clock
	c     chan time.Time
	due   time.Duration // guarded by clock.mu
}

func (t *clockTimer) C() <-chan time.Time { return t.c }

func (t *clockTimer) Set(d time.Duration) {
	t.clock.mu.Lock()
	defer t.clock.mu.Unlock()
	t.due = t.clock.mu.passed + max(d, 0)
	t.clock.mu.timers[t] = struct{}{}
	if d <= 0 {
		t.fireLocked()
	}
}

func (t *clockTimer) Stop() {
	t.clock.mu.Lock()
	defer t.clock.mu.Unlock()
	delete(t.clock.mu.timers, t)
}

func (t *clockTimer) fireLocked() {
	delete(t.clock.mu.timers, t)
	select {
	case t.c <- start.Add(t.clock.mu.passed):
	default:
	}
}
