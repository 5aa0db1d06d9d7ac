package server

import (
	"encoding/json"
	"net/http"
)

// limit is a bound of the broker as GET /api/v1/limits tells it.
type limit struct {
	Name    string  `json:"name"`
	Setting *string `json:"setting"` // null: it is fixed
	Limit   int64   `json:"limit"`   // in the unit that the name ends in, or a count
	// Used and Percent are null for bounds of a single call.
	Used    *int64 `json:"used"`
	Percent *int64 `json:"percent"`
	Warn    bool   `json:"warn"`
}

// warnFrom is the percentage of use from which a limit warns.
const warnFrom = 70

// limits lists every bound: first those that fill up.
func (s *Server) limits() (list []limit) {
	l, st := &s.cfg.Limits, s.engine.Status()
	add := func(name, setting string, most int64) *limit {
		list = append(list, limit{Name: name, Limit: most})
		last := &list[len(list)-1]
		if setting != "" {
			last.Setting = &setting
		}
		return last
	}
	filled := func(name, setting string, most, used int64) {
		r := add(name, setting, most)
		r.Used = &used
		if most > 0 {
			percent := int64(float64(used) / float64(most) * 100)
			r.Percent, r.Warn = &percent, percent >= warnFrom
		}
	}
	admitted, _ := s.admission.state()
	filled("diskPercent", "QUEEN_RAFT_DISK_HIGH_PCT", int64(l.DiskHighPct), s.disk.percent.Load())
	filled("admissionBytes", "QUEEN_RAFT_ADMIT_MAX_MB", l.AdmitBytes, admitted)
	filled("dedupMemoryBytes", "QUEEN_DEDUP_MEMORY_BYTES", st.DedupLimit, st.DedupBytes)
	filled("idempotencyBytes", "QUEEN_IDEMPOTENCY_MAX_BYTES", st.OutcomeLimit, st.Outcomes.Bytes)
	filled("unsealedLogBytes", "QUEEN_UNSEALED_MAX_BYTES", st.UnsealedLimit, st.UnsealedBytes)
	filled("kvRateTenants", "QUEEN_KV_MAX_TENANTS", int64(l.KVTenants), int64(s.rates.tracked()))

	add("idempotencyWindowSeconds", "QUEEN_IDEMPOTENCY_WINDOW_S", st.OutcomeWindow/1_000_000)
	add("requestBodyBytes", "QUEEN_MAX_BODY_BYTES", l.BodyBytes)
	add("plannedCallBytes", "QUEEN_RAFT_ENTRY_MAX_BYTES", int64(l.EntryBytes))
	add("connections", "", int64(l.Connections))
	add("admissionHoldMs", "QUEEN_RAFT_ADMIT_HOLD_MS", l.AdmitHold.Milliseconds())
	add("popTimeoutMs", "", maxTimeout.Milliseconds())
	add("pushTimeoutMs", "POP_DEFAULT_TIMEOUT_MS", l.PushTimeout.Milliseconds())
	add("callTimeoutMs", "QUEEN_STMT_TIMEOUT_MS", l.CallTimeout.Milliseconds())
	add("popPartitions", "", maxPartitions)
	add("ackDelayMs", "", maxAckDelay)
	add("queuePartitionGroupNameBytes", "", nameBytes)
	add("transactionIdBytes", "", maxTxnID)
	add("idempotencyKeyBytes", "", maxKeyBytes)
	add("kvValueBytes", "QUEEN_KV_MAX_VALUE_BYTES", int64(l.KVValueBytes))
	add("kvKeyBytes", "", kvKeyBytes)
	add("kvOpsPerCall", "QUEEN_KV_MAX_OPS_PER_CALL", int64(l.KVOps))
	add("kvKeysPerCall", "QUEEN_KV_MAX_KEYS_PER_CALL", int64(l.KVKeys))
	add("kvReadsPerSecond", "QUEEN_KV_READ_RATE", int64(l.KVReadRate))
	add("kvReadBurst", "QUEEN_KV_READ_BURST", int64(l.KVReadBurst))
	add("kvCallsPerSecond", "QUEEN_KV_CELL_RATE", int64(l.KVCellRate))
	add("kvWritesPerSecond", "QUEEN_KV_WRITE_RATE", int64(l.KVWriteRate))
	add("kvWriteBurst", "QUEEN_KV_WRITE_BURST", int64(l.KVWriteBurst))
	add("timerHorizonSeconds", "QUEEN_TIMERS_MAX_HORIZON_S", int64(l.TimerHorizon.Seconds()))
	add("timerPayloadBytes", "QUEEN_TIMERS_MAX_PAYLOAD_BYTES", int64(l.TimerPayloadBytes))
	add("timerOpsPerCall", "QUEEN_TIMERS_MAX_OPS_PER_CALL", int64(l.TimerOps))
	add("transactionKvOps", "", txnKVOps)
	add("transactionKvKeys", "", txnKVKeys)
	add("transactionPositions", "", txnPositions)
	add("positionMetadataBytes", "", maxMetadata)
	return list
}

// serveLimits tells every bound and how much of it is used. A limit of 0 is no
// bound.
func (s *Server) serveLimits(x *exchange) {
	body, err := json.Marshal(map[string]any{"limits": s.limits()})
	if err != nil {
		x.undecided(err)
		return
	}
	x.out = append(x.out[:0], body...)
	_ = x.answer(http.StatusOK)
}
