package server

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"queen/fsm"
	"queen/internal/vfs"
	"queen/server/envelope"
)

// marker is the plain text that must not be found on disk. It is long enough
// that no chance makes it, and what is sealed around it never repeats.
const marker = "PLAINTEXT-MARKER-7f3a"

func sealKey(t testing.TB, fill string) *envelope.Key {
	t.Helper()
	k, err := envelope.Parse(strings.Repeat(fill, 32))
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// keyed is a broker with a key on a directory of the disk, which a test stops
// by itself.
func keyed(t *testing.T, dir string, key *envelope.Key) (b *broker, stop func()) {
	t.Helper()
	eng, err := Open(StorageConfig{FS: vfs.OS(), Dir: dir, NodeID: 1, Planner: fsm.Config{}, Fatal: func(err error) { t.Error(err) }})
	if err != nil {
		t.Fatal(err)
	}
	s, err := New(Config{Engine: eng, ZstdLevel: 1, Key: key})
	if err != nil {
		t.Fatal(err)
	}
	await(t, func() bool { return eng.Status().Reason == "" })
	b = &broker{t: t, b: eng, s: s}
	return b, func() {
		t.Helper()
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		for _, err := range []error{eng.Stop(ctx), s.Close(ctx)} {
			if err != nil {
				t.Error(err)
			}
		}
	}
}

// must sends a request straight to the handler.
func (b *broker) must(status int, method, path, body string) []byte {
	b.t.Helper()
	rec := ask(b.s, method, path, body)
	if rec.Code != status {
		b.t.Fatalf("%s %s: %d %s, want %d", method, path, rec.Code, rec.Body, status)
	}
	return rec.Body.Bytes()
}

// find counts the files of a directory that hold a text.
func find(t *testing.T, dir, text string) (files []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		if bytes.Contains(data, []byte(text)) {
			files = append(files, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

type deliveredAnswer struct {
	LeaseID  string
	Messages []struct {
		Data          json.RawMessage
		PartitionID   string
		TransactionID string
	}
}

// TestNoPlaintextOnDisk walks every way by which a payload gets onto the disk
// (push, transaction, timer, dead letter, replay), small, and large enough to be
// compressed and to be a value record, and looks for it in every file: while the
// broker runs, after it stopped, and after it started again.
func TestNoPlaintextOnDisk(t *testing.T) {
	dir := t.TempDir()
	key := sealKey(t, "5a")
	b, stop := keyed(t, dir, key)
	b.must(200, "POST", "/api/v1/configure", `{"queue":"secret","options":{"encryptionEnabled":true,"retryLimit":0}}`)
	b.must(200, "POST", "/api/v1/configure", `{"queue":"vault","options":{"encryptionEnabled":true}}`)
	small := `{"m":"` + marker + `"}`
	large := `{"m":"` + strings.Repeat(marker+" ", 200) + `"}`
	payloads := map[string]string{}
	for i, p := range []string{small, large} {
		push, txn := fmt.Sprintf("push-%d", i), fmt.Sprintf("txn-%d", i)
		b.must(201, "POST", "/api/v1/push", fmt.Sprintf(`{"items":[{"queue":"secret","partition":%q,"transactionId":%q,"payload":%s}]}`, push, push, p))
		b.must(200, "POST", "/api/v1/transaction", fmt.Sprintf(`{"operations":[{"type":"push","items":[{"queue":"secret","partition":%q,"transactionId":%q,"payload":%s}]}],
			"timers":[{"op":"schedule","queue":"secret","partition":"fired","timerKey":%q,"txn":"fired-%d","delayMs":0,"payload":%q}]}`,
			txn, txn, p, txn, i, base64.StdEncoding.EncodeToString([]byte(p))))
		b.must(200, "POST", "/api/v1/timers", fmt.Sprintf(`[{"op":"schedule","queue":"secret","timerKey":"later-%d","delayMs":9000000,"payload":%q}]`, i, base64.StdEncoding.EncodeToString([]byte(p))))
		payloads[push], payloads[txn], payloads[fmt.Sprintf("fired-%d", i)] = p, p, p
	}
	// Everything comes out as it went in; one of them is dead-lettered.
	got := map[string]string{}
	var letter string
	type letterList struct {
		Messages []struct {
			ID            string
			TransactionID string
			Data          json.RawMessage
		}
	}
	var letters letterList
	await(t, func() bool {
		var p deliveredAnswer
		rec := ask(b.s, "GET", "/api/v1/pop/queue/secret?subscriptionMode=all&partitions=8", "")
		if rec.Code == http.StatusOK {
			if err := json.Unmarshal(rec.Body.Bytes(), &p); err != nil {
				t.Fatal(err)
			}
		}
		for _, m := range p.Messages {
			got[m.TransactionID] = string(m.Data)
			b.must(200, "POST", "/api/v1/ack", fmt.Sprintf(`{"transactionId":%q,"partitionId":%q,"leaseId":%q,"status":"failed","error":"x"}`, m.TransactionID, m.PartitionID, p.LeaseID))
		}
		letters = letterList{}
		if err := json.Unmarshal(b.must(200, "GET", "/api/v1/dlq?queue=secret", ""), &letters); err != nil {
			t.Fatal(err)
		}
		return len(letters.Messages) == len(payloads)
	})
	for id, p := range payloads {
		if got[id] != p {
			t.Errorf("%s came out as %.80q", id, got[id])
		}
	}
	for _, l := range letters.Messages {
		if string(l.Data) != payloads[l.TransactionID] {
			t.Errorf("dead letter %s shows %.80q", l.TransactionID, l.Data)
		}
		letter = l.ID
	}
	b.must(200, "POST", "/api/v1/dlq/"+letter+"/replay", `{"queue":"vault"}`)
	for i, p := range []string{small, large} {
		peek := b.must(200, "GET", fmt.Sprintf("/api/v1/timers/secret/later-%d", i), "")
		if !bytes.Contains(peek, []byte(base64.StdEncoding.EncodeToString([]byte(p)))) || !bytes.Contains(peek, []byte(`"encrypted":true`)) {
			t.Errorf("timer: %.200s", peek)
		}
	}
	if list := b.must(200, "GET", "/api/v1/timers/secret", ""); bytes.Count(list, []byte(`"encrypted":true`)) != 2 {
		t.Errorf("timers: %s", list)
	}
	clean := func(when string) {
		t.Helper()
		if files := find(t, dir, marker); len(files) > 0 {
			t.Errorf("%s the plain text is in %q", when, files)
		}
	}
	clean("while the broker runs")
	stop()
	clean("after the stop")

	b, stop = keyed(t, dir, key)
	clean("after the next start")
	vault := b.must(200, "GET", "/api/v1/pop/queue/vault?subscriptionMode=all", "")
	if !bytes.Contains(vault, []byte(marker)) {
		t.Errorf("the replayed message: %s", vault)
	}
	// The check can fail: a queue without the option shows its payload.
	b.must(201, "POST", "/api/v1/push", `{"items":[{"queue":"open","payload":`+small+`}]}`)
	stop()
	if files := find(t, dir, marker); len(files) == 0 {
		t.Error("a payload that is not sealed was not found on the disk either: this test proves nothing")
	}
}

// TestWithoutTheKey: nothing is stored in a queue that seals, nothing else is
// refused, and what is sealed comes out as it lies there.
func TestWithoutTheKey(t *testing.T) {
	dir := t.TempDir()
	b, stop := keyed(t, dir, sealKey(t, "5a"))
	b.must(200, "POST", "/api/v1/configure", `{"queue":"secret","options":{"encryptionEnabled":true,"retryLimit":0}}`)
	b.must(201, "POST", "/api/v1/push", `{"items":[{"queue":"secret","transactionId":"a","payload":{"x":1}},{"queue":"secret","partition":"two","transactionId":"b","payload":{"x":2}}]}`)
	stop()
	for _, key := range []*envelope.Key{nil, sealKey(t, "5b")} {
		b, stop = keyed(t, dir, key)
		body := b.must(200, "GET", "/api/v1/pop/queue/secret?subscriptionMode=all&commitOnDelivery=true&batch=1", "")
		var p deliveredAnswer
		if err := json.Unmarshal(body, &p); err != nil || len(p.Messages) != 1 {
			t.Fatalf("%v %s", err, body)
		}
		var shape map[string]string
		if err := json.Unmarshal(p.Messages[0].Data, &shape); err != nil || len(shape) != 3 || shape["encrypted"] == "" || shape["iv"] == "" || shape["authTag"] == "" {
			t.Errorf("delivered %s", p.Messages[0].Data)
		}
		stop()
	}
	b, stop = keyed(t, dir, nil)
	defer stop()
	commit := func() uint64 { return b.b.Status().Commit }
	digest, _, err := b.b.Digest()
	if err != nil {
		t.Fatal(err)
	}
	before := commit()
	for _, c := range []struct{ method, path, body, want string }{
		{"POST", "/api/v1/push", `{"items":[{"queue":"secret","payload":1}]}`, `"code":"encryption_key_missing"`},
		{"POST", "/api/v1/push", `{"items":[{"queue":"fine","payload":1},{"queue":"secret","payload":1}]}`, `"code":"encryption_key_missing"`},
		{"POST", "/api/v1/transaction", `{"operations":[{"type":"push","queue":"secret","payload":1}],"kv":[{"op":"put","ns":"a","key":"b","value":1,"forever":true}]}`, `"code":"encryption_key_missing"`},
		{"POST", "/api/v1/transaction", `{"timers":[{"op":"schedule","queue":"secret","timerKey":"k","delayMs":1,"payload":"MQ=="}]}`, `"code":"encryption_key_missing"`},
		{"POST", "/api/v1/timers", `[{"op":"schedule","queue":"secret","timerKey":"k","delayMs":1,"payload":"MQ=="}]`, `"reason":"timers_encryption_key_missing"`},
		{"POST", "/api/v1/configure", `{"queue":"more","options":{"encryptionEnabled":true}}`, `QUEEN_ENCRYPTION_KEY`},
	} {
		rec := ask(b.s, c.method, c.path, c.body)
		if rec.Code != http.StatusBadRequest || !strings.Contains(rec.Body.String(), c.want) || rec.Header().Get("Retry-After") != "" {
			t.Errorf("%s %s: %d %s", c.path, c.body, rec.Code, rec.Body)
		}
		if again, _, err := b.b.Digest(); err != nil || again != digest || commit() != before {
			t.Errorf("%s %s: changed something (%v)", c.path, c.body, err)
		}
	}
	// Nothing else is affected, the queue's other calls included.
	b.must(201, "POST", "/api/v1/push", `{"items":[{"queue":"fine","payload":1}]}`)
	b.must(200, "DELETE", "/api/v1/timers/secret/none", "")
	b.must(200, "POST", "/api/v1/configure", `{"queue":"secret","options":{"encryptionEnabled":false}}`)
	b.must(201, "POST", "/api/v1/push", `{"items":[{"queue":"secret","payload":1}]}`)
}

// TestFlagFlips: a change acts on the next push, in both directions, on whatever
// the node believed before; both forms lie in one queue and both come out.
func TestFlagFlips(t *testing.T) {
	dir := t.TempDir()
	b, stop := keyed(t, dir, sealKey(t, "5a"))
	defer stop()
	n := 0
	flip := func(on bool) {
		t.Helper()
		b.must(200, "POST", "/api/v1/configure", fmt.Sprintf(`{"queue":"q","options":{"encryptionEnabled":%v}}`, on))
	}
	push := func() {
		t.Helper()
		n++
		body := fmt.Sprintf(`{"items":[{"queue":"q","payload":"%s %04d"},{"queue":"other","payload":0}]}`, marker, n)
		b.must(201, "POST", "/api/v1/push", body)
	}
	clear := map[int]bool{}
	for _, on := range []bool{false, true, true, false, true, false, false} {
		flip(on)
		for range 2 {
			push()
			clear[n] = !on
		}
	}
	b.must(200, "DELETE", "/api/v1/resources/queues/other", "")
	for i, isClear := range clear {
		text := fmt.Sprintf("%s %04d", marker, i)
		if found := len(find(t, dir, text)) > 0; found != isClear {
			t.Errorf("message %d: on the disk in clear: %v, want %v", i, found, isClear)
		}
	}
	var p deliveredAnswer
	if err := json.Unmarshal(b.must(200, "GET", "/api/v1/pop/queue/q?subscriptionMode=all", ""), &p); err != nil || len(p.Messages) != n {
		t.Fatalf("%v, %d messages, want %d", err, len(p.Messages), n)
	}
	for i, m := range p.Messages {
		if want := fmt.Sprintf(`"%s %04d"`, marker, i+1); string(m.Data) != want {
			t.Errorf("message %d: %s", i+1, m.Data)
		}
	}
}

// TestReplayGoesByTheDestination: out of a queue that seals into one that does
// not, and the other way.
func TestReplayGoesByTheDestination(t *testing.T) {
	dir := t.TempDir()
	b, stop := keyed(t, dir, sealKey(t, "5a"))
	defer stop()
	b.must(200, "POST", "/api/v1/configure", `{"queue":"secret","options":{"encryptionEnabled":true}}`)
	b.must(200, "POST", "/api/v1/configure", `{"queue":"open","options":{}}`)
	replay := func(from, to, text string) {
		t.Helper()
		payload := `"` + text + strings.Repeat(" and more", 20) + `"`
		b.must(201, "POST", "/api/v1/push", fmt.Sprintf(`{"items":[{"queue":%q,"partition":%q,"transactionId":"t","payload":%s}]}`, from, to, payload))
		var p deliveredAnswer
		if err := json.Unmarshal(b.must(200, "GET", "/api/v1/pop/queue/"+from+"/partition/"+to+"?subscriptionMode=all", ""), &p); err != nil {
			t.Fatal(err)
		}
		b.must(200, "POST", "/api/v1/ack", fmt.Sprintf(`{"transactionId":"t","partitionId":%q,"leaseId":%q,"status":"dlq"}`, p.Messages[0].PartitionID, p.LeaseID))
		var l struct{ Messages []struct{ ID string } }
		if err := json.Unmarshal(b.must(200, "GET", "/api/v1/dlq?queue="+from, ""), &l); err != nil {
			t.Fatal(err)
		}
		answer := b.must(200, "POST", "/api/v1/dlq/"+l.Messages[0].ID+"/replay", fmt.Sprintf(`{"queue":%q,"partition":"from-%s"}`, to, from))
		if !bytes.Contains(answer, []byte(`"result":"moved"`)) {
			t.Fatalf("%s", answer)
		}
		out := b.must(200, "GET", "/api/v1/pop/queue/"+to+"/partition/from-"+from+"?subscriptionMode=all", "")
		if !bytes.Contains(out, []byte(payload)) {
			t.Errorf("%s to %s: %s", from, to, out)
		}
	}
	replay("secret", "secret", marker+"1")
	replay("secret", "open", marker+"2")
	for text, onDisk := range map[string]bool{marker + "1": false, marker + "2": true} {
		if found := len(find(t, dir, text)) > 0; found != onDisk {
			t.Errorf("%s: on the disk in clear: %v", text, found)
		}
	}
	replay("open", "secret", marker+"3") // it was clear in its first queue
}

// TestSealedByAnother: a payload of the sealed shape that no key of ours opens is
// data, in every direction.
func TestSealedByAnother(t *testing.T) {
	b, stop := keyed(t, t.TempDir(), sealKey(t, "5a"))
	defer stop()
	b.must(200, "POST", "/api/v1/configure", `{"queue":"secret","options":{"encryptionEnabled":true}}`)
	foreign := string(sealKey(t, "5b").Append(nil, []byte("1")))
	own := string(sealKey(t, "5a").Append(nil, []byte(`{"inside":1}`)))
	for _, c := range []struct{ queue, payload, want string }{
		{"secret", foreign, foreign}, {"open", foreign, foreign}, {"open", own, `{"inside":1}`}, {"secret", own, own},
	} {
		b.must(201, "POST", "/api/v1/push", fmt.Sprintf(`{"items":[{"queue":%q,"payload":%s}]}`, c.queue, c.payload))
		out := b.must(200, "GET", "/api/v1/pop/queue/"+c.queue+"?subscriptionMode=all&commitOnDelivery=true", "")
		if !bytes.Contains(out, []byte(`"data":`+c.want+`,`)) {
			t.Errorf("%s %.40s: %s", c.queue, c.payload, out)
		}
	}
}
