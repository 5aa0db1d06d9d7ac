package clustertest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// binary is built once for all tests.
var binary = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "queen-cluster-")
	if err != nil {
		return "", err
	}
	out := filepath.Join(dir, "queen")
	b, err := exec.Command("go", "build", "-o", out, "queen/cmd/queen").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("build: %w\n%s", err, b)
	}
	return out, nil
})

func TestMain(m *testing.M) {
	code := m.Run()
	if path, err := binary(); err == nil {
		_ = os.RemoveAll(filepath.Dir(path))
	}
	os.Exit(code)
}

// proc is one node.
type proc struct {
	id   int
	url  string
	dir  string
	cmd  *exec.Cmd
	log  *os.File
	done chan struct{}
}

type cluster struct {
	t     *testing.T
	peers string
	procs []*proc
	http  *http.Client
}

// ports finds n free ones.
func ports(t *testing.T, n int) (out []int) {
	t.Helper()
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		out = append(out, l.Addr().(*net.TCPAddr).Port)
	}
	return out
}

func newCluster(t *testing.T, n int) *cluster {
	t.Helper()
	c := &cluster{t: t, http: &http.Client{Timeout: 40 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: 64}}}
	p := ports(t, 2*n)
	var list []string
	for i := range n {
		list = append(list, fmt.Sprintf("%d=127.0.0.1:%d/127.0.0.1:%d", i+1, p[2*i], p[2*i+1]))
		c.procs = append(c.procs, &proc{id: i + 1, url: fmt.Sprintf("http://127.0.0.1:%d", p[2*i+1]), dir: t.TempDir()})
	}
	c.peers = strings.Join(list, ",")
	t.Cleanup(func() {
		for _, p := range c.procs {
			c.kill(p)
		}
		if t.Failed() {
			for _, p := range c.procs {
				b, _ := os.ReadFile(p.dir + ".log")
				t.Logf("node %d:\n%s", p.id, b)
			}
		}
	})
	for _, p := range c.procs {
		c.start(p)
	}
	return c
}

func (c *cluster) start(p *proc) {
	c.t.Helper()
	path, err := binary()
	if err != nil {
		c.t.Fatal(err)
	}
	log, err := os.OpenFile(p.dir+".log", os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		c.t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(strings.TrimPrefix(p.url, "http://"))
	cmd := exec.Command(path, "serve")
	cmd.Env = []string{"PORT=" + port, "QUEEN_BIND_ADDR=127.0.0.1", "QUEEN_RAFT_DIR=" + p.dir, "QUEEN_RAFT_REPLICATOR=raft",
		"QUEEN_RAFT_NODE_ID=" + strconv.Itoa(p.id), "QUEEN_RAFT_PEERS=" + c.peers, "QUEEN_RAFT_TOKEN=of-the-test", "QUEEN_DISK_RESERVE_BYTES=0"}
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	p.cmd, p.log, p.done = cmd, log, make(chan struct{})
	go func(done chan struct{}) {
		_ = cmd.Wait() // it is killed in most tests
		_ = log.Close()
		close(done)
	}(p.done)
}

func (c *cluster) signal(p *proc, s syscall.Signal) {
	if p.cmd != nil {
		_ = p.cmd.Process.Signal(s) // it may have ended
		<-p.done
		p.cmd = nil
	}
}

func (c *cluster) kill(p *proc) { c.signal(p, syscall.SIGKILL) }

type health struct {
	Status, Reason string
	Raft           struct {
		Role            string
		Applied, Commit uint64
	}
}

func (c *cluster) health(p *proc) (h health, code int) {
	resp, err := c.http.Get(p.url + "/health")
	if err != nil {
		return h, 0
	}
	defer resp.Body.Close()
	_ = json.NewDecoder(resp.Body).Decode(&h) // an unreadable one is not healthy
	return h, resp.StatusCode
}

// until polls for an event.
func (c *cluster) until(what string, patience time.Duration, done func() bool) {
	c.t.Helper()
	for end := time.Now().Add(patience); !done(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			c.t.Fatalf("waited in vain for %s", what)
		}
	}
}

func (c *cluster) healthy(procs ...*proc) {
	c.t.Helper()
	for _, p := range procs {
		c.until(fmt.Sprintf("node %d to be healthy", p.id), 30*time.Second, func() bool { _, code := c.health(p); return code == 200 })
	}
}

func (c *cluster) leader() (leader *proc) {
	c.t.Helper()
	c.until("a leader", 30*time.Second, func() bool {
		for _, p := range c.procs {
			if h, _ := c.health(p); p.cmd != nil && h.Raft.Role == "leader" {
				leader = p
			}
		}
		return leader != nil
	})
	return leader
}

