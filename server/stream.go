package server

import (
	"net/http"

	"queen/fsm"
)

// streamBytes is from how many bytes on an answer is sent in pieces.
const streamBytes = 64 << 10

// stream is the answer of a list of any length: it is sent page by page, so that
// it takes the memory of one. What goes wrong after the first piece can only be
// told by breaking the connection off.
type stream struct {
	x       *exchange
	started bool
}

// read looks at the state; false: the call has been answered.
func (t *stream) read(do func(st *fsm.State)) bool {
	x, s := t.x, t.x.s
	if !t.started {
		out := x.out
		x.out = nil // what is there stays as it is, and an error has a body of its own
		ok := s.read(x, do)
		if ok {
			x.out = out
		}
		return ok
	}
	w := s.getWork(x)
	if err := s.run(w, &fsm.Read{Do: do}, 0, s.cfg.Limits.CallTimeout, nil); err != nil {
		s.ended(w, err)
		t.abort(err)
	}
	s.putWork(w)
	return true
}

// abort breaks an answer off that is on its way.
func (t *stream) abort(err error) {
	t.x.s.log.Debug("a list was broken off", "request", t.x.id, "error", err)
	panic(http.ErrAbortHandler)
}

// page sends what has come together, once it is enough.
func (t *stream) page() {
	if len(t.x.out) >= streamBytes {
		t.send()
	}
}

func (t *stream) send() {
	x := t.x
	if !t.started {
		t.started = true
		x.c.Writer.Header()["Content-Type"] = jsonType
		x.c.Writer.WriteHeader(http.StatusOK)
	}
	if _, err := x.c.Writer.Write(x.out); err != nil {
		t.abort(err)
	}
	x.out = x.out[:0]
}

// end sends the rest, or a short answer as a whole.
func (t *stream) end() {
	if t.started {
		t.send()
		return
	}
	_ = t.x.answer(http.StatusOK)
}
