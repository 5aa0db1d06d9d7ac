package raftlog

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path"
	"slices"
	"strings"

	"queen/index"
	"queen/internal/crashpoint"
	"queen/internal/entry"
	"queen/internal/plant"
	"queen/segment"
)

// This file carries out what reclaim has chosen.

// A file is released in three steps: wanted, left out of a footer that is being written, left out of a durable one.
type releaseState uint8

const (
	releaseWanted releaseState = iota + 1
	releaseUnlisted
	released
)

// release asks for footers that do not need what the job takes. It reports whether the job has to wait for one.
func (q *QueueLog) release(jb job) (wait bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.mu.released == nil {
		q.mu.released = make(map[uint64]releaseState)
	}
	want := func(seq uint64) {
		q.mu.released[seq] = releaseWanted
		wait = true
	}
	switch jb.kind {
	case jobLog:
		q.mu.gone = releaseWanted
		return true
	case jobRemove:
		for _, seq := range jb.seqs {
			want(seq)
		}
	case jobMerge:
		for _, seq := range jb.seqs[1:] {
			want(seq)
		}
	}
	if jb.kind == jobRewrite || jb.kind == jobMerge {
		q.mu.shrinks = append(q.mu.shrinks, jb.seqs[0])
		wait = wait || q.sizedLocked(jb.seqs[0])
	}
	return wait
}

// sizedLocked reports whether a footer says how large a file is at least: it does so of the last file that it lists.
func (q *QueueLog) sizedLocked(seq uint64) bool { return q.mu.sized[0] == seq || q.mu.sized[1] == seq }

// unlisted notes that the footer which Claims was called for is durable.
func (q *QueueLog) unlisted() {
	q.mu.Lock()
	defer q.mu.Unlock()
	for seq, s := range q.mu.released { // the order reaches nothing
		if s == releaseUnlisted {
			q.mu.released[seq] = released
		}
	}
	if q.mu.gone == releaseUnlisted {
		q.mu.gone = released
	}
	q.mu.sized[0] = q.mu.sized[1]
}

// free reports whether no footer needs any more what the job takes.
func (q *QueueLog) free(jb job) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if plant.Is(plant.UnlinkTooEarly) {
		return true
	}
	if jb.kind == jobLog {
		return q.mu.gone == released
	}
	seqs := jb.seqs
	if jb.kind != jobRemove {
		if q.sizedLocked(seqs[0]) {
			return false
		}
		seqs = seqs[1:]
	}
	return !slices.ContainsFunc(seqs, func(seq uint64) bool { return q.mu.released[seq] != released })
}

// do carries a job out, or keeps it until it can be.
func (r *reclaimer) do(j *judge, jb job) error {
	q := jb.q
	if r.store.closing.Load() {
		return errClosing
	}
	if !q.free(jb) {
		r.jobs = append(r.jobs, jb)
		return nil
	}
	if jb.kind == jobLog {
		return r.removeLogs(j, []job{jb})
	}
	q.busy.Lock()
	defer q.busy.Unlock()
	var left int64
	var err error
	if jb.kind == jobRemove {
		err = q.removeFiles(jb.seqs)
	} else {
		left, err = q.rewrite(j, jb.seqs)
	}
	if err != nil {
		q.forgetRelease(jb)
		return r.tolerate(q, err)
	}
	r.count(jb, left)
	return nil
}

func (r *reclaimer) count(jb job, left int64) {
	c := &r.store.reclaimed
	c.Bytes.Add(jb.sizes - left)
	switch jb.kind {
	case jobLog:
		c.Logs.Add(1)
	case jobRemove:
		c.Files.Add(int64(len(jb.seqs)))
	case jobRewrite:
		c.Rewrites.Add(1)
	case jobMerge:
		c.Merges.Add(1)
		c.Files.Add(int64(len(jb.seqs) - 1))
	}
	r.store.opt.Logger.Debug("space reclaimed", slog.Uint64("log", jb.q.ID), slog.Any("files", jb.seqs), slog.Int64("bytes", jb.sizes-left))
}

