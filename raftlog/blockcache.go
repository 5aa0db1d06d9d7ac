package raftlog

import "sync"

// blockCacheBytes bounds the memory of a store's block cache.
const blockCacheBytes = 32 << 20

// blockCache keeps verified append records that were read in part: a consumer
// that takes a large append in small batches reads and checks it once instead
// of once a batch. Two halves age in turn: what was not used while the young
// half filled up goes. It is safe for concurrent use.
type blockCache struct {
	mu struct {
		sync.Mutex
		young, old map[blockKey][]byte
		bytes      int
	}
}

type blockKey struct {
	log, seq uint64
	pos      int64
}

// get returns a record's body, which nobody writes to.
func (c *blockCache) get(k blockKey) []byte {
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

// put gives a body to the cache; the caller must not write to it any more.
func (c *blockCache) put(k blockKey, body []byte) {
	if len(body) > blockCacheBytes/16 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.putLocked(k, body)
}

func (c *blockCache) putLocked(k blockKey, body []byte) {
	if c.mu.young == nil || c.mu.bytes+len(body) > blockCacheBytes/2 {
		c.mu.old, c.mu.young, c.mu.bytes = c.mu.young, map[blockKey][]byte{}, 0
	}
	if _, ok := c.mu.young[k]; !ok {
		c.mu.bytes += len(body)
	}
	c.mu.young[k] = body
}

// forget drops what was cached of a log: a cut or a replaced file may put
// other records at the same places.
func (c *blockCache) forget(log uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, m := range []map[blockKey][]byte{c.mu.young, c.mu.old} {
		for k := range m {
			if k.log == log {
				delete(m, k)
			}
		}
	}
}
