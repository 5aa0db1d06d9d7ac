package segment

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"sync"
	"syscall"

	"queen/internal/crashpoint"
	"queen/internal/invariants"
	"queen/internal/plant"
	"queen/internal/vfs"
)

// DefaultSegmentBytes is the size at which a log starts a new file.
const DefaultSegmentBytes = 64 << 20

// Options say what a log is made of.
type Options struct {
	FS vfs.FS
	// Dir is the directory of this log alone. The log makes it, and its parents,
	// when they are missing, and syncs what it made. That a parent which exists
	// is durable itself is the business of whoever made it.
	Dir string
	ID  uint64 // log id, in every file header
	// SegmentBytes is the size in bytes that a file does not pass, unless one
	// record is larger; 0 means DefaultSegmentBytes.
	SegmentBytes int64
	// Files is shared by all logs of a process; nil means one of the log's own.
	Files *FileCache
}

// Ref is where one record is.
type Ref struct {
	Seq uint64 // file
	Pos int64  // position of the record's header in it
	Len uint32 // length of the body; 0: not known
}

// SegmentInfo describes one file of a log.
type SegmentInfo struct {
	Seq        uint64
	Generation uint64 // 1 when first written; a rewritten file has a higher one
	Size       int64  // bytes in the file; buffered bytes are not counted
	Covers     uint64 // of a rewritten file: the last file whose records are in it; else 0
	Active     bool   // the next append may go to it
	Err        error  // Open found the header unreadable; Scan tells more
}

// Log is one log: a directory of segment files.
//
// Append, Flush, Sync, Roll, Truncate and the like belong to one goroutine,
// the log writer. Read, ReadAt, Scan and Segments may run beside it and beside
// each other: what they see is what was flushed.
//
// After a failed write, fsync or the like the log refuses every change until
// it is opened again (the kernel may have dropped the dirty pages, so that a
// later fsync would lie); the process is expected to end.
type Log struct {
	o     Options
	files *FileCache
	link  link[Log] // the cache's

	// mu guards what follows. It is free except when FileCache parks an idle
	// log. Order: mu, then view, then the cache's.
	mu       sync.Mutex
	err      error    // what made the log refuse, or ErrClosed
	file     vfs.File // write handle of the active file; nil: parked, or not created yet
	seq      uint64   // active file; 0: none
	created  bool     // the active file exists
	salt     uint64
	buf      []byte // appended, not flushed; they belong at pos flushed
	flushed  int64  // bytes of the active file that are written
	size     int64  // of the active file: between flushed and it stand zeros, prepared for what comes
	rolled   bool   // the next append starts a new file
	tail     bool   // everything up to flushed is known to be valid
	unsynced bool   // the active file holds bytes that no sync covered
	dirs     []string
	next     uint64   // number of the next file
	covered  []uint64 // files that Open passed over

	view struct {
		sync.Mutex
		segments []SegmentInfo // by seq
		// A scan found the records of file validSeq valid up to validEnd.
		validSeq uint64
		validEnd int64
	}
}

// Open lists the files of a log and reads their headers; it creates and
// changes nothing, and a directory that does not exist is an empty log.
//
// A damaged header is no error of Open (Scan reports it), a newer format is.
// A log that has files is dirty when opened: a process that was killed leaves
// bytes and names that can be read and are not durable. Call Sync, or SyncAll
// of the file system and SyncedByFS, before what was found is promised to
// anybody.
func Open(o Options) (*Log, error) {
	if o.SegmentBytes <= 0 {
		o.SegmentBytes = DefaultSegmentBytes
	}
	if o.Files == nil {
		o.Files = NewFileCache(16)
	}
	l := &Log{o: o, files: o.Files, next: 1}
	entries, err := o.FS.List(o.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return l, nil
	}
	if err != nil {
		return nil, fmt.Errorf("open log %d: %w", o.ID, err)
	}
	for _, e := range entries {
		seq, ok := ParseFileName(e.Name)
		if !ok || e.Dir {
			continue // side files and temporary files belong to others
		}
		info, err := l.inspect(seq, e.Size)
		if err != nil {
			return nil, fmt.Errorf("open log %d: %w", o.ID, err)
		}
		l.view.segments = append(l.view.segments, info)
	}
	l.passOver()
	l.dirs = []string{o.Dir, filepath.Dir(o.Dir)}
	if n := len(l.view.segments); n > 0 {
		newest := l.view.segments[n-1]
		l.view.segments[n-1].Active = true
		l.seq, l.created, l.flushed, l.size, l.next = newest.Seq, true, newest.Size, newest.Size, max(l.next, newest.Seq+1)
		l.unsynced = true
	}
	return l, nil
}

