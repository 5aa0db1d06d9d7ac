package fsm

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"
	"time"
)

const minute = int64(60_000_000)

// pass moves the rig's time on and lets everything that is due happen.
func (r *rig) pass(d int64) {
	r.t.Helper()
	r.now += d
	for n := 0; ; n++ {
		r.plan()
		if w := r.m.nextWake(); w == 0 || w > r.now+1000 {
			return
		}
		if n > 10_000 {
			r.t.Fatalf("the machine does not come to rest")
		}
	}
}

// buckets are those of a queue, or of all (queue empty), of the last minutes.
func (r *rig) buckets(queue string, width, minutes int64) []StatPoint {
	rg := &StatRange{Width: width, From: r.now - minutes*minute, To: r.now}
	if queue == "" {
		return r.m.s.Stats(tenantA, rg)
	}
	out, _ := r.m.s.QueueStats(tenantA, &QueueFilter{Queue: queue, Limit: 1}, rg)
	if len(out) == 0 {
		return nil
	}
	return out[0].Points
}

// What calls count, in their queue and in the tenant.
func TestStatsCount(t *testing.T) {
	r := newRig(t, Config{})
	run(r, newPush(r.item("a", "p", "m1", nil), r.item("a", "q", "m2", nil), r.item("a", "p", "m3", nil), r.item("b", "p", "m1", nil)))
	run(r, newPush(r.item("a", "p", "m1", nil))) // a duplicate
	p := run(r, &Pop{Queue: "a", Group: "g", Mode: SubscribeAll, Batch: 9, Partitions: 2, LeaseID: leaseID("L")})
	for _, c := range p.Claims {
		c.Lag.Add(int64(c.Count), int64(c.Count)*3000, 4000)
	}
	run(r, &Pop{Queue: "a", Group: "g", Batch: 9, Partitions: 2, LeaseID: leaseID("M")})
	run(r, &Ack{Items: []AckItem{r.ack("a", "p", "g", "m1", "L", Completed), r.ack("a", "p", "g", "m3", "L", DeadLetter), r.ack("a", "p", "g", "zz", "L", Completed)}})
	run(r, &Txn{Acks: []AckItem{r.ack("a", "q", "g", "m2", "L", Completed)}, Push: *newPush(r.item("b", "p", "m9", nil))})
	want := map[string]Tally{
		"a": {PushRequests: 2, PushMessages: 3, PopRequests: 1, PopMessages: 3, PopEmpty: 1, AckRequests: 1, AckSuccess: 2, AckFailed: 2, Settled: 3,
			Transactions: 1, PartitionsCreated: 2, DeadLetters: 1, LagMessages: 3, LagSum: 9000, LagMax: 4000, Partitions: 2},
		"b": {PushRequests: 1, PushMessages: 2, Transactions: 1, PartitionsCreated: 1, Partitions: 1, Pending: 2},
		"": {PushRequests: 2, PushMessages: 5, PopRequests: 1, PopMessages: 3, PopEmpty: 1, AckRequests: 1, AckSuccess: 2, AckFailed: 2, Settled: 3,
			Transactions: 1, PartitionsCreated: 3, DeadLetters: 1, LagMessages: 3, LagSum: 9000, LagMax: 4000},
	}
	check := func(when string) {
		t.Helper()
		for queue, tally := range want {
			for _, tier := range statTiers {
				got := r.buckets(queue, tier.width, 720)
				if queue == "" && when == "at once" { // the lag is with the queue's until it is written
					tally.LagMessages, tally.LagSum, tally.LagMax = 0, 0, 0
				}
				if len(got) != 1 || got[0].Tally != tally {
					t.Errorf("%s, queue %q, width %d: %+v, want %+v", when, queue, tier.width, got, tally)
				}
			}
		}
	}
	check("at once")
	if rows := len(r.m.s.queues[1].stats.rows[0]); rows != 0 {
		t.Errorf("%d rows before the minute is over", rows)
	}
	r.pass(minute)
	check("when the minute is over")
	r.restart()
	check("after a restart")
	r.checkpoint(true)
	r.restart()
	check("from a checkpoint")
	entries := len(r.entries)
	r.pass(59 * minute)
	if n := len(r.entries) - entries; n != 0 {
		t.Errorf("%d entries of a broker that does nothing", n)
	}
	check("an hour later")
}

// Refused calls and reads count nothing, and write nothing.
func TestStatsOfNothing(t *testing.T) {
	r := newRig(t, Config{})
	run(r, newPush(r.item("a", "p", "m1", nil)))
	r.pass(2 * minute)
	before, entries := r.m.Digest(), len(r.entries)
	run(r, &Txn{Push: *newPush(r.item("a", "p", "m1", nil))}) // a duplicate
	run(r, &Read{Do: func(s *State) { s.Stats(tenantA, &StatRange{Width: 1, To: r.now}) }})
	run(r, &DeleteQueue{Queue: "none"})
	r.pass(10 * minute)
	if r.m.Digest() != before || len(r.entries) != entries {
		t.Errorf("%d entries for calls that did nothing", len(r.entries)-entries)
	}
}

