package segment

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"testing"

	"queen/internal/vfs"
)

// reclaimable is a log of four files with ten records each.
func reclaimable(t *testing.T, fsys vfs.FS) *Log {
	t.Helper()
	l, err := Open(Options{FS: fsys, Dir: "log/q7", ID: 7})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 40 {
		if _, err := l.Append(fmt.Appendf(nil, "record %d", i)); err != nil {
			t.Fatal(err)
		}
		if i%10 == 9 && i < 39 {
			if err := l.Roll(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := l.Sync(); err != nil {
		t.Fatal(err)
	}
	return l
}

// contents reads a log front to back.
func contents(t *testing.T, l *Log) (out []string, seqs []uint64) {
	t.Helper()
	segments := l.Segments()
	for i, s := range segments {
		seqs = append(seqs, s.Seq)
		if end, err := l.Scan(s.Seq, 0, func(_ int64, body []byte) error { out = append(out, string(body)); return nil }); err != nil || end != s.Size && i < len(segments)-1 { // the newest has prepared space
			t.Fatalf("file %d ends at %d of %d: %v", s.Seq, end, s.Size, err)
		}
	}
	return out, seqs
}

// mergeEven rewrites files 1 to 3 without every second record; stop ends it early.
func mergeEven(t *testing.T, l *Log, stop string) *Rewrite {
	t.Helper()
	r, err := l.Rewrite([]uint64{1, 2, 3}, func(add func([]byte) (int64, error)) error {
		for seq := uint64(1); seq <= 3; seq++ {
			n := 0
			_, err := l.Scan(seq, 0, func(_ int64, body []byte) error {
				if n++; n%2 == 1 {
					return nil
				}
				_, err := add(body)
				return err
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if stop == "written" {
		return r
	}
	if err := r.Swap(); err != nil {
		t.Fatal(err)
	}
	if stop == "swapped" {
		return r
	}
	r.Show()
	if err := r.Clean(); err != nil {
		t.Fatal(err)
	}
	return r
}

func TestRewriteReplacesFiles(t *testing.T) {
	for _, stop := range []string{"written", "swapped", ""} {
		t.Run("stopped when "+stop, func(t *testing.T) {
			m := vfs.NewMem(3)
			l := reclaimable(t, m)
			before, _ := contents(t, l)
			r := mergeEven(t, l, stop)
			if stop == "swapped" { // readers still see the old files
				if got, seqs := contents(t, l); !slices.Equal(got, before) || len(seqs) != 4 {
					t.Errorf("between Swap and Show: files %v, %d records", seqs, len(got))
				}
			}
			if stop == "" {
				if got, seqs := contents(t, l); len(got) != 25 || !slices.Equal(seqs, []uint64{1, 4}) || r.Generation != 2 {
					t.Errorf("files %v generation %d, %d records: %q", seqs, r.Generation, len(got), got)
				}
			}
			after, err := Open(Options{FS: m.Crash(0), Dir: "log/q7", ID: 7})
			if err != nil {
				t.Fatal(err)
			}
			got, seqs := contents(t, after)
			want, files := 25, []uint64{1, 4}
			if stop == "written" {
				want, files = 40, []uint64{1, 2, 3, 4}
			}
			if len(got) != want || !slices.Equal(seqs, files) {
				t.Errorf("after a power cut: files %v, %d records: %q", seqs, len(got), got)
			}
			if err := after.RemoveCovered(); err != nil {
				t.Fatal(err)
			}
			infos, err := after.o.FS.List("log/q7")
			if err != nil || stop != "written" && len(infos) != len(files) {
				t.Errorf("in the directory: %v, %v", infos, err)
			}
			// The next file never gets a number that the rewritten one covers.
			if err := after.Roll(); err != nil {
				t.Fatal(err)
			}
			if ref, err := after.Append([]byte("next")); err != nil || ref.Seq != 5 {
				t.Errorf("the next append went to file %d: %v", ref.Seq, err)
			}
		})
	}
}

// A merge may take the newest file, too: the numbers that it covers are not used again.
func TestCoveredNumbersAreNotUsedAgain(t *testing.T) {
	m := vfs.NewMem(3)
	l := reclaimable(t, m)
	if err := l.Roll(); err != nil {
		t.Fatal(err)
	}
	r, err := l.Rewrite([]uint64{3, 4}, func(func([]byte) (int64, error)) error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Swap(); err != nil {
		t.Fatal(err)
	}
	again, err := Open(Options{FS: m.Crash(1), Dir: "log/q7", ID: 7})
	if err != nil {
		t.Fatal(err)
	}
	if err := again.Roll(); err != nil {
		t.Fatal(err)
	}
	if ref, err := again.Append([]byte("next")); err != nil || ref.Seq != 5 {
		t.Errorf("the next append went to file %d: %v", ref.Seq, err)
	}
}

func TestDropRemovesFiles(t *testing.T) {
	m := vfs.NewMem(3)
	l := reclaimable(t, m)
	if err := l.Drop([]uint64{4}); err == nil {
		t.Error("the newest file was removed")
	}
	if err := l.Drop([]uint64{1, 3}); err != nil {
		t.Fatal(err)
	}
	if got, seqs := contents(t, l); len(got) != 20 || !slices.Equal(seqs, []uint64{2, 4}) {
		t.Errorf("files %v, %d records", seqs, len(got))
	}
	if _, _, err := l.ReadAt(1, HeaderSize, nil); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("read of a removed file: %v", err)
	}
	after, err := Open(Options{FS: m.Crash(0), Dir: "log/q7", ID: 7})
	if err != nil {
		t.Fatal(err)
	}
	if _, seqs := contents(t, after); !slices.Equal(seqs, []uint64{2, 4}) {
		t.Errorf("after a power cut: files %v", seqs)
	}
}

// What fails while the new file is written changes nothing.
func TestRewriteThatFails(t *testing.T) {
	m := vfs.NewMem(3)
	l := reclaimable(t, m)
	broken := errors.New("broken")
	if _, err := l.Rewrite([]uint64{1}, func(func([]byte) (int64, error)) error { return broken }); !errors.Is(err, broken) {
		t.Fatalf("error %v", err)
	}
	if got, seqs := contents(t, l); len(got) != 40 || len(seqs) != 4 {
		t.Errorf("files %v, %d records", seqs, len(got))
	}
	if infos, err := m.List("log/q7"); err != nil || len(infos) != 4 {
		t.Errorf("in the directory: %v, %v", infos, err)
	}
}
