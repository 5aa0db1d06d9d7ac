package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"queen/internal/entry"
	"queen/internal/vfs"
	"queen/raftlog"
	"queen/recovery"
	"queen/segment"
)

var every = flag.Bool("every", false, "damage every record and file, not some of each kind (a few minutes)")

// small makes files roll soon.
var small = raftlog.Config{SegmentBytes: 2 << 10}

// filledDirs are made once: a directory with several files a log, side tables,
// transactions over two logs, and a checkpoint in the middle; killed, and
// stopped cleanly.
var filledDirs = sync.OnceValues(func() (killed, stopped *vfs.Mem) {
	t := &testing.T{} // a failure panics below
	fsys := vfs.NewMem(5)
	b := startBroker(t, fsys, "data", small)
	fill(b, 0)
	awaitTables(t, fsys)
	b.stop()
	b = startBroker(t, fsys, "data", small)
	fill(b, 100)
	killed = fsys.Clone()
	b.stop()
	if t.Failed() {
		panic("the directory was not made")
	}
	return killed, fsys
})

func filled(t testing.TB, clean bool) *vfs.Mem {
	killed, stopped := filledDirs()
	if clean {
		return stopped.Clone()
	}
	return killed.Clone()
}

// fill pushes to a and b, sometimes to both in one transaction. A message says
// where it went.
func fill(b *broker, from int) {
	for i := from; i < from+12; i++ {
		pad := strings.Repeat("x", 250)
		b.push("a", "one", fmt.Sprintf("a-%d", i), fmt.Sprintf(`"a-%d %s"`, i, pad))
		b.push("b", fmt.Sprintf("part-%d", i%3), fmt.Sprintf("b-%d", i), fmt.Sprintf(`"b-%d %s"`, i, pad))
		b.do("POST", "transaction", fmt.Sprintf(`{"operations":[
			{"type":"push","items":[{"queue":"a","partition":"one","transactionId":"ta-%d","payload":"both-%d a %s"}]},
			{"type":"push","items":[{"queue":"b","partition":"part-0","transactionId":"tb-%d","payload":"both-%d b %s"}]}],
			"kv":[{"op":"put","ns":"n","key":"%d","value":"both-%d","forever":true}]}`, i, i, pad, i, i, pad, i, i))
	}
}

// awaitTables waits until a file of each log has its side tables.
func awaitTables(t testing.TB, fsys vfs.FS) {
	for _, log := range []uint64{1, 2} {
		for !hasTables(fsys, log) {
			time.Sleep(time.Millisecond)
		}
	}
}

func hasTables(fsys vfs.FS, log uint64) bool {
	infos, err := fsys.List(path.Join("data", "log", raftlog.LogDirName(log)))
	if err != nil {
		return false
	}
	return slices.ContainsFunc(infos, func(i vfs.Info) bool { return strings.HasSuffix(i.Name, ".idx") })
}

// allFiles lists the files of a directory.
func allFiles(t testing.TB, fsys vfs.FS, dir string) (names []string) {
	t.Helper()
	infos, err := fsys.List(dir)
	must(t, err)
	for _, i := range infos {
		name := path.Join(dir, i.Name)
		if i.Dir {
			names = append(names, allFiles(t, fsys, name)...)
		} else {
			names = append(names, name)
		}
	}
	return names
}

// stock is what the messages of a directory are: payload to the entry that
// brought it.
func stock(t testing.TB, fsys vfs.FS) map[string]uint64 {
	t.Helper()
	out := make(map[string]uint64)
	for _, log := range []uint64{1, 2} {
		for _, r := range records(t, fsys, log) {
			if r.rec.Kind != entry.KindAppend {
				continue
			}
			must(t, eachMessage(&r.rec.Append, func(_ uint64, m *entry.Message) error {
				plain, err := payload(m)
				out[string(plain)] = r.rec.Index
				return err
			}))
		}
	}
	return out
}

func sizeOf(t testing.TB, fsys vfs.FS, name string) int64 {
	t.Helper()
	info, err := fsys.Stat(name)
	must(t, err)
	return info.Size
}

