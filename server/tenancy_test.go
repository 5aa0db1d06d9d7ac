package server

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"time"

	"queen/fsm"
	"queen/internal/vfs"
	"queen/raftlog"
)

// tenantRow is what a stranger sends to a route: names and ids of what another
// tenant, the owner, has. {P}, {L}, {D} and {J} stand for the ids of its
// partition, lease, dead letter (of m5) and redrive. Every name of the owner starts with "vault".
type tenantRow struct {
	path    string // with values for the parameters, and a query
	body    string
	changes bool // it is no read
}

// shared are the routes that are not about a tenant, and why.
var sharedRoutes = map[string]string{
	"GET /api/v1/limits":            "the bounds of the node and its use of them: of memory and disk that all tenants share; no name is in it",
	"GET /api/v1/system/kv-timers":  "a switch of the whole cluster",
	"POST /api/v1/system/kv-timers": "a switch of the whole cluster",
	"POST /api/v1/stats/refresh":    "says that statistics are always fresh",
	"GET /api/v1/raft/status":       "the state of the node",
	"GET /api/v1/raft/members":      "the state of the cluster",
	"GET /api/v1/raft/liveness":     "the state of the cluster",
	"GET /openapi.json":             "the description of the API, the same for everybody",
	"GET /health":                   "the state of the node, for load balancers",
	"GET /status":                   "the state of the node",
	"GET /metrics":                  "measurements of the node, for operators; its queues are those of the default tenant",
	"GET /metrics/prometheus":       "measurements of the node, for operators; its queues are those of the default tenant",
}

const vaultBatch = `{"transactionId":"m7","partitionId":"{P}","consumerGroup":"vault-g","leaseId":"{L}","status":"completed"}`

