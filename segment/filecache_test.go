package segment

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"queen/internal/vfs"
)

// countingFS knows how many handles are open, and how many were closed with
// writes that no sync of theirs had covered.
type countingFS struct {
	vfs.FS
	open, most, closedDirty atomic.Int64
}

type countedFile struct {
	vfs.File
	fs    *countingFS
	dirty atomic.Bool
}

func (f *countedFile) WriteAt(b []byte, pos int64) (int, error) {
	f.dirty.Store(true)
	return f.File.WriteAt(b, pos)
}

func (f *countedFile) Sync() error {
	f.dirty.Store(false)
	return f.File.Sync()
}

func (c *countingFS) counted(f vfs.File, err error) (vfs.File, error) {
	if err != nil {
		return nil, err
	}
	n := c.open.Add(1)
	for most := c.most.Load(); n > most && !c.most.CompareAndSwap(most, n); most = c.most.Load() {
	}
	return &countedFile{File: f, fs: c}, nil
}

func (c *countingFS) Create(name string) (vfs.File, error) { return c.counted(c.FS.Create(name)) }
func (c *countingFS) Open(name string) (vfs.File, error)   { return c.counted(c.FS.Open(name)) }
func (c *countingFS) OpenReadWrite(name string) (vfs.File, error) {
	return c.counted(c.FS.OpenReadWrite(name))
}

func (f *countedFile) Close() error {
	f.fs.open.Add(-1)
	if f.dirty.Load() {
		f.fs.closedDirty.Add(1)
	}
	return f.File.Close()
}

func TestThousandsOfLogsInFewDescriptors(t *testing.T) {
	t.Parallel()
	const (
		logs  = 600
		limit = 20
	)
	mem := vfs.NewMem(1)
	fsys := &countingFS{FS: mem}
	files := NewFileCache(limit)
	all := make([]*Log, logs)
	refs := make([]Ref, logs)
	for i := range all {
		l, err := Open(Options{FS: fsys, Dir: fmt.Sprint("log/q", i), ID: uint64(i), Files: files})
		if err != nil {
			t.Fatal(err)
		}
		all[i] = l
	}
	for round := range 2 {
		for i, l := range all {
			ref, err := l.Append([]byte(fmt.Sprint("log ", i, " round ", round)))
			if err != nil {
				t.Fatal(err)
			}
			refs[i] = ref
			// A cycle that touches every log: flushed one after the other, the
			// write handles that have to go are synced first.
			if err := l.Flush(); err != nil {
				t.Fatal(err)
			}
		}
		for i, l := range all {
			if err := l.Sync(); err != nil {
				t.Fatal(err)
			}
			body, err := l.Read(refs[i], nil)
			if want := fmt.Sprint("log ", i, " round ", round); err != nil || string(body) != want {
				t.Fatalf("%q, %v, want %q", body, err, want)
			}
		}
		if reads, writes := files.Open(); reads+writes > limit || int64(reads+writes) != fsys.open.Load() {
			t.Fatalf("%d read and %d write handles are open by the cache's books, %d in fact", reads, writes, fsys.open.Load())
		}
	}
	if most := fsys.most.Load(); most > limit+2 {
		t.Fatalf("%d handles were open at once, the limit is %d", most, limit)
	}
	if n := fsys.closedDirty.Load(); n > 0 {
		t.Fatalf("%d files were closed before they were synced: their write errors are lost", n)
	}
	// What was closed on behalf of another log was synced before.
	after := mem.Crash(0)
	for i := range all {
		l, err := Open(Options{FS: after, Dir: fmt.Sprint("log/q", i), ID: uint64(i), Files: files})
		if err != nil {
			t.Fatal(err)
		}
		if body, err := l.Read(refs[i], nil); err != nil || string(body) != fmt.Sprint("log ", i, " round 1") {
			t.Fatalf("log %d: %q, %v", i, body, err)
		}
	}
}

