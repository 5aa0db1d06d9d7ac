package server

// routes is everything that this server answers; other paths and methods are
// 404 no_such_route. Levels of access come with token checks.
var routes = []route{
	{method: "POST", path: "/api/v1/push", handle: (*Server).servePush},
	{method: "GET", path: "/api/v1/pop", writes: true, handle: (*Server).servePopDiscovery},
	{method: "GET", path: "/api/v1/pop/queue/:queue", writes: true, handle: (*Server).servePopQueue},
	{method: "GET", path: "/api/v1/pop/queue/:queue/partition/:partition", writes: true, handle: (*Server).servePopPartition},
	{method: "POST", path: "/api/v1/ack", writes: true, handle: (*Server).serveAck},
	{method: "POST", path: "/api/v1/ack/batch", writes: true, handle: (*Server).serveAckBatch},
	{method: "POST", path: "/api/v1/lease/:leaseId/extend", writes: true, handle: (*Server).serveExtend},
	{method: "POST", path: "/api/v1/transaction", writes: true, handle: (*Server).serveTransaction},

	{method: "POST", path: "/api/v1/kv", family: kvFamily, handle: (*Server).serveKV},
	{method: "GET", path: "/api/v1/kv/:ns/*key", family: kvFamily, handle: (*Server).serveKVGet},
	{method: "PUT", path: "/api/v1/kv/:ns/*key", family: kvFamily, handle: (*Server).serveKVPut},
	{method: "DELETE", path: "/api/v1/kv/:ns/*key", family: kvFamily, handle: (*Server).serveKVDelete},

	{method: "POST", path: "/api/v1/timers", family: timersFamily, handle: (*Server).serveTimers},
	{method: "GET", path: "/api/v1/timers/:queue", family: timersFamily, handle: (*Server).serveTimerList},
	{method: "GET", path: "/api/v1/timers/:queue/*timerKey", family: timersFamily, handle: (*Server).serveTimerPeek},
	{method: "DELETE", path: "/api/v1/timers/:queue/*timerKey", family: timersFamily, handle: (*Server).serveTimerCancel},

	{method: "POST", path: "/api/v1/configure", handle: (*Server).serveConfigure},
	{method: "GET", path: "/api/v1/resources/queues", handle: (*Server).serveQueueList},
	{method: "GET", path: "/api/v1/resources/queues/:queue", handle: (*Server).serveQueue},
	{method: "GET", path: "/api/v1/resources/queues/:queue/depth", handle: (*Server).serveQueueDepth},
	{method: "DELETE", path: "/api/v1/resources/queues/:queue", handle: (*Server).serveQueueDelete},

	{method: "GET", path: "/api/v1/dlq", handle: (*Server).serveDLQ},
	{method: "DELETE", path: "/api/v1/dlq", handle: (*Server).serveDLQPurge},
	{method: "POST", path: "/api/v1/dlq/:id/replay", handle: (*Server).serveDLQReplay},
	{method: "POST", path: "/api/v1/messages/:partitionId/:transactionId/retry", handle: (*Server).serveMessageRetry},

	{method: "GET", path: "/health", handle: (*Server).serveHealth},
	{method: "GET", path: "/status", handle: (*Server).serveStatus},
	{method: "GET", path: "/metrics", handle: (*Server).serveMetrics},
	{method: "GET", path: "/metrics/prometheus", handle: (*Server).servePrometheus},
}
