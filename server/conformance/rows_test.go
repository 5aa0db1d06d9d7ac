package conformance

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// readRows reads a list of rows: an id, then its text, on each line.
func readRows(t *testing.T, path string) (ids []string, texts map[string]string) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	texts = map[string]string{}
	for i, line := range strings.Split(string(data), "\n") {
		if line == "" || line[0] == '#' {
			continue
		}
		id, text, _ := strings.Cut(line, " ")
		text = strings.TrimSpace(text)
		if text == "" {
			t.Errorf("%s:%d: row %s has no text", path, i+1, id)
		}
		if texts[id] != "" {
			t.Errorf("%s:%d: row %s stands twice", path, i+1, id)
		}
		ids = append(ids, id)
		texts[id] = text
	}
	return ids, texts
}

// TestRows fails when a row of the contract has no case, and no subject of a
// later issue (later.txt); and when a case or a line of later.txt names a row
// that does not exist.
func TestRows(t *testing.T) {
	rows, texts := readRows(t, "testdata/rows.txt")
	_, later := readRows(t, "testdata/later.txt")
	covered := map[string]int{}
	for _, s := range readScripts(t) {
		for _, c := range s.cases {
			for _, id := range c.rows {
				if texts[id] == "" {
					t.Errorf("%s:%d: no row %s in rows.txt", c.file, c.line, id)
				}
				covered[id]++
			}
			if len(c.rows) == 0 {
				t.Errorf("%s:%d: case covers no row", c.file, c.line)
			}
		}
	}
	for _, id := range goRows {
		if texts[id] == "" {
			t.Errorf("no row %s in rows.txt", id)
		}
		covered[id]++
	}
	for _, id := range rows {
		switch {
		case covered[id] == 0 && later[id] == "":
			t.Errorf("row %s has no case: %s", id, texts[id])
		case covered[id] > 0 && later[id] != "":
			t.Errorf("row %s has a case: take it out of later.txt", id)
		}
	}
	for id := range later {
		if texts[id] == "" {
			t.Errorf("later.txt: no row %s in rows.txt", id)
		}
	}
	t.Logf("%d rows, %d covered, %d later", len(rows), len(covered), len(later))
}

// readScripts reads all data files but the fixtures and the lists of rows.
func readScripts(t *testing.T) []*script {
	t.Helper()
	paths, err := filepath.Glob("testdata/*.txt")
	if err != nil {
		t.Fatal(err)
	}
	var all []*script
	for _, p := range paths {
		if slices.Contains([]string{"rows.txt", "later.txt", "openapi.txt"}, filepath.Base(p)) {
			continue
		}
		s, err := readScript(p)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, s)
	}
	return all
}
