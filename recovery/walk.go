package recovery

import (
	"cmp"
	"container/heap"
	"errors"
	"fmt"
	"iter"
	"math"
	"slices"

	pb "go.etcd.io/raft/v3/raftpb"

	"queen/internal/entry"
	"queen/segment"
)

// Walk says what of a snapshot's logs to read and who takes it. A walk goes on
// after damage: unlike a start it reads what follows a bad record, and puts
// together every entry that is whole. Nil functions are skipped; an error of
// one ends the walk and is returned as it is.
type Walk struct {
	// Skip leaves files out, for instance those that a start does not read.
	Skip func(l *SnapshotLog, f *SnapshotFile) bool
	// Record takes each record of a log, in the log's order.
	Record func(RecordAt) error
	// Entry takes the entries in the order of their indexes; pads are none. It
	// is valid during the call only.
	Entry func(*EntryAt) error
	// Gap takes bytes that hold no record, and records that cannot count: of
	// an older index than the one before, or in a format that is not known.
	Gap func(l *SnapshotLog, f *SnapshotFile, g segment.Gap) error
	// Unread takes a file that cannot be read at all, or not to its end.
	Unread func(l *SnapshotLog, f *SnapshotFile, err error) error
}

// RecordAt is a record and where it is. The slices of Record alias a buffer
// that is used again after the call.
type RecordAt struct {
	Log      uint64
	File     string
	Seq      uint64
	Pos, End int64
	Record   entry.Record
}

// EntryAt is what all logs together hold of one entry.
type EntryAt struct {
	Index uint64
	// Copies and Parts are its records: entry records and stubs, and appends
	// and values, without the bodies, by log and position.
	Copies, Parts []PartAt
	// Head is that of the first copy found; nil: there is no copy.
	Head *entry.Head
	// Missing are logs that the head names and that hold no copy.
	Missing []uint64
	// Entry is the entry as it was replicated; nil when Problem is not: what is
	// missing or damaged of it, a *RefuseError when it is more than that a copy
	// is missing.
	Entry   *pb.Entry
	Problem error

	parts *assembly
}

// PartAt says where a record of an entry is, and what it is.
type PartAt struct {
	Log      uint64
	File     string
	Pos, End int64
	Kind     entry.Kind
	Ordinal  uint32
	Head     entry.Head // entry record, stub
	// An append's queue, partition, offsets and time; of a value queue and id.
	Queue, Partition, First uint64
	Count                   uint32
	Time                    int64
	Value                   uint64
}

// ErrIncomplete: an entry lacks copies, or its copies its parts.
var ErrIncomplete = errors.New("incomplete")

// Rest is an entry with the appends and values that are left of this one, as
// they would be replicated, and without effects: what can be kept of an entry
// whose effects a checkpoint holds. nil when nothing is left.
func (e *EntryAt) Rest() ([]byte, error) {
	var b entry.Builder
	last := int64(0)
	for _, p := range e.parts.blocks {
		a, err := entry.ParseAppend(e.parts.bytes(p))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", p.at, err)
		}
		b.Append(a.Queue, a.Partition, a.First, a.Time, int(a.Count), a.Messages)
		last = max(last, a.Time)
	}
	for _, p := range e.parts.values {
		b.Value(p.id, p.queue, e.parts.bytes(p))
	}
	if b.Empty() {
		return nil, nil
	}
	return b.Encode(last), nil
}

// Walk walks over all logs at once, in the order of the entries' indexes, in
// memory that does not grow with the logs.
func (s *Snapshot) Walk(w Walk) error {
	k := &walker{w: w, s: s}
	defer func() {
		for _, c := range k.all {
			c.stop()
		}
	}()
	var logs []*SnapshotLog
	for _, l := range s.Logs {
		if l.queue != nil && len(l.Files) > 0 {
			logs = append(logs, l)
		}
	}
	for _, l := range logs {
		c := k.open(l, windowOf(len(logs)))
		if k.err != nil {
			return k.err
		}
		if c.has {
			k.cursors = append(k.cursors, c)
		}
	}
	heap.Init(&k.cursors)
	for len(k.cursors) > 0 {
		if err := k.entry(k.cursors[0].cur.rec.Index); err != nil {
			return err
		}
	}
	return k.err
}

type walker struct {
	w       Walk
	s       *Snapshot
	cursors heapOfCursors
	all     []*cursor
	parts   assembly
	found   EntryAt
	err     error // of a function
}

// open starts a log. Its records come through the cursor of a start; where
// they come from is a reader that goes on.
func (k *walker) open(l *SnapshotLog, window int) *cursor {
	c := &cursor{q: l.queue, window: window, claims: func(*item) uint64 { return math.MaxUint64 }}
	c.next, c.stop = iter.Pull(k.records(l, window))
	k.all = append(k.all, c)
	c.advance()
	return c
}

