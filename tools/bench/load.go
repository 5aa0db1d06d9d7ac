package main

import (
	"bytes"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"sync"
	"sync/atomic"

	"queen/tools/internal/wire"
)

const (
	loaders   = 8   // connections that preload
	loadBatch = 500 // messages of a preloading push
)

// parallel runs f on n goroutines, each with a connection and a source, and
// joins their errors.
func (s *session) parallel(n int, f func(i int, c *wire.Conn, src *source) error) error {
	var wg sync.WaitGroup
	errs := make([]error, n)
	for i := range n {
		wg.Go(func() {
			c := s.conn()
			defer c.Close()
			errs[i] = f(i, c, s.source(3000+i)) // numbers that no worker has
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// load pushes each messages to each of the partitions of a queue, spread evenly
// over them as it goes.
func (s *session) load(queue string, each int) error {
	return s.parallel(loaders, func(i int, c *wire.Conn, src *source) error {
		name := []byte(queue)
		for done := 0; done < each; {
			n := min(loadBatch, each-done)
			for p := i; p < s.Parts; p += loaders {
				if err := s.ctx.Err(); err != nil {
					return err
				}
				if err := pushBatch(c, src, "/api/v1/push", name, partitionName(nil, p), n); err != nil {
					return err
				}
			}
			done += n
		}
		return nil
	})
}

// pushBatch sends n messages to one partition, through the push route or a
// transaction, and wants all of them stored.
func pushBatch(c *wire.Conn, src *source, route string, queue, partition []byte, n int) error {
	c.Post(route)
	b, end := append(c.Body(), `{"items":[`...), `]}`
	if route != "/api/v1/push" {
		b, end = append(c.Body(), `{"operations":[{"type":"push","items":[`...), `]}],"requiredLeases":[]}`
	}
	for i := range n {
		if i > 0 {
			b = append(b, ',')
		}
		b = src.item(b, queue, partition)
	}
	c.SetBody(append(b, end...))
	status, body, err := c.Do()
	if err != nil {
		return err
	}
	return stored(route, status, body, n)
}

func stored(route string, status int, body []byte, n int) error {
	if route == "/api/v1/push" {
		if status != 201 || bytes.Count(body, []byte(`"queued"`)) != n {
			return fmt.Errorf("push of %d messages: status %d: %.300s", n, status, body)
		}
		return nil
	}
	if status != 200 || !wire.True(body, "success") {
		return fmt.Errorf("transaction of %d messages: status %d: %.300s", n, status, body)
	}
	return nil
}

// checkOutputs compares what a queue holds with what was pushed to it.
func (s *session) checkOutputs(queue string, want int64) error {
	if want == 0 {
		return errors.New("nothing was done")
	}
	got, err := s.counted(queue)
	if err != nil {
		return err
	}
	if got != want {
		return fmt.Errorf("queue %s counts %d messages, want %d", queue, got, want)
	}
	if s.Verify != "drain" {
		return nil
	}
	if got, err = s.drain(queue); err == nil && got != want {
		err = fmt.Errorf("queue %s gave %d messages, want %d", queue, got, want)
	}
	return err
}

// counted returns the number of retained messages that the broker tells.
func (s *session) counted(queue string) (int64, error) {
	c := s.conn()
	defer c.Close()
	c.Get("/api/v1/resources/queues/" + url.PathEscape(queue))
	status, body, err := c.Do()
	if err != nil {
		return 0, err
	}
	i := bytes.Index(body, []byte(`"totals"`))
	if status != 200 || i < 0 {
		return 0, fmt.Errorf("read queue %s: status %d: %.300s", queue, status, body)
	}
	return wire.Int(body[i:], "total"), nil
}

// drain reads a queue to its end as a group of its own.
func (s *session) drain(queue string) (int64, error) {
	target := "/api/v1/pop/queue/" + url.PathEscape(queue) + "?commitOnDelivery=true&subscriptionMode=all&consumerGroup=drain-" + s.tag +
		"&partitions=16&batch=" + strconv.Itoa(4000)
	var total atomic.Int64
	err := s.parallel(4, func(_ int, c *wire.Conn, _ *source) error {
		for {
			c.Get(target)
			status, body, err := c.Do()
			switch {
			case err != nil:
				return err
			case status == 204:
				return nil
			case status != 200:
				return fmt.Errorf("drain: status %d: %.300s", status, body)
			}
			total.Add(int64(wire.Count(body, "transactionId")))
		}
	})
	return total.Load(), err
}
