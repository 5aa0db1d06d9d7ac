package vfs

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
)

// ErrCrashed is what every call on a Mem, and on files opened through it,
// returns after Crash or Kill.
var ErrCrashed = errors.New("the memory file system has crashed")

// Mem is a file system in memory for tests. It knows what is durable and what
// is not, and can crash, fail, fill up, stall and rot on command; all of it is
// a function of the seed and the calls made. It is safe for concurrent use and
// fast enough to run a whole broker on.
//
// A Mem is one process's view of a disk: Crash and Kill end that view and
// return the next one.
type Mem struct {
	disk  *disk
	dead  atomic.Bool
	calls callState
	hold  holdState
	locks struct {
		sync.Mutex
		held map[*node]bool
	}
}

var _ FS = (*Mem)(nil)

// disk is what outlives a process. Lock order: disk.mu, then node.mu.
type disk struct {
	// mu guards the tree: children, durable and ops. Data calls hold it for
	// reading, so that a crash sees no call half done.
	mu       sync.RWMutex
	root     *node
	ops      []*entryOp    // directory changes that are not durable, in order
	seq      atomic.Uint64 // numbers changes, so that a sync covers what came before it
	used     atomic.Int64
	capacity atomic.Int64 // 0: no limit
	seed     uint64
}

// node is a file or a directory.
type node struct {
	dir      bool
	children map[string]*node // as the process sees it
	durable  map[string]*node // as a crash that keeps nothing would leave it

	mu       sync.RWMutex
	data     []byte
	changes  []change // since the last sync, oldest first
	unlinked bool
}

// entryOp is one directory change: it is in effect whole or not at all.
type entryOp struct {
	seq     uint64
	effects []effect
	// doubtful: a sync that covered it failed, so no later one makes it durable.
	doubtful bool
}

type effect struct {
	dir  *node
	name string
	to   *node // nil: the name is gone
}

func newDir() *node {
	return &node{dir: true, children: map[string]*node{}, durable: map[string]*node{}}
}

// NewMem returns an empty file system with only a root directory. Relative
// names are taken from the root. seed decides what a Crash keeps.
func NewMem(seed uint64) *Mem { return newView(&disk{root: newDir(), seed: seed}) }

func newView(d *disk) *Mem {
	m := &Mem{disk: d}
	m.locks.held = map[*node]bool{}
	m.hold.cond = sync.NewCond(&m.hold.Mutex)
	return m
}

// SetCapacity bounds the sum of all file sizes in bytes; writes beyond fail
// with ENOSPC after writing what fits. 0 takes the limit away.
func (m *Mem) SetCapacity(bytes int64) { m.disk.capacity.Store(bytes) }

func pathError(op Op, name string, err error) error {
	return &fs.PathError{Op: op.String(), Path: name, Err: err}
}

func split(name string) []string {
	clean := strings.TrimPrefix(path.Clean("/"+filepath.ToSlash(name)), "/")
	if clean == "" {
		return nil
	}
	return strings.Split(clean, "/")
}

func (d *disk) lookupLocked(name string) (*node, error) {
	n := d.root
	for _, part := range split(name) {
		if !n.dir {
			return nil, syscall.ENOTDIR
		}
		if n = n.children[part]; n == nil {
			return nil, syscall.ENOENT
		}
	}
	return n, nil
}

// parentLocked finds the directory that holds name, and the last part of name.
func (d *disk) parentLocked(name string) (*node, string, error) {
	parts := split(name)
	if len(parts) == 0 {
		return nil, "", syscall.EINVAL
	}
	dir, err := d.lookupLocked(strings.Join(parts[:len(parts)-1], "/"))
	if err != nil {
		return nil, "", err
	}
	if !dir.dir {
		return nil, "", syscall.ENOTDIR
	}
	return dir, parts[len(parts)-1], nil
}

// changeLocked puts effects into force for the process and notes them as not durable.
func (d *disk) changeLocked(effects ...effect) {
	for _, e := range effects {
		if old := e.dir.children[e.name]; old != nil && old != e.to && !old.dir {
			d.unlink(old)
		}
		if e.to == nil {
			delete(e.dir.children, e.name)
		} else {
			e.dir.children[e.name] = e.to
			e.to.relink(d)
		}
	}
	d.ops = append(d.ops, &entryOp{seq: d.seq.Add(1), effects: effects})
}

