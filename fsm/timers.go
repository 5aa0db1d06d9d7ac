package fsm

import (
	"bytes"
	"container/heap"

	"github.com/cespare/xxhash/v2"

	"queen/internal/entry"
)

func (m *Machine) planTimers(c *Call, t *Timers) verdict {
	if t.Disabled = m.s.switches.ScheduleOff && schedules(t.Ops); t.Disabled {
		return answered
	}
	if !m.misfitTimers(c, t.Ops) {
		m.emitTimers(c.Tenant, t.Ops)
	}
	return answered
}

// misfitTimers reports whether a message has another form than its queue keeps
// now. What the queue keeps when the timer fires does not matter: the message is
// sealed, or not, when it is scheduled.
func (m *Machine) misfitTimers(c *Call, ops []TimerOp) bool {
	for i := range ops {
		op := &ops[i]
		if op.Cancel || op.Form == FormAny {
			continue
		}
		keeps := FormClear
		if q := m.s.findQueue(c.Tenant, op.Queue); q != nil {
			keeps = q.opts.form()
		}
		if op.Form != keeps {
			op.Want, c.Misfit = keeps, true
		}
	}
	return c.Misfit
}

// emitTimers applies timer operations: none of them can be refused here.
func (m *Machine) emitTimers(tenant string, ops []TimerOp) {
	for i := range ops {
		op := &ops[i]
		key := timerKey(tenant, op.Queue, op.Key)
		old, _ := m.s.timers.Get(key)
		if op.Cancel {
			op.OK, op.Status, op.OldTxn = false, "absent", op.Txn
			if old != nil {
				op.OK, op.Status, op.OldTxn = true, "cancelled", old.txnText()
				m.deleteTimer(old)
			}
			continue
		}
		m.schedule(tenant, op, key, old)
	}
}

// schedule puts a timer under a key, in the place of an old one.
func (m *Machine) schedule(tenant string, op *TimerOp, key string, old *timer) {
	op.OK, op.Status = true, "scheduled"
	t := &timer{
		key: key, tenant: tenant, queue: op.Queue, partition: op.Partition, name: op.Key,
		txn: bytes.Clone(op.Txn), messageID: op.MessageID, created: m.now, updated: m.now, heapIdx: -1,
	}
	t.due = m.now + clampDelay(op.DelayMs)
	t.deliverAt = t.due
	op.DeliverAt = t.due
	if old != nil {
		op.Status = "rescheduled"
		t.created = old.created
		old.dead = true
	}
	if old != nil && old.heapIdx >= 0 {
		t.heapIdx, old.heapIdx = old.heapIdx, -1
		m.due[t.heapIdx] = t
		heap.Fix(&m.due, int(t.heapIdx))
	} else {
		heap.Push(&m.due, t)
	}
	t.size = len(op.Message)
	if len(op.Message) <= inlineValue {
		t.message = bytes.Clone(op.Message) // the call's bytes are the edge's
	} else {
		t.value = m.s.meta.value
		m.s.meta.value++
		m.b.Value(t.value, 0, op.Message)
	}
	m.s.timers.Set(t.key, t)
	m.put(t)
}

// clampDelay turns milliseconds into microseconds within the range of broker time.
func clampDelay(ms int64) int64 {
	const longest = 1 << 53
	if ms <= 0 {
		return 0
	}
	if ms > longest/1000 {
		return longest
	}
	return ms * 1000
}

func (t *timer) txnText() []byte {
	if t.txn != nil {
		return t.txn
	}
	return entry.AppendUUID(nil, t.messageID)
}

func (m *Machine) deleteTimer(t *timer) {
	t.dead = true
	if t.heapIdx >= 0 {
		heap.Remove(&m.due, int(t.heapIdx))
	}
	m.s.timers.Delete(t.key)
	m.remove(t)
}

// fire is a pass over due timers that had to read payloads or ids from disk first.
type fire struct {
	timers []*timer
}

