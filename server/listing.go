package server

import (
	"encoding/json"
	"net/http"

	"queen/fsm"
)

// listing is what the query of a listing or a reading over time asks for.
type listing struct {
	filter        fsm.QueueFilter
	limit, offset int
	from, to      int64 // microseconds; 0: not given
	interval      string
}

// maxPage is the largest page of a listing.
const maxPage = 1000

// parseListing reads the parameters that listings share. Others, and empty ones, are passed over.
func parseListing(raw string, limit, most int) (l listing, bad string) {
	l.limit = limit
	ok := query(raw, func(name, value string) bool {
		if value == "" {
			return true
		}
		parses := true
		var n int64
		switch name {
		case "queue":
			l.filter.Queue = value
		case "namespace", "ns":
			l.filter.Namespace, l.filter.HasNamespace = value, true
		case "task":
			l.filter.Task, l.filter.HasTask = value, true
		case "limit":
			n, parses = parseCount(value)
			l.limit = int(min(max(n, 1), int64(most)))
		case "offset":
			n, parses = parseCount(value)
			l.offset = int(min(max(n, 0), 1<<40))
		case "from":
			l.from, parses = parseTime(value)
		case "to":
			l.to, parses = parseTime(value)
		case "interval":
			l.interval = value
		}
		if !parses {
			bad = name + " does not parse"
		}
		return parses
	})
	switch {
	case bad == "" && !ok:
		bad = "the query has an escape that does not parse"
	case bad == "" && l.from > 0 && l.to > 0 && l.from > l.to:
		bad = "from is after to"
	}
	return l, bad
}

// listing reads the query; false: it has answered.
func (x *exchange) listing(limit, most int) (l listing, ok bool) {
	l, bad := parseListing(x.c.Request.URL.RawQuery, limit, most)
	if bad != "" {
		x.fail(http.StatusBadRequest, "bad_request", bad)
	}
	return l, bad == ""
}

// page is the filter of a listing that asks for one row more than its page: whether there is another one.
func (l *listing) page() fsm.QueueFilter {
	f := l.filter
	f.Offset, f.Limit = l.offset, l.limit+1
	return f
}

// pagination tells where a page stands.
type pagination struct {
	Limit   int  `json:"limit"`
	Offset  int  `json:"offset"`
	HasMore bool `json:"hasMore"`
}

// pageOf cuts what was found of one row more than a page.
func pageOf[T any](l *listing, rows []T) ([]T, pagination) {
	p := pagination{Limit: l.limit, Offset: l.offset, HasMore: len(rows) > l.limit}
	return rows[:min(len(rows), l.limit)], p
}

// answerJSON sends v. It is for the routes of operators: those of workers write their answers themselves.
func (x *exchange) answerJSON(status int, v any) {
	out, err := json.Marshal(v)
	if err != nil {
		x.s.log.Error("an answer could not be encoded", "request", x.id, "route", x.rt.path, "error", err)
		x.fail(http.StatusInternalServerError, "internal", "internal error")
		return
	}
	x.out = append(x.out[:0], out...)
	_ = x.answer(status)
}
