package server

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"

	"queen/fsm"
	"queen/raftlog"
	"queen/server/tokens"
)

// This file is about calls that come to a node which does not lead: they are
// passed on to the node that does, and follow it when it changes.

// Cluster is the way to the other nodes.
type Cluster interface {
	// Leader is the node that leads, as far as this one knows; 0: nobody is known
	// to. here: it is this one.
	Leader() (id uint64, here bool)
	// Forward passes a call on to a node; its error tells nothing of what became
	// of the call. uri is the path and query as the client sent them.
	Forward(ctx context.Context, to uint64, method, uri string, header http.Header, body io.Reader, length int64) (*http.Response, error)
}

// Header lines between nodes.
const (
	// headerUndone marks an answer to a forwarded call: nothing of the call is in
	// the log, nor ever will be, so it may be sent again.
	headerUndone = "X-Queen-Undone"
	// headerLeft is what is left of the call's deadline, in milliseconds.
	headerLeft = "X-Queen-Left-Ms"
	// headerTenant and headerSubject are what the node that the client called
	// found out about it.
	headerTenant  = "X-Queen-Forward-Tenant"
	headerSubject = "X-Queen-Forward-Subject"
)

// leaderPoll is how often a call that waits for a leader looks again.
const leaderPoll = 10 * time.Millisecond

// away is the part of an exchange that concerns other nodes.
type away struct {
	forwarded bool          // it came from another node, which has checked it
	left      time.Duration // of its deadline; 0: it has its whole time
	body      []byte        // as sent; kept because it may have to be sent again
	keeping   bool
	looking   bool // passOn is looking for who decides the call
	again     bool // the try that this node made decided nothing
}

type forwardedKey struct{}

// Forwarded answers calls that other nodes have passed on: who calls was checked
// there. It must be reachable by nodes of the cluster only.
func (s *Server) Forwarded() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.router.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), forwardedKey{}, true)))
	})
}

// arrive finds out whether another node has passed the call on.
func (x *exchange) arrive() {
	x.away = away{body: x.away.body[:0]}
	if x.s.cfg.Cluster == nil {
		return
	}
	x.away.forwarded, _ = x.c.Request.Context().Value(forwardedKey{}).(bool)
	if x.away.forwarded {
		h := x.c.Request.Header
		x.tenant, x.sub = h.Get(headerTenant), h.Get(headerSubject)
		if left, err := strconv.ParseInt(h.Get(headerLeft), 10, 64); err == nil {
			x.away.left = time.Duration(max(left, 1)) * time.Millisecond
		}
	}
}

// handle lets the call be judged: here, or where the leader is.
func (x *exchange) handle() {
	if x.s.cfg.Cluster != nil && !x.rt.local && !x.away.forwarded {
		if _, here := x.s.cfg.Cluster.Leader(); !here {
			if x.readAway() {
				x.passOn()
			}
			return
		}
		x.keepBody()
	}
	if !x.noRoom() {
		x.rt.handle(x.s, x)
	}
}

// keepBody keeps what a handler reads: when this node turns out not to lead any
// more the call goes to another one.
func (x *exchange) keepBody() {
	x.away.keeping = true
	x.c.Request.Body = &keptBody{ReadCloser: x.c.Request.Body, x: x}
}

type keptBody struct {
	io.ReadCloser
	x *exchange
}

func (b *keptBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.x.away.body = append(b.x.away.body, p[:n]...)
	return n, err
}

// readAway reads the whole body; false: it has answered.
func (x *exchange) readAway() bool {
	if x.bodyTooLarge() {
		return false
	}
	limit := x.s.cfg.Limits.BodyBytes
	body := bytes.NewBuffer(x.away.body[:0])
	_, err := body.ReadFrom(io.LimitReader(x.c.Request.Body, limit+1))
	x.away.body = body.Bytes()
	switch {
	case err != nil:
		x.brokeOff(err)
		return false
	case int64(len(x.away.body)) > limit:
		x.tooLarge(limit)
		return false
	}
	return true
}

