package main

import (
	"fmt"
	"slices"

	"github.com/cespare/xxhash/v2"

	"queen/fsm"
)

// Calls with an Idempotency-Key, and the same calls sent again: after an answer,
// after a crash that took the answer away, and with another request under the
// same key. What was carried out once is answered with the first answer and has
// no second effect.

// firstAnswer is the first answer under a key.
type firstAnswer struct {
	route fsm.OutcomeRoute
	hash  [16]byte
	at    int64
	body  []byte
}

// request is a keyed request as a client may send it again.
type request struct {
	key  string
	hash [16]byte
	push []fsm.PushItem // without ids: the edge mints them anew
	ops  []fsm.KVOp
}

// keyedCall makes a new request, or sends one again.
func (l *load) keyedCall() *command {
	if n := len(l.requests); n > 0 && !l.oneIn(3) {
		r := l.requests[n-1-l.w.rng.IntN(min(n, 6))]
		if l.oneIn(8) {
			r.hash[0] ^= 1 // another request
		}
		return l.request(r)
	}
	r := &request{key: fmt.Sprintf("i%d", l.seq)}
	r.hash[1], r.hash[2], r.hash[3] = byte(l.seq), byte(l.seq>>8), byte(l.seq>>16)
	for range 1 + l.w.rng.IntN(3) {
		r.push = append(r.push, l.item(l.queue(), l.partition()))
	}
	if l.oneIn(2) {
		r.ops = l.kvOps(1 + l.w.rng.IntN(2))
	}
	l.requests = append(l.requests, *r)
	return l.request(*r)
}

// request makes the call of a request: a transaction when it has operations.
func (l *load) request(r request) *command {
	items := slices.Clone(r.push)
	for i := range items {
		items[i] = l.copyOf(items[i])
	}
	push := fsm.Push{Items: items}
	push.GroupItems()
	k := &fsm.Keyed{Route: fsm.OutcomePush, Key: r.key, Hash: r.hash}
	var c *command
	done := &push
	if len(r.ops) > 0 {
		k.Route = fsm.OutcomeTransaction
		t := &fsm.Txn{Push: push, KV: slices.Clone(r.ops)}
		c, done = l.command(t), &t.Push
	} else {
		c = l.command(done)
	}
	pad := choose(l.w.rng, 0, 0, 5000) // inline, or a value beside the row
	k.Render = func() (int, []byte) {
		body := fmt.Appendf(nil, "call %d", c.n)
		for i := range done.Items {
			it := &done.Items[i]
			body = fmt.Appendf(body, " %d:%d/%d", it.Status, it.PartitionID, it.Offset)
		}
		return 200, append(body, make([]byte, pad)...)
	}
	c.call.Key = k
	return c
}

// copyOf is an item with an id of its own.
func (l *load) copyOf(it fsm.PushItem) fsm.PushItem {
	known := *l.w.book.msgs[it.ID]
	known.stored = false
	return l.itemOf(known.queue, known.partition, known.txn)
}

// repeated fetches the answer of a repeated call, as the edge does. One whose
// process has died gets none.
func (w *world) repeated(c *command) {
	o := &c.call.Key.Outcome
	if c.answer, c.fetched = o.Body, true; o.Content == 0 {
		return
	}
	var err error
	if c.answer, err = w.node.step.Reader().Value(o.Content, 0); err != nil && !w.disturbed() {
		w.fail("call %d: the first answer cannot be read: %v", c.n, err)
	}
	c.fetched = err == nil
}

// keyed enters the fate of a keyed call. It reports whether the call was judged
// now, and not known before.
func (b *book) keyed(c *command, now int64) bool {
	k := c.call.Key
	first, known := b.outcomes[k.Key]
	live := known && now < first.at+b.window
	push, refused := keyedPush(c)
	switch {
	case k.Repeat && (!live || first.hash != k.Hash):
		b.w.fail("call %d: a repeat of key %s, which has no first answer", c.n, k.Key)
	case k.Repeat && c.fetched && string(c.answer) != string(first.body):
		b.w.fail("call %d: a repeat of key %s got %.80q, the first answer is %.80q", c.n, k.Key, c.answer, first.body)
	case k.Reused && (!live || first.hash == k.Hash):
		b.w.fail("call %d: key %s is said to be of another request", c.n, k.Key)
	case k.Repeat || k.Reused:
		b.w.totals.Repeats++
		if n := b.storedOf(push); n > 0 {
			b.w.fail("call %d: %d messages of a call that was not carried out again are stored", c.n, n)
		}
		return false
	case live:
		b.w.fail("call %d: carried out, and so was the first call of key %s", c.n, k.Key)
	case k.Kept == refused:
		b.w.fail("call %d: refused %v, its outcome kept %v", c.n, refused, k.Kept)
	case k.Kept:
		b.outcomes[k.Key] = firstAnswer{k.Route, k.Hash, now, slices.Clone(k.Body)}
	}
	return true
}

func keyedPush(c *command) (p *fsm.Push, refused bool) {
	if t, ok := c.call.Body.(*fsm.Txn); ok {
		return &t.Push, t.Reason != ""
	}
	return c.call.Body.(*fsm.Push), false
}

// auditOutcomes compares the kept outcomes with the first answers.
func (b *book) auditOutcomes(n *node, s *fsm.State) {
	at := n.machine.Time()
	for _, key := range sortedKeys(b.outcomes) {
		first := b.outcomes[key]
		if at >= first.at+b.window {
			continue
		}
		o, ok := s.Outcome(tenant, first.route, key)
		if !ok || o.At != first.at || o.Hash != first.hash {
			b.w.fail("the outcome of key %s (at %d) after the boot: found %v, of %d", key, first.at, ok, o.At)
		}
		body := o.Body
		if o.Content != 0 {
			var err error
			if body, err = n.step.Reader().Value(o.Content, 0); err != nil {
				if isInjected(err) {
					return
				}
				b.w.fail("the answer of key %s cannot be read after the boot: %v", key, err)
			}
		}
		if xxhash.Sum64(body) != xxhash.Sum64(first.body) {
			b.w.fail("the answer of key %s after the boot is %.80q, it was %.80q", key, body, first.body)
		}
	}
}
