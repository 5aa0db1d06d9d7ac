package fsm

import (
	"slices"

	"github.com/cespare/xxhash/v2"
)

// capture is a checkpoint being taken: the rows that were dirty when it began,
// or (full) all rows. Rows are encoded when their turn comes, so a row may hold
// effects of entries planned meanwhile; effects are absolute, so replaying from
// the capture's start converges.
type capture struct {
	active bool
	full   *rowWalk
	rows   dirtyRows
	meta   bool
	// How far it has come in each of the lists.
	ranges, deletes, objects chunkPos
}

// dirtyRows are the rows that changed since a checkpoint began.
type dirtyRows struct {
	objects chunks[rowObject]
	deletes chunks[string]
	ranges  chunks[[2]string]
}

// BeginCapture starts a capture.
func (m *Machine) BeginCapture(full bool) {
	m.capture = capture{active: true, rows: m.dirty}
	m.dirty = dirtyRows{}
	if full {
		m.capture.full = &rowWalk{}
	}
}

// CaptureSome emits about max rows and reports whether all are out.
func (m *Machine) CaptureSome(max int, put func(key, value []byte), deleteRange func(lo, hi []byte)) bool {
	c := &m.capture
	if !c.meta {
		c.meta = true
		put([]byte{rowMeta}, m.s.encodeMeta(nil))
	}
	if c.full != nil {
		return m.s.walk(c.full, max, func(o rowObject) { m.captureRow(o, put) })
	}
	for ; max > 0; max-- {
		if !m.captureNext(put, deleteRange) {
			return true
		}
	}
	return false
}

// captureNext emits one row of a capture of what changed; false: all are out.
// What was deleted goes first: what was made again afterwards is dirty, and its
// row follows.
func (m *Machine) captureNext(put func(key, value []byte), deleteRange func(lo, hi []byte)) bool {
	c := &m.capture
	if r, ok := c.rows.ranges.next(&c.ranges); ok {
		deleteRange([]byte(r[0]), []byte(r[1]))
		return true
	}
	if key, ok := c.rows.deletes.next(&c.deletes); ok {
		if !m.s.madeAgain(key) {
			put([]byte(key), nil)
		}
		return true
	}
	o, ok := c.rows.objects.next(&c.objects)
	if ok {
		m.captureRow(o, put)
	}
	return ok
}

// madeAgain reports whether a row whose key was deleted is there again.
func (s *State) madeAgain(key string) (live bool) {
	switch key[0] {
	case rowKV:
		_, live = s.kv.Get(key[1:])
	case rowTimer:
		_, live = s.timers.Get(key[1:])
	}
	return live
}

func (m *Machine) captureRow(o rowObject, put func(key, value []byte)) {
	o.setDirty(false)
	if !o.alive() {
		return
	}
	buf := o.appendKey(m.scratch[:0])
	n := len(buf)
	buf = o.encode(buf)
	m.scratch = buf
	put(buf[:n], buf[n:])
	if c, ok := o.(*cursor); ok {
		c.chunkRows(put)
	}
}

// EndCapture tells how the capture ended. After false its rows count as
// changed again.
func (m *Machine) EndCapture(ok bool) {
	c := m.capture
	m.capture = capture{}
	if ok || !c.active {
		return
	}
	// All of them stand in the list again, whether their turn had come or not;
	// one that changed meanwhile stands there twice, which does no harm.
	for at := (chunkPos{}); ; {
		o, more := c.rows.objects.next(&at)
		if !more {
			break
		}
		o.setDirty(true)
	}
	m.dirty.objects.before(c.rows.objects)
	m.dirty.deletes.before(c.rows.deletes)
	m.dirty.ranges.before(c.rows.ranges)
}

// rowWalk is a place in the walk over all rows: kind by kind, in key order
// where that is cheap. Rows that appear behind it are not visited.
type rowWalk struct {
	stage  int
	queues []uint64
	qi     int
	part   uint64 // next partition id of queues[qi]
	headed bool   // queues[qi] and its groups are visited
	letter string // last dead letter of queues[qi] that was visited
	stats  statWalk
	key    string
	begun  bool
	id     uint64 // next outcome
}

