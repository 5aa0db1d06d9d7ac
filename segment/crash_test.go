package segment

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"queen/internal/vfs"
)

// book is what a test knows about a log: every record appended so far in
// order, and how many of them a Sync has promised. The records above that are
// "maybe": a crash may keep or lose them, but only from the end.
type book struct {
	records []written
	acked   int
	serial  byte
}

type written struct {
	ref  Ref
	body []byte
}

func (b *book) append(l *Log, size int) error {
	b.serial++
	body := bytes.Repeat([]byte{b.serial}, size)
	ref, err := l.Append(body)
	if err == nil {
		b.records = append(b.records, written{ref, body})
	}
	return err
}

// recovered reads the log back after a crash. lossy says that unsynced writes
// may be gone, so that a torn end is in order. It cuts the end and returns how
// many records are there.
func (b *book) recovered(l *Log, lossy bool) (int, error) {
	n := 0
	segments := l.Segments()
	for i, info := range segments {
		end, err := l.Scan(info.Seq, 0, func(pos int64, body []byte) error {
			if n == len(b.records) {
				return fmt.Errorf("file %d pos %d: a record that nobody wrote", info.Seq, pos)
			}
			want := b.records[n]
			if (want.ref != Ref{info.Seq, pos, uint32(len(body))}) || !bytes.Equal(want.body, body) {
				return fmt.Errorf("file %d pos %d: found %d bytes of %d, want %v with %d", info.Seq, pos, len(body), body[0], want.ref, want.body[0])
			}
			n++
			return nil
		})
		newest := i == len(segments)-1
		var torn *TornError
		if err != nil && !(errors.As(err, &torn) && newest && lossy) {
			return n, err
		}
		if torn == nil && end < info.Size && !newest { // in the newest file it is prepared space
			return n, fmt.Errorf("file %d: zeros from %d to %d", info.Seq, end, info.Size)
		}
		if torn != nil {
			if err := l.Truncate(info.Seq, end); err != nil {
				return n, err
			}
		}
	}
	if n < b.acked {
		return n, fmt.Errorf("%d records are there, %d were promised", n, b.acked)
	}
	return n, nil
}

// readAll reads every record by its place.
func (b *book) readAll(l *Log) error {
	for _, w := range b.records {
		got, err := l.Read(w.ref, nil)
		if err != nil || !bytes.Equal(got, w.body) {
			return fmt.Errorf("read %v: %d bytes, %w", w.ref, len(got), err)
		}
	}
	return nil
}

// TestCrashes drives a log with everything that it can do, and with power
// cuts, kills and failing calls in between, beside the book.
func TestCrashes(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		fsys := vfs.NewMem(rapid.Uint64().Draw(rt, "seed"))
		segmentBytes := rapid.SampledFrom([]int64{100, 300, 1000}).Draw(rt, "segment bytes")
		b := &book{}
		var l *Log
		check := func(err error) {
			if err != nil {
				rt.Fatal(err)
			}
		}
		open := func() {
			var err error
			l, err = Open(Options{FS: fsys, Dir: "a/b/q1", ID: 1, SegmentBytes: segmentBytes, Files: NewFileCache(4)})
			check(err)
		}
		restart := func(lossy bool) {
			open()
			n, err := b.recovered(l, lossy)
			check(err)
			b.records = b.records[:n]
			b.acked = min(b.acked, n)
		}
		check(errors.Join(fsys.MkdirAll("a/b"), fsys.SyncAll("/")))
		open()
		rt.Repeat(map[string]func(*rapid.T){
			"append": func(rt *rapid.T) {
				for range rapid.IntRange(1, 4).Draw(rt, "n") {
					check(b.append(l, rapid.IntRange(1, 200).Draw(rt, "size")))
				}
			},
			"flush": func(*rapid.T) { check(l.Flush()) },
			"sync": func(*rapid.T) {
				check(l.Sync())
				b.acked = len(b.records)
				if l.Dirty() {
					rt.Fatal("dirty after a sync")
				}
			},
			"syncfs": func(*rapid.T) {
				check(l.Flush())
				check(fsys.SyncAll("/"))
				check(l.SyncedByFS())
				b.acked = len(b.records)
			},
			"roll": func(*rapid.T) {
				check(l.Roll())
				b.acked = len(b.records)
			},
			"park": func(*rapid.T) { check(l.Park()) },
			"cut": func(rt *rapid.T) {
				if len(b.records) == 0 {
					return
				}
				n := rapid.IntRange(0, len(b.records)-1).Draw(rt, "keep")
				check(l.Truncate(b.records[n].ref.Seq, b.records[n].ref.Pos))
				b.records = b.records[:n]
				b.acked = n
				check(b.readAll(l))
			},
			"close": func(*rapid.T) {
				check(l.Close())
				b.acked = len(b.records)
				restart(false)
			},
			"kill": func(rt *rapid.T) {
				buffered := len(b.records)
				if rapid.Bool().Draw(rt, "flush") {
					check(l.Flush())
				}
				fsys = fsys.Kill()
				restart(false)
				if len(b.records) > buffered {
					rt.Fatal("more records than before")
				}
			},
			"crash": func(rt *rapid.T) {
				fsys = fsys.Crash(rapid.SampledFrom([]float64{0, 0.3, 0.7, 1}).Draw(rt, "keep"))
				restart(true)
			},
			"fail": func(rt *rapid.T) {
				injected := errors.New("injected")
				fsys.FailNth(vfs.OpAny, rapid.IntRange(1, 12).Draw(rt, "n"), injected)
				for range 4 {
					if err := b.append(l, 50); err != nil {
						break
					}
					if err := l.Sync(); err != nil {
						break
					}
					b.acked = len(b.records)
				}
				fsys = fsys.Crash(rapid.SampledFrom([]float64{0, 0.5, 1}).Draw(rt, "keep"))
				restart(true)
			},
			"": func(rt *rapid.T) {
				if l.Dirty() && len(b.records) > 0 {
					check(l.Flush())
				}
				check(b.readAll(l))
			},
		})
	})
}

