package server

import (
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"time"

	"queen/fsm"
	"queen/server/rawjson"
)

// Summaries over queues. All of them are added up from counters that planning keeps, in slices: nothing here looks at partitions.

// messageCounts are the totals of messages; failed is null, because no message has that state.
type messageCounts struct {
	Total      int64 `json:"total"`
	Pending    int64 `json:"pending"`
	Processing int64 `json:"processing"`
	Completed  int64 `json:"completed"`
	Failed     *bool `json:"failed"`
	DeadLetter int64 `json:"deadLetter"`
}

func countsOf(s *fsm.QueueSums) messageCounts {
	return messageCounts{Total: s.Total, Pending: s.Pending, Processing: s.Processing, Completed: s.Completed, DeadLetter: s.DeadLetter}
}

// sumQueues adds up the queues that match; false: it has answered.
func (s *Server) sumQueues(x *exchange, f fsm.QueueFilter, recent *fsm.StatRange) (sums fsm.QueueSums, ok bool) {
	tenant := x.tenant
	for more := true; more; {
		more = false
		if !s.read(x, func(st *fsm.State) { more = st.SumQueues(tenant, &f, recent, &sums) }) {
			return sums, false
		}
	}
	return sums, true
}

// sumLabels adds up the queues by namespace or task; false: it has answered.
func (s *Server) sumLabels(x *exchange, tasks bool) (sums map[string]fsm.LabelSums, ok bool) {
	var f fsm.QueueFilter
	sums = map[string]fsm.LabelSums{}
	tenant := x.tenant
	for more := true; more; {
		more = false
		if !s.read(x, func(st *fsm.State) { more = st.SumLabels(tenant, &f, tasks, sums) }) {
			return nil, false
		}
	}
	return sums, true
}

// spread is how numbers are distributed; nulls when there are none.
type spread struct {
	Avg    *float64 `json:"avg"`
	Median *float64 `json:"median"`
	Min    *float64 `json:"min"`
	Max    *float64 `json:"max"`
}

// spreadOf sorts values. Each of them counts by unit.
func spreadOf(values []int64, unit float64) (out spread) {
	n := len(values)
	if n == 0 {
		return out
	}
	slices.Sort(values)
	sum := 0.0
	for _, v := range values {
		sum += float64(v)
	}
	of := func(v float64) *float64 { v /= unit; return &v }
	out.Avg, out.Min, out.Max = of(sum/float64(n)), of(float64(values[0])), of(float64(values[n-1]))
	out.Median = of((float64(values[n/2]) + float64(values[(n-1)/2])) / 2)
	return out
}

type overview struct {
	Queues     int64         `json:"queues"`
	Partitions int64         `json:"partitions"`
	Namespaces int           `json:"namespaces"`
	Tasks      int           `json:"tasks"`
	Messages   messageCounts `json:"messages"`
	Lag        struct {
		Time   spread `json:"time"`   // seconds
		Offset spread `json:"offset"` // messages
	} `json:"lag"`
	Throughput struct {
		Ingested  float64 `json:"ingestedPerSecond"`
		Processed float64 `json:"processedPerSecond"`
	} `json:"throughput"`
	Timestamp string `json:"timestamp"`
	StatsAge  int    `json:"statsAge"`
}

// recentMinutes is the time over which an overview shows rates: whole minutes, and what the running one has of the last.
const recentMinutes = 5

func (s *Server) serveOverview(x *exchange) {
	now := s.cfg.Clock()
	recent := &fsm.StatRange{Width: 1, From: now.Add(-(recentMinutes - 1) * time.Minute).UnixMicro(), To: now.UnixMicro()}
	sums, ok := s.sumQueues(x, fsm.QueueFilter{}, recent)
	if !ok {
		return
	}
	namespaces, ok := s.sumLabels(x, false)
	if !ok {
		return
	}
	tasks, ok := s.sumLabels(x, true)
	if !ok {
		return
	}
	var points []fsm.StatPoint
	tenant := x.tenant
	if !s.read(x, func(st *fsm.State) { points = st.Stats(tenant, recent) }) {
		return
	}
	var total fsm.Tally
	for i := range points {
		total.Add(&points[i].Tally)
	}
	seconds := float64((recentMinutes-1)*60 + now.Second() + 1)
	o := overview{Queues: sums.Queues, Partitions: sums.Partitions, Namespaces: len(namespaces), Tasks: len(tasks), Messages: countsOf(&sums), Timestamp: stamp(now.UnixMicro())}
	o.Lag.Time, o.Lag.Offset = spreadOf(sums.Lags, 1e6), spreadOf(sums.Offsets, 1)
	o.Throughput.Ingested, o.Throughput.Processed = float64(total.PushMessages)/seconds, float64(total.Settled)/seconds
	x.answerJSON(http.StatusOK, &o)
}

// stamp is a time as answers have it, with milliseconds.
func stamp(micros int64) string {
	b := rawjson.AppendMillis(nil, micros)
	return string(b[1 : len(b)-1])
}

