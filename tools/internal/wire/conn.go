// Package wire is the HTTP client of the load generators: one goroutine, one
// keep-alive connection, no allocation per call. It shares its machine with the
// broker that it measures, so it builds a request by appending to one buffer,
// sends it with one write, and hands out the answer's body as a slice of another
// buffer that the next call reuses.
//
// It knows as much of HTTP/1.1 as a broker's answers need: a status line, a body
// of Content-Length bytes or in chunks, keep-alive. It follows nothing and
// retries nothing: a driver has to know what became of each call.
package wire

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"time"
)

// lengthDigits is the space kept in a request head for the body's length, which
// is known only after the body has been appended.
const lengthDigits = 9

// Conn is one connection. A Conn belongs to one goroutine.
type Conn struct {
	// Timeout bounds one call; 0 waits for ever. Reaching it is an error of
	// the call, after which the connection has to be dialed again.
	Timeout time.Duration
	// RetryAfter is the Retry-After of the last answer in seconds; -1 when it had
	// none that is a whole number.
	RetryAfter int

	addr   string
	conn   net.Conn
	r      *bufio.Reader
	req    []byte
	length int // where the digits of the body's length go in req; -1 = no body
	start  int // where the body starts in req
	body   []byte
}

// NewConn returns a connection to addr (host:port) that is dialed by its first
// call, and again by the first call after an error.
func NewConn(addr string) *Conn {
	return &Conn{addr: addr}
}

// Addr returns the address that the connection was made for.
func (c *Conn) Addr() string { return c.addr }

// Close drops the connection; the next call dials again.
func (c *Conn) Close() {
	if c.conn != nil {
		c.conn.Close()
		c.conn = nil
	}
}

// Get starts a request without a body. target is the path with its query,
// escaped already.
func (c *Conn) Get(target string) {
	c.head("GET", target)
	c.req = append(c.req, "\r\n"...)
	c.length = -1
}

// Post starts a request whose body is appended through Body. target is as for
// Get.
func (c *Conn) Post(target string) {
	c.PostKeyed(target, nil)
}

// PostKeyed is Post with an Idempotency-Key; nil: none.
func (c *Conn) PostKeyed(target string, key []byte) {
	c.head("POST", target)
	if key != nil {
		c.req = append(c.req, "Idempotency-Key: "...)
		c.req = append(c.req, key...)
		c.req = append(c.req, "\r\n"...)
	}
	c.req = append(c.req, "Content-Type: application/json\r\nContent-Length: "...)
	c.length = len(c.req)
	c.req = append(c.req, "         \r\n\r\n"...) // lengthDigits spaces
	c.start = len(c.req)
}

func (c *Conn) head(method, target string) {
	c.req = append(c.req[:0], method...)
	c.req = append(c.req, ' ')
	c.req = append(c.req, target...)
	c.req = append(c.req, " HTTP/1.1\r\nHost: "...)
	c.req = append(c.req, c.addr...)
	c.req = append(c.req, "\r\n"...)
}

// Body returns the request under construction, to be appended to, and SetBody
// takes it back.
func (c *Conn) Body() []byte { return c.req }

// SetBody stores what Body returned, with the body appended.
func (c *Conn) SetBody(b []byte) { c.req = b }

// RequestBody returns the body of the request as it stands.
func (c *Conn) RequestBody() []byte { return c.req[c.start:] }

// Do sends the request and reads the answer. The body is valid until the next
// call. After an error nothing is known of the call's outcome.
func (c *Conn) Do() (status int, body []byte, err error) {
	if err := c.Send(); err != nil {
		return 0, nil, err
	}
	return c.Receive()
}

// Send writes the request without waiting for its answer.
func (c *Conn) Send() error {
	if c.length >= 0 {
		var digits [20]byte
		d := strconv.AppendInt(digits[:0], int64(len(c.req)-c.start), 10)
		if len(d) > lengthDigits {
			return fmt.Errorf("wire: request body of %s bytes: at most %d digits", d, lengthDigits)
		}
		copy(c.req[c.length:], d)
	}
	if c.conn == nil {
		if err := c.dial(); err != nil {
			return err
		}
	}
	if c.Timeout > 0 {
		c.conn.SetDeadline(time.Now().Add(c.Timeout))
	}
	if _, err := c.conn.Write(c.req); err != nil {
		c.Close()
		return err
	}
	return nil
}

