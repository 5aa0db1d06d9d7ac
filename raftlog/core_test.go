package raftlog

import (
	"errors"
	"testing"
	"time"

	"go.etcd.io/raft/v3"
	pb "go.etcd.io/raft/v3/raftpb"
)

// leader1 is a single voter that leads.
func leader1(t testing.TB) *coreRig {
	t.Helper()
	r := newRig(t, 1)
	r.c.campaign()
	r.settle()
	if !r.c.leading {
		t.Fatal("the only voter does not lead")
	}
	return r
}

func TestOneVoterLeadsAtOnceAndAnswersOncePerCall(t *testing.T) {
	r := leader1(t)
	if r.m.leads != 1 || r.m.term != 1 {
		t.Fatalf("Lead called %d times, term %d", r.m.leads, r.m.term)
	}
	a := r.call(true)
	r.turn()
	r.want(a, "waiting")
	if len(r.writes) != 1 || len(r.writes[0].entries) != 1 || r.writes[0].entries[0].GetIndex() != 2 {
		t.Fatalf("writes: %v", r.writes)
	}
	b := r.call(true) // shares nothing with a, and is in flight beside it
	r.turn()
	r.complete(1)
	r.want(a, "ok")
	r.want(b, "waiting")
	r.settle()
	r.want(b, "ok")
	if len(r.m.applied) != 0 {
		t.Fatalf("own entries were applied again: %v", r.m.applied)
	}
}

func TestEntriesInFlightAreBounded(t *testing.T) {
	r := leader1(t)
	var calls []*rigCall
	for range 5 {
		calls = append(calls, r.call(true))
		r.turn()
	}
	if got := len(r.c.inflight); got != 2 {
		t.Fatalf("%d entries in flight, want 2", got)
	}
	r.complete(1)
	if got := len(r.c.inflight); got != 2 || len(r.c.calls) != 0 {
		t.Fatalf("%d in flight, %d calls waiting: what gathered shares the next entry", got, len(r.c.calls))
	}
	r.settle()
	for _, c := range calls {
		r.want(c, "ok")
	}
	if r.c.inflightLen != 0 || !r.c.idle() {
		t.Fatalf("not idle: %d bytes in flight", r.c.inflightLen)
	}
}

// While an entry is in flight the next cycle waits until it would be as large.
func TestNextCycleGathersCalls(t *testing.T) {
	r := leader1(t)
	for range 3 {
		r.call(true)
	}
	r.turn()
	plans := r.m.plans
	r.call(true)
	r.turn()
	r.call(true)
	r.turn()
	if r.m.plans != plans {
		t.Fatal("a small entry was planned behind a large one")
	}
	last := r.call(true)
	r.turn()
	if r.m.plans != plans+1 || len(r.c.inflight) != 2 {
		t.Fatalf("%d plans, %d in flight: as many calls have gathered", r.m.plans-plans, len(r.c.inflight))
	}
	r.call(true)
	r.turn()
	r.complete(1)
	r.turn()
	r.settle()
	r.want(last, "ok")
	if !r.c.idle() {
		t.Fatal("a call was left behind")
	}
}

func TestF1PlansOnlyWhileLeading(t *testing.T) {
	r := newRig(t, 1, 2, 3)
	early := r.call(true)
	r.turn()
	if r.m.plans != 0 {
		t.Fatal("a follower planned")
	}
	r.c.campaign()
	r.settle()
	r.from(2, pb.MsgPreVoteResp, inTerm(1))
	r.settle()
	r.from(2, pb.MsgVoteResp)
	r.settle()
	if !r.c.isLeader || r.m.plans != 0 {
		t.Fatalf("leader %v, %d plans: nothing is planned before an entry of the own term was applied", r.c.isLeader, r.m.plans)
	}
	r.ack(2)
	r.want(early, "waiting")
	if r.m.plans == 0 {
		t.Fatal("a leader with an applied entry of its term does not plan")
	}
	r.ack(2)
	r.want(early, "ok")

	plans, last := r.m.plans, r.lastIndex()
	r.from(3, pb.MsgHeartbeat, inTerm(9))
	r.settle()
	late := r.call(true)
	r.tick(3)
	if r.m.plans != plans || r.m.follows != 1 {
		t.Fatalf("%d plans after the leadership was lost, Follow called %d times", r.m.plans-plans, r.m.follows)
	}
	if r.lastIndex() != last {
		t.Fatal("a deposed leader's call reached the log")
	}
	r.want(late, "waiting")
}

