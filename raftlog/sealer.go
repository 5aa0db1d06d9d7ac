package raftlog

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"sync"

	"queen/index"
	"queen/internal/entry"
)

// sealer makes the side tables of rolled files in the background, and keeps
// the unsealed bytes of all logs bounded by rolling the log with the oldest
// unsealed record (I4, F21).
//
// A file is sealed once its last entry is applied here: it is committed then,
// so no cut reaches into it.
type sealer struct {
	store  *Store
	cfg    *Config
	submit func(writerRequest)
	post   func(event)
	fatal  func(error)

	mu struct {
		sync.Mutex
		before int64 // logs with unsealed appends at or before this time are to roll
	}
	wake chan struct{}
	quit chan struct{}
	done chan struct{}

	// The goroutine's own.
	rolls   uint64 // store.rolls at the last look
	skipped int    // kicks since
	waiting bool   // files that have ended and could not be sealed

	reclaimer *reclaimer
}

func startSealer(s *Store, cfg *Config, submit func(writerRequest), post func(event), replace func(string), fatal func(error)) *sealer {
	l := newSealer(s, cfg, submit, post, fatal)
	l.reclaimer = startReclaimer(s, cfg, submit, replace, post, fatal)
	go l.run()
	return l
}

func newSealer(s *Store, cfg *Config, submit func(writerRequest), post func(event), fatal func(error)) *sealer {
	return &sealer{store: s, cfg: cfg, submit: submit, post: post, fatal: fatal, waiting: true,
		wake: make(chan struct{}, 1), quit: make(chan struct{}), done: make(chan struct{})}
}

func (l *sealer) kick() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

func (l *sealer) sealBefore(t int64) {
	l.mu.Lock()
	l.mu.before = max(l.mu.before, t)
	l.mu.Unlock()
	l.kick()
}

func (l *sealer) stop() {
	l.store.closing.Store(true)
	l.reclaimer.stop()
	close(l.quit)
	<-l.done
}

func (l *sealer) run() {
	defer close(l.done)
	for {
		select {
		case <-l.quit:
			return
		case <-l.wake:
		}
		if err := l.work(); err != nil {
			l.fatal(fmt.Errorf("a file cannot be sealed: %w", err))
			return
		}
	}
}

// work asks for the rolls that are due and seals what can be sealed. Where
// there are thousands of logs a look at each of them costs something, so it
// looks only when a file has ended since, some could not be sealed yet, or
// patience is over: damaged tables are met by readers.
func (l *sealer) work() error {
	l.rollDue()
	if rolls := l.store.rolls.Load(); rolls == l.rolls && !l.waiting && l.skipped < maxSkipped {
		l.skipped++
		return nil
	} else {
		l.rolls, l.skipped, l.waiting = rolls, 0, false
	}
	sealed := false
	for _, q := range l.store.Logs() {
		did, err := l.sealLog(q)
		if err != nil {
			return err
		}
		sealed = sealed || did
		if l.quitting() {
			break
		}
	}
	if sealed {
		l.post(event{sealed: true})
	}
	return nil
}

// maxSkipped is how many looks are skipped when nothing seems to have changed:
// at ten ticks a second one in five seconds is made.
const maxSkipped = 50

func (l *sealer) quitting() bool {
	select {
	case <-l.quit:
		return true
	default:
		return false
	}
}

// sealLog seals the files of one log, and makes damaged tables again.
func (l *sealer) sealLog(q *QueueLog) (sealed bool, err error) {
	if !q.busy.TryLock() { // files of it are being replaced
		l.waiting = true
		return false, nil
	}
	defer q.busy.Unlock()
	if l.store.find(q.ID) != q {
		return false, nil // it was removed
	}
	files, rest := q.sealable(l.store.applied.Load())
	l.waiting = l.waiting || rest
	for _, f := range files {
		if l.quitting() {
			return sealed, nil
		}
		if err := q.seal(f); err != nil {
			return sealed, fmt.Errorf("log q%d file %d: %w", q.ID, f.Seq, err)
		}
		l.store.unsealed.Add(-f.Size)
		sealed = true
	}
	// What cannot be made again is logged, and met by the look-ups that need it.
	if len(q.Index.Broken()) > 0 {
		_ = q.mend()
	}
	if q.mends.mergeable.Swap(false) {
		if err := q.merge(); err != nil {
			return sealed, fmt.Errorf("log q%d: %w", q.ID, err)
		}
	}
	return sealed, nil
}

