package index

import (
	"bytes"
	"encoding/binary"
	"math/bits"
	"slices"
)

// Sizes of DedupMemory. A step of growth moves at most one table of about
// tableBudget bytes, so that no call holds the loop for long.
const (
	maxDedupChunk = 1 << 20 // bytes of arena that are allocated, and evicted, at once
	minDedupChunk = 1 << 12
	tableBudget   = 256 << 10 // bytes of budget for each hash table
	maxTables     = 1 << 16
	arenaUnit     = 4 // entries start at multiples of it
)

// MaxDedupBudget is the largest memory that a DedupMemory can be given, in
// bytes: its references are 32 bits wide.
const MaxDedupBudget = 4 << 30

// DedupMemory remembers the transactionIds of recent messages, exactly: a
// look-up compares all bytes of the id, a hash never decides. It holds what was
// added until Evict drops the oldest. It is not safe for concurrent use.
//
// Entries lie one after the other in an arena of chunks of equal size, in the
// order in which they were added; whole chunks are dropped. Hash tables of
// 8-byte slots (31 bits of the hash, a 32-bit reference into the arena) find
// them. There are many small tables, each for an interval of hashes, so that
// one grows at a time. Dropping a chunk leaves its slots behind: a reference
// below the oldest chunk is an empty place for whoever needs one. So nothing
// here has pointers but the chunks and tables themselves, and the garbage
// collector sees a few thousand of them at most.
type DedupMemory struct {
	budget int64
	bytes  int64

	chunks    []dedupChunk // oldest first; the last one takes adds
	first     uint32       // number of chunks[0]; numbers wrap
	unitShift uint32       // log2 of references in a chunk
	chunkSize int
	spare     []byte // arena of the last dropped chunk

	tables    []dedupTable
	tableBits int
	sweep     int // the table whose stale slots are cleared next
	sweepDebt int64

	warmed uint64 // keeps the reads of Warm from being optimised away

	since         int64
	sealedThrough int64
	entries       int64
}

type dedupChunk struct {
	arena  []byte
	base   int64 // time of the first entry; the others are relative to it
	newest int64 // highest time
	count  int64
}

type dedupTable struct {
	slots []uint64 // tag<<32 | reference; 0: free
	used  int      // slots that are not 0
}

// NewDedupMemory makes a memory that asks to be sealed and evicted beyond
// budget bytes. A budget above MaxDedupBudget counts as that.
func NewDedupMemory(budget int64) *DedupMemory {
	budget = min(max(budget, 0), MaxDedupBudget)
	d := &DedupMemory{budget: budget, first: 1}
	size := maxDedupChunk
	for size > minDedupChunk && int64(size) > budget/8 {
		size /= 2
	}
	d.chunkSize = size
	d.unitShift = uint32(bits.TrailingZeros32(uint32(size / arenaUnit)))
	for int64(1)<<d.tableBits < min(budget/tableBudget, maxTables) {
		d.tableBits++
	}
	d.tables = make([]dedupTable, 1<<d.tableBits)
	d.bytes = int64(len(d.tables)) * 32
	return d
}

// Add remembers that the message at offset of partition has the transactionId
// txn, with hash = entry.TxnHash(partition, id text), and was appended at time
// (microseconds). minted: txn is the 16 bytes of an id whose text is the
// transactionId. txn is copied. Within a partition, adds come in offset order.
func (d *DedupMemory) Add(partition, offset uint64, hash uint64, time int64, txn []byte, minted bool) {
	var id [16]byte
	if minted {
		copy(id[:], txn)
	} else if parseUUID(&id, txn) {
		// Most clients send the text of a UUID: 16 bytes instead of 36.
		txn, minted = id[:], true
	}
	ref := d.store(partition, offset, time, txn, minted)
	d.entries++
	t := &d.tables[d.table(hash)]
	if (t.used+1)*4 > len(t.slots)*3 {
		d.rebuild(t)
	}
	d.insert(t, uint64(uint32(hash)|1)<<32|uint64(ref))
}

// Arena entry: uvarint partition, uvarint offset, varint time relative to the
// chunk's base, uvarint length of txn + 1 (0: it is the 16 bytes of a UUID), txn.
func (d *DedupMemory) store(partition, offset uint64, time int64, txn []byte, uuid bool) (ref uint32) {
	const head = 4*binary.MaxVarintLen64 + arenaUnit
	if k := len(d.chunks) - 1; k < 0 || len(d.chunks[k].arena)+head+len(txn) > cap(d.chunks[k].arena) {
		d.newChunk(time, head+len(txn))
	}
	k := len(d.chunks) - 1
	c := &d.chunks[k]
	for len(c.arena)%arenaUnit != 0 {
		c.arena = append(c.arena, 0)
	}
	ref = (d.first+uint32(k))<<d.unitShift + uint32(len(c.arena)/arenaUnit)
	a := binary.AppendUvarint(c.arena, partition)
	a = binary.AppendUvarint(a, offset)
	a = binary.AppendVarint(a, time-c.base)
	if uuid {
		a = append(a, 0)
	} else {
		a = binary.AppendUvarint(a, uint64(len(txn))+1)
	}
	c.arena = append(a, txn...)
	c.newest = max(c.newest, time)
	c.count++
	return ref
}