func (d *disk) unlink(n *node) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.unlinked {
		d.used.Add(-int64(len(n.data)))
		n.unlinked = true
	}
}

// relink undoes an unlink that was one half of a rename.
func (n *node) relink(d *disk) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.unlinked {
		d.used.Add(int64(len(n.data)))
		n.unlinked = false
	}
}

func (m *Mem) lockTree() error {
	m.disk.mu.Lock()
	if m.dead.Load() {
		m.disk.mu.Unlock()
		return ErrCrashed
	}
	return nil
}

func (m *Mem) rlockTree() error {
	m.disk.mu.RLock()
	if m.dead.Load() {
		m.disk.mu.RUnlock()
		return ErrCrashed
	}
	return nil
}

// tree runs a call that changes directories.
func (m *Mem) tree(op Op, name string, fn func(d *disk) error) error {
	err := m.begin(op, name)
	if err == nil {
		err = m.lockTree()
	}
	if err != nil {
		return pathError(op, name, err)
	}
	defer m.disk.mu.Unlock()
	if err := fn(m.disk); err != nil {
		return pathError(op, name, err)
	}
	return nil
}

// Create implements FS.
func (m *Mem) Create(name string) (File, error) {
	var f File
	err := m.tree(OpCreate, name, func(d *disk) error {
		dir, base, err := d.parentLocked(name)
		if err != nil {
			return err
		}
		n := dir.children[base]
		switch {
		case n == nil:
			n = &node{}
			d.changeLocked(effect{dir, base, n})
		case n.dir:
			return syscall.EISDIR
		default:
			n.mu.Lock()
			n.truncateLocked(d, 0)
			n.mu.Unlock()
		}
		f = &memFile{m: m, n: n, name: name, writable: true}
		return nil
	})
	return f, err
}

// OpenReadWrite implements FS.
func (m *Mem) OpenReadWrite(name string) (File, error) { return m.open(name, true) }

// Open implements FS.
func (m *Mem) Open(name string) (File, error) { return m.open(name, false) }

func (m *Mem) open(name string, writable bool) (File, error) {
	n, err := m.find(OpOpen, name)
	if err != nil {
		return nil, err
	}
	if n.dir {
		return nil, pathError(OpOpen, name, syscall.EISDIR)
	}
	return &memFile{m: m, n: n, name: name, writable: writable}, nil
}

func (m *Mem) find(op Op, name string) (*node, error) {
	err := m.begin(op, name)
	if err == nil {
		err = m.rlockTree()
	}
	if err != nil {
		return nil, pathError(op, name, err)
	}
	defer m.disk.mu.RUnlock()
	n, err := m.disk.lookupLocked(name)
	if err != nil {
		return nil, pathError(op, name, err)
	}
	return n, nil
}

// Remove implements FS.
func (m *Mem) Remove(name string) error {
	return m.tree(OpRemove, name, func(d *disk) error {
		dir, base, err := d.parentLocked(name)
		if err != nil {
			return err
		}
		n := dir.children[base]
		if n == nil {
			return syscall.ENOENT
		}
		if len(n.children) > 0 {
			return syscall.ENOTEMPTY
		}
		d.changeLocked(effect{dir, base, nil})
		return nil
	})
}

// RemoveAll implements FS. Each entry is a change of its own: a crash may
// bring back any of them.
func (m *Mem) RemoveAll(name string) error {
	return m.tree(OpRemoveAll, name, func(d *disk) error {
		dir, base, err := d.parentLocked(name)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		d.removeAllLocked(dir, base)
		return nil
	})
}

func (d *disk) removeAllLocked(dir *node, base string) {
	n := dir.children[base]
	if n == nil {
		return
	}
	for _, child := range sortedNames(n.children) {
		d.removeAllLocked(n, child)
	}
	d.changeLocked(effect{dir, base, nil})
}

