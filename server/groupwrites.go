package server

import (
	"encoding/json"
	"net/http"

	"queen/fsm"
	"queen/server/rawjson"
)

// Calls that change consumer groups, besides seeks.

func (s *Server) serveGroupDelete(x *exchange) { s.deleteGroup(x, false) }

func (s *Server) serveGroupDeleteQueue(x *exchange) { s.deleteGroup(x, true) }

func (s *Server) deleteGroup(x *exchange, oneQueue bool) {
	group, ok1 := x.param("group")
	queue, ok2 := x.param("queue")
	if !ok1 || oneQueue && !ok2 {
		x.fail(http.StatusBadRequest, "bad_request", badPathName)
		return
	}
	call := &fsm.DeleteGroup{Group: group, Queue: queue, OneQueue: oneQueue, Metadata: true}
	if !query(x.c.Request.URL.RawQuery, func(name, value string) (ok bool) {
		if name != "deleteMetadata" || value == "" {
			return true
		}
		call.Metadata, ok = parseFlag(value)
		return ok
	}) {
		x.fail(http.StatusBadRequest, "bad_request", "deleteMetadata does not parse: it is true or false; nothing was changed")
		return
	}
	if !s.command(x, call) {
		return
	}
	x.out = rawjson.AppendString(append(x.out[:0], `{"success":true,"consumerGroup":`...), group)
	if oneQueue {
		x.out = rawjson.AppendString(append(x.out, `,"queueName":`...), queue)
	}
	x.out = appendInt(append(x.out, ','), "deletedPartitions", call.Cursors)
	x.out = rawjson.AppendBool(append(x.out, `,"metadataDeleted":`...), call.Metadata && call.Removed > 0)
	x.out = append(x.out, '}')
	_ = x.answer(http.StatusOK)
}

// command runs a call that nobody is in a hurry about; false: it has answered.
func (s *Server) command(x *exchange, body any) bool {
	w := s.getWork(x)
	if err := s.run(w, body, 256, x.remaining(s.cfg.Limits.CallTimeout), nil); err != nil {
		s.ended(w, err)
		x.undecided(err)
		return false
	}
	s.putWork(w)
	return true
}

func (s *Server) serveGroupPause(x *exchange) { s.pauseGroup(x, true) }

func (s *Server) serveGroupResume(x *exchange) { s.pauseGroup(x, false) }

func (s *Server) pauseGroup(x *exchange, paused bool) {
	group, ok1 := x.param("group")
	queue, ok2 := x.param("queue")
	if !ok1 || !ok2 {
		x.fail(http.StatusBadRequest, "bad_request", badPathName)
		return
	}
	call := &fsm.PauseGroup{Group: group, Queue: queue, Paused: paused}
	if !s.command(x, call) {
		return
	}
	if !call.Found {
		x.out = append(x.out[:0], `{"error":"Consumer group not found on this queue"}`...)
		_ = x.answer(http.StatusNotFound)
		return
	}
	x.out = append(rawjson.AppendBool(append(x.out[:0], `{"paused":`...), paused), '}')
	_ = x.answer(http.StatusOK)
}

func (s *Server) serveSubscription(x *exchange) {
	group, ok := x.groupName()
	if !ok {
		return
	}
	var body struct {
		Timestamp string `json:"subscriptionTimestamp"`
	}
	if !x.readObject(&body) {
		return
	}
	call := &fsm.Subscribe{Group: group}
	switch at, ok := parseTime(body.Timestamp); {
	case body.Timestamp == "now":
		call.From = s.cfg.Clock().UnixMicro()
	case ok:
		call.From = at
	default:
		x.fail(http.StatusBadRequest, "bad_request", `the body must have {"subscriptionTimestamp":"<ISO time>"}`)
		return
	}
	if !s.command(x, call) {
		return
	}
	x.out = rawjson.AppendString(append(x.out[:0], `{"success":true,"consumerGroup":`...), group)
	x.out = rawjson.AppendString(append(x.out, `,"newTimestamp":`...), body.Timestamp)
	x.out = append(appendInt(append(x.out, ','), "rowsUpdated", int64(call.Updated)), '}')
	_ = x.answer(http.StatusOK)
}

