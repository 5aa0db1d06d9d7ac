package index

import (
	"errors"
	"fmt"
	"path"
	"slices"
)

// Verify reads every table whole: all checksums, and that entries rise and are
// as many as the table says. Damage is returned, one error for each damaged
// table, and noted, so that Broken names the files. Look-ups go on meanwhile.
//
// paid, unless nil, is told of the bytes that were read, some at a time; it may
// wait. An error of it ends Verify and is returned as it is.
func (x *LogIndex) Verify(paid func(bytes int64) error) error {
	var all []error
	var stop error
	pay := func(n int64) error {
		if paid != nil {
			stop = paid(n)
		}
		return stop
	}
	for _, p := range x.snapshot().pairs {
		err := p.verify(pay)
		switch {
		case stop != nil:
			return stop
		case err != nil:
			if err = x.verifyAlone(p); err != nil {
				all = append(all, err)
			}
		}
	}
	return errors.Join(all...)
}

// verifyAlone verifies a pair while nothing replaces tables: new ones have their
// names before they are in the list. One that does not count any more is sound.
func (x *LogIndex) verifyAlone(p *tablePair) error {
	x.maintenance.Lock()
	defer x.maintenance.Unlock()
	if !x.snapshotHas(p) {
		return nil
	}
	err := p.verify(func(int64) error { return nil })
	if isDamage(err) {
		x.markBroken(p, err)
	}
	return err
}

// snapshotHas reports whether the tables of a pair still count.
func (x *LogIndex) snapshotHas(p *tablePair) bool {
	return slices.ContainsFunc(x.snapshot().pairs, p.sameTables)
}

// sameTables tells whether two pairs have the same tables open; for how many of
// their files they speak may differ.
func (p *tablePair) sameTables(q *tablePair) bool { return p.idx == q.idx && p.dedup == q.dedup }

func (p *tablePair) verify(pay func(bytes int64) error) error {
	for _, t := range []*table{p.idx, p.dedup} {
		if err := t.verifyEnds(p); err != nil {
			return err
		}
	}
	err := verifySection(p, p.idx, sectionAppends, decodeAppends, func(a, b *AppendRef) bool {
		return a.Partition < b.Partition || a.Partition == b.Partition && a.First < b.First
	}, func(r *AppendRef) uint64 { return spreadKey(r.Partition) }, pay)
	if err != nil {
		return err
	}
	err = verifySection(p, p.idx, sectionValues, decodeValues, func(a, b *valueRef) bool { return a.id < b.id }, nil, pay)
	if err != nil {
		return err
	}
	return verifySection(p, p.dedup, sectionTxns, decodeTxns, func(a, b *txnRef) bool { return a.compare(*b) <= 0 },
		func(t *txnRef) uint64 { return t.hash }, pay)
}

// verifyEnds reads again what was read when the table was opened: header,
// footer and meta.
func (t *table) verifyEnds(p *tablePair) error {
	kind := uint32(tableIdx)
	if t == p.dedup {
		kind = tableDedup
	}
	again, err := openTable(t.fs, path.Dir(t.name), p.level, p.first, p.last, kind, t.cache)
	if err == nil && !slices.Equal(again.files, t.files) {
		err = corruptValue(t.name, 0, "files described", t.files, again.files)
	}
	return err
}

// verifyAtOnce is how many entries are decoded between two payments, about: a
// block has some hundreds.
const verifyAtOnce = 4096

// verifySection checks one section; key, when not nil, is what its filter must
// know of an entry.
func verifySection[T any](p *tablePair, t *table, typ uint32, decode func([]T, []byte) ([]T, error), rises func(a, b *T) bool, key func(*T) uint64, pay func(bytes int64) error) error {
	s := t.section(typ)
	var pages [][]byte
	for i := range int64(s.filterPages) {
		b, err := t.part(s.filterPos+i*(filterPageSize+sumSize), filterPageSize, "filter page")
		if err != nil {
			return err
		}
		pages = append(pages, b)
		if err := pay(filterPageSize + sumSize); err != nil {
			return err
		}
	}
	r, err := newEntryReader(p, t, typ, decode, nil)
	if err != nil {
		return err
	}
	rest := s.sparsePos - s.blocksPos + int64(s.blocks)*sparseEntrySize // bytes that are not paid for yet
	var n uint64
	var prev T
	for h := r.head(); h != nil; h = r.head() {
		if n > 0 && !rises(&prev, h) {
			return corruptValue(t.name, s.blocksPos, "order of entries", "rising", fmt.Sprintf("%+v before %+v", prev, *h))
		}
		if key != nil && len(pages) > 0 {
			line, probes := filterPlace(key(h), s.filterPages)
			if !filterHas(pages[line/linesPerPage], line, probes) {
				return corruptValue(t.name, s.filterPos, "filter", "all keys", fmt.Sprintf("none of %+v", *h))
			}
		}
		prev = *h
		if n++; n%verifyAtOnce == 0 {
			part := min(rest, verifyAtOnce*(s.sparsePos-s.blocksPos)/int64(max(s.entries, 1)))
			rest -= part
			if err := pay(part); err != nil {
				return err
			}
		}
		if err := r.take(); err != nil {
			return err
		}
	}
	if n != s.entries {
		return corruptValue(t.name, s.blocksPos, "entries", s.entries, n)
	}
	return pay(rest)
}
