package recovery_test

import (
	"fmt"
	"path"
	"strings"
	"testing"
	"time"

	pb "go.etcd.io/raft/v3/raftpb"

	"queen/index"
	"queen/internal/entry"
	"queen/internal/vfs"
	"queen/raftlog"
	"queen/raftlog/raftlogtest"
	"queen/segment"
)

// footerOf reads the newest footer of a directory.
func footerOf(t *testing.T, m *vfs.Mem) index.Footer {
	t.Helper()
	r, f, err := index.OpenRows(m, path.Join(dataDir, "checkpoint"), raftlogtest.New())
	must(t, err)
	must(t, r.Close())
	return f
}

// A checkpoint is taken while calls go on; a start loads it and replays the
// rest, and gets the state that was answered (F13).
func TestCheckpointsUnderLoad(t *testing.T) {
	m := vfs.NewMem(6)
	n := mustOpen(t, m, dataDir, withGroup(func(c *raftlog.Config) { c.CheckpointBytes = 2 << 10 }))
	for i := range 400 {
		n.push(&raftlogtest.Push{Queues: []uint64{uint64(1 + i%2)}, Payload: make([]byte, 30), Key: fmt.Sprint(i % 50)})
	}
	waitFor(t, func() bool { return n.g.Status().Checkpoints >= 2 })
	var want string
	must(t, n.g.Do(func() { want = n.m.Keys() + fmt.Sprint(n.m.Next(1), n.m.Next(2)) }))
	from := n.g.Status().CheckpointFrom
	m = n.kill()
	f := footerOf(t, m)
	if f.From == 0 || f.From > f.To || f.From < from {
		t.Errorf("footer %+v, the group said from %d", f, from)
	}
	n = mustOpen(t, m, dataDir)
	if got := n.m.Keys() + fmt.Sprint(n.m.Next(1), n.m.Next(2)); got != want {
		t.Errorf("state %s, want %s", got, want)
	}
	// The last checkpoint may have covered everything by the kill.
	if a := n.m.Applied; f.From < n.report.Last && (len(a) == 0 || a[0] != f.From+1) {
		t.Errorf("replay of %d, want it to begin at %d", a, f.From+1)
	}
	if len(n.m.Memory) != 400 {
		t.Errorf("memory learned %d ids, want all of the unsealed files", len(n.m.Memory))
	}
	n.stop()
}

func TestCheckpointIntervalAndCleanStop(t *testing.T) {
	clock := newClock()
	n := mustOpen(t, vfs.NewMem(1), dataDir, withClock(clock))
	n.put("a", "1")
	waitFor(t, func() bool { n.ticks(clock, 10*time.Second); return n.g.Status().Checkpoints == 1 })
	n.ticks(clock, 200*time.Second)
	if got := n.g.Status().Checkpoints; got != 1 {
		t.Errorf("%d checkpoints of an unchanged state", got)
	}
	n.stop()
	m := n.fs.(*vfs.Mem)
	n = mustOpen(t, m, dataDir, withClock(clock))
	if n.report.Replayed != 0 || n.m.Rows["k/a"] != "1" {
		t.Errorf("report %+v, a=%q", n.report, n.m.Rows["k/a"])
	}
	n.stop()
}

// F5: rows of a capture without a footer are not loaded; the next capture
// cuts them off.
func TestF5OrphanRowsAreNotLoaded(t *testing.T) {
	m := vfs.NewMem(1)
	n := mustOpen(t, m, dataDir)
	n.put("a", "1")
	n.stop()
	r, _, err := index.OpenRows(m, path.Join(dataDir, "checkpoint"), raftlogtest.New())
	must(t, err)
	must(t, r.Begin(false))
	must(t, r.Put([]byte("k/orphan"), []byte("of a given-up capture")))
	must(t, r.Close())
	n = mustOpen(t, m, dataDir)
	if _, ok := n.get("orphan"); ok {
		t.Error("an orphan row was loaded")
	}
	n.put("b", "2")
	n.stop()
	n = mustOpen(t, m, dataDir)
	if got := n.m.Keys(); got != `a="1" b="2" ` {
		t.Errorf("keys %s", got)
	}
	n.stop()
}