func (l *Log) inspect(seq uint64, size int64) (SegmentInfo, error) {
	info := SegmentInfo{Seq: seq, Size: size}
	f, err := l.o.FS.Open(l.path(seq))
	if err != nil {
		return info, err
	}
	h, _, err := readHeader(f, l.path(seq), l.o.ID, seq)
	info.Generation, info.Covers = h.generation, h.covers
	if errors.Is(err, ErrCorrupt) {
		info.Err, err = err, nil
	}
	f.Close() // only read
	return info, err
}

// ID is the log id.
func (l *Log) ID() uint64 { return l.o.ID }

// Dir is the log's directory.
func (l *Log) Dir() string { return l.o.Dir }

// Append adds a record. Its bytes are copied into the log's buffer, reach the
// file at Flush and are durable after Sync. A body of 0 or more than MaxRecord
// bytes is ErrRecordSize. An append that would pass SegmentBytes first rolls,
// which writes and syncs the file so far.
//
// The first append after Open or Truncate needs a valid end: if the last Scan
// did not end there, Append scans the newest file, and refuses (without harm
// to the log) when something other than records and zeros stands at its end.
func (l *Log) Append(body []byte) (Ref, error) {
	return l.AppendFunc(func(dst []byte) []byte { return append(dst, body...) })
}

// AppendFunc adds a record whose body fill appends to dst, so that the body is
// encoded in place. fill must not change what dst holds already, nor keep it.
func (l *Log) AppendFunc(fill func(dst []byte) []byte) (Ref, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.prepareLocked(); err != nil {
		return Ref{}, err
	}
	start := len(l.buf)
	var head [RecordHeaderSize]byte
	filled := fill(append(l.buf, head[:]...))
	size := len(filled) - start - RecordHeaderSize
	if size <= 0 || size > MaxRecord {
		if !l.created && start == HeaderSize {
			l.dropBufferLocked() // no file for an append that was refused
		}
		return Ref{}, fmt.Errorf("append to log %d: body of %d bytes, 1 to %d are allowed: %w", l.o.ID, size, MaxRecord, ErrRecordSize)
	}
	pos := l.flushed + int64(start)
	if end := pos + int64(len(filled)-start); end > l.o.SegmentBytes && pos > HeaderSize {
		record := slices.Clone(filled[start:])
		if err := l.rollLocked(); err != nil {
			return Ref{}, err
		}
		if err := l.prepareLocked(); err != nil {
			return Ref{}, err
		}
		start, pos = len(l.buf), l.flushed+int64(len(l.buf))
		filled = append(l.buf, record...)
	}
	l.buf = filled
	seal(l.buf[start:], l.salt, pos)
	if invariants.Enabled {
		_, _, ok := verify(l.buf[start:], l.salt, pos)
		invariants.Check(ok && bodyLength(l.buf[start:]) == uint32(size), "log %d: the record sealed for pos %d is valid there", l.o.ID, pos)
	}
	return Ref{Seq: l.seq, Pos: pos, Len: uint32(size)}, nil
}

// prepareLocked makes sure that there is an active file (created at Flush)
// with a valid end, and a buffer.
func (l *Log) prepareLocked() error {
	if l.err != nil {
		return l.refusal("append")
	}
	switch {
	case l.seq == 0 || l.rolled:
		l.startFileLocked()
	case !l.tail:
		if err := l.checkTailLocked(); err != nil {
			return err
		}
	}
	if l.buf == nil {
		l.buf = l.files.takeBuffer()
	}
	return nil
}

func (l *Log) startFileLocked() {
	l.seq, l.created, l.flushed, l.size, l.rolled, l.tail = l.next, false, 0, 0, false, true
	l.next++
	var head [HeaderSize]byte
	head, l.salt = header{version: Version, id: l.o.ID, seq: l.seq, generation: 1}.encode()
	if l.buf == nil {
		l.buf = l.files.takeBuffer()
	}
	l.buf = append(l.buf, head[:]...)
}

