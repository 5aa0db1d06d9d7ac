package server

import (
	"net/http"
	"sync/atomic"
	"testing"
	"time"
)

// gateRig drives a gate without goroutines, on a clock of its own.
type gateRig struct {
	g       *gate
	at      time.Time
	refused atomic.Int64
	line    []*gateWaiter
	atOnce  int // refused when they came
}

func newGateRig() *gateRig {
	r := &gateRig{at: time.Unix(1000, 0)}
	r.g = newGate(15*time.Second, func() time.Time { return r.at }, &r.refused)
	return r
}

// offer lets n calls come; in is how many got a place at once.
func (r *gateRig) offer(n int) (in int) {
	for range n {
		ok, w := r.g.tryEnter()
		switch {
		case ok:
			in++
		case w != nil:
			r.line = append(r.line, w)
		default:
			r.atOnce++
		}
	}
	return in
}

// verdicts counts who of the line has got in and who was refused, with the
// longest wait of each.
func (r *gateRig) verdicts() (in, refused int, longest time.Duration) {
	var left []*gateWaiter
	for _, w := range r.line {
		select {
		case ok := <-w.verdict:
			if !ok {
				refused++
				continue
			}
			in++
			longest = max(longest, r.at.Sub(w.since))
		default:
			left = append(left, w)
		}
	}
	r.line = left
	return in, refused, longest
}

func TestGateLetsABurstWait(t *testing.T) {
	r := newGateRig()
	if in := r.offer(gateLeast + 500); in != gateLeast {
		t.Fatalf("%d got in at once, want %d", in, gateLeast)
	}
	waited := 0
	for range 900 { // a slow disk, but the line gets shorter
		r.at = r.at.Add(time.Millisecond)
		r.g.leave()
		in, refused, _ := r.verdicts()
		if waited += in; refused > 0 {
			t.Fatalf("a burst is refused after %v", r.at.Sub(time.Unix(1000, 0)))
		}
		if used, _ := r.g.state(); used == 0 {
			break
		}
	}
	if waited != 500 {
		t.Fatalf("%d of the line got in, want 500", waited)
	}
}

// Some hundred clients that each wait for their answer before they come again are
// no overload, however long they go on and however slow the broker is.
func TestGateRefusesNoModestFleet(t *testing.T) {
	const clients = 600
	for _, finished := range []int{1, 3, 10} { // a millisecond
		r := newGateRig()
		in, refused := r.offer(clients), 0
		for range 20_000 {
			r.at = r.at.Add(time.Millisecond)
			back := 0
			for range finished {
				if used, _ := r.g.state(); used > 0 {
					r.g.leave()
					back++
				}
			}
			i, no, _ := r.verdicts()
			in, refused = in+i+r.offer(back), refused+no
		}
		if refused += r.atOnce; refused > 0 || in < 10_000*finished {
			t.Errorf("%d clients at %d calls a millisecond: %d got in, %d were refused", clients, finished, in, refused)
		}
	}
}

// Three times what is finished is offered for 20 s: in the steady state nobody
// waits longer than a line of gateLine takes, who is over it is refused at once,
// and the line is no longer; once the load drops nobody is refused any more.
func TestGateUnderOverload(t *testing.T) {
	r := newGateRig()
	const finished, offered = 5, 15 // a millisecond
	refused, in := 0, 0
	for ms := range 20_000 {
		r.at = r.at.Add(time.Millisecond)
		in += r.offer(offered)
		for range finished {
			if used, _ := r.g.state(); used > 0 {
				r.g.leave()
			}
		}
		i, no, longest := r.verdicts()
		refused, in = refused+no, in+i
		used, waiting := r.g.state()
		if ms < 1500 {
			continue
		}
		if longest > (gateLine/finished+2)*time.Millisecond || waiting > gateLine {
			t.Fatalf("at %d ms: a wait of %v, %d in line", ms, longest, waiting)
		}
		if used > 2*gateLeast {
			t.Fatalf("at %d ms: %d calls in the engine", ms, used)
		}
	}
	refused += r.atOnce
	if got := float64(in) / float64(in+refused); got < 0.32 || got > 0.36 {
		t.Fatalf("%.2f of what was offered got in, want a third", got)
	}
	if int64(refused) != r.refused.Load() {
		t.Fatalf("%d were refused, %d counted", refused, r.refused.Load())
	}
	if r.offer(gateLine); r.atOnce == 0 || !r.g.full() {
		t.Fatal("nobody was refused at once")
	}
	for range 1000 { // the load drops below what is finished
		r.at = r.at.Add(time.Millisecond)
		for range finished {
			if used, _ := r.g.state(); used > 0 {
				r.g.leave()
			}
		}
		r.offer(finished - 1)
	}
	r.verdicts()
	for range 1000 {
		r.at = r.at.Add(time.Millisecond)
		for range finished {
			if used, _ := r.g.state(); used > 0 {
				r.g.leave()
			}
		}
		if in := r.offer(finished - 1); in != finished-1 {
			t.Fatal("a call waits although the load has dropped")
		}
	}
}

