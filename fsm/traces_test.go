package fsm

import (
	"fmt"
	"slices"
	"testing"

	"queen/internal/entry"
)

func (r *rig) trace(partition, txn string, names ...string) *Trace {
	t := &Trace{PartitionID: partition, Txn: txn, Names: names, ID: r.id()}
	t.Packed = entry.AppendMessage(nil, &entry.Message{ID: t.ID, Txn: TraceAddress(partition, txn), Payload: []byte(`{}`)})
	return run(r, t)
}

// traceNames lists the names of a tenant as "name traces messages".
func (r *rig) traceNames(tenant string) (out []string) {
	r.m.s.TraceNames(tenant, "", 1000, func(n TraceNameInfo) {
		out = append(out, fmt.Sprintf("%s %d %d", n.Name, n.Traces, n.Messages))
	})
	return out
}

func wantNames(t *testing.T, r *rig, want ...string) {
	t.Helper()
	if got := r.traceNames(tenantA); !slices.Equal(got, want) {
		t.Fatalf("names are %q, want %q", got, want)
	}
	if got := (&rig{m: r.checkLoad()}).traceNames(tenantA); !slices.Equal(got, want) {
		t.Fatalf("after a start names are %q, want %q", got, want)
	}
}

func TestTraceNamesAreCounted(t *testing.T) {
	r := newRig(t, Config{TraceRetention: 3 * dayMicros})
	r.trace("1", "a", "x", "y")
	r.trace("1", "a", "x")
	r.trace("1", "b", "x")
	r.trace("2", "a")
	wantNames(t, r, "x 3 2", "y 1 1")
	r.checkpoint(false)

	// The next day the message counts again, whether memory still knows it or a
	// sealed file does.
	r.now += dayMicros
	r.trace("1", "a", "x")
	r.seal()
	r.trace("1", "a", "x")
	wantNames(t, r, "x 5 3", "y 1 1")

	// Days go as they leave the retention, and a name with its newest trace.
	r.now += 2 * dayMicros
	r.trace("9", "z", "z")
	wantNames(t, r, "x 5 3", "z 1 1")
	r.now += 3 * dayMicros / 2
	r.trace("9", "z", "z")
	wantNames(t, r, "z 2 2")
	if n := r.m.s.Traces(); n == 0 {
		t.Fatal("no trace is counted")
	}
}

func TestTraceNameWithItsOwnSeparator(t *testing.T) {
	r := newRig(t, Config{})
	r.trace("1", "a", "n", "n\x001", "n\x00")
	r.trace("1", "a", "n")
	wantNames(t, r, "n 2 1", "n\x00 1 1", "n\x001 1 1")
}

func TestTracesOfAMessageAreBounded(t *testing.T) {
	r := newRig(t, Config{})
	r.twin = nil // its digest after each of them takes long
	for i := range MaxTraces {
		if tr := r.trace("1", "a"); tr.Refused {
			t.Fatalf("trace %d was refused", i)
		}
		if i == MaxTraces/2 {
			r.seal()
		}
	}
	before := len(r.entries)
	if tr := r.trace("1", "a", "n"); !tr.Refused || len(r.entries) != before {
		t.Fatalf("refused %v, %d entries after %d", tr.Refused, len(r.entries), before)
	}
	if tr := r.trace("1", "b"); tr.Refused {
		t.Fatal("a trace of another message was refused")
	}
	r.now += 8 * dayMicros
	if tr := r.trace("1", "a"); tr.Refused {
		t.Fatal("a trace was refused after the others had gone")
	}
}

func TestTracesAreFound(t *testing.T) {
	r := newRig(t, Config{})
	r.trace("1", "a", "x")
	r.trace("1", "b", "x")
	r.trace("1", "a", "x")
	f := run(r, &FindTraces{PartitionID: "1", Txn: "a"})
	if !slices.Equal(f.Known[0], []uint64{2, 0}) || f.Partition != f.Events {
		t.Fatalf("the traces of a message are at %v of partition %d, traces are in %d", f.Known, f.Partition, f.Events)
	}
	f = run(r, &FindTraces{Name: "x", Offset: 1, Limit: 10})
	if len(f.Keys) != 2 || f.Total != 3 || !slices.Equal(f.Known[0], []uint64{1}) || !slices.Equal(f.Known[1], []uint64{0}) {
		t.Fatalf("%d keys, total %d, known %v", len(f.Keys), f.Total, f.Known)
	}
	if f = run(r, &FindTraces{Name: "none", Limit: 10}); len(f.Keys) != 0 || f.Total != 0 {
		t.Fatalf("%d keys, total %d of a name that nobody used", len(f.Keys), f.Total)
	}
}

func TestTracesAreTheirTenants(t *testing.T) {
	const other = "00000000-0000-0000-0000-000000000002"
	r := newRig(t, Config{})
	r.trace("1", "a", "x")
	c := r.call(&FindTraces{PartitionID: "1", Txn: "a"})
	c.Tenant = other
	r.do(c)
	if f := c.Body.(*FindTraces); f.Queue != 0 {
		t.Fatalf("another tenant finds %v", f.Known)
	}
	if got := r.traceNames(other); got != nil {
		t.Fatalf("another tenant has names %q", got)
	}
	if q, more := r.m.s.Queues(tenantA, "", 10); len(q) != 0 || more {
		t.Fatalf("the queue of traces is listed: %v", q)
	}
}

func TestTraceRetentionFollowsTheSetting(t *testing.T) {
	r := newRig(t, Config{TraceRetention: dayMicros})
	r.trace("1", "a")
	r.checkpoint(true)
	r.cfg.TraceRetention = 2 * dayMicros
	r.restart()
	r.trace("1", "a")
	q := r.m.s.findQueue(traceTenant, tenantA)
	if q.opts.RetentionSeconds != 2*86400 || !q.opts.RetentionEnabled {
		t.Fatalf("traces are kept for %d s", q.opts.RetentionSeconds)
	}
}