// walk calls fn for about max further rows and reports whether it is through.
func (s *State) walk(w *rowWalk, max int, fn func(rowObject)) bool {
	if w.queues == nil {
		w.queues = sortedIDs(s.queues)
		fn(&s.switches)
	}
	for max > 0 {
		switch w.stage {
		case 0:
			if !s.walkQueues(w, &max, fn) {
				w.stage = 1
			}
		case 1, 2, 3:
			var last string
			n := 0
			visit := func(key string, o rowObject) bool {
				if w.begun && key == w.key {
					return true
				}
				fn(o)
				last = key
				n++
				return n < max
			}
			switch w.stage {
			case 1:
				s.kv.Ascend(w.key, func(key string, k *kvRow) bool { return visit(key, k) })
			case 2:
				s.timers.Ascend(w.key, func(key string, t *timer) bool { return visit(key, t) })
			case 3:
				s.redrives.Ascend(w.key, func(key string, j *redriveJob) bool { return visit(key, j) })
			}
			if n < max {
				w.stage++
				w.key, w.begun = "", false
			} else {
				w.key, w.begun = last, true
			}
			max -= n
		case 4:
			if !s.outcomes.walk(w, &max, fn) {
				w.stage = 5
			}
		case 5:
			if s.walkTotals(w, &max, fn) {
				w.stage = 6
			}
		default:
			return true
		}
	}
	return w.stage > 5
}

// walkQueues visits queues with their groups and letters, then their
// partitions with their cursors. It reports whether there is more.
func (s *State) walkQueues(w *rowWalk, max *int, fn func(rowObject)) bool {
	for w.qi < len(w.queues) && *max > 0 {
		q := s.queues[w.queues[w.qi]]
		if q == nil {
			w.qi, w.part, w.headed, w.letter, w.stats = w.qi+1, 0, false, "", statWalk{}
			continue
		}
		if w.part == 0 {
			if !w.headed {
				w.headed = true
				fn(q)
				for _, g := range q.groups {
					fn(g)
					if g.mark != nil {
						fn(g.mark)
						*max--
					}
				}
				for _, g := range q.dying {
					fn(g.mark)
				}
				*max -= 1 + len(q.groups) + len(q.dying)
			}
			if !q.walkLetters(w, max, fn) {
				return true
			}
			if own := q.stats; own != nil && own.q == q && !own.walk(&w.stats, max, fn) {
				return true
			}
			w.part, w.headed, w.letter, w.stats = 1, false, "", statWalk{}
		}
		i, _ := slices.BinarySearchFunc(q.parts, w.part, func(p *partition, id uint64) int { return compareID(p.id, id) })
		for ; i < len(q.parts) && *max > 0; i++ {
			p := q.parts[i]
			fn(p)
			for _, c := range p.cursors {
				if c.row {
					fn(c)
				}
			}
			*max -= 1 + len(p.cursors)
			w.part = p.id + 1
		}
		if i == len(q.parts) {
			w.qi, w.part = w.qi+1, 0
		}
	}
	return w.qi < len(w.queues)
}

// walkLetters visits dead letters behind w.letter; false: the budget is used up.
func (q *queue) walkLetters(w *rowWalk, max *int, fn func(rowObject)) (through bool) {
	through = true
	q.letters.Ascend(w.letter, func(key string, l *deadLetter) bool {
		if key == w.letter {
			return true
		}
		if through = *max > 0; through {
			fn(l)
			w.letter = key
			*max--
		}
		return through
	})
	return through
}

// Digest is a hash of the whole state: the sum of the hashes of its rows. Two
// machines that applied the same entries have the same digest.
func (m *Machine) Digest() uint64 {
	sum := xxhash.Sum64(m.s.encodeMeta([]byte{rowMeta}))
	var buf, row []byte
	add := func(key, value []byte) {
		buf = putString(buf[:0], key)
		buf = append(buf, value...)
		sum += xxhash.Sum64(buf)
	}
	m.s.walk(&rowWalk{}, 1<<62, func(o rowObject) {
		if !o.alive() {
			return
		}
		row = o.appendKey(row[:0])
		n := len(row)
		row = o.encode(row)
		add(row[:n], row[n:])
		if c, ok := o.(*cursor); ok {
			c.chunkRows(add)
		}
	})
	return sum
}

// RowBytes is the size of all rows: what the state is on disk, and in proportion to what it takes in memory. It walks
// every row, as Digest does.
func (m *Machine) RowBytes() (n int64) {
	add := func(key, value []byte) { n += int64(len(key) + len(value)) }
	m.s.walk(&rowWalk{}, 1<<62, func(o rowObject) {
		if o.alive() {
			add(o.appendKey(nil), o.encode(nil))
			if c, ok := o.(*cursor); ok {
				c.chunkRows(add)
			}
		}
	})
	return n
}
