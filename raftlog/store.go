package raftlog

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"queen/index"
	"queen/internal/vfs"
	"queen/segment"
)

// Store is the set of queue logs of a data directory: their segment files and
// the index over each of them.
//
// One goroutine appends (the log writer; the boot before it starts), another
// seals. Look-ups and reads are safe from any goroutine.
//
// Locks: Store.mu before queueLog.mu. Neither is held over I/O.
type Store struct {
	opt     StoreOptions
	files   *segment.FileCache
	tables  *index.TableCache
	blocks  blockCache
	newest  atomic.Int64  // time of the newest append that its log has noted
	applied atomic.Uint64 // newest applied index: what is at or below it never changes
	// unsealed is about the bytes of unsealed files; rolls counts the files that
	// have ended. They save the sealer from looking at every log all the time.
	unsealed atomic.Int64
	rolls    atomic.Uint64
	closing  atomic.Bool // no table is made again any more

	// What the log keeps for followers: as the core says for the next footer, as
	// the footer says that is being written, and as the newest durable one says.
	kept      atomic.Pointer[KeptLog]
	keptNext  KeptLog
	keptFirst atomic.Uint64

	reclaimer atomic.Pointer[reclaimer]
	reclaimed Reclaimed

	mu struct {
		sync.RWMutex
		logs map[uint64]*QueueLog
		ids  []uint64 // rising
	}
}

// tableCacheBytes is what side tables may keep in memory.
const tableCacheBytes = 32 << 20

// ErrForeign: something that is no log is among the logs. Move it away.
var ErrForeign = errors.New("not a log of this broker")

// StoreOptions says where and how logs are kept.
type StoreOptions struct {
	FS           vfs.FS
	Dir          string // data directory; logs are below Dir/log
	Layout       Layout
	SegmentBytes int64
	OpenFiles    int
	Logger       *slog.Logger // of damage that is mended; nil: nowhere
}

// QueueLog is one log of a Store.
type QueueLog struct {
	ID    uint64
	Log   *segment.Log    // appended to by the log writer only
	Index *index.LogIndex // where its messages and values are
	dirty bool            // the log writer's: has records that it has not synced

	store *Store
	mends mends
	busy  sync.Mutex // held by what seals files of the log or replaces them; before mu

	// ends rise, and begin with a mark at or below the applied index (or the
	// zero mark when the log holds nothing that old): what a cut can fall back on.
	mu struct {
		sync.Mutex
		files []FileInfo
		ends  []EndMark

		// What reclaim asks of footers, and what they say.
		released map[uint64]releaseState // files that are to be removed
		gone     releaseState            // the whole log is
		shrinks  []uint64                // files that are about to become smaller
		sized    [2]uint64               // the file whose end is told by the durable footer, and by the newest Claims
	}
}

// FileInfo is what the store knows of a segment file.
type FileInfo struct {
	Seq, Generation    uint64
	Size               int64
	MinIndex, MaxIndex uint64 // of the entries with records in it; 0: none
	MinTime, MaxTime   int64  // of the appends in it, microseconds; 0: none
	Sealed             bool   // its side tables are durable
	Active             bool   // still appended to
}

// note widens what the file holds by a record of entry index.
func (f *FileInfo) note(index uint64) {
	if f.MinIndex == 0 {
		f.MinIndex = index
	}
	f.MaxIndex = max(f.MaxIndex, index)
}

func (f *FileInfo) noteTime(t int64) {
	if f.MinTime == 0 || t < f.MinTime {
		f.MinTime = t
	}
	f.MaxTime = max(f.MaxTime, t)
}

// EndMark says where the records of an entry end in a log. The zero mark is
// the start of an empty log.
type EndMark struct {
	Index uint64
	Seq   uint64
	End   int64
	Time  int64 // newest append up to here, microseconds; 0: not known
}

