package main

import "testing"

func TestMemoryIsTrimmedOnceAfterABurst(t *testing.T) {
	var trim idleTrim
	for i, c := range []struct {
		index uint64
		want  bool
	}{{5, false}, {5, false}, {5, true}, {5, false}, {5, false}, {6, false}, {7, false}, {7, false}, {7, true}, {7, false}} {
		if got := trim.look(c.index); got != c.want {
			t.Errorf("look %d at index %d: %v, want %v", i, c.index, got, c.want)
		}
	}
}
