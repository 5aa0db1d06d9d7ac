package recovery_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path"
	"strings"
	"sync"
	"testing"
	"time"

	"queen/internal/entry"
	"queen/internal/vfs"
	"queen/raftlog"
	"queen/raftlog/raftlogtest"
	"queen/recovery"
	"queen/segment"
)

const dataDir = "data"

// node is a group on a directory with its machine.
type node struct {
	t      testing.TB
	fs     vfs.FS
	m      *raftlogtest.Machine
	g      *raftlog.Group
	report recovery.Report
	fatal  chan error
}

type option func(*recovery.Config)

func withClock(c *manualClock) option { return func(cfg *recovery.Config) { cfg.Group.Clock = c } }

func withGroup(edit func(*raftlog.Config)) option {
	return func(cfg *recovery.Config) { edit(&cfg.Group) }
}

func open(t testing.TB, fsys vfs.FS, dir string, opts ...option) (*node, error) {
	n := &node{t: t, fs: fsys, m: raftlogtest.New(), fatal: make(chan error, 1)}
	cfg := recovery.Config{Group: raftlog.Config{
		FS: fsys, Dir: dir, NodeID: 1, Machine: n.m, Fatal: func(err error) { n.fatal <- err },
	}, Random: bytes.NewReader(bytes.Repeat([]byte{7}, 16))}
	for _, o := range opts {
		o(&cfg)
	}
	var before *vfs.Mem
	if m, ok := fsys.(*vfs.Mem); ok {
		before = m.Clone()
	}
	var err error
	n.g, n.report, err = recovery.Open(cfg)
	if before != nil {
		sameVerdict(t, before, dir, &cfg, n.report, err)
	}
	return n, err
}

// sameVerdict wants what the offline check says of a directory to be what a
// start on it did, in every test of this package.
func sameVerdict(t testing.TB, m *vfs.Mem, dir string, cfg *recovery.Config, report recovery.Report, err error) {
	t.Helper()
	if err != nil && !errors.Is(err, recovery.ErrRefused) && !errors.Is(err, recovery.ErrNewerFormat) || report.New {
		return // a fault, a lock, or a directory that was made
	}
	s, serr := recovery.TakeSnapshot(m, dir)
	if serr != nil || s.IdentityErr == nil && (s.Identity.Node != cfg.Group.NodeID || s.Identity.Shards != cfg.Group.Shards || cfg.ClusterID != "" && cfg.ClusterID != s.Identity.Cluster) {
		return // refused for how it was opened
	}
	v := s.Check()
	switch {
	case (err != nil) != (v.Refused != nil):
		t.Errorf("a start: %v; the offline check: %v", err, v.Refused)
	case err == nil && (report.Cut != v.Cut || report.CutSeen != v.CutSeen || report.Last != v.Last):
		t.Errorf("a start kept %d, cut at %d, %d seen; the offline check says %d, %d, %d", report.Last, report.Cut, report.CutSeen, v.Last, v.Cut, v.CutSeen)
	}
}

