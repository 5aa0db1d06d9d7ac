package fsm

import (
	"fmt"
	"slices"
	"testing"

	"queen/internal/entry"
)

// letters files n dead letters of queue "a", in two partitions and two groups;
// every third has a payload that is a value record.
func (r *rig) dead(n int) (ids [][16]byte) {
	r.t.Helper()
	for i := range n {
		size := 8
		if i%3 == 0 {
			size = 400
		}
		m := entry.Message{ID: r.id(), Minted: true, Payload: make([]byte, size)}
		r.m.begin(r.last + 1)
		r.last, r.now = r.last+1, r.last+1
		q := r.m.pushQueue(tenantA, "a")
		p := r.m.pushPartition(q, fmt.Sprint("p", i%2))
		r.m.fileLetter(&deadLetter{
			q: q, partitionID: p.id, partition: p.name, offset: uint64(i), group: fmt.Sprint("g", i/2%2), err: fmt.Sprint("error ", i%5), failed: r.m.now,
		}, entry.AppendMessage(nil, &m))
		ids = append(ids, r.m.s.letterIDs("a")[i])
		r.commit(r.m.finish().Data)
	}
	return ids
}

func (s *State) letterIDs(queue string) (ids [][16]byte) {
	s.findQueue(tenantA, queue).letters.Scan(func(_ string, l *deadLetter) bool {
		ids = append(ids, l.id)
		return true
	})
	return ids
}

// work plans until no job has anything to do at once; it returns the cycles.
func (r *rig) work() (cycles int) {
	r.t.Helper()
	for wake := r.m.nextRedrive(); wake != 0 && wake <= r.now+1; wake = r.m.nextRedrive() {
		if cycles++; cycles > 10_000 {
			r.t.Fatalf("the jobs do not end")
		}
		r.do()
	}
	return cycles
}

func (r *rig) job(id [16]byte) RedriveInfo {
	r.t.Helper()
	j, ok := r.m.s.RedriveJob(tenantA, id)
	if !ok {
		r.t.Fatalf("no job %x", id)
	}
	return j
}

func (r *rig) copies(queue, partition string) (txns []string) {
	for o := range r.store.parts[r.partitionID(queue, partition)].messages {
		m := r.store.message(r.partitionID(queue, partition), uint64(o))
		txns = append(txns, string(m.AppendTxn(nil)))
	}
	return txns
}

func TestRedriveMovesEachOnce(t *testing.T) {
	const n = 3*redriveSlice + 7
	r := newRig(t, Config{})
	ids := r.dead(n)
	j := &Redrive{ID: r.id(), Queue: "a", AnyGroup: true, ToPartition: "back"}
	held := r.plan(r.call(j)).Prepare // the first slice waits for payloads
	if len(held) != 1 {
		t.Fatalf("%d slices wait", len(held))
	}
	if j.Outcome != "started" || j.Job.Total != n || j.Job.State != "running" {
		t.Fatalf("%s %+v, want a running job of %d", j.Outcome, j.Job, n)
	}
	// A letter that comes now is not of the job; one that is replayed meanwhile
	// is moved by its replay alone.
	r.dead(5)
	replay := func(id [16]byte) *ReplayDeadLetter { return &ReplayDeadLetter{ID: id, Item: PushItem{ID: r.id()}} }
	other := replay(ids[n-2]) // whose payload is in its row
	r.plan(r.call(other))
	r.resolve(held[0])
	r.do(held...)
	r.work()
	got := r.job(j.ID)
	if other.Outcome != "moved" || got.State != "done" || got.Moved != n-1 || got.Failed+got.Duplicates != 0 {
		t.Fatalf("%+v, replay %s", got, other.Outcome)
	}
	if left := r.m.s.letterIDs("a"); len(left) != 5 || slices.Contains(left, ids[n-1]) {
		t.Fatalf("%d letters are left, want those that came after the job", len(left))
	}
	copies := r.copies("a", "back")
	if len(copies) != int(got.Moved) {
		t.Fatalf("%d copies, %d moved", len(copies), got.Moved)
	}
	sorted := slices.Clone(copies)
	slices.Sort(sorted)
	if len(slices.Compact(sorted)) != len(copies) || !slices.IsSorted(copies) {
		t.Fatal("a letter was moved twice, or out of the order of failures")
	}
	r.restart()
	r.checkpoint(true)
	r.restart()
	if again := r.job(j.ID); again != got {
		t.Errorf("after restarts %+v, before %+v", again, got)
	}
}

