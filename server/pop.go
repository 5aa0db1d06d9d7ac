package server

import (
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/cespare/xxhash/v2"

	"queen/fsm"
	"queen/index"
	"queen/internal/entry"
	"queen/raftlog"
	"queen/server/rawjson"
)

func (s *Server) servePopQueue(x *exchange) {
	queue, ok := x.param("queue")
	if !ok {
		x.failPop(badPathName)
		return
	}
	p, bad := parsePopQuery(x.c.Request.URL.RawQuery)
	if bad != "" {
		x.failPop(bad)
		return
	}
	s.pop(x, &p, queue, "")
}

func (s *Server) servePopPartition(x *exchange) {
	queue, ok1 := x.param("queue")
	partition, ok2 := x.param("partition")
	if !ok1 || !ok2 {
		x.failPop(badPathName)
		return
	}
	if partition == "" {
		x.failPop("the partition name is empty")
		return
	}
	p, bad := parsePopQuery(x.c.Request.URL.RawQuery)
	if bad != "" {
		x.failPop(bad)
		return
	}
	p.autopilot = false
	p.partitions, p.hasPartitions = 1, true
	s.pop(x, &p, queue, partition)
}

func (s *Server) servePopDiscovery(x *exchange) {
	p, bad := parsePopQuery(x.c.Request.URL.RawQuery)
	switch {
	case bad != "":
		x.failPop(bad)
		return
	case !p.hasNamespace && !p.hasTask:
		x.failPop("discovery needs namespace, task or both")
		return
	case !namesFit("", p.group):
		x.fail(http.StatusRequestEntityTooLarge, "name_too_long", tooLongNames)
		return
	}
	p.wait, p.autopilot = false, false
	w := s.getWork(x)
	w.pop.Namespace, w.pop.MatchNamespace = p.namespace, p.hasNamespace
	w.pop.Task, w.pop.MatchTask = p.task, p.hasTask
	s.popWith(x, w, &p)
}

const badPathName = "a name in the path is no valid percent-encoded UTF-8"

// failPop answers a pop whose parameters are refused.
func (x *exchange) failPop(prose string) {
	x.out = append(x.out[:0], `{"success":false,"error":`...)
	x.out = rawjson.AppendString(x.out, prose)
	x.out = append(x.out, `,"messages":[]}`...)
	_ = x.answer(http.StatusBadRequest)
}

func (s *Server) pop(x *exchange, p *popParams, queue, partition string) {
	switch {
	case queue == "":
		x.failPop("the queue name is empty")
		return
	case !namesFit(queue, partition, p.group):
		x.fail(http.StatusRequestEntityTooLarge, "name_too_long", tooLongNames)
		return
	}
	w := s.getWork(x)
	w.pop.Queue = w.name([]byte(queue))
	if partition != "" {
		w.pop.Partition = w.name([]byte(partition))
	}
	s.popWith(x, w, p)
}

// popWith completes the call from the parameters, runs it and answers.
func (s *Server) popWith(x *exchange, w *work, p *popParams) {
	if bad := p.conflationProblem(); bad != "" {
		s.putWork(w)
		x.failPop(bad)
		return
	}
	pop := &w.pop
	s.fillPop(w, p)
	worker, named := x.worker()
	if !named {
		s.putWork(w)
		x.failPop(badWorker)
		return
	}
	if worker != "" {
		pop.Worker = w.name([]byte(worker))
	}
	pop.LeaseID = s.ids.mintAt(x.start)
	deadline := s.cfg.Limits.PopTimeout
	if p.wait {
		deadline = s.waitTime(p)
		if x.away.left > 0 {
			deadline = min(deadline, x.away.left)
		}
		pop.WaitMicros = max(0, deadline-s.cfg.Limits.ReplyMargin).Microseconds()
		if s.stopping.Load() {
			pop.WaitMicros = 0
		}
		x.parked = true
	}
	chooses := p.autopilotChooses(pop)
	pop.AutoPartitions = chooses && !p.hasPartitions
	if err := s.run(w, pop, 256, x.remaining(deadline), x.c.Request.Context().Done()); err != nil {
		s.ended(w, err)
		if err == errTimeout && p.wait && !p.conflation && s.engine.Status().Reason == "" {
			// The planner was late with its own word that nothing came. Whether the
			// group conflates, which a caller who asked for it must hear, it has not said.
			x.empty(http.StatusNoContent)
			return
		}
		x.undecided(err)
		return
	}
	s.tellPoisoned(pop)
	var report [2]int
	if chooses && !pop.Conflates {
		report = [2]int{pop.Partitions, pop.Batch}
	}
	s.answerPop(x, w, report)
}

