package powercut

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"testing"
	"time"

	"queen/internal/vfs"
	"queen/raftlog"
	"queen/tools/internal/api"
)

const (
	volume  = 4 << 20
	reserve = 512 << 10
)

// fullEpoch is an epoch on a small volume with a reserve.
func fullEpoch(t *testing.T, seed uint64) *epoch {
	e := newEpoch(t, seed)
	e.storage.ReserveBytes = reserve
	e.storage.Group = raftlog.Config{SegmentBytes: 64 << 10}
	e.fs.SetCapacity(volume)
	return e
}

// used is how much of a volume is taken.
func used(fs *vfs.Mem) int64 {
	u, err := fs.Usage("")
	if err != nil {
		panic(err) // the root is there
	}
	return int64(u.Total - u.Free)
}

// foreign fills a volume with somebody else's file, all but some bytes.
func foreign(fs *vfs.Mem, left int64) error {
	f, err := fs.Create("foreign")
	if err != nil {
		return err
	}
	_, err = f.WriteAt(make([]byte, volume-used(fs)-left), 0)
	return errors.Join(err, f.Sync(), f.Close())
}

// TestB64FullVolume: writes that grow are refused before the volume is full;
// when somebody else fills it, acks and pops go on in the reserve, and growing
// writes come back once there is room.
func TestB64FullVolume(t *testing.T) {
	bubble(t, func(t *testing.T) {
		e := fullEpoch(t, 1)
		n, err := e.startWatched(e.fs)
		if err != nil {
			t.Fatal(err)
		}
		if err := e.untilFull(n); err != nil {
			t.Fatal(err)
		}
		if u := used(e.fs); u < volume*80/100 || u > volume*95/100 {
			t.Errorf("refused at %d of %d bytes", u, volume)
		}
		if err := foreign(e.fs, reserve/8); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second) // the next measurement
		if _, err := e.fs.Stat("data/RESERVE"); err == nil {
			t.Error("the reserve was not released")
		}
		if err := e.b.verify(n.dead, n, e.clients, false); err != nil {
			t.Error(err)
		}
		if err := e.b.drain(n.dead, n); err != nil {
			t.Error(err)
		}
		if err := e.fs.Remove("foreign"); err != nil {
			t.Fatal(err)
		}
		e.fs.SetCapacity(2 * volume)
		time.Sleep(3 * time.Second)
		if err := e.clients[0].push(); err != nil || n.dead.Err() != nil {
			t.Errorf("after room was made: %v, %v", err, context.Cause(n.dead))
		}
		if info, err := e.fs.Stat("data/RESERVE"); err != nil || info.Size != reserve {
			t.Errorf("the reserve was not made again: %+v %v", info, err)
		}
		if err := e.b.verify(n.dead, n, e.clients, true); err != nil {
			t.Error(err)
		}
		if err := n.stop(); err != nil {
			t.Error(err)
		}
	})
}

// startWatched starts a broker that measures its volume.
func (e *epoch) startWatched(fs *vfs.Mem) (*node, error) {
	cfg := e.cfg
	cfg.Usage = func() (vfs.Usage, error) { return fs.Usage("") }
	n, err := start(fs, e.storage, cfg)
	if err == nil {
		for _, c := range e.clients {
			c.api, c.dead = n.Client, n.dead
		}
		time.Sleep(1500 * time.Millisecond) // the reserve is made
	}
	return n, err
}

// untilFull pushes until that is refused.
func (e *epoch) untilFull(n *node) error {
	c := e.clients[0]
	for range 10_000 {
		if err := c.push(); err != nil {
			return err
		}
		big := api.Item{Queue: "filler", Payload: noise(c.rng.Uint64(), 20<<10)}
		_, err := n.Push(n.dead, big)
		var s *api.StatusError
		if errors.As(err, &s) && s.Status == http.StatusInsufficientStorage {
			return nil
		}
		if err != nil {
			return err
		}
		time.Sleep(100 * time.Millisecond)
	}
	return errors.New("a small volume took everything")
}

// noise does not compress.
func noise(seed uint64, n int) string {
	b := make([]byte, n)
	for i := range b {
		seed ^= seed << 13
		seed ^= seed >> 7
		seed ^= seed << 17
		b[i] = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ+-"[seed%64]
	}
	return string(b)
}

// TestB64OutOfSpace: space runs out in the middle of whatever is written. The
// broker ends; it starts again on the full volume, everything answered is there,
// and the groups can read and ack all of it.
func TestB64OutOfSpace(t *testing.T) {
	ended, places := 0, 30
	if *flagAll {
		places = 1000
	}
	for seed := range uint64(places) {
		bubble(t, func(t *testing.T) {
			died, err := outOfSpace(t, seed)
			if err != nil {
				t.Errorf("seed %d: %v", seed, err)
			}
			if died {
				ended++
			}
		})
	}
	t.Logf("%d of %d brokers ended", ended, places)
	if ended < places/2 {
		t.Errorf("only %d of %d brokers met the end of their volume", ended, places)
	}
}

func outOfSpace(t *testing.T, seed uint64) (died bool, err error) {
	e := fullEpoch(t, seed)
	n, err := e.startWatched(e.fs)
	if err != nil {
		return false, err
	}
	if err := e.load(n); err != nil {
		return false, err
	}
	if err := n.stop(); err != nil {
		return false, err
	}
	// This life does not look at its volume, as if it filled up between two looks.
	fs := n.fs.Kill()
	if n, err = start(fs, e.storage, e.cfg); err != nil {
		return false, err
	}
	fs.SetCapacity(used(fs) + e.rng.Int64N(1+e.rng.Int64N(20_000)))
	if err := errors.Join(e.load(n), e.load(n)); err != nil {
		return false, err
	}
	died = n.dead.Err() != nil
	left := fs.Crash(e.rng.Float64())
	n.gone()
	left.SetCapacity(max(1, used(left)-1)) // nothing at all is free
	if n, err = e.startWatched(left); err != nil {
		return died, err
	}
	if err := context.Cause(n.dead); err != nil {
		return died, fmt.Errorf("it ended again: %w", err)
	}
	var s *api.StatusError
	if _, err := n.Push(n.dead, api.Item{Queue: "q0", Payload: 1}); !errors.As(err, &s) || s.Status != http.StatusInsufficientStorage {
		err = fmt.Errorf("a push on a full volume: %v", err)
		return died, errors.Join(err, n.stop())
	}
	if err = e.b.verify(n.dead, n, e.clients, true); err == nil {
		err = e.b.drain(n.dead, n)
	}
	return died, errors.Join(err, n.stop())
}
