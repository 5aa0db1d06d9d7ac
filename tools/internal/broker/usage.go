package broker

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Usage is what a process, this process and the machine's disks have used so far.
type Usage struct {
	At     time.Time
	Server float64 // CPU seconds of the process, user and system
	Client float64 // CPU seconds of this process
	Device int64   // bytes written to all whole block devices of the machine, journal and other writers included
	Fsyncs int64   // files that the broker's log writer synced, from its metrics; -1 when it tells none
}

// MeasureUsage reads the counters of now. pid 0 leaves Server at 0, url "" leaves Fsyncs
// at -1. The kernel counts CPU time in ticks of 10 ms.
func MeasureUsage(pid int, url string) Usage {
	u := Usage{Fsyncs: fsyncs(url), Device: deviceBytes(), Client: selfCPU(), At: time.Now()}
	if pid != 0 {
		u.Server = processCPU(pid)
	}
	return u
}

// RSS returns VmRSS of the process in bytes, or 0 when it cannot be read.
func RSS(pid int) int64 {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kb, _ := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
			return kb << 10
		}
	}
	return 0
}

func processCPU(pid int) float64 {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	// The second field is the command in parentheses and may hold spaces.
	f := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	if len(f) < 13 {
		return 0
	}
	user, _ := strconv.ParseFloat(f[11], 64)
	system, _ := strconv.ParseFloat(f[12], 64)
	return (user + system) / 100
}

func selfCPU() float64 {
	var r syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &r) != nil {
		return 0
	}
	return float64(r.Utime.Nano()+r.Stime.Nano()) / 1e9
}

// deviceBytes counts 512-byte sectors of whole devices. What is still in the page cache is
// not in it, so windows shorter than the kernel's write-back interval flatter.
func deviceBytes() (n int64) {
	b, err := os.ReadFile("/proc/diskstats")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if len(f) < 10 || strings.HasPrefix(f[2], "loop") || strings.HasPrefix(f[2], "ram") {
			continue
		}
		if _, err := os.Stat("/sys/block/" + f[2]); err != nil {
			continue // a partition: its device counts it
		}
		sectors, _ := strconv.ParseInt(f[9], 10, 64)
		n += sectors * 512
	}
	return n
}

// fsyncs reads the broker's histogram of logs covered by one sync: its sum is the
// number of files that were synced.
func fsyncs(url string) int64 {
	if url == "" {
		return -1
	}
	resp, err := http.Get(url + "/metrics/prometheus")
	if err != nil {
		return -1
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		return -1
	}
	return metric(b, "queen_raft_log_fsync_logs_sum")
}

// metric adds up the samples of one name over its labels; -1 when there is none.
func metric(text []byte, name string) int64 {
	sum, found := 0.0, false
	for line := range strings.Lines(string(text)) {
		rest, ok := strings.CutPrefix(line, name)
		if !ok || rest == "" || (rest[0] != ' ' && rest[0] != '{') {
			continue
		}
		if i := strings.LastIndexByte(rest, '}'); i >= 0 {
			rest = rest[i+1:]
		}
		f := strings.Fields(rest)
		if len(f) == 0 {
			continue
		}
		if v, err := strconv.ParseFloat(f[0], 64); err == nil {
			sum, found = sum+v, true
		}
	}
	if !found {
		return -1
	}
	return int64(sum)
}
