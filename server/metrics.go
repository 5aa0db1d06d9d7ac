package server

import (
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"queen/fsm"
	"queen/raftlog"
	"queen/server/rawjson"
)

// Observations are where a log and its planner report what they measure. All
// functions are safe for concurrent use and do not block.
type Observations struct {
	Sync    func(d time.Duration, logs int)
	Written func(entries, bytes int)
	Hold    func(d time.Duration)
	Planned func(calls, bytes int) // one entry: its calls and its encoded size
	// Checkpoint: one was finished, of so many rows and bytes.
	Checkpoint func(rows int, bytes int64)
}

// metrics are what /metrics and /metrics/prometheus tell. Everything is in a
// registry of its own, so that two servers in one process do not meet.
type metrics struct {
	registry *prometheus.Registry
	handler  http.Handler
	requests *prometheus.HistogramVec
	on       bool

	total                        atomic.Int64
	pushed, popped, acked, kvOps atomic.Int64

	calls                         [3]atomic.Int64 // answered, by verb
	slow                          atomic.Int64    // calls that took Limits.SlowCall
	kvReadRefused, kvWriteRefused atomic.Int64    // by a rate
	lockOps                       atomic.Int64

	observed *Observations
}

// secondsBuckets covers an fsync on fast storage up to a long stall.
var secondsBuckets = []float64{.0001, .00025, .0005, .001, .002, .004, .008, .016, .032, .064, .128, .256, .512, 1, 2, 4, 8, 16, 32, 64}

func newMetrics(s *Server) *metrics {
	m := &metrics{registry: prometheus.NewRegistry(), on: s.cfg.Metrics}
	m.requests = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "queen_http_request_seconds", Help: "Time from a request's header to its answer, by route and status.",
		Buckets: secondsBuckets,
	}, []string{"route", "status"})
	m.registry.MustRegister(m.requests, collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	m.observed = m.observations()
	m.registerCounters()
	m.registerStatus(s)
	m.registry.MustRegister(&queueCollector{s: s}, &statusCollector{s: s})
	m.handler = promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError})
	return m
}

func (m *metrics) observations() *Observations {
	sync := prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "queen_raft_log_fsync_seconds", Help: "Time of one sync of the log writer; its count is the number of syncs.", Buckets: secondsBuckets,
	})
	hold := prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "queen_raft_loop_hold_seconds", Help: "How long one turn held the group's loop.",
		Buckets: []float64{.00001, .00002, .00005, .0001, .0002, .0005, .001, .0015, .002, .003, .005, .0075, .01, .02, .05, .1, .2, .5, 1},
	})
	bytes := prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "queen_raft_group_bytes", Help: "Encoded size of one entry.", Buckets: prometheus.ExponentialBuckets(64, 4, 12),
	})
	calls := prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "queen_raft_group_commands", Help: "Calls that were planned into one entry.", Buckets: prometheus.ExponentialBuckets(1, 2, 13),
	})
	logs := prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "queen_raft_log_fsync_logs", Help: "Queue logs that one sync covered.", Buckets: prometheus.ExponentialBuckets(1, 2, 10),
	})
	written := prometheus.NewCounter(prometheus.CounterOpts{
		Name: "queen_raft_log_written_bytes_total", Help: "Bytes of records written to the queue logs.",
	})
	entries := prometheus.NewCounter(prometheus.CounterOpts{
		Name: "queen_raft_log_entries_total", Help: "Entries written to the queue logs.",
	})
	checkpoints := prometheus.NewCounter(prometheus.CounterOpts{
		Name: "queen_checkpoints_total", Help: "Finished checkpoints of the rows.",
	})
	rows := prometheus.NewCounter(prometheus.CounterOpts{
		Name: "queen_checkpoint_rows_total", Help: "Rows that checkpoints wrote: those that changed, all when a checkpoint compacts.",
	})
	rowBytes := prometheus.NewCounter(prometheus.CounterOpts{
		Name: "queen_checkpoint_bytes_total", Help: "Bytes of these rows.",
	})
	m.registry.MustRegister(sync, hold, bytes, calls, logs, written, entries, checkpoints, rows, rowBytes)
	return &Observations{
		Sync:    func(d time.Duration, n int) { sync.Observe(d.Seconds()); logs.Observe(float64(n)) },
		Written: func(n, b int) { entries.Add(float64(n)); written.Add(float64(b)) },
		Hold:    func(d time.Duration) { hold.Observe(d.Seconds()) },
		Planned: func(n, b int) { calls.Observe(float64(n)); bytes.Observe(float64(b)) },
		Checkpoint: func(n int, b int64) {
			checkpoints.Inc()
			rows.Add(float64(n))
			rowBytes.Add(float64(b))
		},
	}
}

