package index

import (
	"errors"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"pgregory.net/rapid"

	"queen/internal/vfs"
)

func TestLogIndexAgainstLists(t *testing.T) {
	checkSome(t, 10, func(t *rapid.T) {
		m := newLogModel(t, rapid.Uint64().Draw(t, "seed"))
		t.Repeat(map[string]func(*rapid.T){
			"append": func(t *rapid.T) { m.append(rapid.SampledFrom([]int{1, 30, 800}).Draw(t, "n")) },
			"rollAndSeal": func(t *rapid.T) {
				for range rapid.IntRange(1, 9).Draw(t, "files") {
					m.append(m.rnd.IntN(200))
					m.roll()
				}
				m.sealRolled(t)
			},
			"roll":  func(t *rapid.T) { m.roll() },
			"merge": func(t *rapid.T) { m.merge(t) },
			"drop": func(t *rapid.T) {
				i := 0
				if rapid.Bool().Draw(t, "middle") {
					i = m.rnd.IntN(len(m.files))
				}
				if i < len(m.files)-1 {
					m.drop(t, i)
				}
			},
			"cut": func(t *rapid.T) { m.cut(t) },
			"rewrite": func(t *rapid.T) { // a file of a higher generation without its first half
				f := m.files[m.rnd.IntN(len(m.files))]
				if !f.sealed {
					return
				}
				f.id.Generation++
				f.appends = f.appends[len(f.appends)/2:]
				f.values = f.values[len(f.values)/2:]
				m.setTxns(f)
				f.sealed = false
				m.open(t)
				m.verify(t)
				m.seal(t, f)
			},
			"reseal": func(t *rapid.T) {
				if f := m.files[m.rnd.IntN(len(m.files))]; f.sealed {
					m.reseal(t, f)
				}
			},
			"reopen": func(t *rapid.T) { m.open(t) },
			"crash": func(t *rapid.T) {
				m.fs = m.fs.Crash(rapid.SampledFrom([]float64{0, 0.5, 1}).Draw(t, "keep"))
				m.open(t)
			},
			"": func(t *rapid.T) { m.verify(t) },
		})
	})
}

// TestLogIndexLevels: a look-up asks a handful of tables (F23).
func TestLogIndexLevels(t *testing.T) {
	m := newLogModel(t, 11)
	for range 150 {
		m.append(20)
		m.roll()
		m.sealRolled(t)
		m.merge(t)
	}
	if n := m.x.Tables(); n > 2+7+7 {
		t.Errorf("%d tables for 150 files", n)
	}
	if got := len(m.x.Files()); got != 150 {
		t.Errorf("%d files described", got)
	}
	for range 50 {
		m.verify(t)
	}
	infos, err := m.fs.List(modelDir)
	check(t, err)
	if len(infos) != 2*m.x.Tables() {
		t.Errorf("%d files for %d pairs", len(infos), m.x.Tables())
	}
	for len(m.files) > 1 {
		m.drop(t, 0)
	}
	if infos, err = m.fs.List(modelDir); err != nil || len(infos) != 0 {
		t.Errorf("left over: %v %v", infos, err)
	}
}

// TestLogIndexDamage flips bits all over the tables: a look-up may fail with a
// CorruptError, never be wrong, and sealing the named files again mends it.
func TestLogIndexDamage(t *testing.T) {
	m := newLogModel(t, 23)
	m.cache = NewTableCache(0, 4)
	m.open(t)
	for range 9 {
		m.append(300)
		m.roll()
	}
	m.sealRolled(t)
	m.merge(t)
	base := m.fs
	infos, err := base.List(modelDir)
	check(t, err)
	failed, atOpen, met, flips := 0, 0, 0, 0
	for _, info := range infos {
		step := max(info.Size/7, 1)
		for pos := int64(0); pos < info.Size; pos += step {
			flips++
			m.fs = base.Clone()
			check(t, m.fs.Flip(modelDir+"/"+info.Name, pos, 4))
			for _, f := range m.files {
				f.sealed = f != m.active()
			}
			m.open(t)
			if len(m.x.Problems()) > 0 {
				atOpen++
				m.verify(t) // from memory
				m.sealRolled(t)
			}
			for _, f := range m.files {
				if !f.sealed {
					continue
				}
				m.checkSome(t, f)
			}
			if _, err := m.x.MergeSome(); err != nil {
				t.Fatal(err)
			}
			if len(m.x.Broken()) > 0 {
				met++
			}
			err := m.x.Verify(nil)
			if err != nil && (!errors.Is(err, ErrCorrupt) || len(m.x.Broken()) == 0) {
				t.Fatalf("%v, broken %v", err, m.x.Broken())
			}
			if broken := m.x.Broken(); len(broken) > 0 {
				failed++
				for _, f := range m.files {
					if !slices.Contains(broken, f.id.Seq) {
						continue
					}
					if flips%2 == 0 {
						m.reseal(t, f)
					} else {
						m.readd(f)
						m.checkSome(t, f) // twice in the index now
						m.seal(t, f)
					}
				}
				if left := m.x.Broken(); len(left) > 0 {
					t.Fatalf("%v are still broken", left)
				}
			}
			m.verify(t)
			m.verify(t)
		}
	}
	if failed+atOpen != flips || met == 0 || atOpen == 0 {
		t.Errorf("of %d damages %d were found at the start and %d later, %d of these by look-ups", flips, atOpen, failed, met)
	}
}