func TestF1ProposalOfAPeerIsRefused(t *testing.T) {
	r := newRig(t, 1, 2, 3)
	r.elect()
	last := r.lastIndex()
	r.from(2, pb.MsgProp, func(m *pb.Message) { m.Entries = []*pb.Entry{{Data: []byte("planned elsewhere")}} })
	r.settle()
	if r.lastIndex() != last || len(r.writes) != 0 {
		t.Fatal("a proposal of a peer entered the log")
	}
}

// raft turns a second membership change into an empty entry and says nothing
// (F1): plans around it still find their own index.
func TestF1IndexIsLearnedFromReady(t *testing.T) {
	r := newRig(t, 1, 2, 3)
	r.elect()
	change := &pb.ConfChange{Type: pb.ConfChangeAddLearnerNode.Enum(), NodeId: new(uint64(4))}
	a := r.call(true)
	r.turn()
	for range 2 {
		if err := r.c.rn.ProposeConfChange(change); err != nil {
			t.Fatal(err)
		}
	}
	b := r.call(true)
	r.turn()
	if n := len(r.c.inflight); n != 2 || r.c.inflight[1].index != r.c.inflight[0].index+3 {
		t.Fatalf("in flight: %+v", r.c.inflight)
	}
	r.settle()
	r.ack(2)
	r.want(a, "ok")
	r.want(b, "ok")
	if len(r.confs) != 1 || len(r.confs[0].Learners) != 1 {
		t.Fatalf("membership saved: %v", r.confs)
	}
}

func TestF2NothingIsPlannedDuringATransfer(t *testing.T) {
	r := newRig(t, 1, 2, 3)
	r.elect()
	r.c.rn.TransferLeader(3)
	c := r.call(true)
	plans := r.m.plans
	r.turn()
	if r.m.plans != plans {
		t.Fatal("planned while raft refuses proposals")
	}
	for range r.c.cfg.ElectionTicks + 1 { // raft gives the transfer up; the followers stay in touch
		r.tick(1)
		r.from(2, pb.MsgHeartbeatResp)
	}
	r.settle()
	r.ack(2)
	r.want(c, "ok")
	if r.c.dead != nil {
		t.Fatal(r.c.dead)
	}
}

// A refused proposal is an abandoned future: the state holds effects that are
// in no log, so nothing is planned or answered on it any more (F2, B10).
func TestF2RefusedProposalEndsTheGroup(t *testing.T) {
	r := newRig(t, 1, 2, 3)
	r.elect()
	before := r.call(true)
	r.turn()
	// raft refuses whatever a leader proposes that is no member any more.
	r.c.rn.ApplyConfChange(&pb.ConfChange{Type: pb.ConfChangeRemoveNode.Enum(), NodeId: new(uint64(1))})
	refused := r.call(true)
	r.turn()
	r.want(refused, "abandoned")
	if !errors.Is(r.fatal, ErrAbandoned) || !errors.Is(r.fatal, raft.ErrProposalDropped) {
		t.Fatalf("fatal: %v", r.fatal)
	}
	plans := r.m.plans
	after := r.call(true)
	read := r.call(false)
	for len(r.writes) > 0 {
		r.complete(1)
	}
	r.ack(2)
	r.tick(20)
	r.want(before, "waiting")
	r.want(after, "waiting")
	r.want(read, "waiting")
	if r.m.plans != plans {
		t.Fatal("planned on an abandoned future")
	}
}

// After the leadership is lost raft may still decide the planned entries as
// they were planned: then they are answered, and not applied a second time (F7).
func TestF7CarriedOverEntriesAreAnsweredNotApplied(t *testing.T) {
	r := newRig(t, 1, 2, 3)
	r.elect()
	c := r.call(true)
	r.turn()
	r.settle()
	r.want(c, "waiting")
	at, prev := r.lastIndex(), r.c.term
	r.from(2, pb.MsgHeartbeat, inTerm(5))
	r.settle()
	r.from(2, pb.MsgApp, inTerm(5), atIndex(at), func(m *pb.Message) {
		m.LogTerm, m.Commit = new(prev), new(at)
	})
	r.settle()
	r.want(c, "ok")
	if len(r.m.applied) != 0 {
		t.Fatalf("applied again: %v", r.m.applied)
	}
	if r.c.dead != nil {
		t.Fatal(r.c.dead)
	}
}

