package fsm

import (
	"fmt"
	"testing"

	"github.com/cespare/xxhash/v2"
)

// A step is a transaction of 1 ack, 10 pushes, 2 KV operations and 1 timer; the
// budget of planning it is 10 us. perCycle is how many share a cycle.
func BenchmarkStep(b *testing.B) {
	for _, perCycle := range []int{1, 16} {
		b.Run(fmt.Sprintf("cycle=%d", perCycle), func(b *testing.B) {
			s := newStepBench(b)
			b.ReportAllocs()
			b.ResetTimer()
			for done := 0; done < b.N; done += perCycle {
				calls := s.take(b, perCycle)
				s.now += 100
				p := s.r.m.Plan(s.now, calls)
				if p.Data == nil || len(p.Prepare) > 0 {
					b.Fatal("a step was not planned at once")
				}
				p.Answer(nil)
			}
			b.StopTimer()
			for _, c := range s.used {
				if t := c.Body.(*Txn); t.Reason != "" {
					b.Fatalf("a step was refused: %s %s", t.Reason, t.Error)
				}
			}
		})
	}
}

const benchPartitions, benchBatch = 200, 100

type stepBench struct {
	r     *rig
	now   int64
	calls []*Call // made ahead of time
	used  []*Call
	n     int
}

func newStepBench(b *testing.B) *stepBench {
	s := &stepBench{r: newRig(b, Config{DedupBytes: 256 << 20, TimersOff: true})}
	s.r.twin = nil
	var items []PushItem
	for i := range benchPartitions {
		items = append(items, s.r.item("in", fmt.Sprint("p", i), "m", nil), s.r.item("out", fmt.Sprint("p", i), "m", nil))
	}
	run(s.r, newPush(items...))
	s.now = s.r.now
	return s
}

// take gives the next n calls; their making is not measured.
func (s *stepBench) take(b *testing.B, n int) []*Call {
	if len(s.calls) < n {
		b.StopTimer()
		s.refill()
		b.StartTimer()
	}
	calls := s.calls[:n:n]
	s.calls = s.calls[n:]
	return calls
}

// refill leases a batch and makes the steps that ack it message by message.
func (s *stepBench) refill() {
	r := s.r
	r.now = s.now + 1
	part := fmt.Sprint("p", s.n/benchBatch%benchPartitions)
	var items []PushItem
	for i := range benchBatch {
		items = append(items, r.item("in", part, fmt.Sprint("in-", s.n+i), make([]byte, 256)))
	}
	run(r, newPush(items...))
	lease := leaseID(fmt.Sprint("L", s.n))
	run(r, &Pop{Queue: "in", Partition: part, Group: "g", Mode: SubscribeAll, Batch: benchBatch + 1, Partitions: 1, LeaseID: lease, LeaseSeconds: 1e6})
	s.now = r.now
	pid := r.partitionID("in", part)
	s.calls, s.used = nil, nil
	for i := range items {
		c := r.call(s.step(pid, lease, items[i].Txn))
		c.Done = func(error) {}
		s.calls = append(s.calls, c)
	}
	s.used = s.calls
}

func (s *stepBench) step(partition uint64, lease [16]byte, txn []byte) *Txn {
	r := s.r
	s.n++
	t := &Txn{Acks: []AckItem{{
		Txn: txn, TxnHash: xxhash.Sum64(txn), PartitionID: partition, Group: "g", HasLease: true, LeaseID: lease,
	}}}
	out := fmt.Sprint("p", s.n%benchPartitions)
	for i := range 10 {
		t.Push.Items = append(t.Push.Items, r.item("out", out, fmt.Sprint("out-", s.n, "-", i), make([]byte, 256)))
	}
	t.Push.GroupItems()
	t.KV = []KVOp{
		{Kind: KVPut, NS: "state", Key: fmt.Sprint("k", s.n%1000), Value: []byte(`{"s":"routed"}`), TTL: 3600},
		{Kind: KVPutIfAbsent, NS: "seen", Key: fmt.Sprint("k", s.n), Value: []byte("1"), TTL: 3600, Required: true},
	}
	it := r.item("chase", "p", "", []byte(`{"due":true}`))
	t.Timers = []TimerOp{{Queue: "chase", Partition: "p", Key: fmt.Sprint("t", s.n%1000), DelayMs: 1e6, MessageID: it.ID, Message: it.Packed}}
	return t
}

// BenchmarkDeliver is a push of one message that a waiting pop gets, and its ack.
func BenchmarkDeliver(b *testing.B) {
	r := newRig(b, Config{DedupBytes: 256 << 20})
	r.twin = nil
	run(r, newPush(r.item("q", "p", "first", nil)))
	now := r.now
	part := r.partitionID("q", "p")
	first := true
	b.ReportAllocs()
	for b.Loop() {
		b.StopTimer()
		now += 100
		pop := r.call(&Pop{Queue: "q", Group: "g", Batch: 10, Partitions: 1, LeaseID: leaseID(fmt.Sprint("L", now)), WaitMicros: 1e9})
		it := r.item("q", "p", fmt.Sprint("m", now), make([]byte, 256))
		push := r.call(newPush(it))
		ack := r.call(&Ack{Items: []AckItem{{
			Txn: it.Txn, TxnHash: it.TxnHash, PartitionID: part, Group: "g", HasLease: true, LeaseID: pop.Body.(*Pop).LeaseID,
		}}})
		for _, c := range []*Call{pop, push, ack} {
			c.Done = func(error) {}
		}
		b.StartTimer()
		r.m.Plan(now, []*Call{pop})
		r.m.Plan(now+1, []*Call{push})
		r.m.Plan(now+2, []*Call{ack})
		if p := pop.Body.(*Pop); len(p.Claims) != 1 || !ack.Body.(*Ack).Items[0].Success {
			b.Fatalf("claims %d, ack %+v, first %v", len(p.Claims), ack.Body.(*Ack).Items[0], first)
		}
		first = false
	}
}

// BenchmarkApply is how fast a follower, or a boot, applies the entries of steps.
func BenchmarkApply(b *testing.B) {
	s := newStepBench(b)
	var entries [][]byte
	for range 2 * benchBatch {
		s.now += 100
		entries = append(entries, s.r.m.Plan(s.now, s.take(b, 1)).Data)
	}
	size := 0
	for _, e := range entries {
		size += len(e)
	}
	m := New(Config{DedupBytes: 256 << 20})
	for i, e := range s.r.entries {
		if err := m.Apply(uint64(i), 1, e); err != nil {
			b.Fatal(err)
		}
	}
	b.SetBytes(int64(size / len(entries)))
	b.ReportAllocs()
	n := 0
	for b.Loop() {
		if err := m.Apply(uint64(n), 1, entries[n%len(entries)]); err != nil {
			b.Fatal(err)
		}
		n++
	}
}
