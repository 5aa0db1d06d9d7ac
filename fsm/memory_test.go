package fsm

import (
	"errors"
	"fmt"
	"testing"
)

// What the planner asks the disk for (F12).

// F12, 3: a look-up that was made before its id was pushed, sealed and evicted
// is made again.
func TestLookupBeforeEviction(t *testing.T) {
	r := newRig(t, Config{DedupBytes: 1})
	run(r, newPush(r.item("a", "p", "first", nil)))
	fill := func() {
		for i := range 40 {
			run(r, newPush(r.item("z", "z", fmt.Sprint(r.last, i, string(make([]byte, 1000))), nil)))
		}
		r.seal()
	}
	fill()
	if r.m.dedup.Since() <= r.partition("a", "p").created {
		t.Fatal("memory still reaches back to the partition's first message")
	}
	early, late := newPush(r.item("a", "p", "t", nil)), newPush(r.item("a", "p", "t", nil))
	earlyCall := r.call(early)
	if p := r.plan(earlyCall); len(p.Prepare) != 1 {
		t.Fatal("a push beyond memory asks for no look-up")
	}
	r.resolve(earlyCall) // absent
	run(r, late)
	if late.Items[0].Status != Queued {
		t.Fatalf("the second push has status %d, want queued", late.Items[0].Status)
	}
	fill() // t leaves memory; it is in a sealed file now
	p := r.plan(earlyCall)
	if len(p.Prepare) != 1 {
		t.Fatalf("the push is decided on a look-up from before: status %d offset %d", early.Items[0].Status, early.Items[0].Offset)
	}
	r.resolve(earlyCall)
	r.do(earlyCall)
	if it := early.Items[0]; it.Status != Duplicate || it.Offset != late.Items[0].Offset {
		t.Fatalf("status %d at offset %d, want duplicate of %d", it.Status, it.Offset, late.Items[0].Offset)
	}
}

// Beyond memory everything is judged as within it.
func TestBeyondMemory(t *testing.T) {
	r := newRig(t, Config{DedupBytes: 1})
	r.batches = false
	run(r, newPush(r.item("a", "p", "m1", nil), r.item("a", "p", "m2", nil), r.item("a", "p", "m3", make([]byte, 900))))
	run(r, &Pop{Queue: "a", Group: "g", Mode: SubscribeAll, Batch: 3, Partitions: 1, LeaseID: leaseID("L")})
	for i := range 40 {
		run(r, newPush(r.item("z", "z", fmt.Sprint(i, string(make([]byte, 1000))), nil)))
	}
	r.seal()
	dup := run(r, newPush(r.item("a", "p", "m2", nil), r.item("a", "p", "m4", nil)))
	if dup.Items[0].Status != Duplicate || dup.Items[0].Offset != 1 || dup.Items[1].Status != Queued {
		t.Errorf("pushes beyond memory: %+v", dup.Items)
	}
	acks := run(r, &Ack{Items: []AckItem{
		r.ack("a", "p", "g", "m1", "L", Completed), r.ack("a", "p", "g", "ghost", "L", Completed), r.ack("a", "p", "g", "m3", "L", DeadLetter),
	}}).Items
	if !acks[0].Success || acks[1].Success || !acks[2].DLQ {
		t.Errorf("acks beyond memory: %s", ackText(acks))
	}
	again := run(r, &Ack{Items: []AckItem{r.ack("a", "p", "g", "m2", "L", Completed), r.ack("a", "p", "g", "m1", "", Failed)}}).Items
	if !again[0].Noop || again[1].Err != errCommitted {
		t.Errorf("acks of settled messages: %s", ackText(again))
	}
	rolled := run(r, &Txn{Push: *newPush(r.item("a", "p", "m3", nil))})
	if rolled.Reason != ReasonDuplicate {
		t.Errorf("a transaction with an id beyond memory: %q", rolled.Reason)
	}
}

