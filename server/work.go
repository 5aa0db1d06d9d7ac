package server

import (
	"errors"
	"sync"
	"time"

	"queen/fsm"
	"queen/server/rawjson"
)

// work is one call and everything that it refers to: the body, the strings cut
// from it, the packed messages, the results.
//
// Invariant (ownership): from a successful Submit until Call.Done, a work
// belongs to the engine. The handler reads and reuses nothing of it before it
// has received from done. A handler that gives up waiting gives the work to
// Server.abandon, which waits for done in its place; only the one that has
// received from done may put the work back into the pool. So a body is never
// overwritten under a plan that still reads it, however late that plan is.
type work struct {
	call  fsm.Call
	done  chan error // capacity 1: Done never blocks
	timer *time.Timer
	owner *exchange // whose handler waits; nil: none does

	body  []byte
	arena []byte // packed messages and what else had to be copied
	scan  rawjson.Scanner
	names map[string]string
	last  [4]string // names that came up last: most bodies repeat a few
	lease struct {  // the one read last
		text []byte
		id   [16]byte
	}
	turn     int       // which of them is replaced next
	producer []byte    // sub of the caller's token; nil: none
	at       time.Time // when the request came, for its ids

	push     fsm.Push
	pop      fsm.Pop
	ack      fsm.Ack
	txn      fsm.Txn
	kv       fsm.KV
	locks    fsm.Locks
	timers   fsm.Timers
	order    []element // what the operations of a transaction are, in order
	leases   [][]byte  // own lease of each ack, as text; empty: none
	required [][]byte
	echoes   [][]byte // txn that a timer operation was sent with

	delivery delivery

	next   nextClaim
	keyed  fsm.Keyed
	answer []byte // of a keyed call; the engine's until Done, like everything here

	admitted charge // to be given back to the admission budget
	entered  bool   // has a place of the gate to give back
}

// maxPooled is the size up to which a buffer goes back into a pool with its
// work; bigger ones are left to the collector, so that one large body does not
// stay in memory for good.
const maxPooled = 256 << 10

const maxNames = 4096

var workPool = sync.Pool{New: func() any {
	w := &work{done: make(chan error, 1), timer: time.NewTimer(time.Hour), names: map[string]string{}}
	w.timer.Stop()
	w.call.Done = w.finish
	w.delivery.take = w.delivery.message
	return w
}}

// finish is Call.Done.
func (w *work) finish(err error) { w.done <- err }

func (s *Server) getWork(x *exchange) *work {
	w := workPool.Get().(*work)
	w.at, w.owner = x.start, x
	w.call = fsm.Call{Tenant: x.tenant, Done: w.call.Done}
	if w.producer = nil; x.sub != "" {
		w.producer = []byte(x.sub)
	}
	return w
}

// putWork ends the life of a work that the engine does not hold.
func (s *Server) putWork(w *work) {
	if w.admitted.turn > 0 {
		s.admission.release(&w.admitted)
	}
	if w.entered {
		s.gate.leave()
		w.entered = false
	}
	if cap(w.body) > maxPooled {
		w.body = nil
	}
	if cap(w.arena) > maxPooled {
		w.arena = nil
	}
	w.reset()
	workPool.Put(w)
}

func (w *work) reset() {
	w.owner = nil
	w.body, w.arena = w.body[:0], w.arena[:0]
	w.scan.Release(maxPooled)
	w.push.Items, w.push.Groups = cleared(w.push.Items), cleared(w.push.Groups)
	w.pop, w.next, w.keyed = fsm.Pop{}, nextClaim{}, fsm.Keyed{}
	if w.answer = w.answer[:0]; cap(w.answer) > maxPooled {
		w.answer = nil
	}
	w.lease.text, w.lease.id = nil, [16]byte{}
	w.delivery.reset()
	w.ack.Items, w.ack.Next = cleared(w.ack.Items), nil
	w.txn.Push.Items, w.txn.Push.Groups = cleared(w.txn.Push.Items), cleared(w.txn.Push.Groups)
	w.txn = fsm.Txn{
		Acks: cleared(w.txn.Acks), Push: w.txn.Push, Positions: cleared(w.txn.Positions),
		KV: cleared(w.txn.KV), Timers: cleared(w.txn.Timers),
	}
	w.kv = fsm.KV{Ops: cleared(w.kv.Ops)}
	w.locks = fsm.Locks{Ops: cleared(w.locks.Ops)}
	w.timers = fsm.Timers{Ops: cleared(w.timers.Ops)}
	w.order, w.leases, w.required, w.echoes = w.order[:0], cleared(w.leases), cleared(w.required), cleared(w.echoes)
}

// maxKept is the number of elements up to which a slice is kept for reuse.
const maxKept = 1024

func cleared[T any](v []T) []T {
	if cap(v) > maxKept {
		return nil
	}
	clear(v)
	return v[:0]
}

