package server

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"queen/fsm"
	"queen/index"
	"queen/internal/entry"
	"queen/raftlog"
)

// fakeEngine decides calls as a test says, on a goroutine of its own.
type fakeEngine struct {
	t      testing.TB
	decide func(*fsm.Call) error // nil: every call succeeds as it is
	mu     struct {
		sync.Mutex
		calls   []*fsm.Call
		held    []*fsm.Call
		holding bool
		refuse  error
	}
	messages []entry.Message // of any partition, by offset
	readErr  error
	status   Status
}

func (e *fakeEngine) Submit(c *fsm.Call) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.mu.refuse != nil {
		return e.mu.refuse
	}
	e.mu.calls = append(e.mu.calls, c)
	if e.mu.holding {
		e.mu.held = append(e.mu.held, c)
		return nil
	}
	go e.answer(c)
	return nil
}

func (e *fakeEngine) answer(c *fsm.Call) {
	var err error
	if e.decide != nil {
		err = e.decide(c)
	}
	c.Done(err)
}

func (e *fakeEngine) hold(on bool) {
	e.mu.Lock()
	e.mu.holding = on
	e.mu.Unlock()
}

// release answers what was held.
func (e *fakeEngine) release() {
	e.mu.Lock()
	held := e.mu.held
	e.mu.held = nil
	e.mu.Unlock()
	for _, c := range held {
		e.answer(c)
	}
}

func (e *fakeEngine) submitted() []*fsm.Call {
	e.mu.Lock()
	defer e.mu.Unlock()
	return append([]*fsm.Call(nil), e.mu.calls...)
}

func (e *fakeEngine) awaitCalls(n int) {
	e.t.Helper()
	await(e.t, func() bool { return len(e.submitted()) >= n })
}

func (e *fakeEngine) Reader() raftlog.Reader      { return fakeReader{e} }
func (e *fakeEngine) LogSize(uint64) (int, int64) { return 0, 0 }
func (e *fakeEngine) PartitionBytes(uint64, uint64, uint64, int) (int64, uint64, error) {
	return 0, 0, nil
}
func (e *fakeEngine) Status() Status                 { return e.status }
func (e *fakeEngine) Stop(ctx context.Context) error { return nil }

type fakeReader struct{ e *fakeEngine }

func (r fakeReader) ReadMessages(_, _, from, to uint64, fn func(uint64, int64, *entry.Message) error) error {
	if r.e.readErr != nil {
		return r.e.readErr
	}
	for o := from; o <= to && o < uint64(len(r.e.messages)); o++ {
		m := r.e.messages[o]
		if err := fn(o, 1_700_000_000_000_000, &m); err != nil {
			return err
		}
	}
	return nil
}

func (fakeReader) AppendTimes(uint64, uint64, uint64, int) ([]raftlog.AppendTime, error) {
	return nil, nil
}
func (fakeReader) FindTime(uint64, uint64, int64) (uint64, bool, error) { return 0, false, nil }
func (fakeReader) FindTxn(uint64, uint64, []byte, func(uint64, int64, [16]byte) bool) error {
	return nil
}
func (fakeReader) Value(uint64, uint64) ([]byte, error) { return nil, errors.New("no such value") }

// await polls without a fixed sleep; it is for what another goroutine does.
func await(t testing.TB, done func() bool) {
	t.Helper()
	for limit := time.Now().Add(10 * time.Second); !done(); time.Sleep(200 * time.Microsecond) {
		if time.Now().After(limit) {
			t.Fatal("waited for 10 s in vain")
		}
	}
}

func newTestServer(t testing.TB, e *fakeEngine, change func(*Config)) *Server {
	t.Helper()
	e.t = t
	cfg := Config{Engine: e, Metrics: true, ZstdLevel: 1}
	if change != nil {
		change(&cfg)
	}
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		e.hold(false)
		e.release()
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := s.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	return s
}

// ask sends one request straight to the handler.
func ask(s *Server, method, target, body string, header ...string) *httptest.ResponseRecorder {
	req := httptest.NewRequest(method, target, strings.NewReader(body))
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	rec := httptest.NewRecorder()
	s.Handler().ServeHTTP(rec, req)
	return rec
}

func expect(t *testing.T, rec *httptest.ResponseRecorder, status int, parts ...string) {
	t.Helper()
	if rec.Code != status {
		t.Errorf("status %d, want %d; body %s", rec.Code, status, rec.Body)
	}
	for _, p := range parts {
		if !strings.Contains(rec.Body.String(), p) {
			t.Errorf("body %s lacks %s", rec.Body, p)
		}
	}
}

func claimOf(from, to uint64) *fsm.Claim {
	return &fsm.Claim{Queue: "q", Partition: "p", QueueID: 1, PartitionID: 31, From: from, To: to, Count: int(to - from + 1), Attempt: 1,
		Expires: 1_700_000_100_000_000, Batch: &fsm.Batch{}}
}

