package segment

import (
	"errors"
	"io"
	"sync"

	"queen/internal/vfs"
)

// FileCache bounds the descriptors of all logs that share it, so that
// thousands of queues do not exhaust them: read handles are an LRU, and a log
// whose write handle has been idle longest gives it up when too many are
// open. It also lends the logs their append buffers. It is safe for
// concurrent use.
type FileCache struct {
	mu          sync.Mutex
	readLimit   int
	writeLimit  int
	files       map[fileKey]*cachedFile
	reads       list[cachedFile] // idle and busy read handles, oldest use first
	writers     list[Log]        // logs with an open write handle, oldest use first
	freeBuffers [][]byte
}

type fileKey struct {
	log *Log
	seq uint64
}

// cachedFile is one read handle. refs and links are the cache's; the rest is
// written once, under open.
type cachedFile struct {
	key   fileKey
	refs  int
	stale bool // no longer in the cache: the last user closes it
	link  link[cachedFile]

	open sync.Mutex
	file vfs.File
	head header
	salt uint64
}

// Limits of the buffers that the cache keeps for reuse.
const (
	maxFreeBuffers  = 32
	maxBufferKept   = 4 << 20
	firstBufferSize = 16 << 10
)

// NewFileCache returns a cache that keeps about limit descriptors open, half
// for reading and half for writing; at least 2. Handles in use at the same
// moment are on top when they are more than that.
func NewFileCache(limit int) *FileCache {
	limit = max(limit, 2)
	return &FileCache{
		readLimit: limit - limit/2, writeLimit: limit / 2,
		files: map[fileKey]*cachedFile{},
		reads: list[cachedFile]{link: func(f *cachedFile) *link[cachedFile] { return &f.link }}, writers: list[Log]{link: func(l *Log) *link[Log] { return &l.link }},
	}
}

// Open returns how many read and write handles are open.
func (c *FileCache) Open() (reads, writes int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.reads.n, c.writers.n
}

// acquire returns an open read handle whose header has been checked; the
// caller releases it.
func (c *FileCache) acquire(l *Log, seq uint64) (*cachedFile, error) {
	c.mu.Lock()
	f := c.files[fileKey{l, seq}]
	if f == nil {
		f = &cachedFile{key: fileKey{l, seq}}
		c.files[f.key] = f
		c.reads.push(f)
	} else {
		c.reads.remove(f)
		c.reads.push(f)
	}
	f.refs++
	victims := c.evictLocked()
	c.mu.Unlock()
	closeAll(victims)

	if err := f.ensureOpen(); err != nil {
		c.forget(f)
		c.release(f)
		return nil, err
	}
	return f, nil
}

// ensureOpen opens the file once; others who want it wait.
func (f *cachedFile) ensureOpen() error {
	f.open.Lock()
	defer f.open.Unlock()
	if f.file != nil {
		return nil
	}
	l := f.key.log
	file, err := l.o.FS.Open(l.path(f.key.seq))
	if err != nil {
		return err
	}
	f.head, f.salt, err = readHeader(file, l.path(f.key.seq), l.o.ID, f.key.seq)
	if err != nil {
		return errors.Join(err, file.Close())
	}
	f.file = file
	return nil
}

func readHeader(file vfs.File, name string, id, seq uint64) (header, uint64, error) {
	var b [HeaderSize]byte
	n, err := file.ReadAt(b[:], 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return header{}, 0, err
	}
	return decodeHeader(b[:n], name, id, seq)
}

func (c *FileCache) release(f *cachedFile) {
	c.mu.Lock()
	f.refs--
	var victims []*cachedFile
	if f.stale && f.refs == 0 {
		victims = append(victims, f)
	} else {
		victims = c.evictLocked()
	}
	c.mu.Unlock()
	closeAll(victims)
}

// evictLocked takes the longest unused idle handles out until the limit holds.
func (c *FileCache) evictLocked() (victims []*cachedFile) {
	for f := c.reads.first; f != nil && c.reads.n > c.readLimit; {
		next := f.link.next
		if f.refs == 0 {
			c.dropLocked(f)
			victims = append(victims, f)
		}
		f = next
	}
	return victims
}