// newChunk starts a chunk with room for need bytes. One entry larger than a
// chunk gets a chunk of its own size: only where an entry starts is referred to.
func (d *DedupMemory) newChunk(time int64, need int) {
	arena := d.spare
	if d.spare = nil; cap(arena) < need {
		arena = make([]byte, 0, max(d.chunkSize, need))
	}
	d.chunks = append(d.chunks, dedupChunk{arena: arena[:0], base: time, newest: time})
	d.bytes += int64(cap(arena))
}

func (d *DedupMemory) table(hash uint64) int {
	return int(hash >> 1 >> (63 - d.tableBits))
}

// live reports whether a reference is to a chunk that is still here. Chunk
// numbers wrap, so the distance from the oldest decides.
func (d *DedupMemory) live(ref uint32) bool {
	return (ref>>d.unitShift-d.first)<<d.unitShift>>d.unitShift < uint32(len(d.chunks))
}

// home is where the probing for a tag starts.
func (t *dedupTable) home(slot uint64) int {
	return int(slot >> 32 * uint64(len(t.slots)) >> 32)
}

// insert puts a slot into the first place that is free or stale.
func (d *DedupMemory) insert(t *dedupTable, slot uint64) {
	for i := t.home(slot); ; {
		old := t.slots[i]
		if old == 0 {
			t.used++
		}
		if old == 0 || !d.live(uint32(old)) {
			t.slots[i] = slot
			return
		}
		if i++; i == len(t.slots) {
			i = 0
		}
	}
}

// rebuild drops a table's stale slots and gives it room for half as many again.
func (d *DedupMemory) rebuild(t *dedupTable) {
	n := 0
	for _, s := range t.slots {
		if s != 0 && d.live(uint32(s)) {
			n++
		}
	}
	old := t.slots
	*t = dedupTable{slots: make([]uint64, 2*n+8)}
	d.bytes += 8 * int64(len(t.slots)-len(old))
	for _, s := range old {
		if s != 0 && d.live(uint32(s)) {
			d.insert(t, s)
		}
	}
}

// Lookup calls fn with offset and time of every message of partition whose
// transactionId is txn (its text, also for a minted one), newest first, until
// fn returns false. hash is entry.TxnHash(partition, txn). It finds what was
// added and not evicted; what was appended at or before Since may be missing.
func (d *DedupMemory) Lookup(partition, hash uint64, txn []byte, fn func(offset uint64, time int64) bool) {
	t := &d.tables[d.table(hash)]
	if len(t.slots) == 0 {
		return
	}
	var buf [8]uint32
	hits := buf[:0]
	tag := uint64(uint32(hash) | 1)
	for i := t.home(tag << 32); t.slots[i] != 0; {
		if s := t.slots[i]; s>>32 == tag && d.live(uint32(s)) {
			hits = append(hits, uint32(s))
		}
		if i++; i == len(t.slots) {
			i = 0
		}
	}
	if len(hits) == 0 {
		return
	}
	var id [16]byte
	uuid := parseUUID(&id, txn)
	// Age counts from the oldest chunk, since references wrap.
	oldest := d.first << d.unitShift
	slices.SortFunc(hits, func(a, b uint32) int {
		if a-oldest > b-oldest {
			return -1
		}
		return 1
	})
	for _, ref := range hits {
		e := d.at(ref)
		same := e.partition == partition && e.uuid == uuid
		if uuid {
			same = same && bytes.Equal(e.txn, id[:])
		} else {
			same = same && bytes.Equal(e.txn, txn)
		}
		if same && !fn(e.offset, e.time) {
			return
		}
	}
}

// Warm asks the processor for the places of all these hashes at once. A place
// is a cache miss of some hundred nanoseconds in a large memory; the misses of a
// batch overlap here, while those of one Lookup or Add after the other do not.
// It changes nothing else.
func (d *DedupMemory) Warm(hashes []uint64) {
	var sum uint64
	for _, h := range hashes {
		if t := &d.tables[d.table(h)]; len(t.slots) > 0 {
			sum += t.slots[t.home(uint64(uint32(h)|1)<<32)]
		}
	}
	d.warmed = sum
}

