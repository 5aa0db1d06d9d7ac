package server

import (
	"encoding/base64"
	"net/http"
	"strconv"
	"strings"

	"queen/fsm"
	"queen/internal/entry"
	"queen/server/rawjson"
)

func (s *Server) timerRules() timerRules {
	l := s.cfg.Limits
	return timerRules{ops: l.TimerOps, payload: l.TimerPayloadBytes, horizon: l.TimerHorizon.Milliseconds(), unpack: l.TimerPayloadBytes, call: l.EntryBytes}
}

func (s *Server) serveTimers(x *exchange) {
	w := s.getWork(x)
	if !x.readBody(w) {
		s.putWork(w)
		return
	}
	rules := s.timerRules()
	if p := s.parseTimerBody(w, &rules); p != nil {
		s.putWork(w)
		x.failTimer(p)
		return
	}
	if x.keyed() && !x.takeKey(w, fsm.OutcomeTimers, len(w.timers.Ops), w.appendTimers) {
		s.putWork(w)
		return
	}
	if schedules(w.timers.Ops) && !x.granted() || !x.spendRate(x.tenant, true) {
		s.putWork(w)
		return
	}
	if schedules(w.timers.Ops) && (x.storageFull() || !x.admitWhole(w)) {
		s.putWork(w)
		return
	}
	size := len(w.arena) + 64*len(w.timers.Ops)
	if err := s.run(w, &w.timers, size, x.remaining(s.cfg.Limits.CallTimeout), nil); err != nil {
		s.ended(w, err)
		x.undecided(err)
		return
	}
	if s.answerKnown(x, w) {
		return
	}
	if w.timers.Disabled {
		s.putWork(w)
		x.timersDisabled()
		return
	}
	if w.call.Key != nil && w.keyed.Kept {
		x.out = append(x.out[:0], w.keyed.Body...)
	} else {
		x.out = w.appendTimers(x.out[:0])
	}
	s.putWork(w)
	_ = x.answer(http.StatusOK)
}

func (w *work) appendTimers(dst []byte) []byte {
	dst = append(dst, `{"results":[`...)
	for i := range w.timers.Ops {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(dst, '{')
		dst = appendTimerResult(dst, &w.timers.Ops[i], w.echoes[i])
		dst = append(dst, '}')
	}
	return append(dst, ']', '}')
}

// parseTimerBody reads {"operations": [...]}, or the bare array.
func (s *Server) parseTimerBody(w *work, r *timerRules) (p *timerProblem) {
	sc := &w.scan
	sc.Reset(w.body)
	isArray := false
	read := func() {
		if isArray = sc.Kind() == rawjson.Array; !isArray {
			sc.Skip()
			return
		}
		w.echoes = w.echoes[:0]
		w.timers.Ops, p = s.parseTimerArray(w, w.timers.Ops[:0], r)
	}
	if sc.Kind() == rawjson.Object {
		for ok := sc.EnterObject(); ok; ok = sc.NextMember() {
			if string(sc.Key()) == "operations" {
				read()
			} else {
				sc.Skip()
			}
		}
	} else {
		read()
	}
	switch err := sc.End(); {
	case err != nil:
		return badTimer("timers_bad_body", err.Error())
	case !isArray:
		return badTimer("timers_bad_body", "the body needs an array named operations")
	case p == nil && len(w.timers.Ops) == 0:
		return badTimer("timers_bad_body", "there are no operations")
	}
	return p
}

func schedules(ops []fsm.TimerOp) bool {
	for i := range ops {
		if !ops[i].Cancel {
			return true
		}
	}
	return false
}

// appendTimerResult appends the fields of one result, without braces. sent is
// the txn of the request.
func appendTimerResult(dst []byte, op *fsm.TimerOp, sent []byte) []byte {
	dst = append(dst, `"ok":`...)
	dst = rawjson.AppendBool(dst, op.OK)
	dst = append(dst, `,"status":`...)
	dst = rawjson.AppendString(dst, op.Status)
	dst = append(dst, `,"queue":`...)
	dst = rawjson.AppendString(dst, op.Queue)
	dst = append(dst, `,"timerKey":`...)
	dst = rawjson.AppendString(dst, op.Key)
	dst = append(dst, `,"txn":`...)
	switch {
	case !op.Cancel:
		dst = appendTxn(dst, op.Txn, op.MessageID)
		dst = append(dst, `,"messageId":`...)
		dst = appendID(dst, op.MessageID)
		dst = append(dst, `,"deliverAt":`...)
		return rawjson.AppendMicros(dst, op.DeliverAt)
	case op.OK:
		return rawjson.AppendString(dst, op.OldTxn)
	case len(sent) == 0:
		return append(dst, "null"...)
	default:
		return rawjson.AppendString(dst, sent)
	}
}

