package retention

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"queen/fsm"
	"queen/internal/entry"
	"queen/internal/vfs"
	"queen/raftlog"
)

// A simulated week of traffic at a fixed rate: what is on disk and in memory on day 7 is what it was on day 2. `make
// week` prints it.
//
// Every ten minutes: pushes into a queue that keeps six hours, into one that keeps what is not consumed and half an
// hour more, and into a partition of its own that nobody writes to again; acks out of order, a dead letter that is
// purged the day after, keys with a lifetime, timers; and each hour a queue that is deleted again.
func TestWeek(t *testing.T) {
	if testing.Short() {
		t.Skip("a week takes 20 s, and minutes with the race detector")
	}
	for _, shards := range []int{0, 2} {
		t.Run(fmt.Sprint("shards=", shards), func(t *testing.T) { week(t, shards) })
	}
}

const stepsPerDay = 144

// daily sums what a day measured.
type daily struct{ disk, rows, dedup, index, files int64 }

func (d *daily) memory() int64 { return d.rows + d.dedup + d.index }

func week(t *testing.T, shards int) {
	r := &rig{t: t, clock: newClock(), shards: shards, dedup: 32 << 10, group: func(c *raftlog.Config) { c.CompactSlack = 16 << 10 }}
	r.fs = vfs.NewMem(7)
	r.start()
	r.configure("events", retentionOn, number("retentionSeconds", 6*3600))
	r.configure("work", retentionOn, number("completedRetentionSeconds", 1800))
	r.configure("late", number("maxWaitTimeSeconds", 3600), number("dedupWindowSeconds", 600))
	var days [7]daily
	for step := range 7 * stepsPerDay {
		r.traffic(step)
		r.clock.advance(5 * time.Minute)
		r.call(&fsm.Read{Do: func(*fsm.State) {}})
		r.clock.advance(5 * time.Minute)
		r.call(&fsm.Read{Do: func(*fsm.State) {}})
		c := r.b.Reclaimed()
		r.await(func() bool { return r.b.Preparing() == 0 && c.Begun.Load() == c.Passes.Load() })
		d := &days[step/stepsPerDay]
		files, disk := r.disk()
		rows, dedup, index, err := r.b.MemoryBytes()
		if err != nil {
			t.Fatal(err)
		}
		d.disk, d.rows, d.dedup, d.index, d.files = d.disk+disk+r.bytes("data/checkpoint"), d.rows+rows, d.dedup+dedup, d.index+index, d.files+int64(len(files))
	}
	for i := range days {
		d := &days[i]
		t.Logf("day %d: disk %7d bytes in %3d log files, memory %6d bytes (rows %6d, ids %6d, positions %6d)", i+1,
			d.disk/stepsPerDay, d.files/stepsPerDay, d.memory()/stepsPerDay, d.rows/stepsPerDay, d.dedup/stepsPerDay, d.index/stepsPerDay)
	}
	disk, memory := float64(days[6].disk)/float64(days[1].disk), float64(days[6].memory())/float64(days[1].memory())
	f := r.b.Status().Freed
	var heap runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&heap)
	t.Logf("day 7 to day 2: disk %.3f, memory %.3f; freed %+v; heap with the files in it %d bytes", disk, memory, f, heap.HeapAlloc)
	if disk > 1.1 || memory > 1.1 {
		t.Errorf("day 7 to day 2: disk %.3f, memory %.3f, at most 1.1 each", disk, memory)
	}
	if f.Failures != 0 || f.FailedLookups != 0 {
		t.Errorf("something failed: %+v", f)
	}
	r.kill() // what it left, the next start accepts
	r.traffic(7 * stepsPerDay)
	r.stop()
}

// traffic is that of one step.
func (r *rig) traffic(step int) {
	push := &fsm.Push{}
	for i := range 12 {
		push.Items = append(push.Items,
			r.item("events", fmt.Sprint("p", i%5), fmt.Sprint(step, "-", i), strings.Repeat("e", 300)),
			r.item("work", fmt.Sprint("p", i%3), fmt.Sprint(step, "-", i), strings.Repeat("w", 300)))
	}
	push.Items = append(push.Items, r.item("late", "p", fmt.Sprint(step), strings.Repeat("l", 600)))
	push.GroupItems()
	r.call(push)
	r.consume("events", "g", 12)
	r.work(step)
	r.call(&fsm.KV{Ops: []fsm.KVOp{{Kind: fsm.KVPut, NS: "week", Key: fmt.Sprint(step), Value: []byte(`"v"`), TTL: 7200}}})
	m := entry.Message{ID: r.id(), Payload: []byte(strings.Repeat("t", 400)), Txn: []byte(fmt.Sprint("t", step))}
	r.call(&fsm.Timers{Ops: []fsm.TimerOp{{Queue: "events", Partition: "timed", Key: fmt.Sprint(step), DelayMs: 3600_000, Txn: m.Txn, MessageID: m.ID, Message: entry.AppendMessage(nil, &m)}}})
	if step%6 == 0 {
		r.push("hourly", "p", fmt.Sprint(step), strings.Repeat("h", 2000))
		r.call(&fsm.DeleteQueue{Queue: "hourly"})
	}
	if step%stepsPerDay == stepsPerDay-1 {
		r.call(&fsm.PurgeDeadLetters{Queue: "work", AnyGroup: true})
	}
}

// work takes a batch under leases; one message of the day is filed, and the last of each batch comes back.
func (r *rig) work(step int) {
	pop := &fsm.Pop{Queue: "work", Group: "g", Batch: 15, Partitions: 3, LeaseSeconds: 60, LeaseID: r.id()}
	r.call(pop)
	ack := &fsm.Ack{}
	for _, c := range pop.Claims {
		err := r.b.Reader().ReadMessages(c.QueueID, c.PartitionID, c.From, c.To, func(offset uint64, _ int64, m *entry.Message) error {
			it := fsm.AckItem{Txn: m.AppendTxn(nil), PartitionID: c.PartitionID, Group: "g", HasLease: true, LeaseID: pop.LeaseID}
			it.TxnHash = hash(string(it.Txn))
			switch {
			case step%stepsPerDay == 7 && offset == c.From:
				it.Status = fsm.DeadLetter
			case offset == c.To && step%2 == 0:
				it.Status = fsm.Retry
			}
			ack.Items = append(ack.Items, it)
			return nil
		})
		if err != nil {
			r.t.Fatal(err)
		}
	}
	r.call(ack)
	for _, it := range ack.Items {
		if !it.Success {
			r.t.Fatalf("ack of %s: %s", it.Txn, it.Err)
		}
	}
}
