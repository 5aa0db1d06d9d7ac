package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/cespare/xxhash/v2"

	"queen/fsm"
	"queen/internal/entry"
	"queen/raftlog"
)

const (
	workers = "workers" // the group that consumes
	queues  = 3
	parts   = 3
)

// patience is how long a client waits for an answer.
const patience = 8 * second

// operation is one call of a client, until it is answered for good or given up.
type operation struct {
	body    func() any // made anew for each try
	decided func(n *node, body any)
	unknown func()
	until   int64
	calls   uint64 // tries made
	node    *node  // that has it
	call    *fsm.Call
	nextAt  int64 // of the next try
	began   int64
}

type client struct {
	op     *operation
	nextAt int64
}

// clients are the load. Each has at most one operation under way; one that was
// refused goes to another node, as one that knows the addresses of all does.
type clients struct {
	w    *world
	list []*client
	book *book
	seq  uint64
	held []*held
}

// held is a batch that a worker has under lease.
type held struct {
	lease [16]byte
	claim *fsm.Claim
	txns  []string
}

func newClients(w *world) *clients {
	l := &clients{w: w, book: newBook(w)}
	for range choose(w.rng, 3, 8, 16) {
		l.list = append(l.list, &client{})
	}
	return l
}

// act lets one client do something; false: none has anything to do.
func (l *clients) act(send bool) bool {
	w := l.w
	from := w.rng.IntN(len(l.list))
	for i := range l.list {
		c := l.list[(from+i)%len(l.list)]
		switch op := c.op; {
		case op == nil && send && w.now >= c.nextAt:
			c.op = l.draw()
			c.op.until, c.op.began = w.now+patience, w.now
			w.totals.Commands++
			l.try(c)
			return true
		case op == nil:
		case w.now >= op.until:
			l.giveUp(c)
			return true
		case op.call == nil && w.now >= op.nextAt:
			l.try(c)
			return true
		}
	}
	return false
}

func (l *clients) next() int64 {
	next := int64(1 << 62)
	for _, c := range l.list {
		switch {
		case c.op == nil:
			next = min(next, c.nextAt)
		case c.op.call == nil:
			next = min(next, c.op.nextAt, c.op.until)
		default:
			next = min(next, c.op.until)
		}
	}
	return next
}

func (l *clients) busy() bool {
	return slices.ContainsFunc(l.list, func(c *client) bool { return c.op != nil })
}

// try sends the operation to some node.
func (l *clients) try(c *client) {
	w, op := l.w, c.op
	n := w.nodes[w.rng.IntN(len(w.nodes))]
	if n.step == nil {
		op.nextAt = w.now + 5_000_000 // connection refused
		return
	}
	call := &fsm.Call{Tenant: tenant, Body: op.body(), Size: 1000}
	op.call, op.node = call, n
	op.calls++
	call.Done = func(err error) {
		if op.call != call { // given up: what a pop claimed stays leased until it expires
			return
		}
		op.call = nil
		switch {
		case err == nil:
			l.w.noteTrace('r', op.calls, uint64(l.w.now))
			l.w.totals.Answered++
			l.end(c)
			op.decided(n, call.Body)
		case errors.Is(err, fsm.ErrNotLeader), errors.Is(err, raftlog.ErrNotLeader), errors.Is(err, raftlog.ErrAbandoned):
			// Nothing of it is in the log, nor ever will be.
			l.w.totals.Refused++
			op.nextAt = l.w.now + 2_000_000 + l.w.rng.Int64N(50_000_000)
		default:
			l.w.fail("a call is answered with %v", err)
		}
	}
	w.noteTrace('c', n.id, uint64(w.now))
	n.step.Submit(call)
}

func (l *clients) end(c *client) {
	think := choose[int64](l.w.rng, 1_000_000, 20_000_000, 400_000_000)
	share := 2 * l.w.goal.seconds * second / int64(l.w.goal.commands) * int64(len(l.list))
	c.op, c.nextAt = nil, l.w.now+l.w.rng.Int64N(max(think, share))
}

// giveUp ends an operation whose outcome is not known. If no try is under way,
// all of them were refused.
func (l *clients) giveUp(c *client) {
	op := c.op
	if op.call != nil {
		op.call.Gone.Store(true)
		op.call = nil
		l.w.totals.Unknown++
		op.unknown()
	}
	l.end(c)
}

