package fsm

// Calls that manage consumer groups, and the leases of a worker. Those that
// concern many queues or leases go through them in slices (F24).

// groupSlice bounds how many groups or leases such a call changes in a cycle.
const groupSlice = 256

// DeleteGroup removes a group from a queue, or from all queues: its cursors, and
// with Metadata its registration. One that pops again begins anew; without
// Metadata it begins where its registration says.
type DeleteGroup struct {
	Group    string
	Queue    string // with OneQueue
	OneQueue bool
	Metadata bool

	Cursors int64 // result: on how many partitions it had a place
	Removed int   // result: from how many queues

	after    string
	underWay bool
}

func (m *Machine) planDeleteGroup(tenant string, d *DeleteGroup) verdict {
	if !d.underWay {
		d.Cursors, d.Removed, d.underWay = 0, 0, true
	}
	if d.OneQueue {
		if q := m.s.findQueue(tenant, d.Queue); q != nil && q.byGroup[d.Group] != nil {
			m.deleteGroup(q.byGroup[d.Group], d)
		}
		return answered
	}
	list, more := m.s.groupsOf(tenant, d.Group, &d.after)
	for _, g := range list {
		m.deleteGroup(g, d)
	}
	if more {
		return unfinished
	}
	return answered
}

// groupsOf are the next groups of a name, a slice's worth, behind the key after.
func (s *State) groupsOf(tenant, name string, after *string) (list []*group, more bool) {
	from := max(groupKeyOf(tenant, name, ""), *after)
	s.groupOrder.Ascend(from, func(key string, g *group) bool {
		if g.name != name || g.q.tenant != tenant {
			return false
		}
		if key == *after {
			return true
		}
		if len(list) == groupSlice {
			more = true
			return false
		}
		list = append(list, g)
		return true
	})
	if n := len(list); n > 0 {
		*after = list[n-1].orderKey()
	}
	return list, more
}

func (m *Machine) deleteGroup(g *group, d *DeleteGroup) {
	d.Removed++
	d.Cursors += g.members()
	if !d.Metadata {
		rule := startRule{mode: g.mode, from: g.from, partition: m.s.meta.partition}
		if g.mode == SubscribeNew {
			// What was pushed since it registered is for it still.
			rule.mode, rule.from = SubscribeFrom, g.created
		}
		m.renewGroup(g, rule)
		return
	}
	list := g.waiters.list
	g.waiters.list = nil
	for _, w := range list {
		// Their callers come again and begin a new group.
		if !w.gone {
			m.leave(w)
			w.effects = true
			m.answerEmpty(w)
		}
	}
	m.dropGroup(g)
}

// PauseGroup stops or resumes the pops of a group on a queue. Acks, leases and
// transactions go on.
type PauseGroup struct {
	Queue, Group string
	Paused       bool

	Found bool // result: the group is registered on the queue
}

func (m *Machine) planPause(tenant string, p *PauseGroup) verdict {
	q := m.s.findQueue(tenant, p.Queue)
	if q == nil || q.byGroup[p.Group] == nil {
		p.Found = false
		return answered
	}
	p.Found = true
	g := q.byGroup[p.Group]
	if g.paused() == p.Paused {
		return answered
	}
	if g.mark == nil {
		g.mark = &groupMark{g: g, exists: true}
	}
	g.mark.paused = p.Paused
	m.put(g.mark)
	m.heat(g)
	return answered
}

// Subscribe changes where a group starts on partitions that it has not met, on
// every queue where it is registered.
type Subscribe struct {
	Group string
	From  int64 // microseconds

	Updated int // result: registrations

	after string
}

func (m *Machine) planSubscribe(tenant string, s *Subscribe) verdict {
	if s.after == "" {
		s.Updated = 0
	}
	list, more := m.s.groupsOf(tenant, s.Group, &s.after)
	for _, g := range list {
		s.Updated++
		g.mode, g.from = SubscribeFrom, s.From
		if g.mark != nil && g.mark.rule != nil && !g.mark.rule.moved {
			g.mark.rule.mode, g.mark.rule.from = g.mode, g.from
			m.put(g.mark)
		}
		g.setRule()
		g.epoch++ // cursors that have no row yet were made by the old start
		g.sweep = 0
		m.put(g)
		m.heat(g)
	}
	if more {
		return unfinished
	}
	return answered
}

// ReleaseWorker ends the live leases of a worker. No retry is charged.
type ReleaseWorker struct {
	Worker string

	Released int // result

	through uint64 // the newest lease when the call began
}

func (m *Machine) planReleaseWorker(tenant string, r *ReleaseWorker) verdict {
	if r.through == 0 {
		r.Released, r.through = 0, m.leaseSeq
	}
	key := workerKey{tenant, r.Worker}
	for n := 0; n < groupSlice; n++ {
		list := m.workers[key]
		if list == nil || list.first.seq > r.through {
			return answered
		}
		l := list.first
		c := l.c
		if !c.g.exists || c.p.q.deleted || m.now >= l.expires {
			// It is over, and nobody has claimed the partition since. The cursor may
			// still want to know that it was, so only the worker's list forgets it.
			m.delist(l)
			continue
		}
		m.clearLease(c)
		m.put(c)
		m.refresh(c)
		r.Released++
	}
	return unfinished
}

// workerKey names a worker of a tenant.
type workerKey struct{ tenant, worker string }

// workerLeases are the leases of a worker, oldest first.
type workerLeases struct{ first, last *lease }

// enlist notes a lease with its worker.
func (m *Machine) enlist(l *lease) {
	key := workerKey{l.c.p.q.tenant, l.worker}
	list := m.workers[key]
	if list == nil {
		if m.workers == nil {
			m.workers = map[workerKey]*workerLeases{}
		}
		list = &workerLeases{}
		m.workers[key] = list
	}
	if l.older = list.last; l.older != nil {
		l.older.newer = l
	} else {
		list.first = l
	}
	list.last, l.listed = l, true
}

// delist is the inverse of enlist; it does nothing for a lease without a worker.
func (m *Machine) delist(l *lease) {
	if !l.listed {
		return
	}
	key := workerKey{l.c.p.q.tenant, l.worker}
	list := m.workers[key]
	if l.older != nil {
		l.older.newer = l.newer
	} else {
		list.first = l.newer
	}
	if l.newer != nil {
		l.newer.older = l.older
	} else {
		list.last = l.older
	}
	l.older, l.newer, l.listed = nil, nil, false
	if list.first == nil {
		delete(m.workers, key)
	}
}
