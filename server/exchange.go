package server

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"runtime/debug"
	"strconv"
	"sync"
	"time"

	"github.com/gin-gonic/gin"

	"queen/fsm"
	"queen/raftlog"
	"queen/server/rawjson"
	"queen/server/tokens"
)

// exchange is one request and its answer. It lives from the start of a handler
// to its end; the engine never sees it.
type exchange struct {
	s      *Server
	c      *gin.Context
	rt     *route
	start  time.Time
	tenant string
	id     string
	sub    string // of the caller's token; empty: none
	out    []byte // the answer's body
	parked bool   // a pop that may wait: being slow is its job
	held   bool   // it waited for admission
	phases phases
	// bodyRead: nothing of the request is left on the connection.
	bodyRead bool
	away     away

	// Values of header lines, kept here so that setting them allocates nothing.
	idLine, lengthLine [1]string
}

var exchangePool = sync.Pool{New: func() any { return &exchange{} }}

// family is the error body that a route speaks.
type family uint8

const (
	engineFamily family = iota // {"error","code"}
	kvFamily                   // {"error","reason","detail"}
	timersFamily
)

// route is one entry of the route table.
type route struct {
	method, path string
	level        tokens.Access
	family       family
	writes       bool // also on a full disk, from its reserve
	local        bool // about this node: never passed on to the leader
	waits        bool // may wait for long
	acks         bool // settles messages: sent again it does no harm
	handle       func(*Server, *exchange)
	stats        *routeStats
}

// serve wraps a route's handler: id, tenant, panics, the log line of a failed
// or slow call, measurement.
func (s *Server) serve(rt *route) gin.HandlerFunc {
	return func(c *gin.Context) {
		x := exchangePool.Get().(*exchange)
		x.s, x.c, x.rt, x.start, x.parked, x.held, x.bodyRead, x.sub, x.phases = s, c, rt, s.cfg.Clock(), false, false, false, "", phases{}
		defer x.recover()
		x.takeID()
		if x.arrive(); x.away.forwarded || x.authorized() && x.takeTenant() {
			x.handle()
		}
		x.finish()
	}
}

func (x *exchange) recover() {
	p := recover()
	if p == nil {
		return
	}
	if p == http.ErrAbortHandler {
		panic(p)
	}
	// The exchange and whatever work it had are left to the collector: the
	// engine may still hold them.
	x.s.log.Error("a handler panicked", "request", x.id, "route", x.rt.path, "panic", p, "stack", string(debug.Stack()))
	if !x.c.Writer.Written() {
		x.fail(http.StatusInternalServerError, "internal", "internal error")
	}
	x.finishMeasured()
}

func (x *exchange) finish() {
	x.leaveBody()
	x.c.Writer.WriteHeaderNow()
	x.finishMeasured()
	if cap(x.out) > maxPooled {
		x.out = nil
	}
	if cap(x.away.body) > maxPooled {
		x.away.body = nil
	}
	x.c, x.s, x.rt, x.out = nil, nil, nil, x.out[:0]
	exchangePool.Put(x)
}

func (x *exchange) finishMeasured() {
	took, status := x.s.cfg.Clock().Sub(x.start), x.c.Writer.Status()
	x.rt.stats.observe(status, took)
	failed := status >= 500
	if took >= x.s.cfg.Limits.SlowCall && !x.parked {
		x.s.metrics.slow.Add(1)
	}
	if (failed || took >= x.s.cfg.Limits.SlowCall && !x.parked) && x.s.logLimit.allow(x.start) {
		x.s.logCall(x, status, took, failed)
	}
	if x.s.cfg.Spans != nil {
		x.recordSpans(status, took)
	}
}

// takeID takes x-request-id from the request, or mints one, and puts it into
// the answer's header.
func (x *exchange) takeID() {
	x.id = x.c.Request.Header.Get("X-Request-Id")
	if !visible(x.id, 128) {
		x.id = x.s.requestID()
	}
	x.idLine[0] = x.id
	x.c.Writer.Header()["X-Request-Id"] = x.idLine[:]
}

// visible reports whether s is 1 to limit visible ASCII characters.
func visible(s string, limit int) bool {
	if len(s) == 0 || len(s) > limit {
		return false
	}
	for i := range len(s) {
		if s[i] <= ' ' || s[i] > '~' {
			return false
		}
	}
	return true
}

