package segment

import (
	"errors"
	"fmt"
)

// Errors that callers branch on. An I/O error is none of these: it is the
// file system's own, and never a reason to cut anything.
var (
	// ErrCorrupt: bytes that had been durable are not what was written. Nothing
	// here repairs it; recovery refuses, tools/segdump shows what is left.
	ErrCorrupt = errors.New("corrupt")
	// ErrTorn: after the last valid record of the newest file there are bytes
	// that are no record. Whoever knows what was promised decides between
	// Truncate and refusing.
	ErrTorn = errors.New("torn")
	// ErrNewerFormat: the file was written by a newer version of this program.
	// Start that version, or take the directory back to a backup.
	ErrNewerFormat = errors.New("written in a newer format")
	// ErrRecordSize: a body is empty or larger than MaxRecord. Nothing was appended.
	ErrRecordSize = errors.New("record size out of range")
	// ErrClosed: the log was closed or removed.
	ErrClosed = errors.New("log is closed")
)

// CorruptError says what was checked where, what the check expected and what
// it found. It wraps ErrCorrupt.
type CorruptError struct {
	File     string
	Pos      int64 // byte position of the header or record that failed
	What     string
	Expected string
	Found    string
}

func (e *CorruptError) Error() string {
	return fmt.Sprintf("segment %s pos %d: %s: expected %s, found %s: %v", e.File, e.Pos, e.What, e.Expected, e.Found, ErrCorrupt)
}

func (e *CorruptError) Unwrap() error { return ErrCorrupt }

// TornError says where the valid part of the newest file of a log ends and
// what stands there instead of a record. It wraps ErrTorn.
//
// RecordsAfter tells two cases apart. 0: nothing valid follows, which is what
// an unfinished write leaves. More: records follow the bad bytes. That is
// damage if what stands at Pos had been durable, and also what a power cut
// leaves of several writes that no sync had covered yet; the records after
// (Scan from NextPos) say what had been promised.
type TornError struct {
	File     string
	Seq      uint64
	Pos      int64 // end of the valid part: where Truncate would cut; 0: not even the file header is valid
	Size     int64 // bytes of the file
	What     string
	Expected string
	Found    string
	// RecordsAfter is how many records follow one another from NextPos on.
	RecordsAfter int
	NextPos      int64 // 0: none
	// Unsearched is how many bytes at the end were not searched for records,
	// because the search had done its share of work; normally 0.
	Unsearched int64
}

func (e *TornError) Error() string {
	after := "no valid record after it"
	switch {
	case e.RecordsAfter > 0:
		after = fmt.Sprintf("%d valid records after it, from pos %d", e.RecordsAfter, e.NextPos)
	case e.Unsearched > 0:
		after = fmt.Sprintf("no valid record found after it, %d bytes not searched", e.Unsearched)
	}
	return fmt.Sprintf("segment %s pos %d of %d: %s: expected %s, found %s; %s: %v",
		e.File, e.Pos, e.Size, e.What, e.Expected, e.Found, after, ErrTorn)
}

func (e *TornError) Unwrap() error { return ErrTorn }
