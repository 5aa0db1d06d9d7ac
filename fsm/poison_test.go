package fsm

import (
	"bytes"
	"errors"
	"strings"
	"testing"
)

func poisonRig(t *testing.T, options ...OptionValue) *rig {
	t.Helper()
	r := newRig(t, Config{})
	run(r, &Configure{Queue: "a", Set: append([]OptionValue{{Name: "maxDeliveries", Num: 1}}, options...)})
	return r
}

func popOf(name string) *Pop {
	return &Pop{Queue: "a", Group: QueueMode, Batch: 10, Partitions: 1, LeaseSeconds: 1, LeaseID: leaseID(name)}
}

// dies pops and lets the lease expire.
func dies(r *rig, name string) *Pop {
	p := run(r, popOf(name))
	r.now += 2_000_000
	return p
}

func claimed(p *Pop) (offsets []uint64) {
	for _, cl := range p.Claims {
		offsets = append(offsets, claimOffsets(cl)...)
	}
	return offsets
}

func expectClaim(t *testing.T, p *Pop, want ...uint64) {
	t.Helper()
	if got := claimed(p); len(got) != len(want) || len(want) > 0 && got[0] != want[0] {
		t.Fatalf("claimed offsets %v, want %v", got, want)
	}
}

// A message whose payload cannot be read is not filed without it: its partition
// is left alone for a while, and the group's others are served.
func TestPoisonUnreadable(t *testing.T) {
	r := poisonRig(t)
	run(r, newPush(r.item("a", "p", "m1", []byte("1")), r.item("a", "p", "m2", []byte("2"))))
	one := popOf("L1")
	one.Batch = 1
	run(r, one)
	r.now += 2_000_000
	r.store.fail = errors.New("bad sector")
	expectClaim(t, run(r, popOf("L2")))
	run(r, newPush(r.item("a", "q", "m3", []byte("3"))))
	p := run(r, popOf("L3"))
	if len(p.Claims) != 1 || p.Claims[0].Partition != "q" || len(p.Poisoned) != 0 {
		t.Fatalf("claims %v of %+v, put aside %v; want those of partition q", claimed(p), p.Claims, p.Poisoned)
	}
	r.store.fail = nil
	r.now += unreadableTime
	run(r, &Ack{Items: []AckItem{{Txn: []byte("m3"), TxnHash: txnHash("m3"), PartitionID: r.partitionID("a", "q"), Group: QueueMode}}})
	p = run(r, popOf("L4"))
	expectClaim(t, p, 1)
	letters, _ := r.m.s.DeadLetters(tenantA, &DeadLetterFilter{Queue: "a", Limit: 9})
	if len(letters) != 1 || letters[0].Error != "maxDeliveries" || !strings.Contains(string(letters[0].Content), "1") {
		t.Fatalf("dead letters %+v, want m1 with its payload", letters)
	}
}

// A batch that goes back unreceived charges nobody, and one that was delivered
// without a lease is past.
func TestPoisonChargesExpiryOnly(t *testing.T) {
	r := poisonRig(t)
	run(r, newPush(r.item("a", "p", "m1", []byte("1")), r.item("a", "p", "m2", []byte("2"))))
	one := popOf("L1")
	one.Batch = 1
	run(r, one)
	r.now += 2_000_000
	run(r, &HandBack{LeaseID: one.LeaseID, Claims: one.Claims})
	expectClaim(t, dies(r, "L2"), 0, 1)
	free := popOf("L3")
	free.CommitOnDelivery = true
	expectClaim(t, run(r, free), 0)
	expectClaim(t, run(r, popOf("L4")), 1)
}

// The same entry holds the letter and the cursor's move, and a machine that is
// read from checkpoint and log goes on counting.
func TestPoisonIsOneEntry(t *testing.T) {
	r := poisonRig(t, OptionValue{Name: "maxDeliveries", Num: 2})
	run(r, newPush(r.item("a", "p", "m1", bytes.Repeat([]byte("x"), 1000)), r.item("a", "p", "m2", []byte("2"))))
	dies(r, "L1")
	expectClaim(t, dies(r, "L2"), 0)
	r.checkpoint(false)
	r.restart()
	expectClaim(t, dies(r, "L3"), 0)
	r.restart()
	before := len(r.entries)
	p := run(r, popOf("L4"))
	expectClaim(t, p, 1)
	if n := len(r.entries) - before; n != 1 || len(p.Poisoned) != 1 || p.Poisoned[0].Deliveries != 2 {
		t.Fatalf("%d entries, put aside %+v; want one entry and one message after two deliveries", n, p.Poisoned)
	}
	r.restart()
	if c := r.partition("a", "p").cursors[0]; c.committed != 0 || c.lease == nil || c.suspect == nil {
		t.Fatalf("the cursor is at %d, lease %v, suspicion %v", c.committed, c.lease, c.suspect)
	}
}

// TestCursorRowVersions: a row of version 1 is what it was, one of version 2 is
// refused by who reads version 1 (bytes follow), and unknown flags are refused.
func TestCursorRowVersions(t *testing.T) {
	plain := cursor{committed: 7, firstTry: 3}
	v1 := plain.encode(nil)
	if want := []byte{0, 14, 3, 0, 0, 0}; !bytes.Equal(v1, want) {
		t.Fatalf("a row of version 1 is %x, want %x", v1, want)
	}
	suspected := plain
	suspected.suspect = &suspicion{through: 12, at: 8, count: 2}
	v2 := suspected.encode(nil)
	if want := append([]byte{8, 14, 3, 0, 0, 0}, 12, 8, 2); !bytes.Equal(v2, want) {
		t.Fatalf("a row of version 2 is %x, want %x", v2, want)
	}
	var c cursor
	if err := c.decode(v2); err != nil || *c.suspect != *suspected.suspect || c.committed != 7 {
		t.Fatalf("read back %+v, suspicion %v: %v", c, c.suspect, err)
	}
	if err := c.decode(v1); err != nil || c.suspect != nil {
		t.Fatalf("version 1 has the suspicion %v: %v", c.suspect, err)
	}
	v2[0] |= 16
	if err := c.decode(v2); err == nil || !strings.Contains(err.Error(), "newer build") {
		t.Fatalf("unknown flags: %v", err)
	}
}
