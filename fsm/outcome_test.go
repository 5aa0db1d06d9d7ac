package fsm

import (
	"bytes"
	"fmt"
	"runtime"
	"strings"
	"testing"
)

// keyed is a call with a key whose answer is text and the number of answers
// that were rendered so far.
func (r *rig) keyed(body any, key, text string) *Call {
	c := r.call(body)
	c.Key = &Keyed{Route: OutcomeTransaction, Key: key, Hash: [16]byte{1}}
	c.Key.Render = func() (int, []byte) {
		r.seq++
		return 200, fmt.Appendf(nil, "%s%d", text, r.seq)
	}
	return c
}

// keptBody is the kept answer of a call that was answered.
func (r *rig) keptBody(c *Call) string {
	r.t.Helper()
	switch k := c.Key; {
	case k.Kept:
		return string(k.Body)
	case !k.Repeat:
		r.t.Fatalf("the call is neither kept nor a repeat: %+v", k)
	case k.Outcome.Content != 0:
		return string(r.store.values[k.Outcome.Content].Data)
	default:
		return string(k.Outcome.Body)
	}
	return ""
}

func putOp(key string) *KV {
	return &KV{Ops: []KVOp{{Kind: KVIncr, NS: "n", Key: key, Delta: 1}}, Failed: -1}
}

func TestOutcomeIsRepeated(t *testing.T) {
	for _, size := range []int{1, inlineValue + 1} {
		r := newRig(t, Config{})
		first := r.keyed(putOp("k"), "K", strings.Repeat("x", size))
		r.do(first)
		want := r.keptBody(first)
		entries := len(r.entries)
		for range 2 {
			again := r.keyed(putOp("k"), "K", "y")
			r.do(again)
			if !again.Key.Repeat || r.keptBody(again) != want {
				t.Fatalf("the repeat is answered %+v, the first was %q", again.Key, want)
			}
			other := r.keyed(putOp("k"), "K", "y")
			other.Key.Hash[0]++
			if r.do(other); !other.Key.Reused {
				t.Fatalf("another request with the key is answered %+v", other.Key)
			}
			r.checkpoint(false)
			r.checkpoint(true)
			r.restart()
		}
		if len(r.entries) != entries {
			t.Fatalf("repeats made %d entries", len(r.entries)-entries)
		}
		route := r.keyed(putOp("k"), "K", "z")
		route.Key.Route = OutcomeKV
		tenant := r.keyed(putOp("k"), "K", "z")
		tenant.Tenant = otherTenant
		if r.do(route, tenant); !route.Key.Kept || !tenant.Key.Kept {
			t.Fatal("a key is of one route and one tenant")
		}
	}
}

// TestOutcomeOfTwoAtOnce: calls with one key in one cycle are one call.
func TestOutcomeOfTwoAtOnce(t *testing.T) {
	r := newRig(t, Config{})
	a, b := r.keyed(putOp("k"), "K", "a"), r.keyed(putOp("k"), "K", "b")
	r.do(a, b)
	if !a.Key.Kept || !b.Key.Repeat || r.keptBody(a) != r.keptBody(b) || len(r.entries) != 1 {
		t.Fatalf("%+v and %+v in %d entries", a.Key, b.Key, len(r.entries))
	}
}

func TestOutcomeOfWhatWasRefused(t *testing.T) {
	r := newRig(t, Config{EntryBytes: 300})
	run(r, putOp("k"))
	big := r.item("a", "p", "m", make([]byte, 400))
	entries, digest := len(r.entries), r.m.Digest()
	for name, body := range map[string]any{
		"a lost gate":        &KV{Ops: []KVOp{{Kind: KVPutIfAbsent, NS: "n", Key: "k", Value: []byte("1"), Required: true}}},
		"a rolled back step": &Txn{KV: []KVOp{{Kind: KVPutIfAbsent, NS: "n", Key: "k", Value: []byte("1"), Required: true}}},
		"refused acks":       &Ack{Items: []AckItem{{Txn: []byte("m"), PartitionID: 9}}},
		"refused items":      newPush(big),
		"a dry run":          &Txn{DryRun: true},
	} {
		c := r.keyed(body, "K", "x")
		if r.do(c); c.Key.Kept || c.Key.Repeat || len(r.entries) != entries || r.m.Digest() != digest {
			t.Errorf("%s: %+v, %d entries more", name, c.Key, len(r.entries)-entries)
		}
	}
}

