package segment

import (
	"encoding/binary"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/cespare/xxhash/v2"
)

// Sizes and limits of the format. Frozen.
const (
	// Version is the format of the files that are appended to.
	Version = 1
	// VersionRewritten is the format of files that replace others, and the newest that this build reads.
	VersionRewritten = 2
	// HeaderSize is where the first record of a file starts, in bytes.
	HeaderSize = 64
	// RecordHeaderSize is what a record has before its body, in bytes.
	RecordHeaderSize = 12
	// MaxRecord is the largest body in bytes. A longer length is damage; it is
	// checked before anything is allocated for it.
	MaxRecord = 256 << 20
)

const (
	magic        = "QUEENSEG"
	headerSumPos = HeaderSize - 8
	fileSuffix   = ".seg"
	seqDigits    = 20
)

// header is the decoded file header.
type header struct {
	version    uint32
	id         uint64 // log
	seq        uint64
	generation uint64
	covers     uint64 // from VersionRewritten on: the last file whose records are in this one
}

// encode returns the header's bytes and the salt that ties the records of the
// file to them: the header's own checksum.
func (h header) encode() (b [HeaderSize]byte, salt uint64) {
	copy(b[:], magic)
	binary.LittleEndian.PutUint32(b[8:], h.version)
	binary.LittleEndian.PutUint64(b[16:], h.id)
	binary.LittleEndian.PutUint64(b[24:], h.seq)
	binary.LittleEndian.PutUint64(b[32:], h.generation)
	if h.version >= VersionRewritten {
		binary.LittleEndian.PutUint64(b[40:], h.covers)
	}
	salt = headerSum(b[:])
	binary.LittleEndian.PutUint64(b[headerSumPos:], salt)
	return b, salt
}

// decodeHeader checks b, the first bytes of file name, against the log and the
// number that the file is supposed to have.
func decodeHeader(b []byte, name string, id, seq uint64) (h header, salt uint64, err error) {
	bad := func(what, expected, found string) (header, uint64, error) {
		return header{}, 0, &CorruptError{File: name, What: "file header: " + what, Expected: expected, Found: found}
	}
	if len(b) < HeaderSize {
		return bad("size", strconv.Itoa(HeaderSize)+" bytes", strconv.Itoa(len(b)))
	}
	if string(b[:8]) != magic {
		return bad("magic", strconv.Quote(magic), strconv.Quote(string(b[:8])))
	}
	salt = headerSum(b)
	if found := binary.LittleEndian.Uint64(b[headerSumPos:]); found != salt {
		return bad("xxhash64", hex(salt), hex(found))
	}
	h = header{
		version: binary.LittleEndian.Uint32(b[8:]), id: binary.LittleEndian.Uint64(b[16:]),
		seq: binary.LittleEndian.Uint64(b[24:]), generation: binary.LittleEndian.Uint64(b[32:]),
	}
	if h.version >= VersionRewritten {
		h.covers = binary.LittleEndian.Uint64(b[40:])
	}
	switch {
	case h.version > VersionRewritten:
		return header{}, 0, fmt.Errorf("segment %s: format version %d, this build reads up to %d: %w", name, h.version, VersionRewritten, ErrNewerFormat)
	case h.version == 0:
		return bad("version", "1", "0")
	case h.id != id:
		return bad("log id", strconv.FormatUint(id, 10), strconv.FormatUint(h.id, 10))
	case h.seq != seq:
		return bad("sequence number", strconv.FormatUint(seq, 10), strconv.FormatUint(h.seq, 10))
	}
	if h.version >= VersionRewritten && (h.covers < seq || h.generation < 2) {
		return bad("generation and last file covered", fmt.Sprintf("at least 2 and %d", seq), fmt.Sprintf("%d and %d", h.generation, h.covers))
	}
	if canonical, _ := h.encode(); string(canonical[:]) != string(b[:HeaderSize]) {
		return bad("reserved bytes", "zero", fmt.Sprintf("%x", b[40:headerSumPos]))
	}
	return h, salt, nil
}

func headerSum(b []byte) uint64 { return xxhash.Sum64(b[:headerSumPos]) }

func hex(v uint64) string { return fmt.Sprintf("%016x", v) }

// seal fills in length and checksum of the record whose header starts rec and
// whose body is the rest. While the checksum is computed its field holds
// salt + pos, so the sum covers the length, the record's place and its file
// without a copy.
func seal(rec []byte, salt uint64, pos int64) {
	binary.LittleEndian.PutUint32(rec, uint32(len(rec)-RecordHeaderSize))
	binary.LittleEndian.PutUint64(rec[4:], sum(rec, salt, pos))
}

// sum is the checksum of rec; it overwrites the checksum field.
func sum(rec []byte, salt uint64, pos int64) uint64 {
	binary.LittleEndian.PutUint64(rec[4:], salt+uint64(pos))
	return xxhash.Sum64(rec)
}

func bodyLength(rec []byte) uint32 { return binary.LittleEndian.Uint32(rec) }

// verify checks a whole record that was read from pos. Its checksum field is
// the same afterwards.
func verify(rec []byte, salt uint64, pos int64) (expected, found uint64, ok bool) {
	found = binary.LittleEndian.Uint64(rec[4:])
	expected = sum(rec, salt, pos)
	binary.LittleEndian.PutUint64(rec[4:], found)
	return expected, found, expected == found
}

// FileName is the base name of a segment file.
func FileName(seq uint64) string { return fmt.Sprintf("%0*d%s", seqDigits, seq, fileSuffix) }

// ParseFileName is the inverse of FileName. ok is false for every name that
// FileName does not give, and for 0.
func ParseFileName(name string) (seq uint64, ok bool) {
	digits, found := strings.CutSuffix(name, fileSuffix)
	if !found || len(digits) != seqDigits {
		return 0, false
	}
	seq, err := strconv.ParseUint(digits, 10, 64)
	return seq, err == nil && seq > 0 && FileName(seq) == name
}

func (l *Log) path(seq uint64) string { return filepath.Join(l.o.Dir, FileName(seq)) }
