package fsm

import (
	"encoding/binary"
	"fmt"
	"slices"

	"queen/index"
)

// # Format of rows (version 1; cursors and groups: 1 and 2)
//
// A row has a key and a value. Keys start with a kind and, where the row
// belongs to a queue, the queue's id; numbers in keys are big endian, so that
// rows of a queue, and partitions of a range of ids, are ranges of keys.
//
//	kind  key                                              value
//	1     -                                                time of the newest entry, counters
//	2     queue                                            queue
//	3     queue, partition                                 partition
//	4     queue, group                                     consumer group
//	5     queue, partition, group                          cursor with its lease
//	6     queue, partition, group, set (0, 1), chunk       settled offsets of a chunk of 65,536: sorted ranges
//	7     queue, dead letter id                            dead letter
//	8     tenant (36), namespace, NUL, key                 key/value row
//	9     tenant (36), u16 length, queue name, timer key   timer
//	10    tenant (36), job id                              redrive of dead letters
//	11    value id                                         outcome of a keyed call
//	12    -                                                switches that are off; no row: none is
//	13    queue, width (0..4), u32 first minute            statistics of a queue in a bucket of time; queue 0 is followed
//	                                                       by a tenant (36), whose queues together it counts
//	14    queue, group                                     marks of a group: paused, moved by a seek, removed
//
// Values are sequences of varints, length-prefixed strings and fixed bytes, in
// the order of the put functions below. Equal objects have equal bytes (F16).
const (
	rowMeta      = 1
	rowQueue     = 2
	rowPartition = 3
	rowGroup     = 4
	rowCursor    = 5
	rowSettled   = 6
	rowLetter    = 7
	rowKV        = 8
	rowTimer     = 9
	rowRedrive   = 10
	rowOutcome   = 11
	rowSwitches  = 12
	rowStats     = 13
	rowGroupMark = 14
)

const stateVersion = 1

// # Format of effects (version 1)
//
// Effects follow each other without a separator:
//
//	1  put:          uvarint length, key, uvarint length, value
//	2  delete:       uvarint length, key
//	3  delete range: uvarint length, low key, uvarint length, high key (exclusive)
//	4  settle:       uvarint queue, partition, group, set byte, uvarint length, ranges (of at most 65,536 offsets each)
//	5  reset sets:   uvarint queue, partition, group
//
// All are absolute: applying one twice is applying it once. "settle" adds to a
// set (F22); offsets leave a set when the cursor's row passes them, or by a reset.
// A row that another effect of the same entry implies (a partition's next
// offset, by the append itself) is not written again.
const (
	effectPut         = 1
	effectDelete      = 2
	effectDeleteRange = 3
	effectSettle      = 4
	effectReset       = 5
)

type rowReader struct {
	b   []byte
	err error
}

func (r *rowReader) fail() { r.b, r.err = nil, errShortRow }

func (r *rowReader) byte() byte {
	if len(r.b) < 1 {
		r.fail()
		return 0
	}
	v := r.b[0]
	r.b = r.b[1:]
	return v
}

func (r *rowReader) uvarint() uint64 {
	v, n := binary.Uvarint(r.b)
	if n <= 0 {
		r.fail()
		return 0
	}
	r.b = r.b[n:]
	return v
}

func (r *rowReader) varint() int64 {
	v, n := binary.Varint(r.b)
	if n <= 0 {
		r.fail()
		return 0
	}
	r.b = r.b[n:]
	return v
}

// bytes returns a slice of the input; callers that keep it copy it.
func (r *rowReader) bytes() []byte {
	n := r.uvarint()
	if n > uint64(len(r.b)) {
		r.fail()
		return nil
	}
	v := r.b[:n:n]
	r.b = r.b[n:]
	return v
}

func (r *rowReader) string() string { return string(r.bytes()) }

func (r *rowReader) id() (id [16]byte) {
	if len(r.b) < 16 {
		r.fail()
		return id
	}
	copy(id[:], r.b)
	r.b = r.b[16:]
	return id
}

func (r *rowReader) be64() uint64 {
	if len(r.b) < 8 {
		r.fail()
		return 0
	}
	v := binary.BigEndian.Uint64(r.b)
	r.b = r.b[8:]
	return v
}

func (r *rowReader) end() error {
	if r.err == nil && len(r.b) != 0 {
		return fmt.Errorf("%d bytes after the row", len(r.b))
	}
	return r.err
}

