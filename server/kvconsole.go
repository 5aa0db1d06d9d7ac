package server

import (
	"net/http"
	"strconv"

	"queen/fsm"
	"queen/server/rawjson"
)

// The console's view of key/value rows. Both routes spend the tenant's read rate
// and are off with KV.

// consoleCall does what both routes begin with; false: it has answered.
func (x *exchange) consoleCall() bool {
	if x.c.Request.URL.RawQuery != "" || x.c.Request.URL.ForceQuery {
		x.failKV(badKV("kv_no_query_string", "this route takes no query string"))
		return false
	}
	return x.granted() && x.spendRate(x.tenant, false)
}

func (s *Server) serveKVNamespaces(x *exchange) {
	if !x.consoleCall() {
		return
	}
	tenant, after, off := x.tenant, "", false
	out := append(x.out[:0], `{"namespaces":[`...)
	for more := true; more; {
		var list []fsm.KVSpace
		more = false
		if !s.read(x, func(st *fsm.State) {
			off = st.Switches().KVOff
			list, more = st.KVSpaces(tenant, after)
		}) {
			return
		}
		if off {
			x.kvDisabled()
			return
		}
		for i := range list {
			if after != "" {
				out = append(out, ',')
			}
			after = list[i].Name
			out = append(out, `{"namespace":`...)
			out = rawjson.AppendString(out, after)
			out = append(appendInt(append(out, ','), "keys", list[i].Keys), '}')
		}
	}
	x.out = append(out, ']', '}')
	_ = x.answer(http.StatusOK)
}

func (s *Server) serveKVList(x *exchange) {
	w := s.getWork(x)
	if !x.readBody(w) {
		s.putWork(w)
		return
	}
	page, p := parseKVList(w)
	s.putWork(w)
	if p != nil {
		x.failKV(p)
		return
	}
	if !x.consoleCall() {
		return
	}
	tenant, off := x.tenant, false
	for !page.Done && !off {
		page.Done = true // unless there is more to look at
		if !s.read(x, func(st *fsm.State) {
			if off = st.Switches().KVOff; !off {
				st.ReadKVPage(tenant, &page)
			}
		}) {
			return
		}
	}
	if off {
		x.kvDisabled()
		return
	}
	x.out = appendKVPage(x.out[:0], &page)
	_ = x.answer(http.StatusOK)
}

// maxPageBytes are the value bytes after which a page stops.
const maxPageBytes = 4 << 20

func parseKVList(w *work) (page fsm.KVPage, p *kvProblem) {
	sc := &w.scan
	sc.Reset(w.body)
	var (
		f      kvFields
		ns     []byte
		hasNS  bool
		wrong  string
		expire bool
	)
	text := func(name string) []byte {
		null := sc.Kind() == rawjson.Null
		b, isText := sc.Text()
		if !isText && !null {
			wrong = name + " is not a string"
		}
		return b
	}
	isObject := sc.Kind() == rawjson.Object
	if !isObject {
		sc.Skip()
	} else {
		for ok := sc.EnterObject(); ok; ok = sc.NextMember() {
			switch key := sc.Key(); string(key) {
			case "namespace":
				ns, hasNS = sc.Text()
			case "prefix":
				f.prefix = text("prefix")
			case "after":
				f.after = text("after")
			case "includeExpired":
				expire = f.flag(sc)
			case "limit", "keysOnly", "tenant", "tenantId", "tenant_id":
				f.take(sc, key)
			default:
				sc.Skip()
			}
		}
	}
	switch err := sc.End(); {
	case err != nil:
		return page, badKV("kv_bad_body", err.Error())
	case !isObject:
		return page, badKV("kv_bad_body", "the body is no object")
	case f.tenant:
		return page, badKV("kv_tenant_not_an_input", "the body names a tenant")
	case !hasNS || !validNamespace(ns):
		return page, badKV("kv_bad_namespace", "namespace is missing or not of the form [a-z0-9][a-z0-9._-]{0,63}")
	case wrong != "":
		return page, badKV("kv_bad_body", wrong)
	case f.flagWrong:
		return page, badKV("kv_bad_body", "keysOnly or includeExpired is not a boolean")
	}
	page = fsm.KVPage{
		NS: string(ns), Prefix: string(f.prefix), At: string(f.after), Limit: 100, MaxBytes: maxPageBytes, KeysOnly: f.keysOnly, Expired: expire,
	}
	if f.hasLimit {
		page.Limit = f.limit
	}
	return page, nil
}

func appendKVPage(dst []byte, page *fsm.KVPage) []byte {
	dst = append(dst, `{"rows":[`...)
	for i := range page.Rows {
		if i > 0 {
			dst = append(dst, ',')
		}
		row := &page.Rows[i]
		dst = append(dst, `{"key":`...)
		dst = rawjson.AppendString(dst, row.Key)
		if !page.KeysOnly {
			dst = appendValue(append(dst, ','), row.Value)
		}
		dst = appendRowTail(dst, row.Version, row.Expires, row.Updated)
		dst = append(dst, `,"expired":`...)
		dst = append(rawjson.AppendBool(dst, page.Over[i]), '}')
	}
	dst = append(dst, `],"truncated":`...)
	dst = rawjson.AppendBool(dst, page.Truncated)
	dst = append(dst, `,"nextAfter":`...)
	if n := len(page.Rows); page.Truncated && n > 0 {
		dst = rawjson.AppendString(dst, page.Rows[n-1].Key)
	} else {
		dst = append(dst, "null"...)
	}
	dst = append(dst, `,"bytes":`...)
	return append(strconv.AppendInt(dst, int64(page.Bytes), 10), '}')
}