func (c *Conn) dial() error {
	conn, err := net.DialTimeout("tcp", c.addr, 5*time.Second)
	if err != nil {
		return err
	}
	c.conn = conn
	if c.r == nil {
		c.r = bufio.NewReaderSize(conn, 64<<10)
	} else {
		c.r.Reset(conn)
	}
	return nil
}

// Receive reads the answer of the request that Send wrote.
func (c *Conn) Receive() (status int, body []byte, err error) {
	status, err = c.receive()
	if err != nil {
		c.Close()
		return 0, nil, err
	}
	return status, c.body, nil
}

func (c *Conn) receive() (status int, err error) {
	line, err := c.line()
	if err != nil {
		return 0, err
	}
	if len(line) < 12 || !bytes.HasPrefix(line, []byte("HTTP/1.")) {
		return 0, fmt.Errorf("wire: status line %q", line)
	}
	if status, err = strconv.Atoi(string(line[9:12])); err != nil {
		return 0, fmt.Errorf("wire: status line %q", line)
	}
	size, chunked, closing := 0, false, false
	c.RetryAfter = -1
	for {
		if line, err = c.line(); err != nil {
			return 0, err
		}
		if len(line) == 0 {
			break
		}
		name, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.TrimSpace(value)
		switch {
		case equalFold(name, "content-length"):
			if size, err = strconv.Atoi(string(value)); err != nil || size < 0 {
				return 0, fmt.Errorf("wire: content-length %q", value)
			}
		case equalFold(name, "transfer-encoding"):
			chunked = equalFold(value, "chunked")
		case equalFold(name, "connection"):
			closing = equalFold(value, "close")
		case equalFold(name, "retry-after"):
			if n, err := strconv.Atoi(string(value)); err == nil && n >= 0 {
				c.RetryAfter = n
			}
		}
	}
	c.body = c.body[:0]
	if chunked {
		err = c.chunks()
	} else if status != 204 {
		err = c.more(size)
	}
	if closing {
		c.Close()
	}
	return status, err
}

// line reads one header line without its end.
func (c *Conn) line() ([]byte, error) {
	line, err := c.r.ReadSlice('\n')
	if err != nil {
		return nil, noEOF(err)
	}
	return bytes.TrimRight(line, "\r\n"), nil
}

// more appends the next n bytes of the connection to the body.
func (c *Conn) more(n int) error {
	old := len(c.body)
	if need := old + n; cap(c.body) < need {
		c.body = append(make([]byte, 0, need+need/4+512), c.body...)
	}
	c.body = c.body[:old+n]
	_, err := io.ReadFull(c.r, c.body[old:])
	return noEOF(err)
}

func (c *Conn) chunks() error {
	for {
		line, err := c.line()
		if err != nil {
			return err
		}
		hex, _, _ := bytes.Cut(line, []byte(";"))
		n, err := strconv.ParseUint(string(hex), 16, 31)
		if err != nil {
			return fmt.Errorf("wire: chunk size %q", line)
		}
		if n > 0 {
			if err := c.more(int(n)); err != nil {
				return err
			}
		}
		if line, err = c.line(); err != nil {
			return err
		}
		if len(line) > 0 {
			return fmt.Errorf("wire: %d bytes after a chunk", len(line))
		}
		if n == 0 {
			return nil
		}
	}
}

// noEOF turns the end of the stream inside an answer into an error that says so.
func noEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// equalFold compares ASCII without regard to case; lower is in lower case.
func equalFold(b []byte, lower string) bool {
	if len(b) != len(lower) {
		return false
	}
	for i, c := range b {
		if 'A' <= c && c <= 'Z' {
			c += 'a' - 'A'
		}
		if c != lower[i] {
			return false
		}
	}
	return true
}
