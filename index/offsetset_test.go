package index

import (
	"bytes"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// edges are offsets around which sets are built: container and word edges,
// and the ends of the offset range.
var edges = []uint64{0, 1, 63, 64, 4095, 4096, 65535, 65536, 65537, 131071, 131072, 1 << 20, 1<<32 - 1, 1 << 32, 1 << 53, math.MaxUint64 - 65536, math.MaxUint64 - 1, math.MaxUint64}

func drawOffset(t *rapid.T, label string) uint64 {
	e := rapid.SampledFrom(edges).Draw(t, label+"Edge")
	d := rapid.Uint64Range(0, 300).Draw(t, label+"Delta")
	if rapid.Bool().Draw(t, label+"Below") {
		return e - min(d, e)
	}
	return e + min(d, math.MaxUint64-e)
}

// modelRanges lists the maximal ranges of a plain set.
func modelRanges(m map[uint64]bool) []Range {
	var os []uint64
	for o := range m {
		os = append(os, o)
	}
	slices.Sort(os)
	var out []Range
	for _, o := range os {
		if k := len(out) - 1; k >= 0 && out[k].Hi+1 == o {
			out[k].Hi = o
		} else {
			out = append(out, Range{o, o})
		}
	}
	return out
}

func rangesOf(s *OffsetSet) []Range {
	var out []Range
	s.Ranges(func(lo, hi uint64) bool { out = append(out, Range{lo, hi}); return true })
	return out
}

func TestOffsetSetAgainstPlainSet(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var s OffsetSet
		m := map[uint64]bool{}
		t.Repeat(map[string]func(*rapid.T){
			"add": func(t *rapid.T) {
				lo := drawOffset(t, "lo")
				hi := lo + min(rapid.Uint64Range(0, 400).Draw(t, "width"), math.MaxUint64-lo)
				s.Add(lo, hi)
				for o := lo; ; o++ {
					m[o] = true
					if o == hi {
						break
					}
				}
			},
			"addOne": func(t *rapid.T) {
				o := drawOffset(t, "o")
				s.Add(o, o)
				m[o] = true
			},
			"addNothing": func(t *rapid.T) {
				o := drawOffset(t, "o")
				if o > 0 {
					s.Add(o, o-1)
				}
			},
			"removeThrough": func(t *rapid.T) {
				o := drawOffset(t, "o")
				s.RemoveThrough(o)
				for k := range m {
					if k <= o {
						delete(m, k)
					}
				}
			},
			"roundTrip": func(t *rapid.T) {
				ranges, err := DecodeRanges(s.AppendRanges(nil))
				if err != nil {
					t.Fatal(err)
				}
				var back OffsetSet
				for _, r := range ranges {
					back.Add(r.Lo, r.Hi)
				}
				if !back.Equal(&s) || !s.Equal(&back) {
					t.Fatal("decoded set differs")
				}
				s = back // from here on with another history
			},
			"clone": func(t *rapid.T) {
				old := s
				s = s.Clone()
				old.Add(7, 7)
			},
			"": func(t *rapid.T) {
				want := modelRanges(m)
				if got := rangesOf(&s); !slices.Equal(got, want) {
					t.Fatalf("ranges %v, want %v", got, want)
				}
				if s.Len() != uint64(len(m)) || s.Empty() != (len(m) == 0) {
					t.Fatalf("len %d, want %d", s.Len(), len(m))
				}
				o := drawOffset(t, "probe")
				if s.Contains(o) != m[o] {
					t.Fatalf("contains %d: %v", o, s.Contains(o))
				}
				wantAbsent := o
				for m[wantAbsent] && wantAbsent < math.MaxUint64 {
					wantAbsent++
				}
				if got := s.NextAbsent(o); got != wantAbsent {
					t.Fatalf("next absent from %d: %d, want %d", o, got, wantAbsent)
				}
				i := slices.IndexFunc(want, func(r Range) bool { return r.Hi >= o })
				got, ok := s.NextPresent(o)
				if ok != (i >= 0) || ok && got != max(o, want[i].Lo) {
					t.Fatalf("next present from %d: %d %v", o, got, ok)
				}
				lo, ok1 := s.Min()
				hi, ok2 := s.Max()
				if ok1 != (len(want) > 0) || ok2 != ok1 || ok1 && (lo != want[0].Lo || hi != want[len(want)-1].Hi) {
					t.Fatalf("min %d max %d", lo, hi)
				}
			},
		})
	})
}