func putString[T string | []byte](dst []byte, s T) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(s)))
	return append(dst, s...)
}

func rowKey(dst []byte, kind byte, ids ...uint64) []byte {
	dst = append(dst, kind)
	for _, id := range ids {
		dst = binary.BigEndian.AppendUint64(dst, id)
	}
	return dst
}

func queueKey(dst []byte, q *queue) []byte { return rowKey(dst, rowQueue, q.id) }

func partitionKey(dst []byte, p *partition) []byte { return rowKey(dst, rowPartition, p.q.id, p.id) }

func groupKey(dst []byte, g *group) []byte { return rowKey(dst, rowGroup, g.q.id, g.id) }

func cursorKey(dst []byte, c *cursor) []byte {
	return rowKey(dst, rowCursor, c.p.q.id, c.p.id, c.g.id)
}

func letterKey(dst []byte, l *deadLetter) []byte {
	return append(rowKey(dst, rowLetter, l.q.id), l.id[:]...)
}

func kvKey(tenant, ns, key string) string { return tenant + ns + "\x00" + key }

func timerKey(tenant, queue, key string) string {
	return tenant + string(binary.BigEndian.AppendUint16(nil, uint16(len(queue)))) + queue + key
}

func (s *State) encodeMeta(dst []byte) []byte {
	dst = append(dst, stateVersion)
	dst = binary.AppendVarint(dst, s.time)
	c := &s.meta
	for _, v := range []uint64{c.queue, c.partition, c.group, c.value, c.letter, uint64(c.kvVersion)} {
		dst = binary.AppendUvarint(dst, v)
	}
	return dst
}

func (s *State) decodeMeta(b []byte) error {
	r := rowReader{b: b}
	c := &s.meta
	if v := r.byte(); r.err == nil && v != stateVersion {
		return fmt.Errorf("state version %d, this build reads %d: start the build that wrote it, or a newer one", v, stateVersion)
	}
	s.time = max(s.time, r.varint())
	for _, f := range []*uint64{&c.queue, &c.partition, &c.group, &c.value, &c.letter} {
		*f = r.uvarint()
	}
	c.kvVersion = int64(r.uvarint())
	return r.end()
}

func (q *queue) encode(dst []byte) []byte {
	dst = putString(dst, q.tenant)
	dst = putString(dst, q.name)
	dst = binary.AppendVarint(dst, q.created)
	dst = append(dst, flag(q.deleted))
	return q.opts.encode(dst)
}

func (q *queue) decode(b []byte) error {
	r := rowReader{b: b}
	q.tenant, q.name, q.created = r.string(), r.string(), r.varint()
	q.deleted = r.byte() != 0
	if r.err != nil {
		return r.err
	}
	if err := q.opts.decode(&r); err != nil {
		return err
	}
	return r.end()
}

func (p *partition) encode(dst []byte) []byte {
	dst = putString(dst, p.name)
	dst = binary.AppendVarint(dst, p.created)
	dst = binary.AppendVarint(dst, p.lastAppend)
	dst = binary.AppendUvarint(dst, p.next)
	return binary.AppendUvarint(dst, p.start)
}

func (p *partition) decode(b []byte) error {
	r := rowReader{b: b}
	p.name, p.created, p.lastAppend = r.string(), r.varint(), r.varint()
	p.next, p.start = r.uvarint(), r.uvarint()
	return r.end()
}

func (g *group) encode(dst []byte) []byte {
	dst = putString(dst, g.name)
	dst = append(dst, byte(g.mode))
	dst = binary.AppendVarint(dst, g.from)
	dst = binary.AppendVarint(dst, g.created)
	dst = binary.AppendUvarint(dst, g.startPartition)
	if flags := g.flags(); flags != 0 {
		dst = binary.AppendUvarint(dst, flags)
	}
	return dst
}

// Flags of a group's row, at its end. Version 1 of the row has none: a row
// without a flag is as it was, and a build that knows version 1 only finds bytes
// after a row with one, and refuses.
const (
	groupConflates = 1
	groupFlags     = 1
)

func (g *group) flags() (flags uint64) {
	if g.conflates {
		flags |= groupConflates
	}
	return flags
}

