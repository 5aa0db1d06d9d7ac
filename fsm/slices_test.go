package fsm

import (
	"container/heap"
	"fmt"
	"testing"
)

// What grows with partitions or dead letters is done in slices (F24).

// letterRig files dead letters, one a cycle, by turns in two queues.
func letterRig(t *testing.T, n int) *rig {
	r := newRig(t, Config{})
	r.twin = nil
	for i := range n {
		r.m.begin(r.last + 1)
		r.last, r.now = r.last+1, r.last+1
		q := r.m.pushQueue(tenantA, []string{"a", "b"}[i%2])
		p := r.m.pushPartition(q, "p")
		r.m.fileLetter(&deadLetter{q: q, partitionID: p.id, partition: "p", offset: uint64(i), group: fmt.Sprint("g", i%3), failed: r.m.now}, []byte("x"))
		r.m.finish()
	}
	return r
}

func (r *rig) list(f DeadLetterFilter) (out []DeadLetterInfo, reads int) {
	for more := true; more; reads++ {
		var page []DeadLetterInfo
		page, more = r.m.s.DeadLetters(tenantA, &f)
		out = append(out, page...)
	}
	return out, reads
}

func TestDeadLettersInSlices(t *testing.T) {
	const n = 4*letterSlice + 10
	r := letterRig(t, n)
	r.now += 1_000_000
	all, reads := r.list(DeadLetterFilter{Limit: n})
	if len(all) != n || reads < 4 {
		t.Fatalf("%d dead letters in %d reads, want %d in slices of %d", len(all), reads, n, letterSlice)
	}
	for i, l := range all {
		if l.Offset != uint64(n-1-i) {
			t.Fatalf("dead letter %d has offset %d: the newest failure comes first", i, l.Offset)
		}
	}
	some, _ := r.list(DeadLetterFilter{Queue: "b", Group: "g1", Offset: 500, Limit: 3})
	if len(some) != 3 || some[0].Offset != 1009 || some[1].Offset != 1003 {
		t.Fatalf("a filtered page is %+v", some)
	}
	from, to := all[20].Failed, all[10].Failed
	if some, _ = r.list(DeadLetterFilter{From: from, To: to, Limit: n}); len(some) != 11 || some[0].Offset != all[10].Offset {
		t.Fatalf("%d dead letters between two times, want 11", len(some))
	}
	if some, _ = r.list(DeadLetterFilter{To: from - 5_000_000, Limit: n}); len(some) != 0 {
		t.Fatalf("%d dead letters from before the first", len(some))
	}
}

func TestPurgeInSlices(t *testing.T) {
	const n = 4 * letterSlice
	r := letterRig(t, n)
	one := &PurgeDeadLetters{Queue: "a", Group: "g0"}
	cycles := len(r.entries)
	p := r.plan(r.call(one))
	for ; p.More; p = r.plan() {
	}
	if cycles = len(r.entries) - cycles; one.Deleted != n/6+1 || cycles < 2 {
		t.Fatalf("%d deleted in %d entries, want %d in slices of %d", one.Deleted, cycles, n/6+1, sweepSliceRows)
	}
	if left, _ := r.list(DeadLetterFilter{Queue: "a", Group: "g0", Limit: n}); len(left) != 0 {
		t.Fatalf("%d dead letters are left", len(left))
	}
	rest := run(r, &PurgeDeadLetters{Queue: "a", AnyGroup: true})
	other, _ := r.list(DeadLetterFilter{Limit: n})
	if one.Deleted+rest.Deleted != n/2 || len(other) != n/2 {
		t.Fatalf("%d deleted of queue a, %d left of queue b, want %d each", one.Deleted+rest.Deleted, len(other), n/2)
	}
	if again := run(r, &PurgeDeadLetters{Queue: "a", AnyGroup: true}); again.Deleted != 0 {
		t.Fatalf("%d deleted of none", again.Deleted)
	}
}

