package retention

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"queen/fsm"
	"queen/internal/vfs"
)

// A broker that nobody writes to frees what it has released all the same: the checkpoint that no longer lists it comes
// when its time has come, and none after it.
func TestReleasedFilesGoWithoutWrites(t *testing.T) {
	r := worn(t, 0)
	r.start()
	r.checkpoint()
	c := r.b.Reclaimed()
	if c.Files.Load()+c.Logs.Load() > 0 {
		t.Fatalf("%d files and %d logs went with the first pass", c.Files.Load(), c.Logs.Load())
	}
	r.await(func() bool { // only time passes
		r.clock.advance(10 * time.Second)
		return c.Files.Load() > 0 && c.Logs.Load() > 0
	})
	var rows atomic.Int64
	r.fs.SetHook(func(op vfs.Op, name string) error {
		if op == vfs.OpWrite && strings.HasSuffix(name, ".rows") {
			rows.Add(1)
		}
		return nil
	})
	passes := c.Passes.Load()
	r.await(func() bool { // what is left to do ends
		was := rows.Load()
		for range 40 {
			r.clock.advance(10 * time.Second)
			r.call(&fsm.Read{Do: func(*fsm.State) {}})
		}
		return rows.Load() == was && c.Passes.Load() == c.Begun.Load() && c.Passes.Load() >= passes
	})
	r.stop()
}

// The logs of many deleted queues go together: their directory is synced once, not once for each.
func TestManyDeletedLogsGoTogether(t *testing.T) {
	const queues = 60
	r := newRig(t, 0)
	for i := range queues {
		r.push(fmt.Sprint("q", i), "p", "t", text)
	}
	for i := range queues {
		r.call(&fsm.DeleteQueue{Queue: fmt.Sprint("q", i)})
	}
	r.settle()
	var syncs atomic.Int64
	r.fs.SetHook(func(op vfs.Op, name string) error {
		if op == vfs.OpSyncDir && name == "data/log" {
			syncs.Add(1)
		}
		return nil
	})
	r.reclaim()
	if n := r.b.Reclaimed().Logs.Load(); n != queues || syncs.Load() > 5 {
		t.Errorf("%d logs of %d went, with %d syncs of their directory", n, queues, syncs.Load())
	}
	left, err := r.fs.List("data/log")
	if err != nil || len(left) != 1 {
		t.Errorf("%v are left, %v", left, err)
	}
	r.powerCut()
	r.stop()
}

// A start that finds no byte on the volume says what to do.
func TestStartOnAFullVolumeSaysWhatToDo(t *testing.T) {
	r := newRig(t, 0)
	r.push("q", "p", "t", text)
	r.fs = r.fs.Kill()
	r.gone()
	u, err := r.fs.Usage("data")
	if err != nil {
		t.Fatal(err)
	}
	r.fs.SetCapacity(int64(u.Total - u.Free))
	told := r.open()
	if !errors.Is(told, syscall.ENOSPC) || !strings.Contains(told.Error(), "the volume of data is full") || !strings.Contains(told.Error(), "start again") {
		t.Errorf("the start says %v", told)
	}
	r.fs = r.fs.Kill()
	r.fs.SetCapacity(0)
	r.start()
	if got := r.consume("q", "g", 9); len(got) != 1 {
		t.Errorf("%d messages are there", len(got))
	}
	r.stop()
}
