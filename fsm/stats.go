package fsm

import (
	"sync/atomic"
)

// What happened, counted by queue and by tenant in buckets of time. Planning adds to the numbers of the running minute,
// a few integers a call. When the minute is over they are added to rows, one for each width of bucket, so that a reading
// scans neither partitions nor messages, and a restart forgets the running minute at most.
//
// A series is the buckets of one queue, or of all queues of a tenant. Only so many queues (Config.StatQueues) have a series of
// their own, those that had something to count first; the others count in their tenant's. That bounds the memory, what a
// minute writes, and the answers.

// statTiers are the widths of buckets, and for how long buckets of each are kept, in minutes. The last one's time is
// Config.StatDays. total is for the series of tenants, of which there are few.
var statTiers = [5]struct{ width, keep, total int64 }{
	{1, 90, 25 * 60}, {5, 7 * 60, 7 * 60}, {15, 26 * 60, 26 * 60}, {60, 180 * 60, 180 * 60}, {360, 0, 0},
}

const microsPerMinute = 60_000_000

// Tally is what a bucket of a series counts. Times are in microseconds.
type Tally struct {
	PushRequests, PushMessages           int64 // push calls; messages stored, whatever stored them
	PopRequests, PopMessages, PopEmpty   int64 // pops that got messages; messages; pops that got none
	AckRequests, AckSuccess, AckFailed   int64 // calls; acks that completed a message; acks of other statuses, and refused ones
	Transactions                         int64 // committed ones that acked from the queue or pushed to it
	PartitionsCreated, PartitionsDeleted int64
	DeadLetters                          int64 // filed
	Settled                              int64 // messages that a group has passed, whatever settled them; each group counts
	LagMessages, LagSum, LagMax          int64 // messages whose age at their delivery is in LagSum
	Partitions, Pending, Parked          int64 // when the bucket was written last: a sample
}

// TallyField is a number of a tally by its name.
type TallyField struct {
	Name string
	of   func(*Tally) *int64
}

// Get reads the field.
func (f *TallyField) Get(t *Tally) int64 { return *f.of(t) }

// TallyFields lists the fields in the order of the row. It is never changed; new fields go to the end.
var TallyFields = [...]TallyField{
	{"pushRequests", func(t *Tally) *int64 { return &t.PushRequests }},
	{"pushMessages", func(t *Tally) *int64 { return &t.PushMessages }},
	{"popRequests", func(t *Tally) *int64 { return &t.PopRequests }},
	{"popMessages", func(t *Tally) *int64 { return &t.PopMessages }},
	{"popEmpty", func(t *Tally) *int64 { return &t.PopEmpty }},
	{"ackRequests", func(t *Tally) *int64 { return &t.AckRequests }},
	{"ackSuccess", func(t *Tally) *int64 { return &t.AckSuccess }},
	{"ackFailed", func(t *Tally) *int64 { return &t.AckFailed }},
	{"transactions", func(t *Tally) *int64 { return &t.Transactions }},
	{"partitionsCreated", func(t *Tally) *int64 { return &t.PartitionsCreated }},
	{"partitionsDeleted", func(t *Tally) *int64 { return &t.PartitionsDeleted }},
	{"deadLetters", func(t *Tally) *int64 { return &t.DeadLetters }},
	{"settled", func(t *Tally) *int64 { return &t.Settled }},
	{"lagMessages", func(t *Tally) *int64 { return &t.LagMessages }},
	{"lagSum", func(t *Tally) *int64 { return &t.LagSum }},
	{"lagMax", func(t *Tally) *int64 { return &t.LagMax }},
	{"partitions", func(t *Tally) *int64 { return &t.Partitions }},
	{"pending", func(t *Tally) *int64 { return &t.Pending }},
	{"parked", func(t *Tally) *int64 { return &t.Parked }},
}

// Add counts what a later bucket has counted too.
func (t *Tally) Add(o *Tally) {
	lagMax := max(t.LagMax, o.LagMax)
	for i := range TallyFields {
		*TallyFields[i].of(t) += TallyFields[i].Get(o)
	}
	t.LagMax, t.Partitions, t.Pending, t.Parked = lagMax, o.Partitions, o.Pending, o.Parked
}

