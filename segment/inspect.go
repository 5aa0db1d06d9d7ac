package segment

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"queen/internal/vfs"
)

// Reading one file past what is wrong in it, for tools that look at a data
// directory without the broker.

// Header is what the header of a segment file says.
type Header struct {
	Version              uint32
	Log, Seq, Generation uint64
	Covers               uint64 // the last file whose records are in this one; 0 in a file that was appended to
}

// Gap is a run of bytes in which there is no record.
type Gap struct {
	Pos, End int64 // bytes [Pos, End) of the file; Pos 0: its header is damaged
	What     string
	Expected string
	Found    string
	// Zeros: all of it is zeros up to the end of the file, which is what
	// space that was never written looks like.
	Zeros bool
	// Unsearched is how many bytes at the end were not searched for records,
	// because the search had done its share of work; normally 0.
	Unsearched int64
}

// Inspection says which file to read and who takes what is found. Functions
// are called in the order of the file; nil ones are skipped, and an error of
// theirs ends the inspection and is returned as it is.
type Inspection struct {
	FS   vfs.FS
	Name string // path of the file
	Log  uint64 // that the file should belong to
	Seq  uint64 // that the file should have
	Size int64  // bytes that count; more are not looked at
	// Window is about how many bytes are kept in memory; 0: 1 MiB.
	Window int

	// Record takes a valid record. body is valid during the call only.
	Record func(pos int64, body []byte) error
	// Gap takes bytes that hold no record.
	Gap func(Gap) error
}

// Inspect reads every valid record of a file, also those behind bytes that are
// none. The header is that of the file, or, when it is damaged, the one that
// the file must have been given when it was made. Errors are those of the file
// system and of the functions, one that wraps ErrNewerFormat, and a
// *CorruptError for a whole header that is not that of this log and number:
// nothing of such a file is read. No descriptor is held while a function runs.
func Inspect(o Inspection) (Header, error) {
	if o.Window == 0 {
		o.Window = scanChunk
	}
	file := reopened{o.FS, o.Name}
	h, salt, bad, err := inspectHeader(file, &o)
	if err != nil {
		return Header{}, err
	}
	out := Header{Version: h.version, Log: h.id, Seq: h.seq, Generation: h.generation, Covers: h.covers}
	s := &scanner{file: file, salt: salt, size: o.Size, chunk: o.Window}
	from := int64(HeaderSize)
	if bad != nil {
		if from, err = s.gap(&o, 0, badBytes{bad.What, bad.Expected, bad.Found}); err != nil {
			return out, err
		}
	}
	for from < o.Size {
		wrong, err := s.run(from, o.Record)
		if err != nil {
			return out, inspectError(o.Name, s, err)
		}
		if wrong == nil && s.pos == o.Size {
			return out, nil
		}
		if wrong == nil {
			return out, o.report(Gap{Pos: s.pos, End: o.Size, What: "zeros at the end", Expected: "records", Found: fmt.Sprint(o.Size-s.pos, " zero bytes"), Zeros: true})
		}
		if from, err = s.gap(&o, s.pos, *wrong); err != nil {
			return out, err
		}
	}
	return out, nil
}

// gap reports the bytes from pos on and returns where the next record is: the
// size of the file when there is none.
func (s *scanner) gap(o *Inspection, pos int64, b badBytes) (next int64, err error) {
	bad := pos
	if pos == 0 {
		bad = HeaderSize - 1 // a record may follow the header
	}
	torn, err := s.search(bad)
	if err != nil {
		return 0, fmt.Errorf("read %s pos %d: %w", o.Name, pos, err)
	}
	g := Gap{Pos: pos, End: torn.NextPos, What: b.what, Expected: b.expected, Found: b.found, Unsearched: torn.Unsearched}
	if g.End == 0 {
		g.End = o.Size
	}
	return g.End, o.report(g)
}

func (o *Inspection) report(g Gap) error {
	if o.Gap == nil {
		return nil
	}
	return o.Gap(g)
}

// inspectHeader reads the header; bad says what is wrong with one that is not whole.
func inspectHeader(file reopened, o *Inspection) (h header, salt uint64, bad *CorruptError, err error) {
	var b [HeaderSize]byte
	n, err := file.ReadAt(b[:min(HeaderSize, o.Size)], 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return h, 0, nil, fmt.Errorf("read %s: %w", o.Name, err)
	}
	h, salt, err = decodeHeader(b[:n], o.Name, o.Log, o.Seq)
	if err == nil || !errors.As(err, &bad) {
		return h, salt, nil, err
	}
	if n == HeaderSize && headerSum(b[:]) == binary.LittleEndian.Uint64(b[headerSumPos:]) {
		return h, 0, nil, bad // whole: it was written so
	}
	h = header{version: Version, id: o.Log, seq: o.Seq, generation: 1}
	_, salt = h.encode()
	return h, salt, bad, nil
}

func inspectError(name string, s *scanner, err error) error {
	if s.fnFailed {
		return err
	}
	return fmt.Errorf("read %s pos %d: %w", name, s.pos, err)
}

// reopened reads a file that it opens for each read, so that any number of
// files can be read side by side.
type reopened struct {
	fs   vfs.FS
	name string
}

func (r reopened) ReadAt(p []byte, pos int64) (int, error) {
	f, err := r.fs.Open(r.name)
	if err != nil {
		return 0, err
	}
	n, err := f.ReadAt(p, pos)
	f.Close() // only read
	return n, err
}
