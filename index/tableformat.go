package index

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/cespare/xxhash/v2"
)

// The byte functions of side tables (.idx, .dedup); FORMAT.md describes them.

const (
	tableMagic      = "queentbl"
	tableEndMagic   = "queentbe"
	tableVersion    = 1
	tableHeaderSize = 32
	tableFooterSize = 32
	sumSize         = 8
	sectionSize     = 56
	fileInfoSize    = 96
	blockTarget     = 4096 // bytes of entries after which a block ends
	maxBlock        = blockTarget + 64
	maxTableMeta    = 64 << 20
)

// Table kinds. The numbers are frozen.
const (
	tableIdx   = 1 // sections appends, values
	tableDedup = 2 // section txns
)

// Section types. The numbers are frozen.
const (
	sectionAppends = 1
	sectionValues  = 2
	sectionTxns    = 3
)

// AppendRef says where the record of an append is, and what it holds: Count
// messages of Partition from offset First on, appended at Time (microseconds).
type AppendRef struct {
	Seq       uint64 // segment file
	Pos       int64  // position of the record's header in it
	Partition uint64
	First     uint64
	Count     uint32
	Time      int64
}

// end is one past the last offset.
func (r *AppendRef) end() uint64 { return r.First + uint64(r.Count) }

// valueRef says where the record of a value is.
type valueRef struct {
	id, seq uint64
	pos     int64
}

// txnRef says that the message at offset has a transactionId with this hash.
type txnRef struct{ hash, offset uint64 }

func (a txnRef) compare(b txnRef) int {
	if a.hash != b.hash {
		return compareUint(a.hash, b.hash)
	}
	return compareUint(a.offset, b.offset)
}

func compareUint(a, b uint64) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// FileInfo is what a side table says of a segment file that it describes.
type FileInfo struct {
	Seq, Generation      uint64
	Size                 int64  // bytes of the segment file
	MinIndex, MaxIndex   uint64 // of the entries with records in it; 0: none
	MinTime, MaxTime     int64  // of the appends in it, microseconds; 0: none
	MinValue, MaxValue   uint64 // ids of the values in it; 0: none
	Appends, Values, IDs uint64 // how many of each
}

// section is where a sorted list of entries stands in a table.
type section struct {
	typ         uint32
	entries     uint64
	blocksPos   int64
	blocks      uint32
	sparsePos   int64
	filterPos   int64
	filterPages uint32
	keys        uint64 // what the filter was made for
}

func tableName(level int, first, last uint64, kind uint32) string {
	ext := ".idx"
	if kind == tableDedup {
		ext = ".dedup"
	}
	if level == 0 {
		return fmt.Sprintf("%020d%s", first, ext)
	}
	return fmt.Sprintf("l%d-%020d-%020d%s", level, first, last, ext)
}

// parseTableName reads a name that tableName gives.
func parseTableName(name string) (level int, first, last uint64, kind uint32, ok bool) {
	base, ok := strings.CutSuffix(name, ".idx")
	if kind = tableIdx; !ok {
		kind = tableDedup
		if base, ok = strings.CutSuffix(name, ".dedup"); !ok {
			return 0, 0, 0, 0, false
		}
	}
	if !strings.HasPrefix(base, "l") {
		first, ok = parseSeq(base, true)
		return 0, first, first, kind, ok
	}
	parts := strings.Split(base[1:], "-")
	if len(parts) != 3 || len(parts[0]) != 1 || parts[0][0] < '1' || parts[0][0] > '9' {
		return 0, 0, 0, 0, false
	}
	first, ok1 := parseSeq(parts[1], true)
	last, ok2 := parseSeq(parts[2], true)
	return int(parts[0][0] - '0'), first, last, kind, ok1 && ok2 && first <= last
}

// placedSum is the checksum of a part of a table: its place is in it, so that a
// part that landed elsewhere does not verify.
func placedSum(b []byte, pos int64) uint64 { return xxhash.Sum64(b) + uint64(pos) }