func TestF7OverruledEntryIsAnAbandonedFuture(t *testing.T) {
	r := newRig(t, 1, 2, 3)
	r.elect()
	c := r.call(true)
	r.turn()
	r.settle()
	at, prev := r.lastIndex(), r.c.term
	r.from(2, pb.MsgApp, inTerm(5), atIndex(at-1), func(m *pb.Message) {
		m.LogTerm, m.Commit = new(prev), new(at)
		m.Entries = []*pb.Entry{{Term: new(uint64(5)), Index: new(at)}}
	})
	r.settle()
	r.want(c, "waiting")
	if !errors.Is(r.fatal, ErrAbandoned) {
		t.Fatalf("fatal: %v", r.fatal)
	}
}

// With entries in flight raft emits a write request for every commit index;
// only those with entries or a changed term or vote may reach the disk (F6).
func TestF6CommitOnlyHardStatesAreNoWrites(t *testing.T) {
	r := leader1(t)
	hards, empty := r.hards, 0
	for range 200 {
		r.call(true)
		r.turn()
		for len(r.writes) > 1 {
			if len(r.writes[0].entries) == 0 {
				empty++
				if r.writes[0].hard {
					t.Fatal("a commit index alone is a hard state to write")
				}
			}
			r.complete(1)
		}
	}
	r.settle()
	if r.hards != hards {
		t.Fatalf("%d hard states written for one term and vote", r.hards-hards)
	}
	if empty == 0 {
		t.Fatal("the case did not occur")
	}
}

func TestF11ReadOfOneVoterIsAnsweredAtOnce(t *testing.T) {
	r := leader1(t)
	c := r.call(false)
	r.turn()
	r.want(c, "ok")
	if len(r.writes) != 0 {
		t.Fatal("a read was written")
	}
}

func TestF11ReadWaitsForEverythingPlannedBefore(t *testing.T) {
	r := leader1(t)
	w := r.call(true)
	r.turn()
	read := r.call(false)
	r.turn()
	r.want(read, "waiting")
	r.complete(1)
	r.want(w, "ok")
	r.want(read, "ok")
}

// A look-up may look for what was planned before it: it is handed out when that
// is there to be read, and at once when nothing is in flight.
func TestLookUpsWaitForWhatWasPlannedBefore(t *testing.T) {
	r := leader1(t)
	r.call(true)
	r.m.prepare = []any{1, 2}
	r.turn()
	if r.looked != 0 {
		t.Fatal("look-ups were handed out before the entry of their cycle was written")
	}
	r.complete(1)
	if r.looked != 2 {
		t.Fatalf("%d look-ups were handed out, want 2", r.looked)
	}
	r.m.prepare, r.m.more = []any{3}, true
	r.call(false)
	r.turn()
	if r.looked != 3 {
		t.Fatalf("%d look-ups were handed out, want 3", r.looked)
	}
}

func TestF11ReadNeedsAConfirmedLeadership(t *testing.T) {
	r := newRig(t, 1, 2, 3)
	r.elect()
	read := r.call(false)
	r.sent = nil
	r.turn()
	r.settle()
	r.want(read, "waiting")
	var ctx []byte
	for _, m := range r.sent {
		if m.GetType() == pb.MsgHeartbeat {
			ctx = m.GetContext()
		}
	}
	if len(ctx) == 0 {
		t.Fatal("no heartbeat asks whether this node still leads")
	}
	// An acknowledgement of an entry says nothing about the read.
	r.ack(2)
	r.want(read, "waiting")
	r.from(2, pb.MsgHeartbeatResp, func(m *pb.Message) { m.Context = ctx })
	r.want(read, "ok")
}

func TestF11UnansweredReadIndexIsAskedAgain(t *testing.T) {
	r := newRig(t, 1, 2, 3)
	r.elect()
	read := r.call(false)
	r.turn()
	seen := make(map[string]bool)
	for range 3 {
		r.sent = nil
		r.tick(1)
		for _, m := range r.sent {
			if m.GetType() == pb.MsgHeartbeat && len(m.GetContext()) > 0 {
				seen[string(m.GetContext())] = true
			}
		}
	}
	if len(seen) < 2 {
		t.Fatalf("%d contexts asked", len(seen))
	}
	r.want(read, "waiting")
}

func TestF11DeposedLeaderFailsItsReads(t *testing.T) {
	r := newRig(t, 1, 2, 3)
	r.elect()
	read := r.call(false)
	r.turn()
	r.from(3, pb.MsgHeartbeat, inTerm(7))
	r.want(read, "not leader")
}

