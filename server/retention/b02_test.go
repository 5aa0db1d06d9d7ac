package retention

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"queen/fsm"
	"queen/internal/entry"
)

// B02: parts of an answered transaction are removed, rightly: its messages in B are consumed and retention takes them
// (a), B is deleted (b), B is deleted and made again (c). Whatever a kill finds of the copies, the rest of the
// transaction stands, and nothing is refused or rolled back.
func TestB02PartsOfATransactionAreRemoved(t *testing.T) {
	variants := map[string]func(*rig){
		"a": func(r *rig) {
			if got := r.consume("B", "g", 1000); len(got) != 101 {
				r.t.Fatalf("%d messages in B", len(got))
			}
			r.advance(1000 * time.Second)
			if p, _ := r.partition("B", "p"); p.LogStart != 101 {
				r.t.Fatalf("retention left B at %d", p.LogStart)
			}
		},
		"b": func(r *rig) { r.call(&fsm.DeleteQueue{Queue: "B"}); r.settle() },
		"c": func(r *rig) {
			r.call(&fsm.DeleteQueue{Queue: "B"})
			r.push("B", "p", "again", "again")
			r.settle()
		},
	}
	kills := map[string]func(*rig){
		"before the next checkpoint": func(*rig) {},
		"after a checkpoint":         (*rig).checkpoint,
		"after reclaim":              (*rig).reclaim,
	}
	for name, remove := range variants {
		for when, until := range kills {
			for _, shards := range []int{0, 2} {
				for _, power := range []bool{false, true} {
					t.Run(fmt.Sprintf("%s/%s/shards=%d/power=%v", name, when, shards, power), func(t *testing.T) {
						r := newRig(t, shards)
						committed(r)
						remove(r)
						until(r)
						files, _ := r.disk()
						for range 2 {
							if power {
								r.powerCut()
							} else {
								r.kill()
							}
							r.checkCommitted(name == "c")
						}
						if when == "after reclaim" && shards == 0 && name != "a" {
							if _, there := files["q2/1.seg"]; there {
								t.Errorf("the log of the deleted queue is still there: %v", files)
							}
						}
						r.reclaim()
						r.checkCommitted(name == "c")
						r.stop()
					})
				}
			}
		}
	}
}

// committed makes the transaction, and enough around it that its copies are in sealed files.
func committed(r *rig) {
	r.configure("A", number("dedupWindowSeconds", 0))
	r.configure("B", retentionOn, number("completedRetentionSeconds", 50), number("dedupWindowSeconds", 0))
	for i := range 50 {
		r.push("B", "p", fmt.Sprint("before", i), text)
	}
	m := entry.Message{ID: r.id(), Txn: []byte("timer"), Payload: []byte(text)}
	txn := &fsm.Txn{
		Push:   fsm.Push{Items: []fsm.PushItem{r.item("A", "p", "in A", "in A"), r.item("B", "p", "in B", "in B")}},
		KV:     []fsm.KVOp{{Kind: fsm.KVPut, NS: "ns", Key: "key", Value: []byte(`"value"`)}},
		Timers: []fsm.TimerOp{{Queue: "A", Partition: "p", Key: "timer", DelayMs: 90 * 86400_000, Txn: m.Txn, MessageID: m.ID, Message: entry.AppendMessage(nil, &m)}},
	}
	txn.Push.GroupItems()
	r.call(txn)
	if txn.Reason != "" {
		r.t.Fatalf("the transaction was refused: %s", txn.Reason)
	}
	for i := range 50 {
		r.push("B", "p", fmt.Sprint("after", i), text)
		r.push("A", "p", fmt.Sprint("after", i), text)
	}
}

func (r *rig) checkCommitted(again bool) {
	r.t.Helper()
	kv := &fsm.KV{Ops: []fsm.KVOp{{Kind: fsm.KVGet, NS: "ns", Key: "key"}}}
	r.call(kv)
	if got := string(kv.Ops[0].Result.Value); got != `"value"` {
		r.t.Errorf("the key is %q", got)
	}
	var timers []fsm.TimerInfo
	r.call(&fsm.Read{Do: func(s *fsm.State) { timers, _ = s.ListTimers(tenant, "A", "", 10) }})
	if len(timers) != 1 {
		r.t.Fatalf("%d timers", len(timers))
	}
	if data, err := r.b.Reader().Value(timers[0].ValueID, 0); err != nil || len(data) < len(text) {
		r.t.Errorf("the timer's payload: %d bytes, %v", len(data), err)
	}
	var a, b fsm.QueueInfo
	r.call(&fsm.Read{Do: func(s *fsm.State) { a, _ = s.Queue(tenant, "A"); b, _ = s.Queue(tenant, "B") }})
	p, _ := r.partition("A", "p")
	if got := r.read(a.ID, p.ID, 0, 100); len(got) != 51 || !slices.Contains(got, "in A") {
		r.t.Errorf("A holds %d messages", len(got))
	}
	if again {
		p, _ := r.partition("B", "p")
		if got := r.read(b.ID, p.ID, 0, 100); !slices.Equal(got, []string{"again"}) {
			r.t.Errorf("the new B holds %.20q", got)
		}
	}
}