// TestEveryCallFails runs one history over and over, the n-th call failing,
// until nothing fails any more. After a failed write or sync the log refuses
// everything; what was promised is there after a crash, whatever it keeps.
func TestEveryCallFails(t *testing.T) {
	t.Parallel()
	injected := errors.New("injected")
	for _, op := range []vfs.Op{vfs.OpAny, vfs.OpShortWrite} {
		failed := true
		for n := 1; failed; n++ {
			for _, keep := range []float64{0, 0.5, 1} {
				fsys := vfs.NewMem(uint64(n))
				fsys.FailNth(op, n, injected)
				b := &book{}
				err := runHistory(fsys, b)
				failed = fsys.Counts().Failed > 0
				if failed != errors.Is(err, injected) {
					t.Fatalf("%v call %d failed: %v, the history ended with %v", op, n, failed, err)
				}
				l := openMem(t, fsys.Crash(keep), 300)
				if _, err := b.recovered(l, true); err != nil {
					t.Fatalf("%v call %d, keep %v: %v", op, n, keep, err)
				}
			}
		}
	}
}

// runHistory appends, rolls, cuts and closes. After an error it checks that
// the log takes nothing more, and returns the error.
func runHistory(fsys *vfs.Mem, b *book) error {
	l, err := Open(Options{FS: fsys, Dir: "data/log/q7", ID: 7, SegmentBytes: 300})
	if err != nil {
		return err
	}
	steps := []func() error{
		func() error { return b.append(l, 40) },
		func() error { return b.append(l, 50) },
		l.Sync,
		func() error { return b.append(l, 150) },
		l.Flush,
		func() error { return b.append(l, 60) }, // rolls
		l.Sync,
		l.Park,
		func() error { return b.append(l, 70) },
		l.Sync,
		func() error { return b.append(l, 80) },
		l.Roll,
		func() error { return b.append(l, 90) },
		l.Sync,
		func() error {
			ref := b.records[4].ref
			// Until it returns the cut may or may not be in effect.
			b.acked = 4
			if err := l.Truncate(ref.Seq, ref.Pos); err != nil {
				return err
			}
			b.records = b.records[:4]
			return nil
		},
		func() error { return b.append(l, 100) },
		l.Close,
	}
	for i, step := range steps {
		if err := step(); err != nil {
			return errors.Join(err, refusesAll(l, err))
		}
		if i == 2 || i == 6 || i == 9 || i == 11 || i == 13 || i == 16 {
			b.acked = len(b.records)
		}
	}
	return nil
}

func refusesAll(l *Log, cause error) error {
	_, appendErr := l.Append([]byte("x"))
	if appendErr == nil && l.Flush() == nil && l.Sync() == nil {
		return fmt.Errorf("the log went on after: %w", cause)
	}
	return nil
}

