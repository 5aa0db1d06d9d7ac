package server

import (
	"errors"
	"net/http"
	"strconv"

	"github.com/cespare/xxhash/v2"

	"queen/fsm"
	"queen/internal/entry"
	"queen/raftlog"
	"queen/server/rawjson"
)

// readRows reads and renders the rows of the page; what retention has taken
// meanwhile leaves it.
func (b *browse) readRows() {
	room := int64(maxAnswerBytes)
	for from := 0; from < len(b.rows); {
		to := from + 1
		for to < len(b.rows) && b.rows[to].queue == b.rows[from].queue && b.rows[to].state.PartitionID == b.rows[from].state.PartitionID &&
			b.rows[to].state.Offset+1 == b.rows[to-1].state.Offset {
			to++
		}
		if b.readRun(b.rows[from:to], &room) != nil {
			for i := from; i < to; i++ { // one by one: the others can be read
				if !b.rows[i].read {
					b.unreadable(&b.rows[i], b.readRun(b.rows[i:i+1], &room))
				}
			}
		}
		from = to
	}
	kept := b.rows[:0]
	for i := range b.rows {
		if b.rows[i].read {
			kept = append(kept, b.rows[i])
		}
	}
	b.rows = kept
}

// readRun reads rows of consecutive falling offsets.
func (b *browse) readRun(rows []browseRow, room *int64) error {
	first := &rows[len(rows)-1].state
	err := b.reader.ReadMessages(rows[0].queue.ID, first.PartitionID, first.Offset, rows[0].state.Offset, func(offset uint64, _ int64, m *entry.Message) error {
		row := &rows[rows[0].state.Offset-offset]
		if row.read {
			return nil
		}
		return b.render(row, m, room)
	})
	if errors.Is(err, raftlog.ErrNoLog) {
		return nil // removed since
	}
	return err
}

func (b *browse) render(row *browseRow, m *entry.Message, room *int64) error {
	var payload []byte
	var err error
	if *room > 0 {
		if payload, err = b.s.packer.appendPayload(nil, m); err != nil {
			return err
		}
		*room -= int64(len(payload))
	}
	row.sealed = b.detail && b.s.packer.sealed(m)
	row.message, row.read = appendMessageRow(nil, row, m, m.AppendTxn(nil), payload), true
	return nil
}

// unreadable renders a row whose message cannot be read.
func (b *browse) unreadable(row *browseRow, err error) {
	if err == nil {
		return // read now, or gone
	}
	b.s.tellUnreadable(b.x, row.queue.Name, row.partition, row.state.Offset, err)
	row.message, row.read = appendMessageRow(nil, row, nil, nil, nil), true
}

func (s *Server) tellUnreadable(x *exchange, queue, partition string, offset uint64, err error) {
	s.log.Error("a stored message cannot be read", "request", x.id, "queue", queue, "partition", partition, "offset", offset, "error", err)
	s.unwell("a stored payload cannot be read; see the log")
}

func (b *browse) answer(dst []byte) []byte {
	dst = append(dst, `{"messages":[`...)
	for i := range b.rows {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(append(dst, b.rows[i].message...), '}')
		b.rows[i].message = nil
	}
	dst = b.mode.appendTo(append(dst, `],"mode":`...))
	return append(appendInt(append(dst, ','), "total", int64(len(b.rows))), '}')
}

func (m *browseMode) appendTo(dst []byte) []byte {
	kind := "none"
	switch {
	case m.queueMode && m.groups > 0:
		kind = "hybrid"
	case m.queueMode:
		kind = "queue"
	case m.groups > 0:
		kind = "bus"
	}
	dst = rawjson.AppendBool(append(dst, `{"hasQueueMode":`...), m.queueMode)
	dst = appendInt(append(dst, ','), "busGroupsCount", int64(m.groups))
	return append(append(append(dst, `,"type":"`...), kind...), `"}`...)
}

