package raftlog

import (
	"errors"
	"testing"
	"time"

	"go.etcd.io/raft/v3"
	pb "go.etcd.io/raft/v3/raftpb"
)

// rigRereads lets a rig read its state again: the test decides when it is done.
type rigRereads struct {
	asked   []uint64 // up to which entry
	refused []*rigCall
	ahead   []uint64
}

func (r *coreRig) canReread() *rigRereads {
	rr := &rigRereads{}
	r.c.ports.reread = func(upTo uint64) { rr.asked = append(rr.asked, upTo) }
	r.c.ports.refuse = func(calls []any, err error) {
		for _, c := range calls {
			c := c.(*rigCall)
			c.answers = append(c.answers, err)
			rr.refused = append(rr.refused, c)
		}
	}
	r.c.ports.readAhead = func(from, _ uint64) { rr.ahead = append(rr.ahead, from) }
	return rr
}

// appendFrom is an append of a leader of another term, with one entry at index at.
func (r *coreRig) appendFrom(id, term, prev, prevTerm, commit uint64, data ...[]byte) {
	r.from(id, pb.MsgApp, inTerm(term), atIndex(prev), func(m *pb.Message) {
		m.LogTerm, m.Commit = new(prevTerm), new(commit)
		for i, d := range data {
			m.Entries = append(m.Entries, &pb.Entry{Term: new(term), Index: new(prev + 1 + uint64(i)), Data: d})
		}
	})
	r.settle()
}

// F7: what was planned here and overruled is answered as abandoned; the state is
// read again up to what was applied, what raft hands out meanwhile is held and
// applied to the new state, and the node can lead again.
func TestF7StateIsReadAgain(t *testing.T) {
	r := newRig(t, 1, 2, 3)
	rr := r.canReread()
	r.elect()
	kept := r.call(true)
	r.turn()
	r.settle()
	r.ack(2)
	r.want(kept, "ok")
	lost1 := r.call(true)
	r.turn()
	lost2 := r.call(true)
	r.turn()
	r.settle()
	applied, term := r.c.applied, r.c.term
	var b rigBuilder
	r.appendFrom(2, term+4, applied, term, applied+2, b.data(9_000_001), b.data(9_000_002))
	r.want(lost1, "abandoned")
	r.want(lost2, "abandoned")
	if r.fatal != nil || len(rr.asked) != 1 || rr.asked[0] != applied {
		t.Fatalf("fatal %v, read again up to %v, applied is %d", r.fatal, rr.asked, applied)
	}
	if r.c.applied != applied || len(r.m.applied) != 0 {
		t.Fatalf("applied %d and %v while the state is read", r.c.applied, r.m.applied)
	}
	r.appendFrom(2, term+4, applied+2, term+4, applied+3, b.data(9_000_003)) // held, too
	fresh := &rigMachine{}
	r.m = fresh
	r.c.rereadDone(fresh)
	r.turn()
	if got := len(fresh.applied); got != 3 || r.c.applied != applied+3 || r.c.m != Machine(fresh) {
		t.Fatalf("the new state got entries %v, applied is %d", fresh.applied, r.c.applied)
	}
	r.elect()
	again := r.call(true)
	r.turn()
	r.settle()
	r.ack(2)
	r.want(again, "ok")
}

// F7: a node whose state is being read again does not lead: it hands on.
func TestF7NoLeadingWhileTheStateIsRead(t *testing.T) {
	r := newRig(t, 1, 2, 3)
	r.canReread()
	r.elect()
	r.call(true)
	r.turn()
	r.settle()
	applied, term := r.c.applied, r.c.term
	r.appendFrom(2, term+1, applied, term, applied+1, nil)
	r.c.campaign()
	r.settle()
	r.from(2, pb.MsgPreVoteResp, inTerm(r.c.term+1))
	r.settle()
	r.from(2, pb.MsgVoteResp)
	r.settle()
	r.ack(2)
	if !r.c.isLeader || r.c.leading {
		t.Fatalf("leader %v, planning %v", r.c.isLeader, r.c.leading)
	}
	r.sent = nil
	r.tick(2)
	if r.c.rn.BasicStatus().LeadTransferee == raft.None {
		t.Fatal("leadership is not handed on")
	}
}