func (g *group) decode(b []byte) error {
	r := rowReader{b: b}
	g.name, g.mode = r.string(), SubscriptionMode(r.byte())
	g.from, g.created, g.startPartition = r.varint(), r.varint(), r.uvarint()
	flags := uint64(0)
	if r.err == nil && len(r.b) > 0 {
		if flags = r.uvarint(); r.err == nil && (flags == 0 || flags&^groupFlags != 0) {
			return fmt.Errorf("a group with flags %#x, this build reads %#x: it was written by a newer build, start that one", flags, groupFlags)
		}
	}
	g.conflates = flags&groupConflates != 0
	return r.end()
}

// Flags of a cursor's row. Version 1 of the row knows the first three. A row with
// cursorHasSuspicion is of version 2: it ends in what version 1 does not know,
// so a build that reads version 1 only refuses it, and a row without is the same
// in both.
const (
	cursorHasLease     = 1
	cursorHasReleased  = 2
	cursorHasMetadata  = 4
	cursorHasSuspicion = 8
	cursorFlags        = 15
)

func (c *cursor) encode(dst []byte) []byte {
	var flags byte
	if c.lease != nil {
		flags |= cursorHasLease
	}
	if c.released != nil {
		flags |= cursorHasReleased
	}
	if c.metadata != nil {
		flags |= cursorHasMetadata
	}
	if c.suspect != nil {
		flags |= cursorHasSuspicion
	}
	dst = append(dst, flags)
	dst = binary.AppendVarint(dst, c.committed)
	dst = binary.AppendUvarint(dst, c.firstTry)
	dst = binary.AppendUvarint(dst, uint64(c.attempt))
	dst = binary.AppendUvarint(dst, uint64(c.retries))
	dst = binary.AppendVarint(dst, c.delayUntil)
	if l := c.lease; l != nil {
		dst = append(dst, l.id[:]...)
		dst = binary.AppendUvarint(dst, l.from)
		dst = binary.AppendUvarint(dst, l.end)
		dst = binary.AppendVarint(dst, l.expires)
		dst = putString(dst, l.worker)
	}
	if r := c.released; r != nil {
		dst = append(dst, r.id[:]...)
		dst = append(dst, flag(r.completed)|flag(r.acts != nil)<<1)
		if r.acts != nil {
			for i := range r.acts {
				dst = putString(dst, r.acts[i].AppendRanges(nil))
			}
		}
	}
	if c.metadata != nil {
		dst = putString(dst, *c.metadata)
	}
	if s := c.suspect; s != nil {
		dst = appendUvarints(dst, s.through, s.at, uint64(s.count))
	}
	return dst
}

func (c *cursor) decode(b []byte) error {
	r := rowReader{b: b}
	flags := r.byte()
	if flags&^cursorFlags != 0 {
		return fmt.Errorf("a cursor with flags %#x, this build reads %#x: it was written by a newer build, start that one", flags, cursorFlags)
	}
	c.committed, c.firstTry = r.varint(), r.uvarint()
	c.attempt, c.retries = int32(r.uvarint()), int32(r.uvarint())
	c.delayUntil = r.varint()
	c.lease, c.released = nil, nil
	if flags&cursorHasLease != 0 {
		c.lease = &lease{id: r.id(), from: r.uvarint(), end: r.uvarint(), expires: r.varint(), worker: r.string()}
	}
	if flags&cursorHasReleased != 0 {
		if err := c.decodeReleased(&r); err != nil {
			return err
		}
	}
	c.metadata = nil
	if flags&cursorHasMetadata != 0 {
		text := r.string()
		c.metadata = &text
	}
	c.suspect = nil
	if flags&cursorHasSuspicion != 0 {
		c.suspect = &suspicion{through: r.uvarint(), at: r.uvarint(), count: int32(r.uvarint())}
	}
	return r.end()
}

func (c *cursor) decodeReleased(r *rowReader) error {
	l := &releasedLease{id: r.id()}
	flags := r.byte()
	l.completed = flags&1 != 0
	c.released = l
	if flags&2 == 0 {
		return nil
	}
	l.acts = new([3]index.OffsetSet)
	for i := range l.acts {
		ranges, err := index.DecodeRanges(r.bytes())
		if err != nil {
			return err
		}
		for _, g := range ranges {
			l.acts[i].Add(g.Lo, g.Hi)
		}
	}
	return nil
}

