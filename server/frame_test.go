package server

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"queen/fsm"
	"queen/internal/vfs"
)

func TestUnknownRoutes(t *testing.T) {
	s := newTestServer(t, &fakeEngine{}, nil)
	for _, c := range []struct{ method, path string }{
		{"GET", "/api/v1/nothing"}, {"GET", "/api/v1/push"}, {"POST", "/api/v1/push/"}, {"PUT", "/api/v1/transaction"},
		{"GET", "/streams/v1/x"}, {"GET", "/"}, {"GET", "/health/"}, {"DELETE", "/api/v1/ack"}, {"GET", "/api/v1/system/maintenance"},
		{"PATCH", "/api/v1/kv/a/b"}, {"POST", "/api/v1/semaphores"}, {"GET", "/debug/pprof/"}, {"GET", "/API/V1/pop"},
	} {
		rec := ask(s, c.method, c.path, "")
		expect(t, rec, http.StatusNotFound, `"code":"no_such_route"`)
		if rec.Header().Get("Content-Type") != "application/json" {
			t.Errorf("%s %s: %v", c.method, c.path, rec.Header())
		}
	}
}

func TestBodyLimit(t *testing.T) {
	e := &fakeEngine{}
	s := newTestServer(t, e, func(c *Config) { c.Limits.BodyBytes = 100 })
	over := strings.Repeat(" ", 101)
	for _, target := range []string{"POST /api/v1/push", "POST /api/v1/ack", "POST /api/v1/ack/batch", "POST /api/v1/transaction", "POST /api/v1/kv",
		"PUT /api/v1/kv/a/b", "POST /api/v1/timers", "POST /api/v1/configure", "POST /api/v1/lease/x/extend", "POST /api/v1/dlq/x/replay"} {
		method, path, _ := strings.Cut(target, " ")
		for _, chunked := range []bool{false, true} {
			req := httptest.NewRequest(method, path, strings.NewReader(over))
			if chunked {
				req.ContentLength = -1
			}
			rec := httptest.NewRecorder()
			s.Handler().ServeHTTP(rec, req)
			if rec.Code != http.StatusRequestEntityTooLarge || !strings.HasPrefix(rec.Header().Get("Content-Type"), "text/plain") {
				t.Errorf("%s chunked %v: %d %v", target, chunked, rec.Code, rec.Header())
			}
		}
	}
	if n := len(e.submitted()); n != 0 {
		t.Errorf("%d calls were submitted", n)
	}
	fits := `{"items":[]}` + strings.Repeat(" ", 100-len(`{"items":[]}`))
	for _, length := range []int64{100, -1} {
		req := httptest.NewRequest("POST", "/api/v1/push", strings.NewReader(fits))
		req.ContentLength = length
		rec := httptest.NewRecorder()
		s.Handler().ServeHTTP(rec, req)
		expect(t, rec, http.StatusCreated, "[]")
	}
}

func TestBodyThatBreaksOff(t *testing.T) {
	e := &fakeEngine{}
	s := newTestServer(t, e, nil)
	req := httptest.NewRequest("POST", "/api/v1/push", io.MultiReader(strings.NewReader(`{"items":[`), errReader{}))
	req.ContentLength = 100
	rec := httptest.NewRecorder()
	s.Handler().ServeHTTP(rec, req)
	expect(t, rec, http.StatusBadRequest, `"code":"bad_body"`)
	if len(e.submitted()) != 0 {
		t.Error("a call was submitted")
	}
}

type errReader struct{}

func (errReader) Read([]byte) (int, error) { return 0, errors.New("connection reset") }

func TestRequestID(t *testing.T) {
	s := newTestServer(t, &fakeEngine{}, nil)
	for sent, kept := range map[string]bool{"abc-123": true, strings.Repeat("x", 128): true, strings.Repeat("x", 129): false, "with space": false, "caf\u00e9": false} {
		got := ask(s, "GET", "/health", "", "X-Request-Id", sent).Header().Get("X-Request-Id")
		if (got == sent) != kept || got == "" {
			t.Errorf("sent %q, got %q", sent, got)
		}
	}
	a := ask(s, "GET", "/health", "").Header().Get("X-Request-Id")
	if b := ask(s, "GET", "/health", "").Header().Get("X-Request-Id"); a == b || a == "" {
		t.Errorf("minted %q and %q", a, b)
	}
}

