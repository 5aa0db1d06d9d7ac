package server

import (
	"context"

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
	// Status tells how the group stands; it is cheap and may be a little old.
	Status() Status
	// Stop ends planning: every call in flight gets its Done.
	Stop(ctx context.Context) error
}

// Status is how a node's raft group stands.
type Status struct {
	Role      string // leader, follower, learner, candidate, stopped
	HasLeader bool
	Term      uint64
	Log       uint64 // newest index in the log
	Commit    uint64
	Applied   uint64
	Durable   uint64
	InFlight  int // entries that are planned and not committed
	Parked    int // pops that wait
	// Reason says why the node does not serve; empty when it does.
	Reason string
}
