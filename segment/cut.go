package segment

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"

	"queen/internal/plant"
	"queen/internal/vfs"
)

// RemovedSuffix ends the name of a log directory that is being removed. What
// has it when a process starts is garbage of an unfinished Remove.
const RemovedSuffix = ".removed"

// Truncate cuts the log: files after seq are removed, and file seq ends at
// pos, a record's position or the end of the last one. A pos up to HeaderSize
// removes file seq too. When it returns the cut is durable, and the log clean.
// A pos inside of a record is found by the next append, which refuses.
//
// Files go newest first, each removal durable before the next, so that a crash
// in between leaves a log without its end and never one with a hole.
//
// A file that was cut is the active one again. When nothing was taken from
// file seq itself and it had a successor, or it is gone, the next append
// starts a new file: an older file may be sealed.
func (l *Log) Truncate(seq uint64, pos int64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return l.refusal("truncate")
	}
	if seq == l.seq && pos > l.flushed && pos > HeaderSize {
		if err := l.flushLocked(); err != nil { // the cut goes through what is only buffered
			return err
		}
	}
	size, newest, ok := l.sizeOf(seq)
	if !ok && seq != l.seq {
		return fmt.Errorf("truncate log %d: it has no file %d", l.o.ID, seq)
	}
	if pos > size && pos > HeaderSize {
		return fmt.Errorf("truncate log %d file %d at pos %d: the file has %d bytes", l.o.ID, seq, pos, size)
	}
	l.dropBufferLocked()
	keep := seq
	if pos <= HeaderSize {
		keep = seq - 1
	}
	if l.seq > keep { // the handle of a file that stays is synced before it is closed
		if err := l.closeFileLocked(); err != nil {
			return err
		}
	}
	if err := l.removeAboveLocked(keep); err != nil {
		return err
	}
	if keep < seq {
		return l.restartLocked()
	}
	return l.cutFileLocked(seq, pos, size, newest)
}

// dropBufferLocked forgets what was not flushed, and the active file with it
// if that does not exist yet.
func (l *Log) dropBufferLocked() {
	l.files.giveBuffer(l.buf)
	l.buf = nil
	if l.seq != 0 && !l.created {
		l.next = l.seq
		l.resetLocked()
	}
}

// resetLocked makes the newest existing file the last one, which the next
// append leaves alone.
func (l *Log) resetLocked() {
	l.view.Lock()
	defer l.view.Unlock()
	l.seq, l.created, l.flushed, l.size, l.rolled, l.tail = 0, false, 0, 0, false, false
	if n := len(l.view.segments); n > 0 {
		last := l.view.segments[n-1]
		l.seq, l.created, l.flushed, l.size, l.rolled = last.Seq, true, last.Size, last.Size, true
	}
	for i := range l.view.segments {
		l.view.segments[i].Active = false
	}
}

func (l *Log) removeAboveLocked(keep uint64) error {
	segments := l.Segments()
	for i := len(segments) - 1; i >= 0 && segments[i].Seq > keep; i-- {
		if err := l.removeFileLocked(segments[i].Seq); err != nil {
			return err
		}
		l.next = segments[i].Seq
	}
	return nil
}

func (l *Log) removeFileLocked(seq uint64) error {
	l.files.drop(l, seq)
	l.forgetValid(seq, 0)
	if err := l.o.FS.Remove(l.path(seq)); err != nil {
		return l.failLocked("remove", err)
	}
	l.view.Lock()
	l.view.segments = slices.DeleteFunc(l.view.segments, func(s SegmentInfo) bool { return s.Seq == seq })
	l.view.Unlock()
	if plant.Is(plant.CutNotDurable) {
		return nil
	}
	if err := l.o.FS.SyncDir(l.o.Dir); err != nil {
		return l.failLocked("fsync directory", err)
	}
	return nil
}

// restartLocked ends a cut that left no part of its file. The file before it,
// if there is one, has been durable since before that file existed.
func (l *Log) restartLocked() error {
	l.resetLocked()
	l.unsynced = false
	return l.syncLocked()
}

