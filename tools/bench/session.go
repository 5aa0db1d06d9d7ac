package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"time"

	"queen/tools/internal/broker"
	"queen/tools/internal/wire"
)

// session is one run: its broker, and what is needed to measure it.
type session struct {
	*Config
	ctx  context.Context
	proc *broker.Process // nil with -url
	addr string          // host:port
	pid  int
	base string // http://host:port
	tag  string // unique per run, starts every name and id
	data string // the broker's data directory
	run  int

	atWindow func(end int) // called where the window begins (0) and ends (1); nil: nobody wants to know
}

// open starts the run's broker, or takes the one at -url.
func open(ctx context.Context, c *Config, run int) (*session, error) {
	s := &session{Config: c, ctx: ctx, pid: c.PID, run: run, tag: fmt.Sprintf("%06x", time.Now().UnixMilli()&0xffffff)}
	if c.URL != "" {
		u, err := url.Parse(c.URL)
		if err != nil || u.Host == "" {
			return nil, fmt.Errorf("-url %q: expected http://host:port", c.URL)
		}
		s.addr, s.base = u.Host, "http://"+u.Host
		return s, nil
	}
	dir, err := filepath.Abs(c.Dir)
	if err != nil {
		return nil, err
	}
	if err := os.RemoveAll(dir); err != nil {
		return nil, err
	}
	s.data = filepath.Join(dir, "data")
	env := c.Env
	if c.Profile != "" {
		env = append(env[:len(env):len(env)], "QUEEN_PPROF=true")
	}
	s.proc, err = broker.Start(ctx, broker.Options{Binary: c.Queen, Dir: s.data, Env: env})
	if err != nil {
		return nil, err
	}
	s.addr, s.base, s.pid = s.proc.Addr(), s.proc.URL(), s.proc.PID()
	return s, nil
}

// close stops the broker, which has to end cleanly, and removes its data.
func (s *session) close() error {
	if s.proc == nil {
		return nil
	}
	err := s.proc.Stop(30 * time.Second)
	if err == nil && !(s.Keep && s.run == s.Runs) {
		err = os.RemoveAll(filepath.Dir(s.data))
	}
	return err
}

func (s *session) conn() *wire.Conn {
	c := wire.NewConn(s.addr)
	c.Timeout = 90 * time.Second
	return c
}

// queue returns the run's name of a queue: with a broker that is not fresh, runs
// have to stay apart.
func (s *session) queue(name string) string {
	if s.proc != nil {
		return name
	}
	return name + "-" + s.tag
}

// worker is one goroutine of a load. It returns when the meter says stop, or its
// input has run out.
type worker func(l *lane) error

// measure runs the workers through warm-up and window and returns what the
// lanes and the counters of the machine saw in the window. drain, when not nil,
// runs between the end of the window and the end of the workers.
func (s *session) measure(workers []worker, drain func()) (*Result, error) {
	m := &meter{}
	lanes := make([]*lane, len(workers))
	errs := make(chan error, len(workers))
	var wg sync.WaitGroup
	for i, w := range workers {
		l := &lane{m: m}
		lanes[i] = l
		wg.Go(func() {
			if err := w(l); err != nil {
				errs <- err
			}
		})
	}
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()

	err := s.wait(s.Warmup, errs, done)
	s.window(0)
	before := broker.MeasureUsage(s.pid, s.base)
	m.open(before.At)
	profile := s.profile(err == nil)
	if err == nil {
		err = s.wait(s.Dur, errs, done)
	}
	after := broker.MeasureUsage(s.pid, s.base)
	m.close(after.At)
	s.window(1)
	if drain != nil && err == nil {
		drain()
	}
	m.stop.Store(true)
	<-done
	perr := <-profile
	select {
	case werr := <-errs:
		err = werr
	default:
	}
	if err = errors.Join(err, perr); err != nil {
		return nil, err
	}
	r := newResult(s.Config, lanes, before, after)
	r.RSSMB = float64(broker.RSS(s.pid)) / (1 << 20)
	return r, nil
}

func (s *session) window(end int) {
	if s.atWindow != nil {
		s.atWindow(end)
	}
}

// wait returns after d, or sooner when every worker has ended.
func (s *session) wait(d time.Duration, errs chan error, done chan struct{}) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case err := <-errs:
		return err
	case <-s.ctx.Done():
		return s.ctx.Err()
	case <-done:
	case <-t.C:
	}
	return nil
}

// profile fetches a CPU profile of the window, when one is wanted.
func (s *session) profile(wanted bool) chan error {
	out := make(chan error, 1)
	if s.Profile == "" || !wanted {
		out <- nil
		return out
	}
	go func() { out <- s.fetchProfile() }()
	return out
}

func (s *session) fetchProfile() error {
	resp, err := http.Get(fmt.Sprintf("%s/debug/pprof/profile?seconds=%d", s.base, max(1, int(s.Dur.Seconds())-1)))
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("profile: status %d (a running broker needs QUEEN_PPROF=true)", resp.StatusCode)
	}
	f, err := os.Create(s.Profile)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, resp.Body)
	return errors.Join(err, f.Close())
}
