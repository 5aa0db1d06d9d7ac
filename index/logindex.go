package index

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"path"
	"slices"
	"strings"
	"sync"

	"queen/internal/plant"
	"queen/internal/vfs"
)

// FileID says which content of a segment file is meant.
type FileID struct {
	Seq, Generation uint64
	Size            int64 // bytes
}

// LogIndex says where the messages and values of one log are. Those of unsealed
// files are in memory; Seal moves a file's into side tables, which are merged
// in levels so that a look-up asks a handful of them however many files there
// are.
//
// Look-ups may run at any time from any goroutine, also while the log's writer
// adds. A look-up that meets a damaged table gives a CorruptError, never a
// wrong answer; Broken then names the files that have to be sealed again.
//
// Locks: maintenance before mu. Nothing is read or written under mu.
type LogIndex struct {
	fs    vfs.FS
	dir   string
	cache *TableCache

	maintenance sync.Mutex // held by what writes or removes tables

	mu struct {
		sync.RWMutex
		tables   *tableList
		memory   []*fileMemory // rising by seq
		garbage  []string      // table files that are of no use
		found    []*tablePair  // every readable pair, until Reconcile
		problems []error
	}
}

// tableList is an immutable snapshot of the sealed side.
type tableList struct {
	pairs  []*tablePair // rising by the first file that each speaks for
	newest []int64      // of each pair: the highest time of an append
	// layered: the files that the pairs speak for do not lie one behind the
	// other. It happens when a file inside a merged table was sealed again. Look-ups then
	// ask every pair.
	layered bool
}

// tablePair is the two tables of one file, or of several after a merge.
// Immutable; changes make a copy.
type tablePair struct {
	level       int
	first, last uint64 // files, both included
	idx, dedup  *table
	files       []FileInfo // what the tables describe, rising
	dead        []uint64   // files of these that the pair no longer speaks for, rising
	broken      bool       // damage was met; to be made again
}

// OpenLogIndex reads which tables dir has. It writes and removes nothing. Then
// Reconcile says which of them describe the segments that are there; until
// then all are believed. Damaged tables are no error: Reconcile reports their
// files as missing, Problems says why.
func OpenLogIndex(fsys vfs.FS, dir string, cache *TableCache) (*LogIndex, error) {
	x := &LogIndex{fs: fsys, dir: dir, cache: cache}
	infos, err := fsys.List(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list tables in %s: %w", dir, err)
	}
	have := make(map[string]bool, len(infos))
	for _, i := range infos {
		have[i.Name] = true
	}
	var pairs []*tablePair
	for _, i := range infos {
		level, first, last, kind, ok := parseTableName(i.Name)
		switch {
		case strings.HasSuffix(i.Name, tmpSuffix):
			x.mu.garbage = append(x.mu.garbage, i.Name)
		case !ok:
		case kind == tableDedup:
			if !have[tableName(level, first, last, tableIdx)] {
				x.mu.garbage = append(x.mu.garbage, i.Name)
			}
		default:
			p, err := x.openPair(level, first, last)
			if err != nil && !isDamage(err) {
				return nil, err
			}
			if err != nil {
				x.mu.problems = append(x.mu.problems, err)
				x.mu.garbage = append(x.mu.garbage, i.Name, tableName(level, first, last, tableDedup))
				continue
			}
			pairs = append(pairs, p)
		}
	}
	kept, _ := claim(pairs, newestFiles(pairs))
	x.mu.tables, x.mu.found = newTableList(kept), pairs
	return x, nil
}

// isDamage tells errors that making the table again mends from those that
// nothing here mends. A table that is newer or missing is made again too.
func isDamage(err error) bool {
	return errors.Is(err, ErrCorrupt) || errors.Is(err, ErrNewerFormat) || errors.Is(err, fs.ErrNotExist)
}

func (x *LogIndex) openPair(level int, first, last uint64) (*tablePair, error) {
	idx, err := openTable(x.fs, x.dir, level, first, last, tableIdx, x.cache)
	if err != nil {
		return nil, err
	}
	dedup, err := openTable(x.fs, x.dir, level, first, last, tableDedup, x.cache)
	if err != nil {
		return nil, err
	}
	if !slices.Equal(idx.files, dedup.files) {
		return nil, corruptValue(dedup.name, 0, "files described", idx.files, dedup.files)
	}
	return &tablePair{level: level, first: first, last: last, idx: idx, dedup: dedup, files: idx.files}, nil
}

