package server

import (
	"net/http"

	"queen/fsm"
	"queen/server/rawjson"
)

// element is one place in a transaction's results: an ack or a pushed item.
type element struct {
	push  bool
	index int
}

// txnProblem is why a transaction is refused for its shape.
type txnProblem struct {
	status int
	reason string // of the rollback body; of the engine body when engine is set
	prose  string
	engine bool
}

func refuse(status int, reason, prose string) *txnProblem {
	return &txnProblem{status: status, reason: reason, prose: prose}
}

// The parts of a body are judged in a fixed order, whatever order they stand
// in, so each keeps its own first problem.
type txnParse struct {
	shape     *txnProblem // not JSON, not an array, operation types
	empty     *txnProblem // 200: an inline push without queue or payload, a partitionId that is no number
	items     problem     // names and ids of pushed items
	kv        *kvProblem
	timers    *timerProblem
	positions *txnProblem

	hasOperations, hasKV, hasTimers, hasPositions bool // present with at least one element
}

func (p *txnParse) setShape(t *txnProblem) {
	if p.shape == nil {
		p.shape = t
	}
}

const onlyPushAndAck = "transaction supports only push and ack operations"

// parseTransaction reads the body into w.txn.
func (s *Server) parseTransaction(w *work) *txnProblem {
	sc := &w.scan
	sc.Reset(w.body)
	w.growArena()
	var p txnParse
	if sc.Kind() == rawjson.Object {
		for ok := sc.EnterObject(); ok; ok = sc.NextMember() {
			s.takeTxnPart(w, &p, sc.Key())
		}
	} else {
		sc.Skip()
		p.setShape(refuse(http.StatusBadRequest, "bad_request", "the body is no object"))
	}
	if err := sc.End(); err != nil {
		return refuse(http.StatusBadRequest, "bad_request", err.Error())
	}
	if t := p.verdict(); t != nil {
		return t
	}
	if bad := &w.next.bad; bad.status != 0 {
		return &txnProblem{bad.status, bad.code, bad.prose, bad.code == "name_too_long"}
	}
	resolveLeases(w)
	return nil
}

// verdict is the first refusal in the order of the contract.
func (p *txnParse) verdict() *txnProblem {
	switch {
	case p.shape != nil:
		return p.shape
	case !p.hasOperations && !p.hasKV && !p.hasTimers && !p.hasPositions:
		return refuse(http.StatusOK, "bad_request", "the transaction has no parts")
	case p.items.status != 0:
		// Names that are too long and ids that are too long speak the engine's
		// body; what is missing inside an item speaks the rollback body.
		return &txnProblem{p.items.status, p.items.code, p.items.prose, p.items.code == "name_too_long" || p.items.prose == longTxnID}
	case p.empty != nil:
		return p.empty
	case p.kv != nil:
		return refuse(p.kv.status, p.kv.txnReason(), p.kv.detail)
	case p.timers != nil:
		return &txnProblem{p.timers.status, p.timers.txnReason, p.timers.detail, p.timers.engine}
	case p.positions != nil:
		return p.positions
	}
	return nil
}

func (s *Server) takeTxnPart(w *work, p *txnParse, key []byte) {
	sc := &w.scan
	name := string(key)
	switch name {
	case "next":
		s.parseNext(w)
		return
	case "operations", "requiredLeases", "kv", "timers", "positions":
	default:
		sc.Skip()
		return
	}
	null := sc.Kind() == rawjson.Null
	if sc.Kind() != rawjson.Array {
		sc.Skip()
		if !null || name == "operations" {
			p.setShape(refuse(http.StatusBadRequest, "bad_request", name+" is not an array"))
		}
		return
	}
	switch name {
	case "operations":
		s.parseOperations(w, p)
	case "requiredLeases":
		parseRequired(w, p)
	case "kv":
		rules := kvRules{ops: txnKVOps, keys: txnKVKeys, value: s.cfg.Limits.KVValueBytes, inTxn: true}
		w.txn.KV, p.kv = parseKVArray(w, w.txn.KV[:0], &rules)
		p.hasKV = len(w.txn.KV) > 0 || p.kv != nil
	case "timers":
		rules := timerRules{unpack: int(s.cfg.Limits.BodyBytes), inTxn: true}
		w.echoes = w.echoes[:0]
		w.txn.Timers, p.timers = s.parseTimerArray(w, w.txn.Timers[:0], &rules)
		p.hasTimers = len(w.txn.Timers) > 0 || p.timers != nil
	case "positions":
		parsePositions(w, p)
	}
}

func parseRequired(w *work, p *txnParse) {
	sc := &w.scan
	w.required = w.required[:0]
	for ok := sc.EnterArray(); ok; ok = sc.NextElement() {
		lease, isString := sc.Text()
		if !isString {
			p.setShape(refuse(http.StatusBadRequest, "bad_request", "a required lease is not a string"))
		} else if len(lease) > 0 {
			w.required = append(w.required, lease)
		}
	}
}

