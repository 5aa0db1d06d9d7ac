package fsm

import (
	"slices"
	"strings"
)

// The model's acks (push-pop-ack.md section 4) and transactions.

// mJudged is one ack on the state before its call.
type mJudged struct {
	part   *mPart
	c      *mCursor
	group  string
	offset uint64
	apply  bool
	ok     bool   // success
	err    string // what the text of a refusal begins with
	ends   bool   // it only ends a lease whose batch retention has taken
	repeat bool   // of the ack that released its lease
	dlq    bool   // of a repeat
}

// status is what the ack does: one that only ends a lease completes.
func (j *mJudged) status(it *AckItem) AckStatus {
	if j.ends {
		return Completed
	}
	return it.Status
}

// judgeAcks judges the acks of one call. strict is the transaction's rule: an
// ack with a lease needs it live.
func (m *model) judgeAcks(tenant string, items []AckItem, strict bool) []mJudged {
	out := make([]mJudged, len(items))
	for i := range items {
		out[i] = m.judgeAck(tenant, &items[i], strict, out[:i])
	}
	return out
}

func (m *model) judgeAck(tenant string, it *AckItem, strict bool, before []mJudged) mJudged {
	p := m.part(tenant, it.PartitionID)
	if p == nil {
		return mJudged{err: "unknown partition"}
	}
	c := p.cursors[it.Group]
	if c == nil && it.HasLease {
		return mJudged{err: "invalid or expired lease"}
	}
	if c == nil {
		return mJudged{err: "consumer not found"}
	}
	held := c.live(m.now)
	if !it.HasLease || held != nil && held.id != it.LeaseID {
		held = nil
	}
	if it.HasLease && held == nil && strict {
		return mJudged{err: "invalid or expired lease"}
	}
	free, taken, settled := int64(-1), int64(-1), int64(-1)
	for o := range p.msgs {
		if p.msgs[o].txn != string(it.Txn) {
			continue
		}
		switch {
		case c.settled(uint64(o)):
			settled = int64(o) // the newest counts
		case uint64(o) < p.start: // a position was set below the log start
		case held != nil && uint64(o) > held.to:
		case isTaken(before, c, uint64(o)):
			if taken < 0 {
				taken = int64(o)
			}
		case free < 0 || held != nil && p.q.groups[it.Group].newest:
			free = int64(o)
		}
	}
	if free < 0 {
		free = taken
	}
	j := mJudged{part: p, c: c, group: it.Group}
	if it.HasLease && held == nil {
		return c.withoutLease(j, it, free, settled)
	}
	switch {
	case free >= 0:
		j.offset, j.apply, j.ok = uint64(free), true, true
	case settled >= 0 && it.Status == Completed:
		j.ok = true
		if held != nil && uint64(settled) == held.to && c.floor >= int64(held.to) {
			j.offset, j.apply, j.ends = held.to, true, true
		}
	case settled >= 0 && held != nil && uint64(settled) <= held.to && c.floor >= int64(held.to):
		j.offset, j.apply, j.ok, j.ends = held.to, true, true, true
	case settled >= 0:
		j.err = "already committed"
	default:
		j.err = "unresolvable"
	}
	return j
}

func isTaken(before []mJudged, c *mCursor, o uint64) bool {
	for _, j := range before {
		if j.apply && j.c == c && j.offset == o {
			return true
		}
	}
	return false
}

// withoutLease is an ack whose lease is not, or no longer, the live one.
func (c *mCursor) withoutLease(j mJudged, it *AckItem, free, settled int64) mJudged {
	if r := c.released; r != nil && r.id == it.LeaseID {
		came := free >= 0 && r.nacked[uint64(free)]
		dead := settled >= 0 && r.dead[uint64(settled)]
		dropped := settled >= 0 && r.dropped[uint64(settled)]
		switch it.Status {
		case Completed:
			j.repeat = settled >= 0 && r.completed
		case DeadLetter:
			j.repeat = dead
		case Failed:
			j.repeat = came || dead || dropped
		case Retry:
			j.repeat = came
		}
		if j.repeat {
			j.ok, j.dlq = true, dead && it.Status != Completed
			return j
		}
	}
	switch {
	case settled >= 0 && it.Status == Completed:
		j.ok = true
	case settled >= 0:
		j.err = "already committed"
	default:
		j.err = "invalid or expired lease"
	}
	return j
}

