package server

import (
	"bytes"
	"net/http"
	"strings"
	"testing"

	"queen/internal/vfs"
)

// B16: a payload that cannot be read is no delivery. A consumer that commits on
// delivery gets the batch once it can be read again, and the other partitions
// go on meanwhile.
func TestUnreadablePayloadIsNotDelivered(t *testing.T) {
	fs := vfs.NewMem(1)
	b := startBroker(t, fs)
	push := func(partition string) (end int64) {
		t.Helper()
		body := `{"items":[{"queue":"q","partition":"` + partition + `","transactionId":"` + partition + `","payload":"text of ` + partition + `"}]}`
		if status, answer := b.do("POST", "/api/v1/push", body); status != http.StatusCreated {
			t.Fatalf("%d %s", status, answer)
		}
		info, err := fs.Stat("data/log/q1/00000000000000000001.seg")
		if err != nil {
			t.Fatal(err)
		}
		return info.Size
	}
	start := int64(70) // past the file's header and into the first record
	push("p0")
	push("p1")
	flip := func() {
		t.Helper()
		if err := fs.Flip("data/log/q1/00000000000000000001.seg", start, 1); err != nil {
			t.Fatal(err)
		}
	}
	flip()
	for _, mode := range []string{"commitOnDelivery=true", "commitOnDelivery=false"} {
		query := "?consumerGroup=g" + mode + "&subscriptionMode=all&partitions=2&" + mode
		p, ok := b.pop("q" + query)
		if !ok || len(p.Messages) != 1 || p.Messages[0].TransactionID != "p1" {
			t.Fatalf("%s: %+v, want the message of p1 alone", mode, p.Messages)
		}
		if status, body := b.do("GET", "/api/v1/pop/queue/q/partition/p0"+query, ""); status != http.StatusNoContent && status != http.StatusInternalServerError {
			t.Fatalf("%s: the damaged partition answers %d %s", mode, status, body)
		}
	}
	if status, _ := b.do("GET", "/health", ""); status != http.StatusServiceUnavailable {
		t.Errorf("health is %d beside an unreadable payload", status)
	}
	flip()
	for _, mode := range []string{"commitOnDelivery=true", "commitOnDelivery=false"} {
		p, ok := b.pop("q?consumerGroup=g" + mode + "&wait=true&timeout=20000&" + mode)
		if !ok || len(p.Messages) != 1 || p.Messages[0].TransactionID != "p0" || p.Messages[0].DeliveryAttempt != 1 {
			t.Fatalf("%s: %+v, want the message of p0, attempt 1", mode, p.Messages)
		}
	}
}

// B16: a dead letter whose payload cannot be read is listed without it, and the
// node says that it is not well.
func TestUnreadableDeadLetterIsTold(t *testing.T) {
	const file = "data/log/q1/00000000000000000001.seg"
	fs := vfs.NewMem(1)
	b := startBroker(t, fs)
	text := strings.Repeat("poison ", 60) // more than a row holds itself
	b.do("POST", "/api/v1/push", `{"items":[{"queue":"q","partition":"p","transactionId":"t","payload":"`+text+`"}]}`)
	p, ok := b.pop("q?consumerGroup=g&subscriptionMode=all")
	if !ok {
		t.Fatal("nothing to pop")
	}
	m := p.Messages[0]
	if status, answer := b.do("POST", "/api/v1/ack", `{"transactionId":"t","partitionId":"`+m.PartitionID+`","consumerGroup":"g","status":"dlq","error":"x"}`); !strings.Contains(string(answer), `"dlq":true`) {
		t.Fatalf("%d %s", status, answer)
	}
	data, err := vfs.ReadFile(fs, file)
	if err != nil {
		t.Fatal(err)
	}
	at := bytes.LastIndex(data, []byte(text)) // the dead letter's copy stands behind the message
	if first := bytes.Index(data, []byte(text)); first < 0 || first == at {
		t.Fatalf("no two copies of the payload: %d, %d", first, at)
	}
	if err := fs.Flip(file, int64(at), 1); err != nil {
		t.Fatal(err)
	}
	if status, answer := b.do("GET", "/api/v1/dlq?queue=q", ""); status != http.StatusOK || !strings.Contains(string(answer), `"data":null`) {
		t.Errorf("%d %s, want the row without its payload", status, answer)
	}
	if status, answer := b.do("GET", "/health", ""); status != http.StatusServiceUnavailable {
		t.Errorf("health is %d %s beside an unreadable dead letter", status, answer)
	}
}