// undone reports whether an error says that nothing of the call is in the log,
// nor ever will be.
func undone(err error) bool {
	for _, e := range []error{fsm.ErrNotLeader, fsm.ErrStopped, raftlog.ErrNotLeader, raftlog.ErrAbandoned, raftlog.ErrStopped} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// elsewhere takes a call that could not be decided here and of which nothing was
// done: it goes to the node that leads now, or back to the one that passed it on.
func (x *exchange) elsewhere(err error) bool {
	if x.s.cfg.Cluster == nil || !undone(err) {
		return false
	}
	if x.away.forwarded {
		x.c.Writer.Header().Set(headerUndone, "1")
		return false
	}
	if x.away.looking {
		x.away.again = true
		return true
	}
	if !x.away.keeping {
		return false
	}
	x.passOn()
	return true
}

// deadline is until when the call may go from node to node.
func (x *exchange) deadline() time.Duration {
	if x.rt.waits {
		return maxTimeout + x.s.cfg.Limits.ReplyMargin // the leader keeps to what the call says
	}
	return max(x.s.cfg.Limits.CallTimeout, x.s.cfg.Limits.PushTimeout)
}

// passOn sends the call to the leader until one has decided it or its time is over.
func (x *exchange) passOn() {
	x.parked = x.parked || x.rt.waits
	ctx, cancel := context.WithTimeout(x.c.Request.Context(), x.deadline()-x.s.cfg.Clock().Sub(x.start))
	defer cancel()
	stop := context.AfterFunc(x.s.leaving, func() {
		if x.rt.waits {
			cancel() // a pop that waits is answered as empty
		}
	})
	defer stop()
	x.away.looking = true
	for {
		id, here := x.s.cfg.Cluster.Leader()
		switch {
		case here && !x.s.stopping.Load():
			if x.here() {
				return
			}
		case here:
		case id != 0 && x.sendTo(ctx, id):
			return
		}
		select {
		case <-ctx.Done():
			x.outOfTime(id)
			return
		case <-time.After(leaderPoll):
		}
	}
}

// here makes a try on this node. It reports whether that has answered the call.
func (x *exchange) here() (answered bool) {
	x.away.again = false
	x.c.Request.Body = io.NopCloser(bytes.NewReader(x.away.body))
	x.c.Request.ContentLength = int64(len(x.away.body))
	if !x.noRoom() {
		x.rt.handle(x.s, x)
	}
	return !x.away.again
}

// outOfTime answers a call that no leader has decided.
func (x *exchange) outOfTime(leader uint64) {
	switch {
	case x.c.Request.Context().Err() != nil:
		x.empty(statusClientGone)
	case x.rt.waits && x.s.stopping.Load():
		x.empty(http.StatusNoContent)
	case leader == 0:
		x.failAway(outcome{http.StatusServiceUnavailable, "no_leader", "no leader is known: a majority of the nodes is needed"})
	default:
		x.failAway(classify(errTimeout))
	}
}

// sendTo makes one try. It reports whether that has answered the call.
func (x *exchange) sendTo(ctx context.Context, id uint64) (answered bool) {
	r := x.c.Request
	header := r.Header.Clone()
	for _, name := range hopHeaders {
		header.Del(name)
	}
	header.Set(headerTenant, x.tenant)
	header.Set(headerSubject, x.sub)
	header.Set("X-Request-Id", x.id)
	if end, ok := ctx.Deadline(); ok {
		header.Set(headerLeft, strconv.FormatInt(max(time.Until(end).Milliseconds(), 1), 10))
	}
	resp, err := x.s.cfg.Cluster.Forward(ctx, id, r.Method, r.URL.RequestURI(), header, bytes.NewReader(x.away.body), int64(len(x.away.body)))
	if err != nil {
		return x.lost(ctx, id, err)
	}
	defer resp.Body.Close()
	if resp.Header.Get(headerUndone) != "" {
		return false
	}
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return x.lost(ctx, id, err)
	}
	h := x.c.Writer.Header()
	for name, values := range resp.Header {
		h[name] = values
	}
	x.c.Writer.WriteHeader(resp.StatusCode)
	_, _ = x.c.Writer.Write(body) // a client that is gone does not read it
	return true
}

// hopHeaders concern one connection only, or are set anew.
var hopHeaders = []string{"Connection", "Keep-Alive", "Te", "Trailer", "Transfer-Encoding", "Upgrade", "Content-Length", "Expect", "Authorization", "Proxy-Authorization"}

// lost judges a call of which no answer came. One that never left, or only reads,
// is tried again; of another nobody knows what became of it.
func (x *exchange) lost(ctx context.Context, id uint64, err error) (answered bool) {
	var op *net.OpError
	unsent := errors.As(err, &op) && op.Op == "dial"
	if unsent || ctx.Err() != nil || x.rt.level == tokens.ReadOnly {
		return false
	}
	x.s.log.Warn("the connection to the leader broke during a call", "request", x.id, "route", x.rt.path, "leader", id, "error", err)
	if x.rt.acks {
		x.failAway(outcome{http.StatusServiceUnavailable, "outcome_unknown", "the connection to the leader broke before the outcome was known; send the same again"})
	} else {
		x.failAway(outcome{http.StatusServiceUnavailable, "timeout", "the connection to the leader broke before the outcome was known; it may have been applied"})
	}
	return true
}

// failAway answers a call that could not be brought to the leader.
func (x *exchange) failAway(o outcome) {
	x.retryAfter(1)
	x.failUndecided(o)
}
