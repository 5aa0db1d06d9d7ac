package index

import (
	"errors"
	"slices"
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

// mergeEntries calls add for the entries of all readers, rising by key.
func mergeEntries[T any](readers []*entryReader[T], key func(*T) (hi, lo uint64), add func(T)) error {
	type head struct {
		hi, lo uint64
		r      *entryReader[T]
	}
	less := func(a, b *head) bool { return a.hi < b.hi || a.hi == b.hi && a.lo < b.lo }
	var heads []head
	for _, r := range readers {
		if e := r.head(); e != nil {
			hi, lo := key(e)
			heads = append(heads, head{hi, lo, r})
		}
	}
	for len(heads) > 0 {
		best := 0
		var second *head
		for i := 1; i < len(heads); i++ {
			if less(&heads[i], &heads[best]) {
				second, best = &heads[best], i
			} else if second == nil || less(&heads[i], second) {
				second = &heads[i]
			}
		}
		// Entries of one source often follow one another.
		h := &heads[best]
		for {
			add(*h.r.head())
			if err := h.r.take(); err != nil {
				return err
			}
			e := h.r.head()
			if e == nil {
				heads = slices.Delete(heads, best, best+1)
				break
			}
			if h.hi, h.lo = key(e); second != nil && less(second, h) {
				break
			}
		}
	}
	return nil
}

func (x *LogIndex) mergeIdx(w *tableWriter, sources []*tablePair) error {
	var appends []*entryReader[AppendRef]
	var values []*entryReader[valueRef]
	var nAppends, nValues, keys uint64
	for _, p := range sources {
		a, err := newEntryReader(p, p.idx, sectionAppends, decodeAppends, func(r AppendRef) bool { return p.isDead(r.Seq) })
		if err != nil {
			return err
		}
		v, err := newEntryReader(p, p.idx, sectionValues, decodeValues, func(v valueRef) bool { return p.isDead(v.seq) })
		if err != nil {
			return err
		}
		appends, values = append(appends, a), append(values, v)
		nAppends += p.idx.section(sectionAppends).entries
		nValues += p.idx.section(sectionValues).entries
		keys += p.idx.section(sectionAppends).keys
	}
	w.begin(sectionAppends, nAppends, keys)
	err := mergeEntries(appends, func(r *AppendRef) (uint64, uint64) { return r.Partition, r.First }, w.addAppend)
	if err != nil {
		return err
	}
	w.end()
	w.begin(sectionValues, nValues, 0)
	err = mergeEntries(values, func(v *valueRef) (uint64, uint64) { return v.id, 0 }, w.addValue)
	if err != nil {
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
		r, err := newEntryReader(p, p.dedup, sectionTxns, decodeTxns, nil)
		if err != nil {
			return err
		}
		readers = append(readers, r)
		n += p.dedup.section(sectionTxns).entries
	}
	w.begin(sectionTxns, n, n)
	if err := mergeEntries(readers, func(t *txnRef) (uint64, uint64) { return t.hash, t.offset }, w.addTxn); err != nil {
		return err
	}
	w.end()
	return w.err
}
