package index

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"path"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"queen/internal/vfs"
)

// rowMap is the plain model of a checkpoint, and a RowLoader.
type rowMap map[string]string

func (m rowMap) LoadRow(key, value []byte) error {
	if value == nil {
		delete(m, string(key))
	} else {
		m[string(key)] = string(value)
	}
	return nil
}

func (m rowMap) LoadDeleteRange(lo, hi []byte) error {
	maps.DeleteFunc(m, func(k, _ string) bool { return k >= string(lo) && (len(hi) == 0 || k < string(hi)) })
	return nil
}

func mustOpenRows(t interface{ Fatal(...any) }, fs vfs.FS, want rowMap) (*Rows, Footer) {
	got := rowMap{}
	r, f, err := OpenRows(fs, "ck", got)
	if err != nil {
		t.Fatal(err)
	}
	if !maps.Equal(got, want) {
		t.Fatal(fmt.Sprintf("loaded %v, want %v", got, want))
	}
	return r, f
}

func check(t interface{ Fatal(...any) }, err error) {
	if h, ok := t.(interface{ Helper() }); ok {
		h.Helper()
	}
	if err != nil {
		t.Fatal(err)
	}
}

func TestRowsRoundTrip(t *testing.T) {
	fs := vfs.NewMem(1)
	r, f := mustOpenRows(t, fs, rowMap{})
	if f.To != 0 || !r.NeedsCompaction() {
		t.Fatalf("footer %+v", f)
	}
	check(t, r.Begin(false)) // full all the same: it is the first
	check(t, r.Put([]byte("a"), []byte("1")))
	check(t, r.Put([]byte("b"), nil))
	check(t, r.Put([]byte("c"), []byte("3")))
	check(t, r.Put(nil, []byte("the empty key")))
	check(t, r.Finish(Footer{From: 3, To: 9, FromTerm: 1, ToTerm: 2, Time: -5, Extra: []byte("x")}))
	want := rowMap{"a": "1", "b": "", "c": "3", "": "the empty key"}

	r, f = mustOpenRows(t, fs, want)
	if f.From != 3 || f.To != 9 || f.FromTerm != 1 || f.ToTerm != 2 || f.Time != -5 || string(f.Extra) != "x" {
		t.Fatalf("footer %+v", f)
	}
	check(t, r.Begin(false))
	check(t, r.Delete([]byte("a")))
	check(t, r.Put([]byte("d"), []byte("4")))
	check(t, r.Finish(Footer{To: 10}))
	delete(want, "a")
	want["d"] = "4"
	r, _ = mustOpenRows(t, fs, want)

	check(t, r.Begin(false)) // given up: the orphans do not count (F5)
	check(t, r.Put([]byte("orphan"), []byte(strings.Repeat("x", 2*rowsFlush))))
	check(t, r.Abandon())
	mustOpenRows(t, fs, want)
	check(t, r.Begin(false))
	check(t, r.DeleteRange([]byte("b"), []byte("d")))
	check(t, r.Finish(Footer{To: 11}))
	delete(want, "b")
	delete(want, "c")
	r, _ = mustOpenRows(t, fs, want)

	check(t, r.Begin(true))
	check(t, r.Put([]byte("only"), []byte("one")))
	mustOpenRows(t, fs, want) // not finished
	check(t, r.Finish(Footer{To: 12}))
	_, f = mustOpenRows(t, fs, rowMap{"only": "one"})
	infos, err := fs.List("ck")
	check(t, err)
	if f.To != 12 || len(infos) != 1 || infos[0].Name != rowsName(2) {
		t.Errorf("footer %+v, files %v", f, infos)
	}
}

