package retention

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"queen/internal/vfs"
)

// F10: a pass of reclaim judges by its checkpoint, however much has been written and sealed since: what the checkpoint
// does not know of is not what nobody needs.
func TestReclaimJudgesByItsCheckpoint(t *testing.T) {
	r := newRig(t, 0)
	r.configure("q", retentionOn, number("retentionSeconds", 3000), number("dedupWindowSeconds", 60))
	r.fill("q", "first", 10)
	late, begun, goOn := false, make(chan struct{}), make(chan struct{})
	r.fs.SetHook(func(op vfs.Op, name string) error {
		// The first checkpoint is durable, and opened for the pass that will judge by it.
		if op == vfs.OpOpen && strings.HasSuffix(name, ".rows") && !late {
			late = true
			close(begun)
			<-goOn
		}
		return nil
	})
	for came := false; !came; { // the pass after a checkpoint
		r.putKey()
		r.clock.advance(time.Minute)
		select {
		case <-begun:
			came = true
		case <-time.After(time.Millisecond):
		}
	}
	for i := range 200 {
		r.push("later", fmt.Sprint("p", i%5), fmt.Sprint("later", i), fmt.Sprint("later", i, text))
		r.push("q", "another", fmt.Sprint("another", i), fmt.Sprint("another", i, text))
	}
	r.await(func() bool { // files with all of that are sealed
		r.clock.advance(100 * time.Millisecond)
		infos, err := r.fs.List("data/log/q2")
		return err == nil && slices.ContainsFunc(infos, func(i vfs.Info) bool { return strings.HasSuffix(i.Name, "3.idx") })
	})
	r.settle()
	want := r.holds()
	close(goOn)
	r.reclaim()
	if got := r.holds(); !slices.Equal(got, want) || len(want) < 400 {
		t.Errorf("%d messages, want %d", len(got), len(want))
	}
	r.kill()
	if got := r.holds(); !slices.Equal(got, want) {
		t.Errorf("after a start: %d messages, want %d", len(got), len(want))
	}
	r.stop()
}
