package retention

import (
	"bytes"
	"testing"
	"time"

	"queen/fsm"
	"queen/internal/entry"
)

// TestValuesOutliveTheLogTheyRideIn: the payload of a timer and the kept answer of
// a call ride in a log that their entry touches. When the queue of that log is
// removed they stay readable for as long as a row names them, and then the log goes.
func TestValuesOutliveTheLogTheyRideIn(t *testing.T) {
	r := newRig(t, 0)
	answer := bytes.Repeat([]byte("answer "), 100)
	m := entry.Message{ID: r.id(), Txn: []byte("timer"), Payload: bytes.Repeat([]byte("7"), 1000)}
	message := entry.AppendMessage(nil, &m)
	queue := r.configure("A")
	r.configure("B")
	step := &fsm.Txn{
		Push:   fsm.Push{Items: []fsm.PushItem{r.item("A", "p", "m", "x")}},
		Timers: []fsm.TimerOp{{Queue: "B", Partition: "p", Key: "t", DelayMs: 30 * 86400_000, Txn: m.Txn, MessageID: m.ID, Message: message}},
	}
	step.Push.GroupItems()
	done := make(chan error, 1)
	call := &fsm.Call{Tenant: tenant, Body: step, Done: func(err error) { done <- err }}
	call.Key = &fsm.Keyed{Route: fsm.OutcomeTransaction, Key: "K", Render: func() (int, []byte) { return 200, answer }}
	if err := r.b.Submit(call); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil || !call.Key.Kept {
		t.Fatal(err, step.Reason)
	}
	var timer fsm.TimerInfo
	var kept fsm.OutcomeInfo
	check := func(withAnswer bool) {
		t.Helper()
		var found bool
		r.call(&fsm.Read{Do: func(s *fsm.State) {
			timer, _ = s.Timer(tenant, "B", "t")
			kept, found = s.Outcome(tenant, fsm.OutcomeTransaction, "K")
		}})
		if got, err := r.b.Reader().Value(timer.ValueID, 0); err != nil || !bytes.Equal(got, message) {
			t.Fatalf("the payload of the timer: %d bytes, %v", len(got), err)
		}
		if found != withAnswer {
			t.Fatalf("the outcome is there: %v, expected %v", found, withAnswer)
		}
		if !withAnswer {
			return
		}
		if got, err := r.b.Reader().Value(kept.Content, 0); err != nil || !bytes.Equal(got, answer) {
			t.Fatalf("the kept answer: %d bytes, %v", len(got), err)
		}
	}
	check(true)
	r.call(&fsm.DeleteQueue{Queue: "A"})
	r.settle()
	r.reclaim()
	check(true)
	r.kill()
	check(true)
	r.advance(601 * time.Second) // the outcome ends, the timer is to come in a month
	r.reclaim()
	check(false)
	r.call(&fsm.Timers{Ops: []fsm.TimerOp{{Cancel: true, Queue: "B", Partition: "p", Key: "t"}}})
	r.reclaim()
	if files, _ := r.disk(); files["q1/1.seg"] != 0 || queue != 1 {
		t.Errorf("the log of the deleted queue %d is there, and nothing names a part of it: %v", queue, files)
	}
	r.stop()
}
