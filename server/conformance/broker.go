package conformance

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"time"

	"queen/fsm"
	"queen/internal/vfs"
	"queen/raftlog"
	"queen/server"
	"queen/server/tokens"
)

// State is what must not change when a call is refused.
type State struct {
	Digest uint64 // of the whole state machine
	Commit uint64 // raft's commit index
}

// Answer is an HTTP answer, read to its end.
type Answer struct {
	Status int
	Header http.Header
	Body   []byte
}

// Broker is one broker in this process: the real server on a listener of its
// own, the engine on the memory file system. Do, Now, State and AwaitParked may
// be called at once; the others may not.
type Broker struct {
	// Observe, when set, sees each answered request. Calls may come at once.
	Observe func(method, path string, body []byte, a *Answer)

	fs     *vfs.Mem
	clock  *clock
	client *http.Client

	starts byte // each start draws other ids
	addr   string
	engine *server.Broker
	server *server.Server
	served chan error
	fatal  chan error
	log    *slog.Logger // nil: none
	marks  marker       // nil: requests go out as they are
}

// marker changes requests, and looks at their answers.
type marker interface {
	request(header http.Header, body []byte) []byte
	answer(method, path string, a *Answer)
}

// patience is how long anything that is due may take in real time.
const patience = time.Minute

// Start starts an empty broker on the memory file system and a clock at a fixed
// time. env are environment variables of the broker.
func Start(env map[string]string) (*Broker, error) { return StartLogged(env, nil) }

// StartLogged is Start with a log.
func StartLogged(env map[string]string, log *slog.Logger) (*Broker, error) {
	b := &Broker{
		fs: vfs.NewMem(1), clock: newClock(), fatal: make(chan error, 1), log: log,
		client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 4, DisableCompression: true}},
	}
	return b, b.open(env)
}

func (b *Broker) open(env map[string]string) error {
	var s settings
	// Deadlines run in real time: a loaded machine must not decide a case.
	s.limits.PushTimeout, s.limits.CallTimeout = time.Minute, time.Minute
	for name, text := range env { // each sets a field of its own
		if err := s.apply(name, text); err != nil {
			return err
		}
	}
	b.starts++
	engine, err := server.Open(server.StorageConfig{
		FS: b.fs, Dir: "data", NodeID: 1, Planner: s.planner,
		Group: raftlog.Config{Clock: b.clock}, Logger: b.log,
		Fatal: func(err error) {
			select {
			case b.fatal <- err:
			default:
			}
		},
	})
	if err != nil {
		return err
	}
	var verifier *tokens.Verifier
	if s.secret != "" {
		if verifier, err = tokens.New(tokens.Config{Secret: []byte(s.secret), Clock: b.clock.now}); err != nil {
			return errors.Join(err, engine.Stop(context.Background()))
		}
	}
	srv, err := server.New(server.Config{
		Engine: engine, Clock: b.clock.now, Rand: rand.NewChaCha8([32]byte{b.starts}), Limits: s.limits, ZstdLevel: 1,
		Usage: s.usage(), Metrics: true, Tenancy: s.tenancy, RequireGrant: s.grants, Key: s.key, Tokens: verifier, Logger: b.log,
	})
	if err != nil {
		return errors.Join(err, engine.Stop(context.Background()))
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return errors.Join(err, engine.Stop(context.Background()), srv.Close(context.Background()))
	}
	b.addr, b.engine, b.server, b.served = l.Addr().String(), engine, srv, make(chan error, 1)
	go func() { b.served <- srv.Serve(l, "", "") }()
	return b.awaitLeader()
}

// awaitLeader waits until the only voter leads.
func (b *Broker) awaitLeader() error {
	deadline := time.Now().Add(patience)
	for !b.engine.Status().HasLeader {
		if time.Now().After(deadline) {
			return errors.New("the broker does not lead")
		}
		time.Sleep(100 * time.Microsecond)
	}
	return nil
}

