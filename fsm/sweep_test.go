package fsm

import (
	"fmt"
	"testing"

	"queen/internal/entry"
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

// An empty pop tells its caller that the group has begun, also when another pop
// registered it and that is still on its way to the disk.
func TestEmptyPopOfAYoungGroupWaits(t *testing.T) {
	r := newRig(t, Config{})
	pop := func() *Call {
		return r.call(&Pop{Queue: "a", Group: "g", Batch: 1, Partitions: 1, LeaseID: leaseID("L")})
	}
	for _, calls := range [][]*Call{{pop(), pop()}, {pop()}} {
		r.now++
		if p := r.m.Plan(r.now, calls); p.Now != nil || p.Answer == nil {
			t.Fatal("an empty pop is answered before its group is known to be there")
		}
	}
	r.now += 2 * youngGroup
	if p := r.m.Plan(r.now, []*Call{pop()}); p.Now == nil || p.Answer != nil {
		t.Fatal("an empty pop of an old group waits for confirmation")
	}
}

// The byte budget of a firing pass counts payloads that are values, too.
func TestFireBudgetCountsValues(t *testing.T) {
	r := newRig(t, Config{TimerFireBytes: 5000, TimerTick: 1})
	ops := make([]TimerOp, 9)
	for i := range ops {
		it := r.item("a", "p", "", make([]byte, 2000))
		ops[i] = TimerOp{Queue: "a", Partition: "p", Key: fmt.Sprint(i), DelayMs: 10, MessageID: it.ID, Message: it.Packed}
	}
	run(r, &Timers{Ops: ops})
	r.restart()
	r.now += 1_000_000
	before := len(r.entries)
	for r.partition("a", "p") == nil || r.partition("a", "p").next < 9 {
		r.do()
		r.now++
	}
	for _, data := range r.entries[before:] {
		e, err := entry.Parse(data)
		if err != nil {
			t.Fatal(err)
		}
		if len(e.Appends) > 3 {
			t.Errorf("%d timers of 2,000 bytes fired in one entry, the budget is 5,000 bytes", len(e.Appends))
		}
	}
}
