package main

import (
	"cmp"
	"maps"
	"slices"

	"github.com/cespare/xxhash/v2"

	"queen/fsm"
	"queen/internal/entry"
)

// book is the history as it was planned: what every queue, cursor, key, timer
// and dead letter must be. Plans are entered in their order, once they are
// answered, or when a boot shows that they have survived the end of a process
// that could not answer any more. So at most once a part of a call is unknown:
// between the end of a process and the next boot.
type book struct {
	w     *world
	plans []*plan // not entered yet, oldest first
	now   *plan   // whose answers are being given
	// silent: the answers of a dead process are being looked through; nobody gets them.
	silent bool
	clean  bool // the last process was stopped, and nothing was in flight

	time   int64 // of the newest entry in the book
	digest uint64

	msgs    map[[16]byte]*message
	parts   map[uint64]*part
	names   map[string]uint64 // queue ids by name, as far as known
	gone    map[uint64]bool   // queues that were deleted
	cursors map[cursorKey]*cursor
	leases  map[[16]byte][]*cursor
	kv      kvModel
	timers  map[string]*timer // pending, by queue and key
	letters map[letterKey]int // present

	outcomes map[string]firstAnswer // by key
	window   int64                  // for which they are kept, microseconds
}

// message is one message that a client has made.
type message struct {
	cmd              *command // the call that brings it; nil: a timer
	queue, partition string
	txn              string // transactionId; empty: minted
	hash             uint64 // of its payload
	part, offset     uint64 // where it is stored
	stored           bool
	timer            *timer
}

type part struct {
	queue     uint64
	qname     string
	name      string
	ids       [][16]byte
	last      int64 // time of the newest append
	firstTime int64
	txns      map[string][]stored // oldest first
}

type stored struct {
	offset uint64
	time   int64
}

type cursorKey struct {
	part  uint64
	group string
}

// cursor is where a group stands in a partition.
type cursor struct {
	key   cursorKey
	known bool
	back  bool            // a batch that was committed on delivery may have gone back
	floor int64           // everything at or below is settled
	above map[uint64]bool // settled above it
	lease *lease
}

type lease struct {
	id       [16]byte
	from, to uint64
	expires  int64
}

type letterKey struct {
	part, offset uint64
	group        string
	hash         uint64 // of the payload
}

type timer struct {
	queue, key string
	id         [16]byte
	due        int64
	pending    bool
	fired      bool
}

func newBook(w *world) *book {
	return &book{
		w: w, msgs: map[[16]byte]*message{}, parts: map[uint64]*part{}, names: map[string]uint64{}, gone: map[uint64]bool{},
		cursors: map[cursorKey]*cursor{}, leases: map[[16]byte][]*cursor{}, timers: map[string]*timer{}, letters: map[letterKey]int{},
		kv: kvModel{rows: map[string]kvRow{}, next: 1}, outcomes: map[string]firstAnswer{}, window: w.set.planner.OutcomeWindow,
	}
}

// release gives the answers of a plan: the calls that it decided enter the plan
// in the order in which they were judged.
func (b *book) release(pl *plan, err error) {
	b.now = pl
	if pl.answer != nil {
		pl.answer(err)
	}
	b.now = nil
	pl.done = true
}

// settle enters what has been answered, in the order of planning.
func (b *book) settle() {
	for len(b.plans) > 0 && b.plans[0].done {
		b.enter(b.plans[0])
		b.plans = b.plans[1:]
	}
}

// booted compares a process that has just started with the book, after entering
// what has survived of the plans that nobody was answered.
func (b *book) booted(n *node) {
	at := n.machine.Time()
	b.silent = true
	survived := b.time
	for _, pl := range b.plans {
		switch {
		case pl.done && pl.data && pl.time > at:
			b.w.fail("the entry of %d was answered; the boot ends at %d: it is lost", pl.time, at)
		case pl.done:
		case pl.data && pl.time <= at:
			b.release(pl, nil)
		default:
			pl.cmds = nil // nothing of it is there, or it had no effects
			pl.data, pl.appends, pl.done = false, nil, true
		}
	}
	b.silent = false
	if b.time > at {
		b.w.fail("the entry of %d was answered; the boot ends at %d: it is lost", b.time, at)
	}
	b.settle()
	if b.time != at {
		b.w.fail("the boot ends with an entry of %d, which was never planned; the newest planned one that survived is of %d", at, b.time)
	}
	if d := n.machine.Digest(); b.digest != 0 && d != b.digest {
		b.w.fail("the boot makes a state of digest %016x of the entries up to %d; it was %016x when they were planned", d, at, b.digest)
	}
	if b.clean && b.time != survived {
		b.w.fail("after a clean stop at %d the boot ends at %d", survived, b.time)
	}
	if b.digest != 0 {
		b.w.totals.Digests++
	}
	b.clean = false
	b.audit(n)
}

