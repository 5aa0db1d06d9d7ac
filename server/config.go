package server

import (
	"crypto/rand"
	"io"
	"log/slog"
	"time"

	"queen/internal/vfs"
	"queen/server/envelope"
	"queen/server/spans"
	"queen/server/tokens"
)

// Config is what a Server runs with. Zero fields take the defaults named at
// them; Engine is required.
type Config struct {
	Engine  Engine
	Cluster Cluster // the way to the other nodes; nil: this one is alone
	Version string  // of the build, as /health tells it

	// Clock gives wall-clock time, for ids and for measuring.
	Clock func() time.Time
	// Rand seeds the id generator.
	Rand   io.Reader
	Logger *slog.Logger
	// Usage measures the volume of the data directory, once a second; nil:
	// the disk is never full.
	Usage func() (vfs.Usage, error)
	// Reserve is told each measurement, and whether the disk is below its high
	// water. full: growing writes are to be refused all the same; spent: nothing
	// is left to write with. Nil: there is no reserve.
	Reserve func(u vfs.Usage, roomy bool) (full, spent bool)

	Limits  Limits
	Tenancy bool // read x-queen-tenant
	// RequireGrant: KV, locks and the scheduling of timers are for tenants with a
	// grant. Nothing gives one yet, so it turns them off for all of this node.
	RequireGrant bool
	Metrics      bool // measure calls; /metrics/prometheus answers either way
	Pprof        bool // serve /debug/pprof

	// Spans records the phases of every call; nil: nothing does. Close leaves it
	// open.
	Spans *spans.Recorder
	// Key seals the payloads of queues with encryptionEnabled; nil: such queues
	// take none.
	Key *envelope.Key
	// Tokens checks who calls, against the levels of the route table; nil:
	// every route is open to anybody. Close leaves it open.
	Tokens *tokens.Verifier
	// SkipPaths are open to anybody all the same: exact paths, and with a slash
	// at their end what is below them ("/" is itself only).
	SkipPaths []string

	// Levels of zstd, 1 to 22; 0 stores payloads as they are.
	ZstdLevel int
}

// Limits are the bounds that requests meet at the edge.
type Limits struct {
	BodyBytes   int64         // request body; 64 MiB
	Connections int           // open at a time, further ones wait; 0 is no bound
	HeaderBytes int           // of a request's line and header, over it 431; 64 KiB
	HeaderTime  time.Duration // longest wait for a header once a connection sends one, and for a TLS handshake; 30 s
	BodyGrace   time.Duration // in which a body may stand still at its start; 30 s
	BodyRate    int64         // bytes a second that it must come with from then on, on average; 8 KiB
	EntryBytes  int           // largest planned part of a call; 96 MiB
	AdmitBytes  int64         // bodies of growing writes in flight; 0 is no bound
	AdmitHold   time.Duration // longest wait for admission, +/- 25%; 15 s
	DiskHighPct float64       // 507 from here; 85
	DiskLowPct  float64       // until below this; 80

	PopTimeout  time.Duration // timeout of a waiting pop that names none; 30 s
	PushTimeout time.Duration // deadline of a push; 30 s, at most 60 s
	CallTimeout time.Duration // deadline of every other call; 30 s, at most 60 s
	ReplyMargin time.Duration // taken off a waiting pop's timeout; 50 ms
	SlowCall    time.Duration // calls that take this long are logged; 50 ms

	KVValueBytes int // compact JSON of one value; 64 KiB
	KVOps        int // operations of a call to the KV route; 256
	KVKeys       int // keys named by a call to the KV route; 1024, at most 4096

	// Calls per second and tenant, and the burst above them; 0 is no bound.
	KVReadRate, KVReadBurst   float64
	KVWriteRate, KVWriteBurst float64
	KVCellRate                float64 // of all tenants together; its burst is one second's
	KVTenants                 int     // tenants whose rates are tracked; 10,000

	TimerHorizon      time.Duration // longest delay on the timers route; 90 days
	TimerPayloadBytes int           // decoded payload on the timers route; 1 MiB
	TimerOps          int           // operations of a call to the timers route; 256
}

// Limits of the transaction route and of names, which have no setting.
const (
	txnKVOps       = 64
	txnKVKeys      = 256
	txnPositions   = 16384
	maxMetadata    = 4096
	maxTxnID       = 65535
	maxTimeout     = 60 * time.Second
	maxPartitions  = 64
	defaultBatch   = 200
	tenantBytes    = 36
	nameBytes      = 447 - tenantBytes // queue + the longer of partition and group
	storeKeyBytes  = 511 - tenantBytes // KV: namespace + key; timers: queue + key
	kvKeyBytes     = 512
	maxAckDelay    = 86_400_000 // ms
	maxLeaseSecond = 10 * 365 * 86400
	maxSeconds     = 300 * 365 * 86400 // a ttl beyond is that
	maxTimerDelay  = 100 * 365 * 86400 * 1000
)

const (
	defaultPartition = "Default"
	defaultTenant    = "00000000-0000-0000-0000-000000000001"
)

func orDefault[T int | int64 | float64 | time.Duration](v *T, def T) {
	if *v <= 0 {
		*v = def
	}
}

func (c Config) withDefaults() Config {
	if c.Clock == nil {
		c.Clock = time.Now
	}
	if c.Rand == nil {
		c.Rand = rand.Reader
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Version == "" {
		c.Version = "devel"
	}
	l := &c.Limits
	orDefault(&l.BodyBytes, 64<<20)
	orDefault(&l.HeaderBytes, 64<<10)
	orDefault(&l.HeaderTime, 30*time.Second)
	orDefault(&l.BodyGrace, 30*time.Second)
	orDefault(&l.BodyRate, 8<<10)
	orDefault(&l.EntryBytes, 96<<20)
	orDefault(&l.AdmitHold, 15*time.Second)
	orDefault(&l.DiskHighPct, 85)
	orDefault(&l.DiskLowPct, 80)
	orDefault(&l.PopTimeout, 30*time.Second)
	orDefault(&l.PushTimeout, 30*time.Second)
	orDefault(&l.CallTimeout, 30*time.Second)
	orDefault(&l.ReplyMargin, 50*time.Millisecond)
	orDefault(&l.SlowCall, 50*time.Millisecond)
	orDefault(&l.KVValueBytes, 64<<10)
	orDefault(&l.KVOps, 256)
	orDefault(&l.KVKeys, 1024)
	orDefault(&l.KVTenants, 10_000)
	orDefault(&l.TimerHorizon, 90*24*time.Hour)
	orDefault(&l.TimerPayloadBytes, 1<<20)
	orDefault(&l.TimerOps, 256)
	l.KVKeys = min(l.KVKeys, 4096)
	l.PopTimeout = min(l.PopTimeout, maxTimeout)
	l.PushTimeout = min(l.PushTimeout, maxTimeout)
	l.CallTimeout = min(l.CallTimeout, maxTimeout)
	return c
}