// takeTenant reads the tenant of the call; false: it was answered.
func (x *exchange) takeTenant() bool {
	x.tenant = defaultTenant
	if !x.s.cfg.Tenancy {
		return true
	}
	text := trimSpace(x.c.Request.Header.Get("X-Queen-Tenant"))
	if text == "" {
		return true
	}
	id, ok := parseID(text)
	if !ok {
		x.out = append(x.out[:0], `{"error":"invalid x-queen-tenant header (must be a UUID)"}`...)
		x.answer(http.StatusBadRequest)
		return false
	}
	x.tenant = textOfID(id)
	return true
}

// param is a path parameter, percent-decoded once. The router hands parts of
// the raw path on as they are when a path has escapes that matter, and of the
// decoded path otherwise.
func (x *exchange) param(name string) (value string, ok bool) {
	value = x.c.Param(name)
	if x.c.Request.URL.RawPath != "" {
		return unescapePath(value)
	}
	return value, validText(value)
}

// rest is the catch-all parameter without its leading slash.
func (x *exchange) rest(name string) (value string, ok bool) {
	value, ok = x.param(name)
	if value != "" {
		value = value[1:]
	}
	return value, ok
}

var jsonType = []string{"application/json"}

// answer sends what is in out as JSON.
func (x *exchange) answer(status int) error {
	x.head(status)
	return x.send(false)
}

// deliver is answer for what is lost when it does not arrive: it reports a
// connection that turns out to be dead.
func (x *exchange) deliver(status int) error {
	x.head(status)
	return x.send(true)
}

func (x *exchange) head(status int) {
	h := x.c.Writer.Header()
	h["Content-Type"] = jsonType
	x.lengthLine[0] = strconv.Itoa(len(x.out))
	h["Content-Length"] = x.lengthLine[:]
	x.c.Writer.WriteHeader(status)
}

// empty sends a status without any body.
func (x *exchange) empty(status int) {
	x.c.Writer.WriteHeader(status)
	x.c.Writer.WriteHeaderNow()
}

func (x *exchange) plain(status int, text string) {
	h := x.c.Writer.Header()
	h.Set("Content-Type", "text/plain; charset=utf-8")
	x.c.Writer.WriteHeader(status)
	_, _ = io.WriteString(x.c.Writer, text)
}

func (x *exchange) retryAfter(seconds int) {
	x.c.Writer.Header()["Retry-After"] = []string{strconv.Itoa(seconds)}
}

// fail answers with the engine's error body.
func (x *exchange) fail(status int, code, prose string) {
	x.out = append(x.out[:0], `{"error":`...)
	x.out = rawjson.AppendString(x.out, prose)
	x.out = append(x.out, `,"code":`...)
	x.out = rawjson.AppendString(x.out, code)
	x.out = append(x.out, '}')
	_ = x.answer(status)
}

// failReason answers with the error body of the KV and timers routes.
func (x *exchange) failReason(status int, code, reason, detail string) {
	x.out = append(x.out[:0], `{"error":`...)
	x.out = rawjson.AppendString(x.out, code)
	if reason != "" {
		x.out = append(x.out, `,"reason":`...)
		x.out = rawjson.AppendString(x.out, reason)
	}
	x.out = append(x.out, `,"detail":`...)
	x.out = rawjson.AppendString(x.out, detail)
	x.out = append(x.out, '}')
	_ = x.answer(status)
}

// outcome is how a call that was not decided here is told to the client.
type outcome struct {
	status int
	code   string // of the engine's family
	prose  string
}

func classify(err error) outcome {
	switch {
	case errors.Is(err, errTimeout):
		return outcome{http.StatusServiceUnavailable, "timeout", "the deadline passed before the outcome was known; it may have been applied"}
	case errors.Is(err, fsm.ErrNotLeader), errors.Is(err, raftlog.ErrNotLeader), errors.Is(err, raftlog.ErrAbandoned):
		return outcome{http.StatusServiceUnavailable, "retry", "this node could not bring the call to a decision; send it again"}
	case errors.Is(err, errNoKey):
		return outcome{http.StatusBadRequest, "encryption_key_missing", err.Error()}
	case errors.Is(err, errUnsettled):
		return outcome{http.StatusServiceUnavailable, "retry", "nothing was applied, " + err.Error() + "; send it again"}
	case errors.Is(err, fsm.ErrStopped), errors.Is(err, raftlog.ErrStopped):
		return outcome{http.StatusServiceUnavailable, "retry", "this node is stopping; send it again"}
	default:
		return outcome{http.StatusInternalServerError, "internal", "internal error"}
	}
}

