package powercut

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"queen/internal/history"
	"queen/internal/vfs"
	"queen/raftlog"
	"queen/tools/internal/api"
)

var flagAll = flag.Bool("all", false, "fail every call, not a sample of them")

var errDisk = errors.New("the disk says no")

// TestB15EveryFailureEndsTheBroker: each kind of call that writes fails once, at
// each place where the broker makes it. The process ends with one line that
// names the file, nothing is answered after it, and after a power cut
// everything that was answered before is there.
func TestB15EveryFailureEndsTheBroker(t *testing.T) {
	for _, op := range []vfs.Op{vfs.OpSync, vfs.OpWrite, vfs.OpShortWrite, vfs.OpClose, vfs.OpRename, vfs.OpSyncDir, vfs.OpSyncAll,
		vfs.OpCreate, vfs.OpTruncate, vfs.OpMkdir, vfs.OpRemove} {
		t.Run(strings.ReplaceAll(op.String(), " ", "-"), func(t *testing.T) {
			places, missed := 0, 0
			for nth, seed := 1, uint64(1); missed < 4 && !t.Failed(); seed++ {
				reached := false
				bubble(t, func(t *testing.T) {
					f := &failure{epoch: newEpoch(t, seed), op: op}
					var err error
					if reached, err = f.run(nth); err != nil {
						t.Errorf("%v number %d, seed %d: %v", op, nth, seed, err)
					}
				})
				if !reached {
					missed++ // other calls of another seed may reach it
					continue
				}
				places, missed, nth = places+1, 0, nextPlace(nth)
			}
			t.Logf("%d places", places)
			if places == 0 {
				t.Error("the broker makes no such call")
			}
		})
	}
}

// nextPlace takes all of the first places, and then ever fewer.
func nextPlace(n int) int {
	if *flagAll || n < 3 {
		return n + 1
	}
	return 2 * n
}

// failure is a run in which one call fails.
type failure struct {
	*epoch
	op   vfs.Op
	file atomic.Pointer[string] // whose call failed
}

// arm makes the n-th call of the kind fail on fs.
func (f *failure) arm(fs *vfs.Mem, nth int) {
	var calls atomic.Int64
	fs.FailNth(f.op, nth, errDisk)
	fs.SetHook(func(op vfs.Op, name string) error {
		if op == f.op || op == vfs.OpWrite && f.op == vfs.OpShortWrite {
			if calls.Add(1) == int64(nth) {
				f.file.Store(&name)
			}
		}
		return nil
	})
}

// run loads a broker, kills it, and lets it start, work and stop on a disk that
// fails once. It reports whether the call that should fail was made.
func (f *failure) run(nth int) (reached bool, err error) {
	f.storage.Group = raftlog.Config{SegmentBytes: 2 << 10, CheckpointInterval: time.Second, UnsealedMax: 16 << 10, OpenFiles: 8}
	n, err := start(f.fs, f.storage, f.cfg)
	if err != nil {
		return false, err
	}
	if err := errors.Join(f.wide(n), f.load(n)); err != nil {
		return false, err
	}
	left := n.fs.Kill() // many logs are not synced
	if f.rng.IntN(2) == 0 || f.op == vfs.OpTruncate {
		if err := tear(left); err != nil {
			return false, err
		}
	}
	n.gone()
	f.arm(left, nth)
	told, err := f.suffer(left)
	if err != nil {
		return false, err
	}
	reached = left.Counts().Failed > 0
	if err := f.checkTold(reached, told); err != nil {
		return reached, err
	}
	if n, err = start(left.Crash(f.rng.Float64()), f.storage, f.cfg); err != nil {
		return reached, err
	}
	return reached, errors.Join(f.verify(n), n.stop())
}

// tear leaves half a record at the end of the system log.
func tear(fs *vfs.Mem) error {
	dir := path.Join(dataDir, "log", raftlog.LogDirName(0))
	infos, err := fs.List(dir)
	if err != nil {
		return err
	}
	newest := slices.MaxFunc(infos, func(a, b vfs.Info) int {
		return cmp.Compare(segmentOf(a), segmentOf(b))
	})
	file, err := fs.OpenReadWrite(path.Join(dir, newest.Name))
	if err != nil {
		return err
	}
	_, err = file.WriteAt([]byte{200, 0, 0, 0, 1, 2, 3}, newest.Size)
	return errors.Join(err, file.Close())
}

