package main

import (
	"errors"
	"fmt"
	"path"
	"strings"
	"text/tabwriter"

	"queen/fsm"
	"queen/index"
	"queen/internal/entry"
	"queen/recovery"
	"queen/segment"
)

// fileLine is one file of the directory as ls shows it.
type fileLine struct {
	File       string `json:"file"`
	Kind       string `json:"kind"`
	Version    int    `json:"version"`
	Size       int64  `json:"size"`
	State      string `json:"state,omitempty"` // active, rolled, sealed; current, older
	Generation uint64 `json:"generation,omitempty"`
	MinIndex   uint64 `json:"minIndex,omitempty"`
	MaxIndex   uint64 `json:"maxIndex,omitempty"`
	MinTime    int64  `json:"minTime,omitempty"`
	MaxTime    int64  `json:"maxTime,omitempty"`
	Messages   uint64 `json:"messages,omitempty"`
	// Live is how many of the messages are still retained, as far as the
	// newest checkpoint knows; -1: not looked at.
	Live  int64  `json:"live"`
	Note  string `json:"note,omitempty"`
	Share string `json:"-"`
}

// ls lists the files of the directory. Ranges and live share of sealed files
// come from their side tables; other files are read.
func (t *tool) ls(_ []string) (bool, error) {
	s, err := t.snapshot()
	if err != nil {
		return false, err
	}
	lines := t.fixedFiles(s)
	live, err := t.liveRows(s)
	if err != nil {
		return false, err
	}
	w := tabwriter.NewWriter(t.out.w, 0, 0, 2, ' ', 0)
	if !t.out.json {
		fmt.Fprintln(w, "FILE\tKIND\tVER\tSIZE\tSTATE\tENTRIES\tTIMES\tMESSAGES\tLIVE\tNOTE")
	}
	for i := range lines {
		if err := t.fileLine(w, &lines[i]); err != nil {
			return false, err
		}
	}
	for _, l := range s.Logs {
		all, err := t.logLines(s, l, live)
		if err != nil {
			return false, err
		}
		for i := range all {
			if err := t.fileLine(w, &all[i]); err != nil {
				return false, err
			}
		}
	}
	for _, name := range s.Foreign {
		if err := t.fileLine(w, &fileLine{File: t.short(name), Kind: "foreign", Live: -1, Note: "not a log: a start refuses"}); err != nil {
			return false, err
		}
	}
	return false, w.Flush()
}

func (t *tool) fileLine(w *tabwriter.Writer, l *fileLine) error {
	if t.out.json {
		return t.out.emit(l, "")
	}
	entries, times, messages, share := "-", "-", "-", "-"
	if l.MaxIndex != 0 {
		entries = numbers(l.MinIndex, l.MaxIndex)
	}
	if l.MaxTime != 0 {
		times = stamp(l.MinTime)
		if l.MaxTime != l.MinTime {
			times += ".." + stamp(l.MaxTime)
		}
	}
	if l.Kind == "segment" && l.Live >= 0 {
		messages = fmt.Sprint(l.Messages)
		if l.Messages > 0 {
			share = fmt.Sprintf("%d%%", 100*l.Live/int64(l.Messages))
		}
	}
	version := "-"
	if l.Version > 0 {
		version = fmt.Sprint(l.Version)
	}
	_, err := fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%s\t%s\t%s\t%s\t%s\t%s\n", l.File, l.Kind, version, l.Size, l.State, entries, times, messages, share, l.Note)
	return err
}

