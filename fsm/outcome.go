package fsm

import (
	"encoding/binary"
	"fmt"

	"queen/index"
	"queen/internal/entry"

	"github.com/tidwall/btree"
)

// Outcomes: the answers of calls that came with a key of their own, kept for a
// window of broker time, so that the same call sent again gets the first answer.
// The row of an outcome is in the entry of the call's effects: both are there
// after a crash, or none is.

// OutcomeRoute is the route that a key belongs to; a key means another call on
// another route. The numbers are stored in rows.
type OutcomeRoute uint8

// Routes with keys.
const (
	OutcomePush OutcomeRoute = iota + 1
	OutcomeAck
	OutcomeAckBatch
	OutcomeTransaction
	OutcomeKV
	OutcomeTimers
	OutcomeLocks
	OutcomeKVPut
	OutcomeKVDelete
)

var outcomeRoutes = [...]string{"", "push", "ack", "ack/batch", "transaction", "kv", "timers", "locks", "kv/put", "kv/delete"}

func (r OutcomeRoute) String() string {
	if int(r) < len(outcomeRoutes) && r > 0 {
		return outcomeRoutes[r]
	}
	return fmt.Sprintf("route-%d", uint8(r))
}

// ParseOutcomeRoute is the inverse of String.
func ParseOutcomeRoute(name string) (OutcomeRoute, bool) {
	for i, n := range outcomeRoutes {
		if i > 0 && n == name {
			return OutcomeRoute(i), true
		}
	}
	return 0, false
}

// Keyed makes the outcome of a call kept under a key.
type Keyed struct {
	Route OutcomeRoute
	Key   string
	Hash  [16]byte // of everything that makes the request what it is
	// Render makes the answer of the call from its results, once they are final;
	// up to the value of "next" when it was asked for. The planner calls it on the
	// loop, so it must be quick, and what it returns must stay until Done.
	Render func() (status int, body []byte)

	// Result. Kept: the call was carried out, Status and Body are what Render
	// gave. Repeat: it was carried out before, Outcome is what it was answered.
	// Reused: the key belongs to another request. None of them: refused, nothing
	// is kept.
	Kept, Repeat, Reused bool
	Status               int
	Body                 []byte
	Outcome              OutcomeInfo

	row     *outcome
	repeats []*Call // the same call again, while this one waits for its next batch
}

// OutcomeInfo is a kept answer.
type OutcomeInfo struct {
	Hash    [16]byte
	Status  int
	At      int64  // broker time of the commit, microseconds
	Body    []byte // nil: ContentID
	Content uint64 // id of the value that holds the body; 0: Body
	HasNext bool   // the body ends before the value of "next"
	Next    *NextBatch
}

// NextBatch is a batch that was claimed with the commit of a call.
type NextBatch struct {
	Queue, Group string
	LeaseID      [16]byte
	Conflates    bool // the group does
	Claims       []*Claim
}

type outcome struct {
	id      uint64 // also of the value with its answer
	name    string // tenant, route, key
	hash    [16]byte
	at      int64
	answer  []byte // nil: a value
	next    *NextBatch
	running *Call // the call, while it waits for its next batch
	status  uint16
	asked   bool // for a next batch
	dirty   bool
	dead    bool
}

// outcomes are the kept outcomes: in the order of their ids, which is that of
// their commits, and by name (derived).
type outcomes struct {
	order  btree.Map[uint64, *outcome]
	byName map[string]*outcome
	bytes  int64
	window int64 // microseconds
	gone   int64 // that made room for newer ones, since the start
	had    int64 // repeats that were answered, since the start
}

// What an outcome takes in memory beside its name and its answer, with the
// places in the look-ups, and what a claim of a next batch takes, about; a test
// measures it.
const (
	outcomeBytes = 230
	claimBytes   = 320
)

func (o *outcome) size() int64 {
	n := outcomeBytes + len(o.name) + len(o.answer)
	if o.next != nil {
		n += len(o.next.Queue) + len(o.next.Group) + claimBytes*len(o.next.Claims)
	}
	return int64(n)
}

func outcomeName(tenant string, route OutcomeRoute, key string) string {
	return tenant + string([]byte{byte(route)}) + key
}

func (o *outcome) info() OutcomeInfo {
	i := OutcomeInfo{Hash: o.hash, Status: int(o.status), At: o.at, Body: o.answer, HasNext: o.asked, Next: o.next}
	if o.answer == nil {
		i.Content = o.id
	}
	return i
}

// add puts an outcome into its places.
func (s *outcomes) add(o *outcome) {
	s.order.Set(o.id, o)
	s.index(o)
}

func (s *outcomes) index(o *outcome) {
	s.byName[o.name] = o
	s.bytes += o.size()
}

