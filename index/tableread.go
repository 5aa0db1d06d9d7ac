package index

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"sort"

	"queen/internal/vfs"
)

// table is one side table that can be read. It keeps only its meta in memory;
// sparse indexes, filter pages and blocks come through the cache. It is
// immutable and safe for concurrent use.
type table struct {
	fs       vfs.FS
	name     string
	cache    *TableCache
	id       uint64
	sections []section
	files    []FileInfo
}

// openTable reads and checks header, footer and meta of a table. A CorruptError
// says that it has to be made again.
func openTable(fsys vfs.FS, dir string, level int, first, last uint64, kind uint32, cache *TableCache) (*table, error) {
	t := &table{fs: fsys, name: path.Join(dir, tableName(level, first, last, kind)), cache: cache, id: cache.nextID.Add(1)}
	f, err := fsys.Open(t.name)
	if err != nil {
		return nil, fmt.Errorf("open table %s: %w", t.name, err)
	}
	defer f.Close()
	size, err := f.Size()
	if err != nil {
		return nil, fmt.Errorf("size of table %s: %w", t.name, err)
	}
	if size < tableHeaderSize+4+sumSize+tableFooterSize {
		return nil, corruptValue(t.name, 0, "file bytes", "a whole table", size)
	}
	head, err := readPart(f, t.name, 0, tableHeaderSize)
	if err != nil {
		return nil, err
	}
	if err := checkTableHeader(head, t.name, kind, level); err != nil {
		return nil, err
	}
	foot, err := readPart(f, t.name, size-tableFooterSize, tableFooterSize)
	if err != nil {
		return nil, err
	}
	metaPos, metaLen, err := parseTableFooter(foot, t.name, size)
	if err != nil {
		return nil, err
	}
	meta, err := readSummed(f, t.name, metaPos, metaLen, "meta")
	if err != nil {
		return nil, err
	}
	if t.sections, t.files, err = parseTableMeta(meta); err != nil {
		return nil, corruptValue(t.name, metaPos, "meta", "a list of sections and files", err)
	}
	if err := t.checkMeta(kind, first, last, metaPos); err != nil {
		return nil, corruptValue(t.name, metaPos, "meta", "that of a "+tableName(level, first, last, kind), err)
	}
	return t, nil
}

// checkMeta compares the meta with what the table is called, and with itself.
func (t *table) checkMeta(kind uint32, first, last uint64, metaPos int64) error {
	want := []uint32{sectionAppends, sectionValues}
	if kind == tableDedup {
		want = []uint32{sectionTxns}
	}
	types := make([]uint32, 0, len(t.sections))
	pos := int64(tableHeaderSize)
	for _, s := range t.sections {
		types = append(types, s.typ)
		filterEnd := s.filterPos + int64(s.filterPages)*(filterPageSize+sumSize)
		if s.blocksPos != pos || s.sparsePos < pos || s.filterPos != s.sparsePos+int64(s.blocks)*sparseEntrySize+sumSize ||
			filterEnd < s.filterPos || filterEnd > metaPos {
			return fmt.Errorf("section %d does not lie where it can", s.typ)
		}
		pos = filterEnd
	}
	if !slices.Equal(types, want) || pos != metaPos {
		return fmt.Errorf("sections %v", types)
	}
	if n := len(t.files); n == 0 || t.files[0].Seq != first || t.files[n-1].Seq != last {
		return fmt.Errorf("files %v", t.files)
	}
	return nil
}

// readPart reads n bytes. A file that is shorter than that is damage: its size
// was known.
func readPart(f vfs.File, name string, pos int64, n int) ([]byte, error) {
	b := make([]byte, n)
	return b, readInto(f, name, pos, b)
}

func readInto(f vfs.File, name string, pos int64, b []byte) error {
	n, err := f.ReadAt(b, pos)
	if n == len(b) {
		return nil
	}
	if err == nil || errors.Is(err, io.EOF) {
		return corruptValue(name, pos, "bytes", len(b), n)
	}
	return fmt.Errorf("read table %s pos %d: %w", name, pos, err)
}

// readSummed reads a part of n bytes and the sum behind it.
func readSummed(f vfs.File, name string, pos int64, n int, what string) ([]byte, error) {
	b, err := readPart(f, name, pos, n+sumSize)
	if err != nil {
		return nil, err
	}
	want := binary.LittleEndian.Uint64(b[n:])
	if sum := placedSum(b[:n], pos); sum != want {
		return nil, corruptSum(name, pos, what, want, sum)
	}
	return b[:n:n], nil
}

// part reads a part of n bytes past the cache.
func (t *table) part(pos int64, n int, what string) ([]byte, error) {
	f, err := t.cache.file(t.id, func() (vfs.File, error) { return t.fs.Open(t.name) })
	if err != nil {
		return nil, fmt.Errorf("open table %s: %w", t.name, err)
	}
	defer t.cache.release(f)
	return readSummed(f.f, t.name, pos, n, what)
}

// load gives a part through the cache, decoded by decode, which also says how
// many bytes of memory it takes.
func load[T any](t *table, pos int64, n int, what string, decode func([]byte) (T, int64, error)) (T, error) {
	key := blockKey{t.id, pos}
	if v, ok := t.cache.block(key); ok {
		return v.(T), nil
	}
	var zero T
	b, err := t.part(pos, n, what)
	if err != nil {
		return zero, err
	}
	v, bytes, err := decode(b)
	if err != nil {
		return zero, corruptValue(t.name, pos, what, "what was written", err)
	}
	t.cache.keep(key, v, bytes)
	return v, nil
}

