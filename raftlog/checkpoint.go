package raftlog

import (
	"log/slog"
	"time"

	"queen/internal/plant"
)

// checkpoint is the progress of the rows' checkpoint (architecture, section 6;
// F5). It is taken in slices between turns while the loop goes on:
//
//	idle      nothing runs
//	emitting  rows go to the rows writer, a slice a turn. from is what was
//	          applied when it began: the state held at least that
//	waiting   all rows are out; they hold effects up to entry (to, toTerm). No
//	          footer before raft has handed that entry out: then it is
//	          committed, and durable here
//	finishing the rows writer syncs rows and footer
//
// A node that stops leading gives the capture up: its rows may hold effects
// that are in no log.
type checkpoint struct {
	phase   ckptPhase
	from    uint64 // of the newest durable footer
	bytes   int64  // log bytes since the last one began
	last    int64  // monotonic time when the last one began
	begun   int64
	led     bool // it captures a state that runs ahead of commit
	rows    int
	out     int64 // bytes of the rows
	backlog int   // bytes handed to the rows writer and not yet written
	next    Footer
	keep    uint64 // first index of the log once it is durable
}

type ckptPhase int

const (
	ckptIdle ckptPhase = iota
	ckptEmitting
	ckptWaiting
	ckptFinishing
)

// Footer says which entries the rows of a checkpoint hold: everything through
// From, and of From+1 through To some.
type Footer struct {
	From, To         uint64
	FromTerm, ToTerm uint64
	Time             int64
}

// rowsPort writes the rows of a checkpoint in the background. What is handed
// over is written in order; ended is reported back for finish only.
type rowsPort interface {
	needsCompaction() bool
	begin(full bool)
	put(rows *rowBatch)
	finish(f Footer)
	abandon()
}

const (
	sliceRowsIdle = 512 // rows captured in a turn that did nothing else
	sliceRowsBusy = 64  // beside planning
	maxRowBacklog = 4 << 20
	batchOverhead = 1 << 10 // what a slice counts for in the backlog beside its rows
)

// checkpointStep does one slice of work on the checkpoint. It reports whether
// the next one can follow at once.
func (c *core) checkpointStep(busy bool) (again bool) {
	k := &c.ckpt
	if c.dead != nil || c.reread != nil {
		return false
	}
	if k.phase == ckptIdle && c.checkpointDue() {
		c.beginCheckpoint()
	}
	if k.phase == ckptEmitting {
		if k.backlog > maxRowBacklog {
			return false // the rows writer wakes the loop
		}
		if !c.captureSlice(busy) {
			return true
		}
	}
	if k.phase == ckptWaiting && (c.applied >= k.next.To || plant.Is(plant.FooterTooEarly)) {
		if c.log.term(k.next.To) != k.next.ToTerm {
			c.dropCheckpoint("its last entry was overruled")
			return false
		}
		if c.confSaved < c.confIndex {
			return false // a replay after this footer must find the membership saved
		}
		k.phase = ckptFinishing
		k.keep = c.keepFrom(k.next.From)
		if c.ports.keep != nil {
			c.ports.keep(KeptLog{First: k.keep, From: k.next.From, Runs: c.log.runsFrom(k.keep, k.next.From)})
		}
		c.ports.rows.finish(k.next)
	}
	return false
}

func (c *core) checkpointDue() bool {
	k := &c.ckpt
	if c.stopping {
		return c.idle() && k.bytes > 0
	}
	if k.bytes == 0 {
		return false
	}
	return k.bytes >= c.cfg.CheckpointBytes || c.now.Mono-k.last >= int64(c.cfg.CheckpointInterval)
}

func (c *core) beginCheckpoint() {
	k := &c.ckpt
	full := c.ports.rows.needsCompaction()
	k.phase, k.led, k.bytes, k.last, k.begun = ckptEmitting, c.leading || len(c.inflight) > 0, 0, c.now.Mono, c.now.Mono
	k.rows, k.out = 0, 0
	k.next = Footer{From: c.applied, FromTerm: c.appliedTerm}
	c.ports.rows.begin(full)
	c.m.BeginCapture(full)
}