func (s *outcomes) drop(o *outcome) {
	o.dead = true
	s.order.Delete(o.id)
	if s.byName[o.name] == o {
		delete(s.byName, o.name)
	}
	s.bytes -= o.size()
}

// build makes what is derived of the rows.
func (s *outcomes) build() {
	s.byName, s.bytes = map[string]*outcome{}, 0
	s.order.Scan(func(_ uint64, o *outcome) bool {
		o.running = nil
		s.index(o)
		return true
	})
}

// find looks an outcome up that is in its window.
func (s *outcomes) find(now int64, tenant string, route OutcomeRoute, key string) *outcome {
	var buf [512]byte
	name := append(append(append(buf[:0], tenant...), byte(route)), key...)
	if o := s.byName[string(name)]; o != nil && now < o.at+s.window {
		return o
	}
	return nil
}

// Outcome gives what is kept of a call.
func (s *State) Outcome(tenant string, route OutcomeRoute, key string) (OutcomeInfo, bool) {
	if o := s.outcomes.find(max(s.now, s.time), tenant, route, key); o != nil {
		return o.info(), true
	}
	return OutcomeInfo{}, false
}

// OutcomeStats counts the kept outcomes.
type OutcomeStats struct {
	Kept    int64
	Bytes   int64 // in memory, about
	Evicted int64 // went before their time, to make room, while this node led
	Repeats int64 // answered from an outcome, while this node led
}

// OutcomeStats counts the kept outcomes.
func (m *Machine) OutcomeStats() OutcomeStats {
	s := &m.s.outcomes
	return OutcomeStats{Kept: int64(s.order.Len()), Bytes: s.bytes, Evicted: s.gone, Repeats: s.had}
}

// committer is a call body whose outcome can be kept: committed reports whether
// it was carried out, and not refused as a whole.
type committer interface{ committed() bool }

func (p *Push) committed() bool {
	for i := range p.Items {
		if p.Items[i].Status != Refused {
			return true
		}
	}
	return false
}

func (a *Ack) committed() bool {
	for i := range a.Items {
		if a.Items[i].Success {
			return true
		}
	}
	return false
}

func (t *Txn) committed() bool    { return t.Reason == "" && !t.DryRun }
func (kv *KV) committed() bool    { return kv.Failed < 0 && !kv.Disabled }
func (t *Timers) committed() bool { return !t.Disabled }

// planKeyed answers a call whose key is known. decided false: it is to be planned.
func (m *Machine) planKeyed(c *Call) (v verdict, decided bool) {
	k := c.Key
	if k.Kept {
		return 0, false // back from look-ups for its next batch
	}
	o := m.s.outcomes.find(m.now, c.Tenant, k.Route, k.Key)
	switch {
	case o == nil:
		return 0, false
	case o.hash != k.Hash:
		k.Reused = true
		return answered, true
	case o.running != nil:
		first := o.running.Key
		first.repeats = append(first.repeats, c)
		return parked, true
	}
	m.repeat(c, o)
	return answered, true
}

func (m *Machine) repeat(c *Call, o *outcome) {
	c.Key.Repeat, c.Key.Outcome = true, o.info()
	m.s.outcomes.had++
}

// keepOutcome keeps the answer of a call that was just carried out. Its row is
// emitted at the end of the cycle, when the claim of a next batch is known.
func (m *Machine) keepOutcome(c *Call, waits bool) {
	k := c.Key
	k.Kept = true
	k.Status, k.Body = k.Render()
	s := &m.s.outcomes
	name := outcomeName(c.Tenant, k.Route, k.Key)
	if old := s.byName[name]; old != nil { // its time is over
		s.drop(old)
		m.remove(old)
	}
	o := &outcome{id: m.s.meta.value, name: name, hash: k.Hash, at: m.now, status: uint16(k.Status), asked: nextOf(c) != nil}
	m.s.meta.value++
	if len(k.Body) <= inlineValue {
		o.answer = append([]byte{}, k.Body...)
	} else {
		// It rides in a log that the entry touches anyway.
		m.b.Value(o.id, 0, k.Body)
	}
	if k.row = o; waits {
		o.running = c
	}
	s.add(o)
	m.fresh = append(m.fresh, o)
}

// putOutcomes emits the rows of the cycle's outcomes.
func (m *Machine) putOutcomes() {
	for i, o := range m.fresh {
		if !o.dead {
			m.put(o)
		}
		m.fresh[i] = nil
	}
	m.fresh = m.fresh[:0]
}

