package raftlog

import (
	"fmt"
	"path"

	pb "go.etcd.io/raft/v3/raftpb"

	"queen/index"
	"queen/internal/crashpoint"
	"queen/internal/entry"
	"queen/segment"
)

// logWriter is the log writer as a state machine: write hands bytes to the
// files, syncs names the logs whose sync makes them durable, synced notes that
// it happened. Who calls it decides what a sync is; in production that is
// writerLoop. It is not safe for concurrent use.
//
// An error of any method ends the writer: the kernel may have dropped dirty
// pages, so nothing is retried and nothing after it is answered (I3).
type logWriter struct {
	store    *Store
	stateDir string
	state    State // as on disk

	last    uint64 // newest entry whose records were written
	lastT   uint64 // its term
	durable uint64 // newest entry of the gapless run that is durable (I2)

	logs    []uint64
	regs    []registration
	touched []*QueueLog // dirty, in the order of their first record
	written int         // bytes of records since the last sync
}

// registration is a position that look-ups learn once the bytes are written.
type registration struct {
	q     *QueueLog
	value uint64 // value id; 0: an append
	ref   index.AppendRef
}

// recordHeader is the framing of a record in a segment.
const recordHeader = segment.RecordHeaderSize

// write writes the state file when term or vote changed, and then the records
// of the request's entries. They are durable after synced.
func (w *logWriter) write(r *appendRequest) error {
	if r.hard && (r.term != w.state.Term || r.vote != w.state.Vote) {
		next := w.state
		next.Term, next.Vote = r.term, r.vote
		if err := w.saveState(next); err != nil {
			return err
		}
	}
	for _, e := range r.entries {
		if e.GetIndex() <= w.last {
			if err := w.cut(e.GetIndex()); err != nil {
				return err
			}
		}
		if e.GetIndex() != w.last+1 {
			return fmt.Errorf("entry %d follows entry %d in the log: a gap", e.GetIndex(), w.last)
		}
		if err := w.writeEntry(e, r.commit); err != nil {
			return fmt.Errorf("write entry %d: %w", e.GetIndex(), err)
		}
		w.last, w.lastT = e.GetIndex(), e.GetTerm()
	}
	return nil
}

func (w *logWriter) saveState(s State) error {
	if err := SaveState(w.store.opt.FS, w.stateDir, &s); err != nil {
		return err
	}
	w.state = s
	return nil
}

// saveConf makes a membership durable.
func (w *logWriter) saveConf(m Membership, index uint64) error {
	next := w.state
	next.Conf, next.ConfIndex = m, index
	return w.saveState(next)
}

// writeEntry splits an entry into its records. The appends and values of a log
// come first and the entry record or stub last, so a log whose copy is there
// holds its parts.
func (w *logWriter) writeEntry(pe *pb.Entry, commit uint64) error {
	data, at := pe.GetData(), pe.GetIndex()
	h := entry.Head{Term: pe.GetTerm(), Type: uint8(pe.GetType()), Hash: entry.Hash(data), Commit: min(commit, at), Durable: w.durable}
	if pe.GetType() != pb.EntryNormal || len(data) == 0 {
		h.Logs = append(w.logs[:0], SystemLog)
		w.logs = h.Logs
		return w.finishCopy(SystemLog, at, 0, func(dst []byte) []byte { return entry.AppendRawEntryRecord(dst, at, &h, data) })
	}
	e, err := entry.Parse(data)
	if err != nil {
		return err
	}
	h.Logs = w.store.opt.Layout.touched(w.logs[:0], &e)
	w.logs = h.Logs
	for i := range e.Appends {
		if err := w.writeAppend(at, i, &e.Appends[i]); err != nil {
			return err
		}
	}
	for i := range e.Values {
		if err := w.writeValue(at, i, &e.Values[i], h.Logs[0]); err != nil {
			return err
		}
	}
	fill := func(dst []byte) []byte { return entry.AppendEntryRecord(dst, at, &h, data, &e) }
	for _, id := range h.Logs {
		if err := w.finishCopy(id, at, e.Time, fill); err != nil {
			return err
		}
		fill = func(dst []byte) []byte { return entry.AppendStubRecord(dst, at, &h) }
	}
	return nil
}

func (w *logWriter) writeAppend(at uint64, ordinal int, a *entry.Append) error {
	q, ref, err := w.record(w.store.opt.Layout.Log(a.Queue), at, a.Time, func(dst []byte) []byte {
		return entry.AppendAppendRecord(dst, at, ordinal, a.Raw)
	})
	if err != nil {
		return err
	}
	w.regs = append(w.regs, registration{q: q, ref: index.AppendRef{
		Seq: ref.Seq, Pos: ref.Pos, Partition: a.Partition, First: a.First, Count: a.Count, Time: a.Time,
	}})
	return nil
}

func (w *logWriter) writeValue(at uint64, ordinal int, v *entry.Value, lowest uint64) error {
	id := lowest
	if v.Queue != 0 {
		id = w.store.opt.Layout.Log(v.Queue)
	}
	q, ref, err := w.record(id, at, 0, func(dst []byte) []byte { return entry.AppendValueRecord(dst, at, ordinal, *v) })
	if err != nil {
		return err
	}
	w.regs = append(w.regs, registration{q: q, value: v.ID, ref: index.AppendRef{Seq: ref.Seq, Pos: ref.Pos}})
	return nil
}

