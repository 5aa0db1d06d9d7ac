package segment

import (
	"bytes"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cespare/xxhash/v2"

	"queen/internal/vfs"
)

var update = flag.Bool("update", false, "write testdata/v1 anew: only before a format is released")

func TestFileNames(t *testing.T) {
	t.Parallel()
	for _, seq := range []uint64{1, 9, 10, 12345, math.MaxUint64} {
		name := FileName(seq)
		if got, ok := ParseFileName(name); !ok || got != seq {
			t.Errorf("%s: %d, %v", name, got, ok)
		}
	}
	if FileName(9) >= FileName(10) {
		t.Error("names do not sort like numbers")
	}
	for _, name := range []string{
		"", ".seg", "1.seg", "00000000000000000000.seg", "00000000000000000001.idx", "00000000000000000001.seg.tmp",
		"0000000000000000000a.seg", "+0000000000000000001.seg", "-0000000000000000001.seg", "99999999999999999999.seg",
		"000000000000000000001.seg",
	} {
		if seq, ok := ParseFileName(name); ok {
			t.Errorf("%q was taken for file %d", name, seq)
		}
	}
}

func TestHeader(t *testing.T) {
	t.Parallel()
	want := header{version: 1, id: 1<<63 + 5, seq: 77, generation: 3}
	good, salt := want.encode()
	got, gotSalt, err := decodeHeader(good[:], "f", want.id, want.seq)
	if err != nil || got != want || gotSalt != salt {
		t.Fatalf("%+v, %x, %v", got, gotSalt, err)
	}
	for pos := range good {
		for bit := range 8 {
			bad := good
			bad[pos] ^= 1 << bit
			if _, _, err := decodeHeader(bad[:], "f", want.id, want.seq); !errors.Is(err, ErrCorrupt) {
				t.Errorf("bit %d of byte %d flipped: %v", bit, pos, err)
			}
		}
	}
	for size := range good {
		if _, _, err := decodeHeader(good[:size], "f", want.id, want.seq); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%d bytes: %v", size, err)
		}
	}
	for name, c := range map[string]struct {
		change func(b []byte)
		want   error
		says   string
	}{
		"newer":            {func(b []byte) { b[8] = 3 }, ErrNewerFormat, "format version 3, this build reads up to 2"},
		"much newer":       {func(b []byte) { b[11] = 0xff }, ErrNewerFormat, "this build reads up to 2"},
		"newer, and other": {func(b []byte) { b[8], b[50] = 9, 1 }, ErrNewerFormat, "version 9"},
		"covers nothing":   {func(b []byte) { b[8], b[32] = 2, 2 }, ErrCorrupt, "last file covered: expected at least 2 and 77, found 2 and 0"},
		"rewritten first":  {func(b []byte) { b[8], b[32], b[40] = 2, 1, 77 }, ErrCorrupt, "last file covered: expected at least 2 and 77, found 1 and 77"},
		"version 0":        {func(b []byte) { b[8] = 0 }, ErrCorrupt, "version: expected 1, found 0"},
		"other log":        {func(b []byte) { b[16] = 6 }, ErrCorrupt, "log id"},
		"other number":     {func(b []byte) { b[24] = 78 }, ErrCorrupt, "sequence number: expected 77, found 78"},
		"reserve":          {func(b []byte) { b[12] = 1 }, ErrCorrupt, "reserved bytes"},
		"second reserve":   {func(b []byte) { b[55] = 1 }, ErrCorrupt, "reserved bytes"},
	} {
		bad := good
		c.change(bad[:])
		binary.LittleEndian.PutUint64(bad[headerSumPos:], headerSum(bad[:]))
		_, _, err := decodeHeader(bad[:], "f", want.id, want.seq)
		if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// writeFixture is the history that testdata/v1 holds.
func writeFixture(t *testing.T, fsys vfs.FS, dir string) (refs []Ref, bodies [][]byte) {
	t.Helper()
	l, err := Open(Options{FS: fsys, Dir: dir, ID: 258})
	if err != nil {
		t.Fatal(err)
	}
	bodies = [][]byte{{0}, []byte("the first text"), bytes.Repeat([]byte{0xa5}, 300), []byte("in the second file")}
	for i, body := range bodies {
		if i == 3 {
			if err := l.Roll(); err != nil {
				t.Fatal(err)
			}
		}
		ref, err := l.Append(body)
		if err != nil {
			t.Fatal(err)
		}
		refs = append(refs, ref)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	return refs, bodies
}

// TestFixture pins the format: what this build writes is what stands in
// testdata/v1, byte for byte, and this build reads it.
func TestFixture(t *testing.T) {
	t.Parallel()
	const dir = "testdata/v1"
	if *update {
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
		writeFixture(t, vfs.OS(), dir)
	}
	now := filepath.Join(t.TempDir(), "now")
	refs, bodies := writeFixture(t, vfs.OS(), now)
	for _, seq := range []uint64{1, 2} {
		want, err := os.ReadFile(filepath.Join(dir, FileName(seq)))
		if err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(filepath.Join(now, FileName(seq)))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Fatalf("the format changed: file %d has %d bytes, the fixture %d.\nDirectories out there are in the old format: "+
				"give the new one a version of its own, and keep this fixture for the reader.\n"+
				"If version 1 was never released: go test ./segment -run TestFixture -update", seq, len(got), len(want))
		}
	}
	l, err := Open(Options{FS: vfs.OS(), Dir: dir, ID: 258})
	if err != nil {
		t.Fatal(err)
	}
	for i, ref := range refs {
		body, err := l.Read(ref, nil)
		if err != nil || !bytes.Equal(body, bodies[i]) {
			t.Errorf("record %d: %q, %v", i, body, err)
		}
	}
}

// rewriteFixture is what testdata/v2 holds: the history of testdata/v1 and a third file with one record, of which file 1
// was first rewritten without its first record, and then merged with file 2.
func rewriteFixture(t *testing.T, dir string) {
	t.Helper()
	fsys := vfs.OS()
	writeFixture(t, fsys, dir)
	l, err := Open(Options{FS: fsys, Dir: dir, ID: 258})
	if err == nil {
		err = l.Roll()
	}
	if err == nil {
		_, err = l.Append([]byte("the newest"))
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, seqs := range [][]uint64{{1}, {1, 2}} {
		r, err := l.Rewrite(seqs, func(add func([]byte) (int64, error)) error {
			for _, seq := range seqs {
				if _, err := l.Scan(seq, 0, func(_ int64, body []byte) error {
					if len(body) == 1 {
						return nil
					}
					_, err := add(body)
					return err
				}); err != nil {
					return err
				}
			}
			return nil
		})
		if err == nil {
			err = r.Swap()
		}
		if err != nil {
			t.Fatal(err)
		}
		r.Show()
		if err := r.Clean(); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestRewrittenFixture pins version 2: rewritten and merged files.
func TestRewrittenFixture(t *testing.T) {
	t.Parallel()
	const dir = "testdata/v2"
	if *update {
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
		rewriteFixture(t, dir)
	}
	now := filepath.Join(t.TempDir(), "now")
	rewriteFixture(t, now)
	for _, seq := range []uint64{1, 3} {
		want, err := os.ReadFile(filepath.Join(dir, FileName(seq)))
		if err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(filepath.Join(now, FileName(seq)))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Fatalf("the format of file %d changed (%d bytes, the fixture has %d): give the new one a version of its own, and keep this fixture for the reader", seq, len(got), len(want))
		}
	}
	b, err := os.ReadFile(filepath.Join(dir, FileName(1)))
	if err != nil {
		t.Fatal(err)
	}
	u32, u64 := binary.LittleEndian.Uint32, binary.LittleEndian.Uint64
	head := fmt.Sprintf("%s %d %d %d %d %d %d %d", b[:8], u32(b[8:]), u32(b[12:]), u64(b[16:]), u64(b[24:]), u64(b[32:]), u64(b[40:]), u64(b[48:]))
	if want := "QUEENSEG 2 0 258 1 3 2 0"; head != want {
		t.Errorf("the header of the merged file is %s, want %s", head, want)
	}
	l, err := Open(Options{FS: vfs.OS(), Dir: dir, ID: 258})
	if err != nil {
		t.Fatal(err)
	}
	got, seqs := contents(t, l)
	want := []string{"the first text", strings.Repeat("\xa5", 300), "in the second file", "the newest"}
	if !slices.Equal(got, want) || !slices.Equal(seqs, []uint64{1, 3}) {
		t.Errorf("files %v hold %q", seqs, got)
	}
}

// TestFormatIsWhatTheDocumentSays decodes the fixture with nothing but the
// tables of the package comment.
func TestFormatIsWhatTheDocumentSays(t *testing.T) {
	t.Parallel()
	b, err := os.ReadFile("testdata/v1/00000000000000000001.seg")
	if err != nil {
		t.Fatal(err)
	}
	u32, u64 := binary.LittleEndian.Uint32, binary.LittleEndian.Uint64
	head := fmt.Sprintf("%s %d %d %d %d %d %x", b[:8], u32(b[8:]), u32(b[12:]), u64(b[16:]), u64(b[24:]), u64(b[32:]), b[40:56])
	if want := "QUEENSEG 1 0 258 1 1 " + strings.Repeat("0", 32); head != want {
		t.Errorf("header %s, want %s", head, want)
	}
	salt := u64(b[56:])
	if sum := xxhash.Sum64(b[:56]); sum != salt {
		t.Errorf("header checksum %x, want %x", salt, sum)
	}
	var bodies []string
	for pos := uint64(64); pos < uint64(len(b)); {
		length := uint64(u32(b[pos:]))
		whole := bytes.Clone(b[pos : pos+12+length])
		binary.LittleEndian.PutUint64(whole[4:], salt+pos)
		if sum, found := xxhash.Sum64(whole), u64(b[pos+4:]); sum != found {
			t.Errorf("pos %d: checksum %x, want %x", pos, found, sum)
		}
		bodies = append(bodies, string(whole[12:]))
		pos += 12 + length
	}
	if want := []string{"\x00", "the first text", strings.Repeat("\xa5", 300)}; fmt.Sprint(bodies) != fmt.Sprint(want) {
		t.Errorf("%q, want %q", bodies, want)
	}
}

// TestEveryFlippedBitIsFound flips each bit of headers and small records, and
// one bit of each byte of the rest: reading and scanning
// find it, the records before it are untouched, and nothing else appears.
func TestEveryFlippedBitIsFound(t *testing.T) {
	t.Parallel()
	fsys := vfs.NewMem(1)
	refs, bodies := writeFixture(t, fsys, "log/q258")
	name := "log/q258/" + FileName(1)
	info, err := fsys.Stat(name)
	if err != nil {
		t.Fatal(err)
	}
	for pos := range info.Size {
		for bit := range 8 {
			if pos > 150 && int64(bit) != pos%8 {
				continue
			}
			if err := fsys.Flip(name, pos, 1<<bit); err != nil {
				t.Fatal(err)
			}
			l, err := Open(Options{FS: fsys, Dir: "log/q258", ID: 258})
			if err != nil {
				t.Fatal(err)
			}
			n := 0
			_, err = l.Scan(1, 0, func(at int64, body []byte) error {
				if refs[n].Pos != at || !bytes.Equal(body, bodies[n]) {
					t.Errorf("bit %d of byte %d: record %d became %q at %d", bit, pos, n, body, at)
				}
				n++
				return nil
			})
			want := 0
			for want < 3 && pos >= refs[want].Pos+RecordHeaderSize+int64(refs[want].Len) {
				want++
			}
			if pos < HeaderSize {
				want = 0
			}
			if !errors.Is(err, ErrCorrupt) || n != want {
				t.Errorf("bit %d of byte %d: %d records before it, want %d, %v", bit, pos, n, want, err)
			}
			if want < 3 {
				if _, err := l.Read(refs[want], nil); !errors.Is(err, ErrCorrupt) {
					t.Errorf("bit %d of byte %d: read of record %d: %v", bit, pos, want, err)
				}
			}
			if err := fsys.Flip(name, pos, 1<<bit); err != nil {
				t.Fatal(err)
			}
		}
	}
}
