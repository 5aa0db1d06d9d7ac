package fsm

// A dry run is judged like the call itself, and by the same code; only what
// comes after the last check differs: the results are foretold here instead of
// becoming true.

// foretell fills in the results that a transaction would have: it was judged,
// and nothing refuses it.
func (m *Machine) foretell(c *Call, t *Txn, acks *ackPlan) {
	for _, cur := range acks.cursors {
		acks.foretell(cur)
	}
	m.foretellKV(c.Tenant, t.KV)
	m.foretellTimers(c.Tenant, t.Timers)
}

// foretell says which of a cursor's acks would file or drop their message.
func (p *ackPlan) foretell(c *cursor) {
	p.strengthen(c)
	spent := c.spent()
	for i := range p.items {
		j := &p.judged[i]
		if !j.apply || j.c != c {
			continue
		}
		j.back = j.comesBack(spent)
		p.mark(i, c)
	}
}

// foretellKV reads as the call would after its writes. For that the rows stand
// in the state as they would be, and are put back before anybody else looks: the
// planner is alone on the loop, and nothing is emitted.
func (m *Machine) foretellKV(tenant string, ops []KVOp) {
	version := m.s.meta.kvVersion
	for i := range ops {
		op := &ops[i]
		if !op.Kind.Write() || !op.Result.Applied {
			continue
		}
		if op.Kind == KVDelete {
			m.s.kv.Delete(op.key)
			continue
		}
		m.s.kv.Set(op.key, &kvRow{
			key: op.key, value: op.Result.Value, version: version, expires: m.expiryOf(op), updated: m.now, heapIdx: -1,
		})
		op.Result.Version = version
		version++
	}
	m.readKV(tenant, ops)
	for i := range ops {
		op := &ops[i]
		switch {
		case !op.Kind.Write() || !op.Result.Applied:
		case op.row == nil:
			m.s.kv.Delete(op.key)
		default:
			m.s.kv.Set(op.key, op.row)
		}
	}
}

// foretellTimers says what timer operations would do, one after the other.
func (m *Machine) foretellTimers(tenant string, ops []TimerOp) {
	for i := range ops {
		op := &ops[i]
		pending, txn := false, op.Txn
		if t, _ := m.s.timers.Get(timerKey(tenant, op.Queue, op.Key)); t != nil {
			pending, txn = true, t.txnText()
		}
		for j := range ops[:i] {
			if o := &ops[j]; o.Queue == op.Queue && o.Key == op.Key {
				if pending = !o.Cancel; pending {
					txn = (&timer{txn: o.Txn, messageID: o.MessageID}).txnText()
				}
			}
		}
		switch {
		case !op.Cancel:
			op.OK, op.Status, op.DeliverAt = true, "scheduled", m.now+clampDelay(op.DelayMs)
			if pending {
				op.Status = "rescheduled"
			}
		case pending:
			op.OK, op.Status, op.OldTxn = true, "cancelled", txn
		default:
			op.OK, op.Status, op.OldTxn = false, "absent", op.Txn
		}
	}
}
