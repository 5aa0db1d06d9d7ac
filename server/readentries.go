package server

import (
	"net/http"
	"strconv"

	"queen/fsm"
	"queen/server/rawjson"
)

// What the three routes that read by offset and by time have in common: a list
// of entries, each about one partition or queue.

const (
	maxReadEntries = 1024
	// readSlice is how many entries one visit to the loop looks up.
	readSlice = 250
	// maxAnswerBytes bounds the payloads of one answer, over all entries. What is
	// over it comes with the next call; the first record always comes.
	maxAnswerBytes = 32 << 20
	maxEntryBytes  = 8 << 20
	entryBytes     = 1 << 20
	maxFetchWait   = 30_000 // ms
	changedLimit   = 1000
	// maxChangedRows bounds the partitions that one answer lists, over all entries.
	maxChangedRows = 65_536
)

// readEntry is one entry of a request. Which of its members a route reads is
// its own matter.
type readEntry struct {
	queue, partition  string
	hasQueue          bool
	offset, maxBytes  int64
	hasOffset         bool
	timeRaw, sinceRaw []byte // as sent; nil: absent
	time, since       int64  // microseconds
	after             string
	hasAfter          bool
	limit             int64
}

type readRequest struct {
	entries           []readEntry
	maxWait, minBytes int64
	isList            bool
	bad               string
}

func (r *readRequest) refuse(bad string) {
	if r.bad == "" {
		r.bad = bad
	}
}

// parseReads reads the body of a request; what does not parse is in bad.
func parseReads(w *work) (r readRequest) {
	r.minBytes = 1
	sc := &w.scan
	sc.Reset(w.body)
	isObject := sc.Kind() == rawjson.Object
	if isObject {
		for ok := sc.EnterObject(); ok; ok = sc.NextMember() {
			switch string(sc.Key()) {
			case "entries":
				if r.isList = sc.Kind() == rawjson.Array; !r.isList {
					sc.Skip()
					continue
				}
				r.entries = r.entries[:0]
				for ok := sc.EnterArray(); ok; ok = sc.NextElement() {
					e := r.entry(sc)
					if len(r.entries) <= maxReadEntries {
						r.entries = append(r.entries, e)
					}
				}
			case "maxWaitMs":
				r.number(sc, "maxWaitMs", &r.maxWait)
			case "minBytes":
				r.number(sc, "minBytes", &r.minBytes)
			default:
				sc.Skip()
			}
		}
	} else {
		sc.Skip()
	}
	if err := sc.End(); err != nil {
		r.bad = err.Error()
		return r
	}
	switch {
	case !isObject || !r.isList:
		r.bad = "the body is no object with an array named entries"
	case len(r.entries) > maxReadEntries:
		r.bad = "entries: more than 1024"
	}
	r.maxWait, r.minBytes = min(r.maxWait, maxFetchWait), max(r.minBytes, 1)
	return r
}

// number reads a whole number that is not negative; null counts as absent.
func (r *readRequest) number(sc *rawjson.Scanner, name string, into *int64) (present bool) {
	if sc.Kind() == rawjson.Null {
		sc.Skip()
		return false
	}
	n, ok := rawjson.Int(sc.Raw())
	if !ok || n < 0 {
		r.refuse(name + " is not a whole number from 0 on")
		return false
	}
	*into = n
	return true
}

func (r *readRequest) entry(sc *rawjson.Scanner) (e readEntry) {
	e.partition, e.maxBytes, e.limit = defaultPartition, entryBytes, changedLimit
	if sc.Kind() != rawjson.Object {
		sc.Skip()
		r.refuse("an entry is no object")
		return e
	}
	for ok := sc.EnterObject(); ok; ok = sc.NextMember() {
		switch string(sc.Key()) {
		case "queue":
			text, isString := sc.Text()
			e.queue, e.hasQueue = string(text), isString
		case "partition":
			r.partition(sc, &e)
		case "offset":
			e.hasOffset = r.number(sc, "offset", &e.offset)
		case "maxBytes":
			r.number(sc, "maxBytes", &e.maxBytes)
		case "limit":
			r.number(sc, "limit", &e.limit)
		case "timestamp":
			e.timeRaw, e.time = r.moment(sc, "timestamp")
		case "since":
			e.sinceRaw, e.since = r.moment(sc, "since")
		case "after":
			if sc.Kind() == rawjson.Null {
				sc.Skip()
				continue
			}
			text, isString := sc.Text()
			if e.after, e.hasAfter = string(text), true; !isString {
				r.refuse("after is not a string")
			}
		default:
			sc.Skip()
		}
	}
	if !e.hasQueue || e.queue == "" {
		r.refuse("an entry has no queue")
	}
	e.maxBytes, e.limit = min(max(e.maxBytes, 1), maxEntryBytes), min(max(e.limit, 1), changedLimit)
	return e
}

