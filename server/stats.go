package server

import (
	"net/http"
	"slices"
	"time"

	"queen/fsm"
)

// Readings over time: the buckets of package fsm, put together for the answers. A bucket in which nothing was counted is not
// in an answer; the running one is, with what it has so far.

// window is the time that a reading is about.
type window struct {
	from, to int64 // microseconds
	width    int64 // minutes of a bucket
}

// windowOf takes from and to of a query, with its default length, and chooses the width of the buckets. total: of the
// series of all queues. false: it has answered.
func (s *Server) windowOf(x *exchange, l *listing, back time.Duration, total bool) (w window, ok bool) {
	w.from, w.to = l.from, l.to
	if w.to == 0 {
		w.to = s.cfg.Clock().UnixMicro()
	}
	if w.from == 0 {
		w.from = max(w.to-back.Microseconds(), 0)
	}
	if w.from > w.to {
		x.fail(http.StatusBadRequest, "bad_request", "from is after to")
		return w, false
	}
	return w, s.read(x, func(st *fsm.State) { w.width = st.StatWidth(w.from, w.to, total) })
}

func (w *window) buckets() *fsm.StatRange {
	return &fsm.StatRange{Width: w.width, From: w.from, To: w.to}
}

func (w *window) timeRange() map[string]string {
	return map[string]string{"from": stamp(w.from), "to": stamp(w.to)}
}

// perSecond is a counter of a bucket as a rate.
func (w *window) perSecond(n int64) float64 { return float64(n) / float64(w.width*60) }

// lags are the average and the highest age of messages at their delivery, in milliseconds; null without a delivery.
type lags struct {
	Avg *float64 `json:"avgLagMs"`
	Max *float64 `json:"maxLagMs"`
}

func lagsOf(t *fsm.Tally) (l lags) {
	if t.LagMessages > 0 {
		avg, top := float64(t.LagSum/t.LagMessages)/1000, float64(t.LagMax)/1000
		l.Avg, l.Max = &avg, &top
	}
	return l
}

// all tells whether a reading is about all queues of the tenant: then it is that of one series.
func (l *listing) all() bool {
	f := &l.filter
	return f.Queue == "" && !f.HasNamespace && !f.HasTask
}

// series reads the buckets of the queues that match, added up, oldest first; false: it has answered.
func (s *Server) series(x *exchange, l *listing, w *window) (points []fsm.StatPoint, ok bool) {
	tenant := x.tenant
	if l.all() {
		return points, s.read(x, func(st *fsm.State) { points = st.Stats(tenant, w.buckets()) })
	}
	at := map[int64]int{}
	ok = s.eachSeries(x, l, w, func(q *fsm.QueueStats) bool {
		for i := range q.Points {
			p := &q.Points[i]
			j, known := at[p.Start]
			if !known {
				j, at[p.Start] = len(points), len(points)
				points = append(points, fsm.StatPoint{Start: p.Start})
			}
			points[j].Add(&p.Tally)
		}
		return true
	})
	slices.SortFunc(points, func(a, b fsm.StatPoint) int { return int((a.Start - b.Start) / 1e6) })
	return points, ok
}

// eachSeries calls fn for the buckets of each queue that matches, by name, until it returns false; false: it has answered.
func (s *Server) eachSeries(x *exchange, l *listing, w *window, fn func(*fsm.QueueStats) bool) bool {
	f, tenant := l.filter, x.tenant
	f.Limit = 1 << 40
	for more := true; more; {
		var page []fsm.QueueStats
		more = false
		if !s.read(x, func(st *fsm.State) { page, more = st.QueueStats(tenant, &f, w.buckets()) }) {
			return false
		}
		for i := range page {
			if !fn(&page[i]) {
				return true
			}
		}
	}
	return true
}

type throughputPoint struct {
	Timestamp    string  `json:"timestamp"`
	Ingested     int64   `json:"ingested"`
	Delivered    int64   `json:"delivered"`
	Processed    int64   `json:"processed"`
	Transactions int64   `json:"transactions"`
	IngestedPS   float64 `json:"ingestedPerSecond"`
	DeliveredPS  float64 `json:"deliveredPerSecond"`
	ProcessedPS  float64 `json:"processedPerSecond"`
	lags
}

