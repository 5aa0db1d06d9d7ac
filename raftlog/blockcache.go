package raftlog

import (
	"sync"

	"queen/internal/entry"
)

// blockCacheBytes bounds the memory of a store's block cache.
const blockCacheBytes = 32 << 20

// blockCache keeps verified append records that were read in part: a consumer
// that takes a large append in small batches reads and checks it once instead
// of once a batch. Two halves age in turn: what was not used while the young
// half filled up goes. It is safe for concurrent use.
type blockCache struct {
	mu struct {
		sync.Mutex
		young, old map[blockKey]*block
		bytes      int
	}
}

type blockKey struct {
	log, seq uint64
	pos      int64
}

// block is an append that was read and checked, and where in its messages each
// of them starts: walking there touches memory that nobody needs. Nobody
// writes to it.
type block struct {
	append entry.Append
	at     []uint32
}

// newBlock finds the messages of an append.
func newBlock(a entry.Append) (*block, error) {
	b := &block{append: a, at: make([]uint32, 0, a.Count)}
	rest := a.Messages
	for range a.Count {
		b.at = append(b.at, uint32(len(a.Messages)-len(rest)))
		var err error
		if _, rest, err = entry.NextMessage(rest); err != nil {
			return nil, err
		}
	}
	return b, nil
}

func (b *block) size() int { return len(b.append.Raw) + 4*len(b.at) }

// from is the append's part that starts with the message at offset.
func (b *block) from(offset uint64) entry.Append {
	a := b.append
	if offset > a.First && offset-a.First < uint64(len(b.at)) {
		skip := offset - a.First
		a.First, a.Count, a.Messages = offset, a.Count-uint32(skip), a.Messages[b.at[skip]:]
	}
	return a
}

// get returns a cached append, or nil.
func (c *blockCache) get(k blockKey) *block {
	c.mu.Lock()
	defer c.mu.Unlock()
	if b, ok := c.mu.young[k]; ok {
		return b
	}
	b, ok := c.mu.old[k]
	if ok {
		delete(c.mu.old, k)
		c.putLocked(k, b)
	}
	return b
}

// put gives a block to the cache; nobody may write to its bytes any more.
func (c *blockCache) put(k blockKey, b *block) {
	if b.size() > blockCacheBytes/16 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.putLocked(k, b)
}

func (c *blockCache) putLocked(k blockKey, b *block) {
	if c.mu.young == nil || c.mu.bytes+b.size() > blockCacheBytes/2 {
		c.mu.old, c.mu.young, c.mu.bytes = c.mu.young, map[blockKey]*block{}, 0
	}
	if _, ok := c.mu.young[k]; !ok {
		c.mu.bytes += b.size()
	}
	c.mu.young[k] = b
}

// forget drops what was cached of a log: a cut or a replaced file may put
// other records at the same places.
func (c *blockCache) forget(log uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, m := range []map[blockKey]*block{c.mu.young, c.mu.old} {
		for k := range m {
			if k.log == log {
				delete(m, k)
			}
		}
	}
}