func appendTableHeader(dst []byte, kind uint32, level int) []byte {
	at := len(dst)
	dst = append(dst, tableMagic...)
	dst = binary.LittleEndian.AppendUint32(dst, tableVersion)
	dst = binary.LittleEndian.AppendUint32(dst, kind)
	dst = binary.LittleEndian.AppendUint32(dst, uint32(level))
	dst = binary.LittleEndian.AppendUint32(dst, 0)
	return binary.LittleEndian.AppendUint64(dst, xxhash.Sum64(dst[at:]))
}

func checkTableHeader(b []byte, file string, kind uint32, level int) error {
	if len(b) < tableHeaderSize {
		return corruptValue(file, 0, "header bytes", tableHeaderSize, len(b))
	}
	if string(b[:8]) != tableMagic {
		return corruptValue(file, 0, "magic", fmt.Sprintf("%q", tableMagic), fmt.Sprintf("%q", b[:8]))
	}
	if sum, want := xxhash.Sum64(b[:24]), binary.LittleEndian.Uint64(b[24:]); sum != want {
		return corruptSum(file, 0, "header", want, sum)
	}
	if v := binary.LittleEndian.Uint32(b[8:]); v > tableVersion {
		return fmt.Errorf("%s: table format version %d, this build reads up to %d: %w", file, v, tableVersion, ErrNewerFormat)
	} else if v != tableVersion {
		return corruptValue(file, 8, "version", tableVersion, v)
	}
	if k, l := binary.LittleEndian.Uint32(b[12:]), binary.LittleEndian.Uint32(b[16:]); k != kind || l != uint32(level) {
		return corruptValue(file, 12, "kind and level", []uint32{kind, uint32(level)}, []uint32{k, l})
	}
	return nil
}

func appendTableFooter(dst []byte, metaPos int64, metaLen int) []byte {
	at := len(dst)
	dst = append(dst, tableEndMagic...)
	dst = binary.LittleEndian.AppendUint64(dst, uint64(metaPos))
	dst = binary.LittleEndian.AppendUint64(dst, uint64(metaLen))
	return binary.LittleEndian.AppendUint64(dst, xxhash.Sum64(dst[at:]))
}

// parseTableFooter gives place and length of the meta block, without its sum.
func parseTableFooter(b []byte, file string, size int64) (metaPos int64, metaLen int, err error) {
	pos := size - tableFooterSize
	if string(b[:8]) != tableEndMagic {
		return 0, 0, corruptValue(file, pos, "end magic", fmt.Sprintf("%q", tableEndMagic), fmt.Sprintf("%q", b[:8]))
	}
	if sum, want := xxhash.Sum64(b[:24]), binary.LittleEndian.Uint64(b[24:]); sum != want {
		return 0, 0, corruptSum(file, pos, "footer", want, sum)
	}
	p, n := binary.LittleEndian.Uint64(b[8:]), binary.LittleEndian.Uint64(b[16:])
	if n > maxTableMeta || p > uint64(pos) || p+n+sumSize != uint64(pos) {
		return 0, 0, corruptValue(file, pos, "meta block", fmt.Sprintf("one that ends at %d", pos), fmt.Sprintf("pos %d length %d", p, n))
	}
	return int64(p), int(n), nil
}

func appendTableMeta(dst []byte, sections []section, files []FileInfo) []byte {
	le := binary.LittleEndian
	dst = le.AppendUint32(dst, uint32(len(sections)))
	for _, s := range sections {
		dst = le.AppendUint32(dst, s.typ)
		dst = le.AppendUint32(dst, s.blocks)
		dst = le.AppendUint64(dst, s.entries)
		dst = le.AppendUint64(dst, uint64(s.blocksPos))
		dst = le.AppendUint64(dst, uint64(s.sparsePos))
		dst = le.AppendUint64(dst, uint64(s.filterPos))
		dst = le.AppendUint32(dst, s.filterPages)
		dst = le.AppendUint32(dst, 0)
		dst = le.AppendUint64(dst, s.keys)
	}
	dst = le.AppendUint32(dst, uint32(len(files)))
	for _, f := range files {
		for _, v := range []uint64{f.Seq, f.Generation, uint64(f.Size), f.MinIndex, f.MaxIndex, uint64(f.MinTime), uint64(f.MaxTime),
			f.MinValue, f.MaxValue, f.Appends, f.Values, f.IDs} {
			dst = le.AppendUint64(dst, v)
		}
	}
	return dst
}

