package server

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"syscall"
	"testing"
	"time"

	"queen/fsm"
	"queen/internal/entry"
)

// instantEngine answers before Submit returns, so that a benchmark sees the
// edge alone.
type instantEngine struct {
	fakeEngine
	claim *fsm.Claim
}

func (e *instantEngine) Submit(c *fsm.Call) error {
	switch b := c.Body.(type) {
	case *fsm.Pop:
		b.Claims = append(b.Claims, e.claim)
	case *fsm.Push:
		for i := range b.Items {
			b.Items[i].Status = fsm.Queued
		}
	}
	c.Done(nil)
	return nil
}

// nullWriter takes an answer and forgets it.
type nullWriter struct{ h http.Header }

func (w *nullWriter) Header() http.Header         { return w.h }
func (w *nullWriter) Write(b []byte) (int, error) { return len(b), nil }
func (w *nullWriter) WriteHeader(int)             {}
func (w *nullWriter) FlushError() error           { return nil }

type rewinding struct {
	*strings.Reader
}

func (rewinding) Close() error { return nil }

func benchPayload() string {
	b := make([]byte, 256)
	for i := range b {
		b[i] = byte(i * 37)
	}
	return base64.StdEncoding.EncodeToString(b)
}

func stepBody(batch int) string {
	var b strings.Builder
	const lease = "019a2f40-6c11-7aa0-9d52-3b7e90c1f204"
	b.WriteString(`{"operations":[`)
	for i := range batch {
		fmt.Fprintf(&b, `{"type":"ack","transactionId":"in-%012d","partitionId":"31","consumerGroup":"bench","leaseId":"%s","status":"completed"},`, i, lease)
	}
	b.WriteString(`{"type":"push","items":[`)
	for i := range batch {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `{"queue":"bench-out","partition":"p-017","transactionId":"out-%012d","payload":"%s"}`, i, benchPayload())
	}
	b.WriteString(`]}],"requiredLeases":["` + lease + `"],"kv":[{"op":"put","ns":"bench","key":"state-017","value":{"n":17},"ttlSeconds":3600},` +
		`{"op":"putIfAbsent","ns":"bench","key":"once-000000000017","value":1,"ttlSeconds":3600,"required":true}]}`)
	return b.String()
}

func benchHandler(b *testing.B, method, target, body string, claim *fsm.Claim, messages []entry.Message) {
	e := &instantEngine{claim: claim}
	e.t, e.messages = b, messages
	s, err := New(Config{Engine: e, Metrics: true, ZstdLevel: 1})
	if err != nil {
		b.Fatal(err)
	}
	u, err := url.Parse(target)
	if err != nil {
		b.Fatal(err)
	}
	req := httptest.NewRequest(method, target, nil)
	req.URL = u
	reader := rewinding{strings.NewReader(body)}
	req.Body, req.ContentLength = reader, int64(len(body))
	w := &nullWriter{h: http.Header{}}
	b.ReportAllocs()
	report := cpuTime(b)
	for b.Loop() {
		reader.Reset(body)
		clear(w.h)
		s.router.ServeHTTP(w, req)
	}
	report()
	b.SetBytes(int64(len(body)))
}

func BenchmarkEdgePush1(b *testing.B) {
	benchHandler(b, "POST", "/api/v1/push", `{"items":[{"queue":"bench","partition":"p-017","transactionId":"out-000000000001","payload":"`+benchPayload()+`"}]}`, nil, nil)
}

func BenchmarkEdgeStep1(b *testing.B) {
	benchHandler(b, "POST", "/api/v1/transaction", stepBody(1), nil, nil)
}
func BenchmarkEdgeStep10(b *testing.B) {
	benchHandler(b, "POST", "/api/v1/transaction", stepBody(10), nil, nil)
}

func BenchmarkEdgePop1(b *testing.B)  { benchPop(b, 1) }
func BenchmarkEdgePop10(b *testing.B) { benchPop(b, 10) }

func benchPop(b *testing.B, n int) {
	messages := messagesOf(n, `"`+benchPayload()+`"`)
	benchHandler(b, "GET", "/api/v1/pop/queue/bench?batch=10&wait=true&timeout=30000&consumerGroup=bench&subscriptionMode=all", "", claimOf(0, uint64(n-1)), messages)
}

func BenchmarkParseStep10(b *testing.B) {
	e := &fakeEngine{}
	s, err := New(Config{Engine: e})
	if err != nil {
		b.Fatal(err)
	}
	body := stepBody(10)
	w := s.getWork(&exchange{tenant: defaultTenant, start: time.Now()})
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	report := cpuTime(b)
	for b.Loop() {
		w.body = append(w.body[:0], body...)
		if p := s.parseTransaction(w); p != nil {
			b.Fatal(p)
		}
		w.reset()
	}
	report()
}

func BenchmarkRenderStep10(b *testing.B) {
	e := &fakeEngine{}
	s, err := New(Config{Engine: e})
	if err != nil {
		b.Fatal(err)
	}
	w := s.getWork(&exchange{tenant: defaultTenant, start: time.Now()})
	w.body = append(w.body[:0], stepBody(10)...)
	if p := s.parseTransaction(w); p != nil {
		b.Fatal(p)
	}
	for i := range w.txn.Push.Items {
		w.txn.Push.Items[i].DupOf = -1
	}
	var dst []byte
	b.ReportAllocs()
	report := cpuTime(b)
	for b.Loop() {
		dst = s.appendCommit(dst[:0], w)
	}
	report()
	b.SetBytes(int64(len(dst)))
}

// cpuTime reports the processor time of what follows, which says more than the
// wall clock on a machine that does other things too.
func cpuTime(b *testing.B) func() {
	read := func() int64 {
		var u syscall.Rusage
		if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
			return 0
		}
		return u.Utime.Nano() + u.Stime.Nano()
	}
	begun := read()
	return func() { b.ReportMetric(float64(read()-begun)/float64(max(b.N, 1)), "cpu-ns/op") }
}
