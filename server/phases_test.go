package server

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/protobuf/proto"

	"queen/fsm"
	"queen/internal/vfs"
	"queen/server/spans"
)

// TestSpansOfACall: a real broker, a collector in this process: every call has
// its span with its phases in their order, in the caller's trace.
func TestSpansOfACall(t *testing.T) {
	var mu sync.Mutex
	parts := map[string][]string{} // names of a trace's spans
	times := map[string][2]uint64{}
	ts := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		var got collector.ExportTraceServiceRequest
		if err := proto.Unmarshal(body, &got); err != nil {
			t.Error(err)
		}
		mu.Lock()
		defer mu.Unlock()
		for _, rs := range got.ResourceSpans {
			for _, ss := range rs.ScopeSpans {
				for _, sp := range ss.Spans {
					parts[string(sp.TraceId)] = append(parts[string(sp.TraceId)], sp.Name)
					times[string(sp.TraceId)+sp.Name] = [2]uint64{sp.StartTimeUnixNano, sp.EndTimeUnixNano}
				}
			}
		}
	}))
	defer ts.Close()
	rec, err := spans.New(ts.URL, "test")
	if err != nil {
		t.Fatal(err)
	}
	eng, err := Open(StorageConfig{FS: vfs.NewMem(1), Dir: "data", NodeID: 1, Planner: fsm.Config{}, Fatal: func(err error) { t.Error(err) }})
	if err != nil {
		t.Fatal(err)
	}
	var out lockedBuffer
	s, err := New(Config{Engine: eng, Spans: rec, Logger: slog.New(slog.NewTextHandler(&out, nil)), Limits: Limits{SlowCall: time.Nanosecond}})
	if err != nil {
		t.Fatal(err)
	}
	await(t, func() bool { return eng.Status().Reason == "" })
	trace := strings.Repeat("\xab", 16)
	got := ask(s, "POST", "/api/v1/push", `{"items":[{"queue":"q","payload":1}]}`, "Traceparent", "00-"+strings.Repeat("ab", 16)+"-b7ad6b7169203331-01", "X-Request-Id", "call-7")
	expect(t, got, http.StatusCreated)
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	for _, err := range []error{eng.Stop(ctx), s.Close(ctx), rec.Close(ctx)} {
		if err != nil {
			t.Error(err)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	names := strings.Join(parts[trace], " ")
	if names != "edge plan commit render POST /api/v1/push" {
		t.Errorf("spans %q", names)
	}
	last := times[trace+"POST /api/v1/push"][0]
	for _, name := range []string{"edge", "plan", "commit", "render"} {
		at := times[trace+name]
		if at[0] != last || at[1] < at[0] {
			t.Errorf("%s runs from %d to %d, the one before ended at %d", name, at[0], at[1], last)
		}
		last = at[1]
	}
	if last != times[trace+"POST /api/v1/push"][1] {
		t.Error("the phases do not end with the call")
	}
	line := out.String()
	for _, part := range []string{"slow call", "request=call-7", "route=/api/v1/push", "edge_us=", "plan_us=", "commit_us=", "render_us="} {
		if !strings.Contains(line, part) {
			t.Errorf("the log lacks %s: %s", part, line)
		}
	}
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// TestPhasesCostNothingWhenOff: without a recorder, ending a call allocates
// nothing for its phases.
func TestPhasesCostNothingWhenOff(t *testing.T) {
	s := newTestServer(t, &fakeEngine{}, nil)
	c, _ := gin.CreateTestContext(httptest.NewRecorder())
	x := &exchange{s: s, c: c, rt: &route{method: "GET", path: "/x", stats: s.metrics.route("x")}}
	x.start = time.Now()
	x.finishMeasured() // the observer of a status is made once
	allocs := testing.AllocsPerRun(1000, func() {
		x.start = time.Now()
		x.phases = phases{marks: fsm.Marks{Plan: mark(), Planned: mark()}, done: mark()}
		x.finishMeasured()
	})
	if allocs != 0 {
		t.Errorf("%v allocations", allocs)
	}
}
