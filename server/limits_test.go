package server

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"queen/fsm"
	"queen/internal/vfs"
)

// limited is a broker whose disk outlives it.
type limited struct {
	*broker
	fs *vfs.Mem
}

func startLimited(t *testing.T) *limited {
	fs := vfs.NewMem(1)
	return &limited{startBroker(t, fs), fs}
}

// restart reads the state's digest, and that of another broker on what a kill
// would leave.
func (b *limited) restart(t *testing.T) *broker {
	t.Helper()
	want, _, err := b.b.Digest()
	if err != nil {
		t.Fatal(err)
	}
	eng, err := Open(StorageConfig{FS: b.fs.Clone(), Dir: "data", NodeID: 1, Planner: fsm.Config{}, Fatal: func(err error) { t.Error(err) }})
	if err != nil {
		t.Fatal(err)
	}
	got, _, err := eng.Digest()
	if err != nil || got != want {
		t.Errorf("after a restart the state is %x, it was %x (%v)", got, want, err)
	}
	return serveBroker(t, eng)
}

// B56: every string field at its limits, and with everything that might be
// special in it: it works or it is refused with a body that parses, and what was
// taken can be applied again by a restart.
func TestB56StringFields(t *testing.T) {
	b := startLimited(t)
	fields := map[string]struct{ method, path, body string }{
		"queue of a push":          {"POST", "/api/v1/push", `{"items":[{"queue":%s,"payload":1}]}`},
		"partition of a push":      {"POST", "/api/v1/push", `{"items":[{"queue":"q","partition":%s,"payload":1}]}`},
		"transactionId of a push":  {"POST", "/api/v1/push", `{"items":[{"queue":"q","transactionId":%s,"payload":1}]}`},
		"traceId of a push":        {"POST", "/api/v1/push", `{"items":[{"queue":"q","traceId":%s,"payload":1}]}`},
		"payload of a push":        {"POST", "/api/v1/push", `{"items":[{"queue":"q","payload":%s}]}`},
		"queue of a configure":     {"POST", "/api/v1/configure", `{"queue":%s}`},
		"namespace of a configure": {"POST", "/api/v1/configure", `{"queue":"q","options":{"namespace":%s}}`},
		"task of a configure":      {"POST", "/api/v1/configure", `{"queue":"q","options":{"task":%s}}`},
		"namespace of a key":       {"POST", "/api/v1/kv", `{"operations":[{"op":"put","ns":%s,"key":"k","value":1,"forever":true}]}`},
		"key":                      {"POST", "/api/v1/kv", `{"operations":[{"op":"put","ns":"n","key":%s,"value":1,"forever":true}]}`},
		"value":                    {"POST", "/api/v1/kv", `{"operations":[{"op":"put","ns":"n","key":"k","value":%s,"forever":true}]}`},
		"queue of a timer":         {"POST", "/api/v1/timers", `{"operations":[{"op":"schedule","queue":%s,"timerKey":"k","delayMs":1,"payload":"MQ=="}]}`},
		"key of a timer":           {"POST", "/api/v1/timers", `{"operations":[{"op":"schedule","queue":"q","timerKey":%s,"delayMs":1,"payload":"MQ=="}]}`},
		"partition of a timer":     {"POST", "/api/v1/timers", `{"operations":[{"op":"schedule","queue":"q","timerKey":"k","partition":%s,"delayMs":1,"payload":"MQ=="}]}`},
		"txn of a timer":           {"POST", "/api/v1/timers", `{"operations":[{"op":"schedule","queue":"q","timerKey":"k","txn":%s,"delayMs":1,"payload":"MQ=="}]}`},
		"transactionId of an ack":  {"POST", "/api/v1/ack", `{"transactionId":%s,"partitionId":"1"}`},
		"partitionId of an ack":    {"POST", "/api/v1/ack", `{"transactionId":"t","partitionId":%s}`},
		"group of an ack":          {"POST", "/api/v1/ack", `{"transactionId":"t","partitionId":"1","consumerGroup":%s}`},
		"lease of an ack":          {"POST", "/api/v1/ack", `{"transactionId":"t","partitionId":"1","leaseId":%s}`},
		"status of an ack":         {"POST", "/api/v1/ack", `{"transactionId":"t","partitionId":"1","status":%s}`},
		"error of an ack":          {"POST", "/api/v1/ack", `{"transactionId":"t","partitionId":"1","status":"failed","error":%s}`},
		"queue in a transaction":   {"POST", "/api/v1/transaction", `{"operations":[{"type":"push","queue":%s,"payload":1}]}`},
		"key in a transaction":     {"POST", "/api/v1/transaction", `{"kv":[{"op":"put","ns":"n","key":%s,"value":1,"forever":true}]}`},
		"timer in a transaction":   {"POST", "/api/v1/transaction", `{"timers":[{"op":"schedule","queue":"q","timerKey":%s,"delayMs":1,"payload":"MQ=="}]}`},
		"required lease":           {"POST", "/api/v1/transaction", `{"operations":[{"type":"push","queue":"q","payload":1}],"requiredLeases":[%s]}`},
		"group of a pop":           {"GET", "/api/v1/pop/queue/q?consumerGroup=%s", ""},
		"queue of a pop":           {"GET", "/api/v1/pop/queue/%s", ""},
		"start of a pop":           {"GET", "/api/v1/pop/queue/q?consumerGroup=s&subscriptionFrom=%s", ""},
		"queue of a detail":        {"GET", "/api/v1/resources/queues/%s", ""},
		"queue of a delete":        {"DELETE", "/api/v1/resources/queues/%s", ""},
		"lease of an extension":    {"POST", "/api/v1/lease/%s/extend", ""},
		"dead letter":              {"POST", "/api/v1/dlq/%s/replay", ""},
		"partition of a retry":     {"POST", "/api/v1/messages/%s/t/retry", ""},
		"transactionId of a retry": {"POST", "/api/v1/messages/1/%s/retry", ""},
		"key of a path":            {"PUT", "/api/v1/kv/n/%s", `{"value":1,"forever":true}`},
	}
	texts := []string{"", "\x00", "a\x00b", "/", "..", "../../etc/passwd", `"`, `\`, "'", "\U0001F4E6", "\u2028", "e\u0301", "%2F", "%zz", " ", "\n", "#", "{}"}
	for _, n := range []int{1, 127, 128, 129, 255, 256, 409, 410, 411, 412, 474, 475, 476, 511, 512, 513, 4095, 4096, 4097, 65534, 65535, 65536} {
		texts = append(texts, strings.Repeat("x", n))
	}
	if !testing.Short() {
		texts = append(texts, strings.Repeat("\u00e9", 1<<19))
	}
	for name, f := range fields {
		for _, text := range texts {
			path, body := f.path, f.body
			if body == "" || strings.Contains(path, "%s") {
				if len(text) > 1<<16 {
					continue // the HTTP package refuses such a head by itself
				}
				path = fmt.Sprintf(path, url.PathEscape(text))
			} else {
				quoted, err := json.Marshal(text)
				if err != nil {
					t.Fatal(err)
				}
				body = fmt.Sprintf(body, quoted)
			}
			status, answer := b.do(f.method, path, body)
			if status >= 500 || status != http.StatusNoContent && !json.Valid(answer) {
				t.Errorf("%s of %d bytes (%.20q): %d %.200q", name, len(text), text, status, answer)
			}
		}
	}
	if reason := b.b.Status().Reason; reason != "" {
		t.Fatal(reason)
	}
	after := b.restart(t)
	if status, body := after.do("POST", "/api/v1/push", `{"items":[{"queue":"q","payload":1}]}`); status != http.StatusCreated {
		t.Errorf("%d %s", status, body)
	}
}

// B61: calls of which everything loses are answered like others: nothing waits
// for a commit that is never going to happen.
func TestB61NothingToCommit(t *testing.T) {
	b := startBroker(t, vfs.NewMem(1))
	b.do("POST", "/api/v1/push", `{"items":[{"queue":"q","transactionId":"t","payload":1}]}`)
	b.do("POST", "/api/v1/kv", `[{"op":"put","ns":"n","key":"k","value":1,"forever":true}]`)
	p, ok := b.pop("q?consumerGroup=g&subscriptionMode=all")
	if !ok {
		t.Fatal("nothing was delivered")
	}
	ack := fmt.Sprintf(`{"transactionId":"t","partitionId":%q,"consumerGroup":"g","leaseId":%q}`, p.Messages[0].PartitionID, p.LeaseID)
	b.do("POST", "/api/v1/ack", ack)
	commit := b.b.Status().Commit
	for _, c := range []struct {
		name, path, body, want string
	}{
		{"only reads", "kv", `[{"op":"get","ns":"n","key":"k"},{"op":"getMany","ns":"n","keys":["k","x"]}]`, `"found":true`},
		{"a losing put and a read", "kv", `[{"op":"put","ns":"n","key":"k","value":2,"forever":true,"expect":0},{"op":"get","ns":"n","key":"k"}]`, `"found":true,"key":"k","value":1`},
		{"a required one that loses", "kv", `[{"op":"putIfAbsent","ns":"n","key":"k","value":2,"forever":true,"required":true}]`, `"ok":false`},
		{"a delete of nothing", "kv", `[{"op":"delete","ns":"n","key":"none"}]`, `"reason":"absent"`},
		{"an empty push", "push", `{"items":[]}`, ``},
		{"a duplicate", "push", `{"items":[{"queue":"q","transactionId":"t","payload":1}]}`, `"status":"duplicate"`},
		{"a repeated ack", "ack", ack, `"noop":true`},
		{"a cancel of nothing", "timers", `[{"op":"cancel","queue":"q","timerKey":"none"}]`, `"status":"absent"`},
		{"a transaction that loses", "transaction", `{"kv":[{"op":"putIfAbsent","ns":"n","key":"k","value":2,"forever":true,"required":true}]}`, `"success":false`},
		{"an empty transaction", "transaction", `{"operations":[]}`, ``},
		{"a transaction that only reads", "transaction", `{"kv":[{"op":"get","ns":"n","key":"k"}]}`, `"value":1`},
	} {
		begun := time.Now()
		status, body := b.do("POST", "/api/v1/"+c.path, c.body)
		if status >= 500 || !strings.Contains(string(body), c.want) {
			t.Errorf("%s: %d %s", c.name, status, body)
		}
		if took := time.Since(begun); took > 10*time.Second {
			t.Errorf("%s took %v: it ran into a deadline", c.name, took)
		}
	}
	if now := b.b.Status().Commit; now != commit {
		t.Errorf("calls without effects wrote %d entries", now-commit)
	}
}

// B66: whatever a client does to its connection, the process goes on and the
// next client is served.
func TestB66OddConnections(t *testing.T) {
	b := startBroker(t, vfs.NewMem(1))
	var bomb bytes.Buffer
	z := gzip.NewWriter(&bomb)
	if _, err := z.Write(make([]byte, 10<<20)); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	push := func(body string) string {
		return fmt.Sprintf("POST /api/v1/push HTTP/1.1\r\nHost: q\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	}
	good := push(`{"items":[{"queue":"q","payload":1}]}`)
	for name, c := range map[string]struct {
		send    string
		answers int // that are expected; those of pipelined requests come in order
	}{
		"pipelined":         {good + good + good, 3},
		"half closed":       {good, 1},
		"half a head":       {"POST /api/v1/push HTTP/1.1\r\nHost:", 0},
		"half a body":       {good[:len(good)-5], 0},
		"no HTTP":           {"\x16\x03\x01\x00\xa5\x01\x00\x00", 1},
		"a gzip bomb":       {fmt.Sprintf("POST /api/v1/push HTTP/1.1\r\nHost: q\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n%s", bomb.Len(), bomb.String()), 1},
		"a bad chunk":       {"POST /api/v1/push HTTP/1.1\r\nHost: q\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 1},
		"two lengths":       {"POST /api/v1/push HTTP/1.1\r\nHost: q\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd", 1},
		"a negative length": {"POST /api/v1/push HTTP/1.1\r\nHost: q\r\nContent-Length: -3\r\n\r\n", 1},
	} {
		conn, err := net.Dial("tcp", b.addr)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(conn, c.send); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		answer, err := io.ReadAll(conn)
		if err != nil && !errors.Is(err, net.ErrClosed) && !strings.Contains(err.Error(), "reset") {
			t.Errorf("%s: %v", name, err)
		}
		conn.Close()
		if got := bytes.Count(answer, []byte("HTTP/1.1 ")); got < c.answers {
			t.Errorf("%s: %d answers, want %d: %.300s", name, got, c.answers, answer)
		}
		if bytes.Contains(answer, []byte("HTTP/1.1 5")) {
			t.Errorf("%s: %.300s", name, answer)
		}
		if status, body := b.do("POST", "/api/v1/push", `{"items":[{"queue":"q","payload":1}]}`); status != http.StatusCreated {
			t.Fatalf("after %s: %d %s", name, status, body)
		}
	}
}

// B67: the ack that completed a message, sent again: a no-op with the same
// answer at any age, whoever forgets.
func TestB67RepeatedAck(t *testing.T) {
	b := startLimited(t)
	b.do("POST", "/api/v1/configure", `{"queue":"q","options":{"dedupWindowSeconds":0}}`)
	b.do("POST", "/api/v1/push", `{"items":[{"queue":"q","transactionId":"t","payload":1},{"queue":"q","transactionId":"u","payload":2}]}`)
	p, ok := b.pop("q?consumerGroup=g&subscriptionMode=all&batch=1")
	if !ok {
		t.Fatal("nothing was delivered")
	}
	ack := fmt.Sprintf(`{"transactionId":"t","partitionId":%q,"consumerGroup":"g","leaseId":%q}`, p.Messages[0].PartitionID, p.LeaseID)
	if _, body := b.do("POST", "/api/v1/ack", ack); !bytes.Contains(body, []byte(`"success":true`)) || !bytes.Contains(body, []byte(`"noop":false`)) {
		t.Fatalf("%s", body)
	}
	repeat := func(when string, b *broker) {
		t.Helper()
		want, _, _ := b.b.Digest()
		_, body := b.do("POST", "/api/v1/ack", ack)
		if !bytes.Contains(body, []byte(`"success":true,"error":null`)) || !bytes.Contains(body, []byte(`"noop":true`)) {
			t.Errorf("%s: %s", when, body)
		}
		if got, _, _ := b.b.Digest(); got != want {
			t.Errorf("%s: the state changed", when)
		}
	}
	repeat("at once", b.broker)
	q, ok := b.pop("q?consumerGroup=g&batch=1") // another lease replaces the one that is remembered
	if !ok || q.Messages[0].TransactionID != "u" {
		t.Fatalf("%+v", q)
	}
	repeat("after another lease", b.broker)
	repeat("after a restart", b.restart(t))
}

// B69: an option that is changed leaves the others alone, also when two are
// changed at once and over a restart; what is read can be sent back.
func TestB69OptionsAreIndependent(t *testing.T) {
	b := startLimited(t)
	values := map[string]any{
		"namespace": "n", "task": "t", "leaseTime": 7.0, "retryLimit": 8.0, "deadLetterQueue": false, "dlqAfterMaxRetries": true,
		"dedupWindowSeconds": 9.0, "delayedProcessing": 1.0, "windowBuffer": 2.0, "priority": 3.0, "ttl": 4.0, "maxSize": 5.0, "retryDelay": 6.0,
		"minPopWaitTime": 11.0,
	}
	configure := func(options map[string]any) {
		t.Helper()
		body, err := json.Marshal(map[string]any{"queue": "q", "options": options})
		if err != nil {
			t.Fatal(err)
		}
		if status, answer := b.do("POST", "/api/v1/configure", string(body)); status != http.StatusOK {
			t.Fatalf("%s: %d %s", body, status, answer)
		}
	}
	read := func(b *broker) map[string]any {
		t.Helper()
		var detail struct{ Options map[string]any }
		_, body := b.do("GET", "/api/v1/resources/queues/q", "")
		if err := json.Unmarshal(body, &detail); err != nil {
			t.Fatalf("%v in %s", err, body)
		}
		return detail.Options
	}
	configure(map[string]any{})
	defaults := read(b.broker)
	configure(values)
	want := read(b.broker)
	for name, v := range values {
		if want[name] != v {
			t.Errorf("%s is %v, want %v", name, want[name], v)
		}
	}
	for name, v := range values {
		configure(map[string]any{name: nil})
		got := read(b.broker)
		if got[name] != defaults[name] {
			t.Errorf("%s: null made it %v, the default is %v", name, got[name], defaults[name])
		}
		got[name] = v
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s: null changed others: %v, want %v", name, got, want)
		}
		configure(map[string]any{name: v})
	}
	var wg sync.WaitGroup
	for name, v := range values {
		wg.Go(func() {
			body, _ := json.Marshal(map[string]any{"queue": "q", "options": map[string]any{name: v}})
			for range 5 {
				b.do("POST", "/api/v1/configure", string(body))
			}
		})
	}
	wg.Wait()
	configure(want) // what was read is sent back
	if got := read(b.broker); !reflect.DeepEqual(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if got := read(b.restart(t)); !reflect.DeepEqual(got, want) {
		t.Errorf("after a restart %v, want %v", got, want)
	}
}
