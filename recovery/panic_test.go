package recovery_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"queen/internal/vfs"
	"queen/raftlog"
	"queen/raftlog/raftlogtest"
)

// fragile panics in the middle of planning a bomb.
type fragile struct{ *raftlogtest.Machine }

type bomb struct{}

func (m fragile) Plan(now int64, calls []any) raftlog.Plan {
	for _, c := range calls {
		if _, ok := c.(bomb); ok {
			panic("half way through a plan")
		}
	}
	return m.Machine.Plan(now, calls)
}

// The turn stands in the goroutine of whoever submits, and that may be a handler
// which goes on after a panic. The group must not: it ends, with nobody waiting
// for the core for ever.
func TestPanicInATurnEndsTheGroup(t *testing.T) {
	n := mustOpen(t, vfs.NewMem(1), dataDir, withGroup(func(c *raftlog.Config) {
		c.Machine = fragile{c.Machine.(*raftlogtest.Machine)}
	}))
	n.put("key", "value")
	func() {
		defer func() { _ = recover() }()
		if err := n.g.Submit(bomb{}); err != nil {
			t.Error(err)
		}
	}()
	select {
	case err := <-n.fatal:
		if !strings.Contains(err.Error(), "half way through a plan") {
			t.Errorf("the reason is %v", err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("nobody was told that the group cannot go on")
	}
	if err := n.g.Stop(context.Background()); err == nil {
		t.Error("a stop says that all was well")
	}
}
