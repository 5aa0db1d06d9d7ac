package recovery_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"path"
	"strings"
	"testing"
	"time"

	"queen/internal/vfs"
	"queen/raftlog"
	"queen/raftlog/raftlogtest"
	"queen/recovery"
)

func TestOpenRunStopOpen(t *testing.T) {
	dir := t.TempDir() + "/data"
	n := mustOpen(t, vfs.OS(), dir)
	if !n.report.New {
		t.Error("a new directory was not reported as new")
	}
	for i := range 20 {
		got := n.push(&raftlogtest.Push{Queues: []uint64{5, 9}, Payload: fmt.Appendf(nil, "m%d", i), Key: fmt.Sprint("k", i%3)})
		if want := uint64(i); got[0] != want || got[1] != want {
			t.Fatalf("push %d got offsets %v", i, got)
		}
	}
	if got := n.messages(5); len(got) != 20 || got[19] != "m19" {
		t.Fatalf("messages: %v", got)
	}
	n.stop()

	n = mustOpen(t, vfs.OS(), dir)
	if n.report.Replayed != 0 || n.report.Cut != 0 || n.report.New {
		t.Errorf("after a clean stop: %+v", n.report)
	}
	if got := n.push(&raftlogtest.Push{Queues: []uint64{5}, Payload: []byte("after")}); got[0] != 20 {
		t.Errorf("offset %d after restart, want 20", got[0])
	}
	if got := n.messages(5); len(got) != 21 || got[0] != "m0" || got[20] != "after" {
		t.Errorf("messages after restart: %v", got)
	}
	n.stop()
}

func TestOpenAfterKillReplays(t *testing.T) {
	n := mustOpen(t, vfs.NewMem(1), dataDir)
	for i := range 10 {
		n.push(&raftlogtest.Push{Queues: []uint64{uint64(1 + i%3)}, Payload: fmt.Appendf(nil, "m%d", i)})
	}
	n.put("a", "1")
	fsys := n.kill()
	n = mustOpen(t, fsys, dataDir)
	if n.report.Replayed != 11 || n.report.Cut != 0 {
		t.Errorf("report: %+v", n.report)
	}
	if v, ok := n.get("a"); v != "1" || !ok {
		t.Errorf("a is %q, %v", v, ok)
	}
	if got := n.push(&raftlogtest.Push{Queues: []uint64{1}}); got[0] != 4 {
		t.Errorf("offset %v, want 4", got)
	}
	n.stop()
}

// A killed process leaves bytes that can be read and are not durable. What a
// start finds it may answer with, so it has to be durable first.
func TestWhatAKillLeftIsMadeDurable(t *testing.T) {
	fsys := vfs.NewMem(1)
	n := mustOpen(t, fsys, dataDir)
	n.push(&raftlogtest.Push{Queues: []uint64{1}})
	release := fsys.HoldSync()
	done := make(chan error, 1)
	n.g.Submit(&raftlogtest.Push{Queues: []uint64{1}, Payload: []byte("written, not synced"), Done: func(_ []uint64, err error) { done <- err }})
	fsys.WaitHeld(1)
	left := fsys.Kill()
	release()
	n.gone()

	n = mustOpen(t, left, dataDir)
	if got := n.m.Next(1); got != 2 {
		t.Skipf("the second push was not written before the kill: next %d", got)
	}
	after := n.powerCut(0)
	n = mustOpen(t, after, dataDir)
	if got := n.m.Next(1); got != 2 {
		t.Fatalf("the first start served offset 1 and the next lost it: next is %d", got)
	}
	n.stop()
}

func TestSecondProcessIsRefused(t *testing.T) {
	dir := t.TempDir() + "/data"
	n := mustOpen(t, vfs.OS(), dir)
	_, err := open(t, vfs.OS(), dir)
	if !errors.Is(err, recovery.ErrInUse) {
		t.Fatalf("second open: %v", err)
	}
	contains(t, err.Error(), "LOCK", "another broker")
	n.stop()
	mustOpen(t, vfs.OS(), dir).stop()
}

func TestIdentityIsChecked(t *testing.T) {
	fsys := vfs.NewMem(1)
	mustOpen(t, fsys, dataDir, withGroup(func(c *raftlog.Config) { c.Shards = 4 })).stop()
	contains(t, refused(t, fsys, dataDir), "FORMAT", "QUEEN_QLOG_SHARDS", "expected 0", "found 4")
	contains(t, refused(t, fsys, dataDir, withGroup(func(c *raftlog.Config) { c.Shards, c.NodeID = 4, 2 })), "node id")
	mustOpen(t, fsys, dataDir, withGroup(func(c *raftlog.Config) { c.Shards = 4 })).stop()
}

func TestNewerDirectoryIsRefusedByVersion(t *testing.T) {
	fsys := vfs.NewMem(1)
	mustOpen(t, fsys, dataDir).stop()
	newer := []byte("queen data directory\nversion=2\nwhatever=this build does not know\n")
	if err := vfs.ReplaceFile(fsys, path.Join(dataDir, "FORMAT"), newer); err != nil {
		t.Fatal(err)
	}
	_, err := open(t, fsys, dataDir)
	if !errors.Is(err, recovery.ErrNewerFormat) {
		t.Fatalf("%v", err)
	}
	contains(t, err.Error(), "format 2", "up to 1")
}

