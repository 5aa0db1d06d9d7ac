package recovery_test

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"testing"

	"queen/internal/entry"
	"queen/internal/vfs"
	"queen/raftlog"
	"queen/raftlog/raftlogtest"
	"queen/recovery"
)

// node is a group on a directory with its machine.
type node struct {
	t      testing.TB
	fs     vfs.FS
	m      *raftlogtest.Machine
	g      *raftlog.Group
	report recovery.Report
	fatal  chan error
}

type option func(*recovery.Config)

func open(t testing.TB, fsys vfs.FS, dir string, opts ...option) (*node, error) {
	n := &node{t: t, fs: fsys, m: raftlogtest.New(), fatal: make(chan error, 1)}
	cfg := recovery.Config{Group: raftlog.Config{
		FS: fsys, Dir: dir, NodeID: 1, Machine: n.m, Fatal: func(err error) { n.fatal <- err },
	}, Random: bytes.NewReader(bytes.Repeat([]byte{7}, 16))}
	for _, o := range opts {
		o(&cfg)
	}
	var err error
	n.g, n.report, err = recovery.Open(cfg)
	return n, err
}

func mustOpen(t testing.TB, fsys vfs.FS, dir string, opts ...option) *node {
	t.Helper()
	n, err := open(t, fsys, dir, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func (n *node) stop() {
	n.t.Helper()
	if err := n.g.Stop(context.Background()); err != nil {
		n.t.Fatal(err)
	}
}

// push waits for the answer.
func (n *node) push(p *raftlogtest.Push) []uint64 {
	n.t.Helper()
	done := make(chan error, 1)
	var got []uint64
	p.Done = func(offsets []uint64, err error) { got = offsets; done <- err }
	if err := n.g.Submit(p); err != nil {
		n.t.Fatal(err)
	}
	select {
	case err := <-done:
		if err != nil {
			n.t.Fatal(err)
		}
	case err := <-n.fatal:
		n.t.Fatal(err)
	}
	return got
}

func (n *node) messages(queue uint64) []string {
	n.t.Helper()
	var out []string
	err := n.g.Reader().ReadMessages(queue, queue, 0, 1<<60, func(_ uint64, _ int64, m *entry.Message) error {
		out = append(out, string(m.Payload))
		return nil
	})
	if err != nil {
		n.t.Fatal(err)
	}
	return out
}

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
	if n.report.Replayed != 0 || n.report.Cut != 0 {
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

func BenchmarkPush(b *testing.B) {
	for _, inflight := range []int{1, 2, 4} {
		b.Run(fmt.Sprintf("inflight=%d", inflight), func(b *testing.B) {
			n := mustOpen(b, vfs.OS(), b.TempDir()+"/data", func(c *recovery.Config) { c.Group.MaxInFlight = inflight })
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
