package server

import (
	"context"
	runtimemetrics "runtime/metrics"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"queen/fsm"
)

// queueCollector reads the queues when it is scraped: those of the default tenant that come first by name, so that no number
// of queues makes a scrape grow without end. The others are counted.
type queueCollector struct{ s *Server }

const depthQueues = 200

var (
	depthDesc   = prometheus.NewDesc("queen_queue_depth", "Messages behind the slowest group.", []string{"queue"}, nil)
	leasedDesc  = prometheus.NewDesc("queen_queue_processing", "Of these, messages under a live lease.", []string{"queue"}, nil)
	retainDesc  = prometheus.NewDesc("queen_queue_messages", "Retained messages.", []string{"queue"}, nil)
	lettersDesc = prometheus.NewDesc("queen_dlq_depth_by_queue", "Dead letters.", []string{"queue"}, nil)
	popLagDesc  = prometheus.NewDesc("queen_queue_pop_lag_milliseconds", "Age of messages at their delivery, over the last minute that is over. Queues that delivered nothing are left out.", []string{"queue", "stat"}, nil)
	omittedDesc = prometheus.NewDesc("queen_queue_depth_truncated", "1 when there are more queues than are listed.", nil, nil)
	leftOutDesc = prometheus.NewDesc("queen_queue_series_left_out", "Queues, of all tenants, that have no series of their own here.", nil, nil)
	partsDesc   = prometheus.NewDesc("queen_consume_engine", "What delivery works on: parts are partitions.", []string{"kind"}, nil)
	objectsDesc = prometheus.NewDesc("queen_state_objects", "What the broker's state holds in memory.", []string{"kind"}, nil)
)

func (c *queueCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{depthDesc, leasedDesc, retainDesc, lettersDesc, popLagDesc, omittedDesc, leftOutDesc, partsDesc, objectsDesc} {
		ch <- d
	}
}

func gauge(ch chan<- prometheus.Metric, desc *prometheus.Desc, v float64, labels ...string) {
	ch <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, v, labels...)
}

func (c *queueCollector) Collect(ch chan<- prometheus.Metric) {
	look, ok := c.s.peekQueues(depthQueues)
	if !ok {
		return
	}
	omitted := 0.0
	if look.more {
		omitted = 1
	}
	gauge(ch, omittedDesc, omitted)
	gauge(ch, leftOutDesc, float64(look.counts.Queues-len(look.rows)))
	gauge(ch, partsDesc, float64(look.counts.Partitions), "parts")
	for _, o := range []struct {
		kind string
		n    int
	}{
		{"queues", look.counts.Queues}, {"partitions", look.counts.Partitions}, {"groups", look.counts.Groups},
		{"keys", look.counts.Keys}, {"timers", look.counts.Timers}, {"dead_letters", look.counts.DeadLetters},
	} {
		gauge(ch, objectsDesc, float64(o.n), o.kind)
	}
	listed := make(map[string]bool, len(look.rows))
	for i := range look.rows {
		q := &look.rows[i]
		listed[q.Name] = true
		label := strings.ToValidUTF8(q.Name, "\ufffd")
		gauge(ch, depthDesc, float64(q.Pending), label)
		gauge(ch, leasedDesc, float64(q.Processing), label)
		gauge(ch, retainDesc, float64(q.Total), label)
		gauge(ch, lettersDesc, float64(q.DeadLetters), label)
	}
	for i := range look.lags {
		l := &look.lags[i]
		var t fsm.Tally
		for j := range l.Points {
			t.Add(&l.Points[j].Tally)
		}
		if lags := lagsOf(&t); lags.Avg != nil && listed[l.Queue] {
			label := strings.ToValidUTF8(l.Queue, "\ufffd")
			gauge(ch, popLagDesc, *lags.Avg, label, "avg")
			gauge(ch, popLagDesc, *lags.Max, label, "max")
		}
	}
}

// queueLook is what a scrape sees of the queues.
type queueLook struct {
	rows   []fsm.QueueInfo
	more   bool
	lags   []fsm.QueueStats
	counts fsm.Counts
}

// peekQueues looks at queues for a scrape, which must not hang on a broker that decides nothing.
func (s *Server) peekQueues(limit int) (look queueLook, ok bool) {
	got := make(chan queueLook, 1)
	last := s.cfg.Clock().Add(-time.Minute).Truncate(time.Minute).UnixMicro()
	var page queueLook
	call := &fsm.Call{
		Tenant: defaultTenant,
		Body: &fsm.Read{Do: func(st *fsm.State) {
			page.rows, page.more = st.Queues(defaultTenant, "", limit)
			page.lags, _ = st.QueueStats(defaultTenant, &fsm.QueueFilter{Limit: limit}, &fsm.StatRange{Width: 1, From: last, To: last})
			page.counts = st.Counts()
		}},
		Done: func(err error) {
			if err == nil {
				got <- page
				return
			}
			close(got)
		},
	}
	if s.engine.Submit(call) != nil {
		return look, false
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	select {
	case look, ok = <-got:
		return look, ok
	case <-ctx.Done():
		return look, false
	}
}

// statusCollector tells what one look at the engine's status and at the process gives.
type statusCollector struct{ s *Server }

var (
	logBytesDesc = prometheus.NewDesc("queen_raft_log_storage", "Bytes of the log files of this node.", nil, nil)
	unsealedDesc = prometheus.NewDesc("queen_raft_log_unsealed_bytes", "Of these, bytes of files that are not sealed.", nil, nil)
	dedupDesc    = prometheus.NewDesc("queen_dedup_memory_bytes", "Memory of recent transactionIds.", nil, nil)
	oldestDesc   = prometheus.NewDesc("queen_raft_oldest_write_seconds", "How long the oldest write to the log that is not finished has been waited for.", nil, nil)
	leaderDesc   = prometheus.NewDesc("queen_raft_has_leader", "1 when this node knows a leader.", nil, nil)
	healthyDesc  = prometheus.NewDesc("queen_healthy", "1 when /health answers 200, but for its look at the disk.", nil, nil)
	residentDesc = prometheus.NewDesc("queen_process_resident_memory_bytes", "Resident memory of the process.", nil, nil)
	mallocDesc   = prometheus.NewDesc("queen_malloc_bytes", "Bytes of live and not yet swept objects of the heap.", nil, nil)
)

func (c *statusCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{logBytesDesc, unsealedDesc, dedupDesc, oldestDesc, leaderDesc, healthyDesc, residentDesc, mallocDesc} {
		ch <- d
	}
}

func (c *statusCollector) Collect(ch chan<- prometheus.Metric) {
	st := c.s.engine.Status()
	one := func(b bool) float64 {
		if b {
			return 1
		}
		return 0
	}
	gauge(ch, logBytesDesc, float64(st.LogBytes))
	gauge(ch, unsealedDesc, float64(st.UnsealedBytes))
	gauge(ch, dedupDesc, float64(st.DedupBytes))
	gauge(ch, oldestDesc, st.OldestWrite.Seconds())
	gauge(ch, leaderDesc, one(st.HasLeader))
	gauge(ch, healthyDesc, one(st.Reason == "" && !c.s.stopping.Load() && c.s.sick.Load() == nil))
	gauge(ch, residentDesc, float64(residentBytes()))
	gauge(ch, mallocDesc, float64(heapBytes()))
}

// heapBytes is what the heap's objects take; reading it stops nothing.
func heapBytes() uint64 {
	sample := []runtimemetrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	runtimemetrics.Read(sample)
	if sample[0].Value.Kind() != runtimemetrics.KindUint64 {
		return 0
	}
	return sample[0].Value.Uint64()
}
