package server

import (
	"net/http"
	"strings"

	"queen/fsm"
	"queen/server/rawjson"
)

// redriveRequest reads the body of a redrive.
type redriveRequest struct {
	call fsm.Redrive
	bad  string
}

func (r *redriveRequest) refuse(bad string) {
	if r.bad == "" {
		r.bad = bad
	}
}

// text reads a string member; null counts as absent.
func (r *redriveRequest) text(sc *rawjson.Scanner, name string) (text string, present bool) {
	wrong := ""
	b, present := textMember(sc, name, &wrong)
	if wrong != "" {
		r.refuse(name + " is not a string")
	}
	return string(b), present
}

func (r *redriveRequest) count(sc *rawjson.Scanner, name string) int64 {
	if sc.Kind() == rawjson.Null {
		sc.Skip()
		return 0
	}
	n, ok := rawjson.Int(sc.Raw())
	if !ok || n < 1 {
		r.refuse(name + " is not a whole number from 1 on")
	}
	return n
}

func (r *redriveRequest) time(sc *rawjson.Scanner, name string) int64 {
	text, present := r.text(sc, name)
	if !present {
		return 0
	}
	t, ok := parseTime(text)
	if !ok {
		r.refuse(name + " is no ISO-8601 time")
	}
	return max(t, 1)
}

// destination reads where the copies go, as the body of a replay does.
func (r *redriveRequest) destination(sc *rawjson.Scanner) {
	if sc.Kind() != rawjson.Object {
		if sc.Kind() != rawjson.Null {
			r.refuse("destination is no object")
		}
		sc.Skip()
		return
	}
	name := func(member string, into *string) {
		text, present := r.text(sc, "destination."+member)
		if *into = strings.TrimSpace(text); present && *into == "" {
			r.refuse("destination." + member + " is blank")
		}
	}
	for ok := sc.EnterObject(); ok; ok = sc.NextMember() {
		switch string(sc.Key()) {
		case "queue":
			name("queue", &r.call.ToQueue)
		case "partition":
			name("partition", &r.call.ToPartition)
		default:
			sc.Skip()
		}
	}
}

func parseRedrive(w *work) (r redriveRequest) {
	sc, c := &w.scan, &r.call
	sc.Reset(w.body)
	c.AnyGroup = true
	isObject := sc.Kind() == rawjson.Object
	if !isObject {
		sc.Skip()
	} else {
		for ok := sc.EnterObject(); ok; ok = sc.NextMember() {
			switch string(sc.Key()) {
			case "queue":
				c.Queue, _ = r.text(sc, "queue")
			case "consumerGroup":
				c.Group, _ = r.text(sc, "consumerGroup")
				c.AnyGroup = c.Group == ""
			case "errorContains":
				c.Contains, _ = r.text(sc, "errorContains")
			case "from":
				c.From = r.time(sc, "from")
			case "to":
				c.To = r.time(sc, "to")
			case "destination":
				r.destination(sc)
			case "limit":
				c.Limit = r.count(sc, "limit")
			case "ratePerSecond":
				c.Rate = r.count(sc, "ratePerSecond")
			case "dryRun":
				dry, isBool := sc.Bool()
				if c.DryRun = dry; !isBool {
					r.refuse("dryRun is neither true nor false")
				}
			default:
				sc.Skip()
			}
		}
	}
	switch err := sc.End(); {
	case err != nil:
		r.bad = err.Error()
	case !isObject:
		r.bad = "the body is no object"
	case r.bad == "" && c.Queue == "":
		r.bad = "queue is required"
	case r.bad == "" && c.Group == fsm.TimerGroup:
		r.bad = "the dead letters of timers cannot be replayed"
	}
	return r
}

func (s *Server) serveRedrive(x *exchange) {
	w := s.getWork(x)
	if !x.readBody(w) {
		s.putWork(w)
		return
	}
	r := parseRedrive(w)
	s.putWork(w)
	if !query(x.c.Request.URL.RawQuery, func(name, value string) bool {
		if name == "dryRun" {
			dry, ok := parseFlag(value)
			r.call.DryRun = r.call.DryRun || dry
			return ok
		}
		return true
	}) {
		r.refuse("the query does not parse")
	}
	call := &r.call
	switch {
	case r.bad != "":
		x.fail(http.StatusBadRequest, "bad_request", r.bad)
		return
	case !namesFit(call.Queue, call.Group), !namesFit(call.ToQueue, call.ToPartition):
		x.fail(http.StatusRequestEntityTooLarge, "name_too_long", tooLongNames)
		return
	case !call.DryRun && x.storageFull():
		return
	}
	call.ID = s.ids.mint()
	w = s.getWork(x)
	if err := s.run(w, call, 1024, x.remaining(s.cfg.Limits.CallTimeout), nil); err != nil {
		s.ended(w, err)
		x.undecided(err)
		return
	}
	s.putWork(w)
	switch call.Outcome {
	case "started":
		x.out = appendInt(appendRedriveHead(x.out[:0], &call.Job), "total", call.Job.Total)
		x.out = append(x.out, '}')
		_ = x.answer(http.StatusAccepted)
	case "dry":
		s.answerDryRedrive(x, call)
	case "sealed":
		x.fail(http.StatusBadRequest, "bad_request", "the destination has encryptionEnabled: replay into it one by one, POST /api/v1/dlq/:id/replay")
	case "no_queue":
		x.queueNotFound()
	default:
		x.fail(http.StatusConflict, "too_many_jobs", "too many redrives run: wait for one of them, or cancel it")
	}
}

