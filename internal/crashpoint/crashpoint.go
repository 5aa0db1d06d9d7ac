// Package crashpoint ends the process at a named place in the code, so that a test can show what a restart makes of it.
// A point that is not armed costs one atomic load. One point at a time can be armed, by Arm, for the life of the process.
package crashpoint

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
)

type armed struct {
	name string
	left atomic.Int64 // hits until the process ends, this one included
}

var current atomic.Pointer[armed]

// kill ends the process as kill -9 would: no deferred call, no flush, no signal handler runs. Tests of this package replace it.
var kill = func() {
	_ = syscall.Kill(syscall.Getpid(), syscall.SIGKILL)
	select {} // the signal is on its way: nothing after the point may run
}

// Hit says that the code has come to the point of that name, which is one of Names.
func Hit(name string) {
	if a := current.Load(); a != nil && a.name == name && a.left.Add(-1) == 0 {
		kill()
	}
}

// Arm makes the process kill itself at a point: "name" at the first hit, "name:n" at the n-th, n from 1. A name that is
// not in Names is an error, so that a point that no longer exists is noticed; so is a second call.
func Arm(point string) error {
	name, n, err := parse(point)
	if err != nil {
		return err
	}
	a := &armed{name: name}
	a.left.Store(n)
	if !current.CompareAndSwap(nil, a) {
		return fmt.Errorf("crash point %q: the point %q is armed already", point, current.Load().name)
	}
	return nil
}

// Check returns the error that Arm would return for a point that it cannot parse.
func Check(point string) error {
	_, _, err := parse(point)
	return err
}

func parse(point string) (name string, n int64, err error) {
	name, count, counted := strings.Cut(point, ":")
	if !slices.Contains(names, name) {
		return "", 0, fmt.Errorf("crash point %q is unknown; the points of this build are %s", name, strings.Join(names, ", "))
	}
	if !counted {
		return name, 1, nil
	}
	if n, err = strconv.ParseInt(count, 10, 64); err != nil || n < 1 {
		return "", 0, fmt.Errorf("crash point %q: %q is not a number of hits, from 1", point, count)
	}
	return name, n, nil
}

// Names returns the name of every point, sorted. The caller owns the result.
func Names() []string { return slices.Clone(names) }
