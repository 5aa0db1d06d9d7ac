package server

import (
	"encoding/json"
	"fmt"
	"testing"

	"queen/fsm"
	"queen/internal/vfs"
	"queen/raftlog"
)

type traceList struct {
	Traces []struct {
		ID   string `json:"id"`
		Data int    `json:"data"`
	} `json:"traces"`
	Total int `json:"total"`
}

func (b *broker) traces(path string) (l traceList) {
	b.t.Helper()
	status, body := b.do("GET", "/api/v1/traces/"+path, "")
	if err := json.Unmarshal(body, &l); status != 200 || err != nil {
		b.t.Fatalf("%s: %d %s (%v)", path, status, body, err)
	}
	return l
}

// Traces that memory has forgotten are found in sealed files, and both together
// in order.
func TestTracesInSealedFiles(t *testing.T) {
	eng, err := Open(StorageConfig{
		FS: vfs.NewMem(1), Dir: "data", NodeID: 1, Fatal: func(err error) { t.Error(err) },
		Planner: fsm.Config{DedupBytes: 1}, Group: raftlog.Config{Clock: raftlog.SystemClock(), SegmentBytes: 16 << 10},
	})
	if err != nil {
		t.Fatal(err)
	}
	b := serveBroker(t, eng)
	const n = 400
	for i := range n {
		body := fmt.Sprintf(`{"partitionId":"7","transactionId":"t%d","data":%d,"traceNames":["all","n%d"]}`, i%4, i, i%2)
		if status, answer := b.do("POST", "/api/v1/traces", body); status != 201 {
			t.Fatalf("trace %d: %d %s", i, status, answer)
		}
	}
	await(t, func() bool { segments, _ := eng.LogSize(1); return segments > 4 })
	l := b.traces("7/t1")
	if len(l.Traces) != n/4 {
		t.Fatalf("%d traces of a message, want %d", len(l.Traces), n/4)
	}
	for i, tr := range l.Traces {
		if tr.Data != 4*i+1 {
			t.Fatalf("trace %d of the message has data %d, want %d", i, tr.Data, 4*i+1)
		}
	}
	if l = b.traces("by-name/n0?limit=1000"); len(l.Traces) != n/2 || l.Total != n/2 {
		t.Fatalf("%d traces of a name, total %d, want %d", len(l.Traces), l.Total, n/2)
	}
	for i, tr := range l.Traces {
		if want := n - 2 - 2*i; tr.Data != want {
			t.Fatalf("trace %d of the name has data %d, want %d", i, tr.Data, want)
		}
	}
	if l = b.traces("by-name/all?limit=5&offset=390"); len(l.Traces) != 5 || l.Traces[4].Data != 5 {
		t.Fatalf("the page from 390 on is %+v", l.Traces)
	}
}
