package conformance

import (
	"fmt"
	"maps"
	"path/filepath"
	"strings"
	"testing"
)

// goRows are the rows that tests in Go cover rather than data files.
var goRows = []string{"push-pop-ack/4.4/table", "push-pop-ack/4.4/separate", "ours/2/one-commit"}

// TestConformance runs every case of testdata, each against its own broker.
// One case: go test ./server/conformance -run 'TestConformance/transaction/.*row_5'
func TestConformance(t *testing.T) { runAll(t, false) }

// TestConformanceOverPowerCuts runs the same cases with a power cut before each
// request: what was answered is there, and everything goes on as if nothing had
// been. (The cases of overload.txt are about what happens within one run, those
// of status.txt about statistics: a power cut loses the running minute of them.)
func TestConformanceOverPowerCuts(t *testing.T) {
	if testing.Short() {
		t.Skip("it starts the broker some thousand times")
	}
	runAll(t, true)
}

func runAll(t *testing.T, crashes bool) {
	scripts := readScripts(t)
	fixtures := map[string]*testCase{}
	for _, s := range scripts {
		maps.Copy(fixtures, s.fixtures)
	}
	for _, s := range scripts {
		name := strings.TrimSuffix(filepath.Base(s.name), ".txt")
		if len(s.cases) == 0 || crashes && (name == "overload" || name == "status") {
			continue
		}
		t.Run(name, func(t *testing.T) {
			for i, c := range s.cases {
				t.Run(c.name, func(t *testing.T) {
					t.Parallel()
					runCase(t, c, fixtures, fmt.Sprintf("c%d", i+1), crashes)
				})
			}
		})
	}
}