func TestTenancy(t *testing.T) {
	tenantOf := func(on bool, header string) (int, string) {
		e := &fakeEngine{}
		s := newTestServer(t, e, func(c *Config) { c.Tenancy = on })
		rec := ask(s, "GET", "/api/v1/pop/queue/q", "", "X-Queen-Tenant", header)
		if len(e.submitted()) == 0 {
			return rec.Code, rec.Body.String()
		}
		return rec.Code, e.submitted()[0].Tenant
	}
	const id = "0a1b2c3d-0000-7000-8000-00000000abcd"
	for _, c := range []struct {
		on     bool
		header string
		status int
		tenant string
	}{
		{false, "nonsense", 204, defaultTenant}, {true, "", 204, defaultTenant}, {true, "  ", 204, defaultTenant},
		{true, id, 204, id}, {true, strings.ToUpper(id), 204, id},
		{true, "nonsense", 400, `{"error":"invalid x-queen-tenant header (must be a UUID)"}`},
	} {
		if status, tenant := tenantOf(c.on, c.header); status != c.status || tenant != c.tenant {
			t.Errorf("%v %q: %d %s", c.on, c.header, status, tenant)
		}
	}
}

func TestAdmission(t *testing.T) {
	e := &fakeEngine{}
	s := newTestServer(t, e, func(c *Config) {
		c.Limits.AdmitBytes, c.Limits.AdmitHold = 100, 20*time.Millisecond
	})
	body := `{"items":[{"queue":"q","payload":"` + strings.Repeat("x", 60) + `"}]}`
	e.hold(true)
	first := make(chan *httptest.ResponseRecorder, 1)
	go func() { first <- ask(s, "POST", "/api/v1/push", body) }()
	e.awaitCalls(1)
	rec := ask(s, "POST", "/api/v1/push", body)
	expect(t, rec, http.StatusTooManyRequests, `"code":"overloaded"`)
	if after := rec.Header().Get("Retry-After"); len(after) != 1 || after < "1" || after > "5" {
		t.Errorf("Retry-After %q", after)
	}
	expect(t, ask(s, "POST", "/api/v1/transaction", `{"operations":[{"type":"push","queue":"q","payload":"`+strings.Repeat("x", 60)+`"}]}`),
		http.StatusTooManyRequests, `"code":"overloaded"`)
	expect(t, ask(s, "PUT", "/api/v1/kv/a/b", `{"forever":true,"value":"`+strings.Repeat("x", 90)+`"}`), http.StatusTooManyRequests, `"code":"overloaded"`)
	// What does not grow the store goes on.
	e.hold(false)
	expect(t, ask(s, "POST", "/api/v1/ack", `{"transactionId":"`+strings.Repeat("x", 90)+`","partitionId":"1"}`), http.StatusOK)
	e.release()
	expect(t, <-first, http.StatusCreated)
	expect(t, ask(s, "POST", "/api/v1/push", body), http.StatusCreated)
	if used, waiting := s.admission.state(); used != 0 || waiting != 0 {
		t.Errorf("%d bytes and %d waiters are left", used, waiting)
	}
}

func TestAdmissionIsFair(t *testing.T) {
	a := newAdmission(10, time.Minute)
	var whole charge
	if !a.acquire(&whole, 10, nil) {
		t.Fatal("an empty budget refused")
	}
	var order atomic.Int32
	got := make(chan [2]int32, 2)
	var waiters [2]charge
	for i := range int32(2) {
		go func() {
			a.acquire(&waiters[i], 6, nil)
			got <- [2]int32{i, order.Add(1)}
		}()
		await(t, func() bool { _, n := a.state(); return n == int(i)+1 })
	}
	a.release(&whole)
	if first := <-got; first[0] != 0 {
		t.Error("the later waiter went first")
	}
	a.release(&waiters[0])
	<-got
	gone := make(chan struct{})
	close(gone)
	var left, large charge
	if a.acquire(&left, 6, gone) {
		t.Error("a client that left was admitted")
	}
	a.release(&waiters[1])
	if !a.acquire(&large, 1000, nil) {
		t.Error("a call larger than the budget is never admitted")
	}
}

