package raftlog

import (
	"errors"
	"log/slog"
	"time"

	"queen/internal/vfs"
)

// Errors that callers of a Group branch on.
var (
	// ErrStopped: the group stops or has stopped; nothing was done.
	ErrStopped = errors.New("the group has stopped")
	// ErrNotLeader: this node does not lead any more and cannot say whether
	// what it judged still holds. Nothing of the call is in the log; send it again.
	ErrNotLeader = errors.New("this node no longer leads")
	// ErrAbandoned: the plan of the call was dropped before it reached the
	// log. Send it again.
	ErrAbandoned = errors.New("the plan was abandoned")
)

// Config says how a group runs. Zero values of sizes and times take the
// defaults named at the field.
type Config struct {
	FS      vfs.FS
	Dir     string // data directory
	NodeID  uint64 // raft id of this node, not 0
	Machine Machine

	// Prepare is called on a goroutine of the group for each call of
	// Plan.Prepare. It looks up what the call needs and submits it again.
	Prepare func(call any)
	// Kept makes what a checkpoint's rows are judged by before files are freed; nil: no file ever is.
	Kept func() Kept
	// Fatal is called once when the group can go on no more: a write or fsync
	// failed, or a rule of the log broke. Nothing is answered after it; the
	// process should end (I3).
	Fatal func(error)
	// Send hands messages to peers; it must not block. Nil drops them (one node).
	Send func(Parcel)
	// Refuse answers a call that came to a node which does not plan it: another
	// one leads. It is called from the loop and must not block. Nil: such calls wait.
	Refuse func(call any, err error)
	// Renew makes a machine with an empty state. The state is read into it when
	// what this node planned is not what was decided (F7); adopt is called, from
	// the loop, when it takes the place of the one before. Nil: the group fails
	// then, and a start reads the truth.
	Renew func() (fresh Machine, adopt func())

	Clock    Clock
	Logger   *slog.Logger
	Observer Observer

	SegmentBytes       int64         // size at which a file rolls; 64 MiB
	Shards             int           // QUEEN_QLOG_SHARDS; 0: a log for each queue
	UnsealedMax        int64         // bytes of unsealed files of all logs; 1 GiB
	OpenFiles          int           // files kept open: logs and side tables; 512
	CheckpointBytes    int64         // log bytes after which a checkpoint is taken; 128 MiB
	CheckpointInterval time.Duration // age at which changes are checkpointed; 60 s
	CompactSlack       int64         // bytes of dead rows beside as many as are alive before the checkpoint is rewritten; 4 MiB
	TickInterval       time.Duration // raft's tick; 100 ms
	PurgeHold          time.Duration // how long the log is kept for a follower that is not heard of; 600 s
	ElectionTicks      int           // ticks without a leader after which one is elected, up to twice as many; 10
	MaxInFlight        int           // entries planned ahead of commit; 2
	MaxInFlightBytes   int64         // bytes of them; 8 MiB, exceeded by one entry at most
	MaxCycleCalls      int           // calls of one planning cycle; 4096
	CompactMinDeadPct  int           // part of a sealed file that must be gone before it is rewritten, percent; 50
	ReclaimRest        int           // a pass of reclaim is followed by so many times its own duration without one; 20, below 0: none
	SealAge            time.Duration // age at which a file of a log with retention may end before it is full; 600 s

	// The scrub reads everything again that is sealed or checkpointed.
	ScrubEvery time.Duration // from the begin of a pass to that of the next; 0: there are none
	ScrubBytes int64         // bytes of segment files and side tables that it reads in a second; 8 MiB
	ScrubRows  int64         // rows of the checkpoint that it reads in a second; 2000
}

// Observer is told what a group measures. Nil functions are skipped; they are
// called from the log writer (Sync, Written) and the loop (Hold), and must
// not block.
type Observer struct {
	// Sync: one sync of the log writer over a number of logs took d.
	Sync func(d time.Duration, logs int)
	// Written: a batch of entries, with the bytes of their records.
	Written func(entries, bytes int)
	// Hold: the loop was held by one turn for d.
	Hold func(d time.Duration)
	// Checkpoint: a checkpoint of rows, bytes with their keys, took d from begin
	// to footer.
	Checkpoint func(d time.Duration, rows int, bytes int64)
}

const (
	quietBeforePad  = time.Second
	heartbeatTicks  = 1
	maxSizePerMsg   = 1 << 20
	maxInflightMsgs = 4
	// maxApplying bounds the committed entries that raft hands out at once.
	maxApplying = 64 << 20
	// recentBytes is what is kept in memory of applied entries, for followers.
	recentBytes = 32 << 20
)

// WithDefaults is c with the defaults of what is zero.
func (c Config) WithDefaults() Config {
	setDefault(&c.SegmentBytes, 64<<20)
	setDefault(&c.UnsealedMax, 1<<30)
	setDefault(&c.OpenFiles, 512)
	setDefault(&c.CheckpointBytes, 128<<20)
	setDefault(&c.CheckpointInterval, time.Minute)
	setDefault(&c.TickInterval, 100*time.Millisecond)
	setDefault(&c.ElectionTicks, 10)
	setDefault(&c.PurgeHold, 600*time.Second)
	setDefault(&c.MaxInFlight, 2)
	setDefault(&c.MaxInFlightBytes, 8<<20)
	setDefault(&c.MaxCycleCalls, 4096)
	setDefault(&c.CompactMinDeadPct, 50)
	setDefault(&c.ReclaimRest, 20)
	setDefault(&c.SealAge, 600*time.Second)
	setDefault(&c.ScrubBytes, 8<<20)
	setDefault(&c.ScrubRows, 2000)
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Clock == nil {
		c.Clock = SystemClock()
	}
	if c.Prepare == nil {
		c.Prepare = func(any) {}
	}
	return c
}

func setDefault[T int | int64 | time.Duration](v *T, to T) {
	if *v == 0 {
		*v = to
	}
}

func (c *Config) electionTimeout() time.Duration {
	return time.Duration(c.ElectionTicks) * c.TickInterval
}

func (c *Config) validate() error {
	switch {
	case c.FS == nil || c.Dir == "":
		return errors.New("raftlog: no file system or directory")
	case c.NodeID == 0:
		return errors.New("raftlog: node id 0")
	case c.Machine == nil:
		return errors.New("raftlog: no state machine")
	case c.Fatal == nil:
		return errors.New("raftlog: Fatal is not set: nobody would end the process after a failed fsync")
	}
	return nil
}
