package recovery_test

import (
	"errors"
	"fmt"
	"path"
	"strings"
	"sync"
	"testing"
	"time"

	"queen/index"
	"queen/internal/entry"
	"queen/internal/vfs"
	"queen/raftlog"
	"queen/raftlog/raftlogtest"
	"queen/segment"
)

// filled is a directory with three segment files of queue 1 and some entries
// of queue 2, killed or stopped at its end.
func filled(t *testing.T, clean bool) *vfs.Mem {
	t.Helper()
	b := mustOpen(t, vfs.NewMem(4), dataDir, small)
	for i := range 12 {
		b.push(&raftlogtest.Push{Queues: []uint64{1}, Payload: make([]byte, 300), Key: fmt.Sprint(i)})
		b.push(&raftlogtest.Push{Queues: []uint64{2}, Payload: fmt.Appendf(nil, "%d", i)})
	}
	if clean {
		b.stop()
		return b.fs.(*vfs.Mem)
	}
	return b.kill()
}

var small = withGroup(func(c *raftlog.Config) { c.SegmentBytes = 2 << 10 })

func seg(log, seq uint64) string {
	return path.Join(dataDir, "log", raftlog.LogDirName(log), segment.FileName(seq))
}

// B03: a bad record in the middle of the log is damage, wherever it is, and
// the refusal names file and byte.
func TestB03BitFlips(t *testing.T) {
	for _, clean := range []bool{false, true} {
		base := filled(t, clean)
		recs := records(t, base, 1)
		if first, last := recs[0].file, recs[len(recs)-1].file; first == last {
			t.Fatal("one file only")
		}
		for i, r := range recs {
			if i == len(recs)-2 && !clean {
				break // above every claim: torn, see below
			}
			m := base.Clone()
			must(t, m.Flip(r.file, r.pos+(r.end-r.pos)/2, 0x10))
			n, err := open(t, m, dataDir, small)
			if err == nil {
				// A sealed file below the checkpoint is not read by a start, and
				// of it readers look at messages only.
				served := len(n.messages1(1))
				n.stop()
				_, err := base.Stat(strings.TrimSuffix(r.file, ".seg") + ".idx")
				if clean && err == nil && (served < 12) == (r.rec.Kind == entry.KindAppend) {
					continue
				}
				t.Fatalf("clean=%v record %d of %d at %s pos %d: started with %d messages", clean, i, len(recs), r.file, r.pos, served)
			}
			contains(t, err.Error(), r.file, fmt.Sprintf("pos %d", r.pos), "expected", "found")
		}
	}
}

// messages1 reads until the first error.
func (n *node) messages1(queue uint64) (out []string) {
	n.g.Reader().ReadMessages(queue, queue, 0, 1<<60, func(_ uint64, _ int64, m *entry.Message) error {
		out = append(out, string(m.Payload))
		return nil
	})
	return out
}

// B03 (c): the last record, not proven durable, cut at every byte: only it is
// dropped, and the next start is clean.
func TestB03TornLastRecord(t *testing.T) {
	base := filled(t, false)
	index := lastIndex(t, base, 2)
	recs := records(t, base, 2)
	last := recs[len(recs)-1]
	first := last
	for _, r := range recs {
		if r.rec.Index == index && r.pos < first.pos {
			first = r
		}
	}
	for at := first.pos; at < last.end; at++ {
		m := base.Clone()
		truncate(t, m, last.file, at)
		n := mustOpen(t, m, dataDir, small)
		if got := n.messages(2); len(got) != 11 {
			t.Fatalf("cut at %d: %d messages, want 11", at, len(got))
		}
		if got := n.messages(1); len(got) != 12 {
			t.Fatalf("cut at %d: %d messages of the other queue, want 12", at, len(got))
		}
		n = mustOpen(t, n.kill(), dataDir, small)
		if n.report.Cut != 0 {
			t.Fatalf("cut at %d: the next start cuts again at entry %d", at, n.report.Cut)
		}
		n.gone()
	}
}

