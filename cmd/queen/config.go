package main

import (
	"log/slog"
	"net"
	"strings"
	"time"

	"queen/fsm"
	"queen/internal/vfs"
	"queen/raftlog"
	"queen/server"
	"queen/server/envelope"
)

// config is what the settings come to.
type config struct {
	address  string
	certFile string
	keyFile  string
	raft     string // address for the other nodes; empty: this one is alone
	storage  server.StorageConfig
	server   server.Config
}

// build turns settings into a configuration; what two of them say together is
// checked here.
func build(v *values, log *slog.Logger) (c config, err error) {
	if c.address, err = listenAddress(v); err != nil {
		return c, err
	}
	c.certFile, c.keyFile = v.text("QUEEN_TLS_CERT"), v.text("QUEEN_TLS_KEY")
	if (c.certFile == "") != (c.keyFile == "") {
		return c, &settingError{"QUEEN_TLS_CERT", c.certFile, "QUEEN_TLS_CERT and QUEEN_TLS_KEY are given both or not at all"}
	}
	if v.flag("QUEEN_TENANCY_HEADER") && !v.flag("QUEEN_KV_TRUSTED_PROXY") {
		return c, &settingError{"QUEEN_TENANCY_HEADER", v.text("QUEEN_TENANCY_HEADER"),
			"tenants are taken from a header that anybody can send; set QUEEN_KV_TRUSTED_PROXY=1 when only a trusted proxy reaches this port"}
	}
	if v.percent("QUEEN_RAFT_DISK_LOW_PCT") > v.percent("QUEEN_RAFT_DISK_HIGH_PCT") {
		return c, &settingError{"QUEEN_RAFT_DISK_LOW_PCT", v.text("QUEEN_RAFT_DISK_LOW_PCT"), "is above QUEEN_RAFT_DISK_HIGH_PCT"}
	}
	mode := fsm.SubscribeNew
	switch m := v.text("DEFAULT_SUBSCRIPTION_MODE"); m {
	case "new", "new-only":
	case "all":
		mode = fsm.SubscribeAll
	default:
		return c, &settingError{"DEFAULT_SUBSCRIPTION_MODE", m, "neither new nor all"}
	}
	id, err := nodeID(v, hostname(v))
	if err != nil {
		return c, err
	}
	c.storage = storageConfig(v, log, mode)
	c.storage.NodeID = id
	if c.storage.Cluster, c.raft, err = clusterConfig(v, id, log); err != nil {
		return c, err
	}
	c.server = serverConfig(v, log)
	if key := v.text("QUEEN_ENCRYPTION_KEY"); key != "" {
		if c.server.Key, err = envelope.Parse(key); err != nil {
			return c, &settingError{"QUEEN_ENCRYPTION_KEY", masked, err.Error()}
		}
		log.Info("payloads of queues with encryptionEnabled are sealed (AES-256-GCM)")
	}
	return c, nil
}

func listenAddress(v *values) (string, error) {
	host := v.text("QUEEN_BIND_ADDR")
	bare := strings.Trim(host, "[]")
	if strings.Contains(bare, ":") && net.ParseIP(bare) == nil {
		return "", &settingError{"QUEEN_BIND_ADDR", host, "an address without a port is needed; the port is PORT"}
	}
	if port := v.count("PORT"); port > 65535 {
		return "", &settingError{"PORT", v.text("PORT"), "not a port"}
	}
	return net.JoinHostPort(bare, v.text("PORT")), nil
}

