package raftlog

import (
	"errors"
	"io"
	"log/slog"
	"sync"

	pb "go.etcd.io/raft/v3/raftpb"
)

// EntrySource reads entries of the log one after the other.
type EntrySource interface {
	// Next gives the next entry, or io.EOF behind the last one that was asked for.
	Next() (*pb.Entry, error)
	Close()
}

// aheadBytes is how much is read ahead at once, at least: what raft may have on
// its way to one follower.
const aheadBytes = maxInflightMsgs * maxSizePerMsg

// aheadReader reads entries for followers that lag behind what is in memory,
// off the loop, which reads no file (F18). It goes on where it was for each of
// them: a position in the logs is expensive to find.
type aheadReader struct {
	g  *Group
	mu struct {
		sync.Mutex
		asked []aheadAsk
	}
	wake chan struct{}
	quit chan struct{}
	done chan struct{}

	open []aheadSource // most lately used first
}

type aheadAsk struct{ from, upTo uint64 }

type aheadSource struct {
	src  EntrySource
	next uint64 // index that it gives next
}

func startAhead(g *Group) *aheadReader {
	r := newAhead(g)
	go r.run()
	return r
}

func newAhead(g *Group) *aheadReader {
	return &aheadReader{g: g, wake: make(chan struct{}, 1), quit: make(chan struct{}), done: make(chan struct{})}
}

func (r *aheadReader) ask(from, upTo uint64) {
	r.mu.Lock()
	r.mu.asked = append(r.mu.asked, aheadAsk{from, upTo})
	r.mu.Unlock()
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

func (r *aheadReader) stop() {
	close(r.quit)
	<-r.done
}

func (r *aheadReader) run() {
	defer close(r.done)
	for {
		select {
		case <-r.quit:
			r.close(0)
			return
		case <-r.wake:
		}
		r.work()
	}
}

// work reads what was asked for.
func (r *aheadReader) work() {
	r.mu.Lock()
	asked := r.mu.asked
	r.mu.asked = nil
	r.mu.Unlock()
	for _, a := range asked {
		run, err := r.read(a)
		if err != nil {
			// The follower stays behind until the log can be read, or it gets a
			// snapshot. Damage is met by who reads it for its own sake, too.
			r.g.cfg.Logger.Warn("the log cannot be read for a follower", slog.Uint64("from", a.from), slog.Any("err", err))
		}
		if len(run) > 0 {
			r.g.post(event{ahead: run})
		}
	}
}

func (r *aheadReader) read(a aheadAsk) (run []*pb.Entry, err error) {
	s := r.source(a)
	var size int64
	for size < aheadBytes {
		e, err := s.src.Next()
		if errors.Is(err, io.EOF) {
			r.drop()
			return run, nil
		}
		if err != nil {
			r.drop()
			return run, err
		}
		run = append(run, e)
		size += entrySize(e)
		r.open[0].next = e.GetIndex() + 1
	}
	return run, nil
}

// source finds the source that stands at from, or opens one; it comes first.
func (r *aheadReader) source(a aheadAsk) aheadSource {
	for i, s := range r.open {
		if s.next == a.from {
			copy(r.open[1:i+1], r.open[:i])
			r.open[0] = s
			return s
		}
	}
	r.close(aheadRuns - 1)
	s := aheadSource{src: r.g.boot.Entries(r.g.store, a.from, a.upTo), next: a.from}
	r.open = append([]aheadSource{s}, r.open...)
	return s
}

// drop closes the source used last: it has nothing more.
func (r *aheadReader) drop() {
	r.open[0].src.Close()
	r.open = r.open[1:]
}

// close closes sources until so many are left.
func (r *aheadReader) close(left int) {
	for len(r.open) > left {
		r.open[len(r.open)-1].src.Close()
		r.open = r.open[:len(r.open)-1]
	}
}
