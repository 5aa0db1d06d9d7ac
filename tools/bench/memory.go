package main

import (
	"fmt"
	"net/url"
	"strconv"
	"sync/atomic"
	"time"

	"queen/tools/internal/broker"
	"queen/tools/internal/wire"
)

// partitions measures what a partition with one group costs in memory: one
// message is pushed to each of -n partitions, claimed and acked by the group.
func partitions(s *session) (*Result, error) {
	queue := s.queue("many")
	return s.memory(func() error {
		if err := s.register(queue); err != nil {
			return fmt.Errorf("register the group: %w", err)
		}
		if err := s.createPartitions(queue); err != nil {
			return fmt.Errorf("create partitions: %w", err)
		}
		if !s.Claim {
			return nil
		}
		if err := s.claimAll(queue); err != nil {
			return fmt.Errorf("claim and ack: %w", err)
		}
		return nil
	})
}

// retained measures memory with -n retained messages in -parts partitions.
func retained(s *session) (*Result, error) {
	return s.memory(func() error { return s.load(s.queue("kept"), max(1, s.Messages/s.Parts)) })
}

// memory reads VmRSS before the load, after it, and after idling.
func (s *session) memory(load func() error) (*Result, error) {
	if err := s.sleep(2 * time.Second); err != nil {
		return nil, err
	}
	empty := broker.RSS(s.pid)
	before := broker.MeasureUsage(s.pid, s.base)
	if err := load(); err != nil {
		return nil, err
	}
	after := broker.MeasureUsage(s.pid, s.base)
	loaded := broker.RSS(s.pid)
	if err := s.sleep(s.Idle); err != nil {
		return nil, err
	}
	l := &lane{ops: int64(s.Messages), msgs: int64(s.Messages)}
	r := newResult(s.Config, []*lane{l}, before, after)
	idle := broker.RSS(s.pid)
	r.Batch = 0
	r.EmptyRSSMB, r.LoadedRSSMB, r.RSSMB = float64(empty)/(1<<20), float64(loaded)/(1<<20), float64(idle)/(1<<20)
	r.BytesEach = float64(idle-empty) / float64(s.Messages)
	return r, nil
}

func (s *session) sleep(d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-s.ctx.Done():
		return s.ctx.Err()
	}
}

func popTarget(queue, query string) string {
	return "/api/v1/pop/queue/" + url.PathEscape(queue) + "?consumerGroup=" + group + "&subscriptionMode=all&" + query
}

// register makes the group known to the queue by a pop, which finds nothing.
func (s *session) register(queue string) error {
	c := s.conn()
	defer c.Close()
	c.Get(popTarget(queue, "batch=1"))
	status, body, err := c.Do()
	if err == nil && status != 204 {
		err = fmt.Errorf("pop: status %d: %.300s", status, body)
	}
	return err
}

func (s *session) createPartitions(queue string) error {
	const each = 1000 // partitions of a push
	return s.parallel(loaders, func(i int, c *wire.Conn, src *source) error {
		for lo := i * each; lo < s.Messages; lo += loaders * each {
			if err := s.ctx.Err(); err != nil {
				return err
			}
			hi := min(lo+each, s.Messages)
			c.Post("/api/v1/push")
			b := append(c.Body(), `{"items":[`...)
			for p := lo; p < hi; p++ {
				if p > lo {
					b = append(b, ',')
				}
				b = append(b, `{"queue":"`...)
				b = append(b, queue...)
				b = append(b, `","partition":"`...)
				b = partitionName(b, p)
				b = append(b, `","transactionId":"`...)
				b = src.id(b)
				b = append(b, `","payload":`...)
				b = strconv.AppendInt(b, int64(p), 10)
				b = append(b, '}')
			}
			c.SetBody(append(b, `]}`...))
			status, body, err := c.Do()
			if err != nil {
				return err
			}
			if err := stored("/api/v1/push", status, body, hi-lo); err != nil {
				return err
			}
		}
		return nil
	})
}

// claimAll pops and acks until every message has been settled.
func (s *session) claimAll(queue string) error {
	target := popTarget(queue, "batch=64&partitions=64")
	var settled atomic.Int64
	return s.parallel(loaders, func(_ int, c *wire.Conn, _ *source) error {
		for empty := 0; settled.Load() < int64(s.Messages); {
			if err := s.ctx.Err(); err != nil {
				return err
			}
			c.Get(target)
			status, body, err := c.Do()
			if err != nil {
				return err
			}
			switch status {
			case 200:
				n := wire.Count(body, "transactionId")
				if _, err := ackAll(c, body, nil); err != nil {
					return err
				}
				settled.Add(int64(n))
				empty = 0
			case 204:
				if empty++; empty > 200 {
					return fmt.Errorf("%d of %d messages settled, and nothing more to pop", settled.Load(), s.Messages)
				}
				time.Sleep(10 * time.Millisecond)
			default:
				return fmt.Errorf("pop: status %d: %.300s", status, body)
			}
		}
		return nil
	})
}
