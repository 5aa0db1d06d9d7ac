package server

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"queen/fsm"
	"queen/internal/vfs"
)

// families scrapes and parses.
func families(t *testing.T, status int, body string) map[string]*dto.MetricFamily {
	t.Helper()
	if status != http.StatusOK {
		t.Fatalf("status %d", status)
	}
	p := expfmt.NewTextParser(model.LegacyValidation)
	all, err := p.TextToMetricFamilies(strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// busyFamilies are those of a broker that has done something of everything.
func busyFamilies(t *testing.T) map[string]*dto.MetricFamily {
	b := startBroker(t, vfs.NewMem(1))
	for _, c := range [][3]string{
		{"POST", "/api/v1/push", `{"items":[{"queue":"orders","partition":"p","transactionId":"m1","payload":1}]}`},
		{"GET", "/api/v1/pop/queue/orders?consumerGroup=g&subscriptionMode=all", ""},
		{"POST", "/api/v1/kv", `{"operations":[{"op":"put","ns":"n","key":"k","value":1,"forever":true}]}`},
		{"GET", "/api/v1/nothing", ""},
	} {
		b.do(c[0], c[1], c[2])
	}
	status, body := b.do("GET", "/metrics/prometheus", "")
	return families(t, status, string(body))
}

// The names of the output follow the conventions, but for those that clients of the same API know already.
func TestMetricsLint(t *testing.T) {
	all := busyFamilies(t)
	known := regexp.MustCompile(`^queen_queue_pop_lag_milliseconds$`)
	for name, f := range all {
		problems, err := promlint.NewWithMetricFamilies([]*dto.MetricFamily{f}).Lint()
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range problems {
			if strings.HasPrefix(name, "queen_") && !known.MatchString(name) {
				t.Errorf("%s: %s", p.Metric, p.Text)
			}
		}
		if f.GetHelp() == "" {
			t.Errorf("%s has no help", name)
		}
		if f.GetType() == dto.MetricType_HISTOGRAM {
			if n := len(f.Metric[0].Histogram.Bucket); strings.HasPrefix(name, "queen_") && (n < 8 || n > 24) {
				t.Errorf("%s has %d buckets", name, n)
			}
		}
	}
	for _, name := range []string{
		"queen_uptime_seconds", "queen_process_resident_memory_bytes", "queen_malloc_bytes", "queen_parked_long_polls",
		"queen_process_push_requests_total", "queen_process_pop_requests_total", "queen_process_ack_requests_total",
		"queen_process_push_messages_total", "queen_process_pop_messages_total", "queen_process_ack_messages_total",
		"queen_raft_index", "queen_raft_inflight", "queen_raft_log_storage", "queen_raft_storage_full", "queen_raft_slow_commands_total",
		"queen_raft_admit_bytes", "queen_raft_admit_waiting", "queen_raft_admit_total", "queen_dlq_depth_by_queue",
		"queen_consume_engine", "queen_kv_ops_total", "queen_kv_read_rejected_total", "queen_raft_group_bytes",
	} {
		if all[name] == nil {
			t.Errorf("no %s", name)
		}
	}
	if n := all["queen_process_push_requests_total"].Metric[0].Counter.GetValue(); n != 1 {
		t.Errorf("%v push calls, want 1", n)
	}
}

// The dashboard and the alerts name only metrics that there are.
func TestDeployUsesWhatThereIs(t *testing.T) {
	all := busyFamilies(t)
	// These need a minute that is over, or a call that was refused.
	known := map[string]bool{"queen_queue_pop_lag_milliseconds": true}
	names := regexp.MustCompile(`queen_[a-z0-9_]+`)
	for _, file := range []string{"../deploy/prometheus/alerts.yml", "../deploy/grafana/queen.json"} {
		data, err := os.ReadFile(filepath.FromSlash(file))
		if err != nil {
			t.Fatal(err)
		}
		found := names.FindAllString(string(data), -1)
		if len(found) < 10 {
			t.Errorf("%s names %d metrics", file, len(found))
		}
		for _, name := range found {
			base := strings.TrimSuffix(strings.TrimSuffix(strings.TrimSuffix(name, "_bucket"), "_count"), "_sum")
			if all[name] == nil && all[base] == nil && !known[name] {
				t.Errorf("%s uses %s, which the broker does not have", file, name)
			}
		}
		if strings.HasSuffix(file, ".json") {
			var board struct {
				Panels []struct{ Targets []struct{ Expr string } }
			}
			if err := json.Unmarshal(data, &board); err != nil || len(board.Panels) < 10 || board.Panels[0].Targets[0].Expr == "" {
				t.Errorf("%s: %v, %d panels", file, err, len(board.Panels))
			}
		}
	}
}

// A scrape of 100,000 queues lists a bounded number, says how many it left out, and looks at no more on the loop.
func TestScrapeOfManyQueues(t *testing.T) {
	const queues = 100_000
	m := fsm.New(fsm.Config{})
	m.Lead(1)
	now := int64(1_800_000_000_000_000)
	for from := 0; from < queues; from += 10_000 {
		var calls []*fsm.Call
		for i := range 10_000 {
			calls = append(calls, &fsm.Call{Tenant: defaultTenant, Body: &fsm.Configure{Queue: fmt.Sprintf("q%06d", from+i)}, Done: func(error) {}})
		}
		for more := true; more; {
			now++
			p := m.Plan(now, calls)
			calls, more = nil, p.More
		}
	}
	var held time.Duration
	e := &fakeEngine{t: t, decide: func(c *fsm.Call) error {
		begun := time.Now()
		c.Body.(*fsm.Read).Do(m.View())
		held = max(held, time.Since(begun))
		return nil
	}}
	s := newTestServer(t, e, nil)
	rec := ask(s, "GET", "/metrics/prometheus", "")
	all := families(t, rec.Code, rec.Body.String())
	if n := len(all["queen_queue_depth"].Metric); n != depthQueues {
		t.Errorf("%d queues are listed, want %d", n, depthQueues)
	}
	if n := all["queen_queue_series_left_out"].Metric[0].Gauge.GetValue(); n != queues-depthQueues {
		t.Errorf("%v queues left out, want %d", n, queues-depthQueues)
	}
	if n := rec.Body.Len(); n > 1<<20 {
		t.Errorf("a scrape of %d bytes", n)
	}
	t.Logf("the longest read held the loop for %v", held)
	// Listings page through all of them: the first pages, and the last ones.
	seen := 0
	for offset := 0; ; offset += maxPage {
		if offset == 3*maxPage {
			offset = queues - 3*maxPage
			seen = offset
		}
		rec := ask(s, "GET", fmt.Sprintf("/api/v1/status/queues?limit=%d&offset=%d", maxPage, offset), "")
		var page struct {
			Queues     []struct{ Name string }
			Pagination pagination
		}
		if err := json.Unmarshal(rec.Body.Bytes(), &page); err != nil {
			t.Fatal(err)
		}
		seen += len(page.Queues)
		if !page.Pagination.HasMore {
			break
		}
	}
	if seen != queues {
		t.Errorf("%d queues on all pages, want %d", seen, queues)
	}
	var o overview
	if err := json.Unmarshal(ask(s, "GET", "/api/v1/resources/overview", "").Body.Bytes(), &o); err != nil || o.Queues != queues {
		t.Errorf("an overview of %d queues, %v", o.Queues, err)
	}
}
