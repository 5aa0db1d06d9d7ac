package recovery_test

import (
	"errors"
	"fmt"
	"log/slog"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"queen/internal/entry"
	"queen/internal/vfs"
	"queen/raftlog"
	"queen/raftlog/raftlogtest"
)

const mendMessages = 90

// sealedLog is a directory whose log q1 has merged and single tables, and the
// ids of its values.
func sealedLog(t *testing.T) (m *vfs.Mem, values []uint64) {
	t.Helper()
	m = vfs.NewMem(1)
	clock := newClock()
	n := mustOpen(t, m, dataDir, withClock(clock), small)
	for i := range mendMessages {
		p := &raftlogtest.Push{Queues: []uint64{1}, Payload: fmt.Appendf(make([]byte, 200), "m%d", i), Txn: fmt.Sprint("t", i)}
		if i%10 == 0 {
			p.Value = []byte("value")
		}
		n.push(p)
	}
	waitFor(t, func() bool {
		n.ticks(clock, 100*time.Millisecond)
		idx := tablesOf(t, m, ".idx")
		return len(idx) > 1 && strings.HasPrefix(idx[len(idx)-1], "l1-") && n.g.Status().UnsealedBytes < 4000
	})
	must(t, n.g.Do(func() {
		for _, id := range n.m.PlanNows {
			if _, err := n.g.Reader().Value(uint64(id), 1); err == nil {
				values = append(values, uint64(id))
			}
		}
	}))
	if len(values) != mendMessages/10 {
		t.Fatalf("%d values", len(values))
	}
	n.stop()
	return m, values
}

func tablesOf(t *testing.T, m *vfs.Mem, suffix string) (out []string) {
	t.Helper()
	infos, err := m.List(path.Join(dataDir, "log/q1"))
	must(t, err)
	for _, i := range infos {
		if strings.HasSuffix(i.Name, suffix) {
			out = append(out, i.Name)
		}
	}
	return out
}

