package segment

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"

	"queen/internal/crashpoint"
	"queen/internal/vfs"
)

// Reclaim frees space of a log beside the goroutine that appends to it. It touches only files that take no more
// records and that no cut reaches: files are removed whole, or one file takes the place of itself and of some that
// follow it. Who calls has seen to it that nothing needs what goes, and that one call at a time is made.

// Rewrite is a file that is to replace others of its log. It is written and durable beside them; Swap puts it in
// place, Show lets readers see it, and Clean removes what it replaces. Between Swap and Show readers still read the old file.
type Rewrite struct {
	Seq, Generation uint64
	Size            int64

	log    *Log
	covers uint64   // last file whose records are in this one
	old    []uint64 // files that it replaces beside the one of its own number
	salt   uint64
	pinned *cachedFile
}

const rewriteSuffix = ".tmp"

// Rewrite writes a file that replaces the files seqs of the log, which rise and follow one another among the files
// that are there. fill adds the bodies of the records that stay; add returns where each will be. The file takes the
// number of the first and a generation above its. After an error nothing of the log has changed.
func (l *Log) Rewrite(seqs []uint64, fill func(add func(body []byte) (pos int64, err error)) error) (*Rewrite, error) {
	info, ok := l.segment(seqs[0])
	if !ok {
		return nil, fmt.Errorf("rewrite file %d of log %d: there is no such file", seqs[0], l.o.ID)
	}
	last, _ := l.segment(seqs[len(seqs)-1])
	r := &Rewrite{Seq: seqs[0], Generation: info.Generation + 1, log: l, old: seqs[1:], covers: max(last.Seq, last.Covers, info.Covers)}
	if err := r.write(fill); err != nil {
		return nil, errors.Join(fmt.Errorf("rewrite file %d of log %d: %w", r.Seq, l.o.ID, err), r.Discard())
	}
	return r, nil
}

// segment is what is known of one file.
func (l *Log) segment(seq uint64) (SegmentInfo, bool) {
	l.view.Lock()
	defer l.view.Unlock()
	for _, s := range l.view.segments {
		if s.Seq == seq {
			return s, true
		}
	}
	return SegmentInfo{}, false
}

// Generation is that of a file as readers see it; 0: there is no such file.
func (l *Log) Generation(seq uint64) uint64 {
	s, _ := l.segment(seq)
	return s.Generation
}

func (r *Rewrite) path() string { return r.log.path(r.Seq) + rewriteSuffix }

func (r *Rewrite) write(fill func(add func(body []byte) (int64, error)) error) (err error) {
	f, err := r.log.o.FS.Create(r.path())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	head, salt := header{version: VersionRewritten, id: r.log.o.ID, seq: r.Seq, generation: r.Generation, covers: r.covers}.encode()
	r.salt = salt
	w := rewriter{file: f, buf: head[:], salt: salt}
	if err := fill(w.add); err != nil {
		return err
	}
	if err := w.flush(); err != nil {
		return err
	}
	r.Size = w.written
	crashpoint.Hit("reclaim.rewrite.before-sync")
	return f.Sync()
}

// rewriter writes the records of a new file.
type rewriter struct {
	file    vfs.File
	buf     []byte // starts at written
	written int64
	salt    uint64
}

func (w *rewriter) add(body []byte) (pos int64, err error) {
	if len(body) == 0 || len(body) > MaxRecord {
		return 0, fmt.Errorf("body of %d bytes: %w", len(body), ErrRecordSize)
	}
	start := len(w.buf)
	pos = w.written + int64(start)
	var head [RecordHeaderSize]byte
	w.buf = append(append(w.buf, head[:]...), body...)
	seal(w.buf[start:], w.salt, pos)
	if len(w.buf) >= rewriteFlush {
		err = w.flush()
	}
	return pos, err
}

// rewriteFlush is how many bytes are collected for one write.
const rewriteFlush = 256 << 10

func (w *rewriter) flush() error {
	if _, err := w.file.WriteAt(w.buf, w.written); err != nil {
		return err
	}
	w.written += int64(len(w.buf))
	w.buf = w.buf[:0]
	return nil
}

// Discard removes a file that was not swapped in.
func (r *Rewrite) Discard() error { return r.log.o.FS.RemoveAll(r.path()) }

// Swap puts the file in place, durably. The old one stays open for those who read it, until Show.
func (r *Rewrite) Swap() error {
	l := r.log
	pinned, err := l.files.acquire(l, r.Seq)
	if err != nil {
		return l.readError(r.Seq, 0, err)
	}
	r.pinned = pinned
	crashpoint.Hit("reclaim.rewrite.before-rename")
	if err := l.o.FS.Rename(r.path(), l.path(r.Seq)); err != nil {
		return fmt.Errorf("rewrite file %d of log %d: %w", r.Seq, l.o.ID, err)
	}
	crashpoint.Hit("reclaim.rewrite.after-rename")
	if err := l.o.FS.SyncDir(l.o.Dir); err != nil {
		return fmt.Errorf("rewrite file %d of log %d: %w", r.Seq, l.o.ID, err)
	}
	return nil
}

