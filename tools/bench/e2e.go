package main

import (
	"errors"
	"fmt"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"queen/tools/internal/wire"
)

// e2e lets producers push single messages at a fixed rate, open loop, to
// consumers that wait. A message carries the time at which it was due, so a late
// producer counts. Every message has to arrive, once.
func e2e(s *session) (*Result, error) {
	queue := s.queue("e2e")
	var pushed, received atomic.Int64
	var stopProducing atomic.Bool
	var producing sync.WaitGroup
	var workers []worker
	for range s.Consumers {
		workers = append(workers, func(l *lane) error {
			return s.consume(l, queue, &received)
		})
	}
	gap := time.Second / time.Duration(s.Rate)
	first := time.Now().Add(500 * time.Millisecond) // the consumers wait by then
	producing.Add(s.Producers)
	for i := range s.Producers {
		workers = append(workers, func(l *lane) error {
			defer producing.Done()
			pace, err := newPacer(first.Add(time.Duration(i)*gap), gap*time.Duration(s.Producers))
			if err != nil {
				return err
			}
			defer pace.close()
			return s.produce(l, i, pace, queue, &stopProducing, &pushed)
		})
	}
	r, err := s.measure(workers, func() {
		stopProducing.Store(true)
		producing.Wait()
		for end := time.Now().Add(5 * time.Second); received.Load() < pushed.Load() && time.Now().Before(end); {
			time.Sleep(10 * time.Millisecond)
		}
	})
	if err != nil {
		return nil, err
	}
	r.Workers = s.Consumers
	r.Batch = 1
	if got, want := received.Load(), pushed.Load(); got != want || want == 0 {
		return nil, fmt.Errorf("%d messages arrived, %d were pushed", got, want)
	}
	return r, s.addProbes(r)
}

func (s *session) produce(l *lane, i int, pace *pacer, queue string, stop *atomic.Bool, pushed *atomic.Int64) error {
	c, src, name := s.conn(), s.source(i), []byte(queue)
	defer c.Close()
	var partition []byte
	for !stop.Load() && !l.stopped() {
		due, err := pace.wait()
		if err != nil {
			return err
		}
		partition = partitionName(partition[:0], src.rng.IntN(s.Parts))
		c.Post("/api/v1/push")
		b := append(c.Body(), `{"items":[`...)
		b = src.itemDue(b, name, partition, due.UnixNano())
		c.SetBody(append(b, `]}`...))
		status, body, err := c.Do()
		if err != nil {
			return err
		}
		if err := stored("/api/v1/push", status, body, 1); err != nil {
			return err
		}
		pushed.Add(1)
	}
	return nil
}

// consume pops with a long poll and acks what it got, until the run ends.
func (s *session) consume(l *lane, queue string, received *atomic.Int64) error {
	c := s.conn()
	defer c.Close()
	target := "/api/v1/pop/queue/" + url.PathEscape(queue) + "?batch=100&partitions=16&wait=true&timeout=1000&consumerGroup=" + group +
		"&subscriptionMode=all"
	var dues []int64
	for !l.stopped() {
		c.Get(target)
		status, body, err := c.Do()
		if err != nil {
			return err
		}
		if status == 204 {
			continue
		}
		if status != 200 {
			return fmt.Errorf("pop: status %d: %.300s", status, body)
		}
		got := time.Now()
		if dues, err = ackAll(c, body, dues[:0]); err != nil {
			return err
		}
		acked := time.Now()
		received.Add(int64(len(dues)))
		for _, due := range dues {
			l.add(got, 1, time.Duration(got.UnixNano()-due), time.Duration(acked.UnixNano()-due))
		}
	}
	return nil
}

// ackAll acks every message of a pop's answer in one call, and appends the times
// at which they were due.
func ackAll(c *wire.Conn, answer []byte, dues []int64) ([]int64, error) {
	lease, _, _ := wire.Field(answer, 0, "leaseId")
	c.Post("/api/v1/ack/batch")
	b := append(c.Body(), `{"consumerGroup":"`+group+`","acknowledgments":[`...)
	_, pos, _ := wire.Field(answer, 0, "messages")
	n := 0
	for {
		id, at, ok := wire.Field(answer, pos, "transactionId")
		if !ok {
			break
		}
		data, at, ok1 := wire.Field(answer, at, "data")
		partition, at, ok2 := wire.Field(answer, at, "partitionId")
		if !ok1 || !ok2 {
			return nil, fmt.Errorf("pop: a message without data or partitionId behind its transactionId in %.300s", answer)
		}
		pos = at
		if due, ok := dueOf(data); ok {
			dues = append(dues, due)
		}
		if n++; n > 1 {
			b = append(b, ',')
		}
		b = append(b, `{"transactionId":"`...)
		b = append(b, id...)
		b = append(b, `","partitionId":"`...)
		b = append(b, partition...)
		b = append(b, `","leaseId":"`...)
		b = append(b, lease...)
		b = append(b, `","status":"completed"}`...)
	}
	if n == 0 {
		return nil, errors.New("pop: status 200 without messages")
	}
	c.SetBody(append(b, `]}`...))
	status, body, err := c.Do()
	if err != nil {
		return nil, err
	}
	for pos, i := 0, 0; i < n; i++ {
		v, next, ok := wire.Field(body, pos, "success")
		if status != 200 || !ok || string(v) != "true" {
			return nil, fmt.Errorf("ack: status %d: %.300s", status, body)
		}
		pos = next
	}
	return dues, nil
}
