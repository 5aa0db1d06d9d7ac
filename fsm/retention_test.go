package fsm

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/cespare/xxhash/v2"
)

// BenchmarkRetentionSlice is what one slice of a pass holds the loop for when every partition that it looks at loses
// messages and has a cursor to move, in a pass over 100,000 partitions.
func BenchmarkRetentionSlice(b *testing.B) {
	var took []time.Duration
	for b.Loop() {
		b.StopTimer()
		r := newRig(b, Config{DefaultMode: SubscribeAll, RetentionScan: 1 << 30})
		r.twin = nil
		run(r, &Pop{Queue: "q", Group: "g", Batch: 1, Partitions: 1, LeaseID: r.id()})
		for i := range 100_000 {
			p := &Push{Items: []PushItem{r.item("q", fmt.Sprint("p", i), "", []byte("x"))}}
			p.GroupItems()
			r.m.Plan(r.now+int64(i)+1, []*Call{{Tenant: tenantA, Body: p, Done: func(error) {}}})
		}
		r.now += 200_000
		r.m.Plan(r.now, []*Call{{Tenant: tenantA, Done: func(error) {}, Body: &Configure{Queue: "q", Set: []OptionValue{
			{Name: "retentionEnabled", Flag: true}, {Name: "retentionSeconds", Num: 1},
		}}}})
		r.now += 10_000_000
		b.StartTimer()
		for done := int64(0); done < 100_000; done = r.m.removed.Aged.Load() {
			r.now++
			begun := time.Now()
			r.m.Plan(r.now, nil)
			took = append(took, time.Since(begun))
		}
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds()), "µs-p50")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "µs-p99")
	b.ReportMetric(float64(took[len(took)-1].Microseconds()), "µs-longest")
}

// A batch that retention took from under its lease ends with the ack of its last message, as every batch does: the
// partition does not wait for the lease to expire.
func TestAckEndsABatchThatRetentionTook(t *testing.T) {
	for _, inTxn := range []bool{false, true} {
		t.Run(fmt.Sprint("transaction=", inTxn), func(t *testing.T) {
			r := newRig(t, Config{DefaultMode: SubscribeAll, RetentionScan: 1 << 30})
			run(r, &Configure{Queue: "q", Set: []OptionValue{{Name: "maxWaitTimeSeconds", Num: 2}}})
			push := func(txn string) {
				p := &Push{Items: []PushItem{r.item("q", "p", txn, []byte("x"))}}
				p.GroupItems()
				run(r, p)
			}
			pop := func() *Pop {
				return run(r, &Pop{Queue: "q", Group: "g", Batch: 10, Partitions: 1, LeaseSeconds: 600, LeaseID: r.id()})
			}
			push("a0")
			push("a1")
			p := pop()
			if len(p.Claims) != 1 {
				t.Fatalf("claims %+v", p.Claims)
			}
			ack := func(txn string) (it AckItem) {
				it = AckItem{Txn: []byte(txn), TxnHash: xxhash.Sum64String(txn), PartitionID: p.Claims[0].PartitionID, Group: "g", Status: Completed, LeaseID: p.LeaseID, HasLease: true}
				if inTxn {
					x := run(r, &Txn{Acks: []AckItem{it}})
					return x.Acks[0]
				}
				return run(r, &Ack{Items: []AckItem{it}}).Items[0]
			}
			for range 20 {
				r.now += 1_000_000
				r.do()
			}
			push("b")
			if it := ack("a0"); !it.Success || it.LeaseReleased || !it.Noop && !inTxn {
				t.Errorf("ack within the batch: %+v", it)
			}
			if again := pop(); len(again.Claims) != 0 {
				t.Errorf("delivered under a live lease: %+v", again.Claims)
			}
			if it := ack("a1"); !it.Success || !it.LeaseReleased {
				t.Errorf("ack at the end of the batch: %+v", it)
			}
			if again := pop(); len(again.Claims) != 1 || again.Claims[0].From != 2 {
				t.Errorf("after the batch: %+v", again.Claims)
			}
		})
	}
}

// A worker that gives a message back which retention took, with all of its batch, ends the batch: nothing is left to
// deliver again, and the partition does not wait for the lease to expire. While a part of the batch is left, it is told
// that the message is settled.
func TestNackOfABatchThatRetentionTook(t *testing.T) {
	for _, status := range []AckStatus{Failed, Retry, DeadLetter} {
		t.Run(fmt.Sprint("status=", status), func(t *testing.T) {
			r := newRig(t, Config{DefaultMode: SubscribeAll, RetentionScan: 1 << 30})
			run(r, &Configure{Queue: "q", Set: []OptionValue{{Name: "maxWaitTimeSeconds", Num: 5}}})
			push := func(txn string) {
				p := &Push{Items: []PushItem{r.item("q", "p", txn, []byte("x"))}}
				p.GroupItems()
				run(r, p)
			}
			pop := func() *Pop {
				return run(r, &Pop{Queue: "q", Group: "g", Batch: 10, Partitions: 1, LeaseSeconds: 600, LeaseID: r.id()})
			}
			wait := func(seconds int) {
				for range seconds {
					r.now += 1_000_000
					r.do()
				}
			}
			push("a0")
			wait(4)
			push("a1")
			p := pop()
			if len(p.Claims) != 1 || p.Claims[0].Count != 2 {
				t.Fatalf("claims %+v", p.Claims)
			}
			nack := func() AckItem {
				return run(r, &Ack{Items: []AckItem{{Txn: []byte("a0"), TxnHash: xxhash.Sum64String("a0"), PartitionID: p.Claims[0].PartitionID,
					Group: "g", Status: status, LeaseID: p.LeaseID, HasLease: true}}}).Items[0]
			}
			logStart := func() (start uint64) {
				run(r, &Read{Do: func(s *State) { ps, _ := s.Partitions(tenantA, "q", 0, 1); start = ps[0].LogStart }})
				return start
			}
			for logStart() < 1 {
				wait(1)
			}
			if logStart() == 1 {
				if it := nack(); it.Success || it.LeaseReleased {
					t.Errorf("with a part of the batch left: %+v", it)
				}
			}
			for logStart() < 2 {
				wait(1)
			}
			push("b")
			if again := pop(); len(again.Claims) != 0 {
				t.Errorf("delivered under a live lease: %+v", again.Claims)
			}
			if it := nack(); !it.Success || !it.LeaseReleased || it.DLQ {
				t.Errorf("with all of the batch gone: %+v", it)
			}
			if again := pop(); len(again.Claims) != 1 || again.Claims[0].From != 2 {
				t.Errorf("after the batch: %+v", again.Claims)
			}
		})
	}
}
