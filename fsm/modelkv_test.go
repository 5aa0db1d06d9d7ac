package fsm

import (
	"bytes"
	"fmt"
	"math/big"
	"sort"
	"strconv"
)

// Key/value.

func (m *model) liveKV(key string) *mKV {
	if k := m.kv[key]; k != nil && (k.expires == 0 || m.now < k.expires) {
		return k
	}
	return nil
}

// judgeKV gives the reason why an operation does not apply, empty when it does;
// value is what it would write. done holds the keys that operations of the call
// write, with their index.
func (m *model) judgeKV(tenant string, ops []KVOp, i int, done map[string]int) (reason, value string) {
	op := &ops[i]
	key := tenant + op.NS + "\x00" + op.Key
	k := m.liveKV(key)
	if w, ok := done[key]; ok && op.Kind == KVCheck {
		switch {
		case ops[w].Kind == KVDelete:
			k = nil
		case op.Expect == 0:
			return "exists", ""
		default:
			return "version", ""
		}
	}
	has, expect := op.HasExpect, op.Expect
	if op.Kind == KVPutIfAbsent {
		has, expect = true, 0
	}
	switch {
	case has && expect == 0 && k != nil:
		return "exists", ""
	case has && expect != 0 && k == nil:
		return "absent", ""
	case has && expect != 0 && k.version != expect:
		return "version", ""
	case op.Kind == KVDelete && k == nil:
		return "absent", ""
	case op.Kind == KVIncr:
		old := 0.0
		if k != nil {
			v, err := strconv.ParseFloat(k.value, 64)
			if err != nil {
				return "type", ""
			}
			old = v
		}
		sum := new(big.Rat).Add(rat(old), rat(op.Delta))
		crosses := func(limit float64, by int) bool { return sum.Cmp(rat(limit)) == by }
		if op.HasMin && crosses(op.Min, -1) || op.HasMax && crosses(op.Max, 1) || crosses(1<<53, 1) || crosses(-1<<53, -1) {
			return "limit", ""
		}
		rounded, _ := sum.Float64()
		return "", strconv.FormatFloat(rounded, 'f', -1, 64)
	}
	return "", string(op.Value)
}

// kvCall checks the operations of a call. It returns the index of the first
// lost required one, or -1. With dry nothing is compared or written.
func (m *model) kvCall(tenant string, ops []KVOp, dry bool) int {
	done := map[string]int{}
	reasons, values := make([]string, len(ops)), make([]string, len(ops))
	lost := map[int]*mKV{} // a lost operation answers the row that it met
	for i := range ops {
		op := &ops[i]
		if !op.Kind.Write() && op.Kind != KVCheck {
			continue
		}
		key := tenant + op.NS + "\x00" + op.Key
		reasons[i], values[i] = m.judgeKV(tenant, ops, i, done)
		if k := m.liveKV(key); k != nil {
			copied := *k
			lost[i] = &copied
		}
		if w, ok := done[key]; ok && ops[w].Kind == KVDelete {
			lost[i] = nil
		}
		if reasons[i] == "" && op.Kind.Write() {
			done[key] = i
		}
		if reasons[i] != "" && op.Required {
			if !dry {
				m.expect("reason of a lost gate", op.Result.Reason, reasons[i])
				m.expectCurrent("lost gate", op, lost[i])
			}
			return i
		}
	}
	if dry {
		return -1
	}
	for i := range ops {
		if op := &ops[i]; op.Kind.Write() || op.Kind == KVCheck {
			m.expect("kv reason", op.Result.Reason, reasons[i])
			m.expect("kv applied", op.Result.Applied, reasons[i] == "")
		}
	}
	for i := range ops {
		if ops[i].Kind.Write() && reasons[i] == "" {
			m.kvWrite(tenant, &ops[i], values[i])
		}
	}
	for i := range ops {
		op := &ops[i]
		if reasons[i] == "" {
			m.kvRead(tenant, op)
			continue
		}
		key := tenant + op.NS + "\x00" + op.Key
		if w, ok := done[key]; ok && w < i {
			lost[i] = m.liveKV(key)
		}
		m.expectCurrent("lost kv operation", op, lost[i])
	}
	return -1
}