// Bodies are charged in steps. When everybody holds a part and waits for more,
// the first of them goes on over the limit, and nobody else does.
func TestAdmissionOfPartsEnds(t *testing.T) {
	a := newAdmission(10, time.Minute)
	var first, second, third charge
	if !a.acquire(&first, 4, nil) || !a.acquire(&second, 4, nil) {
		t.Fatal("the first steps do not fit")
	}
	got := make(chan *charge, 2)
	for i, c := range []*charge{&second, &third} {
		go func() {
			if a.acquire(c, 4, nil) {
				got <- c
			}
		}()
		await(t, func() bool { _, n := a.state(); return n == i+1 })
	}
	for range 3 {
		if !a.acquire(&first, 4, nil) {
			t.Fatal("all are stuck, and the first does not go on")
		}
		if used, waiting := a.state(); used != 4+first.bytes || waiting != 2 {
			t.Fatalf("%d bytes are used and %d calls wait; the first holds %d", used, waiting, first.bytes)
		}
	}
	a.release(&first)
	if <-got != &second {
		t.Error("a later call went before one that holds a part")
	}
	a.release(&second)
	if <-got != &third {
		t.Error("the last call does not go on")
	}
	a.release(&third)
	if used, waiting := a.state(); used != 0 || waiting != 0 || a.mu.stuck != 0 {
		t.Errorf("%d bytes, %d of them stuck, and %d waiters are left", used, a.mu.stuck, waiting)
	}
}

// A body over the whole budget goes in alone, in steps too.
func TestAdmissionOfOneLargeBody(t *testing.T) {
	s := newTestServer(t, &fakeEngine{}, func(c *Config) {
		c.Limits.AdmitBytes, c.Limits.AdmitHold = admitStep, time.Millisecond
	})
	body := `{"items":[{"queue":"q","payload":"` + strings.Repeat("x", 3*admitStep) + `"}]}`
	expect(t, ask(s, "POST", "/api/v1/push", body), http.StatusCreated)
	if used, waiting := s.admission.state(); used != 0 || waiting != 0 {
		t.Errorf("%d bytes and %d waiters are left", used, waiting)
	}
}

func TestDiskWaterMarks(t *testing.T) {
	used := 50.0
	d := &diskWatch{high: 85, low: 80, usage: func() (vfs.Usage, error) {
		return vfs.Usage{Total: 1000, Free: uint64(1000 - used*10)}, nil
	}}
	for _, step := range []struct {
		used float64
		full bool
	}{{50, false}, {84.9, false}, {85, true}, {82, true}, {80, true}, {79.9, false}, {84, false}, {100, true}} {
		used = step.used
		if err := d.look(); err != nil || d.full.Load() != step.full {
			t.Errorf("at %v%%: full %v, want %v (%v)", step.used, d.full.Load(), step.full, err)
		}
	}
	inUse, gone := false, false
	d.reserve = func(u vfs.Usage, roomy bool) (full, spent bool) {
		if roomy != (used < 80) {
			t.Errorf("at %v%%: roomy is %v", used, roomy)
		}
		return inUse, gone
	}
	for _, step := range []struct {
		used              float64
		inUse, gone, full bool
	}{{50, false, false, false}, {50, true, false, true}, {99, true, true, true}, {50, false, false, false}} {
		used, inUse, gone = step.used, step.inUse, step.gone
		if err := d.look(); err != nil || d.full.Load() != step.full || d.spent.Load() != gone {
			t.Errorf("%+v: full %v, spent %v (%v)", step, d.full.Load(), d.spent.Load(), err)
		}
	}
}

