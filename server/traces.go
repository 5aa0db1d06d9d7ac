package server

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strconv"

	"queen/fsm"
	"queen/internal/entry"
	"queen/raftlog"
	"queen/server/rawjson"
)

// traceWorker is the worker_id of every trace: the broker knows of no other.
const traceWorker = "queen"

// storedTrace is how the payload of a trace is stored.
type storedTrace struct {
	Partition string          `json:"p"`
	Txn       string          `json:"t"`
	Group     string          `json:"g"`
	Type      string          `json:"e"`
	Names     []string        `json:"n,omitempty"`
	Data      json.RawMessage `json:"d"`
}

// parseTrace reads the body of a new trace.
func parseTrace(w *work) (t storedTrace, p problem) {
	sc := &w.scan
	sc.Reset(w.body)
	bad := func(prose string) { p.set(http.StatusBadRequest, "bad_request", prose) }
	t.Group, t.Type = fsm.QueueMode, "info"
	if sc.Kind() != rawjson.Object {
		sc.Skip()
		bad("the body is no object")
	} else {
		for ok := sc.EnterObject(); ok; ok = sc.NextMember() {
			name := string(sc.Key())
			switch name {
			case "transactionId", "partitionId", "consumerGroup", "eventType":
				if sc.Kind() == rawjson.Null {
					sc.Skip()
					continue
				}
				text, isString := sc.Text()
				if !isString {
					bad(name + " is not a string")
				}
				t.set(name, string(text))
			case "traceNames":
				t.Names = nil
				if !traceNames(sc, &t.Names) {
					bad("traceNames is neither a string nor an array of strings")
				}
			case "data":
				t.Data = append(json.RawMessage(nil), sc.Raw()...)
			default:
				sc.Skip()
			}
		}
	}
	if err := sc.End(); err != nil {
		return t, problem{http.StatusBadRequest, "bad_body", err.Error()}
	}
	t.check(bad)
	return t, p
}

func (t *storedTrace) set(name, text string) {
	switch name {
	case "transactionId":
		t.Txn = text
	case "partitionId":
		t.Partition = text
	case "consumerGroup":
		if text != "" {
			t.Group = text
		}
	case "eventType":
		if text != "" {
			t.Type = text
		}
	}
}

// traceNames reads one name or an array of them; a repeated one counts once.
func traceNames(sc *rawjson.Scanner, names *[]string) (ok bool) {
	ok = true
	take := func() {
		text, isString := sc.Text()
		ok = ok && isString
		if name := string(text); name != "" && !slices.Contains(*names, name) {
			*names = append(*names, name)
		}
	}
	switch sc.Kind() {
	case rawjson.Null:
		sc.Skip()
	case rawjson.Array:
		for more := sc.EnterArray(); more; more = sc.NextElement() {
			if len(*names) > fsm.MaxTraceNames {
				sc.Skip()
				continue
			}
			take()
		}
	default:
		take()
	}
	return ok
}

func (t *storedTrace) check(bad func(prose string)) {
	switch {
	case t.Txn == "":
		bad("transactionId is required")
	case t.Partition == "":
		bad("partitionId is required")
	case t.Data == nil:
		bad("data is required")
	case len(t.Partition)+1+len(t.Txn) > fsm.MaxTraceKey:
		bad("partitionId and transactionId are over " + strconv.Itoa(fsm.MaxTraceKey-1) + " bytes together")
	case len(t.Names) > fsm.MaxTraceNames:
		bad("a trace has at most " + strconv.Itoa(fsm.MaxTraceNames) + " names")
	}
	for _, name := range t.Names {
		if len(name) > fsm.MaxTraceKey {
			bad("a trace name is over " + strconv.Itoa(fsm.MaxTraceKey) + " bytes")
		}
	}
}

func (s *Server) serveTrace(x *exchange) {
	w := s.getWork(x)
	if x.storageFull() || !x.readBody(w) {
		s.putWork(w)
		return
	}
	t, p := parseTrace(w)
	if p.status != 0 {
		s.putWork(w)
		x.fail(p.status, p.code, p.prose)
		return
	}
	payload, err := json.Marshal(&t)
	if err != nil { // data was valid JSON
		s.putWork(w)
		x.undecided(err)
		return
	}
	id := s.ids.mintAt(w.at)
	m := entry.Message{ID: id, Txn: fsm.TraceAddress(t.Partition, t.Txn), Payload: payload}
	call := &fsm.Trace{PartitionID: t.Partition, Txn: t.Txn, Names: t.Names, ID: id, Packed: s.pack(w, &m)}
	if err := s.run(w, call, len(call.Packed)+256*len(t.Names), x.remaining(s.cfg.Limits.CallTimeout), nil); err != nil {
		s.ended(w, err)
		x.undecided(err)
		return
	}
	s.putWork(w)
	if call.Refused {
		x.fail(http.StatusBadRequest, "bad_request", "the message has "+strconv.Itoa(fsm.MaxTraces)+" traces already")
		return
	}
	x.out = append(x.out[:0], `{"success":true,"traceId":`...)
	x.out = append(appendID(x.out, id), '}')
	_ = x.answer(http.StatusCreated)
}

