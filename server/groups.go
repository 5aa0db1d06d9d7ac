package server

import (
	"net/http"
	"strconv"

	"queen/fsm"
	"queen/server/rawjson"
)

// Reads of consumer groups.

// laggingSeconds is from which lag in time on a group counts as lagging in a
// list; defaultMinLag the least lag of the list of what lags.
const (
	laggingSeconds = 300
	defaultMinLag  = 3600
)

// walkGroups calls fn for the groups of a tenant (of one name, if it is not
// empty), in slices; false: the call has been answered.
func (t *stream) walkGroups(name string, fn func(g *fsm.GroupInfo) bool) bool {
	after, tenant := "", t.x.tenant
	for more := true; more; {
		var page []fsm.GroupInfo
		more = false
		if !t.read(func(st *fsm.State) {
			if name == "" {
				page, more = st.Groups(tenant, after, readPage)
			} else {
				page, more = st.GroupsNamed(tenant, name, after, readPage)
			}
		}) {
			return false
		}
		for i := range page {
			if !fn(&page[i]) {
				return false
			}
			after = page[i].Cursor()
		}
		t.page()
	}
	return true
}

// walkPartitions calls fn for the partitions of a group on a queue, in slices;
// false: the call has been answered.
func (t *stream) walkPartitions(g *fsm.GroupInfo, fn func(p *fsm.GroupPartition)) bool {
	tenant := t.x.tenant
	for next := uint64(1); next != 0; {
		from := next
		var page []fsm.GroupPartition
		if !t.read(func(st *fsm.State) { page, next = st.GroupPartitions(tenant, g.Group, g.Queue, from, readPage) }) {
			return false
		}
		for i := range page {
			fn(&page[i])
		}
		t.page()
	}
	return true
}

func (s *Server) serveGroupList(x *exchange) {
	t := &stream{x: x}
	now := s.cfg.Clock().UnixMicro()
	x.out = append(x.out[:0], '[')
	n := 0
	if !t.walkGroups("", func(g *fsm.GroupInfo) bool {
		sum, ok := s.sumLag(t, g)
		if !ok {
			return false
		}
		if n++; n > 1 {
			x.out = append(x.out, ',')
		}
		x.out = appendGroup(x.out, g, &sum, now)
		return true
	}) {
		return
	}
	x.out = append(x.out, ']')
	t.end()
}

// groupLag is what a group is behind on a queue.
type groupLag struct {
	partitions, messages int64
	oldest               int64 // microseconds; 0: nothing waits
}

// sumLag adds up what a group is behind on a queue.
func (s *Server) sumLag(t *stream, g *fsm.GroupInfo) (sum groupLag, ok bool) {
	if g.Behind == 0 {
		return sum, true
	}
	ok = t.walkPartitions(g, func(p *fsm.GroupPartition) {
		l := s.lagOf(g.QueueID, p, sum.oldest)
		if l.messages == 0 {
			return
		}
		sum.partitions++
		sum.messages += l.messages
		if l.oldest != 0 && (sum.oldest == 0 || l.oldest < sum.oldest) {
			sum.oldest = l.oldest
		}
	})
	return sum, ok
}

func appendGroup(dst []byte, g *fsm.GroupInfo, sum *groupLag, now int64) []byte {
	dst = rawjson.AppendString(append(dst, `{"name":`...), g.Group)
	dst = rawjson.AppendString(append(dst, `,"topics":[`...), g.Queue)
	dst = rawjson.AppendString(append(dst, `],"queueName":`...), g.Queue)
	seconds := (&lag{oldest: sum.oldest}).seconds(now)
	for _, f := range []struct {
		name string
		n    int64
	}{{"members", g.Members}, {"partitionCursors", g.Members}, {"partitionsWithLag", sum.partitions}, {"totalLag", sum.messages}, {"maxTimeLag", seconds}} {
		dst = appendInt(append(dst, ','), f.name, f.n)
	}
	state := "Dead"
	if seconds > laggingSeconds {
		state = "Lagging"
	} else if g.Consumed {
		state = "Stable"
	}
	dst = append(append(dst, `,"state":"`...), state...)
	mode, since := subscriptionOf(g)
	dst = append(append(dst, `","storage":"segments","subscriptionMode":"`...), mode...)
	dst = appendExpiry(append(dst, `","subscriptionTimestamp":`...), since)
	dst = rawjson.AppendMicros(append(dst, `,"subscriptionCreatedAt":`...), g.Created)
	dst = rawjson.AppendBool(append(dst, `,"conflation":`...), g.Conflates)
	return append(rawjson.AppendBool(append(dst, `,"paused":`...), g.Paused), '}')
}

// subscriptionOf is how a group's registration is told: its mode and the time
// that it goes by, if any.
func subscriptionOf(g *fsm.GroupInfo) (mode string, since int64) {
	switch g.Mode {
	case fsm.SubscribeAll:
		return "all", 0
	case fsm.SubscribeFrom:
		return "timestamp", g.From
	}
	return "new", g.Created
}

