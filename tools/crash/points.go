package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"queen/internal/crashpoint"
	"queen/internal/history"
	"queen/tools/internal/api"
	"queen/tools/internal/broker"
)

// pointRun has a broker kill itself at each crash point in turn.
type pointRun struct {
	killer
	match string
	most  int
	times int
	owed  map[string]api.Transaction // without an answer since the last check
}

// reachIn is how long a point may take to be reached under load: a checkpoint
// is due every few seconds, and what it compacts grows with them.
const reachIn = 90 * time.Second

// smallFiles make a broker roll, seal, merge, checkpoint and reclaim all the time.
var smallFiles = []string{
	"QUEEN_RAFT_SEGMENT_BYTES=65536", "QUEEN_UNSEALED_MAX_BYTES=262144", "QUEEN_RAFT_CHECKPOINT_MS=300", "RETENTION_INTERVAL=500", "QUEEN_QLOG_SEAL_AGE_S=1",
}

// needs names the point at which a broker has to die first, so that the next
// start comes to another one.
var needs = map[string]string{
	"boot.cut.log":    "write.flush.between-logs",
	"boot.cut.marked": "write.flush.between-logs",
}

// often are the points that every entry passes: which one dies is drawn.
var often = []string{"write.", "checkpoint.row."}

// unreached are the points that a single node does not come to.
var unreached = map[string]string{
	"cut.marked": "a tail that conflicts with the leader's is cut on followers only",
}

func (p *pointRun) run(ctx context.Context) error {
	if err := p.prepare(); err != nil {
		return err
	}
	names := slices.DeleteFunc(crashpoint.Names(), func(name string) bool { return !strings.Contains(name, p.match) })
	for _, name := range names {
		if why := unreached[name]; why != "" {
			fmt.Printf("%-36s not here: %s\n", name, why)
		}
	}
	names = slices.DeleteFunc(names, func(name string) bool { return unreached[name] != "" })
	p.rng.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	if p.most > 0 {
		names = names[:min(p.most, len(names))]
	}
	for range p.times {
		for _, name := range names {
			if err := p.point(ctx, name); err != nil {
				return fmt.Errorf("point %s: %w\n(seed %d; data and log are in %s)", name, err, p.seed, p.at)
			}
		}
	}
	fmt.Printf("%d points, each hit %d times: %d steps, %d answers lost of which %d had been applied, %d starts had something to cut\n",
		len(names), p.times, p.steps, p.unknowns, p.applied, p.cuts)
	return nil
}

// point lets a broker with a past die at one point, and checks the next start.
func (p *pointRun) point(ctx context.Context, name string) error {
	p.epoch++
	p.at = p.place(p.epoch)
	if err := os.RemoveAll(p.at); err != nil {
		return err
	}
	p.owed = map[string]api.Transaction{}
	p.book, p.logSeen, p.env, p.end = history.NewSteps(), 0, smallFiles, p.endLoad
	if err := p.start(ctx); err != nil {
		return err
	}
	defer func() { p.proc.Kill() }()
	if err := p.setUp(ctx); err != nil {
		return err
	}
	if err := p.round(ctx, p.epoch*10); err != nil {
		return fmt.Errorf("before it: %w", err)
	}
	p.proc.Kill()
	if first := needs[name]; first != "" {
		if err := p.die(ctx, first, p.epoch*10+1); err != nil {
			return fmt.Errorf("at %s before it: %w", first, err)
		}
	}
	if err := p.die(ctx, name, p.epoch*10+2); err != nil {
		return err
	}
	if err := p.again(ctx); err != nil {
		return err
	}
	if err := p.proc.Stop(5 * time.Second); err != nil {
		return err
	}
	fmt.Printf("%-36s ok\n", name)
	return os.RemoveAll(p.at)
}

// setUp makes the queues whose messages come and go.
func (p *pointRun) setUp(ctx context.Context) error {
	return p.api.Configure(ctx, passingQueue, map[string]any{"retentionEnabled": true, "retentionSeconds": 1, "completedRetentionSeconds": 1})
}

// die starts a broker that has a point armed, loads it until it is there, and
// leaves the books of that for the next start to be checked against.
func (p *pointRun) die(ctx context.Context, name string, round int) error {
	hits := 1
	if slices.ContainsFunc(often, func(prefix string) bool { return strings.HasPrefix(name, prefix) }) {
		hits += p.rng.IntN(300)
	}
	p.env = append(slices.Clone(smallFiles), fmt.Sprintf("QUEEN_CRASH_POINT=%s:%d", name, hits))
	defer func() { p.env = smallFiles }()
	o := p.options()
	proc, err := broker.Launch(o)
	if err != nil {
		return err
	}
	p.proc = proc
	if err := proc.Healthy(ctx, 60*time.Second); err != nil {
		if proc.Ended() && proc.Killed() {
			return nil // the point is one of the start
		}
		return fmt.Errorf("%w; the end of %s:\n%s", err, proc.Log, proc.Tail(15))
	}
	p.api = api.New(proc.URL(), 40*time.Second)
	p.end = p.endAtPoint
	bodies, _, err := p.loadUntilEnd(ctx, round)
	maps.Copy(p.owed, bodies)
	return err
}

// endAtPoint waits until the broker has killed itself.
func (p *pointRun) endAtPoint(ctx context.Context, l *load, errs chan error) (clean bool, err error) {
	defer l.stop.Store(true)
	defer p.proc.Kill()
	close(l.fan)
	t := time.NewTimer(reachIn)
	defer t.Stop()
	select {
	case err := <-errs:
		return false, err
	case <-ctx.Done():
		return false, ctx.Err()
	case <-t.C:
		return false, fmt.Errorf("it was not reached within %v", reachIn)
	case <-p.proc.Done():
	}
	if !p.proc.Killed() {
		return false, fmt.Errorf("the broker ended otherwise; the end of its log:\n%s", p.proc.Tail(15))
	}
	return false, nil
}

// again starts the broker without a point and checks everything.
func (p *pointRun) again(ctx context.Context) error {
	if err := p.start(ctx); err != nil {
		return err
	}
	if err := p.verify(ctx); err != nil {
		return err
	}
	return p.sendAgain(ctx, p.owed)
}
