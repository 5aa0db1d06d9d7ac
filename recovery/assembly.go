package recovery

import (
	"bytes"
	"fmt"
	"slices"

	pb "go.etcd.io/raft/v3/raftpb"

	"queen/index"
	"queen/internal/entry"
	"queen/raftlog"
)

// assembly puts one entry together. Its records come log by log, the lowest
// log last; what is needed later is copied, because a scan's buffer is not
// kept.
type assembly struct {
	index   uint64
	commit  uint64 // a pad's
	head    entry.Head
	headAt  place
	hasHead bool
	copies  []uint64 // logs with a copy
	entry   entry.Record
	isEntry bool
	blocks  map[uint32]block
	values  map[uint32]entry.Value
	spots   []spot
	first   place
}

// block is an append block and where it was found.
type block struct {
	raw []byte
	at  place
}

// add takes one record.
func (a *assembly) add(it *item) error {
	if a.first.seq == 0 {
		a.first = it.at
	}
	r := &it.rec
	a.spots = append(a.spots, newSpot(it))
	switch r.Kind {
	case entry.KindAppend:
		return a.addBlock(it)
	case entry.KindValue:
		return a.addValue(it)
	case entry.KindPad:
		a.commit = max(a.commit, r.Commit)
		return nil
	}
	return a.addCopy(it)
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
	if !slices.Contains(a.copies, it.at.q.ID) { // the same copy twice in one log is one copy
		a.copies = append(a.copies, it.at.q.ID)
	}
	if it.rec.Kind == entry.KindEntry && !a.isEntry {
		a.isEntry = true
		var err error
		if a.entry, err = entry.ParseRecord(bytes.Clone(it.body)); err != nil {
			return err
		}
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

func (a *assembly) addBlock(it *item) error {
	if a.blocks == nil {
		a.blocks = make(map[uint32]block)
	}
	raw := it.rec.Append.Raw
	if have, ok := a.blocks[it.rec.Ordinal]; ok {
		if !bytes.Equal(have.raw, raw) || have.at.q != it.at.q {
			return a.twice(it, "two different records for one append; the other is at "+have.at.String())
		}
		return nil
	}
	a.blocks[it.rec.Ordinal] = block{bytes.Clone(raw), it.at}
	return nil
}

func (a *assembly) addValue(it *item) error {
	if a.values == nil {
		a.values = make(map[uint32]entry.Value)
	}
	v := it.rec.Value
	if have, ok := a.values[it.rec.Ordinal]; ok {
		if have.ID != v.ID || have.Queue != v.Queue || !bytes.Equal(have.Data, v.Data) {
			return a.twice(it, "two different records for one value")
		}
		return nil
	}
	v.Data = bytes.Clone(v.Data)
	a.values[it.rec.Ordinal] = v
	return nil
}

func (a *assembly) twice(it *item, what string) error {
	return &RefuseError{File: it.at.file(), Pos: it.at.pos, Index: a.index, What: what,
		Expected: "one", Found: fmt.Sprintf("a second one for ordinal %d", it.rec.Ordinal)}
}

// missing says what is not there of the entry; "" when every copy is.
func (a *assembly) missing() string {
	if !a.hasHead {
		return "its messages are there and no copy of the entry"
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
	na, nv := a.entry.Parts()
	blocks, values := make([][]byte, na), make([]entry.Value, nv)
	if len(a.blocks) != na || len(a.values) != nv {
		return nil, damaged(fmt.Sprintf("parts: expected %d appends and %d values, found %d and %d", na, nv, len(a.blocks), len(a.values)), nil)
	}
	for i := range blocks {
		b, ok := a.blocks[uint32(i)]
		if !ok {
			return nil, damaged(fmt.Sprintf("append %d is missing", i), nil)
		}
		blocks[i] = b.raw
	}
	for i := range values {
		v, ok := a.values[uint32(i)]
		if !ok {
			return nil, damaged(fmt.Sprintf("value %d is missing", i), nil)
		}
		values[i] = v
	}
	data, err := a.entry.Join(blocks, values)
	if err != nil {
		return nil, damaged("the entry does not fit its parts", err)
	}
	return &pb.Entry{Index: new(a.index), Term: new(a.head.Term), Type: pb.EntryType(a.head.Type).Enum(), Data: data}, nil
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
	case entry.KindAppend:
		a := &it.rec.Append
		s.ref = index.AppendRef{Seq: it.at.seq, Pos: it.at.pos, Partition: a.Partition, First: a.First, Count: a.Count, Time: a.Time}
	case entry.KindValue:
		s.value = it.rec.Value.ID
	}
	return s
}

// note widens what is known of the record's file.
func (s *spot) note() {
	t := int64(0)
	if s.kind == entry.KindAppend {
		t = s.ref.Time
	}
	s.carrier.Note(s.at.seq, s.entry, t, s.end)
}

// index tells look-ups where the record is.
func (s *spot) index() {
	switch s.kind {
	case entry.KindAppend:
		s.carrier.Index.AddAppend(s.ref)
	case entry.KindValue:
		s.carrier.Index.AddValue(s.value, s.at.seq, s.at.pos)
	}
}