// tenantRoutes has what is sent to each of the others. The order of the route
// table is that of the calls, but calls of the owner that remove what others
// need come last (removesLast).
var tenantRoutes = map[string]tenantRow{
	"POST /api/v1/push":                                      {path: "/api/v1/push", body: `{"items":[{"queue":"vault-q","partition":"vault-p","transactionId":"m1","payload":1}]}`, changes: true},
	"GET /api/v1/pop":                                        {path: "/api/v1/pop?namespace=vault-ns&consumerGroup=vault-d&subscriptionMode=all", changes: true},
	"GET /api/v1/pop/queue/:queue":                           {path: "/api/v1/pop/queue/vault-q?consumerGroup=vault-e&subscriptionMode=all", changes: true},
	"GET /api/v1/pop/queue/:queue/partition/:partition":      {path: "/api/v1/pop/queue/vault-q/partition/vault-p?consumerGroup=vault-f&subscriptionMode=all", changes: true},
	"POST /api/v1/ack":                                       {path: "/api/v1/ack", body: vaultBatch, changes: true},
	"POST /api/v1/ack/batch":                                 {path: "/api/v1/ack/batch", body: `{"consumerGroup":"vault-g","acknowledgments":[` + vaultBatch + `]}`, changes: true},
	"POST /api/v1/lease/:leaseId/extend":                     {path: "/api/v1/lease/{L}/extend", body: `{"seconds":900}`, changes: true},
	"POST /api/v1/transaction":                               {path: "/api/v1/transaction", body: `{"operations":[{"type":"ack","transactionId":"m8","partitionId":"{P}","consumerGroup":"vault-g","leaseId":"{L}"}],"requiredLeases":["{L}"]}`, changes: true},
	"GET /api/v1/outcomes/:key":                              {path: "/api/v1/outcomes/vault-k?route=push"},
	"POST /api/v1/kv":                                        {path: "/api/v1/kv", body: `{"operations":[{"op":"put","ns":"vault-n","key":"vault-key","value":2,"forever":true,"expect":1},{"op":"getPrefix","ns":"vault-n","prefix":"v"}]}`, changes: true},
	"GET /api/v1/kv/:ns/*key":                                {path: "/api/v1/kv/vault-n/vault-key"},
	"PUT /api/v1/kv/:ns/*key":                                {path: "/api/v1/kv/vault-n/vault-key", body: `{"value":3,"forever":true}`, changes: true},
	"DELETE /api/v1/kv/:ns/*key":                             {path: "/api/v1/kv/vault-n/vault-key", changes: true},
	"GET /api/v1/resources/kv/namespaces":                    {path: "/api/v1/resources/kv/namespaces"},
	"POST /api/v1/resources/kv/list":                         {path: "/api/v1/resources/kv/list", body: `{"namespace":"vault-n"}`},
	"POST /api/v1/locks":                                     {path: "/api/v1/locks", body: `{"operations":[{"op":"acquire","name":"vault-lock","ttlSeconds":60,"owner":"other"}]}`, changes: true},
	"POST /api/v1/timers":                                    {path: "/api/v1/timers", body: `{"operations":[{"op":"cancel","queue":"vault-q","timerKey":"vault-timer"},{"op":"schedule","queue":"vault-q","timerKey":"vault-timer-2","delayMs":7200000,"payload":"MQ=="}]}`, changes: true},
	"GET /api/v1/timers/:queue":                              {path: "/api/v1/timers/vault-q"},
	"GET /api/v1/timers/:queue/*timerKey":                    {path: "/api/v1/timers/vault-q/vault-timer-2"},
	"DELETE /api/v1/timers/:queue/*timerKey":                 {path: "/api/v1/timers/vault-q/vault-timer-2", changes: true},
	"POST /api/v1/configure":                                 {path: "/api/v1/configure", body: `{"queue":"vault-q","options":{"priority":1}}`, changes: true},
	"GET /api/v1/resources/queues":                           {path: "/api/v1/resources/queues"},
	"GET /api/v1/resources/queues/:queue":                    {path: "/api/v1/resources/queues/vault-q"},
	"GET /api/v1/resources/queues/:queue/depth":              {path: "/api/v1/resources/queues/vault-q/depth?group=vault-g"},
	"DELETE /api/v1/resources/queues/:queue":                 {path: "/api/v1/resources/queues/vault-q", changes: true},
	"GET /api/v1/consumer-groups":                            {path: "/api/v1/consumer-groups"},
	"GET /api/v1/consumer-groups/lagging":                    {path: "/api/v1/consumer-groups/lagging?minLagSeconds=0"},
	"GET /api/v1/consumer-groups/:group":                     {path: "/api/v1/consumer-groups/vault-g"},
	"POST /api/v1/consumer-groups/positions":                 {path: "/api/v1/consumer-groups/positions", body: `{"consumerGroup":"vault-g","entries":[{"queue":"vault-q","partition":"vault-p"}]}`},
	"POST /api/v1/consumer-groups/:group/subscription":       {path: "/api/v1/consumer-groups/vault-g/subscription", body: `{"subscriptionTimestamp":"2026-01-01T00:00:00Z"}`, changes: true},
	"POST /api/v1/consumer-groups/:group/queues/:queue/seek": {path: "/api/v1/consumer-groups/vault-g/queues/vault-q/seek", body: `{"toEnd":true}`, changes: true},
	"POST /api/v1/consumer-groups/:group/queues/:queue/partitions/:partition/seek": {path: "/api/v1/consumer-groups/vault-g/queues/vault-q/partitions/vault-p/seek", body: `{"toBeginning":true}`, changes: true},
	"POST /api/v1/consumer-groups/:group/queues/:queue/pause":                      {path: "/api/v1/consumer-groups/vault-g/queues/vault-q/pause", changes: true},
	"POST /api/v1/consumer-groups/:group/queues/:queue/resume":                     {path: "/api/v1/consumer-groups/vault-g/queues/vault-q/resume", changes: true},
	"DELETE /api/v1/consumer-groups/:group":                                        {path: "/api/v1/consumer-groups/vault-g", changes: true},
	"DELETE /api/v1/consumer-groups/:group/queues/:queue":                          {path: "/api/v1/consumer-groups/vault-h/queues/vault-q", changes: true},
	"GET /api/v1/leases":    {path: "/api/v1/leases"},
	"DELETE /api/v1/leases": {path: "/api/v1/leases?worker=vault-w", changes: true},

	"GET /api/v1/dlq":                                         {path: "/api/v1/dlq"},
	"DELETE /api/v1/dlq":                                      {path: "/api/v1/dlq?queue=vault-q", changes: true},
	"POST /api/v1/dlq/redrive":                                {path: "/api/v1/dlq/redrive", body: `{"queue":"vault-q","destination":{"queue":"vault-r"},"limit":1}`, changes: true},
	"GET /api/v1/dlq/redrive":                                 {path: "/api/v1/dlq/redrive"},
	"GET /api/v1/dlq/redrive/:id":                             {path: "/api/v1/dlq/redrive/{J}"},
	"DELETE /api/v1/dlq/redrive/:id":                          {path: "/api/v1/dlq/redrive/{J}", changes: true},
	"POST /api/v1/dlq/:id/replay":                             {path: "/api/v1/dlq/{D}/replay", body: `{"queue":"vault-r"}`, changes: true},
	"GET /api/v1/messages":                                    {path: "/api/v1/messages"},
	"GET /api/v1/messages/:partitionId/:transactionId":        {path: "/api/v1/messages/{P}/m8"},
	"DELETE /api/v1/messages/:partitionId/:transactionId":     {path: "/api/v1/messages/{P}/m3", changes: true},
	"POST /api/v1/messages/:partitionId/:transactionId/retry": {path: "/api/v1/messages/{P}/m4/retry", changes: true},
	"POST /api/v1/fetch":                                      {path: "/api/v1/fetch", body: `{"entries":[{"queue":"vault-q","partition":"vault-p","offset":0}]}`},
	"POST /api/v1/fetch/offsets":                              {path: "/api/v1/fetch/offsets", body: `{"entries":[{"queue":"vault-q","partition":"vault-p","timestamp":"2026-01-01T00:00:00Z"}]}`},
	"POST /api/v1/partitions/changed":                         {path: "/api/v1/partitions/changed", body: `{"entries":[{"queue":"vault-q"}]}`},
	"POST /api/v1/traces":                                     {path: "/api/v1/traces", body: `{"partitionId":"{P}","transactionId":"m8","data":2,"traceNames":["vault-trace"]}`, changes: true},
	"GET /api/v1/traces/names":                                {path: "/api/v1/traces/names"},
	"GET /api/v1/traces/by-name/:traceName":                   {path: "/api/v1/traces/by-name/vault-trace"},
	"GET /api/v1/traces/:partitionId/:transactionId":          {path: "/api/v1/traces/{P}/m8"},
	"GET /api/v1/resources/queues/:queue/sizes":               {path: "/api/v1/resources/queues/vault-q/sizes"},
	"GET /api/v1/resources/partitions":                        {path: "/api/v1/resources/partitions"},
	"GET /api/v1/resources/overview":                          {path: "/api/v1/resources/overview"},
	"GET /api/v1/resources/namespaces":                        {path: "/api/v1/resources/namespaces"},
	"GET /api/v1/resources/tasks":                             {path: "/api/v1/resources/tasks"},
	"GET /api/v1/status":                                      {path: "/api/v1/status"},
	"GET /api/v1/status/queues":                               {path: "/api/v1/status/queues"},
	"GET /api/v1/status/queues/:queue":                        {path: "/api/v1/status/queues/vault-q"},
	"GET /api/v1/status/analytics":                            {path: "/api/v1/status/analytics?interval=minute"},
	"GET /api/v1/analytics/queue-lag":                         {path: "/api/v1/analytics/queue-lag"},
	"GET /api/v1/analytics/queue-ops":                         {path: "/api/v1/analytics/queue-ops"},
}

