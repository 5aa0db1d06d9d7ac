package fsm

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
)

// The bytes of a group's marks are fixed, and a build that does not know one of
// them says so.
func TestGroupMarkBytes(t *testing.T) {
	g := &group{id: 2, q: &queue{id: 1}}
	for want, mark := range map[string]groupMark{
		"00":       {},
		"01":       {deleted: true},
		"02":       {paused: true},
		"0c010009": {rule: &startRule{mode: SubscribeNew, partition: 9, moved: true}},
		"1e031007": {paused: true, rule: &startRule{mode: SubscribeFrom, from: 8, partition: 7, moved: true, placed: true}},
		"04020007": {rule: &startRule{mode: SubscribeAll, partition: 7}},
	} {
		mark.g = g
		row := mark.encode(nil)
		if got := fmt.Sprintf("%x", row); got != want {
			t.Errorf("%+v is %s, want %s", mark, got, want)
		}
		var back groupMark
		if err := back.decode(row); err != nil || fmt.Sprintf("%x", back.encode(nil)) != want {
			t.Errorf("%s is read as %+v, %v", want, back, err)
		}
	}
	if key := fmt.Sprintf("%x", (&groupMark{g: g}).appendKey(nil)); key != "0e00000000000000010000000000000002" {
		t.Errorf("key %s", key)
	}
	err := New(Config{}).LoadRow((&groupMark{g: g}).appendKey(nil), []byte{32})
	if err == nil || !strings.Contains(err.Error(), "newer build") {
		t.Errorf("an unknown mark: %v", err)
	}
}

// A group that was paused and moved, and one that is on its way out, are in the
// digest, in a checkpoint and after a restart.
func TestGroupMarksAreState(t *testing.T) {
	r := newRig(t, Config{})
	r.applies = 2
	for i := range 2*sweepSliceRows + 5 {
		run(r, newPush(r.item("a", fmt.Sprint("p", i), "m", nil)))
	}
	run(r, &Pop{Queue: "a", Group: "g", Mode: SubscribeAll, Batch: 700, Partitions: 700, LeaseID: leaseID("L"), Worker: "w"})
	run(r, &PauseGroup{Queue: "a", Group: "g", Paused: true})
	before := r.m.Digest()
	r.plan(r.call(&Seek{Queue: "a", Group: "g", To: SeekEnd}))
	if r.m.Digest() == before {
		t.Error("a seek does not change the digest")
	}
	if len(r.m.s.dying) != 1 {
		t.Fatalf("%d groups are dying after one cycle, want the old one", len(r.m.s.dying))
	}
	r.checkpoint(true)
	r.restart()
	if len(r.m.s.dying) != 1 {
		t.Fatal("after a restart the sweep does not go on")
	}
	r.plan()
	r.checkpoint(false)
	r.restart()
	for n := 0; len(r.m.s.dying) > 0; n++ {
		if n > 10 {
			t.Fatal("the sweep does not end")
		}
		r.plan()
	}
	r.checkpoint(false)
	r.restart()
	g := r.m.s.findQueue(tenantA, "a").byGroup["g"]
	if !g.paused() || g.members() != int64(2*sweepSliceRows+5) || g.owed(true).pending != 0 {
		t.Errorf("paused %v, members %d, pending %d", g.paused(), g.members(), g.owed(true).pending)
	}
	for _, p := range r.m.s.findQueue(tenantA, "a").parts {
		if len(p.cursors) != 0 {
			t.Fatalf("partition %s still has a cursor", p.name)
		}
	}
	// What the leases were is over too.
	if e := run(r, &Extend{LeaseID: leaseID("L"), Seconds: 60}); e.Renewed != 0 {
		t.Errorf("%d leases of the old incarnation are renewed", e.Renewed)
	}
	if w := run(r, &ReleaseWorker{Worker: "w"}); w.Released != 0 {
		t.Errorf("%d leases of the old incarnation are released", w.Released)
	}
}

