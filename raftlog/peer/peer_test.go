package peer

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"path"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	pb "go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"queen/internal/vfs"
	"queen/raftlog"
)

const cluster = "00112233445566778899aabbccddeeff"

// station is one node's transport and what it has received.
type station struct {
	t        *testing.T
	id       uint64
	fs       vfs.FS
	members  []Member
	listener net.Listener
	tr       *Transport
	standing Standing
	served   chan error

	mu      sync.Mutex
	got     []*raftlog.Parcel
	cluster string
	token   string
}

func stations(t *testing.T, n int) (all []*station) {
	t.Helper()
	var members []Member
	for i := range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		s := &station{t: t, id: uint64(i + 1), fs: vfs.NewMem(1), listener: l, cluster: cluster, token: "token"}
		members = append(members, Member{ID: s.id, Raft: l.Addr().String()})
		all = append(all, s)
	}
	for _, s := range all {
		s.members = members
	}
	return all
}

func (s *station) start() *station {
	s.t.Helper()
	if err := s.fs.MkdirAll("raft"); err != nil {
		s.t.Fatal(err)
	}
	r, err := OpenRegistry(s.fs, "raft", rand.Reader)
	if err != nil {
		s.t.Fatal(err)
	}
	if s.listener == nil {
		if s.listener, err = net.Listen("tcp", s.members[s.id-1].Raft); err != nil {
			s.t.Fatal(err)
		}
	}
	s.tr = New(Config{
		ClusterID: s.cluster, NodeID: s.id, Members: s.members, Token: s.token, Registry: r, Logger: slog.New(slog.DiscardHandler),
		Standing:    func() Standing { return s.standing },
		Unreachable: func(uint64) {},
		Receive: func(_ uint32, p *raftlog.Parcel) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.got = append(s.got, p)
		},
		Forward: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			b, _ := io.ReadAll(r.Body)
			fmt.Fprintf(w, "%s %s %s %s", r.Method, r.URL.RequestURI(), b, r.Header.Get(headerToken))
		}),
	})
	s.served = make(chan error, 1)
	go func() { s.served <- s.tr.Serve(s.listener) }()
	s.tr.Start()
	s.t.Cleanup(s.stop)
	return s
}

func (s *station) stop() {
	if s.tr == nil {
		return
	}
	if err := s.tr.Close(); err != nil {
		s.t.Error(err)
	}
	if err := <-s.served; err != nil {
		s.t.Error(err)
	}
	s.tr, s.listener = nil, nil
}

func (s *station) received() []*raftlog.Parcel {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.got
}