// forgetRelease lets footers list the files of a job again: it was given up.
func (q *QueueLog) forgetRelease(jb job) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, seq := range jb.seqs {
		delete(q.mu.released, seq)
	}
	q.shrunkLocked(jb.seqs)
}

func (q *QueueLog) shrunkLocked(seqs []uint64) {
	q.mu.shrinks = slices.DeleteFunc(q.mu.shrinks, func(seq uint64) bool { return slices.Contains(seqs, seq) })
}

// removeFiles removes files of which nothing is left. Look-ups forget them first.
func (q *QueueLog) removeFiles(seqs []uint64) error {
	for _, seq := range seqs {
		if err := q.Index.DropFile(seq); err != nil {
			return err
		}
	}
	crashpoint.Hit("reclaim.unlink.tables-removed")
	if err := q.Log.Drop(seqs); err != nil {
		return err
	}
	q.forgetFiles(seqs)
	return nil
}

func (q *QueueLog) forgetFiles(seqs []uint64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.mu.files = slices.DeleteFunc(q.mu.files, func(f FileInfo) bool { return slices.Contains(seqs, f.Seq) })
	for _, seq := range seqs {
		delete(q.mu.released, seq)
	}
}

// errHalfReplaced: the smaller file may be in place already, while the tables and everything in memory describe the
// larger one. A footer that told its size would have the next start refuse the log. A start puts that right.
var errHalfReplaced = errors.New("a rewritten file could not be put into use; start again, with room on the disk")

