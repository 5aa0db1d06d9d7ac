package raftlog

import (
	"fmt"
	"log/slog"
	"time"

	"go.etcd.io/raft/v3"
	pb "go.etcd.io/raft/v3/raftpb"
	"go.etcd.io/raft/v3/tracker"
)

// This file is about who leads: when planning begins and ends, what becomes of
// calls that are for another node, and how leadership is given away.

// maybeLead begins to plan once an entry of this term has been applied: then
// everything carried over from earlier terms has been, too, and what this node
// planned before is decided.
func (c *core) maybeLead() {
	if !c.isLeader || c.leading || c.appliedTerm != c.term || c.reread != nil || len(c.inflight) > 0 || c.dead != nil {
		return
	}
	c.leading = true
	c.leadTerm = c.term
	c.lastTime = max(c.lastTime, c.m.Time())
	if !c.clock.started {
		c.clock.start(c.now, c.takeoverTime())
	}
	c.ckpt.led = true // from here on the state runs ahead of commit
	c.m.Lead(c.term)
	c.more = true // the machine may owe work since before
	c.cfg.Logger.Info("leading", slog.Uint64("term", c.term), slog.Uint64("index", c.applied))
}

// follow ends planning. What is in flight keeps its waiters: raft may still
// decide it as it was planned (F7). The clock becomes a note like any other.
func (c *core) follow(why string) {
	c.leading = false
	c.m.Follow()
	c.failReads(ErrNotLeader)
	c.dropCheckpoint(why)
	if c.clock.started && !c.conf.OnlyVoter(c.cfg.NodeID) {
		c.note = timeNote{micros: c.clock.at(c.now), mono: c.now.Mono, term: c.leadTerm}
		c.clock.started = false
	}
}

// passOn refuses the calls that wait here although another node leads. While
// nobody is known to lead they wait: it may be this node in a moment.
func (c *core) passOn() {
	if len(c.calls) == 0 || c.leading || c.ports.refuse == nil || c.dead != nil {
		return
	}
	if c.stopping || c.retreat.leaving || c.lead != raft.None && c.lead != c.cfg.NodeID {
		calls := c.calls
		c.calls = nil
		c.ports.refuse(calls, ErrNotLeader)
	}
}

// retreat is leadership on its way to another node.
type retreat struct {
	// leaving: this node stops, and plans nothing any more.
	leaving bool
	to      uint64       // the voter to hand over to; 0: the one with most of the log
	done    []func(bool) // told when the leadership is gone, or not to be given away
	until   int64        // monotonic time at which it is given up; 0: never
	// stuck: the disk has not answered for an election timeout (F17).
	stuck bool
}

// active reports whether nothing may be planned because leadership is to go.
func (r *retreat) active() bool { return r.leaving || r.stuck || len(r.done) > 0 }

// handOver gives leadership to another voter: nothing is planned from here on,
// what is in flight is waited for, and then raft is asked (F2). done hears
// whether the leadership has gone.
func (c *core) handOver(to uint64, leaving bool, patience time.Duration, done func(gone bool)) {
	if !c.isLeader || c.dead != nil || c.bestVoter() == raft.None {
		c.retreat.leaving = leaving && !c.isLeader
		done(!c.isLeader)
		return
	}
	c.retreat.leaving = leaving
	c.retreat.to, c.retreat.until = to, c.now.Mono+int64(patience)
	c.retreat.done = append(c.retreat.done, done)
	c.pushLeadership()
}

// watchLeadership looks, each tick, whether this node should go on leading.
func (c *core) watchLeadership() {
	if !c.isLeader {
		c.retreat.stuck = false
		c.retreated(true)
		return
	}
	if len(c.retreat.done) > 0 && c.now.Mono >= c.retreat.until {
		c.retreated(false)
	}
	if oldest := c.oldestWrite(); oldest == 0 || c.now.Mono-oldest < int64(c.cfg.electionTimeout()) {
		c.retreat.stuck = false
	} else if !c.retreat.stuck && c.bestVoter() != raft.None {
		// raft alone would let a node lead whose disk has stopped: its followers
		// acknowledge, and nothing is ever answered (F17).
		c.retreat.stuck = true
		c.cfg.Logger.Warn("the disk does not answer: leadership is given away", slog.Duration("waiting", time.Duration(c.now.Mono-oldest)))
	}
	c.pushLeadership()
}

