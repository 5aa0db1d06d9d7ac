package server

import (
	"net/http"
	"strconv"

	"github.com/cespare/xxhash/v2"

	"queen/fsm"
	"queen/internal/entry"
	"queen/server/rawjson"
)

// problem is the first thing that is wrong with a body.
type problem struct {
	status int
	code   string
	prose  string
}

func (p *problem) set(status int, code, prose string) {
	if p.status == 0 {
		*p = problem{status, code, prose}
	}
}

// pushFields are the members of one pushed item, as sent.
type pushFields struct {
	queue, partition, txn, trace []byte
	payload, data                []byte // as sent; nil: absent
	hasQueue, hasPartition       bool
	wrong                        string // a member of the wrong type
}

// take reads the value of one member; false: the member is none of an item's,
// and its value still has to be consumed.
func (f *pushFields) take(s *rawjson.Scanner, key []byte) bool {
	switch string(key) {
	case "queue":
		f.queue, f.hasQueue = textMember(s, "queue", &f.wrong)
	case "partition":
		f.partition, f.hasPartition = textMember(s, "partition", &f.wrong)
	case "transactionId":
		f.txn, _ = textMember(s, "transactionId", &f.wrong)
	case "payload":
		f.payload = s.Raw()
	case "data":
		f.data = s.Raw()
	case "traceId":
		f.trace, _ = s.Text()
	default:
		return false
	}
	return true
}

// addItem checks an item and adds it to items, its message packed.
func (s *Server) addItem(w *work, items []fsm.PushItem, f *pushFields, keepTrace bool, p *problem) []fsm.PushItem {
	switch {
	case f.wrong != "":
		p.set(http.StatusBadRequest, "bad_request", "an item's "+f.wrong+" is not a string")
	case !f.hasQueue || len(f.queue) == 0:
		p.set(http.StatusBadRequest, "bad_request", "an item has no queue")
	case f.hasPartition && len(f.partition) == 0:
		p.set(http.StatusBadRequest, "bad_request", "an item has an empty partition name")
	case f.payload == nil:
		p.set(http.StatusBadRequest, "bad_request", "an item has no payload")
	case len(f.queue)+partitionLen(f.hasPartition, f.partition) > nameBytes:
		p.set(http.StatusRequestEntityTooLarge, "name_too_long", tooLongNames)
	case len(f.txn) > maxTxnID:
		p.set(http.StatusBadRequest, "bad_request", longTxnID)
	}
	if p.status != 0 {
		return items
	}
	it := fsm.PushItem{Queue: w.name(f.queue), Partition: defaultPartition, ID: s.ids.mintAt(w.at), DupOf: -1}
	if f.hasPartition {
		it.Partition = w.name(f.partition)
	}
	m := entry.Message{ID: it.ID, Minted: true, Payload: f.payload}
	if len(f.txn) > 0 {
		it.Txn, m.Txn, m.Minted = f.txn, f.txn, false
		it.TxnHash = xxhash.Sum64(f.txn)
	} else {
		var text [36]byte
		it.TxnHash = xxhash.Sum64(entry.AppendUUID(text[:0], it.ID))
	}
	if keepTrace {
		m.TraceID, m.HasTrace = parseID(f.trace)
	}
	m.ProducerSub = w.producer
	if it.Form = s.sealing.guess(w.call.Tenant, it.Queue); it.Form == fsm.FormSealed {
		m.Payload = s.packer.key.Append(nil, m.Payload)
	}
	it.Packed = s.pack(w, &m)
	return append(items, it)
}

const longTxnID = "a transactionId is over 65535 bytes"

const tooLongNames = "queue and the longer of partition and group are over 411 bytes together"

// pack appends the stored form of m to the work's arena.
func (s *Server) pack(w *work, m *entry.Message) []byte {
	from := len(w.arena)
	w.arena = s.packer.appendMessage(w.arena, m)
	return w.arena[from:len(w.arena):len(w.arena)]
}

// growArena makes room for what is packed from the body. A packed message is
// hardly ever longer than the JSON that it came in.
func (w *work) growArena() {
	if cap(w.arena) < len(w.body) {
		w.arena = make([]byte, 0, len(w.body)+len(w.body)/8)
	}
}

// parsePush reads a push body. The items refer to the body.
func (s *Server) parsePush(w *work) (p problem) {
	sc := &w.scan
	sc.Reset(w.body)
	w.growArena()
	var shape, item problem
	isArray := false
	if sc.Kind() == rawjson.Object {
		for ok := sc.EnterObject(); ok; ok = sc.NextMember() {
			if string(sc.Key()) != "items" {
				sc.Skip()
				continue
			}
			w.push.Items, item = w.push.Items[:0], problem{}
			isArray = s.parseItems(w, &w.push, false, &shape, &item)
		}
	} else {
		sc.Skip()
	}
	if err := sc.End(); err != nil {
		return problem{http.StatusBadRequest, "bad_body", err.Error()}
	}
	if !isArray {
		return problem{http.StatusBadRequest, "bad_body", "the body needs an array named items"}
	}
	if shape.status != 0 {
		return shape
	}
	return item
}

