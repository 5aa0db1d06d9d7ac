package retention

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cespare/xxhash/v2"

	"queen/fsm"
	"queen/internal/entry"
	"queen/internal/vfs"
	"queen/raftlog"
	"queen/server"
)

const (
	tenant       = "00000000-0000-0000-0000-000000000001"
	segmentBytes = 16 << 10
	patience     = time.Minute // real time
)

// rig is an engine on a memory file system.
type rig struct {
	t      testing.TB
	fs     *vfs.Mem
	clock  *clock
	shards int
	dedup  int64                 // bytes; 0: the default
	group  func(*raftlog.Config) // more of the configuration; may be nil
	logger *slog.Logger          // nil: nowhere
	b      *server.Broker
	seq    uint64
	fatal  chan error
}

func newRig(t testing.TB, shards int) *rig {
	r := &rig{t: t, fs: vfs.NewMem(1), clock: newClock(), shards: shards}
	r.start()
	return r
}

// start opens what the file system holds.
func (r *rig) start() {
	r.t.Helper()
	if err := r.open(); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) open() (err error) {
	r.fatal = make(chan error, 1)
	fatal := r.fatal
	// The clock may jump while a pass runs: that it took long means nothing.
	group := raftlog.Config{ReclaimRest: -1, Clock: r.clock, SegmentBytes: segmentBytes, Shards: r.shards}
	if r.group != nil {
		r.group(&group)
	}
	r.b, err = server.Open(server.StorageConfig{
		FS: r.fs, Dir: "data", NodeID: 1, Logger: r.logger,
		Planner: fsm.Config{DefaultMode: fsm.SubscribeAll, RetentionScan: 1_000_000, DedupBytes: r.dedup,
			StatDays: 1, // so that statistics grow no more after the first day
		},
		Group: group,
		Fatal: func(err error) {
			select {
			case fatal <- err:
			default:
			}
		},
	})
	if err != nil {
		return err
	}
	if err := poll(func() bool { return r.b.Status().HasLeader || len(r.fatal) > 0 }); err != nil {
		return err
	}
	if len(r.fatal) > 0 {
		err := <-r.fatal
		r.gone()
		return err
	}
	return nil
}

func poll(done func() bool) error {
	for deadline := time.Now().Add(patience); !done(); time.Sleep(50 * time.Microsecond) {
		if time.Now().After(deadline) {
			return fmt.Errorf("nothing came of it in %v", patience)
		}
	}
	return nil
}

func (r *rig) await(done func() bool) {
	r.t.Helper()
	if err := poll(done); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) stop() {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := r.b.Stop(ctx); err != nil {
		r.t.Fatal(err)
	}
	select {
	case err := <-r.fatal:
		r.t.Fatal(err)
	default:
	}
}

// gone ends an engine whose file system has crashed under it.
func (r *rig) gone() {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_ = r.b.Stop(ctx) // nothing can be written any more: its errors are the point
}

// kill is kill -9, and powerCut takes what was not synced, too. Both go on with what is left.
func (r *rig) kill()     { r.restartOn(r.fs.Kill()) }
func (r *rig) powerCut() { r.restartOn(r.fs.Crash(0)) }

func (r *rig) restartOn(left *vfs.Mem) {
	r.t.Helper()
	r.gone()
	r.fs = left
	r.start()
}

// call plans one call and waits for its answer.
func (r *rig) call(body any) {
	r.t.Helper()
	done := make(chan error, 1)
	if err := r.b.Submit(&fsm.Call{Tenant: tenant, Body: body, Done: func(err error) { done <- err }}); err != nil {
		r.t.Fatal(err)
	}
	select {
	case err := <-done:
		if err != nil {
			r.t.Fatal(err)
		}
	case err := <-r.fatal:
		r.t.Fatal(err)
	case <-time.After(patience):
		r.t.Fatalf("%T was not answered", body)
	}
}

func (r *rig) id() (id [16]byte) {
	r.seq++
	binary.BigEndian.PutUint64(id[8:], r.seq)
	id[0], id[6], id[8] = 1, 0x70, 0x80
	return id
}

func hash(txn string) uint64 { return xxhash.Sum64String(txn) }

func (r *rig) item(queue, partition, txn, payload string) fsm.PushItem {
	m := entry.Message{ID: r.id(), Txn: []byte(txn), Payload: []byte(payload)}
	return fsm.PushItem{Queue: queue, Partition: partition, ID: m.ID, Txn: m.Txn, TxnHash: xxhash.Sum64(m.Txn), Packed: entry.AppendMessage(nil, &m)}
}

