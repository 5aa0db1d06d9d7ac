package fsm

import (
	"bytes"
	"container/heap"
	"math"
	"strconv"
)

// maxExact is the largest integer that every client reads back exactly (2^53).
const maxExact = 1 << 53

// Reasons why a key/value operation does not apply.
const (
	reasonExists  = "exists"
	reasonAbsent  = "absent"
	reasonVersion = "version"
	reasonLimit   = "limit"
	reasonType    = "type"
)

func (k *kvRow) live(now int64) bool {
	return k != nil && (k.expires == 0 || now < k.expires)
}

func (m *Machine) findKV(tenant, ns, key string) *kvRow {
	k, _ := m.s.kv.Get(kvKey(tenant, ns, key))
	if !k.live(m.now) {
		return nil
	}
	return k
}

// planKV is a call of the key/value route: all its writes or, when a required
// one is lost, none.
func (m *Machine) planKV(tenant string, kv *KV) verdict {
	if kv.Disabled = m.s.switches.KVOff; kv.Disabled {
		return answered
	}
	kv.Failed = m.judgeKV(tenant, kv.Ops)
	if kv.Failed >= 0 {
		return answered
	}
	m.emitKV(kv.Ops)
	m.readKV(tenant, kv.Ops)
	return answered
}

// judgeKV decides every write and check, in order, on the state before the
// call (a key is written at most once in a call). It returns the index of the
// first lost required operation, or -1. What would be written is left in
// Result.Value; nothing is changed.
func (m *Machine) judgeKV(tenant string, ops []KVOp) int {
	for i := range ops {
		op := &ops[i]
		if !op.Kind.Write() && op.Kind != KVCheck {
			continue
		}
		op.key = kvKey(tenant, op.NS, op.Key)
		op.row, _ = m.s.kv.Get(op.key)
		row := op.row
		if !row.live(m.now) {
			row = nil
		}
		op.Result = KVResult{}
		if w := writtenBefore(ops[:i], op); w != nil {
			op.checkAfter(w, row)
		} else {
			op.judge(row)
		}
		if !op.Result.Applied && op.Required {
			return i
		}
	}
	return -1
}

// writtenBefore is the earlier operation of the call that changes the key which
// a check names, or nil.
func writtenBefore(ops []KVOp, check *KVOp) *KVOp {
	if check.Kind != KVCheck {
		return nil
	}
	for i := range ops {
		o := &ops[i]
		if o.Kind.Write() && o.Result.Applied && o.NS == check.NS && o.Key == check.Key {
			return o
		}
	}
	return nil
}

// checkAfter judges a check on the key as the earlier write w leaves it. The
// version that w gives the key is not known to anybody, so no check can name
// it. row is the key before the call: what it is when this loss undoes the call.
func (op *KVOp) checkAfter(w *KVOp, row *kvRow) {
	if w.Kind == KVDelete {
		op.judge(nil)
		return
	}
	r := &op.Result
	r.Reason = reasonVersion
	if op.Expect == 0 {
		r.Reason = reasonExists
	}
	if row != nil {
		r.Value, r.Version = row.value, row.version
	}
}

// judge decides an operation on the live row of its key, nil when there is none.
func (op *KVOp) judge(row *kvRow) {
	r := &op.Result
	if row != nil {
		r.Value, r.Version = row.value, row.version
	}
	switch reason := op.conflict(row); {
	case reason != "":
		r.Reason = reason
		return
	case op.Kind == KVCheck:
		r.Value = nil
	case op.Kind == KVDelete:
		if row == nil {
			r.Reason = reasonAbsent
			return
		}
		r.Value = nil
	case op.Kind == KVIncr:
		value, reason := op.increment(row)
		if reason != "" {
			r.Reason = reason
			return
		}
		r.Value = value
	default:
		r.Value = op.Value
	}
	r.Applied = true
}

