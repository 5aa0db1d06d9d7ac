package recovery_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"path"
	"strings"
	"sync"
	"testing"

	"queen/internal/entry"
	"queen/internal/vfs"
	"queen/raftlog"
	"queen/raftlog/raftlogtest"
	"queen/recovery"
	"queen/segment"
)

// damaged is a killed directory for the damage tests: three queues in small
// files, a checkpoint in the middle, entries over one and several logs.
var damaged = sync.OnceValue(func() *vfs.Mem {
	t := new(quietTB)
	n := mustOpen(t, vfs.NewMem(5), dataDir, small)
	for i := range 24 {
		if i == 10 {
			n.stop()
			n = mustOpen(t, n.fs, dataDir, small)
		}
		var queues []uint64
		for q := range uint64(3) {
			if i%4 == int(q) || i%4 == 3 {
				queues = append(queues, 1+q)
			}
		}
		n.push(&raftlogtest.Push{Queues: queues, Payload: fmt.Appendf(nil, "%d %s", i, strings.Repeat("x", 40*(i%5))), Key: fmt.Sprint(i)})
	}
	return n.kill()
})

// quietTB stands in for a test where a directory is made once for several.
type quietTB struct{ testing.TB }

func (*quietTB) Helper()                   {}
func (*quietTB) Fatal(args ...any)         { panic(fmt.Sprint(args...)) }
func (*quietTB) Fatalf(f string, a ...any) { panic(fmt.Sprintf(f, a...)) }

// filesOf lists all files of a directory tree.
func filesOf(t testing.TB, m *vfs.Mem) (out []string) {
	walk(t, m, dataDir, func(name string, _ int64) {
		if path.Base(name) != "LOCK" {
			out = append(out, name)
		}
	})
	return out
}

// FuzzDamagedDirectory damages a directory in a few places: a start refuses
// and says where, or it starts with a prefix of what was written that reaches
// everything that the readable records prove durable. It never starts with a
// hole, and never panics.
func FuzzDamagedDirectory(f *testing.F) {
	f.Add(uint64(1))
	f.Fuzz(func(t *testing.T, seed uint64) { damageAndStart(t, seed) })
}

func TestDamagedDirectories(t *testing.T) {
	rounds := uint64(400)
	if testing.Short() {
		rounds = 50
	}
	refusals := 0
	for seed := range rounds {
		if damageAndStart(t, seed) {
			refusals++
		}
	}
	if refusals == 0 || refusals == int(rounds) {
		t.Errorf("%d of %d directories were refused", refusals, rounds)
	}
}

func damageAndStart(t *testing.T, seed uint64) (refused bool) {
	m := damaged().Clone()
	rng := rand.New(rand.NewPCG(seed, 1))
	files := filesOf(t, m)
	what := ""
	for range 1 + rng.IntN(3) {
		what += damage(t, m, files[rng.IntN(len(files))], rng) + "; "
	}
	before := m.Clone()
	n, err := open(t, m, dataDir, small)
	if err != nil {
		if !errors.Is(err, recovery.ErrRefused) && !errors.Is(err, recovery.ErrNewerFormat) {
			t.Fatalf("seed %d: %s\nneither a start nor a refusal: %v", seed, what, err)
		}
		return true
	}
	defer n.gone()
	sent := make(map[uint64]int)
	for q := range uint64(3) {
		next := n.m.Next(1 + q)
		for i, p := range n.messages1(1 + q) {
			if uint64(i) >= next {
				t.Fatalf("seed %d: %s\nqueue %d has messages beyond its next offset %d: %.20q", seed, what, 1+q, next, p)
			}
		}
		sent[1+q] = int(next)
	}
	// The state is that after some number of pushes.
	for count := 0; ; count++ {
		var at [3]int
		for i := range count {
			for q := range at {
				if i%4 == q || i%4 == 3 {
					at[q]++
				}
			}
		}
		if at[0] == sent[1] && at[1] == sent[2] && at[2] == sent[3] {
			break
		}
		if count > 24 {
			t.Fatalf("seed %d: %s\nstarted with a state that never was: next offsets %v", seed, what, sent)
		}
	}
	for q := range uint64(4) {
		if c := claimsIn(t, before, q); c > n.report.Last {
			t.Fatalf("seed %d: %s\nstarted with entries up to %d; log %d proves %d durable", seed, what, n.report.Last, q, c)
		}
	}
	return false
}

// claimsIn is the highest index that the readable records of a log prove durable.
func claimsIn(t testing.TB, m *vfs.Mem, log uint64) (claim uint64) {
	l, err := segment.Open(segment.Options{FS: m, Dir: path.Join(dataDir, "log", raftlog.LogDirName(log)), ID: log})
	if err != nil {
		return 0 // a header of a newer format is damage here
	}
	for _, s := range l.Segments() {
		l.Scan(s.Seq, 0, func(_ int64, body []byte) error {
			if rec, err := entry.ParseRecord(body); err == nil {
				claim = max(claim, claimOf(rec))
			}
			return nil
		})
	}
	return claim
}

func claimOf(r entry.Record) uint64 {
	switch r.Kind {
	case entry.KindPad:
		return r.Index
	case entry.KindEntry, entry.KindStub:
		return r.Head.Durable
	}
	return 0
}

// damage changes a file in one of the ways that disks and people know.
func damage(t testing.TB, m *vfs.Mem, name string, rng *rand.Rand) string {
	info, err := m.Stat(name)
	if err != nil || info.Size == 0 {
		return "nothing"
	}
	pos := rng.Int64N(info.Size)
	switch rng.IntN(5) {
	case 0:
		must(t, m.Flip(name, pos, byte(1<<rng.IntN(8))))
		return fmt.Sprintf("flip %s at %d", name, pos)
	case 1:
		truncate(t, m, name, pos)
		return fmt.Sprintf("truncate %s to %d", name, pos)
	case 2:
		n := min(1+rng.Int64N(200), info.Size-pos)
		writeAt(t, m, name, pos, make([]byte, n))
		return fmt.Sprintf("zero %s at %d, %d bytes", name, pos, n)
	case 3:
		must(t, m.Remove(name))
		return "remove " + name
	default:
		junk := make([]byte, 1+rng.IntN(300))
		for i := range junk {
			junk[i] = byte(rng.Uint32())
		}
		writeAt(t, m, name, info.Size, junk)
		return fmt.Sprintf("append %d bytes to %s", len(junk), name)
	}
}
