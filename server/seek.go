package server

import (
	"encoding/json"
	"net/http"

	"queen/fsm"
	"queen/server/rawjson"
)

// seekBody is the body of a seek: one of its members says where to.
type seekBody struct {
	ToEnd       *bool   `json:"toEnd"`
	ToBeginning *bool   `json:"toBeginning"`
	Timestamp   *string `json:"timestamp"`
	Offset      *int64  `json:"offset"`
}

const seekTargets = `exactly one of {"toEnd":true}, {"toBeginning":true}, {"timestamp":"<ISO time>"}`

// read reads the members of a body. Names are exact, as everywhere; none tells
// that it has no member at all.
func (b *seekBody) read(body []byte) (none, ok bool) {
	if len(trimSpace(string(body))) == 0 {
		return true, true
	}
	var members map[string]json.RawMessage
	if err := json.Unmarshal(body, &members); err != nil || !isObject(body) {
		return false, false
	}
	for name, into := range map[string]any{"toEnd": &b.ToEnd, "toBeginning": &b.ToBeginning, "timestamp": &b.Timestamp, "offset": &b.Offset} {
		if value := members[name]; value != nil && json.Unmarshal(value, into) != nil {
			return false, false
		}
		delete(members, name)
	}
	return len(members) == 0, true
}

// parseSeek reads the body; bad says why it is refused. Of one partition an
// empty body means the end; one whose members are all unknown is a mistake.
func parseSeek(body []byte, seek *fsm.Seek) (timestamp string, bad string) {
	var b seekBody
	none, ok := b.read(body)
	if !ok {
		return "", "the body is not an object with " + seekTargets
	}
	if b == (seekBody{}) && none && seek.OnPartition {
		seek.To = fsm.SeekEnd
		return "", ""
	}
	n := 0
	if b.ToEnd != nil && *b.ToEnd {
		seek.To = fsm.SeekEnd
		n++
	}
	if b.ToBeginning != nil && *b.ToBeginning {
		seek.To = fsm.SeekBeginning
		n++
	}
	if b.Timestamp != nil {
		at, ok := parseTime(*b.Timestamp)
		if !ok {
			return "", "timestamp is no ISO time"
		}
		seek.To, seek.Time, timestamp = fsm.SeekTime, at, *b.Timestamp
		n++
	}
	switch {
	case b.Offset != nil && !seek.OnPartition:
		return "", "an offset belongs to a partition: seek that by .../partitions/:partition/seek"
	case b.Offset != nil && *b.Offset < 0:
		return "", "offset is below 0"
	case b.Offset != nil:
		seek.To, seek.Offset = fsm.SeekOffset, uint64(*b.Offset)
		n++
	}
	if n != 1 {
		if seek.OnPartition {
			return "", "the body must have " + seekTargets + `, {"offset":n}, or be empty`
		}
		return "", "the body must have " + seekTargets
	}
	return timestamp, ""
}

func isObject(body []byte) bool {
	text := trimSpace(string(body))
	return text != "" && text[0] == '{'
}

func (s *Server) serveSeek(x *exchange) { s.seek(x, false) }

func (s *Server) serveSeekPartition(x *exchange) { s.seek(x, true) }

func (s *Server) seek(x *exchange, onPartition bool) {
	group, ok1 := x.param("group")
	queue, ok2 := x.param("queue")
	partition, ok3 := x.param("partition")
	if !ok1 || !ok2 || onPartition && !ok3 {
		x.fail(http.StatusBadRequest, "bad_request", badPathName)
		return
	}
	dry, ok := x.dryRun()
	if !ok {
		return
	}
	w := s.getWork(x)
	if !x.readBody(w) {
		s.putWork(w)
		return
	}
	seek := &fsm.Seek{Queue: queue, Group: group, Partition: partition, OnPartition: onPartition}
	timestamp, bad := parseSeek(w.body, seek)
	switch {
	case bad != "":
		s.putWork(w)
		x.fail(http.StatusBadRequest, "bad_request", bad)
		return
	case dry:
		s.putWork(w)
		s.trySeek(x, seek)
		return
	}
	if err := s.run(w, seek, 256, x.remaining(s.cfg.Limits.CallTimeout), nil); err != nil {
		s.ended(w, err)
		x.undecided(err)
		return
	}
	s.putWork(w)
	x.answerSeek(seek, timestamp)
}

// dryRun reads the query parameter; false: it has answered.
func (x *exchange) dryRun() (dry, ok bool) {
	ok = query(x.c.Request.URL.RawQuery, func(name, value string) bool {
		if name != "dryRun" || value == "" {
			return true
		}
		on, parsed := parseFlag(value)
		dry = dry || on
		return parsed
	})
	if !ok {
		x.fail(http.StatusBadRequest, "bad_request", "dryRun does not parse: it is true or false; nothing was changed")
	}
	return dry, ok
}

