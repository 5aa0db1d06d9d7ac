package main

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"queen/tools/internal/broker"
	"queen/tools/internal/wire"
)

// overload finds the rate of pushes that the broker sustains with consumers
// attached, offers -times that for -dur whatever becomes of the calls (open
// loop), and watches it recover at half of the sustained rate.
func overload(s *session) (*Result, error) {
	o := &overloadRun{session: s, queue: []byte(s.queue("in"))}
	stop := o.consume()
	r, err := o.run()
	if err = errors.Join(err, stop()); err != nil {
		return nil, err
	}
	// Nothing that was refused may be stored, and all that was accepted is.
	stored, err := s.counted(string(o.queue))
	if err != nil {
		return nil, err
	}
	if lo, hi := o.accepted.Load(), o.accepted.Load()+o.unknown.Load(); stored < lo || stored > hi {
		return nil, fmt.Errorf("the queue holds %d messages: %d were accepted, of %d the outcome is unknown", stored, lo, hi-lo)
	}
	return r, nil
}

type overloadRun struct {
	*session
	queue []byte
	phase int // for the sources' ids

	accepted, unknown, consumed atomic.Int64 // messages
}

// OverloadResult is what overload measures. Latencies are in milliseconds, of
// accepted calls, from the moment a call was sent; DueP99 from the moment it was
// due, which is the same unless the load generator is late (LateShare): then all
// its connections were busy, and less was offered than is said.
type OverloadResult struct {
	Sustained   float64 `json:"sustained"` // calls a second
	LimitP50    float64 `json:"limitP50"`
	LimitP99    float64 `json:"limitP99"`
	LimitDueP99 float64 `json:"limitDueP99"`

	Offered         float64   `json:"offered"`  // calls a second
	Accepted        float64   `json:"accepted"` // calls a second
	P50             float64   `json:"p50"`
	P99             float64   `json:"p99"`
	P999            float64   `json:"p999"`
	DueP99          float64   `json:"dueP99"`
	RefusedShare    float64   `json:"refusedShare"`
	WithoutRetry    int64     `json:"refusedWithoutRetryAfter"`
	RefusalP99      float64   `json:"refusalP99"`
	Other           int64     `json:"otherAnswers"` // neither 201 nor 429
	LateShare       float64   `json:"lateShare"`    // calls that the load generator itself sent 10 ms late or later
	RSSMB           []float64 `json:"rssMB"`        // by tenths of the time
	Consumed        float64   `json:"consumed"`     // messages a second
	RecoverySeconds float64   `json:"recoverySeconds"`
}

func (r *OverloadResult) print(w io.Writer) {
	fmt.Fprintf(w, "  sustained %.0f calls/s: p50 %.1f, p99 %.1f ms (from due %.1f)\n", r.Sustained, r.LimitP50, r.LimitP99, r.LimitDueP99)
	fmt.Fprintf(w, "  offered %.0f calls/s: %.0f/s accepted with p50 %.1f, p99 %.1f (%.2f of that at the limit), p99.9 %.1f ms (p99 from due %.1f)\n",
		r.Offered, r.Accepted, r.P50, r.P99, r.P99/r.LimitP99, r.P999, r.DueP99)
	fmt.Fprintf(w, "  %.1f%% refused, %d of them without Retry-After, p99 %.1f ms; %d other answers; %.2f%% sent late\n",
		r.RefusedShare*100, r.WithoutRetry, r.RefusalP99, r.Other, r.LateShare*100)
	fmt.Fprintf(w, "  RSS by tenths of the time, MB: %.0f; consumers took %.0f msg/s; recovered after %.1f s\n", r.RSSMB, r.Consumed, r.RecoverySeconds)
}

