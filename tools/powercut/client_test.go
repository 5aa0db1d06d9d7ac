package powercut

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"queen/internal/history"
	"queen/tools/internal/api"
)

const (
	queues     = 4
	partitions = 3
	clients    = 4
	group      = "work"
	lease      = 2 // seconds
	keep       = 7 * 86400
	longest    = 1500 // ms that a timer waits at most
)

func queueName(i int) string { return "q" + strconv.Itoa(i) }

// books is everything that is known of an epoch. The lock is for clients.
type books struct {
	sync.Mutex
	messages  *history.Messages
	work      *history.Group
	timers    *history.Timers
	registers *history.Registers
	counters  *history.Counters
	units     []*unit // whose parts are to be compared
	offsets   map[string]offsetOf
	letters   map[string]bool // dead letters that were read
}

type offsetOf struct {
	stream string
	offset int64
}

// unit is a transaction with the messages that it settles.
type unit struct {
	history.Unit
	stream  string
	settles []int64
}

func newBooks() *books {
	return &books{
		messages: history.NewMessages(), work: history.NewGroup(group), timers: history.NewTimers(), registers: history.NewRegisters(),
		counters: history.NewCounters(), offsets: map[string]offsetOf{}, letters: map[string]bool{},
	}
}

// client sends calls one after another. What it alone writes (its keys, its
// timers, its scratch queue) has an exact expected value.
type client struct {
	id  int
	rng *rand.Rand
	b   *books
	api *api.Client
	// dead is done once the process would be gone: an answer that comes later
	// does not count.
	dead context.Context

	sent     int
	versions map[string]int64          // of its keys, as answered; absent: not known
	pending  map[string]*history.Timer // by key
	pushed   []*history.Push           // answered ones, to be sent again
	lost     []*history.Push           // of a call without an answer, to be sent again after the restart
	scratch  scratch
}

// scratch is a queue that its client makes, fills and deletes.
type scratch struct {
	life   int
	pushes int // in this life
	exists history.Fate
	open   []*history.Push // of this life, not yet handed to the books
}

func newClient(id int, seed uint64, b *books) *client {
	return &client{
		id: id, rng: rand.New(rand.NewPCG(seed, uint64(id))), b: b, versions: map[string]int64{}, pending: map[string]*history.Timer{},
		scratch: scratch{exists: history.Refused},
	}
}

// fate is what an error of a call says of it; an answer that nobody expects is
// an error of the test.
func fate(err error) (history.Fate, error) {
	var s *api.StatusError
	switch {
	case err == nil:
		return history.Answered, nil
	case !errors.As(err, &s):
		return history.Unknown, nil // the connection ended
	case s.Unknown():
		return history.Unknown, nil
	case s.Status == 507 || s.Status == 429:
		return history.Refused, nil
	}
	return history.Refused, err
}

var errGone = errors.New("the broker is gone")

// settle books the outcome of a call under the lock and says how to go on.
func (c *client) settle(err error, fn func(f history.Fate) error) error {
	f, wrong := fate(err)
	if wrong != nil {
		return wrong
	}
	c.b.Lock()
	defer c.b.Unlock()
	if err := fn(f); err != nil {
		return err
	}
	if f == history.Unknown {
		return errGone
	}
	return nil
}

func (c *client) name() string {
	c.sent++
	return fmt.Sprintf("c%d-%d", c.id, c.sent)
}

// run sends up to n calls, with pauses between them.
func (c *client) run(n int) error {
	for range n {
		time.Sleep(time.Duration(c.rng.IntN(30)) * time.Millisecond * time.Duration(c.rng.IntN(2)))
		if err := c.call(); errors.Is(err, errGone) {
			return nil
		} else if err != nil {
			return fmt.Errorf("client %d: %w", c.id, err)
		}
	}
	return nil
}

func (c *client) call() error {
	if len(c.lost) > 0 {
		return c.resend()
	}
	calls := []func() error{c.push, c.push, c.push, c.again, c.pop, c.pop, c.pop, c.pop, c.put, c.put, c.drop, c.incr, c.schedule, c.schedule,
		c.cancel, c.useScratch, c.useScratch}
	return pick(c.rng, calls...)()
}

