package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"time"

	"github.com/cespare/xxhash/v2"
)

// outcome is a seed's result as a worker prints it.
type outcome struct {
	Seed   uint64
	Hash   uint64
	Totals totals
	Err    string `json:",omitempty"`
}

// work runs seeds one after the other and prints their outcomes.
func work(out io.Writer, seed, seeds, step uint64, first bool, g goal) int {
	enc := json.NewEncoder(out)
	for i := range seeds {
		s := seed + i*step
		r := run(s, g, nil)
		o := outcome{Seed: s, Hash: r.hash, Totals: r.totals}
		if r.err != nil {
			o.Err = r.err.Error()
		}
		if err := enc.Encode(o); err != nil {
			return 1
		}
		if first && r.err != nil {
			break
		}
	}
	return 0
}

// spread runs seeds in several processes: raft's randomness is the process's, so
// one process runs one seed at a time. It returns the exit code.
func spread(seed, seeds uint64, procs int, first bool, g goal) int {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	self, err := os.Executable()
	if err != nil {
		fmt.Fprintln(os.Stderr, "sim:", err)
		return 2
	}
	begun := time.Now()
	n := min(uint64(max(procs, 1)), seeds)
	outcomes := make(chan outcome)
	var wg sync.WaitGroup
	broken := make([]error, n)
	for i := range n {
		wg.Go(func() {
			broken[i] = child(ctx, self, seed+i, (seeds-i+n-1)/n, n, first, g, outcomes)
		})
	}
	go func() { wg.Wait(); close(outcomes) }()
	sum, failed, seen := totals{}, 0, uint64(0)
	hash := uint64(0) // a sum: seeds end in any order
	for o := range outcomes {
		seen++
		sum.add(o.Totals)
		hash += xxhash.Sum64String(fmt.Sprint(o.Seed, o.Hash))
		if o.Err != "" {
			failed++
			fmt.Println(failure(o.Seed, g, errViolation(o.Err)))
			if first {
				fmt.Printf("found by seed %d, after %d seeds and %s\n", o.Seed, seen, time.Since(begun).Round(time.Millisecond))
				return 1
			}
		}
		if seen%100 == 0 {
			fmt.Printf("%d of %d seeds, %d failed, %s\n", seen, seeds, failed, time.Since(begun).Round(time.Second))
		}
	}
	took := time.Since(begun)
	for _, err := range broken {
		if err != nil {
			fmt.Fprintln(os.Stderr, "sim: a process that runs seeds ended early:", err)
			failed++
		}
	}
	r := result{totals: sum, hash: hash}
	fmt.Printf("%d seeds, %d failed; %.0f commands a minute; all of them together: %s\n", seen, failed, float64(sum.Commands)/took.Minutes(), report(seed, r, took))
	if failed > 0 || seen != seeds {
		return 1
	}
	return 0
}

func child(ctx context.Context, self string, seed, seeds, step uint64, first bool, g goal, out chan<- outcome) error {
	cmd := exec.CommandContext(ctx, self, "-worker", "-first="+strconv.FormatBool(first), "-seed", strconv.FormatUint(seed, 10), "-seeds", strconv.FormatUint(seeds, 10),
		"-step", strconv.FormatUint(step, 10), "-commands", strconv.Itoa(g.commands), "-breaks", strconv.Itoa(g.disruptions),
		"-minutes", strconv.FormatInt(g.minutes, 10), "-same-kernel="+strconv.FormatBool(g.sameKernel))
	cmd.Stderr = os.Stderr
	cmd.Env = append(os.Environ(), "GOMAXPROCS=1")
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	lines := bufio.NewScanner(pipe)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var o outcome
		if err := json.Unmarshal(lines.Bytes(), &o); err != nil {
			return fmt.Errorf("%q: %w", lines.Text(), err)
		}
		out <- o
	}
	return cmd.Wait()
}

func (t *totals) add(o totals) {
	t.Commands += o.Commands
	t.Answered += o.Answered
	t.Lost += o.Lost
	t.Kills += o.Kills
	t.PowerCuts += o.PowerCuts
	t.Faults += o.Faults
	t.CleanStops += o.CleanStops
	t.Boots += o.Boots
	t.FailedBoots += o.FailedBoots
	t.Replayed += o.Replayed
	t.Cuts += o.Cuts
	t.Digests += o.Digests
	t.Entries += o.Entries
	t.Messages += o.Messages
	t.Repeats += o.Repeats
	t.Checkpoints += o.Checkpoints
	t.Syncs += o.Syncs
	t.SimSeconds += o.SimSeconds
}