func (o *overloadRun) run() (*Result, error) {
	r := &OverloadResult{}
	limit, err := o.findLimit(r)
	if err != nil {
		return nil, err
	}
	usage := broker.MeasureUsage(o.pid, o.base)
	stopRSS := o.sampleRSS()
	before := o.consumed.Load()
	p, err := o.offer(limit*o.Times, o.Dur)
	r.RSSMB = tenths(stopRSS())
	if err != nil {
		return nil, err
	}
	r.Consumed = float64(o.consumed.Load()-before) / p.seconds
	after := broker.MeasureUsage(o.pid, o.base)
	r.Offered, r.Accepted = float64(p.offered)/p.seconds, float64(len(p.lat))/p.seconds
	r.P50, r.P99, r.P999 = ms(quantile(p.lat, .5)), ms(quantile(p.lat, .99)), ms(quantile(p.lat, .999))
	r.DueP99 = ms(quantile(p.due, .99))
	r.RefusedShare, r.WithoutRetry = float64(len(p.refused))/float64(p.offered), p.withoutRetry
	r.RefusalP99, r.Other, r.LateShare = ms(quantile(p.refused, .99)), p.other, float64(p.late)/float64(p.offered)
	if r.RecoverySeconds, err = o.recover(limit/2, r.LimitP99); err != nil {
		return nil, err
	}
	l := &lane{ops: int64(len(p.lat)), msgs: int64(len(p.lat) * o.Batch), lat: p.lat}
	out := newResult(o.Config, []*lane{l}, usage, after)
	out.RSSMB = float64(broker.RSS(o.pid)) / (1 << 20)
	out.Overload = r
	return out, nil
}

// findLimit looks for the highest rate at which nearly everything offered is
// accepted in time: from what a closed loop reaches, down or up in steps of 7%.
func (o *overloadRun) findLimit(r *OverloadResult) (float64, error) {
	rate := o.Sustained
	if rate == 0 {
		var err error
		if rate, err = o.closedLoop(); err != nil {
			return 0, err
		}
	}
	good := 0.0
	for range 12 {
		p, err := o.offer(rate, o.Probe)
		if err != nil {
			return 0, err
		}
		ok := float64(len(p.lat)) >= .99*float64(p.offered) && p.other == 0 && quantile(p.due, .99) < 500*time.Millisecond
		if ok {
			good = rate
			r.LimitDueP99 = ms(quantile(p.due, .99))
			r.Sustained, r.LimitP50, r.LimitP99 = rate, ms(quantile(p.lat, .5)), ms(quantile(p.lat, .99))
		}
		switch {
		case ok && rate == o.Sustained: // given
			return rate, nil
		case ok:
			rate *= 1.07
		case good > 0:
			return good, nil
		default:
			rate *= .93
		}
	}
	if good == 0 {
		return 0, fmt.Errorf("no rate down to %.0f calls/s is sustained", rate)
	}
	return good, nil
}

// closedLoop is the rate that 64 connections reach without pauses.
func (o *overloadRun) closedLoop() (float64, error) {
	const conns = 64
	var calls atomic.Int64
	begun := time.Now()
	end := begun.Add(o.Probe)
	err := o.parallel(conns, func(i int, c *wire.Conn, src *source) error {
		for time.Now().Before(end) && o.ctx.Err() == nil {
			status, err := o.push(c, src, i)
			if err != nil || status != 201 && status != 429 {
				return fmt.Errorf("push: status %d: %w", status, err)
			}
			calls.Add(1)
		}
		return nil
	})
	return float64(calls.Load()) / time.Since(begun).Seconds(), err
}

// push sends one call and keeps the books.
func (o *overloadRun) push(c *wire.Conn, src *source, n int) (status int, err error) {
	c.Post("/api/v1/push")
	b := append(c.Body(), `{"items":[`...)
	partition := partitionName(nil, n%o.Parts)
	for i := range o.Batch {
		if i > 0 {
			b = append(b, ',')
		}
		b = src.item(b, o.queue, partition)
	}
	c.SetBody(append(b, `]}`...))
	status, _, err = c.Do()
	switch {
	case err == nil && status == 201:
		o.accepted.Add(int64(o.Batch))
	case err != nil || status == 503:
		o.unknown.Add(int64(o.Batch))
	}
	return status, err
}

// offered is what became of the calls of one phase.
type offered struct {
	seconds      float64
	offered      int64
	lat, due     []time.Duration // of accepted calls, from sent and from due; sorted
	refused      []time.Duration // from sent, sorted
	withoutRetry int64
	other        int64
	late         int64
}