func (c *client) messages(n int, u *history.Unit) (pushes []*history.Push, items []api.Item) {
	queue := c.rng.IntN(queues)
	for range n {
		if c.rng.IntN(3) == 0 {
			queue = c.rng.IntN(queues)
		}
		p := "p" + strconv.Itoa(c.rng.IntN(partitions))
		id := c.name()
		pushes = append(pushes, &history.Push{ID: id, Stream: history.StreamName(queueName(queue), p), Offset: -1, Unit: u})
		items = append(items, api.Item{Queue: queueName(queue), Partition: p, TransactionID: id, Payload: c.payload(id)})
	}
	return pushes, items
}

// payload is mostly short, sometimes long enough to be compressed.
func (c *client) payload(id string) any {
	if c.rng.IntN(8) > 0 {
		return map[string]any{"id": id}
	}
	return map[string]any{"id": id, "pad": strings.Repeat(strconv.FormatUint(c.rng.Uint64(), 36), 10+c.rng.IntN(200))}
}

func (c *client) push() error {
	pushes, items := c.messages(1+c.rng.IntN(5), nil)
	got, err := c.api.Push(c.dead, items...)
	return c.settle(err, func(f history.Fate) error {
		if f == history.Unknown {
			c.lost = pushes
		}
		for i, p := range pushes {
			if p.Fate = f; f != history.Answered {
				continue
			}
			if got[i].Status != "queued" {
				return fmt.Errorf("push %s: status %s, expected queued", p.ID, got[i].Status)
			}
			p.Offset = got[i].Offset
			c.pushed = append(c.pushed, p)
		}
		c.b.messages.Add(pushes...)
		return nil
	})
}

// resend sends messages again of which it is known by now whether they are there
// (B10): those that are not are stored, the others are duplicates.
func (c *client) resend() error {
	lost := c.lost
	var items []api.Item
	for _, p := range lost {
		queue, partition, _ := strings.Cut(p.Stream, "/")
		items = append(items, api.Item{Queue: queue, Partition: partition, TransactionID: p.ID, Payload: c.payload(p.ID)})
	}
	got, err := c.api.Push(c.dead, items...)
	return c.settle(err, func(f history.Fate) error {
		if f == history.Answered {
			c.lost = nil
		}
		for i, p := range lost {
			switch {
			case f == history.Answered && p.Seen() && (got[i].Status != "duplicate" || got[i].Offset != p.Offset):
				return fmt.Errorf("push %s, which is at offset %d: %s at %d when sent again", p.ID, p.Offset, got[i].Status, got[i].Offset)
			case f == history.Answered && !p.Seen() && got[i].Status != "queued":
				return fmt.Errorf("push %s, which is not there: %s when sent again", p.ID, got[i].Status)
			case p.Seen():
				continue
			case f == history.Answered:
				p.Offset = got[i].Offset
			}
			p.Fate = f
			c.b.messages.Add(p)
		}
		return nil
	})
}

// again sends a message that was answered once more.
func (c *client) again() error {
	if len(c.pushed) == 0 {
		return nil
	}
	p := pick(c.rng, c.pushed...)
	queue, partition, _ := strings.Cut(p.Stream, "/")
	got, err := c.api.Push(c.dead, api.Item{Queue: queue, Partition: partition, TransactionID: p.ID, Payload: "another"})
	return c.settle(err, func(f history.Fate) error {
		if f == history.Answered && (got[0].Status != "duplicate" || got[0].Offset != p.Offset) {
			return fmt.Errorf("push %s again: %s at %d, expected a duplicate of offset %d", p.ID, got[0].Status, got[0].Offset, p.Offset)
		}
		return nil
	})
}

