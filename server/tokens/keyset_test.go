package tokens

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
)

// keyServer serves a key set that a test changes.
type keyServer struct {
	*httptest.Server
	fetches atomic.Int64
	mu      sync.Mutex
	body    []byte
	status  int
	hold    chan struct{} // an answer waits for it; nil: none waits
}

func serveKeys(t *testing.T, keys ...jose.JSONWebKey) *keyServer {
	t.Helper()
	k := &keyServer{status: http.StatusOK}
	k.set(t, keys...)
	k.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		k.fetches.Add(1)
		k.mu.Lock()
		body, status, hold := k.body, k.status, k.hold
		k.mu.Unlock()
		if hold != nil {
			select {
			case <-hold:
			case <-r.Context().Done():
			}
		}
		w.WriteHeader(status)
		_, _ = w.Write(body)
	}))
	t.Cleanup(k.Close)
	return k
}

func (k *keyServer) set(t *testing.T, keys ...jose.JSONWebKey) {
	t.Helper()
	body, err := json.Marshal(jose.JSONWebKeySet{Keys: keys})
	if err != nil {
		t.Fatal(err)
	}
	k.serve(http.StatusOK, string(body), nil)
}

func (k *keyServer) serve(status int, body string, hold chan struct{}) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.status, k.body, k.hold = status, []byte(body), hold
}

// movable is a clock that a test moves.
type movable struct {
	mu sync.Mutex
	t  time.Time
}

func (c *movable) now() time.Time { c.mu.Lock(); defer c.mu.Unlock(); return c.t }
func (c *movable) move(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.t = c.t.Add(d)
}

func keyed(t *testing.T, cfg Config) (*Verifier, *movable) {
	t.Helper()
	clock := &movable{t: now}
	cfg.Clock = clock.now
	v, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(v.Close)
	return v, clock
}

func TestKeySet(t *testing.T) {
	s := serveKeys(t, jose.JSONWebKey{KeyID: "a", Key: &rsaKey.PublicKey}, jose.JSONWebKey{KeyID: "b", Key: edKey.Public(), Use: "sig"},
		jose.JSONWebKey{KeyID: "enc", Key: &otherRSA.PublicKey, Use: "enc"}, jose.JSONWebKey{KeyID: "secret", Key: secret},
		jose.JSONWebKey{KeyID: "bound", Key: &otherRSA.PublicKey, Algorithm: "RS512"})
	v, _ := keyed(t, Config{Algorithm: "auto", JWKSURL: s.URL})
	for _, c := range []struct {
		name, token string
		want        error
	}{
		{"rsa", sign(t, "RS256", rsaKey, claims{}, "kid", "a"), nil},
		{"ed25519", sign(t, "EdDSA", edKey, claims{}, "kid", "b"), nil},
		{"another's id", sign(t, "RS256", otherRSA, claims{}, "kid", "a"), ErrSignature},
		{"no id, the only key of its kind", sign(t, "EdDSA", edKey, claims{}), nil},
		{"an id of another kind of key", sign(t, "EdDSA", edKey, claims{}, "kid", "a"), ErrUnknownKey},
		{"a key for encryption", sign(t, "RS256", otherRSA, claims{}, "kid", "enc"), ErrUnknownKey},
		{"a secret in the set", sign(t, "HS256", secret, claims{}, "kid", "secret"), ErrUnsupported},
		{"a key bound to its alg", sign(t, "RS512", otherRSA, claims{}, "kid", "bound"), nil},
		{"and not to this one", sign(t, "RS256", otherRSA, claims{}, "kid", "bound"), ErrUnknownKey},
		{"an id that is no text", sign(t, "RS256", rsaKey, claims{}, "kid", 7), ErrHeader},
	} {
		if _, err := v.Verify(context.Background(), c.token); err != c.want {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
	}
}

// TestUnknownKeyFetchesOnce: a key id that is not known makes one fetch in 5 s,
// however many tokens ask for it.
func TestUnknownKeyFetchesOnce(t *testing.T) {
	s := serveKeys(t, jose.JSONWebKey{KeyID: "old", Key: &rsaKey.PublicKey})
	v, clock := keyed(t, Config{Algorithm: "RS256", JWKSURL: s.URL})
	if n := s.fetches.Load(); n != 1 {
		t.Fatalf("%d fetches at the start, want 1", n)
	}
	s.set(t, jose.JSONWebKey{KeyID: "new", Key: &otherRSA.PublicKey})
	fresh := sign(t, "RS256", otherRSA, claims{}, "kid", "new")
	ask := func(token string) error {
		_, err := v.Verify(context.Background(), token)
		return err
	}
	if err := ask(fresh); err != ErrUnknownKey || s.fetches.Load() != 1 {
		t.Fatalf("right after a fetch: %v, %d fetches", err, s.fetches.Load())
	}
	clock.move(fetchPause - time.Millisecond)
	if err := ask(fresh); err != ErrUnknownKey || s.fetches.Load() != 1 {
		t.Fatalf("within 5 s: %v, %d fetches", err, s.fetches.Load())
	}
	clock.move(time.Millisecond)
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			if err := ask(fresh); err != nil {
				t.Errorf("after 5 s: %v", err)
			}
		})
	}
	wg.Wait()
	if n := s.fetches.Load(); n != 2 {
		t.Errorf("%d fetches for 16 tokens, want one more", n)
	}
	if err := ask(sign(t, "RS256", rsaKey, claims{}, "kid", "old")); err != ErrUnknownKey {
		t.Errorf("a key that was withdrawn: %v", err)
	}
	for i := range 100 {
		_ = ask(sign(t, "RS256", rsaKey, claims{}, "kid", fmt.Sprint(i)))
	}
	if n := s.fetches.Load(); n != 2 {
		t.Errorf("%d fetches after 100 made-up ids", n)
	}
}

