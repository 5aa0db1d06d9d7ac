package raftlog

import "time"

// Clock is the time that a group runs on.
type Clock interface {
	// Now reads both clocks.
	Now() Times
	// NewTimer gives a timer that is not running.
	NewTimer() Timer
}

// Timer fires on C once after each Set.
type Timer interface {
	C() <-chan time.Time
	// Set starts the timer over; a fire of an earlier Set may still be in C.
	Set(d time.Duration)
	Stop()
}

// SystemClock is the clock of the machine.
func SystemClock() Clock { return systemClock{start: time.Now()} }

type systemClock struct{ start time.Time }

func (c systemClock) Now() Times {
	now := time.Now()
	return Times{Mono: int64(now.Sub(c.start)), Wall: now.UnixMicro()}
}

func (c systemClock) NewTimer() Timer {
	t := time.NewTimer(time.Hour)
	t.Stop()
	return systemTimer{t}
}

type systemTimer struct{ t *time.Timer }

func (t systemTimer) C() <-chan time.Time { return t.t.C }
func (t systemTimer) Set(d time.Duration) { t.t.Reset(max(d, 0)) }
func (t systemTimer) Stop()               { t.t.Stop() }
