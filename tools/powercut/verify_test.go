package powercut

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	"queen/internal/history"
	"queen/tools/internal/api"
)

// verify reads back what is new and balances the books. Timers that are due
// have fired once quiet is set: it waits for them.
func (b *books) verify(ctx context.Context, n *node, cs []*client, quiet bool) error {
	for q := range queues {
		if err := b.readQueue(ctx, n, queueName(q)); err != nil {
			return err
		}
	}
	for _, c := range cs {
		if err := c.verifyScratch(ctx, n); err != nil {
			return err
		}
	}
	if err := b.compareUnits(ctx, n); err != nil {
		return err
	}
	if err := b.messages.Balance(); err != nil {
		return err
	}
	b.settleUnits()
	if quiet {
		time.Sleep((longest + 500) * time.Millisecond)
	}
	if err := b.readFired(ctx, n); err != nil {
		return err
	}
	if quiet {
		if err := b.timers.Balance(); err != nil {
			return err
		}
	}
	if err := b.compareKV(ctx, n); err != nil {
		return err
	}
	return b.readDeadLetters(ctx, n)
}

// read hands the messages of a queue that the checking group has not had to f.
func read(ctx context.Context, n *node, queue string, f func(m api.Message) error) error {
	query := url.Values{"consumerGroup": {"check"}, "subscriptionMode": {"all"}, "commitOnDelivery": {"true"}, "batch": {"5000"},
		"partitions": {"64"}}
	for {
		ms, err := n.Pop(ctx, queue, query)
		if err != nil || len(ms) == 0 {
			return err
		}
		for _, m := range ms {
			if err := f(m); err != nil {
				return err
			}
		}
	}
}

func (b *books) readQueue(ctx context.Context, n *node, queue string) error {
	return read(ctx, n, queue, func(m api.Message) error {
		var body struct{ ID string }
		if err := json.Unmarshal(m.Data, &body); err != nil || body.ID != m.TransactionID {
			return fmt.Errorf("%s offset %d: the payload of %s is %s (%v)", queue, m.Offset, m.TransactionID, m.Data, err)
		}
		stream := history.StreamName(queue, m.Partition)
		b.offsets[queue+" "+m.TransactionID] = offsetOf{stream, m.Offset}
		return b.messages.Read(stream, m.TransactionID, m.Offset)
	})
}

// verifyScratch compares the client's queue with what it did.
func (c *client) verifyScratch(ctx context.Context, n *node) error {
	q, s := c.scratchName(), &c.scratch
	limit, found, err := n.retryLimit(ctx, q)
	if err != nil {
		return err
	}
	if found != (s.exists == history.Answered) && s.exists != history.Unknown {
		return fmt.Errorf("%s, life %d: it is there: %v; it should be: %v", q, s.life, found, s.exists)
	}
	if err := c.b.registers.Read(q, limit); err != nil {
		return err
	}
	if !found {
		s.exists, s.open = history.Refused, nil
		return nil
	}
	s.exists = history.Answered
	c.b.messages.Add(s.open...)
	s.open = nil
	return read(ctx, n, q, func(m api.Message) error {
		var id string
		if err := json.Unmarshal(m.Data, &id); err != nil {
			return fmt.Errorf("%s offset %d: %w in %s", q, m.Offset, err, m.Data)
		}
		return c.b.messages.Read(s.stream(q), id, m.Offset)
	})
}

// retryLimit reads the option of a queue that clients change.
func (n *node) retryLimit(ctx context.Context, queue string) (limit string, found bool, err error) {
	options, err := n.QueueOptions(ctx, queue)
	var status *api.StatusError
	if errors.As(err, &status) && status.Status == 404 {
		return "", false, nil
	}
	if err != nil {
		return "", false, err
	}
	return string(options["retryLimit"]), true, nil
}

// compareUnits looks for the markers of transactions.
func (b *books) compareUnits(ctx context.Context, n *node) error {
	if len(b.units) == 0 {
		return nil
	}
	var keys []string
	for _, u := range b.units {
		keys = append(keys, u.ID)
	}
	rows, err := n.KVGetMany(ctx, "unit", keys)
	if err != nil {
		return err
	}
	for _, u := range b.units {
		_, there := rows[u.ID]
		if err := u.Saw("its marker", there); err != nil {
			return err
		}
	}
	return nil
}

