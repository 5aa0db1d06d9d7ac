package index

import (
	"errors"
	"os"
	"path"
	"slices"
	"testing"

	"queen/internal/vfs"
)

// FuzzTables changes any byte of the tables of a merged and of a single file.
// Look-ups end with an error or with what is there, Verify never misses the
// change, and nothing panics.
func FuzzTables(f *testing.F) {
	files := map[string][]byte{}
	var names []string
	dir, err := os.ReadDir(fixtureDir)
	check(f, err)
	for _, i := range dir {
		b, err := os.ReadFile(path.Join(fixtureDir, i.Name()))
		check(f, err)
		if _, _, _, _, ok := parseTableName(i.Name()); ok {
			files[i.Name()] = b
			names = append(names, i.Name())
		}
	}
	for i := range names {
		for _, at := range []uint32{0, 8, 12, 33, 500, 1 << 30} {
			f.Add(uint8(i), at, byte(1), uint32(0))
		}
		f.Add(uint8(i), uint32(0), byte(0), uint32(17))
	}
	f.Fuzz(func(t *testing.T, which uint8, at uint32, mask byte, cut uint32) {
		fs := vfs.NewMem(1)
		changed := names[int(which)%len(names)]
		for _, name := range names {
			b := files[name]
			if name == changed {
				b = slices.Clone(b)
				b[int(at)%len(b)] ^= mask
				b = b[:len(b)-int(cut)%len(b)]
			}
			writeAll(t, fs, "q7/"+name, b)
		}
		x, err := OpenLogIndex(fs, "q7", NewTableCache(1<<20, 4))
		check(t, err)
		whole := len(x.Problems()) == 0
		for p := range uint64(9) {
			_, err := x.Range(p, 2000, 50)
			_, _, err2 := x.FindTime(p, 5_000_000)
			for _, err := range []error{err, err2} {
				if err != nil && !errors.Is(err, ErrCorrupt) {
					t.Fatal(err)
				}
			}
		}
		err = x.FindTxn(5, 9042*0x9E3779B97F4A7C15&(1<<64-1), func(uint64) bool { return true })
		if err != nil && !errors.Is(err, ErrCorrupt) {
			t.Fatal(err)
		}
		same := mask == 0 && int(cut)%len(files[changed]) == 0
		if sound := whole && x.Verify(nil) == nil; sound != same {
			t.Fatalf("%s changed at %d by %#x, cut by %d: sound %v", changed, int(at)%len(files[changed]), mask, cut, sound)
		}
	})
}

// FuzzTableParts feeds the decoders behind the checksums. What decodes encodes
// to something that decodes to the same.
func FuzzTableParts(f *testing.F) {
	var block []byte
	var prev AppendRef
	for i := range uint64(5) {
		r := AppendRef{Seq: 2 - i/4, Pos: int64(1000 - 100*i), Partition: i / 2, First: i * 10, Count: 3, Time: int64(i)}
		block = appendAppendEntry(block, &prev, &r)
		prev = r
	}
	f.Add(block)
	f.Add(appendTableMeta(nil, []section{{typ: 1, blocks: 2}}, []FileInfo{{Seq: 1}, {Seq: 4}}))
	f.Add(appendSparse(nil, []sparseEntry{{a: 1, size: 20}, {a: 1, b: 2, size: 4000}}))
	f.Add(appendTxnEntry(nil, &txnRef{}, &txnRef{1 << 60, 7}))
	f.Add(appendValueEntry(nil, &valueRef{}, &valueRef{8, 9, 10}))
	f.Fuzz(func(t *testing.T, b []byte) {
		if refs, err := decodeAppends(nil, b); err == nil {
			var again []byte
			var prev AppendRef
			for _, r := range refs {
				again = appendAppendEntry(again, &prev, &r)
				prev = r
			}
			if back, err := decodeAppends(nil, again); err != nil || !slices.Equal(back, refs) {
				t.Fatalf("%v, again %v %v", refs, back, err)
			}
		}
		if vs, err := decodeValues(nil, b); err == nil {
			var again []byte
			var prev valueRef
			for _, v := range vs {
				again = appendValueEntry(again, &prev, &v)
				prev = v
			}
			if back, err := decodeValues(nil, again); err != nil || !slices.Equal(back, vs) {
				t.Fatalf("%v, again %v %v", vs, back, err)
			}
		}
		if ts, err := decodeTxns(nil, b); err == nil {
			var again []byte
			var prev txnRef
			for _, e := range ts {
				again = appendTxnEntry(again, &prev, &e)
				prev = e
			}
			if back, err := decodeTxns(nil, again); err != nil || !slices.Equal(back, ts) {
				t.Fatalf("%v, again %v %v", ts, back, err)
			}
		}
		if sections, files, err := parseTableMeta(b); err == nil {
			if again := appendTableMeta(nil, sections, files); len(again) != len(b) {
				t.Fatalf("meta of %d bytes, again %d", len(b), len(again))
			}
		}
		if s, err := parseSparse(b, 32, 1<<40); err == nil && len(s) > 0 {
			t.Fatalf("%d blocks end at 2^40", len(s))
		}
		parseTableFooter(append(slices.Clone(b), make([]byte, tableFooterSize)...)[:tableFooterSize], "x", 1<<20)
		checkTableHeader(b, "x", tableIdx, 0)
		checkRowsHeader(b, "x", 1)
		parseRow(b)
	})
}