// traceRow is one trace as a read gives it.
type traceRow struct {
	storedTrace
	id   [16]byte
	time int64 // microseconds
}

// findTraces runs the look-up f and reads the traces that it finds, newest
// first, up to limit. false: it has answered.
func (s *Server) findTraces(x *exchange, f *fsm.FindTraces, limit int) (rows []traceRow, ok bool) {
	w := s.getWork(x)
	if err := s.run(w, f, 0, x.remaining(s.cfg.Limits.CallTimeout), nil); err != nil {
		s.ended(w, err)
		x.undecided(err)
		return nil, false
	}
	s.putWork(w)
	if f.Queue == 0 {
		return nil, true
	}
	rows, err := s.readTraces(f, limit)
	switch {
	case errors.Is(err, raftlog.ErrNoLog): // retention has taken all of it since
		return nil, true
	case err != nil:
		s.log.Error("a trace cannot be read", "request", x.id, "error", err)
		s.unwell("a stored payload cannot be read; see the log")
		x.fail(http.StatusInternalServerError, "internal", "a stored trace cannot be read")
		return nil, false
	}
	return rows, true
}

func (s *Server) readTraces(f *fsm.FindTraces, limit int) (rows []traceRow, err error) {
	r := s.engine.Reader()
	for i, key := range f.Keys {
		offsets := f.Known[i]
		if len(offsets) == 0 || f.Name == "" {
			err := r.FindTxn(f.Queue, f.Partition, key, func(offset uint64, _ int64, _ [16]byte) bool {
				offsets = append(offsets, offset)
				return f.Name == "" && len(offsets) < 2*fsm.MaxTraces
			})
			if err != nil {
				return nil, err
			}
		}
		slices.Sort(offsets)
		offsets = slices.Compact(offsets)
		slices.Reverse(offsets)
		if f.Name != "" {
			offsets = offsets[:min(len(offsets), 1)] // a key stood for an older trace once
		}
		for _, offset := range offsets {
			if offset < f.Start || len(rows) == limit {
				break
			}
			if rows, err = s.readTrace(rows, f, offset); err != nil {
				return nil, err
			}
		}
	}
	return rows, nil
}

// readTrace adds the trace at an offset, or the one that an offset of a name
// refers to.
func (s *Server) readTrace(rows []traceRow, f *fsm.FindTraces, offset uint64) ([]traceRow, error) {
	r := s.engine.Reader()
	if f.Name != "" {
		at, found := offset, false
		err := r.ReadMessages(f.Queue, f.Partition, at, at, func(_ uint64, _ int64, m *entry.Message) error {
			offset, _ = binary.Uvarint(m.Payload)
			found = true
			return nil
		})
		if err != nil || !found || offset < f.EventStart {
			return rows, err
		}
	}
	err := r.ReadMessages(f.Queue, f.Events, offset, offset, func(_ uint64, t int64, m *entry.Message) error {
		data, err := s.packer.appendPayload(nil, m)
		if err != nil {
			return err
		}
		row := traceRow{id: m.ID, time: t}
		if err := json.Unmarshal(data, &row.storedTrace); err != nil {
			return err
		}
		rows = append(rows, row)
		return nil
	})
	return rows, err
}

func (t *traceRow) appendTo(dst []byte) []byte {
	dst = append(dst, `{"id":`...)
	dst = appendID(dst, t.id)
	dst = append(dst, `,"event_type":`...)
	dst = rawjson.AppendString(dst, t.Type)
	dst = append(dst, `,"data":`...)
	dst = append(dst, t.Data...)
	dst = append(dst, `,"consumer_group":`...)
	dst = rawjson.AppendString(dst, t.Group)
	dst = append(dst, `,"worker_id":"`+traceWorker+`","created_at":`...)
	dst = rawjson.AppendMicros(dst, t.time)
	dst = append(dst, `,"trace_names":[`...)
	for i, name := range t.Names {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = rawjson.AppendString(dst, name)
	}
	return append(dst, ']', '}')
}

func (s *Server) serveTracesOf(x *exchange) {
	partition, ok1 := x.param("partitionId")
	txn, ok2 := x.param("transactionId")
	if !ok1 || !ok2 {
		x.fail(http.StatusBadRequest, "bad_request", badPathName)
		return
	}
	rows, ok := s.findTraces(x, &fsm.FindTraces{PartitionID: partition, Txn: txn}, fsm.MaxTraces)
	if !ok {
		return
	}
	slices.Reverse(rows)
	x.out = append(x.out[:0], `{"traces":[`...)
	for i := range rows {
		if i > 0 {
			x.out = append(x.out, ',')
		}
		x.out = rows[i].appendTo(x.out)
	}
	x.out = append(x.out, ']', '}')
	_ = x.answer(http.StatusOK)
}

