package fsm

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"sort"

	"queen/index"
	"queen/internal/entry"
)

// This file is the way from rows and entries to the state: of a boot, and of a
// node that did not plan an entry itself. It writes rows only and looks at no
// derived structure (F13); build.go makes those.

// Apply applies a committed entry that this machine did not plan.
func (m *Machine) Apply(index, term uint64, data []byte) error {
	m.derived = false
	if len(data) == 0 {
		return nil // raft's own empty entry
	}
	e, err := entry.Parse(data)
	if err != nil {
		return fmt.Errorf("entry %d (term %d): %w", index, term, err)
	}
	// Effects first: the row of a new partition is written before its first
	// append, which says where the partition ends now.
	if err := m.applyEffects(e.Effects); err != nil {
		return fmt.Errorf("entry %d (term %d): %w", index, term, err)
	}
	for _, a := range e.Appends {
		if err := m.applyAppend(a); err != nil {
			return fmt.Errorf("entry %d (term %d): %w", index, term, err)
		}
	}
	m.s.time = max(m.s.time, e.Time)
	return nil
}

// Remember takes the ids of an append that the checkpoint already covers.
func (m *Machine) Remember(a entry.Append) error { return m.rememberIDs(a) }

func (m *Machine) rememberIDs(a entry.Append) error {
	rest := a.Messages
	var text [36]byte
	for i := range a.Count {
		msg, r, err := entry.NextMessage(rest)
		if err != nil {
			return fmt.Errorf("append at partition %d offset %d, message %d: %w", a.Partition, a.First, i, err)
		}
		rest = r
		txn := msg.Txn
		if msg.Minted {
			txn = msg.ID[:]
		}
		h := entry.TxnHash(a.Partition, msg.AppendTxn(text[:0]))
		m.dedup.Add(a.Partition, a.First+uint64(i), h, a.Time, txn, msg.Minted)
	}
	return nil
}

func (m *Machine) applyAppend(a entry.Append) error {
	p := m.s.loadPartition(a.Queue, a.Partition)
	p.next, p.lastAppend = a.First+uint64(a.Count), a.Time
	m.touchPartition(p)
	return m.rememberIDs(a)
}

func (m *Machine) applyEffects(b []byte) error {
	r := rowReader{b: b}
	for len(r.b) > 0 && r.err == nil {
		var err error
		switch op := r.byte(); op {
		case effectPut:
			key, value := r.bytes(), r.bytes()
			if r.err == nil {
				err = m.loadRow(key, value, true)
			}
		case effectDelete:
			if key := r.bytes(); r.err == nil {
				err = m.loadRow(key, nil, true)
			}
		case effectDeleteRange:
			lo, hi := r.bytes(), r.bytes()
			if r.err == nil {
				err = m.loadDeleteRange(lo, hi, true)
			}
		case effectSettle:
			qid, pid, gid, set, enc := r.uvarint(), r.uvarint(), r.uvarint(), r.byte(), r.bytes()
			if r.err == nil {
				err = m.loadSettled(m.s.loadCursor(qid, pid, gid), set, enc)
			}
		case effectReset:
			qid, pid, gid := r.uvarint(), r.uvarint(), r.uvarint()
			if r.err == nil {
				c := m.s.loadCursor(qid, pid, gid)
				c.sets = nil
				m.touchCursor(c)
				m.forgetSets(c)
			}
		default:
			err = fmt.Errorf("effect of unknown kind %d: this entry was written by a newer build", op)
		}
		if err != nil {
			return err
		}
	}
	return r.err
}

// LoadRow takes one row of the checkpoint; value nil: the row is gone.
func (m *Machine) LoadRow(key, value []byte) error {
	m.derived = false
	return m.loadRow(key, value, false)
}

// LoadDeleteRange removes the rows with lo <= key < hi.
func (m *Machine) LoadDeleteRange(lo, hi []byte) error {
	m.derived = false
	return m.loadDeleteRange(lo, hi, false)
}

// loadRow puts or removes one row. changed tells that it is not in the
// checkpoint yet, so the next one writes it.
func (m *Machine) loadRow(key, value []byte, changed bool) error {
	err := m.putRow(key, value, changed)
	if err != nil {
		return fmt.Errorf("row %x: %w", key, err)
	}
	if changed && value == nil {
		m.dirty.deletes.add(string(key))
	}
	return nil
}

