package main

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"

	"queen/fsm"
	"queen/index"
	"queen/internal/entry"
	"queen/recovery"
	"queen/segment"
)

// Classes of findings.
const (
	classTorn    = "torn"    // a start cuts it: nothing proves that it was durable
	classDamage  = "damage"  // what had been durable is gone, or a start refuses
	classDerived = "derived" // side files: a start, or the broker, makes them again
)

// finding is one thing that is wrong.
type finding struct {
	Class    string `json:"class"`
	File     string `json:"file,omitempty"`
	Pos      int64  `json:"pos"` // -1: none
	Index    uint64 `json:"index,omitempty"`
	What     string `json:"what"`
	Expected string `json:"expected,omitempty"`
	Found    string `json:"found,omitempty"`
	Effect   string `json:"effect"`
}

func (f *finding) text() string {
	text := f.Class
	if f.File != "" {
		text += " " + f.File
	}
	if f.Pos >= 0 {
		text += fmt.Sprintf(" pos %d", f.Pos)
	}
	if f.Index != 0 {
		text += fmt.Sprintf(" entry %d", f.Index)
	}
	text += ": " + f.What
	if f.Expected != "" {
		text += fmt.Sprintf(": expected %s, found %s", f.Expected, f.Found)
	}
	return text + "\n  " + f.Effect
}

// maxFindings is how many findings are shown; all are counted.
const maxFindings = 1000

// verifier is one run of verify.
type verifier struct {
	t       *tool
	s       *recovery.Snapshot
	v       recovery.Verdict
	inUse   bool
	later   []finding // counts only when nobody writes
	have    contents
	ends    map[uint64]recovery.LogEnd
	rows    map[string]int
	found   []finding
	counts  map[string]int
	entries uint64
	first   uint64
	last    uint64
	records map[string]int
	files   int
	bytes   int64
	pairs   int
}

// verifyRuns is how often a directory that moves is looked at when something
// was found.
const verifyRuns = 4

// verify checks everything and goes on after an error. A broker replaces files
// under the reader; what is wrong then is gone at the next look, so of a
// directory that moves only what every look finds counts.
func (t *tool) verify(_ []string) (findings bool, err error) {
	v, err := t.look()
	for i := 1; err == nil && i < verifyRuns && len(v.found) > 0; i++ {
		moved, cerr := v.s.Changed()
		if cerr != nil {
			return false, cerr
		}
		if !moved {
			break
		}
		before := v.found
		if v, err = t.look(); err == nil {
			v.inUse = true
			v.keep(before)
		}
	}
	if err != nil {
		return false, err
	}
	for i := range v.found[:min(len(v.found), maxFindings)] {
		f := &v.found[i]
		if err := t.out.emit(f, f.text()); err != nil {
			return false, err
		}
	}
	return len(v.found) > 0, v.summary()
}

// look is one look at everything.
func (t *tool) look() (*verifier, error) {
	s, verdict, err := t.judged()
	if err != nil {
		return nil, err
	}
	v := &verifier{t: t, s: s, v: verdict, inUse: t.inUse(t.dir) || s.Moving, have: contents{}, ends: s.ClaimedEnds(), rows: map[string]int{}, counts: map[string]int{}, records: map[string]int{}}
	v.parts()
	v.checkpoint()
	if err := v.logs(); err != nil {
		return nil, err
	}
	v.tables()
	if err := v.tail(); err != nil {
		return nil, err
	}
	return v, v.refusal()
}

// keep drops the findings that an earlier look did not have.
func (v *verifier) keep(before []finding) {
	v.found = slices.DeleteFunc(v.found, func(f finding) bool {
		return !slices.ContainsFunc(before, func(b finding) bool {
			return b.Class == f.Class && b.File == f.File && b.Pos == f.Pos && b.Index == f.Index
		})
	})
	clear(v.counts)
	for i := range v.found {
		v.counts[v.found[i].Class]++
	}
}

func (v *verifier) total() int {
	return v.counts[classTorn] + v.counts[classDamage] + v.counts[classDerived]
}