func TestPadFollowsAQuietSecondOnce(t *testing.T) {
	r := leader1(t)
	r.settle()
	r.call(true)
	r.settle()
	r.tick(9)
	if len(r.pads) != 0 {
		t.Fatal("a pad within the second")
	}
	r.tick(30)
	if len(r.pads) != 1 {
		t.Fatalf("%d pads, want 1", len(r.pads))
	}
	r.call(true)
	r.settle()
	r.tick(30)
	if len(r.pads) != 2 {
		t.Fatalf("%d pads, want 2", len(r.pads))
	}
}

func TestPlanTimesRiseWhateverTheClocksDo(t *testing.T) {
	r := leader1(t)
	for range 50 {
		r.call(true)
		r.c.turn(r.now) // the clock stands still
		r.settle()
	}
	r.now.Wall -= 3_600_000_000
	r.call(true)
	r.settle()
	for i := 1; i < len(r.m.nows); i++ {
		if r.m.nows[i] < r.m.nows[i-1] {
			t.Fatalf("plan %d at %d, after %d", i, r.m.nows[i], r.m.nows[i-1])
		}
	}
}

func TestWakeRunsTheMachineWithoutCalls(t *testing.T) {
	r := leader1(t)
	r.m.wake = r.c.brokerNow() + 500_000
	r.call(false)
	r.turn()
	plans := r.m.plans
	r.tick(4)
	if r.m.plans != plans {
		t.Fatal("woken early")
	}
	r.tick(2)
	if r.m.plans != plans+1 {
		t.Fatalf("%d plans at the wake time", r.m.plans-plans)
	}
}

func TestStopPlansWhatIsQueuedAndWaitsForIt(t *testing.T) {
	r := leader1(t)
	a, b := r.call(true), r.call(false)
	r.c.stopping = true
	r.turn()
	if r.c.stopped() {
		t.Fatal("stopped with work in flight")
	}
	r.settle()
	r.want(a, "ok")
	r.want(b, "ok")
	if r.c.stopped() || len(r.rows.finished) != 1 {
		t.Fatalf("stopped %v, %d checkpoints: a clean stop ends with one", r.c.stopped(), len(r.rows.finished))
	}
	r.c.checkpointDone(r.rows.finished[0])
	r.turn()
	if !r.c.stopped() {
		t.Fatal("not stopped after the last checkpoint")
	}
	if f := r.rows.finished[0]; f.From != r.c.applied {
		t.Fatalf("the footer's from is %d, applied is %d: the next start would replay", f.From, r.c.applied)
	}
}

func TestStopPlansWhatTheMachineHasLeftOver(t *testing.T) {
	r := leader1(t)
	r.call(true)
	r.m.more = true
	r.c.turn(r.now)
	r.m.more = true
	r.c.stopping = true
	plans := r.m.plans
	r.settle()
	if r.m.plans < plans+1 {
		t.Fatal("a full cycle's rest was not planned")
	}
}

func TestBrokerTime(t *testing.T) {
	hour := int64(time.Hour)
	var b brokerTime
	b.start(Times{Mono: 0, Wall: 1_000_000}, 5_000_001)
	if got := b.at(Times{Mono: 0, Wall: 1_000_000}); got != 5_000_001 {
		t.Fatalf("starts at %d, want just above the newest entry", got)
	}
	// The wall clock is far behind: broker time runs 1% slow, and never back.
	got := b.at(Times{Mono: hour, Wall: 1_000_000})
	if want := 5_000_001 + hour/1000*99/100; got != want {
		t.Fatalf("after an hour: %d, want %d", got, want)
	}
	// The wall clock jumped a day ahead: 1% fast.
	got2 := b.at(Times{Mono: 2 * hour, Wall: got + 86_400_000_000})
	if want := got + hour/1000*101/100; got2 != want {
		t.Fatalf("after two hours: %d, want %d", got2, want)
	}
	// Mono that stands still or goes back changes nothing.
	if b.at(Times{Mono: hour}) != got2 {
		t.Fatal("time moved without the monotonic clock")
	}
	// Close to the wall clock it settles there.
	wall := got2 + hour/1000 + 10
	if got := b.at(Times{Mono: 3 * hour, Wall: wall}); got != wall {
		t.Fatalf("settles at %d, want %d", got, wall)
	}
}

// BenchmarkCycle is the core's own cost for an entry with one call: plan,
// propose, hand over, commit, answer.
func BenchmarkCycle(b *testing.B) {
	r := leader1(b)
	b.ReportAllocs()
	for range b.N {
		r.c.submit([]any{&rigCall{effects: true}})
		r.turn()
		for len(r.writes) > 0 {
			r.complete(1)
		}
		r.m.nows = r.m.nows[:0]
	}
}