func sortedNames(children map[string]*node) []string {
	names := make([]string, 0, len(children))
	for name := range children {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// Rename implements FS.
func (m *Mem) Rename(oldname, newname string) error {
	return m.tree(OpRename, oldname, func(d *disk) error {
		oldDir, oldBase, err := d.parentLocked(oldname)
		if err != nil {
			return err
		}
		newDir, newBase, err := d.parentLocked(newname)
		if err != nil {
			return err
		}
		n := oldDir.children[oldBase]
		if n == nil {
			return syscall.ENOENT
		}
		if oldDir == newDir && oldBase == newBase {
			return nil
		}
		if target := newDir.children[newBase]; target != nil {
			switch {
			case target.dir != n.dir && target.dir:
				return syscall.EISDIR
			case target.dir != n.dir:
				return syscall.ENOTDIR
			case len(target.children) > 0:
				return syscall.ENOTEMPTY
			}
		}
		d.changeLocked(effect{oldDir, oldBase, nil}, effect{newDir, newBase, n})
		return nil
	})
}

// MkdirAll implements FS.
func (m *Mem) MkdirAll(name string) error {
	return m.tree(OpMkdir, name, func(d *disk) error {
		n := d.root
		for _, part := range split(name) {
			child := n.children[part]
			if child == nil {
				child = newDir()
				d.changeLocked(effect{n, part, child})
			}
			if !child.dir {
				return syscall.ENOTDIR
			}
			n = child
		}
		return nil
	})
}

// List implements FS.
func (m *Mem) List(dir string) ([]Info, error) {
	n, err := m.find(OpList, dir)
	if err != nil {
		return nil, err
	}
	if !n.dir {
		return nil, pathError(OpList, dir, syscall.ENOTDIR)
	}
	if err := m.rlockTree(); err != nil {
		return nil, pathError(OpList, dir, err)
	}
	defer m.disk.mu.RUnlock()
	infos := make([]Info, 0, len(n.children))
	for _, name := range sortedNames(n.children) {
		infos = append(infos, n.children[name].info(name))
	}
	return infos, nil
}

func (n *node) info(name string) Info {
	n.mu.RLock()
	defer n.mu.RUnlock()
	return Info{Name: name, Size: int64(len(n.data)), Dir: n.dir}
}

// Stat implements FS.
func (m *Mem) Stat(name string) (Info, error) {
	n, err := m.find(OpStat, name)
	if err != nil {
		return Info{}, err
	}
	return n.info(path.Base("/" + filepath.ToSlash(name))), nil
}

// Lock implements FS.
func (m *Mem) Lock(name string) (io.Closer, error) {
	var held *node
	err := m.tree(OpLock, name, func(d *disk) error {
		dir, base, err := d.parentLocked(name)
		if err != nil {
			return err
		}
		n := dir.children[base]
		if n == nil {
			n = &node{}
			d.changeLocked(effect{dir, base, n})
		}
		m.locks.Lock()
		defer m.locks.Unlock()
		if m.locks.held[n] {
			return ErrLocked
		}
		m.locks.held[n] = true
		held = n
		return nil
	})
	if err != nil {
		return nil, err
	}
	return &memLock{m: m, n: held}, nil
}

type memLock struct {
	m    *Mem
	n    *node
	once sync.Once
}

// Close gives the lock up. Further calls do nothing.
func (l *memLock) Close() error {
	l.once.Do(func() {
		l.m.locks.Lock()
		defer l.m.locks.Unlock()
		delete(l.m.locks.held, l.n)
	})
	return nil
}

// unlimited is the size of a volume without a capacity.
const unlimited = int64(1) << 40

// Usage implements FS.
func (m *Mem) Usage(dir string) (Usage, error) {
	if _, err := m.find(OpUsage, dir); err != nil {
		return Usage{}, err
	}
	total := m.disk.capacity.Load()
	if total == 0 {
		total = unlimited
	}
	return Usage{Total: uint64(total), Free: uint64(max(0, total-m.disk.used.Load()))}, nil
}

// Flip damages a file as a failing medium does: the byte at pos is xored with
// mask, durably, past every counter and fault.
func (m *Mem) Flip(name string, pos int64, mask byte) error {
	if err := m.rlockTree(); err != nil {
		return err
	}
	defer m.disk.mu.RUnlock()
	n, err := m.disk.lookupLocked(name)
	if err != nil {
		return fmt.Errorf("flip %s: %w", name, err)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if pos < 0 || pos >= int64(len(n.data)) {
		return fmt.Errorf("flip %s pos %d: the file has %d bytes", name, pos, len(n.data))
	}
	n.data[pos] ^= mask
	return nil
}
