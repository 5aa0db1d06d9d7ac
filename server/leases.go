package server

import (
	"encoding/base64"
	"net/http"
	"strconv"
	"strings"

	"queen/fsm"
	"queen/server/rawjson"
)

// maxWorker is how long the name of a worker may be, in bytes.
const maxWorker = 128

// worker reads the name that a client gives itself; false: it is none.
func (x *exchange) worker() (name string, ok bool) {
	name = trimSpace(x.c.Request.Header.Get("X-Queen-Worker"))
	return name, len(name) <= maxWorker && validText(name)
}

const badWorker = "x-queen-worker is over 128 bytes, or no UTF-8"

func (s *Server) serveLeases(x *exchange) {
	f := fsm.LeaseFilter{Limit: 100}
	bad := ""
	if !query(x.c.Request.URL.RawQuery, func(name, value string) bool {
		if value == "" {
			return true
		}
		switch name {
		case "queue":
			f.Queue = value
		case "consumerGroup":
			f.Group = value
		case "limit":
			n, ok := parseCount(value)
			if f.Limit = int(min(max(n, 1), 1000)); !ok {
				bad = "limit does not parse: it is a whole number"
			}
		case "after":
			if !parseLeaseCursor(value, &f) {
				bad = "after is no cursor of this list: it is the next of the page before"
			}
		}
		return bad == ""
	}) && bad == "" {
		bad = "the query has an escape that does not parse"
	}
	if bad != "" {
		x.fail(http.StatusBadRequest, "bad_request", bad)
		return
	}
	tenant, limit := x.tenant, f.Limit
	var rows []fsm.LeaseInfo
	for more := true; more && len(rows) <= limit; {
		var page []fsm.LeaseInfo
		more = false
		f.Limit = limit + 1 - len(rows) // one more tells whether there are others
		if !s.read(x, func(st *fsm.State) { page, more = st.Leases(tenant, &f) }) {
			return
		}
		rows = append(rows, page...)
	}
	next := ""
	if len(rows) > limit {
		rows = rows[:limit]
		next = leaseCursor(&rows[limit-1])
	}
	x.out = append(x.out[:0], `{"leases":[`...)
	for i := range rows {
		if i > 0 {
			x.out = append(x.out, ',')
		}
		x.out = appendLease(x.out, &rows[i])
	}
	x.out = append(appendWorker(append(x.out, `],"next":`...), next), '}')
	_ = x.answer(http.StatusOK)
}

func appendLease(dst []byte, l *fsm.LeaseInfo) []byte {
	dst = rawjson.AppendString(append(dst, `{"queue":`...), l.Queue)
	dst = rawjson.AppendString(append(dst, `,"partition":`...), l.Partition)
	dst = strconv.AppendUint(append(dst, `,"partitionId":"`...), l.PartitionID, 10)
	dst = rawjson.AppendString(append(dst, `","consumerGroup":`...), l.Group)
	id := textOfID(l.ID) // its end tells leases apart, and is not enough to use one
	dst = append(append(dst, `,"leaseId":"`...), id[len(id)-8:]...)
	dst = appendInt(append(dst, `",`...), "from", int64(l.From))
	dst = appendInt(append(dst, ','), "to", int64(l.To))
	dst = rawjson.AppendMicros(append(dst, `,"expiresAt":`...), l.Expires)
	dst = appendInt(append(dst, ','), "deliveryAttempt", int64(l.Attempt))
	return append(appendWorker(append(dst, `,"worker":`...), l.Worker), '}')
}

// A cursor names the last lease of a page.

func leaseCursor(l *fsm.LeaseInfo) string {
	text := strconv.FormatUint(l.PartitionID, 10) + "." + strconv.FormatUint(l.GroupID, 10) + "." + l.Queue
	return base64.RawURLEncoding.EncodeToString([]byte(text))
}

func parseLeaseCursor(cursor string, f *fsm.LeaseFilter) bool {
	text, err := base64.RawURLEncoding.DecodeString(cursor)
	if err != nil {
		return false
	}
	partition, rest, _ := strings.Cut(string(text), ".")
	group, queue, ok := strings.Cut(rest, ".")
	p, err1 := strconv.ParseUint(partition, 10, 64)
	g, err2 := strconv.ParseUint(group, 10, 64)
	f.AfterPartition, f.AfterGroup, f.AfterQueue = p, g, queue
	return ok && err1 == nil && err2 == nil && g < 1<<63
}

func (s *Server) serveLeaseRelease(x *exchange) {
	worker := ""
	if !query(x.c.Request.URL.RawQuery, func(name, value string) bool {
		if name == "worker" {
			worker = value
		}
		return true
	}) || worker == "" || len(worker) > maxWorker {
		x.fail(http.StatusBadRequest, "bad_request", "worker must name the worker, in at most 128 bytes; nothing was released")
		return
	}
	call := &fsm.ReleaseWorker{Worker: worker}
	if !s.command(x, call) {
		return
	}
	x.out = rawjson.AppendString(append(x.out[:0], `{"success":true,"worker":`...), worker)
	x.out = append(appendInt(append(x.out, ','), "released", int64(call.Released)), '}')
	_ = x.answer(http.StatusOK)
}