// removesLast are the owner's own calls that take away what the other rows name,
// in the order in which they may go.
var removesLast = []string{
	"DELETE /api/v1/leases", "DELETE /api/v1/timers/:queue/*timerKey", "DELETE /api/v1/messages/:partitionId/:transactionId",
	"POST /api/v1/dlq/:id/replay", "POST /api/v1/messages/:partitionId/:transactionId/retry", "POST /api/v1/dlq/redrive", "DELETE /api/v1/dlq",
	"DELETE /api/v1/kv/:ns/*key",
	"DELETE /api/v1/consumer-groups/:group/queues/:queue", "DELETE /api/v1/consumer-groups/:group", "DELETE /api/v1/resources/queues/:queue",
}

// frozenClock is a clock that stands; its timers run.
type frozenClock struct {
	raftlog.Clock
	now raftlog.Times
}

func (c frozenClock) Now() raftlog.Times { return c.now }

// tenants is a broker with tenants.
type tenants struct {
	t *testing.T
	s *Server
}

func startTenants(t *testing.T) *tenants {
	now := time.Date(2026, 11, 3, 8, 15, 30, 0, time.UTC)
	engine, err := Open(StorageConfig{FS: vfs.NewMem(1), Dir: "data", NodeID: 1, Planner: fsm.Config{}, Fatal: func(err error) { t.Error(err) },
		Group: raftlog.Config{Clock: frozenClock{raftlog.SystemClock(), raftlog.Times{Mono: 1, Wall: now.UnixMicro()}}}})
	if err != nil {
		t.Fatal(err)
	}
	s, err := New(Config{Engine: engine, Metrics: true, ZstdLevel: 1, Tenancy: true, Clock: func() time.Time { return now }})
	if err != nil {
		t.Fatal(err)
	}
	await(t, func() bool { return engine.Status().Reason == "" })
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		for _, err := range []error{s.Shutdown(ctx), engine.Stop(ctx), s.Close(ctx)} {
			if err != nil {
				t.Error(err)
			}
		}
	})
	return &tenants{t, s}
}

