package raftlog

import (
	"errors"
	"fmt"
	"log/slog"
	"path"
	"slices"
	"sync"
	"time"

	"queen/index"
	"queen/segment"
)

// The scrub reads again what was written long ago and nobody has asked for since: sealed segment files, their side
// tables, and the rows of the newest checkpoint. Damage there would be met on the day when it is needed. It has a
// goroutine of its own and a pace; what it reads at once is small, so that it is never in anybody's way for long.
//
// What it finds is logged and counted, and makes the node unwell until a later pass finds nothing; the node goes on
// serving what can be read. What is derived is made again: side tables at once, and rows by a full checkpoint, because
// the state in memory is sound.

// Scrubbed is what the scrub has done since the start. Times are in microseconds.
type Scrubbed struct {
	Passes, Findings   int64 // passes that ended, and what all of them found
	Files, Bytes, Rows int64 // read: segment files, bytes of files, rows
	Running            bool
	Last               ScrubPass
	Damage             string // the first thing that a pass has found; empty once a later one finds nothing
}

// ScrubPass is one pass that has ended.
type ScrubPass struct {
	Begun, Ended                 int64 // 0: there was none
	Files, Bytes, Rows, Findings int64
}

// scrubber is the goroutine that makes the passes.
type scrubber struct {
	store    *Store
	cfg      *Config
	snapshot func() (*index.RowsSnapshot, error) // the newest checkpoint; nil: there is none
	damaged  func(file string)                   // a checkpoint is to be replaced

	wait func(until int64) bool // until a monotonic time; false: it is over
	due  int64                  // monotonic time before which nothing is read

	mu struct {
		sync.Mutex
		Scrubbed
		pass ScrubPass // that runs
	}
	quit chan struct{}
	done chan struct{}
}

func newScrubber(s *Store, cfg *Config, snapshot func() (*index.RowsSnapshot, error), damaged func(string)) *scrubber {
	return &scrubber{store: s, cfg: cfg, snapshot: snapshot, damaged: damaged,
		wait: func(int64) bool { return true }, quit: make(chan struct{}), done: make(chan struct{})}
}

// startScrubber starts the goroutine, if there are to be passes at all.
func startScrubber(s *scrubber) {
	if s.cfg.ScrubEvery <= 0 {
		close(s.done)
		return
	}
	timer := s.cfg.Clock.NewTimer()
	s.wait = func(until int64) bool {
		for now := s.cfg.Clock.Now().Mono; now < until; now = s.cfg.Clock.Now().Mono {
			timer.Set(time.Duration(until - now))
			select {
			case <-timer.C():
			case <-s.quit:
				return false
			}
		}
		return true
	}
	go func() {
		defer close(s.done)
		defer timer.Stop()
		for next := s.firstPass(); s.wait(next); next = s.nextPass() {
			if s.pass() != nil {
				return // it is over
			}
		}
	}()
}

func (s *scrubber) stop() {
	close(s.quit)
	<-s.done
}

// soonPart is the part of the interval after which a pass follows a start, so that a node that starts often is looked
// at, too, or a pass that found something, so that what was mended does not make the node unwell for long.
const soonPart = 10

func (s *scrubber) firstPass() int64 {
	return s.cfg.Clock.Now().Mono + int64(s.cfg.ScrubEvery)/soonPart
}

// nextPass is when the next pass begins, at the end of one.
func (s *scrubber) nextPass() int64 {
	s.mu.Lock()
	last := s.mu.Last
	s.mu.Unlock()
	every := int64(s.cfg.ScrubEvery)
	if last.Findings > 0 {
		every /= soonPart
	}
	took := (last.Ended - last.Begun) * 1000
	return s.cfg.Clock.Now().Mono + max(every-max(took, 0), every/soonPart)
}

// status is a look from outside.
func (s *scrubber) status() Scrubbed {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.Scrubbed
}