// partition reads a name that may be sent as a number.
func (r *readRequest) partition(sc *rawjson.Scanner, e *readEntry) {
	switch sc.Kind() {
	case rawjson.Null:
		sc.Skip()
	case rawjson.String:
		text, isString := sc.Text()
		if e.partition = string(text); !isString || e.partition == "" {
			r.refuse("the partition of an entry is empty or no text")
		}
	default:
		raw := sc.Raw()
		if _, err := strconv.ParseFloat(string(raw), 64); err != nil {
			r.refuse("the partition of an entry is neither a string nor a number")
			return
		}
		e.partition = string(raw)
	}
}

// moment reads a time: ISO-8601, or milliseconds since the epoch.
func (r *readRequest) moment(sc *rawjson.Scanner, name string) (raw []byte, micros int64) {
	kind := sc.Kind()
	raw = append([]byte(nil), sc.Raw()...)
	switch {
	case len(raw) == 0: // no value; the scanner says what is wrong
		return nil, 0
	case kind == rawjson.Null:
		return nil, 0
	case kind == rawjson.String:
		if t, ok := parseTime(string(raw[1 : len(raw)-1])); ok {
			return raw, t
		}
	default:
		if ms, ok := rawjson.Int(raw); ok && ms >= 0 {
			return raw, min(ms, 1<<53/1000) * 1000
		}
	}
	r.refuse(name + " is neither an ISO-8601 time nor milliseconds since 1970")
	return raw, 0
}

// readRequest reads and checks the body of a request; false: it has answered.
func (s *Server) readRequest(x *exchange, check func(*readRequest)) (r readRequest, ok bool) {
	w := s.getWork(x)
	defer s.putWork(w)
	if !x.readBody(w) {
		return r, false
	}
	r = parseReads(w)
	if r.bad == "" {
		check(&r)
	}
	if r.bad != "" {
		x.failBare(http.StatusBadRequest, r.bad)
		return r, false
	}
	return r, true
}

// failBare answers with an error that has no code.
func (x *exchange) failBare(status int, prose string) {
	x.out = append(x.out[:0], `{"error":`...)
	x.out = append(rawjson.AppendString(x.out, prose), '}')
	_ = x.answer(status)
}

// bounds looks the partitions of entries up, a slice at a time; false: it has
// answered.
func (s *Server) bounds(x *exchange, entries []readEntry) (out []fsm.PartitionBounds, ok bool) {
	tenant := x.tenant
	out = make([]fsm.PartitionBounds, len(entries))
	for from := 0; from < len(entries); from += readSlice {
		to := min(from+readSlice, len(entries))
		if !s.read(x, func(st *fsm.State) {
			for i := from; i < to; i++ {
				out[i] = st.Bounds(tenant, entries[i].queue, entries[i].partition)
			}
		}) {
			return nil, false
		}
	}
	return out, true
}

// Errors of an entry.
const (
	unknownPartition = "UNKNOWN_TOPIC_OR_PARTITION"
	offsetOutOfRange = "OFFSET_OUT_OF_RANGE"
	badCursor        = "BAD_CURSOR"
	storageError     = "STORAGE_ERROR" // a stored record cannot be read
)

func appendEntryHead(dst []byte, e *readEntry) []byte {
	dst = append(dst, `{"queue":`...)
	dst = rawjson.AppendString(dst, e.queue)
	dst = append(dst, `,"partition":`...)
	return rawjson.AppendString(dst, e.partition)
}

func appendBounds(dst []byte, b *fsm.PartitionBounds) []byte {
	dst = appendInt(append(dst, ','), "highWatermark", int64(b.Next))
	return appendInt(append(dst, ','), "logStartOffset", int64(b.Start))
}

func appendEntryError(dst []byte, code string) []byte {
	if code == "" {
		return dst
	}
	return append(append(append(dst, `,"error":"`...), code...), '"')
}
