package index

import (
	"encoding/binary"
	"fmt"

	"queen/internal/vfs"
)

const tableFlush = 256 << 10

// tableWriter writes a side table front to back, in memory bounded by one
// filter and the sparse index of one section.
type tableWriter struct {
	f    vfs.File
	name string
	pos  int64 // of the end of buf
	buf  []byte
	err  error

	sections []section
	sparse   []sparseEntry
	filter   *filterBuilder
	block    int // where the current block starts in buf; -1: none
	first    sparseEntry

	prevAppend AppendRef
	prevValue  valueRef
	prevTxn    txnRef
	hasKey     bool   // an entry was added to the section
	key        uint64 // its partition, id or hash
	lastFirst  uint64 // its first offset, of appends
}

func newTableWriter(fsys vfs.FS, name string, kind uint32, level int) (*tableWriter, error) {
	f, err := fsys.Create(name)
	if err != nil {
		return nil, fmt.Errorf("create table %s: %w", name, err)
	}
	w := &tableWriter{f: f, name: name, block: -1}
	w.buf = appendTableHeader(make([]byte, 0, tableFlush+maxBlock), kind, level)
	w.pos = int64(len(w.buf))
	return w, nil
}

// begin starts a section for up to entries entries with up to keys different
// filter keys.
func (w *tableWriter) begin(typ uint32, entries, keys uint64) {
	w.sections = append(w.sections, section{typ: typ, blocksPos: w.pos, keys: keys})
	w.filter = newFilter(keys, entries)
	w.sparse, w.hasKey = w.sparse[:0], false
}

// end closes the section: last block, sparse index, filter.
func (w *tableWriter) end() {
	w.closeBlock()
	s := &w.sections[len(w.sections)-1]
	s.blocks, s.sparsePos = uint32(len(w.sparse)), w.pos
	at := len(w.buf)
	w.buf = appendSparse(w.buf, w.sparse)
	w.closePart(at)
	s.filterPos, s.filterPages = w.pos, w.filter.pages
	for b := w.filter.lines; len(b) > 0; b = b[filterPageSize:] {
		at := len(w.buf)
		w.buf = append(w.buf, b[:filterPageSize]...)
		w.closePart(at)
	}
	w.filter = nil
}

// closePart puts the sum behind what was appended to buf since at.
func (w *tableWriter) closePart(at int) {
	w.buf = binary.LittleEndian.AppendUint64(w.buf, placedSum(w.buf[at:], w.pos))
	w.pos += int64(len(w.buf) - at)
	if len(w.buf) >= tableFlush {
		w.flush()
	}
}

func (w *tableWriter) flush() {
	if w.err == nil && len(w.buf) > 0 {
		if _, err := w.f.WriteAt(w.buf, w.pos-int64(len(w.buf))); err != nil {
			w.err = fmt.Errorf("write table %s: %w", w.name, err)
		}
	}
	w.buf = w.buf[:0]
}

// open starts a block, if none is, at an entry with these keys.
func (w *tableWriter) open(a, b uint64, time int64) {
	w.sections[len(w.sections)-1].entries++
	if w.block >= 0 {
		return
	}
	w.block, w.first = len(w.buf), sparseEntry{a: a, b: b, time: time, pos: w.pos}
	w.prevAppend, w.prevValue, w.prevTxn = AppendRef{}, valueRef{}, txnRef{}
}

// note ends the block when it is long enough, and tells the filter of a new key.
func (w *tableWriter) note(key, filterKey uint64) {
	if !w.hasKey || w.key != key {
		w.filter.add(filterKey)
		w.hasKey, w.key = true, key
	}
	if len(w.buf)-w.block >= blockTarget {
		w.closeBlock()
	}
}

func (w *tableWriter) closeBlock() {
	if w.block < 0 {
		return
	}
	w.first.size = uint32(len(w.buf) - w.block + sumSize)
	w.sparse = append(w.sparse, w.first)
	at := w.block
	w.block = -1
	w.closePart(at)
}

// addAppend adds an append above the one before. The same one again is left
// out: a merge may see it twice after a file was sealed again.
func (w *tableWriter) addAppend(r AppendRef) {
	if w.hasKey && w.key == r.Partition && w.lastFirst >= r.First {
		return
	}
	w.lastFirst = r.First
	w.open(r.Partition, r.First, r.Time)
	w.buf = appendAppendEntry(w.buf, &w.prevAppend, &r)
	w.prevAppend = r
	w.note(r.Partition, spreadKey(r.Partition))
}

func (w *tableWriter) addValue(v valueRef) {
	if w.hasKey && w.key >= v.id {
		return
	}
	w.open(v.id, 0, 0)
	w.buf = appendValueEntry(w.buf, &w.prevValue, &v)
	w.prevValue = v
	w.note(v.id, 0)
}

func (w *tableWriter) addTxn(t txnRef) {
	w.open(t.hash, 0, 0)
	w.buf = appendTxnEntry(w.buf, &w.prevTxn, &t)
	w.prevTxn = t
	w.note(t.hash, t.hash)
}

// finish writes meta block and footer, and makes the file durable. The handle
// is closed in any case.
func (w *tableWriter) finish(files []FileInfo) error {
	metaPos, at := w.pos, len(w.buf)
	w.buf = appendTableMeta(w.buf, w.sections, files)
	n := len(w.buf) - at
	w.closePart(at)
	at = len(w.buf)
	w.buf = appendTableFooter(w.buf, metaPos, n)
	w.pos += int64(len(w.buf) - at)
	w.flush()
	if w.err == nil {
		if err := w.f.Sync(); err != nil {
			w.err = fmt.Errorf("sync table %s: %w", w.name, err)
		}
	}
	if err := w.f.Close(); err != nil && w.err == nil {
		w.err = fmt.Errorf("close table %s: %w", w.name, err)
	}
	return w.err
}

// abort gives the file up; the caller removes it.
func (w *tableWriter) abort() { w.f.Close() }
