package server

import (
	"cmp"
	"encoding/base64"
	"encoding/binary"
	"net/http"
	"slices"

	"queen/fsm"
	"queen/server/rawjson"
)

// changedCursor is where a sweep goes on: behind a name, or behind a time and a
// name. Clients see it as text that means nothing to them.
type changedCursor struct {
	byTime bool
	time   int64
	name   string
}

func (c *changedCursor) text() string {
	b := []byte{'n'}
	if c.byTime {
		b = binary.BigEndian.AppendUint64([]byte{'t'}, uint64(c.time))
	}
	return base64.RawURLEncoding.EncodeToString(append(b, c.name...))
}

// parse reads a cursor; false: it is none, or one of the other kind of sweep.
func (c *changedCursor) parse(text string) bool {
	b, err := base64.RawURLEncoding.DecodeString(text)
	switch {
	case err != nil || len(b) == 0:
		return false
	case b[0] == 'n' && !c.byTime:
		c.name = string(b[1:])
		return true
	case b[0] == 't' && c.byTime && len(b) >= 9:
		c.time, c.name = int64(binary.BigEndian.Uint64(b[1:])), string(b[9:])
		return c.time >= 0
	}
	return false
}

func (s *Server) serveChanged(x *exchange) {
	req, ok := s.readRequest(x, func(*readRequest) {})
	if !ok {
		return
	}
	// Before anything is listed: what is stamped earlier is in the lists.
	var safe int64
	if !s.read(x, func(st *fsm.State) { safe = st.Time() }) {
		return
	}
	out, rows := append(x.out[:0], `{"entries":[`...), maxChangedRows
	for i := range req.entries {
		e := &req.entries[i]
		if i > 0 {
			out = append(out, ',')
		}
		page, ok := s.changedPage(x, e, min(int(e.limit), rows))
		if !ok {
			return
		}
		rows -= len(page.rows)
		out = appendChanged(out, e, &page)
	}
	out = append(out, `],"safeTime":`...)
	out = rawjson.AppendMicros(out, safe)
	x.out = append(out, `,"safeTimeDegraded":false}`...)
	_ = x.answer(http.StatusOK)
}

type changedPage struct {
	rows []fsm.ChangedPartition
	next string // empty: that was all
	err  string
}

func appendChanged(dst []byte, e *readEntry, p *changedPage) []byte {
	dst = append(dst, `{"queue":`...)
	dst = rawjson.AppendString(dst, e.queue)
	if e.sinceRaw != nil {
		dst = append(append(dst, `,"since":`...), e.sinceRaw...)
	}
	dst = append(dst, `,"partitions":[`...)
	for i := range p.rows {
		r := &p.rows[i]
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(dst, `{"name":`...)
		dst = rawjson.AppendString(dst, r.Name)
		dst = appendInt(append(dst, ','), "lastOffset", int64(r.Next)-1)
		dst = appendInt(append(dst, ','), "logStart", int64(r.Start))
		dst = append(dst, `,"lastWriteAt":`...)
		dst = append(rawjson.AppendMicros(dst, r.LastAppend), '}')
	}
	dst = append(dst, `],"next":`...)
	if p.next == "" {
		dst = append(dst, "null"...)
	} else {
		dst = rawjson.AppendString(dst, p.next)
	}
	return append(appendEntryError(dst, p.err), '}')
}

// changedPage lists one page of an entry; false: it has answered.
func (s *Server) changedPage(x *exchange, e *readEntry, limit int) (p changedPage, ok bool) {
	at := changedCursor{byTime: e.sinceRaw != nil, time: e.since}
	if e.hasAfter && !at.parse(e.after) {
		return changedPage{err: badCursor}, true
	}
	if limit == 0 { // the answer is full: from here on with the next call
		return changedPage{next: at.text()}, true
	}
	if at.byTime {
		return s.changedSince(x, e, at, limit)
	}
	tenant := x.tenant
	for more := true; more && len(p.rows) < limit; {
		var rows []fsm.ChangedPartition
		found := false
		more = false
		if !s.read(x, func(st *fsm.State) {
			rows, found, more = st.PartitionsByName(tenant, e.queue, at.name, limit-len(p.rows))
		}) {
			return p, false
		}
		if !found && len(p.rows) == 0 {
			return changedPage{err: unknownPartition}, true
		}
		if len(rows) > 0 {
			p.rows = append(p.rows, rows...)
			at.name = rows[len(rows)-1].Name
		}
		if more && len(p.rows) == limit {
			p.next = at.text()
		}
	}
	return p, true
}

// changedSince lists the partitions that were written at or after a time, by
// (last write, name). What was written by one entry has one time, so a page ends
// where the walk has come to a later time than its last row; no more than two
// pages are kept of a time with more.
func (s *Server) changedSince(x *exchange, e *readEntry, at changedCursor, limit int) (p changedPage, ok bool) {
	tenant, walk := x.tenant, fsm.ChangedWalk{Since: max(at.time, e.since)}
	over := false // there are rows behind the page
	cut := func() {
		slices.SortFunc(p.rows, func(a, b fsm.ChangedPartition) int {
			return cmp.Or(cmp.Compare(a.LastAppend, b.LastAppend), cmp.Compare(a.Name, b.Name))
		})
		if over = over || len(p.rows) > limit; over {
			p.rows = p.rows[:min(limit, len(p.rows))]
		}
	}
	for more := true; more; {
		var rows []fsm.ChangedPartition
		found := false
		more = false
		if !s.read(x, func(st *fsm.State) { rows, found, more = st.Changed(tenant, e.queue, &walk) }) {
			return p, false
		}
		if !found && len(p.rows) == 0 {
			return changedPage{err: unknownPartition}, true
		}
		for _, r := range rows {
			if e.hasAfter && (r.LastAppend < at.time || r.LastAppend == at.time && r.Name <= at.name) {
				continue
			}
			p.rows = append(p.rows, r)
		}
		if len(p.rows) > 2*limit {
			cut()
		}
		if n := len(rows); n > 0 && len(p.rows) >= limit {
			cut()
			if rows[n-1].LastAppend > p.rows[limit-1].LastAppend {
				over = over || more
				break
			}
		}
	}
	cut()
	if over && len(p.rows) > 0 {
		last := &p.rows[len(p.rows)-1]
		p.next = (&changedCursor{byTime: true, time: last.LastAppend, name: last.Name}).text()
	}
	return p, true
}
