// Package api is the part of a broker's HTTP API that the demonstration and the
// crash test use, as Go types. One method is one call: nothing is sent again.
//
// A Client may be used by many goroutines at once.
package api

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"time"
)

// Client calls one broker.
type Client struct {
	base string
	http *http.Client
}

// New returns a client of the broker at base (http://host:port). A call is given
// up after timeout, which leaves its outcome unknown.
func New(base string, timeout time.Duration) *Client {
	t := &http.Transport{MaxIdleConnsPerHost: 128, DisableCompression: true}
	return &Client{base: base, http: &http.Client{Transport: t, Timeout: timeout}}
}

// NewOn is New with connections that dial makes; base names no real host then.
func NewOn(dial func(ctx context.Context, network, addr string) (net.Conn, error), timeout time.Duration) *Client {
	t := &http.Transport{DialContext: dial, MaxIdleConnsPerHost: 128, DisableCompression: true}
	return &Client{base: "http://broker", http: &http.Client{Transport: t, Timeout: timeout}}
}

// Close drops idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// StatusError is an answer with a status that the call does not expect. 429, 503
// and 500 leave the outcome of a write unknown; other ones mean that nothing was
// applied.
type StatusError struct {
	Call   string
	Status int
	Body   string
}

func (e *StatusError) Error() string {
	return fmt.Sprintf("%s: status %d: %.300s", e.Call, e.Status, e.Body)
}

// Unknown reports whether the call may have been applied.
func (e *StatusError) Unknown() bool {
	return e.Status >= 500 && e.Status != http.StatusInsufficientStorage
}

// Message is a popped message.
type Message struct {
	ID              string          `json:"id"`
	TransactionID   string          `json:"transactionId"`
	Data            json.RawMessage `json:"data"`
	PartitionID     string          `json:"partitionId"`
	Partition       string          `json:"partition"`
	LeaseID         string          `json:"leaseId"`
	CreatedAt       time.Time       `json:"createdAt"`
	Offset          int64           `json:"offset"`
	DeliveryAttempt int             `json:"deliveryAttempt"`
}

// Item is a message to push.
type Item struct {
	Queue         string `json:"queue"`
	Partition     string `json:"partition,omitempty"`
	TransactionID string `json:"transactionId,omitempty"`
	Payload       any    `json:"payload"`
}

// Pushed is what became of one item.
type Pushed struct {
	MessageID     string `json:"message_id"`
	TransactionID string `json:"transaction_id"`
	Status        string `json:"status"` // queued, duplicate or error
	Offset        int64  `json:"offset"`
}

// Operation is an ack or a push of a transaction.
type Operation struct {
	Type          string `json:"type"`
	TransactionID string `json:"transactionId,omitempty"`
	PartitionID   string `json:"partitionId,omitempty"`
	ConsumerGroup string `json:"consumerGroup,omitempty"`
	LeaseID       string `json:"leaseId,omitempty"`
	Status        string `json:"status,omitempty"`
	Error         string `json:"error,omitempty"`
	Items         []Item `json:"items,omitempty"`
}

// Ack returns the operation that settles m, and everything below it in its
// batch, for a group.
func Ack(m Message, group string) Operation {
	return Operation{Type: "ack", TransactionID: m.TransactionID, PartitionID: m.PartitionID, ConsumerGroup: group, LeaseID: m.LeaseID,
		Status: "completed"}
}

// KVOp is one key/value operation.
type KVOp struct {
	Op         string   `json:"op"`
	NS         string   `json:"ns"`
	Key        string   `json:"key,omitempty"`
	Keys       []string `json:"keys,omitempty"`
	Value      any      `json:"value,omitempty"`
	Delta      float64  `json:"delta,omitempty"`
	Expect     *int64   `json:"expect,omitempty"`
	TTLSeconds int      `json:"ttlSeconds,omitempty"`
	Required   bool     `json:"required,omitempty"`
}

