package main

import (
	"bytes"
	"fmt"
	"strconv"

	"queen/fsm"
	"queen/internal/entry"
)

// drain ends a run: everything is made well, the cluster has to come to rest and
// take a write, and then every node has to hold what clients know.
func (w *world) drain() {
	w.logf("drain")
	w.net.heal()
	w.chaos.healAt = 0
	for _, n := range w.nodes {
		n.paused, n.hung = 0, 0
		n.bootAt = min(n.bootAt, w.now)
	}
	w.until(120*second, "every call to be answered", func() bool { return !w.clients.busy() })
	w.ask(w.clients.incr(), "a write")
	w.checkCounters()
	w.until(120*second, "all nodes to apply the same entries", w.level)
	var leader *node
	for _, n := range w.nodes {
		n.compare()
		if n.step.Leading() {
			leader = n
		}
	}
	if leader == nil {
		w.fail("all is well, and nobody leads")
	}
	for _, n := range w.nodes {
		w.checkNode(n, leader.machine.View())
	}
	w.clients.book.linearizable()
}

func (w *world) until(patience int64, what string, done func() bool) {
	for end := w.now + patience; !done(); {
		if w.now > end {
			for _, n := range w.nodes {
				if n.step != nil {
					w.logf("node %d: %+v", n.id, n.step.Status())
				}
			}
			w.fail("waited in vain for %s", what)
		}
		w.tickle(false)
	}
}

// level reports whether every node has applied the same and nothing is under way.
func (w *world) level() bool {
	var at uint64
	for i, n := range w.nodes {
		if n.step == nil {
			return false
		}
		applied, ok := n.step.Settled()
		if !ok || i > 0 && applied != at || n.step.Status().Commit != applied {
			return false
		}
		at = applied
	}
	return true
}

// ask makes one more operation, which has to be taken.
func (w *world) ask(op *operation, what string) {
	c := &client{op: op}
	w.clients.list = append(w.clients.list, c)
	ok := false
	decided := op.decided
	op.decided = func(n *node, body any) { ok = true; decided(n, body) }
	op.until, op.began = w.now+60*second, w.now
	w.until(70*second, what, func() bool { return c.op == nil })
	if !ok {
		w.fail("all is well, and %s is not taken within a minute", what)
	}
}

// checkNode compares all that a node holds with the book. What there is the
// leader's state tells, which is equal to that of the others: look-ups by name are
// made by a node that leads only.
func (w *world) checkNode(n *node, s *fsm.State) {
	b := w.clients.book
	seen := map[string]bool{}
	for q := range queues + 1 {
		name := fmt.Sprintf("q%d", q)
		if q == queues {
			name = "out"
		}
		info, ok := s.Queue(tenant, name)
		if !ok {
			continue
		}
		for _, p := range partitions(s, name) {
			next := uint64(0)
			err := n.step.Reader().ReadMessages(info.ID, p.ID, 0, 1<<62, func(offset uint64, _ int64, m *entry.Message) error {
				w.checkMessage(n, p.ID, offset, next, m, seen)
				next++
				return nil
			})
			if err != nil && p.Next > 0 {
				w.fail("node %d: partition %d cannot be read: %v", n.id, p.ID, err)
			}
			if next != p.Next {
				w.fail("node %d: partition %d ends at %d, and %d messages can be read", n.id, p.ID, p.Next, next)
			}
		}
	}
	for _, txn := range sortedKeys(b.messages) {
		if m := b.messages[txn]; m.known && !seen[txn] {
			w.fail("node %d: %s was answered at %d/%d and is gone", n.id, txn, m.part, m.offset)
		}
	}
}

func (w *world) checkMessage(n *node, part, offset, next uint64, m *entry.Message, seen map[string]bool) {
	b := w.clients.book
	txn := string(m.Txn)
	known := b.messages[txn]
	switch {
	case offset != next:
		w.fail("node %d: partition %d has a hole before %d", n.id, part, offset)
	case known == nil || known.refused || !known.known && !known.maybe:
		w.fail("node %d: %s at %d/%d was never pushed, or was refused", n.id, txn, part, offset)
	case seen[txn]:
		w.fail("node %d: %s is stored twice", n.id, txn)
	case known.known && (known.part != part || known.offset != offset):
		w.fail("node %d: %s is at %d/%d, answered was %d/%d", n.id, txn, part, offset, known.part, known.offset)
	case !bytes.Equal(m.Payload, []byte(known.payload)):
		w.fail("node %d: %s has another payload", n.id, txn)
	}
	seen[txn] = true
}

func partitions(s *fsm.State, queue string) (all []fsm.PartitionInfo) {
	for more := true; more; {
		var some []fsm.PartitionInfo
		some, more = s.Partitions(tenant, queue, len(all), 1000)
		all = append(all, some...)
	}
	return all
}

// checkCounters reads every counter.
func (w *world) checkCounters() {
	b := w.clients.book
	for _, key := range sortedKeys(b.counters) {
		c := b.counters[key]
		w.ask(&operation{
			body: func() any { return &fsm.KV{Ops: []fsm.KVOp{{Kind: fsm.KVGet, NS: "count", Key: key}}} },
			decided: func(_ *node, body any) {
				v, err := strconv.Atoi(string(body.(*fsm.KV).Ops[0].Result.Value))
				if err != nil && c.certain > 0 || v < c.certain || v > c.possible {
					w.fail("counter %s is %d, certain are %d, possible %d", key, v, c.certain, c.possible)
				}
			},
		}, "a read of "+key)
	}
}