func TestOutcomeWindow(t *testing.T) {
	r := newRig(t, Config{OutcomeWindow: 5_000_000})
	first := r.keyed(putOp("k"), "K", "a")
	r.do(first)
	end := r.last + 5_000_000
	if wake := r.m.nextWake(); wake != end {
		t.Fatalf("the machine wakes at %d, the outcome ends at %d", wake, end)
	}
	r.now = end - 1
	again := r.keyed(putOp("k"), "K", "b")
	if r.do(again); !again.Key.Repeat {
		t.Fatal("the window ended early")
	}
	r.m.nextOutcomes = end + 1 // the sweep does not decide
	r.now = end
	again = r.keyed(putOp("k"), "K", "b")
	if r.do(again); !again.Key.Kept {
		t.Fatal("the outcome outlived its window")
	}
	r.now = r.last + 10_000_000
	r.plan()
	if _, found := r.m.s.Outcome(tenantA, OutcomeTransaction, "K"); found || r.m.s.outcomes.order.Len() != 0 {
		t.Fatal("an outcome is there after its window")
	}
	r.checkpoint(false)
	r.restart()
}

// TestOutcomesAreSweptInSlices: a million that end at once hold nobody up.
func TestOutcomesAreSweptInSlices(t *testing.T) {
	r := newRig(t, Config{})
	n := outcomeSlice*2 + 10
	var calls []*Call
	for i := range n {
		calls = append(calls, r.keyed(&Timers{}, fmt.Sprint(i), "x"))
	}
	r.do(calls...)
	r.checkpoint(true)
	r.now += 700_000_000
	for _, left := range []int{n - outcomeSlice, n - 2*outcomeSlice, 0} {
		if r.plan(); r.m.s.outcomes.order.Len() != left {
			t.Fatalf("%d outcomes are left, want %d", r.m.s.outcomes.order.Len(), left)
		}
	}
	if r.m.s.outcomes.bytes != 0 || len(r.m.s.outcomes.byName) != 0 {
		t.Fatalf("%d bytes and %d names are left of no outcomes", r.m.s.outcomes.bytes, len(r.m.s.outcomes.byName))
	}
	r.checkpoint(false)
	r.restart()
}

func TestOutcomesOverTheirMemory(t *testing.T) {
	r := newRig(t, Config{OutcomeBytes: 10 * outcomeBytes})
	for i := range 50 {
		r.do(r.keyed(putOp("k"), fmt.Sprint(i), "x"))
		if got := r.m.OutcomeStats(); got.Bytes > 10*outcomeBytes {
			t.Fatalf("%d outcomes take %d bytes", got.Kept, got.Bytes)
		}
	}
	stats := r.m.OutcomeStats()
	if stats.Evicted != 50-stats.Kept || stats.Kept < 5 {
		t.Fatalf("%+v after 50 calls", stats)
	}
	if _, found := r.m.s.Outcome(tenantA, OutcomeTransaction, "49"); !found {
		t.Fatal("the newest outcome is gone")
	}
	if _, found := r.m.s.Outcome(tenantA, OutcomeTransaction, "0"); found {
		t.Fatal("the oldest outcome is there")
	}
	r.checkpoint(false)
	r.restart()
	if got := r.m.OutcomeStats(); got.Bytes != stats.Bytes || got.Kept != stats.Kept {
		t.Fatalf("after a restart %+v, before %+v", got, stats)
	}
}

// TestOutcomeMemory compares what outcomes are counted with with what the heap
// grows by.
func TestOutcomeMemory(t *testing.T) {
	const n = 20_000
	for _, answer := range []int{100, 1000} {
		m := New(Config{})
		m.Lead(1)
		body := bytes.Repeat([]byte("x"), answer)
		before := heapBytes()
		for i := range n {
			c := &Call{Tenant: tenantA, Body: &Timers{}, Done: func(error) {}}
			c.Key = &Keyed{Route: OutcomePush, Key: fmt.Sprintf("019a2f40-6c11-7aa0-9d52-%012d", i), Render: func() (int, []byte) { return 200, body }}
			m.Plan(startTime+int64(i), []*Call{c})
			if i%1000 == 0 {
				m.BeginCapture(false) // what is dirty is not what is measured
				for !m.CaptureSome(1<<20, func(_, _ []byte) {}, func(_, _ []byte) {}) {
				}
				m.EndCapture(true)
			}
		}
		grown, counted := heapBytes()-before, m.s.outcomes.bytes
		if counted < grown || counted > 2*grown {
			t.Errorf("answers of %d bytes: %d bytes an outcome are counted, the heap grew by %d", answer, counted/n, grown/n)
		}
		runtime.KeepAlive(m)
	}
}

func heapBytes() int64 {
	var s runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&s)
	return int64(s.HeapAlloc)
}