// tenantID is the id of the n-th tenant of a kind.
func tenantID(kind string, n int) string {
	return fmt.Sprintf("00000000-0000-4000-8000-%s%09d", kind, n)
}

func (b *tenants) ask(tenant, method, path, body string, header ...string) *httptest.ResponseRecorder {
	return ask(b.s, method, path, body, append(header, "X-Queen-Tenant", tenant)...)
}

// must is ask for a call that has to succeed; into takes its answer.
func (b *tenants) must(tenant, method, path, body string, into any, header ...string) {
	b.t.Helper()
	rec := b.ask(tenant, method, path, body, header...)
	if rec.Code/100 != 2 || strings.Contains(rec.Body.String(), `"success":false`) {
		b.t.Fatalf("%s %s: %d %s", method, path, rec.Code, rec.Body)
	}
	if into != nil {
		if err := json.Unmarshal(rec.Body.Bytes(), into); err != nil {
			b.t.Fatalf("%s %s: %v in %s", method, path, err, rec.Body)
		}
	}
}

// vault gives a tenant something of every kind and returns the ids of it.
func (b *tenants) vault(owner string) map[string]string {
	b.must(owner, "POST", "/api/v1/configure", `{"queue":"vault-q","namespace":"vault-ns","task":"vault-task","options":{}}`, nil)
	items := make([]string, 9)
	for i := range items {
		items[i] = fmt.Sprintf(`{"queue":"vault-q","partition":"vault-p","transactionId":"m%d","payload":"vault %d"}`, i+1, i+1)
	}
	b.must(owner, "POST", "/api/v1/push", `{"items":[`+strings.Join(items, ",")+`]}`, nil, "Idempotency-Key", "vault-k")
	var p popAnswer
	pop := func(group string) {
		p = popAnswer{}
		b.must(owner, "GET", "/api/v1/pop/queue/vault-q/partition/vault-p?subscriptionMode=all&batch=6&consumerGroup="+group, "", &p, "X-Queen-Worker", "vault-w")
	}
	pop("vault-h")
	pop("vault-g")
	partition := p.Messages[0].PartitionID
	var acks []string
	for _, txn := range []string{"m1", "m2", "m3", "m4", "m5", "m6"} {
		acks = append(acks, fmt.Sprintf(`{"transactionId":%q,"partitionId":%q,"leaseId":%q,"status":"dlq"}`, txn, partition, p.LeaseID))
	}
	b.must(owner, "POST", "/api/v1/ack/batch", `{"consumerGroup":"vault-g","acknowledgments":[`+strings.Join(acks, ",")+`]}`, nil)
	pop("vault-g")
	b.must(owner, "POST", "/api/v1/kv", `{"operations":[{"op":"put","ns":"vault-n","key":"vault-key","value":"vault","forever":true}]}`, nil)
	b.must(owner, "POST", "/api/v1/locks", `{"operations":[{"op":"acquire","name":"vault-lock","ttlSeconds":3600,"owner":"vault-w"}]}`, nil)
	b.must(owner, "POST", "/api/v1/timers", `{"operations":[{"op":"schedule","queue":"vault-q","timerKey":"vault-timer","delayMs":3600000,"payload":"MQ=="},
		{"op":"schedule","queue":"vault-q","timerKey":"vault-timer-2","delayMs":3600000,"payload":"MQ=="}]}`, nil)
	b.must(owner, "POST", "/api/v1/traces", `{"partitionId":"`+partition+`","transactionId":"m8","data":"vault","traceNames":["vault-trace"]}`, nil)
	var job struct{ ID, State string }
	b.must(owner, "POST", "/api/v1/dlq/redrive", `{"queue":"vault-q","destination":{"queue":"vault-r"},"limit":1}`, &job)
	await(b.t, func() bool {
		b.must(owner, "GET", "/api/v1/dlq/redrive/"+job.ID, "", &job)
		return job.State != "running"
	})
	var letters struct {
		Messages []struct{ ID, TransactionID string }
	}
	b.must(owner, "GET", "/api/v1/dlq", "", &letters)
	for _, l := range letters.Messages {
		if l.TransactionID == "m5" {
			return map[string]string{"{P}": partition, "{L}": p.LeaseID, "{D}": l.ID, "{J}": job.ID}
		}
	}
	b.t.Fatalf("m5 is no dead letter: %+v", letters)
	return nil
}

