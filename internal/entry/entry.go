// Package entry is the layout of what the log replicates and stores: the
// entry (one planning cycle), the appends, values and messages inside it, and
// the record bodies that a node splits it into.
//
// fsm builds entries, raftlog splits and joins them, recovery and the tools
// read them; none of these knows another, so what they share stands here. The
// package knows neither files nor what an effect means.
//
// # Format of an entry (version 1, little endian)
//
// This is what raft replicates and what the entry's hash covers. It names
// queues, never logs: a node splits it without any state, into its own logs.
//
//	pos  size  field
//	0    1     version, 1
//	1    1     zero
//	2    8     time: broker time of the plan, microseconds since the epoch
//	10   4     nAppends
//	14   4     nValues
//	18   4     nTouches
//	22   8*n   touches: ids of the queues whose logs the entry touches beside those of its appends
//	..         appends: each a u32 length and an append block
//	..         values:  each a u32 length, u64 value id, u64 queue id (0: rides with the entry), bytes
//	..         effects: the rest
//
// # Format of an append block
//
//	uvarint queue id, uvarint partition id, uvarint first offset, 8 bytes time
//	(microseconds), uvarint count, then count messages.
//
// # Format of a message
//
//	1   flags: 1 the transactionId is the id's text and is not stored, 2 payload
//	    is a zstd frame, 4 has producerSub, 8 has traceId
//	16  id
//	    [uvarint length, transactionId] [16 traceId] [uvarint length, producerSub]
//	    uvarint length, payload
//
// A payload is compressed once, by the node that received it, and opaque from
// then on.
package entry

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/cespare/xxhash/v2"
)

// Version is the entry format that this build writes and reads.
const Version = 1

// ErrMalformed reports bytes that are not what this package writes. It wraps
// nothing: the caller knows file and position and adds them.
var ErrMalformed = errors.New("malformed entry")

const fixedHeader = 22

// Builder collects one planning cycle. The zero value is ready to use.
// It is not safe for concurrent use.
type Builder struct {
	touches []uint64
	appends []byte
	values  []byte
	nApp    uint32
	nVal    uint32
	// Effects is the encoded effects; the owner appends to it.
	Effects []byte
}

// Reset empties b and keeps its buffers.
func (b *Builder) Reset() {
	b.touches, b.appends, b.values, b.Effects = b.touches[:0], b.appends[:0], b.values[:0], b.Effects[:0]
	b.nApp, b.nVal = 0, 0
}

// Empty reports whether nothing was added since Reset.
func (b *Builder) Empty() bool {
	return len(b.Effects) == 0 && b.nApp == 0 && b.nVal == 0
}

// Size is a close upper bound of the encoded length.
func (b *Builder) Size() int {
	return fixedHeader + 8*len(b.touches) + len(b.appends) + len(b.values) + len(b.Effects)
}

// Touch notes that the log of a queue gets a copy of this entry.
func (b *Builder) Touch(queue uint64) {
	for _, q := range b.touches {
		if q == queue {
			return
		}
	}
	b.touches = append(b.touches, queue)
}

// Append adds an append block. messages holds encoded messages back to back.
func (b *Builder) Append(queue, partition, first uint64, timeMicros int64, count int, messages ...[]byte) {
	at := len(b.appends)
	buf := append(b.appends, 0, 0, 0, 0)
	buf = binary.AppendUvarint(buf, queue)
	buf = binary.AppendUvarint(buf, partition)
	buf = binary.AppendUvarint(buf, first)
	buf = binary.LittleEndian.AppendUint64(buf, uint64(timeMicros))
	buf = binary.AppendUvarint(buf, uint64(count))
	for _, m := range messages {
		buf = append(buf, m...)
	}
	binary.LittleEndian.PutUint32(buf[at:], uint32(len(buf)-at-4))
	b.appends = buf
	b.nApp++
}

// Value adds a payload-sized value under an id that a row of this entry names.
// queue is the queue whose log keeps it; 0 keeps it beside the entry record.
func (b *Builder) Value(id, queue uint64, data []byte) {
	b.values = binary.LittleEndian.AppendUint32(b.values, uint32(16+len(data)))
	b.values = binary.LittleEndian.AppendUint64(b.values, id)
	b.values = binary.LittleEndian.AppendUint64(b.values, queue)
	b.values = append(b.values, data...)
	b.nVal++
}

