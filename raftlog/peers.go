package raftlog

import (
	"time"

	"go.etcd.io/raft/v3"
	pb "go.etcd.io/raft/v3/raftpb"
	"go.etcd.io/raft/v3/tracker"
)

// Parcel is messages of raft on their way between two nodes, with what the
// sender knows beside them.
type Parcel struct {
	Messages []*pb.Message
	// Time is a broker time, in microseconds, that has been reached by the clock of
	// the leader of TimeTerm; 0: not known.
	Time     int64
	TimeTerm uint64
	// Commit is the sender's commit index.
	Commit uint64
	// Keep is, from a leader, the first index that some follower may still ask
	// for; 0: not from a leader, or not known.
	Keep uint64
}

// KeptLog is what of the log stays readable below a checkpoint, for followers.
type KeptLog struct {
	First uint64    // of the entries that raft may ask for
	From  uint64    // the checkpoint's from
	Runs  []TermRun // terms from First-1 to From
}

// peers is what this node has heard of the others.
type peers struct {
	heard  map[uint64]int64 // monotonic time of the last message, by id
	commit uint64           // highest commit index that one told of
	keep   uint64           // first index that some follower may still ask for; 0: not known
	since  int64            // monotonic time at which this node became leader
}

func (p *peers) heardWithin(id uint64, now int64, d time.Duration) bool {
	at, ok := p.heard[id]
	return ok && now-at < int64(d)
}

// track notes that a peer was heard of.
func (c *core) track(m *pb.Message) {
	if from := m.GetFrom(); from != raft.None && from != c.cfg.NodeID {
		if c.peers.heard == nil {
			c.peers.heard = make(map[uint64]int64)
		}
		c.peers.heard[from] = c.now.Mono
	}
}

// received takes a parcel that came at monotonic time at.
func (c *core) received(p *Parcel, at int64) {
	if c.dead != nil {
		return
	}
	c.note.take(p.Time, p.TimeTerm, at)
	c.peers.commit = max(c.peers.commit, p.Commit)
	if p.Keep != 0 {
		c.peers.keep = p.Keep
	}
	for _, m := range p.Messages {
		c.step(m)
	}
}

// watchFollowers finds out, on a leader, how far back its followers are. One
// that was not heard of for the hold is not waited for: it will need a snapshot.
func (c *core) watchFollowers() {
	if !c.isLeader {
		c.peers.since = 0
		return
	}
	if c.peers.since == 0 {
		c.peers.since = c.now.Mono
	}
	keep := c.log.last + 1
	c.rn.WithProgress(func(id uint64, _ raft.ProgressType, pr tracker.Progress) {
		if id == c.cfg.NodeID {
			return
		}
		heard := max(c.peers.heard[id], c.peers.since)
		if c.now.Mono-heard < int64(c.cfg.PurgeHold) {
			keep = min(keep, pr.Match+1)
		}
	})
	c.peers.keep = keep
}

// keepFrom is the first index that the log keeps once a checkpoint from from is
// durable: raft's first index follows the checkpoint, held back for followers.
func (c *core) keepFrom(from uint64) uint64 {
	if c.conf.OnlyVoter(c.cfg.NodeID) && len(c.conf.Learners) == 0 {
		return from + 1
	}
	if c.peers.keep == 0 { // nobody has told yet
		return c.log.first
	}
	return max(c.log.first, min(from+1, c.peers.keep))
}

// readAheadForFollowers asks for the entries that raft did not find in memory.
func (c *core) readAheadForFollowers() {
	if len(c.log.missed) == 0 {
		return
	}
	for _, from := range c.log.missed {
		if c.ports.readAhead != nil {
			c.ports.readAhead(from, c.applied)
		}
	}
	c.log.missed = c.log.missed[:0]
}
