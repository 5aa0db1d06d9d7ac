package recovery_test

import (
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"queen/internal/entry"
	"queen/internal/vfs"
	"queen/raftlog/raftlogtest"
)

// crossed is a directory with some entries of single queues and, last, one
// over the logs 1..n, killed at once: nothing proves the last one durable.
func crossed(t *testing.T, n int) (fsys *vfs.Mem, index uint64, queues []uint64) {
	t.Helper()
	for q := range n {
		queues = append(queues, uint64(1+q))
	}
	b := mustOpen(t, vfs.NewMem(3), dataDir)
	for _, q := range queues {
		b.push(&raftlogtest.Push{Queues: []uint64{q}, Payload: fmt.Appendf(nil, "before %d", q), Key: fmt.Sprint("before", q)})
	}
	b.push(&raftlogtest.Push{Queues: queues, Payload: []byte("crossed"), Key: "crossed", Value: []byte("a value")})
	fsys = b.kill()
	return fsys, lastIndex(t, fsys, queues...), queues
}

// I1: for every subset of the copies taken back, all of the entry is there
// when nothing was taken back, and nothing of it otherwise (B01).
func TestI1EverySubsetOfCopies(t *testing.T) {
	for n := 2; n <= 4; n++ {
		base, index, queues := crossed(t, n)
		for mask := range 1 << n {
			t.Run(fmt.Sprintf("n=%d taken=%04b", n, mask), func(t *testing.T) {
				m := base.Clone()
				for i, q := range queues {
					if mask&(1<<i) != 0 {
						takeBack(t, m, q, index)
					}
				}
				b := mustOpen(t, m, dataDir)
				want := 0
				if mask == 0 {
					want = 1
				}
				if _, ok := b.get("crossed"); ok != (want == 1) {
					t.Errorf("the key is there: %v", ok)
				}
				for _, q := range queues {
					if _, ok := b.get(fmt.Sprint("before", q)); !ok {
						t.Errorf("the entry before is gone from queue %d", q)
					}
					if got := b.messages(q); len(got) != 1+want {
						t.Errorf("queue %d holds %q", q, got)
					}
					if got := b.m.Next(q); got != uint64(1+want) {
						t.Errorf("queue %d: next offset %d, want %d", q, got, 1+want)
					}
				}
				if cut := b.report.Cut; (cut != 0) != (mask != 0 && mask != 1<<n-1) {
					t.Errorf("cut at %d", cut)
				}
				// After the resend it exists exactly once.
				b.push(&raftlogtest.Push{Queues: queues, Payload: []byte("crossed"), Key: "crossed"})
				b.stop()
				b = mustOpen(t, m, dataDir)
				for _, q := range queues {
					if got := b.messages(q); len(got) != 2+want {
						t.Errorf("queue %d holds %q after the resend", q, got)
					}
				}
				b.stop()
			})
		}
	}
}

// The same copy twice in one log and none in the other is still incomplete:
// logs are counted, not records (B01).
func TestI1DuplicateCopyIsOneCopy(t *testing.T) {
	h := newHandmade(t, oneVoter(1))
	h.entry(made{index: 1, term: 1})
	h.entry(made{index: 2, term: 1, queues: []uint64{1, 2}, omit: []uint64{2}})
	h.entry(made{index: 2, term: 1, queues: []uint64{1, 2}, omit: []uint64{2}})
	b := mustOpen(t, h.done(), dataDir)
	if b.report.Cut != 2 || b.m.Next(1) != 0 {
		t.Errorf("cut at %d, next offset %d", b.report.Cut, b.m.Next(1))
	}
	b.stop()
	// With the other log's copy there it is complete, and there once.
	h = newHandmade(t, oneVoter(1))
	h.entry(made{index: 1, term: 1})
	h.entry(made{index: 2, term: 1, queues: []uint64{1, 2}, omit: []uint64{2}})
	h.entry(made{index: 2, term: 1, queues: []uint64{1, 2}})
	b = mustOpen(t, h.done(), dataDir)
	if b.report.Cut != 0 || len(b.m.Applied) != 1 {
		t.Errorf("cut at %d, applied %v", b.report.Cut, b.m.Applied)
	}
	b.stop()
}

