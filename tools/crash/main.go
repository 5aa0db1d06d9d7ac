// Command crash tests a broker binary from outside.
//
//	crash kill      full load, kill -9 at a random moment, restart, read everything
//	                back, -rounds times
//	crash points    full load on a broker that kills itself at a named point of its code,
//	                restart, read everything back, for each point
//	crash deadlock  transactions over random sets of partitions in random order, with
//	                plain pushes beside them; every call has to be answered
//
// The load of kill is steps: pop a batch, then one transaction that acks it,
// pushes an output for each message, pushes an audit record, counts in KV, sets
// a marker, and sometimes schedules a timer. Each call is booked as answered,
// refused or unknown (internal/history). After each restart everything new is read back,
// and the books must balance: what was answered is there, what was refused is
// not, what is unknown is there wholly or not at all, nothing is there twice,
// and each partition is in order.
//
// kill -9 loses no page cache. What it tears is an entry that was written to some
// of its logs and not yet to the others; the report counts the starts that had
// such a thing to cut, and over the whole run there has to be one. Half of the
// rounds run on a directory in memory, where syncs take no time and the writes
// are most of what can be hit.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"
)

func main() {
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "crash:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) == 0 || !slices.Contains([]string{"kill", "points", "deadlock"}, args[0]) {
		return errors.New("usage: crash kill|points|deadlock [flags]; crash kill -h lists them")
	}
	f := flag.NewFlagSet("crash "+args[0], flag.ExitOnError)
	queen := f.String("queen", "bin/queen", "the broker's binary")
	dir := f.String("dir", "crash-data", "scratch directory; wiped, and kept after a failure")
	seed := f.Uint64("seed", uint64(time.Now().UnixNano()), "seed of the load and of the moments of the kills")
	if args[0] == "deadlock" {
		d := deadlock{queen: *queen}
		f.IntVar(&d.calls, "calls", 100_000, "transactions")
		f.IntVar(&d.workers, "workers", 64, "workers")
		f.IntVar(&d.pushers, "pushers", 8, "plain pushers beside them")
		f.Parse(args[1:])
		d.queen, d.dir, d.seed = *queen, *dir, *seed
		return d.run(ctx)
	}
	if args[0] == "points" {
		p := pointRun{killer: killer{longest: 300 * time.Millisecond, churns: true}}
		f.StringVar(&p.match, "run", "", "points whose name has this in it")
		f.IntVar(&p.most, "points", 0, "at most so many points, drawn from all; 0 = all")
		f.IntVar(&p.times, "times", 1, "how often each")
		f.IntVar(&p.steppers, "workers", 4, "workers that take steps; two producers run beside them")
		f.StringVar(&p.shm, "shm", "/dev/shm", "directory in memory that every other point uses; empty or too small = never")
		f.Parse(args[1:])
		p.queen, p.dir, p.seed = *queen, *dir, *seed
		return p.run(ctx)
	}
	k := killer{}
	f.IntVar(&k.rounds, "rounds", 10, "kills, rounded up to whole epochs")
	f.IntVar(&k.epoch, "epoch", 5, "rounds on one data directory; then a fresh one")
	f.StringVar(&k.shm, "shm", "/dev/shm", "directory in memory that every other epoch uses; empty or too small = never")
	f.IntVar(&k.steppers, "workers", 6, "workers that take steps; two producers run beside them")
	f.DurationVar(&k.longest, "load", 1200*time.Millisecond, "longest load before a kill")
	f.BoolVar(&k.allowNoCut, "allow-no-cut", false, "do not fail when no start had something to cut")
	f.Parse(args[1:])
	k.queen, k.dir, k.seed = *queen, *dir, *seed
	return k.run(ctx)
}
