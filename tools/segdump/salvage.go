package main

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"path/filepath"

	pb "go.etcd.io/raft/v3/raftpb"

	"queen/index"
	"queen/internal/entry"
	"queen/raftlog"
	"queen/recovery"
	"queen/segment"
)

// salvage writes what is readable into a fresh directory. What it keeps:
//
//   - the rows of a checkpoint, the newest one that holds nothing of an entry
//     above its From that is lost;
//   - of the entries that it covers, every record that is readable;
//   - of the entries above it, those that are whole, renumbered so that there
//     is no hole. An entry of which anything is missing is left out as a whole,
//     so no transaction is visible in part. Above what is proven durable, all
//     that follows the first such entry is left out, too: a start would cut it.
//
// Side tables are not copied: the broker makes them again. The directory
// belongs to one voter, whatever the membership was.
type salvager struct {
	t *tool
	s *recovery.Snapshot
	l raftlog.Layout

	// What the first walk learns.
	first, last uint64 // entries with records
	lost        []uintRange
	proven      uint64
	cutoff      uint64 // entries from here on are left out; 0: none
	maxTerm     uint64
	misplaced   error // an append in a log that the layout does not give it

	base *baseRows // nil: none

	// What the second one writes.
	out      string
	store    *raftlog.Store
	w        *raftlog.Rewriter
	kept     uint64 // entries above the base
	newLast  uint64
	messages uint64
	parts    uint64 // records kept of entries that are not whole
	counts   map[string]int
	state    *adoption
}

// baseRows is a finished checkpoint in a rows file.
type baseRows struct {
	file   string
	end    int64 // position of its footer
	footer index.Footer
}

func (t *tool) salvage(args []string) (findings bool, err error) {
	s, err := t.snapshot()
	if err != nil {
		return false, err
	}
	g := &salvager{t: t, s: s, out: args[0], counts: map[string]int{}}
	if err := g.wantEmpty(); err != nil {
		return false, err
	}
	id, err := g.identity()
	if err != nil {
		return false, err
	}
	g.l = raftlog.Layout{Shards: id.Shards}
	if err := g.survey(); err != nil {
		return false, err
	}
	if err := g.chooseBase(); err != nil {
		return false, err
	}
	if err := g.write(id); err != nil {
		return false, fmt.Errorf("%s is not finished and no broker opens it: %w", g.out, err)
	}
	return g.total() > 0, g.summary()
}

// wantEmpty refuses to write over anything.
func (g *salvager) wantEmpty() error {
	infos, err := g.t.fs.List(g.out)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil && len(infos) > 0 {
		return fmt.Errorf("%w: %s is not empty: %s", errUsage, g.out, infos[0].Name)
	}
	return err
}

func (g *salvager) total() (n int) {
	for _, c := range g.counts {
		n += c
	}
	return n
}

// lose reports something that is not in the new directory.
func (g *salvager) lose(class string, index uint64, file string, pos int64, what, effect string) error {
	g.counts[class]++
	if g.total() > maxFindings {
		return nil
	}
	f := finding{Class: class, File: g.t.short(file), Pos: pos, Index: index, What: what, Effect: effect}
	return g.t.out.emit(&f, f.text())
}

// identity is whose directory the new one is: that of the old one, or, when
// its FORMAT is lost, what can be found out.
func (g *salvager) identity() (recovery.Identity, error) {
	id := g.s.Identity
	if g.s.IdentityErr == nil {
		return id, nil
	}
	if errors.Is(g.s.IdentityErr, recovery.ErrNewerFormat) {
		return id, g.s.IdentityErr
	}
	var raw [16]byte
	if _, err := rand.Read(raw[:]); err != nil {
		return id, fmt.Errorf("make a cluster id: %w", err)
	}
	id = recovery.Identity{Cluster: hex.EncodeToString(raw[:]), Node: 1, Shards: max(g.t.opt.Shards, 0)}
	if v := g.s.State.Conf.Voters; g.s.StateErr == nil && len(v) == 1 {
		id.Node = v[0]
	}
	return id, g.lose(classDamage, 0, path.Join(g.t.dir, "FORMAT"), -1, g.s.IdentityErr.Error(),
		fmt.Sprintf("the new directory is node %d of a new cluster, with QUEEN_QLOG_SHARDS=%d", id.Node, id.Shards))
}

