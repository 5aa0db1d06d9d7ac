package retention

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"queen/fsm"
)

var text = strings.Repeat("0123456789abcdef", 20) // a payload of 320 bytes

// fill pushes n messages, all of one second.
func (r *rig) fill(queue, prefix string, n int) {
	r.t.Helper()
	for i := range n {
		r.push(queue, fmt.Sprint("p", i%3), fmt.Sprint(prefix, i), fmt.Sprint(prefix, i, text))
	}
}

func TestRetentionFreesFiles(t *testing.T) {
	for _, shards := range []int{0, 2} {
		t.Run(fmt.Sprint("shards=", shards), func(t *testing.T) {
			r := newRig(t, shards)
			r.configure("q", retentionOn, number("retentionSeconds", 1000), number("dedupWindowSeconds", 60))
			r.fill("q", "old", 300)
			_, full := r.disk()
			r.advance(1100 * time.Second)
			r.fill("q", "new", 30)
			r.reclaim()
			files, bytes := r.disk()
			if bytes > full/4 {
				t.Errorf("%d bytes of %d are left: %v", bytes, full, files)
			}
			info, _ := r.partition("q", "p0")
			if info.LogStart != 100 || info.Next != 110 || info.Total != 10 || info.Pending != 10 {
				t.Errorf("p0: %+v", info)
			}
			want := r.digest()
			r.kill()
			if got := r.digest(); got != want {
				t.Errorf("after a restart: digest %x, want %x", got, want)
			}
			got := r.consume("q", "g", 100)
			if len(got) != 30 || slices.ContainsFunc(got, func(m string) bool { return !strings.HasPrefix(m, "new") }) {
				t.Errorf("%d messages are left: %.20q", len(got), got)
			}
			if n := r.b.Removed().Failed.Load(); n != 0 {
				t.Errorf("%d look-ups failed", n)
			}
			r.stop()
		})
	}
}

// G20: dedup outlives the message within its window, with the offset and the id of the original.
func TestDedupOutlivesTheMessage(t *testing.T) {
	r := newRig(t, 0)
	r.configure("q", retentionOn, number("retentionSeconds", 100), number("dedupWindowSeconds", 3000))
	first := r.push("q", "p0", "once", text)
	r.fill("q", "old", 300)
	r.advance(200 * time.Second)
	r.fill("q", "new", 60) // so that the file with the original is sealed
	before, _ := r.disk()
	r.reclaim()
	if n := r.b.Reclaimed().Rewrites.Load() + r.b.Reclaimed().Merges.Load(); n == 0 {
		t.Fatalf("nothing was rewritten: %v", before)
	}
	check := func(when string) {
		t.Helper()
		again := r.push("q", "p0", "once", "other")
		if again.Status != fsm.Duplicate || again.Offset != first.Offset {
			t.Errorf("%s: status %d at offset %d", when, again.Status, again.Offset)
		}
		var id [16]byte
		err := r.b.Reader().FindTxn(again.QueueID, again.PartitionID, []byte("once"), func(offset uint64, _ int64, stored [16]byte) bool {
			id = stored
			return offset != first.Offset
		})
		if err != nil || id != first.ID {
			t.Errorf("%s: the original's id is %x, %v", when, id, err)
		}
		if got := r.read(again.QueueID, again.PartitionID, first.Offset, first.Offset); len(got) != 0 {
			t.Errorf("%s: a message is delivered after it is gone: %.20q", when, got)
		}
	}
	check("after reclaim")
	r.powerCut()
	check("after a power cut")
	r.advance(3000 * time.Second)
	r.reclaim()
	if again := r.push("q", "p0", "once", text); again.Status != fsm.Queued {
		t.Errorf("after the window: status %d", again.Status)
	}
	r.stop()
}
