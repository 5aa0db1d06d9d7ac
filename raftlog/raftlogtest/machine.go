// Package raftlogtest is a small state machine for tests of the log: it
// appends messages, keeps keys and values, and says what it has seen. It obeys
// the rules that the real one obeys (absolute effects, rows, fuzzy capture),
// and nothing else.
package raftlogtest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"queen/internal/entry"
	"queen/raftlog"
)

// Push appends one message to a partition of each named queue; the partition's
// id is the queue's. Touch lists queues whose logs get a copy without one.
type Push struct {
	Queues  []uint64
	Touch   []uint64
	Payload []byte
	Txn     string // transactionId; empty: minted from the entry's time
	Key     string // also put this key, to the payload's length, when not empty
	Value   []byte // kept as a value record of the first queue (or queue 0), when not nil
	Done    func(offsets []uint64, err error)
}

// Put sets a key.
type Put struct {
	Key, Value string
	Done       func(err error)
}

// Get reads a key; it has no effects.
type Get struct {
	Key  string
	Done func(value string, ok bool, err error)
}

// Machine implements raftlog.Machine. It belongs to the loop; look at it with
// Group.Do or after Stop.
type Machine struct {
	Rows map[string]string // the state: every row by its key

	Leading   bool
	LeadTerm  uint64
	Leads     int
	Plans     int
	PlanNows  []int64
	Applied   []uint64 // indexes given to Apply
	Memory    []string // transactionIds seen by Remember and Apply and Plan
	ReadyAt   int      // number of Ready calls
	Since     int64    // of Ready
	Sealed    int64    // newest SealedThrough
	Captures  int
	LoadedKey int // rows loaded

	// Refuse makes Plan return an error answer for every call.
	WakeAt   int64
	SealWant int64

	time      int64
	dirty     map[string]bool
	ranges    [][2]string
	capture   []string
	captured  []string
	capRanges [][2]string
	lastFull  bool
	b         entry.Builder
}

var _ raftlog.Machine = (*Machine)(nil)

// New returns an empty machine.
func New() *Machine {
	return &Machine{Rows: make(map[string]string), dirty: make(map[string]bool)}
}

// Lead implements raftlog.Machine.
func (m *Machine) Lead(term uint64) { m.Leading, m.LeadTerm, m.Leads = true, term, m.Leads+1 }

// Follow implements raftlog.Machine.
func (m *Machine) Follow() { m.Leading = false }

func (m *Machine) set(key, value string) {
	m.Rows[key] = value
	m.dirty[key] = true
}

func partKey(queue uint64) string { return fmt.Sprintf("p/%d", queue) }

func (m *Machine) next(queue uint64) uint64 {
	v, ok := m.Rows[partKey(queue)]
	if !ok {
		return 0
	}
	return binary.LittleEndian.Uint64([]byte(v))
}

func u64(v uint64) string { return string(binary.LittleEndian.AppendUint64(nil, v)) }

// Plan implements raftlog.Machine.
func (m *Machine) Plan(now int64, calls []any) raftlog.Plan {
	m.Plans++
	m.PlanNows = append(m.PlanNows, now)
	m.b.Reset()
	var answers []func(error)
	for _, call := range calls {
		switch c := call.(type) {
		case *Push:
			answers = append(answers, m.push(now, c))
		case *Put:
			m.effect("k/"+c.Key, c.Value)
			answers = append(answers, c.Done)
		case *Get:
			v, ok := m.Rows["k/"+c.Key]
			answers = append(answers, func(err error) { c.Done(v, ok, err) })
		case func():
			c()
		default:
			panic(fmt.Sprintf("call %T", call))
		}
	}
	p := raftlog.Plan{Wake: m.WakeAt, SealThrough: m.SealWant}
	m.WakeAt, m.SealWant = 0, 0
	if len(answers) > 0 {
		p.Answer = func(err error) {
			for _, a := range answers {
				if a != nil {
					a(err)
				}
			}
		}
	}
	if !m.b.Empty() {
		p.Data = m.b.Encode(now)
		m.time = now
		m.set("t", u64(uint64(now)))
	}
	return p
}

func (m *Machine) effect(key, value string) {
	m.set(key, value)
	m.b.Effects = binary.AppendUvarint(m.b.Effects, uint64(len(key)))
	m.b.Effects = append(m.b.Effects, key...)
	m.b.Effects = binary.AppendUvarint(m.b.Effects, uint64(len(value)))
	m.b.Effects = append(m.b.Effects, value...)
}