// claim decides which pair speaks for which file: the highest level does, so a
// merge that a crash interrupted before it removed its sources has no effect.
// files are the segments that are there: what describes another generation or
// size speaks for nothing. dropped are the pairs that speak for no file.
func claim(pairs []*tablePair, files []FileID) (kept, dropped []*tablePair) {
	there := make(map[uint64]FileID, len(files))
	for _, f := range files {
		there[f.Seq] = f
	}
	order := slices.Clone(pairs)
	slices.SortStableFunc(order, func(a, b *tablePair) int { return b.level - a.level })
	taken := make(map[uint64]bool)
	for _, p := range order {
		q := *p
		q.dead = nil
		for _, f := range p.files {
			if !taken[f.Seq] && !p.isDead(f.Seq) && (there[f.Seq] == f.id() || plant.Is(plant.StaleTable) && there[f.Seq].Seq == f.Seq) {
				taken[f.Seq] = true
			} else {
				q.dead = append(q.dead, f.Seq)
			}
		}
		if len(q.dead) == len(q.files) {
			dropped = append(dropped, p)
		} else {
			kept = append(kept, &q)
		}
	}
	return kept, dropped
}

// newestFiles are the files that the pairs describe, each in its highest
// generation.
func newestFiles(pairs []*tablePair) []FileID {
	newest := make(map[uint64]FileID)
	for _, p := range pairs {
		for _, f := range p.files {
			if f.Generation >= newest[f.Seq].Generation {
				newest[f.Seq] = f.id()
			}
		}
	}
	out := make([]FileID, 0, len(newest))
	for _, f := range newest { // the order reaches nothing
		out = append(out, f)
	}
	return out
}

func (f *FileInfo) id() FileID { return FileID{f.Seq, f.Generation, f.Size} }

func newTableList(pairs []*tablePair) *tableList {
	slices.SortFunc(pairs, func(a, b *tablePair) int {
		i, _ := a.span()
		j, _ := b.span()
		return compareUint(i, j)
	})
	l := &tableList{pairs: pairs}
	end := uint64(0) // last file so far
	for i, p := range pairs {
		first, last := p.span()
		l.layered = l.layered || i > 0 && first <= end
		l.newest = append(l.newest, p.newest())
		end = last
	}
	return l
}

// span is the first and the last file that the pair speaks for.
func (p *tablePair) span() (first, last uint64) {
	if len(p.dead) == 0 {
		return p.first, p.last
	}
	p.live(func(f *FileInfo) {
		if first == 0 {
			first = f.Seq
		}
		last = f.Seq
	})
	return first, last
}

// sameName tells whether two pairs have the same files.
func (p *tablePair) sameName(q *tablePair) bool {
	return p.level == q.level && p.first == q.first && p.last == q.last
}

func (p *tablePair) isDead(seq uint64) bool {
	if len(p.dead) == 0 {
		return false
	}
	_, found := slices.BinarySearch(p.dead, seq)
	return found
}

// speaksFor tells whether the tables describe a file, and count for it.
func (p *tablePair) speaksFor(seq uint64) bool {
	if seq < p.first || seq > p.last || p.isDead(seq) {
		return false
	}
	_, found := slices.BinarySearchFunc(p.files, seq, func(f FileInfo, seq uint64) int { return compareUint(f.Seq, seq) })
	return found
}

// live calls fn for the files that the pair speaks for.
func (p *tablePair) live(fn func(*FileInfo)) {
	for i := range p.files {
		if !p.isDead(p.files[i].Seq) {
			fn(&p.files[i])
		}
	}
}

// newest is the highest time of an append in the pair's files.
func (p *tablePair) newest() int64 {
	t := int64(0)
	p.live(func(f *FileInfo) { t = max(t, f.MaxTime) })
	return t
}