func storageConfig(v *values, log *slog.Logger, mode fsm.SubscriptionMode) server.StorageConfig {
	files, _ := descriptors()
	micros := func(name string) int64 { return v.count(name) * 1000 }
	return server.StorageConfig{
		FS: vfs.OS(), Dir: v.text("QUEEN_RAFT_DIR"), Logger: log,
		ReserveBytes: v.count("QUEEN_DISK_RESERVE_BYTES"),
		Group: raftlog.Config{
			SegmentBytes: v.count("QUEEN_RAFT_SEGMENT_BYTES"),
			Shards:       int(v.count("QUEEN_QLOG_SHARDS")),
			UnsealedMax:  v.count("QUEEN_UNSEALED_MAX_BYTES"),

			CheckpointBytes:    v.count("QUEEN_RAFT_CHECKPOINT_BYTES"),
			CheckpointInterval: time.Duration(v.count("QUEEN_RAFT_CHECKPOINT_MS")) * time.Millisecond,
			ElectionTicks:      electionTicks(v),
			PurgeHold:          time.Duration(v.count("QUEEN_RAFT_PURGE_HOLD_S")) * time.Second,
			MaxInFlight:        int(v.count("QUEEN_RAFT_PIPELINE")),
			MaxCycleCalls:      int(v.count("QUEEN_RAFT_BATCH_MAX_CMDS")),
			OpenFiles:          files,

			CompactMinDeadPct: int(min(v.count("QUEEN_QLOG_COMPACT_MIN_DEAD_PCT"), 100)),
			SealAge:           time.Duration(v.count("QUEEN_QLOG_SEAL_AGE_S")) * time.Second,

			ScrubEvery: time.Duration(v.count("QUEEN_STORE_SCRUB_EVERY_S")) * time.Second,
			ScrubBytes: v.count("QUEEN_STORE_SCRUB_BYTES_PER_S"),
			ScrubRows:  v.count("QUEEN_STORE_SCRUB_ROWS_PER_S"),
		},
		Planner: fsm.Config{
			EntryBytes:            int(v.count("QUEEN_RAFT_ENTRY_MAX_BYTES")),
			CycleBytes:            int(v.count("QUEEN_RAFT_BATCH_MAX_BYTES")),
			DefaultMode:           mode,
			DedupBytes:            v.count("QUEEN_DEDUP_MEMORY_BYTES"),
			TimersOff:             v.count("QUEEN_RAFT_TIMER_TICK_MS") == 0,
			TimerTick:             micros("QUEEN_RAFT_TIMER_TICK_MS"),
			TimerFireBatch:        int(v.count("QUEEN_RAFT_TIMER_FIRE_BATCH")),
			TimerFireBytes:        int(v.count("QUEEN_RAFT_TIMER_FIRE_MAX_BYTES")),
			TimerBackoffMin:       micros("QUEEN_SWEEPER_BACKOFF_MIN_MS"),
			TimerBackoffMax:       micros("QUEEN_SWEEPER_BACKOFF_MAX_MS"),
			TimerTransientBackoff: micros("QUEEN_SWEEPER_TRANSIENT_BACKOFF_MS"),
			TimerMaxAttempts:      v.count("QUEEN_SWEEPER_MAX_ATTEMPTS"),
			KVSweepEvery:          micros("QUEEN_RAFT_KV_SWEEP_MS"),
			KVSweepLimit:          int(v.count("QUEEN_RAFT_KV_SWEEP_LIMIT")),
			RetentionEvery:        micros("RETENTION_INTERVAL"),
			RetentionBatch:        int(min(v.count("RETENTION_BATCH_SIZE"), retentionBatchMax)),
			RetentionScan:         int(v.count("QUEEN_RAFT_RETENTION_SCAN_PER_S")),
			TxnWindowMin:          v.count("QUEEN_RAFT_TXN_WINDOW_MIN_S") * 1_000_000,
			PartitionCleanup:      partitionCleanup(v),
			OutcomeWindow:         min(v.count("QUEEN_IDEMPOTENCY_WINDOW_S"), 366*86400) * 1_000_000,
			OutcomeBytes:          v.count("QUEEN_IDEMPOTENCY_MAX_BYTES"),
			StatQueues:            int(min(v.count("QUEEN_STATS_QUEUES"), 1_000_000)),
			StatDays:              min(v.count("METRICS_RETENTION_DAYS"), 3650),
			TraceRetention:        v.count("QUEEN_RAFT_TRACE_RETENTION_S") * 1_000_000,
		},
	}
}

// retentionBatchMax keeps a slice of retention under 2 ms on the loop.
const retentionBatchMax = 4000

// partitionCleanup is the time without a write after which an empty partition goes, in microseconds; -1: never.
func partitionCleanup(v *values) int64 {
	if !v.flag("QUEEN_PARTITION_CLEANUP_ENABLED") {
		return -1
	}
	return min(v.count("PARTITION_CLEANUP_DAYS"), 36500) * 86400 * 1_000_000
}

