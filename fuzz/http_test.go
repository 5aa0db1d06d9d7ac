package fuzz

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand"
	"net/http"
	"strings"
	"testing"

	"queen/server/conformance"
)

// target is a broker that bodies are thrown at. It is started anew now and
// then, so that a long run does not measure a large state.
type target struct {
	broker *conformance.Broker
	sent   int
}

const sentPerBroker = 5000

func (h *target) get(t testing.TB) *conformance.Broker {
	t.Helper()
	if h.broker != nil && h.sent%sentPerBroker != 0 {
		h.sent++
		return h.broker
	}
	h.close(t)
	b, err := conformance.Start(nil)
	if err != nil {
		t.Fatal(err)
	}
	h.broker = b
	h.sent++
	// Something to ack: partition 1 of q, leased.
	for i := range 20 {
		body := fmt.Sprintf(`{"items":[{"queue":"q","partition":"p","transactionId":"m%d","payload":%d}]}`, i, i)
		h.send(t, "POST", "/api/v1/push", body)
	}
	h.send(t, "GET", "/api/v1/pop/queue/q?batch=10", "")
	h.send(t, "GET", "/api/v1/pop/queue/q?consumerGroup=g&subscriptionMode=all&batch=10", "")
	return b
}

func (h *target) close(t testing.TB) {
	t.Helper()
	if h.broker == nil {
		return
	}
	if err := h.broker.Close(); err != nil {
		t.Error(err)
	}
	h.broker = nil
}

func (h *target) send(t testing.TB, method, path, body string) *conformance.Answer {
	t.Helper()
	a, err := h.broker.Do(context.Background(), method, path, http.Header{"Content-Type": {"application/json"}}, []byte(body))
	if err != nil {
		t.Fatalf("%s %s %q: %v", method, path, body, err)
	}
	return a
}

// check sends a body and holds its answer against the rules: never a 5xx, JSON
// on every 4xx, and no effect of what was refused.
func (h *target) check(t testing.TB, r *route, body []byte) {
	t.Helper()
	h.get(t)
	wrong, err := h.checkOnce(t, r, body)
	if wrong && err == nil {
		// A timer that became due, or a sweep, may have come between.
		if err = h.broker.Settle(); err == nil {
			wrong, err = h.checkOnce(t, r, body)
		}
	}
	if err != nil {
		t.Fatalf("%s %s %q: %v", r.method, r.path, body, err)
	}
	if wrong {
		t.Fatalf("%s %s %q: refused, and the state changed", r.method, r.path, body)
	}
}

func (h *target) checkOnce(t testing.TB, r *route, body []byte) (changed bool, err error) {
	t.Helper()
	before, err := h.broker.State()
	if err != nil {
		return false, err
	}
	a := h.send(t, r.method, r.path, string(body))
	after, err := h.broker.State()
	if err != nil {
		return false, err
	}
	if a.Status >= 500 {
		return false, fmt.Errorf("answer %d %s", a.Status, a.Body)
	}
	var verdict struct {
		Success *bool  `json:"success"`
		OK      *bool  `json:"ok"`
		Reason  string `json:"reason"`
	}
	isJSON := strings.HasPrefix(a.Header.Get("Content-Type"), "application/json")
	if isJSON && !json.Valid(a.Body) {
		return false, fmt.Errorf("answer %d is not JSON: %q", a.Status, a.Body)
	}
	if a.Status >= 400 {
		if !isJSON {
			return false, fmt.Errorf("answer %d of type %q", a.Status, a.Header.Get("Content-Type"))
		}
		return before != after, nil
	}
	if json.Unmarshal(a.Body, &verdict) != nil || verdict.Reason == "" {
		return false, nil
	}
	rolledBack := verdict.Success != nil && !*verdict.Success || verdict.OK != nil && !*verdict.OK
	return rolledBack && before != after, nil
}

// FuzzHTTPBody throws bodies at the routes that take one; the corpus is bodies
// that gofuzz built.
func FuzzHTTPBody(f *testing.F) {
	for i := range routes {
		for seed := range int64(12) {
			body, err := build(&routes[i], seed)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(uint8(i), body)
		}
	}
	var h target
	f.Cleanup(func() { h.close(f) })
	f.Fuzz(func(t *testing.T, n uint8, body []byte) {
		h.check(t, &routes[int(n)%len(routes)], body)
	})
}

// TestHTTPBodies is a bounded run of the same with damage of its own: every
// body that gofuzz built, and some damaged forms of each.
func TestHTTPBodies(t *testing.T) {
	t.Parallel()
	bodies := 40
	if testing.Short() {
		bodies = 5
	}
	var h target
	t.Cleanup(func() { h.close(t) })
	rng := rand.New(rand.NewSource(1))
	for i := range routes {
		for seed := range int64(bodies) {
			body, err := build(&routes[i], 1000+seed)
			if err != nil {
				t.Fatal(err)
			}
			h.check(t, &routes[i], body)
			for range 5 {
				h.check(t, &routes[i], mutate(rng, body))
			}
		}
	}
}