func (m *Machine) push(now int64, c *Push) func(error) {
	var offsets []uint64
	for _, q := range c.Queues {
		at := m.next(q)
		offsets = append(offsets, at)
		msg := entry.Message{Txn: []byte(c.Txn), Payload: c.Payload}
		binary.LittleEndian.PutUint64(msg.ID[:], uint64(now))
		binary.LittleEndian.PutUint64(msg.ID[8:], q)
		msg.Minted = c.Txn == ""
		m.b.Append(q, q, at, now, 1, entry.AppendMessage(nil, &msg))
		m.set(partKey(q), u64(at+1))
		m.Memory = append(m.Memory, c.Txn)
	}
	for _, q := range c.Touch {
		m.b.Touch(q)
	}
	if c.Value != nil {
		q := uint64(0)
		if len(c.Queues) > 0 {
			q = c.Queues[0]
		}
		m.b.Value(uint64(now), q, c.Value)
	}
	if c.Key != "" || len(c.Queues) == 0 {
		m.effect("k/"+c.Key, u64(uint64(len(c.Payload))))
	}
	return func(err error) {
		if c.Done != nil {
			c.Done(offsets, err)
		}
	}
}

// Apply implements raftlog.Machine.
func (m *Machine) Apply(index, _ uint64, data []byte) error {
	e, err := entry.Parse(data)
	if err != nil {
		return err
	}
	m.Applied = append(m.Applied, index)
	for i := range e.Appends {
		a := &e.Appends[i]
		m.set(partKey(a.Queue), u64(a.First+uint64(a.Count)))
		if err := m.Remember(*a); err != nil {
			return err
		}
	}
	b := e.Effects
	for len(b) > 0 {
		var kv [2]string
		for i := range kv {
			n, k := binary.Uvarint(b)
			if k <= 0 || n > uint64(len(b)-k) {
				return errors.New("effects are cut off")
			}
			kv[i], b = string(b[k:k+int(n)]), b[k+int(n):]
		}
		m.set(kv[0], kv[1])
	}
	m.time = e.Time
	m.set("t", u64(uint64(e.Time)))
	return nil
}

// Remember implements raftlog.Machine.
func (m *Machine) Remember(a entry.Append) error {
	rest := a.Messages
	for range a.Count {
		msg, r, err := entry.NextMessage(rest)
		if err != nil {
			return err
		}
		rest = r
		m.Memory = append(m.Memory, string(msg.Txn))
	}
	return nil
}

// SealedThrough implements raftlog.Machine.
func (m *Machine) SealedThrough(t int64) { m.Sealed = t }

// LoadRow implements raftlog.Machine.
func (m *Machine) LoadRow(key, value []byte) error {
	m.LoadedKey++
	if value == nil {
		delete(m.Rows, string(key))
		return nil
	}
	m.Rows[string(key)] = string(value)
	if string(key) == "t" {
		m.time = int64(binary.LittleEndian.Uint64(value))
	}
	return nil
}

// LoadDeleteRange implements raftlog.Machine.
func (m *Machine) LoadDeleteRange(lo, hi []byte) error {
	for k := range m.Rows {
		if k >= string(lo) && k < string(hi) {
			delete(m.Rows, k)
		}
	}
	return nil
}

// Ready implements raftlog.Machine.
func (m *Machine) Ready(dedupSince int64) error {
	m.ReadyAt, m.Since = m.ReadyAt+1, dedupSince
	return nil
}

// BeginCapture implements raftlog.Machine.
func (m *Machine) BeginCapture(full bool) {
	m.Captures++
	m.lastFull = full
	if full {
		m.capture = slices.Sorted(maps.Keys(m.Rows))
	} else {
		m.capture = slices.Sorted(maps.Keys(m.dirty))
	}
	m.captured = nil
	m.capRanges, m.ranges = m.ranges, nil
	m.dirty = make(map[string]bool)
}

// CaptureSome implements raftlog.Machine.
func (m *Machine) CaptureSome(n int, put func(key, value []byte), deleteRange func(lo, hi []byte)) bool {
	for _, r := range m.capRanges {
		deleteRange([]byte(r[0]), []byte(r[1]))
	}
	m.capRanges = nil
	for ; n > 0 && len(m.capture) > 0; n-- {
		k := m.capture[0]
		m.capture = m.capture[1:]
		m.captured = append(m.captured, k)
		if v, ok := m.Rows[k]; ok {
			put([]byte(k), []byte(v))
		} else {
			put([]byte(k), nil)
		}
	}
	return len(m.capture) == 0
}

// EndCapture implements raftlog.Machine.
func (m *Machine) EndCapture(ok bool) {
	if !ok {
		for _, k := range append(m.captured, m.capture...) {
			m.dirty[k] = true
		}
	}
	m.capture, m.captured = nil, nil
}

// Time implements raftlog.Machine.
func (m *Machine) Time() int64 { return m.time }

// Keys is the sorted "k/" rows, as "key=value" with values quoted.
func (m *Machine) Keys() string {
	var b strings.Builder
	for _, k := range slices.Sorted(maps.Keys(m.Rows)) {
		if name, ok := strings.CutPrefix(k, "k/"); ok {
			fmt.Fprintf(&b, "%s=%q ", name, m.Rows[k])
		}
	}
	return b.String()
}

// Next is the next offset of a queue's partition.
func (m *Machine) Next(queue uint64) uint64 { return m.next(queue) }
