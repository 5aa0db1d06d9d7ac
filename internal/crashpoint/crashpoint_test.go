package crashpoint

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
)

func reset(t *testing.T) {
	t.Helper()
	current.Store(nil)
	t.Cleanup(func() { current.Store(nil) })
}

func TestArmRefusesWhatItCannotDo(t *testing.T) {
	for point, want := range map[string]string{
		"":                  "unknown",
		"no.such.point":     "unknown",
		names[0] + ":":      "number of hits",
		names[0] + ":0":     "number of hits",
		names[0] + ":-1":    "number of hits",
		names[0] + ":1:2":   "number of hits",
		names[0] + ":first": "number of hits",
	} {
		reset(t)
		if err := Arm(point); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Arm(%q): %v, want an error with %q", point, err, want)
		}
		if current.Load() != nil {
			t.Errorf("Arm(%q) armed something", point)
		}
	}
	reset(t)
	if err := Arm(names[0]); err != nil {
		t.Fatal(err)
	}
	if err := Arm(names[1]); err == nil {
		t.Error("a second point was armed")
	}
}

func TestHitCounts(t *testing.T) {
	reset(t)
	was, killed := kill, 0
	kill = func() { killed++ }
	defer func() { kill = was }()
	Hit(names[0])
	if err := Arm(names[0] + ":3"); err != nil {
		t.Fatal(err)
	}
	for hit := 1; hit <= 5; hit++ {
		Hit(names[1])
		Hit(names[0])
		if want := min(1, hit/3); killed != want {
			t.Errorf("after hit %d of the third: killed %d times, want %d", hit, killed, want)
		}
	}
}

func TestHitKills(t *testing.T) {
	if point := os.Getenv("CRASHPOINT_TEST"); point != "" {
		if err := Arm(point); err != nil {
			t.Fatal(err)
		}
		defer os.Exit(7) // a kill runs no deferred call
		Hit(point)
		return
	}
	child := exec.Command(os.Args[0], "-test.run=^TestHitKills$")
	child.Env = append(os.Environ(), "CRASHPOINT_TEST="+names[0])
	_ = child.Run()
	if status := child.ProcessState.Sys().(syscall.WaitStatus); !status.Signaled() || status.Signal() != syscall.SIGKILL {
		t.Errorf("the process ended with %v, not by SIGKILL", child.ProcessState)
	}
}

func TestNamesAreSortedAndUnique(t *testing.T) {
	if !slices.IsSorted(names) || len(slices.Compact(Names())) != len(names) {
		t.Errorf("not sorted, or a name twice: %q", names)
	}
}

// Names and calls of Hit are the same set: a point that was moved away is not
// left in the list, and none can be hit that cannot be armed.
func TestNamesAreInTheSource(t *testing.T) {
	call := regexp.MustCompile(`crashpoint\.Hit\("([^"]*)"\)`)
	var found []string
	err := filepath.WalkDir("../..", func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		src, err := os.ReadFile(path)
		for _, m := range call.FindAllSubmatch(src, -1) {
			found = append(found, string(m[1]))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(found)
	for _, name := range slices.Compact(found) {
		if !slices.Contains(names, name) {
			t.Errorf("%s is hit and not in the list", name)
		}
	}
	for _, name := range names {
		if !slices.Contains(found, name) {
			t.Errorf("%s is in the list and nowhere hit", name)
		}
	}
}