// fillPop sets in w.pop what the parameters say of the claim itself.
func (s *Server) fillPop(w *work, p *popParams) {
	pop := &w.pop
	pop.Group = fsm.QueueMode
	if p.group != "" && p.group != fsm.QueueMode {
		pop.Group = w.name([]byte(p.group))
		pop.Mode, pop.From = p.subscription()
	}
	pop.Batch, pop.Partitions = defaultBatch, 1
	if p.hasBatch {
		pop.Batch = clampBatch(p.batch)
	}
	if p.hasPartitions {
		pop.Partitions = int(min(max(p.partitions, 1), maxPartitions))
	}
	pop.LeaseSeconds = min(max(p.lease, 0), maxLeaseSecond)
	pop.CommitOnDelivery = p.commit
	pop.Conflate, pop.DefaultPartitions = p.conflation, !p.hasPartitions
}

// tellPoisoned says in the log which messages a pop has put aside: nobody else
// would say that their workers die.
func (s *Server) tellPoisoned(pop *fsm.Pop) {
	for i := range pop.Poisoned {
		m := &pop.Poisoned[i]
		done := "filed in the dead-letter queue"
		if !m.Filed {
			done = "dropped, the queue's dead-letter queue is off"
		}
		s.log.Warn("every lease of this message alone expired; it was "+done, "queue", m.Queue, "partition", m.Partition,
			"offset", m.Offset, "consumerGroup", pop.Group, "deliveries", m.Deliveries)
	}
}

// waitTime is how long a waiting pop may take.
func (s *Server) waitTime(p *popParams) time.Duration {
	if !p.hasTimeout {
		return s.cfg.Limits.PopTimeout
	}
	return time.Duration(min(max(p.timeout, 0), maxTimeout.Milliseconds())) * time.Millisecond
}

func (p *popParams) conflationProblem() string {
	switch {
	case !p.conflation:
		return ""
	case p.group == "" || p.group == fsm.QueueMode:
		return "conflation=true needs a consumerGroup"
	case p.commit:
		return "conflation=true cannot be combined with commitOnDelivery"
	default:
		return ""
	}
}

// autopilotChooses reports whether the flag chooses at least one of batch and
// partitions: those that were not sent.
func (p *popParams) autopilotChooses(pop *fsm.Pop) bool {
	return p.autopilot && pop.Group != fsm.QueueMode && !(p.hasBatch && p.hasPartitions)
}

// answerPop reads the payloads of what was claimed and answers. The claims go
// back when the client turns out to be gone or a payload cannot be read.
func (s *Server) answerPop(x *exchange, w *work, report [2]int) {
	pop := &w.pop
	if len(pop.Claims) == 0 {
		nothing := nothingFor(pop)
		s.putWork(w)
		nothing.answer(x)
		return
	}
	nothing := nothingFor(pop)
	back := claimsOf(x.tenant, pop)
	if x.c.Request.Context().Err() != nil {
		s.putWork(w)
		s.handBackLater(back)
		x.empty(statusClientGone)
		return
	}
	out, n, err := s.appendPop(x.out[:0], w, report)
	for err != nil && !errors.Is(err, raftlog.ErrNoLog) && w.delivery.failed != nil && len(pop.Claims) > 1 {
		// One partition that cannot be read keeps nobody from the others.
		s.dropUnreadable(x, w, &back, err)
		out, n, err = s.appendPop(out[:0], w, report)
	}
	x.out = out
	s.putWork(w)
	switch {
	case errors.Is(err, raftlog.ErrNoLog):
		// The queue was removed with its log after the claim: nothing is left.
		s.handBackLater(back)
		nothing.answer(x)
	case err != nil:
		s.log.Error("a payload cannot be read; the claim is handed back", "request", x.id, "error", err)
		s.unwell("a stored payload cannot be read; see the log")
		back.unreadable = true
		s.handBackLater(back)
		x.fail(http.StatusInternalServerError, "internal", "a stored message cannot be read")
	case n == 0:
		s.handBackLater(back)
		nothing.answer(x)
	default:
		s.metrics.popped.Add(int64(n))
		s.deliverPop(x, back)
	}
}

