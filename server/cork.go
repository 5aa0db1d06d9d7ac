package server

import (
	"context"
	"net"
)

// corkedListener hands out connections whose writes can be held together.
//
// The HTTP package writes an answer through a buffer of 4 KiB, so one that is
// a little larger goes out in two system calls and wakes its reader twice. An
// exchange corks the connection around such an answer.
type corkedListener struct{ net.Listener }

func (l corkedListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &corkedConn{Conn: c}, nil
}

// corkedConn is a connection. Write, cork and uncork belong to the goroutine
// that answers; reads may run beside them.
type corkedConn struct {
	net.Conn
	corked bool
	held   []byte
}

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

type connKey struct{}

func withConn(ctx context.Context, c net.Conn) context.Context {
	if cc, ok := c.(*corkedConn); ok {
		return context.WithValue(ctx, connKey{}, cc)
	}
	return ctx // TLS: the record layer gathers by itself
}

// corkFrom is the size of body from which header and body do not fit into the
// HTTP package's buffer together.
const corkFrom = 3 << 10

// send writes the body that is in out, and reports whether it went out. A
// small one is not sent before the handler ends unless flush is set.
func (x *exchange) send(flush bool) error {
	var conn *corkedConn
	if len(x.out) > corkFrom {
		conn, _ = x.c.Request.Context().Value(connKey{}).(*corkedConn)
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