// A queue is deleted while a group of it is on its way out.
func TestQueueGoesWithADyingGroup(t *testing.T) {
	r := newRig(t, Config{})
	for i := range sweepSliceRows + 5 {
		run(r, newPush(r.item("a", fmt.Sprint("p", i), "m", nil)))
	}
	run(r, &Pop{Queue: "a", Group: "g", Mode: SubscribeAll, Batch: 700, Partitions: 700, LeaseID: leaseID("L")})
	r.plan(r.call(&DeleteGroup{Group: "g", Metadata: true}), r.call(&DeleteQueue{Queue: "a"}))
	r.checkpoint(true)
	r.restart()
	for n := 0; len(r.m.s.dead) > 0; n++ {
		if n > 10 {
			t.Fatal("the queue's sweep does not end")
		}
		r.plan()
	}
	r.checkpoint(false)
	r.restart()
	if n := len(allRows(r.m)); n != 1 {
		t.Errorf("%d rows are left, want only the counters", n)
	}
	if len(r.m.s.groups) != 0 || len(r.m.s.partitions) != 0 {
		t.Errorf("%d groups and %d partitions are left", len(r.m.s.groups), len(r.m.s.partitions))
	}
}

// A removal on all queues goes in slices, and so does a change of a subscription.
func TestGroupCallsOverManyQueues(t *testing.T) {
	for _, n := range []int{0, 1, groupSlice, groupSlice + 1, 2*groupSlice + 1} {
		r := newRig(t, Config{})
		r.twin = nil
		for i := range n {
			run(r, &Pop{Queue: fmt.Sprintf("q%04d", i), Group: "g", Batch: 1, Partitions: 1, LeaseID: leaseID("L")})
		}
		run(r, &Pop{Queue: "other", Group: "g2", Batch: 1, Partitions: 1, LeaseID: leaseID("L")})
		if s := run(r, &Subscribe{Group: "g", From: r.now}); s.Updated != n {
			t.Errorf("%d queues: %d subscriptions are changed", n, s.Updated)
		}
		if d := run(r, &DeleteGroup{Group: "g", Metadata: true}); d.Removed != n {
			t.Errorf("%d queues: removed from %d", n, d.Removed)
		}
		if list, more := r.m.s.Groups(tenantA, "", 10); len(list) != 1 || list[0].Group != "g2" || more {
			t.Errorf("%d queues: left are %+v", n, list)
		}
		r.checkpoint(true)
		r.restart()
	}
}

// A worker's leases are released in slices too, and only those that it has when
// the call comes.
func TestReleaseManyLeases(t *testing.T) {
	for _, n := range []int{1, groupSlice, groupSlice + 1} {
		r := newRig(t, Config{})
		r.twin = nil
		for i := range n {
			run(r, newPush(r.item("a", fmt.Sprint("p", i), "m", nil)))
		}
		for range 2 { // a pop looks at a slice of partitions
			run(r, &Pop{Queue: "a", Group: "g", Mode: SubscribeAll, Batch: 1000, Partitions: 1000, LeaseID: leaseID("L"), Worker: "w"})
		}
		if w := run(r, &ReleaseWorker{Worker: "w"}); w.Released != n {
			t.Errorf("%d leases: %d are released", n, w.Released)
		}
		if len(r.m.workers) != 0 || len(r.m.leases) != 0 || r.m.s.findQueue(tenantA, "a").leased != 0 {
			t.Errorf("%d leases: %d workers and %d leases are left", n, len(r.m.workers), len(r.m.leases))
		}
		if p := run(r, &Pop{Queue: "a", Group: "g", Batch: 1000, Partitions: 1000, LeaseID: leaseID("M")}); len(p.Claims) != n || p.Claims[0].Attempt != 2 {
			t.Errorf("%d leases: %d claims", n, len(p.Claims))
		}
	}
}

// An expired lease still tells that its message may have killed its worker, also
// after its worker was asked to let go.
func TestReleaseForgetsNoDeath(t *testing.T) {
	r := newRig(t, Config{})
	run(r, &Configure{Queue: "a", Set: []OptionValue{{Name: "maxDeliveries", Num: 1}}})
	run(r, newPush(r.item("a", "p", "m", nil)))
	run(r, &Pop{Queue: "a", Group: "g", Mode: SubscribeAll, Batch: 1, Partitions: 1, LeaseSeconds: 1, LeaseID: leaseID("L"), Worker: "w"})
	r.now += 2_000_000
	if w := run(r, &ReleaseWorker{Worker: "w"}); w.Released != 0 {
		t.Errorf("an expired lease is released")
	}
	if p := run(r, &Pop{Queue: "a", Group: "g", Batch: 1, Partitions: 1, LeaseID: leaseID("M")}); len(p.Claims) != 0 || len(p.Poisoned) != 1 {
		t.Errorf("%d claims, %d put aside", len(p.Claims), len(p.Poisoned))
	}
}

