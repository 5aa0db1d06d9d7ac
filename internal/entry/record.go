package entry

import (
	"encoding/binary"
	"fmt"
)

// Kind says what a record of a queue log holds. The numbers are frozen.
type Kind uint8

// Record kinds.
const (
	KindAppend Kind = 1 // messages of one partition
	KindEntry  Kind = 2 // an entry without its appends and values; the copy in the lowest log
	KindStub   Kind = 3 // a further copy: the head only
	KindValue  Kind = 4 // a payload-sized value that a row names
	KindPad    Kind = 5 // a durable index, when nothing follows an entry
	KindIDs    Kind = 6 // an append that reclaim has freed of its payloads; only in rewritten files
)

// RecordVersion is the version of record bodies that this build writes and reads.
const RecordVersion = 1

// # Format of record bodies (version 1, little endian)
//
// Every body starts with
//
//	0  1  kind
//	1  1  version, 1
//	2  8  index of the entry that the record belongs to (pad: the durable index)
//
// append: then 4 bytes ordinal within the entry, then the append block.
// ids:    as append; its messages have no payload, traceId or producerSub. (Added with rewritten files; a build
//         that does not know the kind refuses it.)
// value:  then 4 bytes ordinal, 8 value id, 8 queue id, bytes.
// pad:    then 8 bytes commit index.
// entry, stub: then the head
//
//	8  term
//	1  raft entry type (0 normal, 1 conf change, 2 conf change v2)
//	8  hash of the whole replicated entry
//	8  commit index known here when written   } this node's own;
//	8  durable index known here when written  } outside of the hash
//	2  copies, then 8 bytes for each log id, rising
//
// and, in an entry record, the body: for a normal entry its first 22 bytes and
// touches as replicated, then 4 bytes length and the effects; for raft's own
// entries and empty ones the bytes as they are (marked by body kind).
//
//	1  body kind: 0 raw bytes, 1 split entry

// Record is a parsed record body. Slices alias the input.
type Record struct {
	Kind    Kind
	Index   uint64
	Ordinal uint32 // append, ids, value
	Append  Append // append, ids
	Value   Value  // value
	Head    Head   // entry, stub
	Commit  uint64 // pad
	body    []byte // entry
	split   bool   // entry
}

// Head is what all copies of an entry agree on, and what this node knew when
// it wrote them.
type Head struct {
	Term    uint64
	Type    uint8
	Hash    uint64
	Commit  uint64
	Durable uint64
	Logs    []uint64 // rising; their number is the copy count
}

func appendPrefix(dst []byte, k Kind, index uint64) []byte {
	dst = append(dst, byte(k), RecordVersion)
	return binary.LittleEndian.AppendUint64(dst, index)
}

// AppendAppendRecord appends the body of an append record to dst.
func AppendAppendRecord(dst []byte, index uint64, ordinal int, block []byte) []byte {
	dst = appendPrefix(dst, KindAppend, index)
	dst = binary.LittleEndian.AppendUint32(dst, uint32(ordinal))
	return append(dst, block...)
}

// AppendIDsRecord appends to dst the body of an ids record: r, a record of kind append, without its payloads.
func AppendIDsRecord(dst []byte, r *Record) ([]byte, error) {
	a := &r.Append
	dst = appendPrefix(dst, KindIDs, r.Index)
	dst = binary.LittleEndian.AppendUint32(dst, r.Ordinal)
	dst = append(dst, a.Raw[:len(a.Raw)-len(a.Messages)]...)
	rest := a.Messages
	for range a.Count {
		m, next, err := NextMessage(rest)
		if err != nil {
			return dst, err
		}
		rest = next
		dst = AppendMessage(dst, &Message{ID: m.ID, Minted: m.Minted, Txn: m.Txn})
	}
	return dst, nil
}

// AppendRecordBlockAt is where the append block starts in the body of an
// append record.
const AppendRecordBlockAt = 14

// AppendValueRecord appends the body of a value record to dst.
func AppendValueRecord(dst []byte, index uint64, ordinal int, v Value) []byte {
	dst = appendPrefix(dst, KindValue, index)
	dst = binary.LittleEndian.AppendUint32(dst, uint32(ordinal))
	dst = binary.LittleEndian.AppendUint64(dst, v.ID)
	dst = binary.LittleEndian.AppendUint64(dst, v.Queue)
	return append(dst, v.Data...)
}

