package spans

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	proto "go.opentelemetry.io/proto/otlp/trace/v1"
	pb "google.golang.org/protobuf/proto"
)

// receiver is a collector in this process.
type receiver struct {
	*httptest.Server
	mu    sync.Mutex
	spans []*proto.Span
}

func receive(t *testing.T) *receiver {
	t.Helper()
	r := &receiver{}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, err := io.ReadAll(req.Body)
		var got collector.ExportTraceServiceRequest
		if err != nil || req.URL.Path != "/v1/traces" || pb.Unmarshal(body, &got) != nil {
			t.Errorf("%s: %v, no export", req.URL, err)
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		for _, rs := range got.ResourceSpans {
			for _, ss := range rs.ScopeSpans {
				r.spans = append(r.spans, ss.Spans...)
			}
		}
	}))
	t.Cleanup(r.Close)
	return r
}

func TestRecord(t *testing.T) {
	r := receive(t)
	rec, err := New(r.URL+"/", "test")
	if err != nil {
		t.Fatal(err)
	}
	start := time.Unix(1_800_000_000, 0)
	at := func(ms int) time.Time { return start.Add(time.Duration(ms) * time.Millisecond) }
	call := &Call{Header: http.Header{"Traceparent": {"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}}, Method: "POST", Route: "/api/v1/push",
		RequestID: "id-1", Status: 503, Start: start, End: at(9), Phases: []Phase{{"edge", at(0), at(1)}, {"commit", at(1), at(9)}}}
	rec.Record(call)
	unsampled := *call
	unsampled.Header = http.Header{"Traceparent": {"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"}}
	rec.Record(&unsampled)
	alone := *call
	alone.Header, alone.Phases = http.Header{"Traceparent": {"junk"}}, nil
	rec.Record(&alone)
	if err := rec.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	if len(r.spans) != 4 {
		t.Fatalf("%d spans, want 4: %v", len(r.spans), r.spans)
	}
	byName := map[string]*proto.Span{}
	for _, s := range r.spans[:3] {
		byName[s.Name] = s
	}
	root, commit := byName["POST /api/v1/push"], byName["commit"]
	if root == nil || commit == nil || byName["edge"] == nil {
		t.Fatalf("spans %v", r.spans)
	}
	if got := root.TraceId; string(got) != "\x0a\xf7\x65\x19\x16\xcd\x43\xdd\x84\x48\xeb\x21\x1c\x80\x31\x9c" || string(root.ParentSpanId) != "\xb7\xad\x6b\x71\x69\x20\x33\x31" {
		t.Errorf("trace %x, parent %x", got, root.ParentSpanId)
	}
	if string(commit.ParentSpanId) != string(root.SpanId) || commit.StartTimeUnixNano != uint64(at(1).UnixNano()) || commit.EndTimeUnixNano != uint64(at(9).UnixNano()) {
		t.Errorf("commit: %v", commit)
	}
	if root.Kind != proto.Span_SPAN_KIND_SERVER || root.Status.GetCode() != proto.Status_STATUS_CODE_ERROR {
		t.Errorf("root: %v", root)
	}
	if len(r.spans[3].ParentSpanId) != 0 {
		t.Errorf("a bad traceparent has a parent: %v", r.spans[3])
	}
}