// A look-up that fails ends a call; the caller hears it and nothing is planned.
func TestFailedLookup(t *testing.T) {
	r := filled(t)
	r.store.fail = errors.New("disk")
	c := r.call(&Ack{Items: []AckItem{r.ack("a", "p", "g", "m1", "M", DeadLetter)}})
	if p := r.plan(c); len(p.Prepare) != 1 || p.Data != nil {
		t.Fatal("a dead letter is filed without a look at its message")
	}
	if err := c.Resolve(&r.store, r.store.appendTimes); !errors.Is(err, r.store.fail) {
		t.Fatalf("Resolve: %v", err)
	}
}

// A message that no look-up finds (it was not written yet) is not filed: never
// without its payload.
func TestUnreadableMessageIsNotFiled(t *testing.T) {
	for _, txn := range []bool{false, true} {
		r := filled(t)
		id := r.partitionID("a", "p")
		kept := r.store.parts[id].messages
		ack := r.ack("a", "p", "g", "m1", "M", DeadLetter)
		call := r.call(&Ack{Items: []AckItem{ack}})
		if txn {
			call = r.call(&Txn{Acks: []AckItem{ack}})
		}
		r.plan(call)
		r.store.parts[id].messages = nil
		r.resolve(call)
		r.store.parts[id].messages = kept
		before := r.m.Digest()
		r.do(call)
		if r.m.Digest() != before {
			t.Error("a refused call changed the state")
		}
		switch b := call.Body.(type) {
		case *Ack:
			if it := b.Items[0]; it.Success || it.DLQ || it.Err != errUnreadable {
				t.Errorf("ack: %s", ackText(b.Items))
			}
		case *Txn:
			if b.Reason != ReasonUnavailable {
				t.Errorf("reason %q, want %q", b.Reason, ReasonUnavailable)
			}
		}
	}
}

// evicted is a rig whose partition a/p has the ids m1 to m3 in sealed files only.
func evicted(t *testing.T) *rig {
	r := newRig(t, Config{DedupBytes: 1, TimerTick: 1})
	run(r, newPush(r.item("a", "p", "m1", nil), r.item("a", "p", "m2", nil), r.item("a", "p", "m3", nil)))
	for i := range 40 {
		run(r, newPush(r.item("z", "z", fmt.Sprint(i, string(make([]byte, 1000))), nil)))
	}
	r.seal()
	return r
}

func (r *rig) timer(txn string, delayMs int64) TimerOp {
	it := r.item("a", "p", txn, []byte("t"))
	return TimerOp{Queue: "a", Partition: "p", Key: fmt.Sprint("key", r.seq), DelayMs: delayMs, Txn: it.Txn, MessageID: it.ID, Message: it.Packed}
}

// Timers of one partition enter in due order, also when only the first of them
// has an id to look up.
func TestFireOrderBeyondMemory(t *testing.T) {
	r := evicted(t)
	run(r, &Timers{Ops: []TimerOp{r.timer("first", 1), r.timer("", 2), r.timer("m2", 3), r.timer("", 4)}})
	r.now += 10_000
	r.do()
	if n := len(r.store.parts[1].messages); n != 6 {
		t.Fatalf("%d messages, want m1 to m3 and three fired ones", n)
	}
	if m := r.store.message(1, 3); string(m.Txn) != "first" {
		t.Errorf("the timer that is due first comes after another: %q", m.AppendTxn(nil))
	}
	if n := r.m.s.timers.Len(); n != 0 {
		t.Errorf("%d timers left", n)
	}
}

// G116: when the look-up of an id fails, the timer waits; it is not fired as if
// the id were new.
func TestFireWaitsForLookup(t *testing.T) {
	r := evicted(t)
	run(r, &Timers{Ops: []TimerOp{r.timer("m2", 1), r.timer("", 1)}})
	r.store.fail = errors.New("disk")
	r.now += 10_000
	r.do()
	if n := len(r.store.parts[1].messages); n != 4 {
		t.Errorf("%d messages, want m1 to m3 and the timer without an id", n)
	}
	r.store.fail = nil
	r.now += 500_000
	r.do()
	if n := r.m.s.timers.Len(); n != 1 {
		t.Errorf("%d timers half a second later, want the one that waits", n)
	}
	r.now += 600_000
	r.do()
	if n, left := len(r.store.parts[1].messages), r.m.s.timers.Len(); n != 4 || left != 0 {
		t.Errorf("%d messages and %d timers in the end, want 4 and none", n, left)
	}
	r.checkpoint(true)
	r.restart()
}