// TestOffsetSetWideRanges compares with one bool for each offset of four
// chunks, over ranges of any length.
func TestOffsetSetWideRanges(t *testing.T) {
	const size = 4 * ChunkOffsets
	for seed := range uint64(6) {
		rnd := rand.New(rand.NewPCG(seed, 5))
		base := seed % 3 * (1<<32 - 2*ChunkOffsets) // chunks around 2^32 too
		var s OffsetSet
		plain := make([]bool, size)
		for range 40 {
			lo := rnd.Uint64N(size)
			hi := min(lo+rnd.Uint64N(1<<rnd.IntN(18)), size-1)
			s.Add(base+lo, base+hi)
			for o := lo; o <= hi; o++ {
				plain[o] = true
			}
			if rnd.IntN(20) == 0 {
				through := rnd.Uint64N(size)
				s.RemoveThrough(base + through)
				clear(plain[:through+1])
			}
			for range 8 {
				from := rnd.Uint64N(size)
				want := from
				for want < size && plain[want] {
					want++
				}
				if got := s.NextAbsent(base + from); got != base+want {
					t.Fatalf("seed %d: next absent from %d: %d, want %d", seed, from, got-base, want)
				}
			}
		}
		var want OffsetSet
		n := uint64(0)
		for o, in := range plain {
			if in {
				want.Add(base+uint64(o), base+uint64(o))
				n++
			}
		}
		if s.Len() != n || !s.Equal(&want) || !bytes.Equal(s.AppendRanges(nil), want.AppendRanges(nil)) {
			t.Fatalf("seed %d: %d offsets, want %d", seed, s.Len(), n)
		}
	}
}

// TestOffsetSetEncodingIsAFunctionOfTheSet guards F16: equal sets, equal bytes.
func TestOffsetSetEncodingIsAFunctionOfTheSet(t *testing.T) {
	var oneByOne, atOnce, backwards, viaGap OffsetSet
	for o := uint64(0); o < 4000; o++ {
		oneByOne.Add(o, o)
		backwards.Add(3999-o, 3999-o)
	}
	atOnce.Add(0, 3999)
	viaGap.Add(2000, 3999)
	viaGap.Add(0, 1999)
	want := atOnce.AppendRanges(nil)
	for _, s := range []*OffsetSet{&oneByOne, &backwards, &viaGap} {
		if got := s.AppendRanges(nil); !bytes.Equal(got, want) {
			t.Errorf("equal sets, different bytes: %x and %x", got, want)
		}
	}
	if got := AppendRange(nil, 0, 3999); !bytes.Equal(got, want) {
		t.Errorf("AppendRange gives %x, want %x", got, want)
	}
}

func TestOffsetSetChunks(t *testing.T) {
	var s OffsetSet
	s.Add(10, 10)
	s.Add(65530, 131080)
	var back OffsetSet
	var seen []uint64
	s.Chunks(func(n uint64, enc []byte) {
		seen = append(seen, n)
		ranges, err := DecodeRanges(enc)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range ranges {
			if ChunkOf(r.Lo) != n || ChunkOf(r.Hi) != n {
				t.Errorf("chunk %d has the range %v", n, r)
			}
			back.Add(r.Lo, r.Hi)
		}
	})
	if !slices.Equal(seen, []uint64{0, 1, 2}) || !back.Equal(&s) {
		t.Errorf("chunks %v, set back %v", seen, rangesOf(&back))
	}
	if got := s.AppendChunk([]byte("x"), 9); string(got) != "x\x00" {
		t.Errorf("a chunk without offsets encodes to %x", got)
	}
}