// TestSyncForAnotherLogFails: the fsync that parks a log fails while another
// log needs its descriptor. Both refuse from then on: whoever flushes a cycle
// into many logs and syncs them by one syncfs must not miss it.
func TestSyncForAnotherLogFails(t *testing.T) {
	t.Parallel()
	fsys := vfs.NewMem(1)
	files := NewFileCache(2)
	open := func(id uint64) *Log {
		l, err := Open(Options{FS: fsys, Dir: fmt.Sprint("q", id), ID: id, Files: files})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := l.Append([]byte("x")); err != nil {
			t.Fatal(err)
		}
		return l
	}
	a, b := open(1), open(2)
	if err := a.Flush(); err != nil {
		t.Fatal(err)
	}
	fsys.FailNth(vfs.OpSync, 1, errInjected)
	if err := b.Flush(); !errors.Is(err, errInjected) {
		t.Fatalf("flush that needed the descriptor: %v", err)
	}
	if err := fsys.SyncAll("/"); err != nil {
		t.Fatal(err)
	}
	for _, l := range []*Log{a, b} {
		if err := l.SyncedByFS(); !errors.Is(err, errInjected) {
			t.Fatalf("log %d after the failed fsync: %v", l.ID(), err)
		}
	}
}

// TestScanBehindDamageDoesNotHideIt: a scan of the records after a hole that
// reaches the end of the file does not make that end a place to append at.
func TestScanBehindDamageDoesNotHideIt(t *testing.T) {
	t.Parallel()
	fsys := vfs.NewMem(1)
	l := openMem(t, fsys, 0)
	var refs []Ref
	for range 3 {
		ref, err := l.Append([]byte("record"))
		if err != nil {
			t.Fatal(err)
		}
		refs = append(refs, ref)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if err := fsys.Flip("data/log/q7/"+FileName(1), refs[1].Pos+20-5, 1); err != nil {
		t.Fatal(err)
	}
	l = openMem(t, fsys, 0)
	if _, err := l.Scan(1, 0, nil); !errors.Is(err, ErrTorn) {
		t.Fatal(err)
	}
	if _, err := l.Scan(1, refs[2].Pos, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Append([]byte("more")); !errors.Is(err, ErrTorn) {
		t.Fatalf("append behind damage: %v", err)
	}
	if err := l.Truncate(1, refs[1].Pos); err != nil {
		t.Fatal(err)
	}
	before := fsys.Counts().Read
	if _, err := l.Append([]byte("more")); err != nil {
		t.Fatal(err)
	}
	if n := fsys.Counts().Read - before; n > 1 {
		t.Fatalf("the first append after a cut at a scan's end read %d times", n)
	}
}

// TestReadersBesideTheWriter: readers read and scan while the writer appends,
// rolls, cuts and removes files. They see right records or a clear error.
func TestReadersBesideTheWriter(t *testing.T) {
	t.Parallel()
	fsys := vfs.NewMem(1)
	l, err := Open(Options{FS: fsys, Dir: "log/q1", ID: 1, SegmentBytes: 2000, Files: NewFileCache(3)})
	if err != nil {
		t.Fatal(err)
	}
	type record struct {
		ref  Ref
		body []byte
	}
	var shared struct {
		sync.Mutex
		records []record
	}
	var wg sync.WaitGroup
	stop := make(chan struct{})
	for range 4 {
		wg.Go(func() {
			buf := make([]byte, 300)
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				shared.Lock()
				if len(shared.records) == 0 {
					shared.Unlock()
					continue
				}
				r := shared.records[i%len(shared.records)]
				shared.Unlock()
				body, err := l.Read(r.ref, buf)
				// Cut while it was read: gone, short, or another record.
				if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, ErrCorrupt) {
					t.Error(err)
				}
				if err == nil && body[0] == r.body[0] && !bytes.Equal(body, r.body) {
					t.Errorf("read %v: %q", r.ref, body)
				}
				if i%50 == 0 {
					for _, s := range l.Segments() {
						if _, err := l.Scan(s.Seq, 0, nil); errors.Is(err, ErrTorn) {
							t.Errorf("a scan saw half a write: %v", err)
						}
					}
				}
			}
		})
	}
	for i := range 2000 {
		body := bytes.Repeat([]byte{byte(i)}, 1+i%200)
		ref, err := l.Append(body)
		if err != nil {
			t.Fatal(err)
		}
		if i%3 == 0 {
			if err := l.Flush(); err != nil {
				t.Fatal(err)
			}
			shared.Lock()
			shared.records = append(shared.records, record{ref, body})
			shared.Unlock()
		}
		switch {
		case i%300 == 299:
			shared.Lock()
			shared.records = shared.records[:len(shared.records)/2]
			shared.Unlock()
			if err := l.Truncate(ref.Seq, ref.Pos); err != nil {
				t.Fatal(err)
			}
		case i%100 == 99:
			if err := l.Roll(); err != nil {
				t.Fatal(err)
			}
			if err := l.RemoveSegment(l.Segments()[0].Seq); err != nil {
				t.Fatal(err)
			}
		case i%10 == 9:
			if err := errors.Join(l.Sync(), l.Park()); err != nil {
				t.Fatal(err)
			}
		}
	}
	close(stop)
	wg.Wait()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestReadCost(t *testing.T) {
	t.Parallel()
	fsys := vfs.NewMem(1)
	l := openMem(t, fsys, 0)
	big, err := l.Append(bytes.Repeat([]byte("b"), 100_000))
	if err != nil {
		t.Fatal(err)
	}
	small, err := l.Append([]byte("small"))
	if err != nil || l.Flush() != nil {
		t.Fatal(err)
	}
	if _, err := l.Read(small, nil); err != nil { // opens the file
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		ref   Ref
		buf   []byte
		reads int64
	}{
		"length known":            {big, nil, 1},
		"length known, buffer":    {big, make([]byte, 200_000), 1},
		"small, length unknown":   {Ref{small.Seq, small.Pos, 0}, nil, 1},
		"large, length unknown":   {Ref{big.Seq, big.Pos, 0}, nil, 2},
		"large, unknown, buffer":  {Ref{big.Seq, big.Pos, 0}, make([]byte, 200_000), 2},
		"small, tiny buffer":      {Ref{small.Seq, small.Pos, 0}, make([]byte, 1), 1},
		"small, known, no buffer": {small, nil, 1},
	} {
		before := fsys.Counts()
		body, err := l.Read(c.ref, c.buf)
		if err != nil || len(body) != map[int64]int{big.Pos: 100_000, small.Pos: 5}[c.ref.Pos] {
			t.Errorf("%s: %d bytes, %v", name, len(body), err)
		}
		if got := fsys.Counts().Read - before.Read; got != c.reads {
			t.Errorf("%s: %d reads, want %d", name, got, c.reads)
		}
		if cap(c.buf) > RecordHeaderSize+len(body) && &body[0] != &c.buf[RecordHeaderSize] {
			t.Errorf("%s: the body is not in the caller's buffer", name)
		}
	}
}

func TestDamagedLengthAllocatesNothing(t *testing.T) {
	fsys := vfs.NewMem(1)
	l := openMem(t, fsys, 0)
	ref, err := l.Append(bytes.Repeat([]byte("x"), 100))
	if err != nil || l.Sync() != nil {
		t.Fatal(err)
	}
	// 100 becomes 134,217,828: within the limit, far beyond the file.
	if err := fsys.Flip("data/log/q7/"+FileName(1), ref.Pos+3, 8); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 4096)
	const calls = 1000
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range calls {
		if _, _, err := l.ReadAt(ref.Seq, ref.Pos, buf); !errors.Is(err, ErrCorrupt) {
			t.Fatal(err)
		}
	}
	runtime.ReadMemStats(&after)
	if perCall := (after.TotalAlloc - before.TotalAlloc) / calls; perCall > 4096 {
		t.Fatalf("%d bytes allocated for a length that cannot be", perCall)
	}
}
