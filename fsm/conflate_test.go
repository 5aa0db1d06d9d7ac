package fsm

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
)

// conflating is a rig with a queue and a conflating group, which starts with all.
func conflating(t *testing.T, options ...OptionValue) *rig {
	t.Helper()
	r := newRig(t, Config{})
	run(r, &Configure{Queue: "a", Set: options})
	if p := run(r, newestOf("L0")); !p.Conflates || p.Conflict {
		t.Fatalf("the group does not conflate: %+v", p)
	}
	return r
}

func newestOf(lease string) *Pop {
	return &Pop{
		Queue: "a", Group: "g", Mode: SubscribeAll, Batch: 10, DefaultPartitions: true, LeaseSeconds: 1, LeaseID: leaseID(lease), Conflate: true,
	}
}

// pushEach pushes messages into a/p one append each, a millisecond apart.
func pushEach(r *rig, from, to int) {
	for i := from; i <= to; i++ {
		r.now += 1000
		run(r, newPush(r.item("a", "p", fmt.Sprint("m", i), []byte(fmt.Sprint(i)))))
	}
}

func TestConflationHandsOutTheNewest(t *testing.T) {
	r := conflating(t)
	pushEach(r, 0, 4)
	p := run(r, newestOf("L1"))
	expectClaim(t, p, 4)
	if cl := p.Claims[0]; cl.From != 4 || cl.Count != 1 || cl.Attempt != 1 {
		t.Fatalf("claim %+v, want offset 4 alone", cl)
	}
	pushEach(r, 5, 5) // stays pending
	expectClaim(t, run(r, newestOf("L2")))
	a := run(r, &Ack{Items: []AckItem{r.ack("a", "p", "g", "m4", "L1", Completed)}}).Items[0]
	if !a.Success || !a.LeaseReleased || !a.Conflates || a.Conflated != 4 {
		t.Fatalf("ack %+v, want the lease released and 4 conflated", a)
	}
	expectClaim(t, run(r, newestOf("L3")), 5)
	a = run(r, &Ack{Items: []AckItem{r.ack("a", "p", "g", "m5", "L3", Completed)}}).Items[0]
	if !a.Conflates || a.Conflated != 0 {
		t.Fatalf("ack %+v, want nothing conflated", a)
	}
	// Another group gets them all, and is told that it does not conflate.
	other := newestOf("L4")
	other.Group, other.Conflate = "plain", false
	expectClaim(t, run(r, other), 0, 1, 2, 3, 4, 5)
	other = newestOf("L5")
	other.Group = "plain"
	if run(r, other); other.Conflates || !other.Conflict {
		t.Fatalf("the plain group: %+v, want a conflict", other)
	}
	// Nobody changes the group later, and it needs no flag.
	pushEach(r, 6, 8)
	later := newestOf("L6")
	later.Conflate = false
	expectClaim(t, run(r, later), 8)
	if !later.Conflates || later.Conflict {
		t.Fatalf("a pop that does not say it: %+v", later)
	}
	r.checkpoint(true)
	r.restart()
	expectClaim(t, run(r, newestOf("L7")))
	r.now += 2_000_000
	p = run(r, newestOf("L8"))
	expectClaim(t, p, 8)
	if p.Claims[0].Attempt != 2 {
		t.Fatalf("attempt %d after a restart and an expiry, want 2", p.Claims[0].Attempt)
	}
}

func TestConflationTakesManyPartitions(t *testing.T) {
	r := conflating(t)
	var items []PushItem
	for i := range 100 {
		items = append(items, r.item("a", fmt.Sprint("p", i/2), fmt.Sprint("m", i), nil))
	}
	run(r, newPush(items...))
	if p := run(r, newestOf("L1")); len(p.Claims) != 10 || p.left() != 0 {
		t.Fatalf("%d claims with a batch of 10, want 10", len(p.Claims))
	}
	wide := newestOf("L2")
	wide.Batch = 1000
	if run(r, wide); len(wide.Claims) != 40 || wide.Partitions != 64 {
		t.Fatalf("%d claims of at most %d partitions, want the other 40 of 64", len(wide.Claims), wide.Partitions)
	}
	named := newestOf("L3")
	named.DefaultPartitions, named.Partitions = false, 1
	r.now += 2_000_000
	if run(r, named); len(named.Claims) != 1 {
		t.Fatalf("%d claims, the pop says 1", len(named.Claims))
	}
}

