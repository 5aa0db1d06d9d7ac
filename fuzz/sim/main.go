package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"time"

	"queen/internal/plant"
)

func main() {
	var (
		seed     = flag.Uint64("seed", 0, "run this seed")
		seeds    = flag.Uint64("seeds", 1, "run so many seeds, beginning with -seed")
		commands = flag.Int("commands", 10_000, "commands of a seed, at least")
		breaks   = flag.Int("breaks", 20, "crashes and faults of a seed, at least")
		minutes  = flag.Int64("minutes", 10, "simulated minutes of a seed, at least")
		procs    = flag.Int("procs", runtime.NumCPU(), "processes that run seeds side by side")
		step     = flag.Uint64("step", 1, "difference between one seed and the next")
		first    = flag.Bool("first", false, "end at the first seed that fails")
		kernel   = flag.Bool("same-kernel", false, "let the machine survive a failed sync, so that the next process finds names and sizes of files that will never be durable; the broker is not made for that")
		verbose  = flag.Bool("v", false, "print what happens")
		worker   = flag.Bool("worker", false, "print one line of JSON for each seed (used by the command itself)")
	)
	flag.Parse()
	debug.SetGCPercent(400) // many small processes are simulated in one, and memory is short-lived
	if bug := plant.Planted(); bug != "" && !*worker {
		fmt.Printf("this build carries the bug %s\n", bug)
	}
	g := goal{*commands, *breaks, *minutes, *kernel}
	if *worker {
		os.Exit(work(os.Stdout, *seed, *seeds, *step, *first, g))
	}
	if *seeds > 1 {
		os.Exit(spread(*seed, *seeds, *procs, *first, g))
	}
	var log io.Writer
	if *verbose {
		log = os.Stdout
	}
	begun := time.Now()
	r := run(*seed, g, log)
	fmt.Println(report(*seed, r, time.Since(begun)))
	if r.err != nil {
		fmt.Println(failure(*seed, g, r.err))
		os.Exit(1)
	}
}

func report(seed uint64, r result, took time.Duration) string {
	t := r.totals
	return fmt.Sprintf("seed %d: %d commands (%d answered, %d lost), %d kills, %d power cuts, %d failed calls, %d clean stops, %d boots (%d failed, %d with a cut, %d by digest), "+
		"%d repeats, %d entries, %d replayed, %d messages, %d checkpoints, %d syncs, %d simulated seconds in %.2f s, trace %016x",
		seed, t.Commands, t.Answered, t.Lost, t.Kills, t.PowerCuts, t.Faults, t.CleanStops, t.Boots, t.FailedBoots, t.Cuts, t.Digests,
		t.Repeats, t.Entries, t.Replayed, t.Messages, t.Checkpoints, t.Syncs, t.SimSeconds, took.Seconds(), r.hash)
}

// failure says what broke and how to see it again.
func failure(seed uint64, g goal, err error) string {
	out := fmt.Sprintf("FAIL seed %d: %s\n  replay: go run ./fuzz/sim -seed %d", seed, oneLine(err.Error()), seed)
	if d := (goal{10_000, 20, 10, g.sameKernel}); g != d {
		out += fmt.Sprintf(" -commands %d -breaks %d -minutes %d", g.commands, g.disruptions, g.minutes)
	}
	if g.sameKernel {
		out += " -same-kernel"
	}
	return out + " -v"
}