// OpenStore opens every log below dir/log. It creates nothing: a directory
// that is not there holds no logs.
func OpenStore(o StoreOptions) (*Store, error) {
	s := &Store{opt: o, files: segment.NewFileCache(o.OpenFiles * 3 / 4), tables: index.NewTableCache(tableCacheBytes, o.OpenFiles/4)}
	if o.Logger == nil {
		s.opt.Logger = slog.New(slog.DiscardHandler)
	}
	s.mu.logs = make(map[uint64]*QueueLog)
	infos, err := listDir(o.FS, s.logDir())
	if err != nil {
		return nil, fmt.Errorf("logs: %w", err)
	}
	for _, info := range infos {
		id, ok := ParseLogDirName(info.Name)
		if strings.HasSuffix(info.Name, segment.RemovedSuffix) {
			continue // garbage of an unfinished removal
		}
		if !ok || !info.Dir {
			return nil, fmt.Errorf("%s: %w", path.Join(s.logDir(), info.Name), ErrForeign)
		}
		if _, err := s.open(id); err != nil {
			return nil, err
		}
	}
	return s, nil
}

func (s *Store) logDir() string          { return path.Join(s.opt.Dir, "log") }
func (s *Store) dirOf(id uint64) string  { return path.Join(s.logDir(), LogDirName(id)) }
func (s *Store) Layout() Layout          { return s.opt.Layout }
func (s *Store) SetApplied(index uint64) { s.applied.Store(index) }

func (s *Store) open(id uint64) (*QueueLog, error) {
	dir := s.dirOf(id)
	log, err := segment.Open(segment.Options{FS: s.opt.FS, Dir: dir, ID: id, SegmentBytes: s.opt.SegmentBytes, Files: s.files})
	if err != nil {
		return nil, fmt.Errorf("log q%d: %w", id, err)
	}
	ix, err := index.OpenLogIndex(s.opt.FS, dir, s.tables)
	if err != nil {
		return nil, fmt.Errorf("index of log q%d: %w", id, err)
	}
	q := &QueueLog{ID: id, Log: log, Index: ix, store: s}
	q.mu.ends = []EndMark{{}}
	s.mu.Lock()
	s.mu.logs[id] = q
	at, _ := slices.BinarySearch(s.mu.ids, id)
	s.mu.ids = slices.Insert(s.mu.ids, at, id)
	s.mu.Unlock()
	return q, nil
}

// find gives a log that exists, or nil.
func (s *Store) find(id uint64) *QueueLog {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.mu.logs[id]
}

// Logs lists the logs in rising order of their ids.
func (s *Store) Logs() []*QueueLog {
	s.mu.RLock()
	defer s.mu.RUnlock()
	out := make([]*QueueLog, 0, len(s.mu.ids))
	for _, id := range s.mu.ids {
		out = append(out, s.mu.logs[id])
	}
	return out
}

// Log gives a log, or nil when there is none of this id.
func (s *Store) Log(id uint64) *QueueLog { return s.find(id) }

// CutLog makes a log end at pos of file seq, durably: what a boot judged to be
// a torn tail goes.
func (s *Store) CutLog(q *QueueLog, seq uint64, pos int64) error {
	return s.truncate(q, q.markAt(seq, pos))
}

// EndLog notes that the records of a log end at pos of file seq, its newest,
// and that only zeros follow: space that was prepared for more.
func (s *Store) EndLog(q *QueueLog, seq uint64, pos int64) {
	q.Log.EndAt(seq, pos)
	q.dropped(q.markAt(seq, pos))
}

// markAt is the mark of the last entry that ends by pos of file seq, moved there.
func (q *QueueLog) markAt(seq uint64, pos int64) EndMark {
	q.mu.Lock()
	defer q.mu.Unlock()
	at := EndMark{Seq: seq, End: pos}
	for _, m := range q.mu.ends {
		if m.Seq < seq || m.Seq == seq && m.End <= pos {
			at.Index, at.Time = m.Index, m.Time
		}
	}
	return at
}

// SyncFound makes durable what a boot found: a process that was killed leaves
// bytes that can be read and were never synced. A log whose newest file is
// sealed starts a new one, since a sealed file never changes (I4).
func (s *Store) SyncFound() error {
	dirty := 0
	for _, q := range s.Logs() {
		if q.Log.Dirty() {
			dirty++
		}
	}
	if dirty > syncAllAbove {
		if err := s.opt.FS.SyncAll(s.opt.Dir); err != nil {
			return fmt.Errorf("sync the volume of %s: %w", s.opt.Dir, err)
		}
	}
	for _, q := range s.Logs() {
		sync := q.Log.Sync
		if dirty > syncAllAbove {
			sync = q.Log.SyncedByFS
		}
		if err := sync(); err != nil {
			return fmt.Errorf("log q%d: %w", q.ID, err)
		}
		if files := q.Files(); len(files) > 0 && files[len(files)-1].Sealed {
			if err := q.Log.Roll(); err != nil {
				return fmt.Errorf("log q%d: %w", q.ID, err)
			}
		}
	}
	return nil
}