func (m *Machine) putRow(key, value []byte, changed bool) error {
	s := m.s
	if len(key) == 0 {
		return errShortRow
	}
	k := rowReader{b: key[1:]}
	switch key[0] {
	case rowMeta:
		if value == nil {
			return fmt.Errorf("the counters were deleted")
		}
		return s.decodeMeta(value)
	case rowQueue:
		q := s.loadQueue(k.be64())
		if q.exists = value != nil && k.err == nil; !q.exists {
			return k.end()
		}
		if changed {
			m.touchQueue(q)
		}
		return q.decode(value)
	case rowPartition:
		qid, pid := k.be64(), k.be64()
		p := s.loadPartition(qid, pid)
		if p.exists = value != nil && k.err == nil; !p.exists {
			return k.end()
		}
		if changed {
			m.touchPartition(p)
		}
		return p.decode(value)
	case rowGroup:
		qid, gid := k.be64(), k.be64()
		g := s.loadGroup(qid, gid)
		if g.exists = value != nil && k.err == nil; !g.exists {
			return k.end()
		}
		if changed {
			m.touchGroup(g)
		}
		return g.decode(value)
	case rowCursor:
		qid, pid, gid := k.be64(), k.be64(), k.be64()
		c := s.loadCursor(qid, pid, gid)
		if c.row = value != nil && k.err == nil; !c.row {
			c.sets = nil
			return k.end()
		}
		if changed {
			m.touchCursor(c)
		}
		err := c.decode(value)
		c.dropSettled()
		return err
	case rowSettled:
		qid, pid, gid, set := k.be64(), k.be64(), k.be64(), k.byte()
		k.be64()
		if k.err != nil || value == nil {
			return k.end()
		}
		return m.loadSettled(s.loadCursor(qid, pid, gid), set, value)
	case rowLetter:
		return m.loadLetter(k.be64(), k.id(), k.err, value, changed)
	case rowSwitches:
		if err := k.end(); err != nil {
			return err
		}
		return m.loadSwitches(value, changed)
	case rowKV:
		return m.loadKV(string(key[1:]), value, changed)
	case rowTimer:
		return m.loadTimer(string(key[1:]), value, changed)
	case rowOutcome:
		return m.loadOutcome(k.be64(), k.err, value, changed)
	case rowStats:
		return m.loadStats(key, value, changed)
	case rowGroupMark:
		return m.loadMark(k.be64(), k.be64(), k.end(), value, changed)
	case rowRedrive:
		return m.loadRedrive(string(key[1:]), value, changed)
	default:
		return fmt.Errorf("row of unknown kind %d: it was written by a newer build", key[0])
	}
}

func (m *Machine) loadSettled(c *cursor, set byte, enc []byte) error {
	if set > 1 {
		return fmt.Errorf("set %d of a cursor", set)
	}
	ranges, err := index.DecodeRanges(enc)
	if err != nil {
		return err
	}
	for _, r := range ranges {
		if r.Hi-r.Lo >= index.ChunkOffsets {
			return fmt.Errorf("settled offsets %d to %d are more than the %d of a chunk", r.Lo, r.Hi, index.ChunkOffsets)
		}
	}
	if c.sets == nil {
		c.sets = &settledSets{}
	}
	for _, r := range ranges {
		if set == 0 {
			c.sets.settled.Add(r.Lo, r.Hi)
		} else {
			c.sets.other.Add(r.Lo, r.Hi)
		}
	}
	c.dropSettled()
	m.touchCursor(c)
	return nil
}

// dropSettled removes from the sets what the cursor has passed: the only
// removal besides a reset.
func (c *cursor) dropSettled() {
	if c.sets == nil || c.committed < 0 {
		return
	}
	c.sets.settled.RemoveThrough(uint64(c.committed))
	c.sets.other.RemoveThrough(uint64(c.committed))
	if c.sets.settled.Empty() && c.sets.other.Empty() {
		c.sets = nil
	}
}

func (m *Machine) loadLetter(qid uint64, id [16]byte, keyErr error, value []byte, changed bool) error {
	if keyErr != nil {
		return keyErr
	}
	q := m.s.loadQueue(qid)
	old := m.s.letters[id]
	if value == nil {
		if old != nil {
			m.s.dropLetter(old)
		}
		return nil
	}
	l := &deadLetter{id: id, q: q}
	if err := l.decode(value); err != nil {
		return err
	}
	if old != nil {
		old.dead = true
	}
	m.s.addLetter(l)
	if changed {
		m.touchLetter(l)
	}
	return nil
}

func (m *Machine) loadKV(key string, value []byte, changed bool) error {
	old, _ := m.s.kv.Get(key)
	if value == nil {
		if old != nil {
			old.dead = true
			m.s.kv.Delete(key)
			m.s.countKey(key, -1)
		}
		return nil
	}
	if old == nil {
		old = &kvRow{key: key, heapIdx: -1}
		m.s.kv.Set(key, old)
		m.s.countKey(key, 1)
	}
	if changed {
		m.touchKV(old)
	}
	return old.decode(value)
}

