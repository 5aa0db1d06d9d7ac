package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/cespare/xxhash/v2"

	"queen/index"
	"queen/internal/entry"
	"queen/recovery"
	"queen/segment"
)

// Side tables against their segments. What a table holds and what it should
// hold are compared as sets, by number and by a sum of hashes, so that nothing
// has to be kept or sorted, whatever the size.

// setSum is a set of things, whatever their order.
type setSum struct {
	n   uint64
	sum uint64
}

func (s *setSum) add(values ...uint64) {
	var b [48]byte
	buf := b[:0]
	for _, v := range values {
		buf = binary.LittleEndian.AppendUint64(buf, v)
	}
	s.n++
	s.sum += xxhash.Sum64(buf)
}

func (s *setSum) join(o setSum) {
	s.n += o.n
	s.sum += o.sum
}

// content is what one segment file, or the tables of some, hold.
type content struct {
	appends, values, ids setSum
	minIndex, maxIndex   uint64
	minTime, maxTime     int64
	bad                  bool // a part of the file cannot be read
}

// addRecord adds a record at pos of file seq, as the sealer does.
func (c *content) addRecord(seq uint64, pos int64, r *entry.Record) {
	if c.minIndex == 0 {
		c.minIndex = r.Index
	}
	c.maxIndex = max(c.maxIndex, r.Index)
	switch r.Kind {
	case entry.KindValue:
		c.values.add(r.Value.ID, seq, uint64(pos))
	case entry.KindAppend, entry.KindIDs:
		a := &r.Append
		c.addAppend(index.AppendRef{Seq: seq, Pos: pos, Partition: a.Partition, First: a.First, Count: a.Count, Time: a.Time})
		if c.minTime == 0 || a.Time < c.minTime {
			c.minTime = a.Time
		}
		c.maxTime = max(c.maxTime, a.Time)
		var txn [64]byte
		err := eachMessage(a, func(offset uint64, m *entry.Message) error {
			c.ids.add(entry.TxnHash(a.Partition, m.AppendTxn(txn[:0])), offset)
			return nil
		})
		c.bad = c.bad || err != nil
	}
}

func (c *content) addAppend(r index.AppendRef) {
	c.appends.add(r.Partition, r.First, r.Seq, uint64(r.Pos), uint64(r.Count), uint64(r.Time))
}

// contents are those of all segment files, by log and file.
type contents map[uint64]map[uint64]*content

func (c contents) of(log, seq uint64) *content {
	if c[log] == nil {
		c[log] = map[uint64]*content{}
	}
	if c[log][seq] == nil {
		c[log][seq] = &content{}
	}
	return c[log][seq]
}

// pair is the two tables of a file or of several, by their common name.
type pair struct {
	name       string // without .idx and .dedup
	idx, dedup bool
	size       int64
}

// pairsOf lists the tables of a log.
func pairsOf(s *recovery.Snapshot, l *recovery.SnapshotLog) (pairs []pair, err error) {
	infos, err := s.FS.List(l.Dir)
	if err != nil {
		return nil, err
	}
	for _, i := range infos {
		ext := path.Ext(i.Name)
		if ext != ".idx" && ext != ".dedup" {
			continue
		}
		base := strings.TrimSuffix(i.Name, ext)
		at := slices.IndexFunc(pairs, func(p pair) bool { return p.name == base })
		if at < 0 {
			pairs = append(pairs, pair{name: base})
			at = len(pairs) - 1
		}
		pairs[at].idx = pairs[at].idx || ext == ".idx"
		pairs[at].dedup = pairs[at].dedup || ext == ".dedup"
		pairs[at].size += i.Size
	}
	return pairs, nil
}

// tablePair is what two tables say.
type tablePair struct {
	files   []index.FileInfo
	content content
}

// readPair reads a pair whole: checksums, and what is in it.
func readPair(s *recovery.Snapshot, l *recovery.SnapshotLog, p *pair) (t tablePair, err error) {
	base := path.Join(l.Dir, p.name)
	err = index.ScanTable(s.FS, base+".idx", index.TableVisitor{
		File:   func(f index.FileInfo) { t.files = append(t.files, f) },
		Append: t.content.addAppend,
		Value:  func(id, seq uint64, pos int64) { t.content.values.add(id, seq, uint64(pos)) },
	})
	if err != nil {
		return t, err
	}
	var described []index.FileInfo
	err = index.ScanTable(s.FS, base+".dedup", index.TableVisitor{
		File: func(f index.FileInfo) { described = append(described, f) },
		Txn:  func(hash, offset uint64) { t.content.ids.add(hash, offset) },
	})
	if err == nil && !slices.Equal(described, t.files) {
		err = &index.CorruptError{File: base + ".dedup", What: "files described", Expected: fmt.Sprint(t.files), Found: fmt.Sprint(described)}
	}
	return t, err
}

// stale are the files that a pair describes and that are not there like that:
// of another generation or size, or gone. The tables do not count for them.
func (t *tablePair) stale(l *recovery.SnapshotLog) (out []uint64) {
	for _, f := range t.files {
		if have := l.File(f.Seq); have == nil || have.Generation != f.Generation || have.Size != f.Size {
			out = append(out, f.Seq)
		}
	}
	return out
}

