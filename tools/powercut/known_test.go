package powercut

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/url"
	"strconv"
	"sync"
	"testing"
	"time"

	"queen/internal/vfs"
	"queen/server"
	"queen/tools/internal/api"
)

// onOne runs fn on a fresh broker in a bubble.
func onOne(t *testing.T, fn func(n *node) error) {
	bubble(t, func(t *testing.T) {
		n, err := start(vfs.NewMem(1), server.StorageConfig{Logger: testLog(t)}, server.Config{})
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(fn(n), n.stop()); err != nil {
			t.Error(err)
		}
	})
}

// B09: who reads while transactions commit sees whole ones only: two keys that
// are always set together are equal, and what was popped from one queue is in
// the keys and in the other queue.
func TestB09NoHalfTransactionIsRead(t *testing.T) {
	const writes = 300
	onOne(t, func(n *node) error {
		var wg sync.WaitGroup
		errs := make(chan error, 3)
		run := func(fn func() error) {
			wg.Go(func() {
				if err := fn(); err != nil {
					errs <- err
				}
			})
		}
		run(func() error {
			for i := range writes {
				v, err := n.Transact(n.dead, api.Transaction{
					Operations: []api.Operation{{Type: "push", Items: []api.Item{{Queue: "x", Payload: i}, {Queue: "y", Payload: i}}}},
					KV:         []api.KVOp{{Op: "put", NS: "n", Key: "a", Value: i, TTLSeconds: keep}, {Op: "put", NS: "n", Key: "b", Value: i, TTLSeconds: keep}},
				})
				if err != nil || !v.Success {
					return fmt.Errorf("transaction %d: %+v %w", i, v, err)
				}
			}
			return nil
		})
		run(func() error { return readPairs(n, writes) })
		run(func() error { return readBehind(n, writes) })
		wg.Wait()
		close(errs)
		return <-errs
	})
}

// pair reads both keys in one call.
func pair(n *node) (a, b int, err error) {
	rows, err := n.KVGetMany(n.dead, "n", []string{"a", "b"})
	if err != nil || len(rows) == 0 {
		return -1, -1, err
	}
	return a, b, errors.Join(json.Unmarshal(rows["a"], &a), json.Unmarshal(rows["b"], &b))
}

func readPairs(n *node, writes int) error {
	for last := -1; last < writes-1; {
		a, b, err := pair(n)
		switch {
		case err != nil:
			return err
		case a != b:
			return fmt.Errorf("one read has a=%d and b=%d", a, b)
		case a < last:
			return fmt.Errorf("a went back from %d to %d", last, a)
		}
		last = a
	}
	return nil
}

// readBehind pops from x, and looks for the rest of what came with it.
func readBehind(n *node, writes int) error {
	query := url.Values{"consumerGroup": {"g"}, "subscriptionMode": {"all"}, "commitOnDelivery": {"true"}, "batch": {"1"}, "wait": {"true"}, "timeout": {"5000"}}
	pop := func(queue string) (v int, err error) {
		ms, err := n.Pop(n.dead, queue, query)
		if err == nil && len(ms) != 1 {
			err = fmt.Errorf("%s has %d messages, expected one", queue, len(ms))
		}
		if err != nil {
			return 0, err
		}
		return v, json.Unmarshal(ms[0].Data, &v)
	}
	for i := range writes {
		x, err := pop("x")
		if err != nil {
			return err
		}
		a, _, err := pair(n)
		if err != nil {
			return err
		}
		query.Del("wait") // it is there already
		y, err := pop("y")
		if err != nil {
			return err
		}
		query.Set("wait", "true")
		if x != i || y != i || a < i {
			return fmt.Errorf("message %d of x is %d; y has %d, a is %d", i, x, y, a)
		}
	}
	return nil
}

// B10: ids of a refused transaction stay free.
func TestB10RefusedIdsStayFree(t *testing.T) {
	onOne(t, func(n *node) error {
		item := api.Item{Queue: "q", TransactionID: "t", Payload: 1}
		zero := int64(0)
		if _, err := n.KV(n.dead, api.KVOp{Op: "put", NS: "n", Key: "k", Value: 1, TTLSeconds: keep}); err != nil {
			return err
		}
		v, err := n.Transact(n.dead, api.Transaction{
			Operations: []api.Operation{{Type: "push", Items: []api.Item{item}}},
			KV:         []api.KVOp{{Op: "put", NS: "n", Key: "k", Value: 2, TTLSeconds: keep, Expect: &zero, Required: true}},
		})
		if err != nil || v.Success {
			return fmt.Errorf("%+v %w", v, err)
		}
		for _, want := range []string{"queued", "duplicate"} {
			got, err := n.Push(n.dead, item)
			if err != nil || got[0].Status != want || got[0].Offset != 0 {
				return fmt.Errorf("%+v, expected %s: %w", got, want, err)
			}
		}
		return nil
	})
}

