package server

import (
	"context"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gin-gonic/gin"

	"queen/fsm"
)

// Server answers HTTP requests. See the package comment for what may run at
// once and what it starts.
type Server struct {
	cfg       Config
	engine    Engine
	log       *slog.Logger
	logLimit  logLimit
	ids       *idSource
	admission *admission
	gate      *gate
	disk      *diskWatch
	metrics   *metrics
	packer    *packer
	sealing   sealing
	rates     *rates
	times     timeCache
	router    *gin.Engine
	http      *http.Server
	started   time.Time

	idPrefix  string // of the request ids minted here
	idCount   atomic.Uint64
	stopping  atomic.Bool
	leaving   context.Context // ends when the server stops
	leave     context.CancelFunc
	sick      atomic.Pointer[string] // why /health is not well; nil: it is
	abandoned outstanding
	givenUp   chan struct{} // closed when abandoned calls are waited for no longer
	stopWatch context.CancelFunc
	watching  sync.WaitGroup
}

// New makes a server. Close ends what it starts.
func New(cfg Config) (*Server, error) {
	cfg = cfg.withDefaults()
	if cfg.Engine == nil {
		return nil, errors.New("server: no engine")
	}
	for _, rt := range slices.Concat(routes, profiles) {
		if rt.level == 0 {
			return nil, fmt.Errorf("server: the route %s %s names no level of access", rt.method, rt.path)
		}
	}
	ids, err := newIDSource(cfg.Clock, cfg.Rand)
	if err != nil {
		return nil, err
	}
	var prefix [6]byte
	if _, err := io.ReadFull(cfg.Rand, prefix[:]); err != nil {
		return nil, fmt.Errorf("prefix of request ids: %w", err)
	}
	packer, err := newPacker(cfg.ZstdLevel, cfg.Key)
	if err != nil {
		return nil, err
	}
	l := cfg.Limits
	s := &Server{
		cfg: cfg, engine: cfg.Engine, log: cfg.Logger, ids: ids, packer: packer,
		admission: newAdmission(l.AdmitBytes, l.AdmitHold),
		disk:      &diskWatch{usage: cfg.Usage, reserve: cfg.Reserve, high: l.DiskHighPct, low: l.DiskLowPct},
		rates:     newRates(l, cfg.Clock),
		started:   cfg.Clock(),
		givenUp:   make(chan struct{}),
		idPrefix:  hex.EncodeToString(prefix[:]) + "-",
	}
	s.leaving, s.leave = context.WithCancel(context.Background())
	s.gate = newGate(l.AdmitHold, cfg.Clock, &s.admission.refused)
	s.metrics = newMetrics(s)
	s.router = s.newRouter()
	s.http = &http.Server{
		Handler: s.router,
		// A client may be silent for long between requests and while its pop
		// waits, not inside a request, and has to take its answer.
		ReadHeaderTimeout: l.HeaderTime,
		MaxHeaderBytes:    l.HeaderBytes,
		ReadTimeout:       patience,
		WriteTimeout:      patience,
		IdleTimeout:       patience,
		ConnContext:       withConn,
		// One request at a time on a connection: how bodies are paced and how a
		// client that left is noticed both rest on it.
		Protocols: http1,
		TLSConfig: &tls.Config{MinVersion: tls.VersionTLS12},
		ErrorLog:  slog.NewLogLogger(cfg.Logger.Handler(), slog.LevelDebug),
	}
	ctx, cancel := context.WithCancel(context.Background())
	s.stopWatch = cancel
	if cfg.Usage != nil {
		s.watching.Add(1)
		go s.watchDisk(ctx)
	}
	return s, nil
}

var http1 = func() *http.Protocols {
	p := &http.Protocols{}
	p.SetHTTP1(true)
	return p
}()

// patience is how long a connection may take over one request or answer. It is
// far above every deadline of a call.
const patience = 5 * time.Minute

// Handler is the server as an http.Handler, for tests and embedding.
func (s *Server) Handler() http.Handler { return s.router }

// Metrics gives the functions that a log reports its measurements to.
func (s *Server) Metrics() *Observations { return s.metrics.observed }