func serverConfig(v *values, log *slog.Logger) server.Config {
	millis := func(name string) time.Duration { return time.Duration(v.count(name)) * time.Millisecond }
	seconds := func(name string) time.Duration { return time.Duration(v.count(name)) * time.Second }
	popTimeout := millis("POP_DEFAULT_TIMEOUT_MS")
	if v.given("DEFAULT_TIMEOUT") {
		popTimeout = millis("DEFAULT_TIMEOUT")
	}
	dir := v.text("QUEEN_RAFT_DIR")
	_, connections := descriptors()
	c := server.Config{
		Version: version,
		Logger:  log,
		Usage:   func() (vfs.Usage, error) { return vfs.OS().Usage(dir) },
		Tenancy: v.flag("QUEEN_TENANCY_HEADER"),
		Metrics: v.flag("QUEEN_RAFT_METRICS"),
		Pprof:   v.flag("QUEEN_PPROF"),

		SkipPaths: skipPaths(v),
		Limits: server.Limits{
			BodyBytes:         v.count("QUEEN_MAX_BODY_BYTES"),
			Connections:       connections,
			EntryBytes:        int(v.count("QUEEN_RAFT_ENTRY_MAX_BYTES")),
			AdmitBytes:        admitBytes(v),
			AdmitHold:         millis("QUEEN_RAFT_ADMIT_HOLD_MS"),
			DiskHighPct:       v.percent("QUEEN_RAFT_DISK_HIGH_PCT"),
			DiskLowPct:        v.percent("QUEEN_RAFT_DISK_LOW_PCT"),
			PopTimeout:        popTimeout,
			PushTimeout:       millis("POP_DEFAULT_TIMEOUT_MS"),
			CallTimeout:       millis("QUEEN_STMT_TIMEOUT_MS"),
			ReplyMargin:       millis("QUEEN_RAFT_POP_REPLY_MARGIN_MS"),
			SlowCall:          millis("QUEEN_RAFT_SLOW_COMMAND_MS"),
			KVValueBytes:      int(v.count("QUEEN_KV_MAX_VALUE_BYTES")),
			KVOps:             int(v.count("QUEEN_KV_MAX_OPS_PER_CALL")),
			KVKeys:            int(v.count("QUEEN_KV_MAX_KEYS_PER_CALL")),
			KVReadBurst:       float64(v.count("QUEEN_KV_READ_BURST")),
			KVWriteBurst:      float64(v.count("QUEEN_KV_WRITE_BURST")),
			KVTenants:         int(v.count("QUEEN_KV_MAX_TENANTS")),
			TimerHorizon:      seconds("QUEEN_TIMERS_MAX_HORIZON_S"),
			TimerPayloadBytes: int(v.count("QUEEN_TIMERS_MAX_PAYLOAD_BYTES")),
			TimerOps:          int(v.count("QUEEN_TIMERS_MAX_OPS_PER_CALL")),
		},
		ZstdLevel: int(v.count("QUEEN_RAFT_QLOG_ZSTD_LEVEL")),
	}
	c.Limits.KVReadRate = rate(v, "QUEEN_KV_READ_RATE", 200)
	c.Limits.KVCellRate = rate(v, "QUEEN_KV_CELL_RATE", 2000)
	c.RequireGrant = v.flag("QUEEN_KV_REQUIRE_GRANT")
	c.Limits.KVWriteRate = rate(v, "QUEEN_KV_WRITE_RATE", 100)
	return c
}

// rate is a call rate: what was given, else the default under tenancy, else none.
func rate(v *values, name string, withTenancy float64) float64 {
	switch {
	case v.given(name):
		return float64(v.count(name))
	case v.flag("QUEEN_TENANCY_HEADER"):
		return withTenancy
	default:
		return 0
	}
}

// admitBytes is the admission budget: as given, or 128 MiB, or what the
// pipeline holds when that is more.
func admitBytes(v *values) int64 {
	if v.given("QUEEN_RAFT_ADMIT_MAX_MB") {
		return v.count("QUEEN_RAFT_ADMIT_MAX_MB") << 20
	}
	return max(128<<20, (v.count("QUEEN_RAFT_PIPELINE")+2)*v.count("QUEEN_RAFT_BATCH_MAX_BYTES"))
}
