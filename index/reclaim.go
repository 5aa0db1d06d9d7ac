package index

import (
	"errors"
	"io"
	"slices"

	"queen/internal/crashpoint"
)

// What reclaim needs of the tables of a log.

// NewFileContent collects what a file with this number holds.
func NewFileContent(seq uint64) *FileContent { return &FileContent{memory: newFileMemory(seq)} }

// Replace makes the tables of a rewritten file, which takes the place of the sealed file of its own number and of
// those in covered. Look-ups see the new positions when the tables are durable; swapped is called at that moment, while
// they wait, so that readers open the new file from then on. It must not block.
func (x *LogIndex) Replace(f SealedFile, covered []uint64, c *FileContent, swapped func()) error {
	x.maintenance.Lock()
	defer x.maintenance.Unlock()
	crashpoint.Hit("reclaim.tables.before-write")
	err := x.writeTables(f, c.memory, c.hashes, func(p *tablePair) []*tablePair {
		gone := append([]uint64{f.Seq}, covered...)
		x.mu.memory = slices.DeleteFunc(slices.Clone(x.mu.memory), func(m *fileMemory) bool { return slices.Contains(gone, m.seq) })
		var dropped []*tablePair
		for _, seq := range gone {
			dropped = append(dropped, x.disownLocked(seq, p)...)
		}
		swapped()
		return dropped
	})
	crashpoint.Hit("reclaim.tables.written")
	return err
}

// Walk calls the functions for the appends and values of the sealed files, in no order that means anything. A damaged
// table ends it with its error, and Broken names the files. Nothing is sealed or merged meanwhile.
func (x *LogIndex) Walk(appends func(AppendRef), values func(id, seq uint64, pos int64)) error {
	x.maintenance.Lock()
	defer x.maintenance.Unlock()
	for _, p := range x.snapshot().pairs {
		if err := p.walk(appends, values); err != nil {
			var source *sourceError
			if errors.As(err, &source) && isDamage(source.err) {
				x.markBroken(p, source.err)
			}
			return err
		}
	}
	return nil
}

// Unsealed calls fn for the ids of the values in files that are not sealed yet.
func (x *LogIndex) Unsealed(fn func(value uint64)) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	for _, m := range x.mu.memory {
		for _, v := range m.values {
			fn(v.id)
		}
	}
}

func (p *tablePair) walk(appends func(AppendRef), values func(id, seq uint64, pos int64)) error {
	a, err := newEntryReader(p, p.idx, sectionAppends, decodeAppends, func(r AppendRef) bool { return p.isDead(r.Seq) })
	if err != nil {
		return err
	}
	for e := a.head(); e != nil; e = a.head() {
		appends(*e)
		if err := a.take(); err != nil {
			return err
		}
	}
	v, err := newEntryReader(p, p.idx, sectionValues, decodeValues, func(v valueRef) bool { return p.isDead(v.seq) })
	if err != nil {
		return err
	}
	for e := v.head(); e != nil; e = v.head() {
		values(e.id, e.seq, e.pos)
		if err := v.take(); err != nil {
			return err
		}
	}
	return nil
}

// Stale lists sealed files, up to max, whose ids stand in a merged table that mostly holds those of files that are
// gone: hashes do not say of which file they are, so such a table gets rid of them only as a whole. Reseal the files,
// and it goes.
func (x *LogIndex) Stale(max int) (out []uint64) {
	for _, p := range x.snapshot().pairs {
		var dead, all uint64
		for i := range p.files {
			if all += p.files[i].IDs; p.isDead(p.files[i].Seq) {
				dead += p.files[i].IDs
			}
		}
		if p.broken || 2*dead <= all {
			continue
		}
		p.live(func(f *FileInfo) {
			if len(out) < max {
				out = append(out, f.Seq)
			}
		})
	}
	return out
}

// RowsSnapshot reads a finished checkpoint beside what is written after it.
type RowsSnapshot struct {
	Footer Footer
	file   rowsFile
	scan   *rowsScanner

	rows, chain uint64 // of what Verify has read
}

// Snapshot opens the newest finished checkpoint; nil when there is none. Like every method of Rows it belongs to the
// goroutine that writes; the snapshot may be read by another. Close it.
func (r *Rows) Snapshot() (*RowsSnapshot, error) {
	if r.cur.seq == 0 {
		return nil, nil
	}
	s, err := openRowsScanner(r.fs, r.dir, r.cur.seq)
	if err != nil {
		return nil, err
	}
	s.size = min(s.size, r.cur.end) // what follows may be cut off at any time
	return &RowsSnapshot{Footer: r.cur.footer, file: r.cur, scan: s}, nil
}

// Load hands every row to l, in the order of the file.
func (s *RowsSnapshot) Load(l RowLoader) error { return s.scan.load(&s.file, l) }

// Name is the path of the file, and Size how many bytes of it are the checkpoint.
func (s *RowsSnapshot) Name() string { return s.scan.file }
func (s *RowsSnapshot) Size() int64  { return s.file.end }

// Verify reads on, about so many rows, and checks everything that a start checks
// of them. read is how many it was; more: there are others. A CorruptError is
// damage: all of this was durable. Load must not be used as well.
func (s *RowsSnapshot) Verify(rows int) (read int, more bool, err error) {
	if s.scan.pos() == 0 {
		head, err := s.scan.window(rowsHeaderSize)
		if err == nil {
			err = checkRowsHeader(head, s.scan.file, s.file.seq)
		}
		if err != nil {
			return 0, false, err
		}
		s.scan.off += rowsHeaderSize
	}
	for ; s.scan.pos() < s.file.end; read++ {
		if read == rows {
			return read, true, nil
		}
		pos, sum, rec, err := s.scan.next()
		if errors.Is(err, io.EOF) { // shorter than what was durable
			err = corruptValue(s.scan.file, pos, "end of the checkpoint", s.file.end, pos)
		}
		if err != nil {
			return read, false, err
		}
		if rec.kind != rowFooter {
			s.rows++
		} else if err := s.scan.checkFooter(pos, &rec.footer, s.rows, s.chain); err != nil {
			return read, false, err
		}
		s.chain = nextChain(s.chain, sum)
	}
	return read, false, nil
}

// Close gives the file up.
func (s *RowsSnapshot) Close() error { return s.scan.f.Close() }