// A job goes on where it was after a restart and a change of the leader, at
// whatever cycle they come, also while payloads are being read.
func TestRedriveSurvives(t *testing.T) {
	const n = 20
	for stop := range 12 {
		for _, full := range []bool{true, false} {
			r := newRig(t, Config{})
			r.dead(n)
			r.m.redriving.values = 1
			job := &Redrive{ID: r.id(), Queue: "a", AnyGroup: true, ToQueue: "b", ToPartition: "p"}
			run(r, job)
			var held []*Call
			for range stop {
				p := r.plan(held...)
				held = nil
				for _, c := range p.Prepare {
					r.resolve(c)
					held = append(held, c)
				}
			}
			if full {
				r.checkpoint(true)
				r.restart()
			} else {
				r.m.Follow()
				r.lead()
				r.plan(held...) // they come back late
			}
			r.work()
			if got := r.job(job.ID); got.Moved != n || got.State != "done" || len(r.copies("b", "p")) != n {
				t.Fatalf("stop %d, restart %v: %+v, %d copies", stop, full, got, len(r.copies("b", "p")))
			}
			if left := r.m.s.letterIDs("a"); len(left) != 0 {
				t.Fatalf("%d letters are left", len(left))
			}
			r.restart()
		}
	}
}

func TestRedriveRate(t *testing.T) {
	r := newRig(t, Config{})
	r.dead(40)
	j := run(r, &Redrive{ID: r.id(), Queue: "a", AnyGroup: true, Rate: 10})
	begun := r.job(j.ID).Created
	for n := int64(1); n <= 30; n++ {
		for r.do(); r.job(j.ID).Moved < n; r.do() {
			wake := r.m.nextRedrive()
			if wake <= r.now {
				r.now++
				continue
			}
			r.now = wake
		}
		if at := (r.now - begun) / 1000; at < (n-1)*100 || at > (n-1)*100+20 {
			t.Fatalf("record %d after %d ms, want 10 a second", n, at)
		}
	}
	// What was missed is made up for, a second's worth at most.
	r.now += 3600_000_000
	before := r.job(j.ID).Moved
	r.do()
	if more := r.job(j.ID).Moved - before; more > 11 || more < 10 && r.job(j.ID).State != "done" {
		t.Fatalf("%d at once after an hour", more)
	}
}

func TestRedriveFilters(t *testing.T) {
	for name, c := range map[string]struct {
		r    Redrive
		want int64
	}{
		"all":      {Redrive{AnyGroup: true}, 40},
		"group":    {Redrive{Group: "g1"}, 20},
		"no group": {Redrive{Group: "none"}, 0},
		"error":    {Redrive{AnyGroup: true, Contains: "or 3"}, 8},
		"from":     {Redrive{AnyGroup: true, From: -5}, 5}, // the fifth from the end
		"to":       {Redrive{AnyGroup: true, To: -5}, 36},
		"limit":    {Redrive{AnyGroup: true, Limit: 7}, 7},
		"both":     {Redrive{Group: "g0", Contains: "error 0", Limit: 2}, 2},
	} {
		r := newRig(t, Config{})
		ids := r.dead(40)
		at := func(v *int64) {
			if *v < 0 {
				*v = r.m.s.letters[ids[40+*v]].failed
			}
		}
		at(&c.r.From)
		at(&c.r.To)
		c.r.Queue, c.r.ID = "a", r.id()
		dry := c.r
		dry.DryRun = true
		entries, digest := len(r.entries), r.m.Digest()
		run(r, &dry)
		if len(r.entries) != entries || r.m.Digest() != digest {
			t.Fatalf("%s: a dry run writes", name)
		}
		if dry.Outcome != "dry" || dry.Job.Total != c.want || int64(len(dry.Sample)) != c.want {
			t.Errorf("%s: a dry run says %d (%d shown), want %d", name, dry.Job.Total, len(dry.Sample), c.want)
		}
		j := run(r, &c.r)
		r.work()
		if got := r.job(c.r.ID); j.Job.Total != c.want || got.Moved != c.want || got.State != "done" {
			t.Errorf("%s: total %d, then %+v, want %d", name, j.Job.Total, got, c.want)
		}
		for _, l := range dry.Sample {
			if r.m.s.letters[l.ID] != nil {
				t.Errorf("%s: the dry run showed a letter that was not moved", name)
			}
		}
		if left := len(r.m.s.letters); int64(left) != 40-c.want {
			t.Errorf("%s: %d letters are left", name, left)
		}
	}
}

func TestRedriveWhatCannotMove(t *testing.T) {
	r := newRig(t, Config{})
	ids := r.dead(6)
	run(r, newPush(r.item("a", "p0", "dlq:"+uuidText(ids[0]), nil))) // its copy is there already
	r.m.begin(r.last + 1)
	r.last, r.now = r.last+1, r.last+1
	r.m.fileLetter(&deadLetter{q: r.m.s.findQueue(tenantA, "a"), partition: "p", group: TimerGroup, failed: r.m.now}, nil)
	r.commit(r.m.finish().Data)
	value := r.m.s.letters[ids[3]].value
	delete(r.store.values, value)
	j := run(r, &Redrive{ID: r.id(), Queue: "a", AnyGroup: true})
	r.work()
	if got := r.job(j.ID); got.Total != 6 || got.Moved != 4 || got.Duplicates != 1 || got.Failed != 1 || got.State != "done" {
		t.Fatalf("%+v, want 4 moved, a duplicate and one that cannot be read", got)
	}
	if left := r.m.s.letterIDs("a"); len(left) != 3 {
		t.Fatalf("%d letters are left, want the duplicate, the unreadable one and that of the timer", len(left))
	}
	again := run(r, &Redrive{ID: r.id(), Queue: "a", AnyGroup: true, ToQueue: string(make([]byte, 410))})
	r.work()
	if got := r.job(again.ID); got.Failed != 2 || got.Moved != 0 {
		t.Fatalf("%+v, want two whose names do not fit", got)
	}
}

