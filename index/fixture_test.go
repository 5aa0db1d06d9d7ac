package index

import (
	"bytes"
	"flag"
	"maps"
	"os"
	"path"
	"testing"

	"queen/internal/vfs"
)

var rewriteFixtures = flag.Bool("rewrite-fixtures", false, "write the byte fixtures in testdata/format1 anew")

const fixtureDir = "testdata/format1"

// makeFixtures writes one small file of every format, in fs.
func makeFixtures(t *testing.T, fs vfs.FS) {
	check(t, fs.MkdirAll("q7"))
	r, _, err := OpenRows(fs, "q7", rowMap{})
	check(t, err)
	check(t, r.Begin(true))
	check(t, r.Put([]byte("key"), []byte("value")))
	check(t, r.Put([]byte("gone"), []byte("x")))
	check(t, r.Put([]byte("range"), []byte("x")))
	check(t, r.Finish(Footer{From: 1, To: 2, FromTerm: 3, ToTerm: 4, Time: 5, Extra: []byte("extra")}))
	check(t, r.Begin(false))
	check(t, r.Delete([]byte("gone")))
	check(t, r.DeleteRange([]byte("r"), []byte("s")))
	check(t, r.Finish(Footer{From: 6, To: 7, FromTerm: 8, ToTerm: 9, Time: 10}))
	check(t, r.Close())

	x, err := OpenLogIndex(fs, "q7", NewTableCache(0, 1))
	check(t, err)
	for seq := uint64(1); seq <= 9; seq++ {
		for i := range uint64(40) {
			x.AddAppend(AppendRef{Seq: seq, Pos: int64(64 + 100*i), Partition: 5 + i%3, First: seq*1000 + i*10, Count: uint32(1 + i%9), Time: int64(seq*1_000_000 + i)})
		}
		x.AddValue(100+seq, seq, 4064)
		f := SealedFile{Seq: seq, Generation: 1, Size: 4200, MinIndex: seq * 10, MaxIndex: seq*10 + 9}
		check(t, x.Seal(f, func(add func(hash, offset uint64)) error {
			for i := range uint64(40) {
				for o := seq*1000 + i*10; o <= seq*1000+i*10+i%9; o++ {
					add(o*0x9E3779B97F4A7C15, o)
				}
			}
			return nil
		}))
		if seq == 8 {
			if did, err := x.MergeSome(); !did || err != nil {
				t.Fatal(did, err)
			}
		}
	}
	var s OffsetSet
	s.Add(3, 3)
	s.Add(10, 70000)
	s.Add(1<<40, 1<<40+1)
	writeAll(t, fs, "q7/offsetset", s.AppendRanges(nil))
}

// TestFixtures pins every format: what this build writes is what the first one
// wrote, byte for byte, and what the first one wrote can be read.
func TestFixtures(t *testing.T) {
	mem := vfs.NewMem(1)
	makeFixtures(t, mem)
	infos, err := mem.List("q7")
	check(t, err)
	if *rewriteFixtures {
		check(t, os.RemoveAll(fixtureDir))
		check(t, os.MkdirAll(fixtureDir, 0o777))
		for _, i := range infos {
			check(t, os.WriteFile(path.Join(fixtureDir, i.Name), readAll(t, mem, "q7/"+i.Name), 0o666))
		}
	}
	old := vfs.NewMem(1)
	stored, err := os.ReadDir(fixtureDir)
	check(t, err)
	if len(stored) != len(infos) {
		t.Errorf("%d files are written, %d are in %s", len(infos), len(stored), fixtureDir)
	}
	for _, i := range stored {
		want, err := os.ReadFile(path.Join(fixtureDir, i.Name()))
		check(t, err)
		writeAll(t, old, "q7/"+i.Name(), want)
		if _, err := mem.Stat("q7/" + i.Name()); err != nil {
			t.Errorf("%s is not written any more: %v", i.Name(), err)
			continue
		}
		if got := readAll(t, mem, "q7/"+i.Name()); !bytes.Equal(got, want) {
			t.Errorf("%s: other bytes than the fixture. A change of a format needs a new version, a new directory beside %s, and a reader of the old one. "+
				"For a change that is meant before the first release: go test ./index -run TestFixtures -rewrite-fixtures", i.Name(), fixtureDir)
		}
	}
	readFixtures(t, old)
}

func readFixtures(t *testing.T, fs vfs.FS) {
	rows := rowMap{}
	_, f, err := OpenRows(fs, "q7", rows)
	check(t, err)
	if f.To != 7 || !maps.Equal(rows, rowMap{"key": "value"}) {
		t.Errorf("footer %+v rows %v", f, rows)
	}
	x, err := OpenLogIndex(fs, "q7", NewTableCache(0, 1))
	check(t, err)
	check(t, x.Verify(nil))
	if got := x.Files(); len(got) != 9 || got[8] != (FileInfo{Seq: 9, Generation: 1, Size: 4200, MinIndex: 90, MaxIndex: 99,
		MinTime: 9_000_000, MaxTime: 9_000_039, MinValue: 109, MaxValue: 109, Appends: 40, Values: 1, IDs: 190}) {
		t.Errorf("files %+v", got)
	}
	r, ok, err := x.Find(6, 4042)
	if want := (AppendRef{Seq: 4, Pos: 464, Partition: 6, First: 4040, Count: 5, Time: 4_000_004}); !ok || err != nil || r != want {
		t.Errorf("found %+v %v %v, want %+v", r, ok, err, want)
	}
	if seq, pos, ok, err := x.FindValue(105); seq != 5 || pos != 4064 || !ok || err != nil {
		t.Errorf("value: %d %d %v %v", seq, pos, ok, err)
	}
	h := uint64(9042)
	n := 0
	check(t, x.FindTxn(5, h*0x9E3779B97F4A7C15, func(o uint64) bool { n++; return o == 9042 }))
	if n != 1 {
		t.Errorf("%d ids", n)
	}
	ranges, err := DecodeRanges(readAll(t, fs, "q7/offsetset"))
	if err != nil || len(ranges) != 3 || ranges[1] != (Range{10, 70000}) {
		t.Errorf("offset set %v %v", ranges, err)
	}
}
