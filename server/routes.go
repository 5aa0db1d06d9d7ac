package server

import "queen/server/tokens"

// Levels of access. Every route names its own; the zero level is none, nobody
// passes it, and New refuses a table that has one.
const (
	public    = tokens.Public
	readOnly  = tokens.ReadOnly
	writeOnly = tokens.WriteOnly
	readWrite = tokens.ReadWrite
	admin     = tokens.Admin
)

// Route is a method and a path that the server answers.
type Route struct{ Method, Path, Level string }

// Routes lists everything that the server answers, for documents and tests.
func Routes() []Route {
	out := make([]Route, len(routes))
	for i, r := range routes {
		out[i] = Route{r.method, r.path, r.level.String()}
	}
	return out
}

// routes is everything that this server answers; other paths and methods are
// 404 no_such_route.
var routes = []route{
	{method: "POST", path: "/api/v1/push", level: writeOnly, handle: (*Server).servePush},
	{method: "GET", path: "/api/v1/pop", level: readWrite, writes: true, waits: true, handle: (*Server).servePopDiscovery},
	{method: "GET", path: "/api/v1/pop/queue/:queue", level: readWrite, writes: true, waits: true, handle: (*Server).servePopQueue},
	{method: "GET", path: "/api/v1/pop/queue/:queue/partition/:partition", level: readWrite, writes: true, waits: true, handle: (*Server).servePopPartition},
	{method: "POST", path: "/api/v1/ack", level: readWrite, writes: true, acks: true, handle: (*Server).serveAck},
	{method: "POST", path: "/api/v1/ack/batch", level: readWrite, writes: true, acks: true, handle: (*Server).serveAckBatch},
	{method: "POST", path: "/api/v1/lease/:leaseId/extend", level: readWrite, writes: true, handle: (*Server).serveExtend},
	{method: "POST", path: "/api/v1/transaction", level: readWrite, writes: true, handle: (*Server).serveTransaction},
	{method: "GET", path: "/api/v1/limits", level: readOnly, handle: (*Server).serveLimits},
	{method: "GET", path: "/api/v1/outcomes/:key", level: readOnly, handle: (*Server).serveOutcome},

	{method: "POST", path: "/api/v1/kv", level: readWrite, family: kvFamily, handle: (*Server).serveKV},
	{method: "GET", path: "/api/v1/kv/:ns/*key", level: readOnly, family: kvFamily, handle: (*Server).serveKVGet},
	{method: "PUT", path: "/api/v1/kv/:ns/*key", level: readWrite, family: kvFamily, handle: (*Server).serveKVPut},
	{method: "DELETE", path: "/api/v1/kv/:ns/*key", level: readWrite, family: kvFamily, handle: (*Server).serveKVDelete},

	{method: "GET", path: "/api/v1/resources/kv/namespaces", level: readOnly, family: kvFamily, handle: (*Server).serveKVNamespaces},
	{method: "POST", path: "/api/v1/resources/kv/list", level: readOnly, family: kvFamily, handle: (*Server).serveKVList},
	{method: "GET", path: "/api/v1/system/kv-timers", level: admin, handle: (*Server).serveKVTimers},
	{method: "POST", path: "/api/v1/system/kv-timers", level: admin, handle: (*Server).serveSetKVTimers},
	{method: "POST", path: "/api/v1/locks", level: readWrite, family: kvFamily, handle: (*Server).serveLocks},

	{method: "POST", path: "/api/v1/timers", level: writeOnly, family: timersFamily, handle: (*Server).serveTimers},
	{method: "GET", path: "/api/v1/timers/:queue", level: readOnly, family: timersFamily, handle: (*Server).serveTimerList},
	{method: "GET", path: "/api/v1/timers/:queue/*timerKey", level: readOnly, family: timersFamily, handle: (*Server).serveTimerPeek},
	{method: "DELETE", path: "/api/v1/timers/:queue/*timerKey", level: readWrite, family: timersFamily, handle: (*Server).serveTimerCancel},

	{method: "POST", path: "/api/v1/configure", level: readWrite, handle: (*Server).serveConfigure},
	{method: "GET", path: "/api/v1/resources/queues", level: readOnly, handle: (*Server).serveQueueList},
	{method: "GET", path: "/api/v1/resources/queues/:queue", level: readOnly, handle: (*Server).serveQueue},
	{method: "GET", path: "/api/v1/resources/queues/:queue/depth", level: readOnly, handle: (*Server).serveQueueDepth},
	{method: "DELETE", path: "/api/v1/resources/queues/:queue", level: admin, handle: (*Server).serveQueueDelete},

	{method: "GET", path: "/api/v1/consumer-groups", level: readOnly, handle: (*Server).serveGroupList},
	{method: "GET", path: "/api/v1/consumer-groups/lagging", level: readOnly, handle: (*Server).serveGroupsLagging},
	{method: "GET", path: "/api/v1/consumer-groups/:group", level: readOnly, handle: (*Server).serveGroup},
	{method: "POST", path: "/api/v1/consumer-groups/positions", level: readWrite, handle: (*Server).servePositions},
	{method: "POST", path: "/api/v1/consumer-groups/:group/subscription", level: readWrite, writes: true, handle: (*Server).serveSubscription},
	{method: "POST", path: "/api/v1/consumer-groups/:group/queues/:queue/seek", level: readWrite, writes: true, handle: (*Server).serveSeek},
	{method: "POST", path: "/api/v1/consumer-groups/:group/queues/:queue/partitions/:partition/seek", level: readWrite, writes: true, handle: (*Server).serveSeekPartition},
	{method: "POST", path: "/api/v1/consumer-groups/:group/queues/:queue/pause", level: readWrite, writes: true, handle: (*Server).serveGroupPause},
	{method: "POST", path: "/api/v1/consumer-groups/:group/queues/:queue/resume", level: readWrite, writes: true, handle: (*Server).serveGroupResume},
	{method: "DELETE", path: "/api/v1/consumer-groups/:group", level: admin, writes: true, handle: (*Server).serveGroupDelete},
	{method: "DELETE", path: "/api/v1/consumer-groups/:group/queues/:queue", level: admin, writes: true, handle: (*Server).serveGroupDeleteQueue},
	{method: "GET", path: "/api/v1/leases", level: readOnly, handle: (*Server).serveLeases},
	{method: "DELETE", path: "/api/v1/leases", level: readWrite, writes: true, handle: (*Server).serveLeaseRelease},

	{method: "GET", path: "/api/v1/dlq", level: readOnly, handle: (*Server).serveDLQ},
	{method: "DELETE", path: "/api/v1/dlq", level: admin, handle: (*Server).serveDLQPurge},
	{method: "POST", path: "/api/v1/dlq/redrive", level: admin, handle: (*Server).serveRedrive},
	{method: "GET", path: "/api/v1/dlq/redrive", level: readOnly, handle: (*Server).serveRedriveList},
	{method: "GET", path: "/api/v1/dlq/redrive/:id", level: readOnly, handle: (*Server).serveRedriveGet},
	{method: "DELETE", path: "/api/v1/dlq/redrive/:id", level: admin, handle: (*Server).serveRedriveCancel},
	{method: "POST", path: "/api/v1/dlq/:id/replay", level: readWrite, handle: (*Server).serveDLQReplay},
	{method: "GET", path: "/api/v1/messages", level: readOnly, handle: (*Server).serveMessages},
	{method: "GET", path: "/api/v1/messages/:partitionId/:transactionId", level: readOnly, handle: (*Server).serveMessage},
	{method: "DELETE", path: "/api/v1/messages/:partitionId/:transactionId", level: readWrite, handle: (*Server).serveMessageDelete},
	{method: "POST", path: "/api/v1/messages/:partitionId/:transactionId/retry", level: readWrite, handle: (*Server).serveMessageRetry},
	{method: "POST", path: "/api/v1/fetch", level: readOnly, handle: (*Server).serveFetch},
	{method: "POST", path: "/api/v1/fetch/offsets", level: readOnly, handle: (*Server).serveFetchOffsets},
	{method: "POST", path: "/api/v1/partitions/changed", level: readOnly, handle: (*Server).serveChanged},

	{method: "POST", path: "/api/v1/traces", level: readWrite, handle: (*Server).serveTrace},
	{method: "GET", path: "/api/v1/traces/names", level: readOnly, handle: (*Server).serveTraceNames},
	{method: "GET", path: "/api/v1/traces/by-name/:traceName", level: readOnly, handle: (*Server).serveTracesByName},
	{method: "GET", path: "/api/v1/traces/:partitionId/:transactionId", level: readOnly, handle: (*Server).serveTracesOf},

	{method: "GET", path: "/api/v1/resources/queues/:queue/sizes", level: readOnly, handle: (*Server).serveQueueSizes},
	{method: "GET", path: "/api/v1/resources/partitions", level: readOnly, handle: (*Server).servePartitions},
	{method: "GET", path: "/api/v1/resources/overview", level: readOnly, handle: (*Server).serveOverview},
	{method: "GET", path: "/api/v1/resources/namespaces", level: readOnly, handle: (*Server).serveNamespaces},
	{method: "GET", path: "/api/v1/resources/tasks", level: readOnly, handle: (*Server).serveTasks},
	{method: "GET", path: "/api/v1/status", level: readOnly, handle: (*Server).serveNodeStatus},
	{method: "GET", path: "/api/v1/status/queues", level: readOnly, handle: (*Server).serveStatusQueues},
	{method: "GET", path: "/api/v1/status/queues/:queue", level: readOnly, handle: (*Server).serveStatusQueue},
	{method: "GET", path: "/api/v1/status/analytics", level: readOnly, handle: (*Server).serveAnalytics},
	{method: "POST", path: "/api/v1/stats/refresh", level: admin, handle: (*Server).serveStatsRefresh},
	{method: "GET", path: "/api/v1/analytics/queue-lag", level: readOnly, handle: (*Server).serveQueueLag},
	{method: "GET", path: "/api/v1/analytics/queue-ops", level: readOnly, handle: (*Server).serveQueueOps},
	{method: "GET", path: "/api/v1/raft/status", level: readWrite, local: true, handle: (*Server).serveRaftStatus},
	{method: "GET", path: "/api/v1/raft/members", level: readWrite, local: true, handle: (*Server).serveRaftMembers},
	{method: "GET", path: "/api/v1/raft/liveness", level: readWrite, local: true, handle: (*Server).serveRaftLiveness},

	{method: "GET", path: "/health", level: public, local: true, handle: (*Server).serveHealth},
	{method: "GET", path: "/status", level: readOnly, local: true, handle: (*Server).serveStatus},
	{method: "GET", path: "/metrics", level: public, local: true, handle: (*Server).serveMetrics},
	{method: "GET", path: "/metrics/prometheus", level: public, local: true, handle: (*Server).servePrometheus},
	{method: "GET", path: "/openapi.json", level: public, local: true, handle: (*Server).serveOpenAPI},
}
