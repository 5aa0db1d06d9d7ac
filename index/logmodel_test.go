package index

import (
	"errors"
	"math/rand/v2"
	"slices"

	"queen/internal/vfs"
)

// logModel is a log in plain lists, and the real index beside it.
type logModel struct {
	rnd   *rand.Rand
	fs    *vfs.Mem
	cache *TableCache
	x     *LogIndex
	files []*modelFile // rising; the last one is active
	next  map[uint64]uint64
	now   int64
	value uint64
	parts uint64
}

type modelFile struct {
	id      FileID
	appends []AppendRef
	values  []valueRef
	txns    []txnRef
	sealed  bool
}

const modelDir = "log/q7"

func newLogModel(t fataler, seed uint64) *logModel {
	m := &logModel{rnd: rand.New(rand.NewPCG(seed, 3)), fs: vfs.NewMem(seed), next: map[uint64]uint64{}, now: 1000, parts: 1 + seed%40}
	check(t, m.fs.MkdirAll(modelDir))
	check(t, m.fs.SyncDir("log"))
	check(t, m.fs.SyncDir("."))
	m.cache = NewTableCache(int64(seed%5)*20_000, 1+int(seed%7))
	m.roll()
	m.open(t)
	return m
}

type fataler interface {
	Fatal(...any)
	Fatalf(string, ...any)
}

func (m *logModel) active() *modelFile { return m.files[len(m.files)-1] }

func (m *logModel) roll() {
	seq := uint64(1)
	if n := len(m.files); n > 0 {
		seq = m.active().id.Seq + 1
	}
	m.files = append(m.files, &modelFile{id: FileID{Seq: seq, Generation: 1, Size: 64}})
}

// open opens the index as a boot does: reconcile, add what has no tables.
func (m *logModel) open(t fataler) {
	x, err := OpenLogIndex(m.fs, modelDir, m.cache)
	check(t, err)
	m.x = x
	var ids []FileID
	for _, f := range m.files {
		ids = append(ids, f.id)
	}
	missing := x.Reconcile(ids)
	check(t, x.RemoveGarbage())
	for _, f := range m.files {
		lacks := slices.Contains(missing, f.id)
		if !lacks && !f.sealed {
			t.Fatalf("file %d counts as sealed", f.id.Seq)
		}
		if f.sealed = !lacks; lacks {
			m.readd(f)
		}
	}
}

func (m *logModel) readd(f *modelFile) {
	for _, r := range f.appends {
		m.x.AddAppend(r)
	}
	for _, v := range f.values {
		m.x.AddValue(v.id, v.seq, v.pos)
	}
}

func (m *logModel) append(n int) {
	f := m.active()
	for range n {
		m.now += 1 + m.rnd.Int64N(3)
		if m.rnd.IntN(10) == 0 {
			m.value += 1 + m.rnd.Uint64N(3)
			f.values = append(f.values, valueRef{m.value, f.id.Seq, f.id.Size})
			m.x.AddValue(m.value, f.id.Seq, f.id.Size)
			f.id.Size += 50
		}
		p := 1 + m.rnd.Uint64N(m.parts)
		r := AppendRef{Seq: f.id.Seq, Pos: f.id.Size, Partition: p, First: m.next[p], Count: 1 + m.rnd.Uint32N(4), Time: m.now}
		if m.rnd.IntN(40) == 0 {
			r.First += 5 // a hole, as retention leaves
		}
		m.next[p] = r.end()
		f.id.Size += 100
		f.appends = append(f.appends, r)
		for o := r.First; o < r.end(); o++ {
			f.txns = append(f.txns, txnRef{m.hash(p, o), o})
		}
		m.x.AddAppend(r)
	}
}

// hash repeats itself on purpose: ids repeat, and hashes collide.
func (m *logModel) hash(p, o uint64) uint64 { return (p*1_000_003 + o%97) * 0x9E3779B97F4A7C15 }

func (m *logModel) seal(t fataler, f *modelFile) {
	check(t, m.x.Seal(SealedFile{Seq: f.id.Seq, Generation: f.id.Generation, Size: f.id.Size}, f.txnList))
	f.sealed = true
}

// reseal makes the tables of a sealed file again, beside look-ups.
func (m *logModel) reseal(t fataler, f *modelFile) {
	file := SealedFile{Seq: f.id.Seq, Generation: f.id.Generation, Size: f.id.Size}
	check(t, m.x.Reseal(file, func(c *FileContent) error {
		for _, r := range f.appends {
			c.AddAppend(r)
		}
		if len(f.appends) > 0 {
			m.checkSome(t, f)
		}
		for _, v := range f.values {
			c.AddValue(v.id, v.pos)
		}
		return f.txnList(c.AddTxn)
	}))
}

func (f *modelFile) txnList(add func(hash, offset uint64)) error {
	for _, h := range f.txns {
		add(h.hash, h.offset)
	}
	return nil
}

func (m *logModel) sealRolled(t fataler) {
	for _, f := range m.files[:len(m.files)-1] {
		if !f.sealed {
			m.seal(t, f)
		}
	}
}

func (m *logModel) merge(t fataler) {
	for {
		did, err := m.x.MergeSome()
		check(t, err)
		if !did {
			return
		}
	}
}

func (m *logModel) drop(t fataler, i int) {
	check(t, m.x.DropFile(m.files[i].id.Seq))
	m.files = slices.Delete(m.files, i, i+1)
}