type nodeStatus struct {
	TimeRange     map[string]string `json:"timeRange"`
	BucketMinutes int64             `json:"bucketMinutes"`
	PointCount    int               `json:"pointCount"`
	Throughput    []throughputPoint `json:"throughput"`
	Queues        struct {
		Total      int64 `json:"total"`
		Partitions int64 `json:"partitions"`
	} `json:"queues"`
	Messages messageCounts `json:"messages"`
	Leases   struct {
		Active   int64 `json:"active"`
		Messages int64 `json:"messages"`
		Parked   int64 `json:"parkedPops"`
	} `json:"leases"`
	DeadLetterQueue struct {
		Messages int64 `json:"totalMessages"`
		Queues   int64 `json:"affectedQueues"`
	} `json:"deadLetterQueue"`
	Workers []workerStatus `json:"workers"`
	Errors  struct {
		AckFailed   int64 `json:"ackFailed"`
		DeadLetters int64 `json:"deadLetters"`
	} `json:"errors"`
	StatsAge int `json:"statsAge"`
}

// workerStatus is a node that serves.
type workerStatus struct {
	NodeID uint64 `json:"nodeId"`
	Role   string `json:"role"`
	Uptime int64  `json:"uptimeSeconds"`
}

func (s *Server) serveNodeStatus(x *exchange) {
	l, ok := x.listing(maxPage, maxPage)
	if !ok {
		return
	}
	w, ok := s.windowOf(x, &l, time.Hour, l.all())
	if !ok {
		return
	}
	points, ok := s.series(x, &l, &w)
	if !ok {
		return
	}
	sums, ok := s.sumQueues(x, l.filter, nil)
	if !ok {
		return
	}
	st := s.engine.Status()
	a := nodeStatus{TimeRange: w.timeRange(), BucketMinutes: w.width, PointCount: len(points), Throughput: make([]throughputPoint, len(points)), Messages: countsOf(&sums)}
	for i := range points {
		p := &points[i]
		a.Throughput[i] = throughputPoint{
			Timestamp: stamp(p.Start), Ingested: p.PushMessages, Delivered: p.PopMessages, Processed: p.Settled, Transactions: p.Transactions,
			IngestedPS: w.perSecond(p.PushMessages), DeliveredPS: w.perSecond(p.PopMessages), ProcessedPS: w.perSecond(p.Settled), lags: lagsOf(&p.Tally),
		}
		a.Errors.AckFailed += p.AckFailed
		a.Errors.DeadLetters += p.Tally.DeadLetters
	}
	a.Queues.Total, a.Queues.Partitions = sums.Queues, sums.Partitions
	a.Leases.Active, a.Leases.Messages, a.Leases.Parked = sums.Leased, sums.Processing, sums.Parked
	a.DeadLetterQueue.Messages, a.DeadLetterQueue.Queues = sums.DeadLetter, sums.WithLetters
	a.Workers = []workerStatus{{st.NodeID, st.Role, int64(s.cfg.Clock().Sub(s.started).Seconds())}}
	x.answerJSON(http.StatusOK, &a)
}

type volumePoint struct {
	Timestamp string `json:"timestamp"`
	Messages  int64  `json:"messages"`
}

// serveAnalytics tells the volume of messages by minute, hour or day. Where buckets of that width are kept no longer, the
// answer begins later, and its from says so.
func (s *Server) serveAnalytics(x *exchange) {
	l, ok := x.listing(maxPage, maxPage)
	if !ok {
		return
	}
	w, ok := s.windowOf(x, &l, 24*time.Hour, l.all())
	if !ok {
		return
	}
	step, width := int64(60), int64(60)
	switch l.interval {
	case "minute":
		step, width = 1, 1
	case "day":
		step, width = 24*60, 360
	default:
		l.interval = "hour"
	}
	w.width = width
	total := l.all()
	if !s.read(x, func(st *fsm.State) { w.from = max(w.from, min(st.StatSince(width, total), w.to)) }) {
		return
	}
	points, ok := s.series(x, &l, &w)
	if !ok {
		return
	}
	rows := []volumePoint{}
	for i := range points {
		at := stamp(points[i].Start - points[i].Start%(step*60e6))
		if n := len(rows); n == 0 || rows[n-1].Timestamp != at {
			rows = append(rows, volumePoint{Timestamp: at})
		}
		rows[len(rows)-1].Messages += points[i].PushMessages
	}
	x.answerJSON(http.StatusOK, map[string]any{"dataPoints": rows, "interval": l.interval, "from": stamp(w.from), "to": stamp(w.to)})
}