// A time that a partition has not reached yet on the disk is asked for again.
func TestSeekWaitsForWhatIsNotWrittenYet(t *testing.T) {
	r := newRig(t, Config{})
	r.twin = nil
	run(r, newPush(r.item("a", "p", "m1", nil)))
	run(r, &Pop{Queue: "a", Group: "g", Batch: 1, Partitions: 1, LeaseID: leaseID("L")})
	r.now += 1_000_000
	run(r, newPush(r.item("a", "p", "m2", nil)))
	kept := r.store.parts[r.partitionID("a", "p")]
	late := *kept
	late.messages, late.times, late.runs = kept.messages[:1], kept.times[:1], kept.runs[:1]
	r.store.parts[r.partitionID("a", "p")] = &late
	s := &Seek{Queue: "a", Group: "g", Partition: "p", OnPartition: true, To: SeekTime, Time: r.last - 500_000}
	c := r.call(s)
	for range 3 {
		p := r.plan(c)
		if len(p.Prepare) != 1 {
			t.Fatalf("%d calls are prepared, outcome %d", len(p.Prepare), s.Outcome)
		}
		r.resolve(c)
	}
	r.store.parts[r.partitionID("a", "p")] = kept
	r.do(c)
	if s.Outcome != SeekDone || r.partition("a", "p").cursors[0].committed != 0 {
		t.Errorf("outcome %d, committed %d", s.Outcome, r.partition("a", "p").cursors[0].committed)
	}
}

// manyPartitions makes a machine whose queue a has n partitions with one message
// each, and whose group g has a cursor on all of them, as a checkpoint gives it.
func manyPartitions(t testing.TB, n int) *Machine {
	m := New(Config{})
	load := func(o rowObject) {
		if err := m.LoadRow(o.appendKey(nil), o.encode(nil)); err != nil {
			t.Fatal(err)
		}
	}
	q := &queue{id: 1, tenant: tenantA, name: "a", opts: DefaultOptions(), created: startTime}
	g := &group{id: 1, q: q, name: "g", mode: SubscribeAll, created: startTime, startPartition: uint64(n) + 1}
	load(q)
	load(g)
	for i := range n {
		p := &partition{id: uint64(i) + 1, q: q, name: fmt.Sprint("p", i), created: startTime, lastAppend: startTime, next: 1}
		load(p)
		load(&cursor{p: p, g: g, committed: 0, lease: &lease{id: leaseID(fmt.Sprint("L", i)), from: 1, end: 1, expires: startTime + 1<<40}})
	}
	s := newState()
	s.time = startTime
	s.meta.queue, s.meta.partition, s.meta.group = 2, uint64(n)+1, 2
	if err := m.LoadRow([]byte{rowMeta}, s.encodeMeta(nil)); err != nil {
		t.Fatal(err)
	}
	if err := m.Ready(0); err != nil {
		t.Fatal(err)
	}
	m.Lead(1)
	return m
}

