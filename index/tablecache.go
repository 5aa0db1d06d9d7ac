package index

import (
	"errors"
	"sync"
	"sync/atomic"

	"queen/internal/vfs"
)

// TableCache holds what side tables of all logs share: blocks that were read
// lately, within a number of bytes, and open files, within a number. It is safe
// for concurrent use; no I/O happens under its lock.
type TableCache struct {
	nextID   atomic.Uint64
	maxBytes int64
	maxFiles int

	mu struct {
		sync.Mutex
		blocks map[blockKey]*cachedBlock
		newest *cachedBlock // ring, newest first
		bytes  int64
		files  map[uint64]*openFile
		use    uint64 // counts uses, for the age of files
		hits   uint64
		misses uint64
	}
}

type blockKey struct {
	table uint64
	pos   int64
}

type cachedBlock struct {
	key        blockKey
	value      any
	bytes      int64
	next, prev *cachedBlock
}

// openFile is an open table. It is closed when nobody reads it and it is too
// old, or its table is gone.
type openFile struct {
	f    vfs.File
	refs int
	used uint64
	gone bool
}

// NewTableCache makes a cache of about bytes bytes of blocks and files open
// files. More files than that are open only while more are being read at once.
func NewTableCache(bytes int64, files int) *TableCache {
	c := &TableCache{maxBytes: bytes, maxFiles: max(files, 1)}
	c.mu.blocks = make(map[blockKey]*cachedBlock)
	c.mu.files = make(map[uint64]*openFile)
	return c
}

// CacheStats says how the cache does.
type CacheStats struct {
	Bytes        int64
	Files        int
	Hits, Misses uint64
}

// Stats is a snapshot.
func (c *TableCache) Stats() CacheStats {
	c.mu.Lock()
	defer c.mu.Unlock()
	return CacheStats{Bytes: c.mu.bytes, Files: len(c.mu.files), Hits: c.mu.hits, Misses: c.mu.misses}
}

// Close closes every open file. Nothing may be reading.
func (c *TableCache) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	var errs []error
	for _, f := range c.mu.files {
		errs = append(errs, f.f.Close())
	}
	clear(c.mu.files)
	clear(c.mu.blocks)
	c.mu.newest, c.mu.bytes = nil, 0
	return errors.Join(errs...)
}

// block gives a cached block and makes it the newest.
func (c *TableCache) block(key blockKey) (any, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	b, ok := c.mu.blocks[key]
	if !ok {
		c.mu.misses++
		return nil, false
	}
	c.mu.hits++
	if b != c.mu.newest {
		c.unlinkLocked(b)
		c.linkLocked(b)
	}
	return b.value, true
}

// keep caches a block. Two readers may read the same one at once; the later wins.
func (c *TableCache) keep(key blockKey, value any, bytes int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if old, ok := c.mu.blocks[key]; ok {
		c.removeLocked(old)
	}
	b := &cachedBlock{key: key, value: value, bytes: bytes + 128}
	c.mu.blocks[key] = b
	c.mu.bytes += b.bytes
	c.linkLocked(b)
	for c.mu.bytes > c.maxBytes && c.mu.newest.prev != b {
		c.removeLocked(c.mu.newest.prev)
	}
}

func (c *TableCache) linkLocked(b *cachedBlock) {
	if n := c.mu.newest; n == nil {
		b.next, b.prev = b, b
	} else {
		b.next, b.prev = n, n.prev
		b.prev.next, b.next.prev = b, b
	}
	c.mu.newest = b
}

func (c *TableCache) unlinkLocked(b *cachedBlock) {
	if b.next == b {
		c.mu.newest = nil
		return
	}
	b.prev.next, b.next.prev = b.next, b.prev
	if c.mu.newest == b {
		c.mu.newest = b.next
	}
}

func (c *TableCache) removeLocked(b *cachedBlock) {
	c.unlinkLocked(b)
	delete(c.mu.blocks, b.key)
	c.mu.bytes -= b.bytes
}

// file gives an open file of a table, opened by open when there is none.
func (c *TableCache) file(table uint64, open func() (vfs.File, error)) (*openFile, error) {
	if f := c.acquire(table); f != nil {
		return f, nil
	}
	opened, err := open()
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	f, raced := c.mu.files[table]
	if !raced {
		f = &openFile{f: opened}
		c.mu.files[table] = f
	}
	f.refs++
	c.mu.use++
	f.used = c.mu.use
	victims := c.oldFilesLocked()
	c.mu.Unlock()
	if raced {
		victims = append(victims, opened)
	}
	for _, v := range victims {
		v.Close() // read only: nothing to lose
	}
	return f, nil
}

func (c *TableCache) acquire(table uint64) *openFile {
	c.mu.Lock()
	defer c.mu.Unlock()
	f := c.mu.files[table]
	if f != nil {
		f.refs++
		c.mu.use++
		f.used = c.mu.use
	}
	return f
}

// oldFilesLocked takes out the files that are too many, oldest first.
func (c *TableCache) oldFilesLocked() (victims []vfs.File) {
	for len(c.mu.files) > c.maxFiles {
		var oldest uint64
		var victim *openFile
		for id, f := range c.mu.files {
			if f.refs == 0 && (victim == nil || f.used < victim.used) {
				oldest, victim = id, f
			}
		}
		if victim == nil {
			break
		}
		delete(c.mu.files, oldest)
		victims = append(victims, victim.f)
	}
	return victims
}

func (c *TableCache) release(f *openFile) {
	c.mu.Lock()
	f.refs--
	last := f.gone && f.refs == 0
	c.mu.Unlock()
	if last {
		f.f.Close()
	}
}

// forget closes the file of a table that is gone, once nobody reads it. Its
// blocks age out.
func (c *TableCache) forget(table uint64) {
	c.mu.Lock()
	f := c.mu.files[table]
	delete(c.mu.files, table)
	idle := f != nil && f.refs == 0
	if f != nil {
		f.gone = true
	}
	c.mu.Unlock()
	if idle {
		f.f.Close()
	}
}