// Buckets are merged to wider ones and go with age; a queue that did nothing for long has none, and gives its place back.
func TestStatsAge(t *testing.T) {
	r := newRig(t, Config{StatDays: 3, StatQueues: 1})
	r.twin = nil
	for range 300 {
		run(r, newPush(r.item("a", "p", fmt.Sprint(r.seq), nil), r.item("b", "p", fmt.Sprint(r.seq), nil)))
		r.pass(minute)
	}
	own := r.m.s.queues[1].stats
	if r.m.s.queues[2].stats.q != nil {
		t.Error("queue b has a series though there is room for one")
	}
	if got := r.buckets("", 60, 400); len(got) < 5 || got[1].PushMessages != 120 {
		t.Errorf("messages of both queues: %+v", got)
	}
	for tier, t1 := range statTiers {
		sum := int64(0)
		for _, p := range r.buckets("a", t1.width, 1000) {
			sum += p.PushMessages
		}
		if want := min(300, t1.keep); t1.keep > 0 && (sum < want || sum > want+61) {
			t.Errorf("width %d: %d messages, want those of %d minutes", t1.width, sum, want)
		}
		if n := len(own.rows[tier]); int64(n) > 300/t1.width+2 {
			t.Errorf("width %d: %d rows", t1.width, n)
		}
	}
	for range 2 {
		r.pass(48 * 60 * minute)
		r.pass(61 * minute)
	}
	if n := r.m.stats.queues; n != 0 || r.m.s.queues[1].stats != nil {
		t.Errorf("%d series of idle queues", n)
	}
	run(r, newPush(r.item("b", "p", "late", nil)))
	if r.m.s.queues[2].stats.q == nil {
		t.Error("the place that became free was not given to queue b")
	}
	r.checkpoint(false)
	r.restart()
}

// A queue's buckets go with it.
func TestStatsOfADeletedQueue(t *testing.T) {
	for _, full := range []bool{false, true} {
		r := newRig(t, Config{StatQueues: 1})
		run(r, newPush(r.item("a", "p", "m1", nil)))
		r.pass(minute)
		r.checkpoint(full)
		run(r, newPush(r.item("a", "p", "m2", nil))) // counts in a minute that is not over
		run(r, &DeleteQueue{Queue: "a"})
		r.pass(2 * minute)
		for key := range allRows(r.m) {
			if key[0] == rowStats && !bytes.HasPrefix([]byte(key[1:]), make([]byte, 8)) {
				t.Errorf("row %x is left", key)
			}
		}
		run(r, newPush(r.item("c", "p", "m1", nil)))
		if r.m.s.queueName[tenantA+"c"].stats.q == nil {
			t.Error("the deleted queue keeps its place")
		}
		r.pass(minute)
		r.checkpoint(false)
		r.restart()
		if got := r.buckets("", 360, 720); len(got) != 1 && len(got) != 2 {
			t.Errorf("buckets of the tenant: %+v", got)
		}
	}
}

// A node that stops writes what the running minute has counted, and goes on with it.
func TestStatsAreWrittenAtAStop(t *testing.T) {
	r := newRig(t, Config{})
	run(r, newPush(r.item("a", "p", "m1", nil)))
	run(r, &ReleaseParked{})
	for r.plan().More {
	}
	r.restart()
	run(r, newPush(r.item("a", "p", "m2", nil)))
	r.pass(minute)
	if got := r.buckets("a", 1, 2); len(got) != 1 || got[0].PushMessages != 2 {
		t.Errorf("the minute of the restart: %+v", got)
	}
}

// F24: what a cycle writes, sweeps and reads is bounded, however many queues there are.
func TestStatsInSlices(t *testing.T) {
	const queues = 700
	r := newRig(t, Config{})
	r.twin = nil
	var items []PushItem
	for i := range queues {
		items = append(items, r.item(fmt.Sprintf("q%04d", i), "p", "m", nil))
	}
	run(r, newPush(items...))
	r.now += minute
	cycles := 0
	for len(r.m.stats.due) > 0 {
		before := len(r.m.stats.due)
		r.plan()
		if n := before - len(r.m.stats.due); n > statSlice+1 {
			t.Fatalf("a cycle wrote %d series", n)
		}
		if cycles++; cycles > 100 {
			t.Fatal("the series are not written")
		}
	}
	if cycles < queues/statSlice {
		t.Errorf("%d series in %d cycles", queues, cycles)
	}
	f := &QueueFilter{Limit: queues + 1}
	seen, reads := 0, 0
	for more := true; more; reads++ {
		var out []QueueStats
		out, more = r.m.s.QueueStats(tenantA, f, &StatRange{Width: 1, From: r.now - 5*minute, To: r.now})
		if seen += len(out); len(out) > viewSlice {
			t.Fatalf("%d queues in one read", len(out))
		}
	}
	if seen != queues || reads < 2 {
		t.Errorf("%d queues in %d reads, want %d", seen, reads, queues)
	}
	r.checkpoint(true)
	r.restart()
	if r.m.stats.queues != queues {
		t.Errorf("%d series after the restart", r.m.stats.queues)
	}
}