// What comes back is the newest that is there then; what is filed is the newest
// of the last attempt.
func TestConflationRetries(t *testing.T) {
	r := conflating(t, OptionValue{Name: "retryLimit", Num: 1})
	pushEach(r, 0, 2)
	expectClaim(t, run(r, newestOf("L1")), 2)
	a := run(r, &Ack{Items: []AckItem{r.ack("a", "p", "g", "m2", "L1", Failed)}}).Items[0]
	if !a.Success || a.Conflates {
		t.Fatalf("a failed ack %+v conflates", a)
	}
	pushEach(r, 3, 4)
	expectClaim(t, run(r, newestOf("L2")), 4)
	if a := run(r, &Ack{Items: []AckItem{r.ack("a", "p", "g", "m4", "L2", Failed)}}).Items[0]; !a.DLQ {
		t.Fatalf("ack %+v, want it filed", a)
	}
	letters, _ := r.m.s.DeadLetters(tenantA, &DeadLetterFilter{Queue: "a", Limit: 9})
	if len(letters) != 1 || letters[0].Offset != 4 {
		t.Fatalf("dead letters %+v, want offset 4 alone", letters)
	}
	expectClaim(t, run(r, newestOf("L3")))
}

// maxDeliveries counts the deaths of the newest message, and begins anew with
// one that replaces it.
func TestConflationPoison(t *testing.T) {
	r := conflating(t, OptionValue{Name: "maxDeliveries", Num: 2})
	die := func(lease string, want uint64) {
		t.Helper()
		expectClaim(t, run(r, newestOf(lease)), want)
		r.now += 2_000_000
	}
	pushEach(r, 0, 2)
	die("L1", 2)
	pushEach(r, 3, 3)
	die("L2", 3)
	die("L3", 3)
	p := run(r, newestOf("L4"))
	expectClaim(t, p)
	if len(p.Poisoned) != 1 || p.Poisoned[0].Offset != 3 || p.Poisoned[0].Deliveries != 2 {
		t.Fatalf("put aside %+v, want offset 3 after 2 deliveries", p.Poisoned)
	}
	pushEach(r, 4, 5)
	die("L5", 5)
}

// Settled messages above the cursor: the newest one that is not settled.
func TestConflationOverHoles(t *testing.T) {
	r := conflating(t)
	pushEach(r, 0, 6)
	run(r, newestOf("L1"))
	// 1 comes back; 3, 5 and 6 are settled above it.
	run(r, &Ack{Items: []AckItem{
		r.ack("a", "p", "g", "m1", "", Retry), r.ack("a", "p", "g", "m3", "", Completed),
		r.ack("a", "p", "g", "m5", "", Completed), r.ack("a", "p", "g", "m6", "", Completed),
	}})
	p := run(r, newestOf("L2"))
	expectClaim(t, p, 4)
	a := run(r, &Ack{Items: []AckItem{r.ack("a", "p", "g", "m4", "L2", Completed), r.ack("a", "p", "g", "m4", "L2", Completed)}}).Items
	if a[1].Conflated != 2 || a[0].Conflates {
		t.Fatalf("acks %+v, want 2 conflated (1 and 2)", a)
	}
	if c := r.partition("a", "p").cursors[0]; c.committed != 6 {
		t.Fatalf("committed %d, want 6", c.committed)
	}
}

// A batch that was committed on delivery goes back whole, with what it covered.
func TestConflationGoesBack(t *testing.T) {
	for _, commits := range []bool{false, true} {
		r := conflating(t)
		pushEach(r, 0, 4)
		run(r, &Ack{Items: []AckItem{r.ack("a", "p", "g", "m1", "", Retry), r.ack("a", "p", "g", "m2", "", Completed)}})
		before := r.partition("a", "p").cursors[0]
		settled := fmt.Sprint(before.committed, before.settled(2), before.settled(3))
		p := newestOf("L1")
		p.CommitOnDelivery = commits
		c := r.call(p)
		c.Done = func(error) {} // its answer never comes to the edge
		r.plan(c)
		expectClaim(t, p, 4)
		run(r, &HandBack{LeaseID: p.LeaseID, Claims: p.Claims})
		after := r.partition("a", "p").cursors[0]
		if got := fmt.Sprint(after.committed, after.settled(2), after.settled(3)); got != settled {
			t.Fatalf("commits %v: cursor %s after a hand-back, %s before", commits, got, settled)
		}
		p = run(r, newestOf("L2"))
		expectClaim(t, p, 4)
		if p.Claims[0].Attempt != 1 {
			t.Fatalf("attempt %d, nobody received the first", p.Claims[0].Attempt)
		}
		r.checkpoint(true)
		r.restart()
	}
}

