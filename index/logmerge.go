package index

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"queen/internal/vfs"
)

const (
	// mergeWidth is how many tables of one level become one of the next.
	mergeWidth = 8
	// maxMergeEntries bounds a merged table, and with it the memory of its
	// filter while it is written. Beyond it a level just grows: 16 million ids
	// are the messages of about 64 files.
	maxMergeEntries = 16 << 20
	maxLevel        = 9
)

// MergeSome merges eight tables of one level into one of the next, if there are
// eight; did tells. It belongs into the background: it reads and writes these
// tables whole, in memory bounded by one filter. The sources are removed when
// the merged table is durable. A damaged source is no error: it is left alone,
// and Broken names its files.
func (x *LogIndex) MergeSome() (did bool, err error) {
	x.maintenance.Lock()
	defer x.maintenance.Unlock()
	sources := x.mergeable()
	if len(sources) == 0 {
		return false, nil
	}
	first, last, level := sources[0].first, sources[0].last, 0
	var files []FileInfo
	for _, p := range sources {
		first, last, level = min(first, p.first), max(last, p.last), max(level, p.level+1)
		p.live(func(f *FileInfo) { files = append(files, *f) })
	}
	slices.SortFunc(files, func(a, b FileInfo) int { return compareUint(a.Seq, b.Seq) })
	first, last = files[0].Seq, files[len(files)-1].Seq
	err = x.writePair(level, first, last, files,
		func(w *tableWriter) error { return x.mergeIdx(w, sources) },
		func(w *tableWriter) error { return x.mergeDedup(w, sources) })
	var source *sourceError
	if errors.As(err, &source) && isDamage(source.err) {
		x.markBroken(source.pair, source.err)
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return true, x.publish(first, last, level, func(*tablePair) []*tablePair {
		x.mu.tables = newTableList(slices.DeleteFunc(slices.Clone(x.mu.tables.pairs), func(p *tablePair) bool {
			return slices.ContainsFunc(sources, p.sameName) // a reader may have marked a copy
		}))
		return sources
	})
}

// sourceError is an error of reading a pair that is being merged.
type sourceError struct {
	pair *tablePair
	err  error
}

func (e *sourceError) Error() string { return e.err.Error() }
func (e *sourceError) Unwrap() error { return e.err }

// mergeable gives the pairs to merge next; none: there are not eight.
func (x *LogIndex) mergeable() []*tablePair {
	x.mu.RLock()
	l := x.mu.tables
	unsealed := make([]uint64, 0, len(x.mu.memory))
	for _, m := range x.mu.memory {
		unsealed = append(unsealed, m.seq)
	}
	x.mu.RUnlock()
	for level := range maxLevel {
		var run []*tablePair
		for _, p := range l.pairs {
			if p.level == level {
				run = append(run, p)
			}
		}
		for s := 0; s+mergeWidth <= len(run); s++ {
			if group := mergeGroup(l, run[s:s+mergeWidth], unsealed); group != nil {
				return group
			}
		}
	}
	return nil
}

// mergeGroup is run with every pair that lies inside it; nil when these cannot
// become one: a file inside is not sealed yet, or is damaged, or it would be too
// large.
func mergeGroup(l *tableList, run []*tablePair, unsealed []uint64) (group []*tablePair) {
	first, last := run[0].first, run[len(run)-1].last
	if slices.ContainsFunc(unsealed, func(seq uint64) bool { return first < seq && seq < last }) {
		return nil
	}
	var entries uint64
	for _, p := range l.pairs {
		if p.first < first || p.first > last {
			continue
		}
		if p.broken || p.level > run[0].level {
			return nil
		}
		group = append(group, p)
		p.live(func(f *FileInfo) { entries += f.Appends + f.IDs })
	}
	if entries > maxMergeEntries {
		return nil
	}
	return group
}

// entryReader reads the entries of one section front to back, past the cache.
type entryReader[T any] struct {
	pair   *tablePair
	t      *table
	blocks []sparseEntry // not yet read
	decode func([]byte) ([]T, error)
	alive  func(*T) bool
	queue  []T // decoded, not yet taken
}

func newEntryReader[T any](p *tablePair, t *table, typ uint32, decode func([]byte) ([]T, error), alive func(*T) bool) (*entryReader[T], error) {
	s := t.section(typ)
	b, err := t.part(s.sparsePos, int(s.blocks)*sparseEntrySize, "sparse index")
	if err != nil {
		return nil, &sourceError{p, err}
	}
	blocks, err := parseSparse(b, s.blocksPos, s.sparsePos)
	if err != nil {
		return nil, &sourceError{p, corruptValue(t.name, s.sparsePos, "sparse index", "what was written", err)}
	}
	r := &entryReader[T]{pair: p, t: t, blocks: blocks, decode: decode, alive: alive}
	return r, r.fill()
}

// head is the next entry; nil: there is none.
func (r *entryReader[T]) head() *T {
	if len(r.queue) == 0 {
		return nil
	}
	return &r.queue[0]
}

func (r *entryReader[T]) take() error {
	r.queue = r.queue[1:]
	return r.fill()
}

// fill reads on until there is a live entry, or the section ends.
func (r *entryReader[T]) fill() error {
	for {
		for len(r.queue) > 0 && !r.alive(&r.queue[0]) {
			r.queue = r.queue[1:]
		}
		if len(r.queue) > 0 || len(r.blocks) == 0 {
			return nil
		}
		if err := r.read(); err != nil {
			return &sourceError{r.pair, err}
		}
	}
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
	b, err := readPart(f.f, r.t.name, pos, size)
	r.t.cache.release(f)
	if err != nil {
		return err
	}
	r.queue = nil
	for _, e := range r.blocks[:n] {
		body := b[e.pos-pos:][:e.size-sumSize]
		want := binary.LittleEndian.Uint64(b[e.pos-pos+int64(len(body)):])
		if sum := placedSum(body, e.pos); sum != want {
			return corruptSum(r.t.name, e.pos, "block", want, sum)
		}
		entries, err := r.decode(body)
		if err != nil {
			return corruptValue(r.t.name, e.pos, "block", "what was written", err)
		}
		r.queue = append(r.queue, entries...)
	}
	r.blocks = r.blocks[n:]
	return nil
}

// mergeEntries calls add for the entries of all readers in order.
func mergeEntries[T any](readers []*entryReader[T], compare func(a, b *T) int, add func(T)) error {
	for {
		var best *entryReader[T]
		for _, r := range readers {
			if h := r.head(); h != nil && (best == nil || compare(h, best.head()) < 0) {
				best = r
			}
		}
		if best == nil {
			return nil
		}
		add(*best.head())
		if err := best.take(); err != nil {
			return err
		}
	}
}

func (x *LogIndex) mergeIdx(w *tableWriter, sources []*tablePair) error {
	var appends []*entryReader[AppendRef]
	var values []*entryReader[valueRef]
	var nAppends, nValues, keys uint64
	for _, p := range sources {
		a, err := newEntryReader(p, p.idx, sectionAppends, decodeAppends, func(r *AppendRef) bool { return !p.isDead(r.Seq) })
		if err != nil {
			return err
		}
		v, err := newEntryReader(p, p.idx, sectionValues, decodeValues, func(v *valueRef) bool { return !p.isDead(v.seq) })
		if err != nil {
			return err
		}
		appends, values = append(appends, a), append(values, v)
		nAppends += p.idx.section(sectionAppends).entries
		nValues += p.idx.section(sectionValues).entries
		keys += p.idx.section(sectionAppends).keys
	}
	w.begin(sectionAppends, nAppends, keys)
	err := mergeEntries(appends, func(a, b *AppendRef) int {
		if a.Partition != b.Partition {
			return compareUint(a.Partition, b.Partition)
		}
		return compareUint(a.First, b.First)
	}, w.addAppend)
	if err != nil {
		return err
	}
	w.end()
	w.begin(sectionValues, nValues, 0)
	if err := mergeEntries(values, func(a, b *valueRef) int { return compareUint(a.id, b.id) }, w.addValue); err != nil {
		return err
	}
	w.end()
	return w.err
}

// mergeDedup merges hashes. They do not say of which file they are: those of
// dead files stay until the merged table goes.
func (x *LogIndex) mergeDedup(w *tableWriter, sources []*tablePair) error {
	var readers []*entryReader[txnRef]
	var n uint64
	for _, p := range sources {
		r, err := newEntryReader(p, p.dedup, sectionTxns, decodeTxns, func(*txnRef) bool { return true })
		if err != nil {
			return err
		}
		readers = append(readers, r)
		n += p.dedup.section(sectionTxns).entries
	}
	w.begin(sectionTxns, n, n)
	if err := mergeEntries(readers, func(a, b *txnRef) int { return a.compare(*b) }, w.addTxn); err != nil {
		return err
	}
	w.end()
	return w.err
}

func decodeTxns(b []byte) (out []txnRef, err error) {
	err = eachTxn(b, func(t txnRef) bool { out = append(out, t); return true })
	return out, err
}