func TestStorageFull(t *testing.T) {
	e := &fakeEngine{}
	s := newTestServer(t, e, nil)
	s.disk.full.Store(true)
	for _, c := range []struct {
		method, target, body string
		status               int
	}{
		{"POST", "/api/v1/push", `{"items":[{"queue":"q","payload":1}]}`, 507},
		{"POST", "/api/v1/transaction", `{"operations":[{"type":"push","queue":"q","payload":1}]}`, 507},
		{"POST", "/api/v1/transaction", `{"kv":[{"op":"put","ns":"a","key":"b","value":1,"forever":true}]}`, 507},
		{"POST", "/api/v1/transaction", `{"timers":[{"op":"schedule","queue":"q","timerKey":"k","delayMs":1,"payload":"MQ=="}]}`, 507},
		{"POST", "/api/v1/transaction", `{"operations":[{"type":"ack","transactionId":"t","partitionId":"1"}],"kv":[{"op":"delete","ns":"a","key":"b"}],"timers":[{"op":"cancel","queue":"q","timerKey":"k"}]}`, 200},
		{"POST", "/api/v1/kv", `[{"op":"put","ns":"a","key":"b","value":1,"forever":true}]`, 507},
		{"POST", "/api/v1/kv", `[{"op":"get","ns":"a","key":"b"},{"op":"delete","ns":"a","key":"c"}]`, 200},
		{"PUT", "/api/v1/kv/a/b", `{"value":1,"forever":true}`, 507},
		{"DELETE", "/api/v1/kv/a/b", ``, 200},
		{"POST", "/api/v1/timers", `[{"op":"schedule","queue":"q","timerKey":"k","delayMs":1,"payload":"MQ=="}]`, 507},
		{"POST", "/api/v1/timers", `[{"op":"cancel","queue":"q","timerKey":"k"}]`, 200},
		{"POST", "/api/v1/ack", `{"transactionId":"t","partitionId":"1"}`, 200},
		{"GET", "/api/v1/pop/queue/q", ``, 204},
	} {
		rec := ask(s, c.method, c.target, c.body)
		expect(t, rec, c.status)
		if c.status == 507 && !strings.Contains(rec.Body.String(), `"code":"storage_full"`) {
			t.Errorf("%s: %s", c.target, rec.Body)
		}
	}
}

// TestNoRoom: with the reserve used up, what has to write is refused too, health
// says why, and reads go on.
func TestNoRoom(t *testing.T) {
	s := newTestServer(t, &fakeEngine{}, nil)
	s.disk.full.Store(true)
	s.disk.spent.Store(true)
	for _, c := range []struct {
		method, target, body string
		status               int
	}{
		{"POST", "/api/v1/push", `{"items":[{"queue":"q","payload":1}]}`, 507},
		{"POST", "/api/v1/ack", `{"transactionId":"t","partitionId":"1"}`, 503},
		{"POST", "/api/v1/ack/batch", `{"acknowledgments":[{"transactionId":"t","partitionId":"1"}]}`, 503},
		{"POST", "/api/v1/transaction", `{"operations":[{"type":"ack","transactionId":"t","partitionId":"1"}]}`, 503},
		{"POST", "/api/v1/lease/019a2f40-6c11-7aa0-9d52-3b7e90c1f204/extend", ``, 503},
		{"GET", "/api/v1/pop/queue/q", ``, 503},
		{"GET", "/api/v1/pop/queue/q/partition/p", ``, 503},
		{"GET", "/health", ``, 503},
		{"POST", "/api/v1/kv", `[{"op":"get","ns":"a","key":"b"}]`, 200},
		{"DELETE", "/api/v1/kv/a/b", ``, 200},
	} {
		rec := ask(s, c.method, c.target, c.body)
		expect(t, rec, c.status)
		if c.status == 503 && !strings.Contains(rec.Body.String(), "reserve") {
			t.Errorf("%s: %s", c.target, rec.Body)
		}
		if c.status == 503 && c.target != "/health" && rec.Header().Get("Retry-After") != "1" {
			t.Errorf("%s: Retry-After %q, want 1", c.target, rec.Header().Get("Retry-After"))
		}
	}
}

func TestRates(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	e := &fakeEngine{}
	s := newTestServer(t, e, func(c *Config) {
		c.Clock = func() time.Time { return now }
		c.Limits.KVReadRate, c.Limits.KVReadBurst = 10, 2
		c.Limits.KVWriteRate, c.Limits.KVWriteBurst = 1, 1
	})
	get := func() int { return ask(s, "GET", "/api/v1/kv/a/b", "").Code }
	if a, b, c := get(), get(), get(); a != 200 || b != 200 || c != 429 {
		t.Error("the read burst is not 2")
	}
	now = now.Add(100 * time.Millisecond)
	if a, b := get(), get(); a != 200 || b != 429 {
		t.Error("a tenth of a second is not one read at 10/s")
	}
	check := `[{"op":"check","ns":"a","key":"b","expect":0}]`
	if code := ask(s, "POST", "/api/v1/kv", check).Code; code != 200 {
		t.Errorf("first check: %d", code)
	}
	rec := ask(s, "POST", "/api/v1/kv", check)
	expect(t, rec, http.StatusTooManyRequests, `"error":"rate_limited"`)
	if rec.Header().Get("Retry-After") == "" {
		t.Error("no Retry-After")
	}
	expect(t, ask(s, "POST", "/api/v1/timers", `[{"op":"cancel","queue":"q","timerKey":"k"}]`), http.StatusTooManyRequests)
	expect(t, ask(s, "DELETE", "/api/v1/timers/q/k", ""), http.StatusOK)
}