// cutFileLocked makes seq end at pos and be the active file.
func (l *Log) cutFileLocked(seq uint64, pos, size int64, newest bool) error {
	l.forgetValid(seq, pos)
	wasRolled, whole := l.rolled, size
	if seq == l.seq {
		whole = max(size, l.size)
	}
	l.seq, l.created, l.flushed, l.size, l.tail, l.unsynced = seq, true, pos, pos, false, true
	l.rolled = pos == size && (!newest || wasRolled)
	if err := l.openLocked(); err != nil {
		return l.failLocked("open for writing", err)
	}
	if pos < whole {
		if err := l.file.Truncate(pos); err != nil {
			return l.failLocked("truncate", err)
		}
	}
	l.publishLocked()
	if plant.Is(plant.CutNotDurable) {
		l.unsynced = false
	}
	if err := l.syncLocked(); err != nil {
		return err
	}
	if l.rolled {
		l.setActiveLocked(0)
		return l.closeFileLocked()
	}
	l.setActiveLocked(seq)
	return nil
}

// forgetValid drops what a scan found of a file that ends at pos from now on,
// if it reached further: other bytes may come to stand there.
func (l *Log) forgetValid(seq uint64, pos int64) {
	l.view.Lock()
	defer l.view.Unlock()
	if l.view.validSeq == seq && l.view.validEnd > pos {
		l.view.validSeq = 0
	}
}

// WriteAgain writes the bytes of the newest file from pos on once more, for the
// next Sync to cover. After an fsync that failed the kernel calls pages clean
// that never reached the disk, and a process that starts again on the same
// kernel reads them, and syncs them in vain: only a write makes them dirty.
func (l *Log) WriteAgain(seq uint64, pos int64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return l.refusal("write again")
	}
	if seq != l.seq || !l.created || pos >= l.flushed {
		return nil
	}
	if err := l.openLocked(); err != nil {
		return l.failLocked("open for writing", err)
	}
	if err := vfs.WriteAgain(l.file, pos, l.flushed); err != nil {
		return l.failLocked("write again", err)
	}
	l.unsynced = true
	if !l.rolled {
		return nil
	}
	if err := l.syncLocked(); err != nil { // the next append opens another file
		return err
	}
	return l.closeFileLocked()
}

// RemoveSegment removes a file that is not the active one, durably.
func (l *Log) RemoveSegment(seq uint64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return l.refusal("removal of a file")
	}
	if seq == l.seq && !l.rolled {
		return fmt.Errorf("remove file %d of log %d: it is the active one, roll first", seq, l.o.ID)
	}
	if _, _, ok := l.sizeOf(seq); !ok {
		return fmt.Errorf("remove file %d of log %d: there is no such file", seq, l.o.ID)
	}
	if err := l.removeFileLocked(seq); err != nil {
		return err
	}
	if seq == l.seq {
		l.resetLocked()
	}
	return nil
}

// Remove removes the whole log and closes it. The directory is first renamed
// to one with RemovedSuffix, durably, so that after a crash the log is there
// or not, and never in part.
func (l *Log) Remove() error { return RemoveLogs([]*Log{l}) }

// RemoveLogs is Remove for several logs, whose directories stand in one: that is
// synced once. After an error each of them is there or not.
func RemoveLogs(logs []*Log) error {
	var renamed []*Log
	for _, l := range logs {
		did, err := l.renameAway()
		if err != nil {
			return err
		}
		if did {
			renamed = append(renamed, l)
		}
	}
	if len(renamed) == 0 {
		return nil
	}
	o := renamed[0].o
	if err := o.FS.SyncDir(filepath.Dir(o.Dir)); err != nil {
		return renamed[0].removeError(err)
	}
	for _, l := range renamed {
		if err := l.o.FS.RemoveAll(l.o.Dir + RemovedSuffix); err != nil {
			return l.removeError(err)
		}
	}
	return nil
}

// renameAway closes the log and renames its directory, if there is one.
func (l *Log) renameAway() (did bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return false, l.refusal("remove")
	}
	l.abandonLocked()
	if _, err := l.o.FS.Stat(l.o.Dir); errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	gone := l.o.Dir + RemovedSuffix
	if err := l.o.FS.RemoveAll(gone); err != nil {
		return false, l.removeError(err)
	}
	if err := l.o.FS.Rename(l.o.Dir, gone); err != nil {
		return false, l.removeError(err)
	}
	return true, nil
}

func (l *Log) removeError(err error) error { return fmt.Errorf("remove log %d: %w", l.o.ID, err) }