func TestRedriveEnds(t *testing.T) {
	r := newRig(t, Config{})
	r.dead(10)
	j := run(r, &Redrive{ID: r.id(), Queue: "a", AnyGroup: true, Rate: 1})
	c := run(r, &CancelRedrive{ID: j.ID})
	if !c.Found || c.Job.State != "cancelled" || c.Job.Moved != 1 && c.Job.Moved != 0 {
		t.Fatalf("%+v", c)
	}
	moved := c.Job.Moved
	r.now += 60_000_000
	r.do()
	entries := len(r.entries)
	if again := run(r, &CancelRedrive{ID: j.ID}); again.Job.State != "cancelled" || again.Job.Moved != moved || len(r.entries) != entries {
		t.Fatalf("a second cancel: %+v", again.Job)
	}
	if none := run(r, &CancelRedrive{ID: r.id()}); none.Found {
		t.Fatal("a job that is not there is cancelled")
	}
	if none := run(r, &Redrive{ID: r.id(), Queue: "none", AnyGroup: true}); none.Outcome != "no_queue" {
		t.Fatalf("a job on no queue: %s", none.Outcome)
	}
	// The queue goes while a slice waits for a payload: nothing of it comes back.
	j = run(r, &Redrive{ID: r.id(), Queue: "a", AnyGroup: true, ToQueue: "b", Rate: 1})
	r.now += 1_000_000
	held := r.plan().Prepare
	for n := 0; len(held) == 0 && n < 10; n++ {
		r.now += 1_000_000
		held = r.plan().Prepare
	}
	if len(held) != 1 {
		t.Fatalf("%d slices wait, want one", len(held))
	}
	r.resolve(held[0])
	moved = r.job(j.ID).Moved
	r.plan(r.call(&DeleteQueue{Queue: "a"}), held[0])
	r.now += 2_000_000
	r.do()
	if got := r.job(j.ID); got.State != "cancelled" || got.Moved != moved {
		t.Fatalf("%+v after its queue was deleted, want it cancelled with %d moved", got, moved)
	}
	r.restart()
}

// While the volume is full a job waits, and takes up its work later.
func TestRedrivePauses(t *testing.T) {
	r := newRig(t, Config{})
	r.dead(5)
	r.m.PauseJobs(true)
	j := run(r, &Redrive{ID: r.id(), Queue: "a", AnyGroup: true})
	r.now += 10_000_000
	r.do()
	if got := r.job(j.ID); got.Moved != 0 {
		t.Fatalf("%d moved on a full volume", got.Moved)
	}
	if wake := r.m.nextRedrive(); wake != r.now+pausedWake {
		t.Fatalf("a paused job looks again after %d us", wake-r.now)
	}
	r.m.PauseJobs(false)
	r.work()
	if got := r.job(j.ID); got.Moved != 5 {
		t.Fatalf("%+v", got)
	}
}

// The jobs of a tenant are bounded: those that run, and those that are kept.
func TestRedriveJobsAreBounded(t *testing.T) {
	r := newRig(t, Config{})
	r.twin = nil
	r.dead(2)
	var ids [][16]byte
	for range keptRedrives + 5 {
		j := run(r, &Redrive{ID: r.id(), Queue: "a", Group: "none"})
		r.work()
		ids = append(ids, j.ID)
	}
	list := r.m.s.RedriveJobs(tenantA)
	if len(list) != keptRedrives || list[0].ID != ids[len(ids)-1] || list[len(list)-1].ID != ids[5] {
		t.Fatalf("%d jobs are kept", len(list))
	}
	r.m.PauseJobs(true)
	for i := range maxRedrives {
		if j := run(r, &Redrive{ID: r.id(), Queue: "a", AnyGroup: true}); j.Outcome != "started" {
			t.Fatalf("job %d: %s", i, j.Outcome)
		}
	}
	if j := run(r, &Redrive{ID: r.id(), Queue: "a", AnyGroup: true}); j.Outcome != "too_many" {
		t.Fatalf("one job too many: %s", j.Outcome)
	}
	if other := r.m.s.RedriveJobs(otherTenant); len(other) != 0 {
		t.Fatalf("another tenant sees %d jobs", len(other))
	}
	if c := r.call(&CancelRedrive{ID: ids[9]}); true {
		c.Tenant = otherTenant
		r.do(c)
		if c.Body.(*CancelRedrive).Found {
			t.Fatal("another tenant can cancel")
		}
	}
}
