package server

import (
	"net/http"
	"strconv"

	"queen/fsm"
	"queen/server/rawjson"
)

func (s *Server) kvRules() kvRules {
	l := s.cfg.Limits
	return kvRules{ops: l.KVOps, keys: l.KVKeys, value: l.KVValueBytes}
}

func (s *Server) serveKV(x *exchange) {
	w := s.getWork(x)
	if !x.readBody(w) {
		s.putWork(w)
		return
	}
	rules := s.kvRules()
	if p := parseKVBody(w, &rules); p != nil {
		s.putWork(w)
		x.failKV(p)
		return
	}
	if x.keyed() && !x.takeKey(w, fsm.OutcomeKV, len(w.kv.Ops), w.appendKV) {
		s.putWork(w)
		return
	}
	if s.runKV(x, w, x.tenant) {
		if w.call.Key != nil && w.keyed.Kept {
			x.out = append(x.out[:0], w.keyed.Body...)
		} else {
			x.out = w.appendKV(x.out[:0])
		}
		s.putWork(w)
		_ = x.answer(http.StatusOK)
	}
}

func (w *work) appendKV(dst []byte) []byte { return appendKVResults(dst, &w.kv) }

// parseKVBody reads {"operations": [...]}, or the bare array.
func parseKVBody(w *work, r *kvRules) (p *kvProblem) {
	sc := &w.scan
	sc.Reset(w.body)
	isArray := false
	read := func() {
		if sc.Kind() != rawjson.Array {
			sc.Skip()
			isArray = false
			return
		}
		isArray = true
		w.kv.Ops, p = parseKVArray(w, w.kv.Ops[:0], r)
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
	if err := sc.End(); err != nil {
		return badKV("kv_bad_body", err.Error())
	}
	if !isArray {
		return badKV("kv_bad_body", "the body needs an array named operations")
	}
	if p == nil && len(w.kv.Ops) == 0 {
		return badKV("kv_bad_body", "there are no operations")
	}
	return p
}

// growsKV reports whether operations can make the store larger.
func growsKV(ops []fsm.KVOp) bool {
	for i := range ops {
		switch ops[i].Kind {
		case fsm.KVPut, fsm.KVPutIfAbsent, fsm.KVIncr:
			return true
		}
	}
	return false
}

func spendsWrite(ops []fsm.KVOp) bool {
	for i := range ops {
		if ops[i].Kind.Write() || ops[i].Kind == fsm.KVCheck {
			return true
		}
	}
	return false
}

// runKV spends the rate, admits, and runs w.kv. When it returns false it has
// answered and the work is gone.
func (s *Server) runKV(x *exchange, w *work, tenant string) bool {
	w.kv.Failed = -1
	if !x.granted() || !x.spendRate(tenant, spendsWrite(w.kv.Ops)) {
		s.putWork(w)
		return false
	}
	if growsKV(w.kv.Ops) && (x.storageFull() || !x.admitWhole(w)) {
		s.putWork(w)
		return false
	}
	size := len(w.body) + 64*len(w.kv.Ops)
	if err := s.run(w, &w.kv, size, x.remaining(s.cfg.Limits.CallTimeout), nil); err != nil {
		s.ended(w, err)
		x.undecided(err)
		return false
	}
	if s.answerKnown(x, w) {
		return false
	}
	if w.kv.Disabled {
		s.putWork(w)
		x.kvDisabled()
		return false
	}
	s.metrics.kvOps.Add(int64(len(w.kv.Ops)))
	return true
}

func appendKVResults(dst []byte, kv *fsm.KV) []byte {
	if kv.Failed >= 0 && kv.Failed < len(kv.Ops) {
		return appendLostGate(dst, kv)
	}
	dst = append(dst, `{"results":[`...)
	for i := range kv.Ops {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(dst, `{"index":`...)
		dst = strconv.AppendInt(dst, int64(i), 10)
		dst = append(dst, `,"op":"`...)
		dst = append(dst, kvOpName(kv.Ops[i].Kind)...)
		dst = append(dst, `",`...)
		dst = appendKVResult(dst, &kv.Ops[i])
		dst = append(dst, '}')
	}
	return append(dst, ']', '}')
}

// appendLostGate is the whole answer when a required operation lost.
func appendLostGate(dst []byte, kv *fsm.KV) []byte {
	dst = append(dst, `{"ok":false,"reason":"kv_precondition","failedIndex":`...)
	dst = strconv.AppendInt(dst, int64(kv.Failed), 10)
	dst = append(dst, ',')
	dst = appendGate(dst, &kv.Ops[kv.Failed].Result)
	return append(dst, '}')
}

// appendGate appends why a required operation lost, and the row that it met.
func appendGate(dst []byte, r *fsm.KVResult) []byte {
	dst = append(dst, `"kvReason":`...)
	dst = rawjson.AppendString(dst, r.Reason)
	dst = append(dst, `,"version":`...)
	dst = strconv.AppendInt(dst, r.Version, 10)
	return appendValue(append(dst, ','), r.Value)
}

func appendValue(dst, value []byte) []byte {
	dst = append(dst, `"value":`...)
	if value == nil {
		return append(dst, "null"...)
	}
	return append(dst, value...)
}

// appendKVResult appends the fields of one operation's result, without braces,
// index and op.
func appendKVResult(dst []byte, op *fsm.KVOp) []byte {
	r := &op.Result
	switch op.Kind {
	case fsm.KVGet:
		return appendGet(dst, op.Key, r)
	case fsm.KVGetMany:
		dst = appendRows(dst, r.Rows, false)
		dst = append(dst, `,"missing":[`...)
		for i, k := range r.Missing {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = rawjson.AppendString(dst, k)
		}
		dst = append(dst, `],"truncated":`...)
		return rawjson.AppendBool(dst, r.Truncated)
	case fsm.KVGetPrefix:
		dst = appendRows(dst, r.Rows, op.KeysOnly)
		dst = append(dst, `,"truncated":`...)
		dst = rawjson.AppendBool(dst, r.Truncated)
		dst = append(dst, `,"nextAfter":`...)
		if !r.Truncated || r.NextAfter == "" {
			return append(dst, "null"...)
		}
		return rawjson.AppendString(dst, r.NextAfter)
	}
	dst = append(dst, `"applied":`...)
	dst = rawjson.AppendBool(dst, r.Applied)
	dst = append(dst, `,"key":`...)
	dst = rawjson.AppendString(dst, op.Key)
	if op.Kind != fsm.KVCheck || !r.Applied {
		dst = appendValue(append(dst, ','), r.Value)
	}
	dst = append(dst, `,"version":`...)
	dst = strconv.AppendInt(dst, r.Version, 10)
	if !r.Applied && r.Reason != "" {
		dst = rawjson.AppendString(append(dst, `,"reason":`...), r.Reason)
	}
	return dst
}

func appendGet(dst []byte, key string, r *fsm.KVResult) []byte {
	dst = append(dst, `"found":`...)
	dst = rawjson.AppendBool(dst, r.Found)
	dst = append(dst, `,"key":`...)
	dst = rawjson.AppendString(dst, key)
	if !r.Found {
		return dst
	}
	dst = appendValue(append(dst, ','), r.Value)
	return appendRowTail(dst, r.Version, r.Expires, r.Updated)
}

func appendRowTail(dst []byte, version, expires, updated int64) []byte {
	dst = append(dst, `,"version":`...)
	dst = strconv.AppendInt(dst, version, 10)
	dst = append(dst, `,"expiresAt":`...)
	dst = appendExpiry(dst, expires)
	dst = append(dst, `,"updatedAt":`...)
	return rawjson.AppendMicros(dst, updated)
}

func appendRows(dst []byte, rows []fsm.KVRow, keysOnly bool) []byte {
	dst = append(dst, `"rows":[`...)
	for i := range rows {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(dst, `{"key":`...)
		dst = rawjson.AppendString(dst, rows[i].Key)
		if !keysOnly {
			dst = appendValue(append(dst, ','), rows[i].Value)
		}
		dst = appendRowTail(dst, rows[i].Version, rows[i].Expires, rows[i].Updated)
		dst = append(dst, '}')
	}
	return append(dst, ']')
}
