package conformance

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
)

func startBroker(t *testing.T) *Broker {
	t.Helper()
	b, err := Start(nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	return b
}

// TestPushToWaitingPop: between a push and the answer of the consumer that
// waited for it the commit index and the number of fsyncs rise by exactly one.
func TestPushToWaitingPop(t *testing.T) {
	t.Parallel()
	b := startBroker(t)
	r := &run{t: t, broker: b, vars: map[string]string{}, pending: map[string]*pendingCall{}}
	for round := range 20 {
		if err := r.begin("w", &request{method: "GET", path: "/api/v1/pop/queue/q?wait=true&timeout=30000&commitOnDelivery=true"}); err != nil {
			t.Fatal(err)
		}
		if err := b.AwaitParked(1); err != nil {
			t.Fatal(err)
		}
		// The pop has registered its group: that entry is not the push's.
		if err := b.Settle(); err != nil {
			t.Fatal(err)
		}
		before, syncs := mustState(t, b), b.Syncs()
		if err := r.push([]string{"q", fmt.Sprintf("m%d", round)}); err != nil {
			t.Fatal(err)
		}
		if err := r.end("w", &want{status: "200", body: `{"messages": [{"transactionId": "m` + fmt.Sprint(round) + `", ...}], ...}`}); err != nil {
			t.Fatal(err)
		}
		after := mustState(t, b)
		if after.Commit != before.Commit+1 {
			t.Errorf("round %d: the commit index rose by %d, expected 1", round, after.Commit-before.Commit)
		}
		// The first round also creates, and syncs, the queue's log.
		if n := b.Syncs() - syncs; round > 0 && n != 1 {
			t.Errorf("round %d: %d fsyncs, expected 1", round, n)
		}
	}
}

func mustState(t *testing.T, b *Broker) State {
	t.Helper()
	s, err := b.State()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestDisconnect closes the connection after every byte of a request: what was
// not sent whole changes nothing, and what was is done whole or not at all.
func TestDisconnect(t *testing.T) {
	t.Parallel()
	b := startBroker(t)
	request := func(n int) string {
		body := fmt.Sprintf(`{"operations":[{"type":"push","queue":"a","transactionId":"m%[1]d","payload":1},`+
			`{"type":"push","queue":"b","transactionId":"m%[1]d","payload":1}],"kv":[{"op":"incr","ns":"t","key":"n","delta":1,"forever":true}]}`, n)
		return fmt.Sprintf("POST /api/v1/transaction HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	}
	whole := request(100)
	before := mustState(t, b)
	for cut := 0; cut < len(whole); cut += 7 {
		sendAndLeave(t, b, whole[:cut])
	}
	if err := b.Settle(); err != nil {
		t.Fatal(err)
	}
	if after := mustState(t, b); after != before {
		t.Fatalf("requests that were cut off changed the state: before %+v, after %+v", before, after)
	}
	const calls = 50
	for n := range calls {
		sendAndLeave(t, b, request(n+100))
	}
	checkWhole(t, b, calls)
}

func sendAndLeave(t *testing.T, b *Broker, text string) {
	t.Helper()
	conn, err := net.Dial("tcp", b.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, text); err != nil {
		t.Fatal(err)
	}
}

// checkWhole counts what came of the calls whose callers left: as many messages
// in either queue as the counter says.
func checkWhole(t *testing.T, b *Broker, calls int) {
	t.Helper()
	// A call may still be on its way: its handler started late. The server has
	// read all of them when it has shut down.
	if err := b.Restart(nil); err != nil {
		t.Fatal(err)
	}
	counts := map[string]int{}
	for _, q := range []string{"a", "b"} {
		a, err := b.Do(t.Context(), "GET", "/api/v1/pop/queue/"+q+"?batch=1000", http.Header{}, nil)
		if err != nil {
			t.Fatal(err)
		}
		counts[q] = strings.Count(string(a.Body), `"deliveryAttempt"`)
	}
	r := &run{t: t, broker: b, vars: map[string]string{}}
	want := fmt.Sprint(counts["a"])
	if counts["a"] == 0 {
		want = "absent"
	}
	if counts["a"] != counts["b"] || counts["a"] > calls {
		t.Errorf("queue a holds %d, queue b %d messages of %d calls", counts["a"], counts["b"], calls)
	}
	if err := r.kv([]string{"t", "n"}, want); err != nil {
		t.Error(err)
	}
	t.Logf("%d of %d calls whose callers left were carried out", counts["a"], calls)
}

// TestB49AcksOfClientsThatLeave: acks of a batch whose sender closes its
// connection without reading the answer. They hold or they do not, never half of
// them, and nothing else goes wrong.
func TestB49AcksOfClientsThatLeave(t *testing.T) {
	t.Parallel()
	b := startBroker(t)
	r := &run{t: t, broker: b, vars: map[string]string{}, pending: map[string]*pendingCall{}}
	const calls = 20
	for n := range calls {
		q := fmt.Sprintf("q%d", n)
		if err := r.push([]string{q, "m1..m3"}); err != nil {
			t.Fatal(err)
		}
		if err := r.pop([]string{q}, []string{"m1..m3", "lease=L", "partition=P"}); err != nil {
			t.Fatal(err)
		}
		item := func(id string) string {
			return fmt.Sprintf(`{"transactionId":%q,"partitionId":%q,"leaseId":%q,"status":"completed"}`, id, r.vars["P"], r.vars["L"])
		}
		body := `{"acknowledgments":[` + item("m1") + "," + item("m3") + "," + item("unknown") + `]}`
		sendAndLeave(t, b, fmt.Sprintf("POST /api/v1/ack/batch HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(body), body))
	}
	// A call may still be on its way: the server has read all of them when it has
	// shut down.
	if err := b.Restart(nil); err != nil {
		t.Fatal(err)
	}
	held := 0
	for n := range calls {
		a, err := b.Do(t.Context(), "GET", fmt.Sprintf("/api/v1/resources/queues/q%d/depth", n), http.Header{}, nil)
		if err != nil {
			t.Fatal(err)
		}
		var depth struct{ Pending, Processing int }
		if err := json.Unmarshal(a.Body, &depth); err != nil {
			t.Fatalf("%v in %s", err, a.Body)
		}
		// An ack of m3, which ends the batch, settles m2 too.
		if depth.Pending != 0 && depth.Pending != 3 || depth.Processing != depth.Pending {
			t.Errorf("queue %d: %+v, want that all or nothing is settled", n, depth)
		}
		if depth.Pending == 0 {
			held++
		}
	}
	t.Logf("%d of %d acks whose senders left were carried out", held, calls)
}