// decided ends the wait of a call for its next batch: what it got belongs to its
// outcome, and those who sent it again meanwhile get the same.
func (m *Machine) decidedNext(c *Call) {
	if c.Key == nil || c.Key.row == nil {
		return
	}
	o, p := c.Key.row, nextOf(c)
	o.running = nil
	if p != nil && len(p.Claims) > 0 && !o.dead {
		s := &m.s.outcomes
		s.bytes -= o.size()
		o.next = &NextBatch{Queue: p.Queue, Group: p.Group, LeaseID: p.LeaseID, Conflates: p.Conflates, Claims: make([]*Claim, len(p.Claims))}
		for i, cl := range p.Claims {
			kept := *cl
			kept.Batch = nil // what is known of a lease's batch is not kept with the answer
			o.next.Claims[i] = &kept
		}
		s.bytes += o.size()
		m.fresh = append(m.fresh, o)
	}
	for _, r := range c.Key.repeats {
		m.repeat(r, o)
		m.done = append(m.done, r)
	}
	c.Key.repeats = nil
}

// Outcomes go in slices (F24), at most so often unless more are owed.
const (
	outcomeSlice = 1000
	outcomeEvery = 1_000_000
)

// sweepOutcomes removes the outcomes whose window is over, and the oldest while
// all together take too much memory. Being the oldest they are one range of keys.
func (m *Machine) sweepOutcomes() {
	s := &m.s.outcomes
	over := s.bytes > m.cfg.OutcomeBytes
	if s.order.Len() == 0 || !over && m.now < m.nextOutcomes {
		return
	}
	var lo, hi uint64
	m.nextOutcomes = m.now + outcomeEvery
	for n := 0; ; n++ {
		_, o, ok := s.order.Min()
		expired := ok && m.now >= o.at+s.window
		if !ok || !expired && s.bytes <= m.cfg.OutcomeBytes {
			break
		}
		if n == outcomeSlice {
			m.nextOutcomes = m.now
			break
		}
		if !expired {
			s.gone++
		}
		if lo == 0 {
			lo = o.id
		}
		hi = o.id
		s.drop(o)
	}
	if lo != 0 {
		m.removeRange(rowKey(nil, rowOutcome, lo), rowKey(nil, rowOutcome, hi+1))
	}
}

// outcomesWake is when the sweep has something to do; 0: nothing.
func (m *Machine) outcomesWake() int64 {
	s := &m.s.outcomes
	_, o, ok := s.order.Min()
	switch {
	case !ok:
		return 0
	case s.bytes > m.cfg.OutcomeBytes:
		return m.now + 1
	}
	return max(o.at+s.window, m.nextOutcomes, m.now+1)
}

func (o *outcome) appendKey(dst []byte) []byte { return rowKey(dst, rowOutcome, o.id) }
func (o *outcome) alive() bool                 { return !o.dead }
func (o *outcome) setDirty(v bool) bool        { return swap(&o.dirty, v) }

// Flags of an outcome's row.
const (
	outcomeInline = 1 // its answer stands in the row
	outcomeAsked  = 2 // the answer goes on with a next batch
	outcomeNext   = 4 // there is one
	outcomeNewest = 8 // of a group that conflates
	outcomeFlags  = 15
)

func (o *outcome) encode(dst []byte) []byte {
	dst = append(dst, flag(o.answer != nil)*outcomeInline|flag(o.asked)*outcomeAsked|flag(o.next != nil)*outcomeNext|flag(o.next != nil && o.next.Conflates)*outcomeNewest)
	dst = putString(dst, o.name)
	dst = append(dst, o.hash[:]...)
	dst = binary.AppendVarint(dst, o.at)
	dst = binary.AppendUvarint(dst, uint64(o.status))
	if o.answer != nil {
		dst = putString(dst, o.answer)
	}
	if n := o.next; n != nil {
		dst = putString(dst, n.Queue)
		dst = putString(dst, n.Group)
		dst = append(dst, n.LeaseID[:]...)
		dst = binary.AppendUvarint(dst, uint64(len(n.Claims)))
		for _, c := range n.Claims {
			dst = c.encode(dst)
		}
	}
	return dst
}

func (c *Claim) encode(dst []byte) []byte {
	dst = putString(dst, c.Partition)
	dst = appendUvarints(dst, c.QueueID, c.PartitionID, c.From, c.To, uint64(c.Count), uint64(c.Attempt))
	dst = binary.AppendVarint(dst, c.Expires)
	var set index.OffsetSet
	for _, r := range c.Settled {
		set.Add(r.Lo, r.Hi)
	}
	return putString(dst, set.AppendRanges(nil))
}

