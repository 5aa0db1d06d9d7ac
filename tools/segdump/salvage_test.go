package main

import (
	"fmt"
	"path"
	"strings"
	"testing"

	"queen/fsm"
	"queen/index"
	"queen/internal/entry"
	"queen/internal/vfs"
	"queen/raftlog"
	"queen/segment"
)

// aTransaction finds an entry over two logs, and the number in its payload.
func aTransaction(t *testing.T, have map[string]uint64, from, to uint64) (at uint64, n int) {
	t.Helper()
	for p, i := range have {
		if i > from && i <= to && strings.HasPrefix(p, `"both-`) {
			_, err := fmt.Sscanf(p, `"both-%d`, &n)
			must(t, err)
			return i, n
		}
	}
	t.Fatalf("no transaction between entries %d and %d", from, to)
	return 0, 0
}

// flipEntry damages the last record of an entry in a log.
func flipEntry(t *testing.T, m *vfs.Mem, log, at uint64) {
	t.Helper()
	recs := records(t, m, log)
	for i := len(recs) - 1; i >= 0; i-- {
		if recs[i].rec.Index == at && recs[i].rec.Kind != entry.KindPad {
			must(t, m.Flip(recs[i].file, recs[i].end-1, 1))
			return
		}
	}
	t.Fatalf("log %d has nothing of entry %d", log, at)
}

// A checkpoint is fuzzy: its rows may hold effects of entries up to To. When
// one of these is lost, its rows must not be visible without its messages, so
// an older checkpoint is taken.
func TestSalvageFuzzyCheckpoint(t *testing.T) {
	m := filled(t, true)
	have := stock(t, m)
	r, footer, err := index.OpenRows(m, "data/checkpoint", &rowSink{row: func(_, _ []byte) {}})
	must(t, err)
	older := uint64(0)
	_, err = index.ScanRows(m, "data/checkpoint/00000000000000000001.rows", func(_ int64, r index.RowRecord) error {
		if r.Kind == index.RowFooter && r.Footer.From < footer.From {
			older = r.Footer.From
		}
		return nil
	})
	must(t, err)
	if older == 0 || footer.From < older+10 {
		t.Fatalf("footers at %d and %d: the test needs two that are apart", older, footer.From)
	}
	// The rows of a state at To, of which only From is promised.
	state := map[string]string{}
	must(t, loadRowsInto(m, state))
	must(t, r.Begin(false))
	for k, v := range state {
		must(t, r.Put([]byte(k), []byte(v)))
	}
	fuzzy := index.Footer{From: footer.From - 8, To: footer.To, FromTerm: footer.FromTerm, ToTerm: footer.ToTerm, Time: footer.Time}
	must(t, r.Finish(fuzzy))
	must(t, r.Close())
	// The footers behind the older one now: From = To, and the fuzzy one. The
	// first would be chosen for what is lost below its From, so take it away.
	m = withoutMiddleFooter(t, m, older, fuzzy)
	at, n := aTransaction(t, have, fuzzy.From, fuzzy.To)
	flipEntry(t, m, 2, at)
	out := want(t, 1, m, "salvage", "data", "out")
	if !strings.Contains(out, fmt.Sprintf("out: the checkpoint of entry %d", older)) {
		t.Errorf("the checkpoint of entry %d should have been taken:\n%s", older, out)
	}
	b := startBroker(t, m, "out", raftlog.Config{})
	if _, got := b.try("GET", fmt.Sprintf("kv/n/%d", n), ""); strings.Contains(got, `"found":true`) {
		t.Errorf("a key of lost entry %d is there: %s", at, got)
	}
	for p, i := range have {
		found := false
		for _, q := range []uint64{1, 2} {
			for part := uint64(1); part < 6 && !found; part++ {
				got, err := b.messages(q, part)
				must(t, err)
				for _, g := range got {
					found = found || g == p
				}
			}
		}
		if found != (i != at) {
			t.Errorf("%.20s of entry %d is there: %v; lost was %d", p, i, found, at)
		}
	}
}