// report takes a finding. Beyond the ones that are shown they are only counted.
func (v *verifier) report(f finding) {
	v.counts[f.Class]++
	if len(v.found) > maxFindings {
		return
	}
	f.File = v.t.short(f.File)
	v.found = append(v.found, f)
}

const (
	effectRefuses = "a start refuses"
	effectAgain   = "a start makes it again"
)

// damaged reports an error that a part of the directory gave.
func (v *verifier) damaged(err error, effect string) { v.failed(classDamage, err, effect) }

// failed reports an error as a finding of a class.
func (v *verifier) failed(class string, err error, effect string) {
	f := finding{Class: class, Pos: -1, What: err.Error(), Effect: effect}
	var refused *recovery.RefuseError
	var seg *segment.CorruptError
	var idx *index.CorruptError
	switch {
	case errors.As(err, &refused):
		f.File, f.Pos, f.Index, f.What, f.Expected, f.Found = refused.File, refused.Pos, refused.Index, refused.What, refused.Expected, refused.Found
		if refused.Err != nil {
			f.What += ": " + refused.Err.Error()
		}
	case errors.As(err, &seg):
		f.File, f.Pos, f.What, f.Expected, f.Found = seg.File, seg.Pos, seg.What, seg.Expected, seg.Found
	case errors.As(err, &idx):
		f.File, f.Pos, f.What, f.Expected, f.Found = idx.File, idx.Pos, idx.What, idx.Expected, idx.Found
	}
	v.report(f)
}

// parts checks what is there once: FORMAT, raft/state, the names below log/.
func (v *verifier) parts() {
	for _, err := range []error{v.s.IdentityErr, v.s.StateErr} {
		if err != nil {
			v.damaged(err, effectRefuses)
		}
	}
	for _, name := range v.s.Foreign {
		v.report(finding{Class: classDamage, File: name, Pos: -1, What: "not a log of this broker", Effect: effectRefuses})
	}
	if v.s.State.Cut != 0 {
		v.report(finding{Class: classTorn, File: path.Join(v.t.dir, "raft", "state"), Pos: -1, Index: v.s.State.Cut,
			What: "a cut was interrupted", Effect: "a start finishes it: everything from this entry on goes"})
	}
	for _, l := range v.s.Logs {
		if l.Err != nil {
			v.damaged(fmt.Errorf("log q%d: %w", l.ID, l.Err), effectRefuses)
		}
	}
}

// checkpoint decodes every row that counts.
func (v *verifier) checkpoint() {
	if v.s.FooterErr != nil {
		v.damaged(v.s.FooterErr, effectRefuses)
	}
	bad := func(key []byte, err error) {
		v.report(finding{Class: classDamage, File: checkpointDir(v.s), Pos: -1, What: fmt.Sprintf("row %x does not decode: %v", key, err), Effect: effectRefuses})
	}
	err := loadCheckpoint(v.s, &rowSink{
		row: func(key, value []byte) {
			r, err := fsm.DecodeRow(key, value)
			if err != nil {
				bad(key, err)
				return
			}
			v.rows[r.Kind.String()]++
		},
		gone: func(lo, hi []byte) {
			if _, err := fsm.DecodeRow(lo, nil); len(lo) == 0 {
				bad(lo, err)
			}
		},
	})
	switch {
	case v.s.FooterErr != nil:
	case err != nil:
		v.damaged(err, effectRefuses)
	default:
		v.unfinished()
	}
}

// unfinished looks for what stands behind the last footer of the checkpoint:
// one that was not finished, or whose footer is damaged. A start ignores it
// when the log can take its place.
func (v *verifier) unfinished() {
	files, err := rowsFiles(v.s)
	if err != nil || len(files) == 0 {
		return // as in a new directory
	}
	file, behind := files[len(files)-1], int64(0)
	end, err := index.ScanRows(v.s.FS, file, func(pos int64, r index.RowRecord) error {
		if r.Kind == index.RowFooter {
			behind = -1
		} else if behind <= 0 {
			behind = pos
		}
		return nil
	})
	switch {
	case errors.Is(err, index.ErrCorrupt) && behind <= 0:
		behind = end
	case err != nil && !errors.Is(err, index.ErrCorrupt) && !recovery.Vanished(err):
		v.damaged(err, effectRefuses)
		return
	case behind <= 0:
		return
	}
	v.later = append(v.later, finding{Class: classTorn, File: file, Pos: behind, What: "a checkpoint that was not finished",
		Effect: fmt.Sprintf("a start ignores it and replays the log from entry %d on", v.s.Footer.From+1)})
}