// appendMessageRow appends a message with its state, without the closing brace.
// m nil: it cannot be read; txn nil: not known; payload nil: not there.
func appendMessageRow(dst []byte, row *browseRow, m *entry.Message, txn, payload []byte) []byte {
	st, q := &row.state, row.queue
	text := func(name string, v []byte) {
		dst = append(append(append(dst, '"'), name...), `":`...)
		if v == nil {
			dst = append(dst, "null,"...)
		} else {
			dst = append(rawjson.AppendString(dst, v), ',')
		}
	}
	dst = append(dst, `{"id":`...)
	if m == nil {
		dst = append(dst, "null,"...)
	} else {
		dst = append(appendID(dst, m.ID), ',')
	}
	text("transactionId", txn)
	if txn == nil {
		text("txnHash", nil)
	} else {
		text("txnHash", strconv.AppendUint(nil, xxhash.Sum64(txn), 16))
	}
	text("partitionId", strconv.AppendUint(nil, st.PartitionID, 10))
	text("queuePath", []byte(q.Name+"/"+row.partition))
	text("queue", []byte(q.Name))
	text("partition", []byte(row.partition))
	text("namespace", []byte(q.Namespace))
	text("task", []byte(q.Task))
	text("status", []byte(st.Status.String()))
	if st.QueueStatus == fsm.StatusNone {
		text("queueStatus", nil)
	} else {
		text("queueStatus", []byte(st.QueueStatus.String()))
	}
	dst = appendInt(append(dst, `"busStatus":{`...), "consumedBy", int64(st.Consumed))
	dst = appendInt(append(dst, ','), "totalGroups", int64(st.Groups))
	dst = append(dst, `},"traceId":`...)
	if m != nil && m.HasTrace {
		dst = append(appendID(dst, m.TraceID), ',')
	} else {
		dst = append(dst, "null,"...)
	}
	if m != nil && len(m.ProducerSub) > 0 {
		text("producerSub", m.ProducerSub)
	} else {
		text("producerSub", nil)
	}
	dst = appendInt(dst, "offset", int64(st.Offset))
	dst = rawjson.AppendBool(append(dst, `,"payloadAvailable":`...), payload != nil)
	dst = appendInt(append(dst, `,"segment":{`...), "seq", int64(row.first))
	dst = appendInt(append(dst, ','), "frameIdx", int64(st.Offset-row.first))
	dst = rawjson.AppendMicros(append(dst, `},"createdAt":`...), st.Time)
	dst = appendExpiry(append(dst, `,"leaseExpiresAt":`...), st.LeaseExpires)
	if payload == nil {
		payload = []byte("null")
	}
	dst = append(append(dst, `,"data":`...), payload...)
	return append(append(dst, `,"payload":`...), payload...)
}

// address reads the path of one message; false: it has answered as gone does.
func (x *exchange) address(gone func()) (partition uint64, txn string, ok bool) {
	part, ok1 := x.param("partitionId")
	txn, ok2 := x.param("transactionId")
	partition, _ = parsePartition([]byte(part))
	if !ok1 || !ok2 || partition == 0 {
		gone()
		return 0, "", false
	}
	return partition, txn, true
}

// locate finds the messages at an address; false: it has answered.
func (s *Server) locate(x *exchange, partition uint64, txn string) (*fsm.Locate, bool) {
	w := s.getWork(x)
	call := &fsm.Locate{PartitionID: partition, Txn: []byte(txn), TxnHash: xxhash.Sum64String(txn)}
	if err := s.run(w, call, 0, x.remaining(s.cfg.Limits.CallTimeout), nil); err != nil {
		s.ended(w, err)
		x.undecided(err)
		return nil, false
	}
	s.putWork(w)
	return call, true
}

func (s *Server) serveMessage(x *exchange) {
	gone := func() { x.failBare(http.StatusNotFound, "Message not found") }
	partition, txn, ok := x.address(gone)
	if !ok {
		return
	}
	at, ok := s.locate(x, partition, txn)
	if !ok {
		return
	}
	for _, offset := range at.Offsets { // newest first
		if offset >= at.Start && offset < at.Next {
			s.answerMessage(x, at, offset, gone)
			return
		}
	}
	gone()
}

func (s *Server) answerMessage(x *exchange, at *fsm.Locate, offset uint64, gone func()) {
	times, err := s.engine.Reader().AppendTimes(at.QueueID, at.PartitionID, offset, 1)
	if err != nil && !errors.Is(err, raftlog.ErrNoLog) {
		x.undecided(err)
		return
	}
	if len(times) == 0 || times[0].First > offset {
		gone()
		return
	}
	row := &browseRow{
		queue:     &fsm.BrowseQueue{ID: at.QueueID, Name: at.Queue, Namespace: at.Options.Namespace, Task: at.Options.Task},
		partition: at.Partition, first: times[0].First,
	}
	rows := []fsm.MessageState{{PartitionID: at.PartitionID, Offset: offset, Time: times[0].Time}}
	var groups []fsm.GroupState
	for done := 0; done == 0; {
		if !s.read(x, func(st *fsm.State) { done = st.Judge(rows, func(g fsm.GroupState) { groups = append(groups, g) }) }) {
			return
		}
	}
	if row.state = rows[0]; row.state.Gone {
		gone()
		return
	}
	letters, ok := s.lettersAt(x, at.PartitionID, &offset, nil)
	if !ok {
		return
	}
	b := &browse{s: s, x: x, reader: s.engine.Reader(), rows: []browseRow{*row}, detail: true}
	b.readRows()
	if len(b.rows) == 0 {
		gone()
		return
	}
	b.mode = browseMode{queueMode: row.state.QueueStatus != fsm.StatusNone, groups: row.state.Groups}
	x.out = appendMessageDetail(append(x.out[:0], b.rows[0].message...), at, b.rows[0].sealed, b.mode, groups, newestLetter(letters))
	_ = x.answer(http.StatusOK)
}