// TestFailedFetchKeepsTheKeys: a set that cannot be fetched, or is none, takes
// nothing away.
func TestFailedFetchKeepsTheKeys(t *testing.T) {
	s := serveKeys(t, jose.JSONWebKey{KeyID: "a", Key: &rsaKey.PublicKey})
	v, clock := keyed(t, Config{Algorithm: "RS256", JWKSURL: s.URL, Timeout: 50 * time.Millisecond})
	known, unknown := sign(t, "RS256", rsaKey, claims{}, "kid", "a"), sign(t, "RS256", rsaKey, claims{}, "kid", "b")
	for _, c := range []struct {
		status int
		body   string
		hold   chan struct{}
	}{{500, `{"keys":[]}`, nil}, {200, "junk", nil}, {200, `{}`, nil}, {200, `{"keys":[]}`, make(chan struct{})}} {
		s.serve(c.status, c.body, c.hold)
		clock.move(fetchPause)
		before := s.fetches.Load()
		if _, err := v.Verify(context.Background(), unknown); err != ErrUnknownKey || s.fetches.Load() != before+1 {
			t.Errorf("%d %s: %v, %d fetches", c.status, c.body, err, s.fetches.Load()-before)
		}
		if _, err := v.Verify(context.Background(), known); err != nil {
			t.Errorf("%d %s: the known key: %v", c.status, c.body, err)
		}
	}
}

// TestKeysThatComeLater: a URL that does not answer at the start is asked again.
func TestKeysThatComeLater(t *testing.T) {
	s := serveKeys(t)
	s.serve(http.StatusServiceUnavailable, "", nil)
	v, _ := keyed(t, Config{Algorithm: "RS256", JWKSURL: s.URL, Refresh: time.Millisecond})
	token := sign(t, "RS256", rsaKey, claims{}, "kid", "a")
	if _, err := v.Verify(context.Background(), token); err != ErrUnknownKey {
		t.Errorf("without keys: %v", err)
	}
	s.set(t, jose.JSONWebKey{KeyID: "a", Key: &rsaKey.PublicKey})
	for limit := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		if _, err := v.Verify(context.Background(), token); err == nil {
			return
		}
		if time.Now().After(limit) {
			t.Fatal("the keys were not fetched in the background")
		}
	}
}
