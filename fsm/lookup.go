package fsm

import (
	"bytes"
	"fmt"

	"queen/internal/entry"
)

// Lookups is what calls need from the disk before they can be planned. It is
// used off the loop.
type Lookups interface {
	ReadMessages(queue, partition, from, to uint64, fn func(offset uint64, timeMicros int64, m *entry.Message) error) error
	FindTime(queue, partition uint64, t int64) (offset uint64, ok bool, err error)
	FindTxn(queue, partition uint64, txn []byte, fn func(offset uint64, timeMicros int64, id [16]byte) bool) error
	Value(id, queue uint64) ([]byte, error)
	// AppendTimes is named by the caller of Resolve, since its result type is the log's.
}

// AppendTimes lists (first offset, count, time) of up to max appends from an offset on.
type AppendTimes func(queue, partition, from uint64, max int, fn func(first uint64, count uint32, timeMicros int64)) error

type needKind uint8

const (
	needTxn     needKind = iota + 1 // offsets of a transactionId in sealed files
	needMessage                     // one message, encoded
	needTime                        // first offset at or after a time
	needTimes                       // append times from an offset on
	needValue
	needRetire // first offset at or after a time, and when it was appended
	needID     // the id of the message with a transactionId at an offset
)

// need is one look-up of a call, and its result once done.
type need struct {
	kind      needKind
	queue     uint64
	partition uint64
	txn       []byte
	offset    uint64
	time      int64
	value     uint64
	// since is how far back memory reached when the look-up was asked for. What
	// was evicted later may be neither in memory nor in the result (F12).
	since int64
	// lenient: an error is the planner's to judge, as nothing found.
	lenient bool
	done    bool

	at    uint64 // needTime, needRetire
	hits  []hit
	data  []byte
	id    [16]byte // needID
	found bool
	err   error // internal calls only
	runs  []appendRun
}

type hit struct {
	offset uint64
	time   int64
}

type appendRun struct {
	first uint64
	count uint32
	time  int64
}

// need returns the result of a transactionId look-up that is good for memory
// as it is now, or asks for it and returns nil.
func (c *Call) need(kind needKind, p *partition, txn []byte, since int64) *need {
	for i := range c.needs {
		n := &c.needs[i]
		if n.kind == kind && n.partition == p.id && bytes.Equal(n.txn, txn) {
			if n.done && n.since >= since {
				return n
			}
			n.done, n.since = false, since
			return nil
		}
	}
	c.needs = append(c.needs, need{kind: kind, queue: p.q.id, partition: p.id, txn: txn, since: since})
	return nil
}

// failed reports whether the look-up of a transactionId ended in an error, which
// only internal calls get to see.
func (c *Call) failed(p *partition, txn []byte) bool {
	for i := range c.needs {
		if n := &c.needs[i]; p != nil && n.kind == needTxn && n.partition == p.id && bytes.Equal(n.txn, txn) {
			return n.err != nil
		}
	}
	return false
}

// needAt is need for the look-ups that name an offset or a time.
func (c *Call) needAt(n need) *need {
	for i := range c.needs {
		o := &c.needs[i]
		if o.kind == n.kind && o.partition == n.partition && o.offset == n.offset && o.time == n.time && o.value == n.value {
			if o.done {
				return o
			}
			return nil
		}
	}
	c.needs = append(c.needs, n)
	return nil
}

// Resolve makes the look-ups that the planner asked for. It runs off the loop;
// the call is then planned again.
func (c *Call) Resolve(l Lookups, times AppendTimes) error {
	for i := range c.needs {
		n := &c.needs[i]
		if n.done {
			continue
		}
		if n.err = n.resolve(l, times); n.err != nil && !c.internal && !n.lenient {
			if p := nextOf(c); p.planned() {
				p.hopeless = true // the call was carried out, whatever its claim gets
				return nil
			}
			err := n.err
			n.err = nil
			return fmt.Errorf("look-up for partition %d: %w", n.partition, err)
		}
		n.done = true
	}
	return nil
}

func (n *need) resolve(l Lookups, times AppendTimes) (err error) {
	switch n.kind {
	case needTxn:
		n.hits = n.hits[:0]
		return l.FindTxn(n.queue, n.partition, n.txn, func(offset uint64, t int64, _ [16]byte) bool {
			n.hits = append(n.hits, hit{offset, t})
			return true
		})
	case needMessage:
		return l.ReadMessages(n.queue, n.partition, n.offset, n.offset, func(_ uint64, _ int64, m *entry.Message) error {
			n.data, n.found = entry.AppendMessage(nil, m), true
			return nil
		})
	case needTime:
		n.at, n.found, err = l.FindTime(n.queue, n.partition, n.time)
		return err
	case needTimes:
		return times(n.queue, n.partition, n.offset, 256, func(first uint64, count uint32, t int64) {
			n.runs = append(n.runs, appendRun{first, count, t})
		})
	case needRetire:
		if n.at, n.found, err = l.FindTime(n.queue, n.partition, n.time); err != nil || !n.found {
			return err
		}
		return times(n.queue, n.partition, n.at, 1, func(first uint64, count uint32, t int64) {
			n.runs = append(n.runs, appendRun{first, count, t})
		})
	case needID:
		return n.resolveID(l)
	case needValue:
		n.data, err = l.Value(n.value, n.queue)
		return err
	}
	return nil
}
