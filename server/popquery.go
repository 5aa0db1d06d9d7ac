package server

import (
	"math"
	"strconv"
	"strings"
	"time"

	"queen/fsm"
)

// popParams are the query parameters of a pop, as sent.
type popParams struct {
	batch, partitions, timeout, lease   int64
	hasBatch, hasPartitions, hasTimeout bool
	wait, commit, conflation, autopilot bool
	group, mode, from                   string
	namespace, task                     string
	hasNamespace, hasTask               bool
}

// parsePopQuery reads the query; on a parameter that does not parse it says
// which. Unknown parameters are ignored, of a repeated one the first counts,
// an empty one is absent.
func parsePopQuery(raw string) (p popParams, bad string) {
	var seen uint32
	ok := query(raw, func(name, value string) bool {
		bit := popParamBit(name)
		if bit == 0 || seen&bit != 0 || value == "" {
			return true
		}
		seen |= bit
		if !p.set(name, value) {
			bad = name + ": " + value + " does not parse"
		}
		return bad == ""
	})
	if !ok && bad == "" {
		bad = "the query has an escape that does not parse"
	}
	return p, bad
}

var popParamNames = [...]string{"batch", "partitions", "wait", "timeout", "leaseSeconds", "consumerGroup", "subscriptionMode",
	"subscriptionFrom", "commitOnDelivery", "autoAck", "conflation", "autopilot", "namespace", "task"}

func popParamBit(name string) uint32 {
	for i, n := range popParamNames {
		if n == name {
			return 1 << i
		}
	}
	return 0
}

func (p *popParams) set(name, value string) (ok bool) {
	switch name {
	case "batch":
		p.batch, ok = parseCount(value)
		p.hasBatch = ok
	case "partitions":
		p.partitions, ok = parseCount(value)
		p.hasPartitions = ok
	case "timeout":
		p.timeout, ok = parseCount(value)
		p.hasTimeout = ok
	case "leaseSeconds":
		p.lease, ok = parseCount(value)
	case "wait":
		p.wait, ok = parseFlag(value)
	case "commitOnDelivery", "autoAck":
		var on bool
		on, ok = parseFlag(value)
		p.commit = p.commit || on
	case "conflation":
		p.conflation, ok = parseFlag(value)
	case "autopilot":
		p.autopilot, ok = parseFlag(value)
	case "consumerGroup":
		p.group, ok = value, true
	case "subscriptionMode":
		p.mode, ok = value, true
	case "subscriptionFrom":
		p.from, ok = value, true
	case "namespace":
		p.namespace, p.hasNamespace, ok = value, true, true
	case "task":
		p.task, p.hasTask, ok = value, true, true
	}
	return ok
}

// parseCount reads a whole number; one that is out of range is as far as the
// range goes.
func parseCount(s string) (int64, bool) {
	n, err := strconv.ParseInt(s, 10, 64)
	if err == nil {
		return n, true
	}
	if e, ok := err.(*strconv.NumError); ok && e.Err == strconv.ErrRange {
		return n, true
	}
	return 0, false
}

func parseFlag(s string) (on, ok bool) {
	switch strings.ToLower(s) {
	case "true", "1", "yes", "on":
		return true, true
	case "false", "0", "no", "off":
		return false, true
	default:
		return false, false
	}
}

// subscription turns the two parameters into where a new group starts. A time
// that does not parse is ignored; "now" is the mode new; a valid time wins
// over the mode.
func (p *popParams) subscription() (mode fsm.SubscriptionMode, from int64) {
	if p.from == "now" {
		return fsm.SubscribeNew, 0
	}
	if t, ok := parseTime(p.from); ok {
		return fsm.SubscribeFrom, t
	}
	return parseMode(p.mode), 0
}

func parseMode(s string) fsm.SubscriptionMode {
	switch s {
	case "new", "new-only":
		return fsm.SubscribeNew
	case "all":
		return fsm.SubscribeAll
	default:
		return fsm.SubscribeDefault
	}
}

var timeLayouts = [...]string{
	time.RFC3339Nano, "2006-01-02T15:04:05.999999999", "2006-01-02 15:04:05.999999999Z07:00", "2006-01-02 15:04:05.999999999", "2006-01-02T15:04Z07:00", "2006-01-02T15:04", "2006-01-02",
}

// parseTime reads an ISO-8601 time, UTC when it names no zone, as microseconds
// since the epoch.
func parseTime(s string) (micros int64, ok bool) {
	if len(s) < len("2006-01-02") {
		return 0, false
	}
	for _, layout := range timeLayouts {
		if t, err := time.Parse(layout, s); err == nil {
			return max(t.UnixMicro(), 0), true
		}
	}
	return 0, false
}

// clampBatch is the batch of a pop: at least 1, without an upper bound that
// anybody meets.
func clampBatch(n int64) int { return int(min(max(n, 1), math.MaxInt32)) }