func TestLogIndexSealFails(t *testing.T) {
	for n := 1; ; n++ {
		m := newLogModel(t, 5)
		m.append(300)
		m.roll()
		m.append(10)
		injected := errors.New("injected")
		m.fs.FailNth(vfs.OpAny, n, injected)
		f := m.files[0]
		err := m.x.Seal(SealedFile{Seq: 1, Generation: 1, Size: f.id.Size}, f.txnList)
		if err == nil {
			if n < 8 {
				t.Errorf("only %d calls", n)
			}
			return
		}
		if !errors.Is(err, injected) {
			t.Fatal(err)
		}
		m.fs.FailNth(vfs.OpAny, 0, nil)
		m.verify(t)
		m.seal(t, f)
		m.verify(t)
	}
}

// TestLogIndexCrashInMaintenance fails the n-th call of a seal, a merge and a
// drop, for every n, cuts the power there, and starts again: what a boot finds is
// enough to answer everything, and to go on.
func TestLogIndexCrashInMaintenance(t *testing.T) {
	for _, keep := range []float64{0, 0.5, 1} {
		for n, failed := 1, true; failed; n++ {
			m := newLogModel(t, uint64(n))
			for range 9 {
				m.append(40)
				m.roll()
			}
			for _, f := range m.files[:8] {
				m.seal(t, f)
			}
			m.fs.FailNth(vfs.OpAny, n, errors.New("injected"))
			f := m.files[8]
			err := m.x.Seal(SealedFile{Seq: f.id.Seq, Generation: 1, Size: f.id.Size}, f.txnList)
			f.sealed = true // or not: the boot says
			if err == nil {
				_, err = m.x.MergeSome()
			}
			if err == nil {
				err = m.x.DropFile(m.files[0].id.Seq)
				m.files = m.files[1:]
			}
			failed = err != nil
			m.fs = m.fs.Crash(keep)
			for range 2 {
				m.open(t)
				for range 5 {
					m.verify(t)
				}
			}
			m.sealRolled(t)
			m.merge(t)
			m.verify(t)
			check(t, m.x.Verify(nil))
			if infos, err := m.fs.List(modelDir); err != nil || len(infos) != 2*m.x.Tables() {
				t.Fatalf("keep %v call %d: %d files for %d pairs: %v", keep, n, len(infos), m.x.Tables(), err)
			}
		}
	}
}

func TestLogIndexSealTxnsFail(t *testing.T) {
	m := newLogModel(t, 5)
	m.append(300)
	m.roll()
	stop := errors.New("the scan met damage")
	err := m.x.Seal(SealedFile{Seq: 1, Generation: 1}, func(func(uint64, uint64)) error { return stop })
	if !errors.Is(err, stop) || m.x.Tables() != 0 {
		t.Errorf("%v, %d tables", err, m.x.Tables())
	}
	err = m.x.Seal(SealedFile{Seq: 1, Generation: 1}, func(add func(uint64, uint64)) error { add(1, 1); return nil })
	if err == nil || m.x.Tables() != 0 {
		t.Errorf("sealed with one message: %v, %d tables", err, m.x.Tables())
	}
	m.verify(t)
}

func TestLogIndexCutIntoSealed(t *testing.T) {
	m := newLogModel(t, 5)
	m.append(30)
	m.roll()
	m.append(3)
	m.sealRolled(t)
	if err := m.x.Cut(1, 100); err == nil {
		t.Error("a sealed file was cut")
	}
	check(t, m.x.Cut(1, m.files[0].id.Size)) // the whole of the next one
	check(t, m.x.Cut(2, 0))
}

