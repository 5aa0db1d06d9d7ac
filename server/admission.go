package server

import (
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"queen/internal/vfs"
)

// admission bounds the bytes of growing writes that are in flight. A call that
// does not fit waits, in arrival order, with its body still in the socket.
//
// A large body is charged in steps, so that calls hold a part and wait for more.
// Were everything held by such calls, no room would ever come. Then the one that
// arrived first goes on over the limit. By the order that is the same one until
// its body is whole, so the excess is never more than one body.
type admission struct {
	limit int64 // 0: no bound
	hold  time.Duration

	refused atomic.Int64

	mu struct {
		sync.Mutex
		used    int64
		stuck   int64  // of these, held by calls that wait for more
		turns   uint64 // given to calls so far
		waiting []*admitWaiter
	}
}

// charge is what one call holds of the budget.
type charge struct {
	bytes int64
	turn  uint64 // place in the order of arrival; 0 until it asks for the first time
}

// Invariant: the waiters stand in the order of their turns.
type admitWaiter struct {
	charge  *charge
	bytes   int64
	ready   chan struct{} // closed when the bytes are taken
	granted bool
}

func newAdmission(limit int64, hold time.Duration) *admission {
	return &admission{limit: limit, hold: hold}
}

// fits tells whether n more bytes go in, for a call that holds own bytes and is
// not counted as stuck. The lock is held.
func (a *admission) fits(n, own int64) bool {
	return a.mu.used-own == a.mu.stuck || a.mu.used+n <= a.limit
}

// acquire takes n more bytes for c, waiting for them if need be, until the hold
// is over or gone is closed. What was taken is given back with release.
func (a *admission) acquire(c *charge, n int64, gone <-chan struct{}) bool {
	return a.tryAcquire(c, n) || a.await(c, n, gone)
}

func (a *admission) tryAcquire(c *charge, n int64) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if c.turn == 0 {
		a.mu.turns++
		c.turn = a.mu.turns
	}
	behind := len(a.mu.waiting) > 0 && a.mu.waiting[0].charge.turn < c.turn
	if behind || !a.fits(n, c.bytes) {
		return false
	}
	a.mu.used += n
	c.bytes += n
	return true
}

// await is for who has a turn: tryAcquire was asked before.
func (a *admission) await(c *charge, n int64, gone <-chan struct{}) bool {
	w := &admitWaiter{charge: c, bytes: n, ready: make(chan struct{})}
	a.mu.Lock()
	a.standLocked(w)
	a.grantLocked() // room may have come since it was asked for
	a.mu.Unlock()

	// Jitter, so that those refused together do not come back together.
	timer := time.NewTimer(a.hold - a.hold/4 + rand.N(a.hold/2+1))
	defer timer.Stop()
	select {
	case <-w.ready:
		return true
	case <-timer.C:
	case <-gone:
	}
	return a.giveUp(w)
}

// standLocked puts w in its place in the line.
func (a *admission) standLocked(w *admitWaiter) {
	at := len(a.mu.waiting)
	for at > 0 && a.mu.waiting[at-1].charge.turn > w.charge.turn {
		at--
	}
	a.mu.waiting = slices.Insert(a.mu.waiting, at, w)
	a.mu.stuck += w.charge.bytes
}

// giveUp leaves the line; true when the bytes came at the last moment.
func (a *admission) giveUp(w *admitWaiter) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if w.granted {
		return true
	}
	at := slices.Index(a.mu.waiting, w)
	a.mu.waiting = slices.Delete(a.mu.waiting, at, at+1)
	a.mu.stuck -= w.charge.bytes
	a.grantLocked()
	a.refused.Add(1)
	return false
}

// release gives back all that c holds.
func (a *admission) release(c *charge) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.mu.used -= c.bytes
	*c = charge{}
	a.grantLocked()
}

func (a *admission) grantLocked() {
	for len(a.mu.waiting) > 0 && a.fits(a.mu.waiting[0].bytes, 0) {
		w := a.mu.waiting[0]
		a.mu.waiting = a.mu.waiting[1:]
		a.mu.stuck -= w.charge.bytes
		a.mu.used += w.bytes
		w.charge.bytes += w.bytes
		w.granted = true
		close(w.ready)
	}
}