// finishCopy writes the last record of an entry in a log.
func (w *logWriter) finishCopy(id, at uint64, t int64, fill func([]byte) []byte) error {
	q, ref, err := w.record(id, at, 0, fill)
	if err != nil {
		return err
	}
	q.wrote(EndMark{Index: at, Seq: ref.Seq, End: ref.Pos + recordHeader + int64(ref.Len), Time: t}, w.store.applied.Load())
	return nil
}

// record appends one record to a log, which is opened when it is new; its
// directory and file are made, and made durable, by the log (I6).
func (w *logWriter) record(id, at uint64, t int64, fill func([]byte) []byte) (*QueueLog, segment.Ref, error) {
	q := w.store.find(id)
	if q == nil {
		var err error
		if q, err = w.store.open(id); err != nil {
			return nil, segment.Ref{}, err
		}
	}
	if !q.dirty {
		q.dirty = true
		w.touched = append(w.touched, q)
	}
	ref, err := q.Log.AppendFunc(fill)
	if err != nil {
		return nil, ref, fmt.Errorf("log q%d: %w", id, err)
	}
	ended, grown := q.noteRecord(ref.Seq, at, t, ref.Pos+recordHeader+int64(ref.Len))
	if ended {
		w.store.rolls.Add(1)
	}
	if t != 0 {
		w.store.newest.Store(t)
	}
	w.written += int(ref.Len) + recordHeader
	w.store.unsealed.Add(grown)
	return q, ref, nil
}

// flush hands buffered records to the files and then lets look-ups find them.
// It returns the logs whose sync makes them durable.
func (w *logWriter) flush() ([]*QueueLog, error) {
	for i, q := range w.touched {
		if i == 1 {
			crashpoint.Hit("write.flush.between-logs")
		}
		if err := q.Log.Flush(); err != nil {
			return nil, fmt.Errorf("log q%d: %w", q.ID, err)
		}
	}
	for i := range w.regs {
		r := &w.regs[i]
		if r.value != 0 {
			r.q.Index.AddValue(r.value, r.ref.Seq, r.ref.Pos)
		} else {
			r.q.Index.AddAppend(r.ref)
		}
	}
	clear(w.regs)
	w.regs = w.regs[:0]
	return w.touched, nil
}

// synced notes that every log that flush returned was synced.
func (w *logWriter) synced() (bytes int) {
	w.forgetTouched()
	w.durable = w.last
	bytes, w.written = w.written, 0
	return bytes
}

func (w *logWriter) forgetTouched() {
	for _, q := range w.touched {
		q.dirty = false
	}
	clear(w.touched)
	w.touched = w.touched[:0]
}

// pad appends the durable index to the system log when an entry was the last
// for a while, so that a boot can tell it from a torn tail (I2, F4).
func (w *logWriter) pad(commit uint64) error {
	durable := w.durable
	if durable != w.last || durable == 0 {
		return nil // entries follow: they carry the durable index themselves
	}
	// It gets no end mark: a footer may claim only what is durable by then.
	_, _, err := w.record(SystemLog, durable, 0, func(dst []byte) []byte {
		return entry.AppendPadRecord(dst, durable, min(commit, durable))
	})
	return err
}

// cut takes entry index and everything after it out of every log: raft's
// truncation of a conflicting tail (I5). The mark is durable before the first
// log is touched and goes when all are done.
//
// What was written before and stays is synced here: a log that the cut does not
// reach would otherwise lose its place among those that the next sync covers.
func (w *logWriter) cut(index uint64) error {
	logs, err := w.flush()
	if err != nil {
		return err
	}
	for _, q := range logs {
		if err := q.Log.Sync(); err != nil {
			return fmt.Errorf("log q%d: %w", q.ID, err)
		}
	}
	marked := w.state
	marked.Cut = index
	if err := w.saveState(marked); err != nil {
		return err
	}
	crashpoint.Hit("cut.marked")
	for _, q := range w.store.Logs() {
		at, ok, err := q.cutFrom(index)
		if err != nil {
			return err
		}
		if !ok {
			continue
		}
		if err := w.store.truncate(q, at); err != nil {
			return err
		}
	}
	w.forgetTouched()
	w.last, w.durable = index-1, min(w.durable, index-1)
	marked.Cut = 0
	return w.saveState(marked)
}

// truncate makes at the end of a log, durably. Look-ups forget first: they
// refuse a cut that reaches into a sealed file (I5).
func (s *Store) truncate(q *QueueLog, at EndMark) error {
	if at.Seq == 0 { // nothing of the log stays
		segments := q.Log.Segments()
		if len(segments) == 0 {
			return nil
		}
		at.Seq = segments[0].Seq
	}
	if err := q.Index.Cut(at.Seq, at.End); err != nil {
		return fmt.Errorf("cut log q%d: %w", q.ID, err)
	}
	if err := q.Log.Truncate(at.Seq, at.End); err != nil {
		return fmt.Errorf("cut log q%d: %w", q.ID, err)
	}
	q.dropped(at)
	s.blocks.forget(q.ID)
	unsealed, _ := s.bytes()
	s.unsealed.Store(unsealed)
	return nil
}

// StateDir is where the state file of a data directory is.
func StateDir(dataDir string) string { return path.Join(dataDir, "raft") }
