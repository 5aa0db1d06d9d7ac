package recovery

import (
	"errors"
	"fmt"
	"strings"
)

// Errors that callers branch on.
var (
	// ErrRefused: the directory holds something that must not be cut or
	// guessed away. Nothing was changed.
	ErrRefused = errors.New("refused to start")
	// ErrInUse: another process has the directory open.
	ErrInUse = errors.New("data directory is in use")
	// ErrNewerFormat: the directory was made by a newer build. Run that one.
	ErrNewerFormat = errors.New("newer directory format")
)

// RefuseError says why a directory is not started on: what was expected and
// found where, and what an operator can do. It wraps ErrRefused.
type RefuseError struct {
	File     string // file or directory
	Pos      int64  // byte position in File; -1: none
	Index    uint64 // entry it is about; 0: none
	What     string
	Expected string
	Found    string
	Do       string
	Err      error // what lies under it; may be nil
}

func (e *RefuseError) Error() string {
	var b strings.Builder
	b.WriteString(e.File)
	if e.Pos >= 0 {
		fmt.Fprintf(&b, " pos %d", e.Pos)
	}
	if e.Index != 0 {
		fmt.Fprintf(&b, " entry %d", e.Index)
	}
	fmt.Fprintf(&b, ": %s", e.What)
	if e.Expected != "" {
		fmt.Fprintf(&b, ": expected %s, found %s", e.Expected, e.Found)
	}
	if e.Err != nil {
		fmt.Fprintf(&b, ": %v", e.Err)
	}
	do := e.Do
	if do == "" {
		do = doRestore
	}
	fmt.Fprintf(&b, ": %v; nothing was changed. %s", ErrRefused, do)
	return b.String()
}

// Unwrap makes errors.Is find ErrRefused and what lies under it.
func (e *RefuseError) Unwrap() []error {
	if e.Err == nil {
		return []error{ErrRefused}
	}
	return []error{ErrRefused, e.Err}
}

const doRestore = "Take the directory (and check the disk) aside and restore a backup or copy it from another node; tools/segdump shows what is left in it"
