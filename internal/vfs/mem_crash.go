package vfs

import (
	"math/rand/v2"
	"slices"
	"syscall"
)

// SyncDir implements FS.
func (m *Mem) SyncDir(dir string) error {
	fault := m.begin(OpSyncDir, dir)
	if err := m.lockTree(); err != nil {
		return pathError(OpSyncDir, dir, err)
	}
	defer m.disk.mu.Unlock()
	n, err := m.disk.lookupLocked(dir)
	if err == nil && !n.dir {
		err = syscall.ENOTDIR
	}
	if err != nil {
		return pathError(OpSyncDir, dir, err)
	}
	touches := func(op *entryOp) bool {
		return slices.ContainsFunc(op.effects, func(e effect) bool { return e.dir == n })
	}
	if fault != nil {
		m.disk.doubtOpsLocked(touches)
		return pathError(OpSyncDir, dir, fault)
	}
	m.disk.syncOpsLocked(touches)
	return nil
}

// SyncAll implements FS.
func (m *Mem) SyncAll(dir string) error {
	fault := m.begin(OpSyncAll, dir)
	seq := m.disk.seq.Load()
	m.waitWhileHeld()
	if err := m.lockTree(); err != nil {
		return pathError(OpSyncAll, dir, err)
	}
	defer m.disk.mu.Unlock()
	if _, err := m.disk.lookupLocked(dir); err != nil {
		return pathError(OpSyncAll, dir, err)
	}
	covers := func(op *entryOp) bool { return op.seq <= seq }
	each := func(n *node) { n.syncLocked(seq) }
	if fault != nil {
		each = func(n *node) { n.doubtLocked(seq) }
		m.disk.doubtOpsLocked(covers)
	} else {
		m.disk.syncOpsLocked(covers)
	}
	m.disk.root.walk(func(n *node) {
		n.mu.Lock()
		defer n.mu.Unlock()
		each(n)
	})
	if fault != nil {
		return pathError(OpSyncAll, dir, fault)
	}
	return nil
}

func (n *node) walk(fn func(*node)) {
	fn(n)
	for _, child := range n.children { // order has no effect: each node is changed by itself
		child.walk(fn)
	}
}

func (d *disk) doubtOpsLocked(covers func(*entryOp) bool) {
	for _, op := range d.ops {
		if covers(op) {
			op.doubtful = true
		}
	}
}

// syncOpsLocked makes the directory changes that are covered durable. A change
// that spans two directories becomes durable as a whole; an older change of
// the same name that is not covered can then no longer show.
func (d *disk) syncOpsLocked(covers func(*entryOp) bool) {
	var kept []*entryOp
	for _, op := range d.ops {
		if op.doubtful || !covers(op) {
			kept = append(kept, op)
			continue
		}
		for _, e := range op.effects {
			setEntry(e.dir.durable, e)
			for _, older := range kept {
				older.effects = slices.DeleteFunc(older.effects, func(o effect) bool {
					return o.dir == e.dir && o.name == e.name
				})
			}
		}
	}
	d.ops = slices.DeleteFunc(kept, func(op *entryOp) bool { return len(op.effects) == 0 })
}

func setEntry(entries map[string]*node, e effect) {
	if e.to == nil {
		delete(entries, e.name)
		return
	}
	entries[e.name] = e.to
}

// Crash is a power cut: it returns what the disk holds afterwards, all of it
// durable. Synced data and directory entries are there. Of the rest each write
// and each directory change is there with probability keep, by itself. When
// keep is between 0 and 1 a write may also be there in part (a prefix or a
// suffix, cut at any byte), and a file may have grown by a write that is
// not there, with zeros in its place. Locks are gone. Every later call on m
// and its files fails with ErrCrashed; a call that waits in HoldSync returns.
func (m *Mem) Crash(keep float64) *Mem {
	m.disk.mu.Lock()
	defer m.disk.mu.Unlock()
	m.die()
	rng := rand.New(rand.NewPCG(m.disk.seed, 0x9e3779b97f4a7c15))
	left := map[*node]map[string]*node{} // entries of the directories that pending changes touch
	for _, op := range m.disk.ops {
		if rng.Float64() >= keep {
			continue
		}
		for _, e := range op.effects {
			if left[e.dir] == nil {
				left[e.dir] = cloneMap(e.dir.durable)
			}
			setEntry(left[e.dir], e)
		}
	}
	c := crasher{rng: rng, keep: keep, left: left, done: map[*node]*node{}}
	d := &disk{seed: rng.Uint64()}
	d.root = c.node(m.disk.root)
	d.capacity.Store(m.disk.capacity.Load())
	for _, n := range c.done { // a sum: order has no effect
		d.used.Add(int64(len(n.data)))
	}
	return newView(d)
}

