package peer

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"queen/raftlog"
)

// link is the way to one peer: a queue, and a goroutine that dials and writes.
type link struct {
	t      *Transport
	member Member

	mu struct {
		sync.Mutex
		queue []outgoing
		bytes int
		up    bool
		seen  Standing // what the peer has promised, as far as it was heard
	}
	wake chan struct{}
	last string // the problem that was logged last
}

type outgoing struct {
	group  uint32
	parcel raftlog.Parcel
}

// queueBytes is what may wait for one peer; raft itself has a few MiB under way.
const queueBytes = 64 << 20

func newLink(t *Transport, m Member) *link {
	return &link{t: t, member: m, wake: make(chan struct{}, 1)}
}

// send queues messages. While there is no connection they are dropped, as they
// are when the peer does not take them fast enough: raft sends them again.
func (l *link) send(o outgoing) {
	n := 0
	for _, m := range o.parcel.Messages {
		n += 64
		for _, e := range m.GetEntries() {
			n += len(e.GetData()) + 24
		}
	}
	l.mu.Lock()
	fits := l.mu.up && (l.mu.bytes == 0 || l.mu.bytes+n <= queueBytes)
	if fits {
		l.mu.queue = append(l.mu.queue, o)
		l.mu.bytes += n
	}
	l.mu.Unlock()
	if !fits {
		l.t.cfg.Unreachable(l.member.ID)
		return
	}
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

func (l *link) take() []outgoing {
	l.mu.Lock()
	defer l.mu.Unlock()
	q := l.mu.queue
	l.mu.queue, l.mu.bytes = nil, 0
	return q
}

func (l *link) setUp(up bool) {
	l.mu.Lock()
	l.mu.up = up
	if !up {
		l.mu.queue, l.mu.bytes = nil, 0
	}
	l.mu.Unlock()
}

func (l *link) seen() Standing {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.seen
}

// witness notes what messages of the peer prove.
func (l *link) witness(p *raftlog.Parcel, commit uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, m := range p.Messages {
		l.mu.seen.witnessed(m, commit)
	}
}

// run keeps a connection to the peer until the transport closes.
func (l *link) run() {
	pause := backoffMin
	for l.t.ctx.Err() == nil {
		conn, r, err := l.dial()
		if err == nil {
			pause = backoffMin
			l.say("")
			l.setUp(true)
			err = l.write(conn, r)
			l.setUp(false)
			_ = conn.Close()
			l.t.cfg.Unreachable(l.member.ID)
		}
		if err != nil && l.t.ctx.Err() == nil {
			l.say(err.Error())
		}
		select {
		case <-l.t.ctx.Done():
		case <-time.After(pause/2 + rand.N(pause)):
			pause = min(2*pause, backoffMax)
		}
	}
}

// say logs what has changed about the connection.
func (l *link) say(problem string) {
	switch {
	case problem == l.last:
	case problem == "":
		l.t.cfg.Logger.Info("connected to a node", slog.Uint64("node", l.member.ID), slog.String("address", l.member.Raft))
	default:
		l.t.cfg.Logger.Warn("no connection to a node", slog.Uint64("node", l.member.ID), slog.String("address", l.member.Raft), slog.String("reason", problem))
	}
	l.last = problem
}

// dial opens a stream and introduces this node.
func (l *link) dial() (net.Conn, *bufio.Reader, error) {
	t := l.t
	ctx, cancel := context.WithTimeout(t.ctx, dialTimeout)
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", l.member.Raft)
	if err != nil {
		return nil, nil, err
	}
	if c := t.cfg.ClientTLS; c != nil {
		if c.ServerName == "" {
			c = c.Clone()
			c.ServerName, _, _ = net.SplitHostPort(l.member.Raft)
		}
		conn = tls.Client(conn, c)
	}
	r, err := l.introduce(conn)
	if err != nil {
		_ = conn.Close()
		return nil, nil, err
	}
	return conn, r, nil
}

func (l *link) introduce(conn net.Conn) (*bufio.Reader, error) {
	t := l.t
	if err := conn.SetDeadline(time.Now().Add(dialTimeout)); err != nil {
		return nil, err
	}
	req, err := http.NewRequest(http.MethodPost, t.scheme()+"://"+l.member.Raft+streamPath, nil)
	if err != nil {
		return nil, err
	}
	s := t.cfg.Standing()
	h := hello{
		cluster: t.cfg.ClusterID, from: t.cfg.NodeID, to: l.member.ID, instance: t.cfg.Registry.Self(),
		knows: t.cfg.Registry.Known(l.member.ID), term: s.Term, last: s.Last, token: t.cfg.Token,
	}
	h.write(req.Header)
	req.Header.Set("Connection", "Upgrade")
	req.Header.Set("Upgrade", upgradeName)
	if err := req.Write(conn); err != nil {
		return nil, err
	}
	r := bufio.NewReader(conn)
	resp, err := http.ReadResponse(r, req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusSwitchingProtocols {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 4<<10)) // what came is what can be said
		reason := strings.TrimSpace(string(text))
		if resp.Header.Get(headerRefused) != "" {
			t.bar(fmt.Sprintf("node %d refuses it: %s", l.member.ID, reason))
		}
		return nil, fmt.Errorf("refused with %s: %s", resp.Status, reason)
	}
	ok, err := t.cfg.Registry.Meet(l.member.ID, resp.Header.Get(headerInstance))
	if err != nil {
		return nil, err
	}
	if !ok {
		return nil, fmt.Errorf("node %d has another disk than the one that is known: %s", l.member.ID, wayOut(l.member.ID))
	}
	t.met()
	return r, conn.SetDeadline(time.Time{})
}

// errSilent: the peer closed its side, or nothing comes through.
var errSilent = errors.New("the connection was closed, or nothing comes through")

// write sends what is queued, all of it in one go, and a frame now and then when
// nothing is.
func (l *link) write(conn net.Conn, r *bufio.Reader) error {
	gone := make(chan struct{})
	l.t.wg.Go(func() {
		defer close(gone)
		for { // a byte a second: a network that swallows everything is noticed
			if err := conn.SetReadDeadline(time.Now().Add(silence)); err != nil {
				return
			}
			if _, err := r.ReadByte(); err != nil {
				return
			}
		}
	})
	defer func() { <-gone }()
	defer conn.Close()
	ping := time.NewTimer(quietPing)
	defer ping.Stop()
	var buf []byte
	for {
		quiet := false
		select {
		case <-l.wake:
		case <-ping.C:
			quiet = true
		case <-gone:
			return errSilent
		case <-l.t.ctx.Done():
			return l.t.ctx.Err()
		}
		buf = buf[:0]
		for _, o := range l.take() {
			var err error
			if buf, err = appendFrame(buf, o.group, &o.parcel); err != nil {
				l.t.cfg.Logger.Error("messages cannot be sent", slog.Uint64("node", l.member.ID), slog.Any("err", err))
			}
		}
		if quiet && len(buf) == 0 {
			buf, _ = appendFrame(buf, 0, &raftlog.Parcel{}) // nothing in it can fail
		}
		ping.Reset(quietPing)
		if len(buf) == 0 {
			continue
		}
		if err := conn.SetWriteDeadline(time.Now().Add(writeLimit)); err != nil {
			return err
		}
		if _, err := conn.Write(buf); err != nil {
			return err
		}
		if cap(buf) > 4*readStep {
			buf = nil
		}
	}
}