func (m *Machine) loadTimer(key string, value []byte, changed bool) error {
	old, _ := m.s.timers.Get(key)
	if old != nil {
		old.dead = true
		m.s.timers.Delete(key)
	}
	if value == nil {
		return nil
	}
	t := &timer{heapIdx: -1}
	if err := t.decode(key, value); err != nil {
		return err
	}
	m.s.timers.Set(key, t)
	if changed {
		m.touchTimer(t)
	}
	return nil
}

// The load functions find an object or make a placeholder for it.

func (s *State) loadQueue(id uint64) *queue {
	q := s.queues[id]
	if q == nil {
		q = &queue{id: id, byName: map[string]*partition{}, byGroup: map[string]*group{}}
		s.queues[id] = q
	}
	return q
}

func (s *State) loadPartition(qid, pid uint64) *partition {
	p := s.partitions[pid]
	if p == nil {
		q := s.loadQueue(qid)
		p = &partition{id: pid, q: q}
		s.partitions[pid] = p
		if n := len(q.parts); n > 0 && q.parts[n-1].id > pid {
			q.unsorted = true
		}
		q.parts = append(q.parts, p)
	}
	return p
}

func (s *State) loadGroup(qid, gid uint64) *group {
	g := s.groups[gid]
	if g == nil {
		q := s.loadQueue(qid)
		g = &group{id: gid, q: q}
		s.groups[gid] = g
		q.groups = append(q.groups, g)
	}
	return g
}

func (s *State) loadCursor(qid, pid, gid uint64) *cursor {
	p, g := s.loadPartition(qid, pid), s.loadGroup(qid, gid)
	c := p.cursor(g)
	if c == nil {
		c = &cursor{p: p, g: g, committed: -1, heapIdx: -1}
		p.addCursor(c)
	}
	return c
}

func (q *queue) sortParts() {
	if q.unsorted {
		slices.SortFunc(q.parts, func(a, b *partition) int { return compareID(a.id, b.id) })
		q.unsorted = false
	}
}

func compareID(a, b uint64) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// loadDeleteRange removes rows by key range. Ranges are only ever written for
// one kind and one queue (sweeper), one cursor's sets, or outcomes.
func (m *Machine) loadDeleteRange(lo, hi []byte, changed bool) error {
	if changed {
		m.dirty.ranges.add([2]string{string(lo), string(hi)})
	}
	if len(lo) < 9 || bytes.Compare(lo, hi) >= 0 {
		return fmt.Errorf("delete range %x to %x", lo, hi)
	}
	if lo[0] == rowOutcome {
		return m.loadOutcomesGone(lo, hi)
	}
	in := func(key []byte) bool { return bytes.Compare(lo, key) <= 0 && bytes.Compare(key, hi) < 0 }
	if lo[0] == rowStats {
		m.loadStatsRange(binary.BigEndian.Uint64(lo[1:]), lo, in)
		return nil
	}
	q := m.s.loadQueue(binary.BigEndian.Uint64(lo[1:]))
	switch lo[0] {
	case rowPartition:
		for _, p := range q.partsFrom(lo) {
			if !in(partitionKey(nil, p)) {
				break
			}
			p.exists = false
		}
	case rowCursor:
		for _, p := range q.partsFrom(lo) {
			if bytes.Compare(rowKey(nil, rowCursor, q.id, p.id), hi) >= 0 {
				break
			}
			for _, c := range p.cursors {
				if in(cursorKey(nil, c)) {
					c.row, c.sets = false, nil
				}
			}
		}
	case rowSettled:
		for _, p := range q.partsFrom(lo) {
			if bytes.Compare(rowKey(nil, rowSettled, q.id, p.id), hi) >= 0 {
				break
			}
			for _, c := range p.cursors {
				if in(rowKey(nil, rowSettled, q.id, p.id, c.g.id)) {
					c.sets = nil
				}
			}
		}
	case rowGroup:
		for _, g := range q.groups {
			if in(groupKey(nil, g)) {
				g.exists = false
			}
		}
	case rowGroupMark:
		for _, g := range slices.Concat(q.groups, q.dying) {
			if g.mark != nil && in(g.mark.appendKey(nil)) {
				g.mark.exists = false
			}
		}
	case rowLetter:
		var gone []*deadLetter
		q.letters.Ascend(string(lo[9:]), func(_ string, l *deadLetter) bool {
			if !in(letterKey(nil, l)) {
				return false
			}
			gone = append(gone, l)
			return true
		})
		for _, l := range gone {
			m.s.dropLetter(l)
		}
	default:
		return fmt.Errorf("delete range of row kind %d", lo[0])
	}
	return nil
}

// partsFrom are the queue's partitions from the one that a key names, by id.
func (q *queue) partsFrom(key []byte) []*partition {
	q.sortParts()
	if len(key) < 17 {
		return q.parts
	}
	id := binary.BigEndian.Uint64(key[9:])
	return q.parts[sort.Search(len(q.parts), func(i int) bool { return q.parts[i].id >= id }):]
}