func until(t *testing.T, what string, done func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !done(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

func open(t *testing.T, all ...*station) {
	t.Helper()
	for _, s := range all {
		until(t, fmt.Sprintf("station %d to take part", s.id), func() bool { return s.tr.Problem() == "" })
	}
}

func beat(from, to, term uint64) *pb.Message {
	return &pb.Message{Type: pb.MsgHeartbeat.Enum(), From: new(from), To: new(to), Term: new(term), Commit: new(uint64(3))}
}

func TestMessagesArriveWithWhatIsKnown(t *testing.T) {
	all := stations(t, 3)
	for _, s := range all {
		s.start()
	}
	open(t, all...)
	app := &pb.Message{Type: pb.MsgApp.Enum(), From: new(uint64(1)), To: new(uint64(2)), Term: new(uint64(4)),
		Entries: []*pb.Entry{{Index: new(uint64(7)), Term: new(uint64(4)), Data: bytes.Repeat([]byte("x"), 3<<20)}}}
	until(t, "the messages", func() bool {
		if len(all[1].received()) > 0 && len(all[2].received()) > 0 {
			return true
		}
		all[0].tr.Send(0, raftlog.Parcel{Messages: []*pb.Message{app, beat(1, 3, 4)}, Time: 99, TimeTerm: 3, Commit: 6, Keep: 5})
		return false
	})
	p := all[1].received()[0]
	if p.Time != 99 || p.TimeTerm != 3 || p.Commit != 6 || p.Keep != 5 || len(p.Messages) != 1 || !proto.Equal(p.Messages[0], app) {
		t.Errorf("station 2 received %d messages, time %d, commit %d, keep %d", len(p.Messages), p.Time, p.Commit, p.Keep)
	}
	if p := all[2].received()[0]; len(p.Messages) != 1 || !proto.Equal(p.Messages[0], beat(1, 3, 4)) {
		t.Errorf("station 3 received %v", p.Messages)
	}
}

// A new node takes no part before it has met all others: then nobody is left who
// would not know a disk that was wiped.
func TestB20NewNodesWaitForAllOthers(t *testing.T) {
	all := stations(t, 3)
	all[0].start()
	all[1].start()
	until(t, "the two to meet", func() bool {
		return all[0].tr.cfg.Registry.Known(2) != "" && all[1].tr.cfg.Registry.Known(1) != ""
	})
	if p := all[0].tr.Problem(); !strings.Contains(p, "node 3 at "+all[2].members[2].Raft) {
		t.Errorf("problem %q does not name who is missing", p)
	}
	all[0].tr.Send(0, raftlog.Parcel{Messages: []*pb.Message{beat(1, 2, 1)}})
	all[2].start()
	open(t, all...)
	if n := len(all[1].received()); n != 0 {
		t.Errorf("%d messages before all were met", n)
	}
}

func TestB20WipedNodeIsRefused(t *testing.T) {
	all := stations(t, 3)
	for _, s := range all {
		s.start()
	}
	open(t, all...)
	all[2].stop()
	all[2].fs = vfs.NewMem(2)
	all[2].start()
	until(t, "the refusal", func() bool { return strings.Contains(all[2].tr.Problem(), "another disk") })
	if p := all[2].tr.Problem(); !strings.Contains(p, "remove node 3 from the membership") {
		t.Errorf("problem %q names no way out", p)
	}
	all[2].tr.Send(0, raftlog.Parcel{Messages: []*pb.Message{beat(3, 1, 9)}})
	open(t, all[0], all[1])
	if n := len(all[0].received()); n != 0 {
		t.Errorf("a wiped node was heard: %d messages", n)
	}
}

// A node that knows of less than it has promised runs on an older copy of its disk.
func TestB21OlderCopyIsRefused(t *testing.T) {
	for name, c := range map[string]struct {
		promise *pb.Message
		back    Standing
	}{
		"an older term":     {beat(2, 1, 8), Standing{Term: 7, Last: 100}},
		"entries are gone":  {&pb.Message{Type: pb.MsgAppResp.Enum(), From: new(uint64(2)), To: new(uint64(1)), Term: new(uint64(8)), Index: new(uint64(50))}, Standing{Term: 8, Last: 49}},
		"as it was":         {&pb.Message{Type: pb.MsgAppResp.Enum(), From: new(uint64(2)), To: new(uint64(1)), Term: new(uint64(8)), Index: new(uint64(50))}, Standing{Term: 8, Last: 50}},
		"only a pre-vote":   {&pb.Message{Type: pb.MsgPreVote.Enum(), From: new(uint64(2)), To: new(uint64(1)), Term: new(uint64(9))}, Standing{Term: 8, Last: 50}},
		"not committed yet": {&pb.Message{Type: pb.MsgAppResp.Enum(), From: new(uint64(2)), To: new(uint64(1)), Term: new(uint64(8)), Index: new(uint64(70))}, Standing{Term: 8, Last: 60}},
	} {
		t.Run(name, func(t *testing.T) {
			all := stations(t, 2)
			all[0].standing.Commit = 60
			all[1].standing = Standing{Term: 8, Last: 70}
			all[0].start()
			all[1].start()
			open(t, all...)
			until(t, "the promise", func() bool {
				all[1].tr.Send(0, raftlog.Parcel{Messages: []*pb.Message{c.promise}})
				return len(all[0].received()) > 0
			})
			all[1].stop()
			all[1].standing = c.back
			heard := len(all[0].received())
			all[1].start()
			if name != "an older term" && name != "entries are gone" {
				until(t, "it to be heard again", func() bool {
					all[1].tr.Send(0, raftlog.Parcel{Messages: []*pb.Message{c.promise}})
					return len(all[0].received()) > heard
				})
				return
			}
			until(t, "the refusal", func() bool { return strings.Contains(all[1].tr.Problem(), "older copy") })
		})
	}
}

func TestForeignNodesAreRefused(t *testing.T) {
	for name, change := range map[string]func(*station){
		"another cluster": func(s *station) { s.cluster = strings.Repeat("ab", 16) },
		"another token":   func(s *station) { s.token = "wrong" },
	} {
		t.Run(name, func(t *testing.T) {
			all := stations(t, 2)
			change(all[1])
			all[0].start()
			all[1].start()
			if name == "another cluster" {
				until(t, "the refusal", func() bool { return strings.Contains(all[1].tr.Problem(), "belongs to cluster") })
			} else {
				until(t, "a try", func() bool {
					_, _, err := all[1].tr.links[1].dial()
					return err != nil && strings.Contains(err.Error(), "401")
				})
			}
			if all[0].tr.cfg.Registry.Known(2) != "" {
				t.Error("the foreign node is known now")
			}
		})
	}
}

func TestForward(t *testing.T) {
	all := stations(t, 2)
	all[0].start()
	all[1].start()
	resp, err := all[0].tr.Forward(t.Context(), 2, "PUT", "/api/v1/kv/a/b%2Fc?x=1", http.Header{}, strings.NewReader("body"), 4)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if b, _ := io.ReadAll(resp.Body); string(b) != "PUT /api/v1/kv/a/b%2Fc?x=1 body " {
		t.Errorf("the other node was called with %q", b)
	}
	if _, err := all[0].tr.Forward(t.Context(), 9, "GET", "/", http.Header{}, nil, 0); !errors.Is(err, ErrNoSuchNode) {
		t.Errorf("err %v", err)
	}
}

func TestRegistry(t *testing.T) {
	m := vfs.NewMem(1)
	if err := errors.Join(m.MkdirAll("raft"), m.SyncDir(".")); err != nil {
		t.Fatal(err)
	}
	r, err := OpenRegistry(m, "raft", rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	other, third := strings.Repeat("0a", 16), strings.Repeat("0b", 16)
	for _, c := range []struct {
		id       uint64
		instance string
		ok       bool
	}{{2, other, true}, {2, other, true}, {2, third, false}, {3, third, true}, {4, "short", false}} {
		if ok, err := r.Meet(c.id, c.instance); err != nil || ok != c.ok {
			t.Errorf("meet %d %s: %v, %v", c.id, c.instance, ok, err)
		}
	}
	m = m.Crash(0)
	again, err := OpenRegistry(m, "raft", rand.Reader)
	if err != nil || again.Self() != r.Self() || again.Known(2) != other || again.Known(3) != third || again.Complete([]uint64{2, 3, 4}) || !again.Complete([]uint64{2, 3}) {
		t.Errorf("after a power cut: %v, self %s, known %s %s", err, again.Self(), again.Known(2), again.Known(3))
	}
	if err := again.Forget(2); err != nil {
		t.Fatal(err)
	}
	if ok, err := again.Meet(2, third); !ok || err != nil {
		t.Errorf("a node that was forgotten comes with a new disk: %v, %v", ok, err)
	}
	name := path.Join("raft", "peers")
	b, err := vfs.ReadFile(m, name)
	if err != nil {
		t.Fatal(err)
	}
	for i := range b { // every damaged byte is noticed
		if err := m.Flip(name, int64(i), 1); err != nil {
			t.Fatal(err)
		}
		if _, err := OpenRegistry(m, "raft", rand.Reader); !errors.Is(err, ErrRegistry) {
			t.Fatalf("byte %d flipped: %v", i, err)
		}
		if err := m.Flip(name, int64(i), 1); err != nil {
			t.Fatal(err)
		}
	}
}

func FuzzParseFrame(f *testing.F) {
	b, err := appendFrame(nil, 3, &raftlog.Parcel{Messages: []*pb.Message{beat(1, 2, 3), beat(1, 2, 4)}, Time: 5, Commit: 6, Keep: 7})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b[4:])
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		group, p, err := parseFrame(b)
		if err != nil {
			return
		}
		again, err := appendFrame(nil, group, p)
		if err != nil {
			t.Fatal(err)
		}
		g2, p2, err := parseFrame(again[4:])
		if err != nil || g2 != group || p2.Time != p.Time || p2.Commit != p.Commit || p2.Keep != p.Keep || len(p2.Messages) != len(p.Messages) {
			t.Fatalf("%v: %+v is not %+v", err, p2, p)
		}
		for i := range p.Messages {
			if !proto.Equal(p.Messages[i], p2.Messages[i]) && !reflect.DeepEqual(p.Messages[i], p2.Messages[i]) {
				t.Fatalf("message %d differs", i)
			}
		}
	})
}

// A length is believed as far as bytes arrive.
func TestLyingLength(t *testing.T) {
	b := append([]byte{0xff, 0xff, 0xff, 0x09}, make([]byte, 100)...) // 160 MiB less one
	_, kept, err := readFrame(bytes.NewReader(b), nil)
	if err == nil || cap(kept) > 4*readStep {
		t.Errorf("err %v, %d bytes were allocated", err, cap(kept))
	}
	if _, _, err := readFrame(bytes.NewReader([]byte{0, 0, 0, 0x40}), nil); !errors.Is(err, errFrame) {
		t.Errorf("a length over the limit: %v", err)
	}
}
