package index

import (
	"errors"
	"fmt"
	"path"

	"queen/internal/crashpoint"
	"queen/internal/plant"
	"queen/internal/vfs"
)

const (
	// rowsFlush is how many bytes of rows are collected for one write.
	rowsFlush = 256 << 10
	// compactSlack keeps a small set from being rewritten all the time.
	compactSlack = 4 << 20
	maxRowBody   = MaxRow + 64
)

// Rows is the checkpoint: a log of rows in which the last one of a key wins. A
// checkpoint appends the rows that changed and a footer; only what stands
// before a footer counts. A full one goes into a new file, which then replaces
// the old one.
//
// The calls of one checkpoint are Begin, any number of Put, Delete and
// DeleteRange, then Finish or Abandon. Rows is not safe for concurrent use.
// After an error of a write or fsync it refuses everything (ErrFailed).
type Rows struct {
	fs  vfs.FS
	dir string
	// slack of NeedsCompaction; 0: the default.
	slack int64

	cur      rowsFile // the file with the newest footer; seq 0: none
	file     vfs.File // open for writing; nil before the first Begin
	leftover []uint64 // files that are not cur
	damaged  bool     // cur cannot be read any more
	failed   error

	cap *rowsCapture // nil between checkpoints
}

// rowsCapture is a checkpoint that is being written.
type rowsCapture struct {
	rowsFile
	file vfs.File
	full bool
	buf  []byte // not yet written; starts at end
}

// OpenRows reads the newest finished checkpoint in dir and hands its rows to
// load. It writes and removes nothing. Without a finished checkpoint the footer
// is zero and load hears nothing. What stands after the last footer is ignored.
// Errors: a CorruptError for damage before a footer, ErrNewerFormat, an error
// of load, or one of the disk. Then the boot has to stop: rows are not derived
// from anything else.
func OpenRows(fsys vfs.FS, dir string, load RowLoader) (*Rows, Footer, error) {
	seqs, err := listRows(fsys, dir)
	if err != nil {
		return nil, Footer{}, err
	}
	r := &Rows{fs: fsys, dir: dir}
	for i := len(seqs) - 1; i >= 0; i-- {
		if r.cur.seq != 0 {
			r.leftover = append(r.leftover, seqs[i])
			continue
		}
		f, err := inspectRows(fsys, dir, seqs[i])
		if err != nil {
			return nil, Footer{}, err
		}
		if f.end == 0 { // a full checkpoint that was not finished
			r.leftover = append(r.leftover, seqs[i])
			continue
		}
		r.cur = f
	}
	if r.cur.seq != 0 {
		if err := loadRows(fsys, dir, &r.cur, load); err != nil {
			return nil, Footer{}, err
		}
	}
	return r, r.cur.footer, nil
}

// Footer is that of the newest finished checkpoint; zero: there is none.
func (r *Rows) Footer() Footer { return r.cur.footer }

// File is where the newest finished checkpoint stands. When there is none, it
// is the newest file that could have held one, or the directory.
func (r *Rows) File() string {
	switch {
	case r.cur.seq != 0:
		return r.path(r.cur.seq)
	case len(r.leftover) > 0:
		return r.path(r.leftover[0])
	}
	return r.dir
}

// Size is the bytes of the newest finished checkpoint's file up to its footer.
func (r *Rows) Size() int64 { return r.cur.end }

// NeedsCompaction reports whether the next checkpoint should be a full one:
// about half of the file is dead. Rows does not know keys, so it goes by size:
// the file has grown to twice what the full set took. A set that only grew is
// then rewritten for nothing, but each time after it has doubled. A volume that
// has no room for two full sets has to do without.
func (r *Rows) NeedsCompaction() bool {
	slack := r.slack
	if slack == 0 {
		slack = compactSlack
	}
	return r.cur.seq == 0 || (r.damaged || r.cur.end > 2*r.cur.base+slack) && r.roomFor(2*r.cur.end)
}

// Damaged notes that the newest checkpoint, of the given file, cannot be read any
// more, so that the next one should be a full one: it takes the file's place.
func (r *Rows) Damaged(file string) {
	r.damaged = r.damaged || r.cur.seq != 0 && file == r.path(r.cur.seq)
}

func (r *Rows) roomFor(bytes int64) bool {
	u, err := r.fs.Usage(r.dir)
	return err != nil || u.Free >= uint64(bytes)
}

// SetCompactSlack sets how many bytes a file may have beyond twice the full set
// before it is rewritten; 0: 4 MiB.
func (r *Rows) SetCompactSlack(bytes int64) { r.slack = bytes }