// stopped is called when a stop has nothing left to do.
func (b *book) stopped(n *node) {
	for _, pl := range b.plans {
		if pl.data {
			b.w.fail("the stop is over, and the entry of %d is unanswered", pl.time)
		}
	}
	if d := n.machine.Digest(); b.digest != 0 && d != b.digest {
		b.w.fail("the stopped state has digest %016x, that of the newest entry (%d) was %016x", d, b.time, b.digest)
	}
}

// enter takes a plan into the book.
func (b *book) enter(pl *plan) {
	if pl.data {
		b.time, b.digest = pl.time, pl.digest
	}
	// A timer that fires is one of before this cycle, or one that the cycle has
	// scheduled: the calls in between tell.
	var firing []*timer
	for i := range pl.appends {
		firing = append(firing, b.append(&pl.appends[i], pl)...)
	}
	firing = slices.DeleteFunc(firing, func(t *timer) bool {
		if !t.pending {
			return false
		}
		b.fire(t, pl.time)
		return true
	})
	for _, c := range pl.cmds {
		b.check(c, pl)
	}
	for _, t := range firing {
		b.fire(t, pl.time)
	}
}

func (b *book) fire(t *timer, now int64) {
	switch {
	case t.fired:
		b.w.fail("timer %s/%s fires a second time", t.queue, t.key)
	case !t.pending:
		b.w.fail("timer %s/%s fires, and it was cancelled, replaced or never scheduled", t.queue, t.key)
	case now < t.due:
		b.w.fail("timer %s/%s fires at %d, before its time %d", t.queue, t.key, now, t.due)
	}
	t.fired, t.pending = true, false
	delete(b.timers, t.queue+"/"+t.key)
}

// append enters the messages of one append, and returns those of timers.
func (b *book) append(a *entry.Append, pl *plan) (firing []*timer) {
	p := b.parts[a.Partition]
	if p == nil {
		p = &part{queue: a.Queue, txns: map[string][]stored{}, firstTime: pl.time}
		b.parts[a.Partition] = p
	}
	if a.First != uint64(len(p.ids)) || a.Queue != p.queue || b.gone[a.Queue] || a.Time != pl.time {
		b.w.fail("an append at offset %d of partition %d (queue %d) at %d; the partition is of queue %d (deleted: %v) and has %d messages",
			a.First, a.Partition, a.Queue, a.Time, p.queue, b.gone[a.Queue], len(p.ids))
	}
	rest := a.Messages
	for range a.Count {
		em, after, err := entry.NextMessage(rest)
		if err != nil {
			b.w.fail("a planned message does not parse: %v", err)
		}
		rest = after
		m := b.msgs[em.ID]
		if m == nil {
			b.w.fail("a message %x that nobody has sent, in partition %d", em.ID, a.Partition)
		}
		if m.stored {
			b.w.fail("message %x is stored a second time: %d/%d and %d/%d", em.ID, m.part, m.offset, a.Partition, len(p.ids))
		}
		if m.cmd != nil && !slices.Contains(pl.cmds, m.cmd) {
			b.w.fail("message %x of call %d is stored by an entry that did not decide the call", em.ID, m.cmd.n)
		}
		if p.name == "" {
			p.qname, p.name = m.queue, m.partition
		}
		if m.queue != "" && (m.queue != p.qname || m.partition != p.name) {
			b.w.fail("message %x for %s/%s is stored in %s/%s", em.ID, m.queue, m.partition, p.qname, p.name)
		}
		m.stored, m.part, m.offset = true, a.Partition, uint64(len(p.ids))
		b.dedup(p, string(em.Txn), m, pl.time)
		if m.timer != nil {
			firing = append(firing, m.timer)
		}
		p.ids = append(p.ids, em.ID)
		p.last = pl.time
		b.w.totals.Messages++
	}
	b.names[p.qname] = a.Queue
	return firing
}

