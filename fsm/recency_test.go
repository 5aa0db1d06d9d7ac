package fsm

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// The order agrees with a plain list, whatever is appended to and removed.
func TestRecency(t *testing.T) {
	fixSeed(t)
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 3*recencySlots).Draw(t, "partitions")
		parts := make([]*partition, n)
		for i := range parts {
			parts[i] = &partition{id: uint64(i)}
		}
		var r recency
		var want []*partition // oldest first
		now := int64(0)
		pick := drawPick(t)
		forget := func(p *partition) { want = slices.DeleteFunc(want, func(o *partition) bool { return o == p }) }
		for range rapid.IntRange(1, 1500).Draw(t, "steps") {
			p := parts[pick(n)]
			switch pick(10) {
			case 0:
				r.remove(p)
				forget(p)
			case 1:
				now++
				fallthrough
			default:
				p.lastAppend = now
				r.moved(p)
				if len(want) == 0 || want[len(want)-1] != p {
					forget(p)
					want = append(want, p)
				}
			}
		}
		check := func() {
			t.Helper()
			var up, down []*partition
			r.ascend(0, func(p *partition) bool { up = append(up, p); return true })
			r.descend(0, func(p *partition) bool { down = append(down, p); return true })
			if slices.Reverse(down); !slices.Equal(up, want) || !slices.Equal(down, want) {
				t.Fatalf("%d partitions upwards, %d downwards, want %d", len(up), len(down), len(want))
			}
			if len(r.blocks) > 4+8*len(want)/recencySlots {
				t.Fatalf("%d blocks for %d partitions", len(r.blocks), len(want))
			}
		}
		check()
		for range 5 {
			at := int64(pick(int(now) + 2))
			i := slices.IndexFunc(want, func(p *partition) bool { return p.lastAppend >= at })
			if i < 0 {
				i = len(want)
			}
			var got []*partition
			r.ascend(r.since(at), func(p *partition) bool { got = append(got, p); return true })
			if !slices.Equal(got, want[i:]) {
				t.Fatalf("%d partitions since %d, want %d", len(got), at, len(want)-i)
			}
			if len(want) == 0 {
				continue
			}
			k := pick(len(want))
			var below []*partition
			r.descend(want[k].place, func(p *partition) bool { below = append(below, p); return true })
			if slices.Reverse(below); !slices.Equal(below, want[:k]) {
				t.Fatalf("%d partitions before the one at %d", len(below), k)
			}
		}
		var all []*partition
		for _, p := range parts {
			if p.place != 0 {
				all = append(all, p)
			}
		}
		r.build(all)
		slices.SortStableFunc(all, func(a, b *partition) int { return int(a.lastAppend - b.lastAppend) })
		want = all
		check()
	})
}

func BenchmarkRecencyMoved(b *testing.B) {
	for name, n := range map[string]int{"1": 1, "100": 100, "1e6": 1_000_000} {
		b.Run(name, func(b *testing.B) {
			parts := make([]*partition, n)
			for i := range parts {
				parts[i] = &partition{id: uint64(i)}
			}
			var r recency
			r.build(parts)
			b.ReportAllocs()
			for i := range b.N {
				r.moved(parts[i*7919%n])
			}
		})
	}
}
