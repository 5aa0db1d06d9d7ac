package server

import (
	"errors"
	"net/http"
	"strconv"

	"queen/fsm"
	"queen/raftlog"
	"queen/server/rawjson"
)

// readPage is how many rows one visit to the loop reads: a page takes well
// under a millisecond.
const readPage = 500

func (s *Server) serveQueueList(x *exchange) {
	tenant, after, n := x.tenant, "", 0
	out := append(x.out[:0], `{"queues":[`...)
	for more := true; more; {
		var page []fsm.QueueInfo
		more = false
		if !s.read(x, func(st *fsm.State) { page, more = st.Queues(tenant, after, readPage) }) {
			return
		}
		for i := range page {
			if n > 0 {
				out = append(out, ',')
			}
			n++
			out = s.appendQueueRow(out, &page[i])
		}
		if more {
			after = page[len(page)-1].Name
		}
	}
	x.out = append(out, ']', '}')
	_ = x.answer(http.StatusOK)
}

func appendQueueHead(dst []byte, q *fsm.QueueInfo) []byte {
	dst = append(dst, `{"id":"`...)
	dst = strconv.AppendUint(dst, q.ID, 10)
	dst = append(dst, `","name":`...)
	dst = rawjson.AppendString(dst, q.Name)
	dst = append(dst, `,"namespace":`...)
	dst = rawjson.AppendString(dst, q.Options.Namespace)
	dst = append(dst, `,"task":`...)
	dst = rawjson.AppendString(dst, q.Options.Task)
	dst = append(dst, `,"createdAt":`...)
	return rawjson.AppendMillis(dst, q.Created)
}

func appendInt(dst []byte, name string, n int64) []byte {
	dst = append(append(append(dst, '"'), name...), `":`...)
	return strconv.AppendInt(dst, n, 10)
}

// appendRetained appends what is kept of a queue. With shards the bytes and
// segments are those of the log that it shares.
func (s *Server) appendRetained(dst []byte, q *fsm.QueueInfo) []byte {
	segments, bytes := s.engine.LogSize(q.ID)
	dst = appendInt(dst, "retainedBytes", bytes)
	dst = appendInt(append(dst, `,"segments":{`...), "segments", int64(segments))
	return append(appendInt(append(dst, ','), "messages", q.Total), '}')
}

func (s *Server) appendQueueRow(dst []byte, q *fsm.QueueInfo) []byte {
	dst = appendQueueHead(dst, q)
	dst = appendInt(append(dst, ','), "partitions", int64(q.Partitions))
	dst = s.appendRetained(append(dst, ','), q)
	dst = append(dst, `,"messages":{`...)
	dst = appendInt(dst, "total", q.Total)
	dst = appendInt(append(dst, ','), "pending", q.Pending)
	dst = appendInt(append(dst, ','), "processing", q.Processing)
	return append(dst, '}', '}')
}

// counts are the numbers of stats and totals.
type counts struct{ total, pending, processing, completed, dead int64 }

func (c *counts) appendTo(dst []byte) []byte {
	dst = appendInt(append(dst, '{'), "total", c.total)
	dst = appendInt(append(dst, ','), "pending", c.pending)
	dst = appendInt(append(dst, ','), "processing", c.processing)
	dst = appendInt(append(dst, ','), "completed", c.completed)
	dst = append(dst, `,"failed":null,`...)
	return append(appendInt(dst, "deadLetter", c.dead), '}')
}

// queueName reads the queue of a path; false: it has answered.
func (x *exchange) queueName() (string, bool) {
	queue, ok := x.param("queue")
	if !ok {
		x.fail(http.StatusBadRequest, "bad_request", badPathName)
	}
	return queue, ok
}

func (x *exchange) queueNotFound() {
	x.out = append(x.out[:0], `{"error":"Queue not found"}`...)
	_ = x.answer(http.StatusNotFound)
}

