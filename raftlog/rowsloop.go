package raftlog

import (
	"fmt"
	"sync/atomic"

	"queen/index"
)

// rowsLoop is the goroutine that writes checkpointed rows. The core hands it
// slices in order and hears of the footer; an error of the disk is fatal.
type rowsLoop struct {
	rows  *index.Rows
	store *Store
	extra func() []byte // what the footer says about the logs
	post  func(event)
	fatal func(error)
	in    chan rowsRequest
	done  chan struct{}
	half  atomic.Bool // half of the rows file is dead
}

// rowsRequest is one step, or a word about the rows; exactly one field is set.
type rowsRequest struct {
	begin   *bool // full
	put     *rowBatch
	finish  *Footer
	abandon bool
	// snapshot is given the newest checkpoint, to read; nil: there is none.
	snapshot func(*index.RowsSnapshot)
	// open takes the newest checkpoint for the scrub, which can do without.
	open    func(*index.RowsSnapshot, error)
	damaged string // the file of a checkpoint that cannot be read any more
}

// rowsQueue is how many slices may wait: more than the core's backlog limit
// lets through.
const rowsQueue = maxRowBacklog/batchOverhead + 16

func startRows(rows *index.Rows, store *Store, extra func() []byte, post func(event), fatal func(error)) *rowsLoop {
	l := newRows(rows, store, extra, post, fatal)
	go l.run()
	return l
}

func newRows(rows *index.Rows, store *Store, extra func() []byte, post func(event), fatal func(error)) *rowsLoop {
	l := &rowsLoop{rows: rows, store: store, extra: extra, post: post, fatal: fatal, in: make(chan rowsRequest, rowsQueue), done: make(chan struct{})}
	l.half.Store(rows.NeedsCompaction())
	return l
}

func (l *rowsLoop) stop() {
	close(l.in)
	<-l.done
}

func (l *rowsLoop) run() {
	defer close(l.done)
	for r := range l.in {
		if err := l.do(r); err != nil {
			l.fatal(fmt.Errorf("the checkpoint cannot be written: %w", err))
			for range l.in { // the loop must not block on a full queue
			}
			return
		}
	}
}

func (l *rowsLoop) do(r rowsRequest) error {
	switch {
	case r.begin != nil:
		return l.rows.Begin(*r.begin)
	case r.put != nil:
		err := r.put.each(func(op rowOp, x, y []byte) error {
			switch {
			case op.ranged:
				return l.rows.DeleteRange(x, y)
			case op.deleted:
				return l.rows.Delete(x)
			}
			return l.rows.Put(x, y)
		})
		l.post(event{rowBytes: r.put.bytes()})
		return err
	case r.snapshot != nil:
		rows, err := l.rows.Snapshot()
		if err == nil {
			r.snapshot(rows)
		}
		return err
	case r.finish != nil:
		f := r.finish
		err := l.rows.Finish(index.Footer{From: f.From, To: f.To, FromTerm: f.FromTerm, ToTerm: f.ToTerm, Time: f.Time, Extra: l.extra()})
		if err == nil {
			l.half.Store(l.rows.NeedsCompaction())
			l.post(event{footer: f})
			err = l.store.checkpointed(l.rows)
		}
		return err
	case r.open != nil:
		r.open(l.rows.Snapshot())
		return nil
	case r.damaged != "":
		l.rows.Damaged(r.damaged)
		l.half.Store(l.rows.NeedsCompaction())
		l.post(event{checkpoint: true})
		return nil
	default:
		return l.rows.Abandon()
	}
}

func (l *rowsLoop) needsCompaction() bool { return l.half.Load() }
func (l *rowsLoop) begin(full bool)       { l.in <- rowsRequest{begin: &full} }
func (l *rowsLoop) put(b *rowBatch)       { l.in <- rowsRequest{put: b} }
func (l *rowsLoop) finish(f Footer)       { l.in <- rowsRequest{finish: &f} }
func (l *rowsLoop) abandon()              { l.in <- rowsRequest{abandon: true} }

// read has the newest checkpoint opened; nil: there is none. quit ends the wait
// for it, which is errClosing.
func (l *rowsLoop) read(quit <-chan struct{}) (*index.RowsSnapshot, error) {
	type opened struct {
		snap *index.RowsSnapshot
		err  error
	}
	got := make(chan opened, 1)
	l.in <- rowsRequest{open: func(snap *index.RowsSnapshot, err error) { got <- opened{snap, err} }}
	select {
	case o := <-got:
		return o.snap, o.err
	case <-quit:
	}
	go func() { // the rows writer may still come to it
		select {
		case o := <-got:
			if o.snap != nil {
				_ = o.snap.Close() // only read
			}
		case <-l.done:
		}
	}()
	return nil, errClosing
}

// replace asks for a full checkpoint in the place of one that cannot be read.
func (l *rowsLoop) replace(file string) { l.in <- rowsRequest{damaged: file} }
