package fsm

import (
	"slices"
	"sort"

	"queen/index"
	"queen/internal/entry"
)

// Stable texts of refused acks.
const (
	errLease        = "invalid or expired lease"
	errUnresolvable = "unresolvable: no such message in the batch or after the cursor"
	errNoConsumer   = "consumer not found"
	errNoPartition  = "unknown partition"
	errCommitted    = "already committed: the message is settled"
	errUnreadable   = "unavailable: the message cannot be read now"
)

// judgement is what one ack turned out to be, before anything is changed.
type judgement struct {
	c      *cursor
	offset uint64
	status AckStatus // what counts for the message: the strongest status of the call
	apply  bool      // in force; otherwise the item's result is final
	back   bool      // the message will come back (set when it is settled)
	// unreadable: the message is to be filed, but no look-up gives its payload.
	unreadable bool
	q          *queue // of the partition; nil: there is none
}

// ackPlan is the acks of one call, judged.
type ackPlan struct {
	items   []AckItem
	judged  []judgement
	cursors []*cursor // those with something to apply, in order of first mention
	// contents is the size in bytes of the messages that are to be filed.
	contents int
	// offsets are those that an item means already; only kept for calls that are
	// too long to be searched again for each item.
	offsets map[cursorOffset]struct{}
}

type cursorOffset struct {
	c      *cursor
	offset uint64
}

// longCall is the number of items from which a call's offsets are kept in a map.
const longCall = 64

// newAckPlan reuses the memory of the plan before: a plan lives for one call.
func (m *Machine) newAckPlan(items []AckItem) *ackPlan {
	p := &m.acks
	p.items = items
	p.judged = append(p.judged[:0], make([]judgement, len(items))...)
	p.cursors = p.cursors[:0]
	p.offsets = nil
	if len(items) >= longCall {
		p.offsets = make(map[cursorOffset]struct{}, len(items))
	}
	return p
}

func (m *Machine) planAck(c *Call, a *Ack) verdict {
	if a.Next.planned() {
		return m.planNext(c, a.Next)
	}
	p := m.newAckPlan(a.Items)
	lookup := false
	for i := range a.Items {
		need := m.judgeAck(c, p, i, false)
		lookup = lookup || need
	}
	if lookup || m.needContents(c, p) {
		return again
	}
	m.dropOversized(c, p)
	p.dropUnreadable()
	for _, cur := range p.cursors {
		m.settle(c, p, cur, false)
	}
	m.countAcks(p)
	if a.Next != nil && a.committed() {
		return m.planNext(c, a.Next)
	}
	return answered
}

// judgeAck decides one ack on the state before the call. strict is the rule of
// a transaction: a lease must be live whatever the message's state. The item's
// result is set unless it applies; lookup: ids must be read from disk first.
func (m *Machine) judgeAck(call *Call, p *ackPlan, i int, strict bool) (lookup bool) {
	it := &p.items[i]
	it.Success, it.Err, it.LeaseReleased, it.DLQ, it.Noop, it.Dropped = false, "", false, false, false, false
	it.Conflates, it.Conflated = false, 0
	part := m.s.findPartition(call.Tenant, it.PartitionID)
	if part == nil {
		it.Err = errNoPartition
		return false
	}
	p.judged[i].q = part.q
	g := part.q.byGroup[it.Group]
	var c *cursor
	if g != nil {
		c = part.cursor(g)
		if (c == nil || !c.row) && g.places(part) {
			if c, lookup = m.place(call, part, g); lookup {
				return true
			}
		}
	}
	if c == nil || !c.row && !g.places(part) {
		if it.Err = errNoConsumer; it.HasLease {
			it.Err = errLease // a lease of another group, which this one does not hold
		}
		return false
	}
	var held *lease
	if it.HasLease {
		if held = c.liveLease(m.now); held != nil && held.id != it.LeaseID {
			held = nil
		}
		if held == nil && strict {
			it.Err = errLease
			return false
		}
	}
	found, lookup := m.resolve(call, p, c, it, held)
	if lookup {
		return true
	}
	if found.unsettled && (held != nil || !it.HasLease) {
		it.Success = true
		p.judged[i] = judgement{c: c, offset: found.offset, status: it.Status, apply: true, q: part.q}
		p.note(c, found.offset)
		return false
	}
	if it.HasLease && held == nil && c.repeated(it, found) {
		it.Success, it.Noop, it.LeaseReleased = true, true, true
		it.DLQ = it.Status != Completed && found.settled && c.released.did(releasedFiled, found.settledAt)
		return false
	}
	switch {
	case found.settled && it.Status == Completed:
		it.Success, it.Noop = true, true
		if held != nil && held.end == found.settledAt && c.committed >= int64(held.end) {
			// Retention took the batch from under its lease. The ack at the batch's
			// end ends it all the same, or the partition would wait for its expiry.
			p.judged[i] = judgement{c: c, offset: found.settledAt, status: Completed, apply: true, q: part.q}
			p.note(c, found.settledAt)
		}
	case found.settled && held != nil && held.end >= found.settledAt && c.committed >= int64(held.end):
		// Retention took the whole batch: nothing is left to give back, and so the batch ends here, too.
		it.Success, it.Noop = true, true
		p.judged[i] = judgement{c: c, offset: held.end, status: Completed, apply: true}
		p.note(c, held.end)
	case found.settled:
		it.Err = errCommitted
	case it.HasLease && held == nil:
		it.Err = errLease
	default:
		it.Err = errUnresolvable
	}
	return false
}