// B31: of conditional writes that expect one version one wins.
func TestB31OneWinnerForEachVersion(t *testing.T) {
	const writers, each = 16, 20
	onOne(t, func(n *node) error {
		var wg sync.WaitGroup
		var mu sync.Mutex
		won := map[int64]int{} // by the version that was expected
		errs := make(chan error, writers)
		for w := range writers {
			wg.Go(func() {
				for range each {
					row, err := n.KVGet(n.dead, "n", "k")
					if err != nil {
						errs <- err
						return
					}
					expect := row.Version
					got, err := n.KV(n.dead, api.KVOp{Op: "put", NS: "n", Key: "k", Value: w, TTLSeconds: keep, Expect: &expect})
					if err != nil {
						errs <- err
						return
					}
					if got[0].Applied {
						mu.Lock()
						won[expect]++
						mu.Unlock()
					}
				}
			})
		}
		wg.Wait()
		close(errs)
		if err := <-errs; err != nil {
			return err
		}
		for version, n := range won {
			if n != 1 {
				return fmt.Errorf("%d writes over version %d won", n, version)
			}
		}
		if len(won) == 0 {
			return errors.New("nobody won")
		}
		return nil
	})
}

// B50: on an idle broker a timer wakes who waits, in due order, never early and
// hardly late: alone, in a transaction, set in reverse order, cancelled before
// another one, replaced by an earlier one, two at the same time.
func TestB50TimersWakeWhoWaits(t *testing.T) {
	for name, c := range map[string]struct {
		ops  []api.TimerOp
		want []int64 // delays, in the order in which they come
	}{
		"one":                    {timers(2000), []int64{2000}},
		"in reverse order":       {timers(1000, 900, 800, 700, 600, 500, 400, 300, 200, 100), []int64{100, 200, 300, 400, 500, 600, 700, 800, 900, 1000}},
		"the first is cancelled": {append(timers(500, 800), api.TimerOp{Op: "cancel", Queue: "t", TimerKey: "0"}), []int64{800}},
		"replaced by an earlier": {append(timers(5000), api.TimerOp{Op: "schedule", Queue: "t", TimerKey: "0", DelayMs: 300, Txn: "300", Payload: []byte("300")}),
			[]int64{300}},
		"two at once": {timers(700, 700), []int64{700, 700}},
		"at once":     {timers(0), []int64{0}},
	} {
		for _, inTransaction := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, in a transaction: %v", name, inTransaction), func(t *testing.T) {
				onOne(t, func(n *node) error { return waitForTimers(n, c.ops, c.want, inTransaction) })
			})
		}
	}
}

// timers sets one for each delay, whose key is its number.
func timers(delays ...int64) (ops []api.TimerOp) {
	for i, d := range delays {
		ops = append(ops, api.TimerOp{Op: "schedule", Queue: "t", TimerKey: strconv.Itoa(i), DelayMs: d, Payload: []byte(strconv.FormatInt(d, 10))})
	}
	return ops
}

func waitForTimers(n *node, ops []api.TimerOp, want []int64, inTransaction bool) error {
	time.Sleep(time.Duration(10+rand.N(10)) * time.Second) // nothing happens
	begun := time.Now()
	set := make(chan error, 1)
	go func() {
		time.Sleep(time.Millisecond) // the consumer waits already
		for _, op := range ops {
			var err error
			if inTransaction {
				_, err = n.Transact(n.dead, api.Transaction{Timers: []api.TimerOp{op}})
			} else {
				_, err = n.Timers(n.dead, op)
			}
			if err != nil {
				set <- err
				return
			}
		}
		set <- nil
	}()
	query := url.Values{"consumerGroup": {"g"}, "subscriptionMode": {"all"}, "commitOnDelivery": {"true"}, "batch": {"1"}, "wait": {"true"}, "timeout": {"30000"}}
	for _, delay := range want {
		ms, err := n.Pop(n.dead, "t", query)
		if err != nil || len(ms) != 1 {
			return fmt.Errorf("%d messages: %w", len(ms), err)
		}
		took := time.Since(begun)
		due := time.Duration(delay) * time.Millisecond
		if got := string(ms[0].Data); got != strconv.FormatInt(delay, 10) || took < due*99/100 || took > due+500*time.Millisecond {
			return fmt.Errorf("after %v came the timer of %s ms, expected the one of %d ms", took, got, delay)
		}
	}
	return <-set
}
