package fsm

import "fmt"

// Reasons of a rolled-back transaction, as the wire has them.
const (
	ReasonRejectedAck    = "rejected_ack"
	ReasonDuplicate      = "duplicate"
	ReasonTooLarge       = "too_large"
	ReasonQueueNotFound  = "queue_not_found"
	ReasonKVPrecondition = "kv_precondition"
	ReasonUnavailable    = "unavailable"
	ReasonKVDisabled     = "kv_disabled"
	ReasonTimersDisabled = "timers_disabled"
	ReasonBadRequest     = "bad_request"
)

// planTxn judges a step in the fixed order of its checks (acks, pushes,
// positions, KV, timers, the whole) and only then emits: a refusal needs no
// undo. Everything it emits is in this cycle's entry.
func (m *Machine) planTxn(c *Call, t *Txn) verdict {
	if t.Next.planned() {
		return m.planNext(c, t.Next)
	}
	t.Reason, t.Error, t.KVFailed = "", "", -1
	if m.refuseSwitched(t) {
		return answered
	}
	acks := m.newAckPlan(t.Acks)
	lookup := false
	for i := range t.Acks {
		need := m.judgeAck(c, acks, i, true)
		lookup = lookup || need
	}
	if lookup {
		return again
	}
	for i := range t.Acks {
		if it := &t.Acks[i]; !it.Success {
			t.refuse(ReasonRejectedAck, rejectedText(it))
			return answered
		}
	}
	if m.needContents(c, acks) {
		return again
	}
	if acks.unreadable() {
		t.refuse(ReasonUnavailable, "a message that is to be dead-lettered cannot be read now; transaction rolled back")
		return answered
	}
	if len(t.Timers) > 0 {
		m.misfitTimers(c, t.Timers)
	}
	if len(t.Push.Items) > 0 {
		lookup = m.judgePush(c, &t.Push)
	}
	switch {
	case c.Misfit:
		return answered
	case lookup:
		return again
	case m.refusePush(t):
		return answered
	}
	if m.refusePositions(c.Tenant, t) {
		return answered
	}
	if t.KVFailed = m.judgeKV(c.Tenant, t.KV); t.KVFailed >= 0 {
		t.refuse(ReasonKVPrecondition, "a required KV precondition did not hold")
		return answered
	}
	if m.refuseTimers(c.Tenant, t) || m.refuseSize(t, acks.contents) {
		return answered
	}
	if t.DryRun {
		m.foretell(c, t, acks)
		return answered
	}
	m.emitTxn(c, t, acks)
	m.countTxn(c.Tenant, t, acks)
	return m.planNext(c, t.Next)
}

func (t *Txn) refuse(reason, text string) { t.Reason, t.Error = reason, text }

// rejectedText keeps the two texts that callers of the older line look for.
func rejectedText(it *AckItem) string {
	if it.Err == errUnresolvable {
		return "QTXN ack references unknown transactionId; transaction rolled back"
	}
	return fmt.Sprintf("QTXN ack of %q rejected: %s; transaction rolled back", it.Txn, it.Err)
}

func (m *Machine) refusePush(t *Txn) bool {
	for i := range t.Push.Items {
		it := &t.Push.Items[i]
		switch {
		case it.Status == Refused:
			t.refuse(ReasonTooLarge, fmt.Sprintf("the pushes to queue %q partition %q are over %d bytes; transaction rolled back",
				it.Queue, it.Partition, m.cfg.EntryBytes))
			return true
		case it.Status == Duplicate && it.DupOf < 0:
			t.refuse(ReasonDuplicate, fmt.Sprintf("QDUP duplicate messages in queue %q partition %q; transaction rolled back",
				it.Queue, it.Partition))
			return true
		}
	}
	return false
}

// refusePositions checks that every queue exists before the call.
func (m *Machine) refusePositions(tenant string, t *Txn) bool {
	size := 0
	for i := range t.Positions {
		p := &t.Positions[i]
		if m.s.findQueue(tenant, p.Queue) == nil {
			t.refuse(ReasonQueueNotFound, fmt.Sprintf("position names queue %q, which does not exist; transaction rolled back", p.Queue))
			return true
		}
		size += len(p.Queue) + len(p.Partition) + len(p.Group) + len(p.Metadata) + 64
	}
	if size > m.cfg.EntryBytes {
		t.refuse(ReasonTooLarge, fmt.Sprintf("the positions are over %d bytes; transaction rolled back", m.cfg.EntryBytes))
		return true
	}
	return false
}

