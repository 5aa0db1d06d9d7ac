package main

import (
	"fmt"

	pb "go.etcd.io/raft/v3/raftpb"

	"queen/fsm"
	"queen/internal/entry"
	"queen/recovery"
)

// adoption gives names to what has lost them: a salvaged message is of no use
// in a partition that no row knows.
type adoption struct {
	a       *fsm.Adoption
	adopted int
}

func newAdoption() *adoption { return &adoption{a: fsm.NewAdoption()} }

func (d *adoption) row(key, value []byte) { d.a.Row(key, value) }
func (d *adoption) gone(lo, hi []byte)    { d.a.DeleteRange(lo, hi) }

// entry takes an entry that is kept and replayed.
func (d *adoption) entry(e *recovery.EntryAt) error {
	if e.Head.Type != 0 || len(e.Entry.GetData()) == 0 {
		return nil
	}
	parsed, err := entry.Parse(e.Entry.GetData())
	if err == nil {
		err = d.a.Entry(parsed.Effects, parsed.Time)
	}
	if err != nil {
		return fmt.Errorf("entry %d: %w", e.Index, err)
	}
	for i := range parsed.Appends {
		a := &parsed.Appends[i]
		d.a.Append(a.Queue, a.Partition, a.First, a.Count, a.Time)
	}
	return nil
}

// adopt writes one entry more, with the rows that are missing.
func (g *salvager) adopt() error {
	effects, at, queues, partitions := g.state.a.Effects()
	if len(effects) == 0 {
		return nil
	}
	g.state.adopted = queues + partitions
	b := entry.Builder{Effects: effects}
	g.newLast++
	return g.w.Entry(&pb.Entry{Index: new(g.newLast), Term: new(max(g.maxTerm, 1)), Type: pb.EntryNormal.Enum(), Data: b.Encode(at)})
}
