package main

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"

	"github.com/cespare/xxhash/v2"

	"queen/fsm"
	"queen/internal/entry"
)

// Names that clients use. Queues of mortal are deleted now and then.
var (
	lasting = []string{"q0", "q1", "q2", "a.x", "a.y"}
	mortal  = []string{"d0", "d1"}
	groups  = []string{fsm.QueueMode, allGroup, newGroup, onceGroup, seekGroup}
)

const (
	allGroup  = "all"  // reads everything
	newGroup  = "new"  // starts at the end
	onceGroup = "once" // commits on delivery
	seekGroup = "seek" // sets positions

	dedupWindow = 3600 // seconds, the default of a queue
)

// command is one call of a client.
type command struct {
	n       int
	client  int
	call    *fsm.Call
	acks    []delivered // what the acks of the call mean, one by one
	letter  letterKey
	got     []*delivery // of a pop
	answer  []byte      // of a repeat
	fetched bool        // the client got it
	done    bool
	err     error
}

func (c *command) String() string {
	switch b := c.call.Body.(type) {
	case *fsm.Pop:
		out := fmt.Sprintf("call %d: pop %q for %s lease %x", c.n, b.Queue, b.Group, b.LeaseID[12:])
		for _, cl := range b.Claims {
			out += fmt.Sprintf(", %s/%s (%d) %d to %d without %v until %d", cl.Queue, cl.Partition, cl.PartitionID, cl.From, cl.To, cl.Settled, cl.Expires)
		}
		return out
	case *fsm.HandBack:
		out := fmt.Sprintf("call %d: hand back lease %x", c.n, b.LeaseID[12:])
		for _, cl := range b.Claims {
			out += fmt.Sprintf(", %s/%s (%d) %d to %d", cl.Queue, cl.Partition, cl.PartitionID, cl.From, cl.To)
		}
		return out
	}
	return fmt.Sprintf("call %d: %T %+v", c.n, c.call.Body, c.call.Body)
}

// delivery is a claim as a client got it.
type delivery struct {
	claim    *fsm.Claim
	lease    [16]byte
	group    string
	commits  bool
	messages []delivered
}

type delivered struct {
	offset uint64
	txn    string
	id     [16]byte
}

type letter struct {
	id  [16]byte
	key letterKey
}

type client struct {
	busy   *command
	nextAt int64       // Mono
	then   []*fsm.Call // what it owes first
}

// load is the clients: each has at most one call under way.
type load struct {
	w        *world
	clients  []*client
	held     []*delivery
	letters  []letter
	requests []request // with keys
	seq      uint64
	deletes  int // under way
	draining bool
}

func newLoad(w *world) *load {
	l := &load{w: w}
	for range w.set.clients {
		l.clients = append(l.clients, &client{})
	}
	return l
}

func (l *load) oneIn(n int) bool { return l.w.rng.IntN(n) == 0 }

func (l *load) ready(now int64) bool {
	return slices.ContainsFunc(l.clients, func(c *client) bool { return c.busy == nil && c.nextAt <= now })
}

// nextAt is when the next client wants to send.
func (l *load) nextAt(now int64) int64 {
	next := now + 1_000_000_000
	for _, c := range l.clients {
		if c.busy == nil {
			next = min(next, c.nextAt)
		}
	}
	return next
}

// think is how long a client waits after an answer, in nanoseconds. All of them
// together take the simulated minutes for the commands that a run has to reach.
func (l *load) think() int64 {
	share := l.w.goal.minutes * 60e9 / int64(l.w.goal.commands) * int64(len(l.clients))
	switch {
	case l.w.set.storm && !l.oneIn(200):
		return l.w.rng.Int64N(2_000_000)
	case l.w.set.storm:
		return l.w.rng.Int64N(200*share + 1)
	case l.oneIn(2):
		return l.w.rng.Int64N(5_000_000)
	}
	return l.w.rng.Int64N(4*share + 1)
}

// send lets a client that is ready make its next call.
func (l *load) send() {
	w := l.w
	from := w.rng.IntN(len(l.clients))
	for i := range l.clients {
		c := l.clients[(from+i)%len(l.clients)]
		if c.busy != nil || c.nextAt > w.now.Mono {
			continue
		}
		if l.oneIn(40) {
			l.leave()
		}
		var cmd *command
		if len(c.then) > 0 {
			cmd = l.command(c.then[0].Body)
			c.then = c.then[1:]
		} else {
			cmd = l.make()
		}
		l.submit((from+i)%len(l.clients), cmd)
		return
	}
}

