package server

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"queen/internal/entry"
	"queen/internal/vfs"
	"queen/raftlog"
)

// movedClock is the machine's clock, put forward.
type movedClock struct {
	raftlog.Clock
	by atomic.Int64 // nanoseconds
}

func (c *movedClock) Now() raftlog.Times {
	now, by := c.Clock.Now(), c.by.Load()
	return raftlog.Times{Mono: now.Mono + by, Wall: now.Wall + by/1000}
}

// countedEngine counts which payloads are read, by partition and offset.
type countedEngine struct {
	*Broker
	mu   sync.Mutex
	read map[[2]uint64]int
}

func (e *countedEngine) Reader() raftlog.Reader { return countedReader{e.Broker.Reader(), e} }

// reset forgets what was read, and returns it.
func (e *countedEngine) reset() map[[2]uint64]int {
	e.mu.Lock()
	defer e.mu.Unlock()
	read := e.read
	e.read = map[[2]uint64]int{}
	return read
}

type countedReader struct {
	raftlog.Reader
	e *countedEngine
}

func (r countedReader) ReadMessages(queue, partition, from, to uint64, fn func(uint64, int64, *entry.Message) error) error {
	r.e.mu.Lock()
	for o := from; o <= to; o++ { // what is asked for: the reader may stop before fn is called
		r.e.read[[2]uint64{partition, o}]++
	}
	r.e.mu.Unlock()
	return r.Reader.ReadMessages(queue, partition, from, to, fn)
}

// startCounted is a broker whose reads of payloads are counted.
func startCounted(t *testing.T, clock raftlog.Clock) (*Server, *countedEngine) {
	t.Helper()
	eng, err := Open(StorageConfig{FS: vfs.NewMem(1), Dir: "data", NodeID: 1, Fatal: func(err error) { t.Error(err) }, Group: raftlog.Config{Clock: clock}})
	if err != nil {
		t.Fatal(err)
	}
	e := &countedEngine{Broker: eng, read: map[[2]uint64]int{}}
	s, err := New(Config{Engine: e, ZstdLevel: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		for _, err := range []error{eng.Stop(ctx), s.Close(ctx)} {
			if err != nil {
				t.Error(err)
			}
		}
	})
	await(t, func() bool { return eng.Status().Reason == "" })
	return s, e
}

type browsedRow struct {
	ID, TransactionID, PartitionID *string
	Partition, Status              string
	PayloadAvailable               bool
	Offset                         uint64
	CreatedAt                      time.Time
	Payload                        json.RawMessage
}

func browsed(t *testing.T, status int, body []byte) (rows []browsedRow) {
	t.Helper()
	var page struct {
		Messages []browsedRow
		Total    int
	}
	if err := json.Unmarshal(body, &page); status != http.StatusOK || err != nil || page.Total != len(page.Messages) {
		t.Fatalf("%d %s, %v", status, body, err)
	}
	return page.Messages
}

