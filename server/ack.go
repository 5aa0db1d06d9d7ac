package server

import (
	"bytes"
	"net/http"
	"strconv"

	"github.com/cespare/xxhash/v2"

	"queen/fsm"
	"queen/server/rawjson"
)

// ackFields are the members of one ack, as sent.
type ackFields struct {
	txn, partition, lease, status, reason, group []byte
	hasTxn, hasPartition, hasGroup               bool
	delay                                        int64
	wrong                                        string // a member of the wrong type or out of range
}

// take reads the value of one member; false: the member is none of an ack's,
// and its value still has to be consumed.
func (f *ackFields) take(s *rawjson.Scanner, key []byte) bool {
	switch string(key) {
	case "transactionId":
		f.txn, f.hasTxn = textMember(s, "transactionId", &f.wrong)
	case "partitionId":
		f.partition, f.hasPartition = textMember(s, "partitionId", &f.wrong)
	case "leaseId":
		f.lease, _ = textMember(s, "leaseId", &f.wrong)
	case "status":
		f.status, _ = textMember(s, "status", &f.wrong)
	case "error":
		f.reason, _ = textMember(s, "error", &f.wrong)
	case "consumerGroup":
		f.group, f.hasGroup = textMember(s, "consumerGroup", &f.wrong)
	case "delayMs":
		f.takeDelay(s)
	default:
		return false
	}
	return true
}

func (f *ackFields) takeDelay(s *rawjson.Scanner) {
	kind, raw := s.Kind(), s.Raw()
	f.delay = 0
	if kind == rawjson.Null {
		return
	}
	n, ok := rawjson.Int(raw)
	if kind != rawjson.Number || !ok || n < 0 || n > maxAckDelay {
		f.wrong = "delayMs"
		return
	}
	f.delay = n
}

// problem says what makes the ack no ack; empty: nothing.
func (f *ackFields) problem() string {
	switch {
	case f.wrong != "":
		return "an ack's " + f.wrong + " has the wrong type or range"
	case !f.hasTxn || len(f.txn) == 0:
		return "an ack has no transactionId"
	case !f.hasPartition:
		return "an ack has no partitionId"
	default:
		return ""
	}
}

// item is the ack as the planner takes it; group and lease are the caller's to
// decide.
func (f *ackFields) item(w *work) fsm.AckItem {
	it := fsm.AckItem{
		Txn: f.txn, TxnHash: xxhash.Sum64(f.txn), Group: fsm.QueueMode,
		Status: fsm.ParseAckStatus(w.name(f.status)), Error: string(f.reason), DelayMs: f.delay,
	}
	it.PartitionID, _ = parsePartition(f.partition)
	if len(f.lease) > 0 {
		it.HasLease = true
		it.LeaseID = w.leaseID(f.lease)
	}
	return it
}

// leaseID reads a lease; text that is none reads as the zero id, which matches
// no lease. The acks of a body mostly name the same one.
func (w *work) leaseID(text []byte) [16]byte {
	if !bytes.Equal(text, w.lease.text) {
		w.lease.text = text
		w.lease.id, _ = parseID(text)
	}
	return w.lease.id
}

// parsePartition reads a partitionId. isNumber tells whether it has the form
// of one; a number that no partition can have reads as 0.
func parsePartition(b []byte) (id uint64, isNumber bool) {
	if len(b) == 0 {
		return 0, false
	}
	for _, c := range b {
		if c < '0' || c > '9' {
			return 0, false
		}
	}
	id, err := strconv.ParseUint(string(b), 10, 64)
	if err != nil || b[0] == '0' {
		return 0, true
	}
	return id, true
}

// groupOrQueueMode is the group that a body names, queue mode when it names none.
func groupOrQueueMode(w *work, group []byte) string {
	if len(group) == 0 {
		return fsm.QueueMode
	}
	return w.name(group)
}

func (s *Server) serveAck(x *exchange) {
	w := s.getWork(x)
	if !x.readBody(w) {
		s.putWork(w)
		return
	}
	sc := &w.scan
	sc.Reset(w.body)
	var f ackFields
	isObject := sc.Kind() == rawjson.Object
	if isObject {
		for ok := sc.EnterObject(); ok; ok = sc.NextMember() {
			if key := sc.Key(); string(key) == "next" {
				s.parseNext(w)
			} else if !f.take(sc, key) {
				sc.Skip()
			}
		}
	} else {
		sc.Skip()
	}
	bad := ""
	if err := sc.End(); err != nil {
		bad = err.Error()
	} else if !isObject {
		bad = "the body is no object"
	} else {
		bad = f.problem()
	}
	if bad == "" {
		it := f.item(w)
		it.Group = groupOrQueueMode(w, f.group)
		w.ack.Items = append(w.ack.Items, it)
	}
	s.ack(x, w, fsm.OutcomeAck, bad)
}

func (f *ackFields) takeAll(sc *rawjson.Scanner) {
	for ok := sc.EnterObject(); ok; ok = sc.NextMember() {
		if !f.take(sc, sc.Key()) {
			sc.Skip()
		}
	}
}