// fixedFiles are those that are not in a log.
func (t *tool) fixedFiles(s *recovery.Snapshot) (lines []fileLine) {
	add := func(name, kind string, version int, note string) {
		info, err := t.fs.Stat(path.Join(t.dir, name))
		if err != nil {
			return
		}
		lines = append(lines, fileLine{File: name, Kind: kind, Version: version, Size: info.Size, Live: -1, Note: note})
	}
	note := fmt.Sprintf("cluster %s node %d shards %d", s.Identity.Cluster, s.Identity.Node, s.Identity.Shards)
	add("FORMAT", "identity", s.Identity.Version, or(s.IdentityErr, note))
	held := "not held"
	if t.inUse(t.dir) {
		held = "held: a broker runs"
	}
	add("LOCK", "lock", 0, held)
	add("RESERVE", "reserve", 0, "released by a start on a full volume")
	add("raft/state", "state", 1, or(s.StateErr, fmt.Sprintf("term %d vote %d voters %v cut %d", s.State.Term, s.State.Vote, s.State.Conf.Voters, s.State.Cut)))
	files, err := rowsFiles(s)
	if err != nil {
		return lines
	}
	for i, f := range files {
		note, state := "", "older"
		if i == len(files)-1 {
			note, state = or(s.FooterErr, footerText(&s.Footer)), "current"
		}
		add(t.short(f), "rows", 1, note)
		if n := len(lines); n > 0 && lines[n-1].File == t.short(f) {
			lines[n-1].State = state
		}
	}
	return lines
}

// or is an error's text, or the other one when there is none.
func or(err error, text string) string {
	if err != nil {
		return err.Error()
	}
	return text
}

// liveness is what the checkpoint says of what is still retained. It takes
// about 40 bytes a partition.
type liveness struct {
	known bool
	start map[uint64]uint64 // log start of each partition
	next  uint64            // partitions from this id on are newer than the checkpoint
}

func (t *tool) liveRows(s *recovery.Snapshot) (*liveness, error) {
	l := &liveness{start: map[uint64]uint64{}}
	if t.opt.Quick {
		return l, nil
	}
	err := loadCheckpoint(s, &rowSink{
		row: func(key, value []byte) {
			if kind := fsm.RowKind(key[0]); kind != fsm.RowMeta && kind != fsm.RowPartition {
				return
			}
			r, err := fsm.DecodeRow(key, value)
			switch {
			case err != nil:
			case r.Kind == fsm.RowMeta:
				l.next, _ = r.Field("nextPartition").(uint64)
			case value == nil:
				delete(l.start, r.Partition)
			default:
				l.start[r.Partition], _ = r.Field("logStart").(uint64)
			}
		},
		gone: func(lo, hi []byte) {
			if fsm.RowKind(lo[0]) == fsm.RowPartition {
				l.forget(lo, hi)
			}
		},
	})
	l.known = err == nil
	return l, nil // why it cannot be read stands in the line of the file
}

// forget takes partitions out by a range of their keys, which is of one queue.
func (l *liveness) forget(lo, hi []byte) {
	r, err := fsm.DecodeRow(lo, nil)
	queue := r.Queue
	if err != nil && queue == 0 {
		return
	}
	for p := range l.start {
		if inRange(fsm.RowKey(fsm.RowPartition, queue, p), lo, hi) {
			delete(l.start, p)
		}
	}
}

// of is how many messages of an append are retained.
func (l *liveness) of(partition, first uint64, count uint32) uint64 {
	start, ok := l.start[partition]
	if !ok {
		if partition < l.next {
			return 0 // deleted
		}
		return uint64(count)
	}
	end := first + uint64(count)
	if end <= start {
		return 0
	}
	return end - max(first, start)
}

// logLines are the files of a log: its segments, then its tables.
func (t *tool) logLines(s *recovery.Snapshot, l *recovery.SnapshotLog, live *liveness) ([]fileLine, error) {
	infos, err := s.FS.List(l.Dir)
	if err != nil {
		return nil, err
	}
	share := make(map[uint64]*[2]uint64) // of sealed files: messages, live ones
	var tables, lines []fileLine
	for _, info := range infos {
		ext := path.Ext(info.Name)
		if ext != ".idx" && ext != ".dedup" {
			continue
		}
		line := fileLine{File: t.short(path.Join(l.Dir, info.Name)), Kind: strings.TrimPrefix(ext, ".") + "-table", Version: 1, Size: info.Size, Live: -1}
		line.Note = t.readTable(s, path.Join(l.Dir, info.Name), &line, live, share)
		tables = append(tables, line)
	}
	for i := range l.Files {
		line, err := t.segmentLine(s, l, &l.Files[i], live, share)
		if err != nil {
			return nil, err
		}
		lines = append(lines, line)
	}
	if l.Err != nil {
		lines = append(lines, fileLine{File: t.short(l.Dir), Kind: "log", Live: -1, Note: l.Err.Error()})
	}
	return append(lines, tables...), nil
}