// push stores one message; the result is the item as the planner left it.
func (r *rig) push(queue, partition, txn, payload string) fsm.PushItem {
	r.t.Helper()
	p := &fsm.Push{Items: []fsm.PushItem{r.item(queue, partition, txn, payload)}}
	p.GroupItems()
	r.call(p)
	return p.Items[0]
}

func (r *rig) configure(queue string, set ...fsm.OptionValue) uint64 {
	r.t.Helper()
	cf := &fsm.Configure{Queue: queue, Set: set}
	r.call(cf)
	return cf.QueueID
}

func number(name string, n int64) fsm.OptionValue { return fsm.OptionValue{Name: name, Num: n} }

var retentionOn = fsm.OptionValue{Name: "retentionEnabled", Flag: true}

// consume takes up to n messages for a group, commits their delivery and returns their payloads.
func (r *rig) consume(queue, group string, n int) (out []string) {
	r.t.Helper()
	p := &fsm.Pop{Queue: queue, Group: group, Mode: fsm.SubscribeAll, Batch: n, Partitions: 64, CommitOnDelivery: true, LeaseID: r.id()}
	r.call(p)
	for _, c := range p.Claims {
		out = append(out, r.read(c.QueueID, c.PartitionID, c.From, c.To)...)
	}
	r.call(&fsm.Delivered{Claims: p.Claims})
	return out
}

func (r *rig) read(queue, partition, from, to uint64) (out []string) {
	r.t.Helper()
	err := r.b.Reader().ReadMessages(queue, partition, from, to, func(_ uint64, _ int64, m *entry.Message) error {
		out = append(out, string(m.Payload))
		return nil
	})
	if err != nil {
		r.t.Fatal(err)
	}
	return out
}

// partition describes a partition; false: there is none.
func (r *rig) partition(queue, name string) (info fsm.PartitionInfo, found bool) {
	r.t.Helper()
	r.call(&fsm.Read{Do: func(s *fsm.State) {
		ps, _ := s.Partitions(tenant, queue, 0, 1000)
		for _, p := range ps {
			if p.Name == name {
				info, found = p, true
			}
		}
	}})
	return info, found
}

func (r *rig) digest() uint64 {
	r.t.Helper()
	d, _, err := r.b.Digest()
	if err != nil {
		r.t.Fatal(err)
	}
	return d
}

// settle waits until nothing is in flight or being looked up any more.
func (r *rig) settle() {
	r.t.Helper()
	last := uint64(0)
	for same := 0; same < 3; {
		busy := r.b.Preparing() > 0 || r.b.Status().InFlight > 0
		r.call(&fsm.Read{Do: func(*fsm.State) {}})
		if d := r.digest(); busy || d != last {
			last, same = d, 0
		} else {
			same++
		}
	}
}

// advance moves the clock, in steps, so that everything due happens on the way.
func (r *rig) advance(d time.Duration) {
	r.t.Helper()
	for steps := 4; steps > 0; steps-- {
		r.clock.advance(d / 4)
		r.settle()
	}
}

// checkpoint takes a checkpoint and waits for the pass of reclaim that follows it.
func (r *rig) checkpoint() {
	r.t.Helper()
	passes, begun := &r.b.Reclaimed().Passes, &r.b.Reclaimed().Begun
	was := passes.Load()
	for deadline := time.Now().Add(patience); passes.Load() == was; {
		// Something to write, or there is no checkpoint. A pass may be left out when the last one took long.
		r.putKey()
		for i := 0; i < 70 && begun.Load() == was; i++ {
			r.clock.advance(time.Second)
			r.call(&fsm.Read{Do: func(*fsm.State) {}})
		}
		// The checkpoint goes on without the clock. Only when none comes, more time has to pass.
		for patient := time.Now().Add(time.Second); passes.Load() == was && len(r.fatal) == 0 && (begun.Load() != was || time.Now().Before(patient)) && time.Now().Before(deadline); {
			time.Sleep(20 * time.Microsecond)
		}
		if len(r.fatal) > 0 {
			r.t.Fatal(<-r.fatal)
		}
		if time.Now().After(deadline) {
			r.t.Fatal("no pass of reclaim")
		}
	}
}

// putKey is something to write.
func (r *rig) putKey() {
	r.t.Helper()
	r.call(&fsm.KV{Ops: []fsm.KVOp{{Kind: fsm.KVPut, NS: "rig", Key: "k", Value: []byte(fmt.Sprint(r.seq))}}})
}

