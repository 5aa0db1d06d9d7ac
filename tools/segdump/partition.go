package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"queen/fsm"
	"queen/index"
	"queen/internal/entry"
	"queen/raftlog"
	"queen/recovery"
	"queen/segment"
)

// partition shows what a start would know of a partition, and where its
// appends are.
func (t *tool) partition(args []string) (bool, error) {
	s, v, err := t.judged()
	if err != nil {
		return false, err
	}
	found, err := t.findPartitions(s, &v, args[0])
	if err != nil {
		return false, err
	}
	for _, p := range found {
		if err := t.onePartition(s, &v, p); err != nil {
			return false, err
		}
	}
	return false, nil
}

// partitionState is what rows say of one partition.
type partitionState struct {
	ref     partitionRef
	queue   fsm.RowInfo
	row     fsm.RowInfo
	next    uint64 // implied by replayed appends; 0: the row's
	last    int64
	groups  map[uint64]fsm.RowInfo
	cursors map[uint64]fsm.RowInfo
	sets    map[uint64]*[2]index.OffsetSet // by group: settled, other
	letters map[string]bool
}

func (p *partitionState) put(key, value []byte) {
	r, err := fsm.DecodeRow(key, value)
	if err != nil || r.Queue != p.ref.queue {
		return
	}
	switch {
	case r.Kind == fsm.RowQueue:
		p.queue = r
	case r.Kind == fsm.RowGroup && value == nil:
		delete(p.groups, r.Group)
	case r.Kind == fsm.RowGroup:
		p.groups[r.Group] = r
	case r.Kind == fsm.RowLetter && value == nil:
		delete(p.letters, string(key))
	case r.Partition != p.ref.partition:
	case r.Kind == fsm.RowPartition:
		p.row = r
	case r.Kind == fsm.RowCursor && value == nil:
		delete(p.cursors, r.Group)
		delete(p.sets, r.Group)
	case r.Kind == fsm.RowCursor:
		p.cursors[r.Group] = r
		p.pass(r.Group)
	case r.Kind == fsm.RowSettled && value != nil:
		set, _ := r.Field("set").(string)
		ranges, _ := r.Field("ranges").([]index.Range)
		p.settle(r.Group, set, ranges)
	case r.Kind == fsm.RowLetter:
		p.letters[string(key)] = true
	}
}

// pass drops what a cursor has passed of its sets.
func (p *partitionState) pass(group uint64) {
	c, sets := p.cursors[group], p.sets[group]
	committed, ok := c.Field("committed").(int64)
	if sets == nil || !ok || committed < 0 {
		return
	}
	for i := range sets {
		sets[i].RemoveThrough(uint64(committed))
	}
}

func (p *partitionState) settle(group uint64, set string, ranges []index.Range) {
	sets := p.sets[group]
	if sets == nil {
		sets = &[2]index.OffsetSet{}
		p.sets[group] = sets
	}
	at := &sets[0]
	if set == "other" {
		at = &sets[1]
	}
	for _, r := range ranges {
		at.Add(r.Lo, r.Hi)
	}
	p.pass(group)
}

func (p *partitionState) sink() *rowSink {
	return &rowSink{
		row: p.put,
		gone: func(lo, hi []byte) {
			for g := range p.groups {
				if inRange(fsm.RowKey(fsm.RowGroup, p.ref.queue, g), lo, hi) {
					delete(p.groups, g)
				}
			}
			for g := range p.cursors {
				if inRange(fsm.RowKey(fsm.RowCursor, p.ref.queue, p.ref.partition, g), lo, hi) {
					delete(p.cursors, g)
				}
			}
			for g := range p.sets {
				if inRange(fsm.RowKey(fsm.RowSettled, p.ref.queue, p.ref.partition, g), lo, hi) {
					delete(p.sets, g)
				}
			}
			for key := range p.letters {
				if inRange([]byte(key), lo, hi) {
					delete(p.letters, key)
				}
			}
		},
		sets: func(e fsm.Effect) {
			if e.Partition != p.ref.partition {
				return
			}
			if e.Kind == fsm.EffectReset {
				delete(p.sets, e.Group)
				return
			}
			p.settle(e.Group, e.Set, e.Ranges)
		},
		appended: func(a *recovery.PartAt) {
			if a.Partition == p.ref.partition {
				p.next, p.last = a.First+uint64(a.Count), a.Time
			}
		},
	}
}

func rangesOf(set *index.OffsetSet) (out []index.Range) {
	set.Ranges(func(lo, hi uint64) bool {
		out = append(out, index.Range{Lo: lo, Hi: hi})
		return true
	})
	return out
}

