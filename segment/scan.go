package segment

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strconv"

	"queen/internal/vfs"
)

// scanChunk is how much a scan reads at a time, in bytes.
const scanChunk = 1 << 20

// Scan calls fn for each record of a file from pos from on (a record's
// position, or 0 for the first one) and returns where the valid records end.
// body is valid during the call only; an error of fn ends the scan and is
// returned as it is, with the position of its record; fn may be nil.
//
// A clean end is the end of the file, or zeros up to it: then end is below the
// file's size, and Truncate(seq, end) takes the zeros away. Anything else is
// an error, with end the position of the last valid record's end:
// *TornError in the newest file of the log, *CorruptError in any other (a file
// is whole and durable before its successor exists) and for a header that
// names another log or number, an error that wraps ErrNewerFormat, or the file
// system's own.
//
// Of the active file it sees what was flushed when it began. Beside a Truncate
// of the same file it may report what is being cut.
//
// No descriptor is held while fn runs, so any number of scans may be under way.
func (l *Log) Scan(seq uint64, from int64, fn func(pos int64, body []byte) error) (end int64, err error) {
	return l.ScanWindow(seq, from, scanChunk, fn)
}

// ScanWindow is Scan that keeps about window bytes of the file in memory, or
// the record when that is larger: for somebody who scans many logs at once.
func (l *Log) ScanWindow(seq uint64, from int64, window int, fn func(pos int64, body []byte) error) (end int64, err error) {
	size, newest, ok := l.sizeOf(seq)
	if !ok {
		return 0, fmt.Errorf("scan log %d: it has no file %d", l.o.ID, seq)
	}
	f, err := l.files.acquire(l, seq)
	if err != nil {
		return 0, l.headerError(seq, size, newest, err)
	}
	salt := f.salt
	l.files.release(f)
	s := &scanner{file: &borrowed{l, seq, salt}, salt: salt, size: size, chunk: window}
	from = max(from, HeaderSize)
	if from > size {
		return size, l.corrupt(seq, size, "file size", fmt.Sprint("at least ", from, " bytes"), fmt.Sprint(size))
	}
	bad, err := s.run(from, fn)
	if newest {
		l.noteValid(seq, from, s.pos)
	}
	switch {
	case err != nil && !s.fnFailed:
		return s.pos, l.readError(seq, s.pos, err)
	case err != nil:
		return s.pos, err
	case bad == nil:
		return s.pos, nil
	case !newest:
		return s.pos, l.corrupt(seq, s.pos, bad.what, bad.expected, bad.found)
	}
	torn, err := s.search(s.pos)
	if err != nil {
		return s.pos, l.readError(seq, s.pos, err)
	}
	torn.File, torn.Seq, torn.Pos, torn.Size = l.path(seq), seq, s.pos, size
	torn.What, torn.Expected, torn.Found = bad.what, bad.expected, bad.found
	return s.pos, torn
}

func (l *Log) sizeOf(seq uint64) (size int64, newest, ok bool) {
	l.view.Lock()
	defer l.view.Unlock()
	n := len(l.view.segments)
	for i, s := range l.view.segments {
		if s.Seq == seq {
			return s.Size, i == n-1, true
		}
	}
	return 0, false, false
}

// headerError turns a bad header of the newest file into a TornError when it
// can be what an unfinished creation leaves. Whether records follow is judged
// with the header that this log would have written.
func (l *Log) headerError(seq uint64, size int64, newest bool, err error) error {
	var bad *CorruptError
	if !newest || !errors.As(err, &bad) {
		return l.readError(seq, 0, err)
	}
	file, openErr := l.o.FS.Open(l.path(seq))
	if openErr != nil {
		return l.readError(seq, 0, openErr)
	}
	defer file.Close() // only read
	if whole, readErr := headerIsWhole(file); readErr != nil {
		return l.readError(seq, 0, readErr)
	} else if whole {
		return bad
	}
	_, salt := header{version: Version, id: l.o.ID, seq: seq, generation: 1}.encode()
	s := &scanner{file: file, salt: salt, size: size, chunk: scanChunk}
	torn, searchErr := s.search(HeaderSize - 1)
	if searchErr != nil {
		return l.readError(seq, 0, searchErr)
	}
	torn.File, torn.Seq, torn.Size = l.path(seq), seq, size
	torn.What, torn.Expected, torn.Found = bad.What, bad.Expected, bad.Found
	return torn
}

