package segment

import (
	"bytes"
	"fmt"
	"path/filepath"
	"testing"

	"queen/internal/invariants"
	"queen/internal/vfs"
)

func TestAppendDoesNotAllocate(t *testing.T) {
	if invariants.Enabled {
		t.Skip("the race detector and the checks allocate")
	}
	l := openMem(t, vfs.NewMem(1), 0)
	body := bytes.Repeat([]byte("x"), 300)
	cycle := func() {
		for range 10 {
			if _, err := l.Append(body); err != nil {
				t.Fatal(err)
			}
			if _, err := l.AppendFunc(func(dst []byte) []byte { return append(dst, body...) }); err != nil {
				t.Fatal(err)
			}
		}
	}
	cycle()
	if n := testing.AllocsPerRun(100, cycle); n > 1 { // the buffer doubles now and then
		t.Fatalf("%v allocations for 20 appends", n)
	}
}

func BenchmarkAppend(b *testing.B) {
	for _, size := range []int{100, 3000, 100_000} {
		b.Run(fmt.Sprint("size=", size), func(b *testing.B) {
			l, err := Open(Options{FS: vfs.OS(), Dir: filepath.Join(b.TempDir(), "q1"), ID: 1})
			if err != nil {
				b.Fatal(err)
			}
			body := make([]byte, size)
			b.SetBytes(int64(size))
			b.ReportAllocs()
			for i := range b.N {
				if _, err := l.Append(body); err != nil {
					b.Fatal(err)
				}
				if i%max(1, 1_000_000/size) == 0 {
					if err := l.Flush(); err != nil {
						b.Fatal(err)
					}
				}
			}
		})
	}
}

func BenchmarkAppendSync(b *testing.B) {
	for _, size := range []int{300, 4000, 100_000} {
		b.Run(fmt.Sprint("size=", size), func(b *testing.B) {
			l, err := Open(Options{FS: vfs.OS(), Dir: filepath.Join(b.TempDir(), "q1"), ID: 1})
			if err != nil {
				b.Fatal(err)
			}
			body := make([]byte, size)
			b.SetBytes(int64(size))
			for range b.N {
				if _, err := l.Append(body); err != nil {
					b.Fatal(err)
				}
				if err := l.Sync(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkRead(b *testing.B) {
	for _, size := range []int{300, 4000, 100_000} {
		b.Run(fmt.Sprint("size=", size), func(b *testing.B) {
			l, err := Open(Options{FS: vfs.OS(), Dir: filepath.Join(b.TempDir(), "q1"), ID: 1})
			if err != nil {
				b.Fatal(err)
			}
			var refs []Ref
			for range 100 {
				ref, err := l.Append(make([]byte, size))
				if err != nil {
					b.Fatal(err)
				}
				refs = append(refs, ref)
			}
			if err := l.Flush(); err != nil {
				b.Fatal(err)
			}
			b.SetBytes(int64(size))
			b.ReportAllocs()
			buf := make([]byte, size+RecordHeaderSize)
			for i := range b.N {
				if _, err := l.Read(refs[i%len(refs)], buf); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkScan(b *testing.B) {
	l, err := Open(Options{FS: vfs.OS(), Dir: filepath.Join(b.TempDir(), "q1"), ID: 1})
	if err != nil {
		b.Fatal(err)
	}
	for range 20_000 {
		if _, err := l.Append(make([]byte, 3000)); err != nil {
			b.Fatal(err)
		}
	}
	if err := l.Flush(); err != nil {
		b.Fatal(err)
	}
	b.SetBytes(20_000 * 3000)
	for range b.N {
		if _, err := l.Scan(1, 0, nil); err != nil {
			b.Fatal(err)
		}
	}
}