// records yields what counts of a log, in rising order of the indexes.
func (k *walker) records(l *SnapshotLog, window int) iter.Seq[item] {
	return func(yield func(item) bool) {
		last := uint64(0)
		for i := range l.Files {
			f := &l.Files[i]
			if k.w.Skip != nil && k.w.Skip(l, f) {
				continue
			}
			_, err := segment.Inspect(segment.Inspection{
				FS: k.s.FS, Name: l.Path(f), Log: l.ID, Seq: f.Seq, Size: f.Size, Window: window,
				Gap: func(g segment.Gap) error { return k.gap(l, f, g) },
				Record: func(pos int64, body []byte) error {
					it := item{at: place{l.queue, f.Seq, pos}, end: pos + segment.RecordHeaderSize + int64(len(body)), body: body}
					var err error
					if it.rec, err = entry.ParseRecord(body); err != nil {
						return k.gap(l, f, segment.Gap{Pos: pos, End: it.end, What: "a record with a good checksum does not parse", Expected: "one of this build", Found: err.Error()})
					}
					if it.rec.Index < last {
						return k.gap(l, f, segment.Gap{Pos: pos, End: it.end, What: "an old record behind the end of the log",
							Expected: fmt.Sprintf("entry %d or a later one", last), Found: fmt.Sprintf("entry %d", it.rec.Index)})
					}
					last = it.rec.Index
					if err := k.record(l, f, &it); err != nil {
						return err
					}
					if !yield(it) {
						return errStopped
					}
					return nil
				},
			})
			if errors.Is(err, errStopped) || k.err != nil {
				return
			}
			if err != nil && k.w.Unread != nil {
				if k.err = k.w.Unread(l, f, err); k.err != nil {
					return
				}
			}
		}
	}
}

// keep remembers an error of a function, so that it is not taken for one of
// the file.
func (k *walker) keep(err error) error {
	if err != nil {
		k.err = err
	}
	return err
}

func (k *walker) gap(l *SnapshotLog, f *SnapshotFile, g segment.Gap) error {
	if k.w.Gap == nil {
		return nil
	}
	return k.keep(k.w.Gap(l, f, g))
}

func (k *walker) record(l *SnapshotLog, f *SnapshotFile, it *item) error {
	if k.w.Record == nil {
		return nil
	}
	return k.keep(k.w.Record(RecordAt{Log: l.ID, File: l.Path(f), Seq: f.Seq, Pos: it.at.pos, End: it.end, Record: it.rec}))
}

// entry puts together what all logs hold of one index, and hands it over.
func (k *walker) entry(index uint64) error {
	a, e := &k.parts, &k.found
	a.reset(index)
	*e = EntryAt{Index: index, Copies: e.Copies[:0], Parts: e.Parts[:0], parts: a}
	var problem error
	for len(k.cursors) > 0 && k.cursors[0].cur.rec.Index == index {
		c := k.cursors[0]
		for c.has && c.cur.rec.Index == index {
			e.note(&c.cur)
			if err := a.add(&c.cur); err != nil && problem == nil {
				problem = err
			}
			c.advance()
		}
		if k.err != nil {
			return k.err
		}
		if c.has {
			heap.Fix(&k.cursors, 0)
		} else {
			heap.Remove(&k.cursors, 0)
		}
	}
	if len(e.Copies)+len(e.Parts) == 0 || k.w.Entry == nil {
		return nil // pads only
	}
	slices.SortStableFunc(e.Copies, byLog)
	slices.SortStableFunc(e.Parts, byLog)
	e.judge(problem)
	return k.w.Entry(e)
}

// byLog orders parts of an entry; those of one log are in its order already.
func byLog(a, b PartAt) int { return cmp.Compare(a.Log, b.Log) }

func (e *EntryAt) note(it *item) {
	r := &it.rec
	p := PartAt{Log: it.at.q.ID, File: it.at.file(), Pos: it.at.pos, End: it.end, Kind: r.Kind, Ordinal: r.Ordinal}
	switch r.Kind {
	case entry.KindPad:
	case entry.KindAppend, entry.KindIDs:
		a := &r.Append
		p.Queue, p.Partition, p.First, p.Count, p.Time = a.Queue, a.Partition, a.First, a.Count, a.Time
		e.Parts = append(e.Parts, p)
	case entry.KindValue:
		p.Queue, p.Value = r.Value.Queue, r.Value.ID
		e.Parts = append(e.Parts, p)
	default:
		p.Head = r.Head
		e.Copies = append(e.Copies, p)
	}
}

// judge decides with the code of a start whether the entry is whole.
func (e *EntryAt) judge(problem error) {
	a := e.parts
	if a.hasHead {
		head := a.head
		e.Head = &head
		for _, id := range head.Logs {
			if !slices.Contains(a.copies, id) {
				e.Missing = append(e.Missing, id)
			}
		}
	}
	e.Problem = problem
	if e.Problem == nil {
		if missing := a.missing(); missing != "" {
			e.Problem = fmt.Errorf("%w: %s", ErrIncomplete, missing)
			return
		}
		e.Entry, e.Problem = a.join()
	}
}