// logs reads every record of every log: checksums, and that each entry is
// whole (I1).
func (v *verifier) logs() error {
	gone := v.reclaimed()
	return v.s.Walk(recovery.Walk{
		Record: func(r recovery.RecordAt) error {
			v.records[kindName(r.Record.Kind)]++
			v.have.of(r.Log, r.Seq).addRecord(r.Seq, r.Pos, &r.Record)
			return nil
		},
		Gap: func(l *recovery.SnapshotLog, f *recovery.SnapshotFile, g segment.Gap) error {
			v.have.of(l.ID, f.Seq).bad = true
			v.gap(l, f, g)
			return nil
		},
		Unread: func(l *recovery.SnapshotLog, f *recovery.SnapshotFile, err error) error {
			v.have.of(l.ID, f.Seq).bad = true
			if v.t.movedOn(l, f, err) {
				v.inUse = true
				return nil
			}
			v.damaged(err, v.effectOn(f))
			return nil
		},
		Entry: func(e *recovery.EntryAt) error {
			v.entry(e, gone)
			return nil
		},
	})
}

// movedOn reports whether a file was removed since the snapshot, or has given
// back space that was prepared: somebody writes.
func (t *tool) movedOn(l *recovery.SnapshotLog, f *recovery.SnapshotFile, err error) bool {
	if !recovery.Vanished(err) {
		return false
	}
	info, serr := t.fs.Stat(l.Path(f))
	return errors.Is(serr, fs.ErrNotExist) || serr == nil && f.Newest && info.Size < f.Size
}

// reclaimed are the logs that do not hold everything any more that was
// written to them: files are missing, or were replaced. Below the checkpoint
// that is as it should be.
func (v *verifier) reclaimed() map[uint64]bool {
	gone := map[uint64]bool{}
	for _, l := range v.s.Logs {
		next := uint64(1)
		for _, f := range l.Files {
			gone[l.ID] = gone[l.ID] || f.Seq != next || f.Generation > 1
			next = f.Seq + 1
		}
		gone[l.ID] = gone[l.ID] || len(l.Files) == 0
	}
	return gone
}

func (v *verifier) effectOn(f *recovery.SnapshotFile) string {
	if f.Table != nil && f.Table.MaxIndex <= v.s.Footer.From {
		return "a start does not read this file; what stands there cannot be delivered"
	}
	return effectRefuses
}

// gap judges bytes that are no record: of a torn tail, or damage.
func (v *verifier) gap(l *recovery.SnapshotLog, f *recovery.SnapshotFile, g segment.Gap) {
	out := finding{Class: classDamage, File: l.Path(f), Pos: g.Pos, What: g.What, Expected: g.Expected, Found: g.Found, Effect: v.effectOn(f)}
	end := v.ends[l.ID]
	below := f.Seq < end.Seq || f.Seq == end.Seq && g.Pos < end.Pos
	if g.Zeros && f.Newest && !below {
		return // space that was prepared
	}
	if f.Newest && !below && v.v.Stopped > v.v.Proven {
		out.Class, out.Effect = classTorn, fmt.Sprintf("a start cuts it: nothing above entry %d is proven durable", v.v.Proven)
		v.later = append(v.later, out)
		return
	}
	v.report(out)
}