// refuseTimers checks that no timer of a queue that seals payloads claims to be
// sealed already.
func (m *Machine) refuseTimers(tenant string, t *Txn) bool {
	for i := range t.Timers {
		op := &t.Timers[i]
		if !op.Encrypted || op.Cancel {
			continue
		}
		if q := m.s.findQueue(tenant, op.Queue); q != nil && q.opts.EncryptionEnabled {
			t.refuse(ReasonBadRequest, fmt.Sprintf("queue %q seals its payloads itself: encrypted is not an input; transaction rolled back", op.Queue))
			return true
		}
	}
	return false
}

// refuseSize checks the KV part, the timers and the whole command, with the
// messages that its acks file (letters bytes).
func (m *Machine) refuseSize(t *Txn, letters int) bool {
	kv, timers, push := 0, 0, 0
	for i := range t.KV {
		kv += len(t.KV[i].Key) + len(t.KV[i].Value) + 128
	}
	for i := range t.Timers {
		timers += len(t.Timers[i].Key) + len(t.Timers[i].Queue) + len(t.Timers[i].Message) + 128
	}
	for i := range t.Push.Items {
		if t.Push.Items[i].Status == Queued {
			push += len(t.Push.Items[i].Packed)
		}
	}
	for _, part := range []struct {
		name string
		size int
	}{{"KV operations", kv}, {"timers", timers}, {"whole command", kv + timers + push + letters + 128*len(t.Acks)}} {
		if part.size > m.cfg.EntryBytes {
			t.refuse(ReasonTooLarge, fmt.Sprintf("the %s: over %d bytes; transaction rolled back", part.name, m.cfg.EntryBytes))
			return true
		}
	}
	return false
}

func (m *Machine) emitTxn(c *Call, t *Txn, acks *ackPlan) {
	for _, cur := range acks.cursors {
		m.settle(c, acks, cur, true)
	}
	for i := range t.Push.Groups {
		m.emitGroup(c.Tenant, &t.Push, &t.Push.Groups[i])
	}
	for i := range t.Positions {
		m.setPosition(c.Tenant, &t.Positions[i])
	}
	m.emitKV(t.KV)
	m.emitTimers(c.Tenant, t.Timers)
	m.readKV(c.Tenant, t.KV)
}

// setPosition places a group on a partition, or forgets where it was: it then
// starts again as a group that meets the partition now.
func (m *Machine) setPosition(tenant string, p *Position) {
	q := m.s.findQueue(tenant, p.Queue)
	part := m.pushPartition(q, p.Partition)
	g, _ := m.ensureGroup(q, &Pop{Group: p.Group, Mode: p.Mode})
	m.b.Touch(q.id)
	c := m.met(part, g)
	if p.Forget {
		if (c == nil || !c.row) && !g.places(part) {
			return // it has not met the partition
		}
		p.Offset = part.next
		if g.mode == SubscribeAll || part.id >= g.startPartition {
			p.Offset = part.start
		}
	}
	if c == nil {
		c = m.newCursor(part, g, -1)
	}
	m.moveCursor(c, int64(min(p.Offset, 1<<62))-1)
	if p.Metadata != "" && !p.Forget {
		text := p.Metadata
		c.metadata = &text
	}
	m.keep(c)
	m.refresh(c)
}

// resetSets empties a cursor's sets: the one removal besides passing offsets.
// A cursor that goes back needs it also when its sets are empty: the rows of
// what it has passed may still be in the checkpoint, and would count again.
func (m *Machine) resetSets(c *cursor) {
	c.sets = nil
	m.b.Effects = appendUvarints(append(m.b.Effects, effectReset), c.p.q.id, c.p.id, c.g.id)
	m.forgetSets(c)
}

// forgetSets has the next checkpoint remove the rows of a cursor's sets.
func (m *Machine) forgetSets(c *cursor) {
	lo, hi := c.settledRange()
	m.dirty.ranges.add([2]string{string(lo), string(hi)})
}
