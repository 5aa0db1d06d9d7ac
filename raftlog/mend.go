package raftlog

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"path"
	"sync"
	"sync/atomic"

	"queen/index"
	"queen/internal/entry"
	"queen/segment"
)

// Side tables are derived (I4): one that is found damaged is made again from
// the segment files, and the look-up that met it is made again too. A boot
// checks only the ends of each table, so the rest is met here.

// mends is the state of a log's repairs. The lock is held while tables are made
// again; look-ups that meet the same damage wait for it, and find sound tables.
type mends struct {
	sync.Mutex
	lost      map[segmentID]error // its segment is damaged too
	mergeable atomic.Bool         // tables were made again since the sealer merged
}

// segmentID is one content of a segment file.
type segmentID struct{ seq, generation uint64 }

// wait waits until nothing is being made again.
func (m *mends) wait() {
	m.Lock()
	defer m.Unlock()
}

var errClosing = errors.New("the store is being closed")

// lookup makes a look-up, again after damaged tables that it met were made
// again. It may meet one after the other, but none twice.
func (q *QueueLog) lookup(fn func() error) error {
	err := fn()
	for range q.Index.Tables() + 1 {
		if !errors.Is(err, index.ErrCorrupt) {
			return err
		}
		failed := q.mend()
		if err = fn(); failed != nil && errors.Is(err, index.ErrCorrupt) {
			return fmt.Errorf("%w; the table cannot be made again: %w", err, failed)
		}
	}
	return err
}

// find is LogIndex.Find.
func (q *QueueLog) find(partition, offset uint64) (r index.AppendRef, found bool, err error) {
	err = q.lookup(func() (err error) { r, found, err = q.Index.Find(partition, offset); return err })
	return r, found, err
}

// appends is LogIndex.Range.
func (q *QueueLog) appends(partition, from uint64, max int) (refs []index.AppendRef, err error) {
	err = q.lookup(func() (err error) { refs, err = q.Index.Range(partition, from, max); return err })
	return refs, err
}

// findTime is LogIndex.FindTime.
func (q *QueueLog) findTime(partition uint64, t int64) (offset uint64, ok bool, err error) {
	err = q.lookup(func() (err error) { offset, ok, err = q.Index.FindTime(partition, t); return err })
	return offset, ok, err
}

// findTxn is LogIndex.FindTxn, which calls fn only when it has met no damage.
func (q *QueueLog) findTxn(partition, hash uint64, fn func(offset uint64) bool) error {
	return q.lookup(func() error { return q.Index.FindTxn(partition, hash, fn) })
}

// findValue is LogIndex.FindValue.
func (q *QueueLog) findValue(id uint64) (seq uint64, pos int64, ok bool, err error) {
	err = q.lookup(func() (err error) { seq, pos, ok, err = q.Index.FindValue(id); return err })
	return seq, pos, ok, err
}

// mend makes all tables of the log again that are known to be damaged. What one
// file lacks does not keep the others from it.
func (q *QueueLog) mend() error {
	q.mends.Lock()
	defer q.mends.Unlock()
	for _, err := range q.Index.Problems() {
		q.logDamage(err)
	}
	var errs []error
	for _, seq := range q.Index.Broken() {
		if err := q.mendFile(seq); err != nil {
			errs = append(errs, fmt.Errorf("log q%d file %d: %w", q.ID, seq, err))
			continue
		}
		q.mends.mergeable.Store(true)
		q.store.rolls.Add(1) // the sealer merges them
	}
	return errors.Join(errs...)
}

func (q *QueueLog) logDamage(err error) {
	attrs := []any{slog.Uint64("log", q.ID), slog.Any("err", err)}
	var c *index.CorruptError
	if errors.As(err, &c) {
		attrs = append(attrs, slog.String("file", c.File), slog.Int64("pos", c.Pos))
	}
	q.store.opt.Logger.Warn("a side table is damaged and is made again", attrs...)
}

// mendFile makes the tables of one file again. That a segment is damaged is
// kept: every look-up that needs the file would read it in vain.
func (q *QueueLog) mendFile(seq uint64) error {
	f, err := q.fileInfo(seq)
	if err != nil {
		return q.Index.DropFile(seq) // there is no such segment any more
	}
	id := segmentID{seq, f.Generation}
	if err := q.mends.lost[id]; err != nil {
		return err
	}
	switch err = q.resealAs(f); {
	case errors.Is(err, errReplaced):
		return nil // with tables of its own
	case err == nil || errors.Is(err, errClosing):
		return err
	}
	q.store.opt.Logger.Error("a side table cannot be made again", slog.Uint64("log", q.ID), slog.Uint64("seq", seq), slog.Any("err", err))
	if errors.Is(err, segment.ErrCorrupt) || errors.Is(err, segment.ErrTorn) {
		if q.mends.lost == nil {
			q.mends.lost = make(map[segmentID]error)
		}
		q.mends.lost[id] = err
	}
	return err
}

func (q *QueueLog) reseal(seq uint64) error {
	f, err := q.fileInfo(seq)
	if err != nil {
		return q.Index.DropFile(seq)
	}
	return q.resealAs(f)
}

func (q *QueueLog) resealAs(f FileInfo) error {
	return q.Index.Reseal(f.sealedFile(), func(c *index.FileContent) error {
		err := q.content(&f, c)
		if err != nil && q.Log.Generation(f.Seq) != f.Generation {
			return errReplaced // what was read is another file than the one that is known
		}
		return err
	})
}

// errReplaced: reclaim has put another file into the place of the one that was meant.
var errReplaced = errors.New("the file was replaced meanwhile")

// content reads a sealed file for its tables. It has to be whole: a table that
// was made from less would hide the rest.
func (q *QueueLog) content(f *FileInfo, c *index.FileContent) error {
	var txn []byte
	end, err := q.Log.Scan(f.Seq, 0, func(pos int64, body []byte) (err error) {
		if q.store.closing.Load() {
			return errClosing
		}
		txn, err = addRecord(c, f.Seq, pos, body, txn)
		return err
	})
	if err != nil {
		return err
	}
	if end != f.Size {
		return &segment.CorruptError{File: path.Join(q.Log.Dir(), segment.FileName(f.Seq)), Pos: end, What: "end of the records",
			Expected: fmt.Sprint(f.Size), Found: fmt.Sprint(end)}
	}
	return nil
}

// addRecord adds what tables say of one record. It returns txn, which it uses
// as a buffer.
func addRecord(c *index.FileContent, seq uint64, pos int64, body, txn []byte) ([]byte, error) {
	r, err := entry.ParseRecord(body)
	if err != nil {
		return txn, fmt.Errorf("pos %d: %w", pos, err)
	}
	switch r.Kind {
	case entry.KindValue:
		c.AddValue(r.Value.ID, pos)
	case entry.KindAppend, entry.KindIDs:
		a := &r.Append
		c.AddAppend(index.AppendRef{Seq: seq, Pos: pos, Partition: a.Partition, First: a.First, Count: a.Count, Time: a.Time})
		err = eachMessage(a, 0, math.MaxUint64, func(offset uint64, m *entry.Message) error {
			txn = m.AppendTxn(txn[:0])
			c.AddTxn(entry.TxnHash(a.Partition, txn), offset)
			return nil
		})
	}
	return txn, err
}