// pop takes a batch and does something with it.
func (c *client) pop() error {
	q := url.Values{"consumerGroup": {group}, "subscriptionMode": {"all"}, "batch": {strconv.Itoa(1 + c.rng.IntN(6))},
		"leaseSeconds": {strconv.Itoa(lease)}}
	if c.rng.IntN(3) == 0 {
		q.Set("wait", "true")
		q.Set("timeout", "400")
	}
	queue := queueName(c.rng.IntN(queues))
	c.b.Lock()
	begun := c.b.work.Begin()
	c.b.Unlock()
	ms, err := c.api.Pop(c.dead, queue, q)
	if err := c.settle(err, func(history.Fate) error {
		if len(ms) == 0 {
			return nil
		}
		return c.b.work.Delivered(history.StreamName(queue, ms[0].Partition), offsets(ms), begun)
	}); err != nil || len(ms) == 0 {
		return err
	}
	time.Sleep(time.Duration(c.rng.IntN(50)) * time.Millisecond)
	switch c.rng.IntN(8) {
	case 0:
		return nil // the lease runs out
	case 1:
		if err := c.extend(ms); err != nil {
			return err
		}
		return c.ack(queue, ms)
	case 2, 3, 4:
		return c.step(queue, ms)
	}
	return c.ack(queue, ms)
}

func offsets(ms []api.Message) (out []int64) {
	for _, m := range ms {
		out = append(out, m.Offset)
	}
	return out
}

func (c *client) extend(ms []api.Message) error {
	ok, err := c.api.Extend(c.dead, ms[0].LeaseID, 1+c.rng.IntN(5))
	return c.settle(err, func(f history.Fate) error {
		if f == history.Answered && !ok {
			return errors.New("a live lease was not extended")
		}
		return nil
	})
}

// ack settles a batch in one call: all of it, some of it, or with failures.
func (c *client) ack(queue string, ms []api.Message) error {
	stream := history.StreamName(queue, ms[0].Partition)
	status := make([]string, len(ms))
	mentioned := c.rng.IntN(len(ms)) // the last one
	status[mentioned] = "completed"
	switch c.rng.IntN(4) {
	case 0:
		for i := range mentioned {
			if c.rng.IntN(2) == 0 {
				status[i] = pick(c.rng, "completed", "failed", "retry", "dlq")
			}
		}
	case 1:
		status[mentioned] = pick(c.rng, "failed", "retry")
	default:
		mentioned = len(ms) - 1
		status = slices.Repeat([]string{"completed"}, len(ms))
	}
	var items []api.AckItem
	var at []int
	for i, s := range status {
		if s != "" {
			items = append(items, api.AckItem{TransactionID: ms[i].TransactionID, PartitionID: ms[i].PartitionID, LeaseID: ms[i].LeaseID, Status: s})
			at = append(at, i)
		}
	}
	got, err := c.api.AckBatch(c.dead, group, items)
	return c.settle(err, func(f history.Fate) error {
		if f == history.Unknown {
			for _, m := range ms[:mentioned+1] {
				c.b.work.MaybeSettled(stream, m.Offset)
			}
			return nil
		}
		return c.bookAck(stream, ms, status, at, got)
	})
}

// bookAck books an answered ack. Everything below the lowest message that comes
// back is settled, and so is what was completed above it.
func (c *client) bookAck(stream string, ms []api.Message, status []string, at []int, got []api.Acked) error {
	for i, a := range got {
		if !a.Success {
			if a.Error == nil || !strings.Contains(*a.Error, "lease") {
				return fmt.Errorf("ack %s as %s: %+v", ms[at[i]].TransactionID, status[at[i]], a)
			}
			return nil // the lease is over, so nothing of the call was carried out
		}
	}
	comesBack := len(ms)
	filed := map[int]bool{}
	for i, a := range got {
		filed[at[i]] = a.DLQ
		if (status[at[i]] == "failed" || status[at[i]] == "retry") && !a.DLQ {
			comesBack = min(comesBack, at[i])
		}
	}
	for i := range at[len(at)-1] + 1 {
		if s := status[i]; !filed[i] && (s == "completed" || s == "" && i < comesBack) {
			c.b.work.Settled(stream, ms[i].Offset)
		}
	}
	return nil
}

