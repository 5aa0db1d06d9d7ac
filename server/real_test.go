package server

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"queen/fsm"
	"queen/internal/vfs"
	"queen/raftlog"
)

// broker is a server on the real engine, on a file system in memory, behind a
// real socket.
type broker struct {
	t    testing.TB
	b    *Broker
	s    *Server
	addr string
	c    *http.Client
}

func startBroker(t testing.TB, fs vfs.FS) *broker {
	t.Helper()
	return startBrokerAt(t, fs, "data")
}

func startBrokerAt(t testing.TB, fs vfs.FS, dir string) *broker {
	t.Helper()
	return startBrokerOn(t, fs, dir, raftlog.SystemClock())
}

func startBrokerOn(t testing.TB, fs vfs.FS, dir string, clock raftlog.Clock) *broker {
	t.Helper()
	eng, err := Open(StorageConfig{FS: fs, Dir: dir, NodeID: 1, Planner: fsm.Config{}, Fatal: func(err error) { t.Error(err) }, Group: raftlog.Config{Clock: clock}})
	if err != nil {
		t.Fatal(err)
	}
	return serveBroker(t, eng)
}

// serveBroker puts a server in front of an engine; the test's end stops both.
func serveBroker(t testing.TB, eng *Broker) *broker {
	t.Helper()
	s, err := New(Config{Engine: eng, Metrics: true, ZstdLevel: 1})
	if err != nil {
		t.Fatal(err)
	}
	eng.Observe(s.Metrics())
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve(l, "", "") }()
	await(t, func() bool { return eng.Status().Reason == "" })
	br := &broker{t, eng, s, l.Addr().String(), &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 8}}}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		br.c.CloseIdleConnections()
		for _, err := range []error{s.Shutdown(ctx), <-served, eng.Stop(ctx), s.Close(ctx)} {
			if err != nil {
				t.Error(err)
			}
		}
	})
	return br
}

