package raftlog

import (
	"bytes"
	"flag"
	"os"
	"testing"
)

var rewrite = flag.Bool("rewrite", false, "write the fixtures anew")

// The bytes of the state file are pinned. When they change on purpose, raise
// stateVersion, keep the old fixture, and run: go test ./raftlog -run Fixture -rewrite
func TestStateFixture(t *testing.T) {
	s := State{Term: 7, Vote: 3, ConfIndex: 12, Cut: 44, Conf: Membership{Voters: []uint64{1, 2, 3}, Learners: []uint64{4}}}
	const name = "testdata/state.v1"
	if *rewrite {
		if err := os.WriteFile(name, s.encode(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if got := s.encode(); !bytes.Equal(got, want) {
		t.Errorf("the state file's bytes changed:\n%x\n%x", got, want)
	}
}
