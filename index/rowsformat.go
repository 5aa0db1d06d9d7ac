package index

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"

	"github.com/cespare/xxhash/v2"
)

// The byte functions of .rows files; FORMAT.md describes them.

const (
	rowsMagic       = "queenrow"
	rowsVersion     = 1
	rowsHeaderSize  = 32
	rowsRecordHead  = 12 // u32 length, u64 xxhash64
	rowsSuffix      = ".rows"
	footerMagic     = "\xf1queen-rows-end\xf2" // 16 bytes
	footerFixedSize = 1 + len(footerMagic) + 9*8

	// MaxRow is the largest row, key and value together, in bytes.
	MaxRow = 64 << 20
)

// Row record kinds. The numbers are frozen.
const (
	rowPut         = 1
	rowDelete      = 2
	rowDeleteRange = 3
	rowFooter      = 4
)

// Footer ends a finished checkpoint. From, To and Time are the raft index
// before which all effects are in the rows, the one whose effects the rows may
// hold at most, and the broker time (microseconds) of To.
type Footer struct {
	From, To         uint64
	FromTerm, ToTerm uint64
	Time             int64
	Extra            []byte // the owner's
}

// footerRecord is a Footer with what Rows itself keeps in it.
type footerRecord struct {
	Footer
	pos   int64  // where its record starts
	rows  uint64 // row records in the file before it
	base  int64  // size of the file at its first footer: what a full set takes
	chain uint64 // digest of all record checksums before it
}

func rowsName(seq uint64) string { return fmt.Sprintf("%020d%s", seq, rowsSuffix) }

// parseRowsName reads a name that rowsName gives.
func parseRowsName(name string) (seq uint64, ok bool) {
	digits, ok := strings.CutSuffix(name, rowsSuffix)
	return parseSeq(digits, ok)
}

// parseSeq reads 20 digits; ok is handed through so that callers read well.
func parseSeq(digits string, ok bool) (uint64, bool) {
	if !ok || len(digits) != 20 {
		return 0, false
	}
	var n uint64
	for _, c := range []byte(digits) {
		if c < '0' || c > '9' || n > (1<<64-1-uint64(c-'0'))/10 {
			return 0, false
		}
		n = n*10 + uint64(c-'0')
	}
	return n, n > 0
}

func appendRowsHeader(dst []byte, seq uint64) []byte {
	at := len(dst)
	dst = append(dst, rowsMagic...)
	dst = binary.LittleEndian.AppendUint32(dst, rowsVersion)
	dst = binary.LittleEndian.AppendUint32(dst, 0)
	dst = binary.LittleEndian.AppendUint64(dst, seq)
	return binary.LittleEndian.AppendUint64(dst, xxhash.Sum64(dst[at:]))
}

func checkRowsHeader(b []byte, file string, seq uint64) error {
	if len(b) < rowsHeaderSize {
		return corruptValue(file, 0, "header bytes", rowsHeaderSize, len(b))
	}
	if string(b[:8]) != rowsMagic {
		return corruptValue(file, 0, "magic", fmt.Sprintf("%q", rowsMagic), fmt.Sprintf("%q", b[:8]))
	}
	if sum, want := xxhash.Sum64(b[:24]), binary.LittleEndian.Uint64(b[24:]); sum != want {
		return corruptSum(file, 0, "header", want, sum)
	}
	if v := binary.LittleEndian.Uint32(b[8:]); v > rowsVersion {
		return fmt.Errorf("%s: rows format version %d, this build reads up to %d: %w", file, v, rowsVersion, ErrNewerFormat)
	} else if v != rowsVersion {
		return corruptValue(file, 8, "version", rowsVersion, v)
	}
	if s := binary.LittleEndian.Uint64(b[16:]); s != seq {
		return corruptValue(file, 16, "sequence number", seq, s)
	}
	return nil
}