// LagMeter collects how old messages were when they were delivered. The edge adds, while the machine runs; the machine takes what is
// there when it writes a bucket.
type LagMeter struct{ messages, sum, max atomic.Int64 }

// Add counts so many messages of a claim; sum and oldest are of their ages at the claim, in microseconds.
func (l *LagMeter) Add(messages, sum, oldest int64) {
	if messages <= 0 {
		return
	}
	l.messages.Add(messages)
	l.sum.Add(max(sum, 0))
	for was := l.max.Load(); oldest > was && !l.max.CompareAndSwap(was, oldest); was = l.max.Load() {
	}
}

func (l *LagMeter) peek(t *Tally) {
	t.LagMessages, t.LagSum, t.LagMax = t.LagMessages+l.messages.Load(), t.LagSum+l.sum.Load(), max(t.LagMax, l.max.Load())
}

func (l *LagMeter) take() (t Tally) {
	t.LagMessages, t.LagSum, t.LagMax = l.messages.Swap(0), l.sum.Swap(0), l.max.Swap(0)
	return t
}

// series is the buckets of a queue, or (q nil) of a tenant.
type series struct {
	q      *queue
	tenant string // of a tenant's
	up     *series
	rows   [len(statTiers)][]*statRow // by start

	// Not rows.
	cur    Tally
	minute int64  // that cur is of; 0: nothing is counted
	call   uint64 // statistics.call when a call was counted
	lag    LagMeter
	gone   bool
}

// statistics is what planning needs to count. None of it is a row.
type statistics struct {
	minute  int64  // of the cycle
	call    uint64 // grows with every call, so that each counts once in a series
	due     []dueSeries
	all     []*series // with rows or something counted
	queues  int       // of those, series of queues
	sink    series    // counts what a tenant's series would pass on
	sweepAt int64
	swept   int  // series of all that this pass has looked at
	closing bool // the node stops: buckets are written before they are over
}

// dueSeries is a series that counts something in a minute.
type dueSeries struct {
	s      *series
	minute int64
}

func (st *statistics) begin(now int64) {
	st.minute = now / microsPerMinute
	st.sink.minute = st.minute
}

// tally is where to count something of a queue: the caller adds to cur, and to up.cur.
func (m *Machine) tally(q *queue) *series {
	s := q.stats
	if s == nil || s.q == nil && m.stats.queues < m.cfg.StatQueues {
		s = m.newSeries(q)
	}
	if s.minute != m.stats.minute {
		m.openBucket(s)
	}
	if s.up.minute != m.stats.minute {
		m.openBucket(s.up)
	}
	return s
}

// once reports whether the call that is planned is counted in a series for the first time.
func (m *Machine) once(s *series) bool {
	if s.call == m.stats.call {
		return false
	}
	s.call = m.stats.call
	return true
}

// newSeries gives a queue a series of its own, or that of its tenant.
func (m *Machine) newSeries(q *queue) *series {
	total, ok := m.s.totals.Get(q.tenant)
	if !ok {
		total = &series{tenant: q.tenant}
		m.s.totals.Set(q.tenant, total)
		m.stats.all = append(m.stats.all, total)
	}
	total.up = &m.stats.sink
	q.stats = total
	if m.stats.queues < m.cfg.StatQueues && !q.deleted {
		q.stats = &series{q: q, up: total}
		m.stats.queues++
		m.stats.all = append(m.stats.all, q.stats)
	}
	return q.stats
}

func (m *Machine) openBucket(s *series) {
	if s.minute != 0 {
		m.writeBucket(s)
	}
	s.minute = m.stats.minute
	m.stats.due = append(m.stats.due, dueSeries{s, s.minute})
}

// statSlice bounds how many series a cycle writes or looks at; the rest is left to the next one (F24).
const statSlice = 64

// writeBuckets writes the series whose minute is over.
func (m *Machine) writeBuckets() {
	st := &m.stats
	for n := 0; len(st.due) > 0 && n < statSlice; {
		d := st.due[0]
		if d.minute >= st.minute && !st.closing {
			return
		}
		st.due = st.due[1:]
		if d.s.minute == d.minute {
			m.writeBucket(d.s)
			if n++; d.s.q != nil {
				n += len(d.s.q.groups) / 64
			}
		}
	}
	if len(st.due) == 0 {
		st.due = nil
	}
}