// A disk that stands still for seconds is no overload: who waited is let in
// when it goes on.
func TestGateForgivesAStall(t *testing.T) {
	r := newGateRig()
	r.offer(gateLeast)
	r.at = r.at.Add(10 * time.Millisecond)
	r.g.leave()
	r.offer(50)
	r.at = r.at.Add(5 * time.Second)
	for range 100 {
		r.g.leave()
	}
	if in, refused, _ := r.verdicts(); refused > 0 || in != 49 {
		t.Fatalf("%d of the line got in, %d were refused, want 49 and none", in, refused)
	}
}

// The same with calls that come while it stands still.
func TestGateForgivesAStallThatGoesOn(t *testing.T) {
	r := newGateRig()
	r.offer(gateLeast)
	for range 50 {
		r.at = r.at.Add(time.Millisecond)
		r.g.leave()
		r.offer(1)
	}
	for range 30 {
		r.at = r.at.Add(100 * time.Millisecond)
		if r.g.full() {
			t.Fatalf("a call is refused %v into the stall", r.at.Sub(r.g.mu.last))
		}
		r.offer(5)
	}
	for range gateLeast {
		r.at = r.at.Add(time.Millisecond)
		r.g.leave()
	}
	if in, refused, _ := r.verdicts(); refused > 0 || r.atOnce > 0 || in < gateLeast {
		t.Fatalf("%d of the line got in, %d and %d were refused, want the line and none", in, refused, r.atOnce)
	}
}

func TestGateGrowsWithTheRate(t *testing.T) {
	r := newGateRig()
	r.offer(1)
	for range 2000 { // 40 a millisecond
		r.at = r.at.Add(time.Millisecond)
		for range 40 {
			r.offer(1)
			r.g.leave()
		}
	}
	if in := r.offer(3000); in < 1500 || in > 1700 {
		t.Fatalf("%d got in, want 40 ms of 40,000 a second", in)
	}
}

// A client that leaves leaves the line, and the place that comes at the last
// moment is not lost.
func TestGateGivesUp(t *testing.T) {
	r := newGateRig()
	r.offer(gateLeast + 2)
	gone := make(chan struct{})
	close(gone)
	if r.g.await(r.line[0], gone) {
		t.Fatal("a client that left is in")
	}
	r.g.leave()
	if !r.g.giveUp(r.line[1]) {
		t.Fatal("the place of a client that gives up too late is lost")
	}
	if used, waiting := r.g.state(); used != gateLeast || waiting != 0 || r.refused.Load() != 1 {
		t.Fatalf("%d in, %d in line, %d refused", used, waiting, r.refused.Load())
	}
}

// What the gate refuses never reaches the engine, whichever route it came by;
// acks and pops pass it.
func TestGateRefusesGrowingWritesOnly(t *testing.T) {
	e := &fakeEngine{}
	s := newTestServer(t, e, func(c *Config) { c.Limits.AdmitBytes, c.Limits.AdmitHold = 1<<20, time.Minute })
	g := s.gate
	g.mu.used, g.mu.empty, g.mu.last = gateLeast, g.now().Add(-2*gateStands), g.now().Add(time.Hour)
	for range gateLine {
		g.mu.waiting = append(g.mu.waiting, &gateWaiter{since: g.now().Add(time.Hour), verdict: make(chan bool, 1)})
	}
	for _, c := range []struct{ method, path, body string }{
		{"POST", "/api/v1/push", `{"items":[{"queue":"q","payload":1}]}`},
		{"POST", "/api/v1/transaction", `{"operations":[{"type":"push","queue":"q","payload":1}]}`},
		{"POST", "/api/v1/kv", `{"operations":[{"op":"put","ns":"n","key":"k","value":1,"forever":true}]}`},
		{"PUT", "/api/v1/kv/n/k", `{"value":1,"forever":true}`},
		{"POST", "/api/v1/timers", `[{"op":"schedule","queue":"q","timerKey":"k","delayMs":1,"payload":"MQ=="}]`},
		{"POST", "/api/v1/configure", `{"queue":"q"}`},
	} {
		rec := ask(s, c.method, c.path, c.body)
		expect(t, rec, http.StatusTooManyRequests, `"code":"overloaded"`)
		if after := rec.Header().Get("Retry-After"); len(after) != 1 || after < "1" || after > "5" {
			t.Errorf("%s %s: Retry-After %q", c.method, c.path, after)
		}
	}
	if n := len(e.submitted()); n != 0 || g.refused.Load() != 6 {
		t.Errorf("%d refused calls reached the engine, %d were counted", n, g.refused.Load())
	}
	expect(t, ask(s, "POST", "/api/v1/ack", `{"transactionId":"t","partitionId":"1"}`), http.StatusOK)
	expect(t, ask(s, "GET", "/api/v1/pop/queue/q", ""), http.StatusNoContent)
}
