package fuzz

import (
	"encoding/base64"
	"encoding/json"
	"math/rand"
	"strconv"

	gofuzz "github.com/google/gofuzz"
)

// The structures below are the bodies of the routes. gofuzz fills them, so that
// most of what the targets start from is good, and near enough to bad.

type pushBody struct {
	Items []pushItem `json:"items"`
}

type pushItem struct {
	Queue         name    `json:"queue"`
	Partition     *name   `json:"partition,omitempty"`
	TransactionID *id     `json:"transactionId,omitempty"`
	Payload       payload `json:"payload"`
	TraceID       *string `json:"traceId,omitempty"`
}

type ackItem struct {
	TransactionID id     `json:"transactionId"`
	PartitionID   digits `json:"partitionId"`
	Group         *group `json:"consumerGroup,omitempty"`
	LeaseID       *lease `json:"leaseId,omitempty"`
	Status        status `json:"status,omitempty"`
	Error         *text  `json:"error"`
}

type ackBatchBody struct {
	Group *group    `json:"consumerGroup"`
	Acks  []ackItem `json:"acknowledgments"`
}

type operation struct {
	Type opType `json:"type"`
	ackItem
	Queue   *name      `json:"queue,omitempty"`
	Payload *payload   `json:"payload,omitempty"`
	Items   []pushItem `json:"items,omitempty"`
}

type transactionBody struct {
	Operations     []operation `json:"operations"`
	RequiredLeases []lease     `json:"requiredLeases"`
	KV             []kvOp      `json:"kv,omitempty"`
	Timers         []timerOp   `json:"timers,omitempty"`
	Positions      []position  `json:"positions,omitempty"`
}

type kvOp struct {
	Op       kvVerb   `json:"op"`
	NS       ns       `json:"ns"`
	Key      *key     `json:"key,omitempty"`
	Keys     []key    `json:"keys,omitempty"`
	Prefix   *key     `json:"prefix,omitempty"`
	After    *key     `json:"after,omitempty"`
	Limit    *small   `json:"limit,omitempty"`
	Value    *payload `json:"value,omitempty"`
	Delta    *small   `json:"delta,omitempty"`
	Min      *small   `json:"min,omitempty"`
	Max      *small   `json:"max,omitempty"`
	TTL      *small   `json:"ttlSeconds,omitempty"`
	Forever  bool     `json:"forever,omitempty"`
	Expect   *small   `json:"expect,omitempty"`
	Required bool     `json:"required,omitempty"`
}

type kvBody struct {
	Operations []kvOp `json:"operations"`
}

type kvPutBody struct {
	Value   payload `json:"value"`
	TTL     *small  `json:"ttlSeconds,omitempty"`
	Forever bool    `json:"forever,omitempty"`
	Expect  *small  `json:"expect,omitempty"`
}

type kvDeleteBody struct {
	Expect   *small `json:"expect,omitempty"`
	Required bool   `json:"required,omitempty"`
}

type timerOp struct {
	Op        timerVerb `json:"op"`
	Queue     name      `json:"queue"`
	Key       key       `json:"timerKey"`
	Partition *name     `json:"partition,omitempty"`
	DelayMs   *small    `json:"delayMs,omitempty"`
	Txn       *id       `json:"txn,omitempty"`
	Payload   *base64ed `json:"payload,omitempty"`
	Zstd      bool      `json:"payloadZstd,omitempty"`
}

type timersBody struct {
	Operations []timerOp `json:"operations"`
}

type position struct {
	Queue     name   `json:"queue"`
	Group     group  `json:"consumerGroup"`
	Partition *name  `json:"partition,omitempty"`
	Offset    *small `json:"offset"`
	Metadata  *text  `json:"metadata,omitempty"`
}

type configureBody struct {
	Queue   name           `json:"queue"`
	Mode    string         `json:"mode,omitempty"`
	Options map[string]any `json:"options,omitempty"`
}

type extendBody struct {
	Seconds small `json:"seconds"`
}

