package raftlog

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"sync/atomic"
	"time"
)

// Status is a look at a group from outside the loop. Its numbers were read one
// by one: they are each right, and not of one instant.
type Status struct {
	NodeID        uint64
	Leader        bool   // leads and plans
	Lead          uint64 // who leads, as far as this node knows; 0: nobody is known to
	Voters        int
	PeerCommit    uint64 // highest commit index that a peer told of
	StateTime     int64  // broker time of the newest entry that the state holds, microseconds
	Term          uint64
	Commit        uint64
	Applied       uint64
	Durable       uint64 // newest entry that is durable here
	InFlight      int    // entries planned and not answered
	InFlightBytes int64
	BrokerTime    int64 // microseconds, at the last turn

	Syncs        uint64 // fdatasync and syncfs calls of the log writer
	SyncSeconds  float64
	BytesWritten uint64 // of records
	Entries      uint64 // written by this process

	UnsealedBytes  int64
	LogBytes       int64 // of all segment files
	CheckpointFrom uint64
	Checkpoints    uint64
	OldestWrite    time.Duration // how long the oldest outstanding write has been waited for; 0: none
	Failed         bool          // Fatal was called
}

// stats are the counters behind Status.
type stats struct {
	leader, failed              atomic.Bool
	term, commit, applied       atomic.Uint64
	durable, syncs, syncNanos   atomic.Uint64
	bytes, entries              atomic.Uint64
	inflight, inflightBytes     atomic.Int64
	brokerTime                  atomic.Int64
	checkpointFrom, checkpoints atomic.Uint64
	lead, peerCommit            atomic.Uint64
	voters, stateTime           atomic.Int64
	oldestWrite                 atomic.Int64 // monotonic nanoseconds when it was issued; 0: none
}

func (s *stats) synced(logs int, d time.Duration) {
	if logs > syncAllAbove {
		logs = 1
	}
	s.syncs.Add(uint64(logs))
	s.syncNanos.Add(uint64(d))
}

func (s *stats) wrote(durable uint64, bytes int) {
	s.durable.Store(durable)
	s.bytes.Add(uint64(bytes))
}

// publish makes the core's numbers visible.
func (s *stats) publish(c *core) {
	s.leader.Store(c.leading && c.dead == nil)
	s.term.Store(c.term)
	s.commit.Store(c.commit)
	s.applied.Store(c.applied)
	s.inflight.Store(int64(len(c.inflight)))
	s.inflightBytes.Store(c.inflightLen)
	s.checkpointFrom.Store(c.ckpt.from)
	s.oldestWrite.Store(c.oldestWrite())
	s.lead.Store(c.lead)
	s.peerCommit.Store(c.peers.commit)
	s.voters.Store(int64(len(c.conf.Voters)))
	s.stateTime.Store(c.lastTime)
	if t, _ := c.timeBound(); t != 0 {
		s.brokerTime.Store(t)
	}
}

// Status reads the counters; safe from any goroutine.
func (g *Group) Status() Status {
	s := &g.stats
	st := Status{
		NodeID: g.cfg.NodeID, Leader: s.leader.Load(), Term: s.term.Load(), Commit: s.commit.Load(),
		Applied: s.applied.Load(), Durable: s.durable.Load(),
		Lead: s.lead.Load(), PeerCommit: s.peerCommit.Load(), Voters: int(s.voters.Load()), StateTime: s.stateTime.Load(),
		InFlight: int(s.inflight.Load()), InFlightBytes: s.inflightBytes.Load(), BrokerTime: s.brokerTime.Load(),
		Syncs: s.syncs.Load(), SyncSeconds: float64(s.syncNanos.Load()) / 1e9,
		BytesWritten: s.bytes.Load(), Entries: s.entries.Load(),
		CheckpointFrom: s.checkpointFrom.Load(), Checkpoints: s.checkpoints.Load(),
		Failed: s.failed.Load(),
	}
	st.UnsealedBytes, st.LogBytes = g.store.bytes()
	if at := s.oldestWrite.Load(); at != 0 {
		st.OldestWrite = time.Duration(g.cfg.Clock.Now().Mono - at)
	}
	return st
}

// Leader is who leads, as far as this node knows (0: nobody), and whether that is
// this node, planning.
func (g *Group) Leader() (id uint64, here bool) {
	if g.stats.leader.Load() {
		return g.cfg.NodeID, true
	}
	if id = g.stats.lead.Load(); id == g.cfg.NodeID {
		return 0, false // elected, and not ready
	}
	return id, false
}

// bytes sums the sizes of the segment files.
func (s *Store) bytes() (unsealed, all int64) {
	for _, q := range s.Logs() {
		_, u, a := q.size()
		unsealed, all = unsealed+u, all+a
	}
	return unsealed, all
}

// LogSize counts the segment files of the log that holds queue, and their
// bytes; zeros when nothing was ever written for it. With shards that log is
// shared, and the numbers are those of all the queues in it. It costs two
// uncontended locks and a look at each file's entry in memory, and is safe from
// any goroutine.
func (g *Group) LogSize(queue uint64) (segments int, bytes int64) {
	q := g.store.find(g.store.opt.Layout.Log(queue))
	if q == nil {
		return 0, 0
	}
	segments, _, bytes = q.size()
	return segments, bytes
}

// Scrubbed is what the scrub has done.
func (g *Group) Scrubbed() Scrubbed { return g.scrub.status() }

// PartitionBytes adds up the records of the first max appends of a partition
// from an offset on, headers included, and counts the messages in them. It reads
// each of the records, and is safe from any goroutine. A record may be gone
// meanwhile: what it holds is then not counted.
func (g *Group) PartitionBytes(queue, partition, from uint64, max int) (bytes int64, messages uint64, err error) {
	q := g.store.find(g.store.opt.Layout.Log(queue))
	if q == nil {
		return 0, 0, nil
	}
	refs, err := q.appends(partition, from, max)
	if err != nil {
		return 0, 0, err
	}
	var buf []byte
	for _, ref := range refs {
		body, next, err := q.Log.ReadAt(ref.Seq, ref.Pos, buf)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, io.EOF) {
			continue // its file was freed or rewritten, or it is still to be written
		}
		if err != nil {
			return bytes, messages, fmt.Errorf("log q%d: %w", q.ID, err)
		}
		if cap(body) > cap(buf) {
			buf = body
		}
		bytes += next - ref.Pos
		messages += uint64(ref.Count)
	}
	return bytes, messages, nil
}

// Reclaimed counts what reclaim has done.
func (g *Group) Reclaimed() *Reclaimed { return &g.store.reclaimed }

// UnsealedBytes are the bytes of all logs' files that are not sealed.
func (g *Group) UnsealedBytes() int64 { return g.store.unsealed.Load() }

// IndexBytes is about what the positions of unsealed files take in memory.
func (g *Group) IndexBytes() (n int64) {
	for _, q := range g.store.Logs() {
		n += q.Index.MemoryBytes()
	}
	return n
}