// Show lets readers open the file, and forgets those that it replaces. It does no I/O beside closing handles. Whoever
// looks positions up learns the new ones at the same moment.
func (r *Rewrite) Show() {
	l := r.log
	l.view.Lock()
	l.view.segments = slices.DeleteFunc(l.view.segments, func(s SegmentInfo) bool { return slices.Contains(r.old, s.Seq) })
	for i := range l.view.segments {
		if s := &l.view.segments[i]; s.Seq == r.Seq {
			s.Generation, s.Size, s.Covers = r.Generation, r.Size, r.covers
		}
	}
	if l.view.validSeq == r.Seq || slices.Contains(r.old, l.view.validSeq) {
		l.view.validSeq = 0
	}
	l.view.Unlock()
	l.files.drop(l, r.Seq)
	for _, seq := range r.old {
		l.files.drop(l, seq)
	}
	l.files.release(r.pinned)
}

// Clean removes the files that were replaced. A crash before that leaves files that Open passes over, because the
// new file's header says that it covers them.
func (r *Rewrite) Clean() error {
	l := r.log
	l.mu.Lock()
	if l.seq == r.Seq { // the newest file: a cut compares its size
		l.flushed, l.size = r.Size, r.Size
	}
	l.mu.Unlock()
	if len(r.old) == 0 {
		return nil
	}
	crashpoint.Hit("reclaim.merge.before-remove")
	return l.removeFiles(r.old)
}

// Drop removes files that take no more records, durably. None of them is the newest of the log.
func (l *Log) Drop(seqs []uint64) error {
	l.view.Lock()
	n := len(l.view.segments)
	if n > 0 && slices.Contains(seqs, l.view.segments[n-1].Seq) {
		l.view.Unlock()
		return fmt.Errorf("remove files %v of log %d: one is the newest", seqs, l.o.ID)
	}
	l.view.segments = slices.DeleteFunc(l.view.segments, func(s SegmentInfo) bool { return slices.Contains(seqs, s.Seq) })
	l.view.Unlock()
	for _, seq := range seqs {
		l.files.drop(l, seq)
	}
	crashpoint.Hit("reclaim.unlink.before-remove")
	return l.removeFiles(seqs)
}

func (l *Log) removeFiles(seqs []uint64) error {
	for _, seq := range seqs {
		if err := l.o.FS.Remove(l.path(seq)); err != nil {
			return fmt.Errorf("remove file %d of log %d: %w", seq, l.o.ID, err)
		}
		crashpoint.Hit("reclaim.unlink.segment-removed")
	}
	crashpoint.Hit("reclaim.unlink.before-sync")
	if err := l.o.FS.SyncDir(l.o.Dir); err != nil {
		return fmt.Errorf("remove files of log %d: %w", l.o.ID, err)
	}
	crashpoint.Hit("reclaim.unlink.after-sync")
	return nil
}

// passOver takes the files out of the list that a rewritten one covers: a merge was interrupted before it removed them.
func (l *Log) passOver() {
	covered := uint64(0)
	l.view.segments = slices.DeleteFunc(l.view.segments, func(s SegmentInfo) bool {
		if s.Seq <= covered {
			l.covered = append(l.covered, s.Seq)
			return true
		}
		covered = max(covered, s.Covers)
		return false
	})
	l.next = max(l.next, covered+1)
}

// RemoveCovered removes what an interrupted merge left, after it has made sure that the file that took its place is there to stay.
func (l *Log) RemoveCovered() error {
	if len(l.covered) == 0 {
		return nil
	}
	if err := l.o.FS.SyncDir(l.o.Dir); err != nil {
		return fmt.Errorf("log %d: %w", l.o.ID, err)
	}
	if err := l.removeFiles(l.covered); err != nil {
		return err
	}
	l.covered = nil
	return nil
}

// RecordSize is how many bytes the record at a position takes, as its header says.
func (l *Log) RecordSize(seq uint64, pos int64) (int64, error) {
	f, err := l.files.acquire(l, seq)
	if err != nil {
		return 0, l.readError(seq, pos, err)
	}
	defer l.files.release(f)
	var b [4]byte
	if n, err := f.file.ReadAt(b[:], pos); n < len(b) {
		if err == nil || errors.Is(err, io.EOF) {
			return 0, l.corrupt(seq, pos, "record header", "4 bytes", fmt.Sprint(n))
		}
		return 0, l.readError(seq, pos, err)
	}
	return RecordHeaderSize + int64(binary.LittleEndian.Uint32(b[:])), nil
}