// B24: zeros, emptied and header-only files.
func TestB24PartialFiles(t *testing.T) {
	cases := map[string]struct {
		do     func(t *testing.T, m *vfs.Mem)
		refuse bool
		lost   int // messages of queue 2
	}{
		"4 MiB of zeros behind the newest file": {do: func(t *testing.T, m *vfs.Mem) {
			truncate(t, m, seg(2, 1), size(t, m, seg(2, 1))+4<<20)
		}},
		"header-only next file": {do: func(t *testing.T, m *vfs.Mem) {
			l, err := segment.Open(segment.Options{FS: m, Dir: path.Join(dataDir, "log/q2"), ID: 2})
			must(t, err)
			must(t, l.Roll())
			_, err = l.Append([]byte{9})
			must(t, err)
			must(t, l.Close())
			truncate(t, m, seg(2, 2), segment.HeaderSize)
		}},
		"empty next file": {do: func(t *testing.T, m *vfs.Mem) {
			truncate(t, m, seg(2, 1), endOf(t, m, 2)) // as a roll does first
			f, err := m.Create(seg(2, 2))
			must(t, errors.Join(err, f.Close()))
		}},
		"next file of zeros": {do: func(t *testing.T, m *vfs.Mem) {
			truncate(t, m, seg(2, 1), endOf(t, m, 2))
			f, err := m.Create(seg(2, 2))
			must(t, errors.Join(err, f.Truncate(100_000), f.Close()))
		}},
		"last 100 bytes are zeros": {lost: 1, do: func(t *testing.T, m *vfs.Mem) {
			writeAt(t, m, seg(2, 1), endOf(t, m, 2)-100, make([]byte, 100))
		}},
		"newest file of queue 2 is empty": {refuse: true, do: func(t *testing.T, m *vfs.Mem) { truncate(t, m, seg(2, 1), 0) }},
		"a rolled file is empty":          {refuse: true, do: func(t *testing.T, m *vfs.Mem) { truncate(t, m, seg(1, 2), 0) }},
		"a rolled file ends early":        {refuse: true, do: func(t *testing.T, m *vfs.Mem) { truncate(t, m, seg(1, 2), size(t, m, seg(1, 2))-1) }},
		"the middle file is gone":         {refuse: true, do: func(t *testing.T, m *vfs.Mem) { must(t, m.Remove(seg(1, 2))) }},
		"the first file is gone":          {refuse: true, do: func(t *testing.T, m *vfs.Mem) { must(t, m.Remove(seg(1, 1))) }},
		"a whole log is gone":             {refuse: true, do: func(t *testing.T, m *vfs.Mem) { must(t, m.RemoveAll(path.Join(dataDir, "log/q2"))) }},
		"a foreign directory":             {refuse: true, do: func(t *testing.T, m *vfs.Mem) { must(t, m.MkdirAll(path.Join(dataDir, "log/queue7"))) }},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			m := filled(t, false)
			c.do(t, m)
			if c.refuse {
				contains(t, refused(t, m, dataDir, small), "log/q")
				return
			}
			n := mustOpen(t, m, dataDir, small)
			if got := n.messages(2); len(got) != 12-c.lost {
				t.Errorf("%d messages, want %d", len(got), 12-c.lost)
			}
			n.push(&raftlogtest.Push{Queues: []uint64{2}, Payload: []byte("after")})
			n = mustOpen(t, n.kill(), dataDir, small)
			if got := n.messages(2); len(got) != 13-c.lost || n.report.Cut != 0 {
				t.Errorf("after a restart %d messages, cut at %d", len(got), n.report.Cut)
			}
			n.gone()
		})
	}
}

// After a clean stop everything is below the checkpoint: the claims in records
// say nothing about it any more, the footer's list of logs does (B17).
func TestB17LostAfterCleanStop(t *testing.T) {
	base := filled(t, true)
	recs := records(t, base, 2)
	last := recs[len(recs)-1]
	cases := map[string]func(t *testing.T, m *vfs.Mem){
		"the newest file is gone":     func(t *testing.T, m *vfs.Mem) { must(t, m.Remove(last.file)) },
		"the first file is gone":      func(t *testing.T, m *vfs.Mem) { must(t, m.Remove(seg(1, 1))) },
		"a log is gone":               func(t *testing.T, m *vfs.Mem) { must(t, m.RemoveAll(path.Join(dataDir, "log/q2"))) },
		"the last record is cut off":  func(t *testing.T, m *vfs.Mem) { truncate(t, m, last.file, last.pos) },
		"the last record is flipped":  func(t *testing.T, m *vfs.Mem) { must(t, m.Flip(last.file, last.end-1, 1)) },
		"the last record is half":     func(t *testing.T, m *vfs.Mem) { truncate(t, m, last.file, last.end-3) },
		"the last record is zeros":    func(t *testing.T, m *vfs.Mem) { writeAt(t, m, last.file, last.pos, make([]byte, last.end-last.pos)) },
		"the newest file is a header": func(t *testing.T, m *vfs.Mem) { truncate(t, m, last.file, segment.HeaderSize) },
	}
	for name, do := range cases {
		t.Run(name, func(t *testing.T) {
			m := base.Clone()
			do(t, m)
			contains(t, refused(t, m, dataDir, small), "log/q")
		})
	}
}

