// Package broker starts, kills and watches a broker process for the drivers
// under tools. It knows the binary by its command line, environment and health
// route only.
package broker

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// Options says which broker to start and where.
type Options struct {
	Binary string   // the queen binary
	Dir    string   // data directory, created when missing
	Port   int      // 0 picks a free one
	Env    []string // further settings, NAME=value
	Log    string   // file that gets what the broker prints, appended to; "" is Dir + ".log"
	// Ready bounds the wait for the broker to be healthy; 0 is 60 s.
	Ready time.Duration
}

// Process is a running broker.
type Process struct {
	Port int
	Log  string // the log file

	cmd  *exec.Cmd
	done chan struct{} // closed when the process has ended and been waited for
	err  error         // of Wait; read after done
}

// Start starts a broker and waits until it is healthy. The caller ends it with
// Stop or Kill. A broker that exits before it is healthy is an error that ends
// with its last log lines.
func Start(ctx context.Context, o Options) (*Process, error) {
	p, err := Launch(o)
	if err != nil {
		return nil, err
	}
	if o.Ready == 0 {
		o.Ready = 60 * time.Second
	}
	if err := p.Healthy(ctx, o.Ready); err != nil {
		p.Kill()
		return nil, fmt.Errorf("%w; the end of %s:\n%s", err, p.Log, p.Tail(15))
	}
	return p, nil
}

// Launch starts a broker and waits for nothing.
func Launch(o Options) (*Process, error) {
	if o.Port == 0 {
		port, err := FreePort()
		if err != nil {
			return nil, err
		}
		o.Port = port
	}
	if o.Log == "" {
		o.Log = filepath.Clean(o.Dir) + ".log"
	}
	binary, err := filepath.Abs(o.Binary)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(o.Dir, 0o755); err != nil {
		return nil, err
	}
	log, err := os.OpenFile(o.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	defer log.Close() // the child has its own handle
	p := &Process{Port: o.Port, Log: o.Log, done: make(chan struct{})}
	p.cmd = exec.Command(binary, "serve")
	p.cmd.Env = append(os.Environ(), fmt.Sprintf("PORT=%d", o.Port), "QUEEN_BIND_ADDR=127.0.0.1", "QUEEN_RAFT_DIR="+o.Dir)
	p.cmd.Env = append(p.cmd.Env, o.Env...)
	p.cmd.Stdout, p.cmd.Stderr = log, log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // an interrupt of the driver is the driver's to pass on
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the broker (make build puts it at bin/queen): %w", err)
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.done)
	}()
	return p, nil
}

// FreePort returns a TCP port of 127.0.0.1 that nothing listened on a moment ago.
func FreePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}

// Healthy waits until the broker says that it is healthy, for limit at most.
func (p *Process) Healthy(ctx context.Context, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		if healthy(ctx, p.URL()) {
			return nil
		}
		select {
		case <-p.done:
			return fmt.Errorf("the broker ended before it was healthy: %v", p.err)
		case <-ctx.Done():
			return fmt.Errorf("the broker was not healthy after %v", limit)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

func healthy(ctx context.Context, url string) bool {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/health", nil)
	if err != nil {
		return false
	}
	req.Close = true
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return false
	}
	resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}

// Addr returns host:port.
func (p *Process) Addr() string { return fmt.Sprintf("127.0.0.1:%d", p.Port) }

// URL returns the base address of the HTTP API.
func (p *Process) URL() string { return "http://" + p.Addr() }

// PID returns the process id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Done is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Ended tells whether the process has ended.
func (p *Process) Ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// Killed tells whether a process that has ended was ended by SIGKILL.
func (p *Process) Killed() bool {
	<-p.done
	status, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus)
	return ok && status.Signaled() && status.Signal() == syscall.SIGKILL
}

// Kill ends the process with SIGKILL and waits for its end.
func (p *Process) Kill() {
	p.cmd.Process.Kill()
	<-p.done
}

// Stop ends the process with SIGTERM. An exit code other than 0 is an error, and
// so is a process that is still there after limit, which is then killed.
func (p *Process) Stop(limit time.Duration) error {
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	select {
	case <-p.done:
		if p.err != nil {
			return fmt.Errorf("the broker ended with an error: %w; the end of %s:\n%s", p.err, p.Log, p.Tail(15))
		}
		return nil
	case <-time.After(limit):
		p.Kill()
		return fmt.Errorf("the broker did not stop within %v of SIGTERM and was killed", limit)
	}
}

// Tail returns the last n lines of the log.
func (p *Process) Tail(n int) string {
	b, err := os.ReadFile(p.Log)
	if err != nil {
		return err.Error()
	}
	lines := bytes.Split(bytes.TrimRight(b, "\n"), []byte("\n"))
	lines = lines[max(0, len(lines)-n):]
	return strings.TrimSpace(string(bytes.Join(lines, []byte("\n"))))
}