// Values come from small sets, so that calls meet each other's data.
type (
	name      string
	id        string
	group     string
	lease     string
	digits    string
	status    string
	opType    string
	kvVerb    string
	timerVerb string
	ns        string
	key       string
	text      string
	base64ed  string
	small     int64
	payload   struct{ json.RawMessage }
)

func oneOf(c gofuzz.Continue, from ...string) string { return from[c.Intn(len(from))] }

// mostly gives good, and now and then bad.
func mostly(c gofuzz.Continue, good, bad string) string {
	if c.Intn(25) == 0 {
		return bad
	}
	return good
}

// builder fills bodies from one seed: mostly good ones.
func builder(seed int64) *gofuzz.Fuzzer {
	return gofuzz.NewWithSeed(seed).NilChance(0.4).NumElements(1, 4).Funcs(
		func(v *name, c gofuzz.Continue) {
			*v = name(mostly(c, oneOf(c, "q", "r", "a.b.c", "ü/\x00🐘"), c.RandString()))
		},
		func(v *id, c gofuzz.Continue) { *v = id("m" + strconv.Itoa(c.Intn(40))) },
		func(v *group, c gofuzz.Continue) { *v = group(oneOf(c, "g", "__QUEUE_MODE__", "h")) },
		func(v *lease, c gofuzz.Continue) {
			*v = lease(oneOf(c, "", "", "019a2f40-6c11-7aa0-9d52-3b7e90c1f204", c.RandString()))
		},
		func(v *digits, c gofuzz.Continue) { *v = digits(mostly(c, oneOf(c, "1", "1", "2"), "x")) },
		func(v *status, c gofuzz.Continue) {
			*v = status(oneOf(c, "completed", "failed", "retry", "dlq", "what"))
		},
		func(v *ns, c gofuzz.Continue) { *v = ns(mostly(c, oneOf(c, "t", "u"), "Bad")) },
		func(v *key, c gofuzz.Continue) { *v = key("k" + strconv.Itoa(c.Intn(200))) },
		func(v *text, c gofuzz.Continue) { *v = text(c.RandString()) },
		func(v *base64ed, c gofuzz.Continue) {
			*v = base64ed(base64.StdEncoding.EncodeToString([]byte(`{"n":` + strconv.Itoa(c.Intn(9)) + `}`)))
		},
		func(v *small, c gofuzz.Continue) { *v = small(c.Intn(1000)) },
		func(v *payload, c gofuzz.Continue) {
			v.RawMessage = json.RawMessage(oneOf(c, `null`, `{"a":1}`, `[1,2]`, `"s"`, `12345678901234567890`, `1.50`))
		},
		fillOperation, fillKVOp, fillTimerOp, fillPosition, fillConfigure, fillKVPut,
	)
}

func fillOperation(v *operation, c gofuzz.Continue) {
	v.Type = opType(mostly(c, oneOf(c, "ack", "push", "push"), "kv"))
	if v.Type == "ack" {
		c.Fuzz(&v.ackItem)
		return
	}
	if c.Intn(2) == 0 {
		c.Fuzz(&v.Items)
		return
	}
	v.Queue, v.Payload = new(name), new(payload)
	c.Fuzz(v.Queue)
	c.Fuzz(v.Payload)
}

func fillKVOp(v *kvOp, c gofuzz.Continue) {
	if c.Intn(10) == 0 {
		c.FuzzNoCustom(v)
		return
	}
	v.Op = kvVerb(oneOf(c, "get", "getMany", "getPrefix", "put", "putIfAbsent", "delete", "incr", "check"))
	c.Fuzz(&v.NS)
	k := new(key)
	c.Fuzz(k)
	v.Required = c.Intn(4) == 0
	switch v.Op {
	case "getMany":
		c.Fuzz(&v.Keys)
	case "getPrefix":
		v.Prefix = k
		c.Fuzz(&v.Limit)
	case "put", "putIfAbsent":
		v.Key, v.Value, v.Forever = k, new(payload), true
		c.Fuzz(v.Value)
	case "incr":
		v.Key, v.Delta, v.Forever = k, new(small), true
		c.Fuzz(v.Delta)
		c.Fuzz(&v.Max)
	case "check":
		v.Key, v.Expect = k, new(small)
	default:
		v.Key = k
	}
}

