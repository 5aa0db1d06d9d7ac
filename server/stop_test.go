package server

import (
	"context"
	"errors"
	"net/http"
	"testing"

	"queen/fsm"
	"queen/internal/vfs"
	"queen/raftlog"
)

// stopping is an engine on its own, for tests of how it ends.
func stopping(t *testing.T, fs vfs.FS) *Broker {
	t.Helper()
	b, err := Open(StorageConfig{FS: fs, Dir: "data", NodeID: 1, Fatal: func(err error) { t.Error(err) }})
	if err != nil {
		t.Fatal(err)
	}
	await(t, func() bool { return b.Status().Reason == "" })
	return b
}

// configure submits a call that writes; the result comes on the channel.
func configure(t *testing.T, b *Broker) <-chan error {
	t.Helper()
	done := make(chan error, 1)
	call := &fsm.Call{Tenant: defaultTenant, Body: &fsm.Configure{Queue: "q"}, Done: func(err error) { done <- err }}
	if err := b.Submit(call); err != nil {
		t.Fatal(err)
	}
	return done
}

// TestStopTellsWhatTimeWasShortFor: a stop that has no time for its checkpoint
// is told apart from one that leaves work undecided, and loses nothing.
func TestStopTellsWhatTimeWasShortFor(t *testing.T) {
	over, cancel := context.WithCancel(context.Background())
	cancel()

	fs := vfs.NewMem(1)
	b := stopping(t, fs)
	if err := <-configure(t, b); err != nil {
		t.Fatal(err)
	}
	if err := b.Stop(over); !errors.Is(err, raftlog.ErrCutShort) {
		t.Errorf("without time for a checkpoint: %v", err)
	}
	again := startBroker(t, fs)
	if again.b.Report().Replayed == 0 {
		t.Error("nothing was replayed: the stop took its checkpoint")
	}
	if status, body := again.do("GET", "/api/v1/resources/queues/q", ""); status != http.StatusOK {
		t.Errorf("%d %s", status, body)
	}

	fs = vfs.NewMem(2)
	b = stopping(t, fs)
	release := fs.HoldSync()
	configure(t, b)
	await(t, func() bool { return b.Status().InFlight == 1 })
	stopped := make(chan error, 1)
	go func() { stopped <- b.Stop(over) }()
	// The writer only ends when its sync does; the loop's verdict falls before.
	await(t, func() bool { return b.Status().Reason != "" })
	release()
	if err := <-stopped; err == nil || errors.Is(err, raftlog.ErrCutShort) {
		t.Errorf("with a write in flight: %v", err)
	}
}