func rat(v float64) *big.Rat { return new(big.Rat).SetFloat64(v) }

func (m *model) expectCurrent(what string, op *KVOp, k *mKV) {
	if k == nil {
		m.expect(what+": version of an absent key", op.Result.Version, int64(0))
		m.expect(what+": value of an absent key", op.Result.Value == nil, true)
		return
	}
	m.expect(what+": version", op.Result.Version, k.version)
	m.expect(what+": value", string(op.Result.Value), k.value)
}

func (m *model) kvWrite(tenant string, op *KVOp, value string) {
	key := tenant + op.NS + "\x00" + op.Key
	old := m.liveKV(key)
	if op.Kind == KVDelete {
		m.expect("version of a delete", op.Result.Version, old.version)
		m.expect("value of a delete", op.Result.Value == nil, true)
		delete(m.kv, key)
		return
	}
	v := op.Result.Version
	if v <= m.highest[key] || v >= 1<<53 || m.versions[v] {
		m.fail("version %d of key %q was used before, or is not above %d", v, op.Key, m.highest[key])
	}
	m.versions[v], m.highest[key] = true, v
	m.expect("written value", string(op.Result.Value), value)
	k := &mKV{value: value, version: v, updated: m.now}
	if op.TTL > 0 {
		k.expires = m.now + op.TTL*1_000_000
	}
	if op.Kind == KVIncr && old != nil {
		k.expires = old.expires
	}
	m.kv[key] = k
}

func (m *model) kvRead(tenant string, op *KVOp) {
	r := &op.Result
	row := func(key string) *mKV { return m.liveKV(tenant + op.NS + "\x00" + key) }
	switch op.Kind {
	case KVCheck:
		want := int64(0)
		if op.Expect != 0 {
			want = op.Expect
		}
		m.expect("version of a check that holds", r.Version, want)
		m.expect("value of a check that holds", r.Value == nil, true)
	case KVGet:
		k := row(op.Key)
		m.expect("found", r.Found, k != nil)
		if k != nil {
			m.expect("read", KVRow{op.Key, nil, r.Version, r.Expires, r.Updated}.text()+string(r.Value), k.text(op.Key))
		}
	case KVGetMany:
		var rows, missing string
		for _, key := range op.Keys {
			if k := row(key); k != nil {
				rows += k.text(key) + ";"
			} else {
				missing += key + ";"
			}
		}
		m.expect("rows", rowsText(r.Rows), rows)
		got := ""
		for _, key := range r.Missing {
			got += key + ";"
		}
		m.expect("missing keys", got, missing)
	case KVGetPrefix:
		m.readPrefix(tenant, op)
	}
}

func (m *model) readPrefix(tenant string, op *KVOp) {
	base := tenant + op.NS + "\x00"
	var keys []string
	for full := range m.kv {
		if key, ok := cutPrefix(full, base); ok && m.liveKV(full) != nil && key > op.After {
			if _, ok := cutPrefix(key, op.Prefix); ok {
				keys = append(keys, key)
			}
		}
	}
	sort.Strings(keys)
	more := len(keys) > op.Limit
	keys = keys[:min(len(keys), op.Limit)]
	want := ""
	for _, key := range keys {
		want += m.kv[base+key].text(key) + ";"
	}
	m.expect("rows of a prefix", rowsText(op.Result.Rows), want)
	m.expect("more keys", op.Result.Truncated, more)
}

func cutPrefix(s, prefix string) (string, bool) {
	if len(s) < len(prefix) || s[:len(prefix)] != prefix {
		return "", false
	}
	return s[len(prefix):], true
}

func (k *mKV) text(key string) string {
	return KVRow{key, nil, k.version, k.expires, k.updated}.text() + k.value
}

func (r KVRow) text() string {
	return fmt.Sprintf("%s@%d until %d from %d=", r.Key, r.Version, r.Expires, r.Updated)
}