// Encode returns the entry in a buffer of its own.
func (b *Builder) Encode(timeMicros int64) []byte {
	out := make([]byte, 0, b.Size())
	out = append(out, Version, 0)
	out = binary.LittleEndian.AppendUint64(out, uint64(timeMicros))
	out = binary.LittleEndian.AppendUint32(out, b.nApp)
	out = binary.LittleEndian.AppendUint32(out, b.nVal)
	out = binary.LittleEndian.AppendUint32(out, uint32(len(b.touches)))
	for _, q := range b.touches {
		out = binary.LittleEndian.AppendUint64(out, q)
	}
	out = append(out, b.appends...)
	out = append(out, b.values...)
	return append(out, b.Effects...)
}

// Value is a payload-sized value of an entry.
type Value struct {
	ID    uint64
	Queue uint64
	Data  []byte
}

// Entry is a parsed entry. Its slices alias the bytes given to Parse.
type Entry struct {
	Time    int64
	Touches []uint64
	Appends []Append
	Values  []Value
	Effects []byte
}

// Hash is the hash of the whole replicated entry: xxhash64 over data.
func Hash(data []byte) uint64 { return xxhash.Sum64(data) }

// Parse reads an entry. It returns ErrMalformed, wrapped, for anything that
// Encode could not have written, and never allocates more than the input
// justifies.
func Parse(data []byte) (Entry, error) {
	var e Entry
	if len(data) < fixedHeader {
		return e, fmt.Errorf("%w: %d bytes, want at least %d", ErrMalformed, len(data), fixedHeader)
	}
	if data[0] != Version || data[1] != 0 {
		return e, fmt.Errorf("%w: version %d.%d, this build reads %d", ErrMalformed, data[0], data[1], Version)
	}
	e.Time = int64(binary.LittleEndian.Uint64(data[2:]))
	nApp, nVal := binary.LittleEndian.Uint32(data[10:]), binary.LittleEndian.Uint32(data[14:])
	nTouch := binary.LittleEndian.Uint32(data[18:])
	rest := data[fixedHeader:]
	if uint64(nTouch)*8 > uint64(len(rest)) {
		return e, fmt.Errorf("%w: %d touched queues in %d bytes", ErrMalformed, nTouch, len(rest))
	}
	for range nTouch {
		e.Touches = append(e.Touches, binary.LittleEndian.Uint64(rest))
		rest = rest[8:]
	}
	for i := range nApp {
		block, r, ok := cutBlock(rest)
		if !ok {
			return e, fmt.Errorf("%w: append %d of %d is cut off", ErrMalformed, i, nApp)
		}
		rest = r
		a, err := ParseAppend(block)
		if err != nil {
			return e, err
		}
		e.Appends = append(e.Appends, a)
	}
	for i := range nVal {
		block, r, ok := cutBlock(rest)
		if !ok || len(block) < 16 {
			return e, fmt.Errorf("%w: value %d of %d is cut off", ErrMalformed, i, nVal)
		}
		rest = r
		e.Values = append(e.Values, Value{
			ID: binary.LittleEndian.Uint64(block), Queue: binary.LittleEndian.Uint64(block[8:]), Data: block[16:],
		})
	}
	e.Effects = rest
	return e, nil
}

func cutBlock(b []byte) (block, rest []byte, ok bool) {
	if len(b) < 4 {
		return nil, nil, false
	}
	n := uint64(binary.LittleEndian.Uint32(b))
	if n > uint64(len(b)-4) {
		return nil, nil, false
	}
	return b[4 : 4+n : 4+n], b[4+n:], true
}

// Append is a parsed append block: count messages of one partition, at
// consecutive offsets from First.
type Append struct {
	Queue     uint64
	Partition uint64
	First     uint64
	Count     uint32
	Time      int64 // microseconds
	Messages  []byte
	Raw       []byte // the whole block
	IDsOnly   bool   // read from an ids record: the messages' payloads are gone
}

// ParseAppend reads the head of an append block; messages are read with
// NextMessage.
func ParseAppend(block []byte) (Append, error) {
	a := Append{Raw: block}
	rest := block
	var n int
	for _, f := range []*uint64{&a.Queue, &a.Partition, &a.First} {
		if *f, n = binary.Uvarint(rest); n <= 0 {
			return a, fmt.Errorf("%w: append head is cut off", ErrMalformed)
		}
		rest = rest[n:]
	}
	if len(rest) < 9 {
		return a, fmt.Errorf("%w: append head is cut off", ErrMalformed)
	}
	a.Time = int64(binary.LittleEndian.Uint64(rest))
	rest = rest[8:]
	count, n := binary.Uvarint(rest)
	if n <= 0 || count == 0 || count*18 > uint64(len(rest)-n) {
		return a, fmt.Errorf("%w: append of %d messages in %d bytes", ErrMalformed, count, len(rest))
	}
	a.Count, a.Messages = uint32(count), rest[n:]
	return a, nil
}

