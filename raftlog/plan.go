package raftlog

import (
	"encoding/binary"
	"fmt"

	"go.etcd.io/raft/v3"
	pb "go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"queen/internal/plant"
)

// This file is the planning half of the core: when a cycle may run, what
// happens to its outcome, and when its answers are true.

// mayPlan is the condition of F1 and F2: nothing is planned that raft could
// refuse, and what is in flight is bounded here, because raft's own limit
// refuses proposals.
func (c *core) mayPlan() bool {
	if plant.Is(plant.RefusedProposal) {
		return c.leading && c.dead == nil && len(c.inflight) < c.cfg.MaxInFlight
	}
	if !c.leading || c.dead != nil || c.retreat.active() {
		return false
	}
	if len(c.inflight) >= c.cfg.MaxInFlight || c.inflightLen >= c.cfg.MaxInFlightBytes {
		return false
	}
	s := c.rn.BasicStatus()
	return s.RaftState == raft.StateLeader && s.GetTerm() == c.leadTerm && s.LeadTransferee == raft.None
}

// wantsPlan reports whether there is something to plan now.
func (c *core) wantsPlan() bool { return c.hasWork() && c.mayPlan() }

// hasWork reports whether a cycle is worth running. While an entry is in flight
// the next one is only planned early when as many calls have gathered as that
// one has: it could not be written before, and what comes until then shares it.
// Planning it at the first call would make entries small and fsyncs many;
// planning it never before the commit would leave the disk idle while the loop
// plans.
func (c *core) hasWork() bool {
	if n := len(c.inflight); n > 0 && !c.more && len(c.calls) > 0 && len(c.calls) < c.inflight[n-1].calls {
		return false
	}
	if c.stopping { // what the machine has left over from full cycles is work; what becomes due is not
		return len(c.calls) > 0 || c.more
	}
	return len(c.calls) > 0 || c.more || c.wake != 0 && c.clock.started && c.clock.at(c.now) >= c.wake
}

// planAll runs cycles while there is work and room. It reports whether it ran one.
func (c *core) planAll() (ran bool) {
	for c.hasWork() && c.mayPlan() {
		c.planOnce()
		c.ready()
		ran = true
		if c.more && len(c.calls) == 0 {
			break // the machine asks for another cycle: let the loop breathe first
		}
	}
	return ran
}

func (c *core) planOnce() {
	n := min(len(c.calls), c.cfg.MaxCycleCalls)
	batch := c.calls[:n:n]
	c.calls = c.calls[n:]
	if len(c.calls) == 0 {
		c.calls = nil
	}
	now := max(c.clock.at(c.now), c.lastTime+1)
	p := c.m.Plan(now, batch)
	c.wake, c.more = p.Wake, p.More
	if p.Now != nil {
		p.Now()
	}
	if p.SealThrough != 0 {
		c.ports.sealBefore(p.SealThrough)
	}
	switch {
	case p.Data != nil:
		c.lastTime = now
		c.propose(p, n)
	case p.Answer != nil:
		c.reads = append(c.reads, readWait{after: c.planSeq, ask: c.nextRead, confirmed: plant.Is(plant.StaleRead), answer: p.Answer})
		c.askRead()
	}
	if len(p.Prepare) > 0 {
		c.looks = append(c.looks, lookWait{after: c.planSeq, calls: p.Prepare})
	}
}

// lookWait is calls that need something from the disk. What was planned before
// them may be what they look for, so they wait until it is there to be read.
type lookWait struct {
	after uint64 // planSeq
	calls []any
}

// releaseLooks hands out the look-ups whose predecessors are written.
func (c *core) releaseLooks() {
	for len(c.looks) > 0 && c.looks[0].after <= c.releasedSeq && c.dead == nil {
		c.ports.prepare(c.looks[0].calls)
		c.looks[0] = lookWait{}
		if c.looks = c.looks[1:]; len(c.looks) == 0 {
			c.looks = nil
		}
	}
}

// propose gives a plan to raft in the turn that made it. If raft refuses all
// the same, everything planned from it on is an abandoned future, although the
// node still leads (F2).
func (c *core) propose(p Plan, calls int) {
	c.planSeq++
	if err := c.rn.Propose(p.Data); err != nil {
		if p.Answer != nil {
			p.Answer(ErrAbandoned)
		}
		cause := fmt.Errorf("raft refused a proposal in term %d: the state holds effects that are in no log, restart to read it again: %w: %w", c.term, ErrAbandoned, err)
		if plant.Is(plant.RefusedProposal) {
			c.planSeq--
			return
		}
		if c.ports.reread == nil {
			c.fail(cause)
			return
		}
		c.planSeq--
		c.readAgain(cause)
		return
	}
	c.unmatched = append(c.unmatched, planned{seq: c.planSeq, term: c.leadTerm, calls: calls, size: len(p.Data), answer: p.Answer})
	c.inflightLen += int64(len(p.Data))
	c.ckpt.bytes += int64(len(p.Data))
}

// askRead asks raft to confirm the leadership for every read judged so far.
func (c *core) askRead() {
	ctx := binary.LittleEndian.AppendUint64(nil, c.nextRead)
	c.nextRead++
	c.rn.ReadIndex(ctx)
}

// askAgain repeats an unanswered ReadIndex under a new context: raft drops
// them silently (F11).
func (c *core) askAgain() {
	for i := range c.reads {
		if !c.reads[i].confirmed {
			if c.leading {
				c.askRead()
			}
			return
		}
	}
}

// confirm takes a ReadState: it confirms every read judged before it was asked.
func (c *core) confirm(rs raft.ReadState) {
	if len(rs.RequestCtx) != 8 {
		return
	}
	ctx := binary.LittleEndian.Uint64(rs.RequestCtx)
	for i := range c.reads {
		if r := &c.reads[i]; !r.confirmed && r.ask <= ctx {
			r.confirmed, r.index = true, rs.Index
		}
	}
}

// releaseReads answers the reads that have become true, in order.
func (c *core) releaseReads() {
	n := 0
	for n < len(c.reads) {
		r := &c.reads[n]
		if !r.confirmed || r.after > c.releasedSeq || r.index > c.applied || c.dead != nil {
			break
		}
		r.answer(nil)
		n++
	}
	if n > 0 {
		clear(c.reads[:n])
		if c.reads = c.reads[n:]; len(c.reads) == 0 {
			c.reads = nil
		}
	}
}

// failReads ends the reads of a leadership that is over: they had no effects.
func (c *core) failReads(err error) {
	reads := c.reads
	c.reads = nil
	for _, r := range reads {
		r.answer(err)
	}
}

// idle reports whether nothing is queued, in flight or unanswered.
func (c *core) idle() bool {
	return len(c.calls) == 0 && !c.more && len(c.inflight) == 0 && len(c.unmatched) == 0 && len(c.reads) == 0
}

func unmarshalConf(e *pb.Entry) (pb.ConfChangeI, error) {
	var err error
	if e.GetType() == pb.EntryConfChange {
		cc := &pb.ConfChange{}
		if err = proto.Unmarshal(e.GetData(), cc); err == nil {
			return cc, nil
		}
	} else {
		cc := &pb.ConfChangeV2{}
		if err = proto.Unmarshal(e.GetData(), cc); err == nil {
			return cc, nil
		}
	}
	return nil, fmt.Errorf("entry %d: membership change does not parse: %w", e.GetIndex(), err)
}
