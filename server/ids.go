package server

import (
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"time"

	"queen/internal/entry"
)

// idSource mints UUIDs of version 7 that rise strictly: 48 bits of
// milliseconds, 12 bits that count within a millisecond (starting low, so that
// there is room), 62 random bits. It never goes back with the clock.
type idSource struct {
	clock func() time.Time

	mu struct {
		sync.Mutex
		random *rand.ChaCha8
		millis uint64
		count  uint64
	}
}

func newIDSource(clock func() time.Time, seed io.Reader) (*idSource, error) {
	var key [32]byte
	if _, err := io.ReadFull(seed, key[:]); err != nil {
		return nil, fmt.Errorf("seed of the id source: %w", err)
	}
	s := &idSource{clock: clock}
	s.mu.random = rand.NewChaCha8(key)
	return s, nil
}

// mint returns a new id.
func (s *idSource) mint() [16]byte { return s.mintAt(s.clock()) }

// mintAt is mint by a clock that was read a moment ago.
func (s *idSource) mintAt(at time.Time) (id [16]byte) {
	now := uint64(at.UnixMilli())
	s.mu.Lock()
	if now > s.mu.millis {
		s.mu.millis, s.mu.count = now, s.mu.random.Uint64()&0x3ff
	} else if s.mu.count++; s.mu.count > 0xfff {
		s.mu.millis, s.mu.count = s.mu.millis+1, 0
	}
	millis, count, random := s.mu.millis, s.mu.count, s.mu.random.Uint64()
	s.mu.Unlock()
	binary.BigEndian.PutUint64(id[:], millis<<16|7<<12|count)
	binary.BigEndian.PutUint64(id[8:], random&^(3<<62)|1<<63)
	return id
}

// parseID reads the canonical text of a UUID, in either case.
func parseID[T string | []byte](text T) (id [16]byte, ok bool) {
	if len(text) != 36 || text[8] != '-' || text[13] != '-' || text[18] != '-' || text[23] != '-' {
		return id, false
	}
	at := 0
	for i := 0; i < 36; i += 2 {
		if text[i] == '-' {
			i++
		}
		hi, lo := hexValues[text[i]], hexValues[text[i+1]]
		if hi|lo > 15 {
			return id, false
		}
		id[at] = hi<<4 | lo
		at++
	}
	return id, true
}

// hexValues is the value of each hex digit, and 0xff for what is none.
var hexValues = func() (t [256]byte) {
	for i := range t {
		t[i] = 0xff
	}
	for i := range byte(10) {
		t['0'+i] = i
	}
	for i := range byte(6) {
		t['a'+i], t['A'+i] = 10+i, 10+i
	}
	return t
}()

// appendID appends an id as a JSON string.
func appendID(dst []byte, id [16]byte) []byte {
	return append(entry.AppendUUID(append(dst, '"'), id), '"')
}