type dedupEntry struct {
	partition, offset uint64
	time              int64
	txn               []byte // aliases the arena
	uuid              bool
}

func (d *DedupMemory) at(ref uint32) dedupEntry {
	number := (ref>>d.unitShift - d.first) << d.unitShift >> d.unitShift
	c := &d.chunks[number]
	b := c.arena[ref<<(32-d.unitShift)>>(32-d.unitShift)*arenaUnit:]
	var e dedupEntry
	var n int
	e.partition, n = binary.Uvarint(b)
	b = b[n:]
	e.offset, n = binary.Uvarint(b)
	b = b[n:]
	e.time, n = binary.Varint(b)
	e.time += c.base
	b = b[n:]
	size, n := binary.Uvarint(b)
	b = b[n:]
	if e.uuid = size == 0; e.uuid {
		size = 17
	}
	e.txn = b[:size-1]
	return e
}

// Since is the time (microseconds) after which every id that was appended is
// here; at or before it ids may be missing. 0: everything is here.
func (d *DedupMemory) Since() int64 { return d.since }

// SetSince is called at boot: ids appended at or before t, which were only in
// sealed files, are not here. It never lowers Since.
func (d *DedupMemory) SetSince(t int64) { d.since = max(d.since, t) }

// Evict drops the oldest chunks while the memory is over budget and everything
// in them was appended at or before sealedThrough, so that the side tables have
// it. Since rises with what was dropped, and only here. sealedThrough never goes
// back: Evict(0) drops by what was told before. Call it before each planning
// cycle; it costs nothing while the memory is within its budget.
func (d *DedupMemory) Evict(sealedThrough int64) {
	d.sealedThrough = max(d.sealedThrough, sealedThrough)
	// The chunk that takes adds stays: little would be gained.
	for d.bytes > d.budget && len(d.chunks) > 1 && d.chunks[0].newest <= d.sealedThrough {
		d.dropOldest()
	}
}

func (d *DedupMemory) dropOldest() {
	c := d.chunks[0]
	d.since = max(d.since, c.newest)
	d.bytes -= int64(cap(c.arena))
	d.entries -= c.count
	if cap(c.arena) == d.chunkSize {
		d.spare = c.arena
	}
	d.chunks = slices.Delete(d.chunks, 0, 1)
	d.first++
	// A slot that stays stale while the references wrap (16 GiB of arena)
	// would come to life again. So all tables are rebuilt, one by one, at
	// least once for every sixteenth of the references.
	period := int64(1) << (32 - d.unitShift) / 16
	for d.sweepDebt += int64(len(d.tables)); d.sweepDebt >= period; d.sweepDebt -= period {
		d.rebuild(&d.tables[d.sweep])
		d.sweep = (d.sweep + 1) % len(d.tables)
	}
}

// WantSealed is the time through which files should be sealed so that Evict can
// bring the memory an eighth below its budget; 0 when there is no need, or
// enough is sealed already. The eighth keeps files from being sealed for every
// few messages.
func (d *DedupMemory) WantSealed() int64 {
	if d.bytes <= d.budget || len(d.chunks) < 2 || d.chunks[0].newest <= d.sealedThrough {
		return 0
	}
	var through int64
	left := d.bytes
	for _, c := range d.chunks[:len(d.chunks)-1] {
		through = max(through, c.newest)
		if left -= int64(cap(c.arena)); left <= d.budget-d.budget/8 {
			break
		}
	}
	return through
}

// Bytes is the memory in use.
func (d *DedupMemory) Bytes() int64 { return d.bytes }

// Len is the number of ids that are remembered.
func (d *DedupMemory) Len() int64 { return d.entries }

// parseUUID reads the canonical text of a UUID: 36 bytes, lower case. Only a
// text that entry.AppendUUID would give back is one.
func parseUUID(id *[16]byte, text []byte) bool {
	if len(text) != 36 || text[8] != '-' || text[13] != '-' || text[18] != '-' || text[23] != '-' {
		return false
	}
	var bad byte
	for i, at := range uuidPairs {
		hi, lo := hexValue[text[at]], hexValue[text[at+1]]
		bad |= hi | lo
		id[i] = hi<<4 | lo&15
	}
	return bad < 16
}

// uuidPairs are the places of the 16 pairs of hex digits in a UUID's text.
var uuidPairs = [16]uint8{0, 2, 4, 6, 9, 11, 14, 16, 19, 21, 24, 26, 28, 30, 32, 34}

// hexValue is the value of a lower-case hex digit, 255 for any other byte.
var hexValue = func() (v [256]byte) {
	for i := range v {
		v[i] = 255
	}
	for i := range 10 {
		v['0'+i] = byte(i)
	}
	for i := range 6 {
		v['a'+i] = byte(10 + i)
	}
	return v
}()
