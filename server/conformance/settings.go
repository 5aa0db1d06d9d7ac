package conformance

import (
	"fmt"
	"strconv"
	"time"

	"queen/fsm"
	"queen/internal/vfs"
	"queen/server"
	"queen/server/envelope"
)

// settings are what a case may set of the broker, under the names of its
// environment variables.
type settings struct {
	limits  server.Limits
	planner fsm.Config
	disk    uint64 // percent of the disk that is used; 0: not measured
	tenancy bool
	grants  bool // KV and timers need a grant
	key     *envelope.Key
	secret  string // of tokens; empty: they are not checked
}

// usage measures the disk that the settings describe.
func (s *settings) usage() func() (vfs.Usage, error) {
	if s.disk == 0 {
		return nil
	}
	return func() (vfs.Usage, error) { return vfs.Usage{Total: 100, Free: 100 - s.disk}, nil }
}

// apply reads one setting.
func (s *settings) apply(name, text string) error {
	if name == "DEFAULT_SUBSCRIPTION_MODE" {
		if text == "all" {
			s.planner.DefaultMode = fsm.SubscribeAll
		}
		return nil
	}
	switch name {
	case "JWT_SECRET":
		s.secret = text
		return nil
	case "QUEEN_TENANCY_HEADER":
		s.tenancy = text == "true"
		return nil
	case "QUEEN_ENCRYPTION_KEY":
		key, err := envelope.Parse(text)
		s.key = key
		return err
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		return fmt.Errorf("setting %s: %w", name, err)
	}
	l, p := &s.limits, &s.planner
	switch name {
	case "DISK_PERCENT":
		s.disk = uint64(n)
	case "QUEEN_RAFT_DISK_HIGH_PCT":
		l.DiskHighPct = float64(n)
	case "QUEEN_RAFT_ADMIT_MAX_MB":
		l.AdmitBytes = int64(n) << 20
	case "QUEEN_RAFT_ADMIT_HOLD_MS":
		l.AdmitHold = time.Duration(n) * time.Millisecond
	case "QUEEN_STMT_TIMEOUT_MS":
		l.CallTimeout = time.Duration(n) * time.Millisecond
	case "POP_DEFAULT_TIMEOUT_MS":
		l.PushTimeout = time.Duration(n) * time.Millisecond
	case "QUEEN_MAX_BODY_BYTES":
		l.BodyBytes = int64(n)
	case "QUEEN_RAFT_ENTRY_MAX_BYTES":
		l.EntryBytes, p.EntryBytes = n, n
	case "QUEEN_KV_MAX_VALUE_BYTES":
		l.KVValueBytes = n
	case "QUEEN_KV_MAX_OPS_PER_CALL":
		l.KVOps = n
	case "QUEEN_KV_MAX_KEYS_PER_CALL":
		l.KVKeys = n
	case "QUEEN_RAFT_KV_SWEEP_MS":
		p.KVSweepEvery = int64(n) * 1000
	case "QUEEN_KV_REQUIRE_GRANT":
		s.grants = n == 1
	case "QUEEN_KV_CELL_RATE":
		l.KVCellRate = float64(n)
	case "QUEEN_KV_WRITE_RATE":
		l.KVWriteRate = float64(n)
	case "QUEEN_KV_WRITE_BURST":
		l.KVWriteBurst = float64(n)
	case "QUEEN_KV_READ_RATE":
		l.KVReadRate = float64(n)
	case "QUEEN_KV_READ_BURST":
		l.KVReadBurst = float64(n)
	case "QUEEN_TIMERS_MAX_HORIZON_S":
		l.TimerHorizon = time.Duration(n) * time.Second
	case "QUEEN_TIMERS_MAX_PAYLOAD_BYTES":
		l.TimerPayloadBytes = n
	case "QUEEN_TIMERS_MAX_OPS_PER_CALL":
		l.TimerOps = n
	case "PARTITION_CLEANUP_DAYS":
		p.PartitionCleanup = int64(n) * 86400 * 1_000_000
	case "QUEEN_RAFT_TRACE_RETENTION_S":
		p.TraceRetention = int64(n) * 1_000_000
	case "QUEEN_IDEMPOTENCY_WINDOW_S":
		p.OutcomeWindow = int64(n) * 1_000_000
	case "QUEEN_IDEMPOTENCY_MAX_BYTES":
		p.OutcomeBytes = int64(n)
	case "QUEEN_SWEEPER_MAX_ATTEMPTS":
		p.TimerMaxAttempts = int64(n)
	default:
		return fmt.Errorf("setting %s is not known to the conformance suite", name)
	}
	return nil
}