// rewrite makes one file of what is left of some. It returns the size of that file.
func (q *QueueLog) rewrite(j *judge, seqs []uint64) (size int64, err error) {
	w := rewriting{q: q, j: j, seq: seqs[0], content: index.NewFileContent(seqs[0])}
	rw, err := q.Log.Rewrite(seqs, func(add func([]byte) (int64, error)) error {
		w.add = add
		for _, seq := range seqs {
			if err := w.file(seq); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return 0, err
	}
	if err := rw.Swap(); err != nil {
		return 0, fmt.Errorf("%w: %w", errHalfReplaced, err)
	}
	info := q.merged(seqs, rw)
	if err := q.Index.Replace(info.sealedFile(), seqs[1:], w.content, rw.Show); err != nil {
		return 0, fmt.Errorf("%w: %w", errHalfReplaced, err)
	}
	q.replaced(seqs, info)
	q.store.blocks.forget(q.ID)
	return rw.Size, rw.Clean()
}

// merged describes a file that takes the place of some.
func (q *QueueLog) merged(seqs []uint64, rw *segment.Rewrite) FileInfo {
	q.mu.Lock()
	defer q.mu.Unlock()
	out := FileInfo{Seq: rw.Seq, Generation: rw.Generation, Size: rw.Size, Sealed: true}
	for _, f := range q.mu.files {
		if !slices.Contains(seqs, f.Seq) {
			continue
		}
		if out.MinIndex == 0 {
			out.MinIndex = f.MinIndex
		}
		out.MaxIndex = max(out.MaxIndex, f.MaxIndex)
		if f.MinTime != 0 {
			out.noteTime(f.MinTime)
			out.noteTime(f.MaxTime)
		}
	}
	return out
}

// replaced notes that one file has taken the place of some.
func (q *QueueLog) replaced(seqs []uint64, by FileInfo) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.mu.files = slices.DeleteFunc(q.mu.files, func(f FileInfo) bool { return f.Seq != by.Seq && slices.Contains(seqs, f.Seq) })
	*q.fileLocked(by.Seq) = by
	for i := range q.mu.ends {
		if m := &q.mu.ends[i]; slices.Contains(seqs, m.Seq) {
			m.Seq, m.End = by.Seq, by.Size
		}
	}
	for _, seq := range seqs {
		delete(q.mu.released, seq)
	}
	q.shrunkLocked(seqs)
}

// rewriting copies what is left of files into one.
type rewriting struct {
	q       *QueueLog
	j       *judge
	seq     uint64
	add     func([]byte) (int64, error)
	content *index.FileContent
	buf     []byte
	txn     []byte
}

func (w *rewriting) file(seq uint64) error {
	info, err := w.q.fileInfo(seq)
	if err != nil {
		return err
	}
	end, err := w.q.Log.Scan(seq, 0, func(pos int64, body []byte) error {
		if w.q.store.closing.Load() {
			return errClosing
		}
		if err := w.record(body); err != nil {
			return fmt.Errorf("file %d pos %d: %w", seq, pos, err)
		}
		return nil
	})
	if err == nil && end != info.Size { // what cannot be read must not be taken for gone
		err = &segment.CorruptError{File: path.Join(w.q.Log.Dir(), segment.FileName(seq)), Pos: end, What: "end of the records",
			Expected: fmt.Sprint(info.Size), Found: fmt.Sprint(end)}
	}
	return err
}

func (q *QueueLog) fileInfo(seq uint64) (FileInfo, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if f := q.fileLocked(seq); f != nil {
		return *f, nil
	}
	return FileInfo{}, fmt.Errorf("log q%d has no file %d", q.ID, seq)
}

func (w *rewriting) record(body []byte) error {
	r, err := entry.ParseRecord(body)
	if err != nil {
		return err
	}
	if r.Index > w.j.from {
		return fmt.Errorf("a record of entry %d, the checkpoint covers entries up to %d", r.Index, w.j.from)
	}
	switch w.j.record(&r) {
	case gone:
		return nil
	case idsOnly:
		if r.Kind == entry.KindAppend {
			if w.buf, err = entry.AppendIDsRecord(w.buf[:0], &r); err != nil {
				return err
			}
			body = w.buf
		}
	}
	pos, err := w.add(body)
	if err != nil {
		return err
	}
	w.txn, err = addRecord(w.content, w.seq, pos, body, w.txn)
	return err
}

// removeLogs removes the logs of deleted queues.
func (r *reclaimer) removeLogs(j *judge, jobs []job) error {
	if len(jobs) == 0 {
		return nil
	}
	if r.store.closing.Load() {
		return errClosing
	}
	for _, jb := range jobs { // nobody else waits for one of these locks while it has another
		jb.q.busy.Lock()
		defer jb.q.busy.Unlock()
		if !r.ofDeleted(j, jb.q) {
			return fmt.Errorf("log q%d: it was written to after its queue had been deleted", jb.q.ID)
		}
	}
	if err := r.store.removeLogs(jobs); err != nil {
		for _, jb := range jobs {
			jb.q.forgetRelease(jb)
		}
		return r.tolerate(jobs[0].q, err)
	}
	for _, jb := range jobs {
		r.count(jb, 0)
	}
	return nil
}

func (s *Store) removeLogs(jobs []job) error {
	var logs []*segment.Log
	for _, jb := range jobs {
		q := jb.q
		s.mu.Lock()
		delete(s.mu.logs, q.ID)
		s.mu.ids = slices.DeleteFunc(s.mu.ids, func(id uint64) bool { return id == q.ID })
		s.mu.Unlock()
		q.mends.wait()
		q.Index.Forget()
		s.blocks.forget(q.ID)
		logs = append(logs, q.Log)
	}
	crashpoint.Hit("reclaim.log.before-remove")
	if err := segment.RemoveLogs(logs); err != nil {
		return err
	}
	crashpoint.Hit("reclaim.log.removed")
	for _, jb := range jobs {
		_, unsealed, _ := jb.q.size()
		s.unsealed.Add(-unsealed)
	}
	return nil
}

// RemoveGarbage removes what interrupted reclaims left: files that another one covers, and logs that were being removed.
func (s *Store) RemoveGarbage() error {
	for _, q := range s.Logs() {
		if err := q.Log.RemoveCovered(); err != nil {
			return err
		}
	}
	infos, err := listDir(s.opt.FS, s.logDir())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("logs: %w", err)
	}
	for _, info := range infos {
		if strings.HasSuffix(info.Name, segment.RemovedSuffix) {
			if err := s.opt.FS.RemoveAll(path.Join(s.logDir(), info.Name)); err != nil {
				return fmt.Errorf("remove what is left of a log: %w", err)
			}
		}
	}
	return nil
}
