package raftlog

import "sync"

// preparerCount is how many calls are prepared at once: each waits for reads
// of the disk.
const preparerCount = 8

// preparers run Config.Prepare off the loop.
type preparers struct {
	fn func(any)
	mu struct {
		sync.Mutex
		queue  []any
		closed bool
	}
	more *sync.Cond
	wg   sync.WaitGroup
}

func startPreparers(fn func(any)) *preparers {
	p := &preparers{fn: fn}
	p.more = sync.NewCond(&p.mu)
	for range preparerCount {
		p.wg.Go(p.run)
	}
	return p
}

func (p *preparers) run() {
	for {
		p.mu.Lock()
		for len(p.mu.queue) == 0 && !p.mu.closed {
			p.more.Wait()
		}
		if p.mu.closed {
			p.mu.Unlock()
			return
		}
		call := p.mu.queue[0]
		p.mu.queue = p.mu.queue[1:]
		p.mu.Unlock()
		p.fn(call)
	}
}

func (p *preparers) submit(calls []any) {
	p.mu.Lock()
	p.mu.queue = append(p.mu.queue, calls...)
	p.mu.Unlock()
	if len(calls) == 1 {
		p.more.Signal()
	} else {
		p.more.Broadcast()
	}
}

// stop drops what is still queued: its callers hear that the group stopped.
func (p *preparers) stop() {
	p.mu.Lock()
	p.mu.closed = true
	p.mu.Unlock()
	p.more.Broadcast()
	p.wg.Wait()
}