// The value of a bucket, byte by byte: old data directories hold it.
func TestStatsFormat(t *testing.T) {
	q := &queue{id: 3}
	r := &statRow{s: &series{q: q}, tier: 2, start: 29_000_000}
	tally := Tally{PushRequests: 1, PushMessages: 300, PopEmpty: 2, LagSum: 5, Parked: 7}
	r.set(&tally)
	const key = "0d0000000000000003" + "02" + "01ba8140"
	if got := hex.EncodeToString(r.appendKey(nil)); got != key {
		t.Errorf("key %s, want %s", got, key)
	}
	const value = "01" + "01" + "ac02" + "0000" + "02" + "000000000000000000" + "05" + "000000" + "07"
	if got := hex.EncodeToString(r.encode(nil)); got != value {
		t.Errorf("value %s, want %s", got, value)
	}
	var back Tally
	if err := back.decode(r.enc); err != nil || back != tally {
		t.Errorf("decoded %+v, %v", back, err)
	}
	total := &statRow{s: &series{tenant: strings.Repeat("t", 36)}, start: 1}
	if got := hex.EncodeToString(total.appendKey(nil)); got != "0d0000000000000000"+strings.Repeat("74", 36)+"00"+"00000001" {
		t.Errorf("key of a tenant's bucket %s", got)
	}
	for _, bad := range [][]byte{nil, {2}, {1, 0x80}, append(bytes.Repeat([]byte{1}, 20), 1)} {
		if err := back.decode(bad); err == nil {
			t.Errorf("value %x is taken", bad)
		}
	}
	m := New(Config{})
	for _, bad := range []string{"0d", "0d0000000000000003", key + "00", "0d0000000000000003" + "05" + "01ba8140", "0d0000000000000000" + "02" + "01ba8140"} {
		k, _ := hex.DecodeString(bad)
		if err := m.LoadRow(k, r.enc); err == nil {
			t.Errorf("key %s is taken", bad)
		}
		if _, err := DecodeRow(k, r.enc); err == nil {
			t.Errorf("key %s decodes", bad)
		}
	}
	k, _ := hex.DecodeString(key)
	info, err := DecodeRow(k, r.enc)
	if err != nil || info.Queue != 3 || info.Field("pushMessages") != int64(300) || info.Field("minutes") != int64(15) {
		t.Errorf("decoded row %+v, %v", info, err)
	}
}

