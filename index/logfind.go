package index

import "slices"

// The look-ups of LogIndex.

// Find gives the append that holds offset of partition; when none does, the
// first one after it: retention has moved the log's start. found is false when
// there is neither.
func (x *LogIndex) Find(partition, offset uint64) (r AppendRef, found bool, err error) {
	var buf [1]AppendRef
	refs, err := x.collect(partition, offset, 1, buf[:0])
	if len(refs) == 0 || err != nil {
		return r, false, err
	}
	return refs[0], true, nil
}

// Range gives up to max appends of partition in offset order: from the one that
// Find gives on. There may be holes between them.
func (x *LogIndex) Range(partition, from uint64, max int) ([]AppendRef, error) {
	return x.collect(partition, from, max, nil)
}

func (x *LogIndex) collect(partition, from uint64, max int, out []AppendRef) ([]AppendRef, error) {
	if max <= 0 {
		return out, nil
	}
	memory, whole, l := x.collectMemory(partition, from, max, out)
	if whole {
		return memory, nil
	}
	// A file may be sealed between the two steps: then it is in both, never in
	// neither, because l was taken together with the memory.
	memory = slices.Clone(memory)
	err := x.read(l, func(l *tableList) (p *tablePair, err error) {
		if l.layered || len(memory) > 0 && len(l.pairs) > 0 && memory[0].Seq <= l.pairs[len(l.pairs)-1].last {
			out, p, err = collectLayered(l, partition, from, max, memory, out[:0])
		} else {
			out, p, err = collectOrdered(l, partition, from, max, memory, out[:0])
		}
		return p, err
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// collectMemory collects from the unsealed files. whole: no table can add
// anything before or between. l are the tables at the same moment.
func (x *LogIndex) collectMemory(partition, from uint64, max int, out []AppendRef) (_ []AppendRef, whole bool, l *tableList) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	l = x.mu.tables
	files := x.mu.memory
	i := len(files) - 1
	for ; i >= 0; i-- {
		if list := files[i].parts[partition]; len(list) > 0 && list[0].first <= from {
			// Older files hold only what is older, and so do the tables when
			// all of their files are.
			whole = len(l.pairs) == 0 || !l.layered && l.pairs[len(l.pairs)-1].last < files[i].seq
			break
		}
	}
	for i = maxInt(i, 0); i < len(files) && len(out) < max; i++ {
		out, _ = files[i].collect(partition, from, max-len(out), out)
	}
	return out, whole || len(l.pairs) == 0, l
}

func maxInt(a, b int) int { return max(a, b) } // max is a parameter's name above

// collectOrdered collects from pairs that lie one behind the other: within a
// partition the offsets of a later pair are higher.
func collectOrdered(l *tableList, partition, from uint64, max int, memory, out []AppendRef) ([]AppendRef, *tablePair, error) {
	start := 0
	for i := len(l.pairs) - 1; i > 0; i-- {
		floor, err := l.pairs[i].hasFloor(partition, from)
		if err != nil {
			return out, l.pairs[i], err
		}
		if floor {
			start = i
			break
		}
	}
	var err error
	for _, p := range l.pairs[start:] {
		if len(out) >= max {
			break
		}
		if out, err = p.collect(partition, from, max-len(out), out); err != nil {
			return out, p, err
		}
	}
	for _, r := range memory {
		if len(out) >= max {
			break
		}
		out = append(out, r)
	}
	return out, nil, nil
}

// collectLayered collects from every pair, and sorts.
func collectLayered(l *tableList, partition, from uint64, max int, memory, out []AppendRef) ([]AppendRef, *tablePair, error) {
	out = append(out, memory...)
	var err error
	for _, p := range l.pairs {
		if out, err = p.collect(partition, from, max, out); err != nil {
			return out, p, err
		}
	}
	slices.SortStableFunc(out, func(a, b AppendRef) int { return compareUint(a.First, b.First) })
	out = slices.CompactFunc(out, func(a, b AppendRef) bool { return a.First == b.First })
	return out[:min(len(out), max)], nil, nil
}

// hasFloor reports whether the pair has an append of the partition at or before
// offset from.
func (p *tablePair) hasFloor(partition, from uint64) (bool, error) {
	c, ok, err := p.seek(partition, from)
	return ok && c.at() != nil && c.at().Partition == partition, err
}

// seek gives a cursor at the last live append at or before (partition, from).
// ok is false when the pair has nothing of the partition for sure.
func (p *tablePair) seek(partition, from uint64) (c appendCursor, ok bool, err error) {
	s := p.idx.section(sectionAppends)
	if ok, err = p.idx.mayHold(s, spreadKey(partition)); !ok || err != nil {
		return c, false, err
	}
	if c, err = p.idx.seekAppend(partition, from); err != nil {
		return c, false, err
	}
	for r := c.at(); r != nil && r.Partition == partition && p.isDead(r.Seq); r = c.at() {
		if err := c.step(-1); err != nil {
			return c, false, err
		}
	}
	return c, true, nil
}

// collect appends up to max of the pair's appends to out, from the one that
// holds from, or else the first after it, on.
func (p *tablePair) collect(partition, from uint64, max int, out []AppendRef) ([]AppendRef, error) {
	c, ok, err := p.seek(partition, from)
	if !ok || err != nil {
		return out, err
	}
	if r := c.at(); r == nil || r.Partition != partition || r.end() <= from {
		if err := c.step(+1); err != nil {
			return out, err
		}
	}
	if c.i >= 0 {
		out = slices.Grow(out, min(max, len(c.refs)-c.i))
	}
	for r := c.at(); r != nil && r.Partition == partition && max > 0; r = c.at() {
		if !p.isDead(r.Seq) {
			out = append(out, *r)
			max--
		}
		if err := c.step(+1); err != nil {
			return out, err
		}
	}
	return out, nil
}

// FindTime gives the first offset of partition that was appended at or after t
// (microseconds); ok is false when there is none yet.
func (x *LogIndex) FindTime(partition uint64, t int64) (offset uint64, ok bool, err error) {
	l, offset, ok := x.findTimeMemory(partition, t)
	err = x.read(l, func(l *tableList) (*tablePair, error) {
		for i, p := range l.pairs {
			if l.newest[i] < t {
				continue
			}
			o, found, err := p.findTime(partition, t)
			if err != nil {
				return p, err
			}
			if found && (!ok || o < offset) {
				offset, ok = o, true
			}
			if found && !l.layered {
				break
			}
		}
		return nil, nil
	})
	return offset, ok && err == nil, err
}

func (x *LogIndex) findTimeMemory(partition uint64, t int64) (l *tableList, offset uint64, ok bool) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	for _, m := range x.mu.memory {
		if m.maxTime < t {
			continue
		}
		list := m.parts[partition]
		i, _ := slices.BinarySearchFunc(list, t, func(a memoryAppend, t int64) int {
			if a.time < t {
				return -1
			}
			return 1
		})
		if i < len(list) {
			return x.mu.tables, list[i].first, true
		}
	}
	return x.mu.tables, 0, false
}

// findTime finds the first live append of the partition at or after t. Times
// rise with offsets, so the sparse index narrows it down to one block.
func (p *tablePair) findTime(partition uint64, t int64) (offset uint64, ok bool, err error) {
	s := p.idx.section(sectionAppends)
	if ok, err := p.idx.mayHold(s, spreadKey(partition)); !ok || err != nil {
		return 0, false, err
	}
	sparse, err := p.idx.sparse(s)
	if err != nil {
		return 0, false, err
	}
	// The last block that starts before (partition, t), or the first.
	i, _ := slices.BinarySearchFunc(sparse, partition, func(e sparseEntry, partition uint64) int {
		if e.a < partition || e.a == partition && e.time < t {
			return -1
		}
		return 1
	})
	c := appendCursor{t: p.idx, sparse: sparse, block: maxInt(i-1, 0) - 1, i: -1}
	if err := c.step(+1); err != nil {
		return 0, false, err
	}
	for r := c.at(); r != nil && r.Partition <= partition; r = c.at() {
		if r.Partition == partition && r.Time >= t && !p.isDead(r.Seq) {
			return r.First, true, nil
		}
		if err := c.step(+1); err != nil {
			return 0, false, err
		}
	}
	return 0, false, nil
}

// FindTxn calls fn with the offsets, newest first, at which sealed files may
// have a message of partition with this hash (entry.TxnHash), until fn returns
// false. A hash never decides: the caller reads the message and compares; an
// offset may also be of another partition, or no longer be kept. Unsealed files
// are not looked at: their ids are in DedupMemory.
func (x *LogIndex) FindTxn(partition, hash uint64, fn func(offset uint64) bool) error {
	return x.FindTxnSince(partition, hash, never, fn)
}

// FindTxnSince is FindTxn for messages appended at or after since
// (microseconds); it skips tables with older ones only.
func (x *LogIndex) FindTxnSince(_, hash uint64, since int64, fn func(offset uint64) bool) error {
	var all []uint64
	err := x.read(x.snapshot(), func(l *tableList) (*tablePair, error) {
		all = all[:0]
		for i, p := range l.pairs {
			if l.newest[i] < since {
				continue
			}
			offsets, err := p.dedup.findTxn(hash)
			if err != nil {
				return p, err
			}
			all = append(all, offsets...)
		}
		return nil, nil
	})
	if err != nil {
		return err
	}
	slices.Sort(all) // within a partition a higher offset is newer
	all = slices.Compact(all)
	for _, o := range slices.Backward(all) {
		if !fn(o) {
			return nil
		}
	}
	return nil
}

// FindValue gives where the record of a value is.
func (x *LogIndex) FindValue(id uint64) (seq uint64, pos int64, ok bool, err error) {
	l, seq, pos, ok := x.findValueMemory(id)
	if ok {
		return seq, pos, true, nil
	}
	err = x.read(l, func(l *tableList) (*tablePair, error) {
		for _, p := range slices.Backward(l.pairs) {
			if !p.mayHoldValue(id) {
				continue
			}
			v, found, err := p.idx.findValue(id)
			if err != nil {
				return p, err
			}
			if found && !p.isDead(v.seq) {
				seq, pos, ok = v.seq, v.pos, true
				break
			}
		}
		return nil, nil
	})
	return seq, pos, ok && err == nil, err
}

func (x *LogIndex) findValueMemory(id uint64) (l *tableList, seq uint64, pos int64, ok bool) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	for _, m := range x.mu.memory {
		if i, found := m.findValue(id); found {
			return x.mu.tables, m.seq, m.values[i].pos, true
		}
	}
	return x.mu.tables, 0, 0, false
}

func (p *tablePair) mayHoldValue(id uint64) (may bool) {
	p.live(func(f *FileInfo) { may = may || f.Values > 0 && f.MinValue <= id && id <= f.MaxValue })
	return may
}