func (c *FileCache) dropLocked(f *cachedFile) {
	if !f.stale {
		f.stale = true
		delete(c.files, f.key)
		c.reads.remove(f)
	}
}

// forget makes later readers open the file anew.
func (c *FileCache) forget(f *cachedFile) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.dropLocked(f)
}

// drop forgets one file of a log, or all of them (seq 0): it was removed, cut
// or replaced. Reads that are under way end on the old file.
func (c *FileCache) drop(l *Log, seq uint64) {
	c.mu.Lock()
	var victims []*cachedFile
	for f := c.reads.first; f != nil; {
		next := f.link.next
		if f.key.log == l && (seq == 0 || seq == f.key.seq) {
			c.dropLocked(f)
			if f.refs == 0 {
				victims = append(victims, f)
			}
		}
		f = next
	}
	c.mu.Unlock()
	closeAll(victims)
}

// closeAll closes read handles; nothing was written through them, so an error
// tells nothing.
func closeAll(files []*cachedFile) {
	for _, f := range files {
		f.open.Lock()
		if f.file != nil {
			f.file.Close()
			f.file = nil
		}
		f.open.Unlock()
	}
}

// noteWriter says that l's write handle is open and was just used, and asks
// the longest unused other log to park when too many are. A sync that fails
// meanwhile is an error for l, too: its owner has to learn that a log has
// failed, and may not call that log again before it answers somebody.
func (c *FileCache) noteWriter(l *Log) error {
	c.mu.Lock()
	if c.writers.last != l {
		c.writers.remove(l)
		c.writers.push(l)
	}
	over := c.writers.n > c.writeLimit
	c.mu.Unlock()
	if over {
		return c.parkOldest(l)
	}
	return nil
}

func (c *FileCache) dropWriter(l *Log) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.writers.remove(l)
}

// parkCandidates bounds how many logs are looked at for a clean one.
const parkCandidates = 16

// parkOldest parks an idle log that is clean, or else syncs and parks the
// oldest one: a descriptor is worth an fsync. A log whose writer is busy right
// now is passed over.
func (c *FileCache) parkOldest(except *Log) error {
	c.mu.Lock()
	var candidates []*Log
	for l := c.writers.first; l != nil && len(candidates) < parkCandidates; l = l.link.next {
		if l != except {
			candidates = append(candidates, l)
		}
	}
	c.mu.Unlock()
	for _, syncFirst := range []bool{false, true} {
		for _, l := range candidates {
			if parked, err := l.tryPark(syncFirst); parked || err != nil {
				return err
			}
		}
	}
	return nil
}

func (c *FileCache) takeBuffer() []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n := len(c.freeBuffers); n > 0 {
		b := c.freeBuffers[n-1]
		c.freeBuffers = c.freeBuffers[:n-1]
		return b[:0]
	}
	return make([]byte, 0, firstBufferSize)
}

func (c *FileCache) giveBuffer(b []byte) {
	if b == nil || cap(b) > maxBufferKept {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.freeBuffers) < maxFreeBuffers {
		c.freeBuffers = append(c.freeBuffers, b)
	}
}

// list is a doubly linked list through a link inside of the element.
type list[T any] struct {
	first, last *T
	n           int
	link        func(*T) *link[T]
}

type link[T any] struct {
	prev, next *T
	in         bool
}

func (q *list[T]) push(e *T) {
	l := q.link(e)
	*l = link[T]{prev: q.last, in: true}
	if q.last != nil {
		q.link(q.last).next = e
	} else {
		q.first = e
	}
	q.last = e
	q.n++
}

func (q *list[T]) remove(e *T) {
	l := q.link(e)
	if !l.in {
		return
	}
	if l.prev != nil {
		q.link(l.prev).next = l.next
	} else {
		q.first = l.next
	}
	if l.next != nil {
		q.link(l.next).prev = l.prev
	} else {
		q.last = l.prev
	}
	*l = link[T]{}
	q.n--
}