// F2: after a refused proposal what was in flight before it may still commit: it
// is answered, and applied to the state that was read again.
func TestF2RefusedProposalReadsTheStateAgain(t *testing.T) {
	r := newRig(t, 1, 2, 3)
	rr := r.canReread()
	r.elect()
	before := r.call(true)
	r.turn()
	r.c.rn.TransferLeader(3) // behind the core's back: raft refuses what is proposed from now on
	refused := r.call(true)
	r.c.planOnce()
	r.turn()
	r.want(refused, "abandoned")
	if len(rr.asked) != 1 || r.fatal != nil {
		t.Fatalf("read again %v, fatal %v", rr.asked, r.fatal)
	}
	r.settle()
	r.ack(2)
	r.want(before, "waiting")
	fresh := &rigMachine{}
	r.m = fresh
	r.c.rereadDone(fresh)
	r.turn()
	r.want(before, "ok")
	if len(fresh.applied) != 1 {
		t.Fatalf("the entry in flight was applied %d times to the new state", len(fresh.applied))
	}
}

// A call that waits on a node is refused once another one is known to lead.
func TestCallsForTheLeaderAreRefused(t *testing.T) {
	r := newRig(t, 1, 2, 3)
	r.canReread()
	c := r.call(true)
	r.turn()
	r.want(c, "waiting")
	r.from(2, pb.MsgHeartbeat, inTerm(3))
	r.want(c, "not leader")
}

// F17: raft alone would let a node lead whose disk does not answer.
func TestF17HungDiskGivesLeadershipAway(t *testing.T) {
	r := newRig(t, 1, 2, 3)
	r.elect()
	r.call(true)
	r.turn() // its write is never completed
	for range r.c.cfg.ElectionTicks + 2 {
		r.tick(1)
		r.from(2, pb.MsgHeartbeatResp)
		r.from(3, pb.MsgHeartbeatResp)
	}
	if r.c.rn.BasicStatus().LeadTransferee == raft.None {
		t.Fatal("the leader keeps leading")
	}
	late := r.call(true)
	plans := r.m.plans
	r.turn()
	if r.m.plans != plans {
		t.Fatal("planned on a disk that hangs")
	}
	r.want(late, "waiting")
}

// A hand-over stops planning, waits for what is in flight, and asks raft then.
func TestHandOver(t *testing.T) {
	r := newRig(t, 1, 2, 3)
	r.elect()
	r.from(3, pb.MsgHeartbeatResp)
	c := r.call(true)
	r.turn()
	var gone []bool
	r.c.handOver(0, false, time.Minute, func(g bool) { gone = append(gone, g) })
	if r.c.rn.BasicStatus().LeadTransferee != raft.None {
		t.Fatal("raft was asked with an entry in flight")
	}
	late := r.call(true)
	plans := r.m.plans
	r.turn()
	if r.m.plans != plans {
		t.Fatal("planned during a hand-over")
	}
	r.settle()
	r.ack(2)
	r.want(c, "ok")
	r.tick(1)
	if to := r.c.rn.BasicStatus().LeadTransferee; to != 2 {
		t.Fatalf("leadership goes to %d, node 2 has most of the log", to)
	}
	r.from(2, pb.MsgHeartbeat, inTerm(r.c.term+1))
	r.turn()
	if len(gone) != 1 || !gone[0] {
		t.Fatalf("told %v", gone)
	}
	r.want(late, "waiting")
}

// F14: a new leader's clock goes on from what the last one's had reached, and
// never further than that may be.
func TestF14TimeIsCarriedOn(t *testing.T) {
	r := newRig(t, 1, 2, 3)
	hour := int64(3_600_000_000)
	theirs := r.now.Wall + 5*hour
	r.c.received(&Parcel{Time: theirs, Messages: []*pb.Message{{Type: pb.MsgHeartbeat.Enum(), From: new(uint64(2)), To: new(uint64(1)), Term: new(uint64(1))}}}, r.now.Mono)
	r.c.received(&Parcel{Time: theirs - hour}, r.now.Mono) // long under way
	r.now.Mono += int64(10 * time.Second)
	r.now.Wall -= 24 * hour // and this node's wall clock is wrong
	r.turn()
	r.elect()
	got := r.c.brokerNow()
	if low, high := theirs+9_900_000, theirs+10_000_000+10_000; got < low || got > high {
		t.Fatalf("the clock begins at %d, the last leader's is at about %d", got, theirs+10_000_000)
	}
	if p, _ := r.c.timeBound(); p != got {
		t.Fatalf("others are told %d", p)
	}
}