// repeated recognises an ack that is sent again after it released its lease:
// the same status of the same message, whatever class the release was of.
func (c *cursor) repeated(it *AckItem, f resolution) bool {
	r := c.released
	if r == nil || r.id != it.LeaseID {
		return false
	}
	nacked := f.unsettled && r.did(releasedNacked, f.offset)
	filed := f.settled && r.did(releasedFiled, f.settledAt)
	switch it.Status {
	case Completed:
		return f.settled && r.completed
	case DeadLetter:
		return filed
	case Failed:
		return nacked || filed || f.settled && r.did(releasedDropped, f.settledAt)
	default:
		return nacked
	}
}

// did reports whether the release did what to the message at offset.
func (r *releasedLease) did(what int, offset uint64) bool {
	return r.acts != nil && r.acts[what].Contains(offset)
}

func (r *releasedLease) note(what int, offset uint64) {
	if r.acts == nil {
		r.acts = new([3]index.OffsetSet)
	}
	r.acts[what].Add(offset, offset)
}

func (p *ackPlan) note(c *cursor, offset uint64) {
	if p.offsets != nil {
		p.offsets[cursorOffset{c, offset}] = struct{}{}
	}
	for _, o := range p.cursors {
		if o == c {
			return
		}
	}
	p.cursors = append(p.cursors, c)
}

// taken reports whether an earlier ack of the call means the same offset.
func (p *ackPlan) taken(c *cursor, offset uint64, upTo *AckItem) bool {
	if p.offsets != nil {
		_, ok := p.offsets[cursorOffset{c, offset}]
		return ok
	}
	for i := range p.items {
		if &p.items[i] == upTo {
			return false
		}
		if j := &p.judged[i]; j.apply && j.c == c && j.offset == offset {
			return true
		}
	}
	return false
}

// lowest is the first offset from lo on that is neither settled nor meant by an
// earlier ack of the call.
func (p *ackPlan) lowest(c *cursor, lo uint64, upTo *AckItem) uint64 {
	for o := lo; ; o++ {
		if c.sets != nil {
			o = c.sets.settled.NextAbsent(o)
		}
		if !p.taken(c, o, upTo) {
			return o
		}
	}
}

// resolution is what a transactionId means at a cursor.
type resolution struct {
	offset    uint64
	unsettled bool // at offset, in reach: of the lease's batch, or after the cursor
	settled   bool // a message with this id is settled, the newest at settledAt
	settledAt uint64
}