func (s *Server) serveAckBatch(x *exchange) {
	w := s.getWork(x)
	if !x.readBody(w) {
		s.putWork(w)
		return
	}
	s.ack(x, w, fsm.OutcomeAckBatch, s.parseAckBatch(w))
}

// parseAckBatch reads the body of a batch ack and says what is wrong with it.
func (s *Server) parseAckBatch(w *work) (bad string) {
	sc := &w.scan
	sc.Reset(w.body)
	var top ackFields
	isArray, isObject := false, sc.Kind() == rawjson.Object
	if !isObject {
		sc.Skip()
	} else {
		for ok := sc.EnterObject(); ok; ok = sc.NextMember() {
			switch string(sc.Key()) {
			case "consumerGroup":
				top.group, _ = textMember(sc, "consumerGroup", &top.wrong)
			case "acknowledgments":
				w.ack.Items = w.ack.Items[:0]
				isArray, bad = parseAcks(w)
			case "next":
				s.parseNext(w)
			default:
				sc.Skip()
			}
		}
	}
	if err := sc.End(); err != nil {
		return err.Error()
	}
	switch {
	case !isArray:
		return "the body needs an array named acknowledgments"
	case bad != "":
		return bad
	case top.wrong != "":
		return "consumerGroup is not a string"
	}
	group := groupOrQueueMode(w, top.group)
	for i := range w.ack.Items {
		w.ack.Items[i].Group = group
	}
	return ""
}

func parseAcks(w *work) (isArray bool, bad string) {
	sc := &w.scan
	if sc.Kind() != rawjson.Array {
		sc.Skip()
		return false, ""
	}
	for ok := sc.EnterArray(); ok; ok = sc.NextElement() {
		var f ackFields
		problem := "an acknowledgment is no object"
		if sc.Kind() == rawjson.Object {
			f.takeAll(sc)
			problem = f.problem()
		} else {
			sc.Skip()
		}
		if bad == "" {
			bad = problem
		}
		if bad == "" && sc.Err() == nil {
			w.ack.Items = append(w.ack.Items, f.item(w))
		}
	}
	return true, bad
}

func (s *Server) ack(x *exchange, w *work, route fsm.OutcomeRoute, bad string) {
	problem := w.next.bad
	if bad != "" {
		problem = badRequestBody(bad)
	}
	if problem.status != 0 {
		s.putWork(w)
		x.fail(problem.status, problem.code, problem.prose)
		return
	}
	if x.keyed() && !x.takeKey(w, route, len(w.ack.Items), w.appendAcks) {
		s.putWork(w)
		return
	}
	next, deadline, gone := x.takeNext(w)
	if w.ack.Next = next; len(w.ack.Items) > 0 {
		if err := s.run(w, &w.ack, 64+32*len(w.ack.Items), deadline, gone); err != nil {
			s.ended(w, err)
			x.undecided(err)
			return
		}
		if s.answerKnown(x, w) {
			return
		}
	}
	if w.call.Key != nil && w.keyed.Kept {
		x.out = append(x.out[:0], w.keyed.Body...)
	} else {
		x.out = w.appendAcks(x.out[:0])
	}
	s.metrics.acked.Add(int64(len(w.ack.Items)))
	if next != nil {
		s.answerNext(x, w)
		return
	}
	s.putWork(w)
	_ = x.answer(http.StatusOK)
}

func badRequestBody(prose string) problem {
	return problem{http.StatusBadRequest, "bad_body", prose}
}

// appendAcks appends the answer of the ack routes, up to the value of "next"
// when it was asked for.
func (w *work) appendAcks(dst []byte) []byte {
	if !w.next.asked {
		return appendAckResults(dst, w.ack.Items)
	}
	dst = appendAckResults(append(dst, `{"results":`...), w.ack.Items)
	return append(dst, `,"next":`...)
}

func appendAckResults(dst []byte, items []fsm.AckItem) []byte {
	dst = append(dst, '[')
	for i := range items {
		it := &items[i]
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(dst, `{"index":`...)
		dst = strconv.AppendInt(dst, int64(i), 10)
		dst = append(dst, `,"transactionId":`...)
		dst = rawjson.AppendString(dst, it.Txn)
		dst = append(dst, `,"success":`...)
		dst = rawjson.AppendBool(dst, it.Success)
		dst = append(dst, `,"error":`...)
		if it.Success || it.Err == "" {
			dst = append(dst, "null"...)
		} else {
			dst = rawjson.AppendString(dst, it.Err)
		}
		dst = append(dst, `,"leaseReleased":`...)
		dst = rawjson.AppendBool(dst, it.LeaseReleased)
		dst = append(dst, `,"dlq":`...)
		dst = rawjson.AppendBool(dst, it.DLQ)
		dst = append(dst, `,"noop":`...)
		dst = rawjson.AppendBool(dst, it.Noop)
		if it.Dropped {
			dst = append(dst, `,"dropped":true`...)
		}
		if it.Conflates {
			dst = append(dst, `,"conflated":`...)
			dst = strconv.AppendInt(dst, it.Conflated, 10)
		}
		dst = append(dst, '}')
	}
	return append(dst, ']')
}
