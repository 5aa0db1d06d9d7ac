package raftlog

// Times is one reading of both clocks.
type Times struct {
	// Mono is a monotonic clock in nanoseconds, from any start.
	Mono int64
	// Wall is the wall clock in microseconds since the epoch.
	Wall int64
}

// slewDivisor bounds how fast broker time moves toward the wall clock: by at
// most 1% of the time that passed.
const slewDivisor = 100

// brokerTime is the leader's clock (I10). It starts above everything that the
// log has seen, runs on the monotonic clock, and moves toward the wall clock
// by at most 1%, so a wall clock that jumps ends no lease early and stalls
// nothing.
type brokerTime struct {
	started bool
	nanos   int64 // broker time in nanoseconds since the epoch
	mono    int64
}

// start sets the clock when this node begins to lead without a note of the
// last leader's time: the wall clock, or just above the newest entry.
func (b *brokerTime) start(t Times, newestEntry int64) {
	b.started = true
	b.mono = t.Mono
	b.nanos = max(t.Wall, newestEntry+1) * 1000
}

// at is the broker time in microseconds; it never goes back.
func (b *brokerTime) at(t Times) int64 {
	passed := t.Mono - b.mono
	if passed > 0 {
		b.mono = t.Mono
		b.nanos += passed
		limit := passed / slewDivisor
		b.nanos += min(max(t.Wall*1000-b.nanos, -limit), limit)
	}
	return b.nanos / 1000
}