// TimerOp is one timer operation; Payload is base64 in JSON, as the API has it.
type TimerOp struct {
	Op        string `json:"op"`
	Queue     string `json:"queue"`
	TimerKey  string `json:"timerKey"`
	Partition string `json:"partition,omitempty"`
	DelayMs   int64  `json:"delayMs"`
	Txn       string `json:"txn,omitempty"`
	Payload   []byte `json:"payload,omitempty"`
}

// Transaction is the body of a transaction call.
type Transaction struct {
	Operations     []Operation `json:"operations"`
	RequiredLeases []string    `json:"requiredLeases"`
	KV             []KVOp      `json:"kv,omitempty"`
	Timers         []TimerOp   `json:"timers,omitempty"`
}

// Verdict is the answer to a transaction. Reason and KVReason are set when it
// was rolled back.
type Verdict struct {
	Success  bool              `json:"success"`
	Replayed bool              `json:"-"` // it is the answer that was kept of the first call
	ID       string            `json:"transactionId"`
	Reason   string            `json:"reason"`
	KVReason string            `json:"kvReason"`
	Error    string            `json:"error"`
	Results  []json.RawMessage `json:"results"`
}

// Row is a key/value row; Value is nil when there is none.
type Row struct {
	Found   bool            `json:"found"`
	Key     string          `json:"key"`
	Value   json.RawMessage `json:"value"`
	Version int64           `json:"version"`
}

// Push stores items.
func (c *Client) Push(ctx context.Context, items ...Item) ([]Pushed, error) {
	var out []Pushed
	err := c.call(ctx, http.MethodPost, "/api/v1/push", map[string]any{"items": items}, &out, http.StatusCreated)
	if err == nil && len(out) != len(items) {
		err = fmt.Errorf("push: %d results for %d items", len(out), len(items))
	}
	return out, err
}

// Pop takes messages of a queue; query holds the parameters of the pop route. No
// messages is an empty list.
func (c *Client) Pop(ctx context.Context, queue string, query url.Values) ([]Message, error) {
	var out struct{ Messages []Message }
	path := "/api/v1/pop/queue/" + url.PathEscape(queue) + "?" + query.Encode()
	err := c.call(ctx, http.MethodGet, path, nil, &out, http.StatusOK, http.StatusNoContent)
	return out.Messages, err
}

// Transact sends a transaction. A rolled-back one is not an error.
func (c *Client) Transact(ctx context.Context, t Transaction) (Verdict, error) {
	return c.TransactKeyed(ctx, t, "")
}

// TransactKeyed is Transact with an Idempotency-Key; empty: none.
func (c *Client) TransactKeyed(ctx context.Context, t Transaction, key string) (Verdict, error) {
	if t.Operations == nil {
		t.Operations = []Operation{}
	}
	if t.RequiredLeases == nil {
		t.RequiredLeases = []string{}
	}
	var out Verdict
	header, err := c.send(ctx, http.MethodPost, "/api/v1/transaction", key, t, &out, http.StatusOK)
	out.Replayed = header.Get("Idempotency-Replayed") == "true"
	return out, err
}

// AckItem is one message of a batch ack.
type AckItem struct {
	TransactionID string `json:"transactionId"`
	PartitionID   string `json:"partitionId"`
	LeaseID       string `json:"leaseId"`
	Status        string `json:"status"`
	Error         string `json:"error,omitempty"`
}

// Acked is what became of one of them.
type Acked struct {
	Success bool    `json:"success"`
	Error   *string `json:"error"`
	DLQ     bool    `json:"dlq"`
	Noop    bool    `json:"noop"`
}

// AckBatch acks messages of a group in one call.
func (c *Client) AckBatch(ctx context.Context, group string, items []AckItem) ([]Acked, error) {
	var out []Acked
	err := c.call(ctx, http.MethodPost, "/api/v1/ack/batch", map[string]any{"consumerGroup": group, "acknowledgments": items}, &out, http.StatusOK)
	if err == nil && len(out) != len(items) {
		err = fmt.Errorf("ack: %d results for %d items", len(out), len(items))
	}
	return out, err
}