func (m *metrics) registerCounters() {
	for _, c := range []struct {
		name, help string
		value      *atomic.Int64
	}{
		{"queen_process_push_messages_total", "Items of answered pushes and committed transactions.", &m.pushed},
		{"queen_process_pop_messages_total", "Messages delivered.", &m.popped},
		{"queen_process_ack_messages_total", "Acks answered.", &m.acked},
		{"queen_process_push_requests_total", "Push calls answered.", &m.calls[0]},
		{"queen_process_pop_requests_total", "Pop calls answered.", &m.calls[1]},
		{"queen_process_ack_requests_total", "Ack calls answered.", &m.calls[2]},
		{"queen_raft_slow_commands_total", "Calls that took QUEEN_RAFT_SLOW_COMMAND_MS or longer; pops that may wait are not counted.", &m.slow},
		{"queen_kv_ops_total", "Key/value operations answered.", &m.kvOps},
		{"queen_kv_read_rejected_total", "Reading key/value calls that the tenant's rate refused.", &m.kvReadRefused},
		{"queen_kv_write_rejected_total", "Writing key/value calls that the tenant's rate refused.", &m.kvWriteRefused},
		{"queen_locks_ops_total", "Lock operations answered.", &m.lockOps},
	} {
		m.registry.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{Name: c.name, Help: c.help},
			func() float64 { return float64(c.value.Load()) }))
	}
}

func (m *metrics) registerStatus(s *Server) {
	gauge := func(name, help string, labels prometheus.Labels, fn func() float64) {
		m.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help, ConstLabels: labels}, fn))
	}
	index := func(kind string, of func(Status) uint64) {
		gauge("queen_raft_index", "Indexes of this node's log.", prometheus.Labels{"kind": kind},
			func() float64 { return float64(of(s.engine.Status())) })
	}
	index("log", func(st Status) uint64 { return st.Log })
	index("committed", func(st Status) uint64 { return st.Commit })
	index("applied", func(st Status) uint64 { return st.Applied })
	index("durable", func(st Status) uint64 { return st.Durable })
	gauge("queen_raft_inflight", "Entries planned and not committed.", nil, func() float64 { return float64(s.engine.Status().InFlight) })
	gauge("queen_parked_long_polls", "Pops that wait for messages.", nil, func() float64 { return float64(s.engine.Status().Parked) })
	gauge("queen_raft_storage_full", "1 when writes that grow storage are refused.", nil, func() float64 {
		if s.disk.full.Load() {
			return 1
		}
		return 0
	})
	gauge("queen_raft_admit_bytes", "Bytes of growing writes in flight.", nil, func() float64 {
		used, _ := s.admission.state()
		return float64(used)
	})
	gauge("queen_raft_admit_waiting", "Calls that wait for admission.", nil, func() float64 {
		_, bytes := s.admission.state()
		_, calls := s.gate.state()
		return float64(bytes + calls)
	})
	m.registry.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{
		Name: "queen_raft_admit_total", Help: "Outcomes of admission.", ConstLabels: prometheus.Labels{"outcome": "refused"},
	}, func() float64 { return float64(s.admission.refused.Load()) }))
	m.registerFreed(s)
	m.registerScrub(s)
	m.registerOutcomes(s)
	gauge("queen_uptime_seconds", "Age of the process.", nil, func() float64 { return s.cfg.Clock().Sub(s.started).Seconds() })
}

