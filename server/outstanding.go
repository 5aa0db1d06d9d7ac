package server

import "sync"

// outstanding counts what goes on. Unlike a sync.WaitGroup it may grow while it
// is waited for: handlers that a stop has cut off still end.
type outstanding struct {
	mu struct {
		sync.Mutex
		n    int
		idle chan struct{} // closed once n is 0; nil: nobody waits
	}
}

func (o *outstanding) add() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.mu.n++
}

func (o *outstanding) done() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.mu.n--
	if o.mu.n == 0 && o.mu.idle != nil {
		close(o.mu.idle)
		o.mu.idle = nil
	}
}

// idle returns a channel that is closed once nothing goes on.
func (o *outstanding) idle() <-chan struct{} {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.mu.n == 0 {
		c := make(chan struct{})
		close(c)
		return c
	}
	if o.mu.idle == nil {
		o.mu.idle = make(chan struct{})
	}
	return o.mu.idle
}
