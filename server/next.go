package server

import (
	"errors"
	"net/http"
	"time"

	"queen/fsm"
	"queen/raftlog"
	"queen/server/rawjson"
)

// The next batch of a worker in the answer of a transaction or an ack.

// nextClaim is what a body says of the batch that the call is to claim.
type nextClaim struct {
	asked bool
	wait  time.Duration // how long the claim may take; 0: it does not wait
	bad   problem
}

// parseNext reads the member "next" into w.pop and w.next.
func (s *Server) parseNext(w *work) {
	sc := &w.scan
	w.next, w.pop = nextClaim{}, fsm.Pop{}
	switch sc.Kind() {
	case rawjson.Null:
		sc.Skip()
		return
	case rawjson.Object:
	default:
		sc.Skip()
		w.next.bad.set(http.StatusBadRequest, "bad_request", "next is no object")
		return
	}
	var (
		p     popParams
		queue []byte
		part  []byte
		named bool
		wrong string
	)
	for ok := sc.EnterObject(); ok; ok = sc.NextMember() {
		switch string(sc.Key()) {
		case "queue":
			queue, _ = textMember(sc, "queue", &wrong)
		case "partition":
			part, named = textMember(sc, "partition", &wrong)
		case "consumerGroup":
			p.group = textOf(w, sc, "consumerGroup", &wrong)
		case "subscriptionMode":
			p.mode = textOf(w, sc, "subscriptionMode", &wrong)
		case "subscriptionFrom":
			p.from = textOf(w, sc, "subscriptionFrom", &wrong)
		case "batch":
			p.batch, p.hasBatch = wholeMember(sc, "batch", &wrong)
		case "partitions":
			p.partitions, p.hasPartitions = wholeMember(sc, "partitions", &wrong)
		case "leaseSeconds":
			p.lease, _ = wholeMember(sc, "leaseSeconds", &wrong)
		case "timeout":
			p.timeout, p.hasTimeout = wholeMember(sc, "timeout", &wrong)
		case "wait":
			p.wait = flagMember(sc, "wait", &wrong)
		default:
			sc.Skip()
		}
	}
	bad := &w.next.bad
	switch {
	case wrong != "":
		bad.set(http.StatusBadRequest, "bad_request", "next."+wrong+" has the wrong type")
	case len(queue) == 0:
		bad.set(http.StatusBadRequest, "bad_request", "next has no queue")
	case named && len(part) == 0:
		bad.set(http.StatusBadRequest, "bad_request", "next has an empty partition name")
	case !namesFit(string(queue), string(part), p.group):
		bad.set(http.StatusRequestEntityTooLarge, "name_too_long", tooLongNames)
	}
	if bad.status != 0 || sc.Err() != nil {
		return
	}
	w.next.asked = true
	w.pop.Queue = w.name(queue)
	if named {
		w.pop.Partition = w.name(part)
		p.partitions, p.hasPartitions = 1, true
	}
	s.fillPop(w, &p)
	w.pop.LeaseID = s.ids.mintAt(w.at)
	if p.wait {
		w.next.wait = s.waitTime(&p)
		w.pop.WaitMicros = max(0, w.next.wait-s.cfg.Limits.ReplyMargin).Microseconds()
		if s.stopping.Load() {
			w.pop.WaitMicros = 0
		}
	}
}

func textOf(w *work, sc *rawjson.Scanner, name string, wrong *string) string {
	text, _ := textMember(sc, name, wrong)
	return w.name(text)
}

// wholeMember reads a member that is a whole number; null is an absent one.
func wholeMember(sc *rawjson.Scanner, name string, wrong *string) (n int64, present bool) {
	kind, raw := sc.Kind(), sc.Raw()
	if kind == rawjson.Null {
		return 0, false
	}
	n, ok := rawjson.Int(raw)
	if kind != rawjson.Number || !ok {
		*wrong = name
	}
	return n, true
}

func flagMember(sc *rawjson.Scanner, name string, wrong *string) bool {
	raw := string(sc.Raw())
	if raw != "true" && raw != "false" && raw != "null" {
		*wrong = name
	}
	return raw == "true"
}

// takeNext completes the claim of a call: who asks, and how long the call may
// take. gone is closed when the client leaves; nil: the call claims nothing.
func (x *exchange) takeNext(w *work) (next *fsm.Pop, deadline time.Duration, gone <-chan struct{}) {
	deadline = x.remaining(x.s.cfg.Limits.CallTimeout)
	if !w.next.asked {
		return nil, deadline, nil
	}
	if worker, ok := x.worker(); ok && worker != "" {
		w.pop.Worker = w.name([]byte(worker))
	}
	x.parked = w.next.wait > 0
	return &w.pop, deadline + w.next.wait, x.c.Request.Context().Done()
}

// claimedBy is the pop of a call: itself, or what was claimed with its commit.
func claimedBy(body any) *fsm.Pop {
	switch b := body.(type) {
	case *fsm.Pop:
		return b
	case *fsm.Txn:
		return b.Next
	case *fsm.Ack:
		return b.Next
	}
	return nil
}

// answerNext ends the answer in x.out, which stands before the value of "next",
// and sends it. The claim goes back when the client turns out to be gone, or a
// payload cannot be read: the commit stands all the same.
func (s *Server) answerNext(x *exchange, w *work) {
	pop := &w.pop
	s.tellPoisoned(pop)
	if len(pop.Claims) == 0 {
		s.putWork(w)
		x.out = append(x.out, "null}"...)
		_ = x.answer(http.StatusOK)
		return
	}
	back := claimsOf(x.tenant, pop)
	if x.c.Request.Context().Err() != nil {
		s.putWork(w)
		s.handBackLater(back)
		x.empty(statusClientGone)
		return
	}
	from := len(x.out)
	out, n, err := s.appendPop(x.out, w, [2]int{})
	s.putWork(w)
	if err != nil || n == 0 {
		if err != nil && !errors.Is(err, raftlog.ErrNoLog) {
			s.log.Error("a payload cannot be read; the claim is handed back", "request", x.id, "error", err)
			s.unwell("a stored payload cannot be read; see the log")
			back.unreadable = true
		}
		s.handBackLater(back)
		x.out = append(out[:from], "null}"...)
		_ = x.answer(http.StatusOK)
		return
	}
	s.metrics.popped.Add(int64(n))
	x.out = append(out, '}')
	s.deliverPop(x, back)
}
