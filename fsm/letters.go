package fsm

import (
	"encoding/binary"
	"strings"
)

// Dead letters, as listings walk them: newest first, by their ids, which start
// with the time of the failure. A walk is made in slices (F24).

// letterSlice bounds how many dead letters one read or one cycle looks at.
const letterSlice = 1000

// DeadLetterFilter selects dead letters; empty strings and zeros match all. A
// listing that was not finished goes on with the same filter.
type DeadLetterFilter struct {
	Queue, Partition, Group string
	PartitionID             uint64
	From, To                int64 // microseconds, inclusive; 0: open
	Offset, Limit           int   // how many to skip, and to list; counted down

	after string // the last one that was looked at
}

func (f *DeadLetterFilter) matches(l *deadLetter) bool {
	return (f.Group == "" || l.group == f.Group) && (f.Partition == "" || l.partition == f.Partition) &&
		(f.PartitionID == 0 || l.partitionID == f.PartitionID) && (f.To == 0 || l.failed <= f.To)
}

// DeadLetters lists dead letters, newest failure first. more: a slice was looked
// at, and the same filter goes on behind it.
func (s *State) DeadLetters(tenant string, f *DeadLetterFilter) (out []DeadLetterInfo, more bool) {
	seen := 0
	visit := func(key string, l *deadLetter) bool {
		if key == f.after {
			return true
		}
		if f.Limit == 0 || l.failed < f.From {
			return false
		}
		if more = seen == letterSlice; more {
			return false
		}
		seen++
		f.after = key
		switch {
		case l.q.deleted || !f.matches(l):
		case f.Offset > 0:
			f.Offset--
		default:
			f.Limit--
			out = append(out, l.info())
		}
		return true
	}
	if f.Queue == "" {
		s.letterOrder.Descend(f.from(tenant), func(key string, l *deadLetter) bool {
			return strings.HasPrefix(key, tenant) && visit(key, l)
		})
		return out, more
	}
	if q := s.findQueue(tenant, f.Queue); q != nil {
		q.letters.Descend(f.from(""), visit)
	}
	return out, more
}

// from is the key where the walk begins or goes on.
func (f *DeadLetterFilter) from(prefix string) string {
	if f.after != "" {
		return f.after
	}
	if f.To == 0 {
		return prefix + "\xff"
	}
	id := timeID(f.To/1000 + 1)
	return prefix + string(id[:])
}

// timeID is the lowest id of a millisecond.
func timeID(ms int64) (id [16]byte) {
	for i := range 6 {
		id[i] = byte(uint64(ms) >> (40 - 8*i))
	}
	return id
}

// orderKey is a dead letter's key in the order of all queues.
func (l *deadLetter) orderKey() string { return l.q.tenant + string(l.id[:]) }

// placeKey is a dead letter's key in the order of places: partition, offset, id.
func (l *deadLetter) placeKey() string {
	return string(placeKey(l.partitionID, l.offset)) + string(l.id[:])
}

func placeKey(partition, offset uint64) []byte {
	return binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, partition), offset)
}

func (s *State) addLetter(l *deadLetter) {
	s.letters[l.id] = l
	l.q.letters.Set(string(l.id[:]), l)
	l.q.byPlace.Set(l.placeKey(), l)
	s.letterOrder.Set(l.orderKey(), l)
}

func (s *State) dropLetter(l *deadLetter) {
	l.dead = true
	delete(s.letters, l.id)
	l.q.letters.Delete(string(l.id[:]))
	l.q.byPlace.Delete(l.placeKey())
	s.letterOrder.Delete(l.orderKey())
}

// planPurge removes dead letters in slices: those that were there when it began.
func (m *Machine) planPurge(tenant string, p *PurgeDeadLetters) verdict {
	q := m.s.findQueue(tenant, p.Queue)
	if q == nil {
		return answered
	}
	if p.last == "" {
		p.Deleted = 0
		last, _, ok := q.letters.Max()
		if !ok {
			return answered
		}
		p.last = last
	}
	seen := 0
	var gone []*deadLetter
	q.letters.Ascend(p.after, func(key string, l *deadLetter) bool {
		if key > p.last || seen == letterSlice || len(gone) == sweepSliceRows {
			return false
		}
		seen++
		p.after = key
		if p.AnyGroup || l.group == p.Group {
			gone = append(gone, l)
		}
		return true
	})
	for _, l := range gone {
		m.deleteLetter(l)
	}
	p.Deleted += len(gone)
	if seen == letterSlice || len(gone) == sweepSliceRows {
		return unfinished
	}
	return answered
}
