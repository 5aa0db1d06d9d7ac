package index

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"sort"

	"github.com/RoaringBitmap/roaring/v2"
)

// ErrOffsetSet reports bytes that no set of this package encodes to.
var ErrOffsetSet = errors.New("malformed offset set")

// ChunkOffsets is how many offsets one chunk of an OffsetSet covers. Chunk n
// holds the offsets [n*ChunkOffsets, (n+1)*ChunkOffsets). The number is frozen:
// checkpoints hold chunks.
const ChunkOffsets = 1 << 16

// Range is the offsets Lo to Hi, both included.
type Range struct{ Lo, Hi uint64 }

// OffsetSet is a set of offsets. Its zero value is the empty set and costs one
// pointer, since nearly every cursor has an empty one. It is not safe for
// concurrent use.
//
// Each chunk is a roaring bitmap of its own rather than all of them one
// roaring64: chunks are what checkpoints store, dropping what is committed
// drops whole chunks.
type OffsetSet struct {
	p *[]setChunk // rising by n, none empty; nil: empty set
}

type setChunk struct {
	n  uint64 // offset >> 16
	bm *roaring.Bitmap
}

// ChunkOf is the number of the chunk that holds offset o.
func ChunkOf(o uint64) uint64 { return o / ChunkOffsets }

func (s *OffsetSet) chunks() []setChunk {
	if s.p == nil {
		return nil
	}
	return *s.p
}

func (s *OffsetSet) set(c []setChunk) {
	switch {
	case len(c) == 0:
		s.p = nil
	case s.p == nil:
		s.p = &c
	default:
		*s.p = c
	}
}

// find gives the position of the first chunk >= n, and whether it is n.
func findChunk(cs []setChunk, n uint64) (int, bool) {
	i := sort.Search(len(cs), func(i int) bool { return cs[i].n >= n })
	return i, i < len(cs) && cs[i].n == n
}

// span cuts [lo, hi] down to what lies in chunk n, as bounds within the chunk.
func span(n, lo, hi uint64) (from, to uint32) {
	from, to = 0, ChunkOffsets-1
	if ChunkOf(lo) == n {
		from = uint32(lo % ChunkOffsets)
	}
	if ChunkOf(hi) == n {
		to = uint32(hi % ChunkOffsets)
	}
	return from, to
}

// Add adds the offsets lo to hi, both included; nothing when lo > hi. It costs
// one step for each chunk in between: the caller has checked both against the
// log's end.
func (s *OffsetSet) Add(lo, hi uint64) {
	if lo > hi {
		return
	}
	cs := s.chunks()
	i, _ := findChunk(cs, ChunkOf(lo))
	for n := ChunkOf(lo); n <= ChunkOf(hi); n++ {
		if i == len(cs) || cs[i].n != n {
			cs = slices.Insert(cs, i, setChunk{n: n, bm: roaring.New()})
		}
		if from, to := span(n, lo, hi); from == to {
			cs[i].bm.Add(from)
		} else {
			cs[i].bm.AddRange(uint64(from), uint64(to)+1)
		}
		i++
	}
	s.set(cs)
}

// Contains reports whether o is in the set.
func (s *OffsetSet) Contains(o uint64) bool {
	cs := s.chunks()
	i, ok := findChunk(cs, ChunkOf(o))
	return ok && cs[i].bm.Contains(uint32(o%ChunkOffsets))
}

// RemoveThrough drops every offset at or below o.
func (s *OffsetSet) RemoveThrough(o uint64) {
	cs := s.chunks()
	i, ok := findChunk(cs, ChunkOf(o))
	if ok {
		cs[i].bm.RemoveRange(0, o%ChunkOffsets+1)
		if cs[i].bm.IsEmpty() {
			i++
		}
	}
	if i > 0 {
		s.set(slices.Delete(cs, 0, i))
	}
}

// Clear empties the set.
func (s *OffsetSet) Clear() { s.p = nil }

// Empty reports whether the set has no offset.
func (s *OffsetSet) Empty() bool { return s.p == nil }

// Len is the number of offsets in the set.
func (s *OffsetSet) Len() uint64 {
	var n uint64
	for _, c := range s.chunks() {
		n += c.bm.GetCardinality()
	}
	return n
}

// Min is the lowest offset; ok is false when the set is empty.
func (s *OffsetSet) Min() (o uint64, ok bool) {
	cs := s.chunks()
	if len(cs) == 0 {
		return 0, false
	}
	return cs[0].n*ChunkOffsets + uint64(cs[0].bm.Minimum()), true
}