// headerIsWhole tells whether the header's checksum is right, so that what is
// wrong with it was written so.
func headerIsWhole(file vfs.File) (bool, error) {
	var b [HeaderSize]byte
	if _, err := file.ReadAt(b[:], 0); err != nil {
		if errors.Is(err, io.EOF) {
			return false, nil
		}
		return false, err
	}
	return headerSum(b[:]) == binary.LittleEndian.Uint64(b[headerSumPos:]), nil
}

// borrowed reads a file through a handle that the cache lends for each read.
type borrowed struct {
	log  *Log
	seq  uint64
	salt uint64 // of the file that is meant
}

func (b *borrowed) ReadAt(p []byte, pos int64) (int, error) {
	f, err := b.log.files.acquire(b.log, b.seq)
	if err != nil {
		return 0, err
	}
	defer b.log.files.release(f)
	if f.salt != b.salt { // its records would look damaged
		return 0, fmt.Errorf("%s was replaced while it was scanned: %w", b.log.path(b.seq), fs.ErrNotExist)
	}
	return f.file.ReadAt(p, pos)
}

// scanner walks over one file through a window of its bytes.
type scanner struct {
	file     io.ReaderAt
	salt     uint64
	size     int64
	chunk    int   // how much is read at a time
	pos      int64 // everything below is valid
	fnFailed bool

	window    []byte // bytes of the file from windowPos on
	windowPos int64
	aside     []byte // a record read outside of the window
}

// badBytes says why the bytes at a position are no record.
type badBytes struct{ what, expected, found string }

// run walks until the end, an error, or bytes that are neither a record nor
// zeros up to the end.
func (s *scanner) run(from int64, fn func(pos int64, body []byte) error) (*badBytes, error) {
	s.pos = from
	for s.pos < s.size {
		rec, bad, err := s.record(s.pos)
		if err != nil {
			return nil, err
		}
		if bad != nil {
			zeros, err := s.zerosFrom(s.pos)
			if err != nil || zeros {
				return nil, err
			}
			return bad, nil
		}
		if fn != nil {
			if err := fn(s.pos, rec[RecordHeaderSize:]); err != nil {
				s.fnFailed = true
				return nil, err
			}
		}
		s.pos += int64(len(rec))
	}
	return nil, nil
}

// record returns the checked record at pos, valid until the next call.
func (s *scanner) record(pos int64) ([]byte, *badBytes, error) {
	left := s.size - pos
	if left < RecordHeaderSize {
		return nil, &badBytes{"record header", fmt.Sprint(RecordHeaderSize, " bytes"), strconv.FormatInt(left, 10)}, nil
	}
	head, err := s.bytes(pos, RecordHeaderSize)
	if err != nil {
		return nil, nil, err
	}
	length := bodyLength(head)
	if length == 0 {
		return nil, &badBytes{"record length", "above 0, or zeros to the end of the file", "0"}, nil
	}
	if length > MaxRecord || int64(length) > left-RecordHeaderSize {
		return nil, &badBytes{"record length", fmt.Sprint("at most ", min(MaxRecord, left-RecordHeaderSize)),
			strconv.FormatUint(uint64(length), 10)}, nil
	}
	rec, err := s.bytes(pos, RecordHeaderSize+int(length))
	if err != nil {
		return nil, nil, err
	}
	if expected, found, ok := verify(rec, s.salt, pos); !ok {
		return nil, &badBytes{"record xxhash64", hex(expected), hex(found)}, nil
	}
	return rec, nil, nil
}

// bytes returns n bytes from pos on, which the file has. They are in the
// window, and may be changed for as long as they are changed back.
func (s *scanner) bytes(pos int64, n int) ([]byte, error) {
	at := pos - s.windowPos
	if at >= 0 && at+int64(n) <= int64(len(s.window)) {
		return s.window[at : at+int64(n)], nil
	}
	want := int(min(s.size-pos, int64(max(n, s.chunk))))
	if cap(s.window) > 2*max(n, s.chunk) {
		s.window = nil // a large record needed it, this one does not
	}
	s.window = sized(s.window, want)
	got, err := s.file.ReadAt(s.window, pos)
	if err != nil && !errors.Is(err, io.EOF) {
		s.window = s.window[:0]
		return nil, err
	}
	s.window, s.windowPos = s.window[:got], pos
	if got < n {
		return nil, fmt.Errorf("%d bytes at pos %d of a file of %d: %w", got, pos, s.size, io.ErrUnexpectedEOF)
	}
	return s.window[:n], nil
}

func (s *scanner) zerosFrom(pos int64) (bool, error) {
	for pos < s.size {
		b, err := s.bytes(pos, int(min(s.size-pos, scanChunk)))
		if err != nil {
			return false, err
		}
		if !allZero(b) {
			return false, nil
		}
		pos += int64(len(b))
	}
	return true, nil
}