// checkSalvage salvages a directory in which one entry was damaged, opens the
// result with a broker, and wants every message of every other entry there,
// and of the damaged one all or nothing when no checkpoint had covered it.
func checkSalvage(t testing.TB, m *vfs.Mem, have map[string]uint64, damaged uint64, v *recovery.Verdict, from uint64) {
	t.Helper()
	status, out, errs := run(t, m, "salvage", "data", "out")
	if status == exitTrouble {
		t.Fatalf("salvage: %s%s", out, errs)
	}
	if status, text, _ := run(t, m, "verify", "out"); status != 0 {
		t.Fatalf("the salvage is not clean:\n%s\nsalvage said:\n%s", text, out)
	}
	b := startBroker(t, m, "out", raftlog.Config{})
	defer b.stop()
	got := map[string]int{}
	for _, q := range []string{"a", "b"} {
		for _, p := range b.stored(q) {
			got[p]++
		}
	}
	torn := damaged > v.Proven
	partly := 0
	for p, index := range have {
		switch n := got[p]; {
		case n > 1:
			t.Errorf("%.20s is there %d times", p, n)
		case index == damaged:
			partly += n
		case torn && index > damaged:
			if n != 0 {
				t.Errorf("%.20s of entry %d is there, behind torn entry %d", p, index, damaged)
			}
		case n == 0:
			t.Errorf("%.20s of entry %d is lost; damaged was %d, proven %d\n%s", p, index, damaged, v.Proven, out)
		}
		delete(got, p)
	}
	if damaged > from && partly != 0 {
		for _, index := range have {
			if index == damaged {
				partly--
			}
		}
		if partly != 0 {
			t.Errorf("entry %d is visible in part", damaged)
		}
	}
	for p := range got {
		t.Errorf("%.20s was never pushed", p)
	}
}

// A bit flipped in any record of any log: verify finds it, its verdict is that
// of a start, and a salvage has everything else.
func TestBitFlipsInLogs(t *testing.T) {
	for _, clean := range []bool{false, true} {
		base := filled(t, clean)
		have := stock(t, base)
		s, err := recovery.TakeSnapshot(base, "data")
		must(t, err)
		sound := s.Check()
		want(t, 0, base.Clone(), "verify", "data")
		step := 29
		if *every {
			step = 1
		}
		for _, log := range []uint64{0, 1, 2} {
			recs := records(t, base, log)
			for i := 0; i < len(recs); i += step {
				r := recs[i]
				for what, pos := range map[string]int64{"body": (r.pos + r.end) / 2, "length": r.pos + int64(i%3), "sum": r.pos + 5} {
					if i%3 != 0 && what != "body" {
						continue
					}
					t.Run(fmt.Sprintf("clean=%v/q%d/%d-%s", clean, log, i, what), func(t *testing.T) {
						m := base.Clone()
						must(t, m.Flip(r.file, pos, 0x10))
						out := want(t, 1, m, "verify", "data")
						if !strings.Contains(out, strings.TrimPrefix(r.file, "data/")) || !strings.Contains(out, fmt.Sprintf("pos %d", r.pos)) {
							t.Errorf("%s pos %d is not named:\n%s", r.file, r.pos, out)
						}
						v := agree(t, m)
						damaged := r.rec.Index
						if r.rec.Kind == entry.KindPad {
							damaged = 0
						}
						if v.Refused != nil {
							v.Proven = sound.Proven
						}
						checkSalvage(t, m, have, damaged, &v, s.Footer.From)
					})
				}
			}
		}
	}
}

// Every other file flipped, cut short, emptied and removed: verify finds it,
// its verdict is that of a start, and a salvage has every message.
func TestDamagedFiles(t *testing.T) {
	base := filled(t, false)
	have := stock(t, base)
	kinds, seen := map[string]bool{}, map[string]bool{}
	for _, name := range allFiles(t, base, "data") {
		if strings.HasSuffix(name, ".seg") || strings.HasSuffix(name, "LOCK") {
			continue
		}
		if strings.HasSuffix(name, ".tmp") {
			continue // the fixture's power cut met a merge; nobody reads it
		}
		kind := path.Ext(name) + path.Base(name)[:1] // of tables: merged or not
		if seen[kind] && !*every {
			continue
		}
		seen[kind], kinds[path.Ext(name)] = true, true
		size := sizeOf(t, base, name)
		for what, do := range map[string]func(t *testing.T, m *vfs.Mem){
			"flip start":  func(t *testing.T, m *vfs.Mem) { must(t, m.Flip(name, 9, 1)) },
			"flip middle": func(t *testing.T, m *vfs.Mem) { must(t, m.Flip(name, size/2, 0x20)) },
			"flip end":    func(t *testing.T, m *vfs.Mem) { must(t, m.Flip(name, size-1, 1)) },
			"half":        func(t *testing.T, m *vfs.Mem) { truncate(t, m, name, size/2) },
			"empty":       func(t *testing.T, m *vfs.Mem) { truncate(t, m, name, 0) },
			"gone":        func(t *testing.T, m *vfs.Mem) { must(t, m.Remove(name)) },
		} {
			t.Run(strings.TrimPrefix(name, "data/")+"/"+what, func(t *testing.T) {
				m := base.Clone()
				do(t, m)
				v := agree(t, m)
				status := 1
				if what == "gone" && strings.HasSuffix(name, ".rows") {
					status = 0 // as in a new directory: the logs go back to entry 1
				}
				out := want(t, status, m, "verify", "data")
				if v.Refused == nil && strings.Contains(out, "damage ") && !strings.Contains(name, "checkpoint") {
					t.Errorf("a start opens it, verify says damage:\n%s", out)
				}
				sound := v
				sound.Proven = 1 << 60 // no entry was touched
				checkSalvage(t, m, have, 0, &sound, 0)
			})
		}
	}
	for _, ext := range []string{".idx", ".dedup", ".rows", ""} {
		if !kinds[ext] {
			t.Errorf("no file of kind %q was there", ext)
		}
	}
}