// Extend makes a lease last at least seconds from now; false: it is over.
func (c *Client) Extend(ctx context.Context, lease string, seconds int) (bool, error) {
	var out struct{ Success bool }
	err := c.call(ctx, http.MethodPost, "/api/v1/lease/"+lease+"/extend", map[string]any{"seconds": seconds}, &out, http.StatusOK)
	return out.Success, err
}

// KVResult is the outcome of a key/value write.
type KVResult struct {
	Applied bool            `json:"applied"`
	Reason  string          `json:"reason"`
	Value   json.RawMessage `json:"value"`
	Version int64           `json:"version"`
}

// KV carries out key/value writes in one call.
func (c *Client) KV(ctx context.Context, ops ...KVOp) ([]KVResult, error) {
	var out struct{ Results []KVResult }
	err := c.call(ctx, http.MethodPost, "/api/v1/kv", map[string]any{"operations": ops}, &out, http.StatusOK)
	if err == nil && len(out.Results) != len(ops) {
		err = fmt.Errorf("kv: %d results for %d operations", len(out.Results), len(ops))
	}
	return out.Results, err
}

// TimerResult is the outcome of one timer operation.
type TimerResult struct {
	Status    string    `json:"status"` // scheduled, rescheduled, cancelled or absent
	DeliverAt time.Time `json:"deliverAt"`
}

// Timers carries out timer operations in one call.
func (c *Client) Timers(ctx context.Context, ops ...TimerOp) ([]TimerResult, error) {
	var out struct{ Results []TimerResult }
	err := c.call(ctx, http.MethodPost, "/api/v1/timers", map[string]any{"operations": ops}, &out, http.StatusOK)
	if err == nil && len(out.Results) != len(ops) {
		err = fmt.Errorf("timers: %d results for %d operations", len(out.Results), len(ops))
	}
	return out.Results, err
}

// Configure sets options of a queue, which it creates when there is none.
func (c *Client) Configure(ctx context.Context, queue string, options map[string]any) error {
	var out struct{ Configured bool }
	return c.call(ctx, http.MethodPost, "/api/v1/configure", map[string]any{"queue": queue, "options": options}, &out, http.StatusOK)
}

// DeleteQueue removes a queue with all that it holds.
func (c *Client) DeleteQueue(ctx context.Context, queue string) error {
	var out struct{ Deleted bool }
	return c.call(ctx, http.MethodDelete, "/api/v1/resources/queues/"+url.PathEscape(queue), nil, &out, http.StatusOK)
}

// DeadLetter is a message that its group gave up.
type DeadLetter struct {
	ID            string          `json:"id"`
	TransactionID string          `json:"transactionId"`
	Queue         string          `json:"queue"`
	Partition     string          `json:"partition"`
	ConsumerGroup string          `json:"consumerGroup"`
	Data          json.RawMessage `json:"data"`
}

// DeadLetters lists up to limit dead letters of a group on a queue.
func (c *Client) DeadLetters(ctx context.Context, queue, group string, limit int) ([]DeadLetter, error) {
	var out struct{ Messages []DeadLetter }
	path := fmt.Sprintf("/api/v1/dlq?queue=%s&consumerGroup=%s&limit=%d", url.QueryEscape(queue), url.QueryEscape(group), limit)
	err := c.call(ctx, http.MethodGet, path, nil, &out, http.StatusOK)
	return out.Messages, err
}

// AckOne acks one message and reports whether the broker carried it out.
func (c *Client) AckOne(ctx context.Context, m Message, group, status string) (bool, error) {
	var out []struct{ Success bool }
	body := map[string]any{"transactionId": m.TransactionID, "partitionId": m.PartitionID, "consumerGroup": group, "leaseId": m.LeaseID,
		"status": status}
	err := c.call(ctx, http.MethodPost, "/api/v1/ack", body, &out, http.StatusOK)
	return len(out) == 1 && out[0].Success, err
}

// KVGet reads one key.
func (c *Client) KVGet(ctx context.Context, ns, key string) (Row, error) {
	var out Row
	err := c.call(ctx, http.MethodGet, "/api/v1/kv/"+url.PathEscape(ns)+"/"+url.PathEscape(key), nil, &out, http.StatusOK)
	return out, err
}

