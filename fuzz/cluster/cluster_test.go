package main

import "testing"

// TestSeeds runs a few seeds of three and of five nodes.
func TestSeeds(t *testing.T) {
	seeds := 6
	if testing.Short() {
		seeds = 2
	}
	for s := range uint64(seeds) {
		g := goal{nodes: 3 + 2*int(s%2), commands: 400, faults: 10, seconds: 60}
		if r := run(s+1, g, nil); r.err != nil {
			t.Errorf("%s\n%v", report(s+1, r, 0), r.err)
		}
	}
}

// TestOneSeedIsOneHistory: without that a failure could not be seen again.
func TestOneSeedIsOneHistory(t *testing.T) {
	g := goal{nodes: 3, commands: 300, faults: 8, seconds: 30}
	a, b := run(77, g, nil), run(77, g, nil)
	if a.hash != b.hash || a.totals != b.totals {
		t.Errorf("one seed, two histories:\n%s\n%s", report(77, a, 0), report(77, b, 0))
	}
}
