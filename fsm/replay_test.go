package fsm

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"queen/index"
)

// filled is a rig whose state has rows of all kinds.
func filled(t fataler) *rig {
	r := newRig(t, Config{})
	run(r, newPush(r.item("a", "p", "m1", []byte("1")), r.item("a", "p", "m2", []byte("2")), r.item("a", "p", "m3", []byte("3")),
		r.item("a", "p", "m4", make([]byte, 400)), r.item("b", "q", "n1", []byte("1"))))
	run(r, &Pop{Queue: "a", Group: "g", Mode: SubscribeAll, Batch: 4, Partitions: 1, LeaseID: leaseID("L")})
	run(r, &Ack{Items: []AckItem{
		r.ack("a", "p", "g", "m1", "L", Retry), r.ack("a", "p", "g", "m3", "L", Completed), r.ack("a", "p", "g", "m4", "L", DeadLetter),
	}})
	run(r, &Pop{Queue: "a", Group: "g", Batch: 1, Partitions: 1, LeaseID: leaseID("M"), Worker: "w"})
	run(r, &KV{Ops: []KVOp{{Kind: KVPut, NS: "n", Key: "k", Value: []byte("1"), TTL: 10}}})
	run(r, &Redrive{ID: r.id(), Queue: "a", AnyGroup: true, Contains: "no letter has this"})
	off := false
	run(r, &SetSwitches{Fire: &off})
	it := r.item("a", "p", "fired", []byte("x"))
	run(r, &Timers{Ops: []TimerOp{{Queue: "a", Partition: "p", Key: "k", DelayMs: 1e6, Txn: it.Txn, MessageID: it.ID, Message: it.Packed}}})
	return r
}

func (r *rig) ack(queue, partition, group, txn, lease string, s AckStatus) AckItem {
	it := AckItem{Txn: []byte(txn), TxnHash: txnHash(txn), PartitionID: r.partitionID(queue, partition), Group: group, Status: s}
	if lease != "" {
		it.HasLease, it.LeaseID = true, leaseID(lease)
	}
	return it
}

func TestDigestSeesEveryKindOfRow(t *testing.T) {
	changes := map[byte]func(s *State){
		rowMeta:      func(s *State) { s.meta.letter++ },
		rowQueue:     func(s *State) { s.queues[1].opts.Priority++ },
		rowPartition: func(s *State) { s.partitions[1].next++ },
		rowGroup:     func(s *State) { s.groups[1].from++ },
		rowCursor:    func(s *State) { s.partitions[1].cursors[0].lease.expires++ },
		rowSettled:   func(s *State) { s.partitions[1].cursors[0].sets.other.Add(2, 2) },
		rowLetter: func(s *State) {
			for _, l := range s.letters {
				l.retries++
			}
		},
		rowKV:       func(s *State) { s.kv.Scan(func(_ string, k *kvRow) bool { k.updated++; return true }) },
		rowSwitches: func(s *State) { s.switches.KVOff = true },
		rowTimer:    func(s *State) { s.timers.Scan(func(_ string, w *timer) bool { w.attempts++; return true }) },
		rowRedrive:  func(s *State) { s.redrives.Scan(func(_ string, j *redriveJob) bool { j.moved++; return true }) },
	}
	kinds := map[byte]bool{}
	for key := range allRows(filled(t).m) {
		kinds[key[0]] = true
	}
	for kind := range changes {
		if !kinds[kind] {
			t.Errorf("the state has no row of kind %d", kind)
		}
		m := filled(t).m
		before := m.Digest()
		changes[kind](m.s)
		if m.Digest() == before {
			t.Errorf("a changed row of kind %d does not change the digest", kind)
		}
	}
}

// Every byte of every row counts, and a row that is missing does too.
func TestDigestSeesEveryRow(t *testing.T) {
	r := filled(t)
	r.checkpoint(true)
	want := r.m.Digest()
	for i, row := range r.rows {
		without := New(Config{})
		for j, other := range r.rows {
			if i == j {
				continue
			}
			if err := without.LoadRow(other.key, other.value); err != nil {
				t.Fatal(err)
			}
		}
		if row.key[0] != rowMeta && without.Digest() == want {
			t.Errorf("row %x is missing and the digest is the same", row.key)
		}
	}
}