func loadRowsInto(m *vfs.Mem, state map[string]string) error {
	r, _, err := index.OpenRows(m, "data/checkpoint", &rowSink{
		row: func(k, v []byte) {
			if v == nil {
				delete(state, string(k))
			} else {
				state[string(k)] = string(v)
			}
		},
	})
	if err != nil {
		return err
	}
	return r.Close()
}

// withoutMiddleFooter makes the checkpoint file anew: the rows up to the older
// footer, that one, all other rows, the fuzzy one.
func withoutMiddleFooter(t *testing.T, m *vfs.Mem, older uint64, fuzzy index.Footer) *vfs.Mem {
	t.Helper()
	must(t, m.MkdirAll("data/new"))
	w, _, err := index.OpenRows(m, "data/new", &rowSink{row: func(_, _ []byte) {}})
	must(t, err)
	must(t, w.Begin(true))
	sink := rowCopy{w}
	_, err = index.ScanRows(m, "data/checkpoint/00000000000000000001.rows", func(_ int64, r index.RowRecord) error {
		switch {
		case r.Kind == index.RowPut:
			return sink.LoadRow(r.Key, r.Value)
		case r.Kind == index.RowDelete:
			return sink.LoadRow(r.Key, nil)
		case r.Kind == index.RowDeleteRange:
			return sink.LoadDeleteRange(r.Lo, r.Hi)
		case r.Footer.From == older:
			if err := w.Finish(r.Footer); err != nil {
				return err
			}
			return w.Begin(false)
		}
		return nil
	})
	must(t, err)
	must(t, w.Finish(fuzzy))
	must(t, w.Close())
	must(t, m.RemoveAll("data/checkpoint"))
	must(t, m.Rename("data/new", "data/checkpoint"))
	return m
}

// Shared logs: the number of them is in FORMAT, and when that is lost it has
// to be said.
func TestSalvageShards(t *testing.T) {
	fsys := vfs.NewMem(6)
	b := startBroker(t, fsys, "data", raftlog.Config{Shards: 2})
	fill(b, 0)
	m := fsys.Clone()
	b.stop()
	must(t, m.Remove("data/FORMAT"))
	if status, _, errs := run(t, m, "salvage", "data", "wrong"); status != exitTrouble || !strings.Contains(errs, "--shards") {
		t.Errorf("status %d: %s", status, errs)
	}
	want(t, 1, m, "salvage", "data", "out", "--shards", "2")
	want(t, 0, m, "verify", "out")
	b = startBroker(t, m, "out", raftlog.Config{Shards: 2})
	if got := b.stored("a"); len(got) != 24 {
		t.Errorf("%d messages of a, want 24", len(got))
	}
}

// aTable finds a directory with a side table of a single file that holds messages.
func aTable(t *testing.T) (*vfs.Mem, string) {
	t.Helper()
	for _, clean := range []bool{true, false} {
		m := filled(t, clean)
		for _, name := range allFiles(t, m, "data/log") {
			if strings.HasSuffix(name, ".idx") && !strings.HasPrefix(path.Base(name), "l") && !strings.Contains(name, "/q0/") {
				return m, name
			}
		}
	}
	t.Fatal("no table of a single file")
	return nil, ""
}