// resolve finds the message that an ack names: the lowest unsettled one in
// reach, under a conflating group's lease the highest; an id that was stored
// again after its window can name several.
func (m *Machine) resolve(call *Call, p *ackPlan, c *cursor, it *AckItem, held *lease) (r resolution, lookup bool) {
	lo, hi := c.firstUnsettled(), c.p.next // reach: [lo, hi)
	if held != nil {
		hi = held.end + 1
		if o, ok := held.batch.find(it.TxnHash, it.Txn, lo); ok && !c.settled(o) && !p.taken(c, o, it) {
			return resolution{offset: o, unsettled: true}, false
		}
	}
	again := resolution{}
	// What a conflating group was handed is the newest that the id can mean.
	newest := held != nil && c.g.conflates
	consider := func(o uint64) {
		switch {
		case o >= c.p.next:
		case c.settled(o):
			r.settled, r.settledAt = true, max(r.settledAt, o)
		case o < lo || o >= hi: // unsettled, but out of reach
		case p.taken(c, o, it):
			again = resolution{offset: o, unsettled: true}
		case !r.unsettled || (o < r.offset) != newest:
			r.offset, r.unsettled = o, true
		}
	}
	m.dedup.Lookup(c.p.id, entry.MixHash(c.p.id, it.TxnHash), it.Txn, func(o uint64, _ int64) bool {
		consider(o)
		return true
	})
	// Memory may lack older ids. They do not matter when it has found the lowest
	// message that can be meant at all (an ack of a higher one would settle those
	// below), unless the lease is not live: then a settled one decides.
	since := m.dedup.Since()
	enough := r.unsettled && (newest || r.offset == p.lowest(c, lo, it)) && (r.settled || !it.HasLease || held != nil)
	if since > 0 && c.p.created <= since && !enough {
		n := call.need(needTxn, c.p, it.Txn, since)
		if n == nil {
			return r, true
		}
		for _, h := range n.hits {
			consider(h.offset)
		}
	}
	if !r.unsettled && again.unsettled {
		// The same message twice in one call: both mean it.
		r.offset, r.unsettled = again.offset, true
	}
	return r, false
}

// find looks a transactionId up in a leased batch. Acks mostly come in order,
// so the search starts at the first offset that is not settled.
func (b *Batch) find(hash uint64, txn []byte, from uint64) (offset uint64, ok bool) {
	if b == nil {
		return 0, false
	}
	items := b.items.Load()
	if items == nil {
		return 0, false
	}
	first := sort.Search(len(*items), func(i int) bool { return (*items)[i].Offset >= from })
	for i := first; i < len(*items); i++ {
		if it := &(*items)[i]; it.Hash == hash && it.Txn == string(txn) {
			return it.Offset, true
		}
	}
	return 0, false
}

// needContents asks for the messages that will be filed as dead letters: their
// payload goes into the same entry as the cursor's move.
func (m *Machine) needContents(call *Call, p *ackPlan) (lookup bool) {
	p.contents = 0
	for i := range p.items {
		j := &p.judged[i]
		if !j.apply || !m.files(j.c, j.status) {
			continue
		}
		n := call.needAt(need{kind: needMessage, queue: j.c.p.q.id, partition: j.c.p.id, offset: j.offset})
		if n == nil {
			lookup = true
		} else if !n.found {
			j.unreadable = true
		} else {
			p.contents += len(n.data)
		}
	}
	return lookup
}

// dropOversized refuses the acks that file more than an entry takes: those that
// come first are carried out, the others can be sent again.
func (m *Machine) dropOversized(call *Call, p *ackPlan) {
	for i, size := 0, 0; p.contents > m.cfg.EntryBytes && i < len(p.items); i++ {
		j := &p.judged[i]
		if !j.apply || j.unreadable || !m.files(j.c, j.status) {
			continue
		}
		size += len(call.needAt(need{kind: needMessage, queue: j.c.p.q.id, partition: j.c.p.id, offset: j.offset}).data)
		j.unreadable = size > m.cfg.EntryBytes
	}
}

// dropUnreadable refuses the acks that would file a message whose payload is
// not there to be read: nothing is ever filed without it.
func (p *ackPlan) dropUnreadable() {
	for i := range p.items {
		if j := &p.judged[i]; j.unreadable {
			j.apply = false
			p.items[i].Success, p.items[i].Err = false, errUnreadable
		}
	}
	p.cursors = slices.DeleteFunc(p.cursors, func(c *cursor) bool {
		return !slices.ContainsFunc(p.judged, func(j judgement) bool { return j.apply && j.c == c })
	})
}

func (p *ackPlan) unreadable() bool {
	return slices.ContainsFunc(p.judged, func(j judgement) bool { return j.unreadable })
}

// files reports whether an ack of this status files a dead letter.
func (m *Machine) files(c *cursor, s AckStatus) bool {
	return s == DeadLetter || s == Failed && c.spent() && c.p.q.opts.DeadLetters()
}

func (c *cursor) spent() bool { return int64(c.retries) >= c.p.q.opts.RetryLimit }