// emptyPop is what a pop that got nothing says.
type emptyPop struct {
	queue, group        string
	conflates, conflict bool
	paused              bool
}

func nothingFor(pop *fsm.Pop) emptyPop {
	return emptyPop{pop.Queue, pop.Group, pop.Conflates, pop.Conflict, pop.Paused}
}

// answer sends 204, or, when there is a word to say about conflation, a pop
// answer without messages: a caller who asked for it stops when it hears none.
func (e emptyPop) answer(x *exchange) {
	if e.paused {
		x.c.Writer.Header().Set("X-Queen-Paused", "true")
	}
	if !e.conflates && !e.conflict {
		x.empty(http.StatusNoContent)
		return
	}
	dst := append(x.out[:0], `{"success":true,"queue":`...)
	dst = rawjson.AppendString(dst, e.queue)
	dst = append(dst, `,"partition":"","partitionId":"","leaseId":"","leaseExpiresAt":null,"consumerGroup":`...)
	dst = rawjson.AppendString(dst, e.group)
	dst = append(dst, `,"messages":[],"partitionsClaimed":0`...)
	x.out = append(appendConflation(dst, e.conflates, e.conflict), '}')
	_ = x.answer(http.StatusOK)
}

func appendConflation(dst []byte, conflates, conflict bool) []byte {
	if conflates {
		dst = append(dst, `,"conflation":true`...)
	}
	if conflict {
		dst = append(dst, `,"conflationConflict":true`...)
	}
	return dst
}

// dropUnreadable takes the claim that could not be rendered out of the answer
// and gives it back by itself.
func (s *Server) dropUnreadable(x *exchange, w *work, back *claims, err error) {
	bad := w.delivery.failed
	s.log.Error("a payload cannot be read; its partition is handed back", "request", x.id, "error", err)
	s.unwell("a stored payload cannot be read; see the log")
	one := *back
	one.list, one.unreadable = []*fsm.Claim{bad}, true
	s.handBackLater(one)
	rest := make([]*fsm.Claim, 0, len(w.pop.Claims)-1)
	for _, c := range w.pop.Claims {
		if c != bad {
			rest = append(rest, c)
		}
	}
	w.pop.Claims, back.list = rest, rest
}

// deliverPop sends the answer. When it does not go out, or the client turns out
// not to have read it, the claims go back.
func (s *Server) deliverPop(x *exchange, back claims) {
	if back.commits {
		// From the first byte on it may have been received: at most once.
		_ = x.deliver(http.StatusOK)
		s.delivered(back)
		return
	}
	conn := x.conn()
	if conn == nil || len(back.list) == 0 {
		if x.deliver(http.StatusOK) != nil {
			s.handBackLater(back)
		}
		return
	}
	// Before the answer: the reset may be faster than this goroutine.
	mine := &delivered{back, s.cfg.Clock()}
	conn.unread.Store(mine)
	if x.deliver(http.StatusOK) != nil && conn.unread.CompareAndSwap(mine, nil) {
		s.handBackLater(back)
	}
}

// flush sends what was written and reports whether it went out. Without it a
// small answer would only be sent after the handler, where nobody would learn
// that the connection is dead.
func (x *exchange) flush() error {
	return http.NewResponseController(x.c.Writer).Flush()
}

