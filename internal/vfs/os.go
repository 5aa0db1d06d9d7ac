package vfs

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// Stored data is for the broker's user; its group may read it, for backups.
const (
	fileMode = 0o640
	dirMode  = 0o750
)

type osFS struct{}

// OS is the real file system.
func OS() FS { return osFS{} }

var _ FS = osFS{}

func (osFS) Create(name string) (File, error) {
	return openOS(name, os.O_RDWR|os.O_CREATE|os.O_TRUNC)
}

func (osFS) OpenReadWrite(name string) (File, error) { return openOS(name, os.O_RDWR) }

func (osFS) Open(name string) (File, error) { return openOS(name, os.O_RDONLY) }

func openOS(name string, flags int) (File, error) {
	f, err := os.OpenFile(name, flags, fileMode)
	if err != nil {
		return nil, err
	}
	return osFile{f}, nil
}

func (osFS) Remove(name string) error { return os.Remove(name) }

func (osFS) RemoveAll(name string) error { return os.RemoveAll(name) }

func (osFS) Rename(oldname, newname string) error { return os.Rename(oldname, newname) }

func (osFS) MkdirAll(dir string) error { return os.MkdirAll(dir, dirMode) }

func (osFS) List(dir string) ([]Info, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	infos := make([]Info, 0, len(entries))
	for _, e := range entries {
		fi, err := e.Info()
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed since the directory was read
		}
		if err != nil {
			return nil, err
		}
		infos = append(infos, infoOf(fi))
	}
	return infos, nil
}

func (osFS) Stat(name string) (Info, error) {
	fi, err := os.Stat(name)
	if err != nil {
		return Info{}, err
	}
	return infoOf(fi), nil
}

func infoOf(fi fs.FileInfo) Info {
	info := Info{Name: fi.Name(), Dir: fi.IsDir()}
	if !info.Dir {
		info.Size = fi.Size()
	}
	return info
}

func (osFS) SyncDir(dir string) error {
	return withDir(dir, func(f *os.File) error { return f.Sync() })
}

func (osFS) SyncAll(dir string) error { return withDir(dir, syncVolume) }

func withDir(dir string, fn func(*os.File) error) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(fn(f), f.Close())
}

func (osFS) Usage(dir string) (Usage, error) {
	var st unix.Statfs_t
	err := retryInterrupted(func() error { return unix.Statfs(dir, &st) })
	if err != nil {
		return Usage{}, &fs.PathError{Op: "statfs", Path: dir, Err: err}
	}
	block := uint64(st.Bsize)
	return Usage{Total: uint64(st.Blocks) * block, Free: uint64(st.Bavail) * block}, nil
}

// Lock uses flock: the kernel drops it when the process ends, however it ends,
// and it belongs to the open file, so a second holder in this process is
// refused like one in another. The file stays: removing it would let two
// processes lock two files of one name.
func (osFS) Lock(name string) (io.Closer, error) {
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, fileMode)
	if err != nil {
		return nil, err
	}
	err = retryInterrupted(func() error { return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) })
	if err == nil {
		return f, nil
	}
	f.Close() // nothing was written
	if errors.Is(err, unix.EWOULDBLOCK) {
		return nil, fmt.Errorf("lock %s: %w", name, ErrLocked)
	}
	return nil, &fs.PathError{Op: "flock", Path: name, Err: err}
}

func retryInterrupted(call func() error) error {
	for {
		if err := call(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

type osFile struct{ *os.File }

func (f osFile) Sync() error {
	if err := syncData(f.File); err != nil {
		return &fs.PathError{Op: "fdatasync", Path: f.Name(), Err: err}
	}
	return nil
}

func (f osFile) Size() (int64, error) {
	fi, err := f.Stat()
	if err != nil {
		return 0, err
	}
	return fi.Size(), nil
}