// TestRowsCrash cuts the power anywhere and compares with what was finished:
// a checkpoint whose Finish returned is there, one that was not begun is not,
// one in between is there whole or not at all.
func TestRowsCrash(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		mem := vfs.NewMem(rapid.Uint64().Draw(t, "fsSeed"))
		rnd := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
		done, doneTo := rowMap{}, uint64(0) // the newest finished checkpoint
		r, _ := mustOpenRows(t, mem, done)
		next := uint64(0)
		for range rapid.IntRange(1, 12).Draw(t, "steps") {
			next++
			now := maps.Clone(done)
			full := rnd.IntN(3) == 0 || doneTo == 0
			check(t, r.Begin(full))
			if full {
				for _, k := range slices.Sorted(maps.Keys(now)) {
					check(t, r.Put([]byte(k), []byte(now[k])))
				}
			}
			for range rnd.IntN(20) {
				k := fmt.Sprintf("k%02d", rnd.IntN(30))
				switch rnd.IntN(5) {
				case 0:
					check(t, r.Delete([]byte(k)))
					delete(now, k)
				case 1:
					hi := fmt.Sprintf("k%02d", rnd.IntN(30))
					check(t, r.DeleteRange([]byte(k), []byte(hi)))
					check(t, now.LoadDeleteRange([]byte(k), []byte(hi)))
				default:
					v := strings.Repeat(k, rnd.IntN(1<<rnd.IntN(15))/3+1)
					check(t, r.Put([]byte(k), []byte(v)))
					now[k] = v
				}
			}
			crash := rapid.SampledFrom([]string{"no", "no", "before", "during", "after", "abandon", "reopen"}).Draw(t, "crash")
			finished := crash == "no" || crash == "after" || crash == "reopen"
			switch crash {
			case "abandon":
				check(t, r.Abandon())
				continue
			case "before":
				if rnd.IntN(2) == 0 {
					check(t, r.flush())
				}
			case "during":
				op := rapid.SampledFrom([]vfs.Op{vfs.OpSync, vfs.OpWrite, vfs.OpSyncDir, vfs.OpRemove}).Draw(t, "op")
				mem.FailNth(op, rnd.IntN(2)+1, errors.New("injected"))
				finished = r.Finish(Footer{To: next}) == nil
				if !finished && r.Begin(false) == nil {
					t.Fatal("goes on after a failed write")
				}
			}
			if finished && crash != "during" {
				check(t, r.Finish(Footer{To: next}))
			}
			if finished {
				done, doneTo = now, next
			}
			if crash == "no" {
				continue
			}
			if crash != "reopen" || !finished {
				mem = mem.Crash(rapid.SampledFrom([]float64{0, 0.5, 1}).Draw(t, "keep"))
			}
			got := rowMap{}
			var f Footer
			var err error
			if r, f, err = OpenRows(mem, "ck", got); err != nil {
				t.Fatal(err)
			}
			switch {
			case f.To == doneTo && maps.Equal(got, done):
			case !finished && f.To == next && maps.Equal(got, now):
				done, doneTo = now, next
			default:
				t.Fatalf("after a crash %s: footer %+v rows %v; finished was %d with %v", crash, f, got, doneTo, done)
			}
			check(t, r.Sync())
		}
	})
}

