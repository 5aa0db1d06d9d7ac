package fsm

import (
	"bytes"

	"queen/internal/entry"
)

// smallCall is the number of items up to which a call is searched item by item;
// most calls are small, and a map costs more than looking.
const smallCall = 32

// GroupItems sorts the items by partition, keeping request order, and marks
// repeats inside the call. The edge calls it once, off the loop.
func (p *Push) GroupItems() {
	var groups map[[2]string]int
	var seen map[uint64][]int
	if len(p.Items) > smallCall {
		groups, seen = map[[2]string]int{}, make(map[uint64][]int, len(p.Items))
	}
	last := -1
	for i := range p.Items {
		it := &p.Items[i]
		if last < 0 || p.Groups[last].Queue != it.Queue || p.Groups[last].Partition != it.Partition {
			last = p.groupOf(it, groups)
		}
		g := &p.Groups[last]
		it.DupOf = -1
		if it.Txn != nil {
			it.DupOf = p.firstOf(it, g, seen)
		}
		if seen != nil && it.Txn != nil && it.DupOf < 0 {
			seen[it.TxnHash] = append(seen[it.TxnHash], i)
		}
		g.Items = append(g.Items, i)
	}
}

// groupOf finds the group of an item's partition, or begins it.
func (p *Push) groupOf(it *PushItem, groups map[[2]string]int) int {
	if groups != nil {
		key := [2]string{it.Queue, it.Partition}
		if g, ok := groups[key]; ok {
			return g
		}
		groups[key] = len(p.Groups)
	} else {
		for g := range p.Groups {
			if p.Groups[g].Queue == it.Queue && p.Groups[g].Partition == it.Partition {
				return g
			}
		}
	}
	p.Groups = append(p.Groups, PushGroup{Queue: it.Queue, Partition: it.Partition})
	return len(p.Groups) - 1
}

// firstOf is the first item of the group with the same transactionId, or -1. A
// hash only points there: the ids are compared.
func (p *Push) firstOf(it *PushItem, g *PushGroup, seen map[uint64][]int) int {
	before := g.Items
	if seen != nil {
		before = seen[it.TxnHash]
	}
	for _, j := range before {
		o := &p.Items[j]
		if o.TxnHash == it.TxnHash && o.DupOf < 0 && bytes.Equal(o.Txn, it.Txn) &&
			o.Queue == it.Queue && o.Partition == it.Partition {
			return j
		}
	}
	return -1
}

// planPush stores each group by itself: a duplicate or an append that is too
// large stops nothing else.
func (m *Machine) planPush(c *Call, p *Push) verdict {
	lookup := m.judgePush(c, p)
	switch {
	case c.Misfit:
		return answered
	case lookup || c.Key != nil && m.needOriginals(c, p):
		return again
	}
	for i := range p.Groups {
		m.emitGroup(c.Tenant, p, &p.Groups[i])
		m.countPush(c.Tenant, p.Groups[i].Queue)
	}
	return answered
}

// judgePush sets the status of every item, writing nothing. It reports whether
// the call has to look ids up on disk first. A payload in another form than its
// queue keeps makes the call a misfit.
func (m *Machine) judgePush(c *Call, p *Push) (lookup bool) {
	for gi := range p.Groups {
		g := &p.Groups[gi]
		var part *partition
		var window int64
		keeps := FormClear
		if q := m.s.findQueue(c.Tenant, g.Queue); q != nil {
			part = q.byName[g.Partition]
			window = q.opts.window()
			keeps = q.opts.form()
		}
		if part != nil && window > 0 {
			m.warm(part, p, g)
		}
		size := 64
		for _, i := range g.Items {
			it := &p.Items[i]
			it.Status = Queued
			if it.Form != keeps && it.Form != FormAny {
				it.Want, c.Misfit = keeps, true
			}
			if it.DupOf >= 0 {
				it.Status = Duplicate
				continue
			}
			size += len(it.Packed)
			if it.Txn == nil || part == nil || window == 0 {
				continue
			}
			hit, offset, need := m.findDuplicate(c, part, it, window)
			lookup = lookup || need
			if hit {
				it.Status, it.Offset = Duplicate, offset
				it.PartitionID, it.QueueID = part.id, part.q.id
				size -= len(it.Packed)
			}
		}
		if size > m.cfg.EntryBytes {
			for _, i := range g.Items {
				p.Items[i].Status = Refused
			}
		}
	}
	return lookup
}

// warm lets the look-ups of a group's ids wait for memory together.
func (m *Machine) warm(part *partition, p *Push, g *PushGroup) {
	m.hashes = m.hashes[:0]
	for _, i := range g.Items {
		m.hashes = append(m.hashes, entry.MixHash(part.id, p.Items[i].TxnHash))
	}
	m.dedup.Warm(m.hashes)
}