// Reconcile compares the tables with the segment files that are there: what
// describes other files, generations or sizes is forgotten; RemoveGarbage removes
// it, with what a crash left, once the directory is known to be good. missing are the files without tables: those
// that were never sealed, and those whose tables were damaged or stale. Add the
// appends and values of these, and Seal the ones that are complete. It is called
// once, before any look-up.
func (x *LogIndex) Reconcile(files []FileID) (missing []FileID) {
	x.maintenance.Lock()
	defer x.maintenance.Unlock()
	x.mu.Lock()
	pairs := x.mu.found
	if pairs == nil { // called again
		pairs = x.mu.tables.pairs
	}
	kept, dropped := claim(pairs, files)
	x.mu.tables, x.mu.found = newTableList(kept), nil
	for _, p := range dropped {
		for _, kind := range []uint32{tableIdx, tableDedup} {
			x.mu.garbage = append(x.mu.garbage, tableName(p.level, p.first, p.last, kind))
		}
	}
	x.mu.Unlock()
	for _, p := range dropped {
		p.idx.forget()
		p.dedup.forget()
	}
	covered := make(map[uint64]bool)
	for _, p := range kept {
		p.live(func(f *FileInfo) { covered[f.Seq] = true })
	}
	for _, f := range files {
		if !covered[f.Seq] {
			missing = append(missing, f)
		}
	}
	return missing
}

// RemoveGarbage removes the table files that Reconcile found to be of no use. It
// is called before the first Seal, which may use their names again.
func (x *LogIndex) RemoveGarbage() error {
	x.maintenance.Lock()
	defer x.maintenance.Unlock()
	x.mu.Lock()
	garbage := x.mu.garbage
	x.mu.garbage = nil
	x.mu.Unlock()
	for _, name := range garbage {
		if err := x.remove(name); err != nil {
			return err
		}
	}
	return nil
}

// removePairs removes the files of pairs that are in no list any more. A crash
// may bring them back; the next start removes them again.
func (x *LogIndex) removePairs(pairs []*tablePair) error {
	for _, p := range pairs {
		p.idx.forget()
		p.dedup.forget()
		for _, kind := range []uint32{tableIdx, tableDedup} {
			if err := x.remove(tableName(p.level, p.first, p.last, kind)); err != nil {
				return err
			}
		}
	}
	return nil
}

func (x *LogIndex) remove(name string) error {
	err := x.fs.Remove(path.Join(x.dir, name))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove table %s: %w", path.Join(x.dir, name), err)
	}
	return nil
}

// Forget closes what is open of the tables; the log's directory is about to be
// removed. Nothing may look anything up any more.
func (x *LogIndex) Forget() {
	x.maintenance.Lock()
	defer x.maintenance.Unlock()
	for _, p := range x.snapshot().pairs {
		p.idx.forget()
		p.dedup.forget()
	}
}

// Problems lists what was wrong with tables, and clears the list.
func (x *LogIndex) Problems() []error {
	x.mu.Lock()
	defer x.mu.Unlock()
	p := x.mu.problems
	x.mu.problems = nil
	return p
}

// Broken lists the sealed files whose tables are damaged: Reseal them, or add
// their appends and values again, and Seal them. A damaged merged table names
// all the files that it speaks for.
func (x *LogIndex) Broken() []uint64 {
	var out []uint64
	for _, p := range x.snapshot().pairs {
		if p.broken {
			p.live(func(f *FileInfo) { out = append(out, f.Seq) })
		}
	}
	slices.Sort(out)
	return out
}

// Files lists the sealed files that tables describe, in order.
func (x *LogIndex) Files() []FileInfo {
	var out []FileInfo
	for _, p := range x.snapshot().pairs {
		p.live(func(f *FileInfo) { out = append(out, *f) })
	}
	slices.SortFunc(out, func(a, b FileInfo) int { return compareUint(a.Seq, b.Seq) })
	return out
}

// Tables is how many table pairs a look-up may have to ask.
func (x *LogIndex) Tables() int { return len(x.snapshot().pairs) }

// MemoryBytes is about what the unsealed files take in memory.
func (x *LogIndex) MemoryBytes() (n int64) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	for _, m := range x.mu.memory {
		n += m.bytes()
	}
	return n
}

func (x *LogIndex) snapshot() *tableList {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return x.mu.tables
}

// AddAppend notes where an append is, in the order of the log. Its record must
// be readable at r.Pos by then: look-ups find it from now on. For a file whose
// tables are sound it does nothing, so a boot may add all that it reads.
func (x *LogIndex) AddAppend(r AppendRef) {
	checkRef(&r)
	x.mu.Lock()
	defer x.mu.Unlock()
	if m := x.fileLocked(r.Seq); m != nil {
		m.add(&r)
	}
}

// checkRef panics on what no record can be: so large, or lying there. It is a
// bug of the caller's.
func checkRef(r *AppendRef) {
	if r.Count >= 1<<countBits || r.Pos < 0 || r.Pos >= 1<<(64-countBits) {
		panic(fmt.Sprintf("index: append of %d messages at pos %d of file %d", r.Count, r.Pos, r.Seq))
	}
}

