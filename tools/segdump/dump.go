package main

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strconv"
	"strings"

	"queen/fsm"
	"queen/index"
	"queen/internal/entry"
	"queen/raftlog"
	"queen/recovery"
	"queen/segment"
)

// dump shows what is in files, whatever their kind. A file is named by its
// path, or by its path within the directory; "q1" is all segment files of that
// log.
func (t *tool) dump(args []string) (bool, error) {
	f, err := t.filters()
	if err != nil {
		return false, err
	}
	for _, name := range args {
		files, err := t.named(name)
		if err != nil {
			return false, err
		}
		for _, file := range files {
			if err := t.dumpFile(file, f); err != nil && !errors.Is(err, errEnough) {
				return false, err
			}
		}
	}
	return false, nil
}

// filters is what records have to be like.
type filters struct {
	kinds     map[string]bool
	partition uint64 // 0: any
}

func (t *tool) filters() (f filters, err error) {
	f.kinds, err = kindSet(t.opt.Kinds, func(k string) bool {
		_, row := fsm.ParseRowKind(k)
		return row || isRecordKind(k)
	})
	if err != nil || t.opt.Partition == "" {
		return f, err
	}
	if f.partition, err = strconv.ParseUint(t.opt.Partition, 10, 64); err == nil {
		return f, nil
	}
	s, v, err := t.judged()
	if err != nil {
		return f, err
	}
	found, err := t.findPartitions(s, &v, t.opt.Partition)
	if err != nil {
		return f, err
	}
	f.partition = found[0].partition
	return f, nil
}

func (f *filters) has(o *options, r *entry.Record) bool {
	if !o.Index.has(r.Index) || f.kinds != nil && !f.kinds[kindName(r.Kind)] {
		return false
	}
	if f.partition != 0 && (r.Kind != entry.KindAppend || r.Append.Partition != f.partition) {
		return false
	}
	if o.Time == everyTime {
		return true
	}
	at, ok := r.Append.Time, r.Kind == entry.KindAppend
	if r.Kind == entry.KindEntry {
		at, _, ok = r.Split()
	}
	return ok && o.Time.has(at)
}

// named finds the files that an argument means.
func (t *tool) named(name string) ([]string, error) {
	if _, ok := raftlog.ParseLogDirName(name); ok {
		dir := path.Join(t.dir, "log", name)
		infos, err := t.fs.List(dir)
		if err != nil {
			return nil, fmt.Errorf("list %s: %w", dir, err)
		}
		var files []string
		for _, i := range infos {
			if _, ok := segment.ParseFileName(i.Name); ok {
				files = append(files, path.Join(dir, i.Name))
			}
		}
		return files, nil
	}
	for _, at := range []string{path.Join(t.dir, name), path.Join(t.dir, "log", name), name} {
		if info, err := t.fs.Stat(at); err == nil && !info.Dir {
			return []string{at}, nil
		}
	}
	return nil, fmt.Errorf("%s: %w in %s", name, fs.ErrNotExist, t.dir)
}

func (t *tool) dumpFile(name string, f filters) error {
	switch base := path.Base(name); {
	case strings.HasSuffix(base, ".seg"):
		return t.dumpSegment(name, f)
	case strings.HasSuffix(base, ".rows"):
		return t.dumpRows(name)
	case strings.HasSuffix(base, ".idx"), strings.HasSuffix(base, ".dedup"):
		return t.listTable(name)
	case base == "state":
		return t.dumpState(path.Dir(name))
	case base == "FORMAT":
		return t.dumpIdentity(path.Dir(name))
	}
	return fmt.Errorf("%s: not a kind of file that a data directory has", name)
}

