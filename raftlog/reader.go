package raftlog

import (
	"bytes"
	"errors"
	"fmt"
	"sync"

	"queen/index"
	"queen/internal/entry"
)

var (
	// ErrNoLog: nothing was ever written for this queue.
	ErrNoLog = errors.New("the queue has no log")
	// ErrNoValue: no log holds this value.
	ErrNoValue = errors.New("the value is not in the log")
)

// firstRefs and refPage are how many appends are looked up at first, and then:
// most reads are of a small batch in one or a few appends.
const (
	firstRefs = 8
	refPage   = 64
)

// reader reads the queue logs. A position is looked up, the record read and
// checked against what was asked for; when it does not fit, the file was
// replaced in between, and it is looked up once more.
type reader struct{ store *Store }

var _ Reader = (*reader)(nil)

var bufs = sync.Pool{New: func() any { return new([]byte) }}

func (r *reader) log(queue uint64) (*QueueLog, error) {
	q := r.store.find(r.store.opt.Layout.Log(queue))
	if q == nil {
		return nil, fmt.Errorf("queue %d: %w", queue, ErrNoLog)
	}
	return q, nil
}

// ReadMessages implements Reader.
func (r *reader) ReadMessages(queue, partition, from, to uint64, fn func(offset uint64, timeMicros int64, m *entry.Message) error) error {
	q, err := r.log(queue)
	if err != nil {
		return err
	}
	buf := bufs.Get().(*[]byte)
	defer bufs.Put(buf)
	for page := firstRefs; from <= to; page = refPage {
		refs, err := q.appends(partition, from, int(min(to-from, uint64(page)-1))+1)
		if err != nil {
			return fmt.Errorf("queue %d partition %d offset %d: %w", queue, partition, from, err)
		}
		if len(refs) == 0 || refs[0].First > to {
			return nil
		}
		for _, ref := range refs {
			if ref.First > to {
				return nil
			}
			if err := r.readAppend(q, ref, queue, from, to, buf, withPayload, fn); err != nil {
				return err
			}
			from = ref.First + uint64(ref.Count)
		}
	}
	return nil
}

// What a reader wants of messages: an id may be kept without its payload.
const (
	withPayload = false
	idsToo      = true
)

// readAppend reads one append and calls fn for its messages in [from, to]; an append whose payloads are gone counts
// only when ids are enough.
func (r *reader) readAppend(q *QueueLog, ref index.AppendRef, queue, from, to uint64, buf *[]byte, ids bool, fn func(uint64, int64, *entry.Message) error) error {
	a, err := r.cachedAppend(q, ref, queue, from, to, buf)
	if err != nil {
		again, found, ferr := q.find(ref.Partition, ref.First)
		if ferr != nil || !found || again == ref {
			return err
		}
		if a, err = q.appendAt(again, queue, buf); err != nil {
			return err
		}
	}
	if a.IDsOnly && !ids {
		return nil
	}
	return eachMessage(&a, from, to, func(offset uint64, m *entry.Message) error { return fn(offset, a.Time, m) })
}

// cachedAppend reads an append through the block cache when only a part of it
// is wanted: the rest is likely to be wanted next.
func (r *reader) cachedAppend(q *QueueLog, ref index.AppendRef, queue, from, to uint64, buf *[]byte) (entry.Append, error) {
	if from <= ref.First && ref.First+uint64(ref.Count) <= to+1 {
		return q.appendAt(ref, queue, buf)
	}
	key := blockKey{log: q.ID, seq: ref.Seq, pos: ref.Pos}
	if b := r.store.blocks.get(key); b != nil && q.isAppend(&b.append, ref, queue) {
		return b.from(from), nil
	}
	var own []byte
	a, err := q.appendAt(ref, queue, &own)
	if err != nil {
		return a, err
	}
	b, err := newBlock(a)
	if err != nil {
		return a, err
	}
	r.store.blocks.put(key, b)
	return b.from(from), nil
}

// appendAt reads the append record at ref and checks that it is the one. The
// result is in *buf, which grows when it must.
func (q *QueueLog) appendAt(ref index.AppendRef, queue uint64, buf *[]byte) (entry.Append, error) {
	body, _, err := q.Log.ReadAt(ref.Seq, ref.Pos, *buf)
	if err != nil {
		return entry.Append{}, fmt.Errorf("log q%d: %w", q.ID, err)
	}
	if cap(body) > cap(*buf) {
		*buf = body
	}
	return q.checkAppend(body, ref, queue)
}