// compare compares a pair with the files that it describes; "" when they fit.
// What is of files that are gone cannot be told apart among transactionIds.
func (t *tablePair) compare(l *recovery.SnapshotLog, have contents) string {
	if len(t.stale(l)) > 0 {
		return ""
	}
	var want content
	for _, f := range t.files {
		c := have.of(l.ID, f.Seq)
		if c.bad {
			return "" // reported as what it is
		}
		want.appends.join(c.appends)
		want.values.join(c.values)
		want.ids.join(c.ids)
		same := f.MinIndex == c.minIndex && f.MaxIndex == c.maxIndex && f.MinTime == c.minTime && f.MaxTime == c.maxTime
		if f.Generation > 1 { // of a file that was rewritten the table keeps the old range
			same = c.maxIndex == 0 || f.MinIndex <= c.minIndex && c.maxIndex <= f.MaxIndex
		}
		if !same {
			return fmt.Sprintf("file %d: the segment holds entries %s from %s to %s, the table says entries %s from %s to %s", f.Seq,
				numbers(c.minIndex, c.maxIndex), stamp(c.minTime), stamp(c.maxTime), numbers(f.MinIndex, f.MaxIndex), stamp(f.MinTime), stamp(f.MaxTime))
		}
	}
	for _, d := range []struct {
		what       string
		want, have setSum
	}{{"appends", want.appends, t.content.appends}, {"values", want.values, t.content.values}, {"transactionIds", want.ids, t.content.ids}} {
		if d.want != d.have {
			return fmt.Sprintf("%s: the segments hold %d (sum %016x), the tables %d (sum %016x)", d.what, d.want.n, d.want.sum, d.have.n, d.have.sum)
		}
	}
	return ""
}

// dedup shows the side tables of all logs and compares them with their segments.
func (t *tool) dedup(_ []string) (findings bool, err error) {
	s, err := t.snapshot()
	if err != nil {
		return false, err
	}
	have := contents{}
	err = s.Walk(recovery.Walk{
		Skip:   func(_ *recovery.SnapshotLog, f *recovery.SnapshotFile) bool { return f.Table == nil },
		Record: func(r recovery.RecordAt) error { have.of(r.Log, r.Seq).addRecord(r.Seq, r.Pos, &r.Record); return nil },
		Gap: func(l *recovery.SnapshotLog, f *recovery.SnapshotFile, _ segment.Gap) error {
			have.of(l.ID, f.Seq).bad = true
			return nil
		},
		Unread: func(l *recovery.SnapshotLog, f *recovery.SnapshotFile, _ error) error {
			have.of(l.ID, f.Seq).bad = true
			return nil
		},
	})
	if err != nil {
		return false, err
	}
	tables := 0
	for _, l := range s.Logs {
		pairs, err := pairsOf(s, l)
		if err != nil {
			return false, err
		}
		for i := range pairs {
			tables++
			bad, err := t.showPair(s, l, &pairs[i], have)
			if err != nil {
				return false, err
			}
			findings = findings || bad
		}
	}
	t.out.textf("%d pairs of tables", tables)
	return findings, nil
}

// staysHalf reports whether one table of a pair stays without the other one: a
// broker that runs makes and removes them one after the other.
func (t *tool) staysHalf(base string) bool {
	for range settleSteps {
		_, idx := t.fs.Stat(base + ".idx")
		_, dedup := t.fs.Stat(base + ".dedup")
		if (idx == nil) == (dedup == nil) {
			return false
		}
		t.settle()
	}
	return true
}

func (t *tool) showPair(s *recovery.Snapshot, l *recovery.SnapshotLog, p *pair, have contents) (bad bool, err error) {
	name := t.short(path.Join(l.Dir, p.name))
	o := object{{"table", name}, {"log", l.ID}, {"bytes", p.size}}
	state, note := "consistent", ""
	var read tablePair
	switch {
	case (!p.idx || !p.dedup) && !t.staysHalf(path.Join(l.Dir, p.name)):
		state, note = "gone", "made or removed meanwhile"
	case !p.idx || !p.dedup:
		state, note = "half", "one of .idx and .dedup is missing: a start makes both again"
	default:
		var rerr error
		if read, rerr = readPair(s, l, p); rerr != nil {
			if recovery.Vanished(rerr) && !errors.Is(rerr, index.ErrCorrupt) {
				state, note = "gone", "removed or replaced meanwhile"
				break
			}
			state, note = "damaged", rerr.Error()
		} else if stale := read.stale(l); len(stale) > 0 {
			state, note = "stale", fmt.Sprintf("describes files that are not there like that: %v", stale)
		} else if differs := read.compare(l, have); differs != "" {
			state, note = "differs", differs
		}
	}
	if state == "damaged" || state == "differs" {
		if moved, err := s.Changed(); err != nil {
			return false, err
		} else if moved {
			state, note = "moving", "files were replaced meanwhile, look again: "+note
		}
	}
	files := []object{}
	text := fmt.Sprintf("%s: %s, %d bytes, %d appends %d values %d ids", name, state, p.size, read.content.appends.n, read.content.values.n, read.content.ids.n)
	for i := range read.files {
		files = append(files, tableFileMembers(&read.files[i]))
		text += "\n  " + tableFileText(&read.files[i])
	}
	if note != "" {
		text += "\n  " + note
	}
	o = append(o, member{"state", state}, member{"note", note}, member{"appends", read.content.appends.n}, member{"values", read.content.values.n},
		member{"ids", read.content.ids.n}, member{"files", files})
	if err := t.out.emit(o, text); err != nil {
		return false, err
	}
	if t.opt.List && p.idx && p.dedup && state != "damaged" {
		for _, ext := range []string{".idx", ".dedup"} {
			if err := t.listTable(path.Join(l.Dir, p.name) + ext); err != nil && !errors.Is(err, errEnough) {
				return false, err
			}
		}
	}
	return state == "damaged" || state == "differs" || state == "half", nil
}