// pushLeadership asks raft for the transfer that is due, again when it has
// given one up. A node whose state is being read again cannot lead (F7).
func (c *core) pushLeadership() {
	if !c.isLeader || c.dead != nil || !(c.retreat.active() || c.reread != nil) {
		return
	}
	if len(c.inflight) > 0 && !c.retreat.stuck && c.reread == nil {
		return
	}
	if c.rn.BasicStatus().LeadTransferee != raft.None {
		return
	}
	to := c.retreat.to
	if to == raft.None {
		to = c.bestVoter()
	}
	if to != raft.None && to != c.cfg.NodeID {
		c.rn.TransferLeader(to)
	}
}

func (c *core) retreated(gone bool) {
	done := c.retreat.done
	c.retreat.done, c.retreat.to = nil, 0
	if !gone {
		c.retreat.leaving = false
	}
	for _, fn := range done {
		fn(gone)
	}
}

// bestVoter is the other voter that was heard of lately and has most of the log.
func (c *core) bestVoter() (best uint64) {
	var match uint64
	c.rn.WithProgress(func(id uint64, typ raft.ProgressType, pr tracker.Progress) {
		if typ != raft.ProgressTypePeer || id == c.cfg.NodeID || !c.peers.heardWithin(id, c.now.Mono, c.cfg.electionTimeout()) {
			return
		}
		if best == raft.None || pr.Match > match {
			best, match = id, pr.Match
		}
	})
	return best
}

// reread is the state on its way back from the disk (F7): what was planned here
// is not what raft decided. Votes and appends go on meanwhile; what raft hands
// out for application is held.
type reread struct {
	held []*pb.Message
}

// handedOut takes committed entries from raft.
func (c *core) handedOut(m *pb.Message) {
	if c.reread != nil {
		c.reread.held = append(c.reread.held, m)
		return
	}
	c.apply(m)
}

// overruled is told that raft decided an index for somebody else's entry while
// this machine's state holds the effects of its own. That plan and all after it
// are in no log: they are answered as abandoned, and the state is read again.
func (c *core) overruled(index, term uint64) error {
	cause := fmt.Errorf("entry %d was planned here in term %d and decided in term %d: the state holds effects that are in no log, restart to read it again: %w",
		index, c.inflight[0].term, term, ErrAbandoned)
	if c.ports.reread == nil {
		return cause
	}
	lost := c.inflight
	c.inflight, c.inflightLen = nil, 0
	c.releasedSeq = c.planSeq
	c.readAgain(cause)
	for _, p := range lost {
		if p.answer != nil {
			p.answer(ErrAbandoned)
		}
	}
	return nil
}

// readAgain drops the state and has it read again from the disk as of the
// newest applied entry. What is in flight still may commit, and is applied then
// like an entry of another node.
func (c *core) readAgain(cause error) {
	c.cfg.Logger.Warn("the state is read again: what was planned here is not what was decided", slog.Any("cause", cause), slog.Uint64("applied", c.applied))
	if c.leading {
		c.follow("the state is read again")
	}
	c.ckpt.led = true
	c.dropCheckpoint("the state is read again")
	for i := range c.inflight {
		c.inflight[i].lost = true
	}
	c.refuseLooks()
	if c.reread == nil {
		c.reread = &reread{}
		c.ports.reread(c.applied)
	}
}

// refuseLooks gives back the calls whose look-ups wait for plans that are gone.
func (c *core) refuseLooks() {
	looks := c.looks
	c.looks = nil
	for _, l := range looks {
		if c.ports.refuse != nil {
			c.ports.refuse(l.calls, ErrAbandoned)
		} else {
			c.calls = append(c.calls, l.calls...)
		}
	}
}

// rereadDone takes the machine that was read again, and applies what was held.
func (c *core) rereadDone(m Machine) {
	r := c.reread
	if r == nil || c.dead != nil {
		return
	}
	c.reread = nil
	c.m = m
	c.lastTime = max(c.lastTime, m.Time())
	c.ckpt.bytes++ // what was replayed is worth a checkpoint
	c.cfg.Logger.Info("the state was read again", slog.Uint64("applied", c.applied), slog.Int("held", len(r.held)))
	for i, held := range r.held {
		if c.reread != nil { // overruled once more
			c.reread.held = append(c.reread.held, r.held[i:]...)
			return
		}
		c.apply(held)
	}
	c.maybeLead()
}
