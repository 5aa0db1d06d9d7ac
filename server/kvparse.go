package server

import (
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"queen/fsm"
	"queen/server/rawjson"
)

// kvProblem is why KV operations are refused: status, and the reason as the KV
// routes and transactions name it.
type kvProblem struct {
	status int
	reason string
	detail string
}

func badKV(reason, detail string) *kvProblem {
	return &kvProblem{http.StatusBadRequest, reason, detail}
}

func hugeKV(reason, detail string) *kvProblem {
	return &kvProblem{http.StatusRequestEntityTooLarge, reason, detail}
}

// code is the error code that goes with the reason on the KV routes.
func (p *kvProblem) code() string {
	if p.status == http.StatusRequestEntityTooLarge {
		return "payload_too_large"
	}
	return "kv_bad_request"
}

// txnReason is the reason as a transaction names it.
func (p *kvProblem) txnReason() string {
	if p.reason == "kv_bad_body" {
		return "kv_bad_request"
	}
	return p.reason
}

func (x *exchange) failKV(p *kvProblem) { x.failReason(p.status, p.code(), p.reason, p.detail) }

// kvRules are the bounds of one call with KV operations.
type kvRules struct {
	ops, keys, value int
	inTxn            bool
}

var kvKinds = map[string]fsm.KVOpKind{
	"get": fsm.KVGet, "getMany": fsm.KVGetMany, "getPrefix": fsm.KVGetPrefix, "put": fsm.KVPut,
	"putIfAbsent": fsm.KVPutIfAbsent, "delete": fsm.KVDelete, "incr": fsm.KVIncr, "check": fsm.KVCheck,
}

func kvOpName(k fsm.KVOpKind) string {
	switch k {
	case fsm.KVGet:
		return "get"
	case fsm.KVGetMany:
		return "getMany"
	case fsm.KVGetPrefix:
		return "getPrefix"
	case fsm.KVPut:
		return "put"
	case fsm.KVPutIfAbsent:
		return "putIfAbsent"
	case fsm.KVDelete:
		return "delete"
	case fsm.KVIncr:
		return "incr"
	default:
		return "check"
	}
}

// kvFields are the members of one KV operation, as sent.
type kvFields struct {
	op, ns, key, prefix, after              []byte
	hasOp, hasNS, hasKey, hasPrefix         bool
	keys                                    []string
	keysArray, keysOK                       bool
	value, ttl, expect, delta, lower, upper []byte // raw; nil: absent or null where null is absent
	hasExpect                               bool
	forever, keysOnly, required             bool
	limit                                   int
	hasLimit                                bool
	foreverWrong, flagWrong, tenant, inPath bool
}

// take reads the value of one member, consuming unknown ones too.
func (f *kvFields) take(s *rawjson.Scanner, key []byte) {
	switch string(key) {
	case "op":
		f.op, f.hasOp = s.Text()
		f.inPath = true
	case "ns":
		f.ns, f.hasNS = s.Text()
		f.inPath = true
	case "key":
		f.key, f.hasKey = s.Text()
		f.inPath = true
	case "namespace":
		s.Skip()
		f.inPath = true
	case "keys":
		f.takeKeys(s)
	case "prefix":
		f.prefix, f.hasPrefix = s.Text()
	case "after":
		f.after, _ = s.Text()
	case "limit":
		f.takeLimit(s)
	case "keysOnly":
		f.keysOnly = f.flag(s)
	case "required":
		f.required = f.flag(s)
	case "forever":
		null := s.Kind() == rawjson.Null
		v, isBool := s.Bool()
		f.forever, f.foreverWrong = v, !isBool && !null
	case "value":
		f.value = s.Raw()
	case "ttlSeconds":
		f.ttl = notNull(s)
	case "expect":
		f.expect, f.hasExpect = s.Raw(), true
	case "delta":
		f.delta = notNull(s)
	case "min":
		f.lower = notNull(s)
	case "max":
		f.upper = notNull(s)
	case "tenant", "tenantId", "tenant_id":
		f.tenant = true
		s.Skip()
	default:
		s.Skip()
	}
}

func (f *kvFields) flag(s *rawjson.Scanner) bool {
	if s.Kind() == rawjson.Null {
		s.Skip()
		return false
	}
	v, ok := s.Bool()
	if !ok {
		f.flagWrong = true
	}
	return v
}

func notNull(s *rawjson.Scanner) []byte {
	if s.Kind() == rawjson.Null {
		s.Skip()
		return nil
	}
	return s.Raw()
}

func (f *kvFields) takeKeys(s *rawjson.Scanner) {
	f.keys, f.keysArray, f.keysOK = nil, s.Kind() == rawjson.Array, true
	if !f.keysArray {
		s.Skip()
		return
	}
	for ok := s.EnterArray(); ok; ok = s.NextElement() {
		key, isString := s.Text()
		f.keysOK = f.keysOK && isString
		f.keys = append(f.keys, string(key))
	}
}