// dedup: a transactionId is stored once in its window.
func (b *book) dedup(p *part, txn string, m *message, now int64) {
	if txn == "" {
		return
	}
	if n := len(p.txns[txn]); n > 0 {
		if old := p.txns[txn][n-1]; now-old.time < dedupWindow*1_000_000 {
			b.w.fail("transactionId %q is stored twice in %s/%s: offset %d at %d and %d at %d", txn, p.qname, p.name, old.offset, old.time, m.offset, now)
		}
	}
	p.txns[txn] = append(p.txns[txn], stored{m.offset, now})
}

// check compares the answer of a call with the book, and enters what it did.
func (b *book) check(c *command, pl *plan) {
	if b.w.verbose != nil {
		b.w.logf("entered at %d: %s", pl.time, c)
	}
	if c.call.Key != nil && !b.keyed(c, pl.time) {
		return
	}
	switch body := c.call.Body.(type) {
	case *fsm.Push:
		b.checkPush(c, body, pl, true)
	case *fsm.Pop:
		for _, cl := range body.Claims {
			b.claim(c, body, cl, pl.time)
		}
	case *fsm.Ack:
		b.acks(c, body.Items, pl.time)
	case *fsm.Extend:
		b.extend(c, body, pl.time)
	case *fsm.HandBack:
		b.handBack(body)
	case *fsm.Txn:
		b.txn(c, body, pl)
	case *fsm.KV:
		if err := b.kv.apply(body.Ops, body.Failed, pl.time); err != nil {
			b.w.fail("call %d: %v", c.n, err)
		}
	case *fsm.Timers:
		b.timerOps(c, body.Ops, pl.time)
	case *fsm.Configure:
		b.names[body.Queue] = body.QueueID
	case *fsm.DeleteQueue:
		b.deleteQueue(c, body, pl)
	case *fsm.ReplayDeadLetter:
		b.replay(c, body)
	case *fsm.PurgeDeadLetters:
		b.purge(c, body)
	}
}

func (b *book) checkPush(c *command, p *fsm.Push, pl *plan, mayDuplicate bool) {
	for i := range p.Items {
		it := &p.Items[i]
		m := b.msgs[it.ID]
		switch it.Status {
		case fsm.Queued:
			if !m.stored || m.part != it.PartitionID || m.offset != it.Offset {
				b.w.fail("call %d: item %d was answered as stored at %d/%d; it is at %d/%d (stored: %v)", c.n, i, it.PartitionID, it.Offset, m.part, m.offset, m.stored)
			}
		case fsm.Duplicate:
			if m.stored {
				b.w.fail("call %d: item %d was answered as a duplicate, and is stored", c.n, i)
			}
			if !mayDuplicate && it.DupOf < 0 {
				b.w.fail("call %d: a transaction that committed has a duplicate", c.n)
			}
			if p := b.parts[it.PartitionID]; p == nil || it.Offset >= uint64(len(p.ids)) {
				b.w.fail("call %d: item %d is said to be a duplicate of %d/%d, which is not there", c.n, i, it.PartitionID, it.Offset)
			} else if o := b.msgs[p.ids[it.Offset]]; o.txn != m.txn || m.txn == "" {
				b.w.fail("call %d: item %d (transactionId %q) is said to be a duplicate of one with %q", c.n, i, m.txn, o.txn)
			}
		default:
			b.w.fail("call %d: item %d has status %d", c.n, i, it.Status)
		}
	}
}

// storedOf counts the stored messages of a call.
func (b *book) storedOf(p *fsm.Push) (n int) {
	for i := range p.Items {
		if b.msgs[p.Items[i].ID].stored {
			n++
		}
	}
	return n
}

