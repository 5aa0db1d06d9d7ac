package recovery

import (
	"container/heap"
	"fmt"
	"slices"

	pb "go.etcd.io/raft/v3/raftpb"

	"queen/internal/entry"
	"queen/internal/plant"
	"queen/raftlog"
)

// image is what the logs of a directory hold, judged: the read half of a
// boot. It writes, locks and cuts nothing, so that a running node can use it
// to read its state again (F7).
//
// It walks over all logs at once in order of the entries' indexes, puts each
// entry together and gives it to the machine, so memory does not grow with
// the log. What it hands out is the gapless run of complete entries (I1).
type image struct {
	machine  raftlog.Machine
	footer   raftlog.Footer
	single   bool   // the only voter: a complete entry is a committed one
	confDone uint64 // membership changes at or below are in the state file
	maxTerm  uint64
	believe  func(*item) bool // whose claims count; nil: everybody's
	// live: beside a running group, up to this entry. Look-ups and the store know
	// what is there. 0: in a boot.
	live uint64
	stop func() bool // whether to give up; nil: never
	// emit takes the entries instead of the machine; nil: the machine does.
	emit func(*pb.Entry)

	cursors heapOfCursors
	all     []*cursor
	parts   assembly
	group   []*cursor

	last    uint64 // newest complete entry; every entry after footer.From up to it is
	terms   []raftlog.TermRun
	applied uint64
	commit  uint64 // highest index that something says is committed
	replays int    // applied entries with effects
	pending []*pb.Entry

	stopped  uint64 // first entry that is missing or incomplete; 0: none found yet
	missing  string // what is missing of it
	missAt   place
	claim    uint64 // highest index that some record proves durable (I2)
	claimBy  string
	seen     uint64 // highest index of any record
	holdBack bool   // a membership change is left to raft, and all after it
}

// note takes the claims of a record. It returns what is proven so far.
func (m *image) note(it *item) (proven uint64) {
	r := &it.rec
	m.seen = max(m.seen, r.Index)
	if m.believe != nil && !m.believe(it) {
		return m.claim
	}
	switch r.Kind {
	case entry.KindEntry, entry.KindStub:
		m.proves(r.Head.Durable, it)
	case entry.KindPad:
		m.proves(r.Index, it)
	}
	return m.claim
}

func (m *image) proves(index uint64, it *item) {
	if index > m.claim {
		m.claim, m.claimBy = index, fmt.Sprintf("%s of entry %d", it.at, it.rec.Index)
	}
}

// run reads everything. It returns an error for what no cut may take away.
func (m *image) run() error {
	m.begin()
	for len(m.cursors) > 0 {
		if err := m.step(); err != nil {
			return err
		}
	}
	for _, c := range m.all {
		if c.err != nil {
			return c.err
		}
	}
	if m.stopped == 0 {
		m.stopped = m.last + 1
	}
	return nil
}

// begin sets the cursors side by side.
func (m *image) begin() {
	m.last, m.applied = m.footer.From, m.footer.From
	m.commit = m.footer.To
	m.terms = []raftlog.TermRun{{First: m.footer.From, Term: m.footer.FromTerm}}
	for _, c := range m.all {
		if c.has {
			m.cursors = append(m.cursors, c)
		}
	}
	heap.Init(&m.cursors)
}

// step takes the records of one index.
func (m *image) step() error {
	index := m.cursors[0].cur.rec.Index
	switch {
	case m.stop != nil && m.stop():
		return errGivenUp
	case m.stopped != 0:
		return m.drain()
	case index <= m.footer.From:
		return m.remember(index)
	case index != m.last+1 && plant.Is(plant.ReplayPastHole):
		m.last = index - 1
		return nil
	case index != m.last+1:
		m.stopAt(m.last+1, missingEverywhere, place{})
		return nil
	}
	return m.entry(index)
}

// missingEverywhere is what an image misses of an entry without any copy.
const missingEverywhere = "no record of it in any log"

func (m *image) stopAt(index uint64, missing string, at place) {
	m.stopped, m.missing, m.missAt = index, missing, at
}

// drain reads the rest of a log for its claims; all of it is to be cut.
func (m *image) drain() error {
	c := heap.Pop(&m.cursors).(*cursor)
	if c.cutAt.seq == 0 {
		c.cutAt = c.start
	}
	for c.has {
		c.advance()
	}
	return c.err
}

// remember takes the records of an entry that the checkpoint covers: the
// machine wants the ids of what is only in unsealed files, and look-ups the
// positions.
func (m *image) remember(index uint64) error {
	for len(m.cursors) > 0 && m.cursors[0].cur.rec.Index == index {
		c := m.cursors[0]
		for c.has && c.cur.rec.Index == index {
			if err := m.register(&c.cur, true); err != nil {
				return err
			}
			c.advance()
		}
		m.moved(c)
	}
	return nil
}

// moved puts the first cursor of the heap back in its place.
func (m *image) moved(c *cursor) {
	if c.has {
		heap.Fix(&m.cursors, 0)
	} else {
		heap.Remove(&m.cursors, 0)
	}
}

