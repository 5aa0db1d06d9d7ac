package retention

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"queen/fsm"
	"queen/internal/vfs"
	"queen/raftlog"
	"queen/segment"
)

// The data directory in testdata/data-v3 was left by a kill after a reclaim: it has rewritten and merged files (segment
// format version 2) and messages of which only the ids are left (ids records). Every later build must open it and read
// the same. QUEEN_UPDATE_FIXTURE=data-v3 makes it anew, for a format that no release has written yet.
const (
	fixtureDir    = "testdata/data-v3"
	fixtureHolds  = "testdata/data-v3.txt"
	fixturePassed = 8000 * time.Second
)

func TestReclaimedDirectoryFixture(t *testing.T) {
	if os.Getenv("QUEEN_UPDATE_FIXTURE") == "data-v3" {
		makeFixture(t)
	}
	r := &rig{t: t, fs: vfs.NewMem(1), clock: newClock(), seq: 1 << 40}
	r.clock.passed = fixturePassed
	copyIn(t, fixtureDir, r.fs, "data")
	merged, rewritten := 0, 0
	for _, name := range r.segmentFiles() {
		h, err := segment.Inspect(segment.Inspection{FS: r.fs, Name: name.path, Log: name.log, Seq: name.seq, Size: name.size})
		if err != nil {
			t.Fatal(err)
		}
		if h.Version == segment.VersionRewritten {
			rewritten++
			if h.Covers > h.Seq {
				merged++
			}
		}
	}
	if rewritten < 2 || merged == 0 || merged == rewritten {
		t.Fatalf("%d files were rewritten, %d of these merged", rewritten, merged)
	}
	r.start()
	text, err := os.ReadFile(fixtureHolds)
	if err != nil {
		t.Fatal(err)
	}
	want := strings.Split(strings.TrimSpace(string(text)), "\n")
	if got := r.holds(); !slices.Equal(got, want) || len(want) < 10 {
		t.Errorf("it holds\n%.60q\nwant\n%.60q", got, want)
	}
	// The payload is gone, the id is known.
	if again := r.push("q", "p0", "once", "other"); again.Status != fsm.Duplicate || again.Offset != 0 {
		t.Errorf("a repeat has status %d at offset %d", again.Status, again.Offset)
	}
	r.reclaim()
	r.kill()
	if got := r.holds(); !slices.Equal(got, want) {
		t.Errorf("after a reclaim and a start it holds\n%.60q\nwant\n%.60q", got, want)
	}
	r.stop()
}

// makeFixture makes the directory: q keeps ids longer than messages, and its files are rewritten to these; m has many
// partitions with little left of each file.
func makeFixture(t *testing.T) {
	r := newRig(t, 0)
	r.configure("q", retentionOn, number("retentionSeconds", 5000), number("dedupWindowSeconds", 100_000_000))
	r.configure("m", retentionOn, number("completedRetentionSeconds", 10), number("dedupWindowSeconds", 1))
	r.push("q", "p0", "once", text)
	r.fill("q", "old", 150)
	for i := range 240 {
		r.push("m", []string{"keep", "drop", "drop2"}[min(i%24, 2)], fmt.Sprint("m", i), text)
	}
	for _, part := range []string{"drop", "drop2"} {
		pop := &fsm.Pop{Queue: "m", Partition: part, Group: "g", Mode: fsm.SubscribeAll, Batch: 1000, Partitions: 1, CommitOnDelivery: true, LeaseID: r.id()}
		r.call(pop)
		r.call(&fsm.Delivered{Claims: pop.Claims})
	}
	r.advance(6000 * time.Second)
	r.fill("q", "new", 9)
	r.push("m", "drop", "last", text)
	r.reclaim()
	c := r.b.Reclaimed()
	if c.Merges.Load() == 0 || c.Rewrites.Load() == 0 {
		t.Fatalf("%d rewrites, %d merges", c.Rewrites.Load(), c.Merges.Load())
	}
	holds := r.holds()
	if r.clock.passed > fixturePassed {
		t.Fatalf("it was made in %v", r.clock.passed)
	}
	left := r.fs.Kill()
	r.gone()
	if err := os.RemoveAll(fixtureDir); err != nil {
		t.Fatal(err)
	}
	copyOut(t, left, "data", fixtureDir)
	if err := os.WriteFile(fixtureHolds, []byte(strings.Join(holds, "\n")+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
}

type segmentFile struct {
	path     string
	log, seq uint64
	size     int64
}

// segmentFiles lists the segment files of all logs.
func (r *rig) segmentFiles() (out []segmentFile) {
	r.t.Helper()
	logs, err := r.fs.List("data/log")
	if err != nil {
		r.t.Fatal(err)
	}
	for _, l := range logs {
		id, _ := raftlog.ParseLogDirName(l.Name)
		infos, err := r.fs.List("data/log/" + l.Name)
		if err != nil {
			r.t.Fatal(err)
		}
		for _, i := range infos {
			if seq, ok := segment.ParseFileName(i.Name); ok {
				out = append(out, segmentFile{"data/log/" + l.Name + "/" + i.Name, id, seq, i.Size})
			}
		}
	}
	return out
}

// copyIn copies a directory of the machine into a file system.
func copyIn(t *testing.T, from string, fs vfs.FS, to string) {
	t.Helper()
	err := filepath.WalkDir(from, func(name string, e os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, name)
		if err != nil {
			return err
		}
		into := filepath.Join(to, rel)
		if e.IsDir() {
			return fs.MkdirAll(into)
		}
		data, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		return vfs.ReplaceFile(fs, into, data)
	})
	if err == nil {
		err = fs.SyncAll(to)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// copyOut copies a directory out of a file system.
func copyOut(t *testing.T, fs vfs.FS, from, to string) {
	t.Helper()
	infos, err := fs.List(from)
	if err == nil {
		err = os.MkdirAll(to, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range infos {
		if i.Dir {
			copyOut(t, fs, from+"/"+i.Name, filepath.Join(to, i.Name))
			continue
		}
		data, err := vfs.ReadFile(fs, from+"/"+i.Name)
		if err == nil {
			err = os.WriteFile(filepath.Join(to, i.Name), data, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}
