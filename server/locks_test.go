package server

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"

	"queen/internal/vfs"
)

type lockAnswer struct {
	Acquired, Renewed, Released, Held bool
	Slot                              int
	Token                             int64
	Owner                             *string
	Guard                             json.RawMessage
}

// lock sends one lock operation and returns its result.
func (b *broker) lock(format string, args ...any) (a lockAnswer) {
	status, body := b.do("POST", "/api/v1/locks", `{"operations":[`+fmt.Sprintf(format, args...)+`]}`)
	var answer struct{ Results []lockAnswer }
	if err := json.Unmarshal(body, &answer); status != http.StatusOK || err != nil || len(answer.Results) != 1 {
		b.t.Errorf("%d %s %v", status, body, err)
		return a
	}
	return answer.Results[0]
}

// Many owners at once: one holds, tokens rise, and only the holder's guard lets a
// transaction commit.
func TestLockRace(t *testing.T) {
	b := startBroker(t, vfs.NewMem(1))
	const owners, rounds = 8, 15
	var (
		wg      sync.WaitGroup
		inside  atomic.Int64
		highest atomic.Int64
		wins    atomic.Int64
	)
	for i := range owners {
		wg.Go(func() {
			owner := fmt.Sprint("owner-", i)
			for done := 0; done < rounds; {
				got := b.lock(`{"op":"acquire","name":"l","ttlSeconds":600,"owner":%q}`, owner)
				if t.Failed() {
					return
				}
				if !got.Acquired {
					continue
				}
				if n := inside.Add(1); n != 1 {
					t.Errorf("%d owners hold the lock", n)
				}
				if was := highest.Swap(got.Token); was >= got.Token {
					t.Errorf("token %d after %d", got.Token, was)
				}
				status, body := b.do("POST", "/api/v1/transaction", fmt.Sprintf(
					`{"kv":[%s,{"op":"incr","ns":"n","key":"sum","delta":1,"forever":true}]}`, got.Guard))
				if status != http.StatusOK || !json.Valid(body) || !containsAll(body, `"success":true`) {
					t.Errorf("the holder's transaction: %d %s", status, body)
				}
				inside.Add(-1)
				if r := b.lock(`{"op":"release","name":"l","token":%d}`, got.Token); !r.Released {
					t.Errorf("the holder cannot release")
				}
				// Whoever holds it now, this guard is over.
				_, body = b.do("POST", "/api/v1/transaction", fmt.Sprintf(
					`{"kv":[%s,{"op":"incr","ns":"n","key":"sum","delta":1,"forever":true}]}`, got.Guard))
				if !containsAll(body, `"success":false`, `"reason":"kv_precondition"`) {
					t.Errorf("a transaction under a released lock: %s", body)
				}
				wins.Add(1)
				done++
			}
		})
	}
	wg.Wait()
	if t.Failed() {
		return
	}
	if _, body := b.do("GET", "/api/v1/kv/n/sum", ""); !containsAll(body, fmt.Sprintf(`"value":%d,`, owners*rounds)) || wins.Load() != owners*rounds {
		t.Errorf("%d wins, and the guarded counter is %s", wins.Load(), body)
	}
}

// A semaphore of three: never more than three at once, each on a slot of its own.
func TestSemaphoreRace(t *testing.T) {
	b := startBroker(t, vfs.NewMem(1))
	var (
		wg    sync.WaitGroup
		slots [3]atomic.Int64
	)
	for i := range 8 {
		wg.Go(func() {
			for done := 0; done < 10 && !t.Failed(); {
				got := b.lock(`{"op":"acquire","name":"s","limit":3,"ttlSeconds":600,"owner":"o%d"}`, i)
				if !got.Acquired {
					continue
				}
				if n := slots[got.Slot].Add(1); n != 1 {
					t.Errorf("%d owners hold slot %d", n, got.Slot)
				}
				if again := b.lock(`{"op":"acquire","name":"s","limit":3,"ttlSeconds":600,"owner":"o%d"}`, i); again.Slot != got.Slot || again.Token != got.Token {
					t.Errorf("acquired again: %+v, want %+v", again, got)
				}
				renewed := b.lock(`{"op":"renew","name":"s","slot":%d,"token":%d,"ttlSeconds":600}`, got.Slot, got.Token)
				if !renewed.Renewed || renewed.Token <= got.Token {
					t.Errorf("renewed %+v after %+v", renewed, got)
				}
				slots[got.Slot].Add(-1)
				if r := b.lock(`{"op":"release","name":"s","slot":%d,"token":%d}`, got.Slot, renewed.Token); !r.Released {
					t.Error("the holder cannot release")
				}
				done++
			}
		})
	}
	wg.Wait()
}

func containsAll(body []byte, parts ...string) bool {
	for _, p := range parts {
		if !bytes.Contains(body, []byte(p)) {
			return false
		}
	}
	return true
}
