package main

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	mrand "math/rand/v2"
	"path"
	"strings"
	"syscall"

	"queen/internal/vfs"
)

// chaos breaks things: it decides when a process ends, and how, from the
// world's seed.
type chaos struct {
	w      *world
	nextAt int   // commands after which something breaks
	skew   int64 // of the wall clock, microseconds

	armed   *trap
	image   *vfs.Mem // a trap has ended the process: what is left of the disk
	faulted string   // the call that was made to fail in this process
	doubt   bool     // it was a sync: nothing is known of what it covered
}

// trap waits for the n-th call of a kind on files of a kind.
type trap struct {
	left   int
	op     vfs.Op // OpAny: all
	class  string // part of the file's name; empty: all
	effect effect
	keep   float64
}

type effect uint8

const (
	effectKill effect = iota
	effectPowerCut
	effectFault
	effectShort
)

// plan says when the next thing breaks.
func (c *chaos) plan() {
	per := max(c.w.goal.commands/(c.w.goal.disruptions+10), 1)
	c.nextAt = c.w.totals.Commands + 1 + c.w.rng.IntN(2*per)
}

// near reports whether the digest of the state is computed for the next plan,
// which costs more than all the rest of it: when the process is about to end, and
// for some plans while a trap is set, which may take long to spring.
func (c *chaos) near() bool {
	soon := c.faulted != "" || c.w.totals.Commands+digestAhead >= c.nextAt || c.w.load.draining
	return soon || c.armed != nil && c.w.totals.Entries%4 == 0
}

const digestAhead = 8

func (c *chaos) keep() float64 {
	switch c.w.rng.IntN(4) {
	case 0:
		return 0
	case 1:
		return c.w.rng.Float64()
	}
	return 0.5
}

// strike lets something break when it is time. It reports whether it did.
func (c *chaos) strike() bool {
	w := c.w
	if w.totals.Commands < c.nextAt {
		return false
	}
	switch w.rng.IntN(10) {
	case 0:
		w.totals.Kills++
		w.died(w.disk.Kill(), "killed")
		return true
	case 1, 2:
		w.totals.PowerCuts++
		w.died(w.disk.Crash(c.keep()), "power cut")
		return true
	case 3:
		if w.rng.IntN(2) == 0 {
			c.arm(c.someTrap())
		}
		c.plan()
		w.stop()
		return true
	case 4:
		c.jump()
	default:
		c.arm(c.someTrap())
	}
	c.plan()
	return false
}

// jump moves the wall clock.
func (c *chaos) jump() {
	by := choose[int64](c.w.rng, -3_600_000_000, -1_000_000, 1_000_000, 60_000_000, 7_200_000_000)
	c.skew += by
	c.w.note('j', uint64(by), 0)
	c.w.logf("the wall clock jumps by %d s", by/1_000_000)
}

// someTrap draws a trap. Calls of rare kinds are waited for by name: they are
// those in the middle of a checkpoint, a seal, a cut, a roll.
func (c *chaos) someTrap() *trap {
	rng := c.w.rng
	t := &trap{left: 1 + rng.IntN(choose(rng, 3, 30, 300)), effect: choose(rng, effectKill, effectPowerCut, effectPowerCut, effectFault, effectFault, effectShort), keep: c.keep()}
	switch rng.IntN(10) {
	case 0:
		t.class, t.left = ".rows", 1+rng.IntN(20)
	case 1:
		t.class, t.left = choose(rng, ".idx", ".dedup", "l1-"), 1+rng.IntN(10)
	case 2:
		t.op, t.left = vfs.OpSyncDir, 1+rng.IntN(10)
	case 3:
		t.op, t.left = vfs.OpCreate, 1+rng.IntN(10)
	case 4:
		t.op, t.left = choose(rng, vfs.OpRename, vfs.OpRemove, vfs.OpTruncate, vfs.OpSyncAll), 1+rng.IntN(3)
	case 5:
		t.op = vfs.OpSync
	case 6:
		t.op, t.class = vfs.OpWrite, ".seg"
	case 7:
		t.op = choose(rng, vfs.OpOpen, vfs.OpRead, vfs.OpClose, vfs.OpStat, vfs.OpList)
	}
	if t.effect == effectShort {
		t.op = vfs.OpWrite
	}
	return t
}