// appendMessageDetail appends what one message has beside its row.
func appendMessageDetail(dst []byte, at *fsm.Locate, sealed bool, mode browseMode, groups []fsm.GroupState, letter *fsm.DeadLetterInfo) []byte {
	dst = rawjson.AppendBool(append(dst, `,"isEncrypted":`...), sealed)
	dst = append(dst, `,"errorMessage":`...)
	retries := int64(0)
	if letter == nil {
		dst = append(dst, "null"...)
	} else {
		dst, retries = rawjson.AppendString(dst, letter.Error), letter.RetryCount
	}
	dst = appendInt(append(dst, ','), "retryCount", retries)
	dst = append(dst, `,"consumerGroups":[`...)
	for i, g := range groups {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = rawjson.AppendString(append(dst, `{"name":`...), g.Name)
		dst = rawjson.AppendString(append(dst, `,"group":`...), g.Name)
		dst = rawjson.AppendBool(append(dst, `,"consumed":`...), g.Consumed)
		dst = append(appendExpiry(append(dst, `,"leaseExpiresAt":`...), g.LeaseExpires), '}')
	}
	dst = mode.appendTo(append(dst, `],"mode":`...))
	dst = appendOptions(append(dst, `,"queueConfig":`...), &at.Options, true)
	return append(dst, '}')
}

func newestLetter(letters []fsm.DeadLetterInfo) (newest *fsm.DeadLetterInfo) {
	for i := range letters {
		if newest == nil || string(letters[i].ID[:]) > string(newest.ID[:]) {
			newest = &letters[i]
		}
	}
	return newest
}

// lettersAt lists the dead letters of a partition, or of one offset of it, that
// keep says, in slices; false: it has answered.
func (s *Server) lettersAt(x *exchange, partition uint64, offset *uint64, keep func(*fsm.DeadLetterInfo) bool) (out []fsm.DeadLetterInfo, ok bool) {
	tenant, after := x.tenant, ""
	for more := true; more; more = after != "" {
		var page []fsm.DeadLetterInfo
		from := after
		after = ""
		if !s.read(x, func(st *fsm.State) { page, after = st.LettersAt(tenant, partition, offset, from) }) {
			return nil, false
		}
		for i := range page {
			if keep == nil || keep(&page[i]) {
				out = append(out, page[i])
			}
		}
	}
	return out, true
}

// lettersOf lists the dead letters of a message. A row does not say its
// transactionId: where the message is known by its offset they stand there, and
// otherwise (it is gone, or a timer left the letter) their contents say it.
func (s *Server) lettersOf(x *exchange, partition uint64, txn string) (out []fsm.DeadLetterInfo, ok bool) {
	at, ok := s.locate(x, partition, txn)
	if !ok || !at.Found {
		return nil, ok
	}
	for _, offset := range at.Offsets {
		list, ok := s.lettersAt(x, partition, &offset, nil)
		if !ok {
			return nil, false
		}
		out = append(out, list...)
	}
	if len(out) > 0 {
		return out, true
	}
	return s.lettersAt(x, partition, nil, func(l *fsm.DeadLetterInfo) bool {
		m, err := s.content(l.Content, l.ContentID, l.ContentQueue)
		return err == nil && string(m.AppendTxn(nil)) == txn
	})
}

// serveMessageDelete removes the dead letters at an address, of every group.
func (s *Server) serveMessageDelete(x *exchange) {
	partition, txn, ok := x.address(func() {
		part, _ := x.param("partitionId")
		txn, _ := x.param("transactionId")
		x.deletedLetters(part, txn, 0)
	})
	if !ok {
		return
	}
	letters, ok := s.lettersOf(x, partition, txn)
	if !ok {
		return
	}
	deleted := 0
	for len(letters) > 0 {
		call := &fsm.DeleteLetters{}
		for _, l := range letters[:min(len(letters), fsm.MaxDeleteLetters)] {
			call.IDs = append(call.IDs, l.ID)
		}
		letters = letters[len(call.IDs):]
		w := s.getWork(x)
		if err := s.run(w, call, 32*len(call.IDs), x.remaining(s.cfg.Limits.CallTimeout), nil); err != nil {
			s.ended(w, err)
			x.undecided(err)
			return
		}
		s.putWork(w)
		deleted += call.Deleted
	}
	x.deletedLetters(strconv.FormatUint(partition, 10), txn, deleted)
}

func (x *exchange) deletedLetters(partition, txn string, n int) {
	status := http.StatusOK
	x.out = rawjson.AppendBool(append(x.out[:0], `{"success":`...), n > 0)
	x.out = rawjson.AppendString(append(x.out, `,"partitionId":`...), partition)
	x.out = rawjson.AppendString(append(x.out, `,"transactionId":`...), txn)
	if n > 0 {
		x.out = rawjson.AppendString(append(x.out, `,"message":`...), "removed "+strconv.Itoa(n)+" from the dead-letter queue")
	} else {
		status = http.StatusNotFound
		x.out = append(x.out, `,"error":"Message not found"`...)
	}
	x.out = append(x.out, '}')
	_ = x.answer(status)
}
