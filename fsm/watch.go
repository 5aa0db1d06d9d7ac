package fsm

import (
	"container/heap"
	"slices"
)

// Watch waits until one of some partitions has a message at or behind an offset,
// for WaitMicros at most; then it is answered, with the entry that stored it.
// Nothing is written, and nobody polls.
type Watch struct {
	Places     []WatchPlace
	WaitMicros int64

	tenant   string
	call     *Call
	deadline int64
	heapIdx  int
	gone     bool
	parts    []*partition // that it stands at
}

// WatchPlace is a partition, which need not be there yet, and the offset that
// is waited for.
type WatchPlace struct {
	Queue, Partition string
	Offset           uint64
}

// watches are the calls that wait for messages, by partition, and for those that
// are not there yet by name.
type watches struct {
	parts map[*partition][]*Watch
	names map[watchedName][]*Watch
	due   watchHeap
}

type watchedName struct{ tenant, queue, partition string }

func (m *Machine) planWatch(c *Call, w *Watch) verdict {
	ws := &m.watches
	for i := range w.Places {
		at := &w.Places[i]
		if q := m.s.findQueue(c.Tenant, at.Queue); q != nil {
			if p := q.byName[at.Partition]; p != nil && p.next > at.Offset {
				return answered
			}
		}
	}
	if w.WaitMicros <= 0 || m.released || c.Gone.Load() {
		return instantly
	}
	w.tenant, w.call, w.deadline = c.Tenant, c, m.now+w.WaitMicros
	if ws.parts == nil {
		ws.parts, ws.names = map[*partition][]*Watch{}, map[watchedName][]*Watch{}
	}
	for i := range w.Places {
		at := &w.Places[i]
		if q := m.s.findQueue(c.Tenant, at.Queue); q != nil && q.byName[at.Partition] != nil {
			p := q.byName[at.Partition]
			ws.parts[p] = append(ws.parts[p], w)
			w.parts = append(w.parts, p)
			continue
		}
		name := watchedName{c.Tenant, at.Queue, at.Partition}
		ws.names[name] = append(ws.names[name], w)
	}
	heap.Push(&ws.due, w)
	return parked
}

// seen ends the waiting for messages of a partition: one was appended.
func (m *Machine) seen(p *partition) {
	ws := &m.watches
	m.wake(ws.parts[p])
	if len(ws.names) > 0 {
		m.wake(ws.names[watchedName{p.q.tenant, p.q.name, p.name}])
	}
}

// wake answers calls with the entry of this cycle.
func (m *Machine) wake(list []*Watch) {
	for _, w := range list {
		if !w.gone { // one may stand in a list twice
			m.endWatch(w)
			m.done = append(m.done, w.call)
		}
	}
}

// endWatch takes a call out of all lists.
func (m *Machine) endWatch(w *Watch) {
	if w.gone {
		return
	}
	ws := &m.watches
	w.gone = true
	heap.Remove(&ws.due, w.heapIdx)
	for i := range w.Places {
		at := &w.Places[i]
		name := watchedName{w.tenant, at.Queue, at.Partition}
		if list := withoutWatch(ws.names[name], w); len(list) > 0 {
			ws.names[name] = list
		} else {
			delete(ws.names, name)
		}
	}
	for _, p := range w.parts {
		if list := withoutWatch(ws.parts[p], w); len(list) > 0 {
			ws.parts[p] = list
		} else {
			delete(ws.parts, p)
		}
	}
}

func withoutWatch(list []*Watch, w *Watch) []*Watch {
	// A new list: seen walks the old one.
	return slices.DeleteFunc(slices.Clone(list), func(o *Watch) bool { return o == w })
}

// forgetWatched answers those that wait for a partition which goes.
func (m *Machine) forgetWatched(p *partition) {
	if len(m.watches.parts) > 0 {
		m.wake(m.watches.parts[p])
	}
}

// endWatches answers those whose time is over.
func (m *Machine) endWatches() {
	for ws := &m.watches; len(ws.due) > 0 && ws.due[0].deadline <= m.now; {
		w := ws.due[0]
		m.endWatch(w)
		m.instant = append(m.instant, w.call)
	}
}

// takeWatches empties all lists.
func (m *Machine) takeWatches() (calls []*Call) {
	for ws := &m.watches; len(ws.due) > 0; {
		w := ws.due[0]
		m.endWatch(w)
		calls = append(calls, w.call)
	}
	return calls
}

type watchHeap []*Watch

func (h watchHeap) Len() int           { return len(h) }
func (h watchHeap) Less(i, j int) bool { return h[i].deadline < h[j].deadline }
func (h watchHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].heapIdx, h[j].heapIdx = i, j
}
func (h *watchHeap) Push(x any) {
	w := x.(*Watch)
	w.heapIdx = len(*h)
	*h = append(*h, w)
}
func (h *watchHeap) Pop() any {
	old := *h
	w := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	return w
}