// settleUnits books what the units of the round turned out to have settled.
func (b *books) settleUnits() {
	for _, u := range b.units {
		if u.Settle(); u.Fate == history.Answered {
			for _, o := range u.settles {
				b.work.Settled(u.stream, o)
			}
		}
	}
	b.units = nil
}

func (b *books) readFired(ctx context.Context, n *node) error {
	return read(ctx, n, "fired", func(m api.Message) error {
		var id string
		if err := json.Unmarshal(m.Data, &id); err != nil || id != m.TransactionID {
			return fmt.Errorf("fired %s offset %d: the payload of %s is %s (%v)", m.Partition, m.Offset, m.TransactionID, m.Data, err)
		}
		return b.timers.Fired(id, m.CreatedAt)
	})
}

func (b *books) compareKV(ctx context.Context, n *node) error {
	var own []string
	for _, name := range b.registers.Names() {
		if key, ok := strings.CutPrefix(name, "own/"); ok {
			own = append(own, key)
		}
	}
	if len(own) > 0 {
		rows, err := n.KVGetMany(ctx, "own", own)
		if err != nil {
			return err
		}
		for _, key := range own {
			var value string
			if row, ok := rows[key]; ok {
				if err := json.Unmarshal(row, &value); err != nil {
					return fmt.Errorf("key %s: %w in %s", key, err, row)
				}
			}
			if err := b.registers.Read("own/"+key, value); err != nil {
				return err
			}
		}
	}
	for _, name := range b.counters.Names() {
		row, err := n.KVGet(ctx, "sum", name)
		if err != nil {
			return err
		}
		var value int64
		if row.Found {
			if value, err = strconv.ParseInt(string(row.Value), 10, 64); err != nil {
				return fmt.Errorf("counter %s: %w", name, err)
			}
		}
		if err := b.counters.Read(name, value); err != nil {
			return err
		}
	}
	return nil
}

// readDeadLetters books what the group gave up.
func (b *books) readDeadLetters(ctx context.Context, n *node) error {
	for q := range queues {
		letters, err := n.DeadLetters(ctx, queueName(q), group, 10_000)
		if err != nil {
			return err
		}
		for _, l := range letters {
			if b.letters[l.ID] {
				continue
			}
			b.letters[l.ID] = true
			at, ok := b.offsets[l.Queue+" "+l.TransactionID]
			if !ok || !strings.Contains(string(l.Data), l.TransactionID) {
				return fmt.Errorf("dead letter %s of %s: %s with %s", l.ID, l.Queue, l.TransactionID, l.Data)
			}
			if err := b.work.Filed(at.stream, at.offset); err != nil {
				return err
			}
		}
	}
	return nil
}

// drain lets the group settle everything that is left, and balances it.
func (b *books) drain(ctx context.Context, n *node) error {
	time.Sleep((lease + 4) * time.Second) // every lease is over
	query := url.Values{"consumerGroup": {group}, "subscriptionMode": {"all"}, "batch": {"500"}}
	for q := range queues {
		for {
			begun := b.work.Begin()
			ms, err := n.Pop(ctx, queueName(q), query)
			if err != nil {
				return err
			}
			if len(ms) == 0 {
				break
			}
			stream := history.StreamName(queueName(q), ms[0].Partition)
			if err := b.work.Delivered(stream, offsets(ms), begun); err != nil {
				return err
			}
			last := ms[len(ms)-1]
			if ok, err := n.AckOne(ctx, last, group, "completed"); err != nil || !ok {
				return fmt.Errorf("ack %s: %v %w", last.TransactionID, ok, err)
			}
			for _, m := range ms {
				b.work.Settled(stream, m.Offset)
			}
		}
	}
	for q := range queues {
		for p := range partitions {
			stream := history.StreamName(queueName(q), "p"+strconv.Itoa(p))
			if err := b.work.Balance(stream, b.messages.Count(stream)); err != nil {
				return err
			}
		}
	}
	return nil
}
