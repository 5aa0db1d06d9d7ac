package raftlog

import (
	"testing"

	"go.etcd.io/raft/v3"
	pb "go.etcd.io/raft/v3/raftpb"
)

// F5: the footer is written when raft has handed out entry to for application,
// and its from is what was applied when the capture began, not what was planned.
func TestF5FooterWaitsForTo(t *testing.T) {
	r := leader1(t)
	r.call(true)
	r.settle()
	from := r.c.applied
	r.call(true)
	r.turn() // in flight: in the state, not committed
	r.m.captureRows = 3
	r.c.ckpt.bytes = r.c.cfg.CheckpointBytes
	r.turn()
	r.call(true)
	r.turn()
	if r.rows.rows != 3 || len(r.rows.finished) != 0 {
		t.Fatalf("%d rows, %d footers while entry %d is in flight", r.rows.rows, len(r.rows.finished), r.c.inflight[0].index)
	}
	if got := r.c.ckpt.next; got.From != from || got.To != from+1 {
		t.Fatalf("footer %+v, want from %d to %d", got, from, from+1)
	}
	for r.c.applied <= from {
		if len(r.rows.finished) != 0 {
			t.Fatal("a footer before its last entry was applied")
		}
		r.complete(1)
	}
	if len(r.rows.finished) != 1 {
		t.Fatal("no footer after its last entry was applied")
	}
	if first, _ := r.c.log.FirstIndex(); first != 1 {
		t.Fatalf("first index %d before the footer is durable", first)
	}
	r.c.checkpointDone(r.rows.finished[0])
	if first, _ := r.c.log.FirstIndex(); first != from+1 {
		t.Fatalf("first index %d, want the footer's from + 1, %d", first, from+1)
	}
	if term, err := r.c.log.Term(from); err != nil || term != 1 {
		t.Fatalf("term of the entry before the first: %d, %v", term, err)
	}
	if len(r.m.ended) != 1 || !r.m.ended[0] {
		t.Fatalf("EndCapture: %v", r.m.ended)
	}
}

// F5: a node that stops leading gives its capture up, while rows are emitted
// and while it waits for the last entry; the same index may commit otherwise.
func TestF5LostLeadershipGivesTheCaptureUp(t *testing.T) {
	for _, rows := range []int{3, 1 << 20} {
		r := newRig(t, 1, 2, 3)
		r.elect()
		r.call(true)
		r.turn()
		r.m.captureRows = rows
		r.c.ckpt.bytes = r.c.cfg.CheckpointBytes
		r.c.turn(r.now)
		if r.rows.begun != 1 {
			t.Fatal("no capture began")
		}
		r.from(3, pb.MsgHeartbeat, inTerm(9))
		r.settle()
		if r.rows.abandoned != 1 || len(r.rows.finished) != 0 || len(r.m.ended) != 1 || r.m.ended[0] {
			t.Fatalf("rows=%d: abandoned %d, finished %d, ended %v", rows, r.rows.abandoned, len(r.rows.finished), r.m.ended)
		}
		if r.c.ckpt.phase != ckptIdle {
			t.Fatalf("phase %d", r.c.ckpt.phase)
		}
	}
}

// A capture that began on a follower and ran on into a leadership holds
// effects of that leadership.
func TestF5CaptureAcrossAnElection(t *testing.T) {
	r := newRig(t, 1, 2, 3)
	r.m.captureRows = 1 << 20
	r.c.ckpt.bytes = r.c.cfg.CheckpointBytes
	r.c.turn(r.now)
	if r.rows.begun != 1 || r.c.ckpt.led {
		t.Fatal("no capture on a follower")
	}
	r.m.captureRows = 1 << 20
	for range 3 {
		r.c.turn(r.now)
	}
	r.c.ckpt.backlog = maxRowBacklog + 1 // it stays unfinished through the election
	r.elect()
	r.from(3, pb.MsgHeartbeat, inTerm(9))
	if r.rows.abandoned != 1 {
		t.Fatal("the capture was kept after the leadership was lost")
	}
}

// The footer waits for the membership, too: a start that begins behind the
// change would not see it again.
func TestCheckpointWaitsForTheMembership(t *testing.T) {
	r := leader1(t)
	change := &pb.ConfChange{Type: pb.ConfChangeAddLearnerNode.Enum(), NodeId: new(uint64(2))}
	if err := r.c.rn.ProposeConfChange(change); err != nil {
		t.Fatal(err)
	}
	r.settle()
	r.c.ckpt.bytes = r.c.cfg.CheckpointBytes
	r.turn()
	if len(r.rows.finished) != 0 {
		t.Fatal("a footer before the membership was saved")
	}
	r.c.confSaved = r.c.confIndex
	r.turn()
	if len(r.rows.finished) != 1 {
		t.Fatal("no footer after the membership was saved")
	}
}

