package index

import (
	"errors"
	"fmt"
)

var (
	// ErrCorrupt is wrapped by every CorruptError.
	ErrCorrupt = errors.New("corrupt")

	// ErrNewerFormat reports a file that a newer version of the broker wrote.
	// Nothing is wrong with it: start the newer version.
	ErrNewerFormat = errors.New("written by a newer version of the broker")

	// ErrFailed reports a file that is not written to any more, because a write
	// or fsync of it failed before: the kernel may have dropped what it held.
	// Open it again, which reads what is really there.
	ErrFailed = errors.New("refused after an earlier write error")
)

// CorruptError says that a file holds something else than what was written. It
// is neither a torn tail nor an I/O error. It wraps ErrCorrupt.
type CorruptError struct {
	File     string
	Pos      int64  // byte position of what was checked
	What     string // what was checked
	Expected string
	Found    string
}

func (e *CorruptError) Error() string {
	return fmt.Sprintf("%s pos %d: %s: expected %s, found %s: corrupt", e.File, e.Pos, e.What, e.Expected, e.Found)
}

// Unwrap makes errors.Is(err, ErrCorrupt) hold.
func (e *CorruptError) Unwrap() error { return ErrCorrupt }

func corruptSum(file string, pos int64, what string, expected, found uint64) error {
	return &CorruptError{File: file, Pos: pos, What: what + " xxhash64",
		Expected: fmt.Sprintf("%016x", expected), Found: fmt.Sprintf("%016x", found)}
}

func corruptValue(file string, pos int64, what string, expected, found any) error {
	return &CorruptError{File: file, Pos: pos, What: what, Expected: fmt.Sprint(expected), Found: fmt.Sprint(found)}
}
