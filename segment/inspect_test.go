package segment

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	"queen/internal/vfs"
)

// TestInspect damages a file in every way that the format knows: all records
// but the damaged ones are found, and the bytes between them are reported.
func TestInspect(t *testing.T) {
	t.Parallel()
	fsys := vfs.NewMem(1)
	l := openMem(t, fsys, 1<<20)
	var refs []Ref
	for i := range 10 {
		ref, err := l.Append(body(i))
		if err != nil {
			t.Fatal(err)
		}
		refs = append(refs, ref)
	}
	if err := l.Sync(); err != nil {
		t.Fatal(err)
	}
	name := l.path(1)
	size := l.Segments()[0].Size
	end := func(i int) int64 { return refs[i].Pos + RecordHeaderSize + int64(refs[i].Len) }
	flip := func(pos int64) func(*vfs.Mem) error { return func(m *vfs.Mem) error { return m.Flip(name, pos, 0x10) } }
	for what, c := range map[string]struct {
		do      func(*vfs.Mem) error
		size    int64
		missing []int
		gap     string
	}{
		"nothing":         {size: size},
		"body":            {do: flip(refs[3].Pos + 15), size: size, missing: []int{3}, gap: fmt.Sprint(refs[3].Pos, "..", end(3))},
		"length":          {do: flip(refs[3].Pos + 1), size: size, missing: []int{3}, gap: fmt.Sprint(refs[3].Pos, "..", end(3))},
		"last":            {do: flip(refs[9].Pos + 5), size: size, missing: []int{9}, gap: fmt.Sprint(refs[9].Pos, "..", size)},
		"header":          {do: flip(40), size: size, gap: fmt.Sprint("0..", refs[0].Pos)},
		"snapshot inside": {size: size - 3, missing: []int{9}, gap: fmt.Sprint(refs[9].Pos, "..", size-3)},
		"snapshot before": {size: refs[9].Pos, missing: []int{9}},
		"zeros behind": {do: func(m *vfs.Mem) error {
			f, err := m.OpenReadWrite(name)
			return errors.Join(err, f.Truncate(size+100), f.Close())
		}, size: size + 100, gap: fmt.Sprint(size, "..", size+100)},
	} {
		t.Run(what, func(t *testing.T) {
			m := fsys.Clone()
			if c.do != nil {
				if err := c.do(m); err != nil {
					t.Fatal(err)
				}
			}
			found, gaps := map[int64][]byte{}, ""
			_, err := Inspect(Inspection{FS: m, Name: name, Log: 7, Seq: 1, Size: c.size, Window: 64,
				Record: func(pos int64, b []byte) error { found[pos] = bytes.Clone(b); return nil },
				Gap:    func(g Gap) error { gaps += fmt.Sprint(g.Pos, "..", g.End); return nil },
			})
			if err != nil || gaps != c.gap {
				t.Fatalf("gaps %q, want %q; %v", gaps, c.gap, err)
			}
			for _, i := range c.missing {
				if found[refs[i].Pos] != nil {
					t.Errorf("record %d is found", i)
				}
				found[refs[i].Pos] = body(i)
			}
			for i, ref := range refs {
				if !bytes.Equal(found[ref.Pos], body(i)) {
					t.Errorf("record %d: %q", i, found[ref.Pos])
				}
			}
		})
	}
	stop := errors.New("stop")
	if _, err := Inspect(Inspection{FS: fsys, Name: name, Log: 7, Seq: 1, Size: size, Record: func(int64, []byte) error { return stop }}); err != stop {
		t.Errorf("the function's error came back as %v", err)
	}
	if _, err := Inspect(Inspection{FS: fsys, Name: name, Log: 8, Seq: 1, Size: size}); !errors.Is(err, ErrCorrupt) {
		t.Errorf("a file of another log: %v", err)
	}
}
