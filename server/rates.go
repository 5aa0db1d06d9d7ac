package server

import (
	"net/http"
	"sync"
	"time"
)

// rates are the token buckets of KV calls, one pair for each tenant.
type rates struct {
	limits Limits
	clock  func() time.Time

	mu struct {
		sync.Mutex
		tenants map[string]*[2]bucket // read, write
		cell    bucket                // all tenants
	}
}

type bucket struct {
	tokens float64
	last   time.Time
}

func newRates(l Limits, clock func() time.Time) *rates {
	r := &rates{limits: l, clock: clock}
	r.mu.tenants = map[string]*[2]bucket{}
	return r
}

// Verdicts of spend.
const (
	rateOK = iota
	rateOver
	rateTooManyTenants
)

// spend takes a token; when there is none it tells how long one takes.
func (r *rates) spend(tenant string, write bool) (verdict int, wait time.Duration) {
	rate, burst, i := r.limits.KVReadRate, r.limits.KVReadBurst, 0
	if write {
		rate, burst, i = r.limits.KVWriteRate, r.limits.KVWriteBurst, 1
	}
	cell := r.limits.KVCellRate
	if rate <= 0 && cell <= 0 {
		return rateOK, 0
	}
	now := r.clock()
	r.mu.Lock()
	defer r.mu.Unlock()
	var own *bucket
	if rate > 0 {
		pair := r.mu.tenants[tenant]
		if pair == nil {
			if len(r.mu.tenants) >= r.limits.KVTenants {
				return rateTooManyTenants, 0
			}
			pair = &[2]bucket{{r.limits.KVReadBurst, now}, {r.limits.KVWriteBurst, now}}
			r.mu.tenants[tenant] = pair
		}
		own = &pair[i]
		wait = own.refill(now, rate, burst)
	}
	if cell > 0 {
		wait = max(wait, r.mu.cell.refill(now, cell, cell))
	}
	if wait > 0 { // of two buckets none is spent
		return rateOver, wait
	}
	if own != nil {
		own.tokens--
	}
	if cell > 0 {
		r.mu.cell.tokens--
	}
	return rateOK, 0
}

// refill brings a bucket up to now, and tells how long it takes until it has a
// token; 0: it has one.
func (b *bucket) refill(now time.Time, rate, burst float64) time.Duration {
	burst = max(burst, 1)
	if b.last.IsZero() {
		b.tokens, b.last = burst, now
	}
	b.tokens = min(burst, b.tokens+now.Sub(b.last).Seconds()*rate)
	b.last = now
	if b.tokens >= 1 {
		return 0
	}
	return max(time.Duration((1-b.tokens)/rate*float64(time.Second)), 1)
}

// spendRate takes a token for a call; when there is none it answers 429 and
// returns false.
func (x *exchange) spendRate(tenant string, write bool) bool {
	verdict, wait := x.s.rates.spend(tenant, write)
	switch verdict {
	case rateOK:
		return true
	case rateOver:
		if write {
			x.s.metrics.kvWriteRefused.Add(1)
		} else {
			x.s.metrics.kvReadRefused.Add(1)
		}
		x.retryAfter(1 + int(wait/time.Second))
		x.failReason(http.StatusTooManyRequests, "rate_limited", "", "the rate of KV calls of the tenant, or of the node, is spent")
	default:
		x.retryAfter(1)
		x.failReason(http.StatusServiceUnavailable, "kv_unavailable", "kv_unavailable", "too many tenants on this node")
	}
	return false
}

// tracked is the number of tenants whose rates are tracked.
func (r *rates) tracked() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.mu.tenants)
}