// Segment files as a whole: what a start says of them, verify says, too.
func TestDamagedSegments(t *testing.T) {
	base := filled(t, false)
	for _, name := range allFiles(t, base, "data") {
		if seq, ok := segment.ParseFileName(path.Base(name)); !ok || seq > 1 && !newest(t, base, name) && !*every {
			continue
		}
		size := sizeOf(t, base, name)
		for what, do := range map[string]func(t *testing.T, m *vfs.Mem){
			"header":   func(t *testing.T, m *vfs.Mem) { must(t, m.Flip(name, 20, 1)) },
			"log id":   func(t *testing.T, m *vfs.Mem) { rename(t, m, name) },
			"gone":     func(t *testing.T, m *vfs.Mem) { must(t, m.Remove(name)) },
			"empty":    func(t *testing.T, m *vfs.Mem) { truncate(t, m, name, 0) },
			"short":    func(t *testing.T, m *vfs.Mem) { truncate(t, m, name, size-1) },
			"zero end": func(t *testing.T, m *vfs.Mem) { truncate(t, m, name, size+5000) },
		} {
			t.Run(strings.TrimPrefix(name, "data/")+"/"+what, func(t *testing.T) {
				m := base.Clone()
				do(t, m)
				v := agree(t, m)
				status := 1
				if newest(t, base, name) && v.Refused == nil && v.Cut == 0 {
					status = 0 // what is missing or added are zeros that were prepared
				}
				out := want(t, status, m, "verify", "data", "--json")
				if v.Refused != nil && !strings.Contains(out, `"start":"refuses"`) {
					t.Errorf("a start refuses (%v):\n%s", v.Refused, out)
				}
				if status, out, errs := run(t, m, "salvage", "data", "out"); status == exitTrouble {
					t.Fatalf("salvage: %s%s", out, errs)
				}
				want(t, 0, m, "verify", "out")
				_, err := start(m, "out")
				must(t, err)
			})
		}
	}
}

// newest reports whether a file is the newest of its log.
func newest(t testing.TB, m *vfs.Mem, name string) bool {
	t.Helper()
	all := allFiles(t, m, path.Dir(name))
	return slices.IndexFunc(all, func(f string) bool { return strings.HasSuffix(f, ".seg") && f > name }) < 0
}

// rename puts a file in the place of another log's.
func rename(t testing.TB, m *vfs.Mem, name string) {
	t.Helper()
	dir := path.Join("data", "log", "q0")
	if path.Dir(name) == dir {
		dir = path.Join("data", "log", "q1")
	}
	content, err := vfs.ReadFile(m, path.Join(dir, segment.FileName(1)))
	must(t, err)
	must(t, write(m, name, content))
}

// An entry that made a queue is lost, with all checkpoints: what was pushed
// there later is salvaged under new names.
func TestSalvageAdopts(t *testing.T) {
	m := filled(t, false)
	must(t, m.RemoveAll("data/checkpoint"))
	must(t, m.MkdirAll("data/checkpoint"))
	first := records(t, m, 1)[0]
	must(t, m.Flip(first.file, first.end-5, 1))
	out := want(t, 1, m, "salvage", "data", "out", "--json")
	var last struct{ Adopted, Damage int }
	lines := strings.Split(strings.TrimSpace(out), "\n")
	must(t, json.Unmarshal([]byte(lines[len(lines)-1]), &last))
	if last.Adopted != 2 || last.Damage == 0 {
		t.Errorf("adopted %d, damage %d, want the queue and its partition:\n%s", last.Adopted, last.Damage, out)
	}
	b := startBroker(t, m, "out", raftlog.Config{})
	if got := b.stored("salvaged-1"); len(got) != 47 {
		t.Errorf("%d messages of a, want 47", len(got))
	}
	if got := b.stored("b"); len(got) != 48 {
		t.Errorf("%d messages of b, want 48", len(got))
	}
	b.push("new", "p", "t", `"ids go on"`)
	if got := b.stored("new"); len(got) != 1 {
		t.Errorf("a new queue holds %q", got)
	}
}