func messagesOf(n int, payload string) (list []entry.Message) {
	for i := range n {
		m := entry.Message{Payload: []byte(payload), Txn: []byte{'t', byte('0' + i)}}
		m.ID[15] = byte(i)
		list = append(list, m)
	}
	return list
}

// TestLateOutcomesOwnTheirBuffers holds calls past their deadline while other
// requests reuse the pools: the held calls have to find their bytes as they
// were submitted. It is worth most under -race.
func TestLateOutcomesOwnTheirBuffers(t *testing.T) {
	e := &fakeEngine{}
	s := newTestServer(t, e, func(c *Config) { c.Limits.PushTimeout = 20 * time.Millisecond })
	e.hold(true)
	const n = 8
	var wg sync.WaitGroup
	for range n {
		wg.Go(func() {
			rec := ask(s, "POST", "/api/v1/push", `{"items":[{"queue":"late","transactionId":"first","payload":"`+strings.Repeat("a", 500)+`"}]}`)
			expect(t, rec, http.StatusServiceUnavailable, `"code":"timeout"`)
			if rec.Header().Get("Retry-After") != "1" {
				t.Errorf("Retry-After %q", rec.Header().Get("Retry-After"))
			}
		})
	}
	e.awaitCalls(n)
	wg.Wait()
	e.hold(false)
	e.decide = func(c *fsm.Call) error {
		if p, ok := c.Body.(*fsm.Push); ok {
			for i := range p.Items {
				p.Items[i].Status = fsm.Queued
			}
		}
		return nil
	}
	held := e.submitted()[:n]
	for range 50 {
		expect(t, ask(s, "POST", "/api/v1/push", `{"items":[{"queue":"other","transactionId":"second","payload":"`+strings.Repeat("b", 500)+`"}]}`),
			http.StatusCreated)
	}
	for _, c := range held {
		it := c.Body.(*fsm.Push).Items[0]
		m, _, err := entry.NextMessage(it.Packed)
		if err != nil || it.Queue != "late" || string(it.Txn) != "first" || string(m.Txn) != "first" || bytes.Contains(m.Payload, []byte("b")) {
			t.Fatalf("a held call was overwritten: %+v %v", it, err)
		}
		if !c.Gone.Load() {
			t.Error("a call that nobody waits for is not marked")
		}
	}
	e.release()
}

func TestClaimsThatNobodyReceivesGoBack(t *testing.T) {
	newPop := func() (*fakeEngine, *Server) {
		e := &fakeEngine{messages: messagesOf(3, `{"n":1}`)}
		s := newTestServer(t, e, nil)
		e.decide = func(c *fsm.Call) error {
			if p, ok := c.Body.(*fsm.Pop); ok {
				p.Claims = []*fsm.Claim{claimOf(0, 2)}
			}
			return nil
		}
		return e, s
	}
	backs := func(e *fakeEngine) (n int) {
		for _, c := range e.submitted() {
			if _, ok := c.Body.(*fsm.HandBack); ok {
				n++
			}
		}
		return n
	}

	t.Run("client left while it waited", func(t *testing.T) {
		e, s := newPop()
		e.hold(true)
		ctx, cancel := context.WithCancel(context.Background())
		req := httptest.NewRequest("GET", "/api/v1/pop/queue/q?wait=true", nil).WithContext(ctx)
		done := make(chan struct{})
		go func() { defer close(done); s.Handler().ServeHTTP(httptest.NewRecorder(), req) }()
		e.awaitCalls(1)
		cancel()
		<-done
		if !e.submitted()[0].Gone.Load() {
			t.Error("the pop is not marked as left")
		}
		e.hold(false)
		e.release()
		await(t, func() bool { return backs(e) == 1 })
	})
	t.Run("client left before the answer", func(t *testing.T) {
		e, s := newPop()
		ctx, cancel := context.WithCancel(context.Background())
		inner := e.decide
		e.decide = func(c *fsm.Call) error {
			if _, ok := c.Body.(*fsm.Pop); ok {
				defer cancel()
			}
			return inner(c)
		}
		req := httptest.NewRequest("GET", "/api/v1/pop/queue/q", nil).WithContext(ctx)
		s.Handler().ServeHTTP(httptest.NewRecorder(), req)
		await(t, func() bool { return backs(e) == 1 })
	})
	t.Run("the answer cannot be written", func(t *testing.T) {
		e, s := newPop()
		s.Handler().ServeHTTP(&brokenWriter{header: http.Header{}}, httptest.NewRequest("GET", "/api/v1/pop/queue/q", nil))
		await(t, func() bool { return backs(e) == 1 })
	})
	t.Run("a payload cannot be read", func(t *testing.T) {
		e, s := newPop()
		e.readErr = errors.New("segment 7 pos 4096: corrupt")
		expect(t, ask(s, "GET", "/api/v1/pop/queue/q", ""), http.StatusInternalServerError, `"code":"internal"`)
		await(t, func() bool { return backs(e) == 1 })
		expect(t, ask(s, "GET", "/health", ""), http.StatusServiceUnavailable, `"settling"`, `"reason"`)
	})
	t.Run("but not what is committed on delivery", func(t *testing.T) {
		e, s := newPop()
		s.Handler().ServeHTTP(&brokenWriter{header: http.Header{}}, httptest.NewRequest("GET", "/api/v1/pop/queue/q?commitOnDelivery=true", nil))
		await(t, func() bool { return len(e.submitted()) == 2 })
		if _, ok := e.submitted()[1].Body.(*fsm.Delivered); !ok || backs(e) != 0 {
			t.Errorf("after an answer that broke off came %T, want that it was delivered: at most once", e.submitted()[1].Body)
		}
	})
}

