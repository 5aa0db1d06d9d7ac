package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"time"

	"queen/tools/internal/api"
)

type scene struct {
	title string
	play  func() error
}

func (d *demo) scenes() []scene {
	return []scene{
		{"a payment step: push, pop, one transaction", d.firstStep},
		{"the provider sends its event again: the marker refuses the step", d.providerRetry},
		{"kill -9 between two steps", d.killBetween},
		{"kill -9 with half of a step received", d.killHalfReceived},
		{"kill -9 with a step sent and not answered", d.killUnanswered},
		{"the reminders", d.reminders},
		{"a clean stop", d.cleanStop},
	}
}

func (d *demo) firstStep() error {
	if err := d.pushPayment(1, "evt-1"); err != nil {
		return err
	}
	m, err := d.popPayment()
	if err != nil {
		return err
	}
	v, err := d.api.Transact(d.ctx, d.step(1, m))
	if err != nil {
		return err
	}
	if err := d.checks(check{"the step is committed", true, v.Success}, check{"results of the step", 5, len(v.Results)}); err != nil {
		return err
	}
	d.done = append(d.done, 1)
	pending, err := d.api.TimerPending(d.ctx, reminders, orderKey(1))
	if err != nil {
		return err
	}
	if err := d.checks(check{"the reminder of payment 1 is pending", true, pending}); err != nil {
		return err
	}
	return d.readBack()
}

// providerRetry is the second delivery of one event, under an id of its own, as
// providers do it: only the marker knows the payment.
func (d *demo) providerRetry() error {
	if err := d.pushPayment(1, "evt-1-again"); err != nil {
		return err
	}
	m, err := d.popPayment()
	if err != nil {
		return err
	}
	v, err := d.api.Transact(d.ctx, d.step(1, m))
	if err != nil {
		return err
	}
	if err := d.checks(
		check{"the second step of payment 1 is committed", false, v.Success},
		check{"its reason", "kv_precondition/exists", v.Reason + "/" + v.KVReason},
	); err != nil {
		return err
	}
	acked, err := d.api.AckOne(d.ctx, m, workers, "completed")
	if err != nil {
		return err
	}
	if err := d.checks(check{"the event is acked by itself", true, acked}); err != nil {
		return err
	}
	return d.readBack()
}

// killBetween kills the broker right after a step was answered.
func (d *demo) killBetween() error {
	if err := d.pushPayment(2, "evt-2"); err != nil {
		return err
	}
	m, err := d.popPayment()
	if err != nil {
		return err
	}
	v, err := d.api.Transact(d.ctx, d.step(2, m))
	d.proc.Kill()
	if err != nil {
		return err
	}
	if err := d.checks(check{"the step is committed", true, v.Success}); err != nil {
		return err
	}
	d.done = append(d.done, 2)
	if err := d.restart(); err != nil {
		return err
	}
	return d.readBack()
}

// killHalfReceived kills the broker when it has read half of a step: none of it
// may be there, and the lease is still the worker's.
func (d *demo) killHalfReceived() error {
	if err := d.pushPayment(3, "evt-3"); err != nil {
		return err
	}
	m, err := d.popPayment()
	if err != nil {
		return err
	}
	request, err := d.rawStep(d.step(3, m))
	if err != nil {
		return err
	}
	if err := d.sendAndKill(request[:len(request)/2], 20*time.Millisecond); err != nil {
		return err
	}
	if err := d.restart(); err != nil {
		return err
	}
	parts, err := d.parts(3)
	if err != nil {
		return err
	}
	if err := d.checks(check{"parts of payment 3 that are there", none, parts}); err != nil {
		return err
	}
	v, err := d.api.Transact(d.ctx, d.step(3, m))
	if err != nil {
		return err
	}
	if err := d.checks(check{"the same step, sent again, is committed", true, v.Success}); err != nil {
		return err
	}
	d.done = append(d.done, 3)
	return d.readBack()
}

// killUnanswered kills the broker just after the step was sent. Either outcome
// is right, but only whole; sending the step again gives one step in both cases.
func (d *demo) killUnanswered() error {
	if err := d.pushPayment(4, "evt-4"); err != nil {
		return err
	}
	m, err := d.popPayment()
	if err != nil {
		return err
	}
	request, err := d.rawStep(d.step(4, m))
	if err != nil {
		return err
	}
	if err := d.sendAndKill(request, 300*time.Microsecond); err != nil {
		return err
	}
	if err := d.restart(); err != nil {
		return err
	}
	parts, err := d.parts(4)
	if err != nil {
		return err
	}
	expected := all
	if parts == none {
		expected = none
	}
	v, err := d.api.Transact(d.ctx, d.step(4, m))
	if err != nil {
		return err
	}
	if err := d.checks(
		check{"parts of payment 4 that are there (all or none is right)", expected, parts},
		check{"the same step, sent again, is committed", parts == none, v.Success},
	); err != nil {
		return err
	}
	d.done = append(d.done, 4)
	return d.readBack()
}

// reminders waits for the timers of all steps, through the kills.
func (d *demo) reminders() error {
	var got []int
	for end := time.Now().Add(reminderDelay + 10*time.Second); len(got) < len(d.done) && time.Now().Before(end); {
		ms, err := d.api.Pop(d.ctx, reminders, query("reminded", "wait", "true", "timeout", "1000", "commitOnDelivery", "true"))
		if err != nil {
			return err
		}
		for _, m := range ms {
			var p payment
			if err := json.Unmarshal(m.Data, &p); err != nil {
				return err
			}
			got = append(got, p.Order)
		}
	}
	counts, err := d.orders(reminders)
	if err != nil {
		return err
	}
	for _, order := range d.done {
		if err := d.checks(check{fmt.Sprintf("reminders of payment %d", order), 1, counts[order]}); err != nil {
			return err
		}
	}
	return d.checks(check{"reminders in all", len(d.done), len(got)})
}

func (d *demo) cleanStop() error {
	if err := d.checks(check{"SIGTERM ends the broker with", "exit 0", exit(d.proc.Stop(5 * time.Second))}); err != nil {
		return err
	}
	if err := d.restart(); err != nil {
		return err
	}
	return d.readBack()
}

func exit(err error) string {
	if err != nil {
		return err.Error()
	}
	return "exit 0"
}

// sendAndKill writes bytes to the broker on a connection of their own and kills
// it some time later, without reading an answer.
func (d *demo) sendAndKill(request []byte, later time.Duration) error {
	conn, err := net.Dial("tcp", d.proc.Addr())
	if err != nil {
		return err
	}
	defer conn.Close()
	_, err = conn.Write(request)
	time.Sleep(later)
	d.proc.Kill()
	return err
}

// rawStep is the transaction as bytes of HTTP.
func (d *demo) rawStep(t api.Transaction) ([]byte, error) {
	body, err := json.Marshal(t)
	if err != nil {
		return nil, err
	}
	if len(body) < 100 {
		return nil, errors.New("a step of less than 100 bytes")
	}
	head := fmt.Sprintf("POST /api/v1/transaction HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n",
		d.proc.Addr(), len(body))
	return append([]byte(head), body...), nil
}
