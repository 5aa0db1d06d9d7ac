package fsm

import (
	"encoding/binary"
	"fmt"
	"maps"
)

// Kept is what the rows of a finished checkpoint need of the queue logs: the retained messages and the values that rows
// name. It is filled by the Load methods, in the order of the checkpoint's file, and then only read. It is no part of a
// Machine: what a log may free is judged by what is durable, never by a state that runs ahead of it (F10).
type Kept struct {
	least   int64 // Config.TxnWindowMin
	queues  map[uint64]*keptQueue
	parts   map[uint64]keptPartition
	letters map[string]uint64 // value by row key
	timers  map[string]uint64
	// By id: the lowest offsets that the kept answer's next batch has of partitions; nil: no batch.
	outcomes map[uint64][]keptFrom
	pins     map[uint64]uint64   // lowest of these by partition, made once all is loaded
	values   map[uint64]struct{} // made from both, once all is loaded
}

type keptQueue struct {
	outlives int64
	deleted  bool
	trimmed  bool // messages of it are gone
}

type keptPartition struct {
	q     *keptQueue
	start uint64
}

// NewKept makes one for the rows of a machine with this configuration.
func NewKept(cfg Config) *Kept {
	cfg.defaults()
	return &Kept{
		least: cfg.TxnWindowMin, queues: map[uint64]*keptQueue{}, parts: map[uint64]keptPartition{},
		letters: map[string]uint64{}, timers: map[string]uint64{}, outcomes: map[uint64][]keptFrom{},
	}
}

func (k *Kept) queue(id uint64) *keptQueue {
	q := k.queues[id]
	if q == nil {
		q = &keptQueue{deleted: true} // until its row comes
		k.queues[id] = q
	}
	return q
}

// LoadRow takes a row; value nil: it is gone.
func (k *Kept) LoadRow(key, value []byte) error {
	if err := k.load(key, value); err != nil {
		return fmt.Errorf("row %x: %w", key, err)
	}
	return nil
}

func (k *Kept) load(key, value []byte) error {
	if len(key) == 0 {
		return errShortRow
	}
	ids := rowReader{b: key[1:]}
	switch key[0] {
	case rowQueue:
		q := k.queue(ids.be64())
		if q.deleted = value == nil; q.deleted {
			return ids.end()
		}
		var row queue
		if err := row.decode(value); err != nil {
			return err
		}
		q.deleted, q.outlives = row.deleted, row.opts.outlives(k.least)
	case rowPartition:
		q, id := k.queue(ids.be64()), ids.be64()
		if value == nil {
			delete(k.parts, id)
			return ids.end()
		}
		var row partition
		if err := row.decode(value); err != nil {
			return err
		}
		k.parts[id] = keptPartition{q, row.start}
		q.trimmed = q.trimmed || row.start > 0
	case rowLetter:
		var row deadLetter
		return keepValue(k.letters, key, value, row.decode, &row.value)
	case rowTimer:
		var row timer
		return keepValue(k.timers, key, value, func(b []byte) error { return row.decode(string(key[1:]), b) }, &row.value)
	case rowOutcome:
		return k.loadOutcome(ids.be64(), value)
	}
	return ids.err
}

// keptFrom is a partition of which messages are needed from an offset on.
type keptFrom struct{ partition, from uint64 }

func (k *Kept) loadOutcome(id uint64, value []byte) error {
	delete(k.outcomes, id)
	if value == nil {
		return nil
	}
	var row outcome
	if err := row.decode(value); err != nil {
		return err
	}
	var batch []keptFrom
	if row.next != nil {
		for _, c := range row.next.Claims {
			batch = append(batch, keptFrom{c.PartitionID, c.From})
		}
	}
	if row.answer == nil || batch != nil {
		k.outcomes[id] = batch
	}
	return nil
}

// keepValue notes the value that a row names, if it names one.
func keepValue(in map[string]uint64, key, value []byte, decode func([]byte) error, id *uint64) error {
	delete(in, string(key))
	if value == nil {
		return nil
	}
	if err := decode(value); err != nil {
		return err
	}
	if *id != 0 {
		in[string(key)] = *id
	}
	return nil
}

// LoadDeleteRange takes the removal of outcomes. For other rows it has nothing to do: ranges are removed of the sets of a
// cursor, and of queues that are deleted, of which nothing is kept whatever rows there are.
func (k *Kept) LoadDeleteRange(lo, hi []byte) error {
	if len(lo) != 9 || lo[0] != rowOutcome {
		return nil
	}
	first, end, err := outcomeRange(lo, hi)
	if err != nil {
		return err
	}
	if end-first > uint64(len(k.outcomes)) {
		maps.DeleteFunc(k.outcomes, func(id uint64, _ []keptFrom) bool { return first <= id && id < end })
		return nil
	}
	for id := first; id < end; id++ {
		delete(k.outcomes, id)
	}
	return nil
}

// Queue reports whether a queue exists.
func (k *Kept) Queue(id uint64) bool {
	q := k.queues[id]
	return q != nil && !q.deleted
}

// Partition is the log start of a partition, and for how many microseconds the ids of its messages outlive them. exists
// false: nothing of it is needed.
func (k *Kept) Partition(id uint64) (start uint64, outlives int64, exists bool) {
	p, ok := k.parts[id]
	if !ok || p.q.deleted {
		return 0, 0, false
	}
	if k.pins == nil {
		k.makePins()
	}
	if from, ok := k.pins[id]; ok {
		return min(p.start, from), p.q.outlives, true
	}
	return p.start, p.q.outlives, true
}

// makePins finds what kept answers repeat of partitions: it outlives retention for as long as the outcome.
func (k *Kept) makePins() {
	k.pins = map[uint64]uint64{}
	for _, batch := range k.outcomes { // the order reaches nothing
		for _, b := range batch {
			if from, ok := k.pins[b.partition]; !ok || b.from < from {
				k.pins[b.partition] = b.from
			}
		}
	}
}

// Trimmed reports whether messages are gone of one of the queues for which owns is true.
func (k *Kept) Trimmed(owns func(queue uint64) bool) bool {
	for id, q := range k.queues { // the order reaches nothing
		if (q.trimmed || q.deleted) && owns(id) {
			return true
		}
	}
	return false
}

// Value reports whether a row names a value.
func (k *Kept) Value(id uint64) bool {
	if k.values == nil {
		k.values = make(map[uint64]struct{}, len(k.letters)+len(k.timers))
		for key, v := range k.letters { // the order reaches nothing
			if k.Queue(binary.BigEndian.Uint64([]byte(key[1:]))) {
				k.values[v] = struct{}{}
			}
		}
		for _, v := range k.timers {
			k.values[v] = struct{}{}
		}
	}
	if _, ok := k.outcomes[id]; ok {
		return true
	}
	_, ok := k.values[id]
	return ok
}