// Do sends one request. path goes onto the wire as it is, query included.
func (b *Broker) Do(ctx context.Context, method, path string, header http.Header, body []byte) (*Answer, error) {
	if b.marks != nil {
		body = b.marks.request(header, body)
	}
	req := (&http.Request{
		Method: method,
		URL:    &url.URL{Scheme: "http", Host: b.addr, Opaque: path},
		Host:   b.addr,
		Header: header,
	}).WithContext(ctx)
	if len(body) > 0 {
		req.Body = io.NopCloser(bytes.NewReader(body))
		req.ContentLength = int64(len(body))
		if header.Get("Transfer-Encoding") == "chunked" {
			header.Del("Transfer-Encoding")
			req.ContentLength = -1
		}
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
	a := &Answer{Status: resp.StatusCode, Header: resp.Header, Body: data}
	if b.marks != nil {
		b.marks.answer(method, path, a)
	}
	if b.Observe != nil {
		b.Observe(method, path, body, a)
	}
	return a, nil
}

// Now is the broker's time.
func (b *Broker) Now() time.Time { return b.clock.now() }

// Advance moves the broker's clock, the last half second in steps, and waits
// until what became due is done.
func (b *Broker) Advance(d time.Duration) error {
	const steps, step = 5, 100 * time.Millisecond
	if creep := steps * step; d > creep {
		b.clock.advance(d - creep)
		if err := b.Settle(); err != nil {
			return err
		}
		for range steps {
			b.clock.advance(step)
			if err := b.Settle(); err != nil {
				return err
			}
		}
		return nil
	}
	b.clock.advance(d)
	return b.Settle()
}

// Settle waits until the broker has nothing left to do at this time: nothing is in flight or
// being looked up, and the state is the same over several turns of its loop.
func (b *Broker) Settle() error {
	deadline := time.Now().Add(patience)
	last, err := b.State()
	for same := 0; same < 3 && err == nil; {
		busy := b.engine.Preparing() > 0 || b.engine.Status().InFlight > 0
		if err = b.turn(); err != nil {
			break
		}
		var now State
		if now, err = b.State(); now != last || busy {
			last, same = now, 0
		} else {
			same++
		}
		if busy {
			time.Sleep(50 * time.Microsecond)
		}
		if time.Now().After(deadline) {
			return errors.New("the broker does not come to rest")
		}
	}
	return err
}

// turn makes the loop plan once, and waits until everything planned before has
// committed.
func (b *Broker) turn() error {
	done := make(chan error, 1)
	call := &fsm.Call{
		Tenant: "00000000-0000-0000-0000-000000000001", Body: &fsm.Read{Do: func(*fsm.State) {}},
		Done: func(err error) { done <- err },
	}
	if err := b.engine.Submit(call); err != nil {
		return err
	}
	select {
	case err := <-done:
		return err
	case err := <-b.fatal:
		return fmt.Errorf("the broker stopped: %w", err)
	case <-time.After(patience):
		return errors.New("the broker did not plan a read")
	}
}

// AwaitParked waits until n pops wait in the broker.
func (b *Broker) AwaitParked(n int) error {
	deadline := time.Now().Add(patience)
	for b.engine.Status().Parked < n {
		if time.Now().After(deadline) {
			return fmt.Errorf("%d pops wait, expected %d", b.engine.Status().Parked, n)
		}
		time.Sleep(100 * time.Microsecond)
	}
	return nil
}

// State reads the state digest and the commit index.
func (b *Broker) State() (State, error) {
	digest, commit, err := b.engine.Digest()
	return State{Digest: digest, Commit: commit}, err
}

// Shutdown asks the server to stop, as SIGTERM does.
func (b *Broker) Shutdown() error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return b.server.Shutdown(ctx)
}

// Syncs counts the syncs of files and volumes so far.
func (b *Broker) Syncs() int64 {
	c := b.fs.Counts()
	return c.Sync + c.SyncAll
}

// Restart stops the broker cleanly and starts it on the same data directory
// with other settings.
func (b *Broker) Restart(env map[string]string) error {
	if err := b.stop(); err != nil {
		return err
	}
	return b.open(env)
}

// Crash takes the power away: what was not synced is gone. It starts the broker
// again on what is left.
func (b *Broker) Crash(env map[string]string) error {
	left := b.fs.Crash(0)
	b.stop() // the old one can write nothing any more: its errors are the point
	select {
	case <-b.fatal:
	default:
	}
	b.fs = left
	return b.open(env)
}

func (b *Broker) stop() error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	b.client.CloseIdleConnections()
	err := b.server.Shutdown(ctx)
	return errors.Join(err, b.engine.Stop(ctx), b.server.Close(ctx), <-b.served)
}

// Close stops the broker.
func (b *Broker) Close() error {
	if b.server == nil {
		return nil
	}
	err := b.stop()
	select {
	case fatal := <-b.fatal:
		err = errors.Join(err, fmt.Errorf("the broker failed: %w", fatal))
	default:
	}
	return err
}
