package index

import "math/bits"

// A filter says for a key that it is surely not in a section, or may be. It is
// a Bloom filter in lines of 64 bytes: one line holds all bits of a key, so a
// look-up is one cache miss and, when it has to be read, one page.

const (
	filterLine     = 64   // bytes
	filterPageSize = 4096 // bytes, without its sum
	linesPerPage   = filterPageSize / filterLine
	filterBits     = 12 // bits for each key: about 1% of the absent ones pass
	filterProbes   = 6
	maxFilterPages = 64 << 20 / filterPageSize // what a merge may take of memory
)

type filterBuilder struct {
	pages uint32
	lines []byte
}

// newFilter makes a filter for up to keys keys; 0 pages for a section that is
// one block anyway.
func newFilter(keys, entries uint64) *filterBuilder {
	if entries < 256 {
		return &filterBuilder{}
	}
	pages := min((keys*filterBits+filterPageSize*8-1)/(filterPageSize*8), maxFilterPages)
	return &filterBuilder{pages: uint32(pages), lines: make([]byte, pages*filterPageSize)}
}

func (f *filterBuilder) add(key uint64) {
	if f.pages == 0 {
		return
	}
	line, probes := filterPlace(key, f.pages)
	b := f.lines[line*filterLine : (line+1)*filterLine]
	for range filterProbes {
		b[probes&511>>3] |= 1 << (probes & 7)
		probes >>= 9
	}
}

// filterPlace gives a key's line, and its bits in that line, 9 bits each. The
// line rises with the key: a section of hashes, which is written in their order,
// fills its filter front to back. Keys are spread evenly: hashes, or spreadKey.
func filterPlace(key uint64, pages uint32) (line, probes uint64) {
	line, _ = bits.Mul64(key, uint64(pages)*linesPerPage)
	return line, key * 0x94D049BB133111EB >> 10
}

// spreadKey makes a key of a small number.
func spreadKey(n uint64) uint64 {
	n = (n ^ n>>30) * 0xBF58476D1CE4E5B9
	n = (n ^ n>>27) * 0x94D049BB133111EB
	return n ^ n>>31
}

// filterHas looks into the page that holds the line.
func filterHas(page []byte, line, probes uint64) bool {
	b := page[line%linesPerPage*filterLine:][:filterLine]
	for range filterProbes {
		if b[probes&511>>3]&(1<<(probes&7)) == 0 {
			return false
		}
		probes >>= 9
	}
	return true
}