func (s *Server) serveQueue(x *exchange) {
	q, parts, ok := s.queueDetail(x)
	if !ok {
		return
	}
	x.out = s.appendQueueDetail(x.out[:0], &q, parts)
	_ = x.answer(http.StatusOK)
}

// maxDetailRows bounds the partitions that a queue's detail lists; offset asks for those behind them.
const maxDetailRows = 10_000

// queueDetail reads a queue and its partitions; false: it has answered.
func (s *Server) queueDetail(x *exchange) (q fsm.QueueInfo, parts []partitionRow, ok bool) {
	name, ok := x.queueName()
	if !ok {
		return q, nil, false
	}
	l, ok := x.listing(maxDetailRows, maxDetailRows)
	if !ok {
		return q, nil, false
	}
	tenant, found := x.tenant, false
	for begun, more := false, true; more && len(parts) < l.limit; begun = true {
		var page []fsm.PartitionInfo
		more = false
		if !s.read(x, func(st *fsm.State) {
			if !begun {
				q, found = st.Queue(tenant, name)
			}
			page, more = st.Partitions(tenant, name, l.offset+len(parts), min(readPage, l.limit-len(parts)))
		}) {
			return q, nil, false
		}
		for i := range page {
			parts = append(parts, partitionRow{page[i], s.oldestMessage(q.ID, &page[i])})
		}
	}
	if !found {
		x.queueNotFound()
	}
	return q, parts, found
}

// partitionRow is a partition of a queue's detail, with what the state does not
// keep of it.
type partitionRow struct {
	fsm.PartitionInfo
	oldest int64 // microseconds; 0: none
}

// oldestMessage looks up when the oldest message of a partition was pushed; 0
// when it has none. It runs between the reads of the state, off the loop: one
// look into the log's index, which may be on the disk.
func (s *Server) oldestMessage(queue uint64, p *fsm.PartitionInfo) int64 {
	if p.Next == p.LogStart {
		return 0
	}
	times, err := s.engine.Reader().AppendTimes(queue, p.ID, p.LogStart, 1)
	if err != nil && !errors.Is(err, raftlog.ErrNoLog) { // no log: removed since
		s.log.Warn("the time of the oldest message could not be read", "queue", queue, "partition", p.Name, "error", err)
	}
	if err != nil || len(times) == 0 {
		return 0
	}
	return times[0].Time
}

func (s *Server) appendQueueDetail(dst []byte, q *fsm.QueueInfo, parts []partitionRow) []byte {
	dst = appendQueueHead(dst, q)
	dst = append(dst, `,"options":`...)
	dst = appendOptions(dst, &q.Options, true)
	dst = append(dst, `,"partitions":[`...)
	for i := range parts {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = appendPartition(dst, &parts[i])
	}
	dst = append(dst, `],"totals":`...)
	total := counts{q.Total, q.Pending, q.Processing, q.Completed, q.DeadLetters}
	dst = total.appendTo(dst)
	return append(s.appendRetained(append(dst, ','), q), '}')
}

func appendPartition(dst []byte, p *partitionRow) []byte {
	dst = append(dst, `{"id":"`...)
	dst = strconv.AppendUint(dst, p.ID, 10)
	dst = append(dst, `","name":`...)
	dst = rawjson.AppendString(dst, p.Name)
	dst = append(dst, `,"createdAt":`...)
	dst = rawjson.AppendMillis(dst, p.Created)
	dst = append(dst, `,"stats":`...)
	c := counts{p.Total, p.Pending, p.Processing, max(p.Total-p.Pending, 0), p.DeadLetters}
	dst = c.appendTo(dst)
	dst = append(dst, `,"oldestMessage":`...)
	dst = appendExpiry(dst, p.oldest)
	dst = append(dst, `,"newestMessage":`...)
	dst = appendExpiry(dst, p.LastAppend)
	return append(dst, '}')
}

// maxDepthRows bounds the partitions that a depth answer lists.
const maxDepthRows = 10_000