func (m *Mem) die() {
	m.hold.Lock()
	defer m.hold.Unlock()
	m.dead.Store(true)
	m.hold.cond.Broadcast()
}

// Kill is the end of the process without one of the machine (kill -9): it
// returns a view of the same disk with everything that was written, and what
// was not synced is still not durable. Locks, faults and counts are gone, and
// every later call on m fails with ErrCrashed.
func (m *Mem) Kill() *Mem {
	m.disk.mu.Lock()
	defer m.disk.mu.Unlock()
	m.die()
	return newView(m.disk)
}

func cloneMap(src map[string]*node) map[string]*node {
	dst := make(map[string]*node, len(src))
	for name, n := range src {
		dst[name] = n
	}
	return dst
}

type crasher struct {
	rng  *rand.Rand
	keep float64
	left map[*node]map[string]*node
	done map[*node]*node // a node has two names when only half of two renames survived
}

func (c *crasher) node(old *node) *node {
	if n := c.done[old]; n != nil {
		return n
	}
	n := &node{dir: old.dir}
	c.done[old] = n
	if !old.dir {
		n.data = c.content(old)
		return n
	}
	entries := c.left[old]
	if entries == nil {
		entries = old.durable
	}
	n.children, n.durable = map[string]*node{}, map[string]*node{}
	for _, name := range sortedNames(entries) { // sorted: it draws from rng
		child := c.node(entries[name])
		n.children[name], n.durable[name] = child, child
	}
	return n
}

// content takes the changes that are not durable back, newest first, and then
// applies again what survives.
func (c *crasher) content(old *node) []byte {
	n := &node{data: slices.Clone(old.data)}
	again := make([][]byte, len(old.changes))
	for i := len(old.changes) - 1; i >= 0; i-- {
		ch := &old.changes[i]
		again[i] = slices.Clone(n.data[ch.pos : ch.pos+ch.n])
		n.resizeLocked(ch.oldSize)
		copy(n.data[min(ch.pos, ch.oldSize):], ch.old)
	}
	for i := range old.changes {
		c.apply(n, &old.changes[i], again[i])
	}
	return n.data
}

func (c *crasher) apply(n *node, ch *change, data []byte) {
	switch kept := ch.durable || c.rng.Float64() < c.keep; {
	case kept && ch.n == 0:
		n.resizeLocked(ch.newSize)
	case kept:
		from, to := int64(0), ch.n
		if !ch.durable {
			from, to = c.tear(ch.n)
		}
		n.resizeLocked(max(int64(len(n.data)), ch.pos+to))
		copy(n.data[ch.pos+from:ch.pos+to], data[from:to])
	case ch.n > 0 && c.keep > 0 && c.rng.IntN(4) == 0:
		n.resizeLocked(max(int64(len(n.data)), ch.pos+ch.n)) // the size was, the data was not
	}
}

// tear chooses which part of a surviving write is there.
func (c *crasher) tear(n int64) (from, to int64) {
	if c.keep >= 1 {
		return 0, n
	}
	switch c.rng.IntN(4) {
	case 0:
		return 0, c.rng.Int64N(n + 1)
	case 1:
		if c.rng.IntN(4) == 0 {
			return c.rng.Int64N(n + 1), n
		}
	}
	return 0, n
}

// Clone returns an independent copy of m: content, and what of it is durable.
// Locks, faults, holds and counts are not copied.
func (m *Mem) Clone() *Mem {
	m.disk.mu.Lock()
	defer m.disk.mu.Unlock()
	done := map[*node]*node{}
	d := &disk{seed: m.disk.seed, root: cloneNode(m.disk.root, done)}
	for _, op := range m.disk.ops {
		dup := &entryOp{seq: op.seq, doubtful: op.doubtful}
		for _, e := range op.effects {
			dup.effects = append(dup.effects, effect{cloneNode(e.dir, done), e.name, cloneNode(e.to, done)})
		}
		d.ops = append(d.ops, dup)
	}
	d.seq.Store(m.disk.seq.Load())
	d.used.Store(m.disk.used.Load())
	d.capacity.Store(m.disk.capacity.Load())
	return newView(d)
}

func cloneNode(old *node, done map[*node]*node) *node {
	if old == nil {
		return nil
	}
	if n := done[old]; n != nil {
		return n
	}
	old.mu.RLock()
	defer old.mu.RUnlock()
	n := &node{dir: old.dir, data: slices.Clone(old.data), changes: slices.Clone(old.changes), unlinked: old.unlinked}
	done[old] = n
	if old.dir {
		n.children, n.durable = map[string]*node{}, map[string]*node{}
		for name, child := range old.children {
			n.children[name] = cloneNode(child, done)
		}
		for name, child := range old.durable {
			n.durable[name] = cloneNode(child, done)
		}
	}
	return n
}