// acks is a call of the ack routes.
func (m *model) acks(tenant string, items []AckItem) {
	judged := m.judgeAcks(tenant, items, false)
	filed := 0
	for i := range items {
		if filed += m.fileSize(&items[i], &judged[i]); filed > m.cfg.EntryBytes && m.fileSize(&items[i], &judged[i]) > 0 {
			judged[i] = mJudged{err: "unavailable"}
		}
	}
	for i := range items {
		it, j := &items[i], &judged[i]
		if it.Success != j.ok {
			m.fail("ack %s: the machine says %v %q, the model %v %q: %+v", acksText(items[i:i+1]), it.Success, it.Err, j.ok, j.err, *j)
		}
		if !strings.HasPrefix(it.Err, j.err) || j.ok != (it.Err == "") {
			m.fail("ack of %s: the machine says %q, the model %q", it.Txn, it.Err, j.err)
		}
		m.expect("noop of an ack", it.Noop, j.ok && (!j.apply || j.ends))
		if !j.apply {
			m.expect("leaseReleased of an ack that changes nothing", it.LeaseReleased, j.repeat)
			m.expect("dlq of an ack that changes nothing", it.DLQ, j.dlq)
		}
	}
	m.settle(items, judged)
}

// fileSize is the size of the message that an ack would file.
func (m *model) fileSize(it *AckItem, j *mJudged) int {
	if !j.apply || j.ends {
		return 0
	}
	opts := &j.part.q.opts
	spent := it.Status == Failed && j.c.retries >= opts.RetryLimit && (opts.DeadLetterQueue || opts.DLQAfterMaxRetries)
	if it.Status != DeadLetter && !spent {
		return 0
	}
	return len(j.part.msgs[j.offset].raw)
}

// settle carries the judged acks out, for each (partition, group) together.
func (m *model) settle(items []AckItem, judged []mJudged) {
	seen := map[*mCursor]bool{}
	for i := range judged {
		if j := &judged[i]; j.apply && !seen[j.c] {
			seen[j.c] = true
			m.settleCursor(items, judged, j)
		}
	}
}

var mRank = map[AckStatus]int{Completed: 0, Retry: 1, Failed: 2, DeadLetter: 3}

func (m *model) settleCursor(items []AckItem, judged []mJudged, at *mJudged) {
	c, opts := at.c, &at.part.q.opts
	newest := at.part.q.groups[at.group].newest
	owed := unsettledOf(at.part, c)
	spent := c.retries >= opts.RetryLimit
	keeps := opts.DeadLetterQueue || opts.DLQAfterMaxRetries
	strongest := map[uint64]AckStatus{}
	var mine []int
	for i := range items {
		if j := &judged[i]; j.apply && j.c == c {
			mine = append(mine, i)
			if old, ok := strongest[j.offset]; !ok || mRank[j.status(&items[i])] > mRank[old] {
				strongest[j.offset] = j.status(&items[i])
			}
		}
	}
	back := func(o uint64) bool { s := strongest[o]; return s == Retry || s == Failed && !spent }
	filed := func(o uint64) bool { s := strongest[o]; return s == DeadLetter || s == Failed && spent && keeps }
	stop, top := int64(-1), c.floor
	did := mReleased{nacked: map[uint64]bool{}, dead: map[uint64]bool{}, dropped: map[uint64]bool{}}
	charged, ended, nacked := false, false, false
	for o, s := range strongest {
		switch {
		case back(o):
			if stop < 0 || int64(o) < stop {
				stop = int64(o)
			}
			did.nacked[o] = true
			charged = charged || s == Failed
		case s == Completed:
			did.completed = true
		case filed(o):
			did.dead[o], ended = true, true
		default:
			did.dropped[o], ended = true, true
		}
		nacked = nacked || s != Completed
		top = max(top, int64(o))
	}
	// What comes back holds the cursor; everything else that was named stays settled.
	for o := range strongest {
		if !back(o) {
			c.above[o] = true
		}
	}
	if stop >= 0 {
		c.floor = max(c.floor, stop-1)
	} else {
		c.floor = top
	}
	c.normalise()
	m.fileAll(items, judged, mine, strongest, filed, back, c.retries)
	if ended {
		c.retries = 0
	}
	if charged {
		c.retries++
	}
	m.holdBack(items, judged, mine, strongest, back, c, opts)
	m.releaseLease(items, judged, mine, strongest, nacked, did, c)
	m.conflated(items, judged, mine, newest && !nacked, owed-unsettledOf(at.part, c)-len(strongest))
}

