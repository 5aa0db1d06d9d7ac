package main

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"queen/internal/vfs"
	"queen/raftlog"
)

// TestLive verifies a directory again and again while a broker writes to it,
// rolls, seals and merges files and takes checkpoints: nothing is found. The
// tool is not told that the directory is in use; it has to see it.
func TestLive(t *testing.T) {
	fsys := vfs.NewMem(9)
	b := startBroker(t, fsys, "data", raftlog.Config{SegmentBytes: 2 << 10, CheckpointBytes: 30 << 10, TickInterval: 5 * time.Millisecond})
	fill(b, 0)
	var written atomic.Int64
	more, done := make(chan struct{}, 10_000), make(chan struct{})
	go func() { // one write for each token: the test is as long as it asks for
		defer close(done)
		i := 100
		for range more {
			b.push("a", "one", fmt.Sprintf("live-%d", i), fmt.Sprintf(`"%s"`, strings.Repeat("y", i%400)))
			b.do("POST", "transaction", fmt.Sprintf(`{"operations":[{"type":"push","items":[{"queue":"a","partition":"one","payload":%d}]},
				{"type":"push","items":[{"queue":"b","partition":"part-0","payload":%d}]},{"type":"push","items":[{"queue":"c","partition":"p","payload":%d}]}],
				"kv":[{"op":"put","ns":"n","key":"%d","value":1,"forever":true}]}`, i, i, i, i%50))
			i++
			written.Add(1)
		}
	}()
	settle := func() {
		from := written.Load()
		more <- struct{}{}
		for end := time.Now().Add(time.Minute); written.Load() == from; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatal("the broker answers nothing any more")
			}
		}
	}
	verify := func(args ...string) {
		var out, errs bytes.Buffer
		tl := &tool{fs: fsys, inUse: func(string) bool { return false }, settle: settle}
		if status := tl.main(args, &out, &errs); status != 0 {
			t.Errorf("segdump %v beside a broker: status %d\n%s%s", args, status, out.String(), errs.String())
		}
	}
	for range 10 {
		for range 15 {
			more <- struct{}{}
		}
		verify("verify", "data")
		for _, c := range []string{"dedup data", "ls data", "rows data", "partition data a/one"} {
			verify(strings.Fields(c)...)
		}
		settle()
	}
	status, out, _ := run(t, fsys, "salvage", "data", "out")
	close(more)
	<-done
	want(t, 0, fsys, "verify", "out")
	if status == exitTrouble {
		t.Errorf("salvage beside a broker: %s", out)
	}
	b.stop()
	if out := want(t, 0, fsys, "verify", "data"); !strings.Contains(out, "\nclean") {
		t.Errorf("%s", out)
	}
	copied := startBroker(t, fsys, "out", raftlog.Config{})
	if got := copied.stored("a"); len(got) < 24 {
		t.Errorf("the copy of a running broker's directory holds %d messages of a, want at least those before it", len(got))
	}
}

// The lock is seen without being taken.
func TestLockHeld(t *testing.T) {
	if _, err := os.ReadFile("/proc/locks"); err != nil {
		t.Skip("the kernel does not tell: ", err)
	}
	dir := t.TempDir()
	b := startBroker(t, vfs.OS(), dir, raftlog.Config{})
	if !lockHeld(dir) {
		t.Error("a broker runs, and the lock seems free")
	}
	b.stop()
	if lockHeld(dir) {
		t.Error("the broker has stopped, and the lock seems held")
	}
	if lockHeld(t.TempDir()) {
		t.Error("an empty directory is locked")
	}
}

// An entry that is being written looks torn until it is there. It is no
// finding when the lock is held, or when the directory changes while it is
// watched; it is one when nothing happens.
func TestUnfinishedWrite(t *testing.T) {
	whole := load(t, stepDir)
	const log = "data/log/q2/00000000000000000001.seg"
	rest, err := vfs.ReadFile(whole, log)
	must(t, err)
	verify := func(inUse bool, settle func(m *vfs.Mem)) (int, string) {
		m := whole.Clone()
		takeBack(t, m, 2, stepLast)
		var out bytes.Buffer
		tl := &tool{fs: m, inUse: func(string) bool { return inUse }, settle: func() { settle(m) }}
		status := tl.main([]string{"verify", "data"}, &out, &out)
		return status, out.String()
	}
	nothing := func(*vfs.Mem) {}
	if status, out := verify(false, nothing); status != 1 || !strings.Contains(out, "torn") {
		t.Errorf("a torn entry: status %d\n%s", status, out)
	}
	if status, out := verify(true, nothing); status != 0 || !strings.Contains(out, "is in use") {
		t.Errorf("beside a broker: status %d\n%s", status, out)
	}
	steps := 0
	status, out := verify(false, func(m *vfs.Mem) {
		if steps++; steps == 3 {
			must(t, write(m, log, rest))
		}
	})
	if status != 0 || !strings.Contains(out, "is in use") {
		t.Errorf("a write that ended while the directory was watched: status %d\n%s", status, out)
	}
}

// listing is a file system that does something before a listing of a directory.
type listing struct {
	vfs.FS
	dir    string
	count  int
	before map[int]func()
}

func (l *listing) List(dir string) ([]vfs.Info, error) {
	if dir == l.dir {
		l.count++
		if fn := l.before[l.count]; fn != nil {
			fn()
		}
	}
	return l.FS.List(dir)
}

// Logs are listed one after the other. When a broker writes in between, a log
// that is listed late holds claims about entries that an early one was listed
// without: these claims must not count.
func TestClaimsOfALaterMoment(t *testing.T) {
	for listed := 1; listed <= 2; listed++ {
		fsys := vfs.NewMem(12)
		b := startBroker(t, fsys, "data", raftlog.Config{})
		fill(b, 0)
		lists := &listing{FS: fsys, dir: "data/log/q2", before: map[int]func(){listed: func() {
			b.do("POST", "transaction", `{"operations":[{"type":"push","items":[{"queue":"a","partition":"one","payload":1}]},{"type":"push","items":[{"queue":"b","partition":"part-0","payload":1}]}]}`)
			b.push("b", "part-0", "later", "1") // claims that the transaction is durable
		}}}
		var out bytes.Buffer
		tl := &tool{fs: lists, inUse: func(string) bool { return false }, settle: func() {}}
		if status := tl.main([]string{"verify", "data"}, &out, &out); status != 0 || lists.count < 2 {
			t.Errorf("written before listing %d of q2: status %d\n%s", listed, status, out.String())
		}
		b.stop()
	}
}
