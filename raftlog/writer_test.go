package raftlog

import (
	"errors"
	"fmt"
	"path"
	"reflect"
	"slices"
	"testing"

	pb "go.etcd.io/raft/v3/raftpb"

	"queen/internal/entry"
	"queen/internal/vfs"
	"queen/segment"
)

// newWriter makes a log writer on an empty directory.
func newWriter(t testing.TB, fsys vfs.FS, shards int) *logWriter {
	t.Helper()
	if err := errors.Join(fsys.MkdirAll("d/raft"), fsys.SyncAll("d")); err != nil {
		t.Fatal(err)
	}
	s, err := OpenStore(StoreOptions{FS: fsys, Dir: "d", Layout: Layout{Shards: shards}, SegmentBytes: 1 << 20, OpenFiles: 16})
	if err != nil {
		t.Fatal(err)
	}
	return &logWriter{store: s, stateDir: "d/raft"}
}

// syncNow writes a request and makes it durable.
func (w *logWriter) syncNow(r appendRequest) error {
	if err := w.write(&r); err != nil {
		return err
	}
	logs, err := w.flush()
	if err != nil {
		return err
	}
	for _, q := range logs {
		if err := q.Log.Sync(); err != nil {
			return err
		}
	}
	w.synced()
	return nil
}

// planOf is an entry with a message for each queue, and more.
func planOf(index, term uint64, queues []uint64, edit ...func(*entry.Builder)) *pb.Entry {
	var b entry.Builder
	for _, q := range queues {
		m := entry.Message{Payload: fmt.Appendf(nil, "%d of term %d", index, term), Minted: true}
		b.Append(q, q, index, int64(index), 1, entry.AppendMessage(nil, &m))
	}
	b.Effects = append(b.Effects, "effects"...)
	for _, e := range edit {
		e(&b)
	}
	return &pb.Entry{Index: new(index), Term: new(term), Data: b.Encode(int64(index))}
}

