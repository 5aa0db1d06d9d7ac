package server

import (
	"net/http"

	"queen/fsm"
	"queen/server/rawjson"
)

// The switches of KV and timers, and what a call hears that meets one that is off,
// or a tenant without a grant.

func (s *Server) serveKVTimers(x *exchange) { s.setSwitches(x, &fsm.SetSwitches{}) }

func (s *Server) serveSetKVTimers(x *exchange) {
	w := s.getWork(x)
	if !x.readBody(w) {
		s.putWork(w)
		return
	}
	set, bad := parseSwitches(w)
	s.putWork(w)
	if bad != "" {
		x.fail(http.StatusBadRequest, "bad_request", bad)
		return
	}
	s.setSwitches(x, set)
}

// parseSwitches reads the switches that a body names.
func parseSwitches(w *work) (set *fsm.SetSwitches, bad string) {
	sc := &w.scan
	sc.Reset(w.body)
	set = &fsm.SetSwitches{}
	take := func(name string, to **bool) {
		null := sc.Kind() == rawjson.Null
		on, isBool := sc.Bool()
		switch {
		case isBool:
			*to = &on
		case !null:
			bad = name + " is no boolean"
		}
	}
	if sc.Kind() != rawjson.Object {
		sc.Skip()
		bad = "the body is no object"
	} else {
		for ok := sc.EnterObject(); ok; ok = sc.NextMember() {
			switch string(sc.Key()) {
			case "kv":
				take("kv", &set.KV)
			case "timersSchedule":
				take("timersSchedule", &set.Schedule)
			case "timersFire":
				take("timersFire", &set.Fire)
			default:
				sc.Skip()
			}
		}
	}
	if err := sc.End(); err != nil {
		return nil, err.Error()
	}
	if bad == "" && set.KV == nil && set.Schedule == nil && set.Fire == nil {
		bad = "the body names none of kv, timersSchedule and timersFire"
	}
	return set, bad
}

func (s *Server) setSwitches(x *exchange, set *fsm.SetSwitches) {
	w := s.getWork(x)
	if err := s.run(w, set, 64, x.remaining(s.cfg.Limits.CallTimeout), nil); err != nil {
		s.ended(w, err)
		x.undecided(err)
		return
	}
	s.putWork(w)
	off := set.Result
	dst := append(x.out[:0], `{"kvEnabled":`...)
	dst = rawjson.AppendBool(dst, !off.KVOff)
	dst = append(dst, `,"timersScheduleEnabled":`...)
	dst = rawjson.AppendBool(dst, !off.ScheduleOff)
	dst = append(dst, `,"timersFireEnabled":`...)
	dst = rawjson.AppendBool(dst, !off.FireOff)
	// No tenant has a quota: nothing gives one yet.
	x.out = append(dst, `,"quotaTenants":0,"quotaAgeMs":0,"quotaHot":0}`...)
	_ = x.answer(http.StatusOK)
}

// pausedRetry is the Retry-After of what an operator has turned off, in seconds:
// longer than that of what passes by itself.
const pausedRetry = 5

// kvDisabled answers a KV or lock call while KV is turned off.
func (x *exchange) kvDisabled() {
	x.retryAfter(pausedRetry)
	x.failReason(http.StatusServiceUnavailable, "kv_disabled", "", "KV is turned off by an operator (/api/v1/system/kv-timers)")
}

const timersHint = "DELETE /api/v1/timers/:queue/:timerKey"

// timersDisabled answers a batch that schedules while that is turned off. It is
// refused whole; a cancel that is in it goes by the route that the hint names.
func (x *exchange) timersDisabled() {
	x.retryAfter(pausedRetry)
	x.c.Writer.Header().Set("X-Queen-Timers-Hint", timersHint)
	x.failReason(http.StatusServiceUnavailable, "timers_disabled", "", "the scheduling of timers is turned off by an operator (/api/v1/system/kv-timers)")
}

const noGrant = "this broker serves KV and timers to tenants with a grant only (QUEEN_KV_REQUIRE_GRANT)"

// granted reports whether the tenant may use KV and schedule timers; when not, it
// has answered.
func (x *exchange) granted() bool {
	if !x.s.cfg.RequireGrant {
		return true
	}
	if x.rt.family == timersFamily {
		x.c.Writer.Header().Set("X-Queen-Timers-Hint", timersHint)
	}
	x.failReason(http.StatusForbidden, "feature_gated", "", noGrant)
	return false
}

// switchedOff reports whether a transaction was refused for something that is
// turned off: 403 and not 503, so that a caller does not spin on it.
func switchedOff(reason string) bool {
	return reason == fsm.ReasonKVDisabled || reason == fsm.ReasonTimersDisabled
}
