package fsm

import (
	"fmt"
	"slices"
	"strings"
)

// What a modelRun does next: calls on few names, so that they meet.

func (x *modelRun) next() *Call {
	body, text := x.body()
	c := x.r.call(body)
	if x.oneIn(12) {
		c.Tenant = otherTenant
		text += " (other tenant)"
	}
	if b, ok := body.(*Ack); ok && x.oneIn(4) {
		var next string
		b.Next, next = x.nextPop()
		text += next
	}
	if _, ok := body.(committer); ok && x.oneIn(4) {
		text += x.withKey(c)
	}
	x.tracef("%d: %s", x.r.now-startTime, text)
	return c
}

func (x *modelRun) body() (any, string) {
	switch n := x.pick(87); {
	case n == 86:
		return x.switches()
	case n >= 78:
		return x.groupCall()
	case n >= 75:
		return x.lockCall()
	case n < 12:
		return x.push()
	case n < 26:
		return x.pop()
	case n < 38:
		return x.ack()
	case n < 47:
		return x.txn()
	case n < 52:
		return x.kvCall()
	case n < 55:
		return x.timers()
	case n < 56:
		e := &Extend{LeaseID: x.someLease(), Seconds: int64(x.pick(4))}
		return e, fmt.Sprintf("extend %s %d", e.LeaseID, e.Seconds)
	case n < 57:
		return x.configure()
	case n < 58:
		return x.handBack()
	case n < 59:
		return x.replay()
	case n < 66:
		return x.redriveCall()
	case n < 74:
		return x.die()
	}
	switch x.pick(4) {
	case 0:
		d := &DeleteQueue{Queue: x.queueName()}
		return d, "delete " + d.Queue
	case 1:
		p := &PurgeDeadLetters{Queue: x.queueName(), Group: x.groupName(), AnyGroup: x.oneIn(2)}
		return p, fmt.Sprintf("purge %s %s %v", p.Queue, p.Group, p.AnyGroup)
	}
	x.leave()
	return x.push()
}

func (x *modelRun) queueName() string { return choose(x, "a", "a", "x.b", "x.c") }
func (x *modelRun) partName() string  { return choose(x, "p", "p", "q", "r") }
func (x *modelRun) groupName() string { return choose(x, QueueMode, "g1", "g1", "g2") }

func (x *modelRun) push() (any, string) {
	p := &Push{}
	text := "push"
	q := x.queueName()
	for n := 1 + x.pick(4); n > 0; n-- {
		if x.oneIn(5) {
			q = x.queueName()
		}
		it := x.item(q, x.partName())
		p.Items = append(p.Items, it)
		text += itemText(&it)
	}
	p.GroupItems()
	return p, text
}

func itemText(it *PushItem) string {
	return fmt.Sprintf(" %s/%s:%.5s#%d", it.Queue, it.Partition, it.Txn, len(it.Packed))
}

func (x *modelRun) pop() (any, string) {
	p := &Pop{
		Queue: x.queueName(), Group: x.groupName(), Batch: choose(x, 1, 2, 3, 5, 200), Partitions: 1 + x.pick(3),
		LeaseSeconds: int64(x.pick(3)), CommitOnDelivery: x.oneIn(10), LeaseID: x.newLease(),
		Worker: choose(x, "", "w1", "w2"),
	}
	switch x.pick(5) {
	case 0:
		p.Mode = SubscribeNew
	case 1:
		p.Mode = SubscribeAll
	case 2:
		p.Mode, p.From = SubscribeFrom, x.r.now+choose(x, int64(-2_000_000), -1, 0, 1_000_000)
	}
	if x.oneIn(3) {
		p.WaitMicros = choose(x, int64(1), 500_000, 3_000_000)
	}
	if p.Conflate = x.oneIn(4); x.oneIn(3) {
		p.Partitions, p.DefaultPartitions = 1, true
	}
	switch {
	case x.oneIn(8):
		p.Queue, p.MatchNamespace, p.Namespace = "", x.oneIn(2), "x"
		p.MatchTask, p.Task = !p.MatchNamespace || x.oneIn(2), "b"
	case x.oneIn(4):
		p.Partition = x.partName()
	}
	return p, fmt.Sprintf("pop %q/%q ns %v task %v group %s mode %d from %d batch %d parts %d wait %d cod %v conflate %v lease %s", p.Queue, p.Partition,
		p.MatchNamespace, p.MatchTask, p.Group, p.Mode, p.From-startTime, p.Batch, p.Partitions, p.WaitMicros, p.CommitOnDelivery, p.Conflate, p.LeaseID[:])
}