var errTableMeta = errors.New("malformed table meta")

func parseTableMeta(b []byte) (sections []section, files []FileInfo, err error) {
	le := binary.LittleEndian
	if len(b) < 4 || uint64(le.Uint32(b))*sectionSize > uint64(len(b)-4) {
		return nil, nil, fmt.Errorf("%w: sections", errTableMeta)
	}
	n := int(le.Uint32(b))
	b = b[4:]
	for range n {
		sections = append(sections, section{
			typ: le.Uint32(b), blocks: le.Uint32(b[4:]), entries: le.Uint64(b[8:]), blocksPos: int64(le.Uint64(b[16:])),
			sparsePos: int64(le.Uint64(b[24:])), filterPos: int64(le.Uint64(b[32:])), filterPages: le.Uint32(b[40:]), keys: le.Uint64(b[48:]),
		})
		b = b[sectionSize:]
	}
	if len(b) < 4 || uint64(le.Uint32(b))*fileInfoSize != uint64(len(b)-4) {
		return nil, nil, fmt.Errorf("%w: files", errTableMeta)
	}
	for b = b[4:]; len(b) > 0; b = b[fileInfoSize:] {
		v := func(i int) uint64 { return le.Uint64(b[8*i:]) }
		f := FileInfo{
			Seq: v(0), Generation: v(1), Size: int64(v(2)), MinIndex: v(3), MaxIndex: v(4), MinTime: int64(v(5)), MaxTime: int64(v(6)),
			MinValue: v(7), MaxValue: v(8), Appends: v(9), Values: v(10), IDs: v(11),
		}
		if k := len(files); k > 0 && files[k-1].Seq >= f.Seq {
			return nil, nil, fmt.Errorf("%w: files do not rise", errTableMeta)
		}
		files = append(files, f)
	}
	return sections, files, nil
}

// Entries of a block: the first one is relative to zero, each further one to
// the one before it.

func appendAppendEntry(dst []byte, prev, r *AppendRef) []byte {
	dst = binary.AppendUvarint(dst, r.Partition-prev.Partition)
	if r.Partition == prev.Partition {
		dst = binary.AppendUvarint(dst, r.First-prev.First)
	} else {
		dst = binary.AppendUvarint(dst, r.First)
	}
	dst = binary.AppendVarint(dst, int64(r.Seq-prev.Seq))
	dst = binary.AppendVarint(dst, r.Pos-prev.Pos)
	dst = binary.AppendUvarint(dst, uint64(r.Count))
	return binary.AppendVarint(dst, r.Time-prev.Time)
}

func appendValueEntry(dst []byte, prev, v *valueRef) []byte {
	dst = binary.AppendUvarint(dst, v.id-prev.id)
	dst = binary.AppendVarint(dst, int64(v.seq-prev.seq))
	return binary.AppendVarint(dst, v.pos-prev.pos)
}

func appendTxnEntry(dst []byte, prev, t *txnRef) []byte {
	dst = binary.AppendUvarint(dst, t.hash-prev.hash)
	return binary.AppendUvarint(dst, t.offset)
}

// blockReader takes numbers from a block; bad is set, and stays, when there is
// none. It counts a position instead of cutting its slice: decoding is most of
// what a look-up on a cold block costs.
type blockReader struct {
	b   []byte
	i   int
	bad bool
}

func (r *blockReader) more() bool { return r.i < len(r.b) }

func (r *blockReader) uvarint() uint64 {
	if r.i < len(r.b) && r.b[r.i] < 0x80 {
		r.i++
		return uint64(r.b[r.i-1])
	}
	v, n := binary.Uvarint(r.b[r.i:])
	if n <= 0 {
		r.bad, r.i = true, len(r.b)
		return 0
	}
	r.i += n
	return v
}

func (r *blockReader) varint() int64 {
	u := r.uvarint()
	return int64(u>>1) ^ -int64(u&1)
}

// numbersIn is how many numbers a block of them holds.
func numbersIn(b []byte) (n int) {
	for _, c := range b {
		n += int(^c >> 7)
	}
	return n
}

var errBlock = errors.New("malformed block")