func (f *kvFields) takeLimit(s *rawjson.Scanner) {
	isNumber, raw := s.Kind() == rawjson.Number, s.Raw()
	if !isNumber {
		return
	}
	if v, ok := rawjson.Float(raw); ok {
		f.limit, f.hasLimit = int(min(max(v, 1), 1000)), true
	}
}

// op makes the operation that the fields describe. It appends the value to the
// work's arena.
func (f *kvFields) operation(w *work, r *kvRules) (op fsm.KVOp, p *kvProblem) {
	kind, known := kvKinds[string(f.op)]
	switch {
	case !f.hasOp || !known:
		return op, badKV("kv_unknown_op", "op is missing or unknown")
	case f.tenant:
		return op, badKV("kv_tenant_not_an_input", "an operation names a tenant")
	case kind == fsm.KVGetPrefix && r.inTxn:
		return op, badKV("kv_get_prefix_not_allowed_in_transaction", "getPrefix is not allowed in a transaction")
	case !f.hasNS || !validNamespace(f.ns):
		return op, badKV("kv_bad_namespace", "ns is missing or not of the form [a-z0-9][a-z0-9._-]{0,63}")
	case f.flagWrong:
		return op, badKV("kv_bad_body", "required or keysOnly is not a boolean")
	}
	op = fsm.KVOp{Kind: kind, NS: w.name(f.ns), Required: f.required, KeysOnly: f.keysOnly}
	switch kind {
	case fsm.KVGetMany:
		return op, f.many(&op)
	case fsm.KVGetPrefix:
		return op, f.page(&op)
	}
	if !f.hasKey {
		return op, badKV("kv_bad_key", "key is missing or not a string")
	}
	if p := checkKey(len(f.ns), f.key); p != nil {
		return op, p
	}
	op.Key = string(f.key)
	switch kind {
	case fsm.KVGet:
		return op, nil
	case fsm.KVPut, fsm.KVPutIfAbsent:
		if f.value == nil {
			return op, badKV("kv_bad_body", "value is missing")
		}
		if p := f.keepValue(w, r, &op); p != nil {
			return op, p
		}
		p = f.expiry(&op)
	case fsm.KVIncr:
		if p = f.numbers(&op); p == nil {
			p = f.expiry(&op)
		}
	}
	if p == nil {
		p = f.condition(&op)
	}
	return op, p
}

func (f *kvFields) many(op *fsm.KVOp) *kvProblem {
	if !f.keysArray || len(f.keys) == 0 {
		return badKV("kv_bad_key", "keys is not an array with at least one key")
	}
	if !f.keysOK {
		return badKV("kv_bad_key", "a key is not a string")
	}
	for _, k := range f.keys {
		if p := checkKey(len(op.NS), k); p != nil {
			return p
		}
	}
	op.Keys = f.keys
	slices.Sort(op.Keys) // rows and what is missing come in key order
	return nil
}

func (f *kvFields) page(op *fsm.KVOp) *kvProblem {
	if !f.hasPrefix || len(f.prefix) == 0 {
		return badKV("kv_prefix_required", "getPrefix needs a prefix")
	}
	op.Prefix, op.After, op.Limit = string(f.prefix), string(f.after), 100
	if f.hasLimit {
		op.Limit = f.limit
	}
	return nil
}

func (f *kvFields) keepValue(w *work, r *kvRules, op *fsm.KVOp) *kvProblem {
	from := len(w.arena)
	w.arena = rawjson.AppendCompact(w.arena, f.value)
	op.Value = w.arena[from:len(w.arena):len(w.arena)]
	if len(op.Value) > r.value {
		return hugeKV("kv_value_too_large", "a value is over the limit as compact JSON")
	}
	return nil
}

func (f *kvFields) expiry(op *fsm.KVOp) *kvProblem {
	if f.foreverWrong || (f.ttl != nil) == f.forever {
		return badKV("kv_expiry_not_specified", "exactly one of ttlSeconds and forever: true is needed")
	}
	if f.forever {
		return nil
	}
	n, ok := rawjson.Int(f.ttl)
	if !isNumber(f.ttl) || !ok || n <= 0 {
		return badKV("kv_bad_ttl", "ttlSeconds is no whole number above 0")
	}
	op.TTL = min(n, maxSeconds)
	return nil
}

func isNumber(raw []byte) bool {
	return len(raw) > 0 && (raw[0] == '-' || raw[0] >= '0' && raw[0] <= '9')
}

func (f *kvFields) numbers(op *fsm.KVOp) *kvProblem {
	read := func(raw []byte, v *float64, has *bool) bool {
		if raw == nil {
			return true
		}
		if !isNumber(raw) {
			return false
		}
		*has = true
		var ok bool
		*v, ok = rawjson.Float(raw)
		return ok
	}
	hasDelta := false
	if !read(f.delta, &op.Delta, &hasDelta) || !hasDelta {
		return badKV("kv_bad_body", "delta is no finite number")
	}
	op.Delta = awayFromZero(f.delta, op.Delta)
	if !read(f.lower, &op.Min, &op.HasMin) || !read(f.upper, &op.Max, &op.HasMax) {
		return badKV("kv_bad_body", "min or max is no finite number")
	}
	return nil
}

