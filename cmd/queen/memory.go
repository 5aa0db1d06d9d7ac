package main

import (
	"context"
	"runtime/debug"
	"strings"
	"time"

	"queen/server"
)

// tuneMemory lets the heap grow by half before it is collected, instead of
// doubling: most of it is state that stays, and collecting it costs a percent or
// two. GOGC, when set, decides.
func tuneMemory(environ []string) {
	for _, e := range environ {
		if strings.HasPrefix(e, "GOGC=") {
			return
		}
	}
	debug.SetGCPercent(50)
}

// idleTrim decides when memory that a burst has left goes back to the system:
// once after each burst, when the log has not grown for a while.
type idleTrim struct {
	index   uint64
	quiet   int
	trimmed bool
}

// quietLooks is how many looks in a row must find the same index.
const quietLooks = 2

func (t *idleTrim) look(index uint64) (trim bool) {
	if index != t.index {
		*t = idleTrim{index: index}
		return false
	}
	t.quiet++
	trim = t.quiet >= quietLooks && !t.trimmed
	t.trimmed = t.trimmed || trim
	return trim
}

// trimWhenIdle runs until ctx ends.
func trimWhenIdle(ctx context.Context, b *server.Broker) {
	tick := time.NewTicker(10 * time.Second)
	defer tick.Stop()
	var t idleTrim
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			if t.look(b.Status().Log) {
				debug.FreeOSMemory()
			}
		}
	}
}
