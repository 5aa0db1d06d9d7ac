package recovery

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"

	"queen/index"
	"queen/internal/vfs"
	"queen/raftlog"
	"queen/segment"
)

// Snapshot is a data directory as it stood at a moment: what is judged and
// walked over by tools, without the lock and without changing anything. A
// broker may run on the directory meanwhile.
//
// What makes that safe is the order in which things are looked at. Logs only
// grow. The checkpoint comes first, then where the records of each log end, then
// the files that count, and then their records: whatever the first two claim to
// be durable was written before the last. Claims in records that were written
// later are not believed (they may be about entries that a log which was read
// before did not have yet), and what ends in the middle of an entry above all
// claims may be an entry that is being written.
type Snapshot struct {
	// FS reads the directory and refuses changes; segment files have the sizes
	// of the snapshot there.
	FS  vfs.FS
	Dir string

	Identity Identity
	Footer   index.Footer // of the newest finished checkpoint; zero: none
	rowsAt   string       // its file, or where one should be
	Claims   []raftlog.LogClaim
	State    raftlog.State
	Logs     []*SnapshotLog // rising by id
	// Moving: the directory changed while it was looked at.
	Moving bool

	// Errors of the parts above; nil: the part can be read.
	IdentityErr, FooterErr, StateErr error
	// Foreign are names below log/ that are no logs. A start refuses them.
	Foreign []string

	real   vfs.FS
	frozen *frozenFS
}

// SnapshotLog is one log of a Snapshot.
type SnapshotLog struct {
	ID    uint64
	Dir   string
	Files []SnapshotFile // rising by seq
	// Index is what the side tables say; nil when Err is not.
	Index *index.LogIndex
	// TableErrs are why tables do not count. A start makes them again, except
	// where it is that a file is shorter than its table says (ErrRefused).
	TableErrs []error
	// Err: the log cannot be opened (a newer format, an error of the disk).
	Err error

	queue *raftlog.QueueLog
}

// SnapshotFile is a segment file of a Snapshot.
type SnapshotFile struct {
	Seq, Generation uint64
	Size            int64 // bytes; the newest file may end with prepared zeros
	Proven          int64 // claims of records below are believed
	Newest          bool  // of its log
	HeaderErr       error // the header is damaged
	Table           *index.FileInfo
}

// Path is the file's name.
func (l *SnapshotLog) Path(f *SnapshotFile) string {
	return path.Join(l.Dir, segment.FileName(f.Seq))
}

// Log gives a log by its id, or nil.
func (s *Snapshot) Log(id uint64) *SnapshotLog {
	for _, l := range s.Logs {
		if l.ID == id {
			return l
		}
	}
	return nil
}

// File gives a file of the log, or nil.
func (l *SnapshotLog) File(seq uint64) *SnapshotFile {
	for i := range l.Files {
		if l.Files[i].Seq == seq {
			return &l.Files[i]
		}
	}
	return nil
}

// TakeSnapshot looks at a data directory. What of it cannot be read is in the
// snapshot; an error means that there is nothing to look at: no directory, or
// one that cannot be listed.
func TakeSnapshot(fsys vfs.FS, dir string) (*Snapshot, error) {
	infos, err := fsys.List(dir)
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", dir, err)
	}
	s := &Snapshot{Dir: dir, real: fsys, frozen: &frozenFS{FS: fsys, sizes: sizesOf{}}}
	s.FS = s.frozen
	s.loadIdentity(infos)
	s.loadFooter()
	before, err := s.list()
	if err != nil {
		return nil, err
	}
	after, err := s.list()
	if err != nil {
		return nil, err
	}
	s.Moving = !sameSizes(before, after)
	s.loadState()
	for dir, files := range after {
		s.frozen.sizes[dir] = files
	}
	for _, dir := range sortedDirs(after) {
		s.Logs = append(s.Logs, s.openLog(dir, before[dir]))
	}
	slices.SortFunc(s.Logs, func(a, b *SnapshotLog) int {
		if a.ID < b.ID {
			return -1
		}
		return 1
	})
	return s, nil
}

// sizesOf are the files of every log directory, by directory and name.
type sizesOf map[string]map[string]fileAt

// fileAt is a file at a moment. end is where its last byte is that is not a
// zero, of the newest segment file of a log; of others it is the size.
type fileAt struct{ size, end int64 }

func sortedDirs(m sizesOf) []string {
	dirs := make([]string, 0, len(m))
	for d := range m {
		dirs = append(dirs, d)
	}
	slices.Sort(dirs)
	return dirs
}

func sameSizes(a, b sizesOf) bool {
	if len(a) != len(b) {
		return false
	}
	for dir, files := range b {
		if len(files) != len(a[dir]) {
			return false
		}
		for name, size := range files {
			if was, ok := a[dir][name]; !ok || was != size {
				return false
			}
		}
	}
	return true
}

