package main

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"queen/tools/internal/wire"
)

// popAnswer is an answer of the pop route, in the contract's field order.
func popAnswer(n int) []byte {
	s := &session{Config: &Config{}, tag: "00000a"}
	src := s.source(1)
	var b strings.Builder
	b.WriteString(`{"success":true,"queue":"in","partition":"p7","partitionId":"31","leaseId":"L-1","consumerGroup":"g","messages":[`)
	for i := range n {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `{"id":"i%d","transactionId":"t-%d","traceId":null,"data":"%s","producerSub":null,"createdAt":"2026-11-03T08:15:27.004118Z",`+
			`"partitionId":"31","partition":"p7","leaseId":"L-1","consumerGroup":"g","offset":%d,"deliveryAttempt":1}`,
			i, i, src.itemText(int64(i)), i)
	}
	b.WriteString(`],"partitionsClaimed":1}`)
	return []byte(b.String())
}

// itemText is the payload of itemDue.
func (s *source) itemText(due int64) []byte {
	return s.text(appendHex(nil, uint64(due), 16), textBytes-16)
}

func testStepper(batch int, ackAll bool) *stepper {
	s := &session{Config: &Config{Batch: batch, AckAll: ackAll}, tag: "00000a"}
	return &stepper{s: s, lane: &lane{m: &meter{}}, conn: wire.NewConn("x:1"), src: s.source(2), in: []byte("in"), out: []byte("out")}
}

func TestStepTransaction(t *testing.T) {
	for _, ackAll := range []bool{false, true} {
		w := testStepper(3, ackAll)
		p, err := scanPop(popAnswer(3))
		if err != nil || p.n != 3 {
			t.Fatalf("scanned %d messages, error %v", p.n, err)
		}
		w.transaction(&p)
		var got struct {
			Operations []struct {
				Type, TransactionID, PartitionID, LeaseID, ConsumerGroup string
				Items                                                    []struct{ Queue, Partition, TransactionID, Payload string }
			}
			KV []struct {
				Op, NS, Key string
				Required    bool
				TTLSeconds  int
			}
		}
		if err := json.Unmarshal(w.conn.RequestBody(), &got); err != nil {
			t.Fatalf("the body is not JSON: %v\n%s", err, w.conn.RequestBody())
		}
		acks := len(got.Operations) - 1
		if want := map[bool]int{false: 1, true: 3}[ackAll]; acks != want {
			t.Errorf("%d acks, want %d", acks, want)
		}
		if a := got.Operations[acks-1]; a.TransactionID != "t-2" || a.PartitionID != "31" || a.LeaseID != "L-1" || a.ConsumerGroup != group {
			t.Errorf("the last ack is %+v", a)
		}
		items := got.Operations[acks].Items
		ids := map[string]bool{}
		for _, it := range items {
			ids[it.TransactionID] = true
			if it.Queue != "out" || it.Partition != "p7" || len(it.Payload) != textBytes {
				t.Errorf("output %+v", it)
			}
		}
		if len(items) != 3 || len(ids) != 3 {
			t.Errorf("%d outputs with %d ids, want 3", len(items), len(ids))
		}
		if len(got.KV) != 2 || got.KV[0].Key != "p7" || got.KV[1].Key != "t-2" || !got.KV[1].Required {
			t.Errorf("kv is %+v", got.KV)
		}
	}
}

func TestDue(t *testing.T) {
	at := time.Now().UnixNano()
	s := &session{Config: &Config{}, tag: "00000a"}
	item := s.source(1).itemDue(nil, []byte("q"), []byte("p"), at)
	var m struct{ Payload string }
	if err := json.Unmarshal(item, &m); err != nil {
		t.Fatal(err)
	}
	if got, ok := dueOf([]byte(m.Payload)); !ok || got != at || len(m.Payload) != textBytes {
		t.Errorf("due %d (%v) of %d characters, want %d", got, ok, len(m.Payload), at)
	}
}

func TestMeterCountsTheWindowOnly(t *testing.T) {
	m := &meter{}
	l := &lane{m: m}
	at := time.Now()
	add := func(offset time.Duration) { l.add(at.Add(offset), 2, time.Millisecond, 2*time.Millisecond) }
	add(-time.Second)
	m.open(at)
	add(-time.Nanosecond)
	add(0)
	add(time.Second)
	m.close(at.Add(time.Second))
	add(time.Second)
	add(time.Second + time.Nanosecond)
	if l.ops != 3 || l.msgs != 6 || len(l.lat) != 3 || len(l.cycle) != 3 {
		t.Errorf("%d operations, %d messages, %d latencies; want 3, 6, 3", l.ops, l.msgs, len(l.lat))
	}
}

func TestQuantileAndMedian(t *testing.T) {
	var d []time.Duration
	for i := range 1000 {
		d = append(d, time.Duration(i))
	}
	for q, want := range map[float64]time.Duration{0: 0, .5: 500, .99: 990, .999: 999, 1: 999} {
		if got := quantile(d, q); got != want {
			t.Errorf("quantile %v is %d, want %d", q, got, want)
		}
	}
	if quantile(nil, .5) != 0 {
		t.Error("a quantile of nothing is not 0")
	}
	rs := []*Result{{OpsPerS: 3}, {OpsPerS: 1}, {OpsPerS: 2}}
	if median(rs).OpsPerS != 2 || !slices.Equal([]float64{rs[0].OpsPerS}, []float64{3}) {
		t.Error("median is wrong, or sorts what it was given")
	}
}

func TestPacer(t *testing.T) {
	first := time.Now().Add(2 * time.Millisecond)
	p, err := newPacer(first, time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	defer p.close()
	for i := range 20 {
		due, err := p.wait()
		if err != nil {
			t.Fatal(err)
		}
		if want := first.Add(time.Duration(i) * time.Millisecond); !due.Equal(want) {
			t.Fatalf("tick %d was due at %v, want %v", i, due, want)
		}
		if early := time.Until(due); early > 100*time.Microsecond {
			t.Fatalf("tick %d came %v early", i, early)
		}
	}
}

// BenchmarkStepClient is what the client adds to a step, without the sockets.
func BenchmarkStepClient(b *testing.B) {
	w, answer := testStepper(10, false), popAnswer(10)
	b.ReportAllocs()
	for b.Loop() {
		p, err := scanPop(answer)
		if err != nil {
			b.Fatal(err)
		}
		w.transaction(&p)
	}
}

// Every target is a path of its own, with the queue's name escaped.
func TestReadTargets(t *testing.T) {
	seen := map[string]bool{}
	for _, target := range readTargets("a/b") {
		if seen[target] || !strings.HasPrefix(target, "/") || strings.Contains(target, "a/b") {
			t.Errorf("target %s", target)
		}
		seen[target] = true
	}
	if len(seen) < 20 {
		t.Errorf("%d targets", len(seen))
	}
}
