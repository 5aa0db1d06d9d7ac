package conformance

import (
	"fmt"
	"testing"
)

// TestNextIsOneCommit: a step with the claim of the next batch is one entry and
// one sync, with and without a key.
func TestNextIsOneCommit(t *testing.T) {
	t.Parallel()
	b := startBroker(t)
	r := &run{t: t, broker: b, vars: map[string]string{}, pending: map[string]*pendingCall{}}
	var ids []string
	for i := range 13 {
		ids = append(ids, fmt.Sprintf("m%d", i))
	}
	if err := r.push(append([]string{"q"}, ids...)); err != nil {
		t.Fatal(err)
	}
	step := func(method, path, body string, headers []string, answer string) {
		t.Helper()
		st := &step{verb: "request", request: &request{method: method, path: path, body: body, headers: headers}}
		st.want = &want{status: "200", body: answer}
		if _, err := r.requestOnce(st); err != nil {
			t.Fatal(err)
		}
	}
	step("GET", "/api/v1/pop/queue/q?batch=1&consumerGroup=g&subscriptionMode=all", "", nil, `{"leaseId": <uuid as L>, "partitionId": <digits as P>, ...}`)
	if err := b.Settle(); err != nil {
		t.Fatal(err)
	}
	for i := range 12 {
		before, syncs := mustState(t, b), b.Syncs()
		var headers []string
		if i%2 == 1 {
			headers = []string{fmt.Sprintf("Idempotency-Key: s%d", i)}
		}
		ack := fmt.Sprintf(`{"transactionId": "m%d", "partitionId": "${P}", "consumerGroup": "g", "leaseId": "${L}"`, i)
		next := fmt.Sprintf(`"next": {"leaseId": <uuid as L>, "messages": [{"transactionId": "m%d", ...}], ...}`, i+1)
		if i%3 == 2 {
			step("POST", "/api/v1/ack", ack+`, "next": {"queue": "q", "consumerGroup": "g", "batch": 1}}`, headers, `{"results": [{"success": true, ...}], `+next+`}`)
		} else {
			step("POST", "/api/v1/transaction", `{"operations": [`+ack+`, "type": "ack"}], "kv": [{"op": "put", "ns": "t", "key": "k", "value": 1, "forever": true}],
				"next": {"queue": "q", "consumerGroup": "g", "batch": 1}}`, headers, `{"success": true, `+next+`, ...}`)
		}
		if after := mustState(t, b); after.Commit != before.Commit+1 {
			t.Errorf("step %d: the commit index rose by %d, expected 1", i, after.Commit-before.Commit)
		}
		if n := b.Syncs() - syncs; n > 1 {
			t.Errorf("step %d: %d syncs, expected 1", i, n)
		}
	}
}
