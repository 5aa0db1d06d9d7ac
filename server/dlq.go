package server

import (
	"encoding/binary"
	"math"
	"net/http"
	"strconv"
	"strings"

	"queen/fsm"
	"queen/server/rawjson"
)

func parseDLQ(raw string) (f fsm.DeadLetterFilter, bad string) {
	f.Limit = 100
	ok := query(raw, func(name, value string) bool {
		if value == "" {
			return true
		}
		isCount := true
		var n int64
		switch name {
		case "queue":
			f.Queue = value
		case "partition":
			f.Partition = value
		case "consumerGroup":
			f.Group = value
		case "limit":
			n, isCount = parseCount(value)
			f.Limit = int(min(max(n, 1), 1000))
		case "offset":
			n, isCount = parseCount(value)
			f.Offset = int(min(max(n, 0), 1<<40))
		case "from":
			f.From, isCount = parseTime(value)
		case "to":
			f.To, isCount = parseTime(value)
		}
		if !isCount {
			bad = name + " does not parse"
		}
		return isCount
	})
	if !ok && bad == "" {
		bad = "the query has an escape that does not parse"
	}
	return f, bad
}

func (s *Server) serveDLQ(x *exchange) {
	f, bad := parseDLQ(x.c.Request.URL.RawQuery)
	if bad != "" {
		x.fail(http.StatusBadRequest, "bad_request", bad)
		return
	}
	rows, ok := s.deadLetters(x, f)
	if !ok {
		return
	}
	x.out = append(x.out[:0], `{"messages":[`...)
	for i := range rows {
		if i > 0 {
			x.out = append(x.out, ',')
		}
		x.out = s.appendDeadLetter(x.out, &rows[i])
	}
	x.out = append(x.out, `],"pagination":{`...)
	x.out = appendInt(x.out, "limit", int64(f.Limit))
	x.out = appendInt(append(x.out, ','), "offset", int64(f.Offset))
	x.out = append(x.out, `},`...)
	x.out = append(appendInt(x.out, "total", int64(len(rows))), '}')
	_ = x.answer(http.StatusOK)
}

// deadLetters lists dead letters, in slices; false: it has answered.
func (s *Server) deadLetters(x *exchange, f fsm.DeadLetterFilter) (rows []fsm.DeadLetterInfo, ok bool) {
	tenant := x.tenant
	for more := true; more; {
		var page []fsm.DeadLetterInfo
		more = false
		if !s.read(x, func(st *fsm.State) { page, more = st.DeadLetters(tenant, &f) }) {
			return nil, false
		}
		rows = append(rows, page...)
	}
	return rows, true
}

func (s *Server) appendDeadLetter(dst []byte, r *fsm.DeadLetterInfo) []byte {
	m, err := s.content(r.Content, r.ContentID, r.ContentQueue)
	var data []byte
	if err == nil {
		data, err = s.packer.appendPayload(nil, &m)
	}
	if err != nil {
		s.log.Error("the content of a dead letter cannot be read", "queue", r.Queue, "partition", r.Partition,
			"offset", r.Offset, "error", err)
		s.unwell("a stored payload cannot be read; see the log")
		data = nil
	}
	dst = append(dst, `{"id":`...)
	dst = appendID(dst, r.ID)
	dst = append(dst, `,"transactionId":`...)
	dst = rawjson.AppendString(dst, m.AppendTxn(nil))
	dst = append(dst, `,"partitionId":"`...)
	dst = strconv.AppendUint(dst, r.PartitionID, 10)
	dst = append(dst, `","queue":`...)
	dst = rawjson.AppendString(dst, r.Queue)
	dst = append(dst, `,"partition":`...)
	dst = rawjson.AppendString(dst, r.Partition)
	dst = append(dst, `,"consumerGroup":`...)
	dst = rawjson.AppendString(dst, r.Group)
	dst = append(dst, `,"errorMessage":`...)
	dst = rawjson.AppendString(dst, r.Error)
	dst = appendInt(append(dst, ','), "retryCount", r.RetryCount)
	dst = appendInt(append(dst, ','), "offset", int64(r.Offset))
	dst = append(dst, `,"data":`...)
	if data == nil {
		dst = append(dst, "null"...)
	} else {
		dst = append(dst, data...)
	}
	dst = append(dst, `,"producerSub":`...)
	if len(m.ProducerSub) > 0 {
		dst = rawjson.AppendString(dst, m.ProducerSub)
	} else {
		dst = append(dst, "null"...)
	}
	dst = append(dst, `,"createdAt":`...)
	dst = rawjson.AppendMillis(dst, r.Failed)
	dst = append(dst, `,"failedAt":`...)
	return append(rawjson.AppendMillis(dst, r.Failed), '}')
}

