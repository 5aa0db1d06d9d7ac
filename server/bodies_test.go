package server

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"queen/fsm"
)

// bodyRoutes are the routes that read a body, with one that is good for each.
var bodyRoutes = []struct{ method, target, good string }{
	{"POST", "/api/v1/push", `{"items":[{"queue":"q","partition":"p","transactionId":"t","payload":{"a":[1,2.5e3,"\u00e9\ud83d\ude00"]}},{"queue":"q","payload":null}]}`},
	{"POST", "/api/v1/ack", `{"transactionId":"t","partitionId":"31","consumerGroup":"g","leaseId":"019a2f40-6c11-7aa0-9d52-3b7e90c1f204","status":"failed","error":"e","delayMs":5}`},
	{"POST", "/api/v1/ack/batch", `{"consumerGroup":"g","acknowledgments":[{"transactionId":"t","partitionId":"31"},{"transactionId":"u","partitionId":"31","leaseId":""}]}`},
	{"POST", "/api/v1/transaction", `{"operations":[{"type":"ack","transactionId":"t","partitionId":"31"},{"items":[{"queue":"q","data":1}],"type":"push"},{"type":"push","queue":"q","payload":1,"traceId":"x"}],"requiredLeases":["a"],"kv":[{"op":"put","ns":"n","key":"k","value":1,"ttlSeconds":5},{"op":"check","ns":"n","key":"k","expect":0,"required":true}],"timers":[{"op":"schedule","queue":"q","timerKey":"k","delayMs":1.5,"payload":"MQ=="}],"positions":[{"queue":"q","consumerGroup":"g","offset":null}]}`},
	{"POST", "/api/v1/kv", `{"operations":[{"op":"get","ns":"n","key":"k"},{"op":"getMany","ns":"n","keys":["a","b"]},{"op":"getPrefix","ns":"n","prefix":"p","limit":5,"keysOnly":true},{"op":"incr","ns":"n","key":"c","delta":1,"min":0,"max":9,"forever":true},{"op":"delete","ns":"n","key":"d","expect":4}]}`},
	{"PUT", "/api/v1/kv/n/k", `{"value":{"a" : 1},"forever":true,"expect":0}`},
	{"DELETE", "/api/v1/kv/n/k", `{"expect":3,"required":true}`},
	{"POST", "/api/v1/timers", `[{"op":"schedule","queue":"q","timerKey":"k","delayMs":1,"payload":"bm90IGpzb24="},{"op":"cancel","queue":"q","timerKey":"l","txn":"x"}]`},
	{"POST", "/api/v1/configure", `{"queue":"q","mode":"replace","namespace":"n","options":{"leaseTime":5,"retryLimit":null,"deadLetterQueue":false,"x":1}}`},
	{"POST", "/api/v1/lease/019a2f40-6c11-7aa0-9d52-3b7e90c1f204/extend", `{"seconds":90}`},
	{"POST", "/api/v1/dlq/019a2f40-6c11-7aa0-9d52-3b7e90c1f204/replay", `{"queue":" q ","partition":"p"}`},
	{"POST", "/api/v1/fetch", `{"entries":[{"queue":"q","partition":7,"offset":0,"maxBytes":10}],"maxWaitMs":0,"minBytes":null}`},
	{"POST", "/api/v1/fetch/offsets", `{"entries":[{"queue":"q","timestamp":"2026-01-01T00:00:00Z"},{"queue":"q","partition":"p","timestamp":1700000000000}]}`},
	{"POST", "/api/v1/partitions/changed", `{"entries":[{"queue":"q","since":"2026-01-01T00:00:00Z","limit":5},{"queue":"q","since":null,"after":"x"}]}`},
	{"POST", "/api/v1/traces", `{"partitionId":"31","transactionId":"t","data":{"a":[1]},"traceNames":["x","\u00e9"],"eventType":"e","consumerGroup":"g"}`},
	{"POST", "/api/v1/dlq/redrive", `{"queue":"q","consumerGroup":"g","errorContains":"e","from":"2026-01-01T00:00:00Z","to":"2027-01-01T00:00:00Z","destination":{"queue":"d","partition":"p"},"limit":5,"ratePerSecond":9,"dryRun":false}`},
	{"POST", "/api/v1/locks", `{"operations":[{"op":"acquire","name":"l","ttlSeconds":5,"owner":"o","limit":2},{"op":"renew","name":"m","token":3,"slot":1,"ttlSeconds":5},{"op":"release","name":"n","token":3},{"op":"get","name":"o"}]}`},
	{"POST", "/api/v1/resources/kv/list", `{"namespace":"n","prefix":"p","after":"a","limit":5,"keysOnly":true,"includeExpired":false}`},
	{"POST", "/api/v1/system/kv-timers", `{"kv":true,"timersSchedule":true,"timersFire":false}`},
	{"POST", "/api/v1/consumer-groups/positions", `{"consumerGroup":"g","entries":[{"queue":"q","partition":"p"},{"queue":"q"}]}`},
	{"POST", "/api/v1/consumer-groups/g/subscription", `{"subscriptionTimestamp":"2026-01-01T00:00:00Z"}`},
	{"POST", "/api/v1/consumer-groups/g/queues/q/seek", `{"timestamp":"2026-01-01T00:00:00Z"}`},
	{"POST", "/api/v1/consumer-groups/g/queues/q/partitions/p/seek", `{"offset":3}`},
	{"POST", "/api/v1/ack", `{"transactionId":"t","partitionId":"31","next":{"queue":"q","consumerGroup":"g","partition":"p","batch":3,"partitions":1,"leaseSeconds":9,"subscriptionMode":"all","wait":false,"timeout":10}}`},
}

