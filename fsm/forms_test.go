package fsm

import (
	"testing"

	"github.com/cespare/xxhash/v2"

	"queen/internal/entry"
)

// formRig is a rig with a queue that keeps sealed payloads and one that does not.
func formRig(t *testing.T) *rig {
	t.Helper()
	r := newRig(t, Config{})
	run(r, &Configure{Queue: "sealed", Set: []OptionValue{{Name: "encryptionEnabled", Flag: true}}})
	run(r, &Configure{Queue: "clear"})
	return r
}

// misfit plans a call that must change nothing and be handed back.
func misfit(t *testing.T, r *rig, body any) {
	t.Helper()
	digest, entries := r.m.Digest(), len(r.entries)
	c := r.call(body)
	// A call that was handed back has no outcome that could be kept.
	c.Key = &Keyed{Route: OutcomePush, Key: "k", Render: func() (int, []byte) { return 200, nil }}
	r.do(c)
	if !c.Misfit || c.Key.Kept || r.m.Digest() != digest || len(r.entries) != entries {
		t.Fatalf("%T: misfit %v, digest %x then %x, %d entries then %d", body, c.Misfit, digest, r.m.Digest(), entries, len(r.entries))
	}
}

func (r *rig) formed(queue string, form PayloadForm) PushItem {
	it := r.item(queue, "p", string(form+'a')+queue, []byte(`1`))
	it.Form = form
	return it
}

// TestFormOfPushes: what is clear where sealed payloads are kept is handed back
// with the form that is wanted, and so is the reverse; one item is enough.
func TestFormOfPushes(t *testing.T) {
	r := formRig(t)
	for _, c := range []struct {
		queue      string
		form, want PayloadForm
	}{
		{"sealed", FormClear, FormSealed}, {"clear", FormSealed, FormClear}, {"unknown", FormSealed, FormClear},
		{"sealed", FormSealed, FormAny}, {"clear", FormClear, FormAny}, {"new", FormClear, FormAny}, {"sealed", FormAny, FormAny},
	} {
		push := newPush(r.item("other", "p", "o", []byte("1")), r.formed(c.queue, c.form))
		txn := &Txn{Push: *newPush(r.item("other", "q", "o", []byte("1")), r.formed(c.queue, c.form))}
		if c.want != FormAny {
			misfit(t, r, push)
			misfit(t, r, txn)
			if push.Items[0].Want != FormAny || push.Items[1].Want != c.want || txn.Push.Items[1].Want != c.want {
				t.Errorf("%+v: wanted %d %d, in the transaction %d", c, push.Items[0].Want, push.Items[1].Want, txn.Push.Items[1].Want)
			}
			continue
		}
		call := r.call(push)
		if r.do(call); call.Misfit || push.Items[1].Status == 0 {
			t.Errorf("%+v: %+v", c, push.Items[1])
		}
	}
}

// TestFormOfTimers: by the queue as it is when the timer is scheduled; the fire
// takes the message as it is.
func TestFormOfTimers(t *testing.T) {
	r := formRig(t)
	op := func(queue string, form PayloadForm) TimerOp {
		id := r.id()
		return TimerOp{Queue: queue, Partition: "p", Key: "k", DelayMs: 1000, MessageID: id, Form: form,
			Message: entry.AppendMessage(nil, &entry.Message{ID: id, Minted: true, Payload: []byte("1")})}
	}
	timers := &Timers{Ops: []TimerOp{op("clear", FormClear), op("sealed", FormClear)}}
	misfit(t, r, timers)
	txn := &Txn{Timers: []TimerOp{op("sealed", FormClear)}}
	misfit(t, r, txn)
	if timers.Ops[0].Want != FormAny || timers.Ops[1].Want != FormSealed || txn.Timers[0].Want != FormSealed {
		t.Errorf("wanted %d %d %d", timers.Ops[0].Want, timers.Ops[1].Want, txn.Timers[0].Want)
	}
	run(r, &Timers{Ops: []TimerOp{op("clear", FormClear), op("sealed", FormSealed)}})
	run(r, &Configure{Queue: "clear", Set: []OptionValue{{Name: "encryptionEnabled", Flag: true}}})
	r.now += 2_000_000
	r.do()
	for _, queue := range []string{"clear", "sealed"} {
		if p := r.partition(queue, "p"); p == nil || p.next != 1 {
			t.Errorf("the timer of %s did not fire", queue)
		}
	}
	claims := &Txn{Timers: []TimerOp{op("sealed", FormSealed)}}
	claims.Timers[0].Encrypted = true
	digest := r.m.Digest()
	if run(r, claims); claims.Reason != ReasonBadRequest || r.m.Digest() != digest {
		t.Errorf("a timer that claims to be sealed: %q", claims.Reason)
	}
	elsewhere := &Txn{Timers: []TimerOp{op("other", FormClear)}}
	elsewhere.Timers[0].Encrypted = true
	if run(r, elsewhere); elsewhere.Reason != "" {
		t.Errorf("where nothing is sealed: %q", elsewhere.Reason)
	}
}

// TestFormOfReplays: the destination decides; who can do nothing about it moves
// clear payloads as they are, and nothing into a queue that seals.
func TestFormOfReplays(t *testing.T) {
	r := formRig(t)
	run(r, newPush(r.item("clear", "p", "t", []byte(`"stored"`))))
	pop := run(r, &Pop{Queue: "clear", Group: QueueMode, Batch: 1, Partitions: 1, LeaseID: leaseID("l")})
	run(r, &Ack{Items: []AckItem{{Txn: []byte("t"), TxnHash: xxhash.Sum64String("t"), PartitionID: pop.Claims[0].PartitionID, Group: QueueMode, Status: DeadLetter}}})
	letters := 0
	var id [16]byte
	for l := range r.m.s.letters {
		id, letters = l, letters+1
	}
	if letters != 1 {
		t.Fatalf("%d dead letters", letters)
	}
	replay := func(to string, form PayloadForm) *ReplayDeadLetter {
		rep := &ReplayDeadLetter{ID: id, Queue: to, Form: form}
		rep.Item.ID, rep.Item.DupOf = r.id(), -1
		return rep
	}
	blind := replay("sealed", FormAny)
	misfit(t, r, blind)
	for _, c := range []struct {
		to   string
		want PayloadForm
	}{{"sealed", FormSealed}, {"clear", FormClear}, {"", FormClear}} {
		rep := replay(c.to, FormClear)
		misfit(t, r, rep)
		m, _, err := entry.NextMessage(rep.Stored)
		if err != nil || rep.Want != c.want || string(m.Payload) != `"stored"` {
			t.Errorf("to %q: want %d, stored %q (%v)", c.to, rep.Want, m.Payload, err)
		}
	}
	wrong := replay("sealed", FormClear)
	wrong.Payload = &entry.Message{Payload: []byte(`"other"`)}
	misfit(t, r, wrong)
	rep := replay("sealed", FormSealed)
	rep.Payload = &entry.Message{Payload: []byte(`"other"`)}
	if run(r, rep); rep.Outcome != "moved" {
		t.Fatalf("outcome %q", rep.Outcome)
	}
	if stored := r.store.message(r.partitionID("sealed", "p"), 0); string(stored.Payload) != `"other"` {
		t.Errorf("stored %q", stored.Payload)
	}
}