// died: the calls that the node had are answered by nobody.
func (l *clients) died(n *node) {
	for _, c := range l.list {
		if c.op != nil && c.op.call != nil && c.op.node == n {
			l.giveUp(c)
		}
	}
}

func (l *clients) draw() *operation {
	switch n := l.w.rng.IntN(100); {
	case n < 30:
		return l.push()
	case n < 50:
		return l.pop()
	case n < 65:
		if op := l.ack(); op != nil {
			return op
		}
		return l.pop()
	case n < 70:
		return l.incr()
	default:
		return l.register()
	}
}

func (l *clients) id() (id [16]byte) {
	l.seq++
	binary.BigEndian.PutUint64(id[8:], l.seq)
	id[0], id[6], id[8] = 1, 0x70, 0x80
	return id
}

// push sends one to four messages. Now and then it is the repeat of one whose
// outcome is not known.
func (l *clients) push() *operation {
	w := l.w
	var msgs []*message
	if n := len(l.book.doubtful); n > 0 && w.rng.IntN(3) == 0 {
		msgs = []*message{l.book.doubtful[w.rng.IntN(n)]}
	} else {
		for range 1 + w.rng.IntN(4) {
			l.seq++
			m := &message{
				txn: fmt.Sprintf("t%d", l.seq), queue: fmt.Sprintf("q%d", w.rng.IntN(queues)), partition: fmt.Sprintf("p%d", w.rng.IntN(parts)),
				payload: fmt.Sprintf("%d:%s", l.seq, strings.Repeat("x", w.rng.IntN(choose(w.rng, 10, 200, 2000)))),
			}
			l.book.messages[m.txn] = m
			msgs = append(msgs, m)
		}
	}
	return &operation{
		body: func() any {
			p := &fsm.Push{}
			for _, m := range msgs {
				it := fsm.PushItem{Queue: m.queue, Partition: m.partition, ID: l.id(), Txn: []byte(m.txn), TxnHash: xxhash.Sum64String(m.txn)}
				it.Packed = entry.AppendMessage(nil, &entry.Message{ID: it.ID, Txn: it.Txn, Payload: []byte(m.payload)})
				p.Items = append(p.Items, it)
			}
			p.GroupItems()
			return p
		},
		decided: func(n *node, body any) {
			for i, it := range body.(*fsm.Push).Items {
				l.book.pushed(msgs[i], &it)
			}
		},
		unknown: func() { l.book.doubt(msgs) },
	}
}

func (l *clients) pop() *operation {
	w := l.w
	queue, batch, seconds := fmt.Sprintf("q%d", w.rng.IntN(queues)), 1+w.rng.IntN(6), choose[int64](w.rng, 1, 3, 10)
	wait := w.rng.Int64N(2_000_000) * int64(w.rng.IntN(2))
	var sent int64
	return &operation{
		body: func() any {
			sent = w.now
			return &fsm.Pop{
				Queue: queue, Group: workers, Mode: fsm.SubscribeAll, Batch: batch, Partitions: 2, LeaseSeconds: seconds,
				LeaseID: l.id(), WaitMicros: wait,
			}
		},
		decided: func(n *node, body any) {
			p := body.(*fsm.Pop)
			for _, cl := range p.Claims {
				l.received(n, p, cl, sent, seconds)
			}
		},
		unknown: func() {},
	}
}

// received takes a batch, whose messages are read from the node that answered.
func (l *clients) received(n *node, p *fsm.Pop, cl *fsm.Claim, sent, seconds int64) {
	l.w.totals.Leases++
	h := &held{lease: p.LeaseID, claim: cl}
	l.book.claimed(cl, sent+seconds*second)
	err := n.step.Reader().ReadMessages(cl.QueueID, cl.PartitionID, cl.From, cl.To, func(offset uint64, _ int64, m *entry.Message) error {
		if isSettled(cl, offset) {
			return nil
		}
		txn := string(m.Txn)
		l.book.delivered(cl, sent, offset, txn, string(m.Payload))
		h.txns = append(h.txns, txn)
		return nil
	})
	if err == nil && len(h.txns) > 0 {
		l.held = append(l.held, h)
		if len(l.held) > 40 {
			l.held = slices.Clone(l.held[len(l.held)-30:])
		}
	}
}

func isSettled(cl *fsm.Claim, offset uint64) bool {
	return slices.ContainsFunc(cl.Settled, func(r rangeOf) bool { return r.Lo <= offset && offset <= r.Hi })
}