// An ack that names an id which was stored twice means the lowest unsettled
// message, also when only the newer one is in memory: acking that would settle
// what lies between.
func TestAckOfOlderMessageBeyondMemory(t *testing.T) {
	r := evicted(t)
	r.batches = false
	run(r, &Configure{Queue: "a", Set: []OptionValue{{Name: "dedupWindowSeconds", Num: 0}}})
	run(r, newPush(r.item("a", "p", "m1", nil)))
	run(r, &Pop{Queue: "a", Group: "g", Mode: SubscribeAll, Batch: 10, Partitions: 1, LeaseID: leaseID("L")})
	a := run(r, &Ack{Items: []AckItem{r.ack("a", "p", "g", "m1", "L", Completed)}})
	if c := r.partition("a", "p").cursors[0]; !a.Items[0].Success || c.committed != 0 {
		t.Errorf("ack of m1, stored at 0 and 3: %s, cursor at %d, want 0", ackText(a.Items), c.committed)
	}
}

// SubscribeFrom: a partition whose newest append is late enough is not passed
// by because that append cannot be found yet.
func TestStartNotWrittenYet(t *testing.T) {
	r := newRig(t, Config{})
	run(r, newPush(r.item("a", "p", "old", nil)))
	from := r.now + 1
	run(r, newPush(r.item("a", "p", "new", nil)))
	pop := &Pop{Queue: "a", Group: "g", Mode: SubscribeFrom, From: from, Batch: 10, Partitions: 1, LeaseID: leaseID("L"), WaitMicros: 1e6}
	c := r.call(pop)
	r.plan(c)
	times := r.store.parts[1].times
	r.store.parts[1].times = times[:1] // the second append is not readable
	r.resolve(c)
	r.store.parts[1].times = times
	r.do(c)
	if len(pop.Claims) != 1 || pop.Claims[0].From != 1 {
		t.Errorf("claims %+v, want offset 1", pop.Claims)
	}
}

func TestReleaseParked(t *testing.T) {
	r := newRig(t, Config{})
	pop := &Pop{Queue: "a", Group: "g", Batch: 1, Partitions: 1, LeaseID: leaseID("L"), WaitMicros: 1e9}
	r.do(r.call(pop))
	if r.m.Parked() != 1 {
		t.Fatalf("%d pops wait, want 1", r.m.Parked())
	}
	late := &Pop{Queue: "a", Group: "g", Batch: 1, Partitions: 1, LeaseID: leaseID("M"), WaitMicros: 1e9}
	r.do(r.call(&ReleaseParked{}), r.call(late))
	if r.m.Parked() != 0 || r.answers != 3 {
		t.Errorf("%d pops wait, %d calls answered; want none and 3", r.m.Parked(), r.answers)
	}
}

// Append times that were looked up do not take the place of newer ones that are
// known: the batch reaches as far as what is deliverable.
func TestLookedUpTimesAreNotTheNewest(t *testing.T) {
	r := newRig(t, Config{})
	for i := range 3 {
		run(r, newPush(r.item("a", "p", fmt.Sprint("m", i), nil)))
	}
	run(r, &Configure{Queue: "a", Set: []OptionValue{{Name: "delayedProcessing", Num: 1}}})
	pop := &Pop{Queue: "a", Group: QueueMode, Batch: 10, Partitions: 1, LeaseID: leaseID("L"), WaitMicros: 1e7}
	c := r.call(pop)
	if p := r.plan(c); len(p.Prepare) != 1 {
		t.Fatal("append times from before the delay were not asked for")
	}
	r.resolve(c)
	run(r, newPush(r.item("a", "p", "m3", nil)))
	r.now += 500_000
	run(r, newPush(r.item("a", "p", "m4", nil)))
	r.now += 600_000
	r.do(c)
	if len(pop.Claims) != 1 || pop.Claims[0].Count != 4 {
		t.Errorf("claims %+v, want the four messages that are a second old", pop.Claims)
	}
}