func (m *metrics) registerOutcomes(s *Server) {
	of := func(fn func(fsm.OutcomeStats) int64) func() float64 {
		return func() float64 { return float64(fn(s.engine.Status().Outcomes)) }
	}
	m.registry.MustRegister(
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "queen_idempotency_outcomes", Help: "Kept answers of calls with an Idempotency-Key.",
		}, of(func(o fsm.OutcomeStats) int64 { return o.Kept })),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "queen_idempotency_bytes", Help: "Memory of kept answers, about.",
		}, of(func(o fsm.OutcomeStats) int64 { return o.Bytes })),
		prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "queen_idempotency_evicted_total", Help: "Kept answers that went before the end of their window, to make room.",
		}, of(func(o fsm.OutcomeStats) int64 { return o.Evicted })),
		prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "queen_idempotency_replayed_total", Help: "Calls that were answered with a kept answer.",
		}, of(func(o fsm.OutcomeStats) int64 { return o.Repeats })),
	)
}

func (m *metrics) registerFreed(s *Server) {
	counter := func(name, help, kind string, of func(*Freed) int64) {
		var labels prometheus.Labels
		if kind != "" {
			labels = prometheus.Labels{"kind": kind}
		}
		m.registry.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{Name: name, Help: help, ConstLabels: labels}, func() float64 {
			st := s.engine.Status()
			return float64(of(&st.Freed))
		}))
	}
	messages := func(kind string, of func(*Freed) int64) {
		counter("queen_retention_messages_total", "Messages that retention has removed, by rule.", kind, of)
	}
	messages("age", func(f *Freed) int64 { return f.Aged })
	messages("completed", func(f *Freed) int64 { return f.Completed })
	messages("max_wait", func(f *Freed) int64 { return f.Waited })
	counter("queen_retention_partitions_total", "Idle partitions that were removed.", "", func(f *Freed) int64 { return f.Partitions })
	counter("queen_retention_lookup_failures_total", "Look-ups of retention that failed and are made again.", "", func(f *Freed) int64 { return f.FailedLookups })
	counter("queen_raft_reclaim_bytes_total", "Bytes of log files that were freed.", "", func(f *Freed) int64 { return f.Bytes })
	counter("queen_raft_reclaim_failures_total", "Attempts to free space of a log that damage or a full disk stopped.", "", func(f *Freed) int64 { return f.Failures })
	done := func(kind string, of func(*Freed) int64) {
		counter("queen_raft_reclaim_total", "What reclaim has done: files removed, files rewritten, runs of files merged, logs removed.", kind, of)
	}
	done("files", func(f *Freed) int64 { return f.Files })
	done("rewrites", func(f *Freed) int64 { return f.Rewrites })
	done("merges", func(f *Freed) int64 { return f.Merges })
	done("logs", func(f *Freed) int64 { return f.Logs })
}

