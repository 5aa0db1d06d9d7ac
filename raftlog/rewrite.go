package raftlog

import (
	"fmt"

	pb "go.etcd.io/raft/v3/raftpb"
)

// Rewriter writes entries into the logs of a new directory, split as a log
// writer splits them: what a tool saves of a damaged directory. Nothing else
// may use the store meanwhile. Positions are not noted for look-ups: whoever
// opens the directory afterwards reads them.
type Rewriter struct {
	w logWriter
}

// NewRewriter writes to a store, which must be empty.
func NewRewriter(s *Store) *Rewriter { return &Rewriter{w: logWriter{store: s}} }

// rewriteBatch is how many bytes are written together.
const rewriteBatch = 1 << 20

// Entry writes an entry. Indexes rise; the claims that its copies carry are
// that everything before it is committed and durable, which Sync makes true.
func (r *Rewriter) Entry(e *pb.Entry) error {
	at := e.GetIndex()
	if at <= r.w.last {
		return fmt.Errorf("entry %d after entry %d", at, r.w.last)
	}
	r.w.durable = r.w.last
	if err := r.w.writeEntry(e, r.w.last); err != nil {
		return fmt.Errorf("write entry %d: %w", at, err)
	}
	r.w.last, r.w.lastT = at, e.GetTerm()
	return r.flush()
}

// flush hands what has gathered to the files, and forgets what only look-ups need.
func (r *Rewriter) flush() error {
	clear(r.w.regs)
	r.w.regs = r.w.regs[:0]
	r.w.store.SetApplied(r.w.last)
	if r.w.written < rewriteBatch {
		return nil
	}
	r.w.written = 0
	for _, q := range r.w.touched {
		if err := q.Log.Flush(); err != nil {
			return fmt.Errorf("log q%d: %w", q.ID, err)
		}
	}
	return nil
}

// Sync makes everything durable that was written, and then writes down that it is.
func (r *Rewriter) Sync() error {
	for _, q := range r.w.store.Logs() {
		if err := q.Log.Sync(); err != nil {
			return fmt.Errorf("log q%d: %w", q.ID, err)
		}
	}
	r.w.durable = r.w.last
	if err := r.w.pad(r.w.last); err != nil {
		return err
	}
	if q := r.w.store.find(SystemLog); q != nil {
		return q.Log.Sync()
	}
	return nil
}
