package vfs

import (
	"io"
	"io/fs"
	"sync/atomic"
	"syscall"
)

// change is one write or truncation, with what is needed to take it back. What
// it wrote is still in the file's data.
type change struct {
	seq      uint64
	pos      int64
	n        int64  // bytes written; 0 for a truncation
	old      []byte // what was at pos before
	oldSize  int64
	newSize  int64
	durable  bool
	doubtful bool // a sync that covered it failed, so no later one makes it durable
}

// resize sets the length of data; what is added reads as zeros.
func (n *node) resizeLocked(size int64) {
	old := int64(len(n.data))
	if size <= int64(cap(n.data)) {
		n.data = n.data[:size]
		if size > old {
			clear(n.data[old:])
		}
		return
	}
	n.data = append(n.data, make([]byte, size-old)...)
}

func (n *node) truncateLocked(d *disk, size int64) {
	c := change{seq: d.seq.Add(1), pos: size, oldSize: int64(len(n.data)), newSize: size}
	if size < c.oldSize {
		c.old = append([]byte(nil), n.data[size:]...)
	}
	n.resizeLocked(size)
	n.changes = append(n.changes, c)
	if !n.unlinked {
		d.used.Add(size - c.oldSize)
	}
}

func (n *node) writeLocked(d *disk, p []byte, pos int64) {
	c := change{seq: d.seq.Add(1), pos: pos, n: int64(len(p)), oldSize: int64(len(n.data))}
	if end := min(c.oldSize, pos+c.n); end > pos {
		c.old = append([]byte(nil), n.data[pos:end]...)
	}
	if pos == c.oldSize {
		n.data = append(n.data, p...)
	} else {
		n.resizeLocked(max(c.oldSize, pos+c.n))
		copy(n.data[pos:], p)
	}
	c.newSize = int64(len(n.data))
	n.changes = append(n.changes, c)
}

// reserve takes the space for a write that ends at end, and returns how many
// bytes may be added.
func (n *node) reserveLocked(d *disk, end int64) (added int64) {
	added = max(0, end-int64(len(n.data)))
	if added == 0 || n.unlinked {
		return added
	}
	used, capacity := d.used.Add(added), d.capacity.Load()
	if capacity == 0 || used <= capacity {
		return added
	}
	over := min(added, used-capacity)
	d.used.Add(-over)
	return added - over
}

// syncLocked makes the changes numbered up to seq durable.
func (n *node) syncLocked(seq uint64) {
	for i := range n.changes {
		if c := &n.changes[i]; c.seq <= seq && !c.doubtful {
			c.durable = true
		}
	}
	n.dropDurableLocked()
}

// doubtLocked notes that a sync of the changes up to seq failed.
func (n *node) doubtLocked(seq uint64) {
	for i := range n.changes {
		if c := &n.changes[i]; c.seq <= seq && !c.durable {
			c.doubtful = true
		}
	}
}

// dropDurableLocked forgets durable changes that nothing unsynced lies below.
func (n *node) dropDurableLocked() {
	i := 0
	for i < len(n.changes) && n.changes[i].durable {
		i++
	}
	rest := copy(n.changes, n.changes[i:])
	clear(n.changes[rest:])
	n.changes = n.changes[:rest]
}

// memFile is an open file. A file that was removed stays usable through it.
type memFile struct {
	m        *Mem
	n        *node
	name     string
	writable bool
	closed   atomic.Bool
}

// data runs a call on the content.
func (f *memFile) data(op Op, write bool, fn func(d *disk) error) error {
	if err := f.m.rlockTree(); err != nil {
		return pathError(op, f.name, err)
	}
	defer f.m.disk.mu.RUnlock()
	if f.closed.Load() {
		return pathError(op, f.name, fs.ErrClosed)
	}
	if !write {
		f.n.mu.RLock()
		defer f.n.mu.RUnlock()
		return fn(f.m.disk)
	}
	if !f.writable {
		return pathError(op, f.name, syscall.EBADF)
	}
	f.n.mu.Lock()
	defer f.n.mu.Unlock()
	if err := fn(f.m.disk); err != nil {
		return pathError(op, f.name, err)
	}
	return nil
}

// ReadAt implements File.
func (f *memFile) ReadAt(p []byte, pos int64) (n int, err error) {
	if err := f.m.begin(OpRead, f.name); err != nil {
		return 0, pathError(OpRead, f.name, err)
	}
	if pos < 0 {
		return 0, pathError(OpRead, f.name, syscall.EINVAL)
	}
	err = f.data(OpRead, false, func(*disk) error {
		if pos < int64(len(f.n.data)) {
			n = copy(p, f.n.data[pos:])
		}
		if n < len(p) {
			return io.EOF
		}
		return nil
	})
	f.m.calls.bytesRead.Add(int64(n))
	return n, err
}

// WriteAt implements File.
func (f *memFile) WriteAt(p []byte, pos int64) (n int, err error) {
	limit, fault := f.m.beginWrite(f.name, len(p))
	if fault != nil && limit == 0 {
		return 0, pathError(OpWrite, f.name, fault)
	}
	if pos < 0 {
		return 0, pathError(OpWrite, f.name, syscall.EINVAL)
	}
	err = f.data(OpWrite, true, func(d *disk) error {
		want := pos + int64(limit)
		short := max(0, want-int64(len(f.n.data))) - f.n.reserveLocked(d, want)
		n = limit - int(min(short, int64(limit)))
		if n > 0 {
			f.n.writeLocked(d, p[:n], pos)
		} else if !f.n.unlinked && limit > 0 { // only part of a gap would have fitted
			d.used.Add(short - max(0, want-int64(len(f.n.data))))
		}
		if short > 0 {
			return syscall.ENOSPC
		}
		return fault
	})
	f.m.calls.bytesWritten.Add(int64(n))
	return n, err
}

// Truncate implements File.
func (f *memFile) Truncate(size int64) error {
	if err := f.m.begin(OpTruncate, f.name); err != nil {
		return pathError(OpTruncate, f.name, err)
	}
	return f.data(OpTruncate, true, func(d *disk) error {
		if size < 0 {
			return syscall.EINVAL
		}
		f.n.truncateLocked(d, size)
		return nil
	})
}

// Sync implements File. It covers what was written before it was called.
func (f *memFile) Sync() error {
	fault := f.m.begin(OpSync, f.name)
	seq := f.m.disk.seq.Load()
	f.m.waitWhileHeld()
	if err := f.m.rlockTree(); err != nil {
		return pathError(OpSync, f.name, err)
	}
	defer f.m.disk.mu.RUnlock()
	if f.closed.Load() {
		return pathError(OpSync, f.name, fs.ErrClosed)
	}
	f.n.mu.Lock()
	defer f.n.mu.Unlock()
	if fault != nil {
		f.n.doubtLocked(seq)
		return pathError(OpSync, f.name, fault)
	}
	f.n.syncLocked(seq)
	return nil
}

// Size implements File.
func (f *memFile) Size() (size int64, err error) {
	if err := f.m.begin(OpStat, f.name); err != nil {
		return 0, pathError(OpStat, f.name, err)
	}
	err = f.data(OpStat, false, func(*disk) error {
		size = int64(len(f.n.data))
		return nil
	})
	return size, err
}

// Close implements File.
func (f *memFile) Close() error {
	err := f.m.begin(OpClose, f.name)
	if f.closed.Swap(true) {
		err = fs.ErrClosed
	}
	if err == nil && f.m.dead.Load() {
		err = ErrCrashed
	}
	if err != nil {
		return pathError(OpClose, f.name, err)
	}
	return nil
}