func (l *load) submit(client int, cmd *command) {
	w := l.w
	cmd.client = client
	if client >= 0 {
		l.clients[client].busy = cmd
	}
	w.totals.Commands++
	cmd.n = w.totals.Commands
	if _, ok := cmd.call.Body.(*fsm.DeleteQueue); ok {
		l.deletes++
	}
	w.note('c', uint64(cmd.n), uint64(w.now.Mono))
	w.node.step.Submit(cmd.call)
}

// leave lets a client that waits for a pop go away.
func (l *load) leave() {
	for _, c := range l.clients {
		if c.busy == nil {
			continue
		}
		if p, ok := c.busy.call.Body.(*fsm.Pop); ok && p.WaitMicros > 0 {
			c.busy.call.Gone.Store(true)
			return
		}
	}
}

// command makes a call of a body.
func (l *load) command(body any) *command {
	c := &command{call: &fsm.Call{Tenant: tenant, Body: body, Size: 1000}}
	c.call.Done = func(err error) { l.answered(c, err) }
	return c
}

// answered is Call.Done.
func (l *load) answered(c *command, err error) {
	w := l.w
	if c.done {
		w.fail("call %d (%T) is answered twice", c.n, c.call.Body)
	}
	c.done, c.err = true, err
	if pl := w.book.now; pl != nil {
		pl.cmds = append(pl.cmds, c)
	}
	if w.book.silent {
		return
	}
	w.totals.Answered++
	w.note('r', uint64(c.n), uint64(len(c.got)))
	if _, ok := c.call.Body.(*fsm.DeleteQueue); ok {
		l.deletes--
	}
	if err != nil && w.chaos.faulted == "" && w.chaos.image == nil {
		w.fail("call %d (%T) is answered with an error, and nothing was broken: %v", c.n, c.call.Body, err)
	}
	if k := c.call.Key; k != nil && k.Repeat && err == nil {
		w.repeated(c)
	}
	if c.client < 0 {
		return
	}
	cl := l.clients[c.client]
	cl.busy, cl.nextAt = nil, w.now.Mono+l.think()
	if p, ok := c.call.Body.(*fsm.Pop); ok && err == nil && len(p.Claims) > 0 {
		l.received(cl, c, p)
	}
}

// received is what edge and client do with a batch.
func (l *load) received(cl *client, c *command, p *fsm.Pop) {
	w := l.w
	back := &fsm.HandBack{LeaseID: p.LeaseID, Claims: p.Claims}
	err := w.read(c, p)
	switch {
	case err != nil:
		if !w.disturbed() {
			w.fail("call %d: a delivered message cannot be read: %v", c.n, err)
		}
		back.Unreadable = true
		cl.then = append(cl.then, &fsm.Call{Body: back})
	case c.call.Gone.Load() || l.oneIn(30):
		cl.then = append(cl.then, &fsm.Call{Body: back})
	case p.CommitOnDelivery:
		cl.then = append(cl.then, &fsm.Call{Body: &fsm.Delivered{Claims: p.Claims}})
	default:
		for _, d := range c.got {
			if !l.oneIn(8) {
				items := make([]fsm.BatchItem, 0, len(d.messages))
				for _, m := range d.messages {
					items = append(items, fsm.BatchItem{Offset: m.offset, Hash: xxhash.Sum64String(m.txn), Txn: m.txn})
				}
				d.claim.Batch.Store(items)
			}
			l.held = append(l.held, d)
		}
		if n := len(l.held); n > 60 {
			l.held = slices.Clone(l.held[n-40:])
		}
	}
}

// disturbed reports whether a call of the file system failed, or the process is
// about to end.
func (w *world) disturbed() bool { return w.chaos.faulted != "" || w.chaos.image != nil }

// died: the connections are gone, and with them every answer under way.
func (l *load) died() {
	for _, c := range l.clients {
		if c.busy != nil {
			l.w.totals.Lost++
		}
		c.busy, c.then = nil, nil
		c.nextAt = l.w.now.Mono + l.think()
	}
	l.deletes = 0
	if l.oneIn(2) {
		l.held = nil // the workers went, too
	}
}