// conflict is why an operation's precondition does not hold, or empty.
func (op *KVOp) conflict(row *kvRow) string {
	has, expect := op.HasExpect, op.Expect
	if op.Kind == KVPutIfAbsent {
		has, expect = true, 0
	}
	switch {
	case !has:
		return ""
	case expect == 0 && row != nil:
		return reasonExists
	case expect == 0:
		return ""
	case row == nil:
		return reasonAbsent
	case row.version != expect:
		return reasonVersion
	}
	return ""
}

// increment computes the new value. Only the planner computes; the effect
// carries the bytes, so no replica can differ.
func (op *KVOp) increment(row *kvRow) (value []byte, reason string) {
	old := 0.0
	if row != nil {
		v, err := strconv.ParseFloat(string(row.value), 64)
		if err != nil || !isNumber(row.value) {
			return nil, reasonType
		}
		old = v
	}
	sum := add(old, op.Delta)
	if math.IsNaN(sum.v) || sum.above(maxExact) || sum.below(-maxExact) ||
		op.HasMin && sum.below(op.Min) || op.HasMax && sum.above(op.Max) {
		return nil, reasonLimit
	}
	return appendNumber(nil, sum.v), ""
}

// exactSum is a sum and what its rounding took away, so that 2^53 + 1 is seen
// to cross 2^53.
type exactSum struct{ v, rest float64 }

func add(a, b float64) exactSum {
	v := a + b
	part := v - a
	return exactSum{v: v, rest: (a - (v - part)) + (b - part)}
}

func (s exactSum) above(limit float64) bool { return s.v > limit || s.v == limit && s.rest > 0 }
func (s exactSum) below(limit float64) bool { return s.v < limit || s.v == limit && s.rest < 0 }

// isNumber tells a JSON number from what ParseFloat reads besides (Inf, hex).
func isNumber(b []byte) bool {
	return len(b) > 0 && (b[0] == '-' || b[0] >= '0' && b[0] <= '9')
}

func appendNumber(dst []byte, v float64) []byte {
	if v == math.Trunc(v) && math.Abs(v) <= maxExact {
		return strconv.AppendInt(dst, int64(v), 10)
	}
	if a := math.Abs(v); a < 1e-6 || a >= 1e21 {
		return strconv.AppendFloat(dst, v, 'e', -1, 64)
	}
	return strconv.AppendFloat(dst, v, 'f', -1, 64)
}

// emitKV applies the writes that were judged to apply.
func (m *Machine) emitKV(ops []KVOp) {
	for i := range ops {
		op := &ops[i]
		if !op.Kind.Write() || !op.Result.Applied {
			continue
		}
		row := op.row // a key is written once in a call: it is as it was judged
		if op.Kind == KVDelete {
			m.deleteKV(row)
			continue
		}
		row = m.writeKV(op.key, row, bytes.Clone(op.Result.Value), m.expiryOf(op)) // the call's bytes are the edge's
		op.Result.Version = row.version
	}
}

// expiryOf is when the row ends that an operation writes.
func (m *Machine) expiryOf(op *KVOp) int64 {
	switch {
	case op.Kind == KVIncr && op.row.live(m.now):
		return op.row.expires // the lifetime is that of the counter's creation
	case op.TTL > 0:
		return lifetime(m.now, op.TTL)
	}
	return 0
}

// writeKV gives a key a value, a lifetime and a new version. row is what is
// there, nil when nothing is; value is kept.
func (m *Machine) writeKV(key string, row *kvRow, value []byte, expires int64) *kvRow {
	if row == nil {
		row = &kvRow{key: key, heapIdx: -1}
		m.s.kv.Set(key, row)
		m.s.countKey(key, 1)
	}
	row.value, row.updated = value, m.now
	row.version = m.s.meta.kvVersion
	m.s.meta.kvVersion++
	m.setExpiry(row, expires)
	m.put(row)
	return row
}

// lifetime is the end of a lifetime of ttl seconds, kept within the range of
// broker time.
func lifetime(now, ttl int64) int64 {
	const longest = 1 << 53 // microseconds: 285 years
	if ttl > longest/1_000_000 {
		return now + longest
	}
	return now + ttl*1_000_000
}

