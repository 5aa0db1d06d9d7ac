package raftlog

import "queen/internal/plant"

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

// start sets the clock, when this node begins to lead, to micros.
func (b *brokerTime) start(t Times, micros int64) {
	b.started = true
	b.mono = t.Mono
	b.nanos = micros * 1000
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

// timeNote is what this node has heard of the leader's clock: it had reached
// micros when this node's monotonic clock showed mono. Every node passes on what
// it knows with all that it sends, so a candidate hears of it with the votes (F14).
type timeNote struct {
	micros int64 // 0: nothing was heard
	mono   int64
	term   uint64 // of the leader whose clock it was
}

// bound is a time that the leader's clock has reached by now: it runs at 99% of
// the monotonic clock's rate at least.
func (n *timeNote) bound(mono int64) int64 {
	if n.micros == 0 {
		return 0
	}
	passed := max(mono-n.mono, 0) / 1000
	return n.micros + passed - passed/slewDivisor
}

// take notes a time that the clock of a leader had reached. That of a later leader
// counts whatever an earlier one's showed: a deposed leader's clock ran on, and may
// be ahead. Of one leader a message that was long under way says less than what is
// known already.
func (n *timeNote) take(micros int64, term uint64, mono int64) {
	if micros != 0 && (term > n.term || term == n.term && micros >= n.bound(mono)) {
		n.micros, n.mono, n.term = micros, mono, term
	}
}

// timeBound is a time that the broker's clock has reached, and the term of the
// leader whose clock says so; 0: nothing is known.
func (c *core) timeBound() (micros int64, term uint64) {
	if c.clock.started {
		return c.clock.at(c.now), c.leadTerm
	}
	return c.note.bound(c.now.Mono), c.note.term
}

// takeoverTime is where a new leader's clock begins: where the last one's was,
// as far as anybody has told, or, when nobody has, the wall clock; in any case
// above the newest entry.
func (c *core) takeoverTime() int64 {
	at := c.note.bound(c.now.Mono)
	if at == 0 || plant.Is(plant.WallClockLease) {
		at = c.now.Wall
	}
	return max(at, c.lastTime+1)
}