func (m *metrics) registerScrub(s *Server) {
	number := func(name, help string, of func(*raftlog.Scrubbed) int64) {
		value := func() float64 {
			st := s.engine.Status()
			return float64(of(&st.Scrub))
		}
		if strings.HasSuffix(name, "_total") {
			m.registry.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{Name: name, Help: help}, value))
			return
		}
		m.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, value))
	}
	number("queen_store_scrub_passes_total", "Passes of the scrub that ended.", func(sc *raftlog.Scrubbed) int64 { return sc.Passes })
	number("queen_store_scrub_findings_total", "Damage that the scrub has found.", func(sc *raftlog.Scrubbed) int64 { return sc.Findings })
	number("queen_store_scrub_bytes_total", "Bytes that the scrub has read.", func(sc *raftlog.Scrubbed) int64 { return sc.Bytes })
	number("queen_store_scrub_rows_total", "Rows that the scrub has read.", func(sc *raftlog.Scrubbed) int64 { return sc.Rows })
	number("queen_store_scrub_last_pass_timestamp_seconds", "When the last pass of the scrub ended; 0: none has.", func(sc *raftlog.Scrubbed) int64 { return sc.Last.Ended / 1_000_000 })
	number("queen_store_scrub_last_pass_findings", "Damage that the last pass found.", func(sc *raftlog.Scrubbed) int64 { return sc.Last.Findings })
	number("queen_store_scrub_damaged", "1 from the time when the scrub finds damage until a pass finds none.", func(sc *raftlog.Scrubbed) int64 {
		return int64(min(len(sc.Damage), 1))
	})
}

// routeStats measure one route. The observer of a status is looked up once.
type routeStats struct {
	m      *metrics
	label  string
	calls  *atomic.Int64 // of its verb; nil: it has none
	status [500]atomic.Pointer[prometheus.Observer]
}

func (m *metrics) route(label string) *routeStats {
	r := &routeStats{m: m, label: label}
	for i, verb := range verbs {
		if strings.Contains(label, " /api/v1/"+verb) {
			r.calls = &m.calls[i]
		}
	}
	return r
}

// verbs are those whose calls are counted by themselves, as metrics.calls has them.
var verbs = [3]string{"push", "pop", "ack"}

func (r *routeStats) observe(status int, took time.Duration) {
	r.m.total.Add(1)
	if r.calls != nil {
		r.calls.Add(1)
	}
	if !r.m.on {
		return
	}
	i := min(max(status-100, 0), len(r.status)-1)
	o := r.status[i].Load()
	if o == nil {
		made := r.m.requests.WithLabelValues(r.label, strconv.Itoa(status))
		o = &made
		r.status[i].Store(o)
	}
	(*o).Observe(took.Seconds())
}

func (s *Server) servePrometheus(x *exchange) {
	s.metrics.handler.ServeHTTP(x.c.Writer, x.c.Request)
}

func (s *Server) serveMetrics(x *exchange) {
	m, st := s.metrics, s.engine.Status()
	dst := append(x.out[:0], `{"uptime":`...)
	dst = strconv.AppendInt(dst, int64(s.cfg.Clock().Sub(s.started).Seconds()), 10)
	dst = append(dst, `,"requests":{`...)
	dst = appendInt(dst, "total", m.total.Load())
	dst = append(dst, `},"messages":{`...)
	dst = appendInt(dst, "total", m.pushed.Load()+m.popped.Load())
	dst = append(dst, `},"memory":{`...)
	dst = appendInt(dst, "rss", residentBytes())
	dst = append(dst, `},"raft":`...)
	dst = appendRaft(dst, &st)
	x.out = append(dst, '}', '}')
	_ = x.answer(http.StatusOK)
}

// residentBytes is the resident set of this process; 0 where it cannot be told.
func residentBytes() int64 {
	data, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0
	}
	fields := strings.Fields(string(data))
	if len(fields) < 2 {
		return 0
	}
	pages, _ := strconv.ParseInt(fields[1], 10, 64)
	return pages * int64(os.Getpagesize())
}

// appendRaft appends the raft object without its closing brace.
func appendRaft(dst []byte, st *Status) []byte {
	dst = append(dst, `{"role":`...)
	dst = rawjson.AppendString(dst, st.Role)
	dst = append(dst, `,"leader":`...)
	dst = rawjson.AppendBool(dst, st.HasLeader)
	dst = appendInt(append(dst, ','), "term", int64(st.Term))
	dst = appendInt(append(dst, ','), "applied", int64(st.Applied))
	dst = appendInt(append(dst, ','), "commit", int64(st.Commit))
	return appendInt(append(dst, ','), "lag", st.Lag.Milliseconds())
}
