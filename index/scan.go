package index

import (
	"errors"
	"fmt"
	"io"
	"path"

	"queen/internal/vfs"
)

// Reading whole files record by record, for tools that look at a data directory
// without the broker.

// RowKind says what a record of a .rows file is. The numbers are those on disk.
type RowKind uint8

// Kinds of records.
const (
	RowPut         RowKind = rowPut
	RowDelete      RowKind = rowDelete
	RowDeleteRange RowKind = rowDeleteRange
	RowFooter      RowKind = rowFooter
)

// RowRecord is one record of a .rows file. Slices are valid during the call only.
type RowRecord struct {
	Kind       RowKind
	Key, Value []byte // RowPut; RowDelete has no value
	Lo, Hi     []byte // RowDeleteRange
	Footer     Footer // RowFooter
}

// ScanRows calls fn for each record of a .rows file, footers and what follows
// the last one included, until fn returns an error, which is returned. end is
// the position behind the last record that was read. A CorruptError is what is
// there instead of the next record: a torn tail when no footer follows, damage
// when one does.
func ScanRows(fsys vfs.FS, name string, fn func(pos int64, r RowRecord) error) (end int64, err error) {
	seq, ok := parseRowsName(path.Base(name))
	if !ok {
		return 0, fmt.Errorf("%s is not the name of a rows file", name)
	}
	s, err := openRowsScanner(fsys, path.Dir(name), seq)
	if err != nil {
		return 0, err
	}
	defer s.f.Close()
	head, err := s.window(rowsHeaderSize)
	if err != nil {
		return 0, err
	}
	if err := checkRowsHeader(head, s.file, seq); err != nil {
		return 0, err
	}
	s.off += rowsHeaderSize
	for {
		pos, _, r, err := s.next()
		if errors.Is(err, io.EOF) {
			return pos, nil
		}
		if err != nil {
			return pos, err
		}
		err = fn(pos, RowRecord{Kind: RowKind(r.kind), Key: r.key, Value: r.value, Lo: r.lo, Hi: r.hi, Footer: r.footer.Footer})
		if err != nil {
			return s.pos(), err
		}
	}
}

// TableVisitor takes what is in a side table; nil functions are not called.
type TableVisitor struct {
	File   func(FileInfo)
	Append func(AppendRef)
	Value  func(id, seq uint64, pos int64)
	Txn    func(hash, offset uint64)
}

// ScanTable reads a side table whole, in its order.
func ScanTable(fsys vfs.FS, name string, v TableVisitor) error {
	level, first, last, kind, ok := parseTableName(path.Base(name))
	if !ok {
		return fmt.Errorf("%s is not the name of a side table", name)
	}
	cache := NewTableCache(0, 1)
	defer cache.Close()
	t, err := openTable(fsys, path.Dir(name), level, first, last, kind, cache)
	if err != nil {
		return err
	}
	for _, f := range t.files {
		if v.File != nil {
			v.File(f)
		}
	}
	if kind == tableDedup {
		return scanSection(t, sectionTxns, decodeTxns, v.Txn != nil, func(e *txnRef) { v.Txn(e.hash, e.offset) })
	}
	err = scanSection(t, sectionAppends, decodeAppends, v.Append != nil, func(e *AppendRef) { v.Append(*e) })
	if err != nil {
		return err
	}
	return scanSection(t, sectionValues, decodeValues, v.Value != nil, func(e *valueRef) { v.Value(e.id, e.seq, e.pos) })
}

func scanSection[T any](t *table, typ uint32, decode func([]T, []byte) ([]T, error), wanted bool, visit func(*T)) error {
	r, err := newEntryReader(nil, t, typ, decode, nil)
	if err != nil {
		return err
	}
	for h := r.head(); h != nil; h = r.head() {
		if wanted {
			visit(h)
		}
		if err := r.take(); err != nil {
			return err
		}
	}
	return nil
}
