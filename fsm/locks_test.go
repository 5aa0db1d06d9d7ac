package fsm

import (
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func lockOne(r *rig, op LockOp) LockResult {
	r.t.Helper()
	return run(r, &Locks{Ops: []LockOp{op}}).Ops[0].Result
}

// Many owners at random times: what the answers say of a lock never gives one
// permit to two of them, and never more permits than there are.
func TestLocksAreExclusive(t *testing.T) {
	fixSeed(t)
	type hold struct {
		owner          string
		token, expires int64
	}
	rapid.Check(t, func(t *rapid.T) {
		r := newRig(t, Config{})
		limit := rapid.IntRange(1, 3).Draw(t, "limit")
		held := map[int]hold{} // by slot, as the answers tell it
		last := map[int]int64{}
		own, first := map[string]int64{}, map[string]int64{} // tokens of an owner: the newest, and that of its acquire
		take := func(slot int, owner string, token, ttl int64) {
			if old := held[slot]; r.last < old.expires && old.owner != owner {
				t.Fatalf("%s gets slot %d at %d, %s holds it until %d", owner, slot, r.last, old.owner, old.expires)
			}
			if token <= last[slot] {
				t.Fatalf("token %d of slot %d follows %d", token, slot, last[slot])
			}
			own[owner] = token
			last[slot], held[slot] = token, hold{owner, token, r.last + ttl*1_000_000}
		}
		for range rapid.IntRange(1, 40).Draw(t, "calls") {
			r.now = r.last + rapid.SampledFrom([]int64{1, 300_000, 999_999, 1_000_000, 3_000_000}).Draw(t, "after")
			owner := rapid.SampledFrom([]string{"a", "b", "c", "d", "e"}).Draw(t, "owner")
			op := LockOp{Name: "l", Owner: owner, TTL: rapid.Int64Range(1, 3).Draw(t, "ttl"), Limit: limit}
			mine := -1
			for slot, h := range held {
				if h.owner == owner && r.now < h.expires {
					mine = slot
				}
			}
			op.Slot = max(mine, 0)
			if op.Token = own[owner]; op.Token == 0 {
				op.Token = 1 << 40 // nobody's
			}
			if mine >= 0 && rapid.Bool().Draw(t, "stale") {
				op.Token = first[owner] // it was renewed since, and the answers were lost
			}
			op.Kind = rapid.SampledFrom([]LockOpKind{LockAcquire, LockAcquire, LockRenew, LockRelease, LockGet}).Draw(t, "op")
			got := lockOne(r, op)
			switch live := mine >= 0; {
			case op.Kind == LockAcquire && got.Already:
				if !live || got.Slot != mine || got.Token != held[mine].token {
					t.Fatalf("%s acquires again: %+v; it holds %+v", owner, got, held[mine])
				}
			case op.Kind == LockAcquire && got.Won:
				if live {
					t.Fatalf("%s holds slot %d and gets slot %d", owner, mine, got.Slot)
				}
				take(got.Slot, owner, got.Token, op.TTL)
				first[owner] = got.Token
			case op.Kind == LockAcquire:
				for slot := range limit {
					if r.last >= held[slot].expires {
						t.Fatalf("%s gets nothing, slot %d is free: %+v", owner, slot, held)
					}
				}
			case op.Kind == LockRenew:
				if live != got.Won {
					t.Fatalf("%s renews: %v, it holds: %v", owner, got.Won, live)
				}
				if got.Won {
					take(got.Slot, owner, got.Token, op.TTL)
				}
			case op.Kind == LockRelease:
				if exact := live && op.Token == own[owner]; exact != got.Won {
					t.Fatalf("%s releases: %v, it holds it under this token: %v", owner, got.Won, exact)
				}
				if got.Won {
					held[op.Slot] = hold{}
				}
			case op.Kind == LockGet:
				n := 0
				for _, h := range held {
					if r.last < h.expires {
						n++
					}
				}
				if len(got.Holders) != n {
					t.Fatalf("holders %+v, want %d: %+v", got.Holders, n, held)
				}
			}
			if rapid.IntRange(0, 9).Draw(t, "restart") == 0 {
				r.checkpoint(true)
				r.restart()
			}
		}
	})
}

// A permit lasts to the microsecond of broker time, and a renewal counts from
// itself.
func TestLockLifetime(t *testing.T) {
	r := newRig(t, Config{})
	acquire := func(owner string) LockResult {
		return lockOne(r, LockOp{Kind: LockAcquire, Name: "l", Owner: owner, TTL: 10, Limit: 1})
	}
	a := acquire("a")
	start := r.last
	r.now = start + 9_999_999
	if b := acquire("b"); b.Won || len(b.Holders) != 1 || b.Holders[0].Owner != "a" || b.Holders[0].Expires != start+10_000_000 || b.Holders[0].Since != start {
		t.Fatalf("%+v, want a to hold it until %d", b, start+10_000_000)
	}
	r.now = start + 10_000_000
	b := acquire("b")
	if !b.Won || b.Token <= a.Token {
		t.Fatalf("%+v, want it won with a token above %d", b, a.Token)
	}
	r.now += 5_000_000
	renewed := lockOne(r, LockOp{Kind: LockRenew, Name: "l", Token: b.Token, TTL: 10})
	if !renewed.Won || renewed.Token <= b.Token || renewed.Owner != "b" {
		t.Fatalf("renewed %+v", renewed)
	}
	r.now += 9_000_000
	if got := lockOne(r, LockOp{Kind: LockGet, Name: "l"}); len(got.Holders) != 1 || got.Holders[0].Since != start+10_000_000 || got.Holders[0].Renewed != start+15_000_000 {
		t.Fatalf("%+v", got)
	}
	// The token of the first acquire is stale: for its owner it is carried through.
	if got := lockOne(r, LockOp{Kind: LockRenew, Name: "l", Token: b.Token, TTL: 10, Owner: "c"}); got.Won {
		t.Fatal("another owner renews with a stale token")
	}
	if got := lockOne(r, LockOp{Kind: LockRelease, Name: "l", Token: b.Token}); got.Won {
		t.Fatal("a stale token releases")
	}
	again := acquire("b")
	if !again.Already || again.Token != renewed.Token {
		t.Fatalf("acquired again %+v, want token %d", again, renewed.Token)
	}
	r.now += 1_000_000 // acquiring again has not moved its end
	if got := lockOne(r, LockOp{Kind: LockRenew, Name: "l", Token: renewed.Token, TTL: 10, Owner: "b"}); got.Won || len(got.Holders) != 0 {
		t.Fatalf("renewed after its end: %+v", got)
	}
}

// A call that names many slots takes several cycles; each operation is whole.
func TestLocksInSlices(t *testing.T) {
	r := newRig(t, Config{})
	l := &Locks{}
	for i := range 64 {
		for range i % 3 {
			lockOne(r, LockOp{Kind: LockAcquire, Name: fmt.Sprint("l", i), TTL: 60, Limit: MaxLockLimit})
		}
		l.Ops = append(l.Ops, LockOp{Kind: LockAcquire, Name: fmt.Sprint("l", i), Owner: "me", TTL: 60, Limit: MaxLockLimit})
	}
	c := r.call(l)
	cycles := 0
	for p := r.plan(c); ; p = r.plan() {
		if cycles++; !p.More {
			break
		}
	}
	if cycles < 64*MaxLockLimit/lockSlice || cycles > 64 {
		t.Errorf("%d cycles for %d slots", cycles, 64*MaxLockLimit)
	}
	for i := range l.Ops {
		if got := l.Ops[i].Result; !got.Won || got.Slot != i%3 {
			t.Fatalf("operation %d: %+v", i, got)
		}
	}
	r.checkpoint(true)
	r.restart()
}

// Values that a permit's row can have: written here, or put there as a key.
func TestPermits(t *testing.T) {
	for _, owner := range []string{"", "a", `q"\`, strings.Repeat(`"`, 256), "ü\u2028"} {
		if got := parsePermit(appendPermit(nil, owner, startTime)); got != (permit{owner, startTime}) {
			t.Errorf("owner %q is read as %+v", owner, got)
		}
	}
	for value, want := range map[string]permit{
		`1`: {}, `null`: {}, `{}`: {}, `{"owner":`: {}, `{"owner":"`: {}, `{"owner":"\`: {}, `{"owner":"a\"`: {},
		`{"owner":"a"}`:             {owner: "a"},
		`{"owner":"\u0061"}`:        {owner: "a"},
		`{"owner":"a","since":"x"}`: {owner: "a"},
		`{"owner":"a","since":"2026-13-01T00:00:00.000000Z"}`:       {owner: "a"},
		`{"owner":null,"since":"1970-01-01T00:00:01.000000Z"}`:      {since: 1_000_000},
		`{"owner":5,"since":"1970-01-01T00:00:01.000000Z"}`:         {},
		`{"owner":"` + strings.Repeat("a", maxPermit) + `"}`:        {},
		`{"since":"1970-01-01T00:00:01.000000Z","owner":"a"}`:       {},
		`{"owner":"a","since":"1970-01-01T00:00:01.000000Z","x":1}`: {owner: "a"},
		`{"owner":"a","since":"0001-01-01T00:00:01.000000Z"}`:       {owner: "a"},
	} {
		if got := parsePermit([]byte(value)); got != want {
			t.Errorf("%s is read as %+v, want %+v", value, got, want)
		}
	}
	for text, want := range map[string]bool{"0": true, "7": true, "1023": true, "1024": false, "01": false, "": false, "-1": false, "+1": false, "a": false} {
		if _, ok := parseSlot(text); ok != want {
			t.Errorf("slot %q is one: %v, want %v", text, ok, want)
		}
	}
}

// Keys among the permits that are none do not hide them for good, nor hold the loop.
func TestLocksAmongOtherKeys(t *testing.T) {
	r := newRig(t, Config{})
	r.twin = nil
	for i := range 3000 {
		run(r, &KV{Ops: []KVOp{{Kind: KVPut, NS: LockNamespace, Key: fmt.Sprintf("l#x%d", i), Value: []byte("1")}}})
	}
	a := lockOne(r, LockOp{Kind: LockAcquire, Name: "l", Owner: "a", TTL: 60, Limit: 2})
	if got := lockOne(r, LockOp{Kind: LockAcquire, Name: "l", Owner: "a", TTL: 60, Limit: 2}); !got.Already || got.Token != a.Token {
		t.Fatalf("%+v, want %+v again", got, a)
	}
	if got := lockOne(r, LockOp{Kind: LockGet, Name: "l"}); len(got.Holders) != 1 {
		t.Fatalf("holders %+v, want one", got.Holders)
	}
}

// The outcome of a keyed call is kept when it wrote something, in one entry with it.
func TestLocksKeepTheirOutcome(t *testing.T) {
	r := newRig(t, Config{})
	keyed := func(key string, ops ...LockOp) *Call {
		c := r.call(&Locks{Ops: ops})
		c.Key = &Keyed{Route: OutcomeLocks, Key: key, Render: func() (int, []byte) { return 200, []byte(`{}`) }}
		if p := r.plan(c); p.More {
			t.Fatal("a keyed call takes several cycles")
		}
		return c
	}
	wide := LockOp{Kind: LockAcquire, Name: "w", Owner: "a", TTL: 60, Limit: MaxLockLimit}
	more := []LockOp{wide, wide, wide, wide}
	for i := range more {
		more[i].Name = fmt.Sprint("w", i)
	}
	if c := keyed("k1", more...); !c.Key.Kept || c.Key.Repeat {
		t.Fatalf("the first call: %+v", c.Key)
	}
	if c := keyed("k1", more...); !c.Key.Repeat {
		t.Fatalf("its repeat: %+v", c.Key)
	}
	lost := wide
	lost.Name, lost.Owner, lost.Limit = "w0", "b", 1
	for range 2 {
		if c := keyed("k2", lost); c.Key.Kept || c.Key.Repeat {
			t.Fatalf("a call that lost: %+v", c.Key)
		}
	}
	again := more[0]
	if c := keyed("k3", again); c.Key.Kept {
		t.Fatalf("an acquire of what is held already: %+v", c.Key)
	}
	r.checkpoint(true)
	r.restart()
}