// lookAll makes every kind of look-up over the whole of log q1.
func (n *node) lookAll(values []uint64) error {
	r := n.g.Reader()
	next := uint64(0)
	err := r.ReadMessages(1, 1, 0, 1<<60, func(offset uint64, _ int64, m *entry.Message) error {
		if offset != next || !strings.HasSuffix(string(m.Payload), fmt.Sprint("m", offset)) {
			return fmt.Errorf("offset %d of %q, expected %d", offset, m.Payload, next)
		}
		next++
		return nil
	})
	if err == nil && next != mendMessages {
		err = fmt.Errorf("%d messages", next)
	}
	errs := []error{err}
	times, err := r.AppendTimes(1, 1, 0, 1000)
	errs = append(errs, err)
	for _, a := range times {
		o, ok, err := r.FindTime(1, 1, a.Time)
		if err == nil && (!ok || o != a.First) {
			err = fmt.Errorf("time of offset %d is found at %d %v", a.First, o, ok)
		}
		errs = append(errs, err)
	}
	unsealed := uint64(mendMessages - 12) // ids there are the machine's to know
	for i := range unsealed {
		var found []uint64
		err := r.FindTxn(1, 1, fmt.Append(nil, "t", i), func(o uint64, _ int64, _ [16]byte) bool { found = append(found, o); return true })
		if err == nil && !slices.Equal(found, []uint64{i}) {
			err = fmt.Errorf("id t%d is found at %v", i, found)
		}
		errs = append(errs, err)
	}
	for _, id := range values {
		v, err := r.Value(id, 1)
		if err == nil && string(v) != "value" {
			err = fmt.Errorf("value %d is %q", id, v)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// warnings keeps what is logged about damaged tables.
type warnings struct {
	mu   sync.Mutex
	text []byte
}

func (w *warnings) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.text = append(w.text, b...)
	return len(b), nil
}

func (w *warnings) about(what string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := 0
	for line := range strings.Lines(string(w.text)) {
		if strings.Contains(line, "side table") && strings.Contains(line, what) {
			n++
		}
	}
	return n
}

func (w *warnings) option() option {
	return withGroup(func(c *raftlog.Config) { c.Logger = slog.New(slog.NewTextHandler(w, nil)) })
}

// I4, B17: wherever a bit of a side table is wrong, look-ups are exact, the
// damage is logged once, and the table is sound after that.
func TestDamagedTablesAreMadeAgain(t *testing.T) {
	base, values := sealedLog(t)
	met := 0
	for _, name := range append(tablesOf(t, base, ".idx"), tablesOf(t, base, ".dedup")...) {
		file := path.Join(dataDir, "log/q1", name)
		step := int64(91)
		if strings.HasPrefix(name, "l1-") {
			step = 53
		}
		for pos := int64(70); pos < size(t, base, file); pos += step {
			m := base.Clone()
			must(t, m.Flip(file, pos, 0x10))
			var w, quiet warnings
			n := mustOpen(t, m, dataDir, withClock(newClock()), small, w.option())
			if w.about("") > 0 { // in the meta: the start has read the segments, their ids are in memory
				n.stop()
				continue
			}
			if err := n.lookAll(values); err != nil {
				t.Fatalf("%s pos %d: %v", name, pos, err)
			}
			n.stop()
			if got := w.about("is made again"); got > 1 || got != w.about(file) {
				t.Fatalf("%s pos %d: logged %d times: %s", name, pos, got, w.text)
			} else if got == 0 {
				continue // in an unused part of a filter
			}
			met++
			n = mustOpen(t, m, dataDir, withClock(newClock()), small, quiet.option())
			if err := n.lookAll(values); err != nil || quiet.about("") > 0 {
				t.Fatalf("%s pos %d: after another start: %v %s", name, pos, err, quiet.text)
			}
			n.stop()
		}
	}
	if met < 20 {
		t.Errorf("only %d damaged places were met", met)
	}
}

// damagedMerged has a bit wrong in the first block of the merged table.
func damagedMerged(t *testing.T, kind string) (m *vfs.Mem, file string, values []uint64) {
	t.Helper()
	m, values = sealedLog(t)
	for _, name := range tablesOf(t, m, kind) {
		if strings.HasPrefix(name, "l1-") && file == "" {
			file = path.Join(dataDir, "log/q1", name)
		}
	}
	must(t, m.Flip(file, 70, 0x10))
	return m, file, values
}

// Look-ups that meet the same damage at once wait for one rebuild.
func TestOneRebuildForManyLookUps(t *testing.T) {
	m, file, _ := damagedMerged(t, ".idx")
	fsys := &countingFS{FS: m}
	n := mustOpen(t, fsys, dataDir, withClock(newClock()), small)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for i := range uint64(8) {
				if err := n.g.Reader().ReadMessages(1, 1, i, i, func(uint64, int64, *entry.Message) error { return nil }); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if got := fsys.created(".idx.tmp"); got != 8 {
		t.Errorf("%d tables were made for the 8 files of %s", got, file)
	}
	n.stop()
}

// A table whose segment is damaged too cannot be made again: look-ups that need
// it fail and name the segment, the others go on, and so does the broker.
func TestDamagedTableAndSegment(t *testing.T) {
	m, _, _ := damagedMerged(t, ".idx")
	victim := seg(1, 2)
	must(t, m.Flip(victim, size(t, m, victim)/2, 1))
	clock := newClock()
	var w warnings
	n := mustOpen(t, m, dataDir, withClock(clock), small, w.option())
	read := func(offset uint64) error {
		return n.g.Reader().ReadMessages(1, 1, offset, offset, func(uint64, int64, *entry.Message) error { return nil })
	}
	for range 2 {
		err := n.g.Reader().ReadMessages(1, 1, 0, 1<<60, func(uint64, int64, *entry.Message) error { return nil })
		if err == nil {
			t.Fatal("everything was read")
		}
		contains(t, err.Error(), victim, "expected", "found")
		must(t, read(mendMessages-1))
	}
	n.ticks(clock, 6*time.Second)
	if got := w.about("cannot be made again"); got != 1 {
		t.Errorf("logged %d times: %s", got, w.text)
	}
	n.push(&raftlogtest.Push{Queues: []uint64{1}})
	n.stop()
}

// countingFS counts open descriptors and created files.
type countingFS struct {
	vfs.FS
	mu        sync.Mutex
	open, top int
	names     []string
}

func (c *countingFS) created(suffix string) (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, name := range c.names {
		if strings.HasSuffix(name, suffix) {
			n++
		}
	}
	return n
}

func (c *countingFS) note(by int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open += by
	c.top = max(c.top, c.open)
}

func (c *countingFS) counted(f vfs.File, err error) (vfs.File, error) {
	if err != nil {
		return nil, err
	}
	c.note(1)
	return &countedFile{File: f, c: c}, nil
}

func (c *countingFS) Open(name string) (vfs.File, error) { return c.counted(c.FS.Open(name)) }
func (c *countingFS) OpenReadWrite(name string) (vfs.File, error) {
	return c.counted(c.FS.OpenReadWrite(name))
}
func (c *countingFS) Create(name string) (vfs.File, error) {
	c.mu.Lock()
	c.names = append(c.names, name)
	c.mu.Unlock()
	return c.counted(c.FS.Create(name))
}

type countedFile struct {
	vfs.File
	c *countingFS
}

func (f *countedFile) Close() error {
	f.c.note(-1)
	return f.File.Close()
}

// However many logs there are, a start, the sealing after it and a stop keep
// few files open.
func TestOpenFilesAreBounded(t *testing.T) {
	const logs, limit = 300, 16
	few := withGroup(func(c *raftlog.Config) { c.OpenFiles, c.UnsealedMax = limit, 1 })
	m := vfs.NewMem(1)
	n := mustOpen(t, m, dataDir)
	for q := range uint64(logs) {
		n.push(&raftlogtest.Push{Queues: []uint64{1 + q, 1 + (q+1)%logs}, Payload: make([]byte, 300)})
	}
	fsys := &countingFS{FS: n.kill()}
	clock := newClock()
	n = mustOpen(t, fsys, dataDir, withClock(clock), few)
	if n.report.Replayed != logs {
		t.Errorf("%d entries were replayed", n.report.Replayed)
	}
	if got := fsys.top; got > limit+4 {
		t.Errorf("a start keeps %d files open", got)
	}
	waitFor(t, func() bool { n.ticks(clock, 100*time.Millisecond); return fsys.created(".idx.tmp") >= logs })
	n.stop()
	if got := fsys.top; got > limit+8 {
		t.Errorf("%d files are open at once", got)
	}
	if fsys.open > limit {
		t.Errorf("%d files are open after a stop", fsys.open)
	}
}
