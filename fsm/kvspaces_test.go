package fsm

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

func putKey(r *rig, ns, key string, ttl int64) {
	r.t.Helper()
	run(r, &KV{Ops: []KVOp{{Kind: KVPut, NS: ns, Key: key, Value: []byte(`"0123456789"`), TTL: ttl}}})
}

// readPage reads a page to its end, and how many slices that took.
func readPage(s *State, p KVPage) (page KVPage, slices int) {
	for !p.Done {
		s.ReadKVPage(tenantA, &p)
		slices++
	}
	return p, slices
}

func keysOf(p *KVPage) (keys string) {
	for i := range p.Rows {
		keys += p.Rows[i].Key
		if p.Over[i] {
			keys += "!"
		}
		keys += " "
	}
	return strings.TrimSpace(keys)
}

func TestKVSpaces(t *testing.T) {
	r := newRig(t, Config{})
	putKey(r, "b", "k", 1)
	putKey(r, "b", "l", 0)
	putKey(r, "b.c", "k", 0)
	putKey(r, "a", "k", 0)
	putKey(r, "a", "k", 0)
	other := r.call(&KV{Ops: []KVOp{{Kind: KVPut, NS: "z", Key: "k", Value: []byte("1")}}})
	other.Tenant = otherTenant
	r.do(other)
	expect := func(want string) {
		t.Helper()
		for _, m := range []*Machine{r.m, r.twin} {
			list, more := m.s.KVSpaces(tenantA, "")
			if got := fmt.Sprint(list, more); got != want {
				t.Fatalf("namespaces %s, want %s", got, want)
			}
		}
	}
	expect("[{a 1} {b 2} {b.c 1}] false")
	r.now += 1_000_000 // over, and not swept
	run(r, &KV{Ops: []KVOp{{Kind: KVDelete, NS: "a", Key: "k"}}})
	if _, ok := r.m.s.kv.Get(kvKey(tenantA, "b", "k")); ok {
		expect("[{b 2} {b.c 1}] false")
	}
	r.now += 1_000_000
	r.plan()
	expect("[{b 1} {b.c 1}] false")
	r.checkpoint(true)
	r.restart()
	expect("[{b 1} {b.c 1}] false")
	putKey(r, "a", "k", 0)
	r.restart() // counted by the replay too
	expect("[{a 1} {b 1} {b.c 1}] false")
	if list, more := r.m.s.KVSpaces(tenantA, "b"); fmt.Sprint(list, more) != "[{b.c 1}] false" {
		t.Fatalf("after b: %v %v", list, more)
	}
}

func TestKVPages(t *testing.T) {
	r := newRig(t, Config{KVSweepEvery: 1 << 60})
	for i := range 10 {
		putKey(r, "n", fmt.Sprintf("k%d", i), int64(i%2))
	}
	putKey(r, "n", "other", 0)
	putKey(r, "n2", "k", 0)
	r.m.nextSweep = 1 << 62
	r.now += 2_000_000 // k1, k3, ... are over
	r.plan()
	for _, c := range []struct {
		page      KVPage
		keys      string
		truncated bool
	}{
		{KVPage{NS: "n", Limit: 100}, "k0 k2 k4 k6 k8 other", false},
		{KVPage{NS: "n", Limit: 100, Prefix: "k"}, "k0 k2 k4 k6 k8", false},
		{KVPage{NS: "n", Limit: 4, Prefix: "k"}, "k0 k2 k4 k6", true},
		{KVPage{NS: "n", Limit: 5, Prefix: "k"}, "k0 k2 k4 k6 k8", false},
		{KVPage{NS: "n", Limit: 5, Prefix: "k", Expired: true}, "k0 k1! k2 k3! k4", true},
		{KVPage{NS: "n", Limit: 2, Prefix: "k", At: "k2"}, "k4 k6", true},
		{KVPage{NS: "n", Limit: 100, At: "k9"}, "other", false},
		{KVPage{NS: "n", Limit: 100, At: "z"}, "", false},
		{KVPage{NS: "none", Limit: 100}, "", false},
		{KVPage{NS: "n", Limit: 100, MaxBytes: 13}, "k0 k2", true}, // the second crosses 13 bytes
		{KVPage{NS: "n", Limit: 3, MaxBytes: 13, KeysOnly: true}, "k0 k2 k4", true},
	} {
		if c.page.MaxBytes == 0 {
			c.page.MaxBytes = 4 << 20
		}
		p, _ := readPage(r.m.s, c.page)
		if got := keysOf(&p); got != c.keys || p.Truncated != c.truncated {
			t.Errorf("%+v: %q truncated %v, want %q %v", c.page, got, p.Truncated, c.keys, c.truncated)
		}
		if want := 12 * len(p.Rows); c.page.KeysOnly && p.Bytes != 0 || !c.page.KeysOnly && p.Bytes != want {
			t.Errorf("%+v: %d bytes of %d rows", c.page, p.Bytes, len(p.Rows))
		}
	}
}

// A page costs no more in a large namespace than in a small one, and no read
// looks at more than a slice of it, also where most rows are over.
func TestKVPagesOfAMillionKeys(t *testing.T) {
	n := 1_000_000
	if testing.Short() {
		n = 50_000
	}
	m := New(Config{DedupBytes: 1 << 20})
	row := &kvRow{value: []byte("1"), version: 1}
	over := &kvRow{value: []byte("1"), version: 1, expires: 1}
	for i := range n {
		k := row
		if i >= n/2 && i < n/2+20_000 {
			k = over
		}
		m.s.kv.Set(kvKey(tenantA, "n", fmt.Sprintf("k%07d", i)), k)
	}
	m.s.time = 2
	rows, after := 0, ""
	pages := []int{}
	for _, at := range []string{"", fmt.Sprintf("k%07d", n/3), fmt.Sprintf("k%07d", n/2-10)} {
		p, slices := readPage(m.s, KVPage{NS: "n", Limit: 1000, MaxBytes: 4 << 20, At: at})
		if len(p.Rows) != 1000 || !p.Truncated {
			t.Fatalf("%d rows after %q, truncated %v", len(p.Rows), at, p.Truncated)
		}
		rows, after = rows+len(p.Rows), p.At
		pages = append(pages, slices)
	}
	if !slices.Equal(pages, []int{2, 2, 22}) {
		t.Errorf("slices of the pages %v, want 2, 2 and, over 20,000 rows that are over, 22; the last is at %s", pages, after)
	}
}