// survey walks over everything to learn what is whole.
func (g *salvager) survey() error {
	g.proven = g.s.Footer.To
	var next uint64
	err := g.s.Walk(recovery.Walk{
		Record: func(r recovery.RecordAt) error {
			g.claim(&r)
			return nil
		},
		Entry: func(e *recovery.EntryAt) error {
			if g.first == 0 {
				g.first, next = e.Index, e.Index
			}
			if e.Index > next {
				g.lost = append(g.lost, uintRange{next, e.Index - 1})
			}
			if e.Problem != nil {
				g.loseIndex(e.Index)
			}
			if e.Head != nil {
				g.maxTerm = max(g.maxTerm, e.Head.Term)
			}
			for i := range e.Parts {
				g.checkPlace(&e.Parts[i])
			}
			g.last, next = e.Index, e.Index+1
			return nil
		},
	})
	if err != nil {
		return err
	}
	if g.misplaced != nil {
		return fmt.Errorf("%w: %w; the FORMAT file is lost: say the directory's QUEEN_QLOG_SHARDS with --shards", errUsage, g.misplaced)
	}
	for _, r := range g.lost {
		if r.hi > g.proven {
			g.cutoff = max(r.lo, g.proven+1)
			break
		}
	}
	return nil
}

func (g *salvager) loseIndex(i uint64) {
	if n := len(g.lost); n > 0 && g.lost[n-1].hi+1 == i {
		g.lost[n-1].hi = i
		return
	}
	g.lost = append(g.lost, uintRange{i, i})
}

// claim notes what a record proves durable (I2).
func (g *salvager) claim(r *recovery.RecordAt) {
	if f := g.s.Log(r.Log).File(r.Seq); r.Pos >= f.Proven {
		return
	}
	switch r.Record.Kind {
	case entry.KindPad:
		g.proven = max(g.proven, r.Record.Index)
	case entry.KindEntry, entry.KindStub:
		g.proven = max(g.proven, r.Record.Head.Durable)
	}
}

func (g *salvager) checkPlace(p *recovery.PartAt) {
	if g.misplaced == nil && p.Queue != 0 && g.l.Log(p.Queue) != p.Log {
		g.misplaced = fmt.Errorf("%s pos %d: a record of queue %d, which belongs to log q%d with %d shared logs", p.File, p.Pos, p.Queue, g.l.Log(p.Queue), g.l.Shards)
	}
}

// lostWithin reports whether an entry in (from, to] is lost.
func (g *salvager) lostWithin(from, to uint64) bool {
	for _, r := range g.lost {
		if r.hi > from && r.lo <= to {
			return true
		}
	}
	return from < to && g.last < to // the logs end before it
}

// chooseBase finds the checkpoint to build on. Its rows may hold effects of
// entries above From up to To: when one of these is lost, a part of it would
// be visible, so an older checkpoint is taken, or none when the logs go back to
// the first entry.
func (g *salvager) chooseBase() error {
	files, err := rowsFiles(g.s)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	var all []baseRows // newest last
	for _, file := range files {
		found, err := g.footers(file)
		if err != nil {
			return err
		}
		all = append(all, found...)
	}
	for i := len(all) - 1; i >= 0; i-- {
		if f := &all[i].footer; !g.lostWithin(f.From, f.To) {
			g.base = &all[i]
			return nil
		}
	}
	switch {
	case g.first == 1:
		return nil
	case len(all) == 0:
		return g.lose(classDamage, 0, checkpointDir(g.s), -1, "no checkpoint can be read, and the logs begin at entry "+fmt.Sprint(g.first),
			"queues, partitions, groups, keys and timers that older entries made are lost")
	}
	g.base = &all[len(all)-1]
	g.base.footer.To, g.base.footer.ToTerm = g.base.footer.From, g.base.footer.FromTerm
	return g.lose(classDamage, 0, g.base.file, g.base.end, "the only checkpoint was taken while an entry was written that is lost",
		"a part of that entry may be visible: its rows without its messages")
}

// footers lists the checkpoints of a rows file whose rows can be read, and
// reports what cannot.
func (g *salvager) footers(file string) (all []baseRows, err error) {
	end, err := index.ScanRows(g.s.FS, file, func(pos int64, r index.RowRecord) error {
		if r.Kind == index.RowFooter {
			f := r.Footer
			f.Extra = nil // the new directory has other files
			all = append(all, baseRows{file: file, end: pos, footer: f})
		}
		return nil
	})
	switch {
	case errors.Is(err, index.ErrCorrupt):
		if g.s.FooterErr == nil {
			return all, nil // an unfinished checkpoint at the end
		}
		return all, g.lose(classDamage, 0, file, end, err.Error(), "checkpoints that end behind this place are not used")
	case errors.Is(err, index.ErrNewerFormat) || err == nil:
		return all, err
	}
	return all, err
}