// conflated expects that the completed ack of the highest message tells how many
// others went with it, and that no other ack does.
func (m *model) conflated(items []AckItem, judged []mJudged, mine []int, tells bool, others int) {
	last := -1
	for _, i := range mine {
		if last < 0 || judged[i].offset >= judged[last].offset {
			last = i
		}
	}
	for _, i := range mine {
		want := int64(0)
		if tells && i == last {
			want = int64(max(others, 0))
		}
		m.expect("an ack tells what was conflated", items[i].Conflates, tells && i == last)
		m.expect("conflated", items[i].Conflated, want)
	}
}

// unsettledOf counts the retained messages that a cursor has not settled.
func unsettledOf(p *mPart, c *mCursor) (n int) {
	for o := p.start; o < uint64(len(p.msgs)); o++ {
		if !c.settled(o) {
			n++
		}
	}
	return n
}

func (m *model) fileAll(items []AckItem, judged []mJudged, mine []int, strongest map[uint64]AckStatus,
	filed, back func(uint64) bool, retries int64) {
	done := map[uint64]bool{}
	for _, i := range mine {
		it, j := &items[i], &judged[i]
		counts := j.status(it) == strongest[j.offset]
		m.expect("dlq of an ack", it.DLQ, counts && filed(j.offset))
		m.expect("dropped", it.Dropped, counts && j.status(it) != Completed && !back(j.offset) && !filed(j.offset))
		if !counts || !filed(j.offset) || done[j.offset] {
			continue
		}
		done[j.offset] = true
		l := &mLetter{
			q: j.part.q, part: j.part.name, offset: j.offset, group: j.group, err: it.Error, retries: retries, failed: m.now,
			raw: j.part.msgs[j.offset].raw,
		}
		if l.err == "" {
			l.err = "Retries exhausted"
		}
		m.file(l)
	}
}

func (m *model) holdBack(items []AckItem, judged []mJudged, mine []int, strongest map[uint64]AckStatus,
	back func(uint64) bool, c *mCursor, opts *Options) {
	wait := int64(0)
	for _, i := range mine {
		it, o := &items[i], judged[i].offset
		switch {
		case !back(o):
		case it.DelayMs > 0:
			wait = max(wait, it.DelayMs*1000)
		case strongest[o] == Failed && opts.RetryBackoff:
			d := opts.RetryDelay * 1000
			for n := int64(1); n < c.retries && d < 3600_000_000; n++ {
				d *= 2
			}
			wait = max(wait, min(d, 3600_000_000))
		}
	}
	if wait > 0 {
		c.hold = m.now + wait
	}
}

