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

	"queen/tools/internal/api"
	"queen/tools/internal/broker"
)

// killer runs the rounds.
type killer struct {
	queen, dir string
	seed       uint64
	rounds     int
	steppers   int
	longest    time.Duration
	allowNoCut bool

	book    *book
	proc    *broker.Process
	api     *api.Client
	rng     *rand.Rand
	port    int
	logSeen int64 // bytes of the log that cuts were looked for in

	steps, unknowns, applied, cuts, retried, bootKills, stops int
}

// cutLine is what a start writes to its log when it took back entries that were
// not whole.
var cutLine = []byte("torn tail cut")

const producers = 2

func (k *killer) run(ctx context.Context) (err error) {
	fmt.Printf("seed %d\n", k.seed)
	if err := os.RemoveAll(k.dir); err != nil {
		return err
	}
	k.book, k.rng = newBook(), rand.New(rand.NewPCG(k.seed, 0))
	if k.port, err = broker.FreePort(); err != nil {
		return err
	}
	defer func() {
		if k.proc != nil {
			k.proc.Kill()
		}
		if err != nil {
			err = fmt.Errorf("%w\n(seed %d; data and log are in %s)", err, k.seed, k.dir)
		}
	}()
	if err := k.start(ctx); err != nil {
		return err
	}
	for n := range k.rounds {
		if err := k.round(ctx, n); err != nil {
			return fmt.Errorf("round %d: %w", n, err)
		}
	}
	return k.finish()
}

func (k *killer) finish() error {
	if err := k.proc.Stop(5 * time.Second); err != nil {
		return err
	}
	k.proc = nil
	fmt.Printf("%d rounds: %d steps, %d answers lost of which %d had been applied, %d of them sent again, "+
		"%d kills during a start, %d clean stops, %d starts had something to cut\n",
		k.rounds, k.steps, k.unknowns, k.applied, k.retried, k.bootKills, k.stops, k.cuts)
	if k.cuts == 0 && !k.allowNoCut {
		return errors.New("no start had anything to cut: the kills missed what they are for; more rounds, or a longer load")
	}
	return os.RemoveAll(k.dir)
}

func (k *killer) options() broker.Options {
	return broker.Options{Binary: k.queen, Dir: filepath.Join(k.dir, "data"), Port: k.port}
}

// start starts the broker, now and then after a start that is killed half way.
func (k *killer) start(ctx context.Context) error {
	for len(k.book.attempts) > 0 && k.rng.IntN(4) == 0 {
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
	l := &load{api: k.api, round: n}
	for _, p := range k.book.partitions() {
		l.backlog.Add(k.book.in[p] - k.book.audit[p])
	}
	steppers := make([]*stepper, k.steppers)
	makers := make([]*producer, producers)
	var wg sync.WaitGroup
	errs := make(chan error, k.steppers+producers)
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
	clean, err := k.endLoad(ctx, l, errs)
	wg.Wait()
	select {
	case werr := <-errs:
		err = errors.Join(err, werr)
	default:
	}
	if err != nil {
		return err
	}
	bodies := k.enter(steppers, makers)
	k.api.Close()
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

// endLoad lets the load run for a random time and then ends the broker: with
// SIGTERM now and then, else with SIGKILL.
func (k *killer) endLoad(ctx context.Context, l *load, errs chan error) (clean bool, err error) {
	least := 50 * time.Millisecond
	t := time.NewTimer(least + time.Duration(k.rng.Int64N(int64(max(1, k.longest-least)))))
	defer t.Stop()
	select {
	case err := <-errs:
		l.stop.Store(true)
		return false, err
	case <-ctx.Done():
		l.stop.Store(true)
		return false, ctx.Err()
	case <-k.proc.Done():
		l.stop.Store(true)
		return false, fmt.Errorf("the broker ended by itself; the end of its log:\n%s", k.proc.Tail(15))
	case <-t.C:
	}
	if clean = k.rng.IntN(10) == 0; clean {
		err = k.proc.Stop(5 * time.Second)
	} else {
		k.proc.Kill()
	}
	l.stop.Store(true)
	return clean, err
}

// enter books the round and returns the transactions whose answer did not come.
func (k *killer) enter(steppers []*stepper, makers []*producer) map[string]api.Transaction {
	bodies := map[string]api.Transaction{}
	for _, w := range steppers {
		k.steps += w.steps
		for _, a := range w.attempts {
			k.book.addAttempt(a)
			if a.fate == unknown {
				k.unknowns++
				bodies[a.id] = w.bodies[a.id]
			}
		}
	}
	for _, p := range makers {
		for _, x := range p.pushes {
			k.book.addPush(x)
		}
	}
	return bodies
}
