package fsm

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// Outcomes in the model, and the next batch of a call.

type mOutcome struct {
	name    string
	hash    [16]byte
	at      int64
	seq     int // in the order of the commits
	body    string
	asked   bool
	next    *Pop    // what the call claimed; nil: nothing
	waiting *Call   // waits for its next batch
	repeats []*Call // the same call again, meanwhile
}

// keyed judges a call with a key. repeated: it was not carried out again.
func (m *model) keyed(c *Call) (repeated bool) {
	k := c.Key
	o := m.outcomes[outcomeName(c.Tenant, k.Route, k.Key)]
	if o != nil && m.now >= o.at+m.cfg.OutcomeWindow {
		o = nil
	}
	if o == nil {
		m.expect("a new call is taken for a repeat", k.Repeat || k.Reused, false)
		return false
	}
	m.expect("a call with a key that is known is carried out", k.Kept, false)
	switch {
	case o.hash != k.Hash:
		m.expect("another request with a key that is known is refused", k.Reused, true)
	case o.waiting != nil:
		o.repeats = append(o.repeats, c)
	default:
		m.repeated(o, c)
	}
	return true
}

func (m *model) repeated(o *mOutcome, c *Call) {
	k := c.Key
	m.expect("a repeat", k.Repeat && !k.Kept && !k.Reused, true)
	body := string(k.Outcome.Body)
	if k.Outcome.Content != 0 {
		body = string(m.value(k.Outcome.Content))
	}
	m.expect("answer of a repeat", body, o.body)
	m.expect("time of a repeat", k.Outcome.At, o.at)
	m.expect("a repeat goes on with a batch", k.Outcome.HasNext, o.asked)
	var want []*Claim
	if o.next != nil {
		want = o.next.Claims
	}
	var got []*Claim
	if n := k.Outcome.Next; n != nil {
		got = n.Claims
		m.expect("lease of a repeated batch", n.LeaseID, o.next.LeaseID)
	}
	m.expect("claims of a repeat", claimsText(got), claimsText(want))
}

func claimsText(claims []*Claim) (out string) {
	for _, c := range claims {
		out += fmt.Sprintf(" %s/%s %d %d %v of %d, attempt %d, until %d", c.Queue, c.Partition, c.From, c.To, c.Settled, c.Count, c.Attempt, c.Expires)
	}
	return out
}

// keep takes over what the machine must keep of a call that it has carried out.
func (m *model) keep(c *Call, committed bool) {
	k := c.Key
	m.expect("the outcome of a call is kept", k.Kept, committed)
	if !committed {
		return
	}
	m.outcomeN++
	o := &mOutcome{
		name: outcomeName(c.Tenant, k.Route, k.Key), hash: k.Hash, at: m.now, seq: m.outcomeN, body: string(k.Body), asked: nextOf(c) != nil,
	}
	if o.asked {
		o.waiting = c
	}
	m.outcomes[o.name] = o
}

// decidedNext is what becomes known when a call stops waiting for its batch.
func (m *model) decidedNext(c *Call) {
	for _, o := range m.outcomes {
		if o.waiting != c {
			continue
		}
		o.waiting = nil
		if p := nextOf(c); len(p.Claims) > 0 {
			o.next = p
		}
		for _, r := range o.repeats {
			m.repeated(o, r)
		}
		o.repeats = nil
	}
}

// committedHere is what the contract calls a call that commits.
func committedHere(c *Call) bool {
	switch b := c.Body.(type) {
	case *Push:
		return slices.ContainsFunc(b.Items, func(it PushItem) bool { return it.Status != Refused })
	case *Ack:
		return slices.ContainsFunc(b.Items, func(it AckItem) bool { return it.Success })
	case *Txn:
		return b.Reason == ""
	case *KV:
		return b.Failed < 0 && !b.Disabled
	case *Locks:
		wrote := func(op LockOp) bool { return op.Result.Won && !op.Result.Already && op.Kind != LockGet }
		return !b.Disabled && slices.ContainsFunc(b.Ops, wrote)
	case *Timers:
		return !b.Disabled
	}
	return true
}

// withKey gives a call a key, mostly one that few calls share.
func (x *modelRun) withKey(c *Call) string {
	k := &Keyed{Route: OutcomeRoute(4 + x.pick(2)), Key: fmt.Sprintf("K%d", x.pick(6))}
	if x.oneIn(8) {
		k.Hash[0] = 1
	}
	x.answerN++
	body := fmt.Appendf(nil, "%0*d", choose(x, 5, 5, inlineValue, inlineValue+1, 900), x.answerN)
	k.Render = func() (int, []byte) { return 200, body }
	c.Key = k
	return fmt.Sprintf(" key %d/%s/%d", k.Route, k.Key, k.Hash[0])
}

// nextPop is a claim that comes with a call.
func (x *modelRun) nextPop() (*Pop, string) {
	p := &Pop{
		Queue: x.queueName(), Group: x.groupName(), Batch: choose(x, 1, 2, 200), Partitions: 1 + x.pick(3), LeaseSeconds: int64(x.pick(3)),
		LeaseID: x.newLease(), Mode: choose(x, SubscribeDefault, SubscribeAll),
	}
	if x.oneIn(4) {
		p.Mode, p.From = SubscribeFrom, x.r.now+choose(x, int64(-2_000_000), 0, 1_000_000)
	}
	if x.oneIn(3) {
		p.Partition = x.partName()
	}
	if x.oneIn(2) {
		p.WaitMicros = choose(x, int64(1), 500_000, 3_000_000)
	}
	return p, fmt.Sprintf(" next %s/%q group %s mode %d batch %d parts %d wait %d lease %s", p.Queue, p.Partition, p.Group, p.Mode, p.Batch,
		p.Partitions, p.WaitMicros, p.LeaseID[:])
}