// A side table with good checksums that does not hold what its segment holds
// (of an earlier life of the file, say) is found.
func TestTablesThatDiffer(t *testing.T) {
	base, table := aTable(t)
	var info index.FileInfo
	var refs []index.AppendRef
	must(t, index.ScanTable(base, table, index.TableVisitor{File: func(f index.FileInfo) { info = f }, Append: func(r index.AppendRef) { refs = append(refs, r) }}))
	var txns [][2]uint64
	must(t, index.ScanTable(base, strings.TrimSuffix(table, ".idx")+".dedup", index.TableVisitor{Txn: func(h, o uint64) { txns = append(txns, [2]uint64{h, o}) }}))
	reseal := func(edit func(refs []index.AppendRef, txns [][2]uint64)) *vfs.Mem {
		m, r, x := base.Clone(), append([]index.AppendRef{}, refs...), append([][2]uint64{}, txns...)
		edit(r, x)
		ix, err := index.OpenLogIndex(m, path.Dir(table), index.NewTableCache(0, 8))
		must(t, err)
		must(t, ix.Reseal(index.SealedFile{Seq: info.Seq, Generation: info.Generation, Size: info.Size, MinIndex: info.MinIndex, MaxIndex: info.MaxIndex}, func(c *index.FileContent) error {
			for _, a := range r {
				c.AddAppend(a)
			}
			for _, h := range x {
				c.AddTxn(h[0], h[1])
			}
			return nil
		}))
		return m
	}
	want(t, 0, reseal(func([]index.AppendRef, [][2]uint64) {}), "verify", "data")
	for what, edit := range map[string]func([]index.AppendRef, [][2]uint64){
		"position": func(r []index.AppendRef, _ [][2]uint64) { r[0].Pos++ },
		"time":     func(r []index.AppendRef, _ [][2]uint64) { r[len(r)-1].Time++ },
		"hash":     func(_ []index.AppendRef, x [][2]uint64) { x[0][0] ^= 1 },
		"offset":   func(_ []index.AppendRef, x [][2]uint64) { x[0][1]++ },
	} {
		m := reseal(edit)
		if out := want(t, 1, m, "verify", "data"); !strings.Contains(out, "do not fit") {
			t.Errorf("%s: %s", what, out)
		}
		if out := want(t, 1, m, "dedup", "data"); !strings.Contains(out, "differs") {
			t.Errorf("%s: %s", what, out)
		}
	}
}

// Two entries were in flight when the power failed, and only the second one
// is whole: a start cuts both, and a salvage keeps neither.
func TestWholeBehindTorn(t *testing.T) {
	m := load(t, stepDir)
	takeBack(t, m, 2, stepLast)
	key := append([]byte{byte(fsm.RowKV)}, strings.Repeat("0", 35)+"1ns\x00late"...)
	effects := append([]byte{byte(fsm.EffectPut), byte(len(key))}, key...)
	b := entry.Builder{Effects: append(effects, 4, 9, 0, 0, '1')}
	data := b.Encode(1)
	parsed, err := entry.Parse(data)
	must(t, err)
	l, err := segment.Open(segment.Options{FS: m, Dir: "data/log/q0", ID: 0})
	must(t, err)
	head := entry.Head{Term: 2, Hash: entry.Hash(data), Commit: stepLast - 1, Durable: stepLast - 1, Logs: []uint64{0}}
	_, err = l.Append(entry.AppendEntryRecord(nil, stepLast+1, &head, data, &parsed))
	must(t, err)
	must(t, l.Close())

	if v := agree(t, m); v.Cut != stepLast || v.CutSeen != 2 {
		t.Errorf("cut at %d, %d seen", v.Cut, v.CutSeen)
	}
	out := want(t, 1, m, "verify", "data")
	if !strings.Contains(out, "2 findings: 0 damage, 2 torn") || !strings.Contains(out, "whole, behind one that is not") {
		t.Error(out)
	}
	if out := want(t, 1, m, "entry", "data", "8"); !strings.Contains(out, "it is whole, but a start cuts it") {
		t.Error(out)
	}
	if out := want(t, 1, m, "salvage", "data", "out"); !strings.Contains(out, "2 torn") {
		t.Error(out)
	}
	br := startBroker(t, m, "out", raftlog.Config{})
	if _, got := br.try("GET", "kv/ns/late", ""); strings.Contains(got, `"found":true`) {
		t.Errorf("the second entry is there: %s", got)
	}
}