func (l *load) id() (id [16]byte) {
	l.seq++
	binary.BigEndian.PutUint64(id[8:], l.seq)
	id[0], id[6], id[8] = 1, 0x70, 0x80
	return id
}

func (l *load) queue() string {
	if l.oneIn(8) {
		return choose(l.w.rng, mortal...)
	}
	return choose(l.w.rng, lasting...)
}

func (l *load) partition() string { return fmt.Sprintf("p%d", l.w.rng.IntN(4)) }

func (l *load) payload() []byte {
	n := choose(l.w.rng, 2, 20, 20, 20, 100, 100, 300, 2000)
	return append(fmt.Appendf(nil, "%d:", l.seq), strings.Repeat("x", l.w.rng.IntN(n))...)
}

// make draws a command.
func (l *load) make() *command {
	switch n := l.w.rng.IntN(100); {
	case n < 20:
		return l.command(l.push())
	case n < 24:
		return l.keyedCall()
	case n < 46:
		return l.command(l.pop())
	case n < 62:
		return l.ack()
	case n < 76:
		return l.txn()
	case n < 86:
		return l.command(&fsm.KV{Ops: l.kvOps(1 + l.w.rng.IntN(4))})
	case n < 91:
		return l.command(&fsm.Timers{Ops: l.timers(1 + l.w.rng.IntN(3))})
	case n < 94:
		if d := l.someDelivery(); d != nil {
			return l.command(&fsm.Extend{LeaseID: d.lease, Seconds: 1 + l.w.rng.Int64N(20)})
		}
	case n < 96:
		if d := l.someDelivery(); d != nil {
			return l.command(&fsm.HandBack{LeaseID: d.lease, Claims: []*fsm.Claim{d.claim}})
		}
	case n < 98:
		return l.admin()
	}
	return l.command(&fsm.Read{Do: l.look})
}

// look is a read of the state; it also finds the dead letters that there are.
func (l *load) look(s *fsm.State) {
	s.Queues(tenant, "", 10)
	s.Depth(tenant, "q0", allGroup, true)
	l.letters = l.letters[:0]
	for _, d := range allLetters(s, 20) {
		if p := l.w.book.parts[d.PartitionID]; p != nil && d.Offset < uint64(len(p.ids)) {
			l.letters = append(l.letters, letter{d.ID, letterKey{d.PartitionID, d.Offset, d.Group, l.w.book.hashAt(d.PartitionID, d.Offset)}})
		}
	}
}

func (l *load) item(queue, partition string) fsm.PushItem {
	txn := ""
	if l.oneIn(3) {
		txn = fmt.Sprintf("t%d", int(l.seq+1)/4+l.w.rng.IntN(12))
	}
	return l.itemOf(queue, partition, txn)
}

// itemOf makes an item; without a transactionId it gets a minted one.
func (l *load) itemOf(queue, partition, txn string) fsm.PushItem {
	it := fsm.PushItem{Queue: queue, Partition: partition, ID: l.id()}
	m := entry.Message{ID: it.ID, Minted: true, Payload: l.payload()}
	known := &message{queue: queue, partition: partition, hash: payloadHash(&m)}
	if txn != "" {
		known.txn = txn
		it.Txn, m.Minted = []byte(known.txn), false
		m.Txn = it.Txn
	}
	it.TxnHash = xxhash.Sum64(m.AppendTxn(nil))
	it.Packed = entry.AppendMessage(nil, &m)
	l.w.book.msgs[it.ID] = known
	return it
}

func (l *load) push() *fsm.Push {
	p := &fsm.Push{}
	for range 1 + l.w.rng.IntN(4) {
		p.Items = append(p.Items, l.item(l.queue(), l.partition()))
	}
	p.GroupItems()
	return p
}

func (l *load) pop() *fsm.Pop {
	rng := l.w.rng
	p := &fsm.Pop{
		Queue: l.queue(), Group: choose(rng, groups...), Batch: 1 + rng.IntN(8), Partitions: 1 + rng.IntN(4),
		LeaseSeconds: choose[int64](rng, 0, 1, 2, 5, 20), LeaseID: l.id(), Worker: "w",
	}
	l.subscribe(p)
	switch rng.IntN(8) {
	case 0:
		p.Partition = l.partition()
	case 1:
		p.Queue, p.Namespace, p.MatchNamespace = "", "a", true
	}
	if p.Queue != "" && l.oneIn(2) {
		p.WaitMicros = rng.Int64N(3_000_000)
	}
	return p
}

