package retention

import (
	"path"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"queen/internal/vfs"
)

// A volume without room for the tables of a file that has just taken the place of a larger one: the engine must not
// go on with what it knows of the larger one, and the next start finds everything.
func TestNoRoomForTheTablesOfARewrittenFile(t *testing.T) {
	r := worn(t, 0)
	r.start()
	want := r.holds()
	r.stop()
	r.fs = r.fs.Clone()
	var swapped struct {
		sync.Mutex
		dir  string
		full bool
	}
	r.fs.SetHook(func(op vfs.Op, name string) error {
		swapped.Lock()
		defer swapped.Unlock()
		switch {
		case op == vfs.OpRename && strings.HasSuffix(name, ".seg.tmp"):
			swapped.dir = path.Dir(name)
		case op == vfs.OpCreate && path.Dir(name) == swapped.dir:
			swapped.full, swapped.dir = true, "" // once
			return syscall.ENOSPC
		}
		return nil
	})
	r.reclaimUntilDead(func() bool { return len(r.fatal) > 0 })
	swapped.Lock()
	full := swapped.full
	swapped.Unlock()
	if !full {
		t.Fatal("no file was rewritten")
	}
	select {
	case err := <-r.fatal:
		if !strings.Contains(err.Error(), "rewritten file") {
			t.Errorf("the reason is %v", err)
		}
	default:
		t.Fatal("the engine goes on with a file that is smaller than it knows")
	}
	r.fs.SetHook(nil)
	r.kill()
	if got := r.holds(); !slices.Equal(got, want) {
		t.Errorf("after the start:\n%.40q\nbefore:\n%.40q", got, want)
	}
	r.stop()
}