func rowsText(rows []KVRow) (out string) {
	for _, r := range rows {
		out += r.text() + string(r.Value) + ";"
	}
	return out
}

// Timers.

func (m *model) timerOps(tenant string, ops []TimerOp) {
	for i := range ops {
		op := &ops[i]
		key := tenant + op.Queue + "\x00" + op.Key
		old := m.timers[key]
		if op.Cancel {
			want, txn := "absent", string(op.Txn)
			if old != nil {
				want, txn = "cancelled", old.txn
				delete(m.timers, key)
			}
			m.expect("cancel", op.Status, want)
			m.expect("ok of a cancel", op.OK, old != nil)
			m.expect("txn of a cancel", string(op.OldTxn), txn)
			continue
		}
		want := "scheduled"
		if old != nil {
			want = "rescheduled"
		}
		m.expect("schedule", op.Status, want)
		m.expect("ok of a schedule", op.OK, true)
		t := &mTimer{
			tenant: tenant, queue: op.Queue, part: op.Partition, key: op.Key, txn: string(op.Txn), hasTxn: op.Txn != nil,
			id: op.MessageID, raw: op.Message, due: m.now + max(op.DelayMs, 0)*1000, updated: m.now,
		}
		if !t.hasTxn {
			t.txn = uuidText(op.MessageID)
		}
		t.deliver = t.due
		m.expect("deliverAt", op.DeliverAt, t.due)
		m.timers[key] = t
	}
}

// dueTimers are those to fire now, in due order.
func (m *model) dueTimers() (due []*mTimer) {
	for _, t := range m.timers {
		if !t.flying && t.deliver <= m.now && !m.off.FireOff {
			due = append(due, t)
		}
	}
	sort.Slice(due, func(i, j int) bool {
		a, b := due[i], due[j]
		if a.deliver != b.deliver {
			return a.deliver < b.deliver
		}
		if a.updated != b.updated {
			return a.updated < b.updated
		}
		return timerKey(a.tenant, a.queue, a.key) < timerKey(b.tenant, b.queue, b.key)
	})
	return due
}

// fire fires what is still pending of the timers of a pass.
func (m *model) fire(list []*mTimer) {
	for _, t := range list {
		key := t.tenant + t.queue + "\x00" + t.key
		if m.timers[key] != t {
			continue
		}
		if t.flying = false; m.off.FireOff {
			continue
		}
		it := &PushItem{Queue: t.queue, Partition: t.part, ID: t.id, Packed: t.raw}
		if t.hasTxn {
			it.Txn = []byte(t.txn)
		}
		status, _ := m.judgePush(t.tenant, []*PushItem{it})
		if status[0] != Refused {
			if status[0] == Queued {
				m.append(m.needPart(m.needQueue(t.tenant, t.queue), t.part), []mMsg{{t.txn, t.raw, m.now}})
			}
			delete(m.timers, key)
			continue
		}
		t.attempts++
		t.updated = m.now
		if t.attempts < m.cfg.TimerMaxAttempts {
			t.deliver = m.now + min(m.cfg.TimerBackoffMin<<(t.attempts-1), m.cfg.TimerBackoffMax)
			continue
		}
		delete(m.timers, key)
		m.file(&mLetter{
			q: m.needQueue(t.tenant, t.queue), part: t.part, group: TimerGroup, retries: t.attempts, failed: m.now, raw: t.raw, timerKey: t.key,
		})
	}
}

// file notes a dead letter; its id is learned when the state is compared.
func (m *model) file(l *mLetter) {
	var id [16]byte
	for n := byte(1); ; n++ {
		id[0], id[1] = n, 0xff // no id that the machine mints
		if m.letters[id] == nil {
			break
		}
	}
	m.letters[id] = l
}

func (l *mLetter) same(i DeadLetterInfo, content []byte) bool {
	return l.q.name == i.Queue && l.part == i.Partition && l.offset == i.Offset && l.group == i.Group &&
		(l.err == i.Error || l.timerKey != "") && l.retries == i.RetryCount && l.failed == i.Failed && bytes.Equal(l.raw, content)
}
