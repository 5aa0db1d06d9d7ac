package fsm

import (
	"encoding/binary"
	"fmt"
	"slices"
	"sort"
	"strings"
)

// statRow is one bucket: so many minutes from start on (both in minutes). It keeps its numbers encoded, which takes a fraction of
// the memory.
type statRow struct {
	s     *series
	enc   []byte
	start uint32
	tier  uint8
	dirty bool
	dead  bool
}

func (r *statRow) end() int64                  { return int64(r.start) + statTiers[r.tier].width }
func (r *statRow) appendKey(dst []byte) []byte { return r.s.key(dst, int(r.tier), r.start) }
func (r *statRow) encode(dst []byte) []byte    { return append(dst, r.enc...) }
func (r *statRow) alive() bool                 { return !r.dead }
func (r *statRow) setDirty(v bool) bool        { return swap(&r.dirty, v) }

// set makes t the numbers of the bucket.
func (r *statRow) set(t *Tally) {
	var buf [256]byte
	enc := t.encode(buf[:0])
	if cap(r.enc) < len(enc) {
		r.enc = make([]byte, 0, len(enc))
	}
	r.enc = append(r.enc[:0], enc...)
}

// statVersion is that of a bucket's value.
const statVersion = 1

func (t *Tally) encode(dst []byte) []byte {
	dst = append(dst, statVersion)
	n := len(TallyFields)
	for n > 0 && TallyFields[n-1].Get(t) == 0 {
		n-- // what counted nothing at the end is not written
	}
	for i := range n {
		dst = binary.AppendUvarint(dst, uint64(max(TallyFields[i].Get(t), 0)))
	}
	return dst
}

func (t *Tally) decode(b []byte) error {
	r := rowReader{b: b}
	if v := r.byte(); r.err == nil && v != statVersion {
		return fmt.Errorf("a statistics bucket of version %d, this build reads %d: it was written by a newer build, start that one", v, statVersion)
	}
	*t = Tally{}
	for i := 0; i < len(TallyFields) && len(r.b) > 0; i++ {
		*TallyFields[i].of(t) = int64(r.uvarint())
	}
	return r.end()
}

// key is that of the bucket of a tier that starts at a minute.
func (s *series) key(dst []byte, tier int, start uint32) []byte {
	if s.q != nil {
		dst = rowKey(dst, rowStats, s.q.id)
	} else {
		dst = append(rowKey(dst, rowStats, 0), s.tenant...)
	}
	return binary.BigEndian.AppendUint32(append(dst, byte(tier)), start)
}

// statKey is a key of a bucket, read.
type statKey struct {
	queue  uint64
	tenant string // of a tenant's: queue is 0
	tier   int
	start  uint32
}

func parseStatKey(key []byte) (k statKey, err error) {
	r := rowReader{b: key[1:]}
	k.queue = r.be64()
	if k.queue == 0 && r.err == nil {
		if len(r.b) < tenantLength {
			return k, errShortRow
		}
		k.tenant = string(r.b[:tenantLength])
		r.b = r.b[tenantLength:]
	}
	tier := r.byte()
	if r.err != nil || len(r.b) != 4 {
		return k, errShortRow
	}
	k.tier, k.start = int(tier), binary.BigEndian.Uint32(r.b)
	if k.tier >= len(statTiers) {
		return k, fmt.Errorf("statistics of width %d, this build knows %d: it was written by a newer build, start that one", k.tier, len(statTiers))
	}
	return k, nil
}

// loadSeries finds the series of a queue or a tenant, or makes it.
func (s *State) loadSeries(queue uint64, tenant string) *series {
	if queue == 0 {
		t, ok := s.totals.Get(tenant)
		if !ok {
			t = &series{tenant: tenant}
			s.totals.Set(tenant, t)
		}
		return t
	}
	q := s.loadQueue(queue)
	if q.stats == nil || q.stats.q != q {
		q.stats = &series{q: q}
	}
	return q.stats
}

// at is where the bucket that starts at a minute stands, or would.
func (s *series) at(tier int, start int64) int {
	rows := s.rows[tier]
	if n := len(rows); n == 0 || int64(rows[n-1].start) < start {
		return n
	}
	return sort.Search(len(rows), func(i int) bool { return int64(rows[i].start) >= start })
}

// row finds the bucket of a tier that starts at a minute, or makes it, without numbers.
func (s *series) row(tier int, start int64) *statRow {
	i := s.at(tier, start)
	if i < len(s.rows[tier]) && int64(s.rows[tier][i].start) == start {
		return s.rows[tier][i]
	}
	r := &statRow{s: s, tier: uint8(tier), start: uint32(start)}
	s.rows[tier] = slices.Insert(s.rows[tier], i, r)
	return r
}

func (m *Machine) loadStats(key, value []byte, changed bool) error {
	k, err := parseStatKey(key)
	if err != nil {
		return err
	}
	s := m.s.loadSeries(k.queue, k.tenant)
	i := s.at(k.tier, int64(k.start))
	if value == nil {
		if rows := s.rows[k.tier]; i < len(rows) && rows[i].start == k.start {
			rows[i].dead = true
			s.rows[k.tier] = slices.Delete(rows, i, i+1)
		}
		return nil
	}
	var t Tally
	if err := t.decode(value); err != nil {
		return err
	}
	r := s.row(k.tier, int64(k.start))
	r.enc = slices.Clone(value)
	if changed {
		m.touch(r)
	}
	return nil
}

// loadStatsRange removes the buckets of one queue or tenant within a range of keys.
func (m *Machine) loadStatsRange(queue uint64, lo []byte, in func(key []byte) bool) {
	tenant := ""
	if queue == 0 {
		if len(lo) < 9+tenantLength {
			return
		}
		tenant = string(lo[9 : 9+tenantLength])
	}
	s := m.s.loadSeries(queue, tenant)
	var buf []byte
	for tier := range s.rows {
		s.rows[tier] = slices.DeleteFunc(s.rows[tier], func(r *statRow) bool {
			if buf = r.appendKey(buf[:0]); in(buf) {
				r.dead = true
			}
			return r.dead
		})
	}
}

// statWalk is a place in the walk over the buckets of a series.
type statWalk struct {
	tier  int
	start int64 // the next one of the tier
}

// walk visits buckets from w on; false: the budget is used up.
func (s *series) walk(w *statWalk, max *int, fn func(rowObject)) (through bool) {
	for ; w.tier < len(s.rows); w.tier, w.start = w.tier+1, 0 {
		for _, r := range s.rows[w.tier][s.at(w.tier, w.start):] {
			if *max <= 0 {
				return false
			}
			fn(r)
			w.start = int64(r.start) + 1
			*max--
		}
	}
	return true
}

// walkTotals visits the buckets of tenants; false: the budget is used up.
func (s *State) walkTotals(w *rowWalk, max *int, fn func(rowObject)) (through bool) {
	through = true
	s.totals.Ascend(w.key, func(tenant string, t *series) bool {
		if tenant != w.key {
			w.key, w.stats = strings.Clone(tenant), statWalk{}
		}
		through = t.walk(&w.stats, max, fn)
		return through
	})
	return through
}