// AppendPadRecord appends the body of a pad to dst.
func AppendPadRecord(dst []byte, durable, commit uint64) []byte {
	dst = appendPrefix(dst, KindPad, durable)
	return binary.LittleEndian.AppendUint64(dst, commit)
}

func appendHead(dst []byte, h *Head) []byte {
	dst = binary.LittleEndian.AppendUint64(dst, h.Term)
	dst = append(dst, h.Type)
	dst = binary.LittleEndian.AppendUint64(dst, h.Hash)
	dst = binary.LittleEndian.AppendUint64(dst, h.Commit)
	dst = binary.LittleEndian.AppendUint64(dst, h.Durable)
	dst = binary.LittleEndian.AppendUint16(dst, uint16(len(h.Logs)))
	for _, l := range h.Logs {
		dst = binary.LittleEndian.AppendUint64(dst, l)
	}
	return dst
}

// AppendStubRecord appends the body of a stub to dst.
func AppendStubRecord(dst []byte, index uint64, h *Head) []byte {
	return appendHead(appendPrefix(dst, KindStub, index), h)
}

// AppendRawEntryRecord appends an entry record whose replicated bytes are kept
// as they are: raft's own entries, and empty ones.
func AppendRawEntryRecord(dst []byte, index uint64, h *Head, data []byte) []byte {
	dst = appendHead(appendPrefix(dst, KindEntry, index), h)
	dst = append(dst, 0)
	return append(dst, data...)
}

// AppendEntryRecord appends an entry record without e's appends and values.
// data is what e was parsed from.
func AppendEntryRecord(dst []byte, index uint64, h *Head, data []byte, e *Entry) []byte {
	dst = appendHead(appendPrefix(dst, KindEntry, index), h)
	dst = append(dst, 1)
	dst = append(dst, data[:fixedHeader+8*len(e.Touches)]...)
	return append(dst, e.Effects...)
}

// ParseRecord reads a record body. An unknown version or kind is an error of
// its own text; it wraps ErrMalformed.
func ParseRecord(b []byte) (Record, error) {
	var r Record
	if len(b) < 10 {
		return r, fmt.Errorf("%w: record body of %d bytes", ErrMalformed, len(b))
	}
	if b[1] != RecordVersion {
		return r, fmt.Errorf("%w: record version %d, this build reads %d", ErrMalformed, b[1], RecordVersion)
	}
	r.Kind, r.Index = Kind(b[0]), binary.LittleEndian.Uint64(b[2:])
	rest := b[10:]
	switch r.Kind {
	case KindAppend, KindIDs:
		if len(rest) < 4 {
			return r, fmt.Errorf("%w: append record is cut off", ErrMalformed)
		}
		r.Ordinal = binary.LittleEndian.Uint32(rest)
		var err error
		r.Append, err = ParseAppend(rest[4:])
		r.Append.IDsOnly = r.Kind == KindIDs
		return r, err
	case KindValue:
		if len(rest) < 20 {
			return r, fmt.Errorf("%w: value record is cut off", ErrMalformed)
		}
		r.Ordinal = binary.LittleEndian.Uint32(rest)
		r.Value = Value{ID: binary.LittleEndian.Uint64(rest[4:]), Queue: binary.LittleEndian.Uint64(rest[12:]), Data: rest[20:]}
		return r, nil
	case KindPad:
		if len(rest) != 8 {
			return r, fmt.Errorf("%w: pad of %d bytes", ErrMalformed, len(b))
		}
		r.Commit = binary.LittleEndian.Uint64(rest)
		return r, nil
	case KindEntry, KindStub:
		return parseCopy(r, rest)
	default:
		return r, fmt.Errorf("%w: record kind %d", ErrMalformed, b[0])
	}
}