func (t *tool) dumpSegment(name string, f filters) error {
	seq, ok := segment.ParseFileName(path.Base(name))
	if !ok {
		return fmt.Errorf("%s is not the name of a segment file", name)
	}
	log, ok := raftlog.ParseLogDirName(path.Base(path.Dir(name)))
	if !ok {
		return fmt.Errorf("%s is not in the directory of a log", name)
	}
	info, err := t.fs.Stat(name)
	if err != nil {
		return err
	}
	t.out.textf("%s: log q%d file %d, %d bytes", t.short(name), log, seq, info.Size)
	limit := newLimiter(t.opt.Limit)
	_, err = segment.Inspect(segment.Inspection{
		FS: t.fs, Name: name, Log: log, Seq: seq, Size: info.Size,
		Record: func(pos int64, body []byte) error {
			end := pos + segment.RecordHeaderSize + int64(len(body))
			r, err := entry.ParseRecord(body)
			if err != nil {
				return t.out.emit(object{{"pos", pos}, {"end", end}, {"kind", "unknown"}, {"error", err.Error()}}, fmt.Sprintf("pos %d: %v", pos, err))
			}
			if !f.has(&t.opt, &r) {
				return nil
			}
			if err := limit.take(); err != nil {
				return err
			}
			return t.showRecord(pos, end, &r)
		},
		Gap: func(g segment.Gap) error { return t.out.emit(gapObject(&g), gapText(&g)) },
	})
	return err
}

// short is a file's name within the directory.
func (t *tool) short(name string) string {
	return strings.TrimPrefix(strings.TrimPrefix(name, t.dir), "/")
}

func (t *tool) dumpRows(name string) error {
	t.out.textf("%s", t.short(name))
	limit := newLimiter(t.opt.Limit)
	kinds, err := kindSet(t.opt.Kinds, func(string) bool { return true })
	if err != nil {
		return err
	}
	end, err := index.ScanRows(t.fs, name, func(pos int64, r index.RowRecord) error {
		o, text, kind := rowRecord(pos, &r)
		if kinds != nil && !kinds[kind] {
			return nil
		}
		if err := limit.take(); err != nil {
			return err
		}
		return t.out.emit(o, text)
	})
	if errors.Is(err, index.ErrCorrupt) {
		return t.out.emit(object{{"pos", end}, {"kind", "gap"}, {"error", err.Error()}}, fmt.Sprintf("pos %d: no record: %v", end, err))
	}
	return err
}

// rowRecord is a record of a rows file as JSON and as text, and the kind of its row.
func rowRecord(pos int64, r *index.RowRecord) (o object, text, kind string) {
	switch r.Kind {
	case index.RowPut, index.RowDelete:
		what := "put"
		if r.Kind == index.RowDelete {
			what, r.Value = "delete", nil
		}
		row, err := fsm.DecodeRow(r.Key, r.Value)
		o = object{{"pos", pos}, {"record", what}, {"row", rowObject(&row)}}
		text = fmt.Sprintf("pos %d %s %s", pos, what, rowText(&row))
		if err != nil {
			o = append(o, member{"key", fmt.Sprintf("%x", r.Key)}, member{"error", err.Error()})
			text += fmt.Sprintf(" key=%x: %v", r.Key, err)
		}
		return o, text, row.Kind.String()
	case index.RowDeleteRange:
		o = object{{"pos", pos}, {"record", "delete-range"}, {"lo", fmt.Sprintf("%x", r.Lo)}, {"hi", fmt.Sprintf("%x", r.Hi)}}
		return o, fmt.Sprintf("pos %d delete-range %x to %x", pos, r.Lo, r.Hi), "delete-range"
	}
	f := &r.Footer
	o = append(object{{"pos", pos}, {"record", "footer"}}, footerMembers(f)...)
	return o, fmt.Sprintf("pos %d footer %s", pos, footerText(f)), "footer"
}

func footerMembers(f *index.Footer) object {
	return object{{"from", f.From}, {"to", f.To}, {"fromTerm", f.FromTerm}, {"toTerm", f.ToTerm}, {"time", f.Time}}
}

