package fsm

import (
	"slices"

	"queen/internal/entry"
)

// Locate finds the messages of a partition with a transactionId. It reads what
// memory knows and, for what is older, the tables of sealed files (F12).
type Locate struct {
	PartitionID uint64
	Txn         []byte
	TxnHash     uint64 // xxhash64 of Txn

	// Result. Found: the partition is there.
	Found            bool
	Queue, Partition string
	QueueID          uint64
	Start, Next      uint64
	Options          Options
	Offsets          []uint64 // newest first; the ids of some may have outlived their messages
}

func (m *Machine) planLocate(c *Call, l *Locate) verdict {
	l.Found, l.Offsets = false, nil
	p := m.s.findPartition(c.Tenant, l.PartitionID)
	if p == nil {
		return answered
	}
	m.dedup.Lookup(p.id, entry.MixHash(p.id, l.TxnHash), l.Txn, func(o uint64, _ int64) bool {
		l.Offsets = append(l.Offsets, o)
		return true
	})
	if since := m.dedup.Since(); since > 0 && p.created <= since {
		n := c.need(needTxn, p, l.Txn, since)
		if n == nil {
			return again
		}
		for _, h := range n.hits {
			l.Offsets = append(l.Offsets, h.offset)
		}
	}
	slices.SortFunc(l.Offsets, func(a, b uint64) int { return compareID(b, a) })
	l.Offsets = slices.Compact(l.Offsets)
	l.Found, l.Queue, l.Partition, l.QueueID = true, p.q.name, p.name, p.q.id
	l.Start, l.Next, l.Options = p.start, p.next, p.q.opts
	return answered
}

// LettersAt lists the dead letters of a partition by place, those behind after
// (empty: from the first), a slice's worth. With an offset: those of that
// message only, and none that a timer left. next is where to go on; empty: that
// was all.
func (s *State) LettersAt(tenant string, partition uint64, offset *uint64, after string) (out []DeadLetterInfo, next string) {
	p := s.findPartition(tenant, partition)
	if p == nil {
		return nil, ""
	}
	lo, hi := placeKey(partition, 0), placeKey(partition+1, 0)
	if offset != nil {
		lo, hi = placeKey(partition, *offset), placeKey(partition, *offset+1)
	}
	seen, last := 0, ""
	p.q.byPlace.Ascend(max(string(lo), after), func(key string, l *deadLetter) bool {
		if key >= string(hi) {
			return false
		}
		if key == after {
			return true
		}
		if seen == letterSlice {
			next = last
			return false
		}
		seen++ // also those that are passed over: a timer can leave any number in one place
		last = key
		if offset == nil || l.group != TimerGroup {
			out = append(out, l.info())
		}
		return true
	})
	return out, next
}

// DeleteLetters removes dead letters, at most MaxDeleteLetters of them; what is
// gone already is passed over.
type DeleteLetters struct {
	IDs [][16]byte

	Deleted int // result
}

// MaxDeleteLetters bounds a DeleteLetters.
const MaxDeleteLetters = sweepSliceRows

func (m *Machine) planDeleteLetters(tenant string, d *DeleteLetters) verdict {
	d.Deleted = 0
	for _, id := range d.IDs[:min(len(d.IDs), MaxDeleteLetters)] {
		if l := m.s.letters[id]; l != nil && !l.q.deleted && l.q.tenant == tenant {
			m.deleteLetter(l)
			d.Deleted++
		}
	}
	return answered
}
