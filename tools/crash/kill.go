package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"queen/internal/history"
	"queen/tools/internal/api"
	"queen/tools/internal/broker"
)

// killer runs the rounds.
type killer struct {
	queen, dir string
	seed       uint64
	rounds     int
	epoch      int
	shm        string
	steppers   int
	longest    time.Duration
	allowNoCut bool
	env        []string // settings of the broker
	churns     bool     // messages come and go beside the steps
	// end ends the broker under load; it is endLoad but for a crash point.
	end func(ctx context.Context, l *load, errs chan error) (clean bool, err error)

	book    *history.Steps
	proc    *broker.Process
	api     *api.Client
	rng     *rand.Rand
	port    int
	at      string // the epoch's directory
	logSeen int64  // bytes of the log that cuts were looked for in

	steps, unknowns, applied, cuts, retried, replayed, bootKills, stops int
}

// cutLine is what a start writes to its log when it took back entries that were
// not whole.
var cutLine = []byte("torn tail cut")

const producers = 2

func (k *killer) run(ctx context.Context) (err error) {
	if err := k.prepare(); err != nil {
		return err
	}
	// Without anything to cut so far it goes on for a while: the moments are
	// random, and a run that never hit one has not tested what it is for.
	first := 0
	for ; first < k.rounds || k.cuts == 0 && first < 4*k.rounds; first += k.epoch {
		if err := k.runEpoch(ctx, first, first+k.epoch); err != nil {
			return fmt.Errorf("%w\n(seed %d; data and log are in %s)", err, k.seed, k.at)
		}
	}
	fmt.Printf("%d rounds: %d steps, %d answers lost of which %d had been applied, %d of them sent again, %d got the answer that was kept, "+
		"%d kills during a start, %d clean stops, %d starts had something to cut\n",
		first, k.steps, k.unknowns, k.applied, k.retried, k.replayed, k.bootKills, k.stops, k.cuts)
	if k.cuts == 0 && !k.allowNoCut {
		return errors.New("no start had anything to cut: the kills missed what they are for; more rounds, or a longer load")
	}
	return nil
}

func (k *killer) prepare() (err error) {
	fmt.Printf("seed %d\n", k.seed)
	k.rng, k.end = rand.New(rand.NewPCG(k.seed, 0)), k.endLoad
	k.port, err = broker.FreePort()
	return err
}

// runEpoch runs rounds on a fresh data directory.
func (k *killer) runEpoch(ctx context.Context, first, end int) error {
	k.at = k.place(first / k.epoch)
	if err := os.RemoveAll(k.at); err != nil {
		return err
	}
	k.book, k.logSeen = history.NewSteps(), 0
	if err := k.start(ctx); err != nil {
		return err
	}
	defer func() { k.proc.Kill() }()
	for n := first; n < end; n++ {
		if err := k.round(ctx, n); err != nil {
			return fmt.Errorf("round %d: %w", n, err)
		}
	}
	if err := k.proc.Stop(5 * time.Second); err != nil {
		return err
	}
	return os.RemoveAll(k.at)
}

// place returns the directory of an epoch: in memory and on disk in turn, when
// the memory is there.
func (k *killer) place(epoch int) string {
	const need = 2 << 30
	var st unix.Statfs_t
	if k.shm == "" || epoch%2 == 1 || unix.Statfs(k.shm, &st) != nil || st.Bavail*uint64(st.Bsize) < need {
		return k.dir
	}
	return filepath.Join(k.shm, fmt.Sprintf("queen-crash-%d", os.Getpid()))
}

func (k *killer) options() broker.Options {
	return broker.Options{Binary: k.queen, Dir: filepath.Join(k.at, "data"), Port: k.port, Env: k.env}
}

// start starts the broker, now and then after a start that is killed half way.
func (k *killer) start(ctx context.Context) error {
	for k.book.Len() > 0 && k.rng.IntN(4) == 0 {
		p, err := broker.Launch(k.options())
		if err != nil {
			return err
		}
		time.Sleep(time.Duration(k.rng.Int64N(int64(60 * time.Millisecond))))
		p.Kill()
		k.bootKills++
	}
	var err error
	if k.proc, err = broker.Start(ctx, k.options()); err != nil {
		return err
	}
	k.api = api.New(k.proc.URL(), 40*time.Second)
	return k.countCuts()
}

