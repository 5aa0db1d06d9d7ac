package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"queen/fsm"
	"queen/internal/entry"
	"queen/internal/vfs"
	"queen/raftlog"
	"queen/recovery"
	"queen/segment"
)

var update = flag.Bool("update", false, "write the golden files anew")

// run runs the tool on a file system in memory.
func run(t testing.TB, fsys vfs.FS, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	tl := &tool{fs: fsys, settle: func() {}, inUse: func(string) bool { return false }}
	status = tl.main(args, &out, &errs)
	return status, out.String(), errs.String()
}

// want runs the tool and wants a status.
func want(t testing.TB, status int, fsys vfs.FS, args ...string) string {
	t.Helper()
	got, out, errs := run(t, fsys, args...)
	if got != status {
		t.Fatalf("segdump %s: status %d, want %d\n%s%s", strings.Join(args, " "), got, status, out, errs)
	}
	return out
}

// load copies a directory of the disk into memory.
func load(t testing.TB, from string) *vfs.Mem {
	t.Helper()
	m := vfs.NewMem(1)
	err := filepath.WalkDir(from, func(name string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, name)
		if err != nil {
			return err
		}
		to := path.Join("data", filepath.ToSlash(rel))
		if d.IsDir() {
			return m.MkdirAll(to)
		}
		content, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		return write(m, to, content)
	})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func write(fsys vfs.FS, name string, content []byte) error {
	f, err := fsys.Create(name)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(content, 0)
	return errors.Join(err, f.Sync(), f.Close())
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func truncate(t testing.TB, fsys vfs.FS, name string, size int64) {
	t.Helper()
	f, err := fsys.OpenReadWrite(name)
	must(t, err)
	must(t, errors.Join(f.Truncate(size), f.Sync(), f.Close()))
}

const (
	dataV1   = "../../server/testdata/data-v1"
	stepDir  = "testdata/step"
	stepLast = 7 // the entry of the payment step, over the logs q1, q2 and q3
)

// TestMakeStep makes testdata/step anew, with QUEEN_UPDATE_FIXTURE=1: a payment
// step over three logs on top of a checkpoint, and then a kill.
func TestMakeStep(t *testing.T) {
	if os.Getenv("QUEEN_UPDATE_FIXTURE") != "1" {
		t.Skip("QUEEN_UPDATE_FIXTURE=1 makes the directory anew")
	}
	fsys := vfs.NewMem(11)
	b := startBroker(t, fsys, "data", raftlog.Config{})
	for i, q := range []string{"orders", "receipts", "audit"} {
		b.push(q, map[string]string{"orders": "card-7", "receipts": "card-7", "audit": "2026"}[q], fmt.Sprintf("first-%d", i), `{"order":1}`)
	}
	b.stop()
	b = startBroker(t, fsys, "data", raftlog.Config{})
	b.payment()
	killed := fsys.Clone()
	must(t, os.RemoveAll(stepDir))
	copyOut(t, killed, "data", stepDir)
}

func copyOut(t *testing.T, fsys vfs.FS, from, to string) {
	t.Helper()
	must(t, os.MkdirAll(to, 0o777))
	list, err := fsys.List(from)
	must(t, err)
	for _, f := range list {
		if f.Dir {
			copyOut(t, fsys, from+"/"+f.Name, filepath.Join(to, f.Name))
			continue
		}
		data, err := vfs.ReadFile(fsys, from+"/"+f.Name)
		must(t, err)
		must(t, os.WriteFile(filepath.Join(to, f.Name), data, 0o666))
	}
}

// TestGolden compares the output of every command over two directories that a
// broker left, whole and torn, as text and as JSON; -update writes it anew.
func TestGolden(t *testing.T) {
	step, v1 := load(t, stepDir), load(t, dataV1)
	torn := step.Clone()
	takeBack(t, torn, 2, stepLast)
	for name, c := range map[string]struct {
		fsys   *vfs.Mem
		args   string
		status int
	}{
		"v1-ls":             {v1, "ls data", 0},
		"v1-verify":         {v1, "verify data", 0},
		"v1-dump":           {v1, "dump data q0 q1 q2 --payload", 0},
		"v1-dump-files":     {v1, "dump data FORMAT raft/state checkpoint/00000000000000000001.rows", 0},
		"v1-rows":           {v1, "rows data", 0},
		"v1-partition":      {v1, "partition data parcels/v --payload", 0},
		"v1-entry":          {v1, "entry data 6 --payload", 0},
		"v1-dedup":          {v1, "dedup data", 0},
		"v1-salvage":        {v1, "salvage data out", 0},
		"step-ls":           {step, "ls data", 0},
		"step-entry":        {step, "entry data 7", 0},
		"step-verify":       {step, "verify data", 0},
		"step-partition":    {step, "partition data receipts/card-7", 0},
		"step-dump-filters": {step, "dump data q1 q2 q3 --kind append,stub --index 7", 0},
		"torn-verify":       {torn, "verify data", 1},
		"torn-entry":        {torn, "entry data 7", 1},
		"torn-salvage":      {torn, "salvage data out", 1},
		"torn-partition":    {torn, "partition data receipts/card-7", 0},
	} {
		t.Run(name, func(t *testing.T) {
			for _, ext := range []string{".txt", ".jsonl"} {
				fsys, args := c.fsys.Clone(), strings.Fields(c.args)
				if ext == ".jsonl" {
					args = append(args, "--json")
				}
				got := want(t, c.status, fsys, args...)
				golden(t, name+ext, got)
			}
		})
	}
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", "golden", name)
	if *update {
		must(t, os.MkdirAll(filepath.Dir(file), 0o777))
		must(t, os.WriteFile(file, []byte(got), 0o666))
		return
	}
	wanted, err := os.ReadFile(file)
	must(t, err)
	if string(wanted) != got {
		t.Errorf("%s has changed (go test ./tools/segdump -run TestGolden -args -update writes it anew):\n%s\nwant\n%s", file, got, wanted)
	}
}

// recAt is a record of a log and where it is.
type recAt struct {
	file     string
	pos, end int64
	rec      entry.Record
}

func records(t testing.TB, fsys vfs.FS, log uint64) (out []recAt) {
	t.Helper()
	dir := path.Join("data", "log", raftlog.LogDirName(log))
	infos, err := fsys.List(dir)
	must(t, err)
	for _, info := range infos {
		seq, ok := segment.ParseFileName(info.Name)
		if !ok {
			continue
		}
		name := path.Join(dir, info.Name)
		_, err := segment.Inspect(segment.Inspection{FS: fsys, Name: name, Log: log, Seq: seq, Size: info.Size, Record: func(pos int64, body []byte) error {
			rec, err := entry.ParseRecord(bytes.Clone(body))
			out = append(out, recAt{name, pos, pos + segment.RecordHeaderSize + int64(len(body)), rec})
			return err
		}})
		must(t, err)
	}
	return out
}

// takeBack removes everything of entries >= index from one log, as a write
// that never reached the disk.
func takeBack(t testing.TB, fsys vfs.FS, log, index uint64) {
	t.Helper()
	for _, r := range records(t, fsys, log) {
		if r.rec.Index >= index {
			truncate(t, fsys, r.file, r.pos)
			return
		}
	}
	t.Fatalf("log %d holds nothing of entry %d", log, index)
}

// start is what a real start makes of a directory: refused, or what it cut.
func start(fsys *vfs.Mem, dir string) (report recovery.Report, err error) {
	g, report, err := recovery.Open(recovery.Config{Group: raftlog.Config{
		FS: fsys, Dir: dir, NodeID: 1, Machine: machine{fsm.New(fsm.Config{})}, Fatal: func(error) {},
	}})
	if err != nil {
		return report, err
	}
	return report, g.Stop(context.Background())
}

// machine is the state machine without calls.
type machine struct{ *fsm.Machine }

func (m machine) Plan(now int64, _ []any) raftlog.Plan {
	p := m.Machine.Plan(now, nil)
	return raftlog.Plan{Data: p.Data, Answer: p.Answer, Now: p.Now, Wake: p.Wake, More: p.More, SealThrough: p.SealThrough}
}

// agree wants the tool's verdict to be the one of a start.
func agree(t testing.TB, fsys *vfs.Mem) recovery.Verdict {
	t.Helper()
	s, err := recovery.TakeSnapshot(fsys, "data")
	must(t, err)
	v := s.Check()
	report, err := start(fsys.Clone(), "data")
	if (err != nil) != (v.Refused != nil) {
		t.Fatalf("a start: %v\nthe verdict: %v", err, v.Refused)
	}
	if err == nil && (report.Cut != v.Cut || report.Last != v.Last || report.CutSeen != v.CutSeen) {
		t.Fatalf("a start cut at %d (%d seen) and kept %d, the verdict is %d (%d seen) and %d", report.Cut, report.CutSeen, report.Last, v.Cut, v.CutSeen, v.Last)
	}
	return v
}

// A transaction over three logs, for every subset of its copies missing:
// verify finds it, the verdict is that of a start, and a salvage shows all of
// the transaction or nothing of it (I1).
func TestTornEverySubset(t *testing.T) {
	base := load(t, stepDir)
	queues := map[string]int{"orders": 1, "receipts": 1, "audit": 1}
	for mask := range 1 << 3 {
		t.Run(fmt.Sprintf("taken=%03b", mask), func(t *testing.T) {
			m := base.Clone()
			for i := range 3 {
				if mask&(1<<i) != 0 {
					takeBack(t, m, uint64(1+i), stepLast)
				}
			}
			status := 1
			if mask == 0 || mask == 7 {
				status = 0 // whole, or never written
			}
			v := agree(t, m)
			out := want(t, status, m, "verify", "data")
			if status == 1 && (!strings.Contains(out, "torn log/q") || !strings.Contains(out, "entry 7") || v.Cut != stepLast) {
				t.Errorf("cut at %d:\n%s", v.Cut, out)
			}
			wantEntry := 1
			if mask == 0 {
				wantEntry = 0
			}
			out = want(t, wantEntry, m, "entry", "data", "7")
			if got := strings.Count(out, "MISSING"); mask != 7 && got != 3-strings.Count(out, "\n  copy")+got {
				t.Errorf("%d copies are missing:\n%s", got, out)
			}
			want(t, status, m, "salvage", "data", "out")
			want(t, 0, m, "verify", "out")
			b := startBroker(t, m, "out", raftlog.Config{})
			for q, before := range queues {
				wanted := before
				if mask == 0 && q != "orders" {
					wanted++
				}
				if got := b.stored(q); len(got) != wanted {
					t.Errorf("%s holds %q, want %d", q, got, wanted)
				}
			}
			if _, found := b.try("GET", "kv/charged/1", ""); strings.Contains(found, `"found":true`) != (mask == 0) {
				t.Errorf("the marker: %s", found)
			}
		})
	}
}

// The worked example of the README is the output of the tool.
func TestReadmeExample(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	must(t, err)
	for _, name := range []string{"torn-verify", "torn-entry", "torn-salvage"} {
		out, err := os.ReadFile(filepath.Join("testdata", "golden", name+".txt"))
		must(t, err)
		text := strings.Replace(string(out), "\nout: ", "\ncopy: ", 1)
		if !strings.Contains(string(readme), text) {
			t.Errorf("README.md does not have the output of %s:\n%s", name, text)
		}
	}
}

// Flags stand anywhere, and what is wrong with a command line has status 2.
func TestCommandLine(t *testing.T) {
	m := load(t, stepDir)
	plain := want(t, 0, m, "dump", "data", "q2", "--kind", "stub", "--json")
	for _, args := range []string{"--json dump --kind stub data q2", "dump --kind=stub data --json q2", "dump data -json -kind stub q2"} {
		if args[0] == '-' {
			args = args[len("--json "):] + " --json" // the command comes first but for flags without a value
		}
		if got := want(t, 0, m, strings.Fields(args)...); got != plain {
			t.Errorf("%s: %s\nwant %s", args, got, plain)
		}
	}
	for _, args := range []string{"", "frob data", "ls", "ls data more", "entry data x", "entry data 0", "dump data", "dump data nofile", "dump data q2 --kind frob",
		"ls nodir", "rows data --key zz", "partition data noslash", "partition data no/such", "verify data --frob", "salvage data data", "ls data/FORMAT", "verify data/log"} {
		if status, out, errs := run(t, m, strings.Fields(args)...); status != exitTrouble || errs == "" {
			t.Errorf("segdump %s: status %d\n%s%s", args, status, out, errs)
		}
	}
	if status, out, _ := run(t, m, "--help"); status != 0 || !strings.Contains(out, "usage") {
		t.Errorf("--help: %d %s", status, out)
	}
}

// Nothing is written to the directory, whatever the command.
func TestReadsOnly(t *testing.T) {
	m := filled(t, false)
	before := m.Counts()
	for _, c := range []string{"ls data", "dump data q0 q1 q2", "entry data 7", "partition data a/one", "dedup data --list", "rows data", "rows data --history", "verify data"} {
		want(t, 0, m, strings.Fields(c)...)
	}
	after := m.Counts()
	if before.Write != after.Write || before.Create != after.Create || before.Remove != after.Remove || before.Sync != after.Sync || before.SyncDir != after.SyncDir || before.Rename != after.Rename {
		t.Errorf("calls before %+v, after %+v", before, after)
	}
}