// rank orders the statuses of one message in one call: the strongest counts.
func (s AckStatus) rank() int {
	switch s {
	case DeadLetter:
		return 3
	case Failed:
		return 2
	case Retry:
		return 1
	}
	return 0
}

// settle applies the judged acks of one cursor: the rules of several acks of
// one (partition, group) in one call.
func (m *Machine) settle(call *Call, p *ackPlan, c *cursor, inTxn bool) {
	p.strengthen(c)
	var (
		spent      = c.spent()
		stop       = uint64(0)
		stops      = false
		top        = c.committed
		nacked     = false
		released   releasedLease
		charged    = false
		filed      = false
		delay      int64
		firstNack  = -1
		lastDone   = -1
		hadBackoff = false
	)
	for i := range p.items {
		j := &p.judged[i]
		if !j.apply || j.c != c {
			continue
		}
		it := &p.items[i]
		s := j.status
		j.back = j.comesBack(spent)
		if s != Completed {
			nacked = true
			if firstNack < 0 {
				firstNack = i
			}
		} else if lastDone < 0 || j.offset >= p.judged[lastDone].offset {
			lastDone = i
		}
		switch {
		case j.back:
			released.note(releasedNacked, j.offset)
			if !stops || j.offset < stop {
				stop, stops = j.offset, true
			}
			charged = charged || s == Failed
			if it.DelayMs > 0 {
				delay = max(delay, span(it.DelayMs, 1000))
			} else if s == Failed && c.p.q.opts.RetryBackoff {
				hadBackoff = true
			}
		case s == Completed:
			released.completed = true
			top = max(top, int64(j.offset))
		default:
			if s == Failed && !c.p.q.opts.DeadLetters() {
				released.note(releasedDropped, j.offset)
			} else {
				released.note(releasedFiled, j.offset)
			}
			filed = true
			top = max(top, int64(j.offset))
		}
	}
	retries, was := c.retries, c.committed
	if filed {
		c.retries = 0
	}
	if charged {
		c.retries = countUp(c.retries)
	}
	if hadBackoff {
		delay = max(delay, c.backoff())
	}
	m.fileLetters(call, p, c, retries)
	if c.g.conflates && !nacked && lastDone >= 0 {
		p.items[lastDone].Conflates, p.items[lastDone].Conflated = true, p.conflated(c, top)
	}
	if stops {
		m.settleAbove(p, c, stop)
		c.committed = max(c.committed, int64(stop)-1)
		c.dropSettled()
	} else {
		c.committed = top
		c.dropSettled()
		m.absorb(c)
	}
	if delay > 0 {
		c.delayUntil = m.now + delay
	}
	m.releaseAfter(p, c, nacked, &released, firstNack, lastDone)
	if inTxn {
		m.b.Touch(c.p.q.id)
	}
	m.countSettled(c, was)
	c.absolve()
	m.keep(c)
	m.refresh(c)
}

// strengthen gives all acks of one message the strongest of their statuses.
func (p *ackPlan) strengthen(c *cursor) {
	if len(p.items) < 2 {
		return
	}
	strongest := make(map[uint64]AckStatus, len(p.items))
	for i := range p.judged {
		if j := &p.judged[i]; j.apply && j.c == c && j.status.rank() > strongest[j.offset].rank() {
			strongest[j.offset] = j.status
		}
	}
	if len(strongest) == 0 {
		return // all of them are completed
	}
	for i := range p.judged {
		if j := &p.judged[i]; j.apply && j.c == c {
			j.status = strongest[j.offset]
		}
	}
}

// maxBackoff is the longest wait of retryBackoff: 1 hour.
const maxBackoff = int64(3600) * 1_000_000

// backoff is retryDelay doubled for each charged retry after the first.
func (c *cursor) backoff() int64 {
	d := span(c.p.q.opts.RetryDelay, 1000)
	for i := int32(1); i < c.retries && d < maxBackoff; i++ {
		d *= 2
	}
	return min(d, maxBackoff)
}

// settleAbove keeps what is settled above the message that comes back first:
// it is never delivered to the group again.
func (m *Machine) settleAbove(p *ackPlan, c *cursor, stop uint64) {
	for i := range p.items {
		j := &p.judged[i]
		if !j.apply || j.c != c || j.offset <= stop || j.back {
			continue
		}
		m.settleRange(c, 0, j.offset, j.offset)
		if j.status != Completed {
			m.settleRange(c, 1, j.offset, j.offset)
		}
	}
}