// entry judges one entry.
func (v *verifier) entry(e *recovery.EntryAt, reclaimed map[uint64]bool) {
	if v.first == 0 {
		v.first = e.Index
	}
	v.entries++
	v.last = e.Index
	if e.Problem == nil {
		v.effects(e)
	}
	if e.Problem == nil && (e.Index <= v.v.Last || v.v.Refused != nil) {
		return
	}
	if e.Index <= v.s.Footer.From && v.freed(e, reclaimed) {
		return
	}
	what := judge(v.s, &v.v, e)
	f := finding{Class: classDamage, Pos: -1, Index: e.Index, What: "whole, behind one that is not", Effect: what.text}
	if len(e.Copies) > 0 {
		f.File, f.Pos = e.Copies[0].File, e.Copies[0].Pos
	} else if len(e.Parts) > 0 {
		f.File, f.Pos = e.Parts[0].File, e.Parts[0].Pos
	}
	var refused *recovery.RefuseError
	switch {
	case errors.As(e.Problem, &refused):
		f.File, f.Pos, f.What, f.Expected, f.Found = refused.File, refused.Pos, refused.What, refused.Expected, refused.Found
		if refused.Err != nil {
			f.What += ": " + refused.Err.Error()
		}
		if e.Index > v.s.Footer.From {
			f.Effect = effectRefuses
		}
	case e.Problem != nil:
		f.What = e.Problem.Error()
	}
	if what.state == "cut" && refused == nil {
		f.Class = classTorn
		v.later = append(v.later, f)
		return
	}
	v.report(f)
}

// freed reports whether what is missing of an entry can have been freed: its
// logs do not hold everything any more.
func (v *verifier) freed(e *recovery.EntryAt, reclaimed map[uint64]bool) bool {
	logs := e.Missing
	if e.Head == nil {
		for id := range reclaimed {
			logs = append(logs, id)
		}
	} else if len(logs) == 0 {
		logs = e.Head.Logs
	}
	return slices.ContainsFunc(logs, func(id uint64) bool { return reclaimed[id] || v.s.Log(id) == nil })
}

// effects decodes the effects of a whole entry.
func (v *verifier) effects(e *recovery.EntryAt) {
	if err := effectsDecode(e); err != nil {
		v.report(finding{Class: classDamage, File: e.Copies[0].File, Pos: e.Copies[0].Pos, Index: e.Index, What: "effects do not decode: " + err.Error(), Effect: effectRefuses})
	}
}

func effectsDecode(e *recovery.EntryAt) error {
	if e.Head.Type != 0 || len(e.Entry.GetData()) == 0 {
		return nil
	}
	parsed, err := entry.Parse(e.Entry.GetData())
	if err != nil {
		return err
	}
	for i := range parsed.Appends {
		if err := eachMessage(&parsed.Appends[i], func(uint64, *entry.Message) error { return nil }); err != nil {
			return fmt.Errorf("append %d: %w", i, err)
		}
	}
	return fsm.ScanEffects(parsed.Effects, func(f fsm.Effect) error {
		if f.Kind != fsm.EffectPut && f.Kind != fsm.EffectDelete {
			return nil
		}
		_, err := fsm.DecodeRow(f.Key, f.Value)
		return err
	})
}

// tables checks the side tables: checksums, order and filters, and that they
// hold what their segments hold (I4).
func (v *verifier) tables() {
	for _, l := range v.s.Logs {
		for i := range l.Files {
			v.files++
			v.bytes += l.Files[i].Size
		}
		if l.Index == nil {
			continue
		}
		for _, err := range l.TableErrs {
			switch {
			case errors.Is(err, recovery.ErrRefused):
				v.damaged(err, effectRefuses)
			case !recovery.Vanished(err): // half a pair is reported below
				v.failed(classDerived, err, effectAgain)
			}
		}
		for _, err := range each(l.Index.Verify(nil)) {
			if recovery.Vanished(err) {
				v.inUse = true // it was there a moment ago
				continue
			}
			v.failed(classDerived, err, effectAgain)
		}
		v.compareTables(l)
		v.unsealed(l)
	}
}

// each takes joined errors apart.
func each(err error) []error {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		return joined.Unwrap()
	}
	if err != nil {
		return []error{err}
	}
	return nil
}