// writeBucket adds what a series has counted to its rows.
func (m *Machine) writeBucket(s *series) {
	lag := s.lag.take()
	minute := s.minute
	s.minute = 0
	if s.q != nil && s.q.deleted {
		s.cur = Tally{}
		return
	}
	s.cur.LagMessages, s.cur.LagSum, s.cur.LagMax = s.cur.LagMessages+lag.LagMessages, s.cur.LagSum+lag.LagSum, max(s.cur.LagMax, lag.LagMax)
	if s.q != nil {
		if u := s.up; lag.LagMessages > 0 {
			if u.minute == 0 {
				m.openBucket(u)
			}
			u.cur.LagMessages, u.cur.LagSum, u.cur.LagMax = u.cur.LagMessages+lag.LagMessages, u.cur.LagSum+lag.LagSum, max(u.cur.LagMax, lag.LagMax)
		}
		s.sample(&s.cur)
	}
	for tier := range statTiers {
		r := s.row(tier, minute-minute%statTiers[tier].width)
		var t Tally
		if r.enc != nil {
			if err := t.decode(r.enc); err != nil {
				panic("fsm: a bucket of this state does not decode: " + err.Error())
			}
		}
		t.Add(&s.cur)
		r.set(&t)
		m.put(r)
	}
	s.cur = Tally{}
}

// sample reads what stands in the queue now.
func (s *series) sample(t *Tally) {
	_, owed := s.q.slowest()
	t.Partitions, t.Pending, t.Parked = int64(len(s.q.parts)), owed.pending, s.q.parked
}

// keeps is for how many minutes the buckets of a tier are kept.
func (c *Config) keeps(s *series, tier int) int64 {
	t, all := &statTiers[tier], c.StatDays*24*60
	switch {
	case tier == len(statTiers)-1:
		return all
	case s.q == nil:
		return min(t.total, all)
	default:
		return min(t.keep, all)
	}
}

// statSweepEvery is the time between two looks for old buckets, in microseconds.
const statSweepEvery = 3600 * 1_000_000

// sweepBuckets removes buckets that are too old, and series that have none left.
func (m *Machine) sweepBuckets() {
	st := &m.stats
	if len(st.all) == 0 || m.now < st.sweepAt {
		return
	}
	for n := 0; n < statSlice && st.swept < len(st.all); n++ {
		m.sweepSeries(st.all[st.swept])
		st.swept++
	}
	if st.swept < len(st.all) {
		return
	}
	kept := st.all[:0]
	for _, s := range st.all {
		if !s.gone {
			kept = append(kept, s)
		}
	}
	clear(st.all[len(kept):])
	st.all, st.swept, st.sweepAt = kept, 0, m.now+statSweepEvery
}

func (m *Machine) sweepSeries(s *series) {
	if s.gone {
		return
	}
	left := 0
	for tier := range statTiers {
		rows, old := s.rows[tier], 0
		for old < len(rows) && rows[old].end()+m.cfg.keeps(s, tier) <= m.stats.minute {
			rows[old].dead = true
			old++
		}
		if old > 0 {
			m.removeRange(s.key(nil, tier, rows[0].start), s.key(nil, tier, rows[old-1].start+1))
			s.rows[tier] = append([]*statRow(nil), rows[old:]...) // lets go of the old ones
		}
		left += len(s.rows[tier])
	}
	if left > 0 || s.minute != 0 || s.q == nil {
		return
	}
	s.gone = true
	s.q.stats = nil
	m.stats.queues--
}

// dropSeries takes a deleted queue's place away; its rows go with the others of the queue.
func (m *Machine) dropSeries(q *queue) {
	if s := q.stats; s != nil && s.q == q && !s.gone {
		s.gone = true
		m.stats.queues--
	}
}

