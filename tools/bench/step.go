package main

import (
	"bytes"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"time"

	"queen/tools/internal/wire"
)

const group = "g"

// step preloads the input queue and lets the workers take steps from it. The
// run fails unless the output queue holds what the committed steps pushed.
func step(s *session) (*Result, error) {
	in, out := s.queue("in"), s.queue("out")
	each := max(1, s.Messages/s.Parts/s.Batch) * s.Batch // whole batches, so that every step is a full one
	if err := s.load(in, each); err != nil {
		return nil, fmt.Errorf("preload: %w", err)
	}
	var pushed, short, dry atomic.Int64
	first := time.Now().Add(200 * time.Millisecond)
	workers := make([]worker, s.Workers)
	for i := range workers {
		workers[i] = func(l *lane) error {
			w := &stepper{s: s, id: i, lane: l, conn: s.conn(), src: s.source(i), in: []byte(in), out: []byte(out)}
			defer w.conn.Close()
			err := w.run(i, first)
			pushed.Add(w.pushed)
			short.Add(w.short)
			if w.dry {
				dry.Add(1)
			}
			return err
		}
	}
	polled := func() error { return nil }
	if s.Poll > 0 {
		polled = s.poll(s.Poll, readTargets(in))
	}
	r, err := s.measure(workers, nil)
	if err = errors.Join(err, polled()); err != nil {
		return nil, err
	}
	if n := dry.Load(); n > 0 {
		r.Note += fmt.Sprintf("input ran out for %d workers; ", n)
	}
	if n := short.Load(); n > 0 {
		r.Note += fmt.Sprintf("%d batches were short; ", n)
	}
	if err := s.checkOutputs(out, pushed.Load()); err != nil {
		return nil, err
	}
	r.OutputsCheck = s.Verify
	return r, s.addProbes(r)
}

// readTargets are the routes that an operator's dashboard reads, about a queue.
func readTargets(queue string) []string {
	q := url.PathEscape(queue)
	return []string{
		"/health", "/status", "/metrics", "/metrics/prometheus",
		"/api/v1/resources/queues", "/api/v1/resources/queues/" + q, "/api/v1/resources/queues/" + q + "/depth",
		"/api/v1/resources/queues/" + q + "/depth?group=" + group, "/api/v1/resources/queues/" + q + "/sizes",
		"/api/v1/resources/partitions", "/api/v1/resources/overview", "/api/v1/resources/namespaces", "/api/v1/resources/tasks",
		"/api/v1/status", "/api/v1/status/queues", "/api/v1/status/queues/" + q, "/api/v1/status/analytics",
		"/api/v1/analytics/queue-lag", "/api/v1/analytics/queue-ops", "/api/v1/dlq", "/api/v1/timers/" + q,
		"/api/v1/raft/status", "/api/v1/raft/members", "/api/v1/raft/liveness",
	}
}

// addProbes puts the disk's own time beside the latency of a run at a fixed rate.
func (s *session) addProbes(r *Result) error {
	if s.Rate == 0 || s.proc == nil {
		return nil
	}
	probes, err := probeDisk(filepath.Dir(s.data), s.ProbeSize)
	if err != nil {
		return err
	}
	r.Probes = probes
	r.OverProbe50, r.OverProbe99 = r.P50-probes[0].P50, r.P99-probes[0].P50
	return nil
}

// stepper is one worker of step.
type stepper struct {
	s       *session
	id      int
	lane    *lane
	conn    *wire.Conn
	src     *source
	in, out []byte
	pop     string // target of the pop
	next    popped // with -next: the batch that the last transaction claimed; n 0: none
	batch   []byte // what next points into
	key     []byte // with -keyed: of the transaction
	keys    int64

	pushed, short int64
	dry           bool
}

// popped is what a step needs of a pop's answer; it points into the answer.
type popped struct {
	n                               int
	partition, partitionID, leaseID []byte
	body                            []byte
	last                            []byte // transactionId of the last message
}

var errEmpty = errors.New("nothing to pop")