// name makes a string of b, the same one for a name that came before: most
// bodies repeat a few queues, partitions and groups.
func (w *work) name(b []byte) string {
	for _, s := range w.last {
		if s == string(b) {
			return s
		}
	}
	s := w.lookUpName(b)
	w.last[w.turn] = s
	w.turn = (w.turn + 1) % len(w.last)
	return s
}

func (w *work) lookUpName(b []byte) string {
	if s, ok := w.names[string(b)]; ok {
		return s
	}
	if len(w.names) >= maxNames {
		clear(w.names)
	}
	s := string(b)
	if len(s) <= nameBytes {
		w.names[s] = s
	}
	return s
}

// keep copies b into the arena.
func (w *work) keep(b []byte) []byte {
	from := len(w.arena)
	w.arena = append(w.arena, b...)
	return w.arena[from:len(w.arena):len(w.arena)]
}

// Errors of run. After both the work is no longer the caller's.
var (
	errTimeout = errors.New("the deadline passed before the outcome was known")
	errGone    = errors.New("the client left")
)

// run hands the call in w to the engine and waits for its outcome, for d at
// most or until gone is closed (nil: it does not matter whether the client
// stays). After errTimeout and errGone the work has been abandoned; after any
// other result it is the caller's again.
func (s *Server) run(w *work, body any, size int, d time.Duration, gone <-chan struct{}) error {
	w.call.Body, w.call.Size = body, size
	w.timer.Reset(max(d, 0))
	for refits := 0; ; refits++ {
		w.call.Misfit = false
		if err := s.engine.Submit(&w.call); err != nil {
			w.timer.Stop()
			return err
		}
		err := s.outcome(w, gone)
		if err == errTimeout || err == errGone {
			return err // the work is another's now
		}
		if err != nil || !w.call.Misfit {
			if x := w.owner; x != nil {
				x.phases = phases{marks: w.call.Marks, done: mark()}
			}
			return err
		}
		// Nothing was done: a payload has another form than its queue keeps.
		err = s.refit(w, body)
		if err == nil && refits == maxRefits {
			err = errUnsettled
		}
		if err != nil {
			w.timer.Stop()
			return err
		}
	}
}

// outcome waits for what becomes of the call in w. The timer goes on when the
// call is to be sent again.
func (s *Server) outcome(w *work, gone <-chan struct{}) error {
	select {
	case err := <-w.done:
		if err != nil || !w.call.Misfit {
			w.timer.Stop()
		}
		return err
	case <-w.timer.C:
		s.abandon(w)
		return errTimeout
	case <-gone:
		w.timer.Stop()
		s.abandon(w)
		return errGone
	}
}

// abandon takes over a work whose outcome nobody waits for. Claims of a pop go
// back (nobody can receive them).
func (s *Server) abandon(w *work) {
	w.owner = nil
	w.call.Gone.Store(true)
	s.abandoned.add()
	go func() {
		defer s.abandoned.done()
		var err error
		select {
		case err = <-w.done:
		case <-s.givenUp:
			return // the engine may still write to the work
		}
		if pop := claimedBy(w.call.Body); pop != nil && err == nil {
			s.handBack(claimsOf(w.call.Tenant, pop))
		}
		s.putWork(w)
	}()
}

// claims is what a pop claimed and may have to be given back. Empty: nothing.
type claims struct {
	tenant     string
	lease      [16]byte
	list       []*fsm.Claim
	commits    bool // on delivery: once it was sent it stays delivered
	unreadable bool
}

// claimsOf tells what would have to be given back of a pop.
func claimsOf(tenant string, pop *fsm.Pop) claims {
	return claims{tenant: tenant, lease: pop.LeaseID, list: pop.Claims, commits: pop.CommitOnDelivery}
}

// delivered lets the partitions of a pop that commits on delivery go on.
func (s *Server) delivered(c claims) {
	call := &fsm.Call{Tenant: c.tenant, Body: &fsm.Delivered{Claims: c.list}, Done: func(error) {}}
	if err := s.engine.Submit(call); err != nil {
		s.log.Debug("a delivery could not be reported; its partitions go on by themselves", "error", err)
	}
}

// handBack gives claims back that nobody received, and waits until that is
// decided.
func (s *Server) handBack(c claims) {
	if len(c.list) == 0 {
		return
	}
	done := make(chan error, 1)
	call := &fsm.Call{
		Tenant: c.tenant,
		Body:   &fsm.HandBack{LeaseID: c.lease, Claims: c.list, Unreadable: c.unreadable},
		Done:   func(err error) { done <- err },
	}
	if err := s.engine.Submit(call); err != nil {
		s.log.Warn("a claim could not be handed back; its lease runs until it expires", "error", err)
		return
	}
	select {
	case <-done:
	case <-s.givenUp:
	}
}

// handBackLater is handBack that holds nobody up.
func (s *Server) handBackLater(c claims) {
	if len(c.list) == 0 {
		return
	}
	s.abandoned.add()
	go func() {
		defer s.abandoned.done()
		s.handBack(c)
	}()
}