// captureSlice emits some rows and reports whether that were the last ones.
func (c *core) captureSlice(busy bool) bool {
	k := &c.ckpt
	n := sliceRowsIdle
	if busy {
		n = sliceRowsBusy
	}
	var b rowBatch
	done := c.m.CaptureSome(n, b.put, b.deleteRange)
	k.rows += b.len()
	k.out += int64(len(b.arena))
	if b.len() > 0 {
		k.backlog += b.bytes()
		c.ports.rows.put(&b)
	}
	if !done {
		return false
	}
	// Every plan of this turn has its index: ready ran after each of them.
	k.next.To, k.next.ToTerm, k.next.Time = c.applied, c.appliedTerm, c.m.Time()
	if n := len(c.inflight); n > 0 {
		k.next.To, k.next.ToTerm = c.inflight[n-1].index, c.inflight[n-1].term
	}
	k.phase = ckptWaiting
	return true
}

// rowsWritten takes back part of the backlog.
func (c *core) rowsWritten(bytes int) { c.ckpt.backlog -= bytes }

// checkpointDone: rows and footer are durable. raft's first index follows
// the footer's from.
func (c *core) checkpointDone(f Footer) {
	k := &c.ckpt
	if k.phase != ckptFinishing || f != k.next {
		return // given up meanwhile
	}
	k.phase, k.from = ckptIdle, f.From
	c.m.EndCapture(true)
	c.log.compact(k.keep - 1)
	took := time.Duration(c.now.Mono - k.begun)
	if c.cfg.Observer.Checkpoint != nil {
		c.cfg.Observer.Checkpoint(took, k.rows, k.out)
	}
	c.cfg.Logger.Info("checkpoint", slog.Uint64("from", f.From), slog.Uint64("to", f.To), slog.Int("rows", k.rows), slog.Int64("bytes", k.out), slog.Duration("took", took))
}

// dropCheckpoint gives a capture up that is not being finished yet. What is
// being finished holds only what raft handed out, so it may stand.
func (c *core) dropCheckpoint(why string) {
	k := &c.ckpt
	if k.phase != ckptEmitting && k.phase != ckptWaiting || !k.led {
		return
	}
	k.phase = ckptIdle
	k.bytes++ // so that there is something to do again
	c.ports.rows.abandon()
	c.m.EndCapture(false)
	c.cfg.Logger.Info("checkpoint given up", slog.String("why", why))
}

// rowBatch is a slice of captured rows in one buffer.
type rowBatch struct {
	arena []byte
	ops   []rowOp
}

// rowOp is one row of a batch; a and b are lengths within the arena.
type rowOp struct {
	a, b    int
	deleted bool // a key without a value
	ranged  bool // rows with lo <= key < hi are gone
}

func (b *rowBatch) put(key, value []byte) {
	b.arena = append(append(b.arena, key...), value...)
	b.ops = append(b.ops, rowOp{a: len(key), b: len(value), deleted: value == nil})
}

func (b *rowBatch) deleteRange(lo, hi []byte) {
	b.arena = append(append(b.arena, lo...), hi...)
	b.ops = append(b.ops, rowOp{a: len(lo), b: len(hi), ranged: true})
}

func (b *rowBatch) len() int   { return len(b.ops) }
func (b *rowBatch) bytes() int { return batchOverhead + len(b.arena) }

// each calls fn for the rows in the order in which they were captured.
func (b *rowBatch) each(fn func(op rowOp, x, y []byte) error) error {
	rest := b.arena
	for _, op := range b.ops {
		if err := fn(op, rest[:op.a:op.a], rest[op.a:op.a+op.b:op.a+op.b]); err != nil {
			return err
		}
		rest = rest[op.a+op.b:]
	}
	return nil
}
