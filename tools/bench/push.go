package main

import (
	"sync/atomic"
	"time"
)

// push lets the producers push in a closed loop, a batch to one partition a
// call. The run fails unless the queue holds all of it.
func push(s *session) (*Result, error) {
	queue, route := s.queue("in"), "/api/v1/push"
	if s.Via == "transaction" {
		route = "/api/v1/transaction"
	}
	var pushed atomic.Int64
	workers := make([]worker, s.Workers)
	for i := range workers {
		workers[i] = func(l *lane) error {
			c, src := s.conn(), s.source(i)
			defer c.Close()
			names := make([][]byte, s.Parts)
			for p := range names {
				names[p] = partitionName(nil, p)
			}
			for k := 0; !l.stopped(); k++ {
				start := time.Now()
				if err := pushBatch(c, src, route, []byte(queue), names[(i+k*s.Workers)%s.Parts], s.Batch); err != nil {
					return err
				}
				end := time.Now()
				pushed.Add(int64(s.Batch))
				l.add(end, s.Batch, end.Sub(start), 0)
			}
			return nil
		}
	}
	r, err := s.measure(workers, nil)
	if err != nil {
		return nil, err
	}
	return r, s.checkOutputs(queue, pushed.Load())
}