// fireTimers appends the messages of due timers through the push path, in due
// order. Those whose payload is a value are read first.
func (m *Machine) fireTimers() {
	if m.cfg.TimersOff || m.s.switches.FireOff || len(m.due) == 0 || m.due[0].deliverAt > m.now || m.now < m.nextFire {
		return
	}
	m.nextFire = m.now + m.cfg.TimerTick
	var batch []*timer
	size := 0
	for len(batch) < m.cfg.TimerFireBatch && size < m.cfg.TimerFireBytes && len(m.due) > 0 && m.due[0].deliverAt <= m.now {
		t := heap.Pop(&m.due).(*timer)
		t.firing = true
		batch = append(batch, t)
		size += max(t.size, inlineValue)
	}
	c := &Call{Body: &fire{timers: batch}, internal: true, Done: func(error) {}}
	m.route(c, m.planFire(c, c.Body.(*fire)))
}

// planFire fires what is still pending; a timer that was cancelled or replaced
// meanwhile is dead. Nothing is fired before every look-up of the pass is made:
// the timers of one partition enter in due order.
func (m *Machine) planFire(c *Call, f *fire) verdict {
	if m.s.switches.FireOff { // turned off while its look-ups were made
		for _, t := range f.timers {
			if !t.dead {
				t.firing = false
				heap.Push(&m.due, t)
			}
		}
		return answered
	}
	lookup := false
	for _, t := range f.timers {
		if !t.dead {
			_, _, need := m.judgeFire(c, t)
			lookup = lookup || need
		}
	}
	if lookup {
		return again
	}
	for _, t := range f.timers {
		if t.dead {
			continue
		}
		// Once more: an earlier one may have appended this one's transactionId.
		push, failed, _ := m.judgeFire(c, t)
		switch {
		case failed:
			m.retryLater(t)
		case push.Items[0].Status == Refused:
			m.fireRefused(t, push.Items[0].Packed, "the push path refuses the message: it is over the largest append")
		default:
			m.emitGroup(t.tenant, push, &push.Groups[0])
			m.deleteTimer(t)
		}
	}
	return answered
}

// judgeFire judges the push that a timer's fire is. failed: something could not
// be read, which is not the timer's fault; lookup: something must be read first.
func (m *Machine) judgeFire(c *Call, t *timer) (push *Push, failed, lookup bool) {
	message := t.message
	if t.value != 0 {
		n := c.needAt(need{kind: needValue, value: t.value})
		if n == nil {
			return nil, false, true
		}
		if n.err != nil {
			return nil, true, false
		}
		message = n.data
	}
	push = &Push{Items: []PushItem{{
		Queue: t.queue, Partition: t.partition, ID: t.messageID, Txn: t.txn, TxnHash: xxhash.Sum64(t.txnText()), Packed: message,
	}}}
	push.GroupItems()
	one := &Call{Tenant: t.tenant, needs: c.needs}
	lookup = m.judgePush(one, push)
	c.needs = one.needs
	if q := m.s.findQueue(t.tenant, t.queue); q != nil && t.txn != nil {
		failed = c.failed(q.byName[t.partition], t.txn)
	}
	return push, failed, lookup
}

// fireRefused counts an attempt of a timer that the push path refused; after
// the last one it is filed.
func (m *Machine) fireRefused(t *timer, message []byte, reason string) {
	t.attempts++
	t.lastError, t.updated, t.firing = reason, m.now, false
	if t.attempts < m.cfg.TimerMaxAttempts {
		delay := m.cfg.TimerBackoffMin
		for i := int64(1); i < t.attempts && delay < m.cfg.TimerBackoffMax; i++ {
			delay *= 2
		}
		t.deliverAt = m.now + min(delay, m.cfg.TimerBackoffMax)
		heap.Push(&m.due, t)
		m.put(t)
		return
	}
	q := m.pushQueue(t.tenant, t.queue)
	l := &deadLetter{
		q: q, partition: t.partition, group: TimerGroup, err: reason, retries: t.attempts, failed: m.now,
	}
	if p := q.byName[t.partition]; p != nil {
		l.partitionID = p.id
	}
	m.fileLetter(l, message)
	m.deleteTimer(t)
}

// retryLater is for what was not the timer's fault: its payload, or whether its
// id is in the window, could not be read. No attempt is counted.
func (m *Machine) retryLater(t *timer) {
	t.deliverAt, t.firing = m.now+m.cfg.TimerTransientBackoff, false
	heap.Push(&m.due, t)
	m.put(t)
}