// findDuplicate looks for a message with the item's transactionId that was
// appended less than window ago: in memory, and for what memory does not reach
// back to, in what the call looked up.
func (m *Machine) findDuplicate(c *Call, p *partition, it *PushItem, window int64) (hit bool, offset uint64, need bool) {
	hash := entry.MixHash(p.id, it.TxnHash)
	after := m.now - window
	m.dedup.Lookup(p.id, hash, it.Txn, func(o uint64, t int64) bool {
		hit, offset, it.storedAt = t > after, o, t
		return false // newest first: an older one decides nothing more
	})
	if hit {
		return true, offset, false
	}
	since := m.dedup.Since()
	if after >= since || p.created > since {
		return false, 0, false
	}
	n := c.need(needTxn, p, it.Txn, since)
	if n == nil {
		return false, 0, true
	}
	for _, h := range n.hits {
		if h.time > after {
			it.storedAt = h.time
			return true, h.offset, false
		}
	}
	return false, 0, false
}

// emitGroup appends the items of one partition that were judged Queued.
func (m *Machine) emitGroup(tenant string, p *Push, g *PushGroup) {
	n := 0
	for _, i := range g.Items {
		if p.Items[i].Status == Queued {
			n++
		}
	}
	if n == 0 {
		m.copyWinners(p, g)
		return
	}
	q := m.pushQueue(tenant, g.Queue)
	part := m.pushPartition(q, g.Partition)
	messages := m.messages[:0]
	offset := part.next
	for _, i := range g.Items {
		it := &p.Items[i]
		if it.Status != Queued {
			continue
		}
		it.Offset, it.PartitionID, it.QueueID = offset, part.id, q.id
		messages = append(messages, it.Packed)
		m.remember(part, it, offset)
		offset++
	}
	m.append(part, messages)
	clear(messages)
	m.messages = messages[:0]
	m.copyWinners(p, g)
}

// copyWinners gives repeats inside the call their first one's place.
func (m *Machine) copyWinners(p *Push, g *PushGroup) {
	for _, i := range g.Items {
		it := &p.Items[i]
		if it.DupOf < 0 {
			continue
		}
		w := &p.Items[it.DupOf]
		it.Offset, it.PartitionID, it.QueueID = w.Offset, w.PartitionID, w.QueueID
		if w.Status == Refused {
			it.Status = Refused
		}
	}
}

func (m *Machine) remember(p *partition, it *PushItem, offset uint64) {
	txn := it.Txn
	if txn == nil {
		txn = it.ID[:]
	}
	m.dedup.Add(p.id, offset, entry.MixHash(p.id, it.TxnHash), m.now, txn, it.Txn == nil)
}

// append adds messages at the end of a partition and tells the groups.
func (m *Machine) append(p *partition, messages [][]byte) {
	first := p.next
	m.b.Append(p.q.id, p.id, first, m.now, len(messages), messages...)
	previous := p.lastAppend
	if p.start == p.next {
		p.oldest = m.now
	}
	p.next, p.lastAppend, p.q.lastAppend = first+uint64(len(messages)), m.now, m.now
	s, n := m.tally(p.q), int64(len(messages))
	s.cur.PushMessages += n
	s.up.cur.PushMessages += n
	p.q.recency.moved(p)
	if len(m.watches.due) > 0 {
		m.seen(p)
	}
	m.touch(p)
	m.countMessages(p)
	p.appended(first, m.now)
	at := 0 // in the cursors, which stand in the order of the groups
	for _, g := range p.q.groups {
		for at < len(p.cursors) && p.cursors[at].g.id < g.id {
			at++
		}
		var c *cursor
		if at < len(p.cursors) && p.cursors[at].g == g {
			c = p.cursors[at]
		}
		if c != nil && c.stale() {
			m.forget(c)
			c = nil
		}
		if c == nil || !c.row {
			c = m.firstAppend(p, g, c, first, previous)
		}
		if c != nil {
			m.refresh(c)
		}
	}
}

// firstAppend makes the cursor of a group that meets the partition by an
// append after the group's start, or gives the one that a sweep has found its
// row. Where the start is still to come it returns nil; where it is in what was
// there before only a look-up can tell it, and the row is made at the claim.
func (m *Machine) firstAppend(p *partition, g *group, c *cursor, first uint64, previous int64) *cursor {
	committed := int64(first) - 1
	switch {
	case p.id >= g.rule.partition || g.rule.mode == SubscribeAll:
		committed = int64(p.start) - 1
	case g.rule.mode == SubscribeFrom && (m.now < g.rule.from || first > p.start && g.rule.from <= previous):
		return c
	}
	if c == nil {
		c = m.newCursor(p, g, committed)
	}
	m.keep(c)
	return c
}

func (m *Machine) newCursor(p *partition, g *group, committed int64) *cursor {
	c := &cursor{p: p, g: g, committed: committed, heapIdx: -1, epoch: g.epoch}
	p.addCursor(c)
	return c
}

// keep gives a cursor its row.
func (m *Machine) keep(c *cursor) {
	c.row = true
	m.put(c)
}
