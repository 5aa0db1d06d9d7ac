package index

import (
	"fmt"
	"math/bits"
	"path"
	"slices"

	"queen/internal/crashpoint"
)

const tmpSuffix = ".tmp"

// SealedFile describes a segment file that takes no more records.
type SealedFile struct {
	Seq, Generation    uint64
	Size               int64  // bytes
	MinIndex, MaxIndex uint64 // of the entries with records in it; 0: none
}

// Seal makes the side tables of a file, from the appends and values that were
// added for it, and from txns, which calls add with hash (entry.TxnHash) and
// offset of every message in the file, in any order, minted ids too. When Seal
// returns, the tables are durable, and the memory of the file is given up. The
// file never changes after that. A file whose messages are not as many as the
// added appends hold is refused: its tables would hide the others.
//
// After an error nothing has changed, except perhaps for files that the next
// Reconcile removes; an error of txns is returned wrapped.
func (x *LogIndex) Seal(f SealedFile, txns func(add func(hash, offset uint64)) error) error {
	x.maintenance.Lock()
	defer x.maintenance.Unlock()
	// Nothing is added to a file that takes no more records, and no cut reaches
	// into one that may be sealed, so its memory is read without the lock.
	m := x.memoryOf(f.Seq)
	hashes := make([]txnRef, 0, m.messages())
	if err := txns(func(hash, offset uint64) { hashes = append(hashes, txnRef{hash, offset}) }); err != nil {
		return fmt.Errorf("transactionIds of file %d in %s: %w", f.Seq, x.dir, err)
	}
	return x.writeSealed(f, m, hashes)
}

// FileContent collects what a file holds, for Reseal.
type FileContent struct {
	memory *fileMemory
	hashes []txnRef
}

// AddAppend takes an append of the file, in the order of the file.
func (c *FileContent) AddAppend(r AppendRef) {
	checkRef(&r)
	c.memory.add(&r)
}

// AddValue takes a value of the file.
func (c *FileContent) AddValue(id uint64, pos int64) { c.memory.addValue(id, pos) }

// AddTxn takes the hash (entry.TxnHash) and offset of a message of the file.
func (c *FileContent) AddTxn(hash, offset uint64) { c.hashes = append(c.hashes, txnRef{hash, offset}) }

// Reseal makes the side tables of a sealed file again, from what fill reads of
// the file: Broken named it. Look-ups see nothing of it until the new tables are
// durable and take the place of the damaged ones; of a damaged merged table the
// other files' part stays until they are made again too. After an error nothing
// has changed, as after one of Seal.
func (x *LogIndex) Reseal(f SealedFile, fill func(*FileContent) error) error {
	x.maintenance.Lock()
	defer x.maintenance.Unlock()
	c := NewFileContent(f.Seq)
	if err := fill(c); err != nil {
		return err
	}
	return x.writeSealed(f, c.memory, c.hashes)
}

// writeSealed makes the tables of one file and puts them into use.
func (x *LogIndex) writeSealed(f SealedFile, m *fileMemory, hashes []txnRef) error {
	return x.writeTables(f, m, hashes, func(p *tablePair) []*tablePair {
		x.mu.memory = slices.DeleteFunc(slices.Clone(x.mu.memory), func(m *fileMemory) bool { return m.seq == f.Seq })
		return x.disownLocked(f.Seq, p)
	})
}

// writeTables makes the tables of one file; replace (called with mu held) takes out of the list what they replace.
func (x *LogIndex) writeTables(f SealedFile, m *fileMemory, hashes []txnRef, replace func(*tablePair) []*tablePair) error {
	messages := m.messages()
	hashes = sortTxns(hashes)
	info := m.describe(f)
	info.IDs = uint64(len(hashes))
	if messages != info.IDs {
		return fmt.Errorf("file %d in %s has %d messages, but the appends that were added for it hold %d: not sealed", f.Seq, x.dir, info.IDs, messages)
	}
	err := x.writePair(0, f.Seq, f.Seq, []FileInfo{info},
		func(w *tableWriter) error { m.writeTo(w); return nil },
		func(w *tableWriter) error {
			w.begin(sectionTxns, uint64(len(hashes)), uint64(len(hashes)))
			for _, h := range hashes {
				w.addTxn(h)
			}
			w.end()
			return nil
		})
	if err != nil {
		return err
	}
	return x.publish(f.Seq, f.Seq, 0, replace)
}

// sortTxns sorts by hash and offset, into a slice of its own. Hashes are spread
// evenly, so one pass puts each next to where it belongs: a third of the time of
// a general sort, for every message that is ever written. Uneven hashes cost the
// general sort again.
func sortTxns(in []txnRef) []txnRef {
	shift := 64 - max(bits.Len(uint(len(in)))-3, 1) // about 8 to a bucket
	ends := make([]uint32, 1<<(64-shift)+1)
	for _, t := range in {
		ends[t.hash>>shift+1]++
	}
	for i := 1; i < len(ends); i++ {
		ends[i] += ends[i-1]
	}
	starts := slices.Clone(ends)
	out := make([]txnRef, len(in))
	for _, t := range in {
		b := t.hash >> shift
		out[starts[b]] = t
		starts[b]++
	}
	for b := 1; b < len(ends); b++ {
		sortBucket(out[ends[b-1]:ends[b]])
	}
	return out
}

