package fsm

import (
	"bytes"
	"slices"

	"github.com/cespare/xxhash/v2"

	"queen/internal/entry"
)

func (m *Machine) planConfigure(tenant string, cf *Configure) verdict {
	q := m.s.findQueue(tenant, cf.Queue)
	opts := DefaultOptions()
	if q != nil && !cf.Replace {
		opts = q.opts
	}
	for _, v := range cf.Set {
		opts.Set(v)
	}
	switch {
	case q == nil:
		q = m.newQueue(tenant, cf.Queue, opts)
	case q.opts != opts:
		old := q.opts
		q.opts = opts
		m.put(q)
		m.optionsChanged(q, &old)
	}
	cf.QueueID, cf.Options = q.id, q.opts
	return answered
}

// optionsChanged has the cursors looked at again when the changed options decide
// whether stored messages are deliverable: in slices, from this cycle on.
func (m *Machine) optionsChanged(q *queue, old *Options) {
	if q.opts.DelayedProcessing == old.DelayedProcessing && q.opts.WindowBuffer == old.WindowBuffer {
		return
	}
	if q.reviewed == reviewDone {
		m.reviews = append(m.reviews, q)
	}
	q.reviewed = 0
}

// reviewDone is queue.reviewed of a queue whose cursors all know its options.
const reviewDone = -1

// reviewSlice bounds how many partitions a cycle looks at after options changed.
const reviewSlice = 256

// review goes on with the queues whose options changed.
func (m *Machine) review() {
	for budget := reviewSlice; len(m.reviews) > 0; m.reviews = m.reviews[1:] {
		q := m.reviews[0]
		for ; !q.deleted && q.reviewed < len(q.parts); q.reviewed++ {
			if budget == 0 {
				return
			}
			budget--
			p := q.parts[q.reviewed]
			p.delay = nil
			for _, c := range p.cursors {
				m.refresh(c)
			}
		}
		q.reviewed = reviewDone
	}
}

// planDeleteQueue makes a queue disappear at once, by one row; the sweeper
// removes what it held in slices (F24).
func (m *Machine) planDeleteQueue(tenant string, d *DeleteQueue) verdict {
	q := m.s.findQueue(tenant, d.Queue)
	if q == nil {
		return answered
	}
	d.Existed = true
	q.deleted = true
	delete(m.s.queueName, tenant+d.Queue)
	m.s.queueOrder.Delete(tenant + d.Queue)
	m.s.dead = append(m.s.dead, q)
	m.dropSeries(q)
	m.put(q)
	for _, g := range q.groups {
		for _, w := range slices.Clone(g.waiters.list) {
			if !w.gone {
				m.orphan(tenant, w)
			}
		}
		g.readyHead, g.readyTail, g.ready = nil, nil, 0
		m.s.groupOrder.Delete(g.orderKey())
	}
	return answered
}

// orphan keeps a waiting pop whose queue was deleted: it waits for a queue of
// that name, as it would have before the first push.
func (m *Machine) orphan(tenant string, w *waiter) {
	key := tenant + w.pop.Queue
	m.orphans[key] = append(slices.DeleteFunc(m.orphans[key], func(w *waiter) bool { return w.gone }), w)
}

// adoptOrphans gives a new queue the pops that wait for one of its name. Their
// groups are registered with it in the same entry.
func (m *Machine) adoptOrphans(q *queue) {
	key := q.tenant + q.name
	list := m.orphans[key]
	if list == nil {
		return
	}
	delete(m.orphans, key)
	for _, w := range list {
		if w.gone {
			continue
		}
		w.pop.forgetGroups()
		g, _ := m.ensureGroup(q, w.pop)
		w.g.q.parked--
		q.parked++
		w.g, w.effects = g, true
		g.waiters.add(w)
		m.heat(g)
	}
}

// sweepSliceRows bounds how many partitions of a deleted queue a cycle removes.
const sweepSliceRows = 256

