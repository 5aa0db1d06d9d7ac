package index

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"

	"queen/internal/vfs"
)

// rowsWindow is how much of a .rows file is read at once.
const rowsWindow = 1 << 20

// rowsScanner reads the records of one .rows file in order, whatever its size,
// in a buffer that grows to the largest record only.
type rowsScanner struct {
	f    vfs.File
	file string
	size int64
	buf  []byte
	base int64 // position of buf[0]
	off  int   // next record in buf
}

func openRowsScanner(fsys vfs.FS, dir string, seq uint64) (*rowsScanner, error) {
	name := path.Join(dir, rowsName(seq))
	f, err := fsys.Open(name)
	if err != nil {
		return nil, fmt.Errorf("open rows %s: %w", name, err)
	}
	size, err := f.Size()
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("size of rows %s: %w", name, err)
	}
	return &rowsScanner{f: f, file: name, size: size}, nil
}

func (s *rowsScanner) pos() int64 { return s.base + int64(s.off) }

func (s *rowsScanner) seek(pos int64) {
	if s.base <= pos && pos <= s.base+int64(len(s.buf)) {
		s.off = int(pos - s.base)
		return
	}
	s.base, s.off, s.buf = pos, 0, s.buf[:0]
}

// window gives the n bytes at the current position, fewer at the end of the
// file. They are valid until the next call.
func (s *rowsScanner) window(n int) ([]byte, error) {
	if rest := s.size - s.pos(); int64(n) > rest {
		n = int(rest)
	}
	if have := len(s.buf) - s.off; have < n {
		s.base += int64(s.off)
		kept := copy(s.buf, s.buf[s.off:])
		want := int(min(max(int64(n), rowsWindow), s.size-s.base))
		if cap(s.buf) < want {
			s.buf = append(make([]byte, 0, want), s.buf[:kept]...)
		}
		s.off, s.buf = 0, s.buf[:want]
		if m, err := s.f.ReadAt(s.buf[kept:], s.base+int64(kept)); m < want-kept {
			s.buf = s.buf[:kept+m]
			if err == nil || errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF // shorter than its size said
			}
			return nil, fmt.Errorf("read rows %s pos %d: %w", s.file, s.base, err)
		}
	}
	return s.buf[s.off : s.off+n], nil
}

// next reads the record at the current position and moves behind it. io.EOF:
// the file ends here. A CorruptError: there are bytes, but no record; the
// caller knows whether that is a torn tail or damage.
func (s *rowsScanner) next() (pos int64, sum uint64, rec rowRecord, err error) {
	pos = s.pos()
	head, err := s.window(rowsRecordHead)
	if err != nil {
		return pos, 0, rec, err
	}
	if len(head) == 0 {
		return pos, 0, rec, io.EOF
	}
	if len(head) < rowsRecordHead {
		return pos, 0, rec, corruptValue(s.file, pos, "record head bytes", rowsRecordHead, len(head))
	}
	n := int64(binary.LittleEndian.Uint32(head))
	if room := s.size - pos - rowsRecordHead; n == 0 || n > maxRowBody || n > room {
		return pos, 0, rec, corruptValue(s.file, pos, "record length", fmt.Sprintf("1 to %d", min(room, maxRowBody)), n)
	}
	b, err := s.window(rowsRecordHead + int(n))
	if err != nil {
		return pos, 0, rec, err
	}
	sum = binary.LittleEndian.Uint64(b[4:])
	if found := recordSum(b); found != sum {
		return pos, 0, rec, corruptSum(s.file, pos, "record", sum, found)
	}
	rec, err = parseRow(b[rowsRecordHead:])
	if err != nil {
		return pos, 0, rec, corruptValue(s.file, pos, "record body", "a row", err)
	}
	s.off += len(b)
	return pos, sum, rec, nil
}

// footerAfter looks for a whole footer anywhere at or after from, byte by byte.
func (s *rowsScanner) footerAfter(from int64) (pos int64, ok bool, err error) {
	const lead = rowsRecordHead + 1 // bytes of the record before the magic
	for at := from; at < s.size; {
		s.seek(at)
		b, err := s.window(rowsWindow)
		if err != nil {
			return 0, false, err
		}
		i := bytes.Index(b, []byte(footerMagic))
		if i < 0 {
			at += max(int64(len(b)-len(footerMagic)+1), 1)
			continue
		}
		if p := at + int64(i) - lead; p >= 0 {
			s.seek(p)
			_, _, rec, err := s.next()
			if err == nil && rec.kind == rowFooter && rec.footer.pos == p {
				return p, true, nil
			}
			if err != nil && !errors.Is(err, ErrCorrupt) && !errors.Is(err, io.EOF) {
				return 0, false, err
			}
		}
		at += int64(i) + 1
	}
	return 0, false, nil
}