// SealedOnly is the time of the newest append that is only in sealed files.
func (s *Store) SealedOnly() (t int64) {
	for _, q := range s.Logs() {
		for _, f := range q.Files() {
			if f.Sealed {
				t = max(t, f.MaxTime)
			}
		}
	}
	return t
}

// Close closes every log. What was appended must have been synced. A look-up
// that still makes tables again is waited for: nothing is written afterwards.
func (s *Store) Close() error {
	s.closing.Store(true)
	var first error
	for _, q := range s.Logs() {
		q.mends.wait()
		if err := q.Log.Close(); err != nil && first == nil {
			first = err
		}
	}
	if err := s.tables.Close(); err != nil && first == nil {
		first = err
	}
	return first
}

// SetFiles says what is known of a log's files before a boot reads them, and
// where the ones that it does not read end; the boot calls it.
func (q *QueueLog) SetFiles(files []FileInfo, base EndMark) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.mu.files, q.mu.ends = files, []EndMark{base}
}

// Files is a copy of what is known of a log's files, in order.
func (q *QueueLog) Files() []FileInfo {
	q.mu.Lock()
	defer q.mu.Unlock()
	return slices.Clone(q.mu.files)
}

// size counts the log's files and sums their sizes.
func (q *QueueLog) size() (files int, unsealed, all int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for i := range q.mu.files {
		f := &q.mu.files[i]
		all += f.Size
		if !f.Sealed {
			unsealed += f.Size
		}
	}
	return len(q.mu.files), unsealed, all
}

// wrote notes where the records of an entry end, and drops marks that no cut
// can need: of those at or below applied only the newest is kept.
func (q *QueueLog) wrote(m EndMark, applied uint64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.wroteLocked(m, applied)
}

func (q *QueueLog) wroteLocked(m EndMark, applied uint64) {
	ends := q.mu.ends
	if n := len(ends); n > 0 {
		m.Time = max(m.Time, ends[n-1].Time)
		if ends[n-1].Index == m.Index {
			ends = ends[:n-1]
		}
	}
	ends = append(ends, m)
	n := 0
	for n+1 < len(ends) && ends[n+1].Index <= applied {
		n++
	}
	q.mu.ends = ends[n:]
}

func (q *QueueLog) fileLocked(seq uint64) *FileInfo {
	for i := len(q.mu.files) - 1; i >= 0; i-- {
		if q.mu.files[i].Seq == seq {
			return &q.mu.files[i]
		}
	}
	return nil
}

// noteRecord notes that file seq holds a record of entry index that ends at
// end; t is the time of an append, or 0. The first record of a file makes it
// the active one; ended reports whether another one ended with that, grown by
// how many bytes the file grew.
func (q *QueueLog) noteRecord(seq, index uint64, t, end int64) (ended bool, grown int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	f := q.fileLocked(seq)
	if f == nil {
		for i := range q.mu.files {
			ended = ended || q.mu.files[i].Active
			q.mu.files[i].Active = false
		}
		q.mu.files = append(q.mu.files, FileInfo{Seq: seq, Generation: 1, Active: true})
		f = &q.mu.files[len(q.mu.files)-1]
	}
	f.note(index)
	grown, f.Size = end-f.Size, end
	if t != 0 {
		f.noteTime(t)
	}
	return ended, grown
}

// retire notes that the active file takes no more records. It reports whether
// there was one.
func (q *QueueLog) retire() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	for i := range q.mu.files {
		if f := &q.mu.files[i]; f.Active && f.MaxIndex != 0 && q.mu.gone == 0 {
			f.Active = false
			return true
		}
	}
	return false
}

func (q *QueueLog) sealed(seq uint64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if f := q.fileLocked(seq); f != nil {
		f.Sealed = true
	}
}

// cutFrom is where a cut at index has to truncate the log; ok is false when
// no record reaches that far.
func (q *QueueLog) cutFrom(index uint64) (at EndMark, ok bool, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for i, m := range q.mu.ends {
		if m.Index < index {
			continue
		}
		if i == 0 {
			return at, false, fmt.Errorf("log q%d: cut at entry %d, entries up to %d are applied", q.ID, index, m.Index)
		}
		return q.mu.ends[i-1], true, nil
	}
	return at, false, nil
}

