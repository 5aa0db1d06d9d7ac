package powercut

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"queen/fsm"
	"queen/internal/vfs"
	"queen/raftlog"
	"queen/server"
)

var (
	flagCuts = flag.Int("cuts", 0, "power cuts; 0: a few seconds' worth")
	flagSeed = flag.Uint64("seed", 0, "seed of the first epoch; 0: 1")
)

// rounds is how many cuts an epoch has: lives of one data directory.
const rounds = 5

// TestPowerCuts: the whole broker under random calls, with the power cut at
// random calls of the file system. Everything answered is there, nothing that
// was refused is, and what has no answer is there wholly or not at all.
func TestPowerCuts(t *testing.T) {
	cuts, seed := *flagCuts, *flagSeed
	if cuts == 0 {
		if cuts = 150; testing.Short() {
			cuts = 30
		}
	}
	if seed == 0 {
		seed = 1
	}
	var total tally
	begun := time.Now()
	for ; total.cuts < cuts && !t.Failed(); seed++ {
		bubble(t, func(t *testing.T) {
			e := newEpoch(t, seed)
			if err := e.run(); err != nil {
				t.Errorf("%v\nagain: go test ./tools/powercut -run TestPowerCuts -seed=%d -cuts=1", err, seed)
			}
			total.add(&e.tally)
		})
	}
	t.Logf("%v in %v; the last seed was %d", &total, time.Since(begun).Round(time.Millisecond), seed-1)
	if total.cuts >= 100 && (total.torn == 0 || total.boots == 0 || total.unknown == 0) {
		t.Errorf("the cuts missed what they are for: %v", &total)
	}
}

// tally counts what an epoch met.
type tally struct {
	cuts, stops int
	boots       int // cuts during a start
	torn        int // starts that had something to cut
	calls       int
	unknown     int // clients that a cut left without an answer
}

func (t *tally) add(o *tally) {
	t.cuts += o.cuts
	t.stops += o.stops
	t.boots += o.boots
	t.torn += o.torn
	t.calls += o.calls
	t.unknown += o.unknown
}

func (t *tally) String() string {
	return fmt.Sprintf("%d power cuts, %d of them during a start, %d clean stops, %d starts had something to cut, %d calls, %d cut off",
		t.cuts, t.boots, t.stops, t.torn, t.calls, t.unknown)
}

// epoch is the life of one data directory.
type epoch struct {
	t       *testing.T
	rng     *rand.Rand
	b       *books
	clients []*client
	fs      *vfs.Mem
	storage server.StorageConfig
	cfg     server.Config
	tally
}

func newEpoch(t *testing.T, seed uint64) *epoch {
	e := &epoch{t: t, rng: rand.New(rand.NewPCG(seed, 0)), b: newBooks(), fs: vfs.NewMem(seed)}
	for i := range clients {
		e.clients = append(e.clients, newClient(i, seed, e.b))
	}
	// Small files and early checkpoints, so that each kind of file is often young.
	rng := e.rng
	e.storage = server.StorageConfig{
		Logger: testLog(t),
		Group: raftlog.Config{
			SegmentBytes: pick(rng, int64(2<<10), 8<<10, 64<<20), Shards: pick(rng, 0, 0, 2), UnsealedMax: pick(rng, int64(8<<10), 1<<30),
			CheckpointBytes: pick(rng, int64(4<<10), 32<<10, 128<<20), OpenFiles: pick(rng, 8, 512),
		},
		Planner: fsm.Config{DedupBytes: pick(rng, int64(4<<10), 0)},
	}
	return e
}

func (e *epoch) run() error {
	n, err := start(e.fs, e.storage, e.cfg)
	if err != nil {
		return err
	}
	for r := range rounds {
		quiet := e.rng.IntN(2) == 0
		if n, err = e.round(n); err != nil {
			return fmt.Errorf("round %d: %w", r, err)
		}
		if err := e.b.verify(n.dead, n, e.clients, quiet); err != nil {
			n.gone()
			return fmt.Errorf("round %d: %w", r, err)
		}
	}
	err = e.b.drain(n.dead, n)
	return errors.Join(err, n.stop())
}

// round loads the broker, ends it and starts it again.
func (e *epoch) round(n *node) (*node, error) {
	p := &power{keep: float64(e.rng.IntN(5)) / 4}
	p.watch(n.fs)
	p.plan(1+e.rng.IntN(1+e.rng.IntN(300)), p.keep)
	err := e.load(n)
	var left *vfs.Mem
	if e.rng.IntN(8) == 0 && n.dead.Err() == nil {
		err = errors.Join(err, e.stop(n, p))
		left = n.fs.Kill()
		if p.left != nil {
			left = p.cut(n.fs)
		}
	} else {
		left = p.cut(n.fs)
		n.gone()
	}
	e.cuts++
	if err != nil {
		return nil, err
	}
	return e.restart(left)
}

// stop stops in order, and the power may go meanwhile.
func (e *epoch) stop(n *node, p *power) error {
	err := n.stop()
	n.die(errors.New("stopped"))
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.left != nil {
		return nil
	}
	e.stops++
	return err
}

// load runs the clients until they are done or the broker is gone.
func (e *epoch) load(n *node) error {
	var wg sync.WaitGroup
	errs := make([]error, len(e.clients))
	for i, c := range e.clients {
		c.api, c.dead = n.Client, n.dead
		before := c.sent
		calls := 1 + e.rng.IntN(12)
		wg.Go(func() {
			errs[i] = c.run(calls)
		})
		defer func() { e.calls += c.sent - before }()
	}
	wg.Wait()
	if n.dead.Err() != nil {
		e.unknown++
	}
	return errors.Join(errs...)
}

// restart starts on what a cut left; now and then the power goes again
// meanwhile.
func (e *epoch) restart(left *vfs.Mem) (*node, error) {
	p := &power{}
	for e.rng.IntN(4) == 0 {
		p.watch(left)
		p.plan(1+e.rng.IntN(12), float64(e.rng.IntN(5))/4)
		n, err := start(left, e.storage, e.cfg)
		if err != nil && !errors.Is(err, vfs.ErrCrashed) {
			return nil, err
		}
		cutHere := p.cut(left)
		if n != nil {
			n.gone()
		}
		left = cutHere
		e.boots++
		e.cuts++
	}
	n, err := start(left, e.storage, e.cfg)
	if err != nil {
		return nil, err
	}
	if cause := context.Cause(n.dead); cause != nil {
		n.gone()
		return nil, fmt.Errorf("the start failed: %w", cause)
	}
	if n.eng.Report().Cut != 0 {
		e.torn++
	}
	return n, nil
}