// logRecords lists the kinds and indexes of a log.
func logRecords(t testing.TB, fsys vfs.FS, id uint64) (out []string) {
	t.Helper()
	l, err := segment.Open(segment.Options{FS: fsys, Dir: path.Join("d/log", LogDirName(id)), ID: id})
	if err != nil {
		t.Fatal(err)
	}
	names := map[entry.Kind]string{entry.KindAppend: "append", entry.KindEntry: "entry", entry.KindStub: "stub", entry.KindValue: "value", entry.KindPad: "pad"}
	for _, s := range l.Segments() {
		if _, err := l.Scan(s.Seq, 0, func(_ int64, body []byte) error {
			r, err := entry.ParseRecord(body)
			text := fmt.Sprintf("%d %s", r.Index, names[r.Kind])
			if r.Kind == entry.KindEntry || r.Kind == entry.KindStub {
				text += fmt.Sprint(" ", r.Head.Logs)
			}
			out = append(out, text)
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	return out
}

// Which logs an entry touches, and which records it puts there (architecture,
// section 5).
func TestRecordsOfAnEntry(t *testing.T) {
	touch := func(q uint64) func(*entry.Builder) { return func(b *entry.Builder) { b.Touch(q) } }
	value := func(q uint64) func(*entry.Builder) { return func(b *entry.Builder) { b.Value(77, q, []byte("v")) } }
	for _, c := range []struct {
		name   string
		shards int
		e      *pb.Entry
		want   map[uint64][]string
	}{
		{"raft's own", 0, &pb.Entry{Index: new(uint64(1)), Term: new(uint64(1))}, map[uint64][]string{0: {"1 entry [0]"}}},
		{"no queue", 0, planOf(1, 1, nil), map[uint64][]string{0: {"1 entry [0]"}}},
		{"a value without a queue", 0, planOf(1, 1, nil, value(0)), map[uint64][]string{0: {"1 value", "1 entry [0]"}}},
		{"one queue", 0, planOf(1, 1, []uint64{5}), map[uint64][]string{5: {"1 append", "1 entry [5]"}}},
		{"three queues", 0, planOf(1, 1, []uint64{9, 5, 7}), map[uint64][]string{
			5: {"1 append", "1 entry [5 7 9]"}, 7: {"1 append", "1 stub [5 7 9]"}, 9: {"1 append", "1 stub [5 7 9]"}}},
		{"a queue that is only touched", 0, planOf(1, 1, []uint64{5}, touch(2)), map[uint64][]string{
			2: {"1 entry [2 5]"}, 5: {"1 append", "1 stub [2 5]"}}},
		{"a value of a queue", 0, planOf(1, 1, []uint64{5}, value(8)), map[uint64][]string{
			5: {"1 append", "1 entry [5 8]"}, 8: {"1 value", "1 stub [5 8]"}}},
		{"a value beside the entry", 0, planOf(1, 1, []uint64{5, 6}, value(0)), map[uint64][]string{
			5: {"1 append", "1 value", "1 entry [5 6]"}, 6: {"1 append", "1 stub [5 6]"}}},
		{"shared logs", 2, planOf(1, 1, []uint64{4, 5, 6}), map[uint64][]string{
			1: {"1 append", "1 append", "1 entry [1 2]"}, 2: {"1 append", "1 stub [1 2]"}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			fsys := vfs.NewMem(1)
			w := newWriter(t, fsys, c.shards)
			if err := w.syncNow(appendRequest{entries: []*pb.Entry{c.e}}); err != nil {
				t.Fatal(err)
			}
			got := make(map[uint64][]string)
			for _, q := range w.store.Logs() {
				got[q.ID] = logRecords(t, fsys, q.ID)
			}
			if !reflect.DeepEqual(got, c.want) {
				t.Errorf("got %v\nwant %v", got, c.want)
			}
		})
	}
}

// raft's truncation of a conflicting tail: every log is cut before a record of
// that index is written again (I5), and nothing below is touched.
func TestI5ConflictingTailIsCutFromEveryLog(t *testing.T) {
	fsys := vfs.NewMem(1)
	w := newWriter(t, fsys, 0)
	steps := []appendRequest{
		{entries: []*pb.Entry{{Index: new(uint64(1)), Term: new(uint64(1))}, planOf(2, 1, []uint64{1, 2})}},
		{entries: []*pb.Entry{planOf(3, 1, []uint64{1}), planOf(4, 1, []uint64{1, 3})}},
		{entries: []*pb.Entry{planOf(3, 2, []uint64{2})}, hard: true, term: 2},
	}
	for i, s := range steps {
		if err := w.syncNow(s); err != nil {
			t.Fatalf("step %d: %v", i, err)
		}
	}
	want := map[uint64][]string{
		0: {"1 entry [0]"}, 1: {"2 append", "2 entry [1 2]"},
		2: {"2 append", "2 stub [1 2]", "3 append", "3 entry [2]"}, 3: nil,
	}
	for id, w := range want {
		if got := logRecords(t, fsys, id); !slices.Equal(got, w) {
			t.Errorf("log %d: %v, want %v", id, got, w)
		}
	}
	if w.last != 3 || w.durable != 3 || w.state.Cut != 0 {
		t.Errorf("last %d, durable %d, mark %d", w.last, w.durable, w.state.Cut)
	}
	// Look-ups forgot what was cut.
	if _, ok, err := w.store.find(1).Index.Find(1, 3); ok || err != nil {
		t.Errorf("the index of log 1 still has the cut append: %v, %v", ok, err)
	}
	if refs, err := w.store.find(2).Index.Range(2, 0, 10); len(refs) != 2 || err != nil {
		t.Errorf("log 2 has %d appends, %v", len(refs), err)
	}
}

// The mark of a cut is durable before the first log is touched and stays until
// the last one is done (F3): the disk dies at every call in turn, and whatever
// is left either says so or holds the cut whole or not at all.
func TestF3LiveCutIsMarked(t *testing.T) {
	for at := 1; ; at++ {
		fsys := vfs.NewMem(uint64(at))
		w := newWriter(t, fsys, 0)
		for _, e := range []*pb.Entry{{Index: new(uint64(1)), Term: new(uint64(1))}, planOf(2, 1, []uint64{1, 2}), planOf(3, 1, []uint64{2, 3})} {
			if err := w.syncNow(appendRequest{entries: []*pb.Entry{e}}); err != nil {
				t.Fatal(err)
			}
		}
		calls := 0
		var left *vfs.Mem
		fsys.SetHook(func(op vfs.Op, _ string) error {
			if op == vfs.OpRead || op == vfs.OpStat || op == vfs.OpOpen || op == vfs.OpList {
				return nil
			}
			if calls++; calls == at && left == nil {
				left = fsys.Crash(0.5)
			}
			return nil
		})
		err := w.syncNow(appendRequest{entries: []*pb.Entry{planOf(2, 2, []uint64{3})}})
		if left == nil {
			if err != nil || at < 10 {
				t.Fatalf("%v after %d calls", err, at)
			}
			return
		}
		st, _, err := LoadState(left, "d/raft")
		if err != nil {
			t.Fatalf("call %d: %v", at, err)
		}
		if st.Cut == 2 {
			continue // the next boot finishes it
		}
		whole := len(logRecords(t, left, 1)) == 2 && len(logRecords(t, left, 2)) == 4 && len(logRecords(t, left, 3)) == 2
		cut := len(logRecords(t, left, 1)) == 0 && len(logRecords(t, left, 2)) == 0
		if st.Cut != 0 || !whole && !cut {
			t.Fatalf("call %d: mark %d, logs %v %v %v", at, st.Cut, logRecords(t, left, 1), logRecords(t, left, 2), logRecords(t, left, 3))
		}
	}
}

// A batch that cuts makes durable what the cut leaves: entry 2 is in a log that
// the cut at 3 does not reach, and nothing after it touches that log again.
func TestI5CutKeepsWhatItLeavesDurable(t *testing.T) {
	fsys := vfs.NewMem(1)
	w := newWriter(t, fsys, 0)
	first := appendRequest{entries: []*pb.Entry{{Index: new(uint64(1)), Term: new(uint64(1))}, planOf(2, 1, []uint64{1}), planOf(3, 1, []uint64{2})}}
	if err := w.write(&first); err != nil {
		t.Fatal(err)
	}
	if err := w.syncNow(appendRequest{entries: []*pb.Entry{planOf(3, 2, []uint64{3})}}); err != nil {
		t.Fatal(err)
	}
	if w.durable != 3 {
		t.Fatalf("durable index %d, want 3", w.durable)
	}
	left := fsys.Crash(0)
	for id, want := range map[uint64]int{1: 2, 3: 2} {
		if got := len(logRecords(t, left, id)); got != want {
			t.Errorf("log %d has %d records after a power cut, want %d", id, got, want)
		}
	}
}

// Term and vote are durable before the entries that came with them, and
// written only when they change (F6).
func TestF6StateFileIsWrittenWhenItChanges(t *testing.T) {
	fsys := vfs.NewMem(1)
	w := newWriter(t, fsys, 0)
	var renames int64
	write := func(term, vote uint64, es ...*pb.Entry) {
		t.Helper()
		if err := w.syncNow(appendRequest{entries: es, hard: true, term: term, vote: vote}); err != nil {
			t.Fatal(err)
		}
		renames = fsys.Counts().Rename
	}
	write(1, 1)
	if renames != 1 {
		t.Fatalf("%d state files for the first vote", renames)
	}
	write(1, 1, &pb.Entry{Index: new(uint64(1)), Term: new(uint64(1))})
	if renames != 1 {
		t.Fatal("written without a change")
	}
	// The disk fails when the entries are written: the new term is there.
	fsys.SetHook(func(op vfs.Op, name string) error {
		if op == vfs.OpWrite && path.Base(name) != "state.tmp" {
			return errors.New("the disk says no")
		}
		return nil
	})
	if err := w.syncNow(appendRequest{entries: []*pb.Entry{planOf(2, 5, []uint64{1})}, hard: true, term: 5, vote: 3}); err == nil {
		t.Fatal("no error")
	}
	st, _, err := LoadState(fsys.Crash(0), "d/raft")
	if err != nil || st.Term != 5 || st.Vote != 3 {
		t.Fatalf("state %+v, %v", st, err)
	}
}

// Every record of an entry carries the durable index of before, and pads say
// the rest (I2).
func TestDurableClaims(t *testing.T) {
	fsys := vfs.NewMem(1)
	w := newWriter(t, fsys, 0)
	claims := func() (out []uint64) {
		l, err := segment.Open(segment.Options{FS: fsys, Dir: "d/log/q0", ID: 0})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := l.Scan(1, 0, func(_ int64, body []byte) error {
			r, err := entry.ParseRecord(body)
			if r.Kind == entry.KindPad {
				out = append(out, r.Index)
			} else {
				out = append(out, r.Head.Durable)
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
		return out
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(w.syncNow(appendRequest{entries: []*pb.Entry{planOf(1, 1, nil), planOf(2, 1, nil)}}))
	must(w.syncNow(appendRequest{entries: []*pb.Entry{planOf(3, 1, nil)}}))
	must(w.pad(3))
	must(w.syncNow(appendRequest{}))
	if got := fmt.Sprint(claims()); got != "[0 0 2 3]" {
		t.Errorf("claims %s", got)
	}
	// No pad claims an entry that is not durable yet.
	r := appendRequest{entries: []*pb.Entry{planOf(4, 1, nil)}}
	must(w.write(&r))
	must(w.pad(3))
	must(w.syncNow(appendRequest{}))
	if got := fmt.Sprint(claims()); got != "[0 0 2 3 3]" {
		t.Errorf("claims %s", got)
	}
}

func TestGapInTheLogIsAnError(t *testing.T) {
	w := newWriter(t, vfs.NewMem(1), 0)
	if err := w.syncNow(appendRequest{entries: []*pb.Entry{planOf(2, 1, nil)}}); err == nil {
		t.Fatal("entry 2 was written to an empty log")
	}
}

func TestStateFile(t *testing.T) {
	fsys := vfs.NewMem(1)
	if err := fsys.MkdirAll("raft"); err != nil {
		t.Fatal(err)
	}
	if _, found, err := LoadState(fsys, "raft"); found || err != nil {
		t.Fatalf("found %v, %v", found, err)
	}
	want := State{Term: 7, Vote: 3, ConfIndex: 12, Cut: 44, Conf: Membership{
		Voters: []uint64{1, 2, 3}, Learners: []uint64{4}, VotersOutgoing: []uint64{1}, LearnersNext: []uint64{5}, AutoLeave: true}}
	if err := SaveState(fsys, "raft", &want); err != nil {
		t.Fatal(err)
	}
	got, found, err := LoadState(fsys, "raft")
	if err != nil || !found || !reflect.DeepEqual(got, want) {
		t.Fatalf("%+v, %v, %v", got, found, err)
	}
	b := want.encode()
	for i := range b {
		for _, mask := range []byte{1, 0x80} {
			bad := slices.Clone(b)
			bad[i] ^= mask
			if _, err := decodeState("f", bad); !errors.Is(err, ErrDamaged) && !errors.Is(err, ErrNewerFormat) {
				t.Fatalf("byte %d: %v", i, err)
			}
		}
	}
	for i := range b {
		if _, err := decodeState("f", b[:i]); !errors.Is(err, ErrDamaged) {
			t.Fatalf("%d bytes: %v", i, err)
		}
	}
	newer := slices.Clone(b)
	newer[8] = 2
	if _, err := decodeState("f", newer); !errors.Is(err, ErrNewerFormat) {
		t.Fatalf("a newer version: %v", err)
	}
}

func TestLogDirNames(t *testing.T) {
	for _, id := range []uint64{0, 1, 42, 1 << 63} {
		if got, ok := ParseLogDirName(LogDirName(id)); !ok || got != id {
			t.Errorf("%d: %d, %v", id, got, ok)
		}
	}
	for _, name := range []string{"", "q", "q-1", "q01", "q1x", "Q1", "q1.removed", "p1"} {
		if _, ok := ParseLogDirName(name); ok {
			t.Errorf("%q is taken for a log", name)
		}
	}
}

// A cut that reaches below a fresh, still small file takes that file with it,
// and what is written then is found by offset, in files that claim what they
// hold (B07).
func TestB07CutBelowAFreshFile(t *testing.T) {
	fsys := vfs.NewMem(1)
	w := newWriter(t, fsys, 0)
	w.store.opt.SegmentBytes = 400
	put := func(index, term uint64) {
		t.Helper()
		if err := w.syncNow(appendRequest{entries: []*pb.Entry{planOf(index, term, []uint64{1})}}); err != nil {
			t.Fatal(err)
		}
	}
	for i := uint64(1); i <= 7; i++ {
		put(i, 1)
	}
	q := w.store.find(1)
	files := len(q.Files())
	if files < 3 {
		t.Fatalf("%d files", files)
	}
	for cut := uint64(7); cut >= 2; cut-- {
		for i := cut; i <= 7; i++ {
			put(i, 9-cut)
		}
		refs, err := q.Index.Range(1, 0, 100)
		if err != nil || len(refs) != 7 {
			t.Fatalf("cut at %d: %d appends, %v", cut, len(refs), err)
		}
		for i, ref := range refs {
			body, _, err := q.Log.ReadAt(ref.Seq, ref.Pos, nil)
			if err != nil {
				t.Fatalf("cut at %d: %v", cut, err)
			}
			if r, err := entry.ParseRecord(body); err != nil || r.Index != uint64(i+1) {
				t.Fatalf("cut at %d: append %d is at a record of entry %d, %v", cut, i+1, r.Index, err)
			}
		}
		checkFiles(t, q)
	}
}

// checkFiles compares what the store knows of a log's files with the files.
func checkFiles(t *testing.T, q *QueueLog) {
	t.Helper()
	known := q.Files()
	segments := q.Log.Segments()
	if len(known) != len(segments) {
		t.Fatalf("%d files known, %d there", len(known), len(segments))
	}
	for i, s := range segments {
		var lo, hi uint64
		if _, err := q.Log.Scan(s.Seq, 0, func(_ int64, body []byte) error {
			r, err := entry.ParseRecord(body)
			if lo == 0 {
				lo = r.Index
			}
			hi = r.Index
			return err
		}); err != nil {
			t.Fatal(err)
		}
		f := known[i]
		if f.Seq != s.Seq || f.Size != s.Size || f.MinIndex != lo || f.MaxIndex != hi {
			t.Fatalf("file %d: known %+v, has %d bytes and entries %d to %d", s.Seq, f, s.Size, lo, hi)
		}
	}
}
