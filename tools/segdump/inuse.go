package main

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// settleStep and settleSteps are how long a directory that may be in use is
// watched before what looks unfinished in it is taken for something that stays.
const (
	settleStep  = 100 * time.Millisecond
	settleSteps = 12
)

// lockHeld reports whether a process holds the lock of a data directory, as
// far as the kernel tells. It does not try to take it: a broker that starts at
// that moment would be refused.
func lockHeld(dir string) bool {
	info, err := os.Stat(filepath.Join(dir, "LOCK"))
	if err != nil {
		return false
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return false
	}
	f, err := os.Open("/proc/locks")
	if err != nil {
		return false // not Linux
	}
	defer f.Close()
	want := fmt.Sprintf("%02x:%02x:%d", unix.Major(uint64(st.Dev)), unix.Minor(uint64(st.Dev)), st.Ino)
	for lines := bufio.NewScanner(f); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) > 5 && fields[1] == "FLOCK" && fields[5] == want {
			return true
		}
	}
	return false
}