func fillTimerOp(v *timerOp, c gofuzz.Continue) {
	if c.Intn(10) == 0 {
		c.FuzzNoCustom(v)
		return
	}
	v.Op = timerVerb(oneOf(c, "schedule", "reschedule", "cancel"))
	c.Fuzz(&v.Queue)
	c.Fuzz(&v.Key)
	c.Fuzz(&v.Txn)
	if v.Op != "cancel" {
		v.DelayMs, v.Payload = new(small), new(base64ed)
		*v.DelayMs = small(60_000 + c.Intn(1000))
		c.Fuzz(v.Payload)
	}
}

func fillPosition(v *position, c gofuzz.Continue) {
	v.Queue = name(mostly(c, "q", "none"))
	v.Group = group(oneOf(c, "g", "h"))
	c.Fuzz(&v.Partition)
	c.Fuzz(&v.Offset)
}

func fillConfigure(v *configureBody, c gofuzz.Continue) {
	c.Fuzz(&v.Queue)
	v.Mode = mostly(c, oneOf(c, "", "merge", "replace"), "Merge")
	v.Options = map[string]any{
		oneOf(c, "leaseTime", "retryLimit", "dedupWindowSeconds", "windowBuffer", "colour"): c.Intn(50) - 5,
	}
}

func fillKVPut(v *kvPutBody, c gofuzz.Continue) {
	c.Fuzz(&v.Value)
	v.Forever = true
	if c.Intn(4) == 0 {
		c.Fuzz(&v.Expect)
	}
}

// route is one route that takes a body.
type route struct {
	method, path string
	body         func(f *gofuzz.Fuzzer) any
}

func filled[T any](f *gofuzz.Fuzzer) any {
	var v T
	f.Fuzz(&v)
	return v
}

var routes = []route{
	{"POST", "/api/v1/push", filled[pushBody]},
	{"POST", "/api/v1/ack", filled[ackItem]},
	{"POST", "/api/v1/ack/batch", filled[ackBatchBody]},
	{"POST", "/api/v1/transaction", filled[transactionBody]},
	{"POST", "/api/v1/kv", filled[kvBody]},
	{"PUT", "/api/v1/kv/t/k1", filled[kvPutBody]},
	{"DELETE", "/api/v1/kv/t/k1", filled[kvDeleteBody]},
	{"POST", "/api/v1/timers", filled[timersBody]},
	{"POST", "/api/v1/configure", filled[configureBody]},
	{"POST", "/api/v1/lease/019a2f40-6c11-7aa0-9d52-3b7e90c1f204/extend", filled[extendBody]},
}

// build makes a body for a route from a seed.
func build(r *route, seed int64) ([]byte, error) { return json.Marshal(r.body(builder(seed))) }

// mutate damages a body: bytes flipped, cut, doubled, or replaced by what JSON
// is made of.
func mutate(rng *rand.Rand, body []byte) []byte {
	tokens := []string{"{", "}", "[", "]", ",", ":", `"`, `\`, "null", "true", "-1", "1e999", "\x00", "\xff", `"items"`, "{}", "[]", `""`, `\u0000`, `\ud800`}
	out := append([]byte(nil), body...)
	for range 1 + rng.Intn(3) {
		if len(out) == 0 {
			return out
		}
		at := rng.Intn(len(out))
		switch rng.Intn(4) {
		case 0:
			out[at] ^= 1 << rng.Intn(8)
		case 1:
			out = append(out[:at], out[min(len(out), at+1+rng.Intn(8)):]...)
		case 2:
			end := min(len(out), at+1+rng.Intn(16))
			out = append(out[:end:end], out[at:]...)
		case 3:
			t := tokens[rng.Intn(len(tokens))]
			out = append(out[:at:at], append([]byte(t), out[min(len(out), at+rng.Intn(4)):]...)...)
		}
	}
	return out
}
