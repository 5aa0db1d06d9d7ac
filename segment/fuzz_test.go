package segment

import (
	"bytes"
	"errors"
	"io"
	"testing"

	"queen/internal/vfs"
)

// logOf makes a log whose only file has the given content, or whose first of
// two.
func logOf(t *testing.T, content []byte, successor bool) (*Log, *vfs.Mem) {
	t.Helper()
	fsys := vfs.NewMem(1)
	if err := fsys.MkdirAll("log/q258"); err != nil {
		t.Fatal(err)
	}
	if err := vfs.ReplaceFile(fsys, "log/q258/"+FileName(1), content); err != nil {
		t.Fatal(err)
	}
	if successor {
		head, _ := header{version: Version, id: 258, seq: 2, generation: 1}.encode()
		if err := vfs.ReplaceFile(fsys, "log/q258/"+FileName(2), head[:]); err != nil {
			t.Fatal(err)
		}
	}
	l, err := Open(Options{FS: fsys, Dir: "log/q258", ID: 258})
	if errors.Is(err, ErrNewerFormat) {
		t.Skip()
	}
	if err != nil {
		t.Fatal(err)
	}
	return l, fsys
}

func fixtureBytes(t testing.TB) []byte {
	b, err := vfs.ReadFile(vfs.OS(), "testdata/v1/"+FileName(1))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// FuzzScan takes any bytes for a file. Scanning neither panics nor allocates
// beyond the file's size; what it returns encodes to the same bytes again;
// what it says about the end holds: after a Truncate there, the log is clean,
// takes records, and has kept the ones before.
func FuzzScan(f *testing.F) {
	good := fixtureBytes(f)
	f.Add(good, false)
	f.Add(good, true)
	f.Add(good[:len(good)-1], false)
	f.Add(good[:len(good)-300], false)
	f.Add(good[:HeaderSize], false)
	f.Add(good[:HeaderSize-1], false)
	f.Add([]byte{}, false)
	f.Add(append(bytes.Clone(good), make([]byte, 5000)...), false)
	f.Add(append(append(bytes.Clone(good), make([]byte, 500)...), good[HeaderSize:]...), false)
	f.Add(bytes.Replace(good, []byte("first"), []byte("worst"), 1), false)
	f.Fuzz(func(t *testing.T, content []byte, successor bool) {
		l, _ := logOf(t, content, successor)
		var again []byte
		var salt uint64
		if len(content) >= HeaderSize {
			again = append(again, content[:HeaderSize]...)
			salt = headerSum(content)
		}
		end, err := l.Scan(1, 0, func(pos int64, body []byte) error {
			if pos != int64(len(again)) {
				t.Fatalf("record at pos %d after %d bytes", pos, len(again))
			}
			again = append(append(again, make([]byte, RecordHeaderSize)...), body...)
			seal(again[pos:], salt, pos)
			if got, err := l.Read(Ref{1, pos, uint32(len(body))}, nil); err != nil || !bytes.Equal(got, body) {
				t.Fatalf("read of what was scanned at %d: %q, %v", pos, got, err)
			}
			return nil
		})
		var torn *TornError
		var corrupt *CorruptError
		switch {
		case err == nil:
			if _, _, err := l.ReadAt(1, end, nil); err != io.EOF {
				t.Fatalf("after a clean end: %v", err)
			}
			if !allZero(content[end:]) {
				t.Fatal("bytes after a clean end")
			}
		case errors.As(err, &torn):
			if successor || torn.Pos != end || torn.NextPos != 0 && torn.NextPos <= end {
				t.Fatalf("%+v", torn)
			}
		case errors.As(err, &corrupt):
			if corrupt.Pos != end {
				t.Fatalf("%+v, end %d", corrupt, end)
			}
		default:
			t.Fatal(err)
		}
		if end > 0 && !bytes.Equal(again, content[:end]) {
			t.Fatalf("what was scanned encodes to other bytes than the file has up to %d", end)
		}
		if successor {
			return
		}
		goesOnAfterCut(t, l, end, again)
	})
}

func goesOnAfterCut(t *testing.T, l *Log, end int64, before []byte) {
	if err := l.Truncate(1, end); err != nil {
		t.Fatal(err)
	}
	ref, err := l.Append([]byte("next"))
	if err != nil {
		if len(before) >= HeaderSize && errors.Is(err, ErrCorrupt) {
			return // a header that is wrong as it was written
		}
		t.Fatal(err)
	}
	if err := l.Sync(); err != nil {
		t.Fatal(err)
	}
	if got, err := l.Read(ref, nil); err != nil || string(got) != "next" || ref.Pos != max(end, HeaderSize) {
		t.Fatalf("%v: %q, %v", ref, got, err)
	}
	if _, err := l.Scan(ref.Seq, 0, nil); err != nil {
		t.Fatal(err)
	}
}

// FuzzDamage builds a log and changes bytes of it. Every record that a scan or
// a read still returns is the one that was written there.
func FuzzDamage(f *testing.F) {
	f.Add([]byte{10, 200, 3}, []byte{0, 70, 1})
	f.Add([]byte{1}, []byte{0, 64, 255, 0, 65, 255})
	f.Add([]byte{255, 255, 255, 255}, []byte{1, 0, 1})
	f.Add([]byte{20, 20, 20}, []byte{0, 8, 2, 0, 16, 7})
	f.Fuzz(func(t *testing.T, sizes, edits []byte) {
		fsys := vfs.NewMem(1)
		l := openMem(t, fsys, 0)
		written := map[int64][]byte{}
		for i, size := range sizes[:min(len(sizes), 20)] {
			body := bytes.Repeat([]byte{byte(i), size}, 1+int(size))
			ref, err := l.Append(body)
			if err != nil {
				t.Fatal(err)
			}
			written[ref.Pos] = body
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		if len(written) == 0 {
			return
		}
		for ; len(edits) >= 3; edits = edits[3:] {
			pos := int64(edits[0])<<8 | int64(edits[1])
			_ = fsys.Flip("data/log/q7/"+FileName(1), pos, edits[2]) // outside: no damage
		}
		l, err := Open(Options{FS: fsys, Dir: "data/log/q7", ID: 7})
		if err != nil {
			t.Fatal(err)
		}
		check := func(pos int64, body []byte) error {
			if !bytes.Equal(written[pos], body) {
				t.Fatalf("pos %d: %q, written was %q", pos, body, written[pos])
			}
			return nil
		}
		end, err := l.Scan(1, 0, check)
		var torn *TornError
		if errors.As(err, &torn) && torn.NextPos > 0 && torn.Pos > 0 {
			after := 0
			if _, err := l.Scan(1, torn.NextPos, func(pos int64, body []byte) error {
				after++
				return check(pos, body)
			}); err == nil && after != torn.RecordsAfter {
				t.Fatalf("%d records after the damage, reported were %d", after, torn.RecordsAfter)
			}
		}
		for pos, body := range written {
			got, err := l.Read(Ref{1, pos, uint32(len(body))}, nil)
			if err == nil && !bytes.Equal(got, body) {
				t.Fatalf("read at %d: %q", pos, got)
			}
			if err != nil && pos < end {
				t.Fatalf("read at %d, below the valid end %d: %v", pos, end, err)
			}
		}
	})
}
