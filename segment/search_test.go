package segment

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"testing"

	"queen/internal/vfs"
)

// TestSearch damages logs of records of given sizes and checks what is found
// behind the damage. Bodies are random, small numbers, or ones that look like
// records themselves.
func TestSearch(t *testing.T) {
	t.Parallel()
	body := func(i int) damage { return damage{i, RecordHeaderSize} }
	length := func(i int) damage { return damage{i, 3} } // makes it larger than any file
	tests := map[string]struct {
		sizes    []int
		damages  []damage
		wantPos  int // record where the valid part ends
		wantNext int // record that is found after it; 0: none
		wantRun  int
	}{
		"body, then a clean end":              {[]int{10, 20, 30, 40}, []damage{body(1)}, 1, 2, 2},
		"length, then a clean end":            {[]int{10, 20, 30, 40}, []damage{length(1)}, 1, 2, 2},
		"last record":                         {[]int{10, 20, 30}, []damage{body(2)}, 2, 0, 0},
		"last record's length":                {[]int{10, 20, 30}, []damage{length(2)}, 2, 0, 0},
		"two last":                            {[]int{10, 20, 30}, []damage{body(1), body(2)}, 1, 0, 0},
		"body, one good, bad to the end":      {[]int{10, 20, 30, 40}, []damage{body(1), body(3)}, 1, 2, 1},
		"length, one good, bad to the end":    {[]int{10, 20, 30, 40}, []damage{length(1), length(3)}, 1, 2, 1},
		"body, one large, bad to the end":     {[]int{10, 20, 90_000, 40}, []damage{body(1), body(3)}, 1, 2, 1},
		"length of a large one":               {[]int{10, 150_000, 90_000, 5}, []damage{length(1)}, 1, 2, 2},
		"length, one large to the end":        {[]int{10, 20, 200_000}, []damage{length(1)}, 1, 2, 1},
		"length, large ones with bad between": {[]int{10, 20, 70_000, 30, 70_000}, []damage{length(1), body(3)}, 1, 4, 1},
		"lengths of all but the last":         {[]int{10, 20, 30, 40}, []damage{length(0), length(1), length(2)}, 0, 3, 1},
		"many small ones":                     {slicesRepeat(500, 20), []damage{length(1)}, 1, 2, 498},
	}
	fills := map[string]func(rng *rand.Rand, b []byte){
		"random": func(rng *rand.Rand, b []byte) {
			for i := range b {
				b[i] = byte(rng.Uint32())
			}
		},
		"small numbers": func(rng *rand.Rand, b []byte) {
			for i := range b {
				b[i] = byte(rng.Uint32()) * byte(1-i%4/2) // two low bytes of four
			}
		},
		"almost only zeros": func(_ *rand.Rand, b []byte) { b[len(b)-1] = 1 },
		"records of another place": func(_ *rand.Rand, b []byte) {
			for len(b) > 20 {
				binary.LittleEndian.PutUint32(b, 8)
				seal(b[:20], 12345, 64)
				b = b[20:]
			}
		},
	}
	for name, c := range tests {
		for fillName, fill := range fills {
			for _, zeros := range []int64{0, 5, 20_000} {
				fsys := vfs.NewMem(1)
				l := openMem(t, fsys, 1<<30)
				rng := rand.New(rand.NewPCG(1, 2))
				var refs []Ref
				for _, size := range c.sizes {
					b := make([]byte, size)
					fill(rng, b)
					ref, err := l.Append(b)
					if err != nil {
						t.Fatal(err)
					}
					refs = append(refs, ref)
				}
				if err := l.Sync(); err != nil {
					t.Fatal(err)
				}
				damageFile(t, fsys, refs, c.damages, zeros)
				l = openMem(t, fsys, 1<<30)
				_, err := l.Scan(1, 0, nil)
				var torn *TornError
				if !errors.As(err, &torn) {
					t.Fatalf("%s, %s, %d zeros: %v", name, fillName, zeros, err)
				}
				wantNext := int64(0)
				if c.wantNext > 0 {
					wantNext = refs[c.wantNext].Pos
				}
				if torn.Pos != refs[c.wantPos].Pos || torn.NextPos != wantNext || torn.RecordsAfter != c.wantRun || torn.Unsearched != 0 {
					t.Errorf("%s, %s, %d zeros: next pos %d, want %d: %v", name, fillName, zeros, torn.NextPos, wantNext, err)
				}
			}
		}
	}
}

type damage struct {
	record int
	at     int64 // from the record's start
}

func damageFile(t *testing.T, fsys *vfs.Mem, refs []Ref, damages []damage, zeros int64) {
	t.Helper()
	name := "data/log/q7/" + FileName(1)
	for _, d := range damages {
		if err := fsys.Flip(name, refs[d.record].Pos+d.at, 0xff); err != nil {
			t.Fatal(err)
		}
	}
	f, err := fsys.OpenReadWrite(name)
	if err != nil {
		t.Fatal(err)
	}
	size, err := f.Size()
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(f.Truncate(size+zeros), f.Sync(), f.Close()); err != nil {
		t.Fatal(err)
	}
}

func slicesRepeat(n, size int) []int {
	sizes := make([]int, n)
	for i := range sizes {
		sizes[i] = size
	}
	return sizes
}

// TestSearchIsBounded: bytes that were made to look like records everywhere do
// not keep a scan busy, and it says how much it did not look at.
func TestSearchIsBounded(t *testing.T) {
	t.Parallel()
	fsys := vfs.NewMem(1)
	l := openMem(t, fsys, 1<<30)
	if _, err := l.Append([]byte("good")); err != nil {
		t.Fatal(err)
	}
	evil := bytes.Repeat([]byte{0, 0x80, 0, 0}, 1<<18) // lengths of 32 KiB
	ref, err := l.Append(evil)
	if err != nil || l.Sync() != nil {
		t.Fatal(err)
	}
	if err := errors.Join(fsys.Flip("data/log/q7/"+FileName(1), ref.Pos+3, 0xff), fsys.Flip("data/log/q7/"+FileName(1), ref.Pos+100, 1)); err != nil {
		t.Fatal(err)
	}
	_, err = l.Scan(1, 0, nil)
	var torn *TornError
	if !errors.As(err, &torn) || torn.Pos != ref.Pos || torn.RecordsAfter != 0 || torn.Unsearched == 0 {
		t.Fatalf("%+v", err)
	}
}
