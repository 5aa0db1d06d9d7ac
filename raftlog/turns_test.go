package raftlog

import "testing"

// Whoever lets go of the core looks into the inbox again: what came meanwhile
// was left there by somebody who saw that the core was busy.
func TestInboxDue(t *testing.T) {
	in := newInbox()
	if in.due() {
		t.Fatal("an empty inbox is due")
	}
	in.want(2)
	if due, err := in.call(1); due || err != nil {
		t.Fatalf("one call of two: due %v, %v", due, err)
	}
	in.want(1) // the entry in flight has committed
	if !in.due() {
		t.Fatal("a call that came before the turn ended is forgotten")
	}
	in.take()
	in.want(1 << 30)
	in.event(event{sealed: true})
	if !in.due() {
		t.Fatal("an event does not wait for calls")
	}
}
