package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"queen/tools/internal/api"
	"queen/tools/internal/broker"
)

// deadlock sends transactions that overlap in every order. Each acks a message
// in 2 to 8 of 20 partitions and pushes one to each, in an order of its own; a
// planner that locked what it touches could wait in a circle. Beside them go
// plain pushes to the same partitions.
type deadlock struct {
	queen, dir              string
	seed                    uint64
	calls, workers, pushers int

	api   *api.Client
	sent  atomic.Int64
	seeds [ring][]api.Message // a few messages of each partition, to be acked
}

const ring = 20

func (d *deadlock) run(ctx context.Context) (err error) {
	fmt.Printf("seed %d\n", d.seed)
	if err := os.RemoveAll(d.dir); err != nil {
		return err
	}
	p, err := broker.Start(ctx, broker.Options{Binary: d.queen, Dir: filepath.Join(d.dir, "data")})
	if err != nil {
		return err
	}
	defer p.Kill()
	d.api = api.New(p.URL(), 60*time.Second)
	if err := d.prepare(ctx); err != nil {
		return fmt.Errorf("prepare: %w", err)
	}
	start := time.Now()
	pushes, err := d.load(ctx)
	if err != nil {
		return fmt.Errorf("%w (seed %d)", err, d.seed)
	}
	fmt.Printf("%d transactions and %d pushes beside them, all answered, in %.1f s\n", d.calls, pushes, time.Since(start).Seconds())
	if err := p.Stop(5 * time.Second); err != nil {
		return err
	}
	return os.RemoveAll(d.dir)
}

// prepare pushes a few messages to each partition and claims them, so that the
// group has a cursor everywhere. The leases are given up: unfenced acks follow.
func (d *deadlock) prepare(ctx context.Context) error {
	const each = 50
	for p := range ring {
		var items []api.Item
		for i := range each {
			items = append(items, api.Item{Queue: "ring", Partition: partitionName(p), TransactionID: fmt.Sprintf("seed-%d-%d", p, i), Payload: i})
		}
		if _, err := d.api.Push(ctx, items...); err != nil {
			return err
		}
	}
	ms, err := d.api.Pop(ctx, "ring", url.Values{"consumerGroup": {group}, "subscriptionMode": {"all"}, "batch": {strconv.Itoa(each * ring)},
		"partitions": {strconv.Itoa(ring)}})
	if err != nil {
		return err
	}
	for _, m := range ms {
		p, err := strconv.Atoi(m.Partition[1:])
		if err != nil {
			return err
		}
		m.LeaseID = ""
		d.seeds[p] = append(d.seeds[p], m)
	}
	for p := range ring {
		if len(d.seeds[p]) != each {
			return fmt.Errorf("partition %d gave %d messages, expected %d", p, len(d.seeds[p]), each)
		}
	}
	return nil
}

func (d *deadlock) load(ctx context.Context) (pushes int64, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var workers, pushers sync.WaitGroup
	errs := make(chan error, d.workers+d.pushers)
	var done atomic.Bool
	var pushed atomic.Int64
	for i := range d.workers {
		workers.Go(func() {
			rng := rand.New(rand.NewPCG(d.seed, uint64(i)))
			for n := 0; d.sent.Add(1) <= int64(d.calls); n++ {
				if err := d.transact(ctx, rng, fmt.Sprintf("w%d-%d", i, n)); err != nil {
					errs <- err
					cancel()
					return
				}
			}
		})
	}
	for i := range d.pushers {
		pushers.Go(func() {
			rng := rand.New(rand.NewPCG(d.seed, uint64(1000+i)))
			for n := 0; !done.Load(); n++ {
				item := api.Item{Queue: "ring", Partition: partitionName(rng.IntN(ring)), TransactionID: fmt.Sprintf("p%d-%d", i, n), Payload: n}
				if _, err := d.api.Push(ctx, item); err != nil {
					errs <- err
					cancel()
					return
				}
				pushed.Add(1)
			}
		})
	}
	workers.Wait()
	done.Store(true)
	pushers.Wait()
	select {
	case err := <-errs: // the first; the others were cancelled by it
		return 0, err
	default:
		return pushed.Load(), nil
	}
}

// transact sends one call and wants it committed: settled messages are no-ops of
// an unfenced ack, so nothing can refuse it.
func (d *deadlock) transact(ctx context.Context, rng *rand.Rand, id string) error {
	set := rng.Perm(ring)[:2+rng.IntN(7)]
	var t api.Transaction
	for _, p := range set {
		seeds := d.seeds[p]
		t.Operations = append(t.Operations, api.Ack(seeds[rng.IntN(len(seeds))], group))
	}
	rng.Shuffle(len(set), func(i, j int) { set[i], set[j] = set[j], set[i] })
	for _, p := range set {
		t.Operations = append(t.Operations, api.Operation{Type: "push",
			Items: []api.Item{{Queue: "ring", Partition: partitionName(p), TransactionID: id, Payload: id}}})
	}
	v, err := d.api.Transact(ctx, t)
	if err != nil {
		return err
	}
	if !v.Success {
		return errors.New("transaction " + id + ": " + v.Reason + ": " + v.Error)
	}
	return nil
}