func footerText(f *index.Footer) string {
	return fmt.Sprintf("from %d to %d, terms %d to %d, %s", f.From, f.To, f.FromTerm, f.ToTerm, stamp(f.Time))
}

func (t *tool) dumpState(dir string) error {
	s, found, err := raftlog.LoadState(t.fs, dir)
	if err == nil && !found {
		err = fs.ErrNotExist
	}
	if err != nil {
		return err
	}
	o := object{{"term", s.Term}, {"vote", s.Vote}, {"confIndex", s.ConfIndex}, {"cut", s.Cut}, {"voters", s.Conf.Voters}, {"learners", s.Conf.Learners},
		{"votersOutgoing", s.Conf.VotersOutgoing}, {"learnersNext", s.Conf.LearnersNext}, {"autoLeave", s.Conf.AutoLeave}}
	return t.out.emit(o, fmt.Sprintf("raft/state: term %d vote %d, voters %v learners %v outgoing %v next %v of entry %d, cut mark %d",
		s.Term, s.Vote, s.Conf.Voters, s.Conf.Learners, s.Conf.VotersOutgoing, s.Conf.LearnersNext, s.ConfIndex, s.Cut))
}

func (t *tool) dumpIdentity(dir string) error {
	id, found, err := recovery.LoadIdentity(t.fs, dir)
	if err == nil && !found {
		err = fs.ErrNotExist
	}
	if err != nil {
		return err
	}
	return t.out.emit(object{{"version", id.Version}, {"cluster", id.Cluster}, {"node", id.Node}, {"shards", id.Shards}},
		fmt.Sprintf("FORMAT: version %d cluster %s node %d shards %d", id.Version, id.Cluster, id.Node, id.Shards))
}

// listTable shows what is in a side table.
func (t *tool) listTable(name string) error {
	limit := newLimiter(t.opt.Limit)
	var failed error
	show := func(o object, text string) {
		if failed != nil {
			return
		}
		if failed = limit.take(); failed == nil {
			failed = t.out.emit(o, text)
		}
	}
	t.out.textf("%s", t.short(name))
	err := index.ScanTable(t.fs, name, index.TableVisitor{
		File: func(f index.FileInfo) { show(tableFileMembers(&f), tableFileText(&f)) },
		Append: func(r index.AppendRef) {
			show(object{{"partitionId", r.Partition}, {"first", r.First}, {"count", r.Count}, {"time", r.Time}, {"seq", r.Seq}, {"pos", r.Pos}},
				fmt.Sprintf("partition %d offsets %s at file %d pos %d, %s", r.Partition, numbers(r.First, r.First+uint64(r.Count)-1), r.Seq, r.Pos, stamp(r.Time)))
		},
		Value: func(id, seq uint64, pos int64) {
			show(object{{"valueId", id}, {"seq", seq}, {"pos", pos}}, fmt.Sprintf("value %d at file %d pos %d", id, seq, pos))
		},
		Txn: func(hash, offset uint64) {
			show(object{{"hash", fmt.Sprintf("%016x", hash)}, {"offset", offset}}, fmt.Sprintf("hash %016x offset %d", hash, offset))
		},
	})
	if failed != nil {
		return failed
	}
	return err
}

func tableFileMembers(f *index.FileInfo) object {
	return object{{"seq", f.Seq}, {"generation", f.Generation}, {"size", f.Size}, {"minIndex", f.MinIndex}, {"maxIndex", f.MaxIndex},
		{"minTime", f.MinTime}, {"maxTime", f.MaxTime}, {"appends", f.Appends}, {"values", f.Values}, {"ids", f.IDs}}
}

func tableFileText(f *index.FileInfo) string {
	return fmt.Sprintf("describes file %d generation %d of %d bytes: entries %s, %s to %s, %d appends %d values %d ids",
		f.Seq, f.Generation, f.Size, numbers(f.MinIndex, f.MaxIndex), stamp(f.MinTime), stamp(f.MaxTime), f.Appends, f.Values, f.IDs)
}