// B25: an old record behind the end of a log has a good checksum and does not
// continue it: nothing of it comes back.
func TestB25StaleRecordsBehindTheEnd(t *testing.T) {
	h := newHandmade(t, oneVoter(1))
	for i := uint64(1); i <= 5; i++ {
		h.entry(made{index: i, term: 1, queues: []uint64{1}, durable: i - 1, commit: i - 1})
	}
	h.entry(made{index: 3, term: 1, queues: []uint64{1}, salt: " of an earlier time"})
	m := h.done()
	n := mustOpen(t, m, dataDir)
	if got := n.messages(1); len(got) != 5 || strings.Contains(strings.Join(got, ""), "earlier") {
		t.Errorf("messages %q", got)
	}
	if n.report.Cut != 6 {
		t.Errorf("cut at %d, want what stands behind entry 5", n.report.Cut)
	}
	n.push(&raftlogtest.Push{Queues: []uint64{1}})
	n = mustOpen(t, n.kill(), dataDir)
	if n.report.Cut != 0 {
		t.Errorf("the next start cuts again, at %d", n.report.Cut)
	}
	n.gone()
}

// The same below a checkpoint: the machine must not hear of it, and look-ups
// must not find it.
func TestB25StaleRecordsBelowTheCheckpoint(t *testing.T) {
	h := newHandmade(t, oneVoter(1))
	for i := uint64(1); i <= 5; i++ {
		h.entry(made{index: i, term: 1, queues: []uint64{1}, durable: i - 1, commit: i - 1})
	}
	h.entry(made{index: 3, term: 1, queues: []uint64{1}, salt: " of an earlier time"})
	m := h.done()
	r, _, err := index.OpenRows(m, path.Join(dataDir, "checkpoint"), raftlogtest.New())
	must(t, err)
	must(t, r.Begin(true))
	must(t, r.Finish(index.Footer{From: 5, To: 5, FromTerm: 1, ToTerm: 1}))
	must(t, r.Close())
	n := mustOpen(t, m, dataDir)
	if len(n.m.Memory) != 5 || n.report.Cut != 6 {
		t.Errorf("%d ids remembered, cut at %d", len(n.m.Memory), n.report.Cut)
	}
	n.stop()
}

// B15: every write, sync, rename and close fails once, at each place in turn.
// What was answered is there after a restart, and nothing is answered later.
func TestB15EveryFailureEndsTheGroup(t *testing.T) {
	for _, op := range []vfs.Op{vfs.OpWrite, vfs.OpShortWrite, vfs.OpSync, vfs.OpCreate, vfs.OpRename, vfs.OpSyncDir, vfs.OpClose, vfs.OpSyncAll} {
		t.Run(op.String(), func(t *testing.T) {
			for at := 1; at < 200; at++ {
				m := vfs.NewMem(uint64(at))
				mustOpen(t, m, dataDir).stop()
				failed := m.Counts().Failed
				m.FailNth(op, at, errors.New("the disk says no"))
				answered := burst(t, m)
				reached := m.Counts().Failed > failed
				m2 := m.Crash(0.5)
				n := mustOpen(t, m2, dataDir, small)
				for q, want := range answered {
					if got := n.messages(uint64(q)); len(got) < want {
						t.Fatalf("failure %d: queue %d has %d messages, %d were answered", at, q, len(got), want)
					}
				}
				n.gone()
				if !reached {
					return
				}
			}
		})
	}
}

// burst pushes until the group fails or is done, and returns how many pushes
// were answered for each queue.
func burst(t *testing.T, m *vfs.Mem) (answered [4]int) {
	n, err := open(t, m, dataDir, small)
	if err != nil {
		return answered
	}
	for i := range 6 {
		q := 1 + i%3
		err := n.do(func(done func(error)) any {
			return &raftlogtest.Push{Queues: []uint64{uint64(q)}, Payload: make([]byte, 700), Done: func(_ []uint64, err error) { done(err) }}
		})
		if err != nil {
			// Nothing is answered after it.
			n.g.Submit(&raftlogtest.Push{Queues: []uint64{1}, Done: func(_ []uint64, err error) {
				if err == nil {
					t.Error("answered after a fatal error")
				}
			}})
			n.gone()
			return answered
		}
		answered[q]++
	}
	n.g.Stop(t.Context())
	return answered
}