// checkTailLocked learns the active file's salt and that it ends with a
// record, from an earlier scan or by one of its own.
func (l *Log) checkTailLocked() error {
	l.view.Lock()
	clean := l.view.validSeq == l.seq && l.view.validEnd == l.flushed
	l.view.Unlock()
	if !clean {
		end, err := l.Scan(l.seq, 0, nil)
		if err != nil {
			return fmt.Errorf("log %d does not end with a record, cut it first: %w", l.o.ID, err)
		}
		l.endLocked(end)
	}
	f, err := l.files.acquire(l, l.seq)
	if err != nil {
		return l.readError(l.seq, 0, err)
	}
	l.salt = f.salt
	l.files.release(f)
	l.tail = true
	return nil
}

// Flush writes what was appended, in one write.
func (l *Log) Flush() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return l.refusal("flush")
	}
	return l.flushLocked()
}

func (l *Log) flushLocked() error {
	if len(l.buf) == 0 {
		return nil
	}
	if err := l.openLocked(); err != nil {
		return l.failLocked("open for writing", err)
	}
	if _, err := l.file.WriteAt(l.buf, l.flushed); err != nil {
		return l.failLocked("write", err)
	}
	l.flushed += int64(len(l.buf))
	l.unsynced = true
	if err := l.prepareSpaceLocked(len(l.buf)); err != nil {
		return l.failLocked("write zeros", err)
	}
	l.files.giveBuffer(l.buf)
	l.buf = nil
	l.publishLocked()
	return nil
}

// A flush that makes the file grow costs the file system more at the sync than
// one that stays inside of it: the new size has to be written too. So a small
// flush that reaches the end of the file writes zeros for those that follow,
// as many as the file has bytes: a log with little in it stays small. For a
// large flush the size costs little and the zeros would cost much.
const (
	smallFlush  = 2 << 10
	minPrepared = 4 << 10
	maxPrepared = 16 << 10
)

var zeros [maxPrepared]byte

// prepareSpaceLocked writes zeros behind a flush of so many bytes when it
// reached the end of the file.
func (l *Log) prepareSpaceLocked(flush int) error {
	if l.flushed < l.size {
		return nil
	}
	l.size = l.flushed
	if flush > smallFlush {
		return nil
	}
	step := int64(minPrepared)
	for step < l.flushed && step < maxPrepared {
		step *= 2
	}
	end := min((l.flushed+step)/step*step, l.o.SegmentBytes)
	if end <= l.flushed {
		return nil
	}
	_, err := l.file.WriteAt(zeros[:end-l.flushed], l.flushed)
	if errors.Is(err, syscall.ENOSPC) {
		// The volume has no room for what is only convenient. What was written of it goes: a finished file ends with its records.
		return l.file.Truncate(l.flushed)
	}
	if err != nil {
		return err
	}
	l.size = end
	return nil
}

// EndAt says that the records of the newest file, seq, end at end, as a Scan
// found, and that zeros follow: they are space for what is appended next.
func (l *Log) EndAt(seq uint64, end int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if seq == l.seq && end >= HeaderSize && end <= l.flushed && len(l.buf) == 0 {
		l.endLocked(end)
	}
}

func (l *Log) endLocked(end int64) {
	if end != l.flushed {
		l.flushed = end
		l.publishLocked()
	}
}

// openLocked makes the write handle of the active file, and the file.
func (l *Log) openLocked() error {
	if l.file == nil {
		if err := l.openOrCreateLocked(); err != nil {
			return err
		}
	}
	return l.files.noteWriter(l)
}

func (l *Log) openOrCreateLocked() (err error) {
	if l.created {
		l.file, err = l.o.FS.OpenReadWrite(l.path(l.seq))
		return err
	}
	if err := l.makeDirLocked(); err != nil {
		return err
	}
	if l.file, err = l.o.FS.Create(l.path(l.seq)); err != nil {
		return err
	}
	l.created = true
	crashpoint.Hit("segment.created")
	l.noteDirLocked(l.o.Dir)
	return nil
}

