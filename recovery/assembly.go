package recovery

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"

	pb "go.etcd.io/raft/v3/raftpb"

	"queen/index"
	"queen/internal/entry"
	"queen/internal/plant"
	"queen/raftlog"
)

// assembly puts one entry together. Its records come log by log, the lowest
// log last; what is needed later is copied into a buffer that the next entry
// uses again, because a scan's buffer is not kept.
type assembly struct {
	index   uint64
	commit  uint64 // a pad's
	head    entry.Head
	headAt  place
	hasHead bool
	copies  []uint64 // logs with a copy
	entry   part     // body of the entry record
	isEntry bool
	blocks  []part
	values  []part
	spots   []spot
	first   place
	buf     []byte
}

// part is a piece of the entry: where it was found, and where its copy is in
// the assembly's buffer.
type part struct {
	ordinal  uint32
	at       place
	from, to int
	id       uint64 // value
	queue    uint64 // value
}

// reset makes a ready for the next entry.
func (a *assembly) reset(index uint64) {
	*a = assembly{index: index, copies: a.copies[:0], blocks: a.blocks[:0], values: a.values[:0], spots: a.spots[:0], buf: a.buf[:0]}
	if cap(a.buf) > maxAssemblyKept {
		a.buf = nil
	}
}

// maxAssemblyKept is how large a buffer is kept for the next entry.
const maxAssemblyKept = 16 << 20

func (a *assembly) copy(b []byte) part {
	from := len(a.buf)
	a.buf = append(a.buf, b...)
	return part{from: from, to: len(a.buf)}
}

func (a *assembly) bytes(p part) []byte { return a.buf[p.from:p.to] }

// add takes one record.
func (a *assembly) add(it *item) error {
	if a.first.seq == 0 {
		a.first = it.at
	}
	r := &it.rec
	a.spots = append(a.spots, newSpot(it))
	switch r.Kind {
	case entry.KindAppend:
		p := a.copy(r.Append.Raw)
		p.ordinal, p.at = r.Ordinal, it.at
		return a.addPart(&a.blocks, p, "append")
	case entry.KindValue:
		p := a.copy(r.Value.Data)
		p.ordinal, p.at, p.id, p.queue = r.Ordinal, it.at, r.Value.ID, r.Value.Queue
		return a.addPart(&a.values, p, "value")
	case entry.KindIDs:
		return &RefuseError{File: it.at.file(), Pos: it.at.pos, Index: a.index, What: "messages without payloads above the checkpoint",
			Expected: "an append record", Found: "an ids record"}
	case entry.KindPad:
		a.commit = max(a.commit, r.Commit)
		return nil
	}
	return a.addCopy(it)
}

// addPart takes an append or a value. The same one twice in a log is one; two
// that differ, or are in two logs, are damage.
func (a *assembly) addPart(list *[]part, p part, what string) error {
	i, found := slices.BinarySearchFunc(*list, p, func(x, y part) int { return cmp.Compare(x.ordinal, y.ordinal) })
	if !found {
		*list = slices.Insert(*list, i, p)
		return nil
	}
	have := (*list)[i]
	if have.at.q != p.at.q || have.id != p.id || have.queue != p.queue || !bytes.Equal(a.bytes(have), a.bytes(p)) {
		return &RefuseError{File: p.at.file(), Pos: p.at.pos, Index: a.index, What: "two different records for one " + what + "; the other is at " + have.at.String(),
			Expected: "one", Found: fmt.Sprintf("a second one for ordinal %d", p.ordinal)}
	}
	return nil
}

// addCopy takes an entry record or a stub. The copies of an entry agree on
// what is replicated and on the logs; two that do not are two entries of one
// index, which is damage and never a choice (I1).
func (a *assembly) addCopy(it *item) error {
	h := it.rec.Head
	if a.hasHead && (h.Term != a.head.Term || h.Type != a.head.Type || h.Hash != a.head.Hash || !slices.Equal(h.Logs, a.head.Logs)) {
		return a.conflict(it.at, describe(h))
	}
	if !slices.Contains(h.Logs, it.at.q.ID) {
		return &RefuseError{File: it.at.file(), Pos: it.at.pos, Index: a.index, What: "a copy in a log that it does not name",
			Expected: fmt.Sprintf("one of the logs %v", h.Logs), Found: fmt.Sprintf("log %d", it.at.q.ID)}
	}
	if !a.hasHead {
		a.head, a.headAt, a.hasHead = h, it.at, true
	}
	if !slices.Contains(a.copies, it.at.q.ID) || plant.Is(plant.CountRecords) { // the same copy twice in one log is one copy
		a.copies = append(a.copies, it.at.q.ID)
	}
	if it.rec.Kind == entry.KindEntry && !a.isEntry {
		a.isEntry, a.entry = true, a.copy(it.body)
	}
	return nil
}

