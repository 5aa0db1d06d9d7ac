package server

import (
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// pace bounds how slowly the body of a request may come: its first bytes within
// a grace, and from then on at a least rate on average. A client that holds a
// connection with a body that never ends loses it.
//
// It costs a request whose body came along with its header next to nothing: a
// deadline is set where the connection is read for more, and only there.
type pace struct {
	on atomic.Bool // a body is being read

	mu struct {
		sync.Mutex
		start time.Time
		got   int64 // bytes since start
		set   bool  // the connection has a deadline of ours
	}
}

// begin is called by the reader of a body, and end by the same when it is done.
func (p *pace) begin() {
	p.mu.Lock()
	p.mu.start, p.mu.got, p.mu.set = time.Time{}, 0, false
	p.on.Store(true)
	p.mu.Unlock()
}

// end gives the connection the deadline back that a request has otherwise, when
// the body came whole. The HTTP package may be reading again by then, to notice
// a client that leaves; the lock makes its deadline the later one.
func (p *pace) end(c net.Conn, whole bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.on.Store(false)
	if p.mu.set && whole {
		_ = c.SetReadDeadline(time.Now().Add(patience))
	}
}

// before is called ahead of each read of the connection.
func (p *pace) before(c net.Conn, l *Limits) {
	if !p.on.Load() {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.on.Load() {
		return
	}
	if !p.mu.set {
		p.mu.start, p.mu.set = time.Now(), true
	}
	earned := time.Duration(float64(p.mu.got) / float64(l.BodyRate) * float64(time.Second))
	_ = c.SetReadDeadline(p.mu.start.Add(l.BodyGrace + earned))
}

// after counts what a read brought.
func (p *pace) after(n int) {
	if n <= 0 || !p.on.Load() {
		return
	}
	p.mu.Lock()
	p.mu.got += int64(n)
	p.mu.Unlock()
}

// beginBody and endBody stand around every read of a request's body.
func (x *exchange) beginBody() {
	if c := x.paced(); c != nil {
		c.pace.begin()
	}
}

func (x *exchange) endBody(whole bool) bool {
	x.bodyRead = whole
	if c := x.paced(); c != nil {
		c.pace.end(c.Conn, whole)
	}
	return whole
}

// leaveBody bounds what the HTTP package spends on a body that no handler has
// read: it throws it away before it sends the answer.
func (x *exchange) leaveBody() {
	if x.bodyRead || x.c.Request.ContentLength == 0 {
		return
	}
	if c := x.paced(); c != nil {
		_ = c.SetReadDeadline(time.Now().Add(x.s.cfg.Limits.BodyGrace))
	}
}
