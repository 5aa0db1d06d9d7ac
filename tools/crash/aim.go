package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"queen/tools/internal/api"
)

// killAimed kills the broker in the middle of writing an entry: as soon as the
// kernel tells of a write to the first log of a fanner's transaction, when most
// of the other logs are still to be written. It falls back to killing at once
// when it cannot watch, or nothing is written for a while.
func (k *killer) killAimed(ctx context.Context) error {
	defer k.proc.Kill()
	id, err := k.api.QueueID(ctx, fanQueue(0))
	var status *api.StatusError
	if errors.As(err, &status) {
		return nil // there is no such queue yet
	}
	if err != nil {
		return err
	}
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC)
	if err != nil {
		return fmt.Errorf("inotify: %w", err)
	}
	defer unix.Close(fd)
	if _, err := unix.InotifyAddWatch(fd, filepath.Join(k.at, "data", "log", "q"+id), unix.IN_MODIFY); err != nil {
		return fmt.Errorf("watch the log of %s (q%s): %w", fanQueue(0), id, err)
	}
	poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	for end := time.Now().Add(300 * time.Millisecond); time.Now().Before(end); {
		n, err := unix.Poll(poll, 100)
		if n > 0 {
			return unix.Kill(k.proc.PID(), unix.SIGKILL)
		}
		if err != nil && err != unix.EINTR {
			return fmt.Errorf("poll: %w", err)
		}
	}
	return nil
}