func (q *QueueLog) checkAppend(body []byte, ref index.AppendRef, queue uint64) (entry.Append, error) {
	rec, err := entry.ParseRecord(body)
	if err != nil {
		return entry.Append{}, fmt.Errorf("log q%d file %d pos %d: %w", q.ID, ref.Seq, ref.Pos, err)
	}
	a := rec.Append
	if rec.Kind != entry.KindAppend && rec.Kind != entry.KindIDs || !q.isAppend(&a, ref, queue) {
		return a, fmt.Errorf("log q%d file %d pos %d: expected an append of queue %d partition %d at offset %d, found kind %d queue %d partition %d offset %d",
			q.ID, ref.Seq, ref.Pos, queue, ref.Partition, ref.First, rec.Kind, a.Queue, a.Partition, a.First)
	}
	return a, nil
}

// isAppend reports whether a is what was looked up: a file may have been replaced.
func (q *QueueLog) isAppend(a *entry.Append, ref index.AppendRef, queue uint64) bool {
	return a.Queue == queue && a.Partition == ref.Partition && a.First == ref.First
}

// eachMessage calls fn for an append's messages in [from, to]. The message is
// the same variable each time.
func eachMessage(a *entry.Append, from, to uint64, fn func(offset uint64, m *entry.Message) error) error {
	var m entry.Message
	var err error
	rest := a.Messages
	for i := range uint64(a.Count) {
		offset := a.First + i
		if offset > to {
			return nil
		}
		if m, rest, err = entry.NextMessage(rest); err != nil {
			return err
		}
		if offset < from {
			continue
		}
		if err := fn(offset, &m); err != nil {
			return err
		}
	}
	return nil
}

// AppendTimes implements Reader.
func (r *reader) AppendTimes(queue, partition, from uint64, max int) ([]AppendTime, error) {
	q, err := r.log(queue)
	if err != nil {
		return nil, err
	}
	refs, err := q.appends(partition, from, max)
	out := make([]AppendTime, 0, len(refs))
	for _, ref := range refs {
		out = append(out, AppendTime{First: ref.First, Count: ref.Count, Time: ref.Time})
	}
	return out, err
}

// FindTime implements Reader.
func (r *reader) FindTime(queue, partition uint64, t int64) (offset uint64, ok bool, err error) {
	q, err := r.log(queue)
	if errors.Is(err, ErrNoLog) {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, err
	}
	return q.findTime(partition, t)
}

// FindTxn implements Reader.
func (r *reader) FindTxn(queue, partition uint64, txn []byte, fn func(offset uint64, timeMicros int64, id [16]byte) bool) error {
	q, err := r.log(queue)
	if errors.Is(err, ErrNoLog) {
		return nil
	}
	if err != nil {
		return err
	}
	buf := bufs.Get().(*[]byte)
	defer bufs.Put(buf)
	var failed error
	var text []byte
	err = q.findTxn(partition, entry.TxnHash(partition, txn), func(offset uint64) bool {
		ref, found, err := q.find(partition, offset)
		if err != nil {
			failed = err
			return false
		}
		if !found || offset < ref.First {
			return true // no longer kept
		}
		more := true
		err = r.readAppend(q, ref, queue, offset, offset, buf, idsToo, func(offset uint64, t int64, m *entry.Message) error {
			if text = m.AppendTxn(text[:0]); bytes.Equal(text, txn) {
				more = fn(offset, t, m.ID)
			}
			return nil
		})
		if err != nil {
			failed = err
			return false
		}
		return more
	})
	return errors.Join(err, failed)
}

// Value implements Reader. A value without a queue rides in the lowest log of
// its entry, which its id does not name: the system log is asked first, then
// the others.
func (r *reader) Value(id, queue uint64) ([]byte, error) {
	if queue != 0 {
		q, err := r.log(queue)
		if err != nil {
			return nil, err
		}
		v, ok, err := q.value(id)
		if err == nil && !ok {
			err = fmt.Errorf("value %d of queue %d: %w", id, queue, ErrNoValue)
		}
		return v, err
	}
	for _, q := range r.store.Logs() {
		if v, ok, err := q.value(id); ok || err != nil {
			return v, err
		}
	}
	return nil, fmt.Errorf("value %d: %w", id, ErrNoValue)
}

func (q *QueueLog) value(id uint64) ([]byte, bool, error) {
	seq, pos, ok, err := q.findValue(id)
	if err != nil || !ok {
		return nil, false, err
	}
	body, _, err := q.Log.ReadAt(seq, pos, nil)
	if err != nil {
		return nil, false, fmt.Errorf("log q%d: %w", q.ID, err)
	}
	rec, err := entry.ParseRecord(body)
	if err != nil {
		return nil, false, fmt.Errorf("log q%d file %d pos %d: %w", q.ID, seq, pos, err)
	}
	if rec.Kind != entry.KindValue || rec.Value.ID != id {
		return nil, false, fmt.Errorf("log q%d file %d pos %d: expected value %d, found kind %d value %d", q.ID, seq, pos, id, rec.Kind, rec.Value.ID)
	}
	return rec.Value.Data, true, nil
}