// A window of the past is found by the index: no payload that is newer than it,
// or older, is read, and each of its own once, however much came later.
func TestHistoricalWindowReadsItsOwnPayloads(t *testing.T) {
	clock := &movedClock{Clock: raftlog.SystemClock()}
	s, e := startCounted(t, clock)
	const ages, parts, each = 4, 5, 7
	for age := range ages {
		var items []string
		for p := range parts {
			for i := range each {
				items = append(items, fmt.Sprintf(`{"queue":"q","partition":"p%d","transactionId":"a%d-%d","payload":%d}`, p, age, i, age))
			}
		}
		half := len(items) / 2 // a window's messages are of more than one append
		for _, list := range [][]string{items[:half], items[half:]} {
			expect(t, ask(s, "POST", "/api/v1/push", `{"items":[`+strings.Join(list, ",")+`]}`), http.StatusCreated)
		}
		clock.by.Add(int64(10 * time.Minute))
	}
	e.reset()
	rec := ask(s, "GET", "/api/v1/messages?limit=1000", "")
	all := browsed(t, rec.Code, rec.Body.Bytes())
	if len(all) != ages*parts*each || len(e.reset()) != len(all) {
		t.Fatalf("%d rows, want %d", len(all), ages*parts*each)
	}
	for age := range ages {
		var at time.Time
		for _, r := range all {
			if strings.HasPrefix(*r.TransactionID, fmt.Sprintf("a%d-", age)) {
				at = r.CreatedAt
			}
		}
		window := "from=" + at.Add(-2*time.Minute).UTC().Format("2006-01-02T15:04:05Z") + "&to=" + at.Add(2*time.Minute).UTC().Format("2006-01-02T15:04:05Z")
		for filter, want := range map[string]int{
			"": parts * each, "&queue=q&partition=p3": each, "&limit=3": 3, "&limit=4&offset=30": 4, "&offset=33&limit=9": 2,
			"&status=completed": 0, "&status=pending": parts * each, "&status=pending&limit=2&offset=1": 2,
		} {
			rec := ask(s, "GET", "/api/v1/messages?"+window+filter, "")
			rows := browsed(t, rec.Code, rec.Body.Bytes())
			read := e.reset()
			if len(rows) != want || len(read) != want {
				t.Errorf("window %d%s: %d rows and %d payloads read, want %d", age, filter, len(rows), len(read), want)
			}
			for _, r := range rows {
				if string(r.Payload) != fmt.Sprint(age) || !r.PayloadAvailable {
					t.Errorf("window %d%s: a row of %s", age, filter, r.Payload)
				}
				var id uint64
				if _, err := fmt.Sscan(*r.PartitionID, &id); err != nil || read[[2]uint64{id, r.Offset}] != 1 {
					t.Errorf("window %d%s: partition %s, offset %d was read %d times", age, filter, *r.PartitionID, r.Offset, read[[2]uint64{id, r.Offset}])
				}
			}
		}
	}
}

// One payload that cannot be read costs its own row, and no other: in a page, as
// a single message, and in a fetch, where what stands before it comes and then
// an error, and the other entries of the call are whole.
func TestUnreadablePayloadInAPage(t *testing.T) {
	const file = "data/log/q1/00000000000000000001.seg"
	fs := vfs.NewMem(1)
	b := startBroker(t, fs)
	for i, text := range []string{"first", "second", "third"} {
		for _, partition := range []string{"p0", "p1"} {
			body := fmt.Sprintf(`{"items":[{"queue":"q","partition":%q,"transactionId":"t%d","payload":%q}]}`, partition, i, text+" of "+partition)
			if status, answer := b.do("POST", "/api/v1/push", body); status != http.StatusCreated {
				t.Fatalf("%d %s", status, answer)
			}
		}
	}
	data, err := vfs.ReadFile(fs, file)
	if err != nil {
		t.Fatal(err)
	}
	at := bytes.Index(data, []byte("second of p0"))
	if at < 0 || bytes.Count(data, []byte("second of p0")) != 1 {
		t.Fatal("the payload is not in the file once")
	}
	flip := func() {
		t.Helper()
		if err := fs.Flip(file, int64(at), 1); err != nil {
			t.Fatal(err)
		}
	}
	flip()
	status, body := b.do("GET", "/api/v1/messages?queue=q", "")
	rows := browsed(t, status, body)
	if len(rows) != 6 {
		t.Fatalf("%d rows, want all 6: %s", len(rows), body)
	}
	var damaged browsedRow
	for _, r := range rows {
		if r.PayloadAvailable {
			if r.TransactionID == nil || !bytes.Contains(r.Payload, []byte(" of "+r.Partition)) {
				t.Errorf("a row that can be read: %+v", r)
			}
			continue
		}
		if damaged.Partition != "" {
			t.Errorf("a second row without payload: %+v", r)
		}
		damaged = r
	}
	if damaged.Partition != "p0" || damaged.Offset != 1 || damaged.Status != "pending" || string(damaged.Payload) != "null" || damaged.TransactionID != nil {
		t.Errorf("the damaged row is %+v", damaged)
	}
	if status, body := b.do("GET", "/api/v1/messages/"+*damaged.PartitionID+"/t1", ""); status != http.StatusOK || !bytes.Contains(body, []byte(`"payloadAvailable":false`)) {
		t.Errorf("the message alone: %d %s", status, body)
	}
	if status, _ := b.do("GET", "/health", ""); status != http.StatusServiceUnavailable {
		t.Errorf("health is %d beside an unreadable payload", status)
	}
	fetch := func(offset, wait int) (entries []struct {
		Error   *string
		Records []struct {
			Offset  int
			Payload string
		}
	}) {
		t.Helper()
		status, body := b.do("POST", "/api/v1/fetch", fmt.Sprintf(
			`{"entries":[{"queue":"q","partition":"p0","offset":%d},{"queue":"q","partition":"p1","offset":0}],"maxWaitMs":%d,"minBytes":1000}`, offset, wait))
		var answer struct {
			Entries json.RawMessage
		}
		unmarshal(t, status, body, &answer)
		if err := json.Unmarshal(answer.Entries, &entries); err != nil || len(entries) != 2 {
			t.Fatalf("%s, %v", body, err)
		}
		if e := entries[1]; e.Error != nil || len(e.Records) != 3 || e.Records[1].Payload != "second of p1" {
			t.Errorf("from %d: the entry beside it is %+v", offset, e)
		}
		return entries
	}
	if e := fetch(0, 20_000)[0]; e.Error != nil || len(e.Records) != 1 || e.Records[0].Payload != "first of p0" {
		t.Errorf("before the damage: %+v", e)
	}
	if e := fetch(1, 20_000)[0]; e.Error == nil || *e.Error != storageError || len(e.Records) != 0 {
		t.Errorf("at the damage: %+v", e)
	}
	if e := fetch(2, 0)[0]; e.Error != nil || len(e.Records) != 1 || e.Records[0].Payload != "third of p0" {
		t.Errorf("behind the damage: %+v", e)
	}
	flip()
	if e := fetch(0, 0)[0]; e.Error != nil || len(e.Records) != 3 {
		t.Errorf("after the repair: %+v", e)
	}
}

