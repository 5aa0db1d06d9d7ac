package conformance

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"
)

// State is what must not change when a call is refused.
type State struct {
	Digest string // of the whole state machine
	Commit uint64 // raft's commit index
}

// Answer is an HTTP answer, read to its end.
type Answer struct {
	Status int
	Header http.Header
	Body   []byte
}

// Broker is one broker in this process with a listener of its own. Its methods
// may be called at once.
type Broker struct {
	addr   string
	client *http.Client
}

// Start starts an empty broker on the memory file system and a clock at a fixed
// time. settings are environment variables of the broker.
func Start(settings map[string]string) (*Broker, error) {
	return nil, fmt.Errorf("no server yet")
}

// Do sends one request. path goes onto the wire as it is, query included.
func (b *Broker) Do(ctx context.Context, method, path string, header http.Header, body []byte) (*Answer, error) {
	req := (&http.Request{
		Method: method,
		URL:    &url.URL{Scheme: "http", Host: b.addr, Opaque: path},
		Host:   b.addr,
		Header: header,
	}).WithContext(ctx)
	if len(body) > 0 {
		req.Body = io.NopCloser(bytes.NewReader(body))
		req.ContentLength = int64(len(body))
	}
	resp, err := b.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, fmt.Errorf("read the answer of %s %s: %w", method, path, err)
	}
	return &Answer{Status: resp.StatusCode, Header: resp.Header, Body: data}, nil
}

// Now is the broker's time.
func (b *Broker) Now() time.Time { return time.Time{} }

// Advance moves the broker's clock and waits until what became due is done.
func (b *Broker) Advance(d time.Duration) error { return nil }

// AwaitParked waits until n pops wait in the broker.
func (b *Broker) AwaitParked(n int) error { return nil }

// State reads the state digest and the commit index, after all that was
// answered before.
func (b *Broker) State() (State, error) { return State{}, nil }

// Close stops the broker.
func (b *Broker) Close() error { return nil }