// appendPop appends the answer of a pop and counts its messages.
func (s *Server) appendPop(dst []byte, w *work, report [2]int) (out []byte, n int, err error) {
	pop, d := &w.pop, &w.delivery
	d.s, d.failed = s, nil
	lease := ""
	if !pop.CommitOnDelivery {
		lease = textOfID(pop.LeaseID)
	}
	first := pop.Claims[0]
	dst = append(dst, `{"success":true,"queue":`...)
	dst = rawjson.AppendString(dst, pop.Queue)
	dst = append(dst, `,"partition":`...)
	dst = rawjson.AppendString(dst, first.Partition)
	dst = append(dst, `,"partitionId":"`...)
	dst = strconv.AppendUint(dst, first.PartitionID, 10)
	dst = append(dst, `","leaseId":"`...)
	dst = append(dst, lease...)
	dst = append(dst, `","leaseExpiresAt":`...)
	dst = appendExpiry(dst, earliest(pop.Claims))
	dst = append(dst, `,"consumerGroup":`...)
	dst = rawjson.AppendString(dst, pop.Group)
	dst = append(dst, `,"messages":[`...)
	for _, c := range pop.Claims {
		d.dst = dst
		err := d.appendClaim(pop, c, lease)
		if dst = d.dst; err != nil {
			d.failed = c
			return dst, 0, err
		}
		if n += d.found; d.found > 0 {
			dst = append(dst, ',')
		}
	}
	if dst[len(dst)-1] == ',' {
		dst = dst[:len(dst)-1]
	}
	dst = append(dst, `],"partitionsClaimed":`...)
	dst = strconv.AppendInt(dst, int64(len(pop.Claims)), 10)
	dst = appendConflation(dst, pop.Conflates, pop.Conflict)
	if report[0] > 0 {
		dst = append(dst, `,"autopilot":{"partitions":`...)
		dst = strconv.AppendInt(dst, int64(report[0]), 10)
		dst = append(dst, `,"batch":`...)
		dst = strconv.AppendInt(dst, int64(report[1]), 10)
		dst = append(dst, `,"waitMs":0}`...)
	}
	return append(dst, '}'), n, nil
}

// earliest is when the first lease of the claims ends.
func earliest(claims []*fsm.Claim) int64 {
	e := claims[0].Expires
	for _, c := range claims[1:] {
		e = min(e, c.Expires)
	}
	return e
}

func appendExpiry(dst []byte, micros int64) []byte {
	if micros == 0 {
		return append(dst, "null"...)
	}
	return rawjson.AppendMicros(dst, micros)
}

// delivery is the rendering of claims: what one message after the other adds
// to. It lives in a work, so that a pop allocates little.
type delivery struct {
	s       *Server
	dst     []byte
	tail    []byte // end of every message object of the claim
	settled []index.Range
	items   []fsm.BatchItem
	ids     []byte // transactionIds of the claim, back to back
	ends    []int  // where each of them ends
	found   int
	at      int64 // when the claim was made, microseconds
	ages    int64 // of its messages then, added up
	oldest  int64
	failed  *fsm.Claim                                                // the claim that appendPop could not render
	take    func(offset uint64, micros int64, m *entry.Message) error // d.message
}

func (d *delivery) reset() {
	*d = delivery{dst: nil, tail: d.tail[:0], ids: d.ids[:0], ends: d.ends[:0], take: d.take}
	if cap(d.ids) > maxPooled || cap(d.ends) > maxPooled {
		d.ids, d.ends = nil, nil
	}
}

// message appends one message, unless it is settled already.
func (d *delivery) message(offset uint64, micros int64, m *entry.Message) (err error) {
	for len(d.settled) > 0 && d.settled[0].Hi < offset {
		d.settled = d.settled[1:]
	}
	if len(d.settled) > 0 && d.settled[0].Lo <= offset {
		return nil
	}
	if d.found++; d.found > 1 {
		d.dst = append(d.dst, ',')
	}
	d.ages += d.at - micros
	d.oldest = max(d.oldest, d.at-micros)
	from := len(d.ids)
	d.ids = m.AppendTxn(d.ids)
	d.ends = append(d.ends, len(d.ids))
	if d.items != nil {
		d.items = append(d.items, fsm.BatchItem{Offset: offset, Hash: xxhash.Sum64(d.ids[from:])})
	}
	d.dst, err = d.s.appendMessage(d.dst, d.ids[from:], offset, micros, m)
	d.dst = append(d.dst, d.tail...)
	return err
}