// Two copies that disagree are damage, and never a choice by term; the message
// names both places (B01, F3).
func TestI1DisagreeingCopiesAreRefused(t *testing.T) {
	for name, other := range map[string]made{
		"content": {index: 2, term: 1, queues: []uint64{1, 2}, omit: []uint64{1}, salt: " other"},
		"term":    {index: 2, term: 2, queues: []uint64{1, 2}, omit: []uint64{1}},
		"count":   {index: 2, term: 1, queues: []uint64{2}},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHandmade(t, oneVoter(2))
			h.entry(made{index: 1, term: 1})
			h.entry(made{index: 2, term: 1, queues: []uint64{1, 2}, omit: []uint64{2}})
			h.entry(other)
			contains(t, refused(t, h.done(), dataDir), "two different", "log/q1/", "log/q2/", "entry 2")
		})
	}
}

// F3: two power cuts. The first leaves entry 10 in A and not in B; the cut of
// A must be durable before another entry 10 is written, or the second power
// cut brings the old one back and takes the answered one away.
func TestF3TwoPowerCuts(t *testing.T) {
	for round := range 20 {
		b := mustOpen(t, vfs.NewMem(uint64(round)), dataDir)
		b.push(&raftlogtest.Push{Queues: []uint64{1, 2, 3}, Payload: []byte("base")})
		b.push(&raftlogtest.Push{Queues: []uint64{1, 2}, Payload: []byte("lost")})
		m := b.kill()
		index := lastIndex(t, m, 1, 2)
		takeBack(t, m, 2, index) // B's copy never reached the disk

		b = mustOpen(t, m, dataDir)
		if b.report.Cut != index {
			t.Fatalf("cut at %d, want %d", b.report.Cut, index)
		}
		// Answered entries of the same indexes that touch only C.
		for i := range 3 {
			b.push(&raftlogtest.Push{Queues: []uint64{3}, Payload: fmt.Appendf(nil, "answered %d", i)})
		}
		m = b.powerCut(0.5)
		b = mustOpen(t, m, dataDir)
		if got := b.messages(3); len(got) != 4 {
			t.Fatalf("round %d: answered messages: %q", round, got)
		}
		if got := b.messages(1); len(got) != 1 {
			t.Fatalf("round %d: what was cut came back: %q", round, got)
		}
		b.stop()
	}
}

// A cut that a crash interrupts is finished by the next boot before it judges
// anything (F3, I5): the file system dies at every call of the cut in turn.
func TestF3InterruptedCutIsFinished(t *testing.T) {
	base, index, queues := crossed(t, 3)
	takeBack(t, base, 2, index)
	for at := 1; ; at++ {
		m := base.Clone()
		var cut struct { // the log writer makes calls, too, once the cut is over
			sync.Mutex
			calls int
			died  *vfs.Mem
		}
		m.SetHook(func(op vfs.Op, name string) error {
			switch op {
			case vfs.OpWrite, vfs.OpSync, vfs.OpTruncate, vfs.OpRemove, vfs.OpRename, vfs.OpSyncDir, vfs.OpSyncAll, vfs.OpCreate:
			default:
				return nil
			}
			cut.Lock()
			defer cut.Unlock()
			if cut.calls++; cut.calls == at {
				cut.died = m.Crash(0.5)
			}
			return nil
		})
		b, err := open(t, m, dataDir)
		cut.Lock()
		died := cut.died
		cut.calls = max(cut.calls, at) // what comes after the start is not of the cut
		cut.Unlock()
		if died == nil {
			if err != nil {
				t.Fatal(err)
			}
			b.stop()
			if at < 10 {
				t.Fatalf("only %d calls were seen", at)
			}
			return
		}
		if err == nil {
			b.gone()
		}
		b = mustOpen(t, died, dataDir)
		for _, q := range queues {
			if got := b.messages(q); len(got) != 1 {
				t.Fatalf("crash at call %d: queue %d holds %q", at, q, got)
			}
		}
		b.push(&raftlogtest.Push{Queues: queues, Payload: []byte("again")})
		b.stop()
	}
}

