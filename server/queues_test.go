package server

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"queen/fsm"
	"queen/internal/vfs"
	"queen/raftlog"
)

// retained is what listings tell of the storage of a queue.
type retained struct {
	Name          string `json:"name"`
	RetainedBytes int64  `json:"retainedBytes"`
	Segments      struct {
		Segments int   `json:"segments"`
		Messages int64 `json:"messages"`
	} `json:"segments"`
}

// TestRetainedIsWhatTheLogHolds: small files, so that there are several.
func TestRetainedIsWhatTheLogHolds(t *testing.T) {
	item := `{"items":[{"queue":"a","payload":"` + strings.Repeat("x", 1000) + `"}]}` // below what is compressed
	for _, shards := range []int{0, 1} {
		eng, err := Open(StorageConfig{
			FS: vfs.NewMem(1), Dir: "data", NodeID: 1, Planner: fsm.Config{},
			Group: raftlog.Config{SegmentBytes: 4096, Shards: shards}, Fatal: func(err error) { t.Error(err) },
		})
		if err != nil {
			t.Fatal(err)
		}
		b := serveBroker(t, eng)
		for range 20 {
			if status, body := b.do("POST", "/api/v1/push", item); status != http.StatusCreated {
				t.Fatalf("%d %s", status, body)
			}
		}
		b.do("POST", "/api/v1/push", `{"items":[{"queue":"b","payload":1}]}`)
		var list struct{ Queues []retained }
		getJSON(t, b, "/api/v1/resources/queues", &list)
		x, y := list.Queues[0], list.Queues[1]
		if x.RetainedBytes < 20_000 || x.Segments.Segments < 4 || x.Segments.Messages != 20 {
			t.Errorf("%d shards: %+v", shards, x)
		}
		if shared := y.RetainedBytes == x.RetainedBytes && y.Segments.Segments == x.Segments.Segments; shared != (shards == 1) {
			t.Errorf("%d shards: %+v beside %+v", shards, y, x)
		}
		var detail retained
		getJSON(t, b, "/api/v1/resources/queues/a", &detail)
		if detail != x {
			t.Errorf("the detail says %+v, the list %+v", detail, x)
		}
	}
}

func getJSON(t *testing.T, b *broker, path string, v any) {
	t.Helper()
	status, body := b.do("GET", path, "")
	if status != http.StatusOK {
		t.Fatalf("%d %s", status, body)
	}
	if err := json.Unmarshal(body, v); err != nil {
		t.Fatal(err)
	}
}
