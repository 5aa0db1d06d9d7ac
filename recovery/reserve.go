package recovery

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path"
	"syscall"

	"queen/internal/vfs"
)

const reserveName = "RESERVE"

// Reserve keeps space on the data volume for the time when it is full: a file
// of zeros in the data directory, which is removed when hardly anything is
// free. A start has to write (raft's term at least), and acks have to go on.
//
// The file says nothing: it may be removed, cut or damaged at any time. It is
// used by one goroutine at a time.
type Reserve struct {
	fs   vfs.FS
	dir  string
	size int64
	log  *slog.Logger
	out  bool // it was released, and there is no room for it yet
}

// NewReserve returns the reserve of a data directory, of size bytes; 0: none.
func NewReserve(fsys vfs.FS, dir string, size int64, log *slog.Logger) *Reserve {
	return &Reserve{fs: fsys, dir: dir, size: size, log: log}
}

func (r *Reserve) name() string { return path.Join(r.dir, reserveName) }

// low is the free space from which on the reserve is needed.
func (r *Reserve) low() uint64 { return uint64(r.size) / 4 }

// Release removes the reserve when less than a quarter of its size is free.
// spent: so little is free, and there is no reserve: what is left is for the
// next start.
func (r *Reserve) Release(free uint64) (spent bool, err error) {
	if r.size == 0 || free >= r.low() {
		return false, nil
	}
	info, err := r.fs.Stat(r.name())
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil
	}
	if err == nil {
		err = r.remove()
	}
	if err != nil {
		return false, fmt.Errorf("release the reserve: %w", err)
	}
	r.out = true
	r.log.Warn("the data volume is full: its reserve is released; make room", "file", r.name(), "bytes", info.Size, "free", free)
	return false, nil
}

// Released reports whether the reserve was released and there is no room for
// it yet: what is free is not for writes that grow.
func (r *Reserve) Released() bool { return r.out }

func (r *Reserve) remove() error {
	if err := r.fs.Remove(r.name()); err != nil {
		return err
	}
	return r.fs.SyncDir(r.dir)
}

// reserveStep is how much Fill writes: little enough for the log's own syncs not
// to wait behind it.
const reserveStep = 1 << 20

// Fill makes the reserve, a step at each call, while twice its size is free. A
// volume that turns out to be full after all is no error.
func (r *Reserve) Fill(free uint64) error {
	if r.size == 0 || free < 2*uint64(r.size) {
		return nil
	}
	r.out = false
	info, err := r.fs.Stat(r.name())
	made := err == nil
	switch {
	case made && info.Size >= r.size:
		return nil
	case made || errors.Is(err, fs.ErrNotExist):
		err = r.extend(info.Size, made)
	}
	if errors.Is(err, syscall.ENOSPC) {
		err = r.remove()
	}
	if err != nil {
		return fmt.Errorf("make the reserve: %w", err)
	}
	return nil
}

// extend adds a step of zeros to the file, durably.
func (r *Reserve) extend(from int64, made bool) error {
	open := r.fs.OpenReadWrite
	if !made {
		open = r.fs.Create
	}
	f, err := open(r.name())
	if err != nil {
		return err
	}
	if _, err = f.WriteAt(make([]byte, min(r.size-from, reserveStep)), from); err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil && !made {
		err = r.fs.SyncDir(r.dir)
	}
	return err
}

// AdviseFull adds to an error that a full volume caused what the operator can do.
// Other errors are returned as they are.
func AdviseFull(err error, dir string) error {
	if !errors.Is(err, syscall.ENOSPC) {
		return err
	}
	return fmt.Errorf("%w: the volume of %s is full, and somebody has taken what the reserve kept free: nothing that was answered is lost; "+
		"remove or move files that are not the broker's (or make the volume larger) until some MiB are free, and start again", err, dir)
}

// releaseReserve lets a start on a full volume write.
func (b *boot) releaseReserve() error {
	if b.cfg.Reserve == nil {
		return nil
	}
	u, err := b.fs.Usage(b.dir)
	if err != nil {
		return fmt.Errorf("measure the volume of %s: %w", b.dir, err)
	}
	_, err = b.cfg.Reserve.Release(u.Free)
	return err
}