// F4, too little: entries in flight together prove nothing of each other, so
// the quiet second writes a pad; from then on damage is told from a torn tail.
func TestF4QuietSecondProvesTheLastEntries(t *testing.T) {
	for _, quiet := range []bool{false, true} {
		t.Run(fmt.Sprint("quiet=", quiet), func(t *testing.T) {
			clock := newClock()
			b := mustOpen(t, vfs.NewMem(9), dataDir, withClock(clock))
			b.push(&raftlogtest.Push{Queues: []uint64{7}, Payload: []byte("first")})
			b.push(&raftlogtest.Push{Queues: []uint64{7}, Payload: []byte("second")})
			if quiet {
				waitFor(t, func() bool {
					b.ticks(clock, 200*time.Millisecond)
					for _, r := range records(t, b.fs, 0) {
						if r.rec.Kind == entry.KindPad {
							return true
						}
					}
					return false
				})
			}
			m := b.kill()
			recs := records(t, m, 7)
			last := recs[len(recs)-1]
			must(t, m.Flip(last.file, last.pos+20, 1))
			if quiet {
				contains(t, refused(t, m, dataDir), last.file, fmt.Sprint("pos ", last.pos), "durable", "expected", "found")
				return
			}
			b = mustOpen(t, m, dataDir)
			if b.report.Cut == 0 || b.report.CutSeen != 1 {
				t.Errorf("report %+v: one entry could have been answered", b.report)
			}
			if got := b.messages(7); len(got) != 1 {
				t.Errorf("messages %q", got)
			}
			b.stop()
		})
	}
}

// F4, too much: a cut that was interrupted leaves records that prove what was
// taken away; they go with the cut, and nothing is refused.
func TestF4CutLowersTheDurableIndex(t *testing.T) {
	h := newHandmade(t, threeVoters(3))
	h.entry(made{index: 1, term: 1})
	h.entry(made{index: 2, term: 1, queues: []uint64{1, 2}, durable: 1, omit: []uint64{1}}) // cut from 1 already
	h.entry(made{index: 3, term: 1, queues: []uint64{2}, durable: 2})
	st := threeVoters(3)
	st.Cut = 2
	h.state(st)
	m := h.done()
	b := mustOpen(t, m, dataDir)
	if got := len(records(t, m, 2)); got != 0 {
		t.Errorf("log 2 still holds %d records", got)
	}
	b.stop()
	// Without the mark the same directory is damaged: entry 2 was durable.
	h = newHandmade(t, threeVoters(3))
	h.entry(made{index: 1, term: 1})
	h.entry(made{index: 2, term: 1, queues: []uint64{1, 2}, durable: 1, omit: []uint64{1}})
	h.entry(made{index: 3, term: 1, queues: []uint64{2}, durable: 2})
	contains(t, refused(t, h.done(), dataDir), "entry 2", "1 of 2 copies", "proves durable")
}

// A claim in one log proves an entry of another.
func TestI2ClaimInAnotherLog(t *testing.T) {
	h := newHandmade(t, oneVoter(1))
	h.entry(made{index: 1, term: 1})
	h.entry(made{index: 2, term: 1, queues: []uint64{1}, durable: 1})
	h.entry(made{index: 3, term: 1, queues: []uint64{2}, durable: 2})
	m := h.done()
	recs := records(t, m, 1)
	must(t, m.Flip(recs[0].file, recs[0].pos+30, 4))
	contains(t, refused(t, m, dataDir), recs[0].file, fmt.Sprint("pos ", recs[0].pos), "log/q2/", "record xxhash64")
}

// waitFor polls for something that a background goroutine is about to do.
func waitFor(t testing.TB, fn func() bool) {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for !fn() {
		if time.Now().After(deadline) {
			t.Fatal("it does not happen")
		}
		runtime.Gosched()
	}
}
