package conformance

import (
	"fmt"
	"strconv"
	"time"

	"queen/fsm"
	"queen/server"
)

// settings are what a case may set of the broker, under the names of its
// environment variables.
type settings struct {
	limits  server.Limits
	planner fsm.Config
}

// apply reads one setting.
func (s *settings) apply(name, text string) error {
	if name == "DEFAULT_SUBSCRIPTION_MODE" {
		if text == "all" {
			s.planner.DefaultMode = fsm.SubscribeAll
		}
		return nil
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		return fmt.Errorf("setting %s: %w", name, err)
	}
	l, p := &s.limits, &s.planner
	switch name {
	case "QUEEN_MAX_BODY_BYTES":
		l.BodyBytes = int64(n)
	case "QUEEN_RAFT_ENTRY_MAX_BYTES":
		p.EntryBytes = n
	case "QUEEN_KV_MAX_VALUE_BYTES":
		l.KVValueBytes = n
	case "QUEEN_KV_MAX_OPS_PER_CALL":
		l.KVOps = n
	case "QUEEN_KV_MAX_KEYS_PER_CALL":
		l.KVKeys = n
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
	case "QUEEN_SWEEPER_MAX_ATTEMPTS":
		p.TimerMaxAttempts = int64(n)
	default:
		return fmt.Errorf("setting %s is not known to the conformance suite", name)
	}
	return nil
}