func rawPart(b []byte) ([]byte, int64, error) { return b, int64(len(b)), nil }

func (t *table) section(typ uint32) *section {
	i := slices.IndexFunc(t.sections, func(s section) bool { return s.typ == typ })
	return &t.sections[i] // openTable saw to it
}

func (t *table) sparse(s *section) ([]sparseEntry, error) {
	return load(t, s.sparsePos, int(s.blocks)*sparseEntrySize, "sparse index", func(b []byte) ([]sparseEntry, int64, error) {
		out, err := parseSparse(b, s.blocksPos, s.sparsePos)
		return out, int64(len(out)) * 40, err
	})
}

// mayHold asks the filter of a section.
func (t *table) mayHold(s *section, key uint64) (bool, error) {
	if s.filterPages == 0 {
		return s.entries > 0, nil
	}
	line, probes := filterPlace(key, s.filterPages)
	pos := s.filterPos + int64(line/linesPerPage)*(filterPageSize+sumSize)
	page, err := load(t, pos, filterPageSize, "filter page", rawPart)
	if err != nil {
		return false, err
	}
	return filterHas(page, line, probes), nil
}

func (t *table) appendBlock(e *sparseEntry) ([]AppendRef, error) {
	return load(t, e.pos, int(e.size)-sumSize, "block of appends", func(b []byte) ([]AppendRef, int64, error) {
		out, err := decodeAppends(nil, b)
		if err == nil && len(out) == 0 {
			err = errBlock
		}
		return out, int64(cap(out)) * 48, err
	})
}

// appendCursor stands at an append of a table, or before the first one (i < 0).
type appendCursor struct {
	t      *table
	sparse []sparseEntry
	block  int
	refs   []AppendRef
	i      int
}

// seekAppend gives a cursor at the last append at or before (partition, first).
func (t *table) seekAppend(partition, first uint64) (c appendCursor, err error) {
	s := t.section(sectionAppends)
	c = appendCursor{t: t, i: -1, block: -1}
	if c.sparse, err = t.sparse(s); err != nil {
		return c, err
	}
	c.block = sort.Search(len(c.sparse), func(i int) bool {
		e := &c.sparse[i]
		return e.a > partition || e.a == partition && e.b > first
	}) - 1
	if c.block < 0 {
		return c, nil
	}
	if c.refs, err = t.appendBlock(&c.sparse[c.block]); err != nil {
		return c, err
	}
	c.i = sort.Search(len(c.refs), func(i int) bool {
		r := &c.refs[i]
		return r.Partition > partition || r.Partition == partition && r.First > first
	}) - 1
	return c, nil
}

// at is the append under the cursor; nil: there is none.
func (c *appendCursor) at() *AppendRef {
	if c.i < 0 || c.i >= len(c.refs) {
		return nil
	}
	return &c.refs[c.i]
}

// step moves the cursor by one, over the ends of blocks.
func (c *appendCursor) step(by int) error {
	c.i += by
	for c.i < 0 && c.block > 0 || c.i >= len(c.refs) && c.block+1 < len(c.sparse) {
		if c.i < 0 {
			c.block--
		} else {
			c.block++
			c.i = 0
		}
		var err error
		if c.refs, err = c.t.appendBlock(&c.sparse[c.block]); err != nil {
			return err
		}
		if c.i < 0 {
			c.i = len(c.refs) - 1
		}
	}
	return nil
}

// findTxn gives the offsets at which messages with this hash are, rising.
func (t *table) findTxn(hash uint64) (offsets []uint64, err error) {
	s := t.section(sectionTxns)
	if ok, err := t.mayHold(s, hash); !ok || err != nil {
		return nil, err
	}
	sparse, err := t.sparse(s)
	if err != nil {
		return nil, err
	}
	// Equal hashes may go on over several blocks and start in the middle of one.
	i := max(sort.Search(len(sparse), func(i int) bool { return sparse[i].a >= hash })-1, 0)
	for ; i < len(sparse) && sparse[i].a <= hash; i++ {
		txns, err := load(t, sparse[i].pos, int(sparse[i].size)-sumSize, "block of hashes", func(b []byte) ([]txnRef, int64, error) {
			out, err := decodeTxns(nil, b)
			return out, int64(cap(out)) * 16, err
		})
		if err != nil {
			return nil, err
		}
		k, _ := slices.BinarySearchFunc(txns, hash, func(e txnRef, hash uint64) int { return compareUint(e.hash, hash) })
		for ; k < len(txns) && txns[k].hash == hash; k++ {
			offsets = append(offsets, txns[k].offset)
		}
	}
	return offsets, nil
}

// findValue gives where a value is.
func (t *table) findValue(id uint64) (v valueRef, ok bool, err error) {
	s := t.section(sectionValues)
	sparse, err := t.sparse(s)
	if err != nil {
		return v, false, err
	}
	i := sort.Search(len(sparse), func(i int) bool { return sparse[i].a > id }) - 1
	if i < 0 {
		return v, false, nil
	}
	vs, err := load(t, sparse[i].pos, int(sparse[i].size)-sumSize, "block of values", func(b []byte) ([]valueRef, int64, error) {
		out, err := decodeValues(nil, b)
		return out, int64(cap(out)) * 24, err
	})
	if err != nil {
		return v, false, err
	}
	k, ok := slices.BinarySearchFunc(vs, id, func(v valueRef, id uint64) int { return compareUint(v.id, id) })
	if !ok {
		return v, false, nil
	}
	return vs[k], true, nil
}

// forget gives up what the cache holds open of the table.
func (t *table) forget() { t.cache.forget(t.id) }
