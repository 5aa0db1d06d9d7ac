package main

import (
	"github.com/cespare/xxhash/v2"

	"queen/fsm"
	"queen/internal/entry"
	"queen/raftlog"
)

// machine is the planner in the terms of the group, with the book at its side:
// it hears of every plan when it is made.
type machine struct {
	*fsm.Machine
	w     *world
	batch []*fsm.Call
}

var _ raftlog.Machine = (*machine)(nil)

// plan is one planning cycle on its way.
type plan struct {
	time    int64
	data    bool
	appends []entry.Append
	digest  uint64            // of the state; 0: not computed
	queues  map[string]uint64 // ids by name after it, of the queues that may be deleted
	cmds    []*command        // answered by it, in the order of planning
	done    bool
	answer  func(error)
}

// Plan implements raftlog.Machine.
func (m *machine) Plan(now int64, calls []any) raftlog.Plan {
	m.batch = m.batch[:0]
	for _, c := range calls {
		m.batch = append(m.batch, c.(*fsm.Call))
	}
	p := m.Machine.Plan(now, m.batch)
	clear(m.batch)
	out := raftlog.Plan{Data: p.Data, Now: p.Now, Wake: p.Wake, More: p.More, SealThrough: p.SealThrough}
	for _, c := range p.Prepare {
		out.Prepare = append(out.Prepare, c)
	}
	if p.Data == nil && p.Answer == nil {
		return out
	}
	pl := &plan{time: now, data: p.Data != nil, answer: p.Answer}
	if pl.data {
		m.w.totals.Entries++
		m.w.note('p', xxhash.Sum64(p.Data), uint64(now))
		e, err := entry.Parse(p.Data)
		if err != nil {
			m.w.fail("entry planned at %d does not parse: %v", now, err)
		}
		pl.appends = e.Appends
		if m.w.chaos.near() {
			pl.digest = m.Digest()
		}
	}
	pl.queues = m.w.book.mortalQueues(m.View())
	b := m.w.book
	b.plans = append(b.plans, pl)
	out.Answer = func(err error) {
		if err != nil {
			m.w.fail("a plan was abandoned: %v", err)
		}
		b.release(pl, nil)
		b.settle()
	}
	return out
}