// rowsFile is what is known of a .rows file up to its last footer.
type rowsFile struct {
	seq    uint64
	end    int64 // behind the last footer; 0: there is none
	size   int64
	footer Footer
	rows   uint64
	base   int64
	chain  uint64
}

// inspectRows checks a file and finds its last footer. Bytes after that are
// what an unfinished checkpoint left, whatever they are. Anything wrong before
// a footer is a CorruptError: a footer says that all before it was durable.
func inspectRows(fsys vfs.FS, dir string, seq uint64) (rowsFile, error) {
	s, err := openRowsScanner(fsys, dir, seq)
	if err != nil {
		return rowsFile{}, err
	}
	defer s.f.Close()
	r := rowsFile{seq: seq, size: s.size}
	damage, err := s.check(&r)
	if err != nil || damage == nil || errors.Is(damage, ErrNewerFormat) {
		return r, errors.Join(err, damage)
	}
	at, ok, err := s.footerAfter(r.end)
	if err != nil {
		return r, err
	}
	if ok {
		return r, fmt.Errorf("%w; the checkpoint that ends at pos %d needs it: restore the file from a copy, or the node from another one", damage, at)
	}
	return r, nil
}

// check reads records until something is wrong (damage) or the file ends.
func (s *rowsScanner) check(r *rowsFile) (damage, err error) {
	head, err := s.window(rowsHeaderSize)
	if err != nil {
		return nil, err
	}
	if damage = checkRowsHeader(head, s.file, r.seq); damage != nil {
		return damage, nil
	}
	s.off += rowsHeaderSize
	var rows, chain uint64
	for {
		pos, sum, rec, err := s.next()
		if errors.Is(err, io.EOF) {
			return nil, nil
		}
		if errors.Is(err, ErrCorrupt) {
			return err, nil
		}
		if err != nil {
			return nil, err
		}
		if rec.kind == rowFooter {
			if err := s.checkFooter(pos, &rec.footer, rows, chain); err != nil {
				return nil, err
			}
			r.footer = rec.footer.Footer
			r.footer.Extra = bytes.Clone(rec.footer.Extra)
		} else {
			rows++
		}
		chain = nextChain(chain, sum)
		if rec.kind == rowFooter {
			r.end, r.rows, r.chain, r.base = s.pos(), rows, chain, rec.footer.base
			if r.base == 0 {
				r.base = r.end // the first footer of a file does not know where it ends
			}
		}
	}
}

// checkFooter compares a footer with what stands before it: records that are
// missing or doubled as a whole have good checksums of their own.
func (s *rowsScanner) checkFooter(pos int64, f *footerRecord, rows, chain uint64) error {
	switch {
	case f.pos != pos:
		return corruptValue(s.file, pos, "footer's own position", pos, f.pos)
	case f.rows != rows:
		return corruptValue(s.file, pos, "rows before the footer", f.rows, rows)
	case f.chain != chain:
		return corruptSum(s.file, pos, "all records before the footer", f.chain, chain)
	}
	return nil
}

// RowLoader takes the rows of a checkpoint in file order; a later one wins.
// Slices are valid during the call only.
type RowLoader interface {
	// LoadRow puts a row; value nil: the key is gone. An empty value is not nil.
	LoadRow(key, value []byte) error
	// LoadDeleteRange removes the rows with lo <= key < hi; hi empty: no upper end.
	LoadDeleteRange(lo, hi []byte) error
}

// loadRows hands every row before the last footer to l.
func loadRows(fsys vfs.FS, dir string, r *rowsFile, l RowLoader) error {
	s, err := openRowsScanner(fsys, dir, r.seq)
	if err != nil {
		return err
	}
	defer s.f.Close()
	return s.load(r, l)
}

func (s *rowsScanner) load(r *rowsFile, l RowLoader) error {
	for s.seek(rowsHeaderSize); s.pos() < r.end; {
		pos, _, rec, err := s.next()
		if err != nil {
			return err // it was read a moment ago
		}
		switch rec.kind {
		case rowPut:
			err = l.LoadRow(rec.key, rec.value)
		case rowDelete:
			err = l.LoadRow(rec.key, nil)
		case rowDeleteRange:
			err = l.LoadDeleteRange(rec.lo, rec.hi)
		}
		if err != nil {
			return fmt.Errorf("rows %s pos %d: %w", s.file, pos, err)
		}
	}
	return nil
}

// listRows lists the sequence numbers of the .rows files in dir, rising. A
// directory that is not there has none.
func listRows(fsys vfs.FS, dir string) ([]uint64, error) {
	infos, err := fsys.List(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list rows in %s: %w", dir, err)
	}
	var seqs []uint64
	for _, i := range infos {
		if seq, ok := parseRowsName(i.Name); ok && !i.Dir {
			seqs = append(seqs, seq)
		}
	}
	return seqs, nil // 20 digits: sorted by name is sorted by number
}
