package server

import (
	"net/http"
	"strconv"

	"queen/fsm"
	"queen/server/rawjson"
)

func (s *Server) serveTransaction(x *exchange) {
	dry, problem := x.asksDryRun()
	if problem != nil {
		s.refuseTxn(x, problem)
		return
	}
	w := s.getWork(x)
	if !x.readGrowing(w) {
		s.putWork(w)
		return
	}
	if p := s.parseTransaction(w); p != nil {
		s.putWork(w)
		s.refuseTxn(x, p)
		return
	}
	if s.cfg.RequireGrant && (len(w.txn.KV) > 0 || schedules(w.txn.Timers)) {
		s.putWork(w)
		s.refuseTxn(x, refuse(http.StatusForbidden, "feature_gated", noGrant))
		return
	}
	if txnGrows(&w.txn) && x.storageFull() {
		s.putWork(w)
		return
	}
	if len(w.txn.Push.Items) > 0 {
		w.txn.Push.GroupItems()
	}
	w.txn.KVFailed = -1
	parts := len(w.order) + len(w.txn.KV) + len(w.txn.Timers) + len(w.txn.Positions)
	if w.txn.DryRun = dry; !dry && x.keyed() && !x.takeKey(w, fsm.OutcomeTransaction, parts, func(dst []byte) []byte { return s.appendCommit(dst, w) }) {
		s.putWork(w)
		return
	}
	next, deadline, gone := x.takeNext(w)
	if dry {
		next = nil
	}
	w.txn.Next = next
	if err := s.run(w, &w.txn, len(w.arena)+64*parts, deadline, gone); err != nil {
		s.ended(w, err)
		x.undecided(err)
		return
	}
	if s.answerKnown(x, w) {
		return
	}
	status := http.StatusOK
	if w.txn.Reason != "" {
		x.out = s.appendRollback(x.out[:0], w)
		if switchedOff(w.txn.Reason) {
			status = http.StatusForbidden
		}
	} else {
		if w.call.Key != nil {
			x.out = append(x.out[:0], w.keyed.Body...)
		} else {
			x.out = s.appendCommit(x.out[:0], w)
		}
		s.countTxn(w)
		if next != nil {
			s.answerNext(x, w)
			return
		}
	}
	s.putWork(w)
	_ = x.answer(status)
}

// countTxn counts what a transaction has done.
func (s *Server) countTxn(w *work) {
	if w.txn.DryRun {
		return
	}
	s.metrics.pushed.Add(int64(len(w.txn.Push.Items)))
	s.metrics.acked.Add(int64(len(w.txn.Acks)))
	s.metrics.kvOps.Add(int64(len(w.txn.KV)))
}

// asksDryRun reports whether the call is to be judged and not executed.
func (x *exchange) asksDryRun() (dry bool, p *txnProblem) {
	raw := x.c.Request.URL.RawQuery
	if raw == "" {
		return false, nil
	}
	parses := query(raw, func(name, value string) bool {
		if name == "dryRun" {
			on, ok := parseFlag(value)
			dry = dry || on
			if !ok {
				p = refuse(http.StatusBadRequest, "bad_request", "dryRun is not true or false; nothing was applied")
			}
		}
		return true
	})
	if !parses {
		p = refuse(http.StatusBadRequest, "bad_request", "the query has an escape that does not parse; nothing was applied")
	}
	return dry, p
}

// txnGrows reports whether the call can make the store larger. One that only
// acks, deletes, cancels or positions passes a full disk.
func txnGrows(t *fsm.Txn) bool {
	return len(t.Push.Items) > 0 || growsKV(t.KV) || schedules(t.Timers)
}

func (s *Server) refuseTxn(x *exchange, p *txnProblem) {
	if p.engine {
		x.fail(p.status, p.reason, p.prose)
		return
	}
	x.out = s.appendRefusal(x.out[:0], p.reason, p.prose)
	_ = x.answer(p.status)
}

// appendRefusal is the rollback body, whole.
func (s *Server) appendRefusal(dst []byte, reason, prose string) []byte {
	return append(s.appendVerdict(dst, reason, prose), '}')
}