// F5, I2: a log that ends below the newest footer's to has lost durable data.
func TestF5LogEndsBelowTo(t *testing.T) {
	m := vfs.NewMem(1)
	n := mustOpen(t, m, dataDir)
	n.put("a", "1")
	n.put("b", "2")
	m = n.kill()
	last := lastIndex(t, m, 0)
	r, _, err := index.OpenRows(m, path.Join(dataDir, "checkpoint"), raftlogtest.New())
	must(t, err)
	must(t, r.Begin(true))
	must(t, r.Put([]byte("k/a"), []byte("1")))
	must(t, r.Finish(index.Footer{From: last - 1, To: last + 1, FromTerm: 1, ToTerm: 1}))
	must(t, r.Close())
	contains(t, refused(t, m, dataDir), "checkpoint", fmt.Sprintf("entry %d", last+1), fmt.Sprintf("up to %d", last))
}

// F6: complete entries that nothing says are committed are raft's log and are
// not applied, unless this node is the only voter.
func TestF6UncommittedEntriesAreNotApplied(t *testing.T) {
	build := func(state raftlog.State) *vfs.Mem {
		h := newHandmade(t, state)
		h.entry(made{index: 1, term: 1})
		h.entry(made{index: 2, term: 1, queues: []uint64{1}, durable: 1, commit: 1})
		h.entry(made{index: 3, term: 1, queues: []uint64{1}, durable: 2, commit: 2})
		h.entry(made{index: 4, term: 1, queues: []uint64{1, 2}, durable: 3, commit: 3})
		h.entry(made{index: 5, term: 1, queues: []uint64{2}, durable: 4, commit: 3})
		return h.done()
	}
	n := mustOpen(t, build(threeVoters(1)), dataDir)
	if got := fmt.Sprint(n.m.Applied); got != "[2 3]" {
		t.Errorf("applied %s, want [2 3]", got)
	}
	st := n.g.Status()
	if n.report.Last != 5 || st.Leader || st.Applied != 3 || st.Commit != 3 {
		t.Errorf("last %d, status %+v", n.report.Last, st)
	}
	n.gone()
	n = mustOpen(t, build(oneVoter(1)), dataDir)
	if got := fmt.Sprint(n.m.Applied); got != "[2 3 4 5]" {
		t.Errorf("applied %s by the only voter", got)
	}
	n.stop()
}

// A follower that was started takes a conflicting tail: what a boot found and
// did not apply is cut from every log, and nothing below it (I5).
func TestI5ConflictAfterABoot(t *testing.T) {
	h := newHandmade(t, threeVoters(1))
	h.entry(made{index: 1, term: 1})
	h.entry(made{index: 2, term: 1, queues: []uint64{1, 2}, durable: 1, commit: 1})
	h.entry(made{index: 3, term: 1, queues: []uint64{1}, durable: 2, commit: 2})
	h.entry(made{index: 4, term: 1, queues: []uint64{1, 2}, durable: 3, commit: 2})
	h.entry(made{index: 5, term: 1, queues: []uint64{3}, durable: 4, commit: 2})
	m := h.done()
	n := mustOpen(t, m, dataDir)
	var b entry.Builder
	b.Append(2, 2, 3, 9_000_000, 1, entry.AppendMessage(nil, &entry.Message{Minted: true, Payload: []byte("of the new leader")}))
	n.g.Receive(&raftlog.Parcel{Messages: []*pb.Message{{
		Type: pb.MsgApp.Enum(), From: new(uint64(2)), To: new(uint64(1)), Term: new(uint64(7)),
		Index: new(uint64(3)), LogTerm: new(uint64(1)), Commit: new(uint64(4)),
		Entries: []*pb.Entry{{Index: new(uint64(4)), Term: new(uint64(7)), Data: b.Encode(9_000_000)}},
	}}})
	waitFor(t, func() bool { return n.g.Status().Applied == 4 })
	must(t, n.g.Do(func() {
		if got := fmt.Sprint(n.m.Applied); got != "[2 3 4]" {
			t.Errorf("applied %s", got)
		}
	}))
	check := func() {
		t.Helper()
		for log, want := range map[uint64]string{0: "[1]", 1: "[2 2 3 3]", 2: "[2 2 4 4]", 3: "[]"} {
			var got []uint64
			for _, r := range records(t, m, log) {
				got = append(got, r.rec.Index)
			}
			if fmt.Sprint(got) != want {
				t.Errorf("log %d holds records of %v, want %s", log, got, want)
			}
		}
		if got := n.messages(2); len(got) != 2 || got[1] != "of the new leader" {
			t.Errorf("queue 2: %q", got)
		}
		if got := n.messages(3); len(got) != 0 {
			t.Errorf("queue 3: %q", got)
		}
	}
	check()
	m = n.kill()
	n = mustOpen(t, m, dataDir)
	check()
	if n.report.Cut != 0 || n.report.Last != 4 {
		t.Errorf("report %+v", n.report)
	}
	n.gone()
}