// condition reads expect, by what the operation allows.
func (f *kvFields) condition(op *fsm.KVOp) *kvProblem {
	if !f.hasExpect {
		if op.Kind == fsm.KVCheck {
			return badKV("kv_bad_expect", "check needs expect")
		}
		return nil
	}
	n, ok := rawjson.Int(f.expect)
	if !isNumber(f.expect) || !ok || n < 0 {
		return badKV("kv_bad_expect", "expect is no whole number from 0 on")
	}
	switch op.Kind {
	case fsm.KVIncr:
		return badKV("kv_bad_expect", "incr takes no expect")
	case fsm.KVPutIfAbsent:
		if n != 0 {
			return badKV("kv_bad_expect", "putIfAbsent takes no expect but 0")
		}
		return nil
	case fsm.KVDelete:
		if n == 0 {
			return badKV("kv_bad_expect", "delete takes no expect of 0")
		}
	}
	op.HasExpect, op.Expect = true, n
	return nil
}

func validNamespace[T string | []byte](ns T) bool {
	if len(ns) == 0 || len(ns) > 64 {
		return false
	}
	for i := range len(ns) {
		c := ns[i]
		alnum := c >= 'a' && c <= 'z' || c >= '0' && c <= '9'
		if !alnum && (i == 0 || c != '.' && c != '_' && c != '-') {
			return false
		}
	}
	return true
}

func checkKey[T string | []byte](ns int, key T) *kvProblem {
	switch {
	case len(key) == 0:
		return badKV("kv_bad_key", "key is empty")
	case len(key) > kvKeyBytes || ns+len(key) > storeKeyBytes:
		return hugeKV("kv_key_too_large", "tenant, ns and key are over 511 bytes together, or key over 512")
	case strings.IndexByte(string(key), 0) >= 0:
		return badKV("kv_bad_key", "key has a NUL")
	}
	return nil
}

// parseKVArray reads an array of operations, which is the next value, and
// appends them to ops. The first problem is returned once the array has been
// read to its end. The next value must be an array.
func parseKVArray(w *work, ops []fsm.KVOp, r *kvRules) ([]fsm.KVOp, *kvProblem) {
	sc := &w.scan
	var first *kvProblem
	n := 0
	for ok := sc.EnterArray(); ok; ok = sc.NextElement() {
		n++
		if sc.Kind() != rawjson.Object {
			sc.Skip()
			if first == nil {
				first = badKV("kv_bad_body", "an operation is no object")
			}
			continue
		}
		var f kvFields
		for ok := sc.EnterObject(); ok; ok = sc.NextMember() {
			f.take(sc, sc.Key())
		}
		if first != nil || sc.Err() != nil || n > r.ops {
			continue
		}
		var op fsm.KVOp
		if op, first = f.operation(w, r); first == nil {
			ops = append(ops, op)
		}
	}
	if n > r.ops {
		return ops, badKV("kv_too_many_ops", "too many operations in one call")
	}
	if first == nil {
		first = checkKeys(ops, r)
	}
	return ops, first
}

// checkKeys holds the bounds that concern a call as a whole.
func checkKeys(ops []fsm.KVOp, r *kvRules) *kvProblem {
	keys, writes := 0, 0
	for i := range ops {
		switch op := &ops[i]; op.Kind {
		case fsm.KVGetMany:
			keys += len(op.Keys)
		case fsm.KVGetPrefix:
			keys += op.Limit
		default:
			keys++
			if op.Kind.Write() {
				writes++
			}
		}
	}
	if keys > r.keys {
		return badKV("kv_too_many_keys", "too many keys in one call")
	}
	if writes < 2 {
		return nil
	}
	if repeatedWrite(ops) {
		return badKV("kv_duplicate_key_in_call", "two writes of one key in one call")
	}
	return nil
}

func repeatedWrite(ops []fsm.KVOp) bool {
	same := func(a, b *fsm.KVOp) bool { return a.Key == b.Key && a.NS == b.NS }
	if len(ops) <= 8 {
		for i := range ops {
			for j := range i {
				if ops[i].Kind.Write() && ops[j].Kind.Write() && same(&ops[i], &ops[j]) {
					return true
				}
			}
		}
		return false
	}
	type place struct{ ns, key string }
	seen := make(map[place]bool, len(ops))
	for i := range ops {
		if !ops[i].Kind.Write() {
			continue
		}
		at := place{ops[i].NS, ops[i].Key}
		if seen[at] {
			return true
		}
		seen[at] = true
	}
	return false
}

// awayFromZero keeps a whole number that a float cannot hold from being rounded
// back to the limit that it is over: 2^53+1 must not pass for 2^53.
func awayFromZero(raw []byte, f float64) float64 {
	n, err := strconv.ParseInt(string(raw), 10, 64)
	switch {
	case err != nil:
		return f
	case n > 1<<53 && f <= 1<<53:
		return math.Nextafter(1<<53, math.Inf(1))
	case n < -1<<53 && f >= -1<<53:
		return math.Nextafter(-1<<53, math.Inf(-1))
	}
	return f
}