// I3: an fsync that does not come back holds every answer.
func TestB04NoAnswerBeforeFsync(t *testing.T) {
	m := vfs.NewMem(2)
	n := mustOpen(t, m, dataDir)
	n.push(&raftlogtest.Push{Queues: []uint64{1}})
	release := m.HoldSync()
	done := make(chan error, 1)
	n.g.Submit(&raftlogtest.Push{Queues: []uint64{1}, Done: func(_ []uint64, err error) { done <- err }})
	m.WaitHeld(1)
	for range 5 {
		must(t, n.g.Do(func() {}))
	}
	select {
	case <-done:
		t.Fatal("answered before the fsync")
	default:
	}
	if st := n.g.Status(); st.OldestWrite <= 0 {
		t.Error("the outstanding write does not show in the status")
	}
	release()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	n.stop()
}

// B23: with a file system that forgets directory entries nothing answered is
// lost: new queues, new files, new checkpoints, over many power cuts.
func TestPowerCutsLoseNothingAnswered(t *testing.T) {
	m := vfs.NewMem(77)
	var want [6]int // answered pushes by queue
	var maybe [6]int
	for round := range 60 {
		n := mustOpen(t, m, dataDir, withGroup(func(c *raftlog.Config) {
			c.SegmentBytes, c.CheckpointBytes = 3<<10, 4<<10
		}))
		for q := 1; q < len(want); q++ {
			got := n.messages(uint64(q))
			if len(got) < want[q] || len(got) > maybe[q] {
				t.Fatalf("round %d: queue %d has %d messages, answered %d, sent %d", round, q, len(got), want[q], maybe[q])
			}
			for i, p := range got {
				if !strings.HasPrefix(p, fmt.Sprintf("%d/%d ", q, i)) {
					t.Fatalf("round %d: queue %d offset %d holds %.20q", round, q, i, p)
				}
			}
			want[q], maybe[q] = len(got), len(got)
		}
		answers := make(chan int, 100)
		sent := 0
		for i := range 5 + round%7 {
			q := 1 + (i+round)%(len(want)-1)
			at := maybe[q]
			maybe[q]++
			n.g.Submit(&raftlogtest.Push{
				Queues: []uint64{uint64(q)}, Payload: fmt.Appendf(nil, "%d/%d %s", q, at, strings.Repeat("x", 50*(i%9))), Key: fmt.Sprint(q),
				Done: func(_ []uint64, err error) {
					if err == nil {
						answers <- q
					}
				},
			})
			sent++
		}
		for range round % (sent + 1) {
			want[<-answers]++
		}
		if round%11 == 10 {
			n.stop()
			continue
		}
		left := m.Crash(float64(round%3) / 2)
		n.gone()
		for len(answers) > 0 {
			want[<-answers]++
		}
		m = left
	}
}

// A payload is in the data directory exactly once, and costs hardly more than
// its bytes.
func TestPayloadIsStoredOnce(t *testing.T) {
	clock := newClock()
	m := vfs.NewMem(1)
	n := mustOpen(t, m, dataDir, withClock(clock))
	n.push(&raftlogtest.Push{Queues: []uint64{1}})
	before := treeSize(t, m, dataDir)
	payload := make([]byte, 1<<20)
	x := uint64(1)
	for i := range payload {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		payload[i] = byte(x)
	}
	n.push(&raftlogtest.Push{Queues: []uint64{1}, Payload: payload, Touch: []uint64{2, 3}})
	n.ticks(clock, 3*time.Second)
	n.stop()
	if grown := treeSize(t, m, dataDir) - before; grown > 105<<20/100 {
		t.Errorf("the directory grew by %d bytes for one of %d", grown, len(payload))
	}
	if got := countIn(t, m, dataDir, payload); got != 1 {
		t.Errorf("the payload is there %d times", got)
	}
	n = mustOpen(t, m, dataDir, withClock(clock))
	if got := n.messages(1); got[1] != string(payload) {
		t.Error("the payload came back changed")
	}
	n.stop()
}

func walk(t testing.TB, m *vfs.Mem, dir string, fn func(name string, size int64)) {
	infos, err := m.List(dir)
	must(t, err)
	for _, i := range infos {
		name := path.Join(dir, i.Name)
		if i.Dir {
			walk(t, m, name, fn)
		} else {
			fn(name, i.Size)
		}
	}
}

func treeSize(t testing.TB, m *vfs.Mem, dir string) (n int64) {
	walk(t, m, dir, func(_ string, size int64) { n += size })
	return n
}