// state is for the metrics.
func (a *admission) state() (used int64, waiting int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.mu.used, len(a.mu.waiting)
}

// admit takes n bytes of the budget for w. When there is no room it answers
// 429 and returns false.
func (x *exchange) admit(w *work, n int64) bool {
	if x.s.admission.limit <= 0 || n <= 0 {
		return true
	}
	if !x.s.admission.tryAcquire(&w.admitted, n) && !x.awaitAdmission(w, n) {
		x.retryAfter(1 + rand.IntN(5))
		x.fail(http.StatusTooManyRequests, "overloaded", "too many bytes of writes are in flight; nothing was applied")
		return false
	}
	return true
}

// admitWhole admits a write whose body has been read.
func (x *exchange) admitWhole(w *work) bool {
	return x.admit(w, int64(len(w.body))) && x.enterGate(w)
}

func (x *exchange) awaitAdmission(w *work, n int64) bool {
	x.held = true
	return x.s.admission.await(&w.admitted, n, x.c.Request.Context().Done())
}

// admitStep is how much of a body is charged before it arrives. A client that
// announces much and sends nothing holds no more of the budget than this.
const admitStep = 256 << 10

// readGrowing admits and reads the body of a write that grows storage. A body
// without a length is admitted once its length is known.
func (x *exchange) readGrowing(w *work) bool {
	if x.bodyTooLarge() || x.gateFull() {
		return false
	}
	n := x.c.Request.ContentLength
	read := false
	switch {
	case n < 0:
		read = x.readBody(w) && x.admit(w, int64(len(w.body)))
	case n > admitStep:
		read = x.readInSteps(w, int(n))
	default:
		read = (n == 0 || x.admit(w, n)) && x.readBody(w)
	}
	return read && x.enterGate(w)
}

// readInSteps charges a large body as it arrives. Its memory is taken once the
// first step has come.
func (x *exchange) readInSteps(w *work, n int) bool {
	for from := 0; from < n; {
		to := min(from+admitStep, n)
		if !x.admit(w, int64(to-from)) {
			x.bodyRead = false // only its first steps were
			return false
		}
		if cap(w.body) < to {
			size := to
			if from > 0 {
				size = n
			}
			w.body = append(make([]byte, 0, size), w.body[:from]...)
		}
		w.body = w.body[:to]
		if !x.readFull(w.body[from:to]) {
			return false
		}
		from = to
	}
	return true
}

// diskWatch knows whether the data volume is nearly full.
type diskWatch struct {
	usage     func() (vfs.Usage, error)
	reserve   func(u vfs.Usage, roomy bool) (full, spent bool)
	high, low float64
	above     bool // its high water
	full      atomic.Bool
	spent     atomic.Bool  // the reserve, too
	percent   atomic.Int64 // of the last look
}

// look measures once. Between low and high water the verdict stays.
func (d *diskWatch) look() error {
	u, err := d.usage()
	if err != nil {
		return err
	}
	if u.Total == 0 {
		return nil
	}
	used := float64(u.Total-min(u.Free, u.Total)) / float64(u.Total) * 100
	d.percent.Store(int64(used))
	switch {
	case used >= d.high:
		d.above = true
	case used < d.low:
		d.above = false
	}
	full, spent := d.above, false
	if d.reserve != nil {
		inUse, gone := d.reserve(u, !d.above)
		full, spent = full || inUse, gone
	}
	d.full.Store(full)
	d.spent.Store(spent)
	return nil
}

// noRoom answers a call that has to write, and may even when the disk is full,
// while there is nothing left to write with: what is left is for a start.
func (x *exchange) noRoom() bool {
	if !x.rt.writes || !x.s.disk.spent.Load() {
		return false
	}
	x.retryAfter(1)
	x.fail(http.StatusServiceUnavailable, "retry", "the data volume is full and its reserve is used up; nothing was applied")
	return true
}

// storageFull answers 507 when the disk is over its high water.
func (x *exchange) storageFull() bool {
	if !x.s.disk.full.Load() {
		return false
	}
	x.fail(http.StatusInsufficientStorage, "storage_full", "the data volume is over QUEEN_RAFT_DISK_HIGH_PCT, or its reserve is in use; nothing was applied. Make room on it")
	return true
}
