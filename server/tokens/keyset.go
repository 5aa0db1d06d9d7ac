package tokens

import (
	"context"
	"crypto/ed25519"
	"crypto/rsa"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-jose/go-jose/v4"
)

// keySet is the keys behind a URL. They are fetched at the start, in the
// background at an interval, and, at most once in fetchPause, when a token names
// a key that is not among them. A fetch that fails leaves the keys that are
// there.
type keySet struct {
	cfg  *Config
	keys atomic.Pointer[[]setKey]

	mu struct {
		sync.Mutex
		fetched time.Time     // when the last fetch began
		running chan struct{} // closed when it ends; nil: none runs
	}
	ctx     context.Context // of the fetches
	stop    context.CancelFunc
	started sync.WaitGroup
}

// setKey is one key of a set.
type setKey struct {
	id  string
	alg string // the only one that it may be used with; empty: any that fits
	key any    // *rsa.PublicKey or ed25519.PublicKey
}

const (
	fetchPause = 5 * time.Second
	maxKeySet  = 1 << 20 // bytes
)

func newKeySet(cfg *Config) *keySet {
	k := &keySet{cfg: cfg}
	k.keys.Store(&[]setKey{})
	k.ctx, k.stop = context.WithCancel(context.Background())
	k.refresh()
	k.started.Go(k.watch)
	return k
}

func (k *keySet) close() {
	k.stop()
	k.started.Wait()
}

func (k *keySet) watch() {
	tick := time.NewTicker(k.cfg.Refresh)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			k.refresh()
		case <-k.ctx.Done():
			return
		}
	}
}

// find returns the keys that a token may be signed with: those with its key id,
// or, when it names none, all that fit its algorithm.
func (k *keySet) find(ctx context.Context, kid, alg string) (any, error) {
	if key := k.known(kid, alg); key != nil {
		return key, nil
	}
	if err := k.fetchSoon(ctx); err != nil {
		return nil, ErrUnknownKey
	}
	if key := k.known(kid, alg); key != nil {
		return key, nil
	}
	return nil, ErrUnknownKey
}

func (k *keySet) known(kid, alg string) any {
	var found any
	for _, c := range *k.keys.Load() {
		if kid != "" && c.id != kid || c.alg != "" && c.alg != alg || !fits(c.key, alg) {
			continue
		}
		if found != nil {
			return nil // without an id, or with one that stands twice: it does not say which
		}
		found = c.key
	}
	return found
}

// fetchSoon waits for the fetch that runs, or makes one when the last is old
// enough.
func (k *keySet) fetchSoon(ctx context.Context) error {
	k.mu.Lock()
	running := k.mu.running
	if running == nil {
		if now := k.cfg.Clock(); now.Sub(k.mu.fetched) < fetchPause {
			k.mu.Unlock()
			return nil
		}
		running = k.beginLocked()
		k.started.Go(func() { k.fetch(running) })
	}
	k.mu.Unlock()
	select {
	case <-running:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// refresh fetches, unless somebody does.
func (k *keySet) refresh() {
	k.mu.Lock()
	if k.mu.running != nil {
		k.mu.Unlock()
		return
	}
	running := k.beginLocked()
	k.mu.Unlock()
	k.fetch(running)
}

func (k *keySet) beginLocked() chan struct{} {
	k.mu.running, k.mu.fetched = make(chan struct{}), k.cfg.Clock()
	return k.mu.running
}

func (k *keySet) fetch(running chan struct{}) {
	keys, err := k.get()
	if err != nil {
		k.cfg.Logger.Warn("the key set of tokens could not be fetched; the keys that are known stay", "setting", "JWT_JWKS_URL", "error", err)
	} else {
		k.keys.Store(&keys)
	}
	k.mu.Lock()
	k.mu.running = nil
	k.mu.Unlock()
	close(running)
}

func (k *keySet) get() ([]setKey, error) {
	ctx, cancel := context.WithTimeout(k.ctx, k.cfg.Timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, k.cfg.JWKSURL, nil)
	if err != nil {
		return nil, err
	}
	resp, err := k.cfg.Client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("status %d", resp.StatusCode)
	}
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxKeySet+1))
	switch {
	case err != nil:
		return nil, err
	case len(data) > maxKeySet:
		return nil, fmt.Errorf("the answer is over %d bytes", maxKeySet)
	}
	return parseKeySet(data)
}

// parseKeySet reads the RSA and Ed25519 keys that check signatures; others are
// left out.
func parseKeySet(data []byte) (keys []setKey, err error) {
	var set struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if err := json.Unmarshal(data, &set); err != nil {
		return nil, fmt.Errorf("no key set: %w", err)
	}
	if set.Keys == nil {
		return nil, fmt.Errorf("no key set: there is no array named keys")
	}
	for _, raw := range set.Keys {
		var jwk jose.JSONWebKey
		if jwk.UnmarshalJSON(raw) != nil || jwk.Use != "" && jwk.Use != "sig" {
			continue
		}
		switch jwk.Key.(type) {
		case *rsa.PublicKey, ed25519.PublicKey:
			keys = append(keys, setKey{id: jwk.KeyID, alg: jwk.Algorithm, key: jwk.Key})
		}
	}
	return keys, nil
}