// die is a worker that takes what another one died of, once its lease is over.
func (x *modelRun) die() (any, string) {
	list := x.places(true)
	if len(list) == 0 {
		return x.pop()
	}
	at := list[x.pick(len(list))]
	if at.part.q.opts.MaxDeliveries == 0 {
		c := &Configure{Queue: at.part.q.name, Set: []OptionValue{{Name: "maxDeliveries", Num: int64(1 + x.pick(2))}}}
		return c, fmt.Sprintf("configure %s %+v", c.Queue, c.Set)
	}
	x.r.now = max(x.r.now, at.c.lease.expires+int64(x.pick(2)))
	p := &Pop{
		Queue: at.part.q.name, Group: at.group, Partition: choose(x, "", at.part.name), Batch: choose(x, 1, 3, 200), Partitions: 1 + x.pick(3),
		LeaseSeconds: 1, LeaseID: x.newLease(), CommitOnDelivery: x.oneIn(16), WaitMicros: choose(x, int64(0), 500_000),
	}
	return p, fmt.Sprintf("pop %q/%q group %s batch %d parts %d cod %v lease %s after a death", p.Queue, p.Partition, p.Group, p.Batch,
		p.Partitions, p.CommitOnDelivery, p.LeaseID[:])
}

// place is a cursor that acks can be about.
type place struct {
	part  *mPart
	group string
	c     *mCursor
}

func (x *modelRun) places(leased bool) (out []place) {
	for _, tenant := range []string{tenantA, otherTenant} {
		for _, q := range x.m.sorted(tenant) {
			for _, p := range q.order {
				var groups []string
				for g, c := range p.cursors {
					if !leased || c.live(x.r.now) != nil {
						groups = append(groups, g)
					}
				}
				slices.Sort(groups)
				for _, g := range groups {
					out = append(out, place{p, g, p.cursors[g]})
				}
			}
		}
	}
	return out
}

func (x *modelRun) ack() (any, string) {
	a := &Ack{}
	text := "ack"
	for n := 1 + x.pick(2); n > 0; n-- {
		items := x.ackItems()
		a.Items = append(a.Items, items...)
		text += acksText(items)
	}
	return a, text
}

func acksText(items []AckItem) string {
	out := ""
	for i := range items {
		it := &items[i]
		out += fmt.Sprintf(" %d:%.5s:%d", it.PartitionID, it.Txn, it.Status)
		if it.HasLease {
			out += ":" + strings.TrimRight(string(it.LeaseID[:]), "\x00")
		}
		out += " of " + it.Group
	}
	return out
}

// ackItems are acks of one (partition, group), mostly of its leased batch.
func (x *modelRun) ackItems() (items []AckItem) {
	at := place{}
	list := x.places(!x.oneIn(4))
	if len(list) > 0 {
		at = list[x.pick(len(list))]
	}
	bad := x.oneIn(3) // all kinds of statuses, or completed only
	for n := 1 + x.pick(4); n > 0; n-- {
		it := AckItem{Group: at.group, PartitionID: 99, Txn: []byte("ghost"), Error: choose(x, "", "e1", "e2")}
		if at.part != nil && !x.oneIn(25) {
			it.PartitionID = at.part.id
			if len(at.part.msgs) > 0 && !x.oneIn(25) {
				it.Txn = []byte(at.part.msgs[x.ackOffset(at)].txn)
			}
		}
		it.TxnHash = txnHash(string(it.Txn))
		switch l := (*mLease)(nil); x.pick(12) {
		case 0, 1:
		case 2:
			it.HasLease, it.LeaseID = true, x.someLease()
		case 3:
			if at.c != nil && at.c.released != nil {
				it.HasLease, it.LeaseID = true, at.c.released.id
			}
		default:
			if at.c != nil {
				l = at.c.lease
			}
			if l != nil {
				it.HasLease, it.LeaseID = true, l.id
			}
		}
		if bad {
			it.Status = AckStatus(x.pick(4))
		}
		if x.oneIn(8) {
			it.DelayMs = 500
		}
		if x.oneIn(30) {
			it.Group = x.groupName()
		}
		items = append(items, it)
	}
	return items
}

func (x *modelRun) ackOffset(at place) int {
	n := len(at.part.msgs)
	if l := at.c.lease; l != nil && !x.oneIn(6) {
		return min(int(l.from)+x.pick(int(l.to-l.from)+1), n-1)
	}
	return n - 1 - x.pick(min(n, 8))
}

