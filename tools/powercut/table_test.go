package powercut

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestDesignNamesTests: the tests, targets and scripts that DESIGN.md names for
// the known failures exist.
func TestDesignNamesTests(t *testing.T) {
	root := filepath.Join("..", "..")
	have := map[string]bool{}
	declared := regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w+)\(`)
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		for _, m := range declared.FindAllSubmatch(text, -1) {
			have[string(m[1])] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	read := func(name ...string) string {
		text, err := os.ReadFile(filepath.Join(append([]string{root}, name...)...))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	makefile := read("Makefile")
	_, table, found := strings.Cut(read("DESIGN.md"), "\n| row | fault | tests |\n")
	if !found {
		t.Fatal("DESIGN.md has no table of known failures")
	}
	rows := 0
	for line := range strings.Lines(table) {
		cells := strings.Split(line, "|")
		if len(cells) < 4 {
			break
		}
		rows++
		named := regexp.MustCompile(`\b(?:Test|Fuzz)\w+`).FindAllString(cells[3], -1)
		for _, name := range named {
			if !have[name] {
				t.Errorf("%s: there is no %s", cells[1], name)
			}
		}
		for _, m := range regexp.MustCompile("`make ([a-z-]+)`").FindAllStringSubmatch(cells[3], -1) {
			if !strings.Contains(makefile, "\n"+m[1]+":") {
				t.Errorf("%s: there is no target %s", cells[1], m[1])
			}
		}
		for _, m := range regexp.MustCompile(`conformance ([\w-]+\.txt)`).FindAllStringSubmatch(cells[3], -1) {
			read("server", "conformance", "testdata", m[1])
		}
	}
	if rows < 40 {
		t.Errorf("the table has only %d rows", rows)
	}
}