// Max is the highest offset; ok is false when the set is empty.
func (s *OffsetSet) Max() (o uint64, ok bool) {
	cs := s.chunks()
	if len(cs) == 0 {
		return 0, false
	}
	c := cs[len(cs)-1]
	return c.n*ChunkOffsets + uint64(c.bm.Maximum()), true
}

// NextAbsent is the lowest offset >= from that is not in the set. A set that
// holds everything from there on to the last possible offset has none; the
// answer is then math.MaxUint64, which no log reaches.
func (s *OffsetSet) NextAbsent(from uint64) uint64 {
	cs := s.chunks()
	i, ok := findChunk(cs, ChunkOf(from))
	if !ok {
		return from
	}
	for low := uint32(from % ChunkOffsets); ; low = 0 {
		n := cs[i].n
		if v := cs[i].nextAbsent(low); v < ChunkOffsets {
			return n*ChunkOffsets + uint64(v)
		}
		if n == ChunkOf(math.MaxUint64) {
			return math.MaxUint64
		}
		if i++; i == len(cs) || cs[i].n != n+1 {
			return (n + 1) * ChunkOffsets
		}
	}
}

// nextAbsent is the lowest value >= low that the chunk lacks, ChunkOffsets when
// there is none. It counts: [low, x] is all present exactly when it holds
// x-low+1 values. roaring's NextAbsentValue is not used because it is wrong for
// the last value of a container (v2.30.0).
func (c *setChunk) nextAbsent(low uint32) uint32 {
	if !c.bm.Contains(low) {
		return low
	}
	before := uint64(low) - (c.bm.Rank(low) - 1) // values absent below low
	full := func(x uint32) bool { return uint64(x)+1-c.bm.Rank(x) == before }
	known, step := low, uint32(1) // [low, known] is present
	for known+step < ChunkOffsets && full(known+step) {
		known += step
		step *= 2
	}
	end := min(known+step, ChunkOffsets) // not present, or the end
	for known+1 < end {
		if mid := known + (end-known)/2; full(mid) {
			known = mid
		} else {
			end = mid
		}
	}
	return end
}

// NextPresent is the lowest offset >= from that is in the set.
func (s *OffsetSet) NextPresent(from uint64) (o uint64, ok bool) {
	cs := s.chunks()
	i, same := findChunk(cs, ChunkOf(from))
	if same {
		if v := cs[i].bm.NextValue(uint32(from % ChunkOffsets)); v >= 0 {
			return cs[i].n*ChunkOffsets + uint64(v), true
		}
		i++
	}
	if i == len(cs) {
		return 0, false
	}
	return cs[i].n*ChunkOffsets + uint64(cs[i].bm.Minimum()), true
}

// Ranges calls fn for the maximal ranges of the set, rising, until fn returns
// false.
func (s *OffsetSet) Ranges(fn func(lo, hi uint64) bool) {
	var open bool
	var lo, hi uint64
	for _, c := range s.chunks() {
		more := c.ranges(func(l, h uint64) bool {
			if open && hi+1 == l {
				hi = h
				return true
			}
			if open && !fn(lo, hi) {
				return false
			}
			lo, hi, open = l, h, true
			return true
		})
		if !more {
			return
		}
	}
	if open {
		fn(lo, hi)
	}
}

// ranges is Ranges within one chunk; it reports whether fn never returned false.
func (c *setChunk) ranges(fn func(lo, hi uint64) bool) bool {
	base := c.n * ChunkOffsets
	first, last := uint64(c.bm.Minimum()), uint64(c.bm.Maximum())
	if c.bm.GetCardinality() == last-first+1 {
		return fn(base+first, base+last)
	}
	var buf [256]uint32
	it := c.bm.ManyIterator()
	lo, hi := first, first
	for n := it.NextMany(buf[:]); n > 0; n = it.NextMany(buf[:]) {
		for _, v := range buf[:n] {
			o := uint64(v)
			if o > hi+1 {
				if !fn(base+lo, base+hi) {
					return false
				}
				lo = o
			}
			hi = o
		}
	}
	return fn(base+lo, base+hi)
}

// Clone is a copy that shares nothing with s.
func (s *OffsetSet) Clone() OffsetSet {
	var out OffsetSet
	cs := slices.Clone(s.chunks())
	for i := range cs {
		cs[i].bm = cs[i].bm.Clone()
	}
	out.set(cs)
	return out
}

// Equal reports whether both sets hold the same offsets.
func (s *OffsetSet) Equal(t *OffsetSet) bool {
	return slices.EqualFunc(s.chunks(), t.chunks(), func(a, b setChunk) bool {
		return a.n == b.n && a.bm.Equals(b.bm)
	})
}