// Options that hold messages back or let them go act at once, however many
// partitions must be looked at: a pop that does not wait is not empty meanwhile.
func TestOptionsChangedInSlices(t *testing.T) {
	const n = 3*reviewSlice + 5
	r := newRig(t, Config{})
	run(r, &Configure{Queue: "a", Set: []OptionValue{{Name: "delayedProcessing", Num: 100}}})
	push := &Push{}
	for i := range n {
		push.Items = append(push.Items, r.item("a", fmt.Sprint("p", i), "", nil))
	}
	push.GroupItems()
	run(r, push)
	pop := func(name, partition string) *Pop {
		return &Pop{Queue: "a", Partition: partition, Group: "g", Mode: SubscribeAll, Batch: 1, Partitions: 1, LeaseID: leaseID(name)}
	}
	if p := run(r, pop("L0", "")); len(p.Claims) != 0 {
		t.Fatal("a delayed message is delivered")
	}
	for i := range 2 * reviewSlice { // leased: only later ones can be had
		run(r, &Txn{Positions: []Position{{Queue: "a", Partition: fmt.Sprint("p", i), Group: "g", Offset: 1}}})
	}
	last := pop("L2", fmt.Sprint("p", n-1))
	off := &Configure{Queue: "a", Set: []OptionValue{{Name: "delayedProcessing", Num: 0}}}
	free := pop("L1", "")
	r.do(r.call(off), r.call(free), r.call(last))
	if len(free.Claims) != 1 || len(last.Claims) != 1 {
		t.Fatalf("claims %+v and %+v right after the delay went, want one each", free.Claims, last.Claims)
	}
	if len(r.m.reviews) != 0 {
		t.Fatal("the review is not through")
	}
}

// A capture goes through dead letters and deleted rows in slices, and gives all of them.
func TestCaptureSlices(t *testing.T) {
	r := letterRig(t, 50)
	for _, full := range []bool{true, false} {
		rows := 0
		r.m.BeginCapture(full)
		for done := false; !done; {
			n := 0
			done = r.m.CaptureSome(10, func(_, _ []byte) { n++ }, func(_, _ []byte) { n++ })
			if n > 11 {
				t.Fatalf("a slice of 10 has %d rows", n)
			}
			rows += n
		}
		r.m.EndCapture(false)
		if want := 1 + 2 + 2 + 50; rows != want {
			t.Fatalf("%d rows (full: %v), want %d", rows, full, want)
		}
	}
}

// Leases that end together are looked at in slices, and no pop is told meanwhile
// that there is nothing.
func TestWakesInSlices(t *testing.T) {
	const n = 2*wakeSlice + 100
	r := newRig(t, Config{})
	r.twin = nil
	run(r, &Pop{Queue: "a", Group: "g", Mode: SubscribeAll, Batch: 1, Partitions: 1, LeaseID: leaseID("K")})
	push := &Push{}
	for i := range n {
		push.Items = append(push.Items, r.item("a", fmt.Sprint("p", i), "", nil))
	}
	push.GroupItems()
	run(r, push)
	call := func(name, partition string, parts int) *Call {
		return r.call(&Pop{Queue: "a", Partition: partition, Group: "g", Mode: SubscribeAll, Batch: parts, Partitions: parts, LeaseSeconds: 1, LeaseID: leaseID(name)})
	}
	all := call("L", "", n)
	r.do(all)
	if got := len(all.Body.(*Pop).Claims); got != n {
		t.Fatalf("%d claims, want %d", got, n)
	}
	r.now += 2_000_000
	last, rest := call("M", fmt.Sprint("p", n-1), 1), call("N", "", n)
	r.do(last)
	if len(last.Body.(*Pop).Claims) != 1 {
		t.Fatal("a pop of a partition whose lease is over is empty")
	}
	for r.m.wakeDue() {
		r.plan()
	}
	r.do(rest)
	if got := len(rest.Body.(*Pop).Claims); got != n-1 {
		t.Fatalf("%d claims, want %d", got, n-1)
	}
	// The cursors of another group come first: a pop that does not wait is not
	// empty while its own are still to be looked at.
	other := r.call(&Pop{Queue: "a", Group: "h", Mode: SubscribeAll, Batch: 1, Partitions: 1, LeaseSeconds: 1, LeaseID: leaseID("O")})
	r.do(other)
	r.now += 2_000_000
	h := r.m.s.findQueue(tenantA, "a").byGroup["h"]
	for r.m.wakeDue() {
		r.plan()
	}
	late := call("P", "", 1)
	r.do(call("Q", "", n))
	r.now += 2_000_000
	p := r.partition("a", "p0")
	for range wakeSlice + 1 { // due before all of the group's
		r.m.wakes = append(r.m.wakes, &cursor{p: p, g: h, committed: 1 << 40, wakeAt: 1, heapIdx: int32(len(r.m.wakes))})
	}
	heap.Init(&r.m.wakes)
	for r.do(late); r.m.wakeDue(); r.plan() { // as the wake that is left over asks for
	}
	if len(late.Body.(*Pop).Claims) != 1 {
		t.Fatal("a pop is empty before the leases that are over were looked at")
	}
}
