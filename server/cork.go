package server

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// corkedListener hands out connections whose writes can be held together, and
// which notice that their client threw the answer of a pop away.
//
// The HTTP package writes an answer through a buffer of 4 KiB, so one that is
// a little larger goes out in two system calls and wakes its reader twice. An
// exchange corks the connection around such an answer.
type corkedListener struct {
	net.Listener
	s *Server
	// slots bounds the connections: one that finds none free waits in the
	// kernel's queue, since descriptors are what the log needs too. Nil: no bound.
	slots chan struct{}
}

func (l corkedListener) Accept() (net.Conn, error) {
	if l.slots != nil {
		l.slots <- struct{}{}
	}
	c, err := l.Listener.Accept()
	if err != nil {
		l.release()
		return nil, err
	}
	return &corkedConn{Conn: c, s: l.s, closed: sync.OnceFunc(l.release)}, nil
}

func (l corkedListener) release() {
	if l.slots != nil {
		<-l.slots
	}
}

// corkedConn is a connection. Write, cork and uncork belong to the goroutine
// that answers; reads may run beside them.
type corkedConn struct {
	net.Conn
	s      *Server
	corked bool
	held   []byte
	closed func() // gives the connection's slot back, once
	pace   pace
	// unread is the pop that was answered last, until the client sends more.
	unread atomic.Pointer[delivered]
}

// delivered is a pop whose answer was given to the kernel.
type delivered struct {
	claims claims
	at     time.Time
}

// unreadFor is how long after an answer a reset still means that it was not
// read. Later it is a connection in a pool that somebody tore down.
const unreadFor = 2 * time.Second

// Read notices a reset. A client that closes its socket with an answer unread,
// or before the answer came, resets the connection; one that has read it ends
// it in order, also when its process dies. So a reset right after the answer
// of a pop says that nobody received the claim.
func (c *corkedConn) Read(b []byte) (int, error) {
	c.pace.before(c.Conn, &c.s.cfg.Limits)
	n, err := c.Conn.Read(b)
	c.pace.after(n)
	if c.unread.Load() == nil {
		return n, err
	}
	if n > 0 {
		c.unread.Store(nil)
	} else if errors.Is(err, syscall.ECONNRESET) {
		if d := c.takeUnread(); d != nil {
			c.s.handBackLater(d.claims)
		}
	}
	return n, err
}

func (c *corkedConn) takeUnread() *delivered {
	d := c.unread.Swap(nil)
	if d != nil && c.s.cfg.Clock().Sub(d.at) >= unreadFor {
		return nil
	}
	return d
}

// arrival is what became of the bytes of an answer.
type arrival uint8

const (
	arrivalUnknown arrival = iota
	arrivalAcked           // the other end has them
	arrivalPending         // not known yet
	arrivalReset           // the other end has thrown them away
)

// Close looks at an answer that crossed with the end of its connection: the
// client had closed before the bytes reached it. Reads only see an end in
// order then; the connection itself knows that the bytes were refused. Where
// that is still under way, it waits, for a bounded time, on the goroutine of
// this connection.
func (c *corkedConn) Close() error {
	if d := c.takeUnread(); d != nil {
		verdict := arrived(c.Conn)
		for range crossingTries {
			if verdict != arrivalPending {
				break
			}
			time.Sleep(crossingPause)
			verdict = arrived(c.Conn)
		}
		if verdict == arrivalReset {
			c.s.handBackLater(d.claims)
		}
	}
	err := c.Conn.Close()
	c.closed()
	return err
}

const (
	crossingTries = 100
	crossingPause = 3 * time.Millisecond
)

func (c *corkedConn) Write(b []byte) (int, error) {
	if c.corked {
		c.held = append(c.held, b...)
		return len(b), nil
	}
	return c.Conn.Write(b)
}

func (c *corkedConn) cork() { c.corked = true }

// uncork writes what was held, in one call.
func (c *corkedConn) uncork() error {
	c.corked = false
	held := c.held
	if c.held = held[:0]; cap(held) > maxPooled {
		c.held = nil
	}
	if len(held) == 0 {
		return nil
	}
	_, err := c.Conn.Write(held)
	return err
}

// CloseWrite is what the HTTP package uses to end an answer before it closes.
func (c *corkedConn) CloseWrite() error {
	if t, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return t.CloseWrite()
	}
	return nil
}

type (
	connKey  struct{} // a connection that can be corked
	pacedKey struct{} // one below TLS: the record layer gathers by itself
)

func withConn(ctx context.Context, c net.Conn) context.Context {
	if cc, ok := c.(*corkedConn); ok {
		return context.WithValue(ctx, connKey{}, cc)
	}
	if t, ok := c.(*tls.Conn); ok {
		if cc, ok := t.NetConn().(*corkedConn); ok {
			return context.WithValue(ctx, pacedKey{}, cc)
		}
	}
	return ctx
}

// corkFrom is the size of body from which header and body do not fit into the
// HTTP package's buffer together.
const corkFrom = 3 << 10

// conn is the connection of the exchange; nil when it cannot be corked.
func (x *exchange) conn() *corkedConn {
	c, _ := x.c.Request.Context().Value(connKey{}).(*corkedConn)
	return c
}

// paced is the connection whose reads are paced; nil: there is none.
func (x *exchange) paced() *corkedConn {
	if c := x.conn(); c != nil {
		return c
	}
	c, _ := x.c.Request.Context().Value(pacedKey{}).(*corkedConn)
	return c
}

// send writes the body that is in out, and reports whether it went out. A
// small one is not sent before the handler ends unless flush is set.
func (x *exchange) send(flush bool) error {
	var conn *corkedConn
	if len(x.out) > corkFrom {
		conn = x.conn()
	}
	if conn != nil {
		conn.cork()
		flush = true
	}
	_, err := x.c.Writer.Write(x.out)
	if err == nil && flush {
		err = x.flush()
	}
	if conn != nil {
		if uerr := conn.uncork(); err == nil {
			err = uerr
		}
	}
	return err
}