// reclaim lets reclaim do everything that there is to do now.
func (r *rig) reclaim() {
	r.t.Helper()
	c := r.b.Reclaimed()
	did := func() int64 { return c.Files.Load() + c.Rewrites.Load() + c.Merges.Load() + c.Logs.Load() }
	// What a pass releases goes with the next one or the one after it.
	for idle, was := 0, did(); idle < 3; was = did() {
		if r.checkpoint(); did() == was {
			idle++
		} else {
			idle = 0
		}
	}
}

// reclaimUntilDead makes the passes of reclaim until the file system dies under them, or they are done. It returns the
// digests of the states that a boot may find then.
func (r *rig) reclaimUntilDead(dead func() bool) (digests []uint64) {
	r.t.Helper()
	if err := r.open(); err != nil {
		return nil
	}
	c := r.b.Reclaimed()
	note := func() {
		if d, _, err := r.b.Digest(); err == nil {
			digests = append(digests, d)
		}
	}
	note()
	for range 4 {
		was := c.Passes.Load()
		for deadline := time.Now().Add(patience); c.Passes.Load() == was && !dead(); {
			done := make(chan error, 1)
			_ = r.b.Submit(&fsm.Call{Tenant: tenant, Done: func(err error) { done <- err },
				Body: &fsm.KV{Ops: []fsm.KVOp{{Kind: fsm.KVPut, NS: "rig", Key: "k", Value: []byte("1")}}}})
			for answered := false; !answered && !dead(); {
				select {
				case <-done:
					answered = true
				case <-time.After(50 * time.Microsecond):
				}
			}
			note() // also when it died: the call may be durable
			for i := 0; i < 70 && c.Begun.Load() == was && !dead(); i++ {
				r.clock.advance(time.Second)
				time.Sleep(20 * time.Microsecond)
			}
			for patient := time.Now().Add(time.Second); c.Passes.Load() == was && (c.Begun.Load() != was || time.Now().Before(patient)) && !dead() && time.Now().Before(deadline); {
				time.Sleep(20 * time.Microsecond)
			}
			if time.Now().After(deadline) {
				r.t.Fatal("no pass of reclaim")
			}
		}
	}
	return digests
}

// disk lists the segment files of all logs with their sizes.
func (r *rig) disk() (files map[string]int64, bytes int64) {
	r.t.Helper()
	files = map[string]int64{}
	logs, err := r.fs.List("data/log")
	if err != nil {
		r.t.Fatal(err)
	}
	for _, l := range logs {
		infos, err := r.fs.List(path.Join("data/log", l.Name))
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // it was removed since
			r.t.Fatal(err)
		}
		for _, i := range infos {
			bytes += i.Size
			if strings.HasSuffix(i.Name, ".seg") {
				files[l.Name+"/"+strings.TrimLeft(i.Name, "0")] = i.Size
			}
		}
	}
	return files, bytes
}

// bytes sums the files of a directory.
func (r *rig) bytes(dir string) (n int64) {
	r.t.Helper()
	infos, err := r.fs.List(dir)
	if err != nil {
		r.t.Fatal(err)
	}
	for _, i := range infos {
		n += i.Size
	}
	return n
}

// clock is a raftlog.Clock that moves only when it is told to.
type clock struct {
	mu sync.Mutex
	// guarded by mu
	passed time.Duration
	timers map[*timer]struct{}
}

var epoch = time.Date(2026, 11, 3, 8, 0, 0, 0, time.UTC)

func newClock() *clock { return &clock{timers: map[*timer]struct{}{}} }

func (c *clock) Now() raftlog.Times {
	c.mu.Lock()
	defer c.mu.Unlock()
	return raftlog.Times{Mono: int64(c.passed), Wall: epoch.Add(c.passed).UnixMicro()}
}

func (c *clock) NewTimer() raftlog.Timer { return &timer{clock: c, c: make(chan time.Time, 1)} }

func (c *clock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.passed += d
	for t := range c.timers { // each has a channel of its own: the order does not matter
		if t.due <= c.passed {
			t.fireLocked()
		}
	}
}

type timer struct {
	clock *clock
	c     chan time.Time
	due   time.Duration // guarded by clock.mu
}

func (t *timer) C() <-chan time.Time { return t.c }

func (t *timer) Set(d time.Duration) {
	t.clock.mu.Lock()
	defer t.clock.mu.Unlock()
	t.due = t.clock.passed + max(d, 0)
	t.clock.timers[t] = struct{}{}
	if d <= 0 {
		t.fireLocked()
	}
}

func (t *timer) Stop() {
	t.clock.mu.Lock()
	defer t.clock.mu.Unlock()
	delete(t.clock.timers, t)
}

func (t *timer) fireLocked() {
	delete(t.clock.timers, t)
	select {
	case t.c <- epoch.Add(t.clock.passed):
	default:
	}
}