func TestTableNames(t *testing.T) {
	for _, c := range []struct {
		level       int
		first, last uint64
		kind        uint32
		name        string
	}{
		{0, 7, 7, tableIdx, "00000000000000000007.idx"},
		{0, 18446744073709551615, 18446744073709551615, tableDedup, "18446744073709551615.dedup"},
		{2, 1, 64, tableDedup, "l2-00000000000000000001-00000000000000000064.dedup"},
	} {
		if got := tableName(c.level, c.first, c.last, c.kind); got != c.name {
			t.Errorf("%s, want %s", got, c.name)
		}
		level, first, last, kind, ok := parseTableName(c.name)
		if !ok || level != c.level || first != c.first || last != c.last || kind != c.kind {
			t.Errorf("%s: %d %d %d %d %v", c.name, level, first, last, kind, ok)
		}
	}
	for _, bad := range []string{"", "1.idx", "00000000000000000000.idx", "18446744073709551616.idx", "0000000000000000000x.idx", "00000000000000000001.seg",
		"l0-00000000000000000001-00000000000000000002.idx", "l1-00000000000000000002-00000000000000000001.idx", "l1-00000000000000000001.idx",
		"00000000000000000001.idx.tmp", "lx.idx"} {
		if _, _, _, _, ok := parseTableName(bad); ok {
			t.Errorf("%q is taken for a table", bad)
		}
	}
	if _, ok := parseRowsName(rowsName(9)); !ok {
		t.Error(rowsName(9))
	}
}

// TestLogIndexConcurrent runs look-ups beside adds, seals, merges and drops. A
// look-up of what was there before it began and is not dropped finds it.
func TestLogIndexConcurrent(t *testing.T) {
	fs := vfs.NewMem(1)
	check(t, fs.MkdirAll(modelDir))
	x, err := OpenLogIndex(fs, modelDir, NewTableCache(30_000, 3))
	check(t, err)
	const files, perFile, parts = 32, 300, 5
	var wrote, lost [parts]atomic.Uint64 // offsets [lost, wrote) are there
	var messages [files + 1]atomic.Uint64
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(g), 9))
			for {
				select {
				case <-stop:
					return
				default:
				}
				p := rnd.Uint64N(parts)
				end := wrote[p].Load()
				if end == 0 {
					continue
				}
				from := rnd.Uint64N(end)
				refs, err := x.Range(p, from, 1+rnd.IntN(40))
				if err != nil {
					t.Error(err)
					return
				}
				if len(refs) == 0 || refs[0].First > from && refs[0].First > lost[p].Load() {
					t.Errorf("partition %d from %d below %d: %v", p, from, end, refs)
					return
				}
				for i := 1; i < len(refs); i++ {
					if refs[i].First != refs[i-1].end() {
						t.Errorf("partition %d from %d: a hole in %v", p, from, refs)
						return
					}
				}
				if rnd.IntN(4) == 0 {
					if _, _, err := x.FindTime(p, rnd.Int64N(int64(files*perFile))); err != nil {
						t.Error(err)
					}
					if err := x.FindTxn(p, rnd.Uint64(), func(uint64) bool { return true }); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	maintain := make(chan uint64, files)
	wg.Go(func() {
		var ends [files + 1][parts]uint64
		for seq := range maintain {
			for p := range parts {
				ends[seq][p] = wrote[p].Load()
			}
			f := SealedFile{Seq: seq, Generation: 1, Size: perFile * 100}
			check(t, x.Seal(f, func(add func(uint64, uint64)) error {
				for i := range messages[seq].Load() {
					add(i*seq*0x9E3779B97F4A7C15, i)
				}
				return nil
			}))
			if _, err := x.MergeSome(); err != nil {
				t.Error(err)
			}
			if seq > 12 {
				for p := range parts { // before it is dropped: a look-up reads it after
					lost[p].Store(ends[seq-12][p])
				}
				check(t, x.DropFile(seq-12))
			}
		}
	})
	rnd := rand.New(rand.NewPCG(1, 1))
	next := [parts]uint64{}
	for seq := uint64(1); seq <= files; seq++ {
		for i := range int64(perFile) {
			p := rnd.Uint64N(parts)
			r := AppendRef{Seq: seq, Pos: 64 + i*100, Partition: p, First: next[p], Count: 1 + rnd.Uint32N(3), Time: int64(seq)*perFile + i}
			next[p] = r.end()
			messages[seq].Add(uint64(r.Count))
			x.AddAppend(r)
			wrote[p].Store(r.end())
		}
		maintain <- seq
	}
	close(maintain)
	for x.MemoryBytes() > 0 && !t.Failed() {
		runtime.Gosched()
	}
	close(stop)
	wg.Wait()
}

func TestSortTxns(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rnd := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 2))
		mask := rapid.SampledFrom([]uint64{1<<64 - 1, 0xFF, 0xF << 60, 0}).Draw(t, "mask")
		in := make([]txnRef, rapid.SampledFrom([]int{0, 1, 2, 15, 1000, 5000}).Draw(t, "n"))
		for i := range in {
			in[i] = txnRef{rnd.Uint64() & mask, rnd.Uint64N(500)}
		}
		want := slices.Clone(in)
		slices.SortFunc(want, txnRef.compare)
		if got := sortTxns(in); !slices.Equal(got, want) {
			t.Fatalf("%v, want %v", got, want)
		}
	})
}
