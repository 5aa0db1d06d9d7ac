package retention

import (
	"errors"
	"flag"
	"fmt"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"queen/fsm"
	"queen/internal/entry"
	"queen/internal/vfs"
	"queen/raftlog"
	"queen/recovery"
)

// every is the distance between the calls that TestReclaimCrashedAtEveryCall crashes at; `make reclaim-crash` takes each.
var every = flag.Int("every", 0, "crash at every n-th call of a reclaim; 0: at some")

func sample() int {
	switch {
	case *every > 0:
		return *every
	case testing.Short():
		return 41
	}
	return 7
}

// worn is a data directory with work for every kind of reclaim, of which none was done, because no checkpoint was taken:
// files to remove (a), to rewrite (b, with a dead letter and a timer that keep values) and to merge (c), the log of a
// deleted queue (d), and the system log.
func worn(t testing.TB, shards int) *rig {
	r := newRig(t, shards)
	r.stop()
	r.group = func(c *raftlog.Config) { c.CheckpointInterval = 10_000 * time.Hour }
	r.start()
	r.configure("a", retentionOn, number("retentionSeconds", 3000), number("dedupWindowSeconds", 60))
	r.configure("b", retentionOn, number("completedRetentionSeconds", 100), number("dedupWindowSeconds", 60))
	r.configure("c", retentionOn, number("completedRetentionSeconds", 100), number("dedupWindowSeconds", 60))
	r.push("b", "p0", "poison", "poison "+text)
	pop := &fsm.Pop{Queue: "b", Partition: "p0", Group: "g", Batch: 1, Partitions: 1, LeaseID: r.id()}
	r.call(pop)
	ack := &fsm.Ack{Items: []fsm.AckItem{{Txn: []byte("poison"), TxnHash: hash("poison"), PartitionID: pop.Claims[0].PartitionID, Group: "g", Status: fsm.DeadLetter}}}
	r.call(ack)
	if !ack.Items[0].DLQ {
		t.Fatalf("not filed: %+v", ack.Items[0])
	}
	m := entry.Message{ID: r.id(), Txn: []byte("timer"), Payload: []byte("timer " + text)}
	r.call(&fsm.Timers{Ops: []fsm.TimerOp{{Queue: "b", Partition: "p9", Key: "t", DelayMs: 90 * 86400_000, Txn: m.Txn, MessageID: m.ID, Message: entry.AppendMessage(nil, &m)}}})
	for i := range 240 {
		for _, queue := range []string{"a", "b", "c", "d"} {
			part := fmt.Sprint("p", i%4)
			if queue == "c" {
				part = fmt.Sprint("p", i%24)
			}
			r.push(queue, part, fmt.Sprint("old", i), fmt.Sprint("old", i, text))
		}
	}
	r.call(&fsm.DeleteQueue{Queue: "d"})
	for _, queue := range []string{"b", "c"} {
		for i := 1; i < 24; i++ {
			pop := &fsm.Pop{Queue: queue, Partition: fmt.Sprint("p", i), Group: "g", Batch: 1000, Partitions: 1, CommitOnDelivery: true, LeaseID: r.id()}
			r.call(pop)
			r.call(&fsm.Delivered{Claims: pop.Claims})
		}
	}
	r.advance(3100 * time.Second)
	for i := range 8 {
		for _, queue := range []string{"a", "b", "c"} {
			r.push(queue, fmt.Sprint("p", i%4), fmt.Sprint("new", i), fmt.Sprint("new", i, text))
		}
	}
	r.settle()
	r.fs = r.fs.Kill()
	r.gone()
	r.group = nil
	return r
}