func (l *sealer) rollDue() {
	l.mu.Lock()
	before := l.mu.before
	l.mu.before = 0
	l.mu.Unlock()
	ids := l.store.activeBefore(before)
	if over := l.store.unsealed.Load() - l.cfg.UnsealedMax; over > 0 {
		ids = append(ids, l.store.oldestActive(over)...)
	}
	if len(ids) > 0 {
		l.submit(writerRequest{roll: ids})
	}
}

// sealable lists the rolled files whose entries are all applied; rest tells
// whether there are others.
func (q *QueueLog) sealable(applied uint64) (out []FileInfo, rest bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, f := range q.mu.files {
		switch {
		case f.Active || f.Sealed:
		case f.MaxIndex <= applied:
			out = append(out, f)
		default:
			rest = true
		}
	}
	return out, rest
}

func (f *FileInfo) sealedFile() index.SealedFile {
	return index.SealedFile{Seq: f.Seq, Generation: f.Generation, Size: f.Size, MinIndex: f.MinIndex, MaxIndex: f.MaxIndex}
}

// seal writes the side tables of a file.
func (q *QueueLog) seal(f FileInfo) error {
	if err := q.Index.Seal(f.sealedFile(), func(add func(hash, offset uint64)) error { return q.txns(f.Seq, add) }); err != nil {
		return err
	}
	q.sealed(f.Seq)
	return q.merge()
}

// merge merges side tables while there are enough of a level.
func (q *QueueLog) merge() error {
	for {
		if did, err := q.Index.MergeSome(); err != nil || !did {
			return err
		}
	}
}

// txns gives the dedup hash and offset of every message in a file.
func (q *QueueLog) txns(seq uint64, add func(hash, offset uint64)) error {
	var txn []byte
	_, err := q.Log.Scan(seq, 0, func(pos int64, body []byte) error {
		if k := entry.Kind(body[0]); k != entry.KindAppend && k != entry.KindIDs {
			return nil
		}
		r, err := entry.ParseRecord(body)
		if err != nil {
			return fmt.Errorf("pos %d: %w", pos, err)
		}
		return eachMessage(&r.Append, 0, math.MaxUint64, func(offset uint64, m *entry.Message) error {
			txn = m.AppendTxn(txn[:0])
			add(entry.TxnHash(r.Append.Partition, txn), offset)
			return nil
		})
	})
	return err
}

// activeBefore lists the logs whose active file has appends at or before t.
func (s *Store) activeBefore(t int64) (ids []uint64) {
	if t == 0 {
		return nil
	}
	for _, q := range s.Logs() {
		q.mu.Lock()
		for _, f := range q.mu.files {
			if f.Active && f.MinTime != 0 && f.MinTime <= t {
				ids = append(ids, q.ID)
			}
		}
		q.mu.Unlock()
	}
	return ids
}

// oldestActive lists the logs with the oldest unsealed records, as many as it
// takes to seal over bytes together with what has ended already.
func (s *Store) oldestActive(over int64) (ids []uint64) {
	type candidate struct {
		id, oldest uint64
		size       int64
	}
	var all []candidate
	for _, q := range s.Logs() {
		q.mu.Lock()
		for _, f := range q.mu.files {
			switch {
			case f.Sealed || f.MinIndex == 0 || q.mu.gone != 0:
			case f.Active:
				all = append(all, candidate{q.ID, f.MinIndex, f.Size})
			default:
				over -= f.Size
			}
		}
		q.mu.Unlock()
	}
	slices.SortFunc(all, func(a, b candidate) int { return cmp.Compare(a.oldest, b.oldest) })
	for _, c := range all {
		if over <= 0 {
			break
		}
		ids = append(ids, c.id)
		over -= c.size
	}
	return ids
}

// sealedThrough is a time t so that every append with a time at or below t is
// in a sealed file. Entry times rise, so what is written later is newer. The
// log writer runs meanwhile: what it adds to a log that was looked at already
// is newer than the bound that is read first.
func (s *Store) sealedThrough() int64 {
	bound := s.newest.Load()
	newest, oldest := s.timesOf()
	if oldest != 0 {
		return min(bound, oldest-1)
	}
	return min(bound, newest)
}

// timesOf is the time of the newest append of all files, and of the oldest one
// that is not in a sealed file; 0: none.
func (s *Store) timesOf() (newest, oldest int64) {
	for _, q := range s.Logs() {
		q.mu.Lock()
		for _, f := range q.mu.files {
			newest = max(newest, f.MaxTime)
			if !f.Sealed && f.MinTime != 0 && (oldest == 0 || f.MinTime < oldest) {
				oldest = f.MinTime
			}
		}
		q.mu.Unlock()
	}
	return newest, oldest
}