func (s *Server) appendVerdict(dst []byte, reason, prose string) []byte {
	dst = append(dst, `{"transactionId":`...)
	dst = appendID(dst, s.ids.mint())
	dst = append(dst, `,"success":false,"reason":`...)
	dst = rawjson.AppendString(dst, reason)
	dst = append(dst, `,"error":`...)
	dst = rawjson.AppendString(dst, prose)
	return append(dst, `,"results":[]`...)
}

func (s *Server) appendRollback(dst []byte, w *work) []byte {
	t := &w.txn
	dst = s.appendVerdict(dst, t.Reason, t.Error)
	if t.Reason == "kv_precondition" && t.KVFailed >= 0 && t.KVFailed < len(t.KV) {
		dst = append(dst, `,"ok":false,"failedIndex":`...)
		dst = strconv.AppendInt(dst, int64(len(w.order)+t.KVFailed), 10)
		dst = appendGate(append(dst, ','), &t.KV[t.KVFailed].Result)
	}
	return append(dst, '}')
}

func (s *Server) appendCommit(dst []byte, w *work) []byte {
	t := &w.txn
	dst = append(dst, `{"transactionId":`...)
	dst = appendID(dst, s.ids.mint())
	dst = append(dst, `,"success":true,"results":[`...)
	index := 0
	open := func(kind string, opIndex int) {
		if index > 0 {
			dst = append(dst, ',')
		}
		dst = append(dst, `{"index":`...)
		dst = strconv.AppendInt(dst, int64(index), 10)
		dst = append(dst, `,"type":"`...)
		dst = append(dst, kind...)
		dst = append(dst, '"')
		if opIndex >= 0 {
			dst = append(dst, `,"opIndex":`...)
			dst = strconv.AppendInt(dst, int64(opIndex), 10)
		}
		index++
	}
	for _, e := range w.order {
		if e.push {
			open("push", -1)
			dst = appendTxnPush(dst, &t.Push, &t.Push.Items[e.index])
		} else {
			open("ack", -1)
			dst = appendTxnAck(dst, &t.Acks[e.index])
		}
	}
	for i := range t.KV {
		open("kv", i)
		dst = append(dst, `,"op":"`...)
		dst = append(dst, kvOpName(t.KV[i].Kind)...)
		dst = append(dst, `",`...)
		dst = append(appendKVResult(dst, &t.KV[i]), '}')
	}
	for i := range t.Timers {
		open("timer", i)
		dst = append(appendTimerResult(append(dst, ','), &t.Timers[i], w.echoes[i]), '}')
	}
	for i := range t.Positions {
		open("position", i)
		dst = append(dst, `,"success":true}`...)
	}
	dst = append(dst, ']')
	switch {
	case t.DryRun && w.next.asked:
		dst = append(dst, `,"dryRun":true,"next":null`...)
	case t.DryRun:
		dst = append(dst, `,"dryRun":true`...)
	case w.next.asked:
		return append(dst, `,"next":`...) // its value and the end follow
	}
	return append(dst, '}')
}

func appendTxnAck(dst []byte, it *fsm.AckItem) []byte {
	dst = append(dst, `,"success":true,"transactionId":`...)
	dst = rawjson.AppendString(dst, it.Txn)
	dst = append(dst, `,"error":null,"dlq":`...)
	return append(rawjson.AppendBool(dst, it.DLQ), '}')
}

func appendTxnPush(dst []byte, push *fsm.Push, it *fsm.PushItem) []byte {
	dst = append(dst, `,"success":true,"transactionId":`...)
	dst = appendTxn(dst, it.Txn, it.ID)
	id := it.ID
	if it.DupOf >= 0 {
		id = push.Items[it.DupOf].ID
	}
	dst = append(dst, `,"messageId":`...)
	dst = appendID(dst, id)
	dst = append(dst, `,"queueName":`...)
	dst = rawjson.AppendString(dst, it.Queue)
	if it.DupOf >= 0 {
		dst = append(dst, `,"duplicate":true`...)
	}
	return append(dst, '}')
}