// readObject reads a body that is a JSON object into v; false: it has answered.
func (x *exchange) readObject(v any) bool {
	w := x.s.getWork(x)
	defer x.s.putWork(w)
	if !x.readBody(w) {
		return false
	}
	if !validText(string(w.body)) || !isObject(w.body) {
		x.fail(http.StatusBadRequest, "bad_body", "the body is not a JSON object in UTF-8")
		return false
	}
	if err := json.Unmarshal(w.body, v); err != nil {
		x.fail(http.StatusBadRequest, "bad_body", "the body is not of this route's shape: "+err.Error())
		return false
	}
	return true
}

// positionsBody is the body of a read of positions.
type positionsBody struct {
	Group   *string          `json:"consumerGroup"`
	Entries []positionsEntry `json:"entries"`
}

type positionsEntry struct {
	Queue     string  `json:"queue"`
	Partition *string `json:"partition"`

	row   fsm.GroupPartition
	queue uint64
	found bool
}

func (s *Server) servePositions(x *exchange) {
	var body positionsBody
	if !x.readObject(&body) {
		return
	}
	group := fsm.QueueMode
	if body.Group != nil && *body.Group != "" {
		group = *body.Group
	}
	t := &stream{x: x}
	x.out = rawjson.AppendString(append(x.out[:0], `{"consumerGroup":`...), group)
	x.out = append(x.out, `,"entries":[`...)
	if body.Entries == nil {
		if !s.appendAllPositions(t, group) {
			return
		}
	} else if !s.appendPositions(t, group, body.Entries) {
		return
	}
	x.out = append(x.out, ']', '}')
	t.end()
}

// appendPositions appends the positions that were asked for.
func (s *Server) appendPositions(t *stream, group string, entries []positionsEntry) bool {
	x, tenant := t.x, t.x.tenant
	for first := 0; first < len(entries); first += readPage {
		page := entries[first:min(first+readPage, len(entries))]
		for i := range page {
			if page[i].Partition == nil {
				name := defaultPartition
				page[i].Partition = &name
			}
		}
		if !t.read(func(st *fsm.State) {
			for i := range page {
				e := &page[i]
				if e.row, e.found = st.GroupPartition(tenant, group, e.Queue, *e.Partition); e.found {
					e.queue = st.QueueID(tenant, e.Queue)
				}
			}
		}) {
			return false
		}
		for i := range page {
			e := &page[i]
			if first+i > 0 {
				x.out = append(x.out, ',')
			}
			s.place(e.queue, &e.row)
			x.out = appendPosition(x.out, e.Queue, *e.Partition, &e.row, e.found && e.row.Member)
		}
		t.page()
	}
	return true
}

// appendAllPositions appends every position that a group holds.
func (s *Server) appendAllPositions(t *stream, group string) bool {
	x, n := t.x, 0
	return t.walkGroups(group, func(g *fsm.GroupInfo) bool {
		return t.walkPartitions(g, func(p *fsm.GroupPartition) {
			if !p.Member {
				return
			}
			if n++; n > 1 {
				x.out = append(x.out, ',')
			}
			s.place(g.QueueID, p)
			x.out = appendPosition(x.out, g.Queue, p.Name, p, true)
		})
	})
}

func appendPosition(dst []byte, queue, partition string, p *fsm.GroupPartition, found bool) []byte {
	dst = rawjson.AppendString(append(dst, `{"queue":`...), queue)
	dst = rawjson.AppendString(append(dst, `,"partition":`...), partition)
	if !found {
		return append(dst, `,"offset":null,"metadata":null}`...)
	}
	dst = appendInt(append(dst, ','), "offset", int64(max(p.Position, p.LogStart)))
	return append(appendWorker(append(dst, `,"metadata":`...), p.Metadata), '}')
}