// step commits what follows from a batch in one transaction.
func (c *client) step(queue string, ms []api.Message) error {
	id := c.name()
	u := &unit{Unit: history.Unit{ID: id}, stream: history.StreamName(queue, ms[0].Partition), settles: offsets(ms)}
	t := api.Transaction{
		Operations: []api.Operation{api.Ack(ms[len(ms)-1], group)},
		KV: []api.KVOp{
			{Op: "incr", NS: "sum", Key: "units", Delta: float64(len(ms)), TTLSeconds: keep},
			{Op: "putIfAbsent", NS: "unit", Key: id, Value: id, TTLSeconds: keep, Required: true},
		},
	}
	pushes, items := c.messages(c.rng.IntN(5), &u.Unit)
	if len(items) > 0 {
		t.Operations = append(t.Operations, api.Operation{Type: "push", Items: items})
	}
	var timer *history.Timer
	if c.rng.IntN(3) == 0 {
		timer = &history.Timer{ID: id, Back: history.Refused, Unit: &u.Unit}
		op := c.timer(id, id)
		timer.Due = due(op)
		t.Timers = []api.TimerOp{op}
	}
	v, err := c.api.Transact(c.dead, t)
	return c.settle(err, func(f history.Fate) error {
		if f == history.Answered && !v.Success {
			if f = history.Refused; v.Reason != "rejected_ack" {
				return fmt.Errorf("step %s: %s: %s", id, v.Reason, v.Error)
			}
		}
		u.Fate = f
		for _, p := range pushes {
			p.Fate = f
		}
		c.b.messages.Add(pushes...)
		c.b.units = append(c.b.units, u)
		c.b.counters.AddUnit("units", int64(len(ms)), &u.Unit)
		if timer != nil {
			c.b.timers.Add(timer)
		}
		if f == history.Answered {
			for _, o := range u.settles {
				c.b.work.Settled(u.stream, o)
			}
		}
		return nil
	})
}

func (c *client) key() string { return fmt.Sprintf("c%d-k%d", c.id, c.rng.IntN(3)) }

// put writes one of its keys, half of the time only over the version it knows.
func (c *client) put() error {
	key, value := c.key(), c.name()
	op := api.KVOp{Op: "put", NS: "own", Key: key, Value: value, TTLSeconds: keep}
	version, known := c.versions[key]
	if known && c.rng.IntN(2) == 0 {
		op.Expect = &version
	}
	got, err := c.api.KV(c.dead, op)
	return c.settle(err, func(f history.Fate) error {
		delete(c.versions, key)
		if f == history.Answered {
			if !got[0].Applied || got[0].Version <= version {
				return fmt.Errorf("put %s over version %d (known: %v): %+v", key, version, known, got[0])
			}
			c.versions[key] = got[0].Version
		}
		c.b.registers.Set("own/"+key, value, f)
		return nil
	})
}

// drop deletes one of its keys.
func (c *client) drop() error {
	key := c.key()
	_, err := c.api.KV(c.dead, api.KVOp{Op: "delete", NS: "own", Key: key})
	return c.settle(err, func(f history.Fate) error {
		delete(c.versions, key)
		if f == history.Answered {
			c.versions[key] = 0
		}
		c.b.registers.Set("own/"+key, "", f)
		return nil
	})
}

// incr adds to a counter that all share. The deltas tell who was lost.
func (c *client) incr() error {
	delta := int64(1) << c.id
	got, err := c.api.KV(c.dead, api.KVOp{Op: "incr", NS: "sum", Key: "shared", Delta: float64(delta), TTLSeconds: keep})
	return c.settle(err, func(f history.Fate) error {
		if f == history.Answered && !got[0].Applied {
			return fmt.Errorf("incr: %+v", got[0])
		}
		c.b.counters.Add("shared", delta, f)
		return nil
	})
}

