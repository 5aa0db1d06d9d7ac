package fsm

import (
	goflag "flag"
	"testing"

	"pgregory.net/rapid"

	"queen/internal/entry"
)

// stepsPerRun and rapid's 100 checks make 10,000 steps. `make model` asks for
// 10,000 checks: a million steps.
const stepsPerRun = 100

func TestModel(t *testing.T) {
	fixSeed(t)
	rapid.Check(t, func(t *rapid.T) {
		newModelRun(t, drawPick(t)).run(stepsPerRun)
	})
}

// drawPick makes even choices of rapid's values, which favour small ones.
func drawPick(t *rapid.T) func(n int) int {
	source, i := rapid.Uint64(), uint64(0)
	return func(n int) int {
		i++
		return int(entry.MixHash(i, source.Draw(t, "n")) % uint64(n))
	}
}

// fixSeed makes rapid's choices the same in every run, unless a seed is given.
func fixSeed(t *testing.T) {
	f := goflag.Lookup("rapid.seed")
	if f == nil || f.Value.String() != "0" {
		return
	}
	if err := f.Value.Set("1"); err != nil {
		t.Fatal(err)
	}
}
