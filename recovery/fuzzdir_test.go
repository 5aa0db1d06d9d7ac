package recovery_test

import (
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	gofuzz "github.com/google/gofuzz"

	"queen/internal/vfs"
	"queen/raftlog/raftlogtest"
	"queen/recovery"
)

// pushOf is the i-th push of the directories that FuzzRecovery changes: to one
// queue, to three (a transaction over three logs), or to one with copies in the
// logs of two others, as a step that acks there has.
func pushOf(i int) *raftlogtest.Push {
	p := &raftlogtest.Push{Payload: fmt.Appendf(nil, "answered %d %s", i, strings.Repeat("x", 40*(i%5))), Key: fmt.Sprint(i)}
	switch i % 8 {
	case 3:
		p.Queues = []uint64{1, 2, 3}
	case 7:
		p.Queues, p.Touch = []uint64{1 + uint64(i)%3}, []uint64{1, 2, 3}
	default:
		p.Queues = []uint64{1 + uint64(i)%3}
	}
	return p
}

// killedAfter is a directory that was killed after n pushes were answered, with
// a checkpoint of the first ten.
func killedAfter(n int) *vfs.Mem {
	t := new(quietTB)
	node := mustOpen(t, vfs.NewMem(5), dataDir, small)
	for i := range n {
		if i == 10 {
			node.stop()
			node = mustOpen(t, node.fs, dataDir, small)
		}
		node.push(pushOf(i))
	}
	return node.kill()
}

const (
	fewestPushes = 16
	mostPushes   = 25
)

var killed = func() (all [mostPushes - fewestPushes]func() *vfs.Mem) {
	for i := range all {
		all[i] = sync.OnceValue(func() *vfs.Mem { return killedAfter(fewestPushes + i) })
	}
	return all
}()

// mutation is what gofuzz makes of the bytes of the fuzzing engine.
type mutation struct {
	Base  uint8
	Edits []edit
}

type edit struct {
	Kind, File uint8
	Pos, N     uint16
	Mask       byte
}

// Kinds of edits.
const (
	tearOff = iota // the end of a log file, above what any record proves durable
	truncateAnywhere
	flipBits
	zeroRange
	removeFile
	appendJunk
	repeatBytes
	editKinds
)

// FuzzRecovery changes a directory whose answered pushes are known, one of them
// a transaction over three logs. A start refuses and says where, or serves the
// pushes up to some entry, all of each, and no less than what readable records
// prove durable. When only unproven ends of logs were torn off, it starts, and
// every entry that it keeps has all of its copies. It never panics, and its
// memory is bounded.
func FuzzRecovery(f *testing.F) {
	fixtures, err := filepath.Glob("../server/testdata/data-v1/log/*/*.seg")
	if err != nil {
		f.Fatal(err)
	}
	for _, name := range fixtures {
		b, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b[:min(len(b), 200)])
	}
	for i := range 60 {
		f.Add(slices.Repeat([]byte{byte(37 * i), byte(i), byte(101 * i), 0, byte(i * i)}, 12))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var m mutation
		gofuzz.NewFromGoFuzz(data).NilChance(0).NumElements(1, 4).Fuzz(&m)
		mutateAndStart(t, &m)
	})
}

// TestTornEnds tears every log of every directory at many places above what is
// proven: what FuzzRecovery finds in time is found here at once.
func TestTornEnds(t *testing.T) {
	for base := range uint8(mostPushes - fewestPushes) {
		for file := range uint8(24) {
			for pos := range uint16(5) {
				mutateAndStart(t, &mutation{Base: base, Edits: []edit{{Kind: tearOff, File: file, Pos: pos * 61}}})
			}
		}
	}
}

func mutateAndStart(t *testing.T, mu *mutation) {
	base := killed[int(mu.Base)%len(killed)]()
	pushes := fewestPushes + int(mu.Base)%len(killed)
	m := base.Clone()
	files := filesOf(t, m)
	onlyTears, what := true, fmt.Sprintf("%d pushes", pushes)
	proven := provenEnds(t, base)
	for _, e := range mu.Edits {
		name := files[int(e.File)%len(files)]
		what += "; " + e.apply(t, m, name, proven)
		onlyTears = onlyTears && e.Kind%editKinds == tearOff
	}
	before := m.Clone()
	var mem runtime.MemStats
	runtime.ReadMemStats(&mem)
	allocated := mem.TotalAlloc
	n, err := open(t, m, dataDir, small)
	runtime.ReadMemStats(&mem)
	if used := mem.TotalAlloc - allocated; used > 256<<20 {
		t.Errorf("%s: the start allocated %d bytes", what, used)
	}
	switch {
	case err != nil && onlyTears:
		t.Fatalf("%s: only unproven ends are gone, and the start refuses: %v", what, err)
	case err != nil && !errors.Is(err, recovery.ErrRefused) && !errors.Is(err, recovery.ErrNewerFormat):
		t.Fatalf("%s: neither a start nor a refusal: %v", what, err)
	case err != nil:
		return
	}
	servesPrefix(t, n, what, pushes)
	for q := range uint64(4) {
		if c := claimsIn(t, before, q); c > n.report.Last {
			t.Fatalf("%s: started with entries up to %d; log %d proves %d durable", what, n.report.Last, q, c)
		}
	}
	left := n.kill()
	if onlyTears {
		wholeEntries(t, left, what)
	}
}

