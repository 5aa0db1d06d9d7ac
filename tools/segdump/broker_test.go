package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"queen/fsm"
	"queen/internal/entry"
	"queen/internal/vfs"
	"queen/raftlog"
	"queen/server"
)

// broker is a real broker on a file system in memory.
type broker struct {
	t    testing.TB
	b    *server.Broker
	s    *server.Server
	addr string
	once sync.Once
	end  func()
}

func startBroker(t testing.TB, fsys vfs.FS, dir string, group raftlog.Config) *broker {
	t.Helper()
	b, err := openBroker(t, fsys, dir, group)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func openBroker(t testing.TB, fsys vfs.FS, dir string, group raftlog.Config) (*broker, error) {
	eng, err := server.Open(server.StorageConfig{FS: fsys, Dir: dir, NodeID: 1, Planner: fsm.Config{}, Group: group, Fatal: func(err error) { t.Error(err) }})
	if err != nil {
		return nil, err
	}
	s, err := server.New(server.Config{Engine: eng, Metrics: true, ZstdLevel: 1})
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
	b := &broker{t: t, b: eng, s: s, addr: l.Addr().String()}
	b.end = func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		for _, err := range []error{s.Shutdown(ctx), <-served, eng.Stop(ctx), s.Close(ctx)} {
			if err != nil {
				t.Error(err)
			}
		}
	}
	t.Cleanup(b.stop)
	for end := time.Now().Add(time.Minute); eng.Status().Reason != ""; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			return nil, fmt.Errorf("the broker does not lead: %s", eng.Status().Reason)
		}
	}
	return b, nil
}

func (b *broker) stop() { b.once.Do(b.end) }

// do sends a request and wants an answer below 300.
func (b *broker) do(method, path, body string) string {
	b.t.Helper()
	status, answer := b.try(method, path, body)
	if status >= 300 {
		b.t.Fatalf("%s %s: %d %s", method, path, status, answer)
	}
	return answer
}

func (b *broker) try(method, path, body string) (int, string) {
	b.t.Helper()
	req, err := http.NewRequest(method, "http://"+b.addr+"/api/v1/"+path, strings.NewReader(body))
	if err != nil {
		b.t.Fatal(err)
	}
	req.Close = true
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		b.t.Fatal(err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		b.t.Fatal(err)
	}
	return resp.StatusCode, string(answer)
}

func (b *broker) push(queue, partition, txn, payload string) {
	b.t.Helper()
	b.do("POST", "push", fmt.Sprintf(`{"items":[{"queue":%q,"partition":%q,"transactionId":%q,"payload":%s}]}`, queue, partition, txn, payload))
}

// popped is the answer of a pop, as far as the tests need it.
type popped struct {
	LeaseID  string `json:"leaseId"`
	Messages []struct {
		PartitionID   string `json:"partitionId"`
		TransactionID string `json:"transactionId"`
	} `json:"messages"`
}

// payment commits a step over the logs of orders, receipts and audit.
func (b *broker) payment() {
	b.t.Helper()
	var p popped
	answer := b.do("GET", "pop/queue/orders?consumerGroup=chargers&subscriptionMode=all&batch=1&leaseSeconds=3600", "")
	if err := json.Unmarshal([]byte(answer), &p); err != nil || len(p.Messages) != 1 {
		b.t.Fatalf("pop: %s, %v", answer, err)
	}
	m := p.Messages[0]
	answer = b.do("POST", "transaction", fmt.Sprintf(`{"operations":[
		{"type":"ack","transactionId":%q,"partitionId":%q,"consumerGroup":"chargers","leaseId":%q,"status":"completed"},
		{"type":"push","items":[{"queue":"receipts","partition":"card-7","transactionId":"receipt-1","payload":{"order":1,"cents":4200}}]},
		{"type":"push","items":[{"queue":"audit","partition":"2026","transactionId":"audit-1","payload":%q}]}],
		"kv":[{"op":"put","ns":"orders","key":"1","value":"charged","forever":true},{"op":"putIfAbsent","ns":"charged","key":"1","value":1,"forever":true,"required":true}],
		"timers":[{"op":"schedule","queue":"reminders","timerKey":"1","delayMs":9000000000000,"payload":"eyJvcmRlciI6MX0="}]}`,
		m.TransactionID, m.PartitionID, p.LeaseID, strings.Repeat("charged card-7; ", 100)))
	if !strings.Contains(answer, `"success":true`) {
		b.t.Fatalf("transaction: %s", answer)
	}
}

// stored lists the payloads that a broker can read, by queue and partition name.
func (b *broker) stored(queue string) (out []string) {
	b.t.Helper()
	for {
		var p struct {
			Messages []struct {
				Data json.RawMessage `json:"data"`
			} `json:"messages"`
		}
		status, answer := b.try("GET", "pop/queue/"+queue+"?consumerGroup=reader&subscriptionMode=all&batch=100&autoAck=true&partitions=100", "")
		if status == http.StatusNoContent || status == http.StatusNotFound {
			return out
		}
		if err := json.Unmarshal([]byte(answer), &p); err != nil {
			b.t.Fatalf("pop: %d %s, %v", status, answer, err)
		}
		if len(p.Messages) == 0 {
			return out
		}
		for _, m := range p.Messages {
			out = append(out, string(m.Data))
		}
	}
}

// messages reads a partition by its ids, until the first error.
func (b *broker) messages(queue, partition uint64) (out []string, err error) {
	err = b.b.Reader().ReadMessages(queue, partition, 0, 1<<60, func(_ uint64, _ int64, m *entry.Message) error {
		plain, err := payload(m)
		out = append(out, string(plain))
		return err
	})
	if errors.Is(err, raftlog.ErrNoLog) {
		err = nil
	}
	return out, err
}
