//go:build !linux

package vfs

import (
	"os"

	"golang.org/x/sys/unix"
)

func syncData(f *os.File) error { return f.Sync() }

// syncVolume has no equivalent of syncfs here: sync(2) schedules the writes of
// all volumes. It is for development only; Linux is where the broker runs.
func syncVolume(dir *os.File) error {
	unix.Sync()
	return dir.Sync()
}