func (c *client) timer(key, id string) api.TimerOp {
	payload, err := json.Marshal(id)
	if err != nil {
		panic(err) // a string
	}
	return api.TimerOp{Op: "schedule", Queue: "fired", TimerKey: key, Partition: "p" + strconv.Itoa(c.rng.IntN(partitions)),
		DelayMs: c.rng.Int64N(longest), Txn: id, Payload: payload}
}

// due is when a timer that is sent now may fire. The broker's clock is at most
// 1% off.
func due(op api.TimerOp) time.Time {
	return time.Now().Add(time.Duration(op.DelayMs) * 990 * time.Microsecond)
}

// schedule sets a timer, half of the time over a pending one.
func (c *client) schedule() error {
	id := c.name()
	key, old := id, (*history.Timer)(nil)
	if keys := c.pendingKeys(); len(keys) > 0 && c.rng.IntN(2) == 0 {
		key = pick(c.rng, keys...)
		old = c.pending[key]
	}
	op := c.timer(key, id)
	t := &history.Timer{ID: id, Due: due(op), Back: history.Refused}
	got, err := c.api.Timers(c.dead, op)
	return c.settle(err, func(f history.Fate) error {
		if t.Fate = f; f == history.Answered {
			t.Due = got[0].DeliverAt
		}
		if old != nil {
			old.Back = f
			if f == history.Answered && got[0].Status == "scheduled" {
				old.Back = history.Refused // it had fired
			}
		}
		c.pending[key] = t
		c.b.timers.Add(t)
		return nil
	})
}

func (c *client) cancel() error {
	keys := c.pendingKeys()
	if len(keys) == 0 {
		return nil
	}
	key := pick(c.rng, keys...)
	got, err := c.api.Timers(c.dead, api.TimerOp{Op: "cancel", Queue: "fired", TimerKey: key})
	return c.settle(err, func(f history.Fate) error {
		t := c.pending[key]
		if t.Back = f; f == history.Answered && got[0].Status == "absent" {
			t.Back = history.Refused
		}
		delete(c.pending, key)
		return nil
	})
}

func (c *client) pendingKeys() []string {
	var keys []string
	for k := range c.pending {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

func (c *client) scratchName() string { return "scratch" + strconv.Itoa(c.id) }

// useScratch makes the client's queue, sets an option of it, pushes to it or
// deletes it.
func (c *client) useScratch() error {
	q := c.scratchName()
	s := &c.scratch
	switch what := c.rng.IntN(8); {
	case s.exists != history.Answered || what < 2:
		limit := 1 + c.rng.IntN(1000)
		err := c.api.Configure(c.dead, q, map[string]any{"retryLimit": limit})
		return c.settle(err, func(f history.Fate) error {
			if s.exists != history.Answered {
				s.life++
				s.exists, s.pushes = f, 0
			}
			c.b.registers.Set(q, strconv.Itoa(limit), f)
			return nil
		})
	case what < 3:
		err := c.api.DeleteQueue(c.dead, q)
		return c.settle(err, func(f history.Fate) error {
			switch f {
			case history.Answered:
				s.exists, s.open = history.Refused, nil
			case history.Unknown:
				s.exists = history.Unknown
			}
			c.b.registers.Set(q, "", f)
			return nil
		})
	}
	id := c.name()
	p := &history.Push{ID: id, Stream: s.stream(q), Offset: -1}
	s.pushes++
	txn := "same in every life " + strconv.Itoa(s.pushes)
	got, err := c.api.Push(c.dead, api.Item{Queue: q, Partition: "p", TransactionID: txn, Payload: id})
	return c.settle(err, func(f history.Fate) error {
		if p.Fate = f; f == history.Answered {
			if got[0].Status != "queued" {
				return fmt.Errorf("push %s to life %d of %s: status %s, expected queued", id, s.life, q, got[0].Status)
			}
			p.Offset = got[0].Offset
		}
		s.open = append(s.open, p)
		return nil
	})
}

func (s *scratch) stream(queue string) string {
	return history.StreamName(queue+"#"+strconv.Itoa(s.life), "p")
}