// holds lists everything that must be there: messages, dead letters and timers with their payloads.
func (r *rig) holds() (out []string) {
	r.t.Helper()
	type part struct {
		queue, id, from, next uint64
		name                  string
	}
	var parts []part
	var letters []fsm.DeadLetterInfo
	var timers []fsm.TimerInfo
	r.call(&fsm.Read{Do: func(s *fsm.State) {
		queues, more := s.Queues(tenant, "", 100)
		for _, q := range queues {
			ps, rest := s.Partitions(tenant, q.Name, 0, 1000)
			more = more || rest
			for _, p := range ps {
				parts = append(parts, part{q.ID, p.ID, p.LogStart, p.Next, q.Name + "/" + p.Name})
			}
		}
		if letters, _ = s.DeadLetters(tenant, &fsm.DeadLetterFilter{Limit: 100}); more {
			r.t.Error("the listings were cut")
		}
		timers, _ = s.ListTimers(tenant, "b", "", 100)
	}})
	for _, p := range parts {
		got := r.read(p.queue, p.id, 0, p.next)
		if uint64(len(got)) < p.next-p.from {
			r.t.Errorf("%s: %d messages of offsets %d to %d", p.name, len(got), p.from, p.next)
		}
		for _, m := range got[len(got)-int(p.next-p.from):] {
			out = append(out, p.name+" "+m)
		}
	}
	value := func(what string, id, queue uint64, inline []byte) {
		data := inline
		if id != 0 {
			var err error
			if data, err = r.b.Reader().Value(id, queue); err != nil {
				r.t.Errorf("%s: %v", what, err)
			}
		}
		m, _, err := entry.NextMessage(data)
		if err != nil {
			r.t.Errorf("%s: %v", what, err)
		}
		out = append(out, what+" "+string(m.Payload))
	}
	for _, l := range letters {
		value("letter", l.ContentID, l.ContentQueue, l.Content)
	}
	for _, x := range timers {
		value("timer", x.ValueID, 0, x.Message)
	}
	return out
}

func TestReclaimDoesEveryKind(t *testing.T) {
	for _, shards := range []int{0, 2} {
		t.Run(fmt.Sprint("shards=", shards), func(t *testing.T) {
			r := worn(t, shards)
			r.start()
			want := r.holds()
			if len(want) < 90 || !slices.ContainsFunc(want, func(s string) bool { return strings.HasPrefix(s, "letter poison") }) ||
				!slices.ContainsFunc(want, func(s string) bool { return strings.HasPrefix(s, "timer timer") }) {
				t.Fatalf("only %d: %.30q", len(want), want)
			}
			_, full := r.disk()
			r.reclaim()
			files, bytes := r.disk()
			c := r.b.Reclaimed()
			t.Logf("%d bytes of %d left, freed %d in %d files; rewrites %d, merges %d, logs %d: %v", bytes, full, c.Bytes.Load(), c.Files.Load(), c.Rewrites.Load(), c.Merges.Load(), c.Logs.Load(), files)
			if bytes > full/2 || c.Files.Load() == 0 || c.Rewrites.Load() == 0 || c.Merges.Load() == 0 && shards == 0 || c.Logs.Load() != int64(1-min(shards, 1)) || c.Failures.Load() != 0 {
				t.Error("not every kind was done")
			}
			if got := r.holds(); !slices.Equal(got, want) {
				t.Errorf("after reclaim:\n%.40q\nbefore:\n%.40q", got, want)
			}
			digest := r.digest()
			r.powerCut()
			if got := r.holds(); !slices.Equal(got, want) {
				t.Errorf("after a power cut:\n%.40q\nbefore:\n%.40q", got, want)
			}
			if got := r.digest(); got != digest {
				t.Errorf("digest %x, before the power cut %x", got, digest)
			}
			r.stop()
		})
	}
}

// A checkpoint that was lost is what a refusal names, and not only the files that were rightly freed since an older one.
func TestLostCheckpointIsNamed(t *testing.T) {
	r := worn(t, 0)
	r.start()
	r.checkpoint()
	old := contents(t, r.fs, "data/checkpoint") // with more in it than any later one
	r.reclaim()
	r.stop()
	for name, lose := range map[string]func(fs *vfs.Mem) error{
		"removed": func(fs *vfs.Mem) error { return fs.RemoveAll("data/checkpoint") },
		"emptied": func(fs *vfs.Mem) error { return overwrite(fs, contents(t, fs, "data/checkpoint"), 0) },
		"no row":  func(fs *vfs.Mem) error { return overwrite(fs, contents(t, fs, "data/checkpoint"), 100) },
		"an older": func(fs *vfs.Mem) error {
			return errors.Join(fs.RemoveAll("data/checkpoint"), overwrite(fs, old, 1<<30))
		},
	} {
		t.Run(name, func(t *testing.T) {
			lost := &rig{t: t, fs: r.fs.Clone(), clock: r.clock}
			if err := lose(lost.fs); err != nil {
				t.Fatal(err)
			}
			if err := lost.open(); !errors.Is(err, recovery.ErrRefused) || !strings.Contains(err.Error(), "data/checkpoint") {
				t.Errorf("want a refusal that names the checkpoint, have %v", err)
			}
		})
	}
}

// contents reads the files of a directory.
func contents(t *testing.T, fs *vfs.Mem, dir string) map[string][]byte {
	t.Helper()
	infos, err := fs.List(dir)
	if err != nil {
		t.Fatal(err)
	}
	files := make(map[string][]byte)
	for _, i := range infos {
		name := path.Join(dir, i.Name)
		if files[name], err = vfs.ReadFile(fs, name); err != nil {
			t.Fatal(err)
		}
	}
	return files
}

