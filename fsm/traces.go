package fsm

import (
	"encoding/binary"
	"strconv"
	"strings"

	"github.com/cespare/xxhash/v2"

	"queen/internal/entry"
)

// Traces are events that applications attach to a message's address. They are
// messages themselves, of a queue that no request can name, so they have a log
// of their own, and appending, replication, retention and reclaim are those of
// every queue. Of all traces the state holds three partitions a tenant and one
// row a name; the rest is on disk.
//
// The queue of a tenant's traces is named by the tenant and belongs to
// traceTenant. Its partitions, and what stands in the place of a transactionId:
//
//	a  the traces; the address: partition id, "/", transactionId of the message
//	n  one message for each name of a trace; name, NUL, ordinal of the name's
//	   trace. Its payload is a uvarint: the trace's offset in a
//	p  the first time a day that a name meets an address; length of the name,
//	   ":", name, address, NUL, day. No payload
//
// A row of the key/value kind, under traceTenant with the tenant for a namespace
// and the name for a key, counts what a name has: see traceName. It expires with
// the newest trace.

// traceTenant owns the queues of traces. It is no UUID, so no request has it.
const traceTenant = "queen-traces------------------------"

const (
	tracePart     = "a"
	tracePartName = "n"
	tracePartPair = "p"
)

// Limits of traces.
const (
	// MaxTraceKey is the longest name, and address, in bytes.
	MaxTraceKey = 511
	// MaxTraces is how many retained traces one message can have.
	MaxTraces = 1000
	// MaxTraceNames is how many names one trace can have.
	MaxTraceNames = 64
)

const dayMicros = 86400 * 1_000_000

// Trace stores one event. Refused is set, and nothing stored, when the message
// has MaxTraces already.
type Trace struct {
	PartitionID, Txn string // the message's address; it need not exist
	Names            []string
	ID               [16]byte // minted by the edge
	Packed           []byte   // the event as entry.AppendMessage encodes it; TraceAddress is its transactionId

	Refused bool // result
}

// TraceAddress is the transactionId under which the traces of a message stand.
func TraceAddress(partitionID, txn string) []byte {
	return append(append([]byte(partitionID), '/'), txn...)
}

// traceName is a name's row: value of traceRowKey.
//
//	uvarint ordinal of the next trace, varint time of the newest one, and for each
//	day (UTC, since 1970) that may have retained traces: uvarint day, traces, and
//	messages that were traced
type traceName struct {
	next uint64
	last int64
	days []traceDay
}

type traceDay struct{ day, traces, messages uint64 }

func (n *traceName) encode() []byte {
	b := binary.AppendUvarint(nil, n.next)
	b = binary.AppendVarint(b, n.last)
	for _, d := range n.days {
		b = appendUvarints(b, d.day, d.traces, d.messages)
	}
	return b
}

func decodeTraceName(b []byte) (n traceName, err error) {
	r := rowReader{b: b}
	n.next, n.last = r.uvarint(), r.varint()
	for len(r.b) > 0 {
		n.days = append(n.days, traceDay{r.uvarint(), r.uvarint(), r.uvarint()})
	}
	return n, r.err
}

// retained sums up the days since a time.
func (n *traceName) retained(since int64) (traces, messages uint64) {
	for _, d := range n.days {
		if int64(d.day+1)*dayMicros > since {
			traces += d.traces
			messages += d.messages
		}
	}
	return traces, messages
}

// add counts one trace at now, and forgets the days before since.
func (n *traceName) add(now, since int64, newMessage bool) {
	for len(n.days) > 0 && int64(n.days[0].day+1)*dayMicros <= since {
		n.days = n.days[1:]
	}
	day := uint64(now / dayMicros)
	if k := len(n.days); k == 0 || n.days[k-1].day != day {
		n.days = append(n.days, traceDay{day: day})
	}
	d := &n.days[len(n.days)-1]
	d.traces++
	if newMessage {
		d.messages++
	}
	n.next++
	n.last = now
}

// traceRowKey is the key of a name's row. The tenant stands in the place of the
// namespace.
func traceRowKey(tenant, name string) string { return kvKey(traceTenant, tenant, name) }

func traceNameTxn(name string, ordinal uint64) []byte {
	return strconv.AppendUint(append([]byte(name), 0), ordinal, 10)
}