// settleRange adds offsets to one of a cursor's sets.
func (m *Machine) settleRange(c *cursor, set byte, lo, hi uint64) {
	if c.sets == nil {
		c.sets = &settledSets{}
	}
	if set == 0 {
		c.sets.settled.Add(lo, hi)
	} else {
		c.sets.other.Add(lo, hi)
	}
	e := append(m.b.Effects, effectSettle)
	e = appendUvarints(e, c.p.q.id, c.p.id, c.g.id)
	e = append(e, set)
	m.scratch = index.AppendRange(m.scratch[:0], lo, hi)
	m.b.Effects = putString(e, m.scratch)
}

// releaseAfter ends the lease when something of it was refused or dead
// lettered, or when its batch is done.
func (m *Machine) releaseAfter(p *ackPlan, c *cursor, nacked bool, released *releasedLease, firstNack, lastDone int) {
	l := c.lease
	done := l != nil && c.committed >= int64(l.end)
	if !nacked && !done {
		return
	}
	if done && !nacked {
		c.retries = 0
	}
	if l == nil {
		return
	}
	live := m.now < l.expires
	c.released = &releasedLease{id: l.id, completed: released.completed, acts: released.acts}
	m.clearLease(c)
	if !live {
		return
	}
	if nacked {
		p.items[firstNack].LeaseReleased = true
	} else if lastDone >= 0 {
		p.items[lastDone].LeaseReleased = true
	}
}

// comesBack reports whether the message is delivered again; spent: its cursor has
// no retries left.
func (j *judgement) comesBack(spent bool) bool {
	return j.status == Retry || j.status == Failed && !spent
}

// mark says in an ack's result whether its message is dropped or filed, and
// reports whether it is filed.
func (p *ackPlan) mark(i int, c *cursor) (files bool) {
	j, it := &p.judged[i], &p.items[i]
	if j.status == Completed || j.back || it.Status != j.status {
		return false
	}
	it.Dropped = it.Status == Failed && !c.p.q.opts.DeadLetters()
	it.DLQ = !it.Dropped
	return it.DLQ
}

// fileLetters files what is to be dead-lettered and marks what is dropped.
func (m *Machine) fileLetters(call *Call, p *ackPlan, c *cursor, retries int32) {
	var done map[uint64]bool
	for i := range p.items {
		j := &p.judged[i]
		it := &p.items[i]
		if !j.apply || j.c != c || !p.mark(i, c) || done[j.offset] {
			continue
		}
		if done == nil {
			done = map[uint64]bool{}
		}
		done[j.offset] = true
		reason := it.Error
		if reason == "" {
			reason = "Retries exhausted"
		}
		n := call.needAt(need{kind: needMessage, queue: c.p.q.id, partition: c.p.id, offset: j.offset})
		m.fileLetter(&deadLetter{
			q: c.p.q, partitionID: c.p.id, partition: c.p.name, offset: j.offset, group: c.g.name,
			err: reason, retries: int64(retries), failed: m.now,
		}, n.data)
	}
}

// inlineValue is the largest value that a row keeps itself; larger ones are
// value records that the row names (F20).
const inlineValue = 256

// fileLetter makes a dead letter of a message's encoded content.
func (m *Machine) fileLetter(l *deadLetter, content []byte) {
	l.id = m.letterID()
	if len(content) <= inlineValue {
		l.message = content
	} else {
		l.value = m.s.meta.value
		m.s.meta.value++
		m.b.Value(l.value, l.q.id, content)
	}
	m.s.addLetter(l)
	if p := m.s.partitions[l.partitionID]; p != nil {
		p.letters++
	}
	m.put(l)
	s := m.tally(l.q)
	s.cur.DeadLetters++
	s.up.cur.DeadLetters++
}

// letterID is a UUIDv7 of broker time whose random part is a counter: it is
// unique, and orders dead letters by the time they were filed.
func (m *Machine) letterID() (id [16]byte) {
	n := m.s.meta.letter
	m.s.meta.letter++
	ms := uint64(m.now / 1000)
	for i := range 6 {
		id[i] = byte(ms >> (40 - 8*i))
	}
	sub := uint64(m.now%1000) * 4
	id[6], id[7] = 0x70|byte(sub>>8), byte(sub)
	for i := range 8 {
		id[8+i] = byte(n >> (56 - 8*i))
	}
	id[8] = 0x80 | id[8]&0x3f
	return id
}