// idsNobodyHas are ids as those of vault, of nothing.
var idsNobodyHas = map[string]string{
	"{P}": "999999999", "{L}": "01900000-0000-7000-8000-000000000001", "{D}": "01900000-0000-7000-8000-000000000002",
	"{J}": "01900000-0000-7000-8000-000000000003",
}

// passing is what differs between any two calls that do the same: ids, the
// numbers of partitions and queues, versions of keys and tokens of
// locks, which one counter of the broker gives, and the microseconds by which broker time rises with each write.
var passing = regexp.MustCompile(`"(?:partitionId|partition_id|queueId)":"[0-9]+"|"(?:version|token|expect)":[0-9]+|\.[0-9]{6}Z|` +
	`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`)

// send makes a row's call and returns the answer, without what is passing and as
// it is.
func (b *tenants) send(tenant, key string, ids map[string]string) (answer, raw string) {
	row := tenantRoutes[key]
	var pairs []string
	for name, id := range ids {
		pairs = append(pairs, name, id)
	}
	fill := strings.NewReplacer(pairs...)
	method, _, _ := strings.Cut(key, " ")
	rec := b.ask(tenant, method, fill.Replace(row.path), fill.Replace(row.body))
	raw = fmt.Sprintf("%d %s", rec.Code, rec.Body)
	return passing.ReplaceAllString(raw, "<>"), raw
}