// servesPrefix: what is served is that of the first pushes, of each all or none.
func servesPrefix(t *testing.T, n *node, what string, pushes int) {
	t.Helper()
	want := make(map[uint64][]string)
	for count := 0; ; count++ {
		same := true
		for q := uint64(1); q <= 3; q++ {
			same = same && n.m.Next(q) == uint64(len(want[q]))
		}
		if same {
			break
		}
		if count == pushes {
			t.Fatalf("%s: started with a state that never was: next offsets %d %d %d", what, n.m.Next(1), n.m.Next(2), n.m.Next(3))
		}
		for _, q := range pushOf(count).Queues {
			want[q] = append(want[q], string(pushOf(count).Payload))
		}
	}
	for q := uint64(1); q <= 3; q++ {
		// A damaged sealed file below the checkpoint is met by a reader, which
		// stops there; what it reads before is what was pushed.
		got := n.messages1(q)
		if len(got) > len(want[q]) || !slices.Equal(got, want[q][:len(got)]) {
			t.Fatalf("%s: queue %d serves %.60q, answered were %.60q", what, q, got, want[q])
		}
	}
}

// wholeEntries: every entry in the logs has all of its copies (I1).
func wholeEntries(t *testing.T, m *vfs.Mem, what string) {
	t.Helper()
	copies, of := map[uint64]int{}, map[uint64]int{}
	for q := range uint64(4) {
		for _, r := range records(t, m, q) {
			if n := len(r.rec.Head.Logs); n > 0 {
				copies[r.rec.Index]++
				of[r.rec.Index] = n
			}
		}
	}
	for index, n := range of {
		if copies[index] != n {
			t.Fatalf("%s: started with %d of %d copies of entry %d", what, copies[index], n, index)
		}
	}
}

// provenEnds tells for each log file up to where records are proven durable by
// some record, or by a side table of the whole file.
func provenEnds(t *testing.T, m *vfs.Mem) map[string]int64 {
	t.Helper()
	claim := uint64(0)
	for q := range uint64(4) {
		claim = max(claim, claimsIn(t, m, q))
	}
	ends := make(map[string]int64)
	for q := range uint64(4) {
		for _, r := range records(t, m, q) {
			sealed := path.Join(path.Dir(r.file), strings.TrimSuffix(path.Base(r.file), ".seg")+".idx")
			if _, err := m.Stat(sealed); err == nil || r.rec.Index <= claim {
				ends[r.file] = max(ends[r.file], r.end)
			} else {
				ends[r.file] = max(ends[r.file], 0)
			}
		}
	}
	return ends
}

func (e edit) apply(t *testing.T, m *vfs.Mem, name string, proven map[string]int64) string {
	info, err := m.Stat(name)
	if err != nil || info.Size == 0 {
		return "nothing"
	}
	pos := int64(e.Pos) % info.Size
	n := min(1+int64(e.N), info.Size-pos)
	switch e.Kind % editKinds {
	case tearOff:
		end, ok := proven[name]
		if !ok || end >= info.Size {
			return "nothing"
		}
		at := end + int64(e.Pos)%(info.Size-end)
		truncate(t, m, name, at)
		return fmt.Sprintf("tear %s off at %d", name, at)
	case truncateAnywhere:
		truncate(t, m, name, pos)
		return fmt.Sprintf("truncate %s to %d", name, pos)
	case flipBits:
		must(t, m.Flip(name, pos, e.Mask))
		return fmt.Sprintf("flip %s at %d by %x", name, pos, e.Mask)
	case zeroRange:
		writeAt(t, m, name, pos, make([]byte, n))
		return fmt.Sprintf("zero %s at %d, %d bytes", name, pos, n)
	case removeFile:
		must(t, m.Remove(name))
		return "remove " + name
	case appendJunk:
		junk := slices.Repeat([]byte{e.Mask, byte(e.N), byte(e.Pos)}, 1+int(e.N)%200)
		writeAt(t, m, name, info.Size, junk)
		return fmt.Sprintf("append %d bytes to %s", len(junk), name)
	}
	b, err := vfs.ReadFile(m, name)
	must(t, err)
	writeAt(t, m, name, info.Size, b[pos:pos+n])
	return fmt.Sprintf("repeat %d bytes of %s from %d at its end", n, name, pos)
}