func (x *exchange) answerSeek(seek *fsm.Seek, timestamp string) {
	status, dst := http.StatusOK, x.out[:0]
	if seek.Outcome != fsm.SeekDone {
		status = http.StatusNotFound
	}
	dst = rawjson.AppendBool(append(dst, `{"success":`...), seek.Outcome == fsm.SeekDone)
	if seek.Outcome != fsm.SeekDone {
		dst = rawjson.AppendString(append(dst, `,"error":`...), notFoundText(seek))
	}
	dst = rawjson.AppendString(append(dst, `,"consumerGroup":`...), seek.Group)
	dst = rawjson.AppendString(append(dst, `,"queueName":`...), seek.Queue)
	if seek.OnPartition {
		dst = rawjson.AppendString(append(dst, `,"partitionName":`...), seek.Partition)
	}
	dst = rawjson.AppendBool(append(dst, `,"seekToEnd":`...), seek.To == fsm.SeekEnd)
	dst = append(dst, `,"targetTimestamp":`...)
	if seek.To == fsm.SeekTime {
		dst = rawjson.AppendString(dst, timestamp)
	} else {
		dst = append(dst, "null"...)
	}
	if seek.OnPartition {
		dst = rawjson.AppendBool(append(dst, `,"updated":`...), seek.Outcome == fsm.SeekDone)
	} else {
		dst = appendInt(append(dst, ','), "partitionsUpdated", int64(seek.Partitions))
	}
	x.out = append(dst, '}')
	_ = x.answer(status)
}

func notFoundText(seek *fsm.Seek) string {
	switch {
	case seek.Outcome == fsm.SeekNoQueue:
		return "Queue not found"
	case seek.Outcome == fsm.SeekNoGroup:
		return "Consumer group not found on this queue"
	case seek.OnPartition:
		return "Partition not found"
	}
	return "The queue has no partitions"
}

// trySeek counts what a seek would deliver again. It walks the partitions in
// slices, and looks their places up between the reads of the state.
func (s *Server) trySeek(x *exchange, seek *fsm.Seek) {
	var (
		q     fsm.QueueInfo
		group bool
		parts int
		again int64
	)
	tenant := x.tenant
	now := s.cfg.Clock().UnixMicro()
	for offset, more := 0, true; more; {
		var page []fsm.PartitionInfo
		more = false
		if !s.read(x, func(st *fsm.State) {
			if q, group = st.Registered(tenant, seek.Group, seek.Queue); q.ID == 0 {
				return
			}
			if seek.OnPartition {
				page = st.PartitionNamed(tenant, seek.Queue, seek.Partition)
				return
			}
			page, more = st.Partitions(tenant, seek.Queue, offset, readPage)
		}) {
			return
		}
		offset += len(page)
		parts += len(page)
		ids, places := make([]uint64, len(page)), make([]uint64, len(page))
		for i := range page {
			ids[i], places[i] = page[i].ID, s.seekPlace(q.ID, &page[i], seek, now)
		}
		if len(ids) > 0 && !s.read(x, func(st *fsm.State) { again += st.Settled(tenant, seek.Group, seek.Queue, ids, places) }) {
			return
		}
	}
	switch {
	case q.ID == 0:
		seek.Outcome = fsm.SeekNoQueue
	case parts == 0:
		seek.Outcome = fsm.SeekNoPartition
	case !group:
		seek.Outcome = fsm.SeekNoGroup
	default:
		x.out = appendInt(append(x.out[:0], '{'), "wouldRedeliver", again)
		x.out = append(appendInt(append(x.out, ','), "partitions", int64(parts)), '}')
		_ = x.answer(http.StatusOK)
		return
	}
	x.answerSeek(seek, "")
}

// seekPlace is the next offset of a partition after a seek.
func (s *Server) seekPlace(queue uint64, p *fsm.PartitionInfo, seek *fsm.Seek, now int64) uint64 {
	switch {
	case seek.To == fsm.SeekBeginning:
		return p.LogStart
	case seek.To == fsm.SeekOffset:
		return min(max(seek.Offset, p.LogStart), p.Next)
	case seek.To == fsm.SeekEnd, seek.Time > now, p.LastAppend < seek.Time, p.LogStart == p.Next:
		return p.Next
	}
	at, found, err := s.engine.Reader().FindTime(queue, p.ID, seek.Time)
	if err != nil || !found {
		s.lookupFailed(queue, p.Name, err)
		return p.Next
	}
	return min(max(at, p.LogStart), p.Next)
}