// list reads the names and sizes of all files of the logs.
func (s *Snapshot) list() (sizesOf, error) {
	root := path.Join(s.Dir, "log")
	infos, err := s.real.List(root)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list %s: %w", root, err)
	}
	out := sizesOf{}
	s.Foreign = nil
	for _, info := range infos {
		if strings.HasSuffix(info.Name, segment.RemovedSuffix) {
			continue
		}
		if _, ok := raftlog.ParseLogDirName(info.Name); !ok || !info.Dir {
			s.Foreign = append(s.Foreign, path.Join(root, info.Name))
			continue
		}
		dir := path.Join(root, info.Name)
		names, err := s.real.List(dir)
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed since
		}
		if err != nil {
			return nil, fmt.Errorf("list %s: %w", dir, err)
		}
		files, newest := map[string]fileAt{}, ""
		for _, f := range names {
			if f.Dir {
				continue
			}
			files[f.Name] = fileAt{f.Size, f.Size}
			if _, ok := segment.ParseFileName(f.Name); ok {
				newest = f.Name // they are sorted
			}
		}
		if newest != "" {
			end, err := dataEnd(s.real, path.Join(dir, newest), files[newest].size)
			if err != nil && !Vanished(err) {
				return nil, err
			}
			files[newest] = fileAt{files[newest].size, end}
		}
		out[dir] = files
	}
	return out, nil
}

// dataEnd is where the last byte of a file is that is not a zero: behind it
// there may be space that was prepared for the next records.
func dataEnd(fsys vfs.FS, name string, size int64) (int64, error) {
	f, err := fsys.Open(name)
	if err != nil {
		return 0, err
	}
	defer f.Close() // only read
	var buf [16 << 10]byte
	for end := size; end > 0; {
		b := buf[:min(end, int64(len(buf)))]
		n, err := f.ReadAt(b, end-int64(len(b)))
		if err != nil && !errors.Is(err, io.EOF) {
			return 0, fmt.Errorf("read %s: %w", name, err)
		}
		for i := n - 1; i >= 0; i-- {
			if b[i] != 0 {
				return end - int64(len(b)) + int64(i) + 1, nil
			}
		}
		end -= int64(len(b))
	}
	return 0, nil
}

// Changed reports whether the logs are not what they were at the snapshot any
// more: somebody writes.
func (s *Snapshot) Changed() (bool, error) {
	foreign := s.Foreign
	now, err := s.list()
	s.Foreign = foreign
	return err == nil && !sameSizes(s.frozen.sizes, now), err
}

func (s *Snapshot) loadIdentity(infos []vfs.Info) {
	id, found, err := LoadIdentity(s.real, s.Dir)
	if err == nil && !found {
		err = refuseOrphans(s.real, s.Dir, path.Join(s.Dir, formatName))
		if err == nil {
			err = fmt.Errorf("%s: %w", path.Join(s.Dir, formatName), fs.ErrNotExist)
		}
	}
	s.Identity, s.IdentityErr = id, err
}

// lookAgain is how often a file that vanished or shrank under a reader is
// looked for again: a broker replaces and removes some.
const lookAgain = 5

// Vanished reports whether an error can be what a running broker does to a
// file while it is read: it removed, replaced or shortened it.
func Vanished(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, io.ErrUnexpectedEOF)
}

// loadFooter reads the checkpoint whole: a footer counts only when everything
// before it does.
func (s *Snapshot) loadFooter() {
	dir := path.Join(s.Dir, checkpointDir)
	for range lookAgain {
		var r *index.Rows
		r, s.Footer, s.FooterErr = index.OpenRows(s.FS, dir, ignoredRows{})
		if s.FooterErr == nil {
			s.rowsAt, s.FooterErr = r.File(), r.Close()
		}
		if !Vanished(s.FooterErr) {
			break
		}
	}
	if s.FooterErr == nil {
		s.Claims, _, s.FooterErr = decodeExtra(s.Footer.Extra)
	}
}

func (s *Snapshot) loadState() {
	name := path.Join(raftlog.StateDir(s.Dir), "state")
	st, found, err := raftlog.LoadState(s.real, raftlog.StateDir(s.Dir))
	if err == nil && !found {
		err = fmt.Errorf("state file %s: %w", name, fs.ErrNotExist)
	}
	s.State, s.StateErr = st, err
}

// openFiles is how many files of logs and tables a snapshot keeps open.
const openFiles = 64

func (s *Snapshot) openLog(dir string, before map[string]fileAt) *SnapshotLog {
	id, _ := raftlog.ParseLogDirName(path.Base(dir))
	l := &SnapshotLog{ID: id, Dir: dir}
	log, err := segment.Open(segment.Options{FS: s.FS, Dir: dir, ID: id, Files: s.frozen.files()})
	if err != nil {
		l.Err = err
		return l
	}
	l.queue = &raftlog.QueueLog{ID: id, Log: log}
	segments := log.Segments()
	for i, f := range segments {
		l.Files = append(l.Files, SnapshotFile{
			Seq: f.Seq, Generation: f.Generation, Size: f.Size, Proven: before[segment.FileName(f.Seq)].end,
			Newest: i == len(segments)-1, HeaderErr: f.Err,
		})
	}
	if l.Err = s.openIndex(l); l.Err == nil {
		l.queue.Index = l.Index
	}
	return l
}

