package index

import (
	"errors"
	"fmt"
)

// Verify reads every table whole: all checksums, and that entries rise and are
// as many as the table says. Damage is returned, one error for each damaged
// table, and noted, so that Broken names the files. Look-ups go on meanwhile.
func (x *LogIndex) Verify() error {
	var all []error
	for _, p := range x.snapshot().pairs {
		if err := p.verify(); err != nil {
			if x.snapshotHas(p) { // or it was replaced meanwhile
				all = append(all, err)
				if isDamage(err) {
					x.markBroken(p, err)
				}
			}
		}
	}
	return errors.Join(all...)
}

func (x *LogIndex) snapshotHas(p *tablePair) bool {
	for _, q := range x.snapshot().pairs {
		if p == q {
			return true
		}
	}
	return false
}

func (p *tablePair) verify() error {
	err := verifySection(p, p.idx, sectionAppends, decodeAppends, func(a, b *AppendRef) bool {
		return a.Partition < b.Partition || a.Partition == b.Partition && a.First < b.First
	}, func(r *AppendRef) uint64 { return spreadKey(r.Partition) })
	if err != nil {
		return err
	}
	err = verifySection(p, p.idx, sectionValues, decodeValues, func(a, b *valueRef) bool { return a.id < b.id }, nil)
	if err != nil {
		return err
	}
	return verifySection(p, p.dedup, sectionTxns, decodeTxns, func(a, b *txnRef) bool { return a.compare(*b) <= 0 },
		func(t *txnRef) uint64 { return t.hash })
}

// verifySection checks one section; key, when not nil, is what its filter must
// know of an entry.
func verifySection[T any](p *tablePair, t *table, typ uint32, decode func([]T, []byte) ([]T, error), rises func(a, b *T) bool, key func(*T) uint64) error {
	s := t.section(typ)
	var pages [][]byte
	for i := range int64(s.filterPages) {
		b, err := t.part(s.filterPos+i*(filterPageSize+sumSize), filterPageSize, "filter page")
		if err != nil {
			return err
		}
		pages = append(pages, b)
	}
	r, err := newEntryReader(p, t, typ, decode, nil)
	if err != nil {
		return err
	}
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
		n++
		if err := r.take(); err != nil {
			return err
		}
	}
	if n != s.entries {
		return corruptValue(t.name, s.blocksPos, "entries", s.entries, n)
	}
	return nil
}
