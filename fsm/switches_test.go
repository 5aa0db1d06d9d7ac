package fsm

import (
	"strings"
	"testing"
)

func turn(r *rig, kv, schedule, fire bool) Switches {
	r.t.Helper()
	return run(r, &SetSwitches{KV: &kv, Schedule: &schedule, Fire: &fire}).Result
}

func scheduleOp(r *rig, key string, delayMs int64) TimerOp {
	it := r.item("a", "p", key, []byte("1"))
	return TimerOp{Queue: "a", Partition: "p", Key: key, DelayMs: delayMs, Txn: it.Txn, MessageID: it.ID, Message: it.Packed}
}

// What is off stays so over a restart, and its row goes when everything is on.
func TestSwitchesOutliveRestarts(t *testing.T) {
	for _, full := range []bool{false, true} {
		r := newRig(t, Config{})
		before := r.m.Digest()
		if got := turn(r, false, true, false); got != (Switches{KVOff: true, FireOff: true}) {
			t.Fatalf("%+v", got)
		}
		r.checkpoint(full)
		r.restart()
		if got := r.m.s.Switches(); got != (Switches{KVOff: true, FireOff: true}) {
			t.Fatalf("after a restart: %+v", got)
		}
		turn(r, false, false, true) // the row changes after the checkpoint
		r.restart()
		if got := run(r, &SetSwitches{}).Result; got != (Switches{KVOff: true, ScheduleOff: true}) {
			t.Fatalf("nothing is named: %+v", got)
		}
		turn(r, true, true, true)
		r.restart()
		r.checkpoint(full)
		r.restart()
		if got := r.m.s.Switches(); got != (Switches{}) {
			t.Fatalf("all is on: %+v", got)
		}
		rows := allRows(r.m)
		if _, ok := rows[string(byte(rowSwitches))]; ok || before == 0 {
			t.Fatal("a row is left though everything is on")
		}
	}
}

// The row is captured as it is when its turn comes, also when it goes and comes
// back meanwhile.
func TestSwitchesDuringACapture(t *testing.T) {
	for emitted := range 6 {
		r := newRig(t, Config{})
		run(r, newPush(r.item("a", "p", "m", nil), r.item("b", "p", "m", nil)))
		turn(r, false, true, true)
		r.checkpoint(true)
		turn(r, true, true, true)
		r.beginCapture(false)
		for range emitted {
			if r.taking != nil {
				r.captureSome(1)
			}
		}
		turn(r, true, false, true)
		for r.taking != nil {
			r.captureSome(1)
		}
		r.restart()
		r.checkpoint(false)
		r.restart()
		if got := r.m.s.Switches(); got != (Switches{ScheduleOff: true}) {
			t.Fatalf("after %d rows: %+v", emitted, got)
		}
	}
}

func TestSwitchesEffects(t *testing.T) {
	r := newRig(t, Config{})
	put := KVOp{Kind: KVPut, NS: "n", Key: "k", Value: []byte("1")}
	turn(r, false, true, true)
	digest := r.m.Digest()
	if kv := run(r, &KV{Ops: []KVOp{{Kind: KVGet, NS: "n", Key: "k"}}}); !kv.Disabled {
		t.Error("a read of KV is served")
	}
	if l := run(r, &Locks{Ops: []LockOp{{Kind: LockAcquire, Name: "l", TTL: 1, Limit: 1}}}); !l.Disabled {
		t.Error("a lock is served")
	}
	tx := run(r, &Txn{KV: []KVOp{put}, Push: *newPush(r.item("a", "p", "m", nil))})
	if tx.Reason != ReasonKVDisabled || r.m.Digest() != digest {
		t.Errorf("a transaction with KV: %q", tx.Reason)
	}
	if tx := run(r, &Txn{Push: *newPush(r.item("a", "p", "m", nil))}); tx.Reason != "" {
		t.Errorf("one without: %q", tx.Reason)
	}

	turn(r, true, true, true)
	run(r, &Timers{Ops: []TimerOp{scheduleOp(r, "t1", 1000), scheduleOp(r, "t2", 500), scheduleOp(r, "t3", 60_000)}})
	turn(r, true, false, false)
	digest = r.m.Digest()
	cancel := TimerOp{Cancel: true, Queue: "a", Key: "t3"}
	if tm := run(r, &Timers{Ops: []TimerOp{cancel, scheduleOp(r, "t4", 0)}}); !tm.Disabled || r.m.Digest() != digest {
		t.Error("a batch that schedules is served in part")
	}
	if tx := run(r, &Txn{Timers: []TimerOp{scheduleOp(r, "t4", 0)}}); tx.Reason != ReasonTimersDisabled {
		t.Errorf("a transaction that schedules: %q", tx.Reason)
	}
	if tm := run(r, &Timers{Ops: []TimerOp{cancel}}); tm.Disabled || tm.Ops[0].Status != "cancelled" {
		t.Errorf("a cancel: %+v", tm.Ops[0])
	}
	r.now += 10_000_000
	if p := r.plan(); p.Wake != 0 && p.Wake < r.now+1_000_000 && r.m.s.timers.Len() != 2 || len(r.store.parts[1].messages) != 1 {
		t.Fatalf("%d timers pending, %d messages; nothing may fire", r.m.s.timers.Len(), len(r.store.parts[1].messages))
	}
	turn(r, true, false, true) // it fires what it has, the oldest first
	r.do()
	r.now += 100_000
	r.do()
	order := ""
	for o := range r.store.parts[1].messages {
		m := r.store.message(1, uint64(o))
		order += string(m.AppendTxn(nil)) + " "
	}
	if order != "m t2 t1 " {
		t.Fatalf("messages %q, want t2 before t1", order)
	}
}

// A pass whose payloads were being read when firing was turned off fires nothing,
// and its timers fire later.
func TestFiringStopsAmidLookups(t *testing.T) {
	r := newRig(t, Config{})
	op := scheduleOp(r, "t1", 100)
	op.Message = r.item("a", "p", "t1", make([]byte, 1000)).Packed // a value of its own
	run(r, &Timers{Ops: []TimerOp{op}})
	r.now += 200_000
	p := r.plan()
	if len(p.Prepare) != 1 {
		t.Fatalf("%d calls are prepared, want the pass", len(p.Prepare))
	}
	turn(r, true, true, false)
	r.resolve(p.Prepare[0])
	r.do(p.Prepare[0])
	if r.m.s.timers.Len() != 1 || r.partition("a", "p") != nil {
		t.Fatal("it has fired")
	}
	turn(r, true, true, true)
	r.now += 100_000
	r.do()
	if r.m.s.timers.Len() != 0 || r.partition("a", "p") == nil {
		t.Fatal("it does not fire any more")
	}
}

func TestSwitchesRowVersions(t *testing.T) {
	for row, want := range map[string]string{"\x01": "", "\x07": "", "\x00": "newer build", "\x08": "newer build", "\x01\x00": "bytes after", "": errShortRow.Error()} {
		var s switches
		if err := s.decode([]byte(row)); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("row %x: %v, want %q", row, err, want)
		}
	}
}