// timerPath reads queue and key of a path; false: it has answered.
func (x *exchange) timerPath() (queue, key string, ok bool) {
	queue, ok1 := x.param("queue")
	key, ok2 := x.rest("timerKey")
	switch {
	case !ok1 || !ok2:
		x.failTimer(badTimer("timers_bad_op", badPathName))
	case queue == "":
		x.failTimer(badTimer("timers_queue_required", "queue is empty"))
	case key == "":
		x.failTimer(badTimer("timers_bad_op", "timerKey is empty"))
	default:
		if p := timerNames(len(queue), 0, len(key)); p != nil {
			x.failTimer(p)
			break
		}
		return queue, key, true
	}
	return "", "", false
}

func (s *Server) serveTimerCancel(x *exchange) {
	queue, key, ok := x.timerPath()
	if !ok {
		return
	}
	sent := ""
	if !query(x.c.Request.URL.RawQuery, func(name, value string) bool {
		if name == "txn" && sent == "" {
			sent = value
		}
		return true
	}) {
		x.failTimer(badTimer("timers_bad_op", "the query has an escape that does not parse"))
		return
	}
	w := s.getWork(x)
	op := fsm.TimerOp{Cancel: true, Queue: queue, Partition: defaultPartition, Key: key}
	if sent != "" {
		op.Txn = w.keep([]byte(sent))
	}
	w.timers.Ops = append(w.timers.Ops, op)
	if err := s.run(w, &w.timers, 64, x.remaining(s.cfg.Limits.CallTimeout), nil); err != nil {
		s.ended(w, err)
		x.undecided(err)
		return
	}
	x.out = append(x.out[:0], '{')
	x.out = append(appendTimerResult(x.out, &w.timers.Ops[0], []byte(sent)), '}')
	s.putWork(w)
	_ = x.answer(http.StatusOK)
}

// read runs do on the state, as of everything that was planned before. When it
// returns false it has answered.
func (s *Server) read(x *exchange, do func(st *fsm.State)) bool {
	w := s.getWork(x)
	if err := s.run(w, &fsm.Read{Do: do}, 0, x.remaining(s.cfg.Limits.CallTimeout), nil); err != nil {
		s.ended(w, err)
		x.undecided(err)
		return false
	}
	s.putWork(w)
	return true
}

func (s *Server) serveTimerPeek(x *exchange) {
	queue, key, ok := x.timerPath()
	if !ok {
		return
	}
	var (
		row   fsm.TimerInfo
		found bool
	)
	tenant := x.tenant
	if !s.read(x, func(st *fsm.State) { row, found = st.Timer(tenant, queue, key) }) {
		return
	}
	if !found {
		x.out = append(x.out[:0], `{"found":false}`...)
		_ = x.answer(http.StatusOK)
		return
	}
	m, err := s.content(row.Message, row.ValueID, 0)
	var payload []byte
	if err == nil {
		payload, err = s.packer.appendPayload(nil, &m)
	}
	if err != nil {
		s.log.Error("the payload of a timer cannot be read", "request", x.id, "queue", queue, "timerKey", key, "error", err)
		s.unwell("a stored payload cannot be read; see the log")
		x.failReason(http.StatusInternalServerError, "timers_error", "", "the timer's payload cannot be read")
		return
	}
	x.out = append(x.out[:0], `{"found":true,`...)
	x.out = s.appendTimerRow(x.out, &row, &m)
	x.out = append(x.out, `,"payload":"`...)
	x.out = base64.StdEncoding.AppendEncode(x.out, payload)
	x.out = append(x.out, `"}`...)
	_ = x.answer(http.StatusOK)
}

// content parses a message that a row keeps: inline, or in a value record.
func (s *Server) content(inline []byte, valueID, queue uint64) (m entry.Message, err error) {
	if len(inline) == 0 {
		if inline, err = s.engine.Reader().Value(valueID, queue); err != nil {
			return m, err
		}
	}
	m, _, err = entry.NextMessage(inline)
	return m, err
}

// appendTimerRow appends a timer without its payload; m is its message.
func (s *Server) appendTimerRow(dst []byte, r *fsm.TimerInfo, m *entry.Message) []byte {
	dst = append(dst, `"queue":`...)
	dst = rawjson.AppendString(dst, r.Queue)
	dst = append(dst, `,"timerKey":`...)
	dst = rawjson.AppendString(dst, r.Key)
	dst = append(dst, `,"partition":`...)
	dst = rawjson.AppendString(dst, r.Partition)
	dst = append(dst, `,"deliverAt":`...)
	dst = rawjson.AppendMicros(dst, r.DeliverAt)
	dst = append(dst, `,"txn":`...)
	dst = rawjson.AppendString(dst, r.Txn)
	dst = append(dst, `,"messageId":`...)
	dst = appendID(dst, r.MessageID)
	dst = append(dst, `,"payloadZstd":false,"encrypted":`...)
	dst = rawjson.AppendBool(dst, s.packer.sealed(m))
	dst = append(dst, `,"producerSub":`...)
	if len(m.ProducerSub) > 0 {
		dst = rawjson.AppendString(dst, m.ProducerSub)
	} else {
		dst = append(dst, "null"...)
	}
	dst = append(dst, `,"attempts":`...)
	dst = strconv.AppendInt(dst, r.Attempts, 10)
	dst = append(dst, `,"lastError":`...)
	if r.LastError == "" {
		dst = append(dst, "null"...)
	} else {
		dst = rawjson.AppendString(dst, r.LastError)
	}
	dst = append(dst, `,"claimed":false,"createdAt":`...)
	dst = rawjson.AppendMicros(dst, r.Created)
	dst = append(dst, `,"updatedAt":`...)
	return rawjson.AppendMicros(dst, r.Updated)
}