func (c *chaos) arm(t *trap) {
	c.w.logf("trap: %+v", *t)
	c.w.note('a', uint64(t.left), uint64(t.op))
	c.armed = t
	c.w.disk.SetHook(c.hook)
}

var errInjected = fmt.Errorf("injected: %w", syscall.EIO)

// hook is called before every call of the file system.
func (c *chaos) hook(op vfs.Op, name string) error {
	t := c.armed
	if t == nil || c.image != nil || t.op != vfs.OpAny && t.op != op || t.class != "" && !strings.Contains(path.Base(name), t.class) {
		return nil
	}
	if t.left--; t.left > 0 {
		return nil
	}
	c.armed = nil
	w := c.w
	w.note('x', uint64(op), uint64(t.effect))
	w.logf("trap springs: %s %s, effect %d", op, name, t.effect)
	switch t.effect {
	case effectKill:
		w.totals.Kills++
		c.image = w.disk.Kill()
		return vfs.ErrCrashed
	case effectPowerCut:
		w.totals.PowerCuts++
		c.image = w.disk.Crash(t.keep)
		return vfs.ErrCrashed
	}
	w.totals.Faults++
	c.faulted = op.String() + " " + name
	c.doubt = op == vfs.OpSync || op == vfs.OpSyncDir || op == vfs.OpSyncAll
	c.nextAt = min(c.nextAt, w.totals.Commands+20)
	if t.effect == effectShort {
		w.disk.FailNth(vfs.OpShortWrite, 1, errInjected)
		return nil
	}
	return errInjected
}

// afterFault is the disk after a process has ended because a call failed. After a
// failed sync the machine starts anew, too, unless sameKernel: on a running one
// the next process reads bytes that no sync makes durable any more.
func (w *world) afterFault() *vfs.Mem {
	if w.rng.IntN(3) > 0 && (!w.chaos.doubt || w.goal.sameKernel) {
		return w.disk.Kill()
	}
	return w.disk.Crash(w.chaos.keep())
}

// landed is the end of a process: time passes until the next one starts.
func (c *chaos) landed(image *vfs.Mem, how string) {
	w := c.w
	w.logf("down: %s", how)
	w.note('d', uint64(w.now.Mono), 0)
	w.disk = image
	c.image, c.armed, c.faulted, c.doubt = nil, nil, "", false
	if w.rng.IntN(4) == 0 {
		c.jump()
	}
	w.pass(1 + w.rng.Int64N(choose[int64](w.rng, 1_000_000, 1_000_000_000, 20_000_000_000)))
	c.plan()
}

// beforeBoot may set a trap for the boot.
func (c *chaos) beforeBoot() {
	if c.w.rng.IntN(5) == 0 && !c.w.load.draining {
		t := c.someTrap()
		if t.class == "" && t.op == vfs.OpAny {
			t.left = 1 + c.w.rng.IntN(150)
		}
		c.arm(t)
	}
}

// seedRaft makes raft draw its election timeouts from the seed: it takes them
// from crypto/rand.Reader (F25). Only one seed can run in a process at a time.
func seedRaft(seed uint64) (restore func()) {
	old := rand.Reader
	rand.Reader = &seeded{mrand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8), byte(seed >> 16), byte(seed >> 24), 1})}
	return func() { rand.Reader = old }
}

type seeded struct{ *mrand.ChaCha8 }

var _ io.Reader = (*seeded)(nil)

func isInjected(err error) bool { return errors.Is(err, errInjected) || errors.Is(err, vfs.ErrCrashed) }