func (s *Server) parseOperations(w *work, p *txnParse) {
	sc := &w.scan
	// A repeated member replaces the one before it.
	w.txn.Acks, w.txn.Push.Items = w.txn.Acks[:0], w.txn.Push.Items[:0]
	w.order, w.leases = w.order[:0], w.leases[:0]
	p.items, p.empty, p.hasOperations = problem{}, nil, false
	for ok := sc.EnterArray(); ok; ok = sc.NextElement() {
		if sc.Kind() != rawjson.Object {
			sc.Skip()
			p.setShape(refuse(http.StatusBadRequest, "bad_request", "an operation is no object; "+onlyPushAndAck))
			continue
		}
		s.parseOperation(w, p)
	}
}

// parseOperation reads one operation. Its type may stand after its other
// members, and some names mean a thing in both, so all are kept until the end.
func (s *Server) parseOperation(w *work, p *txnParse) {
	sc := &w.scan
	var (
		ack      ackFields
		item     pushFields
		kind     []byte
		itemsRaw []byte
		txnWrong bool
	)
	before := markOperation(w, p)
	for ok := sc.EnterObject(); ok; ok = sc.NextMember() {
		key := sc.Key()
		switch string(key) {
		case "type":
			kind, _ = sc.Text()
		case "transactionId":
			ack.txn, ack.hasTxn = textMember(sc, "transactionId", &ack.wrong)
			item.txn, txnWrong = ack.txn, ack.wrong == "transactionId"
		case "items":
			before.restore(w, p) // a repeated member replaces the one before it
			if string(kind) == "push" && sc.Kind() == rawjson.Array {
				s.parsePushItems(w, p)
				itemsRaw = itemsDone
				continue
			}
			itemsRaw = sc.Raw()
		default:
			if !item.take(sc, key) && !ack.take(sc, key) {
				sc.Skip()
			}
		}
	}
	if sc.Err() != nil {
		return
	}
	if string(kind) != "push" {
		before.restore(w, p) // the type was repeated: the items of a push are none of an ack's
	}
	switch string(kind) {
	case "ack":
		addAck(w, p, &ack)
	case "push":
		if txnWrong {
			item.wrong = "transactionId"
		}
		s.addPush(w, p, &item, itemsRaw)
	default:
		p.setShape(refuse(http.StatusBadRequest, "bad_request", onlyPushAndAck))
	}
}

// operationMark is how a transaction stood before one of its operations.
type operationMark struct {
	parse         txnParse
	items, places int
}

func markOperation(w *work, p *txnParse) operationMark {
	return operationMark{*p, len(w.txn.Push.Items), len(w.order)}
}

// restore drops what the operation has added so far.
func (m *operationMark) restore(w *work, p *txnParse) {
	*p = m.parse
	w.txn.Push.Items, w.order = w.txn.Push.Items[:m.items], w.order[:m.places]
}

// itemsDone marks items that were parsed while they were scanned.
var itemsDone = []byte("done")

func addAck(w *work, p *txnParse, f *ackFields) {
	p.hasOperations = true
	if bad := f.problem(); bad != "" {
		p.setShape(refuse(http.StatusBadRequest, "bad_request", bad))
		return
	}
	if _, isNumber := parsePartition(f.partition); !isNumber && p.empty == nil {
		p.empty = refuse(http.StatusOK, "bad_request", "partitionId is not a string of digits")
	}
	it := f.item(w)
	it.Group = groupOrQueueMode(w, f.group)
	w.order = append(w.order, element{index: len(w.txn.Acks)})
	w.txn.Acks = append(w.txn.Acks, it)
	w.leases = append(w.leases, f.lease)
}

// addPush adds the items of a push operation. itemsRaw is nil for an inline
// push, and itemsDone when the items were added already.
func (s *Server) addPush(w *work, p *txnParse, f *pushFields, itemsRaw []byte) {
	switch {
	case itemsRaw == nil:
		s.addInline(w, p, f)
	case len(itemsRaw) > 0 && &itemsRaw[0] == &itemsDone[0]:
	case itemsRaw[0] == '[':
		// The type stood behind the items: they are scanned a second time.
		outer := w.scan
		w.scan = rawjson.Scanner{}
		w.scan.Reset(itemsRaw)
		s.parsePushItems(w, p)
		w.scan = outer
	default:
		p.setShape(refuse(http.StatusBadRequest, "bad_request", "items is not an array"))
	}
}

func (s *Server) addInline(w *work, p *txnParse, f *pushFields) {
	p.hasOperations = true
	if f.payload == nil {
		f.payload = f.data
	}
	if f.wrong == "" && (!f.hasQueue || f.payload == nil) {
		if p.empty == nil {
			p.empty = refuse(http.StatusOK, "bad_request", "a push has no queue or no payload")
		}
		return
	}
	w.order = append(w.order, element{push: true, index: len(w.txn.Push.Items)})
	w.txn.Push.Items = s.addItem(w, w.txn.Push.Items, f, true, &p.items)
}