func TestShutdownReleasesParkedPops(t *testing.T) {
	e := &fakeEngine{}
	s := newTestServer(t, e, nil)
	e.hold(true)
	hs := httptest.NewServer(s.Handler())
	defer hs.Close()
	answers := make(chan int, 1)
	go func() {
		resp, err := http.Get(hs.URL + "/api/v1/pop/queue/q?wait=true&timeout=60000")
		if err != nil {
			answers <- 0
			return
		}
		resp.Body.Close()
		answers <- resp.StatusCode
	}()
	e.awaitCalls(1)
	go func() {
		await(t, func() bool {
			for _, c := range e.submitted() {
				if _, ok := c.Body.(*fsm.ReleaseParked); ok {
					return true
				}
			}
			return false
		})
		e.hold(false)
		e.release()
	}()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if err := s.Shutdown(ctx); err != nil {
		t.Error(err)
	}
	if got := <-answers; got != http.StatusNoContent {
		t.Errorf("a parked pop got %d", got)
	}
	rec := ask(s, "GET", "/api/v1/pop/queue/q?wait=true", "")
	if rec.Code != 204 || e.submitted()[len(e.submitted())-1].Body.(*fsm.Pop).WaitMicros != 0 {
		t.Errorf("a pop waits on a node that stops: %d", rec.Code)
	}
	expect(t, ask(s, "GET", "/health", ""), http.StatusServiceUnavailable)
}

func TestPrometheus(t *testing.T) {
	s := newTestServer(t, &fakeEngine{status: Status{Role: "leader", HasLeader: true, Commit: 42}}, nil)
	ask(s, "GET", "/api/v1/pop/queue/q", "")
	rec := ask(s, "GET", "/metrics/prometheus", "")
	expect(t, rec, http.StatusOK, `queen_raft_index{kind="committed"} 42`, `queen_http_request_seconds_count{route="GET /api/v1/pop/queue/:queue",status="204"} 1`,
		"queen_raft_log_fsync_seconds_bucket", "process_resident_memory_bytes", "queen_raft_storage_full 0")
	if !strings.HasPrefix(rec.Header().Get("Content-Type"), "text/plain") {
		t.Error(rec.Header())
	}
	expect(t, ask(s, "GET", "/metrics", ""), http.StatusOK, `"raft":{"role":"leader"`, `"uptime"`)
	expect(t, ask(s, "GET", "/status", ""), http.StatusOK, `"status":"ok"`)
}

func TestIDs(t *testing.T) {
	now := time.UnixMilli(1_700_000_000_000)
	src, err := newIDSource(func() time.Time { return now }, bytes.NewReader(make([]byte, 32)))
	if err != nil {
		t.Fatal(err)
	}
	last := src.mint()
	for i := range 20_000 {
		if i == 15_000 {
			now = now.Add(-time.Hour) // a clock that goes back changes nothing
		}
		id := src.mint()
		if bytes.Compare(id[:], last[:]) <= 0 {
			t.Fatalf("%x does not follow %x", id, last)
		}
		if id[6]>>4 != 7 || id[8]>>6 != 2 {
			t.Fatalf("%x is no UUIDv7", id)
		}
		last = id
	}
	text := textOfID(last)
	if back, ok := parseID(strings.ToUpper(text)); !ok || back != last {
		t.Errorf("%s came back as %x", text, back)
	}
	for _, bad := range []string{"", text[1:], text + "0", strings.Replace(text, "-", "0", 1), "g" + text[1:], strings.Repeat("-", 36)} {
		if _, ok := parseID(bad); ok {
			t.Errorf("%q is taken for an id", bad)
		}
	}
}

func BenchmarkMint(b *testing.B) {
	src, _ := newIDSource(time.Now, bytes.NewReader(make([]byte, 32)))
	b.ReportAllocs()
	for b.Loop() {
		src.mint()
	}
}
