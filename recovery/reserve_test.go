package recovery_test

import (
	"errors"
	"log/slog"
	"path"
	"syscall"
	"testing"

	"queen/internal/vfs"
	"queen/recovery"
)

// TestReserve: it is made while there is much room, released when there is next
// to none, and made again.
func TestReserve(t *testing.T) {
	const size = 3<<20 + 5
	m := vfs.NewMem(1)
	must(t, errors.Join(m.MkdirAll(dataDir), m.SyncDir(".")))
	r := recovery.NewReserve(m, dataDir, size, slog.New(slog.DiscardHandler))
	held := func() int64 {
		info, err := m.Stat(path.Join(dataDir, "RESERVE"))
		if err != nil {
			return -1
		}
		return info.Size
	}
	step := func(name string, free uint64, fill, wantSpent bool, want int64) {
		t.Helper()
		spent, err := r.Release(free)
		if err == nil && fill {
			err = r.Fill(free)
		}
		if err != nil || spent != wantSpent || held() != want {
			t.Errorf("%s: spent %v, size %d, %v; want %v, %d", name, spent, held(), err, wantSpent, want)
		}
	}
	step("little room and none held", size/4-1, false, true, -1)
	step("some room", 2*size-1, true, false, -1)
	step("first step", 2*size, true, false, 1<<20)
	for range 3 {
		step("next steps", 2*size, true, false, held()+min(1<<20, size-held()))
	}
	step("full", 2*size, true, false, size)
	m = m.Crash(0)
	r = recovery.NewReserve(m, dataDir, size, slog.New(slog.DiscardHandler))
	step("durable", size/4, true, false, size)
	step("released", size/4-1, true, false, -1)
	step("and spent", size/4-1, true, true, -1)
	m = m.Crash(0)
	if held() != -1 {
		t.Error("the release was not durable")
	}
	m.SetCapacity(size / 2)
	r = recovery.NewReserve(m, dataDir, size, slog.New(slog.DiscardHandler))
	step("no room after all", 2*size, true, false, 1<<20)
	step("no room after all", 2*size, true, false, -1)
	for _, op := range []vfs.Op{vfs.OpWrite, vfs.OpSync, vfs.OpSyncDir, vfs.OpClose, vfs.OpCreate} {
		m.FailNth(op, 1, syscall.EIO)
		if err := r.Fill(2 * size); !errors.Is(err, syscall.EIO) {
			t.Errorf("%v failed, and Fill says %v", op, err)
		}
		must(t, m.RemoveAll(path.Join(dataDir, "RESERVE")))
	}
	none := recovery.NewReserve(m, dataDir, 0, slog.New(slog.DiscardHandler))
	if spent, err := none.Release(0); spent || err != nil || none.Fill(1<<40) != nil || held() != -1 {
		t.Error("a reserve of nothing does something")
	}
}