// sealRecord fills in the head of the record that starts at dst[at:], whose
// body follows rowsRecordHead bytes of room.
func sealRecord(dst []byte, at int) (sum uint64) {
	binary.LittleEndian.PutUint32(dst[at:], uint32(len(dst)-at-rowsRecordHead))
	sum = recordSum(dst[at:])
	binary.LittleEndian.PutUint64(dst[at+4:], sum)
	return sum
}

// recordSum is the checksum of a record: over its length bytes and its body.
func recordSum(rec []byte) uint64 {
	var d xxhash.Digest
	d.Reset()
	d.Write(rec[:4])
	d.Write(rec[rowsRecordHead:])
	return d.Sum64()
}

// nextChain adds a record's checksum to the digest of those before it.
func nextChain(chain, sum uint64) uint64 { return (chain^sum)*0x9E3779B97F4A7C15 + 1 }

func appendRecordHead(dst []byte, kind byte) []byte {
	var head [rowsRecordHead + 1]byte
	head[rowsRecordHead] = kind
	return append(dst, head[:]...)
}

func appendPut(dst, key, value []byte) []byte {
	dst = appendRecordHead(dst, rowPut)
	dst = binary.AppendUvarint(dst, uint64(len(key)))
	dst = append(dst, key...)
	return append(dst, value...)
}

func appendDelete(dst, key []byte) []byte {
	return append(appendRecordHead(dst, rowDelete), key...)
}

func appendDeleteRange(dst, lo, hi []byte) []byte {
	dst = appendRecordHead(dst, rowDeleteRange)
	dst = binary.AppendUvarint(dst, uint64(len(lo)))
	dst = append(dst, lo...)
	return append(dst, hi...)
}

func appendFooter(dst []byte, f *footerRecord) []byte {
	dst = appendRecordHead(dst, rowFooter)
	dst = append(dst, footerMagic...)
	for _, v := range []uint64{uint64(f.pos), f.From, f.To, f.FromTerm, f.ToTerm, uint64(f.Time), f.rows, uint64(f.base), f.chain} {
		dst = binary.LittleEndian.AppendUint64(dst, v)
	}
	return append(dst, f.Extra...)
}

// rowRecord is a parsed record body; its slices alias it.
type rowRecord struct {
	kind       byte
	key, value []byte // put, delete; value is not nil for a put
	lo, hi     []byte // delete range
	footer     footerRecord
}

var errRowBody = errors.New("malformed row")

func parseRow(body []byte) (rowRecord, error) {
	if len(body) == 0 {
		return rowRecord{}, fmt.Errorf("%w: empty", errRowBody)
	}
	r := rowRecord{kind: body[0]}
	rest := body[1:]
	switch r.kind {
	case rowPut, rowDeleteRange:
		n, k := binary.Uvarint(rest)
		if k <= 0 || n > uint64(len(rest)-k) {
			return r, fmt.Errorf("%w: key length", errRowBody)
		}
		first, second := rest[k:k+int(n):k+int(n)], rest[k+int(n):]
		if r.kind == rowPut {
			r.key, r.value = first, second
		} else {
			r.lo, r.hi = first, second
		}
	case rowDelete:
		r.key = rest
	case rowFooter:
		if len(body) < footerFixedSize || string(rest[:len(footerMagic)]) != footerMagic {
			return r, fmt.Errorf("%w: footer", errRowBody)
		}
		var v [9]uint64
		for i := range v {
			v[i] = binary.LittleEndian.Uint64(rest[len(footerMagic)+8*i:])
		}
		r.footer = footerRecord{
			Footer: Footer{From: v[1], To: v[2], FromTerm: v[3], ToTerm: v[4], Time: int64(v[5]), Extra: body[footerFixedSize:]},
			pos:    int64(v[0]), rows: v[6], base: int64(v[7]), chain: v[8],
		}
	default:
		return r, fmt.Errorf("%w: kind %d", errRowBody, r.kind)
	}
	return r, nil
}
