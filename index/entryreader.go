package index

import (
	"encoding/binary"
	"fmt"
	"slices"

	"queen/internal/vfs"
)

// entryReader reads the entries of one section front to back, past the cache:
// whoever reads a table whole would only push out what look-ups need. Its
// errors are sourceErrors.
type entryReader[T any] struct {
	pair   *tablePair
	t      *table
	blocks []sparseEntry // not yet read
	decode func(out []T, block []byte) ([]T, error)
	gone   func(T) bool // entries of dead files
	buf    []byte
	queue  []T // decoded
	next   int // in queue
}

// newEntryReader stands at the first entry. gone, unless nil, says which
// entries to pass over; it is asked only when the pair has dead files.
func newEntryReader[T any](p *tablePair, t *table, typ uint32, decode func([]T, []byte) ([]T, error), gone func(T) bool) (*entryReader[T], error) {
	s := t.section(typ)
	b, err := t.part(s.sparsePos, int(s.blocks)*sparseEntrySize, "sparse index")
	if err != nil {
		return nil, &sourceError{p, err}
	}
	blocks, err := parseSparse(b, s.blocksPos, s.sparsePos)
	if err != nil {
		return nil, &sourceError{p, corruptValue(t.name, s.sparsePos, "sparse index", "what was written", err)}
	}
	r := &entryReader[T]{pair: p, t: t, blocks: blocks, decode: decode}
	if gone != nil && len(p.dead) > 0 {
		r.gone = gone
	}
	return r, r.fill()
}

// head is the entry that the reader stands at; nil: the section has ended.
func (r *entryReader[T]) head() *T {
	if r.next == len(r.queue) {
		return nil
	}
	return &r.queue[r.next]
}

// take moves on by one entry.
func (r *entryReader[T]) take() error {
	if r.next++; r.next < len(r.queue) {
		return nil
	}
	return r.fill()
}

// fill reads on until there is an entry, or the section ends.
func (r *entryReader[T]) fill() error {
	for r.next == len(r.queue) && len(r.blocks) > 0 {
		if err := r.read(); err != nil {
			return &sourceError{r.pair, err}
		}
	}
	return nil
}

// read decodes the next blocks, as many as one read of tableFlush bytes takes.
func (r *entryReader[T]) read() error {
	n, size := 0, 0
	for ; n < len(r.blocks) && (n == 0 || size+int(r.blocks[n].size) <= tableFlush); n++ {
		size += int(r.blocks[n].size)
	}
	pos := r.blocks[0].pos
	f, err := r.t.cache.file(r.t.id, func() (vfs.File, error) { return r.t.fs.Open(r.t.name) })
	if err != nil {
		return fmt.Errorf("open table %s: %w", r.t.name, err)
	}
	r.buf = slices.Grow(r.buf[:0], size)[:size]
	err = readInto(f.f, r.t.name, pos, r.buf)
	r.t.cache.release(f)
	if err != nil {
		return err
	}
	r.queue, r.next = r.queue[:0], 0
	for _, e := range r.blocks[:n] {
		body := r.buf[e.pos-pos:][:e.size]
		body, sum := body[:e.size-sumSize], body[e.size-sumSize:]
		if found, want := placedSum(body, e.pos), binary.LittleEndian.Uint64(sum); found != want {
			return corruptSum(r.t.name, e.pos, "block", want, found)
		}
		if r.queue, err = r.decode(r.queue, body); err != nil {
			return corruptValue(r.t.name, e.pos, "block", "what was written", err)
		}
	}
	r.blocks = r.blocks[n:]
	if r.gone != nil {
		r.queue = slices.DeleteFunc(r.queue, r.gone)
	}
	return nil
}
