package powercut

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"queen/internal/vfs"
	"queen/server"
	"queen/tools/internal/api"
)

const dataDir = "data"

// bubble runs fn with time that passes when all goroutines wait.
func bubble(t *testing.T, fn func(t *testing.T)) {
	t.Helper()
	// Objects in the server's pools have channels, which belong to their bubble.
	// Two collections empty the pools.
	defer runtime.GC()
	defer runtime.GC()
	synctest.Test(t, func(t *testing.T) {
		defer time.Sleep(2 * lifetime) // what waits for a deadline ends
		fn(t)
	})
}

// listener hands connections in memory to a server.
type listener struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func newListener() *listener {
	return &listener{conns: make(chan net.Conn), closed: make(chan struct{})}
}

func (l *listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *listener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

func (l *listener) Addr() net.Addr { return &net.UnixAddr{Name: "memory"} }

func (l *listener) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	near, far := net.Pipe()
	select {
	case l.conns <- far:
		return near, nil
	case <-l.closed:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// node is a running broker. Its life ends with a fatal error, of which dead is
// cancelled as a process would be gone, or with stop.
type node struct {
	*api.Client
	fs     *vfs.Mem
	eng    *server.Broker
	srv    *server.Server
	served chan error
	dead   context.Context
	die    context.CancelCauseFunc
}

// start opens the directory and waits until the node leads, or has failed.
func start(fs *vfs.Mem, storage server.StorageConfig, cfg server.Config) (*node, error) {
	n := &node{fs: fs, served: make(chan error, 1)}
	n.dead, n.die = context.WithCancelCause(context.Background())
	storage.FS, storage.Dir, storage.NodeID = fs, dataDir, 1
	storage.Fatal = func(err error) { n.die(err) }
	eng, err := server.Open(storage)
	if err != nil {
		n.die(err)
		return nil, err
	}
	cfg.Engine, cfg.ZstdLevel, cfg.Logger, cfg.Reserve = eng, 1, storage.Logger, eng.KeepReserve
	n.eng = eng
	if n.srv, err = server.New(cfg); err != nil {
		return nil, errors.Join(err, eng.Stop(n.dead))
	}
	l := newListener()
	go func() { n.served <- n.srv.Serve(l, "", "") }()
	n.Client = api.NewOn(l.dial, time.Minute)
	for n.dead.Err() == nil && n.eng.Status().Reason != "" {
		time.Sleep(time.Millisecond)
	}
	return n, nil
}

// stop ends the node in order.
func (n *node) stop() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return errors.Join(n.end(ctx), n.srv.Close(ctx))
}

// gone ends what is left of a node whose process would have ended. Calls whose
// outcome never comes still wait out their deadlines, beside the next node.
func (n *node) gone() {
	n.die(errors.New("gone"))
	_ = n.end(n.dead)
	go func() {
		time.Sleep(lifetime)
		_ = n.srv.Close(n.dead)
	}()
}

// lifetime is longer than any deadline of a call.
const lifetime = 2 * time.Minute

func (n *node) end(ctx context.Context) error {
	n.Close()
	err := n.srv.Shutdown(ctx)
	n.Close()
	return errors.Join(err, <-n.served, n.eng.Stop(ctx))
}

// testLog sends what a broker logs to a test's output, which shows it when the
// test fails.
func testLog(t *testing.T) *slog.Logger {
	return slog.New(slog.NewTextHandler(t.Output(), nil))
}

// changes reports whether a call changes what is on the disk.
func changes(op vfs.Op) bool {
	switch op {
	case vfs.OpCreate, vfs.OpWrite, vfs.OpSync, vfs.OpTruncate, vfs.OpClose, vfs.OpRemove, vfs.OpRemoveAll, vfs.OpRename, vfs.OpMkdir,
		vfs.OpSyncDir, vfs.OpSyncAll:
		return true
	}
	return false
}

// power is the supply of a disk: it can be told to fail at a call.
type power struct {
	mu   sync.Mutex
	left *vfs.Mem // what a cut left; nil: none came
	in   int      // calls until the cut; 0: none is planned
	keep float64
}

// watch makes the cut that is planned happen on fs.
func (p *power) watch(fs *vfs.Mem) {
	fs.SetHook(func(op vfs.Op, name string) error {
		if !changes(op) {
			return nil
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.in > 0 {
			if p.in--; p.in == 0 {
				p.left = fs.Crash(p.keep)
			}
		}
		return nil
	})
}

// plan lets the n-th change from now on be the last one.
func (p *power) plan(n int, keep float64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.in, p.keep = n, keep
}

// cut cuts now, unless the power is gone, and returns what the disk holds.
func (p *power) cut(fs *vfs.Mem) *vfs.Mem {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.in = 0
	if p.left == nil {
		p.left = fs.Crash(p.keep)
	}
	left := p.left
	p.left = nil
	return left
}

func pick[T any](rng *rand.Rand, from ...T) T { return from[rng.IntN(len(from))] }
