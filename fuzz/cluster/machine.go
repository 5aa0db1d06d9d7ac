package main

import (
	"queen/fsm"
	"queen/raftlog"
)

// machine is the planner in the terms of the group.
type machine struct {
	*fsm.Machine
	n     *node
	batch []*fsm.Call
}

var _ raftlog.Machine = (*machine)(nil)

func newMachine(n *node) *machine { return &machine{Machine: fsm.New(n.w.planner), n: n} }

// Plan implements raftlog.Machine.
func (m *machine) Plan(now int64, calls []any) raftlog.Plan {
	m.batch = m.batch[:0]
	for _, c := range calls {
		m.batch = append(m.batch, c.(*fsm.Call))
	}
	p := m.Machine.Plan(now, m.batch)
	clear(m.batch)
	if p.Data != nil {
		m.n.w.totals.Entries++
	}
	out := raftlog.Plan{Data: p.Data, Answer: p.Answer, Now: p.Now, Wake: p.Wake, More: p.More, SealThrough: p.SealThrough}
	for _, c := range p.Prepare {
		out.Prepare = append(out.Prepare, c)
	}
	return out
}