// KVGetMany reads keys of one namespace; absent ones are not in the answer.
func (c *Client) KVGetMany(ctx context.Context, ns string, keys []string) (map[string]json.RawMessage, error) {
	if len(keys) == 0 {
		return nil, nil
	}
	var out struct {
		Results []struct {
			Rows      []Row
			Truncated bool
		}
	}
	body := map[string]any{"operations": []KVOp{{Op: "getMany", NS: ns, Keys: keys}}}
	if err := c.call(ctx, http.MethodPost, "/api/v1/kv", body, &out, http.StatusOK); err != nil {
		return nil, err
	}
	if len(out.Results) != 1 || out.Results[0].Truncated {
		return nil, fmt.Errorf("kv: getMany of %d keys: %d results, or truncated", len(keys), len(out.Results))
	}
	rows := map[string]json.RawMessage{}
	for _, r := range out.Results[0].Rows {
		rows[r.Key] = r.Value
	}
	return rows, nil
}

// TimerPending reports whether a timer is pending.
func (c *Client) TimerPending(ctx context.Context, queue, key string) (bool, error) {
	var out struct{ Found bool }
	err := c.call(ctx, http.MethodGet, "/api/v1/timers/"+url.PathEscape(queue)+"/"+url.PathEscape(key), nil, &out, http.StatusOK)
	return out.Found, err
}

// QueueID returns the number of a queue, which names its log.
func (c *Client) QueueID(ctx context.Context, queue string) (string, error) {
	var out struct{ ID string }
	err := c.call(ctx, http.MethodGet, "/api/v1/resources/queues/"+url.PathEscape(queue), nil, &out, http.StatusOK)
	return out.ID, err
}

// Health returns nil when the broker says that it is well.
func (c *Client) Health(ctx context.Context) error {
	var out struct{ Status string }
	return c.call(ctx, http.MethodGet, "/health", nil, &out, http.StatusOK)
}

// QueueOptions returns the options of a queue; a StatusError of 404 says that
// there is none.
func (c *Client) QueueOptions(ctx context.Context, queue string) (map[string]json.RawMessage, error) {
	var out struct{ Options map[string]json.RawMessage }
	err := c.call(ctx, http.MethodGet, "/api/v1/resources/queues/"+url.PathEscape(queue), nil, &out, http.StatusOK)
	return out.Options, err
}

// Depth returns how many messages of a queue a group has not settled, and how
// many of them are under a live lease.
func (c *Client) Depth(ctx context.Context, queue, group string) (pending, processing int64, err error) {
	var out struct{ Pending, Processing int64 }
	path := "/api/v1/resources/queues/" + url.PathEscape(queue) + "/depth?group=" + url.QueryEscape(group)
	err = c.call(ctx, http.MethodGet, path, nil, &out, http.StatusOK)
	return out.Pending, out.Processing, err
}

func (c *Client) call(ctx context.Context, method, path string, body, out any, statuses ...int) error {
	_, err := c.send(ctx, method, path, "", body, out, statuses...)
	return err
}

// send is call with an Idempotency-Key (empty: none), and gives the answer's header.
func (c *Client) send(ctx context.Context, method, path, key string, body, out any, statuses ...int) (http.Header, error) {
	var r io.Reader
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			return nil, err
		}
		r = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, c.base+path, r)
	if err != nil {
		return nil, err
	}
	if key != "" {
		req.Header.Set("Idempotency-Key", key)
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return resp.Header, fmt.Errorf("%s %s: %w", method, path, err)
	}
	for _, s := range statuses {
		if resp.StatusCode != s {
			continue
		}
		if s == http.StatusNoContent {
			return resp.Header, nil
		}
		if err := json.Unmarshal(b, out); err != nil {
			return resp.Header, fmt.Errorf("%s %s: %w in %.300s", method, path, err, b)
		}
		return resp.Header, nil
	}
	return resp.Header, &StatusError{Call: method + " " + path, Status: resp.StatusCode, Body: string(b)}
}
