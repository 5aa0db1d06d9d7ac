package server

import (
	"encoding/base64"
	"net/http"

	"queen/fsm"
	"queen/internal/entry"
	"queen/server/rawjson"
)

// timerProblem is why timer operations are refused. Its code and reason are
// those of the timers routes; txnReason is how a transaction names it.
type timerProblem struct {
	status       int
	code, reason string
	detail       string
	txnReason    string
	engine       bool // answered with the engine's error body
}

func badTimer(reason, detail string) *timerProblem {
	return &timerProblem{http.StatusBadRequest, "timers_bad_request", reason, detail, "bad_request", false}
}

func (x *exchange) failTimer(p *timerProblem) {
	if p.engine {
		x.fail(p.status, p.code, p.detail)
		return
	}
	x.failReason(p.status, p.code, p.reason, p.detail)
}

// timerRules are the bounds of one call with timer operations; 0 is no bound.
type timerRules struct {
	ops     int
	payload int
	horizon int64 // ms
	unpack  int   // largest decompressed payload
	call    int   // bytes of all messages
	inTxn   bool
}

// timerFields are the members of one timer operation, as sent.
type timerFields struct {
	op, queue, partition, key, txn, payload []byte
	hasQueue, hasPartition, hasKey          bool
	hasPayload, hasDelay, zstd              bool
	delay                                   int64
	wrong                                   string // a member of the wrong type
	owned                                   string // a member that only the server may set
	ownedMark                               bool   // it is producerSub or starts with _
	encrypted                               bool
}

func (f *timerFields) take(s *rawjson.Scanner, key []byte) {
	switch string(key) {
	case "op":
		f.op, _ = textMember(s, "op", &f.wrong)
	case "queue":
		f.queue, f.hasQueue = textMember(s, "queue", &f.wrong)
	case "partition":
		f.partition, f.hasPartition = textMember(s, "partition", &f.wrong)
	case "timerKey":
		f.key, f.hasKey = textMember(s, "timerKey", &f.wrong)
	case "txn":
		f.txn, _ = textMember(s, "txn", &f.wrong)
	case "payload":
		f.payload, f.hasPayload = textMember(s, "payload", &f.wrong)
	case "delayMs":
		f.takeDelay(s)
	case "payloadZstd":
		null := s.Kind() == rawjson.Null
		v, ok := s.Bool()
		f.zstd = v
		if !ok && !null {
			f.wrong = "payloadZstd"
		}
	case "encrypted":
		s.Skip()
		f.encrypted = true
	case "producerSub", "messageId", "deliverAt", "attempts", "tenant", "tenantId", "tenant_id":
		s.Skip()
		f.owned = string(key)
		f.ownedMark = f.ownedMark || f.owned == "producerSub"
	default:
		s.Skip()
		if len(key) > 0 && key[0] == '_' {
			f.owned, f.ownedMark = string(key), true
		}
	}
}

func (f *timerFields) takeDelay(s *rawjson.Scanner) {
	kind, raw := s.Kind(), s.Raw()
	f.hasDelay = kind == rawjson.Number
	if !f.hasDelay {
		if kind != rawjson.Null {
			f.wrong = "delayMs"
		}
		return
	}
	// A fraction of a millisecond is cut off; a delay that nobody will see the
	// end of is as long as delays get.
	v, _ := rawjson.Float(raw)
	f.delay = int64(min(max(v, 0), maxTimerDelay))
}

// operation makes the operation that the fields describe; its message is
// packed into the work's arena.
func (s *Server) timerOperation(w *work, f *timerFields, r *timerRules) (op fsm.TimerOp, p *timerProblem) {
	cancel := string(f.op) == "cancel"
	switch {
	case f.owned != "":
		p = badTimer("timers_server_owned_field", f.owned+" is set by the broker")
		if f.ownedMark {
			p.txnReason = "timers_server_owned_field"
		}
		return op, p
	case f.wrong != "":
		return op, badTimer("timers_bad_op", f.wrong+" has the wrong type")
	case f.encrypted && !r.inTxn:
		return op, badTimer("timers_bad_op", "encrypted is not an input")
	case !cancel && string(f.op) != "schedule" && string(f.op) != "reschedule":
		return op, badTimer("timers_bad_op", "op is missing or unknown")
	case !f.hasQueue || len(f.queue) == 0:
		return op, badTimer("timers_queue_required", "queue is missing or empty")
	case f.hasPartition && len(f.partition) == 0:
		return op, badTimer("timers_bad_op", "partition is empty")
	case !f.hasKey || len(f.key) == 0:
		return op, badTimer("timers_bad_op", "timerKey is missing or empty")
	case len(f.txn) > maxTxnID:
		return op, badTimer("timers_bad_op", "txn is over 65535 bytes")
	}
	if p := timerNames(len(f.queue), partitionLen(f.hasPartition, f.partition), len(f.key)); p != nil {
		return op, p
	}
	op = fsm.TimerOp{Cancel: cancel, Queue: w.name(f.queue), Partition: defaultPartition, Key: string(f.key)}
	if f.hasPartition {
		op.Partition = w.name(f.partition)
	}
	if len(f.txn) > 0 {
		op.Txn = f.txn
	}
	if cancel {
		return op, nil
	}
	switch {
	case !f.hasDelay:
		return op, badTimer("timers_delay_required", "delayMs is missing")
	case !f.hasPayload:
		return op, badTimer("timers_payload_required", "payload is missing")
	case r.horizon > 0 && f.delay > r.horizon:
		return op, &timerProblem{http.StatusForbidden, "timer_horizon_exceeded", "timers_horizon",
			"delayMs is beyond the horizon", "bad_request", false}
	}
	op.Encrypted = f.encrypted
	op.DelayMs, op.MessageID = f.delay, s.ids.mintAt(w.at)
	payload, p := s.timerPayload(f, r)
	if p != nil {
		return op, p
	}
	m := entry.Message{ID: op.MessageID, Minted: op.Txn == nil, Txn: op.Txn, Payload: payload, ProducerSub: w.producer}
	if op.Form = s.sealing.guess(w.call.Tenant, op.Queue); op.Form == fsm.FormSealed {
		m.Payload = s.packer.key.Append(nil, m.Payload)
	}
	op.Message = s.pack(w, &m)
	return op, nil
}

