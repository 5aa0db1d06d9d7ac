package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"queen/internal/history"
	"queen/tools/internal/api"
)

const (
	partitions = 32
	outQueues  = 4 // outputs are spread over queues, so that an entry has several logs
	group      = "steps"
	fanners    = 2
	fanQueues  = 48
	fanBytes   = 500
	maxBacklog = 20_000 // messages of the input that the producers stay ahead by
	keep       = 7 * 86400
)

// payloads of the driver.
type (
	inputBody  struct{ N string }
	outputBody struct {
		Step   string
		Source int64
		Pad    string
	}
	auditBody struct {
		Step        string
		First, Last int64
	}
	fanBody struct {
		Sum uint32
		Pad string
	}
)

func partitionName(p int) string { return "p" + strconv.Itoa(p) }

func fanQueue(i int) string { return "fan" + strconv.Itoa(i) }

func outQueue(p string) string {
	n, _ := strconv.Atoi(strings.TrimPrefix(p, "p"))
	return "out" + strconv.Itoa(n%outQueues)
}

// load is the state that the workers of one round share.
type load struct {
	api     *api.Client
	round   int
	stop    atomic.Bool // the broker is gone, or about to be
	backlog atomic.Int64
	fan     chan struct{} // closed just before the kill
}

// ended says whether an error is the end of the broker rather than a wrong
// answer, which is the worker's error.
func ended(err error) bool {
	var s *api.StatusError
	return !errors.As(err, &s) || s.Unknown()
}

// stepper is one worker; attempts is what it sent.
type stepper struct {
	*load
	id       int
	rng      *rand.Rand
	attempts []*history.Step
	bodies   map[string]api.Transaction // of attempts whose answer did not come
	steps    int
}

// run takes steps until the broker is gone.
func (w *stepper) run(ctx context.Context) error {
	for !w.stop.Load() {
		err := w.step(ctx)
		if err == nil {
			continue
		}
		if w.stop.Load() || ended(err) {
			return nil
		}
		return err
	}
	return nil
}

func (w *stepper) step(ctx context.Context) error {
	batch := 1 + w.rng.IntN(10)
	ms, err := w.api.Pop(ctx, "in", url.Values{"consumerGroup": {group}, "subscriptionMode": {"all"}, "batch": {strconv.Itoa(batch)},
		"leaseSeconds": {"5"}, "wait": {"true"}, "timeout": {"300"}})
	if err != nil || len(ms) == 0 {
		return err
	}
	a, t := w.transaction(ms)
	w.attempts = append(w.attempts, a)
	w.bodies[a.ID] = t
	v, err := w.api.TransactKeyed(ctx, t, keyOf(a.ID))
	if err != nil {
		var s *api.StatusError
		if errors.As(err, &s) && !s.Unknown() {
			a.Fate = history.Refused
		}
		return err
	}
	delete(w.bodies, a.ID)
	w.steps++
	a.Fate = history.Answered
	if v.Success {
		w.backlog.Add(-int64(len(ms)))
		return nil
	}
	a.Fate = history.Refused
	// A lease that ran out while the machine was busy is the only good reason.
	if v.Reason != "rejected_ack" {
		return fmt.Errorf("step %s of %s was rolled back: %s: %s", a.ID, a.Partition, v.Reason, v.Error)
	}
	return nil
}

// transaction builds the step of a batch of one partition.
func (w *stepper) transaction(ms []api.Message) (*history.Step, api.Transaction) {
	last := ms[len(ms)-1]
	a := &history.Step{
		ID: fmt.Sprintf("s%d-%d-%d", w.round, w.id, len(w.attempts)), Partition: last.Partition, First: ms[0].Offset, Last: last.Offset,
		Timer: w.rng.IntN(8) == 0,
	}
	pad := 50
	if w.rng.IntN(20) == 0 {
		pad = 20_000 // a long write is easier to tear
	}
	var outs []api.Item
	for _, m := range ms {
		outs = append(outs, api.Item{Queue: outQueue(m.Partition), Partition: m.Partition, TransactionID: "o-" + m.TransactionID,
			Payload: outputBody{a.ID, m.Offset, noise(w.rng, pad)}})
	}
	audit := api.Item{Queue: "audit", Partition: a.Partition, TransactionID: a.ID, Payload: auditBody{a.ID, a.First, a.Last}}
	t := api.Transaction{
		Operations: []api.Operation{api.Ack(last, group), {Type: "push", Items: outs}, {Type: "push", Items: []api.Item{audit}}},
		KV: []api.KVOp{
			{Op: "incr", NS: "count", Key: a.Partition, Delta: float64(len(ms)), TTLSeconds: keep},
			{Op: "put", NS: "last", Key: a.Partition, Value: a.ID, TTLSeconds: keep},
			{Op: "putIfAbsent", NS: "once", Key: markerKey(a), Value: a.ID, TTLSeconds: keep, Required: true},
		},
	}
	if a.Timer {
		payload, err := json.Marshal(inputBody{a.ID})
		if err != nil {
			panic(err) // a string
		}
		t.Timers = []api.TimerOp{{Op: "schedule", Queue: "fired", TimerKey: a.ID, Partition: a.Partition, DelayMs: w.rng.Int64N(200),
			Txn: a.ID, Payload: payload}}
	}
	return a, t
}