// compareOutcomes checks what is kept: all of it while there is room, and
// otherwise the newest.
func (x *modelRun) compareOutcomes() {
	s := &x.r.m.s.outcomes
	kept := map[string]bool{}
	s.order.Scan(func(_ uint64, o *outcome) bool {
		kept[o.name] = x.m.now < o.at+x.m.cfg.OutcomeWindow
		return true
	})
	oldest, newest := x.m.outcomeN+1, 0
	for name, o := range x.m.outcomes {
		switch {
		case x.m.now >= o.at+x.m.cfg.OutcomeWindow:
			delete(x.m.outcomes, name)
		case kept[name]:
			oldest = min(oldest, o.seq)
			delete(kept, name)
		default:
			newest = max(newest, o.seq)
			if o.waiting == nil {
				delete(x.m.outcomes, name)
			}
		}
	}
	if newest > oldest {
		x.m.fail("outcome %d went before outcome %d", newest, oldest)
	}
	if newest > 0 && x.m.cfg.OutcomeBytes > 1<<20 {
		x.m.fail("outcome %d is gone, and there was room", newest)
	}
	for name, live := range kept {
		if live {
			x.m.fail("outcome %q is kept, and the model has none", name)
		}
	}
	if s.bytes > x.m.cfg.OutcomeBytes {
		x.m.fail("outcomes take %d bytes of %d", s.bytes, x.m.cfg.OutcomeBytes)
	}
}

// TestDryRunIsTheCall: on an idle broker the verdict and the results of a dry run
// are those of the call itself, made at the same time, and the dry run changes nothing.
func TestDryRunIsTheCall(t *testing.T) {
	fixSeed(t)
	committed, rounds := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		x := newModelRun(t, drawPick(t))
		x.run(40)
		rounds++
		for range 4 { // from here on without the model, which still knows what there was
			body, text := x.txn()
			real := body.(*Txn)
			real.Next = nil
			x.tracef("dry run: %s", text)
			if x.dryRun(t, real) {
				committed++
			}
		}
	})
	if committed < rounds/2 {
		t.Fatalf("%d calls would commit: the test says little", committed)
	}
}

func (x *modelRun) dryRun(t *rapid.T, real *Txn) (committed bool) {
	r := x.r
	r.twin = nil
	for n := 0; ; n++ { // whatever is due by itself comes first
		if n == 200 {
			t.Fatalf("the broker does not come to rest")
		}
		r.now = r.last + 1
		for p := r.plan(); len(p.Prepare) > 0; p = r.plan(p.Prepare...) {
			for _, c := range p.Prepare {
				r.resolve(c)
			}
		}
		if wake := r.m.nextWake(); wake == 0 || wake > r.last+100 {
			break
		}
	}
	dry := *real
	dry.DryRun = true
	dry.Next = &Pop{Queue: "a", Group: "g1", Mode: SubscribeAll, Batch: 1, Partitions: 1, LeaseID: leaseID("dry")}
	dry.Acks, dry.KV, dry.Timers = slices.Clone(real.Acks), slices.Clone(real.KV), slices.Clone(real.Timers)
	dry.Push = Push{Items: slices.Clone(real.Push.Items)}
	dry.Push.GroupItems()

	entries, digest := len(r.entries), r.m.Digest()
	asked := r.call(&dry)
	r.do(asked)
	at := r.last
	if len(r.entries) != entries || r.m.Digest() != digest {
		t.Fatalf("a dry run changed the state:\n%v", x.trace)
	}
	if len(dry.Next.Claims) > 0 || dry.Next.parked {
		t.Fatalf("a dry run claimed a batch")
	}
	c := r.call(real)
	c.needs = asked.needs
	r.last, r.now = at-1, at // the same moment
	if p := r.plan(c); slices.Contains(p.Prepare, c) {
		t.Fatalf("the call needs look-ups that the dry run did not")
	}
	if got, want := dryText(&dry), dryText(real); got != want {
		t.Fatalf("the dry run said\n%s\nthe call\n%s\n%v", got, want, x.trace)
	}
	return real.Reason == ""
}

// dryText is the verdict of a transaction, and its results when it has some.
func dryText(t *Txn) string {
	out := fmt.Sprintf("%q %q %d", t.Reason, t.Error, t.KVFailed)
	if t.Reason != "" {
		return out
	}
	for i := range t.Acks {
		it := &t.Acks[i]
		out += fmt.Sprintf("\nack %v %q dlq %v noop %v dropped %v", it.Success, it.Err, it.DLQ, it.Noop, it.Dropped)
	}
	for i := range t.Push.Items {
		it := &t.Push.Items[i]
		out += fmt.Sprintf("\npush %x %v %d", it.ID, it.Status, it.DupOf)
	}
	for i := range t.KV {
		r := &t.KV[i].Result
		out += fmt.Sprintf("\nkv %v %v %s %d %d %d %q %v", r.Applied, r.Found, r.Value, r.Version, r.Expires, r.Updated, r.Reason, r.Missing)
		for j := range r.Rows {
			out += " " + r.Rows[j].text() + string(r.Rows[j].Value)
		}
	}
	for i := range t.Timers {
		op := &t.Timers[i]
		out += fmt.Sprintf("\ntimer %v %s %d %s", op.OK, op.Status, op.DeliverAt, op.OldTxn)
	}
	return out
}