// overwrite writes files anew, with at most n bytes each.
func overwrite(fs *vfs.Mem, files map[string][]byte, n int) error {
	for name, b := range files {
		if err := fs.MkdirAll(path.Dir(name)); err != nil {
			return err
		}
		f, err := fs.Create(name)
		if err != nil {
			return err
		}
		_, err = f.WriteAt(b[:min(n, len(b))], 0)
		if err := errors.Join(err, f.Sync(), f.Close(), fs.SyncDir(path.Dir(name)), fs.SyncDir("data")); err != nil {
			return err
		}
	}
	return nil
}

// ofReclaim tells whether a call is one that reclaim makes.
func ofReclaim(op vfs.Op, name string) bool {
	switch op {
	case vfs.OpCreate, vfs.OpWrite, vfs.OpSync, vfs.OpRename:
		return strings.HasSuffix(name, ".tmp") && strings.HasPrefix(name, "data/log") || strings.HasSuffix(name, ".removed")
	case vfs.OpRemove, vfs.OpRemoveAll:
		return strings.HasPrefix(name, "data/log")
	case vfs.OpSyncDir:
		return strings.HasPrefix(name, "data/log")
	}
	return false
}

// F10, I4, I6: a power cut at every call of a reclaim. Everything is there after it, the next boot refuses nothing,
// what it reads is the state that was, and the reclaim is done in the end.
func TestReclaimCrashedAtEveryCall(t *testing.T) {
	for _, shards := range []int{0, 2} {
		t.Run(fmt.Sprint("shards=", shards), func(t *testing.T) { crashEverywhere(t, shards) })
	}
}

func crashEverywhere(t *testing.T, shards int) {
	base := worn(t, shards)
	image, passed, seq := base.fs, base.clock.passed, base.seq
	base.fs = image.Clone()
	base.start()
	want := base.holds()
	base.stop()
	for at := 1; ; at += sample() {
		r := &rig{t: t, fs: image.Clone(), clock: newClock(), shards: shards, seq: seq}
		r.clock.passed = passed
		var run struct {
			sync.Mutex
			calls int
			died  *vfs.Mem
		}
		fs := r.fs
		fs.SetHook(func(op vfs.Op, name string) error {
			if !ofReclaim(op, name) {
				return nil
			}
			run.Lock()
			defer run.Unlock()
			if run.calls++; run.calls == at {
				run.died = fs.Crash([]float64{0, 0.5, 1}[at%3])
			}
			return nil
		})
		digests := r.reclaimUntilDead(func() bool { run.Lock(); defer run.Unlock(); return run.died != nil })
		run.Lock()
		died := run.died
		run.calls = max(run.calls, at) // what comes after that is not counted
		run.Unlock()
		if died == nil {
			r.stop()
			if at < 300 {
				t.Fatalf("only %d calls were seen", at)
			}
			t.Logf("%d calls, a crash at every %d.", at-1, sample())
			return
		}
		if r.b != nil {
			r.gone()
		}
		r.fs, r.t = died, named{t, fmt.Sprintf("crash at call %d", at)}
		r.start()
		if got := r.holds(); !slices.Equal(got, want) {
			t.Fatalf("crash at call %d:\n%.40q\nbefore:\n%.40q", at, got, want)
		}
		if d := r.digest(); len(digests) > 0 && !slices.Contains(digests, d) {
			t.Fatalf("crash at call %d: digest %x is none of the states before: %x", at, d, digests)
		}
		r.reclaim()
		if got := r.holds(); !slices.Equal(got, want) {
			t.Fatalf("crash at call %d, and the reclaim after it:\n%.40q\nbefore:\n%.40q", at, got, want)
		}
		if _, bytes := r.disk(); bytes > 220<<10 {
			files, _ := r.disk()
			t.Fatalf("crash at call %d: %d bytes are left at the end: %v", at, bytes, files)
		}
		r.stop()
	}
}

// named adds to the failures of a test where they came from.
type named struct {
	testing.TB
	where string
}

func (n named) Fatal(args ...any) {
	n.TB.Helper()
	n.TB.Fatal(append([]any{n.where + ":"}, args...)...)
}
func (n named) Fatalf(format string, args ...any) {
	n.TB.Helper()
	n.TB.Fatalf(n.where+": "+format, args...)
}
func (n named) Errorf(format string, args ...any) {
	n.TB.Helper()
	n.TB.Errorf(n.where+": "+format, args...)
}