// timerNames checks the lengths, in bytes, of a timer's names.
func timerNames(queue, partition, key int) *timerProblem {
	if queue+partition <= nameBytes && queue+key <= storeKeyBytes {
		return nil
	}
	return &timerProblem{http.StatusRequestEntityTooLarge, "name_too_long", "", "queue, partition or timerKey is too long", "name_too_long", true}
}

// timerPayload decodes a payload into JSON.
func (s *Server) timerPayload(f *timerFields, r *timerRules) ([]byte, *timerProblem) {
	tooLarge := &timerProblem{http.StatusRequestEntityTooLarge, "payload_too_large", "timers_payload_too_large",
		"the decoded payload is over the limit", "bad_request", false}
	data, err := decodeBase64(f.payload)
	if err != nil {
		return nil, badTimer("timers_payload_not_base64", err.Error())
	}
	if r.payload > 0 && len(data) > r.payload {
		return nil, tooLarge
	}
	if f.zstd {
		limit := r.unpack
		if r.payload > 0 {
			limit = r.payload
		}
		plain, over, err := s.packer.unpack(data, limit)
		if over {
			return nil, tooLarge
		}
		if err != nil {
			return nil, badTimer("timers_bad_op", "payload is no zstd frame: "+err.Error())
		}
		data = plain
	}
	return jsonPayload(data), nil
}

// decodeBase64 reads standard base64, padded or not.
func decodeBase64(text []byte) ([]byte, error) {
	enc := base64.StdEncoding
	if len(text)%4 != 0 {
		enc = base64.RawStdEncoding
	}
	data := make([]byte, enc.DecodedLen(len(text)))
	n, err := enc.Decode(data, text)
	return data[:n], err
}

// parseTimerArray reads an array of operations, which is the next value, and
// appends them to ops; what was sent as txn goes to the work's echoes. The
// first problem is returned once the array has been read to its end.
func (s *Server) parseTimerArray(w *work, ops []fsm.TimerOp, r *timerRules) ([]fsm.TimerOp, *timerProblem) {
	sc := &w.scan
	var first *timerProblem
	n := 0
	for ok := sc.EnterArray(); ok; ok = sc.NextElement() {
		n++
		if sc.Kind() != rawjson.Object {
			sc.Skip()
			if first == nil {
				first = badTimer("timers_bad_op", "an operation is no object")
			}
			continue
		}
		var f timerFields
		for ok := sc.EnterObject(); ok; ok = sc.NextMember() {
			f.take(sc, sc.Key())
		}
		if first != nil || sc.Err() != nil || r.ops > 0 && n > r.ops {
			continue
		}
		var op fsm.TimerOp
		if op, first = s.timerOperation(w, &f, r); first == nil {
			ops = append(ops, op)
			w.echoes = append(w.echoes, f.txn)
		}
	}
	if r.ops > 0 && n > r.ops {
		return ops, badTimer("timers_too_many_ops", "too many operations in one call")
	}
	if first == nil && r.call > 0 && messageBytes(ops) > r.call {
		first = &timerProblem{http.StatusRequestEntityTooLarge, "payload_too_large", "timers_call_too_large",
			"the timers of the call are together over the limit of an entry", "too_large", false}
	}
	if first == nil && repeatedTimer(ops) {
		first = badTimer("timers_bad_op", "two operations on one timer in one call")
	}
	return ops, first
}

// messageBytes is about what the timers add to an entry.
func messageBytes(ops []fsm.TimerOp) (n int) {
	for i := range ops {
		n += len(ops[i].Message) + len(ops[i].Queue) + len(ops[i].Partition) + len(ops[i].Key) + len(ops[i].Txn) + timerOverhead
	}
	return n
}

const timerOverhead = 64

func repeatedTimer(ops []fsm.TimerOp) bool {
	if len(ops) < 2 {
		return false
	}
	type place struct{ queue, key string }
	seen := make(map[place]bool, len(ops))
	for i := range ops {
		at := place{ops[i].Queue, ops[i].Key}
		if seen[at] {
			return true
		}
		seen[at] = true
	}
	return false
}