// The clock of a leader that was deposed without noticing runs on: the next leader's
// counts, also when it is behind.
func TestF14LaterLeadersClockCounts(t *testing.T) {
	var n timeNote
	n.take(1_000_000, 4, 0)
	n.take(900_000, 5, 0)
	if got := n.bound(0); got != 900_000 {
		t.Fatalf("noted %d, the leader of the later term says 900000", got)
	}
	n.take(2_000_000, 4, 0)
	if got := n.bound(0); got != 900_000 {
		t.Fatalf("noted %d of an earlier leader", got)
	}
	n.take(900_001, 5, 0)
	if got := n.bound(0); got != 900_001 {
		t.Fatalf("noted %d", got)
	}
}

func TestF14VotesCarryTime(t *testing.T) {
	r := newRig(t, 1, 2, 3)
	theirs := r.now.Wall + 7_000_000_000
	r.c.campaign()
	r.settle()
	r.c.received(&Parcel{Time: theirs, Messages: []*pb.Message{{Type: pb.MsgPreVoteResp.Enum(), From: new(uint64(2)), To: new(uint64(1)), Term: new(r.c.term + 1)}}}, r.now.Mono)
	r.turn()
	r.settle()
	r.from(2, pb.MsgVoteResp)
	r.settle()
	r.ack(2)
	if !r.c.leading || r.c.brokerNow() < theirs {
		t.Fatalf("leading %v at %d, a voter knew of %d", r.c.leading, r.c.brokerNow(), theirs)
	}
}

// The log is kept for followers that were heard of lately, and no longer.
func TestLogIsKeptForFollowers(t *testing.T) {
	r := newRig(t, 1, 2, 3)
	r.elect()
	for range 10 {
		r.call(true)
		r.turn()
		r.settle()
		r.ack(2)
	}
	r.from(3, pb.MsgAppResp, atIndex(2))
	r.tick(1)
	from := r.c.applied
	if keep := r.c.keepFrom(from); keep != 3 {
		t.Fatalf("kept from %d, a follower is at 2", keep)
	}
	for range 6100 { // ten minutes and something
		r.now.Mono += int64(100 * time.Millisecond)
		r.c.tick(r.now)
		r.from(2, pb.MsgHeartbeatResp)
		if r.c.isLeader {
			r.settle()
		}
	}
	if !r.c.leading {
		t.Fatal("no longer leading")
	}
	if keep := r.c.keepFrom(from); keep != from+1 {
		t.Fatalf("kept from %d for a follower that has gone, the checkpoint covers %d", keep, from)
	}
}

// A follower does not know what others need: it keeps what the leader says, and
// everything while nobody has said.
func TestFollowerKeepsWhatTheLeaderSays(t *testing.T) {
	r := newRig(t, 1, 2, 3)
	if keep := r.c.keepFrom(100); keep != r.c.log.first {
		t.Fatalf("kept from %d", keep)
	}
	r.c.received(&Parcel{Keep: 40}, r.now.Mono)
	if keep := r.c.keepFrom(100); keep != 40 {
		t.Fatalf("kept from %d, the leader says 40", keep)
	}
}

// F18: what is not in memory is asked for, given in a run, and the next run is
// asked for in time.
func TestF18ReadAhead(t *testing.T) {
	l, err := newMemLog(nil, nil, 1, 0, []TermRun{{}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	l.append(entries(1, 1, 100))
	l.release(100)
	if _, err := l.Entries(10, 50, 1<<20); !errors.Is(err, raft.ErrCompacted) || len(l.missed) != 1 || l.missed[0] != 10 {
		t.Fatalf("err %v, missed %v", err, l.missed)
	}
	l.missed = nil
	l.addAhead(entries(10, 1, 20))
	ents, err := l.Entries(12, 50, 1<<20)
	if err != nil || len(ents) != 18 || ents[0].GetIndex() != 12 {
		t.Fatalf("%d entries, %v", len(ents), err)
	}
	if len(l.missed) != 0 {
		t.Fatalf("asked for more at the start of a run: %v", l.missed)
	}
	if ents, err := l.Entries(25, 50, 1<<20); err != nil || len(ents) != 5 || len(l.missed) != 1 || l.missed[0] != 30 {
		t.Fatalf("%d entries, %v, asked for %v", len(ents), err, l.missed)
	}
}