func mustOpen(t testing.TB, fsys vfs.FS, dir string, opts ...option) *node {
	t.Helper()
	n, err := open(t, fsys, dir, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// refused opens a directory that must be refused, and returns why.
func refused(t testing.TB, fsys vfs.FS, dir string, opts ...option) string {
	t.Helper()
	n, err := open(t, fsys, dir, opts...)
	if err == nil {
		n.stop()
		t.Fatalf("started: %+v", n.report)
	}
	if !errors.Is(err, recovery.ErrRefused) {
		t.Fatalf("the error does not wrap ErrRefused: %v", err)
	}
	return err.Error()
}

func (n *node) stop() {
	n.t.Helper()
	if err := n.g.Stop(context.Background()); err != nil {
		n.t.Fatal(err)
	}
}

// gone ends a group whose file system has crashed under it.
func (n *node) gone() {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	n.g.Stop(ctx)
}

// kill is kill -9: what was written stays readable, nothing is closed.
func (n *node) kill() *vfs.Mem {
	left := n.fs.(*vfs.Mem).Kill()
	n.gone()
	return left
}

// powerCut is kill and more: of what was not synced a part is lost.
func (n *node) powerCut(keep float64) *vfs.Mem {
	left := n.fs.(*vfs.Mem).Crash(keep)
	n.gone()
	return left
}

// do submits a call and waits for its answer; fn makes the call from the
// function that is to be called with the answer.
func (n *node) do(fn func(done func(error)) any) error {
	done := make(chan error, 1)
	if err := n.g.Submit(fn(func(err error) { done <- err })); err != nil {
		return err
	}
	select {
	case err := <-done:
		return err
	case err := <-n.fatal:
		n.fatal <- err
		return err
	}
}

func (n *node) push(p *raftlogtest.Push) []uint64 {
	n.t.Helper()
	var got []uint64
	err := n.do(func(done func(error)) any {
		p.Done = func(offsets []uint64, err error) { got = offsets; done(err) }
		return p
	})
	if err != nil {
		n.t.Fatal(err)
	}
	return got
}

func (n *node) put(key, value string) {
	n.t.Helper()
	if err := n.do(func(done func(error)) any { return &raftlogtest.Put{Key: key, Value: value, Done: done} }); err != nil {
		n.t.Fatal(err)
	}
}

func (n *node) get(key string) (value string, ok bool) {
	n.t.Helper()
	err := n.do(func(done func(error)) any {
		return &raftlogtest.Get{Key: key, Done: func(v string, found bool, err error) { value, ok = v, found; done(err) }}
	})
	if err != nil {
		n.t.Fatal(err)
	}
	return value, ok
}

func (n *node) messages(queue uint64) []string {
	n.t.Helper()
	var out []string
	err := n.g.Reader().ReadMessages(queue, queue, 0, 1<<60, func(_ uint64, _ int64, m *entry.Message) error {
		out = append(out, string(m.Payload))
		return nil
	})
	if err != nil && !errors.Is(err, raftlog.ErrNoLog) {
		n.t.Fatal(err)
	}
	return out
}

// manualClock is time that a test moves.
type manualClock struct {
	mu     sync.Mutex
	now    raftlog.Times
	timers []*manualTimer
}

func newClock() *manualClock {
	return &manualClock{now: raftlog.Times{Mono: 1, Wall: 1_700_000_000_000_000}}
}

func (c *manualClock) Now() raftlog.Times {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now.Mono += 1000 // so that nothing happens in no time
	c.now.Wall++
	return c.now
}

func (c *manualClock) NewTimer() raftlog.Timer {
	t := &manualTimer{c: c, ch: make(chan time.Time, 1)}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.timers = append(c.timers, t)
	return t
}

// advance moves time and fires what is due.
func (c *manualClock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now.Mono += int64(d)
	c.now.Wall += d.Microseconds()
	for _, t := range c.timers {
		if t.at != 0 && t.at <= c.now.Mono {
			t.at = 0
			select {
			case t.ch <- time.Time{}:
			default:
			}
		}
	}
}

type manualTimer struct {
	c  *manualClock
	ch chan time.Time
	at int64
}

func (t *manualTimer) C() <-chan time.Time { return t.ch }
func (t *manualTimer) Set(d time.Duration) {
	t.c.mu.Lock()
	defer t.c.mu.Unlock()
	t.at = t.c.now.Mono + int64(max(d, 1))
}
func (t *manualTimer) Stop() {
	t.c.mu.Lock()
	defer t.c.mu.Unlock()
	t.at = 0
}

// ticks lets a group on a manual clock live through d in raft's ticks. The loop
// may take two of them for one.
func (n *node) ticks(c *manualClock, d time.Duration) {
	n.t.Helper()
	for ; d > 0; d -= 100 * time.Millisecond {
		c.advance(100 * time.Millisecond)
		if err := n.g.Do(func() {}); err != nil {
			n.t.Fatal(err)
		}
	}
}

// recAt is a record of a log and where it is.
type recAt struct {
	file string
	pos  int64
	end  int64
	rec  entry.Record
}

// records lists what a log holds; it stops at a bad end.
func records(t testing.TB, fsys vfs.FS, log uint64) []recAt {
	t.Helper()
	l, err := segment.Open(segment.Options{FS: fsys, Dir: path.Join(dataDir, "log", raftlog.LogDirName(log)), ID: log})
	if err != nil {
		t.Fatal(err)
	}
	var out []recAt
	for _, s := range l.Segments() {
		_, err := l.Scan(s.Seq, 0, func(pos int64, body []byte) error {
			rec, err := entry.ParseRecord(bytes.Clone(body))
			if err != nil {
				return err
			}
			out = append(out, recAt{file: path.Join(l.Dir(), segment.FileName(s.Seq)), pos: pos, end: pos + segment.RecordHeaderSize + int64(len(body)), rec: rec})
			return nil
		})
		if err != nil && !errors.Is(err, segment.ErrTorn) {
			t.Fatal(err)
		}
	}
	return out
}

// lastIndex is the highest entry index in any log.
func lastIndex(t testing.TB, fsys vfs.FS, logs ...uint64) (last uint64) {
	t.Helper()
	for _, l := range logs {
		for _, r := range records(t, fsys, l) {
			if r.rec.Kind != entry.KindPad {
				last = max(last, r.rec.Index)
			}
		}
	}
	return last
}

// takeBack removes everything of entries >= index from one log, as a write
// that never reached the disk.
func takeBack(t testing.TB, fsys vfs.FS, log, index uint64) {
	t.Helper()
	for _, r := range records(t, fsys, log) {
		if r.rec.Index >= index {
			truncate(t, fsys, r.file, r.pos)
			return
		}
	}
	t.Fatalf("log %d holds nothing of entry %d", log, index)
}

// endOf is where the last record of a log ends; prepared space follows.
func endOf(t testing.TB, fsys vfs.FS, log uint64) int64 {
	t.Helper()
	all := records(t, fsys, log)
	return all[len(all)-1].end
}

func truncate(t testing.TB, fsys vfs.FS, file string, size int64) {
	t.Helper()
	f, err := fsys.OpenReadWrite(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(f.Truncate(size), f.Sync(), f.Close()); err != nil {
		t.Fatal(err)
	}
}

func writeAt(t testing.TB, fsys vfs.FS, file string, pos int64, data []byte) {
	t.Helper()
	f, err := fsys.OpenReadWrite(file)
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.WriteAt(data, pos)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		t.Fatal(err)
	}
}

func size(t testing.TB, fsys vfs.FS, file string) int64 {
	t.Helper()
	info, err := fsys.Stat(file)
	if err != nil {
		t.Fatal(err)
	}
	return info.Size
}

func contains(t testing.TB, text string, parts ...string) {
	t.Helper()
	for _, p := range parts {
		if !strings.Contains(text, p) {
			t.Errorf("%q is not in: %s", p, text)
		}
	}
}

// handmade is a directory whose logs a test writes itself, record by record.
type handmade struct {
	t    testing.TB
	fs   *vfs.Mem
	logs map[uint64]*segment.Log
}

// newHandmade makes a directory with an identity, a state and nothing else.
func newHandmade(t testing.TB, state raftlog.State) *handmade {
	t.Helper()
	fsys := vfs.NewMem(1)
	mustOpen(t, fsys, dataDir).stop()
	for _, d := range []string{"log", "checkpoint"} {
		if err := fsys.RemoveAll(path.Join(dataDir, d)); err != nil {
			t.Fatal(err)
		}
		if err := fsys.MkdirAll(path.Join(dataDir, d)); err != nil {
			t.Fatal(err)
		}
	}
	h := &handmade{t: t, fs: fsys, logs: make(map[uint64]*segment.Log)}
	h.state(state)
	return h
}

func (h *handmade) state(s raftlog.State) {
	h.t.Helper()
	if err := raftlog.SaveState(h.fs, raftlog.StateDir(dataDir), &s); err != nil {
		h.t.Fatal(err)
	}
}

func (h *handmade) append(log uint64, body []byte) {
	h.t.Helper()
	l := h.logs[log]
	if l == nil {
		var err error
		if l, err = segment.Open(segment.Options{FS: h.fs, Dir: path.Join(dataDir, "log", raftlog.LogDirName(log)), ID: log}); err != nil {
			h.t.Fatal(err)
		}
		h.logs[log] = l
	}
	if _, err := l.Append(body); err != nil {
		h.t.Fatal(err)
	}
	if err := l.Sync(); err != nil {
		h.t.Fatal(err)
	}
}

// made is one entry for a handmade log.
type made struct {
	index, term     uint64
	queues          []uint64 // one message for each; none: a raw entry in the system log
	omit            []uint64 // logs that get no copy
	commit, durable uint64
	salt            string // makes two entries of one index differ
}

func (h *handmade) entry(e made) {
	h.t.Helper()
	head := entry.Head{Term: e.term, Commit: e.commit, Durable: e.durable}
	if len(e.queues) == 0 {
		head.Logs, head.Hash = []uint64{0}, entry.Hash(nil)
		h.append(0, entry.AppendRawEntryRecord(nil, e.index, &head, nil))
		return
	}
	var b entry.Builder
	now := int64(1_000_000 + e.index)
	for _, q := range e.queues {
		m := entry.Message{Txn: []byte("t"), Payload: fmt.Appendf(nil, "entry %d%s", e.index, e.salt)}
		b.Append(q, q, e.index, now, 1, entry.AppendMessage(nil, &m))
	}
	data := b.Encode(now)
	parsed, err := entry.Parse(data)
	if err != nil {
		h.t.Fatal(err)
	}
	head.Logs, head.Hash = e.queues, entry.Hash(data)
	for i, q := range e.queues {
		if contains64(e.omit, q) {
			continue
		}
		h.append(q, entry.AppendAppendRecord(nil, e.index, i, parsed.Appends[i].Raw))
		if i == 0 {
			h.append(q, entry.AppendEntryRecord(nil, e.index, &head, data, &parsed))
		} else {
			h.append(q, entry.AppendStubRecord(nil, e.index, &head))
		}
	}
}

func padOf(durable, commit uint64) []byte { return entry.AppendPadRecord(nil, durable, commit) }

func contains64(s []uint64, v uint64) bool {
	for _, x := range s {
		if x == v {
			return true
		}
	}
	return false
}

// done closes the logs that were written by hand.
func (h *handmade) done() *vfs.Mem {
	h.t.Helper()
	for _, l := range h.logs {
		if err := l.Close(); err != nil {
			h.t.Fatal(err)
		}
	}
	h.logs = make(map[uint64]*segment.Log)
	return h.fs
}

func oneVoter(term uint64) raftlog.State {
	return raftlog.State{Term: term, Vote: 1, Conf: raftlog.Membership{Voters: []uint64{1}}}
}

func threeVoters(term uint64) raftlog.State {
	return raftlog.State{Term: term, Vote: 2, Conf: raftlog.Membership{Voters: []uint64{1, 2, 3}}}
}
