package main

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"queen/fsm"
)

// kvModel is what the keys hold, one operation after the other.
type kvModel struct {
	rows map[string]kvRow
	next int64 // version of the next write
}

type kvRow struct {
	value            []byte
	version          int64
	expires, updated int64
}

func (k *kvModel) get(ns, key string, now int64) (kvRow, bool) {
	row, ok := k.rows[ns+"/"+key]
	if !ok || row.expires != 0 && now >= row.expires {
		return kvRow{}, false
	}
	return row, true
}

// judge says for each operation whether it applies, and which required one is
// lost; -1: none.
func (k *kvModel) judge(ops []fsm.KVOp, now int64) (applies []bool, failed int) {
	applies = make([]bool, len(ops))
	for i := range ops {
		op := &ops[i]
		if !op.Kind.Write() && op.Kind != fsm.KVCheck {
			continue
		}
		row, live := k.get(op.NS, op.Key, now)
		has, expect := op.HasExpect, op.Expect
		if op.Kind == fsm.KVPutIfAbsent {
			has, expect = true, 0
		}
		ok := !has || expect == 0 && !live || live && row.version == expect
		if op.Kind == fsm.KVDelete && !live {
			ok = false
		}
		if op.Kind == fsm.KVIncr && ok {
			_, ok = increment(op, row, live)
		}
		if applies[i] = ok; !ok && op.Required {
			return applies, i
		}
	}
	return applies, -1
}

// increment uses whole numbers only.
func increment(op *fsm.KVOp, row kvRow, live bool) (value []byte, ok bool) {
	sum := int64(op.Delta)
	if live {
		old, err := strconv.ParseInt(string(row.value), 10, 64)
		if err != nil {
			return nil, false
		}
		sum += old
	}
	if op.HasMax && sum > int64(op.Max) || op.HasMin && sum < int64(op.Min) {
		return nil, false
	}
	return strconv.AppendInt(nil, sum, 10), true
}

// apply makes the operations of a call at once and compares every result.
func (k *kvModel) apply(ops []fsm.KVOp, failed int, now int64) error {
	applies, want := k.judge(ops, now)
	if failed != want {
		return fmt.Errorf("operation %d was said to be lost, expected %d: %s", failed, want, k.show(ops, now))
	}
	if failed >= 0 {
		return nil
	}
	for i := range ops {
		op := &ops[i]
		switch {
		case op.Kind == fsm.KVCheck:
			if op.Result.Applied != applies[i] {
				return fmt.Errorf("check %d applied %v, expected %v: %s", i, op.Result.Applied, applies[i], k.show(ops, now))
			}
		case op.Kind.Write():
			if op.Result.Applied != applies[i] {
				return fmt.Errorf("operation %d applied %v (%s), expected %v: %s", i, op.Result.Applied, op.Result.Reason, applies[i], k.show(ops, now))
			}
			if !applies[i] {
				continue
			}
			if err := k.write(op, now); err != nil {
				return fmt.Errorf("operation %d: %w", i, err)
			}
		}
	}
	for i := range ops {
		if err := k.read(&ops[i], now); err != nil {
			return fmt.Errorf("operation %d: %w", i, err)
		}
	}
	return nil
}

func (k *kvModel) write(op *fsm.KVOp, now int64) error {
	id := op.NS + "/" + op.Key
	row, live := k.get(op.NS, op.Key, now)
	if op.Kind == fsm.KVDelete {
		delete(k.rows, id)
		return nil
	}
	next := kvRow{value: op.Value, version: k.next, updated: now}
	if op.TTL > 0 {
		next.expires = now + op.TTL*1_000_000
	}
	if op.Kind == fsm.KVIncr {
		next.value, _ = increment(op, row, live)
		if live {
			next.expires = row.expires
		}
	}
	k.next++
	k.rows[id] = next
	if op.Result.Version != next.version || !bytes.Equal(op.Result.Value, next.value) {
		return fmt.Errorf("%s wrote %s at version %d, expected %s at %d", id, op.Result.Value, op.Result.Version, next.value, next.version)
	}
	return nil
}

func (k *kvModel) read(op *fsm.KVOp, now int64) error {
	r := &op.Result
	switch op.Kind {
	case fsm.KVGet:
		row, live := k.get(op.NS, op.Key, now)
		got := kvRow{r.Value, r.Version, r.Expires, r.Updated}
		if r.Found != live || live && !got.same(row) {
			return fmt.Errorf("get %s/%s at %d gave %v %+v, expected %v %+v", op.NS, op.Key, now, r.Found, got, live, row)
		}
	case fsm.KVGetMany, fsm.KVGetPrefix:
		keys := slices.Clone(op.Keys)
		if op.Kind == fsm.KVGetPrefix {
			keys = k.keys(op.NS, op.Prefix)
		}
		var rows []fsm.KVRow
		for _, key := range keys {
			if row, live := k.get(op.NS, key, now); live {
				rows = append(rows, fsm.KVRow{Key: key, Value: row.value, Version: row.version, Expires: row.expires, Updated: row.updated})
			}
		}
		same := slices.EqualFunc(rows, r.Rows, func(a, b fsm.KVRow) bool {
			return a.Key == b.Key && kvRow{a.Value, a.Version, a.Expires, a.Updated}.same(kvRow{b.Value, b.Version, b.Expires, b.Updated})
		})
		if !same {
			return fmt.Errorf("read of %s/%v%s at %d gave %+v, expected %+v", op.NS, op.Keys, op.Prefix, now, r.Rows, rows)
		}
	}
	return nil
}

func (a kvRow) same(b kvRow) bool {
	return bytes.Equal(a.value, b.value) && a.version == b.version && a.expires == b.expires && a.updated == b.updated
}

func (k *kvModel) keys(ns, prefix string) (out []string) {
	for id := range k.rows {
		if key, ok := strings.CutPrefix(id, ns+"/"); ok && strings.HasPrefix(key, prefix) {
			out = append(out, key)
		}
	}
	slices.Sort(out)
	return out
}

func (k *kvModel) show(ops []fsm.KVOp, now int64) string {
	out := fmt.Sprintf("at %d", now)
	for i := range ops {
		op := &ops[i]
		row, live := k.get(op.NS, op.Key, now)
		out += fmt.Sprintf("; kind %d %s/%s expect %v %d on %v %s version %d expires %d", op.Kind, op.NS, op.Key, op.HasExpect, op.Expect, live, row.value, row.version, row.expires)
	}
	return out
}
