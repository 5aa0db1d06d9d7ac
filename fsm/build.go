package fsm

import (
	"container/heap"
	"slices"
)

// Ready ends loading and replay and builds what is derived from the rows.
// dedupSince is the time up to which ids are found in sealed files only.
func (m *Machine) Ready(dedupSince int64) error {
	m.dedup.SetSince(dedupSince)
	m.build()
	return nil
}

// build makes name look-ups, ready lists and heaps from the rows. Objects that
// lost their parent while a fuzzy checkpoint was replayed are dropped here.
func (m *Machine) build() {
	s := m.s
	s.queueName = map[string]*queue{}
	s.queueOrder.Clear()
	s.letterOrder.Clear()
	s.dead, m.reviews = nil, nil
	m.wakes, m.expiries, m.due, m.leases = nil, nil, nil, nil
	s.dying, m.placing, m.placingNow, m.workers = nil, nil, false, nil
	s.groupOrder.Clear()
	m.ret = retention{}
	m.buildStats()
	m.now = s.time
	for _, id := range sortedIDs(s.queues) {
		q := s.queues[id]
		if !q.exists {
			m.forgetQueue(q)
			continue
		}
		m.buildQueue(q)
	}
	s.kv.Scan(func(_ string, k *kvRow) bool {
		k.heapIdx = -1
		if k.expires != 0 {
			heap.Push(&m.expiries, k)
		}
		return true
	})
	s.timers.Scan(func(_ string, t *timer) bool {
		t.heapIdx, t.firing = -1, false
		heap.Push(&m.due, t)
		return true
	})
	s.outcomes.build()
	m.buildRedrives()
	m.derived = true
}

func sortedIDs(queues map[uint64]*queue) []uint64 {
	ids := make([]uint64, 0, len(queues))
	for id := range queues {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

// forgetQueue drops what hangs on a queue that does not exist.
func (m *Machine) forgetQueue(q *queue) {
	for _, p := range q.parts {
		delete(m.s.partitions, p.id)
	}
	for _, g := range slices.Concat(q.groups, q.dying) {
		delete(m.s.groups, g.id)
	}
	q.letters.Scan(func(_ string, l *deadLetter) bool {
		delete(m.s.letters, l.id)
		return true
	})
	delete(m.s.queues, q.id)
}

func (m *Machine) buildQueue(q *queue) {
	s := m.s
	if q.deleted {
		s.dead = append(s.dead, q)
	} else {
		s.queueName[q.tenant+q.name] = q
		s.queueOrder.Set(q.tenant+q.name, q)
	}
	q.sortParts()
	m.sortGroups(q)
	q.counts, q.reviewed, q.parked, q.lastAppend, q.leased = queueCounts{}, reviewDone, 0, 0, 0
	q.byName, q.byGroup = make(map[string]*partition, len(q.parts)), map[string]*group{}
	for _, g := range q.groups {
		m.buildGroup(g)
	}
	q.parts = slices.DeleteFunc(q.parts, func(p *partition) bool {
		if !p.exists {
			delete(s.partitions, p.id)
		}
		return !p.exists
	})
	for _, p := range q.parts {
		q.byName[p.name] = p
		p.letters, p.delay, p.oldest, p.counted = 0, nil, 0, 0
		m.countMessages(p)
		q.lastAppend = max(q.lastAppend, p.lastAppend)
		p.cursors = slices.DeleteFunc(p.cursors, func(c *cursor) bool { return !c.row || !c.g.exists && !c.g.dying() })
		for _, c := range p.cursors {
			c.prev, c.succ, c.inReady, c.wakeAt, c.heapIdx, c.counted = nil, nil, false, 0, -1, cursorCount{}
			c.tallied, c.consumed = false, false
			if q.deleted || !c.g.exists {
				if c.lease != nil {
					c.lease.c = nil
				}
				continue // nothing is due there any more; the sweeper takes it
			}
			if l := c.lease; l != nil {
				c.lease = nil
				m.setLease(c, l)
			}
			m.refresh(c)
		}
	}
	q.recency.build(q.parts)
	q.names = nil
	q.letters.Scan(func(_ string, l *deadLetter) bool {
		s.letterOrder.Set(l.orderKey(), l)
		if p := s.partitions[l.partitionID]; p != nil {
			p.letters++
		}
		return true
	})
}

// sortGroups takes the groups that are gone out of the list.
func (m *Machine) sortGroups(q *queue) {
	all := append(q.groups, q.dying...)
	q.groups, q.dying = nil, nil
	slices.SortFunc(all, func(a, b *group) int { return compareID(a.id, b.id) })
	for _, g := range all {
		switch {
		case g.exists:
			q.groups = append(q.groups, g)
		case g.dying():
			g.readyHead, g.readyTail, g.ready, g.swept = nil, nil, 0, 0
			q.dying = append(q.dying, g)
			m.s.dying = append(m.s.dying, g)
		default:
			delete(m.s.groups, g.id)
		}
	}
}

func (m *Machine) buildGroup(g *group) {
	g.q.byGroup[g.name] = g
	g.readyHead, g.readyTail, g.ready, g.sweep, g.counts = nil, nil, 0, 0, groupCounts{}
	if g.mark != nil && !g.mark.exists {
		g.mark = nil
	}
	g.swept = 0
	g.setRule()
	if g.q.deleted {
		return
	}
	m.s.groupOrder.Set(g.orderKey(), g)
	if g.rule.moved && g.rule.mode == SubscribeFrom && !g.rule.placed {
		m.placing = append(m.placing, g)
	}
}

// Heaps of what becomes due by time. Each object stands in its heap at most
// once and knows its place, so that renewing a lease or a lifetime moves it
// instead of leaving a stale entry behind.

type wakeHeap []*cursor

func (h wakeHeap) Len() int           { return len(h) }
func (h wakeHeap) Less(i, j int) bool { return h[i].wakeAt < h[j].wakeAt }
func (h wakeHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].heapIdx, h[j].heapIdx = int32(i), int32(j)
}
func (h *wakeHeap) Push(x any) {
	c := x.(*cursor)
	c.heapIdx = int32(len(*h))
	*h = append(*h, c)
}
func (h *wakeHeap) Pop() any {
	old := *h
	c := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	c.heapIdx = -1
	return c
}

type expiryHeap []*kvRow

func (h expiryHeap) Len() int           { return len(h) }
func (h expiryHeap) Less(i, j int) bool { return h[i].expires < h[j].expires }
func (h expiryHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].heapIdx, h[j].heapIdx = int32(i), int32(j)
}
func (h *expiryHeap) Push(x any) {
	k := x.(*kvRow)
	k.heapIdx = int32(len(*h))
	*h = append(*h, k)
}
func (h *expiryHeap) Pop() any {
	old := *h
	k := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	k.heapIdx = -1
	return k
}

type dueHeap []*timer

func (h dueHeap) Len() int { return len(h) }
func (h dueHeap) Less(i, j int) bool {
	if h[i].deliverAt != h[j].deliverAt {
		return h[i].deliverAt < h[j].deliverAt
	}
	return h[i].updated < h[j].updated || h[i].updated == h[j].updated && h[i].key < h[j].key
}
func (h dueHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].heapIdx, h[j].heapIdx = int32(i), int32(j)
}
func (h *dueHeap) Push(x any) {
	t := x.(*timer)
	t.heapIdx = int32(len(*h))
	*h = append(*h, t)
}
func (h *dueHeap) Pop() any {
	old := *h
	t := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	t.heapIdx = -1
	return t
}