// Bytes is about how much memory the set takes.
func (s *OffsetSet) Bytes() int64 {
	var n int64
	for _, c := range s.chunks() {
		n += 200 + int64(c.bm.GetSizeInBytes())
	}
	return n
}

// Encoding. Equal sets give equal bytes, whatever their history (F16); that is
// why roaring's own encoding is not used.

// rangeWriter appends ranges to dst; finish puts their number in front.
type rangeWriter struct {
	dst  []byte
	n    uint64
	next uint64 // lowest offset the next range may start at
}

func (w *rangeWriter) add(lo, hi uint64) {
	w.dst = binary.AppendUvarint(w.dst, lo-w.next)
	w.dst = binary.AppendUvarint(w.dst, hi-lo)
	w.n++
	w.next = hi + 2 // wraps only after the last possible range
}

// finish moves what was added since at behind the count.
func (w *rangeWriter) finish(at int) []byte {
	var head [binary.MaxVarintLen64]byte
	k := binary.PutUvarint(head[:], w.n)
	return slices.Insert(w.dst, at, head[:k]...)
}

// AppendRanges appends the encoding of the whole set to dst.
func (s *OffsetSet) AppendRanges(dst []byte) []byte {
	w := rangeWriter{dst: dst}
	s.Ranges(func(lo, hi uint64) bool { w.add(lo, hi); return true })
	return w.finish(len(dst))
}

// AppendChunk appends the encoding of what the set holds of chunk n to dst:
// an empty set's encoding when it holds nothing there. The offsets in it are
// absolute, so DecodeRanges reads it like any other set.
func (s *OffsetSet) AppendChunk(dst []byte, n uint64) []byte {
	w := rangeWriter{dst: dst}
	if i, ok := findChunk(s.chunks(), n); ok {
		s.chunks()[i].ranges(func(lo, hi uint64) bool { w.add(lo, hi); return true })
	}
	return w.finish(len(dst))
}

// Chunks calls fn for every chunk that holds an offset, rising, with its
// encoding, which is fn's to keep.
func (s *OffsetSet) Chunks(fn func(chunk uint64, enc []byte)) {
	for _, c := range s.chunks() {
		fn(c.n, s.AppendChunk(nil, c.n))
	}
}

// AppendRange appends the encoding of the set [lo, hi] to dst.
func AppendRange(dst []byte, lo, hi uint64) []byte {
	w := rangeWriter{dst: dst}
	w.add(lo, hi)
	return w.finish(len(dst))
}

// DecodeRanges reads an encoded set that fills b: sorted ranges that neither
// overlap nor touch. Anything else is an error that wraps ErrOffsetSet. It
// allocates no more than 16 times the length of b, and nothing aliases b.
func DecodeRanges(b []byte) ([]Range, error) {
	r, rest, err := CutRanges(b)
	if err == nil && len(rest) > 0 {
		return nil, fmt.Errorf("%w: %d bytes after %d ranges", ErrOffsetSet, len(rest), len(r))
	}
	return r, err
}

// CutRanges is DecodeRanges for a set at the start of b; rest is what follows.
func CutRanges(b []byte) (ranges []Range, rest []byte, err error) {
	n, rest, err := cutUvarint(b)
	if err != nil {
		return nil, nil, err
	}
	if n > uint64(len(rest))/2 {
		return nil, nil, fmt.Errorf("%w: %d ranges in %d bytes", ErrOffsetSet, n, len(rest))
	}
	ranges = make([]Range, 0, n)
	next, full := uint64(0), false
	for i := range n {
		var gap, width uint64
		if gap, rest, err = cutUvarint(rest); err != nil {
			return nil, nil, err
		}
		if width, rest, err = cutUvarint(rest); err != nil {
			return nil, nil, err
		}
		lo := next + gap
		hi := lo + width
		if full || lo < next || hi < lo {
			return nil, nil, fmt.Errorf("%w: range %d of %d passes the highest offset", ErrOffsetSet, i, n)
		}
		ranges = append(ranges, Range{lo, hi})
		next, full = hi+2, hi > math.MaxUint64-2
	}
	return ranges, rest, nil
}

// cutUvarint reads a uvarint in its shortest form: a longer one would make two
// encodings of one value.
func cutUvarint(b []byte) (v uint64, rest []byte, err error) {
	v, n := binary.Uvarint(b)
	if n <= 0 {
		return 0, nil, fmt.Errorf("%w: number is cut off or too large", ErrOffsetSet)
	}
	if n > 1 && b[n-1] == 0 {
		return 0, nil, fmt.Errorf("%w: number is not in its shortest form", ErrOffsetSet)
	}
	return v, b[n:], nil
}