func (m *Machine) setExpiry(row *kvRow, expires int64) {
	if row.expires == expires && (row.heapIdx >= 0) == (expires != 0) {
		return
	}
	row.expires = expires
	switch {
	case expires == 0 && row.heapIdx >= 0:
		heap.Remove(&m.expiries, int(row.heapIdx))
	case expires == 0:
	case row.heapIdx >= 0:
		heap.Fix(&m.expiries, int(row.heapIdx))
	default:
		heap.Push(&m.expiries, row)
	}
}

func (m *Machine) deleteKV(row *kvRow) {
	if row.heapIdx >= 0 {
		heap.Remove(&m.expiries, int(row.heapIdx))
	}
	row.dead = true
	m.s.kv.Delete(row.key)
	m.s.countKey(row.key, -1)
	m.remove(row)
}

// readKV answers the reads of a call from the state right after its entry.
func (m *Machine) readKV(tenant string, ops []KVOp) {
	budget := m.cfg.KVReadBytes
	for i := range ops {
		op := &ops[i]
		switch op.Kind {
		case KVGet:
			op.Result = KVResult{}
			if row := m.findKV(tenant, op.NS, op.Key); row != nil {
				op.Result = KVResult{
					Found: true, Value: row.value, Version: row.version, Expires: row.expires, Updated: row.updated,
				}
				budget -= len(row.value)
			}
		case KVCheck:
			if op.Result.Reason != "" && writtenBefore(ops[:i], op) != nil {
				if row := m.findKV(tenant, op.NS, op.Key); row != nil {
					op.Result.Value, op.Result.Version = row.value, row.version
				}
			}
		case KVGetMany:
			op.Result = KVResult{}
			m.getMany(tenant, op, &budget)
		case KVGetPrefix:
			op.Result = KVResult{}
			m.getPrefix(tenant, op, &budget)
		}
	}
}

func (k *kvRow) result(key string, keysOnly bool) KVRow {
	r := KVRow{Key: key, Value: k.value, Version: k.version, Expires: k.expires, Updated: k.updated}
	if keysOnly {
		r.Value = nil
	}
	return r
}

func (m *Machine) getMany(tenant string, op *KVOp, budget *int) {
	for _, key := range op.Keys {
		row := m.findKV(tenant, op.NS, key)
		switch {
		case row == nil:
			op.Result.Missing = append(op.Result.Missing, key)
		case *budget < len(row.value):
			op.Result.Truncated = true
		default:
			*budget -= len(row.value)
			op.Result.Rows = append(op.Result.Rows, row.result(key, false))
		}
	}
}

func (m *Machine) getPrefix(tenant string, op *KVOp, budget *int) {
	base := kvKey(tenant, op.NS, "")
	from := base + max(op.Prefix, op.After)
	r := &op.Result
	m.s.kv.Ascend(from, func(full string, row *kvRow) bool {
		if len(full) < len(base) || full[:len(base)] != base {
			return false
		}
		key := full[len(base):]
		if len(key) < len(op.Prefix) || key[:len(op.Prefix)] != op.Prefix {
			return false
		}
		if key == op.After && op.After != "" || !row.live(m.now) {
			return true
		}
		if len(r.Rows) == op.Limit || !op.KeysOnly && *budget < len(row.value) {
			r.Truncated = true
			return false
		}
		if !op.KeysOnly {
			*budget -= len(row.value)
		}
		r.Rows = append(r.Rows, row.result(key, op.KeysOnly))
		return true
	})
	if r.Truncated && len(r.Rows) > 0 {
		r.NextAfter = r.Rows[len(r.Rows)-1].Key
	}
}

// sweepKeys removes keys whose lifetime is over. Nothing but counts depends on
// it: an expired key is never shown.
func (m *Machine) sweepKeys() {
	if len(m.expiries) == 0 || m.expiries[0].expires > m.now || m.now < m.nextSweep {
		return
	}
	for n := 0; n < m.cfg.KVSweepLimit && len(m.expiries) > 0 && m.expiries[0].expires <= m.now; n++ {
		m.deleteKV(m.expiries[0])
	}
	m.nextSweep = m.now + m.cfg.KVSweepEvery
}