// TestOutcomeNamesOriginals: the answer of a keyed push is kept with its
// effects, so the ids of the messages that were there before are in it.
func TestOutcomeNamesOriginals(t *testing.T) {
	r := newRig(t, Config{})
	first := r.item("a", "p", "m", []byte("1"))
	run(r, newPush(first))
	push := newPush(r.item("a", "p", "m", []byte("2")), r.item("a", "p", "n", []byte("3")))
	c := r.keyed(push, "K", "x")
	p := r.plan(c)
	if len(p.Prepare) != 1 {
		t.Fatal("the original is not looked up")
	}
	// It is not written yet: the call asks again.
	held := r.store.parts
	r.store.parts = map[uint64]*storedPart{}
	r.resolve(c)
	if p = r.plan(c); len(p.Prepare) != 1 || c.Key.Kept {
		t.Fatal("an original that is not written yet is not waited for")
	}
	r.store.parts = held
	r.resolve(c)
	r.do(c)
	if push.Items[0].Status != Duplicate || push.Items[0].StoredID != first.ID || !c.Key.Kept {
		t.Fatalf("%+v names %x, want %x", push.Items[0], push.Items[0].StoredID, first.ID)
	}
	// Of one that is gone with its ids the answer has none, after a while.
	r.now += inFlight
	r.store.parts = map[uint64]*storedPart{}
	push = newPush(r.item("a", "p", "m", []byte("2")))
	c = r.keyed(push, "L", "x")
	if r.do(c); !c.Key.Kept || push.Items[0].StoredID != [16]byte{} {
		t.Fatalf("%+v", push.Items[0])
	}
}

func TestKeptPinsOutcomes(t *testing.T) {
	r := newRig(t, Config{})
	run(r, newPush(r.item("a", "p", "m1", []byte("1")), r.item("a", "p", "m2", []byte("2"))))
	run(r, newPush(r.item("b", "p", "n1", []byte("1"))))
	long := strings.Repeat("x", inlineValue+1)
	step := r.keyed(&Txn{Next: &Pop{Queue: "a", Group: "g", Mode: SubscribeAll, Batch: 1, Partitions: 1, LeaseID: leaseID("L")}}, "K", "x")
	r.do(step, r.keyed(putOp("k"), "V", long), r.keyed(putOp("k"), "I", "x"))
	if n := step.Key.row.next; n == nil || len(n.Claims) != 1 || n.Claims[0].Batch != nil {
		t.Fatalf("the outcome has the next batch %+v", n)
	}
	value := r.m.s.outcomes.byName[outcomeName(tenantA, OutcomeTransaction, "V")].id
	inline := r.m.s.outcomes.byName[outcomeName(tenantA, OutcomeTransaction, "I")].id
	r.partition("a", "p").start = 2 // retention took both
	r.m.touchPartition(r.partition("a", "p"))
	load := func() *Kept {
		r.beginCapture(true)
		for !r.m.CaptureSome(10, func(key, value []byte) {
			r.taking.rows = append(r.taking.rows, rowRecord{key: bytes.Clone(key), value: bytes.Clone(value)})
		}, func(_, _ []byte) {}) {
		}
		k := NewKept(r.cfg)
		for _, row := range r.taking.rows {
			if err := k.LoadRow(row.key, row.value); err != nil {
				t.Fatal(err)
			}
		}
		r.taking = nil
		r.m.EndCapture(true)
		return k
	}
	k := load()
	if start, _, _ := k.Partition(r.partitionID("a", "p")); start != 0 {
		t.Errorf("the batch of a kept answer begins at 0, what is kept at %d", start)
	}
	if start, _, _ := k.Partition(r.partitionID("b", "p")); start != 0 {
		t.Errorf("what is kept of the other queue begins at %d", start)
	}
	if !k.Value(value) || k.Value(inline) {
		t.Error("the value of the kept answer is not kept, or one that there is not")
	}
	lo, hi := rowKey(nil, rowOutcome, 1), rowKey(nil, rowOutcome, r.m.s.meta.value)
	k = load()
	if err := k.LoadDeleteRange(lo, hi); err != nil {
		t.Fatal(err)
	}
	if start, _, _ := k.Partition(r.partitionID("a", "p")); start != 2 || k.Value(value) {
		t.Errorf("after the outcomes went, messages are kept from %d, the value %v", start, k.Value(value))
	}
}

func TestOutcomeRowOfANewerBuild(t *testing.T) {
	o := outcome{name: tenantA + "\x01K", answer: []byte("x")}
	row := o.encode(nil)
	row[0] |= 0x40
	err := New(Config{}).LoadRow(rowKey(nil, rowOutcome, 7), row)
	if err == nil || !strings.Contains(err.Error(), "newer build") {
		t.Fatalf("a row of a newer build loads with %v", err)
	}
}