// keyOf is the Idempotency-Key of a step: every second one has one.
func keyOf(step string) string {
	if crc32.ChecksumIEEE([]byte(step))%2 == 0 {
		return ""
	}
	return "key-" + step
}

func markerKey(a *history.Step) string { return fmt.Sprintf("%s:%d", a.Partition, a.First) }

// producer pushes input, several messages a call, over several partitions.
type producer struct {
	*load
	id     int
	rng    *rand.Rand
	pushes []*history.Push
}

func (p *producer) run(ctx context.Context) error {
	for !p.stop.Load() {
		if p.backlog.Load() > maxBacklog {
			time.Sleep(time.Millisecond)
			continue
		}
		if err := p.push(ctx); err != nil {
			if p.stop.Load() || ended(err) {
				return nil
			}
			return err
		}
	}
	return nil
}

func (p *producer) push(ctx context.Context) error {
	var items []api.Item
	start := len(p.pushes)
	for range 1 + p.rng.IntN(40) {
		x := &history.Push{ID: fmt.Sprintf("i%d-%d-%d", p.round, p.id, len(p.pushes)), Offset: -1}
		partition := partitionName(p.rng.IntN(partitions))
		x.Stream = history.StreamName("in", partition)
		p.pushes = append(p.pushes, x)
		items = append(items, api.Item{Queue: "in", Partition: partition, TransactionID: x.ID, Payload: inputBody{x.ID}})
	}
	if err := p.send(ctx, p.pushes[start:], items); err != nil {
		return err
	}
	p.backlog.Add(int64(len(items)))
	return nil
}

// send pushes items and books what was answered.
func (l *load) send(ctx context.Context, pushes []*history.Push, items []api.Item) error {
	got, err := l.api.Push(ctx, items...)
	if err != nil {
		return err
	}
	for i, x := range pushes {
		if got[i].Status != "queued" {
			return fmt.Errorf("push %s to %s: status %s, expected queued", x.ID, x.Stream, got[i].Status)
		}
		x.Fate, x.Offset = history.Answered, got[i].Offset
	}
	return nil
}

// fanner pushes to many queues in one transaction, from just before the kill on:
// with a write for each log, it is likely that the kill comes when some of them
// were made and the others were not.
type fanner struct {
	*load
	id     int
	rng    *rand.Rand
	pushes []*history.Push
}

func (w *fanner) run(ctx context.Context) error {
	body := fanBody{Pad: noise(w.rng, fanBytes)}
	body.Sum = crc32.ChecksumIEEE([]byte(body.Pad))
	payload, err := json.Marshal(body)
	if err != nil {
		return err
	}
	select {
	case <-w.fan:
	case <-ctx.Done():
	}
	for !w.stop.Load() {
		if err := w.push(ctx, payload); err != nil {
			if w.stop.Load() || ended(err) {
				return nil
			}
			return err
		}
	}
	return nil
}

func (w *fanner) push(ctx context.Context, payload json.RawMessage) error {
	id := fmt.Sprintf("f%d-%d-%d", w.round, w.id, len(w.pushes))
	unit := &history.Unit{ID: id}
	var all []*history.Push
	var items []api.Item
	for q := range fanQueues {
		all = append(all, &history.Push{ID: id, Stream: history.StreamName(fanQueue(q), "p"), Offset: -1, Unit: unit})
		items = append(items, api.Item{Queue: fanQueue(q), Partition: "p", TransactionID: id, Payload: payload})
	}
	w.pushes = append(w.pushes, all...)
	v, err := w.api.Transact(ctx, api.Transaction{Operations: []api.Operation{{Type: "push", Items: items}}})
	if err != nil {
		return err
	}
	if !v.Success {
		return fmt.Errorf("push %s to many queues: %s: %s", id, v.Reason, v.Error)
	}
	unit.Fate = history.Answered
	for _, x := range all {
		x.Fate = history.Answered
	}
	return nil
}

// noise is text that does not compress much.
func noise(rng *rand.Rand, n int) string {
	b := make([]byte, 0, n+16)
	for len(b) < n {
		b = strconv.AppendUint(b, rng.Uint64(), 36)
	}
	return string(b[:n])
}