// TestOffsetSetManyGaps is the size of B47: every second one of a million.
func TestOffsetSetManyGaps(t *testing.T) {
	var s OffsetSet
	for o := uint64(0); o < 1_000_000; o += 2 {
		s.Add(o, o)
	}
	if s.Len() != 500_000 || s.NextAbsent(0) != 1 || s.NextAbsent(999_998) != 999_999 {
		t.Fatal(s.Len(), s.NextAbsent(0))
	}
	total := 0
	s.Chunks(func(_ uint64, enc []byte) {
		total += len(enc)
		if len(enc) > 66_000 {
			t.Errorf("a chunk takes %d bytes", len(enc))
		}
	})
	if total > 1_100_000 || s.Bytes() > 200_000 {
		t.Errorf("encoded %d bytes, memory %d", total, s.Bytes())
	}
}

func TestDecodeRangesRefuses(t *testing.T) {
	var s OffsetSet
	s.Add(5, 9)
	s.Add(11, 11)
	good := s.AppendRanges(nil)
	long := bytes.Repeat([]byte{0xff}, 11)
	for name, b := range map[string][]byte{
		"nothing":             {},
		"trailing byte":       append(slices.Clone(good), 0),
		"cut off":             good[:len(good)-1],
		"count too high":      {3, 0, 0},
		"count huge":          append([]byte{0xff, 0xff, 0xff, 0xff, 0x0f}, good...),
		"number too long":     long,
		"not shortest count":  {0x80, 0x00},
		"not shortest gap":    {1, 0x80, 0x00, 0},
		"past the end":        append(append([]byte{1}, maxUvarint()...), 1),
		"range after the end": append(append([]byte{2}, maxUvarint()...), 0, 0, 0),
	} {
		if r, err := DecodeRanges(b); err == nil {
			t.Errorf("%s: decoded to %v", name, r)
		}
	}
	if r, rest, err := CutRanges(append(slices.Clone(good), 77)); err != nil || len(r) != 2 || string(rest) != "M" {
		t.Errorf("cut: %v %v %v", r, rest, err)
	}
}

func maxUvarint() []byte { return []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01} }

// FuzzDecodeRanges guards B48: what decodes encodes to the same bytes.
func FuzzDecodeRanges(f *testing.F) {
	var s OffsetSet
	f.Add(s.AppendRanges(nil))
	s.Add(65535, 65536)
	s.Add(1<<40, 1<<40+99999)
	f.Add(s.AppendRanges(nil))
	f.Add(append([]byte{1}, append(maxUvarint(), 0)...))
	f.Fuzz(func(t *testing.T, b []byte) {
		ranges, err := DecodeRanges(b)
		if err != nil {
			return
		}
		w := rangeWriter{}
		var total uint64
		for i, r := range ranges {
			if r.Lo > r.Hi || i > 0 && (r.Lo < 2 || r.Lo-2 < ranges[i-1].Hi) {
				t.Fatalf("ranges %v", ranges)
			}
			w.add(r.Lo, r.Hi)
			total += min(r.Hi-r.Lo, 1<<30)
		}
		if again := w.finish(0); !bytes.Equal(again, b) {
			t.Fatalf("%x encodes again to %x", b, again)
		}
		if total > 1<<22 {
			return // a set of that span is refused by its owner, who knows the log's end
		}
		var s OffsetSet
		for _, r := range ranges {
			s.Add(r.Lo, r.Hi)
		}
		if again := s.AppendRanges(nil); !bytes.Equal(again, b) {
			t.Fatalf("%x as a set encodes to %x", b, again)
		}
	})
}

func BenchmarkOffsetSetAddOne(b *testing.B) {
	var s OffsetSet
	var o uint64
	for b.Loop() {
		s.Add(o, o)
		o += 2
		if o > 1<<20 {
			s.Clear()
			o = 0
		}
	}
}
