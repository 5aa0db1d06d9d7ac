package server

import (
	"crypto/sha256"
	"errors"
	"net/http"

	"queen/fsm"
	"queen/raftlog"
	"queen/server/rawjson"
)

// Calls with an Idempotency-Key. What such a call is answered is kept with its
// effects, so it is rendered while it is planned, and the first answer is made
// of the same bytes as every later one.

const (
	keyHeader      = "Idempotency-Key"
	replayedHeader = "Idempotency-Replayed"
	maxKeyBytes    = 255
)

// keyed reports whether the call has a key: without one nothing is made for it.
func (x *exchange) keyed() bool { return x.c.Request.Header[keyHeader] != nil }

// takeKey reads the key of a call whose body has been read, and whose answer
// render makes once it is planned; parts is how many results that has. false: it
// has answered.
func (x *exchange) takeKey(w *work, route fsm.OutcomeRoute, parts int, render func(dst []byte) []byte) bool {
	lines := x.c.Request.Header[keyHeader]
	if len(lines) > 1 || !visible(lines[0], maxKeyBytes) {
		x.failKey(http.StatusBadRequest, "bad_request", "Idempotency-Key is not one line of 1 to 255 visible ASCII characters; nothing was applied")
		return false
	}
	// Each result has a bounded size beside the texts that it repeats of the body.
	if 512*parts+len(w.body) > x.s.cfg.Limits.EntryBytes {
		x.failKey(http.StatusRequestEntityTooLarge, "too_large", "the answer of so large a call cannot be kept; send fewer items with an Idempotency-Key. Nothing was applied")
		return false
	}
	w.keyed = fsm.Keyed{Route: route, Key: lines[0], Hash: x.requestHash(w.body)}
	w.keyed.Render = func() (int, []byte) {
		w.answer = render(w.answer[:0])
		return x.rt.success(), w.answer
	}
	w.call.Key = &w.keyed
	return true
}

// success is the status of the route's answer to a call that was carried out.
func (rt *route) success() int {
	if rt.path == "/api/v1/push" {
		return http.StatusCreated
	}
	return http.StatusOK
}

// requestHash is of everything that makes a request what it is: its target and
// its body.
func (x *exchange) requestHash(body []byte) (sum [16]byte) {
	h := sha256.New()
	h.Write([]byte(x.c.Request.URL.RequestURI()))
	h.Write([]byte{0})
	h.Write(body)
	var all [sha256.Size]byte
	copy(sum[:], h.Sum(all[:0]))
	return sum
}

// failKey answers what is wrong with a key, in the body of the route's family.
// Those without a code of their own have it beside.
func (x *exchange) failKey(status int, code, prose string) {
	if x.rt.family == engineFamily {
		x.fail(status, code, prose)
		return
	}
	x.out = append(x.out[:0], `{"error":`...)
	x.out = rawjson.AppendString(x.out, code)
	x.out = append(x.out, `,"code":`...)
	x.out = rawjson.AppendString(x.out, code)
	x.out = append(x.out, `,"detail":`...)
	x.out = rawjson.AppendString(x.out, prose)
	x.out = append(x.out, '}')
	_ = x.answer(status)
}

// answerKnown answers a call whose key the planner knew; false: it did not, the
// call was judged.
func (s *Server) answerKnown(x *exchange, w *work) bool {
	k := w.call.Key
	switch {
	case k == nil || k.Kept:
		return false
	case k.Reused:
		s.putWork(w)
		x.failKey(http.StatusUnprocessableEntity, "idempotency_key_reused", "this Idempotency-Key was sent with another request; nothing was applied")
		return true
	case !k.Repeat:
		return false
	}
	o := k.Outcome
	var err error
	x.out, err = s.appendOutcome(x.out[:0], w, &o)
	s.putWork(w)
	if err != nil {
		s.log.Error("a kept answer cannot be read", "request", x.id, "error", err)
		x.retryAfter(1)
		x.fail(http.StatusServiceUnavailable, "retry", "the first answer cannot be read now; nothing was applied again")
		return true
	}
	x.c.Writer.Header()[replayedHeader] = []string{"true"}
	_ = x.answer(o.Status)
	return true
}

// appendOutcome appends a kept answer, whole.
func (s *Server) appendOutcome(dst []byte, w *work, o *fsm.OutcomeInfo) ([]byte, error) {
	body := o.Body
	if o.Content != 0 {
		var err error
		if body, err = s.engine.Reader().Value(o.Content, 0); err != nil {
			return dst, err
		}
	}
	dst = append(dst, body...)
	if !o.HasNext {
		return dst, nil
	}
	if o.Next == nil {
		return append(dst, "null}"...), nil
	}
	w.pop = fsm.Pop{
		Queue: o.Next.Queue, Group: o.Next.Group, LeaseID: o.Next.LeaseID, Conflates: o.Next.Conflates, Claims: o.Next.Claims,
	}
	from := len(dst)
	dst, n, err := s.appendPop(dst, w, [2]int{})
	if errors.Is(err, raftlog.ErrNoLog) || err == nil && n == 0 {
		return append(dst[:from], "null}"...), nil // the queue is no more
	}
	return append(dst, '}'), err
}

// serveOutcome tells what is kept of a call.
func (s *Server) serveOutcome(x *exchange) {
	key, ok := x.param("key")
	route, known := fsm.OutcomeTransaction, true
	parses := query(x.c.Request.URL.RawQuery, func(name, value string) bool {
		if name == "route" {
			route, known = fsm.ParseOutcomeRoute(value)
		}
		return true
	})
	switch {
	case !ok || !visible(key, maxKeyBytes):
		x.fail(http.StatusBadRequest, "bad_request", "the key is not 1 to 255 visible ASCII characters")
		return
	case !parses || !known:
		x.fail(http.StatusBadRequest, "bad_request", "route is none of push, ack, ack/batch, transaction, kv, timers, locks, kv/put and kv/delete")
		return
	}
	var (
		o     fsm.OutcomeInfo
		found bool
	)
	tenant := x.tenant
	if !s.read(x, func(st *fsm.State) { o, found = st.Outcome(tenant, route, key) }) {
		return
	}
	if !found {
		x.out = append(x.out[:0], `{"found":false}`...)
		_ = x.answer(http.StatusOK)
		return
	}
	w := s.getWork(x)
	defer s.putWork(w)
	x.out = append(x.out[:0], `{"found":true,`...)
	x.out = appendInt(x.out, "status", int64(o.Status))
	x.out = append(x.out, `,"body":`...)
	var err error
	if x.out, err = s.appendOutcome(x.out, w, &o); err != nil {
		s.log.Error("a kept answer cannot be read", "request", x.id, "error", err)
		x.retryAfter(1)
		x.fail(http.StatusServiceUnavailable, "retry", "the kept answer cannot be read now")
		return
	}
	x.out = append(x.out, `,"at":`...)
	x.out = rawjson.AppendMicros(x.out, o.At)
	x.out = append(x.out, '}')
	_ = x.answer(http.StatusOK)
}
