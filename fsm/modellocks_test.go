package fsm

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"
)

// The model's locks: rows of the key/value model, found by looking at all slots.

type mPermit struct {
	slot  int
	key   string
	row   *mKV
	owner string
	since int64
}

// permits are the live permits of a lock below a slot, in order.
func (m *model) permits(tenant, name string, below int) (list []mPermit) {
	for slot := range below {
		key := fmt.Sprintf("%s%s\x00%s#%d", tenant, LockNamespace, name, slot)
		k := m.liveKV(key)
		if k == nil {
			continue
		}
		p := mPermit{slot: slot, key: key, row: k, since: k.updated}
		var value struct {
			Owner *string
			Since string
		}
		if json.Unmarshal([]byte(k.value), &value) == nil && value.Since != "" {
			at, _ := time.Parse(time.RFC3339Nano, value.Since)
			p.since = at.UnixMicro()
			if value.Owner != nil {
				p.owner = *value.Owner
			}
		}
		list = append(list, p)
	}
	return list
}

func (m *model) locks(tenant string, l *Locks) {
	for i := range l.Ops {
		m.lock(tenant, &l.Ops[i])
	}
}

func (m *model) lock(tenant string, op *LockOp) {
	r := &op.Result
	won := false
	switch op.Kind {
	case LockAcquire:
		won = m.acquire(tenant, op)
	case LockRenew, LockRelease:
		all := m.permits(tenant, op.Name, MaxLockLimit)
		i := slices.IndexFunc(all, func(p mPermit) bool { return p.slot == op.Slot })
		if i < 0 {
			break
		}
		p := all[i]
		exact := p.row.version == op.Token
		if op.Kind == LockRelease {
			if won = exact; won {
				delete(m.kv, p.key)
			}
			break
		}
		mine := op.Owner != "" && p.owner == op.Owner && op.Token < p.row.version
		if won = exact || mine; won {
			owner := op.Owner
			if owner == "" {
				owner = p.owner
			}
			m.lockRow(p.key, op, owner, p.since)
		}
	}
	left := m.permits(tenant, op.Name, MaxLockLimit)
	if op.Kind == LockGet {
		won = len(left) > 0
	}
	m.expect(fmt.Sprintf("verdict of %s", lockOpText(op)), r.Won, won)
	if op.Kind != LockGet && won {
		m.expect("holders beside a success", len(r.Holders), 0)
		return
	}
	got, want := "", ""
	for _, h := range r.Holders {
		got += fmt.Sprintln(h)
	}
	for _, p := range left {
		want += fmt.Sprintln(LockHolder{p.slot, p.owner, p.row.version, p.since, p.row.updated, p.row.expires})
	}
	m.expect("holders", got, want)
}

func (m *model) acquire(tenant string, op *LockOp) (won bool) {
	held := m.permits(tenant, op.Name, op.Limit)
	for _, p := range held {
		if op.Owner != "" && p.owner == op.Owner {
			m.expect("acquired again", fmt.Sprint(op.Result.Already, op.Result.Slot, op.Result.Token), fmt.Sprint(true, p.slot, p.row.version))
			return true
		}
	}
	for slot := range op.Limit {
		if slices.ContainsFunc(held, func(p mPermit) bool { return p.slot == slot }) {
			continue
		}
		m.expect("slot of a permit", op.Result.Slot, slot)
		m.expect("acquired again", op.Result.Already, false)
		m.lockRow(fmt.Sprintf("%s%s\x00%s#%d", tenant, LockNamespace, op.Name, slot), op, op.Owner, m.now)
		return true
	}
	return false
}

// lockRow takes over the row that a permit was given.
func (m *model) lockRow(key string, op *LockOp, owner string, since int64) {
	v := op.Result.Token
	if v <= m.highest[key] || m.versions[v] {
		m.fail("token %d of %q was used before, or is not above %d", v, key, m.highest[key])
	}
	m.versions[v], m.highest[key] = true, v
	m.expect("owner of a permit", op.Result.Owner, owner)
	text := []byte("null")
	if owner != "" {
		text, _ = json.Marshal(owner)
	}
	value := fmt.Sprintf(`{"owner":%s,"since":"%s"}`, text, time.UnixMicro(since).UTC().Format("2006-01-02T15:04:05.000000Z"))
	m.kv[key] = &mKV{value: value, version: v, updated: m.now, expires: m.now + op.TTL*1_000_000}
}

// lockCall makes a call on few locks, mostly with tokens that are or were right.
func (x *modelRun) lockCall() (any, string) {
	l := &Locks{}
	text := "locks"
	for n := 1 + x.pick(3); n > 0; n-- {
		op := LockOp{
			Kind: choose(x, LockAcquire, LockAcquire, LockRenew, LockRelease, LockGet), Name: choose(x, "l", "l", "m"),
			Owner: choose(x, "", "ann", "ben", `c"\ü`), TTL: int64(1 + x.pick(3)), Slot: x.pick(3), Limit: 1 + x.pick(3),
		}
		op.Token = 1 + int64(x.pick(20))
		if k := x.m.kv[fmt.Sprintf("%s%s\x00%s#%d", tenantA, LockNamespace, op.Name, op.Slot)]; k != nil && !x.oneIn(4) {
			op.Token = k.version - int64(x.pick(3))/2
		}
		l.Ops = append(l.Ops, op)
		text += " " + lockOpText(&op)
	}
	return l, text
}

func lockOpText(op *LockOp) string {
	return fmt.Sprintf("{%d %s#%d by %q token %d ttl %d limit %d}", op.Kind, op.Name, op.Slot, op.Owner, op.Token, op.TTL, op.Limit)
}

// Switches.

func (m *model) setSwitches(s *SetSwitches) {
	for _, f := range []struct {
		on  *bool
		off *bool
	}{{s.KV, &m.off.KVOff}, {s.Schedule, &m.off.ScheduleOff}, {s.Fire, &m.off.FireOff}} {
		if f.on != nil {
			*f.off = !*f.on
		}
	}
	m.expect("switches", s.Result, m.off)
}

// switches turns something on, or off for a while.
func (x *modelRun) switches() (any, string) {
	s := &SetSwitches{}
	for _, on := range []**bool{&s.KV, &s.Schedule, &s.Fire} {
		if x.oneIn(2) {
			v := !x.oneIn(3)
			*on = &v
		}
	}
	text := "switches"
	for _, on := range []*bool{s.KV, s.Schedule, s.Fire} {
		if on == nil {
			text += " -"
		} else {
			text += fmt.Sprint(" ", *on)
		}
	}
	return s, text
}
