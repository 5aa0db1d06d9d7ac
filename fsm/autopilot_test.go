package fsm

import (
	"fmt"
	"testing"
)

func auto(r *rig, lease string, wait int64) (*Pop, *Call) {
	p := &Pop{
		Queue: "a", Group: "g", Mode: SubscribeAll, Batch: 200, DefaultPartitions: true, AutoPartitions: true, LeaseID: leaseID(lease), WaitMicros: wait,
		LeaseSeconds: 1,
	}
	return p, r.call(p)
}

func pushWide(r *rig, from, to int) {
	var items []PushItem
	for i := from; i < to; i++ {
		items = append(items, r.item("a", fmt.Sprint("p", i), "m", nil))
	}
	run(r, newPush(items...))
}

func expectShare(t *testing.T, p *Pop, want int) {
	t.Helper()
	if p.Partitions != want || len(p.Claims) != want {
		t.Fatalf("%d partitions and %d claims, want %d", p.Partitions, len(p.Claims), want)
	}
}

// The ready partitions are shared among the pops that wait when they become ready.
func TestAutopilotShares(t *testing.T) {
	r := newRig(t, Config{})
	var pops []*Pop
	for i := range 3 {
		p, c := auto(r, fmt.Sprint("L", i), 10_000_000)
		r.do(c)
		pops = append(pops, p)
	}
	gone, c := auto(r, "gone", 1_000_000)
	r.do(c)
	r.now += 1_000_001 // its time is over: it counts no more
	r.plan()
	if len(gone.Claims) != 0 {
		t.Fatal("the pop whose time was over has claims")
	}
	pushWide(r, 0, 13)
	expectShare(t, pops[0], 4)
	expectShare(t, pops[1], 4)
	expectShare(t, pops[2], 5)

	one, c := auto(r, "M", 0)
	r.do(c)
	if one.Partitions != 1 || len(one.Claims) != 0 {
		t.Fatalf("with nothing ready: %d partitions, %d claims; want 1 and none", one.Partitions, len(one.Claims))
	}
	r.now += 2_000_000 // the leases end
	one, c = auto(r, "N", 0)
	r.do(c)
	expectShare(t, one, 13)
	r.checkpoint(true)
	r.restart()
	r.now += 2_000_000
	one, c = auto(r, "O", 0)
	r.do(c)
	expectShare(t, one, 13)
}

// What a group has not met counts, up to 64; what was sent is not touched, and a
// group that conflates takes its own number.
func TestAutopilotBounds(t *testing.T) {
	r := newRig(t, Config{})
	pushWide(r, 0, 100)
	p, c := auto(r, "L1", 0)
	r.do(c)
	expectShare(t, p, 64)
	p, c = auto(r, "L2", 0)
	r.do(c)
	expectShare(t, p, 36)

	r = newRig(t, Config{})
	pushWide(r, 0, 100)
	p, c = auto(r, "L1", 0)
	p.DefaultPartitions, p.AutoPartitions, p.Partitions = false, false, 7
	r.do(c)
	expectShare(t, p, 7)

	r = newRig(t, Config{})
	pushWide(r, 0, 100)
	p, c = auto(r, "L1", 0)
	p.Conflate, p.Batch = true, 9
	r.do(c)
	expectShare(t, p, 9)
}