func TestCheckpointPausesForTheRowsWriter(t *testing.T) {
	r := leader1(t)
	r.m.captureRows = 1 << 30
	r.c.ckpt.bytes = r.c.cfg.CheckpointBytes
	r.turn()
	if r.c.ckpt.backlog <= maxRowBacklog || r.c.ckpt.phase != ckptEmitting {
		t.Fatalf("backlog %d, phase %d", r.c.ckpt.backlog, r.c.ckpt.phase)
	}
	emitted := r.rows.rows
	r.turn()
	if r.rows.rows != emitted {
		t.Fatal("rows emitted into a full backlog")
	}
	r.m.captureRows = 10
	for _, n := range r.rows.pending {
		r.c.rowsWritten(n)
	}
	r.turn()
	if len(r.rows.finished) != 1 {
		t.Fatal("the capture does not go on")
	}
}

// Entries carried over from an earlier term are applied before the machine is
// told to lead: it plans on everything that was decided.
func TestCarriedOverEntriesAreAppliedBeforeLead(t *testing.T) {
	data := (&rigBuilder{}).data(7)
	r := newRigAt(t, coreStart{
		state: State{Term: 1, Conf: Membership{Voters: []uint64{1, 2, 3}}}, first: 1, runs: []TermRun{{}, {First: 1, Term: 1}}, last: 2,
		ents: []*pb.Entry{
			{Term: new(uint64(1)), Index: new(uint64(1)), Data: data},
			{Term: new(uint64(1)), Index: new(uint64(2)), Data: data},
		},
	})
	r.elect()
	if len(r.m.applied) != 2 || r.m.lateApplies != 0 {
		t.Fatalf("applied %v, %d of them after Lead", r.m.applied, r.m.lateApplies)
	}
}

// memLog: what raft asks of its Storage (F18).
func TestF18StorageReadsNoFile(t *testing.T) {
	l, err := newMemLog(nil, nil, 11, 14, []TermRun{{10, 2}, {13, 3}}, entries(13, 3, 2))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		i    uint64
		term uint64
		err  error
	}{{9, 0, raft.ErrCompacted}, {10, 2, nil}, {12, 2, nil}, {13, 3, nil}, {14, 3, nil}, {15, 0, raft.ErrUnavailable}} {
		if term, err := l.Term(c.i); term != c.term || err != c.err {
			t.Errorf("Term(%d) = %d, %v", c.i, term, err)
		}
	}
	if _, err := l.Entries(12, 14, 1<<20); err != raft.ErrCompacted {
		t.Errorf("an entry that is not in memory: %v, want ErrCompacted", err)
	}
	if _, err := l.Entries(13, 16, 1<<20); err != raft.ErrUnavailable {
		t.Errorf("an entry beyond the end: %v", err)
	}
	if _, err := l.Snapshot(); err != raft.ErrSnapshotTemporarilyUnavailable {
		t.Errorf("Snapshot: %v", err)
	}
	if ents, err := l.Entries(13, 15, 1); err != nil || len(ents) != 1 {
		t.Errorf("a limit below one entry: %d entries, %v", len(ents), err)
	}
	l.append(entries(14, 5, 3)) // a conflicting tail
	if term, _ := l.Term(14); term != 5 || l.last != 16 {
		t.Errorf("after a conflict: term %d, last %d", term, l.last)
	}
	l.release(14)
	if ents, err := l.Entries(15, 17, 1<<20); err != nil || len(ents) != 2 {
		t.Errorf("above the applied index: %d entries, %v", len(ents), err)
	}
	if _, err := l.Entries(14, 15, 1<<20); err != raft.ErrCompacted {
		t.Errorf("an applied entry: %v", err)
	}
	l.compact(14)
	if first, _ := l.FirstIndex(); first != 15 {
		t.Errorf("first index %d", first)
	}
	if term, err := l.Term(14); term != 5 || err != nil {
		t.Errorf("term before the first index: %d, %v", term, err)
	}
	l.release(16)
	l.append(entries(17, 5, 1))
	if ents, err := l.Entries(17, 18, 1<<20); err != nil || len(ents) != 1 || len(l.runs) != 1 {
		t.Errorf("%d entries, %v, runs %v", len(ents), err, l.runs)
	}
}

// A follower far behind gets no snapshot and no entry that is not in memory;
// the leader goes on (F18).
func TestF18LaggingFollowerDoesNotStopTheLeader(t *testing.T) {
	r := newRig(t, 1, 2, 3)
	r.c.log.window = 0
	r.elect()
	for range 20 {
		r.call(true)
		r.turn()
		r.settle()
		r.ack(2)
	}
	r.sent = nil
	r.from(3, pb.MsgAppResp, atIndex(0), func(m *pb.Message) { m.Reject, m.RejectHint = new(true), new(uint64(0)) })
	r.tick(5)
	for _, m := range r.sent {
		if m.GetType() == pb.MsgSnap || len(m.GetEntries()) > 0 && m.GetTo() == 3 {
			t.Fatalf("sent to the lagging follower: %v", m)
		}
	}
	c := r.call(true)
	r.turn()
	r.settle()
	r.ack(2)
	r.want(c, "ok")
}

func entries(first, term uint64, n int) (out []*pb.Entry) {
	for i := range uint64(n) {
		out = append(out, &pb.Entry{Index: new(first + i), Term: new(term), Data: []byte("x")})
	}
	return out
}