// appendClaim appends the messages of one claim, comma-separated, and leaves
// their transactionIds with the claim, so that acks need no look-up.
func (d *delivery) appendClaim(pop *fsm.Pop, c *fsm.Claim, lease string) error {
	d.tail = appendClaimTail(d.tail[:0], pop, c, lease)
	d.settled, d.found, d.ids, d.ends, d.items = c.Settled, 0, d.ids[:0], d.ends[:0], nil
	d.at, d.ages, d.oldest = c.At, 0, 0
	if c.Batch != nil {
		d.items = make([]fsm.BatchItem, 0, c.Count) // the claim keeps it
	}
	if err := d.s.engine.Reader().ReadMessages(c.QueueID, c.PartitionID, c.From, c.To, d.take); err != nil {
		return &claimError{c, d.found, err}
	}
	if c.Lag != nil {
		c.Lag.Add(int64(d.found), d.ages, d.oldest)
	}
	if d.found != c.Count {
		// Retention or the removal of the queue was faster than this read.
		d.s.log.Warn("a claim delivers less than it covers", "queue", c.Queue, "partition", c.Partition,
			"from", c.From, "to", c.To, "expected", c.Count, "found", d.found)
	}
	if c.Batch == nil {
		return nil
	}
	// One string holds all ids; each item is a part of it.
	all, from := string(d.ids), 0
	for i, end := range d.ends {
		d.items[i].Txn, from = all[from:end], end
	}
	c.Batch.Store(d.items)
	return nil
}

// claimError says which messages of a claim could not be delivered.
type claimError struct {
	c     *fsm.Claim
	found int
	err   error
}

func (e *claimError) Error() string {
	return "queue " + strconv.Quote(e.c.Queue) + " partition " + strconv.Quote(e.c.Partition) +
		" (" + strconv.FormatUint(e.c.PartitionID, 10) + ") offsets " + strconv.FormatUint(e.c.From, 10) +
		" to " + strconv.FormatUint(e.c.To, 10) + ": expected " + strconv.Itoa(e.c.Count) + " messages, found " +
		strconv.Itoa(e.found) + ": " + e.err.Error()
}

func (e *claimError) Unwrap() error { return e.err }

// appendMessage appends a message up to its creation time; the rest, which is
// the same for the whole claim, is the tail.
func (s *Server) appendMessage(dst, txn []byte, offset uint64, micros int64, m *entry.Message) ([]byte, error) {
	dst = append(dst, `{"id":`...)
	dst = appendID(dst, m.ID)
	dst = append(dst, `,"transactionId":`...)
	dst = rawjson.AppendString(dst, txn)
	if m.HasTrace {
		dst = appendID(append(dst, `,"traceId":`...), m.TraceID)
	} else {
		dst = append(dst, `,"traceId":null`...)
	}
	dst = append(dst, `,"data":`...)
	dst, err := s.packer.appendPayload(dst, m)
	if err != nil {
		return dst, err
	}
	if len(m.ProducerSub) > 0 {
		dst = rawjson.AppendString(append(dst, `,"producerSub":`...), m.ProducerSub)
	} else {
		dst = append(dst, `,"producerSub":null`...)
	}
	dst = append(dst, `,"createdAt":`...)
	dst = rawjson.AppendMicros(dst, micros)
	dst = append(dst, `,"offset":`...)
	return strconv.AppendUint(dst, offset, 10), nil
}

// appendClaimTail appends the end of every message object of a claim.
func appendClaimTail(dst []byte, pop *fsm.Pop, c *fsm.Claim, lease string) []byte {
	dst = append(dst, `,"queue":`...)
	dst = rawjson.AppendString(dst, c.Queue)
	dst = append(dst, `,"partitionId":"`...)
	dst = strconv.AppendUint(dst, c.PartitionID, 10)
	dst = append(dst, `","partition":`...)
	dst = rawjson.AppendString(dst, c.Partition)
	dst = append(dst, `,"leaseId":"`...)
	dst = append(dst, lease...)
	dst = append(dst, `","leaseExpiresAt":`...)
	dst = appendExpiry(dst, c.Expires)
	dst = append(dst, `,"consumerGroup":`...)
	dst = rawjson.AppendString(dst, pop.Group)
	dst = append(dst, `,"deliveryAttempt":`...)
	dst = strconv.AppendInt(dst, int64(c.Attempt), 10)
	return append(dst, '}')
}
