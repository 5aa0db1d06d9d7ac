package server

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	"queen/raftlog"
	"queen/raftlog/peer"
)

// ClusterConfig is what a node needs to know of its cluster.
type ClusterConfig struct {
	Members []peer.Member // this node among them
	Token   string
	// Listener takes what other nodes send; the broker closes it.
	Listener             net.Listener
	ServerTLS, ClientTLS *tls.Config // both nil: plain connections
	// A follower that is so many entries behind is not well once what it has
	// applied is older than ReadyLag.
	ReadyLagEntries uint64
	ReadyLag        time.Duration
}

// identity is what a new directory takes: all members are voters, and the id of
// the cluster follows from who they are.
func (c *ClusterConfig) identity() (voters []uint64, cluster string) {
	members := slices.Clone(c.Members)
	slices.SortFunc(members, func(a, b peer.Member) int { return int(a.ID) - int(b.ID) })
	sum := sha256.New()
	fmt.Fprintln(sum, "queen cluster")
	for _, m := range members {
		voters = append(voters, m.ID)
		fmt.Fprintf(sum, "%d=%s\n", m.ID, m.Raft)
	}
	return voters, hex.EncodeToString(sum.Sum(nil)[:16])
}

// peers joins the group to the transport.
type peers struct {
	cfg       *ClusterConfig
	transport atomic.Pointer[peer.Transport] // nil: the group starts just now
	forward   atomic.Pointer[http.Handler]
	broker    *Broker
	served    chan error
}

// oneGroup is the number of the only group that there is.
const oneGroup = 0

func (p *peers) send(parcel raftlog.Parcel) {
	if t := p.transport.Load(); t != nil {
		t.Send(oneGroup, parcel)
	}
}

func (p *peers) start(b *Broker, cfg *StorageConfig) error {
	p.broker = b
	registry, err := peer.OpenRegistry(cfg.FS, raftlog.StateDir(cfg.Dir), rand.Reader)
	if err != nil {
		return err
	}
	t := peer.New(peer.Config{
		ClusterID: b.report.Identity.Cluster, NodeID: cfg.NodeID, Members: p.cfg.Members, Token: p.cfg.Token, Registry: registry,
		Standing: func() peer.Standing {
			s := b.group.Status()
			return peer.Standing{Term: s.Term, Last: s.Durable, Commit: s.Commit}
		},
		Receive:     func(_ uint32, parcel *raftlog.Parcel) { b.group.Receive(parcel) },
		Unreachable: b.group.Unreachable,
		Forward:     http.HandlerFunc(p.serveForwarded),
		ServerTLS:   p.cfg.ServerTLS, ClientTLS: p.cfg.ClientTLS, Logger: cfg.Logger,
	})
	p.served = make(chan error, 1)
	go func() { p.served <- t.Serve(p.cfg.Listener) }()
	t.Start()
	p.transport.Store(t)
	return nil
}

func (p *peers) stop() error {
	err := p.transport.Load().Close()
	return errors.Join(err, <-p.served)
}

func (p *peers) serveForwarded(w http.ResponseWriter, r *http.Request) {
	h := p.forward.Load()
	if h == nil {
		w.Header().Set(headerUndone, "1")
		http.Error(w, "this node is starting", http.StatusServiceUnavailable)
		return
	}
	(*h).ServeHTTP(w, r)
}

func (p *peers) problem() string {
	if t := p.transport.Load(); t != nil {
		return t.Problem()
	}
	return "this node is starting"
}

// ServeForwarded takes the server that calls from other nodes go to.
func (b *Broker) ServeForwarded(h http.Handler) {
	if b.peers != nil {
		b.peers.forward.Store(&h)
	}
}

// Cluster is the way to the other nodes; nil: there are none.
func (b *Broker) Cluster() Cluster {
	if b.peers == nil {
		return nil
	}
	return b
}

var _ Cluster = (*Broker)(nil)

// Leader implements Cluster.
func (b *Broker) Leader() (id uint64, here bool) { return b.group.Leader() }

// Forward implements Cluster.
func (b *Broker) Forward(ctx context.Context, to uint64, method, uri string, header http.Header, body io.Reader, length int64) (*http.Response, error) {
	return b.peers.transport.Load().Forward(ctx, to, method, uri, header, body, length)
}

// HandOver gives leadership to another node before this one stops, if it leads
// and is not alone. It reports whether another one may lead now.
func (b *Broker) HandOver(ctx context.Context) bool {
	return b.peers == nil || b.group.HandOver(ctx, 0, true)
}