func tracePairTxn(name string, address []byte, day int64) []byte {
	b := append(strconv.AppendInt(nil, int64(len(name)), 10), ':')
	b = append(append(b, name...), address...)
	return strconv.AppendInt(append(b, 0), day, 10)
}

func traceItem(txn []byte, id [16]byte, payload []byte) PushItem {
	return PushItem{
		ID: id, Txn: txn, TxnHash: xxhash.Sum64(txn), DupOf: -1,
		Packed: entry.AppendMessage(nil, &entry.Message{ID: id, Txn: txn, Payload: payload}),
	}
}

func (m *Machine) planTrace(c *Call, t *Trace) verdict {
	t.Refused = false
	address := TraceAddress(t.PartitionID, t.Txn)
	item := PushItem{ID: t.ID, Txn: address, TxnHash: xxhash.Sum64(address), DupOf: -1, Packed: t.Packed}
	q := m.s.findQueue(traceTenant, c.Tenant)
	since := past(m.now, m.cfg.TraceRetention/1_000_000)
	pairs := make([]PushItem, len(t.Names))
	met := make([]bool, len(t.Names))
	for i, name := range t.Names {
		pairs[i] = traceItem(tracePairTxn(name, address, m.now/dayMicros), t.ID, nil)
	}
	if q != nil {
		n, lookup := m.countTraces(c, q.byName[tracePart], &item, since)
		t.Refused = n >= MaxTraces
		for i := range pairs {
			if p := q.byName[tracePartPair]; p != nil {
				hit, _, need := m.findDuplicate(c, p, &pairs[i], dayMicros)
				met[i] = hit
				lookup = lookup || need
			}
		}
		if lookup {
			return again
		}
	}
	if t.Refused {
		return answered
	}
	m.emitTrace(m.traceQueue(c.Tenant, q), t, &item, pairs, met, since)
	return answered
}

// countTraces counts the retained traces of a message, as far as MaxTraces.
func (m *Machine) countTraces(c *Call, p *partition, it *PushItem, since int64) (n int, lookup bool) {
	if p == nil {
		return 0, false
	}
	m.dedup.Lookup(p.id, entry.MixHash(p.id, it.TxnHash), it.Txn, func(o uint64, t int64) bool {
		if o >= p.start && t > since {
			n++
		}
		return n < MaxTraces
	})
	reach := m.dedup.Since()
	if n >= MaxTraces || since >= reach || p.created > reach {
		return n, false
	}
	found := c.need(needTxn, p, it.Txn, reach)
	if found == nil {
		return n, true
	}
	for _, h := range found.hits {
		if h.offset >= p.start && h.time > since && h.time <= reach {
			n++ // newer ones are in memory
		}
	}
	return n, false
}

// traceQueue is the queue of a tenant's traces, with its options as they are now.
func (m *Machine) traceQueue(tenant string, q *queue) *queue {
	opts := DefaultOptions()
	opts.RetentionEnabled, opts.RetentionSeconds = true, m.cfg.TraceRetention/1_000_000
	opts.DedupWindowSeconds = dayMicros / 1_000_000
	switch {
	case q == nil:
		return m.newQueue(traceTenant, tenant, opts)
	case q.opts != opts:
		q.opts = opts
		m.put(q)
	}
	return q
}

func (m *Machine) emitTrace(q *queue, t *Trace, item *PushItem, pairs []PushItem, met []bool, since int64) {
	p := m.pushPartition(q, tracePart)
	offset := p.next
	m.appendItems(p, []PushItem{*item})
	if len(t.Names) == 0 {
		return
	}
	var names, first []PushItem
	ref := binary.AppendUvarint(nil, offset)
	for i, name := range t.Names {
		key := traceRowKey(q.name, name)
		row, _ := m.s.kv.Get(key)
		var n traceName
		if row.live(m.now) {
			n, _ = decodeTraceName(row.value) // written by emitTrace
		}
		names = append(names, traceItem(traceNameTxn(name, n.next), t.ID, ref))
		n.add(m.now, since, !met[i])
		if !met[i] {
			first = append(first, pairs[i])
		}
		m.setTraceName(row, key, &n)
	}
	m.appendItems(m.pushPartition(q, tracePartName), names)
	if len(first) > 0 {
		m.appendItems(m.pushPartition(q, tracePartPair), first)
	}
}