// The entries of random runs, applied once, twice in a row, and by machines
// that have been through checkpoints, give one digest.
func TestApplyIsAbsolute(t *testing.T) {
	for seed := range uint64(10) {
		rnd := rand.New(rand.NewPCG(seed, 2))
		x := newModelRun(t, rnd.IntN)
		x.run(stepsPerRun)
		for times := 1; times <= 3; times++ {
			m := New(x.r.cfg)
			for i, data := range x.r.entries {
				for range times {
					if err := m.Apply(uint64(i+1), 1, data); err != nil {
						t.Fatal(err)
					}
				}
			}
			if got, want := m.Digest(), x.r.m.Digest(); got != want {
				t.Fatalf("seed %d, each entry applied %d times: digest %016x, want %016x\n%s", seed, times, got, want, diffRows(x.r.m, m))
			}
			// What Ready drops was never part of the state.
			if err := m.Ready(0); err != nil || m.Digest() != x.r.m.Digest() {
				t.Fatalf("seed %d: after Ready (%v) digest %016x, want %016x", seed, err, m.Digest(), x.r.m.Digest())
			}
		}
	}
}

// A capture that is given up loses nothing: its rows are in the next one.
func TestGivenUpCapture(t *testing.T) {
	for _, full := range []bool{false, true} {
		for emitted := 1; emitted < 12; emitted++ {
			r := filled(t)
			r.checkpoint(true)
			run(r, newPush(r.item("a", "p", "m9", nil), r.item("c", "p", "m9", nil)))
			run(r, &KV{Ops: []KVOp{{Kind: KVDelete, NS: "n", Key: "k"}, {Kind: KVPut, NS: "n", Key: "j", Value: []byte("1")}}})
			r.beginCapture(full)
			for range emitted {
				if r.taking != nil {
					r.captureSome(1)
				}
			}
			run(r, newPush(r.item("a", "p", "m10", nil)))
			if r.taking != nil {
				r.endCapture(false)
			}
			r.checkpoint(false)
		}
	}
}

// F13: a queue is deleted, swept and made again at any point of a capture.
func TestCaptureWhileQueueIsMadeAnew(t *testing.T) {
	stages := []func(r *rig){
		func(r *rig) { run(r, &DeleteQueue{Queue: "a"}) },
		func(r *rig) { r.plan() }, // the sweeper's slices
		func(r *rig) { r.plan() },
		func(r *rig) { run(r, newPush(r.item("a", "p", "m1", nil), r.item("a", "q", "m2", nil))) },
		func(r *rig) {
			run(r, &Pop{Queue: "a", Group: "g", Mode: SubscribeAll, Batch: 4, Partitions: 2, LeaseID: leaseID("N")})
		},
		func(r *rig) { run(r, &Ack{Items: []AckItem{r.ack("a", "p", "g", "m1", "N", DeadLetter)}}) },
	}
	for _, full := range []bool{false, true} {
		for _, dirty := range []bool{false, true} {
			for before := range 25 { // rows emitted before the first stage
				for every := range 3 { // and between two stages
					r := filled(t)
					if !dirty {
						r.checkpoint(true)
					}
					r.beginCapture(full || dirty)
					emit := func(n int) {
						for ; n > 0 && r.taking != nil; n-- {
							r.captureSome(1)
						}
					}
					emit(before)
					for _, stage := range stages {
						stage(r)
						emit(every)
					}
					emit(1000)
					r.restart()
					r.checkpoint(false)
					r.restart()
					if p := run(r, &Pop{Queue: "a", Group: "new", Mode: SubscribeAll, Batch: 9, Partitions: 9, LeaseID: leaseID("O")}); len(p.Claims) != 2 {
						t.Fatalf("full %v dirty %v before %d every %d: %d claims of the new queue, want 2", full, dirty, before, every, len(p.Claims))
					}
				}
			}
		}
	}
}

// A deleted queue is swept in slices; each cycle removes a bounded part.
func TestSweepInSlices(t *testing.T) {
	r := newRig(t, Config{})
	var items []PushItem
	for i := range 2*sweepSliceRows + 10 {
		items = append(items, r.item("a", fmt.Sprint("p", i), "m", nil))
	}
	run(r, newPush(items...))
	run(r, &Pop{Queue: "a", Group: "g", Mode: SubscribeAll, Batch: 1000, Partitions: 64, LeaseID: leaseID("L")})
	r.checkpoint(true)
	run(r, &DeleteQueue{Queue: "a"})
	left := []int{len(r.m.s.partitions)}
	for n := 0; len(r.m.s.queues) > 0; n++ {
		if n > 10 {
			t.Fatal("the sweeper does not end")
		}
		if r.m.nextWake() == 0 {
			t.Fatal("nobody wakes the sweeper")
		}
		r.plan()
		left = append(left, len(r.m.s.partitions))
		r.checkpoint(false)
	}
	if want := []int{sweepSliceRows + 10, 10, 0, 0}; !slices.Equal(left, want) {
		t.Errorf("partitions left after each cycle %v, want %v", left, want)
	}
	if c := r.m.s.Counts(); c != (Counts{}) {
		t.Errorf("left over: %+v", c)
	}
	r.restart()
}

