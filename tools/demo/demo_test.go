package main

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// edit replaces one text of a source file, which has to be there once.
type edit struct{ file, old, new string }

// volatile is a broker whose file system loses what was not synced.
var volatile = []edit{
	{"internal/vfs/os.go", "return osFile{f}, nil", "return volatileOf(name, f, flags&os.O_TRUNC != 0)"},
	{"internal/vfs/os.go", "return os.Remove(name)", "removed(name); return os.Remove(name)"},
	{"internal/vfs/os.go", "return os.Rename(oldname, newname)", "renamed(oldname, newname); return os.Rename(oldname, newname)"},
	{"internal/vfs/os.go", "return withDir(dir, syncVolume)", "return syncVolatiles()"},
	{"internal/vfs/os.go", "infos = append(infos, infoOf(fi))",
		"info := infoOf(fi); info.Size = sizeOf(dir+\"/\"+info.Name, info.Size); infos = append(infos, info)"},
	{"internal/vfs/os.go", "return infoOf(fi), nil", "info := infoOf(fi); info.Size = sizeOf(name, info.Size); return info, nil"},
}

// The planted bugs.
var (
	noFsync = edit{"raftlog/writerloop.go", "if err := l.syncLogs(logs); err != nil {", "if err := error(nil); err != nil {"}

	lostMarker = edit{"fsm/kv.go", "if !op.Kind.Write() || !op.Result.Applied {",
		"if !op.Kind.Write() || !op.Result.Applied || op.Kind == KVPutIfAbsent {"}
)

// TestDemo runs the demo against a broker on a file system that loses what was
// not synced, and against the same broker with a bug planted, which it has to
// see.
func TestDemo(t *testing.T) {
	if testing.Short() {
		t.Skip("builds three brokers")
	}
	for _, c := range []struct {
		name string
		bug  []edit
		want string // of the error; "" = the demo holds
	}{
		{"no bug", nil, ""},
		{"no fsync before the answer", []edit{noFsync}, "receipts of payment 1: expected 1, found 0"},
		{"a lost marker", []edit{lostMarker}, "marker of payment 1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			queen := buildBroker(t, append(volatile[:len(volatile):len(volatile)], c.bug...))
			var out strings.Builder
			err := run(context.Background(), &out, queen, t.TempDir(), true)
			switch {
			case c.want == "" && err != nil:
				t.Fatalf("the demo failed: %v\n%s", err, out.String())
			case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
				t.Fatalf("the demo did not see the bug: %v, want an error with %q\n%s", err, c.want, out.String())
			}
			t.Logf("the demo ends with: %v", err)
		})
	}
}

// buildBroker builds the broker with edits laid over its sources.
func buildBroker(t *testing.T, edits []edit) string {
	t.Helper()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	texts := map[string]string{}
	for _, e := range edits {
		path := filepath.Join(root, e.file)
		if texts[path] == "" {
			b, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			texts[path] = string(b)
		}
		if n := strings.Count(texts[path], e.old); n != 1 {
			t.Fatalf("%s has %q %d times, want once: the planted bug does not fit the code any more", e.file, e.old, n)
		}
		texts[path] = strings.Replace(texts[path], e.old, e.new, 1)
	}
	replace := map[string]string{}
	for path, text := range texts {
		name := filepath.Join(dir, strings.ReplaceAll(path, "/", "_"))
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		replace[path] = name
	}
	replace[filepath.Join(root, "internal/vfs/volatile.go")] = filepath.Join(root, "tools/demo/testdata/volatile.go.txt")
	overlay, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "overlay.json"), overlay, 0o644); err != nil {
		t.Fatal(err)
	}
	queen := filepath.Join(dir, "queen")
	cmd := exec.Command("go", "build", "-overlay", filepath.Join(dir, "overlay.json"), "-o", queen, "./cmd/queen")
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	return queen
}