// register tells look-ups (and the machine) of a record that stays.
func (m *image) register(it *item, remember bool) error {
	if m.emit != nil {
		return nil
	}
	f := newSpot(it)
	if m.live == 0 {
		f.note(m.footer.From)
	}
	if it.known {
		return nil
	}
	if m.live == 0 {
		f.index()
	}
	if remember && (it.rec.Kind == entry.KindAppend || it.rec.Kind == entry.KindIDs) {
		if err := m.machine.Remember(it.rec.Append); err != nil {
			return fmt.Errorf("%s: %w", it.at, err)
		}
	}
	return nil
}

// entry puts the next entry together from its records in all logs.
func (m *image) entry(index uint64) error {
	a := &m.parts
	a.reset(index)
	group := m.group[:0]
	for len(m.cursors) > 0 && m.cursors[0].cur.rec.Index == index {
		c := m.cursors[0]
		group = append(group, c)
		start := c.start
		for c.has && c.cur.rec.Index == index {
			if err := a.add(&c.cur); err != nil {
				return err
			}
			c.advance()
		}
		c.cutAt = start // until the entry turns out to be complete
		m.moved(c)
	}
	if missing := a.missing(); missing != "" && plant.Is(plant.ReplayPastHole) {
		return nil
	} else if missing != "" {
		m.stopAt(index, missing, a.where())
		return nil
	}
	for _, c := range group {
		c.cutAt = place{}
	}
	m.group = group
	e, err := a.join()
	if err != nil {
		return err
	}
	for i := range a.spots {
		if m.live != 0 {
			break
		}
		a.spots[i].note(m.applied)
		if !a.spots[i].known {
			a.spots[i].index()
		}
	}
	return m.take(e, a)
}

// take gives a complete entry to the machine, or keeps it for raft when
// nothing says that it is committed (F6).
func (m *image) take(e *pb.Entry, a *assembly) error {
	if m.emit != nil {
		m.last = a.index
		m.emit(e)
		return nil
	}
	h := a.head
	if run := m.terms[len(m.terms)-1]; h.Term < run.Term {
		return &RefuseError{File: a.where().file(), Pos: a.where().pos, Index: a.index, What: "terms go back",
			Expected: fmt.Sprintf("at least %d", run.Term), Found: fmt.Sprint(h.Term)}
	} else if h.Term > run.Term {
		m.terms = append(m.terms, raftlog.TermRun{First: a.index, Term: h.Term})
	}
	if h.Term > m.maxTerm {
		return &RefuseError{File: a.where().file(), Pos: a.where().pos, Index: a.index, What: "the entry is newer than the state file",
			Expected: fmt.Sprintf("term at most %d", m.maxTerm), Found: fmt.Sprint(h.Term),
			Do: "raft/state was taken back to an older copy: restore the newest one, or remove this node from the cluster and add it anew"}
	}
	m.last = a.index
	m.commit = max(m.commit, h.Commit, a.commit)
	m.pending = append(m.pending, e)
	return m.applyCommitted()
}

// applyCommitted replays the pending entries that are committed. A membership
// change that the state file does not have yet is left to raft, which applies
// it once it runs, and so is everything after it.
func (m *image) applyCommitted() error {
	for len(m.pending) > 0 && !m.holdBack {
		e := m.pending[0]
		index := e.GetIndex()
		if index > m.commit && !m.single && !plant.Is(plant.ApplyUncommitted) {
			return nil
		}
		if e.GetType() != pb.EntryNormal && index > m.confDone {
			m.holdBack = true
			return nil
		}
		if e.GetType() == pb.EntryNormal && len(e.GetData()) > 0 {
			if err := m.machine.Apply(index, e.GetTerm(), e.GetData()); err != nil {
				return fmt.Errorf("replay entry %d of term %d: %w", index, e.GetTerm(), err)
			}
			m.replays++
		}
		m.applied = index
		m.pending[0] = nil
		m.pending = m.pending[1:]
	}
	return nil
}

// committed is the commit index that raft starts with: never above the log.
func (m *image) committed() uint64 {
	if m.single {
		return m.last
	}
	return max(min(m.commit, m.last), m.applied)
}

// heapOfCursors orders cursors by index; of one entry the highest log comes
// first, so that the entry record, in the lowest, is read when all of the
// entry's parts are there.
type heapOfCursors []*cursor

func (h heapOfCursors) Len() int { return len(h) }
func (h heapOfCursors) Less(i, j int) bool {
	if a, b := h[i].cur.rec.Index, h[j].cur.rec.Index; a != b {
		return a < b
	}
	return h[i].q.ID > h[j].q.ID
}
func (h heapOfCursors) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *heapOfCursors) Push(c any)   { *h = append(*h, c.(*cursor)) }
func (h *heapOfCursors) Pop() any {
	old := *h
	c := old[len(old)-1]
	*h = slices.Delete(old, len(old)-1, len(old))
	return c
}