// countCuts looks at what the broker logged since the last look.
func (k *killer) countCuts() error {
	b, err := os.ReadFile(k.proc.Log)
	if err != nil {
		return err
	}
	fresh := b[min(k.logSeen, int64(len(b))):]
	k.logSeen = int64(len(b))
	for line := range bytes.Lines(fresh) {
		if bytes.Contains(line, cutLine) {
			k.cuts++
		}
	}
	return nil
}

// round loads the broker, ends it, starts it again and checks everything.
func (k *killer) round(ctx context.Context, n int) error {
	bodies, clean, err := k.loadUntilEnd(ctx, n)
	if err != nil {
		return err
	}
	if err := k.start(ctx); err != nil {
		return err
	}
	if err := k.verify(ctx); err != nil {
		return err
	}
	if clean {
		k.stops++
	}
	return k.sendAgain(ctx, bodies)
}

// loadUntilEnd loads the broker until it is ended, and books it. It returns the
// transactions whose answer did not come.
func (k *killer) loadUntilEnd(ctx context.Context, n int) (bodies map[string]api.Transaction, clean bool, err error) {
	l := &load{api: k.api, round: n, fan: make(chan struct{})}
	for _, p := range k.book.Partitions() {
		l.backlog.Add(k.book.Inputs(p) - k.book.Covered(p))
	}
	steppers := make([]*stepper, k.steppers)
	makers := make([]*producer, producers)
	fans := make([]*fanner, fanners)
	var wg sync.WaitGroup
	errs := make(chan error, k.steppers+producers+fanners)
	spawn := func(f func(context.Context) error) {
		wg.Go(func() {
			if err := f(ctx); err != nil {
				errs <- err
			}
		})
	}
	for i := range steppers {
		steppers[i] = &stepper{load: l, id: i, rng: rand.New(rand.NewPCG(k.rng.Uint64(), 1)), bodies: map[string]api.Transaction{}}
		spawn(steppers[i].run)
	}
	for i := range makers {
		makers[i] = &producer{load: l, id: i, rng: rand.New(rand.NewPCG(k.rng.Uint64(), 2))}
		spawn(makers[i].run)
	}
	for i := range fans {
		fans[i] = &fanner{load: l, id: i, rng: rand.New(rand.NewPCG(k.rng.Uint64(), 3))}
		spawn(fans[i].run)
	}
	if k.churns {
		spawn((&churner{load: l}).run)
	}
	clean, err = k.end(ctx, l, errs)
	wg.Wait()
	select {
	case werr := <-errs:
		err = errors.Join(err, werr)
	default:
	}
	if err != nil {
		return nil, clean, err
	}
	bodies = k.enter(steppers)
	for _, p := range makers {
		k.book.Add(p.pushes...)
	}
	for _, p := range fans {
		k.book.Add(p.pushes...)
	}
	k.api.Close()
	return bodies, clean, nil
}

// endLoad lets the load run for a random time and then ends the broker: with
// SIGTERM now and then, else with SIGKILL, at once or when an entry is being
// written.
func (k *killer) endLoad(ctx context.Context, l *load, errs chan error) (clean bool, err error) {
	defer l.stop.Store(true)
	const least = 50 * time.Millisecond
	err = k.pause(ctx, least+time.Duration(k.rng.Int64N(int64(max(1, k.longest-least)))), errs)
	close(l.fan)
	if err == nil {
		err = k.pause(ctx, 50*time.Millisecond+time.Duration(k.rng.Int64N(int64(250*time.Millisecond))), errs)
	}
	if err != nil {
		return false, err
	}
	switch how := k.rng.IntN(10); {
	case how == 0:
		return true, k.proc.Stop(5 * time.Second)
	case how < 6:
		return false, k.killAimed(ctx)
	}
	k.proc.Kill()
	return false, nil
}

// pause waits while the load runs; an error of a worker ends it early.
func (k *killer) pause(ctx context.Context, d time.Duration, errs chan error) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case err := <-errs:
		return err
	case <-ctx.Done():
		return ctx.Err()
	case <-k.proc.Done():
		return fmt.Errorf("the broker ended by itself; the end of its log:\n%s", k.proc.Tail(15))
	case <-t.C:
		return nil
	}
}

// enter books the round and returns the transactions whose answer did not come.
func (k *killer) enter(steppers []*stepper) map[string]api.Transaction {
	bodies := map[string]api.Transaction{}
	for _, w := range steppers {
		k.steps += w.steps
		for _, a := range w.attempts {
			k.book.AddStep(a)
			if a.Fate == history.Unknown {
				k.unknowns++
				bodies[a.ID] = w.bodies[a.ID]
			}
		}
	}
	return bodies
}