func (c *cluster) call(p *proc, method, path, body string) (int, []byte, error) {
	req, err := http.NewRequestWithContext(context.Background(), method, p.url+path, strings.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := c.http.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return resp.StatusCode, b, err
}

// pushers push unique messages to all nodes until stop, and note what was answered.
type pushers struct {
	c        *cluster
	answered sync.Map // transactionId: offset
	count    atomic.Int64
	next     atomic.Int64
	stop     chan struct{}
	wg       sync.WaitGroup
}

func (c *cluster) push(workers int) *pushers {
	p := &pushers{c: c, stop: make(chan struct{})}
	for w := range workers {
		p.wg.Go(func() { p.run(w) })
	}
	return p
}

func (p *pushers) run(worker int) {
	for at := worker; ; {
		select {
		case <-p.stop:
			return
		default:
		}
		txn := fmt.Sprintf("t%d", p.next.Add(1))
		body := fmt.Sprintf(`{"items":[{"queue":"load","partition":"p%d","transactionId":%q,"payload":{"of":%q}}]}`, worker%4, txn, txn)
		for { // the same until it is answered: an id makes that harmless
			status, b, err := p.c.call(p.c.procs[at%len(p.c.procs)], "POST", "/api/v1/push", body)
			var items []struct {
				Status string
				Offset uint64
			}
			if err == nil && status == http.StatusCreated && json.Unmarshal(b, &items) == nil && len(items) == 1 {
				p.answered.Store(txn, items[0].Offset)
				p.count.Add(1)
				break
			}
			at++
			select {
			case <-p.stop:
				return
			case <-time.After(5 * time.Millisecond):
			}
		}
	}
}

func (p *pushers) end() {
	close(p.stop)
	p.wg.Wait()
}

// check pops everything from one node: what was answered is there once.
func (p *pushers) check(from *proc, group string) {
	t := p.c.t
	t.Helper()
	seen := map[string]int{}
	for {
		status, b, err := p.c.call(from, "GET", "/api/v1/pop/queue/load?consumerGroup="+group+"&subscriptionMode=all&batch=1000&partitions=4&commitOnDelivery=true", "")
		if err != nil || status != 200 && status != 204 {
			t.Fatalf("pop: %d %s %v", status, b, err)
		}
		if status == 204 {
			break
		}
		var got struct {
			Messages []struct {
				TransactionID string `json:"transactionId"`
				Data          struct{ Of string }
			}
		}
		if err := json.Unmarshal(b, &got); err != nil {
			t.Fatal(err)
		}
		for _, m := range got.Messages {
			seen[m.TransactionID]++
			if m.Data.Of != m.TransactionID {
				t.Errorf("%s comes with the payload of %s", m.TransactionID, m.Data.Of)
			}
		}
	}
	lost := 0
	p.answered.Range(func(txn, _ any) bool {
		if seen[txn.(string)] != 1 {
			lost++
			t.Logf("%s was answered and is there %d times", txn, seen[txn.(string)])
		}
		return lost < 10
	})
	if lost > 0 {
		t.Errorf("answered pushes were lost or doubled")
	}
	t.Logf("%d answered, %d messages", p.count.Load(), len(seen))
}

// TestKillLeader: the leader is killed under load, again and again; whatever was
// answered is there, whichever node is asked, and writes go on.
func TestKillLeader(t *testing.T) {
	c := newCluster(t, 3)
	c.healthy(c.procs...)
	load := c.push(12)
	rounds := 4
	if testing.Short() {
		rounds = 2
	}
	for range rounds {
		was := load.count.Load()
		c.until("writes", 30*time.Second, func() bool { return load.count.Load() > was+50 })
		leader := c.leader()
		c.kill(leader)
		was = load.count.Load()
		begun := time.Now()
		c.until("writes without the leader", 30*time.Second, func() bool { return load.count.Load() > was+20 })
		t.Logf("node %d was killed; writes went on after %v", leader.id, time.Since(begun).Round(time.Millisecond))
		c.start(leader)
		c.healthy(leader)
	}
	load.end()
	for i, p := range c.procs {
		load.check(p, fmt.Sprintf("g%d", i))
	}
	c.level()
}

// level waits until all nodes have applied the same, and compares what they hold
// by asking each of them with the others stopped from leading it.
func (c *cluster) level() {
	c.t.Helper()
	c.until("all nodes to apply the same", 30*time.Second, func() bool {
		var at uint64
		for i, p := range c.procs {
			h, code := c.health(p)
			if code != 200 || i > 0 && h.Raft.Applied != at {
				return false
			}
			at = h.Raft.Applied
		}
		return true
	})
}

// TestGracefulStop: a leader that is told to stop hands over first, so that writes
// hardly pause.
func TestGracefulStop(t *testing.T) {
	c := newCluster(t, 3)
	c.healthy(c.procs...)
	load := c.push(8)
	c.until("writes", 30*time.Second, func() bool { return load.count.Load() > 50 })
	for range 2 {
		leader := c.leader()
		begun := time.Now()
		c.signal(leader, syscall.SIGTERM)
		t.Logf("node %d stopped in %v", leader.id, time.Since(begun).Round(time.Millisecond))
		was := load.count.Load()
		c.until("writes without it", 10*time.Second, func() bool { return load.count.Load() > was+20 })
		c.start(leader)
		c.healthy(leader)
	}
	load.end()
	load.check(c.procs[0], "g")
}

// TestNoQuorum: without a majority health says so within seconds, and writes are
// refused; when it is back both are well.
func TestNoQuorum(t *testing.T) {
	c := newCluster(t, 3)
	c.healthy(c.procs...)
	alone := c.procs[0]
	c.kill(c.procs[1])
	c.kill(c.procs[2])
	begun := time.Now()
	c.until("health to tell", 10*time.Second, func() bool { h, code := c.health(alone); return code == 503 && h.Reason != "" })
	if took := time.Since(begun); took > 3*time.Second {
		t.Errorf("health told after %v", took)
	}
	c.start(c.procs[1])
	c.healthy(alone)
	if status, b, err := c.call(alone, "POST", "/api/v1/push", `{"items":[{"queue":"q","payload":1}]}`); err != nil || status != 201 {
		t.Errorf("push: %d %s %v", status, b, err)
	}
}

// TestB20WipedVoter: a voter whose directory was wiped is refused under its old
// id, says why, and the others go on.
func TestB20WipedVoter(t *testing.T) {
	c := newCluster(t, 3)
	c.healthy(c.procs...)
	wiped := c.procs[2]
	c.kill(wiped)
	if err := os.RemoveAll(wiped.dir); err != nil {
		t.Fatal(err)
	}
	c.start(wiped)
	c.until("the wiped node to say that it is refused", 30*time.Second, func() bool {
		h, code := c.health(wiped)
		return code == 503 && strings.Contains(h.Reason, "another disk") && strings.Contains(h.Reason, "remove node 3")
	})
	for _, p := range c.procs[:2] {
		if status, b, err := c.call(p, "POST", "/api/v1/push", `{"items":[{"queue":"q","payload":1}]}`); err != nil || status != 201 {
			t.Errorf("push to node %d: %d %s %v", p.id, status, b, err)
		}
	}
}

// TestB21OlderCopy: a node that comes back with an older copy of its disk is refused.
func TestB21OlderCopy(t *testing.T) {
	c := newCluster(t, 3)
	c.healthy(c.procs...)
	leader := c.leader()
	old := c.procs[0]
	if old == leader {
		old = c.procs[1]
	}
	c.kill(old)
	saved := t.TempDir()
	if b, err := exec.Command("cp", "-a", old.dir+"/.", saved).CombinedOutput(); err != nil {
		t.Fatalf("%v %s", err, b)
	}
	c.start(old)
	c.healthy(old)
	for range 20 {
		if status, b, err := c.call(old, "POST", "/api/v1/push", `{"items":[{"queue":"q","payload":1}]}`); err != nil || status != 201 {
			t.Fatalf("push: %d %s %v", status, b, err)
		}
	}
	c.level()
	c.kill(old)
	if b, err := exec.Command("sh", "-c", "rm -rf '"+old.dir+"'/* && cp -a '"+saved+"'/. '"+old.dir+"'").CombinedOutput(); err != nil {
		t.Fatalf("%v %s", err, b)
	}
	c.start(old)
	c.until("the node to say that its disk is old", 30*time.Second, func() bool {
		h, code := c.health(old)
		return code == 503 && strings.Contains(h.Reason, "older copy")
	})
}

// TestForeignToken: nothing is said to who does not know the token.
func TestForeignToken(t *testing.T) {
	c := newCluster(t, 3)
	c.healthy(c.procs...)
	_, rest, _ := strings.Cut(c.peers, "=")
	raft, _, _ := strings.Cut(rest, "/")
	for _, path := range []string{"/raft/v1/stream", "/raft/v1/forward/api/v1/push", "/"} {
		resp, err := http.Post("http://"+raft+path, "", bytes.NewReader([]byte("x")))
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusUnauthorized {
			t.Errorf("%s without the token: %s", path, resp.Status)
		}
	}
}