func (b *book) txn(c *command, t *fsm.Txn, pl *plan) {
	if t.Reason != "" {
		if n := b.storedOf(&t.Push); n > 0 {
			b.w.fail("call %d was rolled back (%s), and %d of its messages are stored", c.n, t.Reason, n)
		}
		if t.Reason == fsm.ReasonKVPrecondition {
			if _, failed := b.kv.judge(t.KV, pl.time); failed != t.KVFailed {
				b.w.fail("call %d: gate %d is said to be lost, expected %d: %s", c.n, t.KVFailed, failed, b.kv.show(t.KV, pl.time))
			}
		}
		return
	}
	for i := range t.Acks {
		if !t.Acks[i].Success {
			b.w.fail("call %d committed with a refused ack: %s", c.n, t.Acks[i].Err)
		}
	}
	b.acks(c, t.Acks, pl.time)
	b.checkPush(c, &t.Push, pl, false)
	for i := range t.Positions {
		b.position(&t.Positions[i])
	}
	if err := b.kv.apply(t.KV, -1, pl.time); err != nil {
		b.w.fail("call %d: %v", c.n, err)
	}
	b.timerOps(c, t.Timers, pl.time)
}

func (b *book) cursor(part uint64, group string) *cursor {
	key := cursorKey{part, group}
	cur := b.cursors[key]
	if cur == nil {
		cur = &cursor{key: key, floor: -1, above: map[uint64]bool{}}
		b.cursors[key] = cur
	}
	return cur
}

// absorb moves the floor over what is settled above it.
func (c *cursor) absorb() {
	for o := range c.above {
		if int64(o) <= c.floor {
			delete(c.above, o)
		}
	}
	for c.above[uint64(c.floor+1)] {
		c.floor++
		delete(c.above, uint64(c.floor))
	}
}

func (c *cursor) settled(o uint64) bool { return int64(o) <= c.floor || c.above[o] }

func (b *book) claim(c *command, p *fsm.Pop, cl *fsm.Claim, now int64) {
	pt := b.parts[cl.PartitionID]
	if pt == nil || cl.To >= uint64(len(pt.ids)) || b.gone[cl.QueueID] {
		b.w.fail("call %d: a claim of %s/%s %d to %d, which is not there", c.n, cl.Queue, cl.Partition, cl.From, cl.To)
	}
	cur := b.cursor(cl.PartitionID, p.Group)
	if l := cur.lease; l != nil && now < l.expires {
		b.w.fail("call %d: a second live lease on %s/%s for %s: the first one ends at %d, it is %d", c.n, cl.Queue, cl.Partition, p.Group, l.expires, now)
	}
	if cur.back {
		cur.back, cur.floor = false, int64(cl.From)-1
	}
	if !cur.known && (p.Mode == fsm.SubscribeAll || p.Group == fsm.QueueMode) {
		cur.known = true // from the beginning
	}
	if !cur.known {
		cur.known, cur.floor = true, int64(cl.From)-1
	}
	cur.absorb()
	if int64(cl.From) != cur.floor+1 {
		b.w.fail("call %d: %s/%s for %s is delivered from %d on, and %d is the first that is not settled", c.n, cl.Queue, cl.Partition, p.Group, cl.From, cur.floor+1)
	}
	holes := map[uint64]bool{}
	for _, r := range cl.Settled {
		for o := r.Lo; o <= r.Hi; o++ {
			holes[o] = true
		}
	}
	for o := cl.From; o <= cl.To; o++ {
		if holes[o] != cur.settled(o) {
			b.w.fail("call %d: %s/%s for %s: offset %d is settled: %v, delivered: %v", c.n, cl.Queue, cl.Partition, p.Group, o, cur.settled(o), !holes[o])
		}
	}
	if p.CommitOnDelivery {
		cur.floor = max(cur.floor, int64(cl.To))
		cur.absorb()
		return
	}
	cur.lease = &lease{id: p.LeaseID, from: cl.From, to: cl.To, expires: cl.Expires}
	b.leases[p.LeaseID] = append(b.leases[p.LeaseID], cur)
	if cl.Expires <= now {
		b.w.fail("call %d: a lease that ends at %d was given at %d", c.n, cl.Expires, now)
	}
}