func countIn(t testing.TB, m *vfs.Mem, dir string, b []byte) (n int) {
	walk(t, m, dir, func(name string, _ int64) {
		data, err := vfs.ReadFile(m, name)
		must(t, err)
		n += strings.Count(string(data), string(b[1000:2000]))
	})
	return n
}

// F6: exactly one fsync for an entry that touches one log, and the commit
// index rises by one; one for each log otherwise, and one syncfs beyond eight.
func TestF6OneFsyncPerEntry(t *testing.T) {
	m := vfs.NewMem(1)
	n := mustOpen(t, m, dataDir)
	var many []uint64
	for q := uint64(1); q <= 12; q++ {
		many = append(many, q)
		n.push(&raftlogtest.Push{Queues: []uint64{q}}) // the logs are there from now on
	}
	idle := func() {
		for n.g.Status().InFlight > 0 {
			must(t, n.g.Do(func() {}))
		}
		for range 3 {
			must(t, n.g.Do(func() {}))
		}
	}
	for _, c := range []struct {
		name   string
		queues []uint64
		touch  []uint64
		syncs  int64
		all    int64
	}{
		{"no queue", nil, nil, 1, 0},
		{"one queue", []uint64{4}, nil, 1, 0},
		{"two queues", []uint64{4, 5}, nil, 2, 0},
		{"one queue, one touched", []uint64{4}, []uint64{6}, 2, 0},
		{"twelve queues", many, nil, 0, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			idle()
			before, st := m.Counts(), n.g.Status()
			for range 5 {
				n.push(&raftlogtest.Push{Queues: c.queues, Touch: c.touch, Key: "k"})
			}
			idle()
			after, st2 := m.Counts(), n.g.Status()
			if got := after.Sync - before.Sync; got != 5*c.syncs {
				t.Errorf("%d fdatasyncs for 5 entries, want %d", got, 5*c.syncs)
			}
			if got := after.SyncAll - before.SyncAll; got != 5*c.all {
				t.Errorf("%d syncfs for 5 entries, want %d", got, 5*c.all)
			}
			if got := after.SyncDir - before.SyncDir; got != 0 {
				t.Errorf("%d directory syncs", got)
			}
			if got := st2.Commit - st.Commit; got != 5 {
				t.Errorf("the commit index rose by %d", got)
			}
		})
	}
	n.stop()
}

// An entry of two logs is answered when both are synced, and not between (B14).
func TestB14NoAnswerBetweenTheCopies(t *testing.T) {
	m := vfs.NewMem(2)
	n := mustOpen(t, m, dataDir)
	n.push(&raftlogtest.Push{Queues: []uint64{1, 2}})
	for q := uint64(1); q <= 2; q++ {
		held, release := make(chan struct{}), make(chan struct{})
		var once sync.Once
		m.SetHook(func(op vfs.Op, name string) error {
			if op == vfs.OpSync && strings.Contains(name, raftlog.LogDirName(q)+"/") {
				once.Do(func() { close(held) })
				<-release
			}
			return nil
		})
		done := make(chan error, 1)
		n.g.Submit(&raftlogtest.Push{Queues: []uint64{1, 2}, Done: func(_ []uint64, err error) { done <- err }})
		<-held
		durable := n.g.Status().Durable
		for range 5 {
			must(t, n.g.Do(func() {}))
		}
		if len(done) != 0 || n.g.Status().Durable != durable {
			t.Fatalf("answered while log %d is not synced", q)
		}
		close(release)
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		m.SetHook(nil)
	}
	n.stop()
}

// After a sync that failed the kernel calls pages clean that never reached the
// disk, and the next process reads them and syncs them in vain. What nothing
// proves durable is written again by a boot, so that its own sync counts.
func TestB15BootWritesUnprovenTailsAgain(t *testing.T) {
	m := vfs.NewMem(4)
	n := mustOpen(t, m, dataDir)
	n.push(&raftlogtest.Push{Queues: []uint64{1, 2}, Payload: []byte("proven")})
	n.push(&raftlogtest.Push{Queues: []uint64{1, 2}, Payload: []byte("not proven")})
	left := n.kill()
	var written sync.Map
	left.SetHook(func(op vfs.Op, name string) error {
		if op == vfs.OpWrite {
			written.Store(name, true)
		}
		return nil
	})
	n = mustOpen(t, left, dataDir) // writes nothing to the logs of queues but this
	for _, q := range []uint64{1, 2} {
		if _, ok := written.Load(seg(q, 1)); !ok {
			t.Errorf("the end of log q%d was not written again", q)
		}
	}
	n.stop()
}
