package main

import (
	"fmt"
	"testing"
)

// short is what a seed runs in tests.
var short = goal{commands: 1500, disruptions: 20, minutes: 2}

func TestSeeds(t *testing.T) {
	for seed := range uint64(12) {
		r := run(seed, short, nil)
		if r.err != nil {
			t.Fatal(failure(seed, short, r.err))
		}
		if r.totals.Commands < short.commands || r.totals.disruptions() < short.disruptions || r.totals.SimSeconds < short.minutes*60 {
			t.Errorf("seed %d did not reach its goal: %+v", seed, r.totals)
		}
	}
}

// One seed gives one history, to the last step (F25).
func TestOneSeedRunsTwice(t *testing.T) {
	a, b := run(3, short, nil), run(3, short, nil)
	if a.hash != b.hash || fmt.Sprint(a.totals) != fmt.Sprint(b.totals) {
		t.Errorf("the traces of one seed are %016x and %016x\n%+v\n%+v", a.hash, b.hash, a.totals, b.totals)
	}
	if c := run(4, short, nil); c.hash == a.hash {
		t.Errorf("two seeds have the trace %016x", a.hash)
	}
}

func BenchmarkSeed(b *testing.B) {
	for i := range b.N {
		run(uint64(2+i), goal{10_000, 20, 10}, nil)
	}
}