// decodeAppends appends a block of appends to out. They rise by partition and
// offset.
func decodeAppends(out []AppendRef, b []byte) ([]AppendRef, error) {
	start := len(out)
	out = slices.Grow(out, numbersIn(b)/6)
	var prev AppendRef
	r := blockReader{b: b}
	for r.more() {
		e := prev
		step := r.uvarint()
		e.Partition += step
		if first := r.uvarint(); step == 0 {
			e.First += first
		} else {
			e.First = first
		}
		e.Seq += uint64(r.varint())
		e.Pos += r.varint()
		count := r.uvarint()
		e.Count = uint32(count)
		e.Time += r.varint()
		rises := e.Partition > prev.Partition || e.Partition == prev.Partition && e.First > prev.First
		if r.bad || count > 1<<32-1 || len(out) > start && !rises {
			return nil, fmt.Errorf("%w: append %d", errBlock, len(out)-start)
		}
		out = append(out, e)
		prev = e
	}
	return out, nil
}

// decodeValues appends a block of values, rising by id, to out.
func decodeValues(out []valueRef, b []byte) ([]valueRef, error) {
	start := len(out)
	out = slices.Grow(out, numbersIn(b)/3)
	var prev valueRef
	r := blockReader{b: b}
	for r.more() {
		e := prev
		e.id += r.uvarint()
		e.seq += uint64(r.varint())
		e.pos += r.varint()
		if r.bad || len(out) > start && e.id <= prev.id {
			return nil, fmt.Errorf("%w: value %d", errBlock, len(out)-start)
		}
		out = append(out, e)
		prev = e
	}
	return out, nil
}

// decodeTxns appends a block of hashes, which rise or stay, to out.
func decodeTxns(out []txnRef, b []byte) ([]txnRef, error) {
	out = slices.Grow(out, numbersIn(b)/2)
	hash := uint64(0)
	r := blockReader{b: b}
	for r.more() {
		step := r.uvarint()
		e := txnRef{hash: hash + step, offset: r.uvarint()}
		if r.bad || e.hash < hash {
			return nil, fmt.Errorf("%w: hash", errBlock)
		}
		out = append(out, e)
		hash = e.hash
	}
	return out, nil
}

// sparseEntry is the first entry of a block, and where the block is.
type sparseEntry struct {
	a, b uint64 // appends: partition, first offset; values: id; txns: hash
	time int64  // appends
	pos  int64
	size uint32 // with its sum
}

const sparseEntrySize = 28

func appendSparse(dst []byte, s []sparseEntry) []byte {
	for _, e := range s {
		dst = binary.LittleEndian.AppendUint64(dst, e.a)
		dst = binary.LittleEndian.AppendUint64(dst, e.b)
		dst = binary.LittleEndian.AppendUint64(dst, uint64(e.time))
		dst = binary.LittleEndian.AppendUint32(dst, e.size)
	}
	return dst
}

// parseSparse reads a sparse index; the blocks follow one another from pos on
// and end at end.
func parseSparse(b []byte, pos, end int64) ([]sparseEntry, error) {
	if len(b)%sparseEntrySize != 0 {
		return nil, fmt.Errorf("%w: sparse index of %d bytes", errBlock, len(b))
	}
	out := make([]sparseEntry, 0, len(b)/sparseEntrySize)
	for ; len(b) > 0; b = b[sparseEntrySize:] {
		e := sparseEntry{
			a: binary.LittleEndian.Uint64(b), b: binary.LittleEndian.Uint64(b[8:]),
			time: int64(binary.LittleEndian.Uint64(b[16:])), size: binary.LittleEndian.Uint32(b[24:]), pos: pos,
		}
		if k := len(out) - 1; e.size <= sumSize || e.size > maxBlock+sumSize || k >= 0 && (e.a < out[k].a || e.a == out[k].a && e.b < out[k].b) {
			return nil, fmt.Errorf("%w: sparse entry %d", errBlock, len(out))
		}
		pos += int64(e.size)
		out = append(out, e)
	}
	if pos != end {
		return nil, fmt.Errorf("%w: blocks end at %d, not %d", errBlock, pos, end)
	}
	return out, nil
}