// parseItems reads an array of items into push. shape gets what makes it no
// array of objects, item what is wrong inside one.
func (s *Server) parseItems(w *work, push *fsm.Push, alias bool, shape, item *problem) (isArray bool) {
	sc := &w.scan
	if sc.Kind() != rawjson.Array {
		sc.Skip()
		return false
	}
	for ok := sc.EnterArray(); ok; ok = sc.NextElement() {
		if sc.Kind() != rawjson.Object {
			sc.Skip()
			shape.set(http.StatusBadRequest, "bad_body", "an item is not an object")
			continue
		}
		var f pushFields
		for ok := sc.EnterObject(); ok; ok = sc.NextMember() {
			if !f.take(sc, sc.Key()) {
				sc.Skip()
			}
		}
		if sc.Err() != nil {
			return true
		}
		if alias && f.payload == nil {
			f.payload = f.data
		}
		push.Items = s.addItem(w, push.Items, &f, alias, item)
	}
	return true
}

func (s *Server) servePush(x *exchange) {
	w := s.getWork(x)
	if x.bodyTooLarge() || x.storageFull() || !x.readGrowing(w) {
		s.putWork(w)
		return
	}
	if p := s.parsePush(w); p.status != 0 {
		s.putWork(w)
		x.fail(p.status, p.code, p.prose)
		return
	}
	if x.keyed() && !x.takeKey(w, fsm.OutcomePush, len(w.push.Items), func(dst []byte) []byte { return s.appendPushResults(dst, &w.push, true) }) {
		s.putWork(w)
		return
	}
	if len(w.push.Items) == 0 {
		s.putWork(w)
		x.out = append(x.out[:0], "[]"...)
		_ = x.answer(http.StatusCreated)
		return
	}
	w.push.GroupItems()
	size := len(w.arena) + 64*len(w.push.Items)
	if err := s.run(w, &w.push, size, x.remaining(s.cfg.Limits.PushTimeout), nil); err != nil {
		s.ended(w, err)
		x.undecided(err)
		return
	}
	if s.answerKnown(x, w) {
		return
	}
	if w.call.Key != nil && w.keyed.Kept {
		x.out = append(x.out[:0], w.keyed.Body...)
	} else {
		x.out = s.appendPushResults(x.out[:0], &w.push, false)
	}
	s.metrics.pushed.Add(int64(len(w.push.Items)))
	s.putWork(w)
	_ = x.answer(http.StatusCreated)
}

// ended puts a work back after run returned err, unless run gave it away.
func (s *Server) ended(w *work, err error) {
	if err != errTimeout && err != errGone {
		s.putWork(w)
	}
}

// appendPushResults appends the answer of a push; keyed: the planner has looked
// the originals of its duplicates up.
func (s *Server) appendPushResults(dst []byte, push *fsm.Push, keyed bool) []byte {
	dst = append(dst, '[')
	for i := range push.Items {
		it := &push.Items[i]
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(dst, `{"index":`...)
		dst = strconv.AppendInt(dst, int64(i), 10)
		dst = append(dst, `,"message_id":`...)
		if keyed {
			dst = appendID(dst, foundID(push, it))
		} else {
			dst = appendID(dst, s.storedID(push, it))
		}
		dst = append(dst, `,"transaction_id":`...)
		dst = appendTxn(dst, it.Txn, it.ID)
		dst = append(dst, `,"queueName":`...)
		dst = rawjson.AppendString(dst, it.Queue)
		switch it.Status {
		case fsm.Queued:
			dst = append(dst, `,"status":"queued"`...)
		case fsm.Duplicate:
			dst = append(dst, `,"status":"duplicate"`...)
		default:
			dst = append(dst, `,"status":"error"}`...)
			continue
		}
		dst = append(dst, `,"offset":`...)
		dst = strconv.AppendUint(dst, it.Offset, 10)
		dst = append(dst, '}')
	}
	return append(dst, ']')
}

// appendTxn appends a transactionId: txn, or the text of id when txn is nil.
func appendTxn(dst, txn []byte, id [16]byte) []byte {
	if txn == nil {
		return appendID(dst, id)
	}
	return rawjson.AppendString(dst, txn)
}

// foundID is storedID for a keyed push.
func foundID(push *fsm.Push, it *fsm.PushItem) [16]byte {
	switch {
	case it.Status != fsm.Duplicate:
		return it.ID
	case it.DupOf >= 0:
		return foundID(push, &push.Items[it.DupOf])
	}
	return it.StoredID
}

// storedID is the id of the message that an item became, or is a duplicate of.
// Of a message that another call stored it is read from the log; when that is
// no longer there, it is the zero id.
func (s *Server) storedID(push *fsm.Push, it *fsm.PushItem) (id [16]byte) {
	if it.Status != fsm.Duplicate {
		return it.ID
	}
	if it.DupOf >= 0 {
		return s.storedID(push, &push.Items[it.DupOf])
	}
	err := s.engine.Reader().ReadMessages(it.QueueID, it.PartitionID, it.Offset, it.Offset,
		func(_ uint64, _ int64, m *entry.Message) error {
			id = m.ID
			return nil
		})
	if err == nil && id == [16]byte{} { // the message is gone, its id may be kept
		err = s.engine.Reader().FindTxn(it.QueueID, it.PartitionID, it.Txn, func(offset uint64, _ int64, stored [16]byte) bool {
			if offset == it.Offset {
				id = stored
			}
			return offset > it.Offset
		})
	}
	if err != nil {
		s.log.Warn("the original of a duplicate could not be read", "queue", it.Queue, "partition", it.Partition,
			"offset", it.Offset, "error", err)
	}
	return id
}