// pass reads everything once. Its only error is errClosing.
func (s *scrubber) pass() error {
	s.mu.Lock()
	s.mu.Running, s.mu.pass = true, ScrubPass{Begun: s.cfg.Clock.Now().Wall}
	s.mu.Unlock()
	err := s.checkpoint()
	for _, q := range s.store.Logs() {
		if err == nil {
			err = s.log(q)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.Running = false
	if err != nil {
		return err
	}
	s.mu.Passes++
	s.mu.Last = s.mu.pass
	s.mu.Last.Ended = s.cfg.Clock.Now().Wall
	if s.mu.Last.Findings == 0 {
		s.mu.Damage = ""
	}
	return nil
}

// pay counts what was read and waits for as long as that may take at the pace.
func (s *scrubber) pay(bytes, rows int64) error {
	s.mu.Lock()
	s.mu.Bytes, s.mu.Rows = s.mu.Bytes+bytes, s.mu.Rows+rows
	s.mu.pass.Bytes, s.mu.pass.Rows = s.mu.pass.Bytes+bytes, s.mu.pass.Rows+rows
	s.mu.Unlock()
	takes := float64(bytes)/float64(s.cfg.ScrubBytes) + float64(rows)/float64(s.cfg.ScrubRows)
	s.due = max(s.due, s.cfg.Clock.Now().Mono) + int64(takes*1e9)
	if s.store.closing.Load() || !s.wait(s.due) {
		return errClosing
	}
	return nil
}

// found takes damage. do says what to do about it.
func (s *scrubber) found(err error, do string) {
	d := describeDamage(err)
	s.cfg.Logger.Error("the scrub has found damage", slog.String("file", d.File), slog.Int64("pos", d.Pos), slog.String("check", d.What),
		slog.String("expected", d.Expected), slog.String("found", d.Found), slog.String("do", do))
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.Findings++
	s.mu.pass.Findings++
	if s.mu.pass.Findings == 1 {
		s.mu.Damage = fmt.Sprintf("the scrub has found damage in %s at pos %d (%s: expected %s, found %s); %s", d.File, d.Pos, d.What, d.Expected, d.Found, do)
	}
}

// describeDamage puts the errors of the packages that know files into one form. One of the file system is its own
// description.
func describeDamage(err error) segment.CorruptError {
	var inSegment *segment.CorruptError
	var torn *segment.TornError
	var inTable *index.CorruptError
	switch {
	case errors.As(err, &inSegment):
		return *inSegment
	case errors.As(err, &torn):
		return segment.CorruptError{File: torn.File, Pos: torn.Pos, What: torn.What, Expected: torn.Expected, Found: torn.Found}
	case errors.As(err, &inTable):
		return segment.CorruptError(*inTable)
	}
	var in *unreadable
	errors.As(err, &in)
	d := segment.CorruptError{What: "reading", Expected: "what was written", Found: err.Error()}
	if in != nil {
		d.File, d.Pos = in.file, in.pos
	}
	return d
}

// unreadable is an error of the file system.
type unreadable struct {
	file string
	pos  int64
	err  error
}

func (u *unreadable) Error() string { return u.err.Error() }
func (u *unreadable) Unwrap() error { return u.err }

// What to do about damage, for the operator.
const (
	doSegment    = "the messages in that place cannot be delivered: restore the data directory from a copy, or stop the broker and save what is readable with segdump salvage; look at the disk"
	doTable      = "nothing is lost, the file is made again from its segments; look at the disk"
	doTableLost  = "the file cannot be made again, see the line about its segment: restore the data directory from a copy, or stop the broker and save what is readable with segdump salvage; look at the disk"
	doCheckpoint = "nothing is lost while the broker runs, a new checkpoint takes the file's place soon: do not stop the broker before that; look at the disk"
)

// checkpoint reads the rows of the newest checkpoint.
func (s *scrubber) checkpoint() error {
	snap, err := s.snapshot()
	if errors.Is(err, errClosing) {
		return err
	}
	if err != nil {
		s.found(&unreadable{"checkpoint", 0, err}, doCheckpoint)
		return nil
	}
	if snap == nil {
		return nil
	}
	defer snap.Close() // only read
	slice := int(min(max(s.cfg.ScrubRows/soonPart, 1), 1000))
	for more := true; more; {
		read := 0
		if read, more, err = snap.Verify(slice); err != nil {
			s.found(&unreadable{snap.Name(), 0, err}, doCheckpoint)
			s.damaged(snap.Name())
			more = false
		}
		if err := s.pay(0, int64(read)); err != nil {
			return err
		}
	}
	s.read(0, snap.Size())
	return nil
}

// read counts what was paid for otherwise.
func (s *scrubber) read(files, bytes int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.Files, s.mu.Bytes = s.mu.Files+files, s.mu.Bytes+bytes
	s.mu.pass.Files, s.mu.pass.Bytes = s.mu.pass.Files+files, s.mu.pass.Bytes+bytes
}

// log reads the sealed files of a log, and then the tables that describe them.
func (s *scrubber) log(q *QueueLog) error {
	for _, f := range q.Files() {
		if !f.Sealed {
			continue
		}
		if err := s.file(q, f); err != nil {
			return err
		}
	}
	return s.tables(q)
}

// file reads one segment file, some of it at a time. A file that reclaim removes or replaces meanwhile is no damage:
// the new one is read from its start.
func (s *scrubber) file(q *QueueLog, f FileInfo) error {
	for pos, more := int64(0), true; more; {
		was := pos
		var err error
		pos, more, err = s.slice(q, &f, pos)
		if errors.Is(err, errClosing) {
			return err
		}
		if err != nil {
			s.found(err, doSegment)
		}
		if err := s.pay(max(pos-was, 0), 0); err != nil {
			return err
		}
	}
	s.read(1, 0)
	return nil
}

// errSlice ends a scan that has read enough at once.
var errSlice = errors.New("enough for now")

// slice reads on from a position of a file. Nothing replaces the file meanwhile.
func (s *scrubber) slice(q *QueueLog, f *FileInfo, from int64) (pos int64, more bool, err error) {
	q.busy.Lock()
	defer q.busy.Unlock()
	if s.store.closing.Load() {
		return from, false, errClosing
	}
	now, err := q.fileInfo(f.Seq)
	if err != nil || s.store.find(q.ID) != q {
		return from, false, nil // it was removed
	}
	if now.Generation != f.Generation {
		*f = now
		return 0, true, nil
	}
	name := path.Join(q.Log.Dir(), segment.FileName(f.Seq))
	if from == 0 { // a handle may be open of a file that has no name any more
		if err := q.Log.VerifyHeader(f.Seq); err != nil {
			return from, false, &unreadable{name, 0, err}
		}
	}
	atOnce := min(max(s.cfg.ScrubBytes/8, 4<<10), 1<<20)
	end, err := q.Log.ScanWindow(f.Seq, from, int(min(atOnce, 256<<10)), func(pos int64, _ []byte) error {
		if pos-from >= atOnce {
			return errSlice
		}
		return nil
	})
	switch {
	case errors.Is(err, errSlice):
		return end, true, nil
	case err != nil && !errors.Is(err, segment.ErrCorrupt) && !errors.Is(err, segment.ErrTorn):
		return end, false, &unreadable{name, end, err}
	case err == nil && end != f.Size:
		err = &segment.CorruptError{File: name, Pos: end, What: "end of the records", Expected: fmt.Sprint(f.Size), Found: fmt.Sprint(end)}
	}
	return end, false, err
}

// tables reads the side tables of a log, and has those that are damaged made again.
func (s *scrubber) tables(q *QueueLog) error {
	err := q.Index.Verify(func(bytes int64) error { return s.pay(bytes, 0) })
	switch {
	case err == nil || errors.Is(err, errClosing):
		return err
	case s.store.find(q.ID) != q:
		return nil // the log was removed meanwhile
	}
	damage := []error{err}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		damage = joined.Unwrap()
	}
	do := doTable
	if s.mend(q, damage) != nil {
		do = doTableLost
	}
	for _, err := range damage {
		s.found(&unreadable{q.Log.Dir(), 0, err}, do)
	}
	return nil
}

// mend is QueueLog.mend for damage that the scrub logs itself.
func (s *scrubber) mend(q *QueueLog, said []error) error {
	q.busy.Lock()
	defer q.busy.Unlock()
	if s.store.find(q.ID) != q {
		return nil
	}
	for _, err := range q.Index.Problems() {
		if !slices.Contains(said, err) {
			q.logDamage(err)
		}
	}
	return q.mend()
}