func (x *modelRun) txn() (any, string) {
	t := &Txn{}
	text := "txn"
	if !x.oneIn(3) {
		t.Acks = x.ackItems()
		if x.oneIn(4) {
			t.Acks = append(t.Acks, x.ackItems()...)
		}
		text += " ack" + acksText(t.Acks)
	}
	if x.oneIn(2) {
		p, push := x.push()
		t.Push = *p.(*Push)
		text += " " + push
	}
	for n := x.pick(3) - 1; n > 0 || n == 0 && x.oneIn(4); n-- {
		pos := Position{
			Queue: x.queueName(), Partition: x.partName(), Group: x.groupName(), Forget: x.oneIn(3), Offset: uint64(x.pick(12)),
			Mode: SubscriptionMode(x.pick(3)),
		}
		t.Positions = append(t.Positions, pos)
		text += fmt.Sprintf(" pos %+v", pos)
	}
	if x.oneIn(2) {
		t.KV = x.kvOps(false)
		text += kvOpsText(t.KV)
	}
	if x.oneIn(4) {
		t.Timers = x.timerList()
		text += timerOpsText(t.Timers)
	}
	if x.oneIn(4) {
		var next string
		t.Next, next = x.nextPop()
		text += next
	}
	return t, text
}

func (x *modelRun) kvCall() (any, string) {
	kv := &KV{Ops: x.kvOps(true)}
	return kv, kvOpsText(kv.Ops)
}

func (x *modelRun) kvOps(prefix bool) (ops []KVOp) {
	written := map[string]bool{}
	for n := 1 + x.pick(4); n > 0; n-- {
		op := KVOp{
			Kind: KVOpKind(1 + x.pick(8)), NS: choose(x, "n", "n", "n2"), Key: choose(x, "k", "k1", "k10", "m"), Required: x.oneIn(6),
			Limit: 1 + x.pick(3), KeysOnly: false,
		}
		if x.oneIn(8) { // a guard, or somebody who breaks a lock
			op.NS, op.Key = LockNamespace, choose(x, "l#0", "l#1", "m#0")
		}
		switch {
		case op.Kind == KVGetPrefix && !prefix:
			op.Kind = KVPut
		case op.Kind == KVGetPrefix:
			op.Prefix, op.After = choose(x, "k", "k1", "m"), choose(x, "", "", "k1", "z")
		case op.Kind == KVGetMany:
			op.Keys = []string{op.Key, choose(x, "k", "none")}
		}
		if op.Kind.Write() {
			if written[op.NS+"/"+op.Key] {
				continue
			}
			written[op.NS+"/"+op.Key] = true
			op.Value = []byte(choose(x, "1", "2.5", `"s"`, "null", "1e3", "9007199254740991"))
			op.TTL = int64(x.pick(3))
			op.Delta = choose(x, 1, -1, 0.5, 1<<52)
			op.HasMin, op.Min = x.oneIn(4), 0
			op.HasMax, op.Max = x.oneIn(4), 3
		}
		switch op.Kind {
		case KVPut, KVCheck:
			op.HasExpect = op.Kind == KVCheck || x.oneIn(3)
			op.Expect = x.expectOf(op.NS, op.Key, true)
		case KVDelete:
			op.HasExpect = x.oneIn(3)
			op.Expect = x.expectOf(op.NS, op.Key, false)
		}
		ops = append(ops, op)
	}
	return ops
}

// expectOf is mostly the version that a key has.
func (x *modelRun) expectOf(ns, key string, zero bool) int64 {
	if zero && x.oneIn(3) {
		return 0
	}
	if k := x.m.kv[tenantA+ns+"\x00"+key]; k != nil && !x.oneIn(4) {
		return k.version
	}
	return 1 + int64(x.pick(20))
}

func kvOpsText(ops []KVOp) string {
	out := " kv"
	for i := range ops {
		op := &ops[i]
		out += fmt.Sprintf(" {%d %s/%s ttl %d expect %v %d required %v delta %v}", op.Kind, op.NS, op.Key, op.TTL, op.HasExpect, op.Expect, op.Required, op.Delta)
	}
	return out
}

func (x *modelRun) timers() (any, string) {
	t := &Timers{Ops: x.timerList()}
	return t, timerOpsText(t.Ops)
}