// AddValue notes where the value with this id is, like AddAppend.
func (x *LogIndex) AddValue(id, seq uint64, pos int64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if m := x.fileLocked(seq); m != nil {
		m.addValue(id, pos)
	}
}

// fileLocked is the memory of a file, made when there is none; nil when tables
// speak for the file.
func (x *LogIndex) fileLocked(seq uint64) *fileMemory {
	n := len(x.mu.memory)
	if n > 0 && x.mu.memory[n-1].seq == seq {
		return x.mu.memory[n-1]
	}
	i, found := slices.BinarySearchFunc(x.mu.memory, seq, func(m *fileMemory, seq uint64) int { return compareUint(m.seq, seq) })
	if !found {
		if slices.ContainsFunc(x.mu.tables.pairs, func(p *tablePair) bool { return !p.broken && p.speaksFor(seq) }) {
			return nil
		}
		x.mu.memory = slices.Insert(x.mu.memory, i, newFileMemory(seq))
	}
	return x.mu.memory[i]
}

// Cut forgets the appends and values at or after pos of file seq, and those of
// all later files. A cut never reaches into a sealed file (I5): that is an error,
// and nothing is forgotten.
func (x *LogIndex) Cut(seq uint64, pos int64) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, p := range x.mu.tables.pairs {
		if p.last < seq {
			continue
		}
		var err error
		p.live(func(f *FileInfo) {
			if f.Seq > seq || f.Seq == seq && pos < f.Size {
				err = fmt.Errorf("cut of %s at file %d pos %d: file %d is sealed", x.dir, seq, pos, f.Seq)
			}
		})
		if err != nil {
			return err
		}
	}
	keep := x.mu.memory[:0:0]
	for _, m := range x.mu.memory {
		if m.seq > seq {
			break
		}
		if m.seq == seq {
			m.cut(pos)
		}
		keep = append(keep, m)
	}
	x.mu.memory = keep
	return nil
}

// DropFile forgets a segment file that was removed, and removes its tables. A
// merged table goes with the last of its files.
func (x *LogIndex) DropFile(seq uint64) error {
	x.maintenance.Lock()
	defer x.maintenance.Unlock()
	x.mu.Lock()
	x.mu.memory = slices.DeleteFunc(slices.Clone(x.mu.memory), func(m *fileMemory) bool { return m.seq == seq })
	dropped := x.disownLocked(seq, nil)
	x.mu.Unlock()
	return x.removePairs(dropped)
}

// disownLocked makes every pair but keep stop to speak for a file. Those that
// speak for none after that leave the list and are returned.
func (x *LogIndex) disownLocked(seq uint64, keep *tablePair) (dropped []*tablePair) {
	var pairs []*tablePair
	for _, p := range x.mu.tables.pairs {
		if p == keep || !p.speaksFor(seq) {
			pairs = append(pairs, p)
			continue
		}
		q := *p
		q.dead = append(slices.Clone(p.dead), seq)
		slices.Sort(q.dead)
		if len(q.dead) == len(q.files) {
			dropped = append(dropped, p)
		} else {
			pairs = append(pairs, &q)
		}
	}
	x.mu.tables = newTableList(pairs)
	return dropped
}

// read runs a look-up over a snapshot of the tables. When it fails because a
// table was replaced meanwhile, it is run again over the new ones. Damage marks
// the pair and is reported.
func (x *LogIndex) read(l *tableList, fn func(*tableList) (*tablePair, error)) error {
	for {
		p, err := fn(l)
		if err == nil {
			return nil
		}
		now := x.snapshot()
		if now != l {
			l = now
			continue
		}
		if errors.Is(err, fs.ErrNotExist) && p != nil {
			err = corruptValue(p.idx.name, 0, "table file", "one", "none")
		}
		if isDamage(err) && p != nil {
			x.markBroken(p, err)
		}
		return err
	}
}

func (x *LogIndex) markBroken(p *tablePair, err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	i := slices.IndexFunc(x.mu.tables.pairs, p.sameTables)
	if i < 0 || x.mu.tables.pairs[i].broken {
		return
	}
	q := *x.mu.tables.pairs[i]
	q.broken = true
	pairs := slices.Clone(x.mu.tables.pairs)
	pairs[i] = &q
	x.mu.tables = newTableList(pairs)
	x.mu.problems = append(x.mu.problems, err)
}

const never = math.MinInt64
