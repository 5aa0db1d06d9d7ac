package raftlog

import "queen/internal/entry"

// Machine is the state machine that a group drives. The group calls it from
// its loop only, one call at a time; the machine starts nothing and reads no
// clock. A machine that has been told to lead runs ahead of commit: what Plan
// returns is already part of its state.
type Machine interface {
	// Lead tells the machine that this node leads in term and has applied an
	// entry of that term: Plan will be called. Follow tells that it no longer does.
	Lead(term uint64)
	Follow()

	// Plan judges calls, in order, at broker time now (microseconds, above the
	// time of every entry before), and then whatever the machine owes by itself
	// (waiting pops, due timers, sweeps). calls may be empty.
	Plan(now int64, calls []any) Plan

	// Apply applies a committed entry that was not planned by this machine
	// while it led: after a boot, or on a follower.
	Apply(index, term uint64, data []byte) error

	// Remember is called during a boot for the appends of unsealed files whose
	// entries the checkpoint already covers: their ids belong into memory.
	Remember(a entry.Append) error

	// SealedThrough tells that every append with a time at or below t is in a
	// sealed file whose side tables are durable.
	SealedThrough(t int64)

	// LoadRow takes one row of the checkpoint, in file order; value nil: the
	// key is gone. DeleteRange removes the rows with lo <= key < hi.
	LoadRow(key, value []byte) error
	LoadDeleteRange(lo, hi []byte) error
	// Ready ends loading and replay: derived structures are built (F13).
	// dedupSince is the time up to which ids are only in sealed files.
	Ready(dedupSince int64) error

	// BeginCapture starts a checkpoint of the rows that changed since the last
	// one (all rows when full). CaptureSome emits up to max changed rows and
	// reports whether all are out; rows that change again meanwhile may be
	// emitted with their later value (fuzzy). EndCapture tells how it ended;
	// after false, the rows count as changed again.
	BeginCapture(full bool)
	CaptureSome(max int, put func(key, value []byte), deleteRange func(lo, hi []byte)) (done bool)
	EndCapture(ok bool)

	// Time is the time of the newest entry that the state holds.
	Time() int64
}

// Plan is the outcome of one planning cycle.
type Plan struct {
	// Data is the encoded entry (package entry); nil when nothing has effects.
	Data []byte
	// Answer is called exactly once, from the loop, when the answers of this
	// cycle are true: with Data, when its entry has committed and is durable
	// here; without, when everything planned before has, and leadership was
	// confirmed (ReadIndex). err is not nil when the plan was abandoned. Nil
	// Answer: nobody waits.
	Answer func(err error)
	// Now is called at once, also before commit: answers that need no
	// confirmation (an empty pop). Nil: none.
	Now func()
	// Prepare holds calls that need something from the disk first; the group
	// hands each to Config.Prepare, off the loop, once everything planned before
	// is written and can be read; that submits it again.
	Prepare []any
	// Wake is the broker time at which Plan is to be called even without
	// calls; 0: no need.
	Wake int64
	// More asks for another Plan at once: a budget ended the cycle early.
	More bool
	// SealThrough asks the store to roll and seal the logs that hold unsealed
	// appends at or before this time; 0: no need.
	SealThrough int64
}

// Reader reads what is in the queue logs. It is safe for concurrent use and
// never called from the loop.
type Reader interface {
	// ReadMessages calls fn for the messages of a partition with from <= offset
	// <= to, in offset order, skipping what is no longer kept. The message's
	// slices are valid during the call only.
	ReadMessages(queue, partition, from, to uint64, fn func(offset uint64, timeMicros int64, m *entry.Message) error) error
	// AppendTimes lists (first offset, count, time) of up to max appends from offset on.
	AppendTimes(queue, partition, from uint64, max int) ([]AppendTime, error)
	// FindTime gives the first offset appended at or after t; ok is false when there is none.
	FindTime(queue, partition uint64, t int64) (offset uint64, ok bool, err error)
	// FindTxn calls fn for each message of the partition in sealed files whose
	// transactionId is txn (confirmed), newest first, until fn returns false.
	FindTxn(queue, partition uint64, txn []byte, fn func(offset uint64, timeMicros int64, id [16]byte) bool) error
	// Value reads a value record. queue as in entry.Value.
	Value(id, queue uint64) ([]byte, error)
}

// AppendTime says when a run of offsets was appended.
type AppendTime struct {
	First uint64
	Count uint32
	Time  int64
}