func (l *load) subscribe(p *fsm.Pop) {
	switch p.Group {
	case allGroup:
		p.Mode = fsm.SubscribeAll
	case onceGroup:
		p.Mode, p.CommitOnDelivery = fsm.SubscribeAll, true
	}
}

func (l *load) someDelivery() *delivery {
	n := len(l.held)
	if n == 0 {
		return nil
	}
	return l.held[n-1-l.w.rng.IntN(min(n, 12))]
}

// takeDelivery is someDelivery for good, mostly.
func (l *load) takeDelivery() *delivery {
	d := l.someDelivery()
	if d != nil && !l.oneIn(6) {
		l.held = slices.DeleteFunc(l.held, func(o *delivery) bool { return o == d })
	}
	return d
}

// acks settles a delivery, or a part of it.
func (l *load) acks(d *delivery, mild bool) (items []fsm.AckItem, means []delivered) {
	rng := l.w.rng
	bad := -1
	if !mild || l.oneIn(6) {
		bad = rng.IntN(len(d.messages) + 2)
	}
	for i, m := range d.messages {
		if l.oneIn(10) {
			continue
		}
		it := fsm.AckItem{
			Txn: []byte(m.txn), TxnHash: xxhash.Sum64String(m.txn), PartitionID: d.claim.PartitionID, Group: d.group,
			HasLease: true, LeaseID: d.lease,
		}
		if i == bad && !d.repeats(m.txn) {
			it.Status, it.Error = choose(rng, fsm.Failed, fsm.Failed, fsm.Retry, fsm.DeadLetter), "broken"
			if l.oneIn(3) {
				it.DelayMs = rng.Int64N(2000)
			}
		}
		items, means = append(items, it), append(means, m)
	}
	if l.oneIn(6) {
		for i := len(items) - 1; i > 0; i-- {
			j := rng.IntN(i + 1)
			items[i], items[j], means[i], means[j] = items[j], items[i], means[j], means[i]
		}
	}
	return items, means
}

// repeats reports whether a batch has a transactionId more than once: stored
// again after its window. What is said of one of them may be meant of another.
func (d *delivery) repeats(txn string) bool {
	n := 0
	for _, m := range d.messages {
		if m.txn == txn {
			n++
		}
	}
	return n > 1
}

func (l *load) ack() *command {
	d := l.takeDelivery()
	if d == nil {
		return l.command(l.pop())
	}
	items, means := l.acks(d, false)
	c := l.command(&fsm.Ack{Items: items})
	c.acks = means
	return c
}

// txn is a step: acks, pushes over several queues, a gate, keys, timers.
func (l *load) txn() *command {
	rng := l.w.rng
	t := &fsm.Txn{}
	var means []delivered
	if d := l.takeDelivery(); d != nil {
		t.Acks, means = l.acks(d, true)
		if len(d.messages) > 0 && l.oneIn(2) {
			t.KV = append(t.KV, fsm.KVOp{Kind: fsm.KVPutIfAbsent, NS: "gate", Key: fmt.Sprintf("%x", d.messages[0].id[12:]), Value: []byte("1"), Required: true})
		}
	}
	for range rng.IntN(4) {
		t.Push.Items = append(t.Push.Items, l.item(l.queue(), l.partition()))
	}
	t.Push.GroupItems()
	if l.oneIn(2) {
		t.KV = append(t.KV, l.kvOps(1+rng.IntN(3))...)
	}
	if l.oneIn(4) {
		t.Timers = l.timers(1 + rng.IntN(2))
	}
	if l.oneIn(12) {
		t.Positions = append(t.Positions, fsm.Position{
			Queue: choose(rng, lasting...), Partition: l.partition(), Group: seekGroup, Forget: l.oneIn(4), Offset: rng.Uint64N(30),
		})
	}
	c := l.command(t)
	c.acks = means
	return c
}

