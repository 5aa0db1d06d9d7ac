package raftlog

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"

	"queen/index"
	"queen/internal/entry"
	"queen/internal/plant"
	"queen/segment"
)

// Reclaim frees files. What it may free is judged by the rows of a finished checkpoint (F10), in passes of their own
// goroutine, one after a checkpoint:
//
//	gone      a record that nothing needs: an entry, stub or pad at or below the checkpoint's from; messages below the
//	          log start whose ids need not be known any more; messages of a deleted queue; a value that no row names
//	ids only  messages below the log start whose ids are still needed (deduplication, repeated acks)
//	whole     the rest
//
// A file of which nothing is left is removed, one that is mostly gone is rewritten, and several small ones become one.
// The log of a deleted queue goes as a directory.
//
// A footer lists the files that a boot wants to find (Claims). What is to be removed is therefore first released: the
// next footer does not list it. Only when that footer is durable, the file goes. A crash anywhere in between leaves
// files that the next boot accepts and the next pass judges again.

// Kept is what the rows of a finished checkpoint need of the logs. The load methods get the rows in order, then the
// others are called. What they say is gone stays gone in every later checkpoint.
type Kept interface {
	index.RowLoader
	// Queue reports whether a queue exists.
	Queue(id uint64) bool
	// Partition gives the lowest retained offset, and for how many microseconds ids are needed after their append.
	Partition(id uint64) (start uint64, outlives int64, exists bool)
	// Trimmed reports whether messages are gone of one of the queues for which owns is true.
	Trimmed(owns func(queue uint64) bool) bool
	// Value reports whether a row names the value.
	Value(id uint64) bool
}

// Reclaimed counts what reclaim has done since the start. It is safe to read at any time.
type Reclaimed struct {
	Begun, Passes                    atomic.Int64 // passes that began, and that ended
	Files, Bytes                     atomic.Int64 // removed, freed
	Rewrites, Merges, Logs, Failures atomic.Int64
}

// reclaimer is the goroutine that makes the passes.
type reclaimer struct {
	store  *Store
	cfg    *Config
	submit func(writerRequest)
	// replace asks for a full checkpoint in the place of a file that cannot be read, checkpoint for one when its time
	// comes though nothing has changed.
	replace    func(file string)
	checkpoint func()
	fatal      func(error)

	mu struct {
		sync.Mutex
		next *index.RowsSnapshot // of the checkpoint to judge by; nil: none waits
		busy bool
		keep uint64 // raft's first index by that checkpoint: nothing from there on is touched
		rest int64  // monotonic time before which no pass begins
	}
	wake chan struct{}
	quit chan struct{}
	done chan struct{}
	jobs []job // wait for a footer that does not list their files
}

func startReclaimer(s *Store, cfg *Config, submit func(writerRequest), replace func(string), post func(event), fatal func(error)) *reclaimer {
	r := newReclaimer(s, cfg, submit, replace, post, fatal)
	go r.run()
	return r
}

func newReclaimer(s *Store, cfg *Config, submit func(writerRequest), replace func(string), post func(event), fatal func(error)) *reclaimer {
	r := &reclaimer{store: s, cfg: cfg, submit: submit, replace: replace, checkpoint: func() { post(event{checkpoint: true}) }, fatal: fatal,
		wake: make(chan struct{}, 1), quit: make(chan struct{}), done: make(chan struct{})}
	s.reclaimer.Store(r)
	return r
}

func (r *reclaimer) stop() {
	close(r.quit)
	<-r.done
}

func (r *reclaimer) run() {
	defer close(r.done)
	for {
		select {
		case <-r.quit:
			r.take(true)
			return
		case <-r.wake:
		}
		if err := r.work(); err != nil {
			r.fatal(fmt.Errorf("reclaim: %w", err))
			return
		}
	}
}

// work makes a pass, if a checkpoint waits for one.
func (r *reclaimer) work() error {
	snap, keep := r.take(false)
	if snap == nil {
		return nil
	}
	begun := r.cfg.Clock.Now().Mono
	err := r.pass(snap, keep)
	if cerr := snap.Close(); err == nil {
		err = cerr
	}
	r.rested(begun)
	if errors.Is(err, errClosing) {
		return nil
	}
	return err
}

func (r *reclaimer) rested(begun int64) {
	now := r.cfg.Clock.Now().Mono
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.busy, r.mu.rest = false, now+int64(max(r.cfg.ReclaimRest, 0))*(now-begun)
}

