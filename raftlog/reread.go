package raftlog

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"queen/index"
)

// ErrNotAllThere: the log does not give back what was applied. A start says
// where it is damaged.
var ErrNotAllThere = errors.New("the log cannot be read again up to what was applied")

// rereader reads the state into a new machine, beside the loop (F7).
type rereader struct {
	g      *Group
	start  func(job rereadJob)
	closed atomic.Bool
	wg     sync.WaitGroup
}

type rereadJob struct {
	rows *index.RowsSnapshot // nil: there is no checkpoint
	upTo uint64
}

func newRereader(g *Group) *rereader {
	r := &rereader{g: g}
	r.start = func(job rereadJob) { r.wg.Go(func() { r.run(job) }) }
	return r
}

// ask begins: the rows writer makes the checkpoint readable that is the newest
// when it comes to it. It is called from the loop.
func (r *rereader) ask(upTo uint64) {
	r.g.rows.in <- rowsRequest{snapshot: func(rows *index.RowsSnapshot) { r.start(rereadJob{rows: rows, upTo: upTo}) }}
}

// run reads, and posts the machine.
func (r *rereader) run(job rereadJob) {
	fresh, adopt := r.g.cfg.Renew()
	err := r.g.boot.Reread(r.g.store, job.rows, job.upTo, fresh, r.closed.Load)
	if job.rows != nil {
		err = errors.Join(err, job.rows.Close())
	}
	switch {
	case r.closed.Load():
	case err != nil:
		r.g.fatal(fmt.Errorf("read the state again up to entry %d: %w", job.upTo, err))
	default:
		r.g.post(event{fresh: fresh, adopt: adopt})
	}
}

func (r *rereader) stop() {
	r.closed.Store(true)
	r.wg.Wait()
}