// F6: a pad's commit index and a later record's count as well.
func TestF6CommitIndexOfLaterRecords(t *testing.T) {
	h := newHandmade(t, threeVoters(1))
	h.entry(made{index: 1, term: 1})
	h.entry(made{index: 2, term: 1, queues: []uint64{1}, durable: 1})
	h.entry(made{index: 3, term: 1, queues: []uint64{2}, durable: 2})
	h.append(0, padOf(3, 2))
	n := mustOpen(t, h.done(), dataDir)
	if got := fmt.Sprint(n.m.Applied); got != "[2]" {
		t.Errorf("applied %s, want [2]", got)
	}
	n.gone()
}

// F6: the state file is older than the log: this is an older copy of it, and
// votes were forgotten.
func TestF6StateFileOlderThanTheLog(t *testing.T) {
	h := newHandmade(t, oneVoter(1))
	h.entry(made{index: 1, term: 2})
	contains(t, refused(t, h.done(), dataDir), "state file", "term at most 1", "found 2")
}

// A rolled file is sealed in the background, the machine hears of it, and a
// start reads its positions from the side tables.
func TestRolledFilesAreSealed(t *testing.T) {
	clock := newClock()
	m := vfs.NewMem(1)
	n := mustOpen(t, m, dataDir, withClock(clock), small)
	for i := range 30 {
		n.push(&raftlogtest.Push{Queues: []uint64{1}, Payload: make([]byte, 200), Txn: fmt.Sprint("t", i)})
	}
	count := func(suffix string) (n int) {
		infos, err := m.List(path.Join(dataDir, "log/q1"))
		must(t, err)
		for _, i := range infos {
			if strings.HasSuffix(i.Name, suffix) {
				n++
			}
		}
		return n
	}
	if count(".seg") < 4 {
		t.Fatal("too few files")
	}
	waitFor(t, func() bool { n.ticks(clock, 100*time.Millisecond); return count(".idx") == count(".seg")-1 })
	var sealed int64
	waitFor(t, func() bool { must(t, n.g.Do(func() { sealed = n.m.Sealed })); return sealed > 0 })
	if got := n.messages(1); len(got) != 30 {
		t.Fatalf("%d messages", len(got))
	}
	var found uint64
	err := n.g.Reader().FindTxn(1, 1, []byte("t2"), func(offset uint64, _ int64, _ [16]byte) bool { found = offset; return true })
	if err != nil || found != 2 {
		t.Errorf("t2 is at %d, %v", found, err)
	}
	n.stop()
	wantSealed(t, m, 1)
	// Take one table away and damage another: both are made again.
	var first, second string
	infos, err := m.List(path.Join(dataDir, "log/q1"))
	must(t, err)
	for _, i := range infos {
		if strings.HasSuffix(i.Name, ".idx") && first == "" {
			first = i.Name
			must(t, m.Remove(path.Join(dataDir, "log/q1", i.Name)))
		} else if strings.HasSuffix(i.Name, ".idx") && second == "" {
			second = i.Name
			must(t, m.Flip(path.Join(dataDir, "log/q1", i.Name), i.Size/2, 2))
		}
	}
	n = mustOpen(t, m, dataDir, withClock(clock), small)
	if n.m.Since == 0 {
		t.Error("Ready was not told of the sealed files")
	}
	waitFor(t, func() bool {
		n.ticks(clock, 100*time.Millisecond)
		_, err := m.Stat(path.Join(dataDir, "log/q1", first))
		return err == nil && len(n.messages1(1)) == 30
	})
	n.stop()
}