// Of many replays of one dead letter at once one moves it; the others are told
// that it is gone, and the queue has one message more.
func TestReplaysOfOneLetterAtOnce(t *testing.T) {
	const callers = 20
	b := startBroker(t, vfs.NewMem(1))
	for round, path := range []string{"id", "address"} {
		queue := fmt.Sprint("q", round)
		b.do("POST", "/api/v1/push", fmt.Sprintf(`{"items":[{"queue":%q,"partition":"p","transactionId":"t","payload":"poison"}]}`, queue))
		p, ok := b.pop(queue + "?consumerGroup=g&subscriptionMode=all")
		if !ok {
			t.Fatal("nothing to pop")
		}
		partition := p.Messages[0].PartitionID
		if _, answer := b.do("POST", "/api/v1/ack", fmt.Sprintf(`{"transactionId":"t","partitionId":%q,"consumerGroup":"g","status":"dlq","error":"x"}`, partition)); !bytes.Contains(answer, []byte(`"dlq":true`)) {
			t.Fatalf("%s", answer)
		}
		var list struct{ Messages []struct{ ID string } }
		getJSON(t, b, "/api/v1/dlq?queue="+queue, &list)
		if len(list.Messages) != 1 {
			t.Fatalf("%d dead letters", len(list.Messages))
		}
		target := "/api/v1/dlq/" + list.Messages[0].ID + "/replay"
		if path == "address" {
			target = "/api/v1/messages/" + partition + "/t/retry"
		}
		statuses := make([]int, callers)
		answers := make([]string, callers)
		var ready, done sync.WaitGroup
		start := make(chan struct{})
		for i := range callers {
			ready.Add(1)
			done.Go(func() {
				ready.Done()
				<-start
				status, answer := b.do("POST", target, "")
				statuses[i], answers[i] = status, string(answer)
			})
		}
		ready.Wait()
		close(start)
		done.Wait()
		moved := 0
		for i, status := range statuses {
			switch {
			case status == http.StatusOK && strings.Contains(answers[i], `"result":"moved"`) && strings.Contains(answers[i], `"dlqRowRemoved":true`):
				moved++
			case status != http.StatusNotFound:
				t.Errorf("by %s, caller %d: %d %s", path, i, status, answers[i])
			}
		}
		status, body := b.do("GET", "/api/v1/messages?queue="+queue, "")
		rows := browsed(t, status, body)
		txns := []string{}
		for _, r := range rows {
			txns = append(txns, *r.TransactionID)
		}
		slices.Sort(txns)
		if moved != 1 || !slices.Equal(txns, []string{"dlq:" + list.Messages[0].ID, "t"}) {
			t.Errorf("by %s: %d callers moved it, the queue has %q", path, moved, txns)
		}
		getJSON(t, b, "/api/v1/dlq?queue="+queue, &list)
		if len(list.Messages) != 0 {
			t.Errorf("by %s: %d dead letters are left", path, len(list.Messages))
		}
	}
}