// Message flags.
const (
	flagMinted   = 1
	flagZstd     = 2
	flagProducer = 4
	flagTrace    = 8
)

// Message is one message as it is stored.
type Message struct {
	ID          [16]byte
	Minted      bool   // the transactionId is the text of ID
	Txn         []byte // empty when Minted
	TraceID     [16]byte
	HasTrace    bool
	ProducerSub []byte
	Zstd        bool
	Payload     []byte
}

// AppendMessage appends the encoding of m to dst.
func AppendMessage(dst []byte, m *Message) []byte {
	var flags byte
	if m.Minted {
		flags |= flagMinted
	}
	if m.Zstd {
		flags |= flagZstd
	}
	if len(m.ProducerSub) > 0 {
		flags |= flagProducer
	}
	if m.HasTrace {
		flags |= flagTrace
	}
	dst = append(dst, flags)
	dst = append(dst, m.ID[:]...)
	if !m.Minted {
		dst = binary.AppendUvarint(dst, uint64(len(m.Txn)))
		dst = append(dst, m.Txn...)
	}
	if m.HasTrace {
		dst = append(dst, m.TraceID[:]...)
	}
	if len(m.ProducerSub) > 0 {
		dst = binary.AppendUvarint(dst, uint64(len(m.ProducerSub)))
		dst = append(dst, m.ProducerSub...)
	}
	dst = binary.AppendUvarint(dst, uint64(len(m.Payload)))
	return append(dst, m.Payload...)
}

// NextMessage reads the first message of b and returns what follows it. The
// message's slices alias b.
func NextMessage(b []byte) (m Message, rest []byte, err error) {
	if len(b) < 18 {
		return m, nil, fmt.Errorf("%w: message of %d bytes", ErrMalformed, len(b))
	}
	flags := b[0]
	if flags&^(flagMinted|flagZstd|flagProducer|flagTrace) != 0 {
		return m, nil, fmt.Errorf("%w: message flags %#x", ErrMalformed, flags)
	}
	copy(m.ID[:], b[1:17])
	m.Minted, m.Zstd, m.HasTrace = flags&flagMinted != 0, flags&flagZstd != 0, flags&flagTrace != 0
	rest = b[17:]
	ok := true
	if !m.Minted {
		if m.Txn, rest, ok = cutBytes(rest); !ok {
			return m, nil, fmt.Errorf("%w: transactionId is cut off", ErrMalformed)
		}
	}
	if m.HasTrace {
		if len(rest) < 16 {
			return m, nil, fmt.Errorf("%w: traceId is cut off", ErrMalformed)
		}
		copy(m.TraceID[:], rest)
		rest = rest[16:]
	}
	if flags&flagProducer != 0 {
		if m.ProducerSub, rest, ok = cutBytes(rest); !ok {
			return m, nil, fmt.Errorf("%w: producerSub is cut off", ErrMalformed)
		}
	}
	if m.Payload, rest, ok = cutBytes(rest); !ok {
		return m, nil, fmt.Errorf("%w: payload is cut off", ErrMalformed)
	}
	return m, rest, nil
}

func cutBytes(b []byte) (v, rest []byte, ok bool) {
	n, k := binary.Uvarint(b)
	if k <= 0 || n > uint64(len(b)-k) {
		return nil, nil, false
	}
	end := k + int(n)
	return b[k:end:end], b[end:], true
}

// AppendTxn appends the transactionId of m to dst: the stored one, or the text
// of the id.
func (m *Message) AppendTxn(dst []byte) []byte {
	if !m.Minted {
		return append(dst, m.Txn...)
	}
	return AppendUUID(dst, m.ID)
}

const hexDigits = "0123456789abcdef"

// AppendUUID appends the canonical text of id (36 bytes) to dst.
func AppendUUID(dst []byte, id [16]byte) []byte {
	for i, c := range id {
		if i == 4 || i == 6 || i == 8 || i == 10 {
			dst = append(dst, '-')
		}
		dst = append(dst, hexDigits[c>>4], hexDigits[c&15])
	}
	return dst
}

// TxnHash is the dedup hash of a transactionId within a partition: xxhash64 of
// the id, mixed with the partition. It never decides by itself.
func TxnHash(partition uint64, txn []byte) uint64 {
	return MixHash(partition, xxhash.Sum64(txn))
}

// MixHash mixes a transactionId's xxhash64 with its partition.
func MixHash(partition, h uint64) uint64 {
	h ^= partition * 0x9E3779B97F4A7C15
	h ^= h >> 32
	h *= 0xD6E8FEB86659FD93
	return h ^ h>>32
}