func (l *load) kvOps(n int) (ops []fsm.KVOp) {
	rng := l.w.rng
	written := map[string]bool{}
	for range n {
		op := fsm.KVOp{NS: choose(rng, "a", "b"), Key: fmt.Sprintf("k%d", rng.IntN(8)), Required: l.oneIn(4)}
		op.Kind = fsm.KVOpKind(1 + rng.IntN(8))
		id := op.NS + op.Key
		if (op.Kind.Write() || op.Kind == fsm.KVCheck) && written[id] {
			op.Kind = fsm.KVGet
		}
		switch op.Kind {
		case fsm.KVPut, fsm.KVPutIfAbsent:
			op.Value = fmt.Appendf(nil, "%d", rng.IntN(1000))
			if l.oneIn(8) {
				op.Value = fmt.Appendf(nil, "%q", strings.Repeat("v", rng.IntN(600)))
			}
			op.TTL = choose[int64](rng, 0, 0, 1, 3, 30)
		case fsm.KVIncr:
			op.Delta = float64(rng.IntN(20) - 5)
			if l.oneIn(3) {
				op.HasMax, op.Max = true, float64(rng.IntN(500))
			}
		case fsm.KVGetMany:
			op.Keys = []string{"k0", "k3", "none", op.Key}
		case fsm.KVGetPrefix:
			op.Prefix, op.Limit = choose(rng, "", "k", "k1"), 1000
		}
		if op.Kind != fsm.KVGet && op.Kind != fsm.KVGetMany && op.Kind != fsm.KVGetPrefix {
			written[id] = true
			if op.Kind == fsm.KVCheck || op.Kind != fsm.KVPutIfAbsent && l.oneIn(3) {
				op.HasExpect = true
				if row, ok := l.w.book.kv.rows[op.NS+"/"+op.Key]; ok && !l.oneIn(4) {
					op.Expect = row.version
				}
			}
		}
		ops = append(ops, op)
	}
	return ops
}

func (l *load) timers(n int) (ops []fsm.TimerOp) {
	rng := l.w.rng
	for range n {
		op := fsm.TimerOp{Queue: l.queue(), Partition: l.partition(), Key: fmt.Sprintf("t%d", rng.IntN(30)), Cancel: l.oneIn(4)}
		if !op.Cancel {
			op.DelayMs = choose(rng, 0, rng.Int64N(100), rng.Int64N(5_000), rng.Int64N(40_000))
			op.MessageID = l.id()
			m := entry.Message{ID: op.MessageID, Minted: true, Payload: l.payload()}
			op.Message = entry.AppendMessage(nil, &m)
			l.w.book.msgs[op.MessageID] = &message{
				queue: op.Queue, partition: op.Partition, hash: payloadHash(&m),
				timer: &timer{queue: op.Queue, key: op.Key, id: op.MessageID},
			}
		}
		ops = append(ops, op)
	}
	return ops
}

func (l *load) admin() *command {
	rng := l.w.rng
	switch rng.IntN(8) {
	case 0, 1:
		return l.command(&fsm.DeleteQueue{Queue: choose(rng, mortal...)})
	case 2:
		return l.command(&fsm.PurgeDeadLetters{Queue: choose(rng, lasting...), Group: allGroup, AnyGroup: l.oneIn(2)})
	case 3, 4, 5:
		if n := len(l.letters); n > 0 {
			return l.replay(l.letters[rng.IntN(n)])
		}
	}
	set := fsm.OptionValue{Name: choose(rng, "retryLimit", "leaseTime", "retryDelay"), Num: 1 + rng.Int64N(4)}
	switch rng.IntN(4) {
	case 0:
		set = fsm.OptionValue{Name: choose(rng, "retryBackoff", "deadLetterQueue", "dlqAfterMaxRetries"), Flag: l.oneIn(2)}
	case 1:
		set = fsm.OptionValue{Name: choose(rng, "windowBuffer", "delayedProcessing"), Num: rng.Int64N(2)}
	}
	return l.command(&fsm.Configure{Queue: l.queue(), Set: []fsm.OptionValue{set}})
}

func (l *load) replay(from letter) *command {
	r := &fsm.ReplayDeadLetter{ID: from.id, Item: fsm.PushItem{ID: l.id()}}
	src := l.w.book.parts[from.key.part]
	known := &message{queue: src.qname, partition: src.name, hash: from.key.hash}
	if l.oneIn(2) {
		r.Queue, r.Partition = choose(l.w.rng, lasting...), l.partition()
		known.queue, known.partition = r.Queue, r.Partition
	}
	l.w.book.msgs[r.Item.ID] = known
	c := l.command(r)
	c.letter = from.key
	return c
}