// pageParams reads limit and offset; false: it has answered.
func (x *exchange) pageParams(limit int) (page, offset int, ok bool) {
	page = limit
	bad := ""
	ok = query(x.c.Request.URL.RawQuery, func(name, value string) bool {
		if value == "" || name != "limit" && name != "offset" {
			return true
		}
		n, isCount := parseCount(value)
		if !isCount {
			bad = name + " does not parse"
			return false
		}
		if name == "limit" {
			page = int(min(max(n, 1), 1000))
		} else {
			offset = int(min(max(n, 0), 1<<40))
		}
		return true
	})
	if !ok && bad == "" {
		bad = "the query has an escape that does not parse"
	}
	if !ok {
		x.fail(http.StatusBadRequest, "bad_request", bad)
	}
	return page, offset, ok
}

func appendPagination(dst []byte, limit, offset int, total uint64) []byte {
	dst = append(dst, `"pagination":{`...)
	dst = appendInt(dst, "limit", int64(limit))
	dst = appendInt(append(dst, ','), "offset", int64(offset))
	dst = append(dst, `},`...)
	return append(appendInt(dst, "total", int64(total)), '}')
}

func (s *Server) serveTracesByName(x *exchange) {
	name, ok := x.param("traceName")
	if !ok {
		x.fail(http.StatusBadRequest, "bad_request", badPathName)
		return
	}
	limit, offset, ok := x.pageParams(100)
	if !ok {
		return
	}
	f := &fsm.FindTraces{Name: name, Offset: offset, Limit: limit}
	var rows []traceRow
	if name != "" {
		if rows, ok = s.findTraces(x, f, limit); !ok {
			return
		}
	}
	places, ok := s.placesOf(x, rows)
	if !ok {
		return
	}
	x.out = append(x.out[:0], `{"traces":[`...)
	for i := range rows {
		if i > 0 {
			x.out = append(x.out, ',')
		}
		x.out = rows[i].appendTo(x.out)
		x.out = x.out[:len(x.out)-1]
		x.out = append(x.out, `,"transaction_id":`...)
		x.out = rawjson.AppendString(x.out, rows[i].Txn)
		x.out = append(x.out, `,"partition_id":`...)
		x.out = rawjson.AppendString(x.out, rows[i].Partition)
		x.out = places[i].appendTo(x.out)
		x.out = append(x.out, `,"message_payload":null}`...)
	}
	x.out = appendPagination(append(x.out, `],`...), limit, offset, f.Total)
	_ = x.answer(http.StatusOK)
}

// place is where a partition is, when it is there.
type place struct {
	queue, partition string
	found            bool
}

func (p place) appendTo(dst []byte) []byte {
	if !p.found {
		return append(dst, `,"queue_name":null,"partition_name":null`...)
	}
	dst = append(dst, `,"queue_name":`...)
	dst = rawjson.AppendString(dst, p.queue)
	dst = append(dst, `,"partition_name":`...)
	return rawjson.AppendString(dst, p.partition)
}

// placesOf looks up the partitions of traces; false: it has answered.
func (s *Server) placesOf(x *exchange, rows []traceRow) (places []place, ok bool) {
	places = make([]place, len(rows))
	if len(rows) == 0 {
		return places, true
	}
	tenant := x.tenant
	ok = s.read(x, func(st *fsm.State) {
		for i := range rows {
			if id, err := strconv.ParseUint(rows[i].Partition, 10, 64); err == nil {
				p := &places[i]
				p.queue, p.partition, p.found = st.PlaceOf(tenant, id)
			}
		}
	})
	return places, ok
}

// traceNamePage is how many names one look at the state visits.
const traceNamePage = 1000

func (s *Server) serveTraceNames(x *exchange) {
	limit, offset, ok := x.pageParams(50)
	if !ok {
		return
	}
	var names []fsm.TraceNameInfo
	tenant, after := x.tenant, ""
	for more := true; more; {
		more = false
		var page []fsm.TraceNameInfo
		if !s.read(x, func(st *fsm.State) {
			after, more = st.TraceNames(tenant, after, traceNamePage, func(n fsm.TraceNameInfo) {
				page = append(page, n)
			})
		}) {
			return
		}
		names = append(names, page...)
	}
	slices.SortFunc(names, func(a, b fsm.TraceNameInfo) int {
		switch {
		case a.Last != b.Last:
			return int(max(min(b.Last-a.Last, 1), -1))
		case a.Name < b.Name:
			return -1
		}
		return 1
	})
	total := len(names)
	names = names[min(offset, total):]
	names = names[:min(limit, len(names))]
	x.out = append(x.out[:0], `{"trace_names":[`...)
	for i := range names {
		if i > 0 {
			x.out = append(x.out, ',')
		}
		n := &names[i]
		x.out = append(x.out, `{"trace_name":`...)
		x.out = rawjson.AppendString(x.out, n.Name)
		x.out = appendInt(append(x.out, ','), "trace_count", int64(n.Traces))
		x.out = appendInt(append(x.out, ','), "message_count", int64(n.Messages))
		x.out = append(x.out, `,"last_seen":`...)
		x.out = append(rawjson.AppendMicros(x.out, n.Last), '}')
	}
	x.out = appendPagination(append(x.out, `],`...), limit, offset, uint64(total))
	_ = x.answer(http.StatusOK)
}
