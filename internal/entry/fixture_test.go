package entry

import (
	"bytes"
	"encoding/hex"
	"flag"
	"os"
	"strings"
	"testing"
)

var rewrite = flag.Bool("rewrite", false, "write the fixtures anew")

// The bytes of an append record and of the ids record that reclaim makes of it are pinned. When they change on purpose,
// raise RecordVersion, keep the old fixture, and run: go test ./internal/entry -run Fixture -rewrite
func TestIDsRecordFixture(t *testing.T) {
	const name = "testdata/ids.v1"
	var b Builder
	messages := []Message{
		{ID: [16]byte{1, 2, 3, 15: 9}, Minted: true, Payload: []byte("a payload")},
		{ID: [16]byte{4, 15: 1}, Txn: []byte("order-1"), HasTrace: true, TraceID: [16]byte{7}, ProducerSub: []byte("somebody"), Zstd: true, Payload: []byte("another")},
	}
	var packed []byte
	for i := range messages {
		packed = AppendMessage(packed, &messages[i])
	}
	b.Append(3, 17, 400, 1_800_000_000_000_000, 2, packed)
	e, err := Parse(b.Encode(1_800_000_000_000_000))
	if err != nil {
		t.Fatal(err)
	}
	whole := AppendAppendRecord(nil, 77, 5, e.Appends[0].Raw)
	r, err := ParseRecord(whole)
	if err != nil {
		t.Fatal(err)
	}
	ids, err := AppendIDsRecord(nil, &r)
	if err != nil {
		t.Fatal(err)
	}
	got := "append " + hex.EncodeToString(whole) + "\nids " + hex.EncodeToString(ids) + "\n"
	if *rewrite {
		if err := os.WriteFile(name, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("the bytes changed:\n%swant:\n%s", got, want)
	}
	_, text, _ := strings.Cut(strings.TrimSpace(string(want)), "\nids ")
	old, err := hex.DecodeString(text)
	if err != nil {
		t.Fatal(err)
	}
	r, err = ParseRecord(old)
	if err != nil || r.Kind != KindIDs || r.Index != 77 || r.Ordinal != 5 || r.Append.Queue != 3 || r.Append.Partition != 17 || r.Append.First != 400 || r.Append.Count != 2 || r.Append.Time != 1_800_000_000_000_000 {
		t.Fatalf("read back: %+v, %v", r, err)
	}
	rest := r.Append.Messages
	for i := range messages {
		m, next, err := NextMessage(rest)
		if err != nil || m.ID != messages[i].ID || m.Minted != messages[i].Minted || !bytes.Equal(m.Txn, messages[i].Txn) || len(m.Payload)+len(m.ProducerSub) > 0 || m.HasTrace {
			t.Errorf("message %d: %+v, %v", i, m, err)
		}
		rest = next
	}
}