// take gives the snapshot that waits; with closed it is closed and given up instead.
func (r *reclaimer) take(closed bool) (snap *index.RowsSnapshot, keep uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.mu.next
	r.mu.next = nil
	if closed && s != nil {
		_ = s.Close() // only read
		return nil, 0
	}
	r.mu.busy = s != nil
	return s, r.mu.keep
}

// offer hands a finished checkpoint over. It is called by the goroutine that writes the rows.
func (r *reclaimer) offer(rows *index.Rows) error {
	if r.cfg.Kept == nil || r.store.closing.Load() {
		return nil
	}
	r.mu.Lock()
	skip := r.mu.busy || r.mu.next != nil || r.cfg.Clock.Now().Mono < r.mu.rest
	r.mu.Unlock()
	if skip {
		return nil
	}
	snap, err := rows.Snapshot()
	if err != nil || snap == nil {
		return err
	}
	r.mu.Lock()
	r.mu.next, r.mu.keep = snap, r.store.keptFirst.Load()
	r.store.reclaimed.Begun.Add(1)
	r.mu.Unlock()
	select {
	case r.wake <- struct{}{}:
	default:
	}
	return nil
}

// checkpointed notes that the footer for which Claims was called last is durable.
func (s *Store) checkpointed(rows *index.Rows) error {
	for _, q := range s.Logs() {
		q.unlisted()
	}
	if s.keptNext.First != 0 {
		s.keptFirst.Store(s.keptNext.First)
	}
	if r := s.reclaimer.Load(); r != nil {
		return r.offer(rows)
	}
	return nil
}

// pass judges all logs by a checkpoint, after it has done what waited for it.
func (r *reclaimer) pass(snap *index.RowsSnapshot, keep uint64) error {
	j := judge{kept: r.cfg.Kept(), from: min(snap.Footer.From, keep-1), now: snap.Footer.Time, cfg: r.cfg}
	if plant.Is(plant.ReclaimAhead) {
		j.from = r.store.applied.Load()
	}
	switch err := snap.Load(j.kept); {
	case errors.Is(err, index.ErrCorrupt):
		// The state in memory is sound: nothing is freed until a new checkpoint has taken this one's place.
		r.store.reclaimed.Failures.Add(1)
		r.store.reclaimed.Passes.Add(1)
		r.store.opt.Logger.Error("the checkpoint is damaged, a new one takes its place soon: do not stop the broker before that", slog.Any("err", err))
		r.replace(snap.Name())
		return nil
	case err != nil:
		return fmt.Errorf("load the checkpoint: %w", err)
	}
	waiting := r.jobs
	r.jobs = nil
	var logs []job // go together: their directory is synced once
	for _, jb := range waiting {
		if jb.kind == jobLog && jb.q.free(jb) {
			logs = append(logs, jb)
		} else if err := r.do(&j, jb); err != nil {
			return err
		}
	}
	if err := r.removeLogs(&j, logs); err != nil {
		return err
	}
	for _, q := range r.store.Logs() {
		if r.store.closing.Load() {
			return errClosing
		}
		if err := r.judgeLog(&j, q); err != nil {
			return err
		}
	}
	r.store.reclaimed.Passes.Add(1)
	if len(r.jobs) > 0 {
		r.checkpoint() // nobody may write for a long time
	}
	return nil
}

// judgeLog finds what can be done about a log, does what needs no footer, and releases the files of the rest.
func (r *reclaimer) judgeLog(j *judge, q *QueueLog) error {
	held, removing := r.held(q)
	q.busy.Lock()
	deleted := r.ofDeleted(j, q)
	q.busy.Unlock()
	switch {
	case removing:
		return nil
	case deleted:
		_, _, all := q.size()
		jb := job{q: q, kind: jobLog, sizes: all}
		q.release(jb)
		r.jobs = append(r.jobs, jb)
		return nil
	}
	r.rollOld(j, q)
	shares, err := j.shares(q, held)
	if err != nil {
		return r.tolerate(q, err)
	}
	for _, jb := range j.jobs(q, shares) {
		if q.release(jb) && !plant.Is(plant.UnlinkTooEarly) {
			r.jobs = append(r.jobs, jb)
		} else if err := r.do(j, jb); err != nil {
			return err
		}
	}
	return r.refresh(q)
}

// held lists the files of a log that wait for a footer.
func (r *reclaimer) held(q *QueueLog) (seqs []uint64, removing bool) {
	for _, jb := range r.jobs {
		if jb.q == q {
			seqs, removing = append(seqs, jb.seqs...), removing || jb.kind == jobLog
		}
	}
	return seqs, removing
}