// TestRowsDamage flips every byte of a file, one at a time. Before a footer
// that is damage; after the last one it is nobody's business; a damaged last
// footer leaves the one before it.
func TestRowsDamage(t *testing.T) {
	mem := vfs.NewMem(1)
	r, _ := mustOpenRows(t, mem, rowMap{})
	check(t, r.Begin(true))
	check(t, r.Put([]byte("a"), []byte("1")))
	check(t, r.Finish(Footer{To: 1}))
	first := r.Size()
	check(t, r.Begin(false))
	check(t, r.Put([]byte("b"), []byte("2")))
	check(t, r.flush())
	footerAt := r.cap.end
	check(t, r.Finish(Footer{To: 2}))
	second := r.Size()
	check(t, r.Begin(false))
	check(t, r.Put([]byte("c"), []byte("3")))
	check(t, r.flush())
	end := r.cap.end
	for pos := range end {
		m := mem.Clone()
		check(t, m.Flip("ck/"+rowsName(1), pos, 0x10))
		got := rowMap{}
		_, f, err := OpenRows(m, "ck", got)
		var damage *CorruptError
		switch {
		case pos >= second:
			if err != nil || f.To != 2 || len(got) != 2 {
				t.Errorf("pos %d, behind the last footer: %v %v %v", pos, f, got, err)
			}
		case pos >= footerAt:
			if err != nil || f.To != 1 || len(got) != 1 {
				t.Errorf("pos %d, in the last footer: %v %v %v", pos, f, got, err)
			}
		case !errors.As(err, &damage):
			t.Errorf("pos %d: footer %v rows %v error %v", pos, f, got, err)
		case damage.Pos > pos || pos >= rowsHeaderSize && damage.Pos < rowsHeaderSize || len(got) > 0:
			t.Errorf("pos %d: %v, after rows %v", pos, damage, got)
		}
	}
	_ = first
	for cut := range second {
		m := mem.Clone()
		f, err := m.OpenReadWrite("ck/" + rowsName(1))
		check(t, err)
		check(t, f.Truncate(cut))
		_, footer, err := OpenRows(m, "ck", rowMap{})
		want := uint64(0)
		if cut >= first {
			want = 1
		}
		if err != nil || footer.To != want {
			t.Errorf("cut at %d: %v %v, want %d", cut, footer, err, want)
		}
	}
}

// TestRowsWholeRecords takes whole records out, doubles and swaps them, all
// with good checksums: the footer knows better. A row that contains what looks
// like a footer is a row.
func TestRowsWholeRecords(t *testing.T) {
	mem := vfs.NewMem(1)
	r, _ := mustOpenRows(t, mem, rowMap{})
	check(t, r.Begin(true))
	fake := appendFooter(nil, &footerRecord{pos: 93})
	sealRecord(fake, 0)
	check(t, r.Put([]byte("a"), fake))
	check(t, r.Put([]byte("b"), []byte("1")))
	check(t, r.Put([]byte("b"), []byte("2")))
	check(t, r.Finish(Footer{To: 1}))
	whole := readAll(t, mem, "ck/"+rowsName(1))
	var records [][]byte
	last := int64(rowsHeaderSize)
	end, err := ScanRows(mem, "ck/"+rowsName(1), func(pos int64, _ RowRecord) error {
		if pos > last {
			records = append(records, whole[last:pos])
		}
		last = pos
		return nil
	})
	check(t, err)
	records = append(records, whole[last:end])
	if len(records) != 4 {
		t.Fatalf("%d records", len(records))
	}
	for name, c := range map[string]struct {
		order []int
		ok    bool
	}{
		"as written":     {[]int{0, 1, 2, 3}, true},
		"one is gone":    {[]int{0, 2, 3}, false},
		"one is doubled": {[]int{0, 1, 1, 2, 3}, false},
		"two swapped":    {[]int{0, 2, 1, 3}, false},
		"footer twice":   {[]int{0, 1, 2, 3, 3}, false},
		"row after it":   {[]int{0, 1, 2, 3, 1}, true},
	} {
		b := slices.Clone(whole[:rowsHeaderSize])
		for _, i := range c.order {
			b = append(b, records[i]...)
		}
		fs := vfs.NewMem(1)
		writeAll(t, fs, "ck/"+rowsName(1), b)
		got := rowMap{}
		_, f, err := OpenRows(fs, "ck", got)
		if c.ok && (err != nil || f.To != 1 || got["b"] != "2" || got["a"] != string(fake)) || !c.ok && !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: footer %+v rows %v error %v", name, f, got, err)
		}
	}
}