// makeDirLocked creates the log's directory, and remembers which directories
// hold a name that is not durable yet.
func (l *Log) makeDirLocked() error {
	for dir := l.o.Dir; ; dir = filepath.Dir(dir) {
		_, err := l.o.FS.Stat(dir)
		if err == nil {
			break
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return err
		}
		l.noteDirLocked(parent)
	}
	return l.o.FS.MkdirAll(l.o.Dir)
}

func (l *Log) noteDirLocked(dir string) {
	if !slices.Contains(l.dirs, dir) {
		l.dirs = append(l.dirs, dir)
	}
}

// publishLocked shows readers how far the active file is written. They learn
// of a new file only now, when it has its header.
func (l *Log) publishLocked() {
	l.view.Lock()
	defer l.view.Unlock()
	n := len(l.view.segments)
	if n == 0 || l.view.segments[n-1].Seq != l.seq {
		l.view.segments = append(l.view.segments, SegmentInfo{Seq: l.seq, Generation: 1, Active: true})
		n++
	}
	l.view.segments[n-1].Size = l.flushed
}

// Sync flushes, and makes everything that was appended durable: the active
// file, and the directories whose entries changed (I6).
func (l *Log) Sync() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return l.refusal("sync")
	}
	return l.syncLocked()
}

func (l *Log) syncLocked() error {
	if err := l.flushLocked(); err != nil {
		return err
	}
	if l.unsynced {
		if err := l.openLocked(); err != nil {
			return l.failLocked("open for writing", err)
		}
		if err := l.file.Sync(); err != nil {
			return l.failLocked("fsync", err)
		}
		l.unsynced = false
	}
	if plant.Is(plant.SkipDirSync) {
		l.dirs = nil
	}
	for len(l.dirs) > 0 {
		dir := l.dirs[len(l.dirs)-1]
		if err := l.o.FS.SyncDir(dir); err != nil {
			return l.failLocked("fsync directory", err)
		}
		l.dirs = l.dirs[:len(l.dirs)-1]
	}
	return nil
}

// SyncedByFS notes that SyncAll of the file system returned without error,
// after the last Flush of this log and before anything else was flushed to it:
// everything flushed is durable (F19). What is only buffered stays dirty. An
// error means that the log had failed before, and that nothing is known about
// what was flushed.
func (l *Log) SyncedByFS() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return l.refusal("sync")
	}
	l.unsynced, l.dirs = false, nil
	return nil
}

// Dirty tells whether Sync has something to do.
func (l *Log) Dirty() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.dirtyLocked()
}

func (l *Log) dirtyLocked() bool { return len(l.buf) > 0 || l.unsynced || len(l.dirs) > 0 }

// Roll ends the active file: it is written, synced (its name too) and closed,
// and the next append starts a new one. So a file is whole and durable before
// its successor exists, and bad bytes in any file but the newest are damage.
// Without an active file, or right after a Roll, it does nothing. Like the
// first append after Open it needs a valid end.
func (l *Log) Roll() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return l.refusal("roll")
	}
	return l.rollLocked()
}

func (l *Log) rollLocked() error {
	if l.seq == 0 || l.rolled {
		return nil
	}
	if !l.tail {
		if err := l.checkTailLocked(); err != nil {
			return err
		}
	}
	if err := l.trimLocked(); err != nil {
		return err
	}
	crashpoint.Hit("roll.trimmed")
	if err := l.syncLocked(); err != nil {
		return err
	}
	crashpoint.Hit("roll.synced")
	if err := l.closeFileLocked(); err != nil {
		return err
	}
	l.rolled = true
	l.setActiveLocked(0)
	return nil
}

// trimLocked writes what is buffered and takes prepared space away, so that
// the file ends with its last record.
func (l *Log) trimLocked() error {
	if err := l.flushLocked(); err != nil {
		return err
	}
	if l.size == l.flushed {
		return nil
	}
	if err := l.openLocked(); err != nil {
		return l.failLocked("open for writing", err)
	}
	if err := l.file.Truncate(l.flushed); err != nil {
		return l.failLocked("truncate", err)
	}
	l.size, l.unsynced = l.flushed, true
	return nil
}