// Of a group with very many cursors, every page of a listing looks at a slice and
// together they show all; seeks and its removal take effect at once, and no
// entry grows with them. MILLION=1 takes a million partitions instead of some
// ten thousand, and more time.
func TestGroupOfManyPartitions(t *testing.T) {
	n := 40_000
	if os.Getenv("MILLION") != "" {
		n = 1_000_000
	}
	m := manyPartitions(t, n)
	listMany(t, m, n)
	now := startTime + 1_000_000
	worst, cycles := time.Duration(0), 0
	cycle := func(calls ...*Call) Plan {
		now++
		begun := time.Now()
		p := m.Plan(now, calls)
		worst = max(worst, time.Since(begun))
		cycles++
		if len(p.Data) > 64<<10 {
			t.Fatalf("an entry of %d bytes", len(p.Data))
		}
		return p
	}
	call := func(body any) Plan {
		return cycle(&Call{Tenant: tenantA, Body: body, Done: func(error) {}})
	}
	seek := &Seek{Queue: "a", Group: "g", To: SeekBeginning}
	call(seek)
	if seek.Outcome != SeekDone || seek.Partitions != n {
		t.Fatalf("outcome %d, %d partitions", seek.Outcome, seek.Partitions)
	}
	g := m.s.findQueue(tenantA, "a").byGroup["g"]
	if d, _ := m.s.Depth(tenantA, "a", "g", true); d.Pending != int64(n) || d.Processing != 0 || g.members() != int64(n) {
		t.Fatalf("at once: %+v, %d members", d, g.members())
	}
	pop := &Pop{Queue: "a", Group: "g", Batch: 10, Partitions: 10, LeaseID: leaseID("M")}
	call(pop)
	if len(pop.Claims) != 10 || pop.Claims[0].From != 0 || pop.Claims[0].Attempt != 1 {
		t.Fatalf("%d claims at once", len(pop.Claims))
	}
	call(&Seek{Queue: "a", Group: "g", To: SeekEnd})
	if d, _ := m.s.Depth(tenantA, "a", "g", true); d.Pending != 0 {
		t.Fatalf("at the end: %+v", d)
	}
	call(&DeleteGroup{Group: "g", Metadata: true})
	if list, _ := m.s.Groups(tenantA, "", 10); len(list) != 0 {
		t.Fatalf("after the removal: %+v", list)
	}
	for len(m.s.dying) > 0 {
		if cycle(); cycles > 4*n/sweepSliceRows+100 {
			t.Fatalf("%d cycles, and the sweep has not ended", cycles)
		}
	}
	for _, p := range m.s.findQueue(tenantA, "a").parts {
		if len(p.cursors) != 0 {
			t.Fatalf("partition %s has cursors", p.name)
		}
	}
	t.Logf("%d cycles, the longest %v", cycles, worst)
}

func listMany(t *testing.T, m *Machine, n int) {
	m.s.now = startTime
	seen, pages := 0, 0
	worst := time.Duration(0)
	for next := uint64(1); next != 0; pages++ {
		var page []GroupPartition
		begun := time.Now()
		page, next = m.s.GroupPartitions(tenantA, "g", "a", next, 500)
		worst = max(worst, time.Since(begun))
		if len(page) > 500 {
			t.Fatalf("a page of %d", len(page))
		}
		seen += len(page)
	}
	leases, f := 0, LeaseFilter{Limit: 500}
	for more := true; more; pages++ {
		var page []LeaseInfo
		begun := time.Now()
		page, more = m.s.Leases(tenantA, &f)
		worst = max(worst, time.Since(begun))
		leases += len(page)
	}
	if seen != n || leases != n {
		t.Errorf("%d partitions, %d leases of %d", seen, leases, n)
	}
	if f = (LeaseFilter{Group: "nobody", Limit: 500}); n > 0 {
		for more := true; more; pages++ {
			var page []LeaseInfo
			if page, more = m.s.Leases(tenantA, &f); len(page) > 0 {
				t.Fatal("leases of nobody")
			}
		}
	}
	t.Logf("%d pages, the longest %v", pages, worst)
}

// Groups are listed at no, one, a page's and more than a page's number, whatever
// their names.
func TestGroupPages(t *testing.T) {
	const limit = 7
	for _, n := range []int{0, 1, limit, limit + 1, 3*limit + 2} {
		r := newRig(t, Config{})
		r.twin = nil
		want := map[string]bool{}
		for i := range n {
			name := strings.Repeat("\x00", i%3) + fmt.Sprint("g", i/2)
			queue := fmt.Sprint("q", i%2) + strings.Repeat("\x00", i%2)
			run(r, &Pop{Queue: queue, Group: name, Batch: 1, Partitions: 1, LeaseID: leaseID("L")})
			want[name+"/"+queue] = true
		}
		after, pages := "", 0
		for more := true; more; pages++ {
			var page []GroupInfo
			page, more = r.m.s.Groups(tenantA, after, limit)
			if len(page) > limit || more && len(page) < limit {
				t.Fatalf("%d groups: a page of %d", n, len(page))
			}
			for _, g := range page {
				if !want[g.Group+"/"+g.Queue] {
					t.Fatalf("%d groups: %q of %q is not there, or is there twice", n, g.Group, g.Queue)
				}
				delete(want, g.Group+"/"+g.Queue)
				after = g.Cursor()
				named, _ := r.m.s.GroupsNamed(tenantA, g.Group, "", 10)
				for _, o := range named {
					if o.Group != g.Group {
						t.Fatalf("%q is found as %q", o.Group, g.Group)
					}
				}
			}
		}
		if len(want) > 0 || pages != max(1, (n+limit-1)/limit) {
			t.Errorf("%d groups: %d pages, missing %v", n, pages, want)
		}
	}
}
