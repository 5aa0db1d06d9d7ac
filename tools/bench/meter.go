package main

import (
	"sync/atomic"
	"time"
)

// meter tells the lanes which operations count: those that end inside the
// window. A lane belongs to one goroutine and keeps every latency.
type meter struct {
	from, to atomic.Int64 // Unix ns; 0 = not yet
	stop     atomic.Bool
}

func (m *meter) open(at time.Time)  { m.from.Store(at.UnixNano()) }
func (m *meter) close(at time.Time) { m.to.Store(at.UnixNano()) }

type lane struct {
	m         *meter
	ops, msgs int64
	lat       []time.Duration // of the operation
	cycle     []time.Duration // of all that it took, where that is more
}

func (l *lane) stopped() bool { return l.m.stop.Load() }

// add counts one operation of msgs messages that ended at end. cycle 0 is kept
// out.
func (l *lane) add(end time.Time, msgs int, lat, cycle time.Duration) {
	at, from, to := end.UnixNano(), l.m.from.Load(), l.m.to.Load()
	if from == 0 || at < from || (to != 0 && at > to) {
		return
	}
	l.ops++
	l.msgs += int64(msgs)
	l.lat = append(l.lat, lat)
	if cycle > 0 {
		l.cycle = append(l.cycle, cycle)
	}
}

// quantile returns the value at q of a sorted list: the smallest one that at
// least a share of q does not exceed.
func quantile(sorted []time.Duration, q float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	i := int(q * float64(len(sorted)))
	return sorted[min(i, len(sorted)-1)]
}