// readTable reads what a table describes and counts messages of sealed files.
func (t *tool) readTable(s *recovery.Snapshot, name string, line *fileLine, live *liveness, share map[uint64]*[2]uint64) string {
	var files []string
	v := index.TableVisitor{File: func(f index.FileInfo) {
		files = append(files, fmt.Sprint(f.Seq))
		line.note(f.MinIndex, f.MaxIndex, f.MinTime, f.MaxTime)
		line.Messages += f.IDs
	}}
	counted := map[uint64]*[2]uint64{}
	if live.known && path.Ext(name) == ".idx" {
		v.Append = func(r index.AppendRef) {
			c := counted[r.Seq]
			if c == nil {
				c = new([2]uint64)
				counted[r.Seq] = c
			}
			c[0] += uint64(r.Count)
			c[1] += live.of(r.Partition, r.First, r.Count)
		}
	}
	if err := index.ScanTable(s.FS, name, v); err != nil {
		return err.Error()
	}
	for seq, c := range counted {
		share[seq] = c
	}
	return "describes file " + strings.Join(files, ",")
}

func (l *fileLine) note(minIndex, maxIndex uint64, minTime, maxTime int64) {
	if minIndex != 0 && (l.MinIndex == 0 || minIndex < l.MinIndex) {
		l.MinIndex = minIndex
	}
	l.MaxIndex = max(l.MaxIndex, maxIndex)
	if minTime != 0 && (l.MinTime == 0 || minTime < l.MinTime) {
		l.MinTime = minTime
	}
	l.MaxTime = max(l.MaxTime, maxTime)
}

func (t *tool) segmentLine(s *recovery.Snapshot, l *recovery.SnapshotLog, f *recovery.SnapshotFile, live *liveness, share map[uint64]*[2]uint64) (fileLine, error) {
	line := fileLine{File: t.short(l.Path(f)), Kind: "segment", Version: segment.Version, Size: f.Size, Generation: f.Generation, State: "rolled", Live: -1}
	switch {
	case f.Table != nil:
		line.State = "sealed"
	case f.Newest:
		line.State = "active"
	}
	if f.HeaderErr != nil {
		line.Note = f.HeaderErr.Error()
	}
	if f.Table != nil {
		line.note(f.Table.MinIndex, f.Table.MaxIndex, f.Table.MinTime, f.Table.MaxTime)
		line.Messages = f.Table.IDs
		if c := share[f.Seq]; c != nil {
			line.Live = int64(c[1])
		} else if live.known && f.Table.Appends == 0 {
			line.Live = 0
		}
		return line, nil
	}
	if t.opt.Quick {
		return line, nil
	}
	gaps, retained := 0, uint64(0)
	_, err := segment.Inspect(segment.Inspection{FS: s.FS, Name: l.Path(f), Log: l.ID, Seq: f.Seq, Size: f.Size,
		Record: func(_ int64, body []byte) error {
			r, err := entry.ParseRecord(body)
			if err != nil {
				gaps++
				return nil
			}
			line.note(r.Index, r.Index, 0, 0)
			if r.Kind == entry.KindAppend || r.Kind == entry.KindIDs {
				a := &r.Append
				line.note(0, 0, a.Time, a.Time)
				line.Messages += uint64(a.Count)
				retained += live.of(a.Partition, a.First, a.Count)
			}
			return nil
		},
		Gap: func(g segment.Gap) error {
			if g.Zeros && f.Newest {
				line.Note = fmt.Sprintf("%d bytes prepared", g.End-g.Pos)
				return nil
			}
			gaps++
			return nil
		},
	})
	if err != nil && !errors.Is(err, segment.ErrCorrupt) && !recovery.Vanished(err) {
		return line, err
	}
	if err != nil {
		line.Note = err.Error()
	}
	if live.known || s.FooterErr == nil {
		line.Live = int64(retained)
	}
	if gaps > 0 {
		line.Note = fmt.Sprintf("%d places without a record: see verify", gaps)
	}
	return line, nil
}
