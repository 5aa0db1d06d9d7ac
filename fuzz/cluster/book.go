package main

import (
	"cmp"
	"slices"

	"github.com/anishathalye/porcupine"

	"queen/fsm"
	"queen/index"
)

type rangeOf = index.Range

// book is what clients know for certain, and what they do not know.
type book struct {
	w        *world
	messages map[string]*message // by transactionId
	doubtful []*message
	leases   map[uint64]int64 // by partition: until when, in real time, it is nobody else's
	done     map[string]int64 // when its completion was answered, by transactionId
	counters map[string]*counter
	lastRead map[string]readValue
	history  map[string][]porcupine.Operation
	clientNo int
}

type message struct {
	txn, queue, partition, payload string
	known                          bool // it is stored, at part and offset
	answered                       bool // to a push
	maybe                          bool
	refused                        bool // it must not be there
	step                           bool
	part, offset                   uint64
}

type counter struct{ certain, possible int }

type readValue struct {
	value   string
	version int64
}

func newBook(w *world) *book {
	return &book{
		w: w, messages: map[string]*message{}, leases: map[uint64]int64{}, done: map[string]int64{}, counters: map[string]*counter{},
		lastRead: map[string]readValue{}, history: map[string][]porcupine.Operation{},
	}
}

// pushed takes the answer to one item.
func (b *book) pushed(m *message, it *fsm.PushItem) {
	if it.Status != fsm.Queued && it.Status != fsm.Duplicate {
		b.w.fail("a push of %s is answered with status %d", m.txn, it.Status)
	}
	if it.Status == fsm.Duplicate && !m.known && !m.maybe {
		b.w.fail("the first push of %s is answered as a duplicate", m.txn)
	}
	if it.Status == fsm.Queued && m.answered {
		b.w.fail("%s is stored a second time, at %d/%d after %d/%d", m.txn, it.PartitionID, it.Offset, m.part, m.offset)
	}
	if m.known && (m.part != it.PartitionID || m.offset != it.Offset) {
		b.w.fail("%s is at %d/%d, and was at %d/%d", m.txn, it.PartitionID, it.Offset, m.part, m.offset)
	}
	m.known, m.answered, m.part, m.offset = true, true, it.PartitionID, it.Offset
	b.doubtful = slices.DeleteFunc(b.doubtful, func(o *message) bool { return o == m })
}

func (b *book) doubt(msgs []*message) {
	for _, m := range msgs {
		m.maybe = true
		if !m.known && !slices.Contains(b.doubtful, m) {
			b.doubtful = append(b.doubtful, m)
		}
	}
}

// claimed takes a claim that is answered now and may be used until then: in real
// time no other one may be live. One that was over before it was answered, by a
// leader that was deposed meanwhile, is no claim.
func (b *book) claimed(cl *fsm.Claim, until int64) {
	now := b.w.now
	if until <= now {
		return
	}
	if was := b.leases[cl.PartitionID]; was > now {
		b.w.fail("partition %d is handed out %d to %d at %.3f s, and is leased until %.3f s", cl.PartitionID, cl.From, cl.To, float64(now)/1e9, float64(was)/1e9)
	}
	b.leases[cl.PartitionID] = until
}

// released: an ack may end the lease from now on.
func (b *book) released(cl *fsm.Claim) {
	b.leases[cl.PartitionID] = min(b.leases[cl.PartitionID], b.w.now)
}

// delivered takes one message of a batch of a pop that was sent at a time.
func (b *book) delivered(cl *fsm.Claim, sent int64, offset uint64, txn, payload string) {
	m := b.messages[txn]
	at, done := b.done[txn]
	switch {
	case m == nil || m.refused:
		b.w.fail("%s is delivered at %d/%d, and was never pushed", txn, cl.PartitionID, offset)
	case m.payload != payload:
		b.w.fail("%s comes with the payload %.20q, sent was %.20q", txn, payload, m.payload)
	case done && at < sent:
		b.w.fail("%s is delivered to a pop of %.3f s, its ack was answered at %.3f s", txn, float64(sent)/1e9, float64(at)/1e9)
	case m.known && (m.part != cl.PartitionID || m.offset != offset):
		b.w.fail("%s is delivered at %d/%d, and is at %d/%d", txn, cl.PartitionID, offset, m.part, m.offset)
	}
	m.known, m.part, m.offset = true, cl.PartitionID, offset
	b.doubtful = slices.DeleteFunc(b.doubtful, func(o *message) bool { return o == m })
}

func (b *book) settled(h *held) {
	for _, txn := range h.txns {
		if _, again := b.done[txn]; !again {
			b.done[txn] = b.w.now
		}
	}
}

func (b *book) counter(key string) *counter {
	c := b.counters[key]
	if c == nil {
		c = &counter{}
		b.counters[key] = c
	}
	return c
}

func (b *book) counted(key string, n int) {
	c := b.counter(key)
	c.certain, c.possible = c.certain+n, c.possible+n
}

func (b *book) maybeCounted(key string, n int) { b.counter(key).possible += n }

// Operations on a register.
const (
	readKey = iota
	writeKey
	swapKey
)

type registerInput struct {
	key           string
	kind          int
	value, expect string
}

type registerOutput struct {
	known, applied bool
	value          string
}

// register adds an operation to the history of its key. One whose outcome is not
// known may take effect at any time after its call.
func (b *book) register(in registerInput, out registerOutput, r *fsm.KVResult, began int64) {
	end := int64(1 << 62)
	if out.known {
		end = b.w.now
		if in.kind == readKey {
			b.lastRead[in.key] = readValue{out.value, r.Version}
		}
	} else if in.kind == readKey {
		return
	}
	b.clientNo++
	b.history[in.key] = append(b.history[in.key], porcupine.Operation{ClientId: b.clientNo, Input: in, Call: began, Output: out, Return: end})
}

var registerModel = porcupine.Model{
	Init: func() any { return "" },
	Step: func(state, input, output any) (bool, any) {
		have, in, out := state.(string), input.(registerInput), output.(registerOutput)
		switch in.kind {
		case readKey:
			return out.value == have, have
		case writeKey:
			return !out.known || out.applied, in.value
		}
		if in.expect != have {
			return !out.known || !out.applied, have
		}
		return !out.known || out.applied, in.value
	},
	Equal: func(a, b any) bool { return a == b },
}

// linearizable checks the histories of all keys.
func (b *book) linearizable() {
	for _, key := range sortedKeys(b.history) {
		if !porcupine.CheckOperations(registerModel, b.history[key]) {
			b.w.fail("the %d operations on key %s are not linearizable", len(b.history[key]), key)
		}
	}
}

func sortedKeys[K cmp.Ordered, V any](m map[K]V) []K {
	keys := make([]K, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