func (s *Server) parsePushItems(w *work, p *txnParse) {
	from := len(w.txn.Push.Items)
	var shape problem
	s.parseItems(w, &w.txn.Push, true, &shape, &p.items)
	if shape.status != 0 {
		p.setShape(refuse(http.StatusBadRequest, "bad_request", shape.prose))
	}
	if p.items.status != 0 {
		p.hasOperations = true
	}
	for i := from; i < len(w.txn.Push.Items); i++ {
		p.hasOperations = true
		w.order = append(w.order, element{push: true, index: i})
	}
}

// resolveLeases gives the acks that name no lease the one that the body offers
// them: the only distinct one of requiredLeases, or, when that names none, the
// only distinct one of the other acks.
func resolveLeases(w *work) {
	lease, n := distinct(w.required)
	if n == 0 {
		lease, n = distinct(w.leases)
	}
	if n != 1 {
		return
	}
	id, _ := parseID(lease)
	for i := range w.txn.Acks {
		if it := &w.txn.Acks[i]; !it.HasLease {
			it.HasLease, it.LeaseID = true, id
		}
	}
}

// distinct returns the first lease that is not empty, and 0, 1 or 2 for none,
// one, or several different ones. Two spellings of one id are one lease.
func distinct(leases [][]byte) (lease []byte, n int) {
	var id [16]byte
	for _, l := range leases {
		if len(l) == 0 {
			continue
		}
		if n == 0 {
			lease, n = l, 1
			id, _ = parseID(l)
			continue
		}
		if other, ok := parseID(l); string(l) != string(lease) && (!ok || other != id) {
			return lease, 2
		}
	}
	return lease, n
}

func parsePositions(w *work, p *txnParse) {
	sc := &w.scan
	w.txn.Positions, p.positions, p.hasPositions = w.txn.Positions[:0], nil, false
	n := 0
	for ok := sc.EnterArray(); ok; ok = sc.NextElement() {
		n++
		p.hasPositions = true
		if sc.Kind() != rawjson.Object {
			sc.Skip()
			p.setPosition("bad_request", "a position is no object")
			continue
		}
		pos, reason, prose := parsePosition(w, p)
		if reason != "" {
			p.setPosition(reason, prose)
			continue
		}
		w.txn.Positions = append(w.txn.Positions, pos)
	}
	if n > txnPositions {
		p.positions = refuse(http.StatusOK, "bad_request", "more than 16384 positions")
	}
}

func (p *txnParse) setPosition(reason, prose string) {
	if p.positions == nil {
		p.positions = refuse(http.StatusOK, reason, prose)
	}
}

func parsePosition(w *work, p *txnParse) (pos fsm.Position, reason, prose string) {
	sc := &w.scan
	var (
		f         ackFields // its text members behave alike
		empty     bool      // a queue or partition name that is there and empty
		hasOffset bool
	)
	pos.Partition = defaultPartition
	for ok := sc.EnterObject(); ok; ok = sc.NextMember() {
		switch string(sc.Key()) {
		case "queue":
			name, present := textMember(sc, "queue", &f.wrong)
			pos.Queue = w.name(name)
			empty = empty || present && pos.Queue == ""
		case "consumerGroup":
			f.group, f.hasGroup = textMember(sc, "consumerGroup", &f.wrong)
			pos.Group = w.name(f.group)
		case "partition":
			if name, present := textMember(sc, "partition", &f.wrong); present {
				pos.Partition = w.name(name)
				empty = empty || pos.Partition == ""
			}
		case "metadata":
			text, _ := textMember(sc, "metadata", &f.wrong)
			pos.Metadata = string(text)
		case "subscriptionMode":
			text, _ := textMember(sc, "subscriptionMode", &f.wrong)
			pos.Mode = parseMode(w.name(text))
		case "offset":
			hasOffset = f.takeOffset(sc, &pos)
		default:
			sc.Skip()
		}
	}
	switch {
	case f.wrong != "":
		return pos, "bad_request", "a position's " + f.wrong + " has the wrong type or range"
	case empty:
		p.items.set(http.StatusBadRequest, "bad_request", "a position has an empty queue or partition name")
		return pos, "bad_request", "a position has an empty name"
	case pos.Queue == "":
		return pos, "bad_request", "a position has no queue"
	case pos.Group == "":
		return pos, "bad_request", "a position has no consumerGroup"
	case !hasOffset:
		return pos, "bad_request", "a position has no offset"
	case !namesFit(pos.Queue, pos.Partition, pos.Group):
		return pos, "name_too_long", tooLongNames
	case len(pos.Metadata) > maxMetadata:
		return pos, "too_large", "a position's metadata is over 4096 bytes"
	}
	return pos, "", ""
}

// takeOffset reads the offset of a position; null forgets the position.
func (f *ackFields) takeOffset(sc *rawjson.Scanner, pos *fsm.Position) bool {
	kind, raw := sc.Kind(), sc.Raw()
	pos.Forget, pos.Offset = kind == rawjson.Null, 0
	if pos.Forget {
		return true
	}
	n, ok := rawjson.Int(raw)
	if kind != rawjson.Number || !ok || n < 0 {
		f.wrong = "offset"
		return true
	}
	pos.Offset = uint64(n)
	return true
}