type brokenWriter struct{ header http.Header }

func (w *brokenWriter) Header() http.Header         { return w.header }
func (w *brokenWriter) Write(b []byte) (int, error) { return 0, io.ErrClosedPipe }
func (w *brokenWriter) WriteHeader(int)             {}
func (w *brokenWriter) FlushError() error           { return io.ErrClosedPipe }

func TestPopAnswer(t *testing.T) {
	e := &fakeEngine{messages: messagesOf(5, `{"n" : 12345678901234567890}`)}
	s := newTestServer(t, e, nil)
	claim := claimOf(0, 4)
	claim.Settled = append(claim.Settled, rangeOf(1, 1), rangeOf(3, 3))
	claim.Count = 3
	e.decide = func(c *fsm.Call) error {
		if p, ok := c.Body.(*fsm.Pop); ok {
			p.Claims = []*fsm.Claim{claim}
		}
		return nil
	}
	rec := ask(s, "GET", "/api/v1/pop/queue/q?autopilot=true&consumerGroup=g", "")
	expect(t, rec, http.StatusOK, `"data":{"n" : 12345678901234567890}`, `"offset":0`, `"offset":2`, `"offset":4`,
		`"partitionsClaimed":1,"autopilot":{"partitions":1,"batch":200,"waitMs":0}`, `"partitionId":"31"`)
	if n := strings.Count(rec.Body.String(), `"offset":`); n != 3 {
		t.Errorf("%d messages, want 3: a settled one was delivered", n)
	}
}

func TestEmptyPopHasNoBody(t *testing.T) {
	s := newTestServer(t, &fakeEngine{}, nil)
	rec := ask(s, "GET", "/api/v1/pop/queue/q", "")
	if rec.Code != http.StatusNoContent || rec.Body.Len() != 0 || rec.Header().Get("Content-Type") != "" {
		t.Errorf("%d %q %v", rec.Code, rec.Body, rec.Header())
	}
}

func TestErrorsByFamily(t *testing.T) {
	for _, c := range []struct {
		err                  error
		method, target, body string
		status               int
		parts                []string
	}{
		{fsm.ErrNotLeader, "POST", "/api/v1/push", `{"items":[{"queue":"q","payload":1}]}`, 503, []string{`"code":"retry"`}},
		{raftlog.ErrAbandoned, "POST", "/api/v1/transaction", `{"operations":[{"type":"push","queue":"q","payload":1}]}`, 503, []string{`"code":"retry"`}},
		{fsm.ErrStopped, "POST", "/api/v1/kv", `[{"op":"get","ns":"a","key":"b"}]`, 503, []string{`"error":"kv_unavailable"`, `"reason":"kv_retry"`}},
		{raftlog.ErrStopped, "DELETE", "/api/v1/timers/q/k", ``, 503, []string{`"error":"timers_unavailable"`, `"reason":"timers_retry"`}},
		{errors.New("x"), "POST", "/api/v1/ack", `{"transactionId":"t","partitionId":"1"}`, 500, []string{`"code":"internal"`}},
		{errors.New("x"), "GET", "/api/v1/kv/a/b", ``, 500, []string{`"error":"kv_error"`}},
		{errors.New("x"), "GET", "/api/v1/timers/q", ``, 500, []string{`"error":"timers_error"`}},
	} {
		for _, atSubmit := range []bool{true, false} {
			e := &fakeEngine{decide: func(*fsm.Call) error { return c.err }}
			if atSubmit {
				e.mu.refuse = c.err
			}
			s := newTestServer(t, e, nil)
			rec := ask(s, c.method, c.target, c.body)
			expect(t, rec, c.status, c.parts...)
			if got := rec.Header().Get("Retry-After"); c.status == 503 && got != "1" {
				t.Errorf("%s: Retry-After %q", c.target, got)
			}
		}
	}
}

func TestPanicIs500(t *testing.T) {
	e := &fakeEngine{messages: messagesOf(1, "1")}
	s := newTestServer(t, e, nil)
	e.decide = func(c *fsm.Call) error {
		if p, ok := c.Body.(*fsm.Pop); ok {
			p.Claims = []*fsm.Claim{nil} // no planner does this
		}
		return nil
	}
	expect(t, ask(s, "GET", "/api/v1/pop/queue/q", ""), http.StatusInternalServerError, `"code":"internal"`)
	expect(t, ask(s, "GET", "/health", ""), http.StatusOK)
}

func rangeOf(lo, hi uint64) index.Range { return index.Range{Lo: lo, Hi: hi} }