// timerListParams are the query of a listing or a count.
type timerListParams struct {
	mode, after, prefix                    string
	hasMode, hasAfter, hasPrefix, hasLimit bool
	limit                                  int
}

func parseTimerList(raw string) (p timerListParams, bad string) {
	p.limit = 100
	ok := query(raw, func(name, value string) bool {
		switch name {
		case "mode":
			p.mode, p.hasMode = value, true
		case "after":
			p.after, p.hasAfter = value, true
		case "prefix":
			p.prefix, p.hasPrefix = value, true
		case "limit":
			p.hasLimit = true
			n, isCount := parseCount(value)
			if !isCount && value != "" {
				bad = "limit does not parse"
				return false
			}
			if isCount {
				p.limit = int(min(max(n, 1), 1000))
			}
		}
		return true
	})
	if !ok && bad == "" {
		bad = "the query has an escape that does not parse"
	}
	return p, bad
}

const maxCountPrefix = 128

func (s *Server) serveTimerList(x *exchange) {
	queue, ok := x.param("queue")
	if !ok {
		x.failTimer(badTimer("timers_bad_op", badPathName))
		return
	}
	p, bad := parseTimerList(x.c.Request.URL.RawQuery)
	switch {
	case bad != "":
		x.failTimer(badTimer("timers_bad_op", bad))
	case !p.hasMode:
		s.listTimers(x, queue, &p)
	case p.mode != "count":
		x.failTimer(badTimer("timers_read_mode_unknown", "mode is not count"))
	case p.hasAfter || p.hasLimit:
		x.failTimer(badTimer("timers_count_no_page", "a count takes neither after nor limit"))
	case !p.hasPrefix || p.prefix == "":
		x.failTimer(badTimer("timers_count_prefix_required", "a count needs a prefix"))
	case len(p.prefix) > maxCountPrefix || strings.IndexByte(p.prefix, 0) >= 0:
		x.failTimer(badTimer("timers_count_bad_prefix", "the prefix is over 128 bytes or has a NUL"))
	default:
		s.countTimers(x, queue, p.prefix)
	}
}

func (s *Server) countTimers(x *exchange, queue, prefix string) {
	n, after, tenant := 0, "", x.tenant
	for more := true; more; more = after != "" {
		var some int
		from := after
		after = ""
		if !s.read(x, func(st *fsm.State) { some, after = st.CountTimers(tenant, queue, prefix, from) }) {
			return
		}
		n += some
	}
	x.out = append(x.out[:0], `{"count":`...)
	x.out = append(strconv.AppendInt(x.out, int64(n), 10), '}')
	_ = x.answer(http.StatusOK)
}

func (s *Server) listTimers(x *exchange, queue string, p *timerListParams) {
	var (
		rows []fsm.TimerInfo
		more bool
	)
	tenant := x.tenant
	if !s.read(x, func(st *fsm.State) { rows, more = st.ListTimers(tenant, queue, p.after, p.limit) }) {
		return
	}
	x.out = append(x.out[:0], `{"rows":[`...)
	for i := range rows {
		if i > 0 {
			x.out = append(x.out, ',')
		}
		m, err := s.content(rows[i].Message, rows[i].ValueID, 0)
		if err != nil { // it may have fired meanwhile; the row is told without
			s.log.Warn("the payload of a listed timer cannot be read", "request", x.id, "queue", queue, "timerKey", rows[i].Key, "error", err)
		}
		x.out = append(x.out, '{')
		x.out = append(s.appendTimerRow(x.out, &rows[i], &m), '}')
	}
	x.out = append(x.out, `],"truncated":`...)
	x.out = rawjson.AppendBool(x.out, more)
	x.out = append(x.out, `,"nextAfter":`...)
	if more && len(rows) > 0 {
		x.out = rawjson.AppendString(x.out, rows[len(rows)-1].Key)
	} else {
		x.out = append(x.out, "null"...)
	}
	x.out = append(x.out, '}')
	_ = x.answer(http.StatusOK)
}