// offer sends calls at a rate for a time, each when it is due, over as many
// connections as it takes, and sorts what came of them.
func (o *overloadRun) offer(rate float64, d time.Duration) (*offered, error) {
	o.phase++
	parts := make([]offered, o.Conns)
	gap := time.Duration(float64(time.Second) / rate * float64(o.Conns))
	begun := time.Now().Add(100 * time.Millisecond)
	var wg sync.WaitGroup
	for i := range parts {
		wg.Go(func() {
			c := o.conn()
			defer c.Close()
			src := o.source(i)
			src.prefix = fmt.Sprintf("%s%04x%04x", o.tag, o.phase, i) // no id of another phase
			o.offerOne(&parts[i], c, src, begun.Add(gap*time.Duration(i)/time.Duration(o.Conns)), gap, begun.Add(d))
		})
	}
	wg.Wait()
	all := &offered{seconds: time.Since(begun).Seconds()}
	for i := range parts {
		p := &parts[i]
		all.offered += p.offered
		all.lat, all.due, all.refused = append(all.lat, p.lat...), append(all.due, p.due...), append(all.refused, p.refused...)
		all.withoutRetry, all.other, all.late = all.withoutRetry+p.withoutRetry, all.other+p.other, all.late+p.late
	}
	slices.Sort(all.lat)
	slices.Sort(all.due)
	slices.Sort(all.refused)
	return all, o.ctx.Err()
}

func (o *overloadRun) offerOne(p *offered, c *wire.Conn, src *source, due time.Time, gap time.Duration, end time.Time) {
	for n := 0; due.Before(end) && o.ctx.Err() == nil; due, n = due.Add(gap), n+1 {
		time.Sleep(time.Until(due))
		sent := time.Now()
		if sent.Sub(due) > 10*time.Millisecond {
			p.late++
		}
		p.offered++
		status, err := o.push(c, src, int(src.n))
		took := time.Since(sent)
		switch {
		case err == nil && status == 201:
			p.lat = append(p.lat, took)
			p.due = append(p.due, time.Since(due))
		case err == nil && status == 429:
			p.refused = append(p.refused, took)
			if c.RetryAfter < 0 {
				p.withoutRetry++
			}
		default:
			p.other++
		}
	}
}

// recover offers a load that is easy and returns the seconds until a tenth of a
// second had all calls accepted within the p99 at the limit.
func (o *overloadRun) recover(rate, p99 float64) (float64, error) {
	begun := time.Now()
	for time.Since(begun) < time.Minute {
		p, err := o.offer(rate, 100*time.Millisecond)
		if err != nil {
			return 0, err
		}
		if len(p.refused) == 0 && p.other == 0 && ms(quantile(p.lat, .99)) <= p99 {
			return time.Since(begun).Seconds(), nil
		}
	}
	return 0, errors.New("not recovered within a minute")
}

// consume lets -consumers read the queue until the returned function is called.
func (o *overloadRun) consume() (stop func() error) {
	var done atomic.Bool
	var failed atomic.Pointer[error]
	var wg sync.WaitGroup
	target := popTarget(string(o.queue), "wait=true&timeout=1000&commitOnDelivery=true&partitions=16&batch="+strconv.Itoa(1000))
	for range o.Consumers {
		wg.Go(func() {
			c := o.conn()
			defer c.Close()
			for !done.Load() && o.ctx.Err() == nil {
				c.Get(target)
				status, body, err := c.Do()
				if err == nil && status != 200 && status != 204 {
					err = fmt.Errorf("pop: status %d: %.300s", status, body)
				}
				if err != nil {
					failed.Store(&err)
					return
				}
				if status == 200 {
					o.consumed.Add(int64(wire.Count(body, "transactionId")))
				}
			}
		})
	}
	return func() error {
		done.Store(true)
		wg.Wait()
		if err := failed.Load(); err != nil {
			return fmt.Errorf("a consumer: %w", *err)
		}
		return nil
	}
}

// sampleRSS reads the broker's resident set every half second, in MB.
func (o *overloadRun) sampleRSS() (stop func() []float64) {
	end, all := make(chan struct{}), []float64(nil)
	var wg sync.WaitGroup
	wg.Go(func() {
		tick := time.NewTicker(500 * time.Millisecond)
		defer tick.Stop()
		for {
			all = append(all, float64(broker.RSS(o.pid))/(1<<20))
			select {
			case <-end:
				return
			case <-tick.C:
			}
		}
	})
	return func() []float64 { close(end); wg.Wait(); return all }
}

// tenths takes eleven samples spread evenly: at the start, after each tenth.
func tenths(all []float64) (out []float64) {
	for i := range 11 {
		out = append(out, all[i*(len(all)-1)/10])
	}
	return out
}