// acks enters the acks of one call. The client names only messages that it got,
// each once in a call.
func (b *book) acks(c *command, items []fsm.AckItem, now int64) {
	byCursor := map[cursorKey][]int{}
	var order []cursorKey
	for i := range items {
		key := cursorKey{items[i].PartitionID, items[i].Group}
		if byCursor[key] == nil {
			order = append(order, key)
		}
		byCursor[key] = append(byCursor[key], i)
	}
	for _, key := range order {
		b.acksOf(c, b.cursor(key.part, key.group), items, byCursor[key], now)
	}
}

func (b *book) acksOf(c *command, cur *cursor, items []fsm.AckItem, mine []int, now int64) {
	l := cur.lease
	live := l != nil && now < l.expires
	top, stop, stops, nacked := cur.floor, uint64(0), false, false
	var settled []uint64
	applied := false
	taken := map[uint64]bool{}
	for _, i := range mine {
		it := &items[i]
		o := b.meant(cur, it, c.acks[i].offset, taken)
		taken[o] = true
		mineLive := live && l.id == it.LeaseID && !b.gone[b.parts[cur.key.part].queue]
		if !it.Success {
			if mineLive && !cur.settled(o) && it.Err != "unavailable: the message cannot be read now" {
				b.w.fail("call %d: ack of offset %d of partition %d for %s under a live lease was refused: %s", c.n, o, cur.key.part, cur.key.group, it.Err)
			}
			continue
		}
		if it.Noop {
			continue
		}
		if !mineLive || cur.settled(o) {
			b.w.fail("call %d: ack of offset %d of partition %d for %s was taken; lease live: %v, settled: %v", c.n, o, cur.key.part, cur.key.group, mineLive, cur.settled(o))
		}
		applied = true
		back := it.Status == fsm.Retry || it.Status == fsm.Failed && !it.DLQ && !it.Dropped
		nacked = nacked || it.Status != fsm.Completed
		if it.DLQ {
			b.letters[letterKey{cur.key.part, o, cur.key.group, b.hashAt(cur.key.part, o)}]++
		}
		if back {
			if !stops || o < stop {
				stop, stops = o, true
			}
			continue
		}
		top = max(top, int64(o))
		settled = append(settled, o)
	}
	if !applied {
		return
	}
	if stops {
		for _, o := range settled {
			if o > stop {
				cur.above[o] = true
			}
		}
		cur.floor = max(cur.floor, int64(stop)-1)
	} else {
		cur.floor = top
	}
	cur.absorb()
	if nacked || cur.floor >= int64(l.to) {
		cur.lease = nil
	}
}

// meant is the offset that an ack is for; got is the one that the client has in
// mind. On the wire it names a transactionId, and one that was stored again after
// its window means the lowest message of the lease that is not settled, and that
// no earlier ack of the call means.
func (b *book) meant(cur *cursor, it *fsm.AckItem, got uint64, taken map[uint64]bool) uint64 {
	all := b.parts[cur.key.part].txns[string(it.Txn)]
	if len(all) < 2 || cur.lease == nil {
		return got
	}
	again := got
	for _, s := range all {
		switch {
		case s.offset > cur.lease.to || cur.settled(s.offset):
		case taken[s.offset]:
			again = s.offset
		default:
			return s.offset
		}
	}
	return again
}

func (b *book) hashAt(part, offset uint64) uint64 { return b.msgs[b.parts[part].ids[offset]].hash }

func (b *book) extend(c *command, e *fsm.Extend, now int64) {
	renewed := 0
	earliest := int64(0)
	until := now + e.Seconds*1_010_000
	for _, cur := range b.leases[e.LeaseID] {
		l := cur.lease
		if l == nil || l.id != e.LeaseID || now >= l.expires || b.gone[b.parts[cur.key.part].queue] {
			continue
		}
		renewed++
		l.expires = max(l.expires, until)
		if earliest == 0 || l.expires < earliest {
			earliest = l.expires
		}
	}
	if e.Renewed != renewed || e.Expires != earliest {
		b.w.fail("call %d: %d leases extended, the first to %d; expected %d, %d", c.n, e.Renewed, e.Expires, renewed, earliest)
	}
}

func (b *book) handBack(h *fsm.HandBack) {
	for _, cl := range h.Claims {
		for key, cur := range b.cursors { // order has no effect: each is looked at by itself
			if key.part != cl.PartitionID {
				continue
			}
			if cl.Batch == nil {
				if key.group == onceGroup {
					cur.back = true
				}
			} else if cur.lease != nil && cur.lease.id == h.LeaseID {
				cur.lease = nil
			}
		}
	}
}