func (g *salvager) from() uint64 {
	if g.base == nil {
		return 0
	}
	return g.base.footer.From
}

func (g *salvager) write(id recovery.Identity) error {
	fsys := g.t.fs
	for _, dir := range []string{g.out, raftlog.StateDir(g.out), path.Join(g.out, "checkpoint"), path.Join(g.out, "log")} {
		if err := fsys.MkdirAll(dir); err != nil {
			return err
		}
	}
	for _, dir := range []string{filepath.Dir(g.out), g.out} {
		if err := fsys.SyncDir(dir); err != nil {
			return err
		}
	}
	g.state = newAdoption()
	if err := g.writeLogs(); err != nil {
		return err
	}
	if err := g.writeRows(); err != nil {
		return err
	}
	st := raftlog.State{Term: max(g.maxTerm, g.s.State.Term), Vote: id.Node, Conf: raftlog.Membership{Voters: []uint64{id.Node}}, ConfIndex: g.newLast}
	if err := raftlog.SaveState(fsys, raftlog.StateDir(g.out), &st); err != nil {
		return err
	}
	return recovery.SaveIdentity(fsys, g.out, id) // last: without it no broker opens the directory
}

// writeLogs writes the logs anew, entry by entry.
func (g *salvager) writeLogs() (err error) {
	g.store, err = raftlog.OpenStore(raftlog.StoreOptions{FS: g.t.fs, Dir: g.out, Layout: g.l, SegmentBytes: segment.DefaultSegmentBytes, OpenFiles: 256})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, g.store.Close()) }()
	if g.base != nil {
		if err := g.copyRows(&rowSink{row: g.state.row, gone: g.state.gone}); err != nil {
			return err
		}
	}
	g.w = raftlog.NewRewriter(g.store)
	g.newLast = g.from()
	next := g.first
	err = g.s.Walk(recovery.Walk{
		Gap: func(l *recovery.SnapshotLog, f *recovery.SnapshotFile, b segment.Gap) error {
			if b.Zeros && f.Newest {
				return nil // space that was prepared
			}
			return g.lose("unreadable", 0, l.Path(f), b.Pos, fmt.Sprintf("%s: expected %s, found %s", b.What, b.Expected, b.Found),
				fmt.Sprintf("%d bytes are not copied", b.End-b.Pos))
		},
		Unread: func(l *recovery.SnapshotLog, f *recovery.SnapshotFile, err error) error {
			if g.t.movedOn(l, f, err) {
				return nil
			}
			return g.lose("unreadable", 0, l.Path(f), -1, err.Error(), "nothing of this file is copied")
		},
		Entry: func(e *recovery.EntryAt) error {
			for ; next < e.Index; next++ {
				if next > g.from() && next > g.first {
					if err := g.lose(g.classOf(next), next, "", -1, "no record of it in any log", "it is not in the new directory"); err != nil {
						return err
					}
				}
			}
			next = e.Index + 1
			return g.entry(e)
		},
	})
	if err != nil {
		return err
	}
	if err := g.adopt(); err != nil {
		return err
	}
	return g.w.Sync()
}

func (g *salvager) classOf(index uint64) string {
	if index > g.proven {
		return classTorn
	}
	return classDamage
}

// entry writes one entry, or says why not.
func (g *salvager) entry(e *recovery.EntryAt) error {
	switch {
	case e.Index <= g.from() && e.Problem == nil:
		g.count(e)
		return g.w.Entry(e.Entry)
	case e.Index <= g.from():
		return g.partial(e)
	case e.Problem != nil:
		effect := "it is left out as a whole"
		if e.Index > g.proven {
			effect += ": nothing proves that it was durable"
		}
		return g.lose(g.classOf(e.Index), e.Index, placeOf(e), posOf(e), e.Problem.Error(), effect)
	case g.cutoff != 0 && e.Index >= g.cutoff:
		return g.lose(classTorn, e.Index, placeOf(e), posOf(e), "whole, behind one that is not", fmt.Sprintf("it is left out, as a start would cut it: entry %d before it is not proven durable", g.cutoff))
	}
	g.newLast++
	g.kept++
	g.count(e)
	if err := g.state.entry(e); err != nil {
		return err
	}
	return g.w.Entry(renumbered(e.Entry, g.newLast))
}

