package main

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"

	"queen/tools/internal/broker"
	"queen/tools/internal/wire"
)

// hold measures how long anything holds the broker's loop at size: -n partitions
// with a cursor each and -keys keys stand there, while steps run, checkpoints are
// taken, and the totals of everything are read every second. Then the broker is
// killed and started again.
func hold(s *session) (*Result, error) {
	many := s.queue("many")
	begun := time.Now()
	if err := s.register(many); err != nil {
		return nil, fmt.Errorf("register the group: %w", err)
	}
	n := s.Messages
	s.Messages = s.Big
	err := s.createPartitions(many)
	s.Messages = n
	if err != nil {
		return nil, fmt.Errorf("create partitions: %w", err)
	}
	if err := s.createKeys(); err != nil {
		return nil, fmt.Errorf("create keys: %w", err)
	}
	built := time.Since(begun)
	var window [2]scrape
	var failed error
	s.atWindow = func(end int) {
		var err error
		window[end], err = s.scrape()
		failed = errors.Join(failed, err)
	}
	reads := s.readTotals(many)
	r, err := step(s)
	if err = errors.Join(err, failed, reads()); err != nil {
		return nil, err
	}
	h := &HoldResult{Partitions: s.Big, Keys: s.Keys, BuildSeconds: built.Seconds()}
	h.Buckets = histogram(window[0], window[1], "queen_raft_loop_hold_seconds")
	h.P999, h.Max = atQuantile(h.Buckets, .999)*1e3, atQuantile(h.Buckets, 1-1e-12)*1e3
	h.Checkpoints = int64(window[1]["queen_checkpoints_total"] - window[0]["queen_checkpoints_total"])
	h.Rows = int64(window[1]["queen_checkpoint_rows_total"] - window[0]["queen_checkpoint_rows_total"])
	h.RowBytes = int64(window[1]["queen_checkpoint_bytes_total"] - window[0]["queen_checkpoint_bytes_total"])
	if h.RestartSeconds, err = s.killAndStart(); err != nil {
		return nil, err
	}
	r.Hold = h
	return r, nil
}

// HoldResult is what hold measures beside the load. P999 and Max are bounds of
// the histogram's buckets, in milliseconds; 0: beyond the last.
type HoldResult struct {
	Partitions     int      `json:"partitions"`
	Keys           int      `json:"keys"`
	BuildSeconds   float64  `json:"buildSeconds"`
	Buckets        []bucket `json:"buckets"`
	P999           float64  `json:"p999"`
	Max            float64  `json:"max"`
	Checkpoints    int64    `json:"checkpoints"`
	Rows           int64    `json:"rows"`
	RowBytes       int64    `json:"rowBytes"`
	RestartSeconds float64  `json:"restartSeconds"` // after kill -9, until healthy
}

func (h *HoldResult) print(w io.Writer) {
	fmt.Fprintf(w, "  %d partitions with a cursor each and %d keys, built in %.0f s; turns of the loop:\n", h.Partitions, h.Keys, h.BuildSeconds)
	total, low := int64(0), 0.0
	for _, b := range h.Buckets {
		total += b.N
	}
	for _, b := range h.Buckets {
		bound := fmt.Sprintf("%8.2f to %8.2f ms", low*1e3, b.UpTo*1e3)
		if b.UpTo == 0 {
			bound = "beyond the last bound"
		}
		fmt.Fprintf(w, "    %s %10d  %9.5f%%\n", bound, b.N, float64(b.N)/float64(total)*100)
		low = b.UpTo
	}
	fmt.Fprintf(w, "  held at p99.9 up to %.2f ms, at most up to %.2f ms\n", h.P999, h.Max)
	each := 0.0
	if h.Rows > 0 {
		each = float64(h.RowBytes) / float64(h.Rows)
	}
	fmt.Fprintf(w, "  %d checkpoints of %d changed rows wrote %d bytes, %.0f a row\n", h.Checkpoints, h.Rows, h.RowBytes, each)
	fmt.Fprintf(w, "  healthy %.2f s after kill -9\n", h.RestartSeconds)
}

// createKeys puts -keys keys that stay, 64 a call.
func (s *session) createKeys() error {
	const each = 64
	return s.parallel(loaders, func(i int, c *wire.Conn, src *source) error {
		for lo := i * each; lo < s.Keys; lo += loaders * each {
			if err := s.ctx.Err(); err != nil {
				return err
			}
			c.Post("/api/v1/transaction")
			b := append(c.Body(), `{"kv":[`...)
			for k := lo; k < min(lo+each, s.Keys); k++ {
				if k > lo {
					b = append(b, ',')
				}
				b = append(b, `{"op":"put","ns":"kept","key":"`...)
				b = strconv.AppendInt(b, int64(k), 10)
				b = append(b, `","value":"`...)
				b = src.text(b, valueBytes)
				b = append(b, `","ttlSeconds":`+ttl+`}`...)
			}
			c.SetBody(append(b, `]}`...))
			status, body, err := c.Do()
			if err == nil && (status != 200 || !wire.True(body, "success")) {
				err = fmt.Errorf("status %d: %.300s", status, body)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// readTotals reads every second what shows totals, until the returned function
// is called, which tells what failed.
func (s *session) readTotals(many string) (stop func() error) {
	return s.poll(time.Second, []string{
		"/metrics/prometheus", "/api/v1/resources/queues", "/api/v1/resources/queues/" + url.PathEscape(many) + "/depth",
		"/api/v1/resources/queues/" + url.PathEscape(many) + "/depth?group=" + group, "/api/v1/dlq?limit=100",
	})
}

// poll reads every target once in each period, until the returned function is called, which tells what failed.
func (s *session) poll(period time.Duration, targets []string) (stop func() error) {
	end := make(chan struct{})
	var failed error
	var wg sync.WaitGroup
	wg.Go(func() {
		for tick := time.NewTicker(period); failed == nil; {
			select {
			case <-end:
				tick.Stop()
				return
			case <-tick.C:
			}
			for _, t := range targets {
				failed = errors.Join(failed, s.read(t))
			}
		}
	})
	return func() error {
		close(end)
		wg.Wait()
		return failed
	}
}

func (s *session) read(target string) error {
	resp, err := http.Get(s.base + target)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("GET %s: status %d", target, resp.StatusCode)
	}
	return err
}

// killAndStart ends the broker with SIGKILL, starts it on the same data and
// returns the seconds until it is healthy.
func (s *session) killAndStart() (float64, error) {
	if s.proc == nil {
		return 0, nil // a broker that is not ours
	}
	s.proc.Kill()
	begun := time.Now()
	p, err := broker.Start(s.ctx, broker.Options{Binary: s.Queen, Dir: s.data, Env: s.Env, Ready: 10 * time.Minute})
	if err != nil {
		return 0, err
	}
	s.proc, s.pid, s.addr, s.base = p, p.PID(), p.Addr(), p.URL()
	return time.Since(begun).Seconds(), nil
}
