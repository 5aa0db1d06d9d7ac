package segment

import (
	"bytes"
	"fmt"
	"iter"
	"path"
	"testing"

	"queen/internal/vfs"
)

// Scans of many logs that are under way at once hold no descriptor between
// reads, and find every record whatever the window is.
func TestScansOfManyLogsShareFewFiles(t *testing.T) {
	mem := vfs.NewMem(1)
	files := NewFileCache(4)
	const logs, records = 20, 40
	var next []func() ([]byte, bool)
	for id := range uint64(logs) {
		l, err := Open(Options{FS: mem, Dir: path.Join("d", fmt.Sprint(id)), ID: id, Files: files})
		if err != nil {
			t.Fatal(err)
		}
		for i := range records {
			if _, err := l.Append(recordOf(id, i)); err != nil {
				t.Fatal(err)
			}
		}
		if err := l.Sync(); err != nil {
			t.Fatal(err)
		}
		n, stop := iter.Pull(func(yield func([]byte) bool) {
			if _, err := l.ScanWindow(1, 0, 512, func(_ int64, body []byte) error { yield(body); return nil }); err != nil {
				t.Error(err)
			}
		})
		defer stop()
		next = append(next, n)
	}
	for i := range records {
		for id := range uint64(logs) {
			if body, ok := next[id](); !ok || !bytes.Equal(body, recordOf(id, i)) {
				t.Fatalf("log %d record %d: %d bytes, %v", id, i, len(body), ok)
			}
			if reads, _ := files.Open(); reads > 2 {
				t.Fatalf("%d files are open for reading", reads)
			}
		}
	}
	for id := range next {
		if _, ok := next[id](); ok {
			t.Errorf("log %d has more records", id)
		}
	}
}

// recordOf is small, but for one that no window holds.
func recordOf(id uint64, i int) []byte {
	n := 50 + i
	if i == 7 {
		n = 5000
	}
	return bytes.Repeat([]byte{byte(id), byte(i)}, n)
}