func renumbered(e *pb.Entry, at uint64) *pb.Entry {
	return &pb.Entry{Index: new(at), Term: new(e.GetTerm()), Type: e.GetType().Enum(), Data: e.GetData()}
}

func (g *salvager) count(e *recovery.EntryAt) {
	for i := range e.Parts {
		g.messages += uint64(e.Parts[i].Count)
	}
}

// partial keeps what is left of an entry whose effects the checkpoint holds.
func (g *salvager) partial(e *recovery.EntryAt) error {
	rest, err := e.Rest()
	if err != nil {
		return err
	}
	if rest != nil {
		g.count(e)
		g.parts += uint64(len(e.Parts))
		term := max(g.maxTerm, 1)
		if e.Head != nil {
			term = e.Head.Term
		}
		if err := g.w.Entry(&pb.Entry{Index: new(e.Index), Term: new(term), Type: pb.EntryNormal.Enum(), Data: rest}); err != nil {
			return err
		}
	}
	return g.lose(classDamage, e.Index, placeOf(e), posOf(e), e.Problem.Error(), "the checkpoint holds its effects; of its messages the readable ones are kept")
}

func placeOf(e *recovery.EntryAt) string {
	if len(e.Copies) > 0 {
		return e.Copies[0].File
	}
	return e.Parts[0].File
}

func posOf(e *recovery.EntryAt) int64 {
	if len(e.Copies) > 0 {
		return e.Copies[0].Pos
	}
	return e.Parts[0].Pos
}

// copyRows gives the rows of the base to a sink, in their order.
func (g *salvager) copyRows(sink index.RowLoader) error {
	_, err := index.ScanRows(g.s.FS, g.base.file, func(pos int64, r index.RowRecord) error {
		switch {
		case pos >= g.base.end:
			return errEnough
		case r.Kind == index.RowPut:
			return sink.LoadRow(r.Key, r.Value)
		case r.Kind == index.RowDelete:
			return sink.LoadRow(r.Key, nil)
		case r.Kind == index.RowDeleteRange:
			return sink.LoadDeleteRange(r.Lo, r.Hi)
		}
		return nil
	})
	if errors.Is(err, errEnough) {
		return nil
	}
	return err
}

// writeRows writes the checkpoint anew.
func (g *salvager) writeRows() (err error) {
	if g.base == nil {
		return nil
	}
	r, _, err := index.OpenRows(g.t.fs, path.Join(g.out, "checkpoint"), &rowSink{row: func(_, _ []byte) {}})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	if err := r.Begin(true); err != nil {
		return err
	}
	if err := g.copyRows(rowCopy{r}); err != nil {
		return err
	}
	return r.Finish(g.base.footer)
}

// rowCopy writes rows to a checkpoint.
type rowCopy struct{ r *index.Rows }

func (c rowCopy) LoadRow(key, value []byte) error {
	if value == nil {
		return c.r.Delete(key)
	}
	return c.r.Put(key, value)
}

func (c rowCopy) LoadDeleteRange(lo, hi []byte) error { return c.r.DeleteRange(lo, hi) }

func (g *salvager) summary() error {
	base := "no checkpoint: everything is replayed"
	if g.base != nil {
		base = fmt.Sprintf("the checkpoint of entry %d", g.base.footer.From)
	}
	o := object{{"class", "summary"}, {"out", g.out}, {"checkpointFrom", g.from()}, {"entries", g.kept}, {"last", g.newLast}, {"messages", g.messages},
		{"parts", g.parts}, {"adopted", g.state.adopted}, {"damage", g.counts[classDamage]}, {"torn", g.counts[classTorn]}, {"unreadable", g.counts["unreadable"]}}
	text := fmt.Sprintf("%s: %s, and %d entries after it; %d messages", g.out, base, g.kept, g.messages)
	if g.parts > 0 {
		text += fmt.Sprintf(", %d records of entries that are not whole", g.parts)
	}
	if g.state.adopted > 0 {
		text += fmt.Sprintf("; %d queues and partitions had lost their names and got new ones (salvaged-...)", g.state.adopted)
	}
	if g.total() == 0 {
		text += "\nnothing is missing"
	} else {
		text += fmt.Sprintf("\nnot in it: %d damaged, %d torn, %d places that cannot be read", g.counts[classDamage], g.counts[classTorn], g.counts["unreadable"])
	}
	return g.t.out.emit(o, text)
}