func (l *deadLetter) encode(dst []byte) []byte {
	dst = binary.AppendUvarint(dst, l.partitionID)
	dst = putString(dst, l.partition)
	dst = binary.AppendUvarint(dst, l.offset)
	dst = putString(dst, l.group)
	dst = putString(dst, l.err)
	dst = binary.AppendVarint(dst, l.retries)
	dst = binary.AppendVarint(dst, l.failed)
	dst = binary.AppendUvarint(dst, l.value)
	return putString(dst, l.message)
}

func (l *deadLetter) decode(b []byte) error {
	r := rowReader{b: b}
	l.partitionID, l.partition, l.offset = r.uvarint(), r.string(), r.uvarint()
	l.group, l.err = r.string(), r.string()
	l.retries, l.failed, l.value = r.varint(), r.varint(), r.uvarint()
	l.message = slices.Clone(r.bytes())
	return r.end()
}

func (k *kvRow) encode(dst []byte) []byte {
	dst = binary.AppendUvarint(dst, uint64(k.version))
	dst = binary.AppendVarint(dst, k.expires)
	dst = binary.AppendVarint(dst, k.updated)
	return append(dst, k.value...)
}

func (k *kvRow) decode(b []byte) error {
	r := rowReader{b: b}
	k.version, k.expires, k.updated = int64(r.uvarint()), r.varint(), r.varint()
	k.value = slices.Clone(r.b)
	return r.err
}

func (t *timer) encode(dst []byte) []byte {
	dst = putString(dst, t.partition)
	dst = binary.AppendVarint(dst, t.deliverAt)
	dst = binary.AppendVarint(dst, t.due)
	dst = append(dst, flag(t.txn != nil))
	dst = putString(dst, t.txn)
	dst = append(dst, t.messageID[:]...)
	dst = binary.AppendVarint(dst, t.attempts)
	dst = putString(dst, t.lastError)
	dst = binary.AppendVarint(dst, t.created)
	dst = binary.AppendVarint(dst, t.updated)
	dst = binary.AppendUvarint(dst, t.value)
	dst = binary.AppendUvarint(dst, uint64(t.size))
	return putString(dst, t.message)
}

func (t *timer) decode(key string, b []byte) error {
	r := rowReader{b: b}
	t.partition, t.deliverAt, t.due = r.string(), r.varint(), r.varint()
	hasTxn := r.byte() != 0
	t.txn = slices.Clone(r.bytes())
	if hasTxn && t.txn == nil {
		t.txn = []byte{}
	} else if !hasTxn {
		t.txn = nil
	}
	t.messageID = r.id()
	t.attempts, t.lastError = r.varint(), r.string()
	t.created, t.updated, t.value, t.size = r.varint(), r.varint(), r.uvarint(), int(r.uvarint())
	t.message = slices.Clone(r.bytes())
	if err := r.end(); err != nil {
		return err
	}
	if len(key) < 38 {
		return errShortRow
	}
	n := int(binary.BigEndian.Uint16([]byte(key[36:38])))
	if 38+n > len(key) {
		return errShortRow
	}
	t.key, t.tenant, t.queue, t.name = key, key[:36], key[38:38+n], key[38+n:]
	return nil
}

func flag(b bool) byte {
	if b {
		return 1
	}
	return 0
}

// chunkRows calls put for the rows of the cursor's sets.
func (c *cursor) chunkRows(put func(key, value []byte)) {
	if c.sets == nil {
		return
	}
	for i, set := range []*index.OffsetSet{&c.sets.settled, &c.sets.other} {
		set.Chunks(func(chunk uint64, enc []byte) {
			key := append(rowKey(nil, rowSettled, c.p.q.id, c.p.id, c.g.id), byte(i))
			put(binary.BigEndian.AppendUint64(key, chunk), enc)
		})
	}
}

// settledRange is the key range of the rows of a cursor's sets.
func (c *cursor) settledRange() (lo, hi []byte) {
	lo = rowKey(nil, rowSettled, c.p.q.id, c.p.id, c.g.id)
	return lo, append(rowKey(nil, rowSettled, c.p.q.id, c.p.id, c.g.id), 0xff)
}

func appendUvarints(dst []byte, vs ...uint64) []byte {
	for _, v := range vs {
		dst = binary.AppendUvarint(dst, v)
	}
	return dst
}