func (m *Machine) setTraceName(row *kvRow, key string, n *traceName) {
	if row == nil {
		row = &kvRow{key: key, heapIdx: -1}
		m.s.kv.Set(key, row)
		m.s.countKey(key, 1)
	}
	row.value, row.updated = n.encode(), m.now
	row.version = m.s.meta.kvVersion
	m.s.meta.kvVersion++
	m.setExpiry(row, m.now+m.cfg.TraceRetention)
	m.put(row)
}

// appendItems appends items that nothing can refuse any more.
func (m *Machine) appendItems(p *partition, items []PushItem) {
	messages := m.messages[:0]
	for i := range items {
		messages = append(messages, items[i].Packed)
		m.remember(p, &items[i], p.next+uint64(i))
	}
	m.append(p, messages)
	clear(messages)
	m.messages = messages[:0]
}

// FindTraces tells where traces are. What memory knows is in Known; the rest is
// found in sealed files, by the Keys that are nil in Known or, of a message's
// address, besides.
type FindTraces struct {
	// Of a message:
	PartitionID, Txn string
	// Of a name, newest first:
	Name          string
	Offset, Limit int

	// Result. Queue 0: there are none.
	Queue      uint64
	Partition  uint64 // where Keys stand
	Events     uint64 // the partition of the traces themselves
	Start      uint64 // the first retained offset of Partition
	EventStart uint64 // the first retained offset of Events
	Total      uint64 // of a name: its retained traces, counted by whole days
	Keys       [][]byte
	Known      [][]uint64 // offsets that memory knows of each key, newest first
}

func (m *Machine) planFindTraces(tenant string, f *FindTraces) verdict {
	q := m.s.findQueue(traceTenant, tenant)
	if q == nil {
		return answered
	}
	events := q.byName[tracePart]
	p := events
	if f.Name != "" {
		p = q.byName[tracePartName]
	}
	if p == nil || events == nil {
		return answered
	}
	f.Queue, f.Partition, f.Events, f.Start, f.EventStart = q.id, p.id, events.id, p.start, events.start
	f.Keys = [][]byte{TraceAddress(f.PartitionID, f.Txn)}
	if f.Name != "" {
		f.Keys = nil
		row, _ := m.s.kv.Get(traceRowKey(tenant, f.Name))
		if !row.live(m.now) {
			return answered
		}
		n, _ := decodeTraceName(row.value) // written by emitTrace
		f.Total, _ = n.retained(past(m.now, m.cfg.TraceRetention/1_000_000))
		for i := uint64(f.Offset); i < n.next && len(f.Keys) < f.Limit; i++ {
			f.Keys = append(f.Keys, traceNameTxn(f.Name, n.next-1-i))
		}
	}
	f.Known = make([][]uint64, len(f.Keys))
	for i, key := range f.Keys {
		m.dedup.Lookup(p.id, entry.MixHash(p.id, xxhash.Sum64(key)), key, func(o uint64, _ int64) bool {
			f.Known[i] = append(f.Known[i], o)
			return len(f.Known[i]) < MaxTraces
		})
	}
	return answered
}

// TraceNameInfo is what a name of traces has.
type TraceNameInfo struct {
	Name             string
	Traces, Messages uint64 // retained, counted by whole days; a message counts once a day
	Last             int64  // microseconds
}

// TraceNames visits the names behind after in byte order, up to limit of them.
func (s *State) TraceNames(tenant, after string, limit int, visit func(TraceNameInfo)) (last string, more bool) {
	q := s.findQueue(traceTenant, tenant)
	if q == nil {
		return after, false
	}
	since := past(s.now, q.opts.RetentionSeconds)
	prefix := traceRowKey(tenant, "")
	last = after
	s.kv.Ascend(prefix+after, func(key string, row *kvRow) bool {
		name, in := strings.CutPrefix(key, prefix)
		if !in || limit == 0 {
			more = in
			return false
		}
		if name == after && after != "" {
			return true
		}
		limit--
		last = name
		if !row.live(s.now) {
			return true
		}
		n, _ := decodeTraceName(row.value) // written by emitTrace
		info := TraceNameInfo{Name: name, Last: n.last}
		info.Traces, info.Messages = n.retained(since)
		visit(info)
		return true
	})
	return last, more
}

// Traces is how many traces are retained, of all tenants.
func (s *State) Traces() (n uint64) {
	s.queueOrder.Ascend(traceTenant, func(_ string, q *queue) bool {
		if q.tenant != traceTenant {
			return false
		}
		if p := q.byName[tracePart]; p != nil {
			n += p.next - p.start
		}
		return true
	})
	return n
}