type labelRow struct {
	Namespace  *string `json:"namespace,omitempty"`
	Task       *string `json:"task,omitempty"`
	Queues     int64   `json:"queues"`
	Partitions int64   `json:"partitions"`
	Messages   struct {
		Total   int64 `json:"total"`
		Pending int64 `json:"pending"`
	} `json:"messages"`
}

func (s *Server) serveNamespaces(x *exchange) { s.serveLabels(x, false) }
func (s *Server) serveTasks(x *exchange)      { s.serveLabels(x, true) }

// maxLabels is how many namespaces or tasks an answer lists when it is not asked for fewer.
const maxLabels = 10_000

func (s *Server) serveLabels(x *exchange, tasks bool) {
	l, ok := x.listing(maxLabels, maxLabels)
	if !ok {
		return
	}
	sums, ok := s.sumLabels(x, tasks)
	if !ok {
		return
	}
	names := make([]string, 0, len(sums))
	for name := range sums { // sorted below
		names = append(names, name)
	}
	slices.Sort(names)
	names = names[min(l.offset, len(names)):]
	rows := make([]labelRow, 0, min(len(names), l.limit))
	for _, name := range names[:min(len(names), l.limit)] {
		sum := sums[name]
		r := labelRow{Queues: sum.Queues, Partitions: sum.Partitions}
		r.Messages.Total, r.Messages.Pending = sum.Total, sum.Pending
		if r.Namespace = &name; tasks {
			r.Namespace, r.Task = nil, &name
		}
		rows = append(rows, r)
	}
	if tasks {
		x.answerJSON(http.StatusOK, map[string]any{"tasks": rows})
	} else {
		x.answerJSON(http.StatusOK, map[string]any{"namespaces": rows})
	}
}

func (s *Server) serveStatusQueues(x *exchange) {
	l, ok := x.listing(100, maxPage)
	if !ok {
		return
	}
	rows, p, ok := s.findQueues(x, &l)
	if !ok {
		return
	}
	out := append(x.out[:0], `{"queues":[`...)
	for i := range rows {
		q := &rows[i]
		if i > 0 {
			out = append(out, ',')
		}
		out = appendQueueHead(out, q)
		out = appendInt(append(out, ','), "partitions", int64(q.Partitions))
		out = s.appendRetained(append(out, ','), q)
		out = append(out, `,"messages":`...)
		c := counts{q.Total, q.Pending, q.Processing, q.Completed, q.DeadLetters}
		out = append(c.appendTo(out), '}')
	}
	out = append(out, `],"pagination":`...)
	end, err := json.Marshal(p)
	if err != nil {
		panic(err) // numbers
	}
	x.out = append(append(out, end...), '}')
	_ = x.answer(http.StatusOK)
}

// findQueues lists a page of the queues that match; false: it has answered.
func (s *Server) findQueues(x *exchange, l *listing) (rows []fsm.QueueInfo, p pagination, ok bool) {
	f := l.page()
	f.From, f.To = l.from, l.to
	tenant := x.tenant
	for more := true; more && f.Limit > 0; {
		var some []fsm.QueueInfo
		more = false
		if !s.read(x, func(st *fsm.State) { some, more = st.FindQueues(tenant, &f) }) {
			return nil, p, false
		}
		rows = append(rows, some...)
	}
	rows, p = pageOf(l, rows)
	return rows, p, true
}

// statusPartition is a partition in the status of its queue.
type statusPartition struct {
	ID            string          `json:"id"`
	Name          string          `json:"name"`
	CreatedAt     string          `json:"createdAt"`
	Messages      messageCounts   `json:"messages"`
	Stats         messageCounts   `json:"stats"`
	Cursor        statusCursor    `json:"cursor"`
	LastActivity  json.RawMessage `json:"lastActivity"`
	OldestMessage json.RawMessage `json:"oldestMessage"`
	NewestMessage json.RawMessage `json:"newestMessage"`
}

// statusCursor is where a partition stands: its kept offsets, and how many of them the slowest group has settled.
type statusCursor struct {
	LogStart  uint64 `json:"logStart"`
	Next      uint64 `json:"nextOffset"`
	Completed int64  `json:"completed"`
}

type statusQueue struct {
	Queue struct {
		ID        string       `json:"id"`
		Name      string       `json:"name"`
		Namespace string       `json:"namespace"`
		Task      string       `json:"task"`
		CreatedAt string       `json:"createdAt"`
		Config    statusConfig `json:"config"`
	} `json:"queue"`
	Partitions     []statusPartition `json:"partitions"`
	PartitionCount int               `json:"partitionCount"`
	Totals         messageCounts     `json:"totals"`
}

type statusConfig struct {
	LeaseTime       int64 `json:"leaseTime"`
	RetryLimit      int64 `json:"retryLimit"`
	RetryDelay      int64 `json:"retryDelay"`
	TTL             int64 `json:"ttl"`
	DeadLetterQueue bool  `json:"deadLetterQueue"`
	Priority        int64 `json:"priority"`
}

func orNull(micros int64) json.RawMessage { return appendExpiry(nil, micros) }