func (w *stepper) run(i int, first time.Time) error {
	w.pop = "/api/v1/pop/queue/" + url.PathEscape(string(w.in)) + "?batch=" + strconv.Itoa(w.s.Batch) +
		"&consumerGroup=" + group + "&subscriptionMode=all"
	var pace *pacer
	if w.s.Rate > 0 {
		gap := time.Second / time.Duration(w.s.Rate)
		var err error
		if pace, err = newPacer(first.Add(time.Duration(i)*gap), gap*time.Duration(w.s.Workers)); err != nil {
			return err
		}
		defer pace.close()
	}
	for !w.lane.stopped() {
		due := time.Now()
		if pace != nil {
			var err error
			if due, err = pace.wait(); err != nil {
				return err
			}
		}
		err := w.step(due)
		if errors.Is(err, errEmpty) {
			w.dry = true
			return nil
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// step takes one step; its cycle counts from due.
func (w *stepper) step(due time.Time) error {
	p, err := w.next, error(nil)
	if p.n == 0 {
		if p, err = w.take(); err != nil {
			return err
		}
	}
	start := time.Now()
	w.transaction(&p)
	status, body, err := w.conn.Do()
	if err != nil {
		return err
	}
	end := time.Now()
	if status != 200 || !wire.True(body, "success") {
		return fmt.Errorf("transaction: status %d: %.300s", status, body)
	}
	if w.s.Next {
		if err := w.keepNext(body); err != nil {
			return err
		}
	}
	w.pushed += int64(p.n)
	if p.n != w.s.Batch {
		w.short++
	}
	w.lane.add(end, p.n, end.Sub(start), end.Sub(due))
	return nil
}

// take pops one batch. With every partition leased or empty it tries again for a
// while, since the others' steps free theirs.
func (w *stepper) take() (popped, error) {
	for try := 0; ; try++ {
		w.conn.Get(w.pop)
		status, body, err := w.conn.Do()
		if err != nil {
			return popped{}, err
		}
		if status == 200 {
			return scanPop(body)
		}
		if status != 204 {
			return popped{}, fmt.Errorf("pop: status %d: %.300s", status, body)
		}
		if try == 20 || w.lane.stopped() {
			return popped{}, errEmpty
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// keepNext takes the batch out of a transaction's answer, which the next call
// overwrites.
func (w *stepper) keepNext(body []byte) (err error) {
	w.next = popped{}
	at := bytes.LastIndex(body, []byte(`"next":{`))
	if at < 0 {
		return nil // nothing was ready: the next step begins with a pop
	}
	w.batch = append(w.batch[:0], body[at+len(`"next":`):]...)
	w.next, err = scanPop(w.batch)
	return err
}

func scanPop(body []byte) (p popped, err error) {
	var ok [6]bool
	p.body = body
	p.partition, _, ok[0] = wire.Field(body, 0, "partition")
	p.partitionID, _, ok[1] = wire.Field(body, 0, "partitionId")
	p.leaseID, _, ok[2] = wire.Field(body, 0, "leaseId")
	p.last, ok[3] = wire.Last(body, "transactionId")
	first, _, ok4 := wire.Field(body, 0, "offset")
	last, ok5 := wire.Last(body, "offset")
	ok[4], ok[5] = ok4, ok5
	if ok != [6]bool{true, true, true, true, true, true} {
		return p, fmt.Errorf("pop: a field is missing in %.300s", body)
	}
	// Nothing is nacked here, so a batch of one partition has no holes.
	p.n = int(number(last)-number(first)) + 1
	return p, nil
}

// number reads a decimal number that the broker wrote.
func number(b []byte) (n int64) {
	for _, c := range b {
		n = n*10 + int64(c-'0')
	}
	return n
}

// transaction builds the step's call. An ack settles everything below it in its
// batch, so the last message's is the whole batch's.
func (w *stepper) transaction(p *popped) {
	w.conn.PostKeyed("/api/v1/transaction", w.newKey())
	b := append(w.conn.Body(), `{"operations":[`...)
	if w.s.AckAll {
		for pos := 0; ; {
			id, next, ok := wire.Field(p.body, pos, "transactionId")
			if !ok {
				break
			}
			b = append(appendAck(b, id, p), ',')
			pos = next
		}
	} else {
		b = append(appendAck(b, p.last, p), ',')
	}
	b = append(b, `{"type":"push","items":[`...)
	for i := range p.n {
		if i > 0 {
			b = append(b, ',')
		}
		b = w.src.item(b, w.out, p.partition)
	}
	b = append(b, `]}],"requiredLeases":[],"kv":[{"op":"put","ns":"state","key":"`...)
	b = append(b, p.partition...)
	b = append(b, `","value":"`...)
	b = w.src.text(b, valueBytes)
	b = append(b, `","ttlSeconds":`+ttl+`},{"op":"putIfAbsent","ns":"once","key":"`...)
	b = append(b, p.last...)
	b = append(b, `","value":1,"ttlSeconds":`+ttl+`,"required":true}]`...)
	if w.s.Next {
		b = append(b, `,"next":{"queue":"`...)
		b = append(b, w.in...)
		b = append(b, `","consumerGroup":"`+group+`","subscriptionMode":"all","batch":`...)
		b = append(strconv.AppendInt(b, int64(w.s.Batch), 10), '}')
	}
	w.conn.SetBody(append(b, '}'))
}

// newKey is the Idempotency-Key of the next transaction; nil: it has none.
func (w *stepper) newKey() []byte {
	if !w.s.Keyed {
		return nil
	}
	w.keys++
	w.key = append(append(w.key[:0], w.s.tag...), '-')
	w.key = append(strconv.AppendInt(w.key, int64(w.id), 10), '-')
	w.key = strconv.AppendInt(w.key, w.keys, 10)
	return w.key
}

func appendAck(b, id []byte, p *popped) []byte {
	b = append(b, `{"type":"ack","transactionId":"`...)
	b = append(b, id...)
	b = append(b, `","partitionId":"`...)
	b = append(b, p.partitionID...)
	b = append(b, `","consumerGroup":"`+group+`","leaseId":"`...)
	b = append(b, p.leaseID...)
	return append(b, `","status":"completed"}`...)
}