// MarkClean says that file seq consists of valid records up to end, from a
// source as good as a Scan: a durable side table that was made from the file
// at exactly this size. It saves the scan before the first append or Roll. What
// is remembered is about one file, the last one marked or scanned.
func (l *Log) MarkClean(seq uint64, end int64) { l.noteValid(seq, HeaderSize, end) }

// noteValid keeps that the records from one position to another are valid, if
// it continues what is known.
func (l *Log) noteValid(seq uint64, from, end int64) {
	l.view.Lock()
	defer l.view.Unlock()
	known := int64(HeaderSize)
	if l.view.validSeq == seq {
		known = l.view.validEnd
	}
	if from <= known {
		l.view.validSeq, l.view.validEnd = seq, max(known, end)
	}
}

// setActiveLocked marks one file (0: none) as the active one for readers.
func (l *Log) setActiveLocked(seq uint64) {
	l.view.Lock()
	defer l.view.Unlock()
	for i := range l.view.segments {
		l.view.segments[i].Active = l.view.segments[i].Seq == seq
	}
}

// closeFileLocked closes the write handle. What was written must be synced, or
// about to be removed.
func (l *Log) closeFileLocked() error {
	if l.file == nil {
		return nil
	}
	err := l.file.Close()
	l.file = nil
	l.files.dropWriter(l)
	if err != nil {
		return l.failLocked("close", err)
	}
	return nil
}

// Park closes the write handle of a log that is idle and clean; the next
// append opens it again. FileCache does the same by itself when too many are
// open. A dirty log stays as it is.
func (l *Log) Park() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return l.refusal("park")
	}
	if l.dirtyLocked() {
		return nil
	}
	return l.closeFileLocked()
}

// tryPark is Park on behalf of the cache. It does not wait for a log that is
// in use: that one may be waiting for the caller's in turn. An error is also
// kept by the log.
func (l *Log) tryPark(syncFirst bool) (parked bool, err error) {
	if !l.mu.TryLock() {
		return false, nil
	}
	defer l.mu.Unlock()
	if l.err != nil || l.file == nil || len(l.buf) > 0 {
		return false, nil
	}
	if l.dirtyLocked() {
		if !syncFirst {
			return false, nil
		}
		if err := l.syncLocked(); err != nil {
			return false, err
		}
	}
	if err := l.closeFileLocked(); err != nil {
		return false, err
	}
	return true, nil
}

// Active returns the newest file that appends go to and its size with what is
// buffered; 0, 0 when the next append starts a new file.
func (l *Log) Active() (seq uint64, size int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.seq == 0 || l.rolled {
		return 0, 0
	}
	return l.seq, l.flushed + int64(len(l.buf))
}

// Segments lists the files, oldest first.
func (l *Log) Segments() []SegmentInfo {
	l.view.Lock()
	defer l.view.Unlock()
	return slices.Clone(l.view.segments)
}

// Close syncs, and closes all files. Further calls return ErrClosed. Space that
// was prepared stays where the log was parked before.
func (l *Log) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		err := l.refusal("close")
		l.abandonLocked()
		return err
	}
	err := l.flushLocked()
	if err == nil && l.file != nil {
		err = l.trimLocked()
	}
	if err == nil {
		err = l.syncLocked()
	}
	if err == nil {
		err = l.closeFileLocked()
	}
	l.abandonLocked()
	return err
}

// abandonLocked gives up everything that is held, without writing.
func (l *Log) abandonLocked() {
	if l.file != nil {
		l.file.Close() // after an error, or of a file that is gone: nothing to learn
		l.file = nil
		l.files.dropWriter(l)
	}
	l.files.drop(l, 0)
	l.files.giveBuffer(l.buf)
	l.buf = nil
	if l.err == nil {
		l.err = ErrClosed
	}
}

func (l *Log) failLocked(what string, err error) error {
	l.err = fmt.Errorf("log %d: %s: %w", l.o.ID, what, err)
	return l.err
}

func (l *Log) refusal(what string) error {
	if errors.Is(l.err, ErrClosed) {
		return fmt.Errorf("log %d: %s: %w", l.o.ID, what, ErrClosed)
	}
	return fmt.Errorf("%s refused until the log is opened again, after a failure: %w", what, l.err)
}
