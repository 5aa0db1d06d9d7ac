package fsm

import (
	"strings"
	"testing"

	"queen/index"
)

// Every kind of row decodes, and what is cut off or has bytes too many does not.
func TestDecodeRow(t *testing.T) {
	q := &queue{id: 3, tenant: strings.Repeat("t", 36), name: "orders", opts: DefaultOptions()}
	p := &partition{id: 5, q: q, name: "card-7", next: 9, start: 2}
	g := &group{id: 4, q: q, name: "chargers"}
	text := "meta"
	c := &cursor{p: p, g: g, committed: 7, lease: &lease{from: 8, end: 8, expires: 99, worker: "w"}, released: &releasedLease{completed: true}, metadata: &text}
	letter := &deadLetter{q: q, partitionID: 5, offset: 6, err: "bad", value: 11}
	k := &kvRow{key: kvKey(q.tenant, "ns", "key"), value: []byte(`{"a":1}`), version: 12}
	mark := &groupMark{g: g, paused: true, rule: &startRule{mode: SubscribeFrom, from: 7, partition: 6, moved: true}}
	tm := &timer{key: timerKey(q.tenant, "orders", "one"), value: 13, size: 20}
	job := &redriveJob{tenant: q.tenant, queueID: 3, queue: "orders", filter: letterFilter{contains: "smtp"}}
	rows := map[RowKind]struct {
		key, value []byte
		field      string
		want       any
	}{
		RowMeta:      {[]byte{rowMeta}, newState().encodeMeta(nil), "nextQueue", uint64(1)},
		RowQueue:     {queueKey(nil, q), q.encode(nil), "name", "orders"},
		RowPartition: {partitionKey(nil, p), p.encode(nil), "next", uint64(9)},
		RowGroup:     {groupKey(nil, g), g.encode(nil), "name", "chargers"},
		RowCursor:    {cursorKey(nil, c), c.encode(nil), "leaseWorker", "w"},
		RowSettled:   {append(rowKey(nil, rowSettled, 3, 5, 4), 0, 0, 0, 0, 0, 0, 0, 0, 1), nil, "chunk", uint64(1)},
		RowLetter:    {letterKey(nil, letter), letter.encode(nil), "value", uint64(11)},
		RowKV:        {append([]byte{rowKV}, k.key...), k.encode(nil), "key", "key"},
		RowSwitches:  {[]byte{rowSwitches}, []byte{switchKV | switchFire}, "timersFireOff", true},
		RowTimer:     {append([]byte{rowTimer}, tm.key...), tm.encode(nil), "timerKey", "one"},
		RowGroupMark: {mark.appendKey(nil), mark.encode(nil), "startFrom", int64(7)},
		RowRedrive:   {job.appendKey(nil), job.encode(nil), "errorContains", "smtp"},
	}
	for kind := range rowKindNames {
		_, ok := rows[kind]
		if !ok && (kind == RowOutcome || kind == RowStats) {
			continue // they have tests of their own
		}
		if !ok {
			t.Fatalf("no row of kind %s", kind)
		}
	}
	for kind, r := range rows {
		if kind == RowSettled {
			var set index.OffsetSet
			set.Add(65536, 65540)
			r.value = set.AppendRanges(nil)
		}
		got, err := DecodeRow(r.key, r.value)
		if err != nil || got.Kind != kind || got.Field(r.field) != r.want {
			t.Errorf("%s: %+v, %v", kind, got, err)
		}
		if parsed, ok := ParseRowKind(kind.String()); !ok || parsed != kind {
			t.Errorf("%s is parsed as %s", kind, parsed)
		}
		if kind == RowKV { // its value goes to the end
			continue
		}
		if _, err := DecodeRow(r.key, append(r.value, 0)); err == nil {
			t.Errorf("%s: a byte too many is taken", kind)
		}
		if _, err := DecodeRow(r.key, r.value[:len(r.value)-1]); err == nil {
			t.Errorf("%s: a row that is cut off is taken", kind)
		}
	}
	for _, key := range [][]byte{nil, {77}, {rowQueue, 1}, {rowKV, 'x'}, append(queueKey(nil, q), 0)} {
		if _, err := DecodeRow(key, nil); err == nil {
			t.Errorf("key %x is taken", key)
		}
	}
}
