package server

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"queen/internal/entry"
	"queen/internal/vfs"
	"queen/raftlog"
	"queen/segment"
)

// newestEntry reads from the data directory which logs hold the newest entry:
// each must hold exactly one copy, and the copies must name exactly them.
func newestEntry(t *testing.T, fs vfs.FS) (index uint64, logs []uint64) {
	t.Helper()
	dirs, err := fs.List("data/log")
	if err != nil {
		t.Fatal(err)
	}
	copies := map[uint64][]entry.Head{}
	holders := map[uint64][]uint64{}
	for _, d := range dirs {
		var id uint64
		if _, err := fmt.Sscanf(d.Name, "q%d", &id); err != nil {
			continue
		}
		l, err := segment.Open(segment.Options{FS: fs, Dir: "data/log/" + d.Name, ID: id})
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range l.Segments() {
			_, err := l.Scan(s.Seq, segment.HeaderSize, func(_ int64, body []byte) error {
				r, err := entry.ParseRecord(body)
				if err != nil {
					return err
				}
				if r.Kind == entry.KindEntry || r.Kind == entry.KindStub {
					copies[r.Index] = append(copies[r.Index], r.Head)
					holders[r.Index] = append(holders[r.Index], id)
					index = max(index, r.Index)
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
	for _, h := range copies[index] {
		if !reflect.DeepEqual(sorted(holders[index]), h.Logs) {
			t.Fatalf("entry %d: copies in logs %v, a head says %v", index, holders[index], h.Logs)
		}
	}
	return index, copies[index][0].Logs
}

func sorted(v []uint64) []uint64 {
	for i := range v {
		for j := i; j > 0 && v[j] < v[j-1]; j-- {
			v[j], v[j-1] = v[j-1], v[j]
		}
	}
	return v
}

// TestLogsOfEachCall names the exact set of logs that each kind of call
// touches. Queue in is 1, out is 2, aux is 3: so their logs are q1, q2, q3.
func TestLogsOfEachCall(t *testing.T) {
	fs := vfs.NewMem(1)
	b := startBroker(t, fs)
	must := func(method, path, body string) []byte {
		t.Helper()
		status, answer := b.do(method, path, body)
		if status >= 300 {
			t.Fatalf("%s %s: %d %s", method, path, status, answer)
		}
		return answer
	}
	for _, q := range []string{"in", "out", "aux"} {
		must("POST", "/api/v1/configure", `{"queue":"`+q+`","options":{"retryLimit":0}}`)
	}
	push := func(queue string, ids ...string) {
		items := make([]string, len(ids))
		for i, id := range ids {
			items[i] = fmt.Sprintf(`{"queue":%q,"transactionId":%q,"payload":%q}`, queue, id, strings.Repeat("p", 400))
		}
		must("POST", "/api/v1/push", `{"items":[`+strings.Join(items, ",")+`]}`)
	}
	push("in", "a", "b", "c", "d", "e", "f", "g", "h")
	var got popAnswer
	lease := func(n int) {
		t.Helper()
		var ok bool
		if got, ok = b.pop(fmt.Sprintf("in?consumerGroup=g&subscriptionMode=all&batch=%d", n)); !ok {
			t.Fatal("nothing to pop")
		}
	}
	ack := func(status string) string {
		m := got.Messages[0]
		return fmt.Sprintf(`{"type":"ack","transactionId":%q,"partitionId":%q,"consumerGroup":"g","leaseId":%q,"status":%q}`,
			m.TransactionID, m.PartitionID, got.LeaseID, status)
	}
	txn := func(parts string) func() {
		return func() {
			t.Helper()
			var a struct{ Success bool }
			body := must("POST", "/api/v1/transaction", parts)
			if err := json.Unmarshal(body, &a); err != nil || !a.Success {
				t.Fatalf("%s", body)
			}
		}
	}
	acked := func(status, more string) func() {
		return func() {
			t.Helper()
			lease(1)
			txn(`{"operations":[` + ack(status) + `]` + more + `}`)()
		}
	}
	big := strings.Repeat("QUJD", 200) // base64, over what a row keeps itself
	for _, c := range []struct {
		name string
		call func()
		want []uint64
	}{
		{"push to one queue", func() { push("out", "o1") }, []uint64{2}},
		{"push to two queues", func() {
			must("POST", "/api/v1/push", `{"items":[{"queue":"aux","payload":1},{"queue":"out","payload":2}]}`)
		}, []uint64{2, 3}},
		{"pop", func() { lease(1) }, []uint64{0}},
		{"extend", func() { must("POST", "/api/v1/lease/"+got.LeaseID+"/extend", `{"seconds":600}`) }, []uint64{0}},
		{"plain ack", func() { must("POST", "/api/v1/ack", ack("completed")) }, []uint64{0}},
		{"plain ack that files a payload", func() { lease(1); must("POST", "/api/v1/ack", ack("dlq")) }, []uint64{1}},
		{"transaction: ack", acked("completed", ""), []uint64{1}},
		{"transaction: ack that files", acked("failed", ""), []uint64{1}},
		{"transaction: ack, push", func() {
			lease(1)
			txn(`{"operations":[` + ack("completed") + `,{"type":"push","items":[{"queue":"out","payload":1}]}]}`)()
		}, []uint64{1, 2}},
		{"transaction: ack, KV, timer", acked("completed",
			`,"kv":[{"op":"put","ns":"n","key":"k","value":1,"forever":true}],"timers":[{"op":"schedule","queue":"aux","timerKey":"t","delayMs":86400000,"payload":"`+big+`"}]`), []uint64{1}},
		{"transaction: push to three queues", txn(`{"operations":[{"type":"push","items":[{"queue":"aux","payload":1},{"queue":"in","payload":1},{"queue":"out","payload":1}]}]}`), []uint64{1, 2, 3}},
		{"transaction: position", txn(`{"positions":[{"queue":"aux","consumerGroup":"h","offset":1}]}`), []uint64{3}},
		{"transaction: KV alone", txn(`{"kv":[{"op":"incr","ns":"n","key":"c","delta":1,"forever":true}]}`), []uint64{0}},
		{"KV", func() { must("PUT", "/api/v1/kv/n/k", `{"value":2,"forever":true}`) }, []uint64{0}},
		{"timer, payload in its row", func() {
			must("POST", "/api/v1/timers", `[{"op":"schedule","queue":"out","timerKey":"u","delayMs":86400000,"payload":"e30="}]`)
		}, []uint64{0}},
		{"timer, payload as a value", func() {
			must("POST", "/api/v1/timers", `[{"op":"schedule","queue":"out","timerKey":"v","delayMs":86400000,"payload":"`+big+`"}]`)
		}, []uint64{0}},
		{"timer cancel", func() { must("DELETE", "/api/v1/timers/out/v", "") }, []uint64{0}},
		{"dead letter replay", func() {
			var list struct{ Messages []struct{ ID string } }
			if err := json.Unmarshal(must("GET", "/api/v1/dlq?queue=in", ""), &list); err != nil || len(list.Messages) == 0 {
				t.Fatal("no dead letter", err)
			}
			must("POST", "/api/v1/dlq/"+list.Messages[0].ID+"/replay", `{"queue":"out"}`)
		}, []uint64{2}},
		{"dead letter purge", func() { must("DELETE", "/api/v1/dlq?queue=in", "") }, []uint64{0}},
		{"configure", func() { must("POST", "/api/v1/configure", `{"queue":"aux","options":{"leaseTime":7}}`) }, []uint64{0}},
	} {
		before, _ := newestEntry(t, fs)
		c.call()
		index, logs := newestEntry(t, fs)
		if index <= before || !reflect.DeepEqual(logs, c.want) {
			t.Errorf("%s: entry %d after %d in logs %v, want %v", c.name, index, before, logs, c.want)
		}
	}
	before, _ := newestEntry(t, fs)
	must("DELETE", "/api/v1/resources/queues/aux", "")
	await(t, func() bool { index, _ := newestEntry(t, fs); return index > before })
	if _, logs := newestEntry(t, fs); !reflect.DeepEqual(logs, []uint64{0}) {
		t.Errorf("queue delete: logs %v", logs)
	}
}

// TestDeliveryCostsOneCommit: between a push and the answer of the consumer
// that waited for it, commit index and fsync count rise by exactly 1.
func TestDeliveryCostsOneCommit(t *testing.T) {
	fs := vfs.NewMem(1)
	b := startBroker(t, fs)
	if status, body := b.do("POST", "/api/v1/push", `{"items":[{"queue":"q","payload":0}]}`); status != http.StatusCreated {
		t.Fatalf("%d %s", status, body)
	}
	if _, ok := b.pop("q?consumerGroup=g&subscriptionMode=all&commitOnDelivery=true"); !ok {
		t.Fatal("nothing popped")
	}
	for range 5 {
		waited := make(chan popAnswer, 1)
		go func() {
			p, _ := b.pop("q?consumerGroup=g&commitOnDelivery=false&wait=true&timeout=30000")
			waited <- p
		}()
		await(t, func() bool { return b.b.Status().Parked == 1 && b.b.Status().InFlight == 0 })
		syncs := func() uint64 { c := fs.Counts(); return uint64(c.Sync + c.SyncAll) }
		commit, synced := b.b.Status().Commit, syncs()
		if status, body := b.do("POST", "/api/v1/push", `{"items":[{"queue":"q","payload":1}]}`); status != http.StatusCreated {
			t.Fatalf("%d %s", status, body)
		}
		p := <-waited
		if c, s := b.b.Status().Commit, syncs(); len(p.Messages) != 1 || c != commit+1 || s != synced+1 {
			t.Fatalf("%d messages; commit index %d after %d, fsyncs %d after %d", len(p.Messages), c, commit, s, synced)
		}
		m := p.Messages[0]
		b.do("POST", "/api/v1/ack", fmt.Sprintf(`{"transactionId":%q,"partitionId":%q,"consumerGroup":"g","leaseId":%q}`, m.TransactionID, m.PartitionID, p.LeaseID))
	}
}

// fixtureCall is a call on an opened fixture, and what its answer must contain.
type fixtureCall struct{ method, path, body, want string }

// fixtureClock runs from when a fixture was made, so that nothing in it grows
// old: transactionIds are recognised within an hour.
func fixtureClock(made time.Time) raftlog.Clock {
	return shiftedClock{raftlog.SystemClock(), time.Until(made).Microseconds()}
}

// When the fixtures were made.
var (
	paymentMade = time.Date(2026, 12, 1, 0, 46, 48, 0, time.UTC)
	poisonMade  = time.Date(2026, 12, 1, 1, 52, 0, 0, time.UTC)
)

// shiftedClock is a clock of another date.
type shiftedClock struct {
	raftlog.Clock
	by int64 // microseconds
}

func (c shiftedClock) Now() raftlog.Times {
	now := c.Clock.Now()
	now.Wall += c.by
	return now
}

// TestDataDirectoryFixture opens copies of data directories that earlier builds
// left after a kill, and reads every part of them back. Every later build must.
// QUEEN_UPDATE_FIXTURE names the one to make anew (data-v2), for a format that no
// release has written yet.
func TestDataDirectoryFixture(t *testing.T) {
	for _, f := range []struct {
		name  string
		made  time.Time
		make  func(t *testing.T, dir string)
		calls []fixtureCall
	}{
		{"data-v1", paymentMade, makePaymentFixture, []fixtureCall{
			{"GET", "/api/v1/kv/state/77001", "", `"value":{"s":"routed"}`},
			{"GET", "/api/v1/kv/seen/scan-1", "", `"found":true`},
			{"GET", "/api/v1/timers/chase/77001", "", `"txn":"chase-77001"`},
			{"GET", "/api/v1/dlq?queue=parcels", "", `"errorMessage":"label unreadable"`},
			{"GET", "/api/v1/resources/queues/labels/depth", "", `"pending":1`},
			{"POST", "/api/v1/push", `{"items":[{"queue":"labels","partition":"n4","transactionId":"label-1","payload":0}]}`, `"status":"duplicate","offset":0`},
			{"GET", "/api/v1/pop/queue/labels?consumerGroup=x&subscriptionMode=all", "", `"data":{"parcel":12345678901234567890}`},
			{"GET", "/api/v1/pop/queue/parcels?consumerGroup=new&subscriptionMode=all&batch=9", "", `"transactionId":"scan-3"`},
		}},
		// Cursors of version 2: a checkpoint with a message under suspicion, and a log with one delivery of it more.
		{"data-v2", poisonMade, makePoisonFixture, []fixtureCall{
			{"GET", "/api/v1/dlq?queue=parcels", "", `"total":0`},
			{"GET", "/api/v1/pop/queue/parcels?batch=9&wait=true", "", `"transactionId":"scan-2"`},
			{"GET", "/api/v1/dlq?queue=parcels", "", `"errorMessage":"maxDeliveries"`},
			{"GET", "/api/v1/dlq?queue=parcels", "", `"transactionId":"scan-1"`},
		}},
	} {
		t.Run(f.name, func(t *testing.T) {
			fixture := filepath.Join("testdata", f.name)
			if os.Getenv("QUEEN_UPDATE_FIXTURE") == f.name {
				f.make(t, fixture)
			}
			dir := t.TempDir()
			if err := os.CopyFS(dir, os.DirFS(fixture)); err != nil {
				t.Fatal(err)
			}
			b := startBrokerOn(t, vfs.OS(), dir, fixtureClock(f.made))
			for _, c := range f.calls {
				if _, body := b.do(c.method, c.path, c.body); !strings.Contains(string(body), c.want) {
					t.Errorf("%s %s: %s\nwant %s", c.method, c.path, body, c.want)
				}
			}
		})
	}
}

// makePoisonFixture lets workers die of a message: the whole batch and then once
// alone before a clean stop, and once more before a kill.
func makePoisonFixture(t *testing.T, dir string) {
	fs := vfs.NewMem(7)
	take := func(b *broker, want string) {
		t.Helper()
		if p, _ := b.pop("parcels?batch=9&leaseSeconds=1&wait=true&timeout=30000"); len(p.Messages) == 0 || p.Messages[0].TransactionID != want {
			t.Fatalf("popped %+v, want %s", p.Messages, want)
		}
	}
	t.Run("first", func(t *testing.T) {
		b := startBrokerOn(t, fs, "data", fixtureClock(poisonMade))
		b.do("POST", "/api/v1/configure", `{"queue":"parcels","options":{"maxDeliveries":2}}`)
		b.do("POST", "/api/v1/push", `{"items":[{"queue":"parcels","partition":"v","transactionId":"scan-1","payload":{"p":1}},{"queue":"parcels","partition":"v","transactionId":"scan-2","payload":{"p":2}}]}`)
		take(b, "scan-1")
		take(b, "scan-1")
	})
	b := startBrokerOn(t, fs, "data", fixtureClock(poisonMade))
	take(b, "scan-1")
	copyFixture(t, fs.Clone(), dir)
}

// copyFixture puts a data directory into the place of a fixture.
func copyFixture(t *testing.T, killed vfs.FS, dir string) {
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	copyOut(t, killed, "data", dir)
}

// makePaymentFixture runs the payment step on a fresh directory, with a checkpoint
// in the middle (a clean stop) and a kill at the end.
func makePaymentFixture(t *testing.T, dir string) {
	fs := vfs.NewMem(7)
	t.Run("first", func(t *testing.T) {
		b := startBrokerOn(t, fs, "data", fixtureClock(paymentMade))
		b.do("POST", "/api/v1/push", `{"items":[{"queue":"parcels","partition":"v","transactionId":"scan-1","payload":{"p":1}},{"queue":"parcels","partition":"v","transactionId":"scan-2","payload":{"p":2}},{"queue":"parcels","partition":"v","transactionId":"scan-3","payload":{"p":3}}]}`)
		b.do("POST", "/api/v1/configure", `{"queue":"parcels","options":{"retryLimit":0}}`)
	})
	b := startBrokerOn(t, fs, "data", fixtureClock(paymentMade))
	p, _ := b.pop("parcels?consumerGroup=routing&subscriptionMode=all&batch=2&leaseSeconds=3600")
	if len(p.Messages) != 2 {
		t.Fatal("no batch")
	}
	ack := func(i int, status string) string {
		return fmt.Sprintf(`"transactionId":%q,"partitionId":%q,"consumerGroup":"routing","leaseId":%q,"status":%q`, p.Messages[i].TransactionID, p.Messages[i].PartitionID, p.LeaseID, status)
	}
	_, body := b.do("POST", "/api/v1/transaction", `{"operations":[{"type":"ack",`+ack(0, "completed")+`},{"type":"push","items":[{"queue":"labels","partition":"n4","transactionId":"label-1","payload":{"parcel":12345678901234567890}}]}],
		"kv":[{"op":"put","ns":"state","key":"77001","value":{"s":"routed"},"forever":true},{"op":"putIfAbsent","ns":"seen","key":"scan-1","value":1,"forever":true,"required":true}],
		"timers":[{"op":"schedule","queue":"chase","timerKey":"77001","delayMs":9000000000000,"txn":"chase-77001","payload":"`+strings.Repeat("QUJD", 100)+`"}]}`)
	if !strings.Contains(string(body), `"success":true`) {
		t.Fatalf("%s", body)
	}
	if _, body := b.do("POST", "/api/v1/ack", `{`+ack(1, "failed")+`,"error":"label unreadable"}`); !strings.Contains(string(body), `"dlq":true`) {
		t.Fatalf("%s", body)
	}
	copyFixture(t, fs.Clone(), dir)
}

func copyOut(t *testing.T, fs vfs.FS, from, to string) {
	t.Helper()
	if err := os.MkdirAll(to, 0o777); err != nil {
		t.Fatal(err)
	}
	list, err := fs.List(from)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range list {
		if f.Dir {
			copyOut(t, fs, from+"/"+f.Name, filepath.Join(to, f.Name))
			continue
		}
		data, err := vfs.ReadFile(fs, from+"/"+f.Name)
		if err == nil {
			err = os.WriteFile(filepath.Join(to, f.Name), data, 0o666)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}