// Serve answers requests on l until Shutdown or Close. certFile and keyFile
// are both empty for plain HTTP. It returns nil after a Shutdown.
func (s *Server) Serve(l net.Listener, certFile, keyFile string) error {
	var err error
	corked := corkedListener{Listener: l, s: s}
	if n := s.cfg.Limits.Connections; n > 0 {
		corked.slots = make(chan struct{}, n)
	}
	l = corked
	if certFile != "" {
		err = s.http.ServeTLS(l, certFile, keyFile)
	} else {
		err = s.http.Serve(l)
	}
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// Shutdown stops taking requests, answers the pops that wait with what an
// empty pop gets, and lets the other requests finish until ctx ends; then it
// closes their connections. The engine still runs afterwards.
func (s *Server) Shutdown(ctx context.Context) error {
	s.stopping.Store(true)
	s.leave()
	released := make(chan struct{})
	quit := make(chan struct{})
	go func() {
		defer close(released)
		s.releaseParked(quit)
	}()
	err := s.http.Shutdown(ctx)
	close(quit)
	<-released
	if err != nil {
		err = errors.Join(err, s.http.Close())
	}
	return err
}

// releaseParked asks the engine to answer waiting pops, again and again: a pop
// that was on its way when stopping was set may begin to wait later.
func (s *Server) releaseParked(quit <-chan struct{}) {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		done := make(chan struct{})
		call := &fsm.Call{Tenant: defaultTenant, Body: &fsm.ReleaseParked{}, Done: func(error) { close(done) }}
		if s.engine.Submit(call) != nil {
			return
		}
		select {
		case <-done:
		case <-quit:
			return
		}
		select {
		case <-tick.C:
		case <-quit:
			return
		}
	}
}

// Close ends what New started, waiting for calls that were abandoned until ctx
// ends. The engine has to be stopped before, so that their outcomes come; one
// that failed decides nothing any more, and then they are given up. Close is
// called once.
func (s *Server) Close(ctx context.Context) error {
	s.stopWatch()
	s.watching.Wait()
	s.packer.close()
	idle := s.abandoned.idle()
	defer close(s.givenUp) // for those that come later
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("calls whose clients left are still undecided: %w", ctx.Err())
	}
}

func (s *Server) watchDisk(ctx context.Context) {
	defer s.watching.Done()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		was, spent := s.disk.full.Load(), s.disk.spent.Load()
		if err := s.disk.look(); err != nil {
			s.log.Warn("the data volume could not be measured", "error", err)
		} else if now := s.disk.full.Load(); now != was {
			s.log.Warn("the data volume crossed its water mark", "full", now, "percent", s.disk.percent.Load(), "high", s.disk.high, "low", s.disk.low)
		}
		if now := s.disk.spent.Load(); now != spent {
			s.log.Error("the data volume has no room for acks and pops: make room", "refused", now)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// requestID mints the id of a request that brought none: a prefix of this
// process and a count.
func (s *Server) requestID() string {
	var b [32]byte
	id := append(b[:0], s.idPrefix...)
	return string(strconv.AppendUint(id, s.idCount.Add(1), 16))
}

// unwell makes /health say so until the process ends.
func (s *Server) unwell(reason string) { s.sick.CompareAndSwap(nil, &reason) }

func (s *Server) logCall(x *exchange, status int, took time.Duration, failed bool) {
	level, what := slog.LevelInfo, "slow call"
	if failed {
		level, what = slog.LevelWarn, "failed call"
	}
	s.log.Log(context.Background(), level, what, append([]any{"request", x.id, "method", x.rt.method, "route", x.rt.path,
		"status", status, "ms", took.Milliseconds()}, x.phaseArgs(took)...)...)
}

// logLimit lets a bounded number of lines a second through, so that a busy
// broker that turns slow does not drown in saying so.
type logLimit struct {
	second atomic.Int64
	count  atomic.Int64
}

const logLinesPerSecond = 20

func (l *logLimit) allow(now time.Time) bool {
	if s := now.Unix(); l.second.Swap(s) != s {
		l.count.Store(0)
	}
	return l.count.Add(1) <= logLinesPerSecond
}

func (s *Server) newRouter() *gin.Engine {
	gin.SetMode(gin.ReleaseMode)
	r := gin.New()
	r.RedirectTrailingSlash = false
	r.RedirectFixedPath = false
	r.HandleMethodNotAllowed = false
	r.ForwardedByClientIP = false
	// Parameters are cut from the raw path, so that %2F is no separator, and
	// decoded by exchange.param: the router would read a plus sign as a space.
	r.UseRawPath = true
	r.UnescapePathValues = false
	s.mount(r, routes)
	if s.cfg.Pprof {
		s.mount(r, profiles)
	}
	missing := &route{method: "", path: "none", level: unlisted, handle: (*Server).noSuchRoute, stats: s.metrics.route("none")}
	r.NoRoute(s.serve(missing))
	return r
}

// unlisted is the level of a path that no table has.
const unlisted = readWrite

func (s *Server) mount(r *gin.Engine, table []route) {
	for i := range table {
		rt := table[i]
		rt.stats = s.metrics.route(rt.method + " " + rt.path)
		r.Handle(rt.method, rt.path, s.serve(&rt))
	}
}

func (s *Server) noSuchRoute(x *exchange) {
	x.fail(http.StatusNotFound, "no_such_route", "no route has this method and path")
}