// What a series takes that counted all the time. The numbers stand in DESIGN.md.
func TestStatsMemory(t *testing.T) {
	var before, after runtime.MemStats
	m := New(Config{})
	q := &queue{id: 1, tenant: tenantA, exists: true}
	tally := Tally{PushRequests: 1e5, PushMessages: 1e6, PopRequests: 1e5, PopMessages: 1e6, AckRequests: 1e5, AckSuccess: 1e6, LagMessages: 1e6, LagSum: 1e9, LagMax: 1e6, Partitions: 200, Pending: 1e4}
	runtime.GC()
	runtime.ReadMemStats(&before)
	const copies = 20
	var all []*series
	rows := 0
	for range copies {
		s := &series{q: q}
		for tier := range statTiers {
			n := m.cfg.keeps(s, tier)/statTiers[tier].width + 60/statTiers[tier].width + 1
			for i := range n {
				s.row(tier, i*statTiers[tier].width).set(&tally)
				rows++
			}
		}
		all = append(all, s)
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	each := int64(after.HeapAlloc-before.HeapAlloc) / copies
	t.Logf("a series: %d rows, %d bytes", rows/copies, each)
	if each > 120<<10 || rows/copies > 1000 {
		t.Errorf("a series takes %d bytes in %d rows", each, rows/copies)
	}
	runtime.KeepAlive(all)
}

// Random runs over hours, with restarts and checkpoints in between: what is counted is what was done, in every width.
func TestStatsAddUp(t *testing.T) {
	for seed := range uint64(6) {
		rnd := rand.New(rand.NewPCG(seed, 13))
		r := newRig(t, Config{StatQueues: 2})
		pushed := map[string]int64{}
		for range 150 {
			queue := string(rune('a' + rnd.IntN(3)))
			run(r, newPush(r.item(queue, "p", fmt.Sprint(r.seq), nil)))
			pushed[queue]++
			pushed[""]++
			switch rnd.IntN(12) {
			case 0:
				r.checkpoint(rnd.IntN(2) == 0)
			case 1:
				r.pass(minute) // so that nothing of the running minute is lost
				r.restart()
			case 2:
				r.pass(rnd.Int64N(9) * minute)
			default:
				r.pass(rnd.Int64N(minute))
			}
		}
		for queue, want := range pushed {
			for _, width := range []int64{60, 360} {
				sum := int64(0)
				for _, p := range r.buckets(queue, width, 24*60) {
					sum += p.PushMessages
				}
				q := r.m.s.queueName[tenantA+queue]
				if own := queue == "" || q.stats != nil && q.stats.q != nil; own && sum != want {
					t.Errorf("seed %d, queue %q, width %d: %d messages, want %d", seed, queue, width, sum, want)
				}
			}
		}
	}
}

// The width of buckets by the length of a time, and by its age.
func TestStatWidth(t *testing.T) {
	s := newState()
	s.now = 1e15
	for _, c := range []struct{ span, age, want, total int64 }{
		{60, 60, 1, 1}, {61, 61, 5, 5}, {360, 360, 5, 5}, {361, 361, 15, 15}, {1440, 1440, 15, 15}, {1441, 1441, 60, 60},
		{7 * 1440, 7 * 1440, 60, 60}, {7*1440 + 1, 7*1440 + 1, 360, 360}, {10, 91, 5, 1}, {10, 26*60 + 1, 60, 60}, {10, 8 * 1440, 360, 360},
	} {
		from := s.now - c.age*minute
		if got := s.StatWidth(from, from+c.span*minute, false); got != c.want {
			t.Errorf("%d minutes, %d ago: width %d, want %d", c.span, c.age, got, c.want)
		}
		if got := s.StatWidth(from, from+c.span*minute, true); got != c.total {
			t.Errorf("%d minutes, %d ago, of a tenant: width %d, want %d", c.span, c.age, got, c.total)
		}
	}
}

// The sums over queues are those of the queues, page by page; readings of a million partitions look at a slice each.
func TestSumsAndPartitionsPage(t *testing.T) {
	r := newRig(t, Config{})
	r.twin = nil
	const queues = 40
	want := 0
	for i := range queues {
		var items []PushItem
		for p := range i * 10 {
			items = append(items, r.item(fmt.Sprintf("q%02d", i), fmt.Sprint("p", p), "m", nil))
		}
		if i == 0 {
			run(r, &Configure{Queue: "q00"})
			continue
		}
		run(r, newPush(items...))
		want += len(items)
	}
	for _, limit := range []int{7, 10, 999, 1000, 1001, want - 1, want, want + 1} {
		var names []string
		for offset := 0; ; offset += limit {
			f, after, got := &QueueFilter{Offset: offset, Limit: limit}, 0, 0
			for more := true; more && f.Limit > 0; {
				var page []PartitionPlace
				page, more = r.m.s.FindPartitions(tenantA, f, &after)
				if len(page) > viewSlice {
					t.Fatalf("%d partitions in one read", len(page))
				}
				for _, p := range page {
					names = append(names, p.Queue+"/"+p.Name)
				}
				got += len(page)
			}
			if got < limit {
				break
			}
		}
		if len(names) != want || names[want-1] != "q39/p389" {
			t.Errorf("pages of %d: %d partitions, want %d", limit, len(names), want)
		}
	}
	var sums QueueSums
	f := &QueueFilter{}
	for r.m.s.SumQueues(tenantA, f, nil, &sums) {
	}
	if sums.Queues != queues || sums.Partitions != int64(want) || sums.Total != int64(want) || sums.Pending != int64(want) {
		t.Errorf("sums %+v", sums)
	}
	labels := map[string]LabelSums{}
	f = &QueueFilter{Namespace: "q39", HasNamespace: true}
	for r.m.s.SumLabels(tenantA, f, false, labels) {
	}
	if len(labels) != 1 || labels["q39"].Partitions != 390 {
		t.Errorf("labels %+v", labels)
	}
}

// What counting costs a push. (The figure is in DESIGN.md; it allocates nothing.)
func BenchmarkTally(b *testing.B) {
	m := New(Config{})
	m.stats.begin(time.Now().UnixMicro())
	q := &queue{id: 1, tenant: tenantA, exists: true}
	m.tally(q)
	b.ReportAllocs()
	for range b.N {
		s := m.tally(q)
		s.cur.PushMessages++
		s.up.cur.PushMessages++
	}
}
