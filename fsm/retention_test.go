package fsm

import (
	"fmt"
	"slices"
	"testing"
	"time"
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