// settle makes a fake engine answer every call with a plain success.
func settle(c *fsm.Call) error {
	switch b := c.Body.(type) {
	case *fsm.Push:
		for i := range b.Items {
			b.Items[i].Status = fsm.Queued
		}
	case *fsm.ReplayDeadLetter:
		b.Outcome = "gone"
	case *fsm.Redrive:
		b.Outcome = "started"
	case *fsm.Timers:
		for i := range b.Ops {
			b.Ops[i].Status = "absent"
		}
	}
	return nil
}

// checkBody sends one body to one route: whatever it is, the answer is one of
// those that the contract has, its body is JSON, and a refused body reaches no
// planner.
func checkBody(t *testing.T, s *Server, e *fakeEngine, route int, body string) {
	t.Helper()
	rt := bodyRoutes[route]
	before := len(e.submitted())
	req := httptest.NewRequest(rt.method, rt.target, strings.NewReader(body))
	rec := httptest.NewRecorder()
	s.Handler().ServeHTTP(rec, req)
	switch rec.Code {
	case 200, 201, 202, 400, 403, 404, 413:
	default:
		t.Fatalf("%s %q: status %d %s", rt.target, body, rec.Code, rec.Body)
	}
	if !json.Valid(rec.Body.Bytes()) {
		t.Fatalf("%s %q: answer is no JSON: %q", rt.target, body, rec.Body)
	}
	if rec.Header().Get("Content-Type") != "application/json" {
		t.Fatalf("%s %q: content type %q", rt.target, body, rec.Header().Get("Content-Type"))
	}
	if rec.Code >= 400 && rec.Code != http.StatusNotFound && len(e.submitted()) != before {
		t.Fatalf("%s %q: refused with %d and planned all the same", rt.target, body, rec.Code)
	}
}

func TestBadBodies(t *testing.T) {
	e := &fakeEngine{decide: settle}
	s := newTestServer(t, e, nil)
	bad := []string{"", " ", "null", "true", "0", `""`, "[]", "{}", "[[]]", "[null]", `{"items":null}`, `{"items":[1]}`, `{"operations":{}}`, "{", `{"a":`,
		"\xff\xfe", "\"\xc3\x28\"", strings.Repeat("[", 100_000), strings.Repeat(`{"a":`, 10_000) + "1" + strings.Repeat("}", 10_000), `{"items":[{"queue":"q","payload":1}]} x`}
	for i, rt := range bodyRoutes {
		rec := ask(s, rt.method, rt.target, rt.good)
		if rec.Code >= 400 && rec.Code != http.StatusNotFound {
			t.Errorf("%s: the good body got %d %s", rt.target, rec.Code, rec.Body)
		}
		for _, body := range bad {
			checkBody(t, s, e, i, body)
		}
		// Every cut and every flipped byte of a good body.
		for at := range rt.good {
			checkBody(t, s, e, i, rt.good[:at])
			checkBody(t, s, e, i, rt.good[:at]+string(rt.good[at]^0x11)+rt.good[at+1:])
		}
	}
}

func FuzzBodies(f *testing.F) {
	for i, rt := range bodyRoutes {
		f.Add(uint8(i), rt.good)
	}
	e := &fakeEngine{decide: settle}
	s := newTestServer(f, e, nil)
	f.Fuzz(func(t *testing.T, route uint8, body string) {
		e.mu.Lock()
		e.mu.calls = nil
		e.mu.Unlock()
		checkBody(t, s, e, int(route)%len(bodyRoutes), body)
	})
}

