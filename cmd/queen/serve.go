package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"queen/internal/crashpoint"
	"queen/raftlog"
	"queen/server"
	"queen/server/spans"
)

// How a stop spends its time: it is over within 5 s. The engine gets what the
// requests left of finishEngine, so that its last checkpoint, which may have
// many rows to write, mostly fits; the rest is for closing files.
const (
	finishRequests = 3 * time.Second
	finishEngine   = 4500 * time.Millisecond // from the start of the stop
	finishRest     = 200 * time.Millisecond
)

// serve runs the broker until a signal and returns the exit status.
func serve(args, environ []string, stdout, stderr io.Writer) int {
	for _, a := range args {
		switch a {
		case "-h", "--help", "-help", "help":
			printHelp(stdout)
			return 0
		default:
			fmt.Fprintf(stderr, "queen serve: unknown argument %q; settings are environment variables, see queen serve --help\n", a)
			return 2
		}
	}
	stop := make(chan os.Signal, 2)
	signal.Notify(stop, syscall.SIGTERM, syscall.SIGINT)
	defer signal.Stop(stop)
	if err := runBroker(environ, stop, stdout, stderr); err != nil {
		printFatal(stderr, err)
		return 1
	}
	return 0
}

// printFatal says in one line why the process ends.
func printFatal(w io.Writer, err error) {
	fmt.Fprintf(w, "FATAL: %s\n", strings.ReplaceAll(err.Error(), "\n", "; "))
}

// runBroker is a whole life of the broker.
func runBroker(environ []string, stop <-chan os.Signal, stdout, stderr io.Writer) error {
	v, err := parse(environ)
	if err != nil {
		return err
	}
	log, err := newLogger(v, stderr)
	if err != nil {
		return err
	}
	cfg, err := build(v, log)
	if err != nil {
		return err
	}
	if cfg.server.Tokens, err = newVerifier(v, log); err != nil {
		return err
	}
	if cfg.server.Tokens != nil {
		defer cfg.server.Tokens.Close()
	}
	if endpoint := v.text("OTEL_EXPORTER_OTLP_ENDPOINT"); endpoint != "" {
		if cfg.server.Spans, err = spans.New(endpoint, version); err != nil {
			return &settingError{"OTEL_EXPORTER_OTLP_ENDPOINT", endpoint, err.Error()}
		}
		defer closeSpans(cfg.server.Spans, log)
	}
	tuneMemory(environ)
	if point := v.text("QUEEN_CRASH_POINT"); point != "" {
		if err := crashpoint.Arm(point); err != nil {
			return err
		}
		log.Warn("this process will kill itself", "point", point)
	}
	log.Info("starting", "version", versionLine(), "pid", os.Getpid())
	v.print(log)

	cfg.storage.Fatal = func(err error) {
		// A failed write or fsync: the kernel may have dropped what was
		// written, so nothing that happens from here on would be true.
		printFatal(stderr, err)
		os.Exit(1)
	}
	if c := cfg.storage.Cluster; c != nil {
		if err := listenForPeers(c, cfg.raft); err != nil {
			return err
		}
	}
	broker, err := server.Open(cfg.storage)
	if err != nil {
		return err
	}
	cfg.server.Engine, cfg.server.Reserve, cfg.server.Cluster = broker, broker.KeepReserve, broker.Cluster()
	srv, err := server.New(cfg.server)
	if err != nil {
		return stopAfter(broker, err, log)
	}
	broker.Observe(srv.Metrics())
	broker.ServeForwarded(srv.Forwarded())
	listener, err := net.Listen("tcp", cfg.address)
	if err != nil {
		return stopAfter(broker, fmt.Errorf("listen on %s (PORT, QUEEN_BIND_ADDR): %w", cfg.address, err), log)
	}
	awaitLeader(broker)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go trimWhenIdle(ctx, broker)
	failed := make(chan error, 1)
	go func() { failed <- srv.Serve(listener, cfg.certFile, cfg.keyFile) }()
	announce(stdout, listener.Addr(), cfg.certFile != "")
	select {
	case s := <-stop:
		log.Info("stopping", "signal", s.String())
		return shutDown(srv, broker, log)
	case err := <-failed:
		return stopAfter(broker, fmt.Errorf("serve: %w", err), log)
	}
}

// closeSpans sends the last spans; a collector that does not answer holds the
// stop up for a moment only.
func closeSpans(r *spans.Recorder, log *slog.Logger) {
	ctx, cancel := context.WithTimeout(context.Background(), finishRest)
	defer cancel()
	if err := r.Close(ctx); err != nil {
		log.Warn("the last spans were not sent", "error", err)
	}
}

// awaitLeader waits until the group leads, so that the first call is not
// refused; a node that cannot is for /health to tell.
func awaitLeader(b *server.Broker) {
	give := time.NewTimer(5 * time.Second)
	defer give.Stop()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for b.Status().Reason != "" {
		select {
		case <-tick.C:
		case <-give.C:
			return
		}
	}
}

// announce prints where the broker answers.
func announce(w io.Writer, addr net.Addr, tls bool) {
	scheme := "http"
	if tls {
		scheme = "https"
	}
	host, port, _ := net.SplitHostPort(addr.String())
	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	fmt.Fprintf(w, "queen is ready: %s://%s\n", scheme, net.JoinHostPort(host, port))
}

// shutDown stops in the order that loses nobody's answer: parked pops are
// answered and the listener closed, requests in flight finish, then the engine
// stops with a last checkpoint.
func shutDown(srv *server.Server, b *server.Broker, log *slog.Logger) error {
	begun := time.Now()
	ctx, cancel := context.WithTimeout(context.Background(), finishRequests)
	defer cancel()
	if !b.HandOver(ctx) {
		log.Info("no other node takes the leadership")
	}
	if err := srv.Shutdown(ctx); err != nil {
		log.Warn("some requests were cut off", "error", err)
	}
	if err := stopEngine(b, begun.Add(finishEngine), log); err != nil {
		return fmt.Errorf("stop: %w", err)
	}
	ctx, cancel = context.WithTimeout(context.Background(), finishRest)
	defer cancel()
	if err := srv.Close(ctx); err != nil {
		log.Warn("not all is closed", "error", err)
	}
	log.Info("stopped", "ms", time.Since(begun).Milliseconds())
	return nil
}

// engine is what a stop needs of the broker.
type engine interface {
	Stop(ctx context.Context) error
}

// stopEngine stops the engine by the deadline. A last checkpoint that did not
// fit loses nothing, so it is no failure: the next start replays.
func stopEngine(e engine, deadline time.Time, log *slog.Logger) error {
	ctx, cancel := context.WithDeadline(context.Background(), deadline)
	defer cancel()
	err := e.Stop(ctx)
	if errors.Is(err, raftlog.ErrCutShort) {
		log.Warn("the engine stopped without a last checkpoint; nothing is lost", "error", err)
		return nil
	}
	return err
}

// stopAfter stops the engine when the broker cannot go on because of cause,
// which is what the caller returns.
func stopAfter(e engine, cause error, log *slog.Logger) error {
	if err := stopEngine(e, time.Now().Add(finishEngine), log); err != nil {
		log.Error("the engine did not stop cleanly", "error", err)
	}
	return cause
}