// groupName reads the group of a path; false: it has answered.
func (x *exchange) groupName() (string, bool) {
	group, ok := x.param("group")
	if !ok {
		x.fail(http.StatusBadRequest, "bad_request", badPathName)
	}
	return group, ok
}

func (s *Server) serveGroup(x *exchange) {
	group, ok := x.groupName()
	if !ok {
		return
	}
	t := &stream{x: x}
	now := s.cfg.Clock().UnixMicro()
	x.out = append(x.out[:0], '{')
	queues := 0
	if !t.walkGroups(group, func(g *fsm.GroupInfo) bool {
		if queues++; queues > 1 {
			x.out = append(x.out, ',')
		}
		x.out = rawjson.AppendString(x.out, g.Queue)
		x.out = rawjson.AppendBool(append(x.out, `:{"conflation":`...), g.Conflates)
		x.out = append(x.out, `,"paused":`...)
		x.out = append(rawjson.AppendBool(x.out, g.Paused), `,"partitions":[`...)
		n := 0
		if !t.walkPartitions(g, func(p *fsm.GroupPartition) {
			if n++; n > 1 {
				x.out = append(x.out, ',')
			}
			l := s.lagOf(g.QueueID, p, 0)
			x.out = appendGroupPartition(x.out, &l, now)
		}) {
			return false
		}
		x.out = append(x.out, ']', '}')
		return true
	}) {
		return
	}
	x.out = append(x.out, '}')
	t.end()
}

func appendGroupPartition(dst []byte, l *lag, now int64) []byte {
	dst = rawjson.AppendString(append(dst, `{"partition":`...), l.Name)
	dst = appendWorker(append(dst, `,"workerId":`...), l.Worker)
	dst = append(dst, `,"lastConsumedAt":null,`...)
	dst = appendInt(dst, "totalConsumed", int64(min(l.Position, l.Next)))
	dst = appendInt(append(dst, ','), "offsetLag", l.messages)
	dst = appendInt(append(dst, ','), "timeLagSeconds", l.seconds(now))
	return append(rawjson.AppendBool(append(dst, `,"leaseActive":`...), l.Leased), '}')
}

func appendWorker(dst []byte, worker string) []byte {
	if worker == "" {
		return append(dst, "null"...)
	}
	return rawjson.AppendString(dst, worker)
}

func (s *Server) serveGroupsLagging(x *exchange) {
	least, bad := int64(defaultMinLag), false
	if !query(x.c.Request.URL.RawQuery, func(name, value string) bool {
		if name == "minLagSeconds" && value != "" {
			n, ok := parseCount(value)
			least, bad = max(n, 0), bad || !ok
		}
		return true
	}) || bad {
		x.fail(http.StatusBadRequest, "bad_request", "minLagSeconds does not parse: it is a whole number of seconds")
		return
	}
	t := &stream{x: x}
	now := s.cfg.Clock().UnixMicro()
	x.out = append(x.out[:0], '[')
	n := 0
	if !t.walkGroups("", func(g *fsm.GroupInfo) bool {
		if g.Behind == 0 {
			return true
		}
		return t.walkPartitions(g, func(p *fsm.GroupPartition) {
			if p.Created != 0 && (now-p.Created)/1_000_000 < least {
				return // none of its messages is that old
			}
			l := s.lagOf(g.QueueID, p, 0)
			if l.messages == 0 || l.seconds(now) < least {
				return
			}
			if n++; n > 1 {
				x.out = append(x.out, ',')
			}
			x.out = appendLagging(x.out, g, &l, now)
		})
	}) {
		return
	}
	x.out = append(x.out, ']')
	t.end()
}

func appendLagging(dst []byte, g *fsm.GroupInfo, l *lag, now int64) []byte {
	seconds := l.seconds(now)
	dst = rawjson.AppendString(append(dst, `{"consumer_group":`...), g.Group)
	dst = rawjson.AppendString(append(dst, `,"queue_name":`...), g.Queue)
	dst = rawjson.AppendString(append(dst, `,"partition_name":`...), l.Name)
	dst = strconv.AppendUint(append(dst, `,"partition_id":"`...), l.ID, 10)
	dst = appendWorker(append(dst, `","worker_id":`...), l.Worker)
	dst = appendInt(append(dst, ','), "offset_lag", l.messages)
	dst = appendInt(append(dst, ','), "time_lag_seconds", seconds)
	dst = strconv.AppendFloat(append(dst, `,"lag_hours":`...), float64(seconds*100/3600)/100, 'f', -1, 64)
	dst = appendExpiry(append(dst, `,"oldest_unconsumed_at":`...), l.oldest)
	return append(dst, `,"last_consumed_at":null}`...)
}
