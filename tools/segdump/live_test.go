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
		more <- struct{}{}
		for from := written.Load(); written.Load() == from; {
			time.Sleep(time.Millisecond)
		}
	}
	verify := func(args ...string) string {
		var out, errs bytes.Buffer
		tl := &tool{fs: fsys, inUse: func(string) bool { return false }, settle: settle}
		if status := tl.main(args, &out, &errs); status != 0 {
			t.Errorf("segdump %v beside a broker: status %d\n%s%s", args, status, out.String(), errs.String())
		}
		return out.String()
	}
	moved := false
	for range 10 {
		for range 15 {
			more <- struct{}{}
		}
		moved = strings.Contains(verify("verify", "data"), "is in use") || moved
		for _, c := range []string{"dedup data", "ls data", "rows data", "partition data a/one"} {
			verify(strings.Fields(c)...)
		}
		settle()
	}
	if !moved {
		t.Error("the directory was never seen to move")
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
