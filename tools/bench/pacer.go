package main

import (
	"encoding/binary"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// pacer wakes one goroutine at a fixed rate. It waits on a timerfd, which the
// runtime polls like a socket: the runtime's own timers may be a millisecond
// late, which is more than what is measured.
type pacer struct {
	f     *os.File
	first time.Time
	step  time.Duration
	next  int64 // number of the next tick
	owed  int64 // ticks that passed and were not taken yet
	buf   [8]byte
}

// newPacer returns a pacer whose tick n is due at first + n*step.
func newPacer(first time.Time, step time.Duration) (*pacer, error) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("timerfd: %w", err)
	}
	p := &pacer{f: os.NewFile(uintptr(fd), "timerfd"), first: first, step: step}
	spec := unix.ItimerSpec{
		Interval: unix.NsecToTimespec(int64(step)),
		Value:    unix.NsecToTimespec(max(1, int64(time.Until(first)))),
	}
	if err := unix.TimerfdSettime(fd, 0, &spec, nil); err != nil {
		p.f.Close()
		return nil, fmt.Errorf("timerfd: %w", err)
	}
	return p, nil
}

// wait returns the time at which the next tick was due, once it has come. A
// caller that is late gets the ticks that it missed one by one, at once, each
// with its own due time.
func (p *pacer) wait() (time.Time, error) {
	if p.owed == 0 {
		if _, err := p.f.Read(p.buf[:]); err != nil {
			return time.Time{}, err
		}
		p.owed = int64(binary.NativeEndian.Uint64(p.buf[:]))
	}
	p.owed--
	due := p.first.Add(time.Duration(p.next) * p.step)
	p.next++
	return due, nil
}

func (p *pacer) close() { p.f.Close() }
