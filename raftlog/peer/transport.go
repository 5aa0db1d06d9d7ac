package peer

import (
	"bufio"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"queen/raftlog"
)

// Member is a node of the cluster.
type Member struct {
	ID   uint64
	Raft string // host:port that its peers reach it at
	HTTP string // host:port that clients reach it at
}

// Config is what a Transport runs with.
type Config struct {
	ClusterID string
	NodeID    uint64
	Members   []Member // this node among them
	Token     string
	Registry  *Registry
	// Standing tells how this node stands.
	Standing func() Standing
	// Receive takes what came from a peer, in order for each peer.
	Receive func(group uint32, p *raftlog.Parcel)
	// Unreachable is told that what was sent to a peer is lost.
	Unreachable func(id uint64)
	// Forward answers calls that other nodes pass on; their path is the client's.
	Forward http.Handler
	// ServerTLS and ClientTLS are both nil for plain connections.
	ServerTLS, ClientTLS *tls.Config
	Logger               *slog.Logger
}

// Paces of connections.
const (
	dialTimeout = 3 * time.Second
	backoffMin  = 50 * time.Millisecond
	backoffMax  = time.Second
	quietPing   = time.Second     // a connection without traffic gets a frame
	silence     = 5 * time.Second // a connection that brings nothing is given up, on both sides
	writeLimit  = 10 * time.Second
	maxHeader   = 64 << 10 // of a request; a forwarded one has the client's headers, too
)

// Transport is a node's side of the connections to all others. It starts a
// goroutine for each peer and those of its HTTP server; Close ends them.
type Transport struct {
	cfg    Config
	token  [sha256.Size]byte
	links  map[uint64]*link // by id; never changed
	ids    []uint64
	http   *http.Server
	client *http.Client
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup
	barred atomic.Pointer[string]
	open   atomic.Bool // all others were met: this node takes part

	streams struct {
		sync.Mutex
		conns  map[net.Conn]struct{} // incoming
		closed bool
	}
}