// TestTenantsAreApart goes through every route. A stranger that asks for what
// the owner has, by its names and ids, hears what it would hear if there were no
// owner; the owner's own view is the same afterwards; and the same call of the
// owner has another answer or changes its view, so that the row can tell.
func TestTenantsAreApart(t *testing.T) {
	var keys []string
	for _, rt := range routes {
		key := rt.method + " " + rt.path
		_, scoped := tenantRoutes[key]
		_, shared := sharedRoutes[key]
		if scoped == shared {
			t.Errorf("%s must stand in one of tenantRoutes and sharedRoutes: what does it tell a tenant about others?", key)
		}
		if scoped {
			keys = append(keys, key)
		}
	}
	if len(keys) != len(tenantRoutes) || len(keys)+len(sharedRoutes) != len(routes) {
		t.Errorf("%d rows and %d shared routes for %d routes: some are of no route", len(tenantRoutes), len(sharedRoutes), len(routes))
	}

	b := startTenants(t)
	alone := map[string]string{}
	for i, key := range keys {
		alone[key], _ = b.send(tenantID("aaa", i), key, idsNobodyHas)
	}
	owner := tenantID("ccc", 0)
	ids := b.vault(owner)
	view := func() map[string]string {
		v := map[string]string{}
		for _, key := range keys {
			if !tenantRoutes[key].changes {
				v[key], _ = b.send(owner, key, ids)
			}
		}
		return v
	}
	before := view()
	for i, key := range keys {
		answer, raw := b.send(tenantID("bbb", i), key, ids)
		if answer != alone[key] {
			t.Errorf("%s: a stranger hears of the owner:\n got %s\nwant %s", key, answer, alone[key])
		}
		if strings.Contains(raw, `"vault `) || strings.Contains(raw, `"vault"`) {
			t.Errorf("%s: a stranger gets a payload of the owner: %s", key, raw)
		}
	}
	for key, is := range view() {
		if is != before[key] {
			t.Errorf("a stranger changed what %s tells the owner:\n was %s\n is  %s", key, before[key], is)
		}
	}
	for key := range sharedRoutes {
		method, path, _ := strings.Cut(key, " ")
		if rec := b.ask(tenantID("bbb", 0), method, path, "{}"); rec.Code/100 == 5 || strings.Contains(rec.Body.String(), "vault") {
			t.Errorf("%s names what is the owner's: %d %s", key, rec.Code, rec.Body)
		}
	}
	last := map[string]bool{}
	for _, key := range removesLast {
		last[key] = true
	}
	var calls []string
	for _, key := range keys {
		if !last[key] {
			calls = append(calls, key)
		}
	}
	for _, key := range append(calls, removesLast...) {
		was := view()
		if answer, raw := b.send(owner, key, ids); answer == alone[key] && maps.Equal(view(), was) {
			t.Errorf("%s: the owner's own call does what a stranger's does, so this row proves nothing: %s", key, raw)
		}
	}
}

// TestTenantsDoNotWake: what one tenant pushes does not end the wait of another
// for a queue of the same name, and its own push does.
func TestTenantsDoNotWake(t *testing.T) {
	b := startTenants(t)
	waits, pushes := tenantID("aaa", 1), tenantID("bbb", 1)
	answer := make(chan string, 1)
	go func() {
		rec := b.ask(waits, "GET", "/api/v1/pop/queue/vault-q?subscriptionMode=all&wait=true&timeout=20000", "")
		answer <- fmt.Sprintf("%d %s", rec.Code, rec.Body)
	}()
	await(t, func() bool { return b.s.engine.Status().Parked == 1 })
	push := func(tenant, payload string) {
		b.must(tenant, "POST", "/api/v1/push", `{"items":[{"queue":"vault-q","transactionId":"m","payload":"`+payload+`"}]}`, nil)
	}
	push(pushes, "foreign")
	if n := b.s.engine.Status().Parked; n != 1 {
		t.Errorf("%d pops wait after the push of another tenant, want 1", n)
	}
	push(waits, "own")
	if got := <-answer; !strings.HasPrefix(got, "200 ") || !strings.Contains(got, `"own"`) {
		t.Errorf("the pop got %s", got)
	}
}