func (m *logModel) cut(t fataler) {
	f := m.active()
	at := int64(64)
	if k := m.rnd.IntN(len(f.appends) + 1); k < len(f.appends) {
		at = f.appends[k].Pos
	}
	check(t, m.x.Cut(f.id.Seq, at))
	f.id.Size = at
	f.appends = slices.DeleteFunc(f.appends, func(r AppendRef) bool { return r.Pos >= at })
	f.values = slices.DeleteFunc(f.values, func(v valueRef) bool { return v.pos >= at })
	m.setTxns(f)
	clear(m.next)
	for _, g := range m.files {
		for _, r := range g.appends {
			m.next[r.Partition] = r.end()
		}
	}
}

func (m *logModel) setTxns(f *modelFile) {
	f.txns = nil
	for _, r := range f.appends {
		for o := r.First; o < r.end(); o++ {
			f.txns = append(f.txns, txnRef{m.hash(r.Partition, o), o})
		}
	}
}

func (m *logModel) of(p uint64) (out []AppendRef) {
	for _, f := range m.files {
		for _, r := range f.appends {
			if r.Partition == p {
				out = append(out, r)
			}
		}
	}
	return out
}

// verify compares look-ups with the lists.
func (m *logModel) verify(t fataler) {
	for range 3 {
		p := m.rnd.Uint64N(m.parts + 2)
		all := m.of(p)
		from := m.rnd.Uint64N(m.next[p] + 3)
		i := slices.IndexFunc(all, func(r AppendRef) bool { return r.end() > from })
		want := all[:0]
		if i >= 0 {
			want = all[i:]
		}
		k := 1 + m.rnd.IntN(70)
		got, err := m.x.Range(p, from, k)
		check(t, err)
		if !slices.Equal(got, want[:min(k, len(want))]) {
			t.Fatalf("partition %d from %d: %v, want %v", p, from, got, want[:min(k, len(want))])
		}
		one, ok, err := m.x.Find(p, from)
		check(t, err)
		if ok != (len(want) > 0) || ok && one != want[0] {
			t.Fatalf("find %d %d: %v %v", p, from, one, ok)
		}
		at := m.rnd.Int64N(m.now + 2)
		i = slices.IndexFunc(all, func(r AppendRef) bool { return r.Time >= at })
		o, ok, err := m.x.FindTime(p, at)
		check(t, err)
		if ok != (i >= 0) || ok && o != all[i].First {
			t.Fatalf("partition %d at or after %d: %d %v, want %d in %v", p, at, o, ok, i, all)
		}
	}
	m.verifyTxn(t)
	id := m.rnd.Uint64N(m.value + 2)
	var want valueRef
	for _, f := range m.files {
		for _, v := range f.values {
			if v.id == id {
				want = v
			}
		}
	}
	seq, pos, ok, err := m.x.FindValue(id)
	check(t, err)
	if ok != (want.id != 0) || ok && (seq != want.seq || pos != want.pos) {
		t.Fatalf("value %d: file %d pos %d %v, want %v", id, seq, pos, ok, want)
	}
}

// verifyTxn: every message of a sealed file with the hash is among the
// candidates, which fall, and since leaves out only what is older.
func (m *logModel) verifyTxn(t fataler) {
	p := 1 + m.rnd.Uint64N(m.parts)
	hash := m.hash(p, m.rnd.Uint64N(97))
	var got []uint64
	check(t, m.x.FindTxn(p, hash, func(o uint64) bool { got = append(got, o); return true }))
	since := m.rnd.Int64N(m.now + 1)
	var recent []uint64
	check(t, m.x.FindTxnSince(p, hash, since, func(o uint64) bool { recent = append(recent, o); return true }))
	if !slices.IsSortedFunc(got, func(a, b uint64) int { return compareUint(b, a) }) {
		t.Fatalf("candidates %v", got)
	}
	for _, f := range m.files {
		if !f.sealed {
			continue
		}
		for _, r := range f.appends {
			for o := r.First; o < r.end() && r.Partition == p; o++ {
				if m.hash(p, o) != hash {
					continue
				}
				if !slices.Contains(got, o) {
					t.Fatalf("offset %d of partition %d is not among %v", o, p, got)
				}
				if r.Time >= since && !slices.Contains(recent, o) {
					t.Fatalf("offset %d of partition %d at %d is not among %v since %d", o, p, r.Time, recent, since)
				}
			}
		}
	}
	n := 0
	check(t, m.x.FindTxn(p, hash, func(uint64) bool { n++; return false }))
	if n != min(len(got), 1) {
		t.Fatalf("%d candidates after the first was enough", n)
	}
}

// checkSome looks up something of a file: it is right, or a CorruptError.
func (m *logModel) checkSome(t fataler, f *modelFile) {
	r := f.appends[m.rnd.IntN(len(f.appends))]
	got, ok, err := m.x.Find(r.Partition, r.First)
	if err == nil && (!ok || got != r) {
		t.Fatalf("%v %v, want %v", got, ok, r)
	}
	refs, err2 := m.x.Range(r.Partition, r.First, 30)
	all := m.of(r.Partition)
	if i := slices.Index(all, r); err2 == nil && !slices.Equal(refs, all[i:][:min(30, len(all)-i)]) {
		t.Fatalf("range from %v: %v", r, refs)
	}
	h, seen := m.hash(r.Partition, r.First), false
	err3 := m.x.FindTxn(r.Partition, h, func(o uint64) bool { seen = seen || o == r.First; return true })
	if err3 == nil && !seen {
		t.Fatalf("an id of file %d is not found", f.id.Seq)
	}
	for _, err := range []error{err, err2, err3} {
		if err != nil && !errors.Is(err, ErrCorrupt) {
			t.Fatal(err)
		}
	}
}
