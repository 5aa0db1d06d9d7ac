package server

import (
	"context"
	"time"

	"queen/fsm"
	"queen/raftlog"
)

// Engine is what the server needs of the broker behind it.
type Engine interface {
	// Submit hands a call over. After a nil error Call.Done is called exactly
	// once; after an error it is not.
	Submit(*fsm.Call) error
	// Reader reads what is in the queue logs.
	Reader() raftlog.Reader
	// LogSize counts the segment files and bytes of the log that holds a queue;
	// with shards that log is shared with other queues. It is cheap.
	LogSize(queue uint64) (segments int, bytes int64)
	// PartitionBytes adds up the records in the log of the first max appends of a
	// partition from an offset on, and counts the messages in them.
	PartitionBytes(queue, partition, from uint64, max int) (bytes int64, messages uint64, err error)
	// Status tells how the group stands; it is cheap and may be a little old.
	Status() Status
	// Stop ends planning. Calls in flight are waited for and get their Done.
	// When ctx ends first, or the engine had failed, those that were not decided
	// by then may never get it: nobody may wait for Done without a deadline of
	// his own.
	Stop(ctx context.Context) error
}

// Status is how a node's raft group stands.
type Status struct {
	NodeID      uint64
	Cluster     string // id of the cluster, 32 hex digits
	Role        string // leader, follower, learner, candidate, stopped
	HasLeader   bool
	Term        uint64
	Log         uint64 // newest index in the log
	Commit      uint64
	Applied     uint64
	Durable     uint64
	InFlight    int           // entries that are planned and not committed
	Parked      int           // pops that wait
	LogBytes    int64         // of all segment files
	OldestWrite time.Duration // how long the oldest outstanding write has been waited for
	// Reason says why the node does not serve; empty when it does.
	Reason string
	Leader uint64        // who leads, as far as this node knows; 0: nobody
	Lag    time.Duration // of a follower that is far behind: the age of what it has applied
	Freed  Freed
	Scrub  raftlog.Scrubbed
	// Outcomes are the kept answers of calls with an Idempotency-Key.
	Outcomes fsm.OutcomeStats
	// Bounds of what fills up behind the engine; OutcomeWindow is in microseconds.
	OutcomeLimit, OutcomeWindow  int64
	DedupBytes, DedupLimit       int64
	UnsealedBytes, UnsealedLimit int64
}

// Freed counts what retention has removed while this node led, and what reclaim has freed on it, since its start.
type Freed struct {
	Aged, Completed, Waited int64 // messages, by rule: retentionSeconds, completedRetentionSeconds, maxWaitTimeSeconds
	Partitions              int64 // idle ones
	FailedLookups           int64

	Bytes, Files, Rewrites, Merges, Logs int64
	Failures                             int64 // damage, or no space: nothing was freed
}