// ack settles a batch that some worker holds, alone or as a step that counts.
func (l *clients) ack() *operation {
	w := l.w
	if len(l.held) == 0 {
		return nil
	}
	at := w.rng.IntN(len(l.held))
	h := l.held[at]
	l.held = slices.Delete(l.held, at, at+1)
	status := fsm.Completed
	if w.rng.IntN(6) == 0 {
		status = fsm.Retry
	}
	items := func() (out []fsm.AckItem) {
		for _, txn := range h.txns {
			out = append(out, fsm.AckItem{
				Txn: []byte(txn), TxnHash: xxhash.Sum64String(txn), PartitionID: h.claim.PartitionID, Group: workers,
				HasLease: true, LeaseID: h.lease, Status: status,
			})
		}
		return out
	}
	l.book.released(h.claim)
	unknown := func() {}
	if status == fsm.Completed && w.rng.IntN(2) == 0 {
		// The step: its input is settled, its output pushed and counted, or nothing is.
		l.seq++
		out := &message{txn: fmt.Sprintf("s%d", l.seq), queue: "out", partition: fmt.Sprintf("p%d", w.rng.IntN(parts)), payload: fmt.Sprint(l.seq), step: true}
		l.book.messages[out.txn] = out
		return &operation{
			body: func() any {
				t := &fsm.Txn{Acks: items()}
				it := fsm.PushItem{Queue: out.queue, Partition: out.partition, ID: l.id(), Txn: []byte(out.txn), TxnHash: xxhash.Sum64String(out.txn)}
				it.Packed = entry.AppendMessage(nil, &entry.Message{ID: it.ID, Txn: it.Txn, Payload: []byte(out.payload)})
				t.Push.Items = []fsm.PushItem{it}
				t.Push.GroupItems()
				t.KV = []fsm.KVOp{{Kind: fsm.KVIncr, NS: "count", Key: "steps", Delta: 1}}
				return t
			},
			decided: func(n *node, body any) {
				t := body.(*fsm.Txn)
				if t.Reason != "" {
					out.refused = true
					return
				}
				l.book.pushed(out, &t.Push.Items[0])
				l.book.settled(h)
				l.book.counted("steps", 1)
			},
			unknown: func() {
				out.maybe = true
				l.book.maybeCounted("steps", 1)
			},
		}
	}
	return &operation{
		body: func() any { return &fsm.Ack{Items: items()} },
		decided: func(n *node, body any) {
			for _, it := range body.(*fsm.Ack).Items {
				if !it.Success {
					return // the lease was over
				}
			}
			if status == fsm.Completed {
				l.book.settled(h)
			}
		},
		unknown: unknown,
	}
}

func (l *clients) incr() *operation {
	key := fmt.Sprintf("c%d", l.w.rng.IntN(2))
	return &operation{
		body: func() any {
			return &fsm.KV{Ops: []fsm.KVOp{{Kind: fsm.KVIncr, NS: "count", Key: key, Delta: 1}}}
		},
		decided: func(*node, any) { l.book.counted(key, 1) },
		unknown: func() { l.book.maybeCounted(key, 1) },
	}
}

// register is a read, a write or a conditional write of one of a few keys.
func (l *clients) register() *operation {
	w := l.w
	in := registerInput{key: fmt.Sprintf("r%d", w.rng.IntN(3)), kind: choose(w.rng, readKey, readKey, writeKey, swapKey)}
	op := fsm.KVOp{Kind: fsm.KVGet, NS: "reg", Key: in.key}
	if in.kind != readKey {
		l.seq++
		in.value = fmt.Sprint(l.seq)
		op.Kind, op.Value = fsm.KVPut, []byte(in.value)
	}
	if in.kind == swapKey {
		old := l.book.lastRead[in.key]
		in.expect, op.HasExpect, op.Expect = old.value, true, old.version
	}
	began := w.now
	return &operation{
		body: func() any { return &fsm.KV{Ops: []fsm.KVOp{op}} },
		decided: func(n *node, body any) {
			r := &body.(*fsm.KV).Ops[0].Result
			out := registerOutput{known: true, applied: r.Applied, value: string(r.Value)}
			l.book.register(in, out, r, began)
		},
		unknown: func() { l.book.register(in, registerOutput{}, nil, began) },
	}
}