// With delayedProcessing and windowBuffer the newest visible message is handed
// out, on the time that is given, before and after a restart, also when there
// are more append times than one look-up reads.
func TestConflationSeesTheNewestVisible(t *testing.T) {
	for _, restart := range []bool{false, true} {
		r := conflating(t, OptionValue{Name: "delayedProcessing", Num: 1})
		start := r.now
		pushEach(r, 0, 699) // m at start + (m+1) ms
		if restart {
			r.checkpoint(true)
			r.restart()
		}
		expectClaim(t, run(r, newestOf("L1")))
		for _, c := range []struct {
			at   int64 // ms after start
			want []uint64
		}{{1001, []uint64{0}}, {1650, nil}, {2100, []uint64{699}}} { // at 1650 the lease of 0 runs
			r.now = start + c.at*1000
			p := run(r, newestOf(fmt.Sprint("M", c.at)))
			expectClaim(t, p, c.want...)
		}
	}
	r := conflating(t, OptionValue{Name: "delayedProcessing", Num: 1})
	start := r.now
	pushEach(r, 0, 699)
	r.checkpoint(true)
	r.restart()
	r.now = start + 1_600_500 // m0 to m599 are visible
	expectClaim(t, run(r, newestOf("L1")), 599)
	run(r, &Ack{Items: []AckItem{r.ack("a", "p", "g", "m599", "L1", Completed)}})
	r.now = start + 1_650_500
	expectClaim(t, run(r, newestOf("L2")), 649)

	r = conflating(t, OptionValue{Name: "windowBuffer", Num: 1})
	pushEach(r, 0, 2)
	at := r.now
	r.now = at + 999_999
	expectClaim(t, run(r, newestOf("L1")))
	r.now = at + 1_000_001
	expectClaim(t, run(r, newestOf("L2")), 2)
}

// A waiting pop gets the newest message of those that one cycle brings.
func TestConflationWaits(t *testing.T) {
	r := conflating(t)
	p := newestOf("L1")
	p.WaitMicros = 1_000_000
	c := r.call(p)
	r.do(c)
	if !r.waits(c) {
		t.Fatal("the pop does not wait")
	}
	run(r, newPush(r.item("a", "p", "m0", nil), r.item("a", "p", "m1", nil)))
	expectClaim(t, p, 1)
	p = newestOf("L2")
	p.WaitMicros = 1_000_000
	r.do(r.call(p))
	r.now += 1_000_001
	if r.plan(); !p.Conflates || len(p.Claims) != 0 {
		t.Fatalf("at its deadline: %+v", p)
	}
}

// An id that was stored again after its window: the ack of what was handed out
// means that one, also when a restart has lost what was in the batch.
func TestConflationAckOfARepeatedID(t *testing.T) {
	for _, restart := range []bool{false, true} {
		r := conflating(t, OptionValue{Name: "dedupWindowSeconds", Num: 0})
		for range 3 {
			run(r, newPush(r.item("a", "p", "same", nil)))
		}
		expectClaim(t, run(r, newestOf("L1")), 2)
		if restart {
			r.seal()
			r.checkpoint(true)
			r.restart()
		}
		a := run(r, &Ack{Items: []AckItem{r.ack("a", "p", "g", "same", "L1", Completed)}}).Items[0]
		if !a.LeaseReleased || a.Conflated != 2 {
			t.Fatalf("restart %v: ack %+v, want the lease released", restart, a)
		}
	}
}

// A group without the flag has the row that it always had; a flag that this
// build does not know is refused by name.
func TestGroupRowVersions(t *testing.T) {
	g := &group{id: 4, q: &queue{id: 3}, name: "g", mode: SubscribeAll, created: 5, startPartition: 7}
	plain := g.encode(nil)
	if want := []byte("\x01g\x02\x00\x0a\x07"); !bytes.Equal(plain, want) {
		t.Errorf("row %x, want %x", plain, want)
	}
	g.conflates = true
	if want := append(bytes.Clone(plain), groupConflates); !bytes.Equal(g.encode(nil), want) {
		t.Errorf("row %x, want %x", g.encode(nil), want)
	}
	for _, c := range []struct {
		row       []byte
		conflates bool
		err       string
	}{
		{plain, false, ""},
		{append(bytes.Clone(plain), groupConflates), true, ""},
		{append(bytes.Clone(plain), 0), false, "newer build"},
		{append(bytes.Clone(plain), 0x80, 0x80, 1), false, "newer build"},
		{append(bytes.Clone(plain), groupConflates, 0), false, "bytes after"},
		{append(bytes.Clone(plain), 0x80), false, errShortRow.Error()},
	} {
		var got group
		err := got.decode(c.row)
		if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) || err == nil && got.conflates != c.conflates {
			t.Errorf("row %x: conflates %v, %v; want %v, %q", c.row, got.conflates, err, c.conflates, c.err)
		}
	}
}