func (s *Server) serveDLQPurge(x *exchange) {
	f, bad := parseDLQ(x.c.Request.URL.RawQuery)
	switch {
	case bad != "":
		x.fail(http.StatusBadRequest, "bad_request", bad)
		return
	case f.Queue == "":
		x.fail(http.StatusBadRequest, "bad_request", "queue is required")
		return
	}
	w := s.getWork(x)
	call := &fsm.PurgeDeadLetters{Queue: f.Queue, Group: f.Group, AnyGroup: f.Group == ""}
	if err := s.run(w, call, 128, x.remaining(s.cfg.Limits.CallTimeout), nil); err != nil {
		s.ended(w, err)
		x.undecided(err)
		return
	}
	s.putWork(w)
	x.out = append(x.out[:0], `{"success":true,`...)
	x.out = appendInt(x.out, "deleted", int64(call.Deleted))
	x.out = append(x.out, `,"queue":`...)
	x.out = rawjson.AppendString(x.out, f.Queue)
	x.out = append(x.out, `,"consumerGroup":`...)
	if f.Group == "" {
		x.out = append(x.out, "null"...)
	} else {
		x.out = rawjson.AppendString(x.out, f.Group)
	}
	x.out = append(x.out, '}')
	_ = x.answer(http.StatusOK)
}

// destination reads the body of a replay: where the copy goes, trimmed; a
// missing half keeps the source's.
func destination(w *work) (queue, partition, bad string) {
	if len(w.body) == 0 {
		return "", "", ""
	}
	sc := &w.scan
	sc.Reset(w.body)
	isObject := sc.Kind() == rawjson.Object
	read := func(into *string, name string) {
		if sc.Kind() == rawjson.Null {
			sc.Skip()
			*into = ""
			return
		}
		text, isString := sc.Text()
		if *into = strings.TrimSpace(string(text)); !isString || *into == "" {
			bad = name + " is blank or not a string"
		}
	}
	if isObject {
		for ok := sc.EnterObject(); ok; ok = sc.NextMember() {
			switch string(sc.Key()) {
			case "queue":
				read(&queue, "queue")
			case "partition":
				read(&partition, "partition")
			default:
				sc.Skip()
			}
		}
	} else {
		sc.Skip()
	}
	if err := sc.End(); err != nil {
		return "", "", err.Error()
	}
	if !isObject {
		return "", "", "the body is no object"
	}
	return queue, partition, bad
}

func (s *Server) serveDLQReplay(x *exchange) {
	text, _ := x.param("id")
	w := s.getWork(x)
	if !x.readBody(w) {
		s.putWork(w)
		return
	}
	queue, partition, bad := destination(w)
	id, isID := parseID(text)
	switch {
	case bad != "":
		s.putWork(w)
		x.fail(http.StatusBadRequest, "bad_request", bad)
	case !namesFit(queue, partition):
		s.putWork(w)
		x.fail(http.StatusRequestEntityTooLarge, "name_too_long", tooLongNames)
	case !isID:
		s.putWork(w)
		x.replayGone(true)
	case x.storageFull():
		s.putWork(w)
	case !s.destinationFits(x, id, queue, partition):
		s.putWork(w)
	default:
		s.replay(x, w, &fsm.ReplayDeadLetter{ID: id, Queue: queue, Partition: partition}, true)
	}
}

// destinationFits checks the names that a replay goes to when the body gives
// one half of them: the other half is the source's. false: it has answered.
func (s *Server) destinationFits(x *exchange, id [16]byte, queue, partition string) bool {
	if (queue == "") == (partition == "") {
		return true // given and checked, or the source's, which fit
	}
	source, found, answered := s.letterByID(x, id)
	switch {
	case answered:
		return false
	case !found:
		return true // the replay says that it is gone
	case queue == "":
		queue = source.Queue
	default:
		partition = source.Partition
	}
	if !namesFit(queue, partition) {
		x.fail(http.StatusRequestEntityTooLarge, "name_too_long", tooLongNames)
		return false
	}
	return true
}

