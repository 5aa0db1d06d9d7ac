package server

import (
	"net/http"
	"strconv"

	"queen/fsm"
	"queen/server/rawjson"
)

func (s *Server) serveKVGet(x *exchange)    { s.kvPath(x, fsm.KVGet) }
func (s *Server) serveKVPut(x *exchange)    { s.kvPath(x, fsm.KVPut) }
func (s *Server) serveKVDelete(x *exchange) { s.kvPath(x, fsm.KVDelete) }

// kvPath serves one operation whose namespace and key stand in the path.
func (s *Server) kvPath(x *exchange, kind fsm.KVOpKind) {
	if x.c.Request.URL.RawQuery != "" || x.c.Request.URL.ForceQuery {
		x.failKV(badKV("kv_no_query_string", "this route takes no query string"))
		return
	}
	ns, ok1 := x.param("ns")
	key, ok2 := x.rest("key")
	switch {
	case !ok1:
		x.failKV(badKV("kv_bad_namespace", badPathName))
		return
	case !ok2:
		x.failKV(badKV("kv_bad_key", badPathName))
		return
	}
	w := s.getWork(x)
	if kind != fsm.KVGet && !x.readBody(w) {
		s.putWork(w)
		return
	}
	f, p := pathFields(w, kind)
	if p == nil {
		f.op, f.hasOp = []byte(kvOpName(kind)), true
		f.ns, f.hasNS = []byte(ns), true
		f.key, f.hasKey = []byte(key), true
		rules := s.kvRules()
		var op fsm.KVOp
		if op, p = f.operation(w, &rules); p == nil {
			w.kv.Ops = append(w.kv.Ops, op)
		}
	}
	if p != nil {
		s.putWork(w)
		x.failKV(p)
		return
	}
	if kind != fsm.KVGet {
		route := fsm.OutcomeKVPut
		if kind == fsm.KVDelete {
			route = fsm.OutcomeKVDelete
		}
		if x.keyed() && !x.takeKey(w, route, 1, w.appendKVPath) {
			s.putWork(w)
			return
		}
	}
	if !s.runKV(x, w, x.tenant) {
		return
	}
	s.answerKVPath(x, w)
}

// pathFields reads the body of a PUT or DELETE; an empty one is no member.
func pathFields(w *work, kind fsm.KVOpKind) (f kvFields, p *kvProblem) {
	if kind == fsm.KVGet || kind == fsm.KVDelete && len(w.body) == 0 {
		return f, nil
	}
	sc := &w.scan
	sc.Reset(w.body)
	isObject := sc.Kind() == rawjson.Object
	if isObject {
		for ok := sc.EnterObject(); ok; ok = sc.NextMember() {
			f.take(sc, sc.Key())
		}
	} else {
		sc.Skip()
	}
	switch err := sc.End(); {
	case err != nil:
		return f, badKV("kv_bad_body", err.Error())
	case !isObject:
		return f, badKV("kv_bad_body", "the body is no object")
	case f.inPath:
		return f, badKV("kv_field_in_path", "op, ns, namespace and key stand in the path, not in the body")
	}
	return f, nil
}

func (s *Server) answerKVPath(x *exchange, w *work) {
	op := &w.kv.Ops[0]
	switch {
	case w.kv.Failed >= 0:
		x.out = appendLostGate(x.out[:0], &w.kv)
	case op.Kind == fsm.KVGet:
		x.out = append(x.out[:0], `{"op":"get",`...)
		x.out = append(appendGet(x.out, op.Key, &op.Result), '}')
		if op.Result.Found {
			x.c.Writer.Header().Set("ETag", `"`+strconv.FormatInt(op.Result.Version, 10)+`"`)
		}
	default:
		x.out = w.appendKVPath(x.out[:0])
	}
	s.putWork(w)
	_ = x.answer(http.StatusOK)
}

// appendKVPath appends the answer of a write of one key.
func (w *work) appendKVPath(dst []byte) []byte {
	op := &w.kv.Ops[0]
	dst = append(append(dst, `{"op":"`...), kvOpName(op.Kind)...)
	dst = append(dst, `",`...)
	return append(appendKVResult(dst, op), '}')
}
