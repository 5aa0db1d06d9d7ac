package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"queen/tools/internal/api"
)

// Names of the example.
const (
	payments  = "payments"
	receipts  = "receipts"
	reminders = "reminders"
	workers   = "chargers" // the consumer group
	stateNS   = "orders"
	onceNS    = "charged"
	day       = 86400

	reminderDelay = 4 * time.Second
	leaseSeconds  = "60"
)

// What parts finds.
const (
	all  = "all"
	none = "none"
)

type payment struct {
	Order int `json:"order"`
	Cents int `json:"cents"`
}

func orderKey(order int) string { return fmt.Sprintf("order-%d", order) }

// partition keeps the payments of one card in order.
func partition(order int) string { return fmt.Sprintf("card-%d", order%2) }

// query builds the parameters of a pop that starts at the oldest message.
func query(group string, pairs ...string) url.Values {
	v := url.Values{"consumerGroup": {group}, "subscriptionMode": {"all"}}
	for i := 0; i+1 < len(pairs); i += 2 {
		v.Set(pairs[i], pairs[i+1])
	}
	return v
}

// pushPayment is the provider's event.
func (d *demo) pushPayment(order int, event string) error {
	p, err := d.api.Push(d.ctx, api.Item{Queue: payments, Partition: partition(order), TransactionID: event, Payload: payment{order, 100 * order}})
	if err != nil {
		return err
	}
	return d.checks(check{fmt.Sprintf("event %s of payment %d is", event, order), "queued", p[0].Status})
}

// popPayment takes the next payment under a lease.
func (d *demo) popPayment() (api.Message, error) {
	ms, err := d.api.Pop(d.ctx, payments, query(workers, "batch", "1", "leaseSeconds", leaseSeconds, "wait", "true", "timeout", "5000"))
	if err != nil {
		return api.Message{}, err
	}
	if err := d.checks(check{"payments popped under a lease", 1, len(ms)}); err != nil {
		return api.Message{}, err
	}
	return ms[0], nil
}

// step is the whole effect of a charged payment, as one transaction.
func (d *demo) step(order int, m api.Message) api.Transaction {
	p := payment{order, 100 * order}
	data, err := json.Marshal(p)
	if err != nil {
		panic(err) // two integers
	}
	key := orderKey(order)
	return api.Transaction{
		Operations: []api.Operation{
			api.Ack(m, workers),
			{Type: "push", Items: []api.Item{{Queue: receipts, Partition: m.Partition, TransactionID: "receipt-" + m.TransactionID, Payload: p}}},
		},
		KV: []api.KVOp{
			{Op: "put", NS: stateNS, Key: key, Value: "charged", TTLSeconds: day},
			{Op: "putIfAbsent", NS: onceNS, Key: key, Value: m.TransactionID, TTLSeconds: day, Required: true},
		},
		Timers: []api.TimerOp{{Op: "schedule", Queue: reminders, TimerKey: key, Partition: m.Partition, DelayMs: reminderDelay.Milliseconds(),
			Txn: "reminder-" + key, Payload: data}},
	}
}

// orders reads a queue from its start, as a group that nobody used before, and
// counts its messages by order.
func (d *demo) orders(queue string) (map[int]int, error) {
	d.reader++
	group := fmt.Sprintf("reader-%d", d.reader)
	counts := map[int]int{}
	for {
		ms, err := d.api.Pop(d.ctx, queue, query(group, "batch", "100", "partitions", "64", "commitOnDelivery", "true"))
		if err != nil || len(ms) == 0 {
			return counts, err
		}
		for _, m := range ms {
			var p payment
			if err := json.Unmarshal(m.Data, &p); err != nil {
				return nil, fmt.Errorf("message %s of %s: %w", m.TransactionID, queue, err)
			}
			counts[p.Order]++
		}
	}
}

// unsettled says how many payments the workers have not settled.
func (d *demo) unsettled() (string, error) {
	n, _, err := d.api.Depth(d.ctx, payments, workers)
	var status *api.StatusError
	if errors.As(err, &status) && status.Status == http.StatusNotFound {
		return "no queue " + payments, nil
	}
	return fmt.Sprint(n), err
}

// parts says which parts of a payment's step are there: all, none, or a list.
func (d *demo) parts(order int) (string, error) {
	key := orderKey(order)
	rs, err := d.orders(receipts)
	if err != nil {
		return "", err
	}
	state, err := d.api.KVGet(d.ctx, stateNS, key)
	if err != nil {
		return "", err
	}
	marker, err := d.api.KVGet(d.ctx, onceNS, key)
	if err != nil {
		return "", err
	}
	pending, err := d.api.TimerPending(d.ctx, reminders, key)
	if err != nil {
		return "", err
	}
	fired, err := d.orders(reminders)
	if err != nil {
		return "", err
	}
	unsettled, err := d.unsettled()
	if err != nil {
		return "", err
	}
	var there []string
	for _, p := range []struct {
		name string
		is   bool
	}{
		{"ack", unsettled == "0"}, {"receipt", rs[order] > 0}, {"state", state.Found}, {"marker", marker.Found},
		{"reminder", pending || fired[order] > 0},
	} {
		if p.is {
			there = append(there, p.name)
		}
	}
	switch len(there) {
	case 0:
		return none, nil
	case 5:
		return all, nil
	}
	return strings.Join(there, ", "), nil
}

// readBack checks every part of every committed step.
func (d *demo) readBack() error {
	counts, err := d.orders(receipts)
	if err != nil {
		return err
	}
	total := 0
	for _, n := range counts {
		total += n
	}
	for _, order := range d.done {
		state, err := d.api.KVGet(d.ctx, stateNS, orderKey(order))
		if err != nil {
			return err
		}
		marker, err := d.api.KVGet(d.ctx, onceNS, orderKey(order))
		if err != nil {
			return err
		}
		parts, err := d.parts(order)
		if err != nil {
			return err
		}
		if err := d.checks(
			check{fmt.Sprintf("receipts of payment %d", order), 1, counts[order]},
			check{fmt.Sprintf("state of payment %d", order), `"charged"`, string(state.Value)},
			check{fmt.Sprintf("marker of payment %d", order), fmt.Sprintf(`"evt-%d"`, order), string(marker.Value)},
			check{fmt.Sprintf("parts of payment %d that are there", order), all, parts},
		); err != nil {
			return err
		}
	}
	unsettled, err := d.unsettled()
	if err != nil {
		return err
	}
	return d.checks(check{"receipts in all", len(d.done), total}, check{"payments that are not settled", 0, unsettled})
}