func TestParseOrderOfTransaction(t *testing.T) {
	e := &fakeEngine{decide: settle}
	s := newTestServer(t, e, nil)
	long := strings.Repeat("n", 500)
	for _, c := range []struct {
		body   string
		status int
		parts  []string
	}{
		// Each body has every later problem too; the earliest decides.
		{`{"operations":[{"type":"x"},{"type":"push","queue":"` + long + `","payload":1}],"kv":[1],"timers":[1]}`, 400, []string{`"reason":"bad_request"`, onlyPushAndAck}},
		{`{"operations":[{"type":"push","queue":"` + long + `","payload":1}],"kv":[1],"timers":[1]}`, 413, []string{`"code":"name_too_long"`}},
		{`{"timers":[1],"kv":[{"op":"nope"}],"operations":[{"type":"ack","transactionId":"t","partitionId":"1"}]}`, 400, []string{`"reason":"kv_unknown_op"`}},
		{`{"timers":[{"op":"schedule","_x":1}],"positions":[{}]}`, 400, []string{`"reason":"timers_server_owned_field"`}},
		{`{"positions":[{"queue":"q"}]}`, 200, []string{`"success":false`, `"reason":"bad_request"`}},
		{`{"operations":[{"type":"push","items":[]}]}`, 200, []string{`"reason":"bad_request"`}},
		{`{"operations":[{"type":"push","queue":"q"}]}`, 200, []string{`"reason":"bad_request"`}},
		{`{"operations":[{"type":"push","items":[{"queue":"q"}]}]}`, 400, []string{`"reason":"bad_request"`}},
		{`{"operations":[{"type":"push","queue":"q","payload":1,"transactionId":"` + strings.Repeat("t", 65536) + `"}]}`, 400, []string{`"code":"bad_request"`}},
		{`{"operations":[{"type":"ack","transactionId":"t","partitionId":"x1"}]}`, 200, []string{`"reason":"bad_request"`}},
		{`{"operations":null,"kv":[{"op":"get","ns":"a","key":"b"}]}`, 400, []string{`"reason":"bad_request"`}},
		{`{"operations":[],"kv":null,"timers":null,"positions":null,"requiredLeases":null}`, 200, []string{`"reason":"bad_request"`}},
	} {
		rec := ask(s, "POST", "/api/v1/transaction", c.body)
		expect(t, rec, c.status, c.parts...)
	}
	if n := len(e.submitted()); n != 0 {
		t.Errorf("%d refused transactions were planned", n)
	}
	expect(t, ask(s, "POST", "/api/v1/transaction?dryRun=maybe", `{"operations":[{"type":"push","queue":"q","payload":1}]}`), 400)
	if n := len(e.submitted()); n != 0 {
		t.Error("a call that may be a dry run was planned")
	}
	expect(t, ask(s, "POST", "/api/v1/transaction?dryRun=true", `{"operations":[{"type":"push","queue":"q","payload":1}]}`), 200, `"dryRun":true`)
}

// TestLeaseResolution is the table of the contract's section on how an ack
// finds its lease.
func TestLeaseResolution(t *testing.T) {
	const l1, l2 = "019a2f40-6c11-7aa0-9d52-3b7e90c1f201", "019a2f40-6c11-7aa0-9d52-3b7e90c1f202"
	for _, c := range []struct {
		required, other []string
		want            string // lease of an ack that names none; empty: none
	}{
		{[]string{l1}, nil, l1},
		{[]string{l1}, []string{l2}, l1},
		{[]string{l1, l1}, nil, l1},
		{[]string{l1, strings.ToUpper(l1)}, nil, l1},
		{[]string{l1, l2}, nil, ""},
		{[]string{l1, l2}, []string{l1}, ""},
		{nil, []string{l1}, l1},
		{[]string{""}, []string{l1}, l1},
		{nil, []string{l1, l2}, ""},
		{nil, []string{l1, l1}, l1},
		{nil, nil, ""},
	} {
		var got fsm.AckItem
		e := &fakeEngine{decide: func(c *fsm.Call) error {
			acks := c.Body.(*fsm.Txn).Acks // reused once the call is answered
			got = acks[len(acks)-1]
			return nil
		}}
		s := newTestServer(t, e, nil)
		required, _ := json.Marshal(c.required)
		var ops []string
		for _, o := range c.other {
			ops = append(ops, `{"type":"ack","transactionId":"o","partitionId":"1","leaseId":"`+o+`"}`)
		}
		ops = append(ops, `{"type":"ack","transactionId":"t","partitionId":"1","leaseId":null}`)
		body := `{"requiredLeases":` + string(required) + `,"operations":[` + strings.Join(ops, ",") + `]}`
		expect(t, ask(s, "POST", "/api/v1/transaction", body), 200)
		want, _ := parseID(c.want)
		if got.HasLease != (c.want != "") || got.LeaseID != want {
			t.Errorf("%v %v: has %v %x", c.required, c.other, got.HasLease, got.LeaseID)
		}
	}
}