// maxSeriesRows bounds an answer of many queues; queues that come later in the order of names are then left out, as a whole.
const maxSeriesRows = 20_000

type lagRow struct {
	QueueName string `json:"queueName"`
	PopCount  int64  `json:"popCount"`
	lags
	BucketMinutes int64  `json:"bucketMinutes"`
	BucketTime    string `json:"bucketTime"`
	start         int64
}

func (s *Server) serveQueueLag(x *exchange) {
	l, ok := x.listing(maxPage, maxPage)
	if !ok {
		return
	}
	w, ok := s.windowOf(x, &l, time.Hour, false)
	if !ok {
		return
	}
	rows := []lagRow{}
	if !s.eachSeries(x, &l, &w, func(q *fsm.QueueStats) bool {
		for i := range q.Points {
			p := &q.Points[i]
			rows = append(rows, lagRow{q.Queue, p.PopMessages, lagsOf(&p.Tally), w.width, stamp(p.Start), p.Start})
		}
		return len(rows) < maxSeriesRows
	}) {
		return
	}
	slices.SortStableFunc(rows, func(a, b lagRow) int { return int((b.start - a.start) / 1e6) })
	x.answerJSON(http.StatusOK, rows)
}

type opsRow struct {
	Bucket            string `json:"bucket"`
	QueueName         string `json:"queueName"`
	PushRequests      int64  `json:"pushRequests"`
	PushMessages      int64  `json:"pushMessages"`
	PopMessages       int64  `json:"popMessages"`
	PopEmpty          int64  `json:"popEmpty"`
	AckRequests       int64  `json:"ackRequests"`
	AckSuccess        int64  `json:"ackSuccess"`
	AckFailed         int64  `json:"ackFailed"`
	Transactions      int64  `json:"transactions"`
	PartitionsCreated int64  `json:"partitionsCreated"`
	PartitionsDeleted int64  `json:"partitionsDeleted"`
	PartitionCount    int64  `json:"partitionCount"`
	Pending           int64  `json:"pending"`
	lags
	PushPerSecond  float64 `json:"pushPerSecond"`
	PopPerSecond   float64 `json:"popPerSecond"`
	AckPerSecond   float64 `json:"ackPerSecond"`
	EmptyPerSecond float64 `json:"emptyPerSecond"`
	ParkedCount    int64   `json:"parkedCount"`
	start          int64
}

func (s *Server) serveQueueOps(x *exchange) {
	l, ok := x.listing(maxPage, maxPage)
	if !ok {
		return
	}
	w, ok := s.windowOf(x, &l, time.Hour, false)
	if !ok {
		return
	}
	rows, queues := []opsRow{}, []string{}
	if !s.eachSeries(x, &l, &w, func(q *fsm.QueueStats) bool {
		queues = append(queues, q.Queue)
		for i := range q.Points {
			rows = append(rows, opsOf(q.Queue, &q.Points[i], &w))
		}
		return len(rows) < maxSeriesRows
	}) {
		return
	}
	slices.SortStableFunc(rows, func(a, b opsRow) int { return int((a.start - b.start) / 1e6) })
	x.answerJSON(http.StatusOK, map[string]any{"timeRange": w.timeRange(), "bucketMinutes": w.width, "series": rows, "queues": queues})
}

func opsOf(queue string, p *fsm.StatPoint, w *window) opsRow {
	return opsRow{
		Bucket: stamp(p.Start), QueueName: queue, PushRequests: p.PushRequests, PushMessages: p.PushMessages, PopMessages: p.PopMessages,
		PopEmpty: p.PopEmpty, AckRequests: p.AckRequests, AckSuccess: p.AckSuccess, AckFailed: p.AckFailed, Transactions: p.Transactions,
		PartitionsCreated: p.PartitionsCreated, PartitionsDeleted: p.PartitionsDeleted, PartitionCount: p.Tally.Partitions, Pending: p.Pending,
		lags: lagsOf(&p.Tally), PushPerSecond: w.perSecond(p.PushMessages), PopPerSecond: w.perSecond(p.PopMessages),
		AckPerSecond: w.perSecond(p.AckSuccess + p.AckFailed), EmptyPerSecond: w.perSecond(p.PopEmpty), ParkedCount: p.Parked, start: p.Start,
	}
}

// serveStatsRefresh changes nothing: the counters are current.
func (s *Server) serveStatsRefresh(x *exchange) {
	x.answerJSON(http.StatusOK, map[string]any{"success": true, "statsAge": 0})
}