func TestRowsNewerFormat(t *testing.T) {
	mem := vfs.NewMem(1)
	r, _ := mustOpenRows(t, mem, rowMap{})
	check(t, r.Begin(true))
	check(t, r.Finish(Footer{To: 1}))
	h := appendRowsHeader(nil, 1)
	h[8]++
	h = h[:24]
	h = appendSum(h)
	f, err := mem.OpenReadWrite(path.Join("ck", rowsName(1)))
	check(t, err)
	_, err = f.WriteAt(h, 0)
	check(t, err)
	if _, _, err := OpenRows(mem, "ck", rowMap{}); !errors.Is(err, ErrNewerFormat) {
		t.Errorf("opened: %v", err)
	}
}

func TestRowsCompaction(t *testing.T) {
	mem := vfs.NewMem(1)
	r, _ := mustOpenRows(t, mem, rowMap{})
	value := make([]byte, 1<<20)
	for i := range uint64(25) {
		full := r.NeedsCompaction()
		check(t, r.Begin(full))
		check(t, r.Put([]byte("k"), value))
		check(t, r.Finish(Footer{To: i + 1}))
		if r.Size() > 2*(1<<20)+compactSlack+2<<20 {
			t.Fatalf("%d bytes for one row of 1 MiB", r.Size())
		}
	}
	if r.cur.seq < 3 || r.cur.seq > 8 {
		t.Errorf("%d files for 25 checkpoints", r.cur.seq)
	}
}

// FuzzRows opens any bytes as a checkpoint. It ends with damage or with some
// rows; then another checkpoint on top of them finds these rows again.
func FuzzRows(f *testing.F) {
	mem := vfs.NewMem(1)
	r, _ := mustOpenRows(f, mem, rowMap{})
	check(f, r.Begin(true))
	check(f, r.Put([]byte("a"), []byte("1")))
	check(f, r.DeleteRange([]byte("b"), nil))
	check(f, r.Delete([]byte("c")))
	check(f, r.Finish(Footer{To: 1, Extra: []byte("e")}))
	check(f, r.Begin(false))
	check(f, r.Put([]byte("b"), []byte("2")))
	check(f, r.flush())
	b := readAll(f, mem, "ck/"+rowsName(1))
	f.Add(b, uint16(0), byte(0))
	f.Add(b, uint16(40), byte(1))
	f.Add(b[:60], uint16(40), byte(0))
	f.Fuzz(func(t *testing.T, b []byte, at uint16, mask byte) {
		if len(b) > 0 {
			b = slices.Clone(b)
			b[int(at)%len(b)] ^= mask
		}
		fs := vfs.NewMem(1)
		writeAll(t, fs, "ck/"+rowsName(1), b)
		rows := rowMap{}
		r, footer, err := OpenRows(fs, "ck", rows)
		if err != nil {
			if !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrNewerFormat) {
				t.Fatal(err)
			}
			return
		}
		check(t, r.Sync())
		check(t, r.Begin(false))
		check(t, r.Put([]byte("one more"), nil))
		check(t, r.Finish(Footer{To: footer.To + 1}))
		rows["one more"] = ""
		if _, f := mustOpenRows(t, fs, rows); f.To != footer.To+1 {
			t.Fatalf("footer %+v after %+v", f, footer)
		}
	})
}

func BenchmarkRowsLoad(b *testing.B) {
	mem := vfs.NewMem(1)
	r, _ := mustOpenRows(b, mem, rowMap{})
	check(b, r.Begin(true))
	key, value := make([]byte, 20), make([]byte, 80)
	const n = 1_000_000
	for i := range n {
		key[0], key[1], key[2] = byte(i), byte(i>>8), byte(i>>16)
		check(b, r.Put(key, value))
	}
	check(b, r.Finish(Footer{To: 1}))
	b.ResetTimer()
	for b.Loop() {
		var c countRows
		_, _, err := OpenRows(mem, "ck", &c)
		check(b, err)
		if c != n {
			b.Fatal(c)
		}
	}
}

type countRows int

func (c *countRows) LoadRow(_, _ []byte) error         { *c++; return nil }
func (c *countRows) LoadDeleteRange(_, _ []byte) error { return nil }