// wantSealed checks that the side tables of a log describe all of its files but
// the newest as they are.
func wantSealed(t *testing.T, m *vfs.Mem, log uint64) {
	t.Helper()
	dir := path.Join(dataDir, "log", raftlog.LogDirName(log))
	l, err := segment.Open(segment.Options{FS: m, Dir: dir, ID: log})
	must(t, err)
	var ids []index.FileID
	for _, s := range l.Segments() {
		ids = append(ids, index.FileID{Seq: s.Seq, Generation: s.Generation, Size: s.Size})
	}
	x, err := index.OpenLogIndex(m, dir, index.NewTableCache(1<<20, 4))
	must(t, err)
	missing := x.Reconcile(ids)
	if len(missing) != 1 || missing[0].Seq != ids[len(ids)-1].Seq {
		t.Errorf("files without tables: %v of %v", missing, ids)
	}
}

// F21: the unsealed bytes of all logs are bounded: the log with the oldest
// unsealed record rolls.
func TestF21OldestLogRolls(t *testing.T) {
	clock := newClock()
	n := mustOpen(t, vfs.NewMem(1), dataDir, withClock(clock), withGroup(func(c *raftlog.Config) { c.UnsealedMax = 20 << 10 }))
	for q := range uint64(40) {
		n.push(&raftlogtest.Push{Queues: []uint64{1 + q}, Payload: make([]byte, 1000)})
	}
	waitFor(t, func() bool {
		n.ticks(clock, 100*time.Millisecond)
		return n.g.Status().UnsealedBytes <= 20<<10
	})
	for q := range uint64(40) {
		if got := n.messages(1 + q); len(got) != 1 {
			t.Errorf("queue %d has %d messages", 1+q, len(got))
		}
	}
	n.push(&raftlogtest.Push{Queues: []uint64{1}})
	m := n.kill()
	n = mustOpen(t, m, dataDir)
	if got := n.messages(1); len(got) != 2 || n.m.Since == 0 {
		t.Errorf("%d messages, ids sealed through %d", len(got), n.m.Since)
	}
	n.stop()
}

// Plan.SealThrough has every log with unsealed appends up to a time sealed.
func TestSealThrough(t *testing.T) {
	clock := newClock()
	n := mustOpen(t, vfs.NewMem(1), dataDir, withClock(clock))
	for q := range uint64(5) {
		n.push(&raftlogtest.Push{Queues: []uint64{1 + q}})
	}
	var want int64
	must(t, n.g.Do(func() { want = n.m.Time(); n.m.SealWant = want }))
	n.put("a", "b")
	waitFor(t, func() bool {
		n.ticks(clock, 100*time.Millisecond)
		var got int64
		must(t, n.g.Do(func() { got = n.m.Sealed }))
		return got >= want
	})
	// A sealed file never changes, also when it is the newest of its log (I4).
	m := n.kill()
	sealed := size(t, m, seg(1, 1))
	n = mustOpen(t, m, dataDir, withClock(clock))
	n.push(&raftlogtest.Push{Queues: []uint64{1}})
	if got := size(t, m, seg(1, 1)); got != sealed {
		t.Errorf("the sealed file grew from %d to %d bytes", sealed, got)
	}
	if got := n.messages(1); len(got) != 2 {
		t.Errorf("%d messages", len(got))
	}
	n.stop()
}

// Values are found in the log of their queue, and beside their entry.
func TestValues(t *testing.T) {
	m := vfs.NewMem(1)
	n := mustOpen(t, m, dataDir)
	n.push(&raftlogtest.Push{Queues: []uint64{3, 4}, Value: []byte("with a queue")})
	n.push(&raftlogtest.Push{Value: []byte("without")})
	var ids []int64
	must(t, n.g.Do(func() { ids = append(ids, n.m.PlanNows...) }))
	check := func() {
		t.Helper()
		for _, c := range []struct {
			queue uint64
			want  string
		}{{3, "with a queue"}, {0, "without"}} {
			found := false
			for _, id := range ids {
				if v, err := n.g.Reader().Value(uint64(id), c.queue); err == nil && string(v) == c.want {
					found = true
				}
			}
			if !found {
				t.Errorf("value %q is not found", c.want)
			}
		}
	}
	check()
	m = n.kill()
	n = mustOpen(t, m, dataDir)
	check()
	n.stop()
}