func (s *Server) serveStatusQueue(x *exchange) {
	q, parts, ok := s.queueDetail(x)
	if !ok {
		return
	}
	var a statusQueue
	a.Queue.ID, a.Queue.Name, a.Queue.CreatedAt = strconv.FormatUint(q.ID, 10), q.Name, stamp(q.Created)
	o := &q.Options
	a.Queue.Namespace, a.Queue.Task = o.Namespace, o.Task
	a.Queue.Config = statusConfig{o.LeaseTime, o.RetryLimit, o.RetryDelay, o.TTL, o.DeadLetters(), o.Priority}
	a.Totals = messageCounts{Total: q.Total, Pending: q.Pending, Processing: q.Processing, Completed: q.Completed, DeadLetter: q.DeadLetters}
	a.Partitions, a.PartitionCount = make([]statusPartition, len(parts)), q.Partitions
	for i := range parts {
		p := &parts[i]
		c := messageCounts{Total: p.Total, Pending: p.Pending, Processing: p.Processing, Completed: max(p.Total-p.Pending, 0), DeadLetter: p.DeadLetters}
		a.Partitions[i] = statusPartition{
			ID: strconv.FormatUint(p.ID, 10), Name: p.Name, CreatedAt: stamp(p.Created), Messages: c, Stats: c,
			Cursor:       statusCursor{p.LogStart, p.Next, c.Completed},
			LastActivity: orNull(p.LastAppend), OldestMessage: orNull(p.oldest), NewestMessage: orNull(p.LastAppend),
		}
	}
	x.answerJSON(http.StatusOK, &a)
}

type partitionPlace struct {
	Queue       string          `json:"queue"`
	Partition   string          `json:"partition"`
	PartitionID string          `json:"partitionId"`
	LastOffset  int64           `json:"lastOffset"` // -1: nothing was appended
	LogStart    uint64          `json:"logStart"`
	LastWriteAt json.RawMessage `json:"lastWriteAt"`
}

func (s *Server) servePartitions(x *exchange) {
	l, ok := x.listing(100, maxPage)
	if !ok {
		return
	}
	f, after, tenant := l.page(), 0, x.tenant
	f.From, f.To = l.from, l.to
	var found []fsm.PartitionPlace
	for more := true; more && f.Limit > 0; {
		var some []fsm.PartitionPlace
		more = false
		if !s.read(x, func(st *fsm.State) { some, more = st.FindPartitions(tenant, &f, &after) }) {
			return
		}
		found = append(found, some...)
	}
	found, p := pageOf(&l, found)
	rows := make([]partitionPlace, len(found))
	for i := range found {
		r := &found[i]
		rows[i] = partitionPlace{r.Queue, r.Name, strconv.FormatUint(r.ID, 10), int64(r.Next) - 1, r.LogStart, orNull(r.LastAppend)}
	}
	x.answerJSON(http.StatusOK, map[string]any{"partitions": rows, "pagination": p})
}

type partitionSize struct {
	Partition string `json:"partition"`
	Bytes     int64  `json:"bytes"`
	Estimated bool   `json:"estimated,omitempty"`
}

// Bounds of one sizes answer: records of a partition that are read, and of all together. What is beyond is estimated from what was.
const (
	sizeAppends    = 100
	sizeAppendsAll = 5000
)

func (s *Server) serveQueueSizes(x *exchange) {
	name, ok := x.queueName()
	if !ok {
		return
	}
	l, ok := x.listing(100, maxPage)
	if !ok {
		return
	}
	var (
		q     fsm.QueueInfo
		found bool
		parts []fsm.PartitionInfo
	)
	tenant := x.tenant
	for more := true; more && len(parts) <= l.limit; {
		var some []fsm.PartitionInfo
		more = false
		if !s.read(x, func(st *fsm.State) {
			q, found = st.Queue(tenant, name)
			some, more = st.Partitions(tenant, name, l.offset+len(parts), l.limit+1-len(parts))
		}) {
			return
		}
		parts = append(parts, some...)
	}
	if !found {
		x.queueNotFound()
		return
	}
	parts, p := pageOf(&l, parts)
	rows := make([]partitionSize, len(parts))
	left := sizeAppendsAll
	for i := range parts {
		n := min(sizeAppends, max(left/(len(parts)-i), 1))
		left -= n
		row, err := s.partitionSize(q.ID, &parts[i], n)
		if err != nil {
			s.log.Error("the size of a partition could not be read", "queue", name, "partition", parts[i].Name, "error", err)
			x.fail(http.StatusInternalServerError, "internal", "internal error")
			return
		}
		rows[i] = row
	}
	_, total := s.engine.LogSize(q.ID)
	x.answerJSON(http.StatusOK, map[string]any{"queue": name, "total": total, "partitions": rows, "pagination": p})
}

func (s *Server) partitionSize(queue uint64, p *fsm.PartitionInfo, appends int) (partitionSize, error) {
	row := partitionSize{Partition: p.Name}
	if p.Total == 0 {
		return row, nil
	}
	bytes, messages, err := s.engine.PartitionBytes(queue, p.ID, p.LogStart, appends)
	if row.Bytes = bytes; messages > 0 && int64(messages) < p.Total {
		row.Bytes, row.Estimated = int64(float64(bytes)/float64(messages)*float64(p.Total)), true
	}
	return row, err
}