// buildStats makes what is derived from the rows.
func (m *Machine) buildStats() {
	m.stats = statistics{}
	s := m.s
	s.totals.Scan(func(_ string, t *series) bool {
		t.restart(&m.stats.sink)
		m.stats.all = append(m.stats.all, t)
		return true
	})
	for _, id := range sortedIDs(s.queues) {
		q := s.queues[id]
		own := q.stats
		if own == nil || own.q != q || own.empty() {
			q.stats = nil
			continue
		}
		own.restart(&m.stats.sink)
		if q.deleted {
			continue
		}
		total, ok := s.totals.Get(q.tenant)
		if !ok {
			total = &series{tenant: q.tenant, up: &m.stats.sink}
			s.totals.Set(q.tenant, total)
			m.stats.all = append(m.stats.all, total)
		}
		own.up = total
		m.stats.queues++
		m.stats.all = append(m.stats.all, own)
	}
}

func (s *series) restart(up *series) {
	s.up, s.cur, s.minute, s.call, s.gone = up, Tally{}, 0, 0, false
}

func (s *series) empty() bool {
	for tier := range s.rows {
		if len(s.rows[tier]) > 0 {
			return false
		}
	}
	return true
}

// The places where something is counted. A call comes to one once it is decided.

// countPush counts a push call in a queue that it named.
func (m *Machine) countPush(tenant, queue string) {
	q := m.s.findQueue(tenant, queue)
	if q == nil {
		return // all of it was refused
	}
	s := m.tally(q)
	if m.once(s) {
		s.cur.PushRequests++
	}
	if m.once(s.up) {
		s.up.cur.PushRequests++
	}
}

func (m *Machine) countTxn(tenant string, t *Txn, acks *ackPlan) {
	for _, c := range acks.cursors {
		m.countInTxn(c.p.q)
	}
	for i := range t.Push.Groups {
		if q := m.s.findQueue(tenant, t.Push.Groups[i].Queue); q != nil {
			m.countInTxn(q)
		}
	}
	for i := range acks.judged {
		if q := acks.judged[i].q; q != nil {
			m.countAck(m.tally(q), &acks.items[i])
		}
	}
}

func (m *Machine) countInTxn(q *queue) {
	s := m.tally(q)
	if m.once(s) {
		s.cur.Transactions++
	}
	if m.once(s.up) {
		s.up.cur.Transactions++
	}
}

func (m *Machine) countAcks(p *ackPlan) {
	for i := range p.items {
		q := p.judged[i].q
		if q == nil || q.deleted {
			continue
		}
		s := m.tally(q)
		if m.once(s) {
			s.cur.AckRequests++
		}
		if m.once(s.up) {
			s.up.cur.AckRequests++
		}
		m.countAck(s, &p.items[i])
	}
}

func (m *Machine) countAck(s *series, it *AckItem) {
	if it.Success && it.Status == Completed {
		s.cur.AckSuccess++
		s.up.cur.AckSuccess++
		return
	}
	s.cur.AckFailed++
	s.up.cur.AckFailed++
}

// countClaim counts what a pop got of a partition, the newest of its claims.
func (m *Machine) countClaim(p *Pop, cl *Claim, q *queue) {
	s := m.tally(q)
	s.cur.PopMessages += int64(cl.Count)
	s.up.cur.PopMessages += int64(cl.Count)
	if n := len(p.Claims); n == 1 {
		s.cur.PopRequests++
		s.up.cur.PopRequests++
	} else if p.Claims[n-2].QueueID != cl.QueueID {
		s.cur.PopRequests++
	}
	cl.At, cl.Lag = m.now, &s.lag
}

// countEmpty counts a pop that got nothing, if somebody waits for its answer.
func (m *Machine) countEmpty(w *waiter) {
	if q := w.g.q; !q.deleted && !m.released && !w.call.Gone.Load() {
		s := m.tally(q)
		s.cur.PopEmpty++
		s.up.cur.PopEmpty++
	}
}

// countSettled counts what a cursor has passed since it was at was.
func (m *Machine) countSettled(c *cursor, was int64) {
	if n := c.committed - max(was, int64(c.p.start)-1); n > 0 {
		s := m.tally(c.p.q)
		s.cur.Settled += n
		s.up.cur.Settled += n
	}
}
