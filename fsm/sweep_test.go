package fsm

import (
	"fmt"
	"testing"
)

// A pop that does not wait is empty only when every partition was looked at,
// however many have nothing for its group, and however short a cycle's sweep is.
func TestPopLooksAtEveryPartition(t *testing.T) {
	const old = 3*sweepSlice + 10
	r := newRig(t, Config{})
	for i := range old {
		run(r, newPush(r.item("a", fmt.Sprint("old", i), "", nil)))
	}
	r.now += 1_000_000
	from := r.now
	run(r, newPush(r.item("a", "new", "wanted", nil)))
	p := run(r, &Pop{Queue: "a", Group: "g", Mode: SubscribeFrom, From: from, Batch: 1, Partitions: 1, LeaseID: leaseID("L")})
	if len(p.Claims) != 1 || p.Claims[0].Partition != "new" {
		t.Fatalf("claims %+v, want the one of partition new", p.Claims)
	}
	if p = run(r, &Pop{Queue: "a", Group: "g", Batch: 1, Partitions: 1, LeaseID: leaseID("M")}); len(p.Claims) != 0 {
		t.Fatalf("claims %+v, want none", p.Claims)
	}
}

// The metadata of a position is stored with it, through a restart, and goes
// with the next position that has none.
func TestPositionMetadataIsStored(t *testing.T) {
	r := newRig(t, Config{})
	run(r, newPush(r.item("a", "p", "m", nil)))
	metadata := func() string {
		c := r.partition("a", "p").cursors[0]
		if c.metadata == nil {
			return ""
		}
		return *c.metadata
	}
	run(r, &Txn{Positions: []Position{{Queue: "a", Partition: "p", Group: "g", Offset: 1, Metadata: "note"}}})
	if got := metadata(); got != "note" {
		t.Fatalf("metadata %q, want note", got)
	}
	r.restart()
	if got := metadata(); got != "note" {
		t.Fatalf("after a restart metadata %q, want note", got)
	}
	run(r, &Txn{Positions: []Position{{Queue: "a", Partition: "p", Group: "g", Offset: 0}}})
	if got := metadata(); got != "" {
		t.Fatalf("metadata %q, want none", got)
	}
}
