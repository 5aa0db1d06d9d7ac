package fsm

import (
	"math"
	"testing"

	"github.com/cespare/xxhash/v2"
)

// alone is a rig without a twin: a test changes the state of its machine.
func alone(t *testing.T) *rig {
	r := newRig(t, Config{})
	r.twin = nil
	return r
}

// B68: counts of deliveries and of failures stay at the end of their type, where
// they would turn negative and a budget would begin anew.
func TestB68CountsStayAtTheirEnd(t *testing.T) {
	r := alone(t)
	run(r, newPush(r.item("a", "p", "m", nil)))
	pop := func() *Claim {
		t.Helper()
		p := run(r, &Pop{Queue: "a", Group: "g", Mode: SubscribeAll, Batch: 1, Partitions: 1, LeaseID: r.id()})
		if len(p.Claims) != 1 {
			t.Fatal("nothing was delivered")
		}
		return p.Claims[0]
	}
	nack := func(status AckStatus) AckItem {
		t.Helper()
		a := run(r, &Ack{Items: []AckItem{{Txn: []byte("m"), TxnHash: xxhash.Sum64String("m"), PartitionID: r.partitionID("a", "p"), Group: "g", Status: status}}})
		if !a.Items[0].Success {
			t.Fatalf("%+v", a.Items[0])
		}
		return a.Items[0]
	}
	pop()
	nack(Retry)
	c := r.partition("a", "p").cursors[0]
	c.attempt, c.retries = math.MaxInt32-1, math.MaxInt32-1
	c.p.q.opts.RetryLimit = math.MaxInt64
	for range 3 {
		if got := pop().Attempt; got != math.MaxInt32 {
			t.Fatalf("attempt %d, want %d", got, math.MaxInt32)
		}
		if nack(Failed).DLQ {
			t.Fatal("filed before its budget was spent")
		}
	}
	read := cursor{p: c.p, g: c.g}
	if err := read.decode(c.encode(nil)); err != nil || read.retries != math.MaxInt32 || read.attempt != math.MaxInt32 {
		t.Errorf("%d failures and %d deliveries, want %d (%v)", read.retries, read.attempt, math.MaxInt32, err)
	}
}

// do plans a call without a log behind it.
func do[T any](r *rig, body T) T {
	r.now += 1000
	r.m.Plan(r.now, []*Call{r.call(body)})
	return body
}

// B68: offsets and versions beyond what a float holds, or 32 bits, are exact.
func TestB68LargeNumbersAreExact(t *testing.T) {
	for _, base := range []uint64{1<<31 - 2, 1<<32 - 2, 1<<53 - 2, 1<<62 - 2} {
		r := alone(t)
		run(r, newPush(r.item("a", "p", "first", nil)))
		at := r.partition("a", "p")
		at.start, at.next, r.m.s.meta.kvVersion = base, base, int64(base)
		push := do(r, newPush(r.item("a", "p", "x", nil), r.item("a", "p", "y", nil), r.item("a", "p", "z", nil)))
		for i, it := range push.Items {
			if it.Status != Queued || it.Offset != base+uint64(i) {
				t.Errorf("from %d: item %d at %d", base, i, it.Offset)
			}
		}
		p := do(r, &Pop{Queue: "a", Group: "g", Mode: SubscribeAll, Batch: 3, Partitions: 1, LeaseID: leaseID("L")})
		if len(p.Claims) != 1 || p.Claims[0].From != base || p.Claims[0].To != base+2 {
			t.Errorf("from %d: claimed %+v", base, p.Claims)
		}
		a := do(r, &Ack{Items: []AckItem{{Txn: []byte("y"), TxnHash: xxhash.Sum64String("y"), PartitionID: r.partitionID("a", "p"), Group: "g"}}})
		if c := r.partition("a", "p").cursors[0]; !a.Items[0].Success || c.committed != int64(base)+1 {
			t.Errorf("from %d: acked up to %d: %+v", base, c.committed, a.Items[0])
		}
		last := int64(0)
		for range 4 {
			kv := do(r, &KV{Ops: []KVOp{{Kind: KVPut, NS: "n", Key: "k", Value: []byte("1"), TTL: 10}}})
			if v := kv.Ops[0].Result.Version; v < int64(base) || v <= last {
				t.Errorf("from %d: version %d after %d", base, v, last)
			} else {
				last = v
			}
		}
	}
}