// TestRecordsAfterAnUnsyncedHole: of two unsynced flushes the second may
// survive alone. The scan says so, and where to read on; it does not decide.
func TestRecordsAfterAnUnsyncedHole(t *testing.T) {
	t.Parallel()
	for seed := range uint64(200) {
		fsys := vfs.NewMem(seed)
		l := openMem(t, fsys, 0)
		first, _ := l.Append([]byte("promised"))
		if err := l.Sync(); err != nil {
			t.Fatal(err)
		}
		lost, _ := l.Append(bytes.Repeat([]byte("lost"), 100))
		if err := l.Flush(); err != nil {
			t.Fatal(err)
		}
		kept, _ := l.Append([]byte("kept"))
		if _, err := l.Append([]byte("too")); err != nil {
			t.Fatal(err)
		}
		if err := l.Flush(); err != nil {
			t.Fatal(err)
		}
		l = openMem(t, fsys.Crash(0.5), 0)
		end, err := l.Scan(first.Seq, 0, nil)
		var torn *TornError
		if !errors.As(err, &torn) || torn.RecordsAfter != 2 {
			continue // another outcome
		}
		if end != lost.Pos || torn.Pos != lost.Pos || torn.NextPos != kept.Pos {
			t.Fatalf("seed %d: %+v", seed, torn)
		}
		var after []string
		if _, err := l.Scan(first.Seq, torn.NextPos, func(_ int64, body []byte) error {
			after = append(after, string(body))
			return nil
		}); err != nil || !slices.Equal(after, []string{"kept", "too"}) {
			t.Fatalf("seed %d: %q, %v", seed, after, err)
		}
		return
	}
	t.Fatal("no seed kept the second flush alone")
}

// TestKilledThenPowerCut: a process is killed between its write and its sync,
// the next one reads the records, and the power fails. What the second process
// synced before it promised them is there, without a byte having been appended.
func TestKilledThenPowerCut(t *testing.T) {
	t.Parallel()
	fsys := vfs.NewMem(1)
	if err := errors.Join(fsys.MkdirAll("data/log"), fsys.SyncAll("/")); err != nil {
		t.Fatal(err)
	}
	l := openMem(t, fsys, 0)
	ref, err := l.Append([]byte("found"))
	if err != nil || l.Flush() != nil {
		t.Fatal(err)
	}
	fsys = fsys.Kill()
	l = openMem(t, fsys, 0)
	if !l.Dirty() {
		t.Fatal("a log that was just opened must count as dirty")
	}
	if err := l.Sync(); err != nil {
		t.Fatal(err)
	}
	l = openMem(t, fsys.Crash(0), 0)
	if body, err := l.Read(ref, nil); err != nil || string(body) != "found" {
		t.Fatalf("%q, %v", body, err)
	}
}

// TestCutIsDoneOrNotBegun: a crash at any call of a Truncate leaves a log that
// ends somewhere between the cut and its old end, without a hole.
func TestCutIsDoneOrNotBegun(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(1, 2))
	for at := 1; ; at++ {
		fsys := vfs.NewMem(uint64(at))
		b := &book{}
		l := openMem(t, fsys, 200)
		for range 30 {
			if err := b.append(l, 1+rng.IntN(100)); err != nil {
				t.Fatal(err)
			}
		}
		if err := l.Sync(); err != nil {
			t.Fatal(err)
		}
		keep := rng.IntN(30)
		var after *vfs.Mem
		calls := 0
		fsys.SetHook(func(vfs.Op, string) error {
			if calls++; calls == at {
				after = fsys.Crash(0.5)
			}
			return nil
		})
		err := l.Truncate(b.records[keep].ref.Seq, b.records[keep].ref.Pos)
		if after == nil {
			if err != nil {
				t.Fatal(err)
			}
			return
		}
		b.acked = keep
		if _, err := b.recovered(openMem(t, after, 200), false); err != nil {
			t.Fatalf("crash at call %d: %v", at, err)
		}
	}
}

// TestRemoveIsWholeOrNot: a crash in Remove leaves all of the log or none.
func TestRemoveIsWholeOrNot(t *testing.T) {
	t.Parallel()
	for at := 1; ; at++ {
		fsys := vfs.NewMem(uint64(at))
		b := &book{}
		l := openMem(t, fsys, 100)
		for range 10 {
			if err := b.append(l, 50); err != nil {
				t.Fatal(err)
			}
		}
		if err := l.Sync(); err != nil {
			t.Fatal(err)
		}
		var after *vfs.Mem
		calls := 0
		fsys.SetHook(func(vfs.Op, string) error {
			if calls++; calls == at {
				after = fsys.Crash(0.5)
			}
			return nil
		})
		err := l.Remove()
		fsys.SetHook(nil)
		if after == nil {
			if err != nil {
				t.Fatal(err)
			}
			if left, err := fsys.List("data/log"); err != nil || len(left) != 0 {
				t.Fatalf("%v, %v", left, err)
			}
			return
		}
		l = openMem(t, after, 100)
		if len(l.Segments()) == 0 {
			continue
		}
		b.acked = len(b.records)
		if _, err := b.recovered(l, false); err != nil {
			t.Fatalf("crash at call %d: %v", at, err)
		}
	}
}