// position: a group that forgets where it was is followed from its next claim on.
func (b *book) position(p *fsm.Position) {
	for id, pt := range b.parts { // order has no effect: one of them has the name
		if pt.qname != p.Queue || pt.name != p.Partition || b.gone[pt.queue] {
			continue
		}
		cur := b.cursor(id, p.Group)
		cur.lease, cur.known, cur.floor = nil, !p.Forget, int64(p.Offset)-1
		clear(cur.above)
	}
}

func (b *book) timerOps(c *command, ops []fsm.TimerOp, now int64) {
	for i := range ops {
		op := &ops[i]
		id := op.Queue + "/" + op.Key
		old := b.timers[id]
		want := "scheduled"
		switch {
		case op.Cancel && old == nil:
			want = "absent"
		case op.Cancel:
			want = "cancelled"
		case old != nil:
			want = "rescheduled"
		}
		if op.Status != want {
			b.w.fail("call %d: timer %s was %s, expected %s", c.n, id, op.Status, want)
		}
		if old != nil {
			old.pending = false
			delete(b.timers, id)
		}
		if op.Cancel {
			continue
		}
		t := b.msgs[op.MessageID].timer
		t.due, t.pending = op.DeliverAt, true
		if want := now + op.DelayMs*1000; op.DeliverAt != want {
			b.w.fail("call %d: timer %s is due at %d, expected %d", c.n, id, op.DeliverAt, want)
		}
		b.timers[id] = t
	}
}

// mortalQueues are the ids of the queues that clients delete.
func (b *book) mortalQueues(s *fsm.State) map[string]uint64 {
	if b.w.load.deletes == 0 {
		return nil
	}
	ids := map[string]uint64{}
	for _, name := range mortal {
		if q, ok := s.Queue(tenant, name); ok {
			ids[name] = q.ID
		}
	}
	return ids
}

func (b *book) deleteQueue(c *command, d *fsm.DeleteQueue, pl *plan) {
	dead := map[uint64]bool{}
	for _, p := range b.parts {
		if p.qname == d.Queue && !b.gone[p.queue] && p.queue != pl.queues[d.Queue] {
			dead[p.queue] = true
		}
	}
	if len(dead) > 0 && !d.Existed {
		b.w.fail("call %d: queue %s is said not to exist; it has messages", c.n, d.Queue)
	}
	for id := range dead {
		b.gone[id] = true
	}
	maps.DeleteFunc(b.letters, func(k letterKey, _ int) bool { return b.gone[b.parts[k.part].queue] })
}

func (b *book) replay(c *command, r *fsm.ReplayDeadLetter) {
	key, known := c.letter, b.letters[c.letter] > 0
	m := b.msgs[r.Item.ID]
	switch r.Outcome {
	case "moved":
		if !known {
			b.w.fail("call %d: a dead letter was moved that is not there", c.n)
		}
		if !m.stored || m.part != r.Item.PartitionID || m.offset != r.Item.Offset {
			b.w.fail("call %d: a dead letter was moved, and its message is not stored", c.n)
		}
		if b.letters[key]--; b.letters[key] == 0 {
			delete(b.letters, key)
		}
	case "duplicate":
	default:
		if m.stored {
			b.w.fail("call %d: a dead letter was not moved (%s), and its message is stored", c.n, r.Outcome)
		}
	}
}

func (b *book) purge(c *command, p *fsm.PurgeDeadLetters) {
	n := 0
	maps.DeleteFunc(b.letters, func(k letterKey, count int) bool {
		pt := b.parts[k.part]
		if pt.qname != p.Queue || b.gone[pt.queue] || !p.AnyGroup && k.group != p.Group {
			return false
		}
		n += count
		return true
	})
	if n != p.Deleted {
		b.w.fail("call %d: %d dead letters of %s purged, expected %d", c.n, p.Deleted, p.Queue, n)
	}
}

func payloadHash(m *entry.Message) uint64 { return xxhash.Sum64(m.Payload) }

func sortedKeys[K cmp.Ordered, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }
