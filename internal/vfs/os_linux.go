package vfs

import (
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// syncData is fdatasync: content, and of the metadata what is needed to read
// it back (the size), but not the times, which cost a journal write.
func syncData(f *os.File) error { return onDescriptor(f, unix.Fdatasync) }

func syncVolume(dir *os.File) error {
	if err := onDescriptor(dir, unix.Syncfs); err != nil {
		return &fs.PathError{Op: "syncfs", Path: dir.Name(), Err: err}
	}
	return nil
}

// onDescriptor keeps the descriptor from being closed (and its number reused)
// while call runs; os.File.Fd does not.
func onDescriptor(f *os.File, call func(fd int) error) error {
	conn, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var callErr error
	err = conn.Control(func(fd uintptr) {
		callErr = retryInterrupted(func() error { return call(int(fd)) })
	})
	if err != nil {
		return err
	}
	return callErr
}