// Sync makes the checkpoint that OpenRows found durable. After a kill its
// footer may be in the page cache only, so a boot calls this before anything is
// freed that the footer makes superfluous.
func (r *Rows) Sync() error {
	if r.failed != nil {
		return r.failed
	}
	if r.cur.seq == 0 {
		return nil
	}
	if err := r.openCurrent(); err != nil {
		return err
	}
	if err := r.file.Sync(); err != nil {
		return r.fail(fmt.Errorf("sync rows %s: %w", r.path(r.cur.seq), err))
	}
	return r.syncDir()
}

// WriteAgain writes the newest checkpoint once more, for the Sync that follows
// to cover: an earlier one may have failed, and the kernel forgets that.
func (r *Rows) WriteAgain() error {
	if r.failed != nil {
		return r.failed
	}
	if r.cur.seq == 0 {
		return nil
	}
	if err := r.openCurrent(); err != nil {
		return err
	}
	if err := vfs.WriteAgain(r.file, 0, r.cur.end); err != nil {
		return r.fail(fmt.Errorf("write rows %s again: %w", r.path(r.cur.seq), err))
	}
	return nil
}

// Begin starts a checkpoint. full: every row will be put, into a new file;
// the first checkpoint always is. What an unfinished checkpoint left is cut off
// or removed first.
func (r *Rows) Begin(full bool) error {
	if r.failed != nil {
		return r.failed
	}
	if r.cap != nil {
		return errors.New("rows: Begin within a checkpoint")
	}
	if err := r.removeLeftovers(); err != nil {
		return err
	}
	if full || r.cur.seq == 0 {
		return r.beginFull()
	}
	if err := r.openCurrent(); err != nil {
		return err
	}
	if r.cur.size > r.cur.end {
		if err := r.file.Truncate(r.cur.end); err != nil {
			return r.fail(fmt.Errorf("cut rows %s at %d: %w", r.path(r.cur.seq), r.cur.end, err))
		}
		r.cur.size = r.cur.end
	}
	r.cap = &rowsCapture{rowsFile: r.cur, file: r.file}
	return nil
}

func (r *Rows) beginFull() error {
	if err := r.makeDir(); err != nil {
		return err
	}
	seq := r.cur.seq + 1
	f, err := r.fs.Create(r.path(seq))
	if err != nil {
		return r.fail(fmt.Errorf("create rows %s: %w", r.path(seq), err))
	}
	r.cap = &rowsCapture{rowsFile: rowsFile{seq: seq}, file: f, full: true, buf: appendRowsHeader(nil, seq)}
	return nil
}

// makeDir makes the directory, durably in its parent (I6), before the first
// file in it.
func (r *Rows) makeDir() error {
	if r.cur.seq != 0 {
		return nil
	}
	if err := r.fs.MkdirAll(r.dir); err != nil {
		return r.fail(fmt.Errorf("make %s: %w", r.dir, err))
	}
	if err := r.fs.SyncDir(path.Dir(r.dir)); err != nil {
		return r.fail(fmt.Errorf("sync directory %s: %w", path.Dir(r.dir), err))
	}
	return nil
}

func (r *Rows) openCurrent() error {
	if r.file != nil {
		return nil
	}
	f, err := r.fs.OpenReadWrite(r.path(r.cur.seq))
	if err != nil {
		return fmt.Errorf("open rows %s: %w", r.path(r.cur.seq), err)
	}
	r.file = f
	return nil
}

// removeLeftovers removes the files that are not the current one. An older one
// has a footer of its own and may be all there is after a power cut, so the
// current one is made durable before.
func (r *Rows) removeLeftovers() error {
	if len(r.leftover) == 0 {
		return nil
	}
	if err := r.Sync(); err != nil {
		return err
	}
	crashpoint.Hit("checkpoint.compacted.before-remove")
	for _, seq := range r.leftover {
		if err := r.fs.Remove(r.path(seq)); err != nil {
			return r.fail(fmt.Errorf("remove rows %s: %w", r.path(seq), err))
		}
	}
	r.leftover = nil
	return r.syncDir()
}

// Put writes a row. Key and value are copied.
func (r *Rows) Put(key, value []byte) error {
	return r.write(len(key)+len(value), func(b []byte) []byte { return appendPut(b, key, value) })
}

// Delete writes that a row is gone.
func (r *Rows) Delete(key []byte) error {
	return r.write(len(key), func(b []byte) []byte { return appendDelete(b, key) })
}

// DeleteRange writes that the rows with lo <= key < hi are gone; hi empty: no
// upper end.
func (r *Rows) DeleteRange(lo, hi []byte) error {
	return r.write(len(lo)+len(hi), func(b []byte) []byte { return appendDeleteRange(b, lo, hi) })
}