// sweepDead removes the rows of deleted queues, by key range, so that a replay
// finds also what lost its parent (F13).
func (m *Machine) sweepDead() {
	if len(m.s.dead) == 0 {
		return
	}
	q := m.s.dead[0]
	if n := min(sweepSliceRows, len(q.parts)); n > 0 {
		lo, hi := q.parts[0].id, q.parts[n-1].id+1
		for _, p := range q.parts[:n] {
			for _, c := range p.cursors {
				m.clearLease(c)
				m.setWake(c, 0)
				c.row = false
			}
			p.exists = false
			delete(m.s.partitions, p.id)
		}
		q.parts = q.parts[n:]
		for _, kind := range []byte{rowPartition, rowCursor, rowSettled} {
			m.removeRange(rowKey(nil, kind, q.id, lo), rowKey(nil, kind, q.id, hi))
		}
		return
	}
	if q.letters.Len() > 0 {
		m.sweepLetters(q)
		return
	}
	kinds := []byte{rowGroup, rowLetter}
	for _, g := range slices.Concat(q.groups, q.dying) {
		g.exists = false
		delete(m.s.groups, g.id)
		if g.mark != nil {
			g.mark.exists = false
			kinds = []byte{rowGroup, rowLetter, rowGroupMark}
		}
	}
	for _, kind := range kinds {
		m.removeRange(rowKey(nil, kind, q.id), rowKey(nil, kind, q.id+1))
	}
	if own := q.stats; own != nil && own.q == q && !own.empty() {
		m.removeRange(rowKey(nil, rowStats, q.id), rowKey(nil, rowStats, q.id+1))
	}
	q.stats = nil
	q.exists = false
	m.remove(q)
	delete(m.s.queues, q.id)
	m.s.dead = m.s.dead[1:]
}

// sweepLetters removes a slice of a deleted queue's dead letters.
func (m *Machine) sweepLetters(q *queue) {
	var gone []*deadLetter
	q.letters.Scan(func(_ string, l *deadLetter) bool {
		gone = append(gone, l)
		return len(gone) < sweepSliceRows
	})
	for _, l := range gone {
		m.s.dropLetter(l)
	}
	m.removeRange(letterKey(nil, gone[0]), append(letterKey(nil, gone[len(gone)-1]), 0))
}

// planReplay moves a dead letter: the copy's append and the row's removal are
// in one entry, so of two callers one finds it gone.
func (m *Machine) planReplay(c *Call, r *ReplayDeadLetter) verdict {
	l := m.s.letters[r.ID]
	if l == nil || l.q.deleted || l.q.tenant != c.Tenant {
		r.Outcome = "gone"
		return answered
	}
	r.Group = l.group
	if l.group == TimerGroup {
		r.Outcome = "timer"
		return answered
	}
	content := l.message
	if l.value != 0 {
		n := c.needAt(need{kind: needValue, queue: l.q.id, value: l.value})
		if n == nil {
			return again
		}
		content = n.data
	}
	msg, _, err := entry.NextMessage(content)
	if err != nil {
		// The value passed its checksum and was written by this code.
		r.Outcome = "gone"
		return answered
	}
	r.OriginalTxn = msg.AppendTxn(nil)
	r.ToQueue, r.ToPartition = r.Queue, r.Partition
	if r.ToQueue == "" {
		r.ToQueue = l.q.name
	}
	if r.ToPartition == "" {
		r.ToPartition = l.partition
	}
	if m.misfitReplay(c, r, content) {
		return answered
	}
	if r.Payload != nil {
		msg.Payload, msg.Zstd = r.Payload.Payload, r.Payload.Zstd
	}
	txn := entry.AppendUUID([]byte("dlq:"), l.id)
	msg.ID, msg.Minted, msg.Txn = r.Item.ID, false, txn
	r.Item = PushItem{
		Queue: r.ToQueue, Partition: r.ToPartition, ID: r.Item.ID, Txn: txn, TxnHash: xxhash.Sum64(txn),
		Packed: entry.AppendMessage(nil, &msg),
	}
	push := Push{Items: []PushItem{r.Item}}
	push.GroupItems()
	if m.judgePush(c, &push) {
		return again
	}
	if push.Items[0].Status == Queued {
		m.emitGroup(c.Tenant, &push, &push.Groups[0])
	}
	r.Item = push.Items[0]
	switch r.Item.Status {
	case Queued:
		r.Outcome = "moved"
		m.deleteLetter(l)
	case Duplicate:
		r.Outcome = "duplicate"
	default:
		r.Outcome = "refused"
	}
	return answered
}

// misfitReplay reports whether the copy's payload has to get another form first:
// the one that the destination keeps. A letter keeps the form that its message
// had, which only the edge can tell.
func (m *Machine) misfitReplay(c *Call, r *ReplayDeadLetter, content []byte) bool {
	keeps := FormClear
	if q := m.s.findQueue(c.Tenant, r.ToQueue); q != nil {
		keeps = q.opts.form()
	}
	if r.Form == keeps && r.Payload != nil || r.Form == FormAny && keeps == FormClear {
		return false
	}
	r.Want, r.Stored, c.Misfit = keeps, bytes.Clone(content), true
	return true
}

func (m *Machine) deleteLetter(l *deadLetter) {
	m.s.dropLetter(l)
	if p := m.s.partitions[l.partitionID]; p != nil {
		p.letters--
	}
	m.remove(l)
}
