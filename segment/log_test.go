package segment

import (
	"bytes"
	"errors"
	"fmt"
	"syscall"
	"testing"

	"queen/internal/vfs"
)

func openMem(t *testing.T, fsys vfs.FS, segmentBytes int64) *Log {
	t.Helper()
	l, err := Open(Options{FS: fsys, Dir: "data/log/q7", ID: 7, SegmentBytes: segmentBytes})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func body(i int) []byte { return bytes.Repeat([]byte(fmt.Sprintf("record %d ", i)), 1+i%5) }

func TestAppendReadScanReopen(t *testing.T) {
	t.Parallel()
	fsys := vfs.NewMem(1)
	l := openMem(t, fsys, 200)
	var refs []Ref
	for i := range 20 {
		ref, err := l.Append(body(i))
		if err != nil {
			t.Fatal(err)
		}
		refs = append(refs, ref)
	}
	if err := l.Sync(); err != nil {
		t.Fatal(err)
	}
	fsys = fsys.Crash(0)
	l = openMem(t, fsys, 200)
	for i, ref := range refs {
		got, err := l.Read(ref, nil)
		if err != nil || !bytes.Equal(got, body(i)) {
			t.Fatalf("record %d: %q, %v", i, got, err)
		}
	}
	n := 0
	segments := l.Segments()
	for i, s := range segments {
		end, err := l.Scan(s.Seq, 0, func(pos int64, b []byte) error {
			if want := (Ref{s.Seq, pos, uint32(len(b))}); refs[n] != want || !bytes.Equal(b, body(n)) {
				t.Fatalf("record %d is at %v, scan found %v %q", n, refs[n], want, b)
			}
			n++
			return nil
		})
		if err != nil || end != s.Size && i < len(segments)-1 {
			t.Fatalf("scan of %d ended at %d of %d: %v", s.Seq, end, s.Size, err)
		}
	}
	if n != 20 {
		t.Fatalf("%d records found", n)
	}
	if err := l.Truncate(refs[10].Seq, refs[10].Pos); err != nil {
		t.Fatal(err)
	}
	ref, err := l.Append(body(10))
	if err != nil || ref != refs[10] {
		t.Fatalf("append after the cut at %v: %v, want %v", ref, err, refs[10])
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	l = openMem(t, fsys.Crash(0), 200)
	if got, err := l.Read(ref, nil); err != nil || !bytes.Equal(got, body(10)) {
		t.Fatalf("%q, %v", got, err)
	}
	if err := l.Remove(); err != nil {
		t.Fatal(err)
	}
}

// A volume that has room for the records and not for the zeros behind them is no reason to fail, and what was written of
// the zeros is in no finished file.
func TestNoRoomForPreparedSpace(t *testing.T) {
	m := vfs.NewMem(1)
	l, err := Open(Options{FS: m, Dir: "log/q7", ID: 7})
	if err != nil {
		t.Fatal(err)
	}
	var refs []Ref
	add := func() {
		t.Helper()
		ref, err := l.Append(bytes.Repeat([]byte("r"), 100))
		if err == nil {
			err = l.Sync()
		}
		if err != nil {
			t.Fatal(err)
		}
		refs = append(refs, ref)
	}
	size := func() int64 {
		info, err := m.Stat("log/q7/" + FileName(1))
		if err != nil {
			t.Fatal(err)
		}
		return info.Size
	}
	m.SetCapacity(1000) // a step of zeros is 4 KiB
	add()
	add()
	if want := int64(HeaderSize + 2*(RecordHeaderSize+100)); size() != want {
		t.Errorf("the file has %d bytes, want %d", size(), want)
	}
	if err := l.Roll(); err != nil {
		t.Fatal(err)
	}
	m.SetCapacity(0)
	add()
	if end, err := l.Scan(1, 0, nil); err != nil || end != size() {
		t.Errorf("the finished file of %d bytes ends at %d: %v", size(), end, err)
	}
	for _, ref := range refs {
		if _, err := l.Read(ref, nil); err != nil {
			t.Error(err)
		}
	}
	// A record that does not fit is one.
	m.SetCapacity(20_000)
	for err == nil {
		if _, err = l.Append(make([]byte, 5000)); err == nil {
			err = l.Sync()
		}
	}
	if !errors.Is(err, syscall.ENOSPC) {
		t.Error(err)
	}
}