func (v *verifier) compareTables(l *recovery.SnapshotLog) {
	pairs, err := pairsOf(v.s, l)
	if err != nil {
		v.damaged(err, effectRefuses)
		return
	}
	for i := range pairs {
		p := &pairs[i]
		v.pairs++
		base := path.Join(l.Dir, p.name)
		if !p.idx || !p.dedup {
			f := finding{Class: classDerived, File: base + ".dedup", Pos: -1, What: "its .idx is missing", Effect: effectAgain}
			if p.idx {
				f.File, f.What = base+".idx", "its .dedup is missing"
			}
			v.later = append(v.later, f)
			continue
		}
		read, err := readPair(v.s, l, p)
		if err != nil {
			continue // reported by now, or gone meanwhile
		}
		if differs := read.compare(l, v.have); differs != "" {
			v.report(finding{Class: classDerived, File: base, Pos: -1, What: "tables and segment do not fit: " + differs,
				Effect: "look-ups miss messages or duplicates: remove both tables while the broker is stopped, and a start makes them again"})
		}
	}
}

// unsealed reports files that must have had side tables: a log's files are
// sealed in their order. The last ones may just not have been sealed yet.
func (v *verifier) unsealed(l *recovery.SnapshotLog) {
	lastSealed := uint64(0)
	for i := range l.Files {
		if l.Files[i].Table != nil {
			lastSealed = l.Files[i].Seq
		}
	}
	for i := range l.Files {
		if f := &l.Files[i]; f.Table == nil && f.Seq < lastSealed {
			v.later = append(v.later, finding{Class: classDerived, File: l.Path(f), Pos: -1, What: "a sealed file has no side tables that count", Effect: effectAgain})
		}
	}
}

// tail decides what looks unfinished: it is torn, or it is being written.
func (v *verifier) tail() error {
	if len(v.later) == 0 {
		return nil
	}
	for i := 0; !v.inUse && i < settleSteps; i++ {
		v.t.settle()
		changed, err := v.s.Changed()
		if err != nil {
			return err
		}
		v.inUse = changed || v.t.inUse(v.t.dir)
	}
	if v.inUse {
		return nil
	}
	for _, f := range v.later {
		v.report(f)
	}
	return nil
}

// refusal reports why a start refuses when nothing so far says it.
func (v *verifier) refusal() error {
	if v.v.Refused != nil && v.counts[classDamage] == 0 {
		v.damaged(v.v.Refused, effectRefuses)
	}
	return nil
}

func (v *verifier) summary() error {
	outcome := "opens"
	text := fmt.Sprintf("a start keeps everything up to entry %d", v.v.Last)
	switch {
	case v.v.Refused != nil:
		outcome, text = "refuses", "a start refuses: "+v.v.Refused.Error()
	case v.v.Cut != 0 && !v.inUse:
		outcome, text = "cuts", fmt.Sprintf("a start keeps everything up to entry %d and cuts the rest: %d entries that could have been answered", v.v.Last, v.v.CutSeen)
	}
	o := object{{"class", "summary"}, {"damage", v.counts[classDamage]}, {"torn", v.counts[classTorn]}, {"derived", v.counts[classDerived]},
		{"start", outcome}, {"inUse", v.inUse}, {"firstEntry", v.first}, {"lastEntry", v.last}, {"entries", v.entries},
		{"checkpointFrom", v.s.Footer.From}, {"checkpointTo", v.s.Footer.To}, {"proven", v.v.Proven},
		{"logs", len(v.s.Logs)}, {"files", v.files}, {"bytes", v.bytes}, {"tables", v.pairs}, {"records", v.records}, {"rows", v.rows}, {"verdict", text}}
	if more := v.total() - maxFindings; more > 0 {
		v.t.out.textf("%d more findings", more)
	}
	lines := fmt.Sprintf("%d logs, %d files, %d bytes, %d pairs of side tables; entries %s, checkpoint %d to %d, proven durable %d",
		len(v.s.Logs), v.files, v.bytes, v.pairs, numbers(v.first, v.last), v.s.Footer.From, v.s.Footer.To, v.v.Proven)
	if v.inUse {
		lines += "\nthe directory is in use: its end moves, and files may have been sealed, merged or freed meanwhile"
	}
	lines += "\n" + text
	if v.total() == 0 {
		lines += "\nclean"
	} else {
		lines += fmt.Sprintf("\n%d findings: %d damage, %d torn, %d derived", v.total(), v.counts[classDamage], v.counts[classTorn], v.counts[classDerived])
	}
	return v.t.out.emit(o, lines)
}