// letterByID looks a dead letter up. The state lists letters by the time of
// their failure, which starts their ids: 48 bits of milliseconds.
func (s *Server) letterByID(x *exchange, id [16]byte) (letter fsm.DeadLetterInfo, found, answered bool) {
	micros := int64(binary.BigEndian.Uint64(id[:])>>16) * 1000
	filter := fsm.DeadLetterFilter{From: micros, To: micros + 999, Limit: math.MaxInt}
	rows, ok := s.deadLetters(x, filter)
	if !ok {
		return letter, false, true
	}
	for i := range rows {
		if rows[i].ID == id {
			return rows[i], true, false
		}
	}
	return letter, false, false
}

func (x *exchange) replayGone(byID bool) {
	x.out = append(x.out[:0], `{"success":false,`...)
	if byID {
		x.out = append(x.out, `"result":"gone",`...)
	}
	x.out = append(x.out, `"error":"Message not found"}`...)
	_ = x.answer(http.StatusNotFound)
}

// serveMessageRetry replays the newest dead letter of a message.
func (s *Server) serveMessageRetry(x *exchange) {
	partition, txn, ok := x.address(func() { x.replayGone(false) })
	if !ok || x.storageFull() {
		return
	}
	letters, ok := s.lettersOf(x, partition, txn)
	if !ok {
		return
	}
	letter := newestLetter(letters)
	if letter == nil {
		x.replayGone(false)
		return
	}
	s.replay(x, s.getWork(x), &fsm.ReplayDeadLetter{ID: letter.ID}, false)
}

func (s *Server) replay(x *exchange, w *work, call *fsm.ReplayDeadLetter, byID bool) {
	call.Item.ID, call.Item.DupOf = s.ids.mint(), -1
	if s.packer.key != nil {
		call.Form = fsm.FormClear // asks for the payload, to open or seal it
	}
	if err := s.run(w, call, 1024, x.remaining(s.cfg.Limits.CallTimeout), nil); err != nil {
		s.ended(w, err)
		x.undecided(err)
		return
	}
	s.putWork(w)
	switch call.Outcome {
	case "moved", "duplicate":
		x.out = s.appendReplayed(x.out[:0], call)
		_ = x.answer(http.StatusOK)
	case "timer":
		x.fail(http.StatusBadRequest, "bad_request", "the dead letter of a timer cannot be replayed")
	case "refused":
		x.out = append(x.out[:0], `{"success":false,"error":"the copy is over the limit of one append","code":"internal","dlqRowRemoved":false}`...)
		_ = x.answer(http.StatusInternalServerError)
	default:
		x.replayGone(byID)
	}
}

func (s *Server) appendReplayed(dst []byte, c *fsm.ReplayDeadLetter) []byte {
	dst = append(dst, `{"success":`...)
	dst = rawjson.AppendBool(dst, c.Outcome == "moved")
	dst = append(dst, `,"result":`...)
	dst = rawjson.AppendString(dst, c.Outcome)
	dst = append(dst, `,"queue":`...)
	dst = rawjson.AppendString(dst, c.ToQueue)
	dst = append(dst, `,"partition":`...)
	dst = rawjson.AppendString(dst, c.ToPartition)
	dst = append(dst, `,"consumerGroup":`...)
	dst = rawjson.AppendString(dst, c.Group)
	dst = append(dst, `,"dlqId":`...)
	dst = appendID(dst, c.ID)
	dst = append(dst, `,"originalTransactionId":`...)
	dst = rawjson.AppendString(dst, c.OriginalTxn)
	dst = append(dst, `,"replayedAs":`...)
	push := fsm.Push{Items: []fsm.PushItem{c.Item}}
	if push.Items[0].Queue == "" {
		push.Items[0].Queue = c.ToQueue
	}
	list := s.appendPushResults(nil, &push, false)
	dst = append(dst, list[1:len(list)-1]...)
	dst = append(dst, `,"dlqRowRemoved":`...)
	return append(rawjson.AppendBool(dst, c.Outcome == "moved"), '}')
}