func (s *Server) serveQueueDepth(x *exchange) {
	name, ok := x.queueName()
	if !ok {
		return
	}
	group, hasGroup := "", false
	if !query(x.c.Request.URL.RawQuery, func(n, v string) bool {
		if n == "group" && v != "" && !hasGroup {
			group, hasGroup = v, true
		}
		return true
	}) {
		x.fail(http.StatusBadRequest, "bad_request", "the query has an escape that does not parse")
		return
	}
	var (
		d     fsm.DepthInfo
		found bool
	)
	var rows []fsm.PartitionDepth
	tenant := x.tenant
	for more := true; more && len(rows) < maxDepthRows; {
		var page []fsm.PartitionDepth
		more = false
		if !s.read(x, func(st *fsm.State) {
			if len(rows) == 0 {
				d, found = st.Depth(tenant, name, group, hasGroup)
			}
			page, more = st.Depths(tenant, name, &d, hasGroup, len(rows), maxDepthRows-len(rows))
		}) {
			return
		}
		rows = append(rows, page...)
	}
	if !found {
		x.queueNotFound()
		return
	}
	x.out = appendDepth(x.out[:0], name, group, hasGroup, &d, rows)
	_ = x.answer(http.StatusOK)
}

func appendDepth(dst []byte, queue, group string, hasGroup bool, d *fsm.DepthInfo, rows []fsm.PartitionDepth) []byte {
	dst = append(dst, `{"queue":`...)
	dst = rawjson.AppendString(dst, queue)
	dst = append(dst, `,"group":`...)
	if hasGroup {
		dst = rawjson.AppendString(dst, group)
	} else {
		dst = append(dst, "null"...)
	}
	ready := max(d.Pending-d.Processing, 0)
	dst = appendInt(append(dst, ','), "pending", d.Pending)
	dst = appendInt(append(dst, ','), "processing", d.Processing)
	dst = appendInt(append(dst, ','), "ready", ready)
	dst = appendInt(append(dst, ','), "partitionsPending", d.PartitionsPending)
	dst = appendInt(append(dst, ','), "partitionsReady", d.PartitionsReady)
	dst = append(dst, `,"conflation":`...)
	dst = rawjson.AppendBool(dst, d.Conflates)
	pending := d.Pending
	if d.Conflates { // one message of each partition is all that the group will get
		pending, ready = d.PartitionsPending, d.PartitionsReady
	}
	dst = appendInt(append(dst, ','), "effectivePending", pending)
	dst = appendInt(append(dst, ','), "effectiveReady", ready)
	dst = append(dst, `,"partitions":[`...)
	for i := range rows {
		p := &rows[i]
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(dst, `{"partition":`...)
		dst = rawjson.AppendString(dst, p.Name)
		dst = appendInt(append(dst, ','), "pending", p.Pending)
		dst = appendInt(append(dst, ','), "processing", p.Processing)
		dst = append(appendInt(append(dst, ','), "ready", max(p.Pending-p.Processing, 0)), '}')
	}
	return append(dst, ']', '}')
}

func (s *Server) serveQueueDelete(x *exchange) {
	name, ok := x.queueName()
	if !ok {
		return
	}
	w := s.getWork(x)
	call := &fsm.DeleteQueue{Queue: name}
	if err := s.run(w, call, 128, x.remaining(s.cfg.Limits.CallTimeout), nil); err != nil {
		s.ended(w, err)
		x.undecided(err)
		return
	}
	s.putWork(w)
	x.out = append(x.out[:0], `{"deleted":`...)
	x.out = rawjson.AppendBool(x.out, call.Existed)
	x.out = append(x.out, `,"queue":`...)
	x.out = rawjson.AppendString(x.out, name)
	x.out = append(x.out, `,"existed":`...)
	x.out = rawjson.AppendBool(x.out, call.Existed)
	if !call.Existed {
		x.out = append(x.out, `,"message":"Queue not found"`...)
	}
	x.out = append(x.out, '}')
	_ = x.answer(http.StatusOK)
}
