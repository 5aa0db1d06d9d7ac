// Package vfs is the seam between the broker and its files. Everything that
// is stored goes through FS: OS is the real one, Mem keeps files in memory
// and can crash, fail, fill up and stall on command.
//
// # What is assumed of a disk
//
//   - File.Sync makes the content and the size of that file durable, and
//     nothing else. In particular a file that was created is not durable as a
//     name before SyncDir of its directory.
//   - SyncDir makes the entries of one directory durable: files and
//     directories created in it, removed from it, renamed within it. The
//     directory's own entry in its parent is the parent's business.
//   - SyncAll makes everything on the volume durable that was written before it.
//   - Of what is not synced, any part may survive a power cut, in any order, and
//     a write may survive in part. A rename is in effect whole or not at all.
//   - After a Sync that failed nothing is known about the bytes written before
//     it, whatever a later Sync says. The owner of the file stops using it.
//
// Mem's Crash produces exactly the outcomes that this list allows.
//
// All implementations are safe for concurrent use, with one exception that
// every file has: two writes to the same bytes at once leave either.
package vfs

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"

	"queen/internal/crashpoint"
)

// ErrLocked reports that somebody else holds a lock file: another process, or
// another holder in this one. Nothing was changed; do not touch the directory.
var ErrLocked = errors.New("locked by another holder")

// File is an open file. Positions are bytes from the start.
//
// ReadAt follows io.ReaderAt: fewer bytes than asked for come with io.EOF at
// the end of the file. WriteAt beyond the end extends the file; a gap reads as
// zeros.
type File interface {
	io.ReaderAt
	io.WriterAt
	// Sync makes content and size durable (fdatasync).
	Sync() error
	// Truncate sets the size in bytes; growing adds zeros.
	Truncate(size int64) error
	// Size is the current size in bytes.
	Size() (int64, error)
	// Close gives the handle up. It does not sync: a file that was written is
	// synced first, because a write-back error after Close is never reported.
	Close() error
}

// Info describes a directory entry.
type Info struct {
	Name string // base name
	Size int64  // bytes; 0 for directories
	Dir  bool
}

// Usage is the space of a volume in bytes. Free is what this process may use.
type Usage struct{ Total, Free uint64 }

// FS is a file system. Errors about a missing name wrap fs.ErrNotExist, those
// about a full volume syscall.ENOSPC.
type FS interface {
	// Create opens a file for reading and writing, created or truncated. Its
	// directory must exist.
	Create(name string) (File, error)
	// OpenReadWrite opens an existing file for reading and writing.
	OpenReadWrite(name string) (File, error)
	// Open opens an existing file for reading.
	Open(name string) (File, error)
	// Remove removes a file or an empty directory.
	Remove(name string) error
	// RemoveAll removes a file or a directory with all that is in it. A name
	// that does not exist is no error.
	RemoveAll(name string) error
	// Rename moves a file or directory and replaces what has the new name.
	Rename(oldname, newname string) error
	// MkdirAll creates a directory and its missing parents.
	MkdirAll(dir string) error
	// List returns the entries of a directory, sorted by name.
	List(dir string) ([]Info, error)
	// Stat describes one name.
	Stat(name string) (Info, error)
	// SyncDir makes the entries of one directory durable.
	SyncDir(dir string) error
	// SyncAll makes the whole volume that holds dir durable (syncfs).
	SyncAll(dir string) error
	// Lock takes an exclusive lock on a file, which it creates when missing,
	// until the closer is closed or the process ends. It does not wait: when
	// somebody else has it the error wraps ErrLocked.
	Lock(name string) (io.Closer, error)
	// Usage tells the space of the volume that holds dir.
	Usage(dir string) (Usage, error)
}

// ReadFile returns the content of a file, in a buffer of its own.
func ReadFile(fsys FS, name string) ([]byte, error) {
	f, err := fsys.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close() // only read: nothing to lose
	size, err := f.Size()
	if err != nil {
		return nil, err
	}
	buf := make([]byte, size)
	n, err := f.ReadAt(buf, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	return buf[:n], nil
}

// ReplaceFile durably replaces the content of a file, whole or not at all: a
// temporary file beside it (name + ".tmp") is written, synced, renamed over
// it, and the directory is synced. After an error the old or the new content
// is there, and a temporary file may be.
func ReplaceFile(fsys FS, name string, data []byte) error {
	tmp := name + ".tmp"
	if err := writeSynced(fsys, tmp, data); err != nil {
		return fmt.Errorf("replace %s: %w", name, err)
	}
	crashpoint.Hit("replace.written")
	if err := fsys.Rename(tmp, name); err != nil {
		return fmt.Errorf("replace %s: %w", name, err)
	}
	crashpoint.Hit("replace.renamed")
	if err := fsys.SyncDir(filepath.Dir(name)); err != nil {
		return fmt.Errorf("replace %s: %w", name, err)
	}
	return nil
}

// WriteAgain reads the bytes of a file from one position to another and writes
// them back, so that the next Sync makes them durable whatever became of an
// earlier one.
func WriteAgain(f File, from, to int64) error {
	buf := make([]byte, min(to-from, 1<<20))
	for from < to {
		part := buf[:min(int64(len(buf)), to-from)]
		if _, err := f.ReadAt(part, from); err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		if _, err := f.WriteAt(part, from); err != nil {
			return err
		}
		from += int64(len(part))
	}
	return nil
}

func writeSynced(fsys FS, name string, data []byte) error {
	f, err := fsys.Create(name)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(data, 0)
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}