// ofDeleted reports whether a log is that of a queue that is no more, and no boot replays anything of it. The caller holds
// q.busy.
func (r *reclaimer) ofDeleted(j *judge, q *QueueLog) bool {
	if q.ID == SystemLog || r.store.opt.Layout.Shards > 0 || j.kept.Queue(q.ID) {
		return false
	}
	// No files: it was opened a moment ago. An unsealed file without records is what a power cut left of a queue that was
	// lost with it: the next queue gets its id.
	files := q.Files()
	needed := slices.ContainsFunc(files, func(f FileInfo) bool { return f.MaxIndex > j.from || f.MaxIndex == 0 && !f.Sealed })
	return len(files) > 0 && !needed && !j.names(q)
}

// names reports whether a row names a value in the log of a deleted queue: the payload of a timer, or the answer of a
// call, rides in whatever log its entry touched first. The caller holds q.busy, so nothing is sealed between the looks.
func (j *judge) names(q *QueueLog) (named bool) {
	q.Index.Unsealed(func(id uint64) { named = named || j.kept.Value(id) })
	if named {
		return true
	}
	err := q.Index.Walk(func(index.AppendRef) {}, func(id, _ uint64, _ int64) { named = named || j.kept.Value(id) })
	return named || err != nil // what cannot be read is not removed
}

// rollOld ends the active file of a log of which parts are gone, when it is old and large enough to be worth freeing.
func (r *reclaimer) rollOld(j *judge, q *QueueLog) {
	for _, f := range q.Files() {
		if !f.Active || f.Size < r.cfg.SegmentBytes/smallPart {
			continue
		}
		old := f.MinTime != 0 && f.MinTime <= j.now-r.cfg.SealAge.Microseconds()
		owns := func(queue uint64) bool { return r.store.opt.Layout.Log(queue) == q.ID }
		if q.ID == SystemLog || old && j.kept.Trimmed(owns) {
			r.submit(writerRequest{roll: []uint64{q.ID}})
		}
	}
}

// refresh makes tables again that mostly hold ids of files that are gone.
func (r *reclaimer) refresh(q *QueueLog) error {
	q.busy.Lock()
	defer q.busy.Unlock()
	q.mends.Lock()
	defer q.mends.Unlock()
	for _, seq := range q.Index.Stale(staleAtOnce) {
		if err := q.reseal(seq); err != nil {
			return r.tolerate(q, err)
		}
		q.mends.mergeable.Store(true)
		r.store.rolls.Add(1) // the sealer merges them
	}
	return nil
}

// staleAtOnce bounds how many files a pass reads for that.
const staleAtOnce = 8

// tolerate takes an error after which nothing has changed: damage is met by readers too, a full disk frees nothing.
func (r *reclaimer) tolerate(q *QueueLog, err error) error {
	damaged := errors.Is(err, segment.ErrCorrupt) || errors.Is(err, segment.ErrTorn) || errors.Is(err, index.ErrCorrupt)
	if (damaged || errors.Is(err, syscall.ENOSPC)) && !errors.Is(err, errHalfReplaced) {
		r.store.reclaimed.Failures.Add(1)
		r.store.opt.Logger.Warn("space of a log cannot be reclaimed", slog.Uint64("log", q.ID), slog.Any("err", err))
		return nil
	}
	return fmt.Errorf("log q%d: %w", q.ID, err)
}

// verdict is what becomes of a record.
type verdict uint8

const (
	gone verdict = iota
	idsOnly
	whole
)

// judge decides by one checkpoint.
type judge struct {
	kept Kept
	from uint64 // nothing of a later entry is touched
	now  int64  // time of the state, microseconds
	cfg  *Config
}

func (j *judge) append(partition, first uint64, count uint32, t int64) verdict {
	start, outlives, exists := j.kept.Partition(partition)
	switch {
	case !exists:
		return gone
	case first+uint64(count) > start:
		return whole
	case t > j.now-outlives:
		return idsOnly
	}
	return gone
}

// record decides about a record of an entry at or below from.
func (j *judge) record(r *entry.Record) verdict {
	switch r.Kind {
	case entry.KindAppend, entry.KindIDs:
		return j.append(r.Append.Partition, r.Append.First, r.Append.Count, r.Append.Time)
	case entry.KindValue:
		if j.kept.Value(r.Value.ID) {
			return whole
		}
	}
	return gone
}