// undecided answers a call that ended with err instead of a result.
func (x *exchange) undecided(err error) {
	if errors.Is(err, errGone) {
		// Nobody reads this; the status is for the measurement.
		x.empty(statusClientGone)
		return
	}
	if x.elsewhere(err) {
		return
	}
	o := classify(err)
	if o.status == http.StatusInternalServerError {
		x.s.log.Error("a call failed", "request", x.id, "route", x.rt.path, "error", err)
	} else if o.status == http.StatusServiceUnavailable {
		x.retryAfter(1)
	}
	x.failUndecided(o)
}

// failUndecided answers in the words of the route's family.
func (x *exchange) failUndecided(o outcome) {
	switch x.rt.family {
	case kvFamily:
		x.undecidedReason(o, "kv_error", "kv_unavailable", "kv_"+o.code)
	case timersFamily:
		if o.status == http.StatusBadRequest {
			x.failReason(o.status, "timers_bad_request", "timers_"+o.code, o.prose)
			return
		}
		x.undecidedReason(o, "timers_error", "timers_unavailable", "timers_"+o.code)
	default:
		x.fail(o.status, o.code, o.prose)
	}
}

func (x *exchange) undecidedReason(o outcome, broken, unavailable, reason string) {
	if o.status == http.StatusInternalServerError {
		x.failReason(o.status, broken, "", o.prose)
		return
	}
	x.failReason(o.status, unavailable, reason, o.prose)
}

// statusClientGone marks, in the measurement only, a call whose client left.
const statusClientGone = 499

// readBody reads the request's body into the work. It answers and returns
// false when the body is over the limit or breaks off.
func (x *exchange) readBody(w *work) bool {
	limit, req := x.s.cfg.Limits.BodyBytes, x.c.Request
	switch n := req.ContentLength; {
	case x.bodyTooLarge():
		return false
	case n >= 0:
		if int64(cap(w.body)) < n {
			w.body = make([]byte, n)
		}
		w.body = w.body[:n]
		return x.readFull(w.body)
	default:
		return x.readChunked(w, limit)
	}
}

func (x *exchange) readChunked(w *work, limit int64) bool {
	x.beginBody()
	return x.endBody(x.readChunks(w, limit))
}

func (x *exchange) readChunks(w *work, limit int64) bool {
	buf := w.body[:0]
	for {
		if len(buf) == cap(buf) {
			buf = append(buf, 0)[:len(buf)]
		}
		n, err := x.c.Request.Body.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		if int64(len(buf)) > limit {
			x.tooLarge(limit)
			return false
		}
		if err == io.EOF {
			w.body = buf
			return true
		}
		if err != nil {
			x.brokeOff(err)
			return false
		}
	}
}

// readFull fills b from the body; false: it has answered.
func (x *exchange) readFull(b []byte) bool {
	if len(b) == 0 {
		return true
	}
	x.beginBody()
	_, err := io.ReadFull(x.c.Request.Body, b)
	if x.endBody(err == nil); err != nil {
		x.brokeOff(err)
	}
	return err == nil
}

func (x *exchange) brokeOff(err error) {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		x.c.Writer.Header()["Connection"] = []string{"close"}
		x.fail(http.StatusRequestTimeout, "bad_body", "the body came too slowly; nothing was applied")
		return
	}
	x.fail(http.StatusBadRequest, "bad_body", fmt.Sprintf("the body broke off: %v", err))
}

// bodyTooLarge answers 413 when the request says that its body is over the
// limit.
func (x *exchange) bodyTooLarge() bool {
	limit := x.s.cfg.Limits.BodyBytes
	if x.c.Request.ContentLength <= limit {
		return false
	}
	x.tooLarge(limit)
	return true
}

func (x *exchange) tooLarge(limit int64) {
	x.plain(http.StatusRequestEntityTooLarge, fmt.Sprintf("request body is over the limit of %d bytes\n", limit))
}

// remaining is what is left of a deadline that began with the request.
func (x *exchange) remaining(d time.Duration) time.Duration {
	if x.away.left > 0 {
		d = min(d, x.away.left)
	}
	if !x.held {
		return d // so far only its body was read
	}
	return d - x.s.cfg.Clock().Sub(x.start)
}