// New makes a transport. Serve and Start begin its work.
func New(cfg Config) *Transport {
	t := &Transport{cfg: cfg, token: sha256.Sum256([]byte(cfg.Token)), links: make(map[uint64]*link)}
	t.ctx, t.cancel = context.WithCancel(context.Background())
	t.streams.conns = make(map[net.Conn]struct{})
	for _, m := range cfg.Members {
		if m.ID != cfg.NodeID {
			t.links[m.ID] = newLink(t, m)
			t.ids = append(t.ids, m.ID)
		}
	}
	t.open.Store(cfg.Registry.Complete(t.ids))
	t.http = &http.Server{
		Handler: http.HandlerFunc(t.serve), TLSConfig: cfg.ServerTLS, MaxHeaderBytes: maxHeader,
		ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute,
		ErrorLog: slog.NewLogLogger(cfg.Logger.Handler(), slog.LevelDebug),
	}
	t.client = &http.Client{
		Transport: &http.Transport{
			DialContext: (&net.Dialer{Timeout: dialTimeout}).DialContext, TLSClientConfig: cfg.ClientTLS, TLSHandshakeTimeout: dialTimeout,
			MaxIdleConnsPerHost: 256, IdleConnTimeout: time.Minute, DisableCompression: true,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return t
}

// Serve answers peers on l until Close.
func (t *Transport) Serve(l net.Listener) error {
	var err error
	if t.cfg.ServerTLS != nil {
		err = t.http.ServeTLS(l, "", "")
	} else {
		err = t.http.Serve(l)
	}
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// Start dials all peers, and keeps the connections.
func (t *Transport) Start() {
	for _, l := range t.links {
		t.wg.Go(l.run)
	}
}

// Close ends all connections and waits for what was started.
func (t *Transport) Close() error {
	t.cancel()
	t.streams.Lock()
	t.streams.closed = true
	for c := range t.streams.conns {
		_ = c.Close() // its reader ends
	}
	t.streams.Unlock()
	err := t.http.Close()
	t.client.CloseIdleConnections()
	t.wg.Wait()
	return err
}

func (t *Transport) link(id uint64) *link { return t.links[id] }

// bar ends this node's part for good: others have refused it.
func (t *Transport) bar(reason string) {
	if t.barred.CompareAndSwap(nil, &reason) {
		t.cfg.Logger.Error("this node takes no part in its cluster any more", slog.String("reason", reason))
	}
}

// Problem says why this node takes no part in the cluster; "": it does.
func (t *Transport) Problem() string {
	if p := t.barred.Load(); p != nil {
		return *p
	}
	if !t.open.Load() {
		var missing []string
		for _, id := range t.ids {
			if t.cfg.Registry.Known(id) == "" {
				missing = append(missing, fmt.Sprintf("%d at %s", id, t.links[id].member.Raft))
			}
		}
		return "this node is new and waits until it has met every other node of its cluster: node " + strings.Join(missing, ", ")
	}
	return ""
}

// partakes reports whether raft's messages may pass.
func (t *Transport) partakes() bool { return t.open.Load() && t.barred.Load() == nil }

// met looks whether all others were met now.
func (t *Transport) met() {
	if !t.open.Load() && t.cfg.Registry.Complete(t.ids) {
		t.open.Store(true)
		t.cfg.Logger.Info("every node of the cluster was met")
	}
}

// Send hands the messages of a parcel to their receivers. It does not block.
func (t *Transport) Send(group uint32, p raftlog.Parcel) {
	if !t.partakes() {
		return
	}
	if len(p.Messages) == 1 {
		if l := t.links[p.Messages[0].GetTo()]; l != nil {
			l.send(outgoing{group, p})
		}
		return
	}
	for _, id := range t.ids {
		part := raftlog.Parcel{Time: p.Time, TimeTerm: p.TimeTerm, Commit: p.Commit, Keep: p.Keep}
		for _, m := range p.Messages {
			if m.GetTo() == id {
				part.Messages = append(part.Messages, m)
			}
		}
		if len(part.Messages) > 0 {
			t.links[id].send(outgoing{group, part})
		}
	}
}

// serve answers one request of a peer. The token comes first.
func (t *Transport) serve(w http.ResponseWriter, r *http.Request) {
	if !t.allowed(r) {
		w.Header().Set("Connection", "close")
		http.Error(w, "the raft token is missing or wrong (QUEEN_RAFT_TOKEN)", http.StatusUnauthorized)
		return
	}
	switch {
	case r.URL.Path == streamPath && r.Method == http.MethodPost:
		t.serveStream(w, r)
	case strings.HasPrefix(r.URL.Path, forwardPath+"/") && t.cfg.Forward != nil:
		t.serveForward(w, r)
	default:
		http.NotFound(w, r)
	}
}

func (t *Transport) serveStream(w http.ResponseWriter, r *http.Request) {
	h := readHello(r.Header)
	problem, bars, err := t.judge(&h)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set(headerInstance, t.cfg.Registry.Self())
	if problem != "" {
		if bars {
			w.Header().Set(headerRefused, "1")
		}
		t.cfg.Logger.Warn("a node was refused", slog.Uint64("node", h.from), slog.String("from", r.RemoteAddr), slog.String("reason", problem))
		http.Error(w, problem, http.StatusConflict)
		return
	}
	t.met()
	w.Header().Set("Connection", "Upgrade")
	w.Header().Set("Upgrade", upgradeName)
	w.WriteHeader(http.StatusSwitchingProtocols)
	conn, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		t.cfg.Logger.Warn("a stream cannot be taken over", slog.Any("err", err))
		return
	}
	if !t.keep(conn) {
		return
	}
	defer t.release(conn)
	if err := t.read(t.link(h.from), conn, rw.Reader); t.ctx.Err() == nil {
		t.cfg.Logger.Info("a stream ended", slog.Uint64("node", h.from), slog.Any("err", err))
	}
}

// keep notes an incoming stream, so that Close can end it.
func (t *Transport) keep(c net.Conn) bool {
	t.streams.Lock()
	defer t.streams.Unlock()
	if t.streams.closed {
		_ = c.Close()
		return false
	}
	t.streams.conns[c] = struct{}{}
	t.wg.Add(1)
	return true
}

func (t *Transport) release(c net.Conn) {
	_ = c.Close()
	t.streams.Lock()
	delete(t.streams.conns, c)
	t.streams.Unlock()
	t.wg.Done()
}

// read takes frames from a stream until that fails.
func (t *Transport) read(l *link, conn net.Conn, r *bufio.Reader) error {
	var buf []byte
	var told time.Time
	for {
		now := time.Now()
		if err := conn.SetReadDeadline(now.Add(silence)); err != nil {
			return err
		}
		if now.Sub(told) >= quietPing { // the other side hears that it is heard
			told = now
			if err := conn.SetWriteDeadline(now.Add(writeLimit)); err != nil {
				return err
			}
			if _, err := conn.Write([]byte{0}); err != nil {
				return err
			}
		}
		body, kept, err := readFrame(r, buf)
		if err != nil {
			return err
		}
		if buf = kept; cap(buf) > 4*readStep {
			buf = nil // a large one is not kept for the small ones that follow
		}
		group, p, err := parseFrame(body)
		if err != nil {
			return err
		}
		for _, m := range p.Messages {
			if m.GetFrom() != l.member.ID || m.GetTo() != t.cfg.NodeID {
				return fmt.Errorf("%w: a message from node %d to node %d on the stream of node %d", errFrame, m.GetFrom(), m.GetTo(), l.member.ID)
			}
		}
		if !t.partakes() {
			continue
		}
		l.witness(p, t.cfg.Standing().Commit)
		t.cfg.Receive(group, p)
	}
}

// serveForward gives a client's call to the server, as if it had come here.
func (t *Transport) serveForward(w http.ResponseWriter, r *http.Request) {
	if h := r.Header.Get(headerCluster); h != t.cfg.ClusterID {
		http.Error(w, "another cluster", http.StatusConflict)
		return
	}
	r.URL.Path = strings.TrimPrefix(r.URL.Path, forwardPath)
	r.URL.RawPath = strings.TrimPrefix(r.URL.RawPath, forwardPath)
	r.RequestURI = strings.TrimPrefix(r.RequestURI, forwardPath)
	r.Header.Del(headerToken)
	t.cfg.Forward.ServeHTTP(w, r)
}

// ErrNoSuchNode: no member has this id.
var ErrNoSuchNode = errors.New("no such node in the cluster")

// Forward passes a client's call on to another node: requestURI is its path and
// query, as they came. The caller closes the response's body.
func (t *Transport) Forward(ctx context.Context, to uint64, method, requestURI string, header http.Header, body io.Reader, length int64) (*http.Response, error) {
	l := t.links[to]
	if l == nil {
		return nil, ErrNoSuchNode
	}
	req, err := http.NewRequestWithContext(ctx, method, t.scheme()+"://"+l.member.Raft+forwardPath+requestURI, body)
	if err != nil {
		return nil, err
	}
	req.Header, req.ContentLength = header.Clone(), length
	req.Header.Set(headerToken, t.cfg.Token)
	req.Header.Set(headerCluster, t.cfg.ClusterID)
	return t.client.Do(req)
}

func (t *Transport) scheme() string {
	if t.cfg.ClientTLS != nil {
		return "https"
	}
	return "http"
}