// dropped notes that everything after at was cut.
func (q *QueueLog) dropped(at EndMark) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.mu.ends = slices.DeleteFunc(q.mu.ends, func(m EndMark) bool { return m.Seq > at.Seq || m.Seq == at.Seq && m.End > at.End })
	keep := at.Seq
	if at.End <= segment.HeaderSize {
		keep-- // nothing of the file is left
	}
	q.mu.files = slices.DeleteFunc(q.mu.files, func(f FileInfo) bool { return f.Seq > keep })
	if n := len(q.mu.files); n > 0 && q.mu.files[n-1].Seq == at.Seq {
		f := &q.mu.files[n-1]
		f.Active, f.Size, f.MaxIndex = !f.Sealed, at.End, min(f.MaxIndex, at.Index)
		if at.Time != 0 {
			f.MaxTime = min(f.MaxTime, at.Time)
		}
	}
}

// Note takes what a boot reads of a file: the record of an entry, the time of
// an append (or 0), and where the record ends; applied is how far the replay is.
func (q *QueueLog) Note(seq, index uint64, t, end int64, applied uint64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if f := q.fileLocked(seq); f != nil {
		f.note(index)
		if t != 0 {
			f.noteTime(t)
		}
		q.wroteLocked(EndMark{Index: index, Seq: seq, End: end, Time: t}, applied)
	}
}

// LogClaim says what of a log is durable and will not be cut: its files, and
// where the newest applied record ends in the last of them.
type LogClaim struct {
	Log  uint64
	Seqs []uint64 // rising
	End  int64    // 0: not known
}

// Claims lists, for each log, what is applied and durable, for a footer that is about to be written. A log without any
// is not listed, nor is what reclaim is about to remove.
func (s *Store) Claims() []LogClaim {
	applied := s.applied.Load()
	var out []LogClaim
	for _, q := range s.Logs() {
		if c, ok := q.claim(applied); ok {
			out = append(out, c)
		}
	}
	return out
}

func (q *QueueLog) claim(applied uint64) (LogClaim, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	var newest EndMark
	for _, m := range q.mu.ends {
		if m.Index <= applied {
			newest = m
		}
	}
	c := LogClaim{Log: q.ID}
	q.mu.sized[1] = 0
	if q.mu.gone != 0 {
		q.mu.gone = max(q.mu.gone, releaseUnlisted)
		return c, false
	}
	for i := range q.mu.files {
		f := &q.mu.files[i]
		if f.Sealed || f.Seq <= newest.Seq {
			c.Seqs = append(c.Seqs, f.Seq)
		}
	}
	n := len(c.Seqs)
	if n == 0 {
		return c, false
	}
	last := c.Seqs[n-1] // it stays in any case: a boot explains a hole by the files behind it
	c.Seqs = slices.DeleteFunc(c.Seqs, func(seq uint64) bool {
		if seq == last || q.mu.released[seq] == 0 {
			return false
		}
		q.mu.released[seq] = max(q.mu.released[seq], releaseUnlisted)
		return true
	})
	if last == newest.Seq && !slices.Contains(q.mu.shrinks, last) {
		c.End, q.mu.sized[1] = newest.End, last
	}
	return c, true
}

// Freeze keeps every file of the logs that are there as it is, apart from the
// log writer's: nothing is sealed, merged or freed until release is called.
func (s *Store) Freeze() (release func()) {
	logs := s.Logs()
	for _, q := range logs {
		q.busy.Lock()
	}
	return func() {
		for _, q := range logs {
			q.busy.Unlock()
		}
	}
}

func (s *Store) keep(k KeptLog) { s.kept.Store(&k) }

// Kept is what the footer that is about to be written says of the log below its
// from, for followers. It is called by who writes footers.
func (s *Store) Kept() KeptLog {
	s.keptNext = KeptLog{}
	if k := s.kept.Load(); k != nil {
		s.keptNext = *k
	}
	return s.keptNext
}

// listDir lists a directory; one that does not exist is empty.
func listDir(fsys vfs.FS, dir string) ([]vfs.Info, error) {
	infos, err := fsys.List(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return infos, err
}
