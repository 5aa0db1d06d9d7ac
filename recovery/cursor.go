package recovery

import (
	"errors"
	"fmt"
	"iter"
	"path"
	"slices"

	"queen/internal/entry"
	"queen/internal/plant"
	"queen/raftlog"
	"queen/segment"
)

// place is a position in a log.
type place struct {
	q   *raftlog.QueueLog
	seq uint64
	pos int64
}

func (p place) file() string { return path.Join(p.q.Log.Dir(), segment.FileName(p.seq)) }
func (p place) String() string {
	return fmt.Sprintf("%s pos %d", p.file(), p.pos)
}

// item is one record of a log. It aliases the scan's buffer until the next.
type item struct {
	at    place
	end   int64
	body  []byte
	rec   entry.Record
	known bool // its file is sealed: look-ups know it already
}

// badEnd is where the readable part of a log ends before its files do.
type badEnd struct {
	at    place
	what  string
	err   error // the segment's own words; nil for zeros and stale records
	zeros bool  // only zeros follow: space that was prepared, or data that is gone
}

// scanFile is one file that a boot reads.
type scanFile struct {
	seq    uint64
	size   int64
	sealed bool
	newest bool
}

// cursor walks over the records of one log in order.
type cursor struct {
	q      *raftlog.QueueLog
	files  []scanFile
	window int // bytes of a file that are kept in memory

	next  func() (item, bool)
	stop  func()
	cur   item
	has   bool
	start place // of the first record with cur's index
	last  uint64

	end    place // end of the readable part
	bad    *badEnd
	cutAt  place // where a cut has to truncate; seq 0: nothing to cut
	claims func(*item) (proven uint64)
	recent []mark // where entries begin, rising; those that are proven durable are forgotten
	upTo   uint64 // nothing behind this entry is looked at; 0: everything is
	err    error
}

// mark is where an entry begins in a log.
type mark struct {
	index uint64
	at    place
}

// recentMarks is how many marks are kept before proven ones are looked for.
const recentMarks = 64

// above is where the first entry begins that is newer than one.
func (c *cursor) above(index uint64) (at place, ok bool) {
	for _, m := range c.recent {
		if m.index > index {
			return m.at, true
		}
	}
	return at, false
}

// newCursor starts before the first record; claims is called for every
// readable record, also for those behind a bad one.
func newCursor(q *raftlog.QueueLog, files []scanFile, window int, claims func(*item) uint64) *cursor {
	return newCursorUpTo(q, files, window, claims, 0)
}

// newCursorUpTo is newCursor for a log that grows: what is behind an entry may
// be half written.
func newCursorUpTo(q *raftlog.QueueLog, files []scanFile, window int, claims func(*item) uint64, upTo uint64) *cursor {
	c := &cursor{q: q, files: files, window: window, claims: claims, upTo: upTo}
	c.next, c.stop = iter.Pull(c.records)
	c.advance()
	return c
}

// advance moves to the next record of the log. A record whose index is lower
// than the one before does not continue the log: it is an old one behind its
// end, and the log ends there (B25).
func (c *cursor) advance() {
	it, ok := c.next()
	if ok && c.upTo != 0 && it.rec.Index > c.upTo {
		ok = false
		c.stop()
	}
	if ok && it.rec.Index < c.last {
		c.bad = &badEnd{at: it.at, what: fmt.Sprintf("a record of entry %d after one of entry %d", it.rec.Index, c.last)}
		c.end = it.at
		ok = false
		c.stop()
	}
	if !ok {
		c.has = false
		return
	}
	begins := !c.has || it.rec.Index != c.last
	if begins {
		c.start = it.at
	}
	c.cur, c.has, c.last = it, true, it.rec.Index
	c.end = place{c.q, it.at.seq, it.end}
	proven := c.claims(&c.cur)
	if begins {
		c.recent = append(c.recent, mark{it.rec.Index, it.at})
	}
	if len(c.recent) > recentMarks {
		c.recent = slices.DeleteFunc(c.recent, func(m mark) bool { return m.index <= proven })
	}
}

// records yields the records of the log's files, until an end that is not the
// file's own.
func (c *cursor) records(yield func(item) bool) {
	for _, f := range c.files {
		stopped := false
		end, err := c.q.Log.ScanWindow(f.seq, 0, c.window, func(pos int64, body []byte) error {
			it, err := c.item(f, pos, body)
			if err != nil {
				return err
			}
			if !yield(it) {
				stopped = true
				return errStopped
			}
			return nil
		})
		if stopped {
			return
		}
		at := place{c.q, f.seq, end}
		var torn *segment.TornError
		switch {
		case plant.Is(plant.BadSumIsEnd) && (errors.As(err, &torn) || errors.Is(err, segment.ErrCorrupt)):
			return
		case errors.As(err, &torn):
			c.bad = &badEnd{at: place{c.q, f.seq, torn.Pos}, what: torn.What, err: torn}
			c.end = c.bad.at
			c.claimsAfter(torn)
			if torn.Unsearched > 0 {
				// What was not searched may hold a record that proves this one durable.
				c.err = &RefuseError{File: at.file(), Pos: torn.Pos, What: torn.What, Expected: torn.Expected, Found: torn.Found, Err: torn}
			}
			return
		case err != nil:
			c.err = scanError(at, err)
			return
		case end < f.size && !f.newest:
			c.err = &RefuseError{File: at.file(), Pos: end, What: "zeros at the end of a file that was finished",
				Expected: fmt.Sprintf("records up to byte %d", f.size), Found: fmt.Sprintf("records up to byte %d", end)}
			return
		case end < f.size:
			c.bad = &badEnd{at: at, what: fmt.Sprintf("%d zero bytes", f.size-end), zeros: true}
			c.end = at
			return
		}
	}
}

var errStopped = errors.New("stopped")

func (c *cursor) item(f scanFile, pos int64, body []byte) (item, error) {
	at := place{c.q, f.seq, pos}
	rec, err := entry.ParseRecord(body)
	if err != nil {
		return item{}, &RefuseError{File: at.file(), Pos: pos, What: "a record with a good checksum does not parse", Err: err,
			Do: "It was written by another build: run the newest one that ever ran on this directory"}
	}
	return item{at: at, end: pos + segment.RecordHeaderSize + int64(len(body)), body: body, rec: rec, known: f.sealed}, nil
}

// claimsAfter reads what valid records behind a bad one say: they tell damage
// from a write that no sync had covered.
func (c *cursor) claimsAfter(torn *segment.TornError) {
	for torn != nil && torn.RecordsAfter > 0 {
		_, err := c.q.Log.Scan(torn.Seq, torn.NextPos, func(pos int64, body []byte) error {
			rec, err := entry.ParseRecord(body)
			if err == nil {
				c.claims(&item{at: place{c.q, torn.Seq, pos}, rec: rec})
			}
			return nil
		})
		next := torn
		torn = nil
		if errors.As(err, &torn) && torn.Pos <= next.Pos {
			return
		}
	}
}

// scanError turns an error of a scan into a refusal, or leaves it an I/O error.
func scanError(at place, err error) error {
	var refused *RefuseError
	var corrupt *segment.CorruptError
	switch {
	case errors.As(err, &refused):
		return err
	case errors.As(err, &corrupt):
		return &RefuseError{File: corrupt.File, Pos: corrupt.Pos, What: corrupt.What, Expected: corrupt.Expected, Found: corrupt.Found, Err: segment.ErrCorrupt}
	case errors.Is(err, segment.ErrNewerFormat):
		return fmt.Errorf("%w: %w", ErrNewerFormat, err)
	}
	return fmt.Errorf("read %s: %w", at, err)
}
