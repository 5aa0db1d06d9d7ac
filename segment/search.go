package segment

// The search for valid records behind bad bytes. What it finds tells recovery
// damage from an unfinished write, so it has to find what is there; and it
// must not keep a start waiting, whatever the bytes are.

import "encoding/binary"

const (
	// searchBudget bounds how many bytes each way of searching hashes.
	searchBudget = 1 << 30
	// longestZeroEnd is how many zeros a body may end with and still be found
	// as the last one before further zeros. It only bounds the guessing.
	longestZeroEnd = 4 << 10
)

// search looks for valid records after bad, where none starts. A record's
// checksum covers its position and its file, so what it finds was written
// there: a payload that contains the bytes of another segment is not found.
func (s *scanner) search(bad int64) (*TornError, error) {
	t := &TornError{}
	for _, find := range []func(bad int64, t *TornError) (int64, error){s.nextByLength, s.nextByChain, s.nextByTrying} {
		next, err := find(bad, t)
		if err != nil {
			return t, err
		}
		if next > 0 {
			t.NextPos = next
			t.RecordsAfter, err = s.count(next)
			return t, err
		}
	}
	return t, nil
}

// nextByLength finds the record after one of which only body or checksum is
// damaged: its length says where.
func (s *scanner) nextByLength(bad int64, _ *TornError) (int64, error) {
	length, err := s.plausible(bad)
	if err != nil || length == 0 {
		return 0, err
	}
	next := bad + RecordHeaderSize + length
	if length, err = s.plausible(next); err != nil || length == 0 {
		return 0, err
	}
	if ok, err := s.verifyAt(next, length); err != nil || !ok {
		return 0, err
	}
	return next, nil
}

// nextByChain finds the first record of a run that reaches the end of the
// file (or the zeros before it), whatever lies before the run. It goes
// backwards once: a position is worth hashing only if its length leads exactly
// to the end or to a record found before, which hardly happens by chance.
func (s *scanner) nextByChain(bad int64, _ *TornError) (first int64, err error) {
	end, err := s.dataEnd(bad)
	if err != nil {
		return 0, err
	}
	zeroEnd := min(s.size, end+longestZeroEnd)
	found := newBitset(end - bad)
	budget := int64(searchBudget)
	for hi := min(end, s.size-RecordHeaderSize); hi > bad+1; {
		lo := max(bad+1, hi-scanChunk)
		chunk, err := s.bytes(lo, int(hi-lo)+4) // of the last record's header more than 4 bytes are there
		if err != nil {
			return 0, err
		}
		for pos := hi - 1; pos >= lo; pos-- {
			length := int64(binary.LittleEndian.Uint32(chunk[pos-lo:]))
			next := pos + RecordHeaderSize + length
			leads := next == s.size || next >= end && next <= zeroEnd || next < end && found.has(next-bad)
			if !leads || length == 0 || length > MaxRecord {
				continue
			}
			if budget -= length; budget < 0 {
				return first, nil
			}
			if ok, err := s.verifyAt(pos, length); err != nil {
				return 0, err
			} else if ok {
				found.set(pos - bad)
				first = pos
			}
		}
		hi = lo
	}
	return first, nil
}

// verifyAt reads and checks one record beside the window.
func (s *scanner) verifyAt(pos, length int64) (bool, error) {
	s.aside = sized(s.aside, RecordHeaderSize+int(length))
	if _, err := s.file.ReadAt(s.aside, pos); err != nil {
		return false, err
	}
	_, _, ok := verify(s.aside, s.salt, pos)
	return ok, nil
}

// nextByTrying finds records that are followed by further bad bytes. Of random
// bytes one in a few dozen positions names a length that has room, so short
// ones only are hashed, and not for ever.
func (s *scanner) nextByTrying(bad int64, t *TornError) (int64, error) {
	const longest = 64 << 10
	budget := int64(searchBudget)
	for pos := bad + 1; pos+RecordHeaderSize < s.size; pos++ {
		length, err := s.plausible(pos)
		if err != nil {
			return 0, err
		}
		if length == 0 || length > longest {
			continue
		}
		if budget -= length; budget < 0 {
			t.Unsearched = s.size - pos
			return 0, nil
		}
		rec, err := s.bytes(pos, RecordHeaderSize+int(length))
		if err != nil {
			return 0, err
		}
		if _, _, ok := verify(rec, s.salt, pos); ok {
			return pos, nil
		}
	}
	return 0, nil
}

// plausible returns the length that the bytes at pos name if a record of that
// length has room there, else 0.
func (s *scanner) plausible(pos int64) (int64, error) {
	if s.size-pos <= RecordHeaderSize {
		return 0, nil
	}
	head, err := s.bytes(pos, RecordHeaderSize)
	if err != nil {
		return 0, err
	}
	length := int64(bodyLength(head))
	if length > MaxRecord || length > s.size-pos-RecordHeaderSize {
		return 0, nil
	}
	return length, nil
}

// dataEnd is where the zeros at the end of the file begin, or its size.
func (s *scanner) dataEnd(from int64) (int64, error) {
	for pos := s.size; pos > from; {
		n := min(pos-from, scanChunk)
		b, err := s.bytes(pos-n, int(n))
		if err != nil {
			return 0, err
		}
		for i := len(b) - 1; i >= 0; i-- {
			if b[i] != 0 {
				return pos - int64(len(b)-1-i), nil
			}
		}
		pos -= n
	}
	return from, nil
}

type bitset []uint64

func newBitset(n int64) bitset { return make(bitset, (n+63)/64) }

func (b bitset) set(i int64) { b[i/64] |= 1 << (i % 64) }

func (b bitset) has(i int64) bool { return b[i/64]&(1<<(i%64)) != 0 }

// count returns how many valid records follow one another from pos on.
func (s *scanner) count(pos int64) (n int, err error) {
	for pos < s.size {
		rec, bad, err := s.record(pos)
		if err != nil || bad != nil {
			return n, err
		}
		n++
		pos += int64(len(rec))
	}
	return n, nil
}
