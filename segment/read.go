package segment

import (
	"errors"
	"fmt"
	"io"
	"strconv"
)

// ReadAt does not know how long the record is: it asks for as much as the
// caller's buffer holds, within these bounds, and for the rest when there is
// more.
const (
	minReadGuess = 4 << 10
	maxReadGuess = 64 << 10
)

// Read returns the body of the record at ref, checked, with one read when
// ref.Len is given and usually one when it is not. The body is in buf if it
// fits (pass the same buffer again, not the body), else in a new buffer.
//
// What is there and is not that record is a *CorruptError. A file that is not
// there (reclaimed, cut) is an error that wraps fs.ErrNotExist. It is safe
// beside everything; a record can be read once it was flushed.
func (l *Log) Read(ref Ref, buf []byte) ([]byte, error) {
	if ref.Len == 0 {
		body, _, err := l.ReadAt(ref.Seq, ref.Pos, buf)
		if errors.Is(err, io.EOF) {
			err = l.corrupt(ref.Seq, ref.Pos, "record", "a record", "end of file")
		}
		return body, err
	}
	if ref.Len > MaxRecord || ref.Pos < HeaderSize {
		return nil, fmt.Errorf("read %s pos %d: a body of %d bytes is none that this log returned", l.path(ref.Seq), ref.Pos, ref.Len)
	}
	f, err := l.files.acquire(l, ref.Seq)
	if err != nil {
		return nil, l.readError(ref.Seq, ref.Pos, err)
	}
	defer l.files.release(f)
	rec := sized(buf, RecordHeaderSize+int(ref.Len))
	n, err := f.file.ReadAt(rec, ref.Pos)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, l.readError(ref.Seq, ref.Pos, err)
	}
	if n < len(rec) {
		return nil, l.corrupt(ref.Seq, ref.Pos, "record size in the file", fmt.Sprint(len(rec), " bytes"), strconv.Itoa(n))
	}
	if found := bodyLength(rec); found != ref.Len {
		return nil, l.corrupt(ref.Seq, ref.Pos, "record length", strconv.Itoa(int(ref.Len)), strconv.FormatUint(uint64(found), 10))
	}
	if expected, found, ok := verify(rec, f.salt, ref.Pos); !ok {
		return nil, l.corrupt(ref.Seq, ref.Pos, "record xxhash64", hex(expected), hex(found))
	}
	return rec[RecordHeaderSize:], nil
}

// ReadAt is Read without knowing the length; next is where the record after it
// starts. At the end of the records it returns io.EOF. buf also says how much
// to read at first: one that holds the record with its header saves a read.
func (l *Log) ReadAt(seq uint64, pos int64, buf []byte) (body []byte, next int64, err error) {
	f, err := l.files.acquire(l, seq)
	if err != nil {
		return nil, 0, l.readError(seq, pos, err)
	}
	defer l.files.release(f)
	rec := sized(buf, min(max(cap(buf), minReadGuess), maxReadGuess))
	got, err := f.file.ReadAt(rec, pos)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, 0, l.readError(seq, pos, err)
	}
	if got < RecordHeaderSize || bodyLength(rec) == 0 {
		if allZero(rec[:got]) {
			return nil, pos, io.EOF
		}
		return nil, 0, l.corrupt(seq, pos, "record header", "length and checksum", fmt.Sprintf("%x", rec[:min(got, RecordHeaderSize)]))
	}
	length := bodyLength(rec)
	if length > MaxRecord {
		return nil, 0, l.corrupt(seq, pos, "record length", fmt.Sprint("at most ", MaxRecord), strconv.FormatUint(uint64(length), 10))
	}
	if want := RecordHeaderSize + int(length); got < want {
		if rec, err = l.readRest(f, rec[:got], pos, want); err != nil {
			return nil, 0, err
		}
	} else {
		rec = rec[:want]
	}
	if expected, found, ok := verify(rec, f.salt, pos); !ok {
		return nil, 0, l.corrupt(seq, pos, "record xxhash64", hex(expected), hex(found))
	}
	return rec[RecordHeaderSize:], pos + int64(len(rec)), nil
}

// VerifyHeader reads the header of a file anew: an open handle has only the one that was read when it was opened.
func (l *Log) VerifyHeader(seq uint64) error {
	f, err := l.o.FS.Open(l.path(seq))
	if err != nil {
		return err
	}
	_, _, err = readHeader(f, l.path(seq), l.o.ID, seq)
	return errors.Join(err, f.Close())
}

// readRest reads what is missing of a record of want bytes. The size of the
// file is asked first, so that a damaged length allocates nothing.
func (l *Log) readRest(f *cachedFile, head []byte, pos int64, want int) ([]byte, error) {
	size, err := f.file.Size()
	if err != nil {
		return nil, l.readError(f.key.seq, pos, err)
	}
	if size-pos < int64(want) {
		return nil, l.corrupt(f.key.seq, pos, "record size in the file", fmt.Sprint(want, " bytes"), strconv.FormatInt(size-pos, 10))
	}
	rec := sized(head, want)
	copy(rec, head)
	n, err := f.file.ReadAt(rec[len(head):], pos+int64(len(head)))
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, l.readError(f.key.seq, pos, err)
	}
	if len(head)+n < want {
		return nil, l.corrupt(f.key.seq, pos, "record size in the file", fmt.Sprint(want, " bytes"), strconv.Itoa(len(head)+n))
	}
	return rec, nil
}

func sized(buf []byte, n int) []byte {
	if cap(buf) >= n {
		return buf[:n]
	}
	return make([]byte, n)
}

func allZero(b []byte) bool {
	for _, c := range b {
		if c != 0 {
			return false
		}
	}
	return true
}

func (l *Log) corrupt(seq uint64, pos int64, what, expected, found string) *CorruptError {
	return &CorruptError{File: l.path(seq), Pos: pos, What: what, Expected: expected, Found: found}
}

// readError adds where an I/O error happened; damage says that itself.
func (l *Log) readError(seq uint64, pos int64, err error) error {
	if errors.Is(err, ErrCorrupt) || errors.Is(err, ErrNewerFormat) {
		return err
	}
	return fmt.Errorf("read log %d file %d pos %d: %w", l.o.ID, seq, pos, err)
}