func (r *Rows) write(size int, appendTo func([]byte) []byte) error {
	if r.failed != nil {
		return r.failed
	}
	if r.cap == nil {
		return errors.New("rows: a row outside of a checkpoint")
	}
	if size > MaxRow {
		return fmt.Errorf("rows: a row of %d bytes, the limit is %d", size, MaxRow)
	}
	r.cap.add(appendTo)
	r.cap.rows++
	crashpoint.Hit("checkpoint.row.put")
	if len(r.cap.buf) >= rowsFlush {
		return r.flush()
	}
	return nil
}

func (c *rowsCapture) add(appendTo func([]byte) []byte) {
	at := len(c.buf)
	c.buf = appendTo(c.buf)
	c.chain = nextChain(c.chain, sealRecord(c.buf, at))
}

func (r *Rows) flush() error {
	c := r.cap
	if _, err := c.file.WriteAt(c.buf, c.end); err != nil {
		return r.fail(fmt.Errorf("write rows %s pos %d: %w", r.path(c.seq), c.end, err))
	}
	c.end += int64(len(c.buf))
	if c.buf = c.buf[:0]; cap(c.buf) > 4*rowsFlush {
		c.buf = nil
	}
	return nil
}

// Finish ends the checkpoint: its rows are durable before its footer is
// written, and the footer is durable before the older file goes. A power cut
// anywhere in between leaves the older checkpoint or this one.
func (r *Rows) Finish(f Footer) error {
	if r.failed != nil {
		return r.failed
	}
	if r.cap == nil {
		return errors.New("rows: Finish outside of a checkpoint")
	}
	if !plant.Is(plant.FooterBeforeRows) {
		if err := r.sync(); err != nil {
			return err
		}
	}
	c := r.cap
	if c.full {
		if err := r.syncDir(); err != nil {
			return err
		}
	}
	crashpoint.Hit("checkpoint.rows.synced")
	rec := footerRecord{Footer: f, pos: c.end, rows: c.rows, base: c.base, chain: c.chain}
	c.add(func(b []byte) []byte { return appendFooter(b, &rec) })
	if err := r.sync(); err != nil {
		return err
	}
	crashpoint.Hit("checkpoint.footer.synced")
	return r.adopt(f)
}

func (r *Rows) sync() error {
	if err := r.flush(); err != nil {
		return err
	}
	if err := r.cap.file.Sync(); err != nil {
		return r.fail(fmt.Errorf("sync rows %s: %w", r.path(r.cap.seq), err))
	}
	return nil
}

// adopt makes the finished capture the current checkpoint.
func (r *Rows) adopt(f Footer) error {
	c := r.cap
	r.cap = nil
	old := r.file
	c.footer, c.size = f, c.end
	if c.base == 0 {
		c.base = c.end
	}
	if c.full && r.cur.seq != 0 {
		r.leftover = append(r.leftover, r.cur.seq)
	}
	r.cur, r.file = c.rowsFile, c.file
	if !c.full {
		return nil
	}
	r.damaged = false
	if old != nil {
		if err := old.Close(); err != nil {
			return r.fail(fmt.Errorf("close rows: %w", err))
		}
	}
	return r.removeLeftovers()
}

// Abandon gives the checkpoint up. What it wrote does not count; it is removed
// here, or by the next Begin.
func (r *Rows) Abandon() error {
	if r.failed != nil {
		return r.failed
	}
	c := r.cap
	if c == nil {
		return nil
	}
	r.cap = nil
	if !c.full {
		r.cur.size = max(r.cur.size, c.end)
		return nil
	}
	if err := c.file.Close(); err != nil {
		return r.fail(fmt.Errorf("close rows %s: %w", r.path(c.seq), err))
	}
	if err := r.fs.Remove(r.path(c.seq)); err != nil {
		return r.fail(fmt.Errorf("remove rows %s: %w", r.path(c.seq), err))
	}
	return nil
}

// Close gives the files up. A checkpoint that is being written is abandoned.
func (r *Rows) Close() error {
	if r.failed == nil {
		if err := r.Abandon(); err != nil {
			return err
		}
		r.failed = fmt.Errorf("rows are closed: %w", ErrFailed)
	}
	if r.file == nil {
		return nil
	}
	f := r.file
	r.file = nil
	return f.Close()
}

func (r *Rows) path(seq uint64) string { return path.Join(r.dir, rowsName(seq)) }

func (r *Rows) syncDir() error {
	if err := r.fs.SyncDir(r.dir); err != nil {
		return r.fail(fmt.Errorf("sync directory %s: %w", r.dir, err))
	}
	return nil
}

// fail makes everything after err refused: what a failed write or fsync left
// in the file is not known (I3).
func (r *Rows) fail(err error) error {
	r.failed = fmt.Errorf("rows: %w: %v", ErrFailed, err)
	return err
}
