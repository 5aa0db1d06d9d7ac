package conformance

import (
	"fmt"
	"maps"
	"path/filepath"
	"strings"
	"testing"
)

// goRows are the rows that tests in Go cover rather than data files.
var goRows = []string{}

// TestConformance runs every case of testdata, each against its own broker.
// One case: go test ./server/conformance -run 'TestConformance/transaction/.*row_5'
func TestConformance(t *testing.T) {
	scripts := readScripts(t)
	fixtures := map[string]*testCase{}
	for _, s := range scripts {
		maps.Copy(fixtures, s.fixtures)
	}
	for _, s := range scripts {
		if len(s.cases) == 0 {
			continue
		}
		t.Run(strings.TrimSuffix(filepath.Base(s.name), ".txt"), func(t *testing.T) {
			for i, c := range s.cases {
				t.Run(c.name, func(t *testing.T) {
					t.Parallel()
					runCase(t, c, fixtures, fmt.Sprintf("c%d", i+1))
				})
			}
		})
	}
}
