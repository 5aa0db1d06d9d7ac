package server

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"queen/fsm"
	"queen/internal/vfs"
)

// Lists of groups and of their partitions have no pages: they are whole at none,
// one, a page of the state, one more, and where they are sent in pieces.
func TestGroupListsOfEveryLength(t *testing.T) {
	eng, err := Open(StorageConfig{FS: vfs.NewMem(1), Dir: "data", NodeID: 1, Planner: fsm.Config{}, Fatal: func(err error) { t.Error(err) }})
	if err != nil {
		t.Fatal(err)
	}
	b := serveBroker(t, eng)
	groups := 0
	for _, n := range []int{0, 1, readPage, readPage + 1, 2*readPage + 3} {
		for ; groups < n; groups++ {
			path := fmt.Sprintf("/api/v1/pop/queue/q?consumerGroup=g%05d", groups)
			if status, body := b.do("GET", path, ""); status != http.StatusNoContent {
				t.Fatalf("%d %s", status, body)
			}
		}
		var list []struct{ Name string }
		getJSON(t, b, "/api/v1/consumer-groups", &list)
		if len(list) != n {
			t.Fatalf("%d groups of %d", len(list), n)
		}
		for i, g := range list {
			if g.Name != fmt.Sprintf("g%05d", i) {
				t.Fatalf("group %d of %d is %q", i, n, g.Name)
			}
		}
	}
	parts := 0
	for _, n := range []int{0, 1, readPage, readPage + 1, 3*readPage + 7} {
		var items []string
		for ; parts < n; parts++ {
			items = append(items, fmt.Sprintf(`{"queue":"many","partition":"p%d","payload":1}`, parts))
		}
		if n > 0 {
			if status, body := b.do("POST", "/api/v1/push", `{"items":[`+strings.Join(items, ",")+`]}`); status != http.StatusCreated {
				t.Fatalf("%d %s", status, body)
			}
		}
		b.do("GET", "/api/v1/pop/queue/many?consumerGroup=all&subscriptionMode=all&batch=1", "")
		var group map[string]struct {
			Partitions []struct {
				Partition string
				OffsetLag int
			}
		}
		getJSON(t, b, "/api/v1/consumer-groups/all", &group)
		if got := group["many"].Partitions; len(got) != n {
			t.Fatalf("%d partitions of %d", len(got), n)
		}
		for i, p := range group["many"].Partitions {
			if p.Partition != fmt.Sprintf("p%d", i) || p.OffsetLag != 1 {
				t.Fatalf("partition %d of %d is %+v", i, n, p)
			}
		}
		var lagging []map[string]any
		getJSON(t, b, "/api/v1/consumer-groups/lagging?minLagSeconds=0", &lagging)
		if len(lagging) != n {
			t.Fatalf("%d lagging partitions of %d", len(lagging), n)
		}
		var positions struct{ Entries []map[string]any }
		if status, body := b.do("POST", "/api/v1/consumer-groups/all/queues/many/seek", `{"toBeginning":true}`); n > 0 && status != http.StatusOK {
			t.Fatalf("%d %s", status, body)
		}
		status, body := b.do("POST", "/api/v1/consumer-groups/positions", `{"consumerGroup":"all"}`)
		unmarshal(t, status, body, &positions)
		if len(positions.Entries) != n {
			t.Fatalf("%d positions of %d", len(positions.Entries), n)
		}
		var dry struct{ WouldRedeliver, Partitions int }
		if status, body = b.do("POST", "/api/v1/consumer-groups/all/queues/many/seek?dryRun=true", `{"toEnd":true}`); n > 0 {
			if unmarshal(t, status, body, &dry); dry.Partitions != n {
				t.Fatalf("a dry run of %d partitions, want %d", dry.Partitions, n)
			}
		}
	}
}

func unmarshal(t *testing.T, status int, body []byte, v any) {
	t.Helper()
	if status != http.StatusOK {
		t.Fatalf("%d %s", status, body)
	}
	if err := json.Unmarshal(body, v); err != nil {
		t.Fatal(err)
	}
}