func appendRedriveHead(dst []byte, j *fsm.RedriveInfo) []byte {
	dst = appendID(append(dst, `{"id":`...), j.ID)
	return append(append(append(dst, `,"state":"`...), j.State...), `",`...)
}

// answerDryRedrive tells what would be moved: how many, and the first of them.
func (s *Server) answerDryRedrive(x *exchange, c *fsm.Redrive) {
	out := appendInt(append(x.out[:0], `{"dryRun":true,`...), "total", c.Job.Total)
	out = append(out, `,"messages":[`...)
	for i := range c.Sample {
		l := &c.Sample[i]
		if i > 0 {
			out = append(out, ',')
		}
		out = appendID(append(out, `{"id":`...), l.ID)
		out = rawjson.AppendString(append(out, `,"queue":`...), l.Queue)
		out = rawjson.AppendString(append(out, `,"partition":`...), l.Partition)
		out = rawjson.AppendString(append(out, `,"consumerGroup":`...), l.Group)
		out = rawjson.AppendString(append(out, `,"errorMessage":`...), l.Error)
		out = append(rawjson.AppendMillis(append(out, `,"failedAt":`...), l.Failed), '}')
	}
	x.out = append(out, ']', '}')
	_ = x.answer(http.StatusOK)
}

func appendRedrive(dst []byte, j *fsm.RedriveInfo) []byte {
	dst = appendRedriveHead(dst, j)
	dst = appendInt(dst, "total", j.Total)
	dst = appendInt(append(dst, ','), "moved", j.Moved)
	dst = appendInt(append(dst, ','), "duplicates", j.Duplicates)
	dst = appendInt(append(dst, ','), "failed", j.Failed)
	dst = rawjson.AppendString(append(dst, `,"queue":`...), j.Queue)
	dst = append(dst, `,"consumerGroup":`...)
	if j.AnyGroup {
		dst = append(dst, "null"...)
	} else {
		dst = rawjson.AppendString(dst, j.Group)
	}
	dst = rawjson.AppendMillis(append(dst, `,"createdAt":`...), j.Created)
	dst = append(dst, `,"endedAt":`...)
	if j.Ended == 0 {
		return append(dst, "null}"...)
	}
	return append(rawjson.AppendMillis(dst, j.Ended), '}')
}

func (s *Server) serveRedriveList(x *exchange) {
	f, bad := parseDLQ(x.c.Request.URL.RawQuery)
	if bad != "" {
		x.fail(http.StatusBadRequest, "bad_request", bad)
		return
	}
	var jobs []fsm.RedriveInfo // a tenant has a bounded number
	tenant := x.tenant
	if !s.read(x, func(st *fsm.State) { jobs = st.RedriveJobs(tenant) }) {
		return
	}
	jobs = jobs[min(f.Offset, len(jobs)):]
	jobs = jobs[:min(f.Limit, len(jobs))]
	out := append(x.out[:0], `{"jobs":[`...)
	for i := range jobs {
		if i > 0 {
			out = append(out, ',')
		}
		out = appendRedrive(out, &jobs[i])
	}
	out = appendInt(append(out, `],"pagination":{`...), "limit", int64(f.Limit))
	out = appendInt(append(out, ','), "offset", int64(f.Offset))
	x.out = append(appendInt(append(out, `},`...), "total", int64(len(jobs))), '}')
	_ = x.answer(http.StatusOK)
}

// answerRedrive answers with a job; 404 when there is none.
func (x *exchange) answerRedrive(j *fsm.RedriveInfo, found bool) {
	if !found {
		x.fail(http.StatusNotFound, "not_found", "no redrive has this id")
		return
	}
	x.out = appendRedrive(x.out[:0], j)
	_ = x.answer(http.StatusOK)
}

func (s *Server) serveRedriveGet(x *exchange) {
	text, _ := x.param("id")
	var job fsm.RedriveInfo
	id, found := parseID(text)
	tenant := x.tenant
	if found && !s.read(x, func(st *fsm.State) { job, found = st.RedriveJob(tenant, id) }) {
		return
	}
	x.answerRedrive(&job, found)
}

func (s *Server) serveRedriveCancel(x *exchange) {
	text, _ := x.param("id")
	id, ok := parseID(text)
	if !ok {
		x.answerRedrive(nil, false)
		return
	}
	w := s.getWork(x)
	call := &fsm.CancelRedrive{ID: id}
	if err := s.run(w, call, 256, x.remaining(s.cfg.Limits.CallTimeout), nil); err != nil {
		s.ended(w, err)
		x.undecided(err)
		return
	}
	s.putWork(w)
	x.answerRedrive(&call.Job, call.Found)
}