func sortBucket(b []txnRef) {
	if len(b) > 40 {
		slices.SortFunc(b, txnRef.compare)
		return
	}
	for i := 1; i < len(b); i++ {
		t, k := b[i], i
		for ; k > 0 && (b[k-1].hash > t.hash || b[k-1].hash == t.hash && b[k-1].offset > t.offset); k-- {
			b[k] = b[k-1]
		}
		b[k] = t
	}
}

// memoryOf is the memory of a file; an empty one when nothing was added.
func (x *LogIndex) memoryOf(seq uint64) *fileMemory {
	x.mu.RLock()
	defer x.mu.RUnlock()
	for _, m := range x.mu.memory {
		if m.seq == seq {
			return m
		}
	}
	return newFileMemory(seq)
}

// messages is how many messages the appends hold.
func (m *fileMemory) messages() (n uint64) {
	for _, list := range m.parts { // the order reaches nothing
		for _, a := range list {
			n += a.posCount & (1<<countBits - 1)
		}
	}
	return n
}

func (m *fileMemory) describe(f SealedFile) FileInfo {
	info := FileInfo{
		Seq: f.Seq, Generation: f.Generation, Size: f.Size, MinIndex: f.MinIndex, MaxIndex: f.MaxIndex,
		MinTime: m.minTime, MaxTime: m.maxTime, Appends: m.appends, Values: uint64(len(m.values)),
	}
	if n := len(m.values); n > 0 {
		info.MinValue, info.MaxValue = m.values[0].id, m.values[n-1].id
	}
	return info
}

// writeTo writes the sections of an .idx table.
func (m *fileMemory) writeTo(w *tableWriter) {
	w.begin(sectionAppends, m.appends, uint64(len(m.parts)))
	m.sorted(w.addAppend)
	w.end()
	w.begin(sectionValues, uint64(len(m.values)), 0)
	for _, v := range m.values {
		w.addValue(valueRef{v.id, m.seq, v.pos})
	}
	w.end()
}

// writePair writes the two tables of a pair under their final names, durably.
// The .idx is renamed last: without it the pair is not there.
func (x *LogIndex) writePair(level int, first, last uint64, files []FileInfo, idx, dedup func(*tableWriter) error) error {
	for _, t := range []struct {
		kind uint32
		fill func(*tableWriter) error
	}{{tableDedup, dedup}, {tableIdx, idx}} {
		name := path.Join(x.dir, tableName(level, first, last, t.kind))
		if err := x.writeTable(name+tmpSuffix, t.kind, level, files, t.fill); err != nil {
			x.fs.Remove(name + tmpSuffix) // what stays is removed by the next Reconcile
			return err
		}
		crashpoint.Hit("seal.table.written")
	}
	for _, kind := range []uint32{tableDedup, tableIdx} {
		name := path.Join(x.dir, tableName(level, first, last, kind))
		if err := x.fs.Rename(name+tmpSuffix, name); err != nil {
			return fmt.Errorf("rename table %s: %w", name, err)
		}
		crashpoint.Hit("seal.table.renamed")
	}
	if err := x.fs.SyncDir(x.dir); err != nil {
		return fmt.Errorf("sync directory %s: %w", x.dir, err)
	}
	crashpoint.Hit("seal.pair.synced")
	return nil
}

func (x *LogIndex) writeTable(tmp string, kind uint32, level int, files []FileInfo, fill func(*tableWriter) error) error {
	w, err := newTableWriter(x.fs, tmp, kind, level)
	if err != nil {
		return err
	}
	if err := fill(w); err != nil {
		w.abort()
		return err
	}
	return w.finish(files)
}

// publish puts a pair that was just written into the list, in place of what
// replace (called with mu held) takes out.
func (x *LogIndex) publish(first, last uint64, level int, replace func(*tablePair) []*tablePair) error {
	p, err := x.openPair(level, first, last)
	if err != nil {
		return fmt.Errorf("table that was just written: %w", err)
	}
	x.mu.Lock()
	dropped := replace(p)
	x.mu.tables = newTableList(append(slices.Clone(x.mu.tables.pairs), p))
	x.mu.Unlock()
	// A pair of the same name was replaced on disk already.
	dropped = slices.DeleteFunc(dropped, func(d *tablePair) bool {
		same := p.sameName(d)
		if same {
			d.idx.forget()
			d.dedup.forget()
		}
		return same
	})
	return x.removePairs(dropped)
}
