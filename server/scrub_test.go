package server

import (
	"net/http"
	"testing"

	"queen/raftlog"
)

// What the scrub finds makes the node unwell, and is told in the status and the metrics; calls are served all the same.
func TestScrubIsTold(t *testing.T) {
	const damage = "the scrub has found damage in log/q1/x.seg"
	e := &fakeEngine{status: Status{Role: "leader", HasLeader: true}}
	s := newTestServer(t, e, nil)
	expect(t, ask(s, "GET", "/health", ""), http.StatusOK)
	expect(t, ask(s, "GET", "/status", ""), http.StatusOK, `"scrub":{"running":false,"passes":0,"findings":0,"damage":null,"lastPass":null}`)
	e.status.Scrub = raftlog.Scrubbed{Passes: 2, Findings: 1, Files: 9, Bytes: 5000, Rows: 70, Damage: damage,
		Last: raftlog.ScrubPass{Begun: 1_800_000_000_000_000, Ended: 1_800_000_060_000_000, Files: 4, Bytes: 2500, Rows: 35, Findings: 1}}
	expect(t, ask(s, "GET", "/health", ""), http.StatusServiceUnavailable, `"status":"settling"`, `"reason":"`+damage+`"`)
	expect(t, ask(s, "GET", "/status", ""), http.StatusOK, `"status":"ok"`, `"damage":"`+damage+`"`,
		`"lastPass":{"startedAt":"2027-01-15T08:00:00Z","endedAt":"2027-01-15T08:01:00Z","files":4,"bytes":2500,"rows":35,"findings":1}`)
	expect(t, ask(s, "GET", "/metrics/prometheus", ""), http.StatusOK, "queen_store_scrub_passes_total 2\n", "queen_store_scrub_findings_total 1\n",
		"queen_store_scrub_bytes_total 5000\n", "queen_store_scrub_rows_total 70\n", "queen_store_scrub_last_pass_timestamp_seconds 1.80000006e+09\n",
		"queen_store_scrub_last_pass_findings 1\n", "queen_store_scrub_damaged 1\n")
	e.status.Reason = "no leader is known" // what keeps it from serving goes first
	expect(t, ask(s, "GET", "/health", ""), http.StatusServiceUnavailable, `"reason":"no leader is known"`)
	e.status.Reason, e.status.Scrub.Damage = "", ""
	expect(t, ask(s, "GET", "/health", ""), http.StatusOK)
}