// do sends a request and returns the status and the body.
func (b *broker) do(method, path, body string) (int, []byte) {
	req, err := http.NewRequest(method, "http://"+b.addr+path, strings.NewReader(body))
	if err != nil {
		b.t.Fatal(err)
	}
	resp, err := b.c.Do(req)
	if err != nil {
		b.t.Fatal(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		b.t.Fatal(err)
	}
	return resp.StatusCode, data
}

type popAnswer struct {
	LeaseID  string `json:"leaseId"`
	Messages []struct {
		TransactionID   string          `json:"transactionId"`
		PartitionID     string          `json:"partitionId"`
		Data            json.RawMessage `json:"data"`
		DeliveryAttempt int             `json:"deliveryAttempt"`
	} `json:"messages"`
}

func (b *broker) pop(query string) (p popAnswer, found bool) {
	status, body := b.do("GET", "/api/v1/pop/queue/"+query, "")
	if status == http.StatusNoContent {
		return p, false
	}
	if status != http.StatusOK {
		b.t.Fatalf("pop %s: %d %s", query, status, body)
	}
	if err := json.Unmarshal(body, &p); err != nil {
		b.t.Fatal(err)
	}
	return p, true
}

// TestDisconnectsLoseNoDelivery: a consumer that closes its socket just before,
// while, or just after a message comes. The next one gets it within a second,
// as a first attempt, and nothing is charged.
func TestDisconnectsLoseNoDelivery(t *testing.T) {
	rounds := 60
	if testing.Short() {
		rounds = 15
	}
	b := startBroker(t, vfs.NewMem(1))
	if status, body := b.do("POST", "/api/v1/configure", `{"queue":"q","options":{"leaseTime":300,"retryLimit":1}}`); status != 200 {
		t.Fatalf("%d %s", status, body)
	}
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range rounds {
		conn, err := net.Dial("tcp", b.addr)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(conn, "GET /api/v1/pop/queue/q?wait=true&timeout=20000 HTTP/1.1\r\nHost: x\r\n\r\n")
		await(t, func() bool { return b.b.Status().Parked == 1 })
		pushed := make(chan struct{})
		push := func() {
			defer close(pushed)
			if status, body := b.do("POST", "/api/v1/push", fmt.Sprintf(`{"items":[{"queue":"q","transactionId":"t%d","payload":%d}]}`, i, i)); status != 201 {
				t.Errorf("push: %d %s", status, body)
			}
		}
		switch i % 3 {
		case 0: // just before
			conn.Close()
			push()
		case 1: // meanwhile
			go push()
			time.Sleep(time.Duration(rng.IntN(800)) * time.Microsecond)
			conn.Close()
			<-pushed
		case 2: // just after, with the answer unread
			push()
			conn.Close()
		}
		begun := time.Now()
		p, found := b.pop("q?wait=true&timeout=5000")
		if !found || len(p.Messages) != 1 || p.Messages[0].TransactionID != fmt.Sprintf("t%d", i) {
			t.Fatalf("round %d (%d): the message did not come: %+v", i, i%3, p)
		}
		if took := time.Since(begun); took > time.Second {
			t.Errorf("round %d (%d): it took %v", i, i%3, took)
		}
		if a := p.Messages[0].DeliveryAttempt; a != 1 {
			t.Errorf("round %d (%d): attempt %d", i, i%3, a)
		}
		status, body := b.do("POST", "/api/v1/ack", fmt.Sprintf(`{"transactionId":"t%d","partitionId":%q,"leaseId":%q}`, i, p.Messages[0].PartitionID, p.LeaseID))
		if status != 200 || !bytes.Contains(body, []byte(`"success":true`)) {
			t.Fatalf("round %d: ack %d %s", i, status, body)
		}
	}
}

// TestAnswerThatWasReadStaysDelivered: a consumer that reads its answer and
// then closes keeps the lease.
func TestAnswerThatWasReadStaysDelivered(t *testing.T) {
	b := startBroker(t, vfs.NewMem(1))
	b.do("POST", "/api/v1/push", `{"items":[{"queue":"q","transactionId":"t","payload":1}]}`)
	conn, err := net.Dial("tcp", b.addr)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(conn, "GET /api/v1/pop/queue/q HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
	answer, err := io.ReadAll(conn)
	conn.Close()
	if err != nil || !bytes.Contains(answer, []byte(`"transactionId":"t"`)) {
		t.Fatalf("%v %s", err, answer)
	}
	if _, found := b.pop("q?wait=true&timeout=300"); found {
		t.Error("a message under a live lease was delivered again")
	}
}

// TestPayloadsComeBackAsSent: whatever JSON a payload is, a consumer gets its
// bytes, compressed on the way or not, by push and by transaction.
func TestPayloadsComeBackAsSent(t *testing.T) {
	b := startBroker(t, vfs.NewMem(1))
	n := 0
	roundTrip := func(t interface{ Fatalf(string, ...any) }, payload string, viaTxn bool) {
		n++
		queue := fmt.Sprintf("q%d", n)
		path, body, want := "/api/v1/push", fmt.Sprintf(`{"items":[{"queue":%q,"payload":%s}]}`, queue, payload), 201
		if viaTxn {
			path, body, want = "/api/v1/transaction", fmt.Sprintf(`{"operations":[{"type":"push","payload":%s,"queue":%q}]}`, payload, queue), 200
		}
		if status, answer := b.do("POST", path, body); status != want {
			t.Fatalf("%s: %d %s", payload, status, answer)
		}
		p, _ := b.pop(queue)
		if len(p.Messages) != 1 || string(p.Messages[0].Data) != payload {
			t.Fatalf("payload %q came back as %+v", payload, p.Messages)
		}
	}
	big := `{"n":123456789012345678901234567890.00010e-7,"s":"` + strings.Repeat("\\u00e9\u65e5\\/ ", 4000) + `"  , "a":[ 1,2 ]}`
	for _, payload := range []string{"null", "true", "0", "-0", "9007199254740993", `""`, `"\ud800"`, `"\u0000"`, `{"a":1,"a":2}`, "[ ]", `{ "x" : [1 , {}] }`,
		"\"\U0001F4E6 \u2028\"", big, `"` + strings.Repeat("x", 1<<20) + `"`} {
		roundTrip(t, payload, false)
		roundTrip(t, payload, true)
	}
	rapid.Check(t, func(rt *rapid.T) {
		payload := jsonValue(3).Draw(rt, "payload")
		roundTrip(rt, payload, rapid.Bool().Draw(rt, "txn"))
	})
}

// jsonValue draws JSON texts that are not all of one spelling.
func jsonValue(depth int) *rapid.Generator[string] {
	return rapid.Custom(func(t *rapid.T) string {
		kinds := 5
		if depth > 0 {
			kinds = 7
		}
		space := rapid.SampledFrom([]string{"", "", " ", "\n\t"}).Draw(t, "space")
		switch rapid.IntRange(0, kinds-1).Draw(t, "kind") {
		case 0:
			return "null"
		case 1:
			return rapid.SampledFrom([]string{"true", "false"}).Draw(t, "bool")
		case 2:
			return rapid.StringMatching(`-?(0|[1-9][0-9]{0,25})(\.[0-9]{1,20})?([eE][-+]?[0-9]{1,3})?`).Draw(t, "number")
		case 3:
			text, _ := json.Marshal(rapid.String().Draw(t, "text"))
			return string(text)
		case 4:
			return `"` + rapid.StringMatching(`(\\u[0-9a-fA-F]{4}|\\n|\\/|[a-z ])*`).Draw(t, "escapes") + `"`
		case 5:
			list := rapid.SliceOfN(jsonValue(depth-1), 0, 4).Draw(t, "list")
			return "[" + space + strings.Join(list, space+",") + "]"
		default:
			var members []string
			for i, v := range rapid.SliceOfN(jsonValue(depth-1), 0, 4).Draw(t, "members") {
				members = append(members, fmt.Sprintf(`"k%d"%s:%s`, i, space, v))
			}
			return "{" + strings.Join(members, ","+space) + "}"
		}
	})
}

// TestOddNames: names without character rules, in bodies and in paths.
func TestOddNames(t *testing.T) {
	b := startBroker(t, vfs.NewMem(1))
	for _, c := range []struct{ name, path string }{
		{"a/b", "a%2Fb"}, {"a+b", "a+b"}, {"a b", "a%20b"}, {"\U0001F4E6", "%F0%9F%93%A6"}, {"%2F", "%252F"}, {"..", ".."}, {"nul\x00", "nul%00"},
		{"q\"uote\\", "q%22uote%5C"}, {"?&=#", "%3F&=%23"}, {"a%b", "a%25b"}, {"\u00e9", "\u00e9"},
	} {
		name, _ := json.Marshal(c.name)
		if status, body := b.do("POST", "/api/v1/push", fmt.Sprintf(`{"items":[{"queue":%s,"partition":%s,"payload":1}]}`, name, name)); status != 201 {
			t.Errorf("%q: push %d %s", c.name, status, body)
			continue
		}
		status, body := b.do("GET", "/api/v1/pop/queue/"+c.path+"/partition/"+c.path, "")
		if status != 200 || !bytes.Contains(body, append([]byte(`"queue":`), name...)) && c.name != "?&=#" {
			t.Errorf("%q: pop %d %s", c.name, status, body)
		}
	}
	if status, body := b.do("GET", "/api/v1/pop/queue/%FF", ""); status != 400 || !json.Valid(body) {
		t.Errorf("invalid UTF-8: %d %s", status, body)
	}
}