func (m *model) releaseLease(items []AckItem, judged []mJudged, mine []int, strongest map[uint64]AckStatus,
	nacked bool, did mReleased, c *mCursor) {
	l := c.lease
	complete := l != nil && c.floor >= int64(l.to)
	released := -1
	if l != nil && (nacked || complete) {
		if m.now < l.expires {
			for _, i := range mine {
				switch {
				case nacked && strongest[judged[i].offset] != Completed && released < 0:
					released = i
				case !nacked && (released < 0 || judged[i].offset >= judged[released].offset):
					released = i
				}
			}
		}
		if !nacked {
			c.retries = 0
		}
		did.id = l.id
		c.released, c.lease = &did, nil
	}
	for _, i := range mine {
		m.expect("leaseReleased", items[i].LeaseReleased, i == released)
	}
}

// txn is a transaction: the first refusal in the fixed order decides.
func (m *model) txn(tenant string, t *Txn) {
	judged := m.judgeAcks(tenant, t.Acks, true)
	if want := m.refusal(tenant, t, judged); t.Reason != want || want != "" {
		m.expect("reason of a transaction", t.Reason, want)
		return
	}
	for i := range t.Acks {
		m.expect("noop in a transaction", t.Acks[i].Noop, !judged[i].apply || judged[i].ends)
	}
	m.settle(t.Acks, judged)
	m.push(tenant, &t.Push)
	for i := range t.Positions {
		m.position(tenant, &t.Positions[i])
	}
	m.kvCall(tenant, t.KV, false)
	m.timerOps(tenant, t.Timers)
}

func (m *model) refusal(tenant string, t *Txn, judged []mJudged) string {
	switch {
	case m.off.KVOff && len(t.KV) > 0:
		return "kv_disabled"
	case m.off.ScheduleOff && slices.ContainsFunc(t.Timers, func(op TimerOp) bool { return !op.Cancel }):
		return "timers_disabled"
	}
	for _, j := range judged {
		if !j.ok {
			return "rejected_ack"
		}
	}
	size := 128 * len(t.Acks)
	for i := range t.Acks {
		size += m.fileSize(&t.Acks[i], &judged[i])
	}
	status, repeat := map[*PushItem]PushStatus{}, map[*PushItem]bool{}
	for _, group := range byPlace(&t.Push) {
		all, _ := m.judgePush(tenant, group)
		seen := map[string]bool{}
		for i, it := range group {
			status[it], repeat[it] = all[i], seen[itemTxn(it)]
			seen[itemTxn(it)] = true
		}
	}
	for i := range t.Push.Items {
		it := &t.Push.Items[i]
		switch {
		case status[it] == Refused:
			return "too_large"
		case status[it] == Duplicate && !repeat[it]:
			return "duplicate"
		case status[it] == Queued:
			size += len(it.Packed)
		}
	}
	for i := range t.Positions {
		if m.queue(tenant, t.Positions[i].Queue) == nil {
			return "queue_not_found"
		}
	}
	if i := m.kvCall(tenant, t.KV, true); i >= 0 {
		if t.Reason == ReasonKVPrecondition {
			m.expect("index of the lost gate", t.KVFailed, i)
			m.kvCall(tenant, t.KV, false)
		}
		return "kv_precondition"
	}
	timers := 0
	for i := range t.Timers {
		timers += len(t.Timers[i].Key) + len(t.Timers[i].Queue) + len(t.Timers[i].Message) + 128
	}
	for i := range t.KV {
		size += len(t.KV[i].Key) + len(t.KV[i].Value) + 128
	}
	if timers > m.cfg.EntryBytes || size+timers > m.cfg.EntryBytes {
		return "too_large"
	}
	return ""
}

func (m *model) position(tenant string, pos *Position) {
	q := m.queue(tenant, pos.Queue)
	p := m.needPart(q, pos.Partition)
	g := m.group(q, pos.Group, pos.Mode, 0)
	floor := int64(pos.Offset) - 1
	if pos.Forget {
		if p.cursors[g.name] == nil {
			return
		}
		floor = int64(len(p.msgs)) - 1
		if g.base.mode == SubscribeAll || !g.base.old[p] {
			floor = int64(p.start) - 1
		}
	}
	p.cursors[g.name] = newMCursor(floor)
}