// segmentOf is the name of a segment, "" for other files.
func segmentOf(i vfs.Info) string {
	if path.Ext(i.Name) != ".seg" {
		return ""
	}
	return i.Name
}

// wideQueues are more queues than logs that are synced one by one.
const wideQueues = 10

// wide pushes one message to each of many queues.
func (f *failure) wide(n *node) error {
	c := f.clients[0]
	c.api, c.dead = n.Client, n.dead
	u := &history.Unit{ID: c.name()}
	var pushes []*history.Push
	var items []api.Item
	for q := range wideQueues {
		queue := "wide" + strconv.Itoa(q)
		pushes = append(pushes, &history.Push{ID: u.ID, Stream: history.StreamName(queue, "p"), Offset: -1, Unit: u})
		items = append(items, api.Item{Queue: queue, Partition: "p", TransactionID: u.ID, Payload: map[string]any{"id": u.ID}})
	}
	_, err := n.Transact(n.dead, api.Transaction{Operations: []api.Operation{{Type: "push", Items: items}}})
	err = c.settle(err, func(fate history.Fate) error {
		u.Fate = fate
		for _, p := range pushes {
			p.Fate = fate
		}
		f.b.messages.Add(pushes...)
		return nil
	})
	if errors.Is(err, errGone) {
		return nil
	}
	return err
}

// verify reads the wide queues, too.
func (f *failure) verify(n *node) error {
	for q := range wideQueues {
		if err := f.b.readQueue(n.dead, n, "wide"+strconv.Itoa(q)); err != nil {
			return err
		}
	}
	if err := f.b.verify(n.dead, n, f.clients, true); err != nil {
		return err
	}
	return f.b.drain(n.dead, n)
}

// suffer runs a life on the failing disk, and returns what ended it.
func (f *failure) suffer(fs *vfs.Mem) (told, err error) {
	n, told := start(fs, f.storage, f.cfg)
	if told != nil {
		return told, nil
	}
	for range 3 {
		if err := errors.Join(f.wide(n), f.load(n)); err != nil {
			return nil, err
		}
		time.Sleep(2 * time.Second) // what is done later is done: a pad, a seal, a checkpoint
	}
	if cause := context.Cause(n.dead); cause != nil {
		defer n.gone()
		return cause, f.probe(n)
	}
	told = n.stop()
	if cause := context.Cause(n.dead); cause != nil {
		told = cause
	}
	n.die(errors.New("stopped"))
	return told, nil
}

// probe sends calls to a broker that should have ended: no write is answered.
func (f *failure) probe(n *node) error {
	ctx := context.Background()
	if _, err := n.Push(ctx, api.Item{Queue: "q0", Payload: 1}); err == nil {
		return errors.New("a push was answered after the failure")
	}
	if _, err := n.KV(ctx, api.KVOp{Op: "put", NS: "n", Key: "k", Value: 1, TTLSeconds: 10}); err == nil {
		return errors.New("a key was written after the failure")
	}
	return nil
}

// checkTold judges what the operator hears.
func (f *failure) checkTold(reached bool, told error) error {
	switch {
	case reached && told == nil:
		if f.op == vfs.OpClose || f.op == vfs.OpRemove {
			return nil // of a file that was only read, or of one that is garbage
		}
		return fmt.Errorf("the failure at %s went unnoticed", *f.file.Load())
	case !reached && told != nil:
		return fmt.Errorf("it ended without a failure: %w", told)
	case told == nil:
		return nil
	}
	text := told.Error()
	if strings.Contains(text, "\n") || !strings.Contains(text, errDisk.Error()) || !strings.Contains(text, *f.file.Load()) {
		return fmt.Errorf("it failed at %s and says %q", *f.file.Load(), text)
	}
	return nil
}