// Control files, one at a time: each case starts with the same state or is
// refused by a message that names the file (B18).
func TestB18ControlFiles(t *testing.T) {
	base := vfs.NewMem(1)
	n := mustOpen(t, base, dataDir)
	n.push(&raftlogtest.Push{Queues: []uint64{3}})
	n.put("k", "v")
	n.stop()
	want := n.m.Keys()
	for _, file := range []string{"FORMAT", "raft/state", "LOCK"} {
		name := path.Join(dataDir, file)
		for damage, do := range map[string]func(*vfs.Mem){
			"gone":  func(m *vfs.Mem) { must(t, m.Remove(name)) },
			"empty": func(m *vfs.Mem) { truncate(t, m, name, 0) },
			"half": func(m *vfs.Mem) {
				if s := size(t, m, name); s > 0 {
					truncate(t, m, name, s/2)
				}
			},
			"garbled": func(m *vfs.Mem) {
				if size(t, m, name) > 20 {
					must(t, m.Flip(name, 20, 0x40))
				}
			},
		} {
			t.Run(file+" "+damage, func(t *testing.T) {
				m := base.Clone()
				do(m)
				if file == "LOCK" {
					n := mustOpen(t, m, dataDir)
					if got := n.m.Keys(); got != want {
						t.Errorf("keys %s, want %s", got, want)
					}
					n.stop()
					return
				}
				contains(t, refused(t, m, dataDir), name)
			})
		}
	}
}

// A start on what is left of a directory never looks like a new node (B18).
func TestB18WholePartsGone(t *testing.T) {
	base := vfs.NewMem(1)
	n := mustOpen(t, base, dataDir)
	n.push(&raftlogtest.Push{Queues: []uint64{3}})
	n.put("k", "v")
	base = n.kill() // before the first checkpoint: only the logs know
	for _, name := range []string{"log", "raft", "checkpoint", "log/q0", "log/q3"} {
		t.Run(name, func(t *testing.T) {
			m := base.Clone()
			must(t, m.RemoveAll(path.Join(dataDir, name)))
			part, _, _ := strings.Cut(name, "/")
			contains(t, refused(t, m, dataDir), path.Join(dataDir, part))
		})
	}
	t.Run("rows", func(t *testing.T) {
		n := mustOpen(t, base.Clone(), dataDir)
		n.stop()
		m := n.fs.(*vfs.Mem)
		infos, err := m.List(path.Join(dataDir, "checkpoint"))
		must(t, err)
		for _, i := range infos {
			must(t, m.Remove(path.Join(dataDir, "checkpoint", i.Name)))
		}
		n2 := mustOpen(t, m, dataDir) // the logs hold everything from entry 1 on
		if n2.m.Keys() != n.m.Keys() || n2.m.Next(3) != 1 {
			t.Errorf("state %s, want %s", n2.m.Keys(), n.m.Keys())
		}
		n2.stop()
	})
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func BenchmarkPush(b *testing.B) {
	for _, inflight := range []int{1, 2, 4} {
		b.Run(fmt.Sprintf("inflight=%d", inflight), func(b *testing.B) {
			n := mustOpen(b, vfs.OS(), b.TempDir()+"/data", withGroup(func(c *raftlog.Config) { c.MaxInFlight = inflight }))
			payload := make([]byte, 1024)
			r := rand.NewChaCha8([32]byte{})
			r.Read(payload)
			b.SetParallelism(32)
			b.ResetTimer()
			b.RunParallel(func(pb *testing.PB) {
				done := make(chan error, 1)
				for pb.Next() {
					n.g.Submit(&raftlogtest.Push{Queues: []uint64{5}, Payload: payload, Done: func(_ []uint64, err error) { done <- err }})
					<-done
				}
			})
			b.StopTimer()
			st := n.g.Status()
			b.ReportMetric(float64(b.N)/float64(st.Entries), "calls/entry")
			b.ReportMetric(float64(st.Syncs), "syncs")
			n.stop()
		})
	}
}

// BenchmarkOpen replays a log that no checkpoint covers.
func BenchmarkOpen(b *testing.B) {
	for _, queues := range []int{1, 16} {
		b.Run(fmt.Sprintf("queues=%d", queues), func(b *testing.B) {
			dir := b.TempDir() + "/data"
			noCheckpoint := withGroup(func(c *raftlog.Config) { c.CheckpointBytes = 1 << 40 })
			n := mustOpen(b, vfs.OS(), dir, noCheckpoint)
			payload := make([]byte, 3000)
			done := make(chan error, 64)
			const entries = 40_000
			for i := range entries {
				n.g.Submit(&raftlogtest.Push{Queues: []uint64{1 + uint64(i%queues)}, Payload: payload, Done: func(_ []uint64, err error) { done <- err }})
				if i >= 32 {
					<-done
				}
			}
			for range 32 {
				<-done
			}
			st := n.g.Status()
			n.g.Abandon()
			b.SetBytes(st.LogBytes)
			var took time.Duration
			b.ResetTimer()
			for range b.N {
				n := mustOpen(b, vfs.OS(), dir, noCheckpoint)
				took += n.report.Took
				if n.report.Replayed == 0 {
					b.Fatal("nothing was replayed")
				}
				n.g.Abandon()
			}
			b.ReportMetric(float64(took.Milliseconds())/float64(b.N), "open-ms")
		})
	}
}

// Nothing but what a group itself does makes it lead: no tick of a clock has to
// come, however the start and the first write meet.
func TestLeadsWithoutTicks(t *testing.T) {
	for range 200 {
		n := mustOpen(t, vfs.NewMem(1), dataDir, withClock(newClock()))
		waitFor(t, func() bool { return n.g.Status().Leader })
		n.gone()
	}
}