// openIndex reads which side tables a log has, and which of them count.
func (s *Snapshot) openIndex(l *SnapshotLog) error {
	ids := make([]index.FileID, 0, len(l.Files))
	for i := range l.Files {
		f := &l.Files[i]
		ids = append(ids, index.FileID{Seq: f.Seq, Generation: f.Generation, Size: f.Size})
	}
	ix, err := index.OpenLogIndex(s.FS, l.Dir, s.frozen.tableCache())
	if err != nil {
		return err
	}
	all := ix.Files() // also of files that are shorter now than their table says
	ix.Reconcile(ids)
	l.Index, l.TableErrs = ix, ix.Problems()
	for _, t := range ix.Files() {
		if f := l.File(t.Seq); f != nil {
			f.Table = &t
		}
	}
	for _, t := range all {
		if f := l.File(t.Seq); f != nil && f.Generation == t.Generation && f.Size < t.Size {
			l.TableErrs = append(l.TableErrs, lost(l.Path(f), "the file is shorter than it was when it was sealed",
				fmt.Sprintf("%d bytes", t.Size), fmt.Sprintf("%d bytes", f.Size)))
		}
	}
	return nil
}

// LogEnd is a place in a log.
type LogEnd struct {
	Seq uint64
	Pos int64
}

// ClaimedEnds is where, by the newest checkpoint, the durable part of each log
// ends at least. What cannot be read before is damage.
func (s *Snapshot) ClaimedEnds() map[uint64]LogEnd {
	ends := make(map[uint64]LogEnd, len(s.Claims))
	for _, c := range s.Claims {
		if n := len(c.Seqs); n > 0 {
			ends[c.Log] = LogEnd{c.Seqs[n-1], c.End}
		}
	}
	return ends
}

// frozenFS reads a directory as it was at the snapshot and changes nothing.
type frozenFS struct {
	vfs.FS
	sizes  sizesOf
	open   *segment.FileCache
	tables *index.TableCache
}

// ErrReadOnly reports an attempt to change what is only looked at.
var ErrReadOnly = errors.New("the directory is only looked at")

func (f *frozenFS) files() *segment.FileCache {
	if f.open == nil {
		f.open = segment.NewFileCache(openFiles)
	}
	return f.open
}

func (f *frozenFS) tableCache() *index.TableCache {
	if f.tables == nil {
		f.tables = index.NewTableCache(4<<20, openFiles)
	}
	return f.tables
}

// List gives the files of a log as they were.
func (f *frozenFS) List(dir string) ([]vfs.Info, error) {
	sizes, ok := f.sizes[dir]
	if !ok {
		return f.FS.List(dir)
	}
	out := make([]vfs.Info, 0, len(sizes))
	for name, at := range sizes {
		out = append(out, vfs.Info{Name: name, Size: at.size})
	}
	slices.SortFunc(out, func(a, b vfs.Info) int { return strings.Compare(a.Name, b.Name) })
	return out, nil
}

func (f *frozenFS) Remove(string) error                    { return ErrReadOnly }
func (f *frozenFS) RemoveAll(string) error                 { return ErrReadOnly }
func (f *frozenFS) SyncDir(string) error                   { return ErrReadOnly }
func (f *frozenFS) SyncAll(string) error                   { return ErrReadOnly }
func (f *frozenFS) MkdirAll(string) error                  { return ErrReadOnly }
func (f *frozenFS) Rename(string, string) error            { return ErrReadOnly }
func (f *frozenFS) Create(string) (vfs.File, error)        { return nil, ErrReadOnly }
func (f *frozenFS) OpenReadWrite(string) (vfs.File, error) { return nil, ErrReadOnly }
func (f *frozenFS) Lock(string) (io.Closer, error)         { return nil, ErrReadOnly }

// cutAt makes a log end at pos of a file, for this view only.
func (f *frozenFS) cutAt(dir string, seq uint64, pos int64) {
	for name := range f.sizes[dir] {
		n, ok := segment.ParseFileName(name)
		switch {
		case !ok:
		case n > seq || n == seq && pos <= segment.HeaderSize:
			delete(f.sizes[dir], name)
		case n == seq:
			f.sizes[dir][name] = fileAt{pos, pos}
		}
	}
}

// ignoredRows takes the rows of a checkpoint that is only checked.
type ignoredRows struct{}

func (ignoredRows) LoadRow(_, _ []byte) error         { return nil }
func (ignoredRows) LoadDeleteRange(_, _ []byte) error { return nil }
