package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"time"
)

func main() {
	var (
		seed     = flag.Uint64("seed", 1, "first seed")
		seeds    = flag.Uint64("seeds", 1, "how many seeds")
		nodes    = flag.Int("nodes", 3, "nodes of the cluster; 0: three or five, as the seed says")
		commands = flag.Int("commands", 2000, "operations of a seed, at least")
		faults   = flag.Int("faults", 20, "faults of a seed, at least")
		seconds  = flag.Int64("seconds", 120, "simulated seconds of a seed, at least")
		first    = flag.Bool("first", false, "end at the first seed that fails")
		verbose  = flag.Bool("v", false, "print what happens")
	)
	flag.Parse()
	debug.SetGCPercent(400)
	var log io.Writer
	if *verbose {
		log = os.Stdout
	}
	failed := 0
	var simulated int64
	for s := *seed; s < *seed+*seeds && !(*first && failed > 0); s++ {
		g := goal{nodes: *nodes, commands: *commands, faults: *faults, seconds: *seconds}
		if g.nodes == 0 {
			g.nodes = 3 + 2*int(s%2)
		}
		begun := time.Now()
		r := run(s, g, log)
		simulated += r.totals.SimSeconds
		fmt.Println(report(s, r, time.Since(begun)))
		if r.err != nil {
			failed++
			fmt.Printf("FAIL seed %d: %v\n  replay: go run ./fuzz/cluster -seed %d -nodes %d -commands %d -faults %d -seconds %d -v\n", s, r.err, s, g.nodes, g.commands, g.faults, g.seconds)
		}
	}
	fmt.Printf("%d seeds, %d failed, %.2f simulated hours\n", *seeds, failed, float64(simulated)/3600)
	if failed > 0 {
		os.Exit(1)
	}
}

func report(seed uint64, r result, took time.Duration) string {
	t := r.totals
	return fmt.Sprintf("seed %d: %d operations (%d answered, %d unknown, %d refusals), %d faults, %d kills, %d power cuts, %d partitions, %d pauses, %d hung disks, %d boots (%d with a cut), "+
		"%d leaderships, %d states read again, %d entries, %d leases, %d messages (%d lost), %d digests compared, %d simulated seconds in %.2f s, trace %016x",
		seed, t.Commands, t.Answered, t.Unknown, t.Refused, t.Faults, t.Kills, t.PowerCuts, t.Partitions, t.Pauses, t.Hangs, t.Boots, t.Cuts,
		t.Leaders, t.Rereads, t.Entries, t.Leases, t.Packets, t.Lost, t.Digests, t.SimSeconds, took.Seconds(), r.hash)
}