// F16: equal sets have equal rows, however they came about.
func TestEqualSetsEqualRows(t *testing.T) {
	fixSeed(t)
	const n = 40
	rapid.Check(t, func(t *rapid.T) {
		want := rapid.SliceOfNDistinct(rapid.IntRange(1, n-1), 1, n-1, rapid.ID[int]).Draw(t, "settled")
		rowsOf := func(order []int, calls int) string {
			r := newRig(t, Config{})
			r.twin = nil
			var items []PushItem
			for i := range n {
				items = append(items, r.item("a", "p", fmt.Sprint("m", i), nil))
			}
			run(r, newPush(items...))
			for len(order) > 0 {
				run(r, &Pop{Queue: "a", Group: "g", Mode: SubscribeAll, Batch: n, Partitions: 1, LeaseID: leaseID("L")})
				k := min((n+calls-1)/calls, len(order))
				acks := []AckItem{r.ack("a", "p", "g", "m0", "L", Retry)}
				for _, o := range order[:k] {
					acks = append(acks, r.ack("a", "p", "g", fmt.Sprint("m", o), "L", Completed))
				}
				run(r, &Ack{Items: acks})
				order = order[k:]
			}
			out := ""
			r.partition("a", "p").cursors[0].chunkRows(func(key, value []byte) { out += fmt.Sprintf("%x=%x ", key, value) })
			// The same, when the set was read from a row and went on from there.
			r.checkpoint(true)
			r.restart()
			again := ""
			r.partition("a", "p").cursors[0].chunkRows(func(key, value []byte) { again += fmt.Sprintf("%x=%x ", key, value) })
			if again != out {
				t.Fatalf("rows after loading %s, before %s", again, out)
			}
			return out
		}
		sorted := slices.Sorted(slices.Values(want))
		a, b := rowsOf(sorted, 1), rowsOf(want, 1+rapid.IntRange(0, 8).Draw(t, "calls"))
		if a != b {
			t.Fatalf("two ways to the set %v give the rows\n%s\n%s", sorted, a, b)
		}
	})
}

// A node that leads again, with a deleted queue that was not swept yet.
func TestLeadAgain(t *testing.T) {
	r := filled(t)
	var items []PushItem
	for i := range sweepSliceRows + 10 {
		items = append(items, r.item("a", fmt.Sprint("p", i), "m", nil))
	}
	run(r, newPush(items...))
	last := fmt.Sprint("p", len(items)-1) // beyond the first slice, and leased
	run(r, &Pop{Queue: "a", Partition: last, Group: "g", Batch: 1, Partitions: 1, LeaseID: leaseID("N")})
	waiting := r.call(&Pop{Queue: "b", Group: "w", Batch: 1, Partitions: 1, WaitMicros: 1e9, LeaseID: leaseID("W")})
	r.do(waiting)
	r.do(r.call(&DeleteQueue{Queue: "a"}))
	var err error
	waiting.Done = func(e error) { err = e }
	r.m.Follow()
	if !errors.Is(err, ErrNotLeader) || r.m.Parked() != 0 {
		t.Errorf("a waiting pop hears %v, %d wait; want ErrNotLeader and none", err, r.m.Parked())
	}
	r.lead()
	for range 5 {
		r.plan()
	}
	if c := r.m.s.Counts(); c.Queues != 1 || c.Partitions != 1 {
		t.Errorf("after the sweep: %+v, want queue b alone", c)
	}
	run(r, newPush(r.item("a", "p", "m1", nil)))
	r.restart()
}

// A row that names more offsets than a chunk has is damage, not hours of work.
func TestWideRangeIsRefused(t *testing.T) {
	r := filled(t)
	r.checkpoint(true)
	for _, row := range r.rows {
		if row.key[0] != rowSettled {
			continue
		}
		m := r.load()
		wide := binary.AppendUvarint(binary.AppendUvarint(binary.AppendUvarint(nil, 1), 0), 1<<60)
		if ranges, err := index.DecodeRanges(wide); err == nil && ranges[0].Hi-ranges[0].Lo < 1<<59 {
			t.Fatalf("the test's bytes are %v", ranges)
		}
		if err := m.LoadRow(row.key, wide); err == nil {
			t.Error("a range of 2^60 offsets was loaded")
		}
		return
	}
	t.Error("no row of settled offsets")
}