func (o *outcome) decode(b []byte) error {
	r := rowReader{b: b}
	flags := r.byte()
	if flags&^outcomeFlags != 0 {
		return fmt.Errorf("an outcome with flags %#x, this build reads %#x: it was written by a newer build, start that one", flags, outcomeFlags)
	}
	o.name, o.hash, o.at = r.string(), r.id(), r.varint()
	o.status, o.asked = uint16(r.uvarint()), flags&outcomeAsked != 0
	o.answer, o.next = nil, nil
	if flags&outcomeInline != 0 {
		o.answer = append([]byte{}, r.bytes()...)
	}
	if flags&outcomeNext != 0 {
		n := &NextBatch{Queue: r.string(), Group: r.string(), LeaseID: r.id(), Conflates: flags&outcomeNewest != 0}
		for count := r.uvarint(); count > 0 && r.err == nil; count-- {
			c := &Claim{Queue: n.Queue}
			if err := c.decode(&r); err != nil {
				return err
			}
			n.Claims = append(n.Claims, c)
		}
		o.next = n
	}
	if r.err == nil && len(o.name) < tenantLength+1 {
		return errShortRow
	}
	return r.end()
}

func (c *Claim) decode(r *rowReader) error {
	c.Partition = r.string()
	c.QueueID, c.PartitionID, c.From, c.To = r.uvarint(), r.uvarint(), r.uvarint(), r.uvarint()
	c.Count, c.Attempt, c.Expires = int(r.uvarint()), int(r.uvarint()), r.varint()
	enc := r.bytes()
	if r.err != nil {
		return r.err
	}
	var err error
	c.Settled, err = index.DecodeRanges(enc)
	return err
}

// loadOutcome takes a row; value nil: it is gone.
func (m *Machine) loadOutcome(id uint64, keyErr error, value []byte, changed bool) error {
	if keyErr != nil {
		return keyErr
	}
	s := &m.s.outcomes
	o, _ := s.order.Get(id)
	if value == nil {
		if o != nil {
			o.dead = true
			s.order.Delete(id)
		}
		return nil
	}
	if o == nil {
		o = &outcome{id: id}
		s.order.Set(id, o)
	}
	if changed {
		m.touch(o)
	}
	return o.decode(value)
}

// loadOutcomesGone removes the rows of a range of ids.
func (m *Machine) loadOutcomesGone(lo, hi []byte) error {
	first, end, err := outcomeRange(lo, hi)
	if err != nil {
		return err
	}
	s := &m.s.outcomes
	var gone []*outcome
	s.order.Ascend(first, func(id uint64, o *outcome) bool {
		if id < end {
			gone = append(gone, o)
		}
		return id < end
	})
	for _, o := range gone {
		o.dead = true
		s.order.Delete(o.id)
	}
	return nil
}

// outcomeRange reads a range of outcomes' keys.
func outcomeRange(lo, hi []byte) (first, end uint64, err error) {
	if len(lo) != 9 || len(hi) != 9 || lo[0] != rowOutcome || hi[0] != rowOutcome {
		return 0, 0, fmt.Errorf("delete range %x to %x", lo, hi)
	}
	return binary.BigEndian.Uint64(lo[1:]), binary.BigEndian.Uint64(hi[1:]), nil
}

// walk visits outcomes from w.id on; false: that was the last one.
func (s *outcomes) walk(w *rowWalk, max *int, fn func(rowObject)) (more bool) {
	s.order.Ascend(w.id, func(id uint64, o *outcome) bool {
		if more = *max == 0; more {
			return false
		}
		fn(o)
		*max--
		w.id = id + 1
		return true
	})
	return more
}

// inFlight bounds, in microseconds, how long the original of a duplicate is
// waited for that is in memory and not in the log yet.
const inFlight = 10_000_000

// needOriginals asks for the ids of the messages that a keyed push's duplicates
// are of: the answer, which is kept with the effects, names them.
func (m *Machine) needOriginals(c *Call, p *Push) (lookup bool) {
	for i := range p.Items {
		it := &p.Items[i]
		it.StoredID = [16]byte{}
		if it.Status != Duplicate || it.DupOf >= 0 {
			continue
		}
		n := c.needAt(need{kind: needID, queue: it.QueueID, partition: it.PartitionID, offset: it.Offset, txn: it.Txn, lenient: true})
		switch {
		case n == nil:
			lookup = true
		case n.found:
			it.StoredID = n.id
		case m.now-it.storedAt < inFlight:
			n.done, lookup = false, true // it was planned, and is not written yet
		}
	}
	return lookup
}

// resolveID finds the id of a message that may be gone but for its ids.
func (n *need) resolveID(l Lookups) error {
	err := l.ReadMessages(n.queue, n.partition, n.offset, n.offset, func(_ uint64, _ int64, m *entry.Message) error {
		n.id, n.found = m.ID, true
		return nil
	})
	if err != nil || n.found {
		return err
	}
	return l.FindTxn(n.queue, n.partition, n.txn, func(offset uint64, _ int64, id [16]byte) bool {
		if offset == n.offset {
			n.id, n.found = id, true
		}
		return offset > n.offset
	})
}