func (a *assembly) conflict(at place, found string) error {
	return &RefuseError{File: at.file(), Pos: at.pos, Index: a.index, What: "two different entries of one index; the other is at " + a.headAt.String(),
		Expected: describe(a.head), Found: found}
}

func describe(h entry.Head) string {
	return fmt.Sprintf("term %d type %d hash %016x in logs %v", h.Term, h.Type, h.Hash, h.Logs)
}

// missing says what is not there of the entry; "" when every copy is.
func (a *assembly) missing() string {
	if !a.hasHead {
		return "its messages are there and no copy of the entry"
	}
	if plant.Is(plant.IgnoreCopyCount) && a.isEntry || plant.Is(plant.CountRecords) && len(a.copies) >= len(a.head.Logs) {
		return ""
	}
	var logs []uint64
	for _, id := range a.head.Logs {
		if !slices.Contains(a.copies, id) {
			logs = append(logs, id)
		}
	}
	if len(logs) > 0 {
		return fmt.Sprintf("%d of %d copies, none in the logs %v", len(a.copies), len(a.head.Logs), logs)
	}
	return ""
}

// where is a place that belongs to the entry.
func (a *assembly) where() place {
	if a.hasHead {
		return a.headAt
	}
	return a.first
}

// join gives the entry as it was replicated. Every copy is there, and a copy
// comes after its log's parts, so what does not fit now was damaged.
func (a *assembly) join() (*pb.Entry, error) {
	damaged := func(what string, err error) error {
		return &RefuseError{File: a.headAt.file(), Pos: a.headAt.pos, Index: a.index, What: what, Err: err}
	}
	if !a.isEntry {
		return nil, damaged("every copy is a stub: the entry record is gone", nil)
	}
	rec, err := entry.ParseRecord(a.bytes(a.entry))
	if err != nil {
		return nil, damaged("the entry record does not parse", err)
	}
	na, nv := rec.Parts()
	if !complete(a.blocks, na) || !complete(a.values, nv) {
		return nil, damaged(fmt.Sprintf("parts: expected %d appends and %d values, found %d and %d", na, nv, len(a.blocks), len(a.values)), nil)
	}
	blocks, values := make([][]byte, na), make([]entry.Value, nv)
	for i, p := range a.blocks {
		blocks[i] = a.bytes(p)
	}
	for i, p := range a.values {
		values[i] = entry.Value{ID: p.id, Queue: p.queue, Data: a.bytes(p)}
	}
	data, err := rec.Join(blocks, values)
	if err != nil {
		return nil, damaged("the entry does not fit its parts", err)
	}
	if na == 0 && nv == 0 {
		data = bytes.Clone(data) // raft's own entries are in the buffer that is used again
	}
	return &pb.Entry{Index: new(a.index), Term: new(a.head.Term), Type: pb.EntryType(a.head.Type).Enum(), Data: data}, nil
}

// complete reports whether parts are those with the ordinals 0 to n-1.
func complete(parts []part, n int) bool {
	return len(parts) == n && (n == 0 || parts[n-1].ordinal == uint32(n-1))
}

// spot is what look-ups and the store learn of a record that stays.
type spot struct {
	at      place
	end     int64
	entry   uint64
	kind    entry.Kind
	ref     index.AppendRef
	value   uint64
	known   bool
	carrier *raftlog.QueueLog
}

func newSpot(it *item) spot {
	s := spot{at: it.at, end: it.end, entry: it.rec.Index, kind: it.rec.Kind, known: it.known, carrier: it.at.q}
	switch s.kind {
	case entry.KindAppend, entry.KindIDs:
		a := &it.rec.Append
		s.ref = index.AppendRef{Seq: it.at.seq, Pos: it.at.pos, Partition: a.Partition, First: a.First, Count: a.Count, Time: a.Time}
	case entry.KindValue:
		s.value = it.rec.Value.ID
	}
	return s
}

// note tells the store of the record; applied is how far the replay is.
func (s *spot) note(applied uint64) {
	t := int64(0)
	if s.kind == entry.KindAppend || s.kind == entry.KindIDs {
		t = s.ref.Time
	}
	s.carrier.Note(s.at.seq, s.entry, t, s.end, applied)
}

// index tells look-ups where the record is.
func (s *spot) index() {
	switch s.kind {
	case entry.KindAppend, entry.KindIDs:
		s.carrier.Index.AddAppend(s.ref)
	case entry.KindValue:
		s.carrier.Index.AddValue(s.value, s.at.seq, s.at.pos)
	}
}