func (x *modelRun) timerList() (ops []TimerOp) {
	seen := map[string]bool{}
	for n := 1 + x.pick(3); n > 0; n-- {
		q, key := x.queueName(), choose(x, "t1", "t2", "t3")
		if seen[q+key] {
			continue
		}
		seen[q+key] = true
		it := x.item(q, x.partName())
		if x.oneIn(8) {
			it = x.r.item(q, it.Partition, string(it.Txn), []byte(strings.Repeat("x", 6000)))
		}
		op := TimerOp{
			Queue: q, Partition: it.Partition, Key: key, Cancel: x.oneIn(4), Txn: it.Txn, MessageID: it.ID, Message: it.Packed,
			DelayMs: choose(x, int64(-5), 0, 1, 500, 2000),
		}
		ops = append(ops, op)
	}
	return ops
}

func timerOpsText(ops []TimerOp) string {
	out := " timers"
	for i := range ops {
		op := &ops[i]
		out += fmt.Sprintf(" {%s/%s %s cancel %v txn %.5s delay %d size %d}", op.Queue, op.Partition, op.Key, op.Cancel, op.Txn, op.DelayMs, len(op.Message))
	}
	return out
}

func (x *modelRun) configure() (any, string) {
	c := &Configure{Queue: x.queueName(), Replace: x.oneIn(4)}
	for n := 1 + x.pick(3); n > 0; n-- {
		v := choose(x,
			OptionValue{Name: "leaseTime", Num: int64(1 + x.pick(3))},
			OptionValue{Name: "retryLimit", Num: int64(x.pick(3))},
			OptionValue{Name: "dedupWindowSeconds", Num: choose(x, int64(0), 1, 3, 3600)},
			OptionValue{Name: "delayedProcessing", Num: choose(x, int64(0), 0, 1, 2)},
			OptionValue{Name: "windowBuffer", Num: choose(x, int64(0), 0, 1)},
			OptionValue{Name: "deadLetterQueue", Flag: x.oneIn(2)},
			OptionValue{Name: "dlqAfterMaxRetries", Flag: x.oneIn(2)},
			OptionValue{Name: "retryBackoff", Flag: x.oneIn(2)},
			OptionValue{Name: "retryDelay", Num: choose(x, int64(0), 100, 1000)},
			OptionValue{Name: "retentionEnabled", Flag: !x.oneIn(4)},
			OptionValue{Name: "retentionSeconds", Num: choose(x, int64(0), 1, 2, 60)},
			OptionValue{Name: "completedRetentionSeconds", Num: choose(x, int64(0), 1, 2)},
			OptionValue{Name: "maxWaitTimeSeconds", Num: choose(x, int64(0), 0, 0, 3)},
			OptionValue{Name: "priority", Num: int64(x.pick(3)) - 1},
			OptionValue{Name: "maxDeliveries", Num: int64(x.pick(4))},
			OptionValue{Name: "maxDeliveries", Num: int64(1 + x.pick(2))},
		)
		v.Null = x.oneIn(5)
		c.Set = append(c.Set, v)
	}
	return c, fmt.Sprintf("configure %s replace %v %+v", c.Queue, c.Replace, c.Set)
}

// handBack gives back what a recent pop claimed.
func (x *modelRun) handBack() (any, string) {
	for len(x.pops) > 0 {
		i := x.pick(len(x.pops))
		p := claimOf(x.pops[i])
		x.pops = slices.Delete(x.pops, i, i+1)
		if len(p.Claims) > 0 && !p.CommitOnDelivery {
			return &HandBack{LeaseID: p.LeaseID, Claims: p.Claims}, fmt.Sprintf("handback %s", p.LeaseID[:])
		}
	}
	return x.pop()
}

// leave is the caller of a waiting pop that goes away.
func (x *modelRun) leave() {
	if n := len(x.r.m.deadlines); n > 0 {
		c := x.r.m.deadlines[x.pick(n)].call
		c.Gone.Store(true)
		x.tracef("gone: %s", claimOf(c).LeaseID[:])
	}
}

// claimOf is the pop of a call: itself, or what it claims with its commit.
func claimOf(c *Call) *Pop {
	if p, ok := c.Body.(*Pop); ok {
		return p
	}
	return nextOf(c)
}

func (x *modelRun) replay() (any, string) {
	r := &ReplayDeadLetter{Item: PushItem{ID: x.r.id()}}
	if n := len(x.r.letters); n > 0 {
		r.ID = x.r.letters[n-1-x.pick(min(n, 4))]
	}
	if x.oneIn(2) {
		r.Queue, r.Partition = x.queueName(), x.partName()
	}
	return r, fmt.Sprintf("replay %x to %q/%q", r.ID, r.Queue, r.Partition)
}