func parseCopy(r Record, b []byte) (Record, error) {
	if len(b) < 35 {
		return r, fmt.Errorf("%w: entry head is cut off", ErrMalformed)
	}
	h := Head{
		Term: binary.LittleEndian.Uint64(b), Type: b[8], Hash: binary.LittleEndian.Uint64(b[9:]),
		Commit: binary.LittleEndian.Uint64(b[17:]), Durable: binary.LittleEndian.Uint64(b[25:]),
	}
	n := int(binary.LittleEndian.Uint16(b[33:]))
	b = b[35:]
	if n == 0 || n*8 > len(b) {
		return r, fmt.Errorf("%w: %d copies in %d bytes", ErrMalformed, n, len(b))
	}
	for i := range n {
		h.Logs = append(h.Logs, binary.LittleEndian.Uint64(b[8*i:]))
		if i > 0 && h.Logs[i] <= h.Logs[i-1] {
			return r, fmt.Errorf("%w: copy list %v does not rise", ErrMalformed, h.Logs)
		}
	}
	b = b[8*n:]
	r.Head = h
	if r.Kind == KindStub {
		if len(b) != 0 {
			return r, fmt.Errorf("%w: %d bytes after a stub", ErrMalformed, len(b))
		}
		return r, nil
	}
	if len(b) < 1 || b[0] > 1 {
		return r, fmt.Errorf("%w: entry body kind", ErrMalformed)
	}
	r.split, r.body = b[0] == 1, b[1:]
	if r.split && len(r.body) < fixedHeader {
		return r, fmt.Errorf("%w: split entry of %d bytes", ErrMalformed, len(r.body))
	}
	return r, nil
}

// Parts says how many append and value records belong to an entry record.
func (r *Record) Parts() (appends, values int) {
	if !r.split {
		return 0, 0
	}
	return int(binary.LittleEndian.Uint32(r.body[10:])), int(binary.LittleEndian.Uint32(r.body[14:]))
}

// Split gives what an entry record holds of a normal entry by itself: its
// broker time, and its effects, which alias the record. ok is false for other
// records, for entries of raft's own, and when the record is malformed.
func (r *Record) Split() (timeMicros int64, effects []byte, ok bool) {
	if !r.split {
		return 0, nil, false
	}
	nt := uint64(binary.LittleEndian.Uint32(r.body[18:]))
	if nt > uint64(len(r.body)-fixedHeader)/8 {
		return 0, nil, false
	}
	return int64(binary.LittleEndian.Uint64(r.body[2:])), r.body[fixedHeader+8*nt:], true
}

// Join puts the replicated bytes of an entry together again. blocks are its
// append blocks and values its values, each in ordinal order; the result is
// checked against the head's hash.
func (r *Record) Join(blocks [][]byte, values []Value) ([]byte, error) {
	if r.Kind != KindEntry {
		return nil, fmt.Errorf("%w: join of record kind %d", ErrMalformed, r.Kind)
	}
	data := r.body
	if r.split {
		na, nv := r.Parts()
		if na != len(blocks) || nv != len(values) {
			return nil, fmt.Errorf("%w: entry %d has %d appends and %d values, found %d and %d",
				ErrMalformed, r.Index, na, nv, len(blocks), len(values))
		}
		nt := int(binary.LittleEndian.Uint32(r.body[18:]))
		head := fixedHeader + 8*nt
		if nt > len(r.body)/8 || head > len(r.body) {
			return nil, fmt.Errorf("%w: %d touched queues in %d bytes", ErrMalformed, nt, len(r.body))
		}
		n := len(r.body)
		for _, b := range blocks {
			n += 4 + len(b)
		}
		for _, v := range values {
			n += 20 + len(v.Data)
		}
		data = append(make([]byte, 0, n), r.body[:head]...)
		for _, b := range blocks {
			data = binary.LittleEndian.AppendUint32(data, uint32(len(b)))
			data = append(data, b...)
		}
		for _, v := range values {
			data = binary.LittleEndian.AppendUint32(data, uint32(16+len(v.Data)))
			data = binary.LittleEndian.AppendUint64(data, v.ID)
			data = binary.LittleEndian.AppendUint64(data, v.Queue)
			data = append(data, v.Data...)
		}
		data = append(data, r.body[head:]...)
	}
	if h := Hash(data); h != r.Head.Hash {
		return nil, fmt.Errorf("%w: entry %d: hash expected %016x, found %016x", ErrMalformed, r.Index, r.Head.Hash, h)
	}
	return data, nil
}