func (t *tool) onePartition(s *recovery.Snapshot, v *recovery.Verdict, ref partitionRef) error {
	p := &partitionState{ref: ref, groups: map[uint64]fsm.RowInfo{}, cursors: map[uint64]fsm.RowInfo{}, sets: map[uint64]*[2]index.OffsetSet{}, letters: map[string]bool{}}
	if err := t.through(s, v, p.sink()); err != nil {
		return err
	}
	next, _ := p.row.Field("next").(uint64)
	lastAppend, _ := p.row.Field("lastAppend").(int64)
	if p.next > next {
		next, lastAppend = p.next, p.last
	}
	created, _ := p.row.Field("created").(int64)
	start, _ := p.row.Field("logStart").(uint64)
	o := object{{"type", "partition"}, {"tenant", ref.tenant}, {"queue", ref.queueName}, {"queueId", ref.queue}, {"partition", ref.name}, {"partitionId", ref.partition},
		{"created", created}, {"lastAppend", lastAppend}, {"next", next}, {"logStart", start}, {"deadLetters", len(p.letters)},
		{"checkpoint", s.Footer.From}, {"last", v.Last}}
	text := fmt.Sprintf("partition %d %q of queue %d %q, tenant %s\n  created %s, last append %s, log start %d, next offset %d, %d dead letters\n  as of entry %d: the checkpoint of entry %d and what follows it",
		ref.partition, ref.name, ref.queue, ref.queueName, ref.tenant, stamp(created), stamp(lastAppend), start, next, len(p.letters), v.Last, s.Footer.From)
	if err := t.out.emit(o, text); err != nil {
		return err
	}
	if err := t.cursors(p); err != nil {
		return err
	}
	return t.appends(s, v, ref)
}

func (t *tool) cursors(p *partitionState) error {
	groups := make([]uint64, 0, len(p.cursors))
	for g := range p.cursors {
		groups = append(groups, g)
	}
	slices.Sort(groups)
	for _, g := range groups {
		c, group := p.cursors[g], p.groups[g]
		name, _ := group.Field("name").(string)
		c.Fields = slices.DeleteFunc(slices.Clone(c.Fields), func(f fsm.RowField) bool {
			return strings.HasSuffix(f.Name, "Id") && f.Name != "leaseId" && f.Name != "releasedId"
		})
		o := append(object{{"type", "cursor"}, {"group", name}, {"groupId", g}}, rowObject(&c)[1:]...)
		text := fmt.Sprintf("  group %d %q:%s", g, name, strings.TrimPrefix(rowText(&c), "cursor"))
		if sets := p.sets[g]; sets != nil {
			for i, what := range []string{"settled", "other"} {
				if ranges := rangesOf(&sets[i]); len(ranges) > 0 {
					o = append(o, member{what, pairs(ranges)})
					text += fmt.Sprintf(" %s=%s", what, rangesText(ranges))
				}
			}
		}
		if err := t.out.emit(o, text); err != nil {
			return err
		}
	}
	return nil
}

// appends lists where the appends of a partition are, in the order of its log.
func (t *tool) appends(s *recovery.Snapshot, v *recovery.Verdict, ref partitionRef) error {
	l := s.Log(raftlog.Layout{Shards: s.Identity.Shards}.Log(ref.queue))
	if l == nil {
		return nil
	}
	shown, appends, messages := newLimiter(t.opt.Limit), 0, uint64(0)
	for i := range l.Files {
		f := &l.Files[i]
		if f.Table != nil && f.Table.Appends == 0 {
			continue
		}
		_, err := segment.Inspect(segment.Inspection{FS: s.FS, Name: l.Path(f), Log: l.ID, Seq: f.Seq, Size: f.Size,
			Record: func(pos int64, body []byte) error {
				r, err := entry.ParseRecord(body)
				if err != nil || r.Kind != entry.KindAppend && r.Kind != entry.KindIDs || r.Append.Partition != ref.partition {
					return nil
				}
				appends++
				messages += uint64(r.Append.Count)
				if shown.take() != nil {
					return nil
				}
				return t.showAppend(l, f, pos, &r, v)
			},
			Gap: func(g segment.Gap) error {
				if !g.Zeros {
					t.out.textf("  %s %s", t.short(l.Path(f)), gapText(&g))
				}
				return nil
			},
		})
		if err != nil && !recovery.Vanished(err) {
			return errors.Join(fmt.Errorf("read %s", l.Path(f)), err)
		}
	}
	return t.out.emit(object{{"type", "appends"}, {"appends", appends}, {"messages", messages}},
		fmt.Sprintf("  %d appends of %d messages in q%d", appends, messages, l.ID))
}

func (t *tool) showAppend(l *recovery.SnapshotLog, f *recovery.SnapshotFile, pos int64, r *entry.Record, v *recovery.Verdict) error {
	a := &r.Append
	size := segment.RecordHeaderSize + entry.AppendRecordBlockAt + len(a.Raw)
	o := object{{"type", "append"}, {"file", t.short(l.Path(f))}, {"pos", pos}, {"index", r.Index}, {"first", a.First}, {"count", a.Count}, {"time", a.Time},
		{"bytes", size}, {"sealed", f.Table != nil}, {"kept", r.Index <= v.Last}}
	text := fmt.Sprintf("  offsets %s: %s pos %d, entry %d, %s, %d bytes", numbers(a.First, a.First+uint64(a.Count)-1), t.short(l.Path(f)), pos, r.Index, stamp(a.Time), size)
	if f.Table != nil {
		text += ", sealed"
	}
	if r.Index > v.Last {
		text += ", not kept by a start"
	}
	if t.opt.Payload {
		list, lines := t.messages(a)
		o = append(o, member{"messages", list})
		text += lines
	}
	return t.out.emit(o, text)
}
