package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"queen/raftlog"
)

// life is one run of the broker inside this process.
type life struct {
	url  string
	stop chan os.Signal
	done chan error
	log  *lockedBuffer
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func start(t *testing.T, dir string) *life {
	t.Helper()
	l := &life{stop: make(chan os.Signal, 1), done: make(chan error, 1), log: &lockedBuffer{}}
	r, w := io.Pipe()
	environ := []string{"PORT=0", "QUEEN_BIND_ADDR=127.0.0.1", "QUEEN_RAFT_DIR=" + dir}
	go func() {
		l.done <- runBroker(environ, l.stop, w, l.log)
		w.Close()
	}()
	line, err := bufio.NewReader(r).ReadString('\n')
	if err != nil {
		t.Fatalf("no ready line: %v\n%s", <-l.done, l.log)
	}
	_, url, _ := strings.Cut(strings.TrimSpace(line), ": ")
	l.url = url
	return l
}

func (l *life) end(t *testing.T) time.Duration {
	t.Helper()
	begun := time.Now()
	l.stop <- syscall.SIGTERM
	if err := <-l.done; err != nil {
		t.Errorf("the stop failed: %v\n%s", err, l.log)
	}
	return time.Since(begun)
}

// TestSigterm: with parked pops and writers at full rate, a SIGTERM answers
// the pops at once, ends within 5 s, loses no answered push, and leaves
// nothing to replay.
func TestSigterm(t *testing.T) {
	const pops, writers = 100, 64
	dir := t.TempDir()
	l := start(t, dir)
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: pops + writers}}
	statuses := make(chan int, pops)
	for i := range pops {
		go func() {
			resp, err := client.Get(fmt.Sprintf("%s/api/v1/pop/queue/parked-%d?wait=true&timeout=60000&consumerGroup=g", l.url, i))
			if err != nil {
				t.Error(err)
				statuses <- 0
				return
			}
			resp.Body.Close()
			statuses <- resp.StatusCode
		}()
	}
	var (
		wg     sync.WaitGroup
		stored atomic.Int64
		halt   = make(chan struct{})
	)
	for i := range writers {
		wg.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-halt:
					return
				default:
				}
				body := fmt.Sprintf(`{"items":[{"queue":"work","transactionId":"w%d-%d","payload":%d}]}`, i, n, n)
				resp, err := client.Post(l.url+"/api/v1/push", "application/json", strings.NewReader(body))
				if err != nil {
					return // the listener is closed
				}
				_, _ = io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
				if resp.StatusCode == http.StatusCreated {
					stored.Add(1)
				}
			}
		})
	}
	waitFor(t, func() bool {
		return stored.Load() > 200 && strings.Contains(get(t, client, l.url+"/metrics/prometheus"), fmt.Sprintf("queen_parked_long_polls %d", pops))
	})
	took := l.end(t)
	close(halt)
	wg.Wait()
	if took > 5*time.Second {
		t.Errorf("the stop took %v", took)
	}
	for range pops {
		if s := <-statuses; s != http.StatusNoContent {
			t.Errorf("a parked pop got %d", s)
		}
	}
	client.CloseIdleConnections()

	l = start(t, dir)
	if log := l.log.String(); !strings.Contains(log, "replayed=0 ") {
		t.Errorf("the next start replays:\n%s", log)
	}
	detail := get(t, client, l.url+"/api/v1/resources/queues/work")
	if want := fmt.Sprintf(`"totals":{"total":%d,`, stored.Load()); !strings.Contains(detail, want) {
		// A push whose answer was cut off may be stored as well.
		var total int64
		if _, rest, ok := strings.Cut(detail, `"totals":{"total":`); ok {
			_, _ = fmt.Sscan(strings.SplitN(rest, ",", 2)[0], &total)
		}
		if total < stored.Load() {
			t.Errorf("%d pushes were answered, %d are there", stored.Load(), total)
		}
	}
	client.CloseIdleConnections()
	l.end(t)
}

func get(t *testing.T, c *http.Client, url string) string {
	t.Helper()
	resp, err := c.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

func waitFor(t *testing.T, done func() bool) {
	t.Helper()
	for limit := time.Now().Add(30 * time.Second); !done(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(limit) {
			t.Fatal("waited for 30 s in vain")
		}
	}
}

// TestFatalIsOneLine: whatever the error is made of.
func TestFatalIsOneLine(t *testing.T) {
	var out bytes.Buffer
	printFatal(&out, errors.Join(errors.New("a write failed"), errors.New("and a close")))
	if want := "FATAL: a write failed; and a close\n"; out.String() != want {
		t.Errorf("%q, want %q", out.String(), want)
	}
}

// TestSecondBrokerIsRefused: two processes never share a directory.
func TestSecondBrokerIsRefused(t *testing.T) {
	dir := t.TempDir()
	l := start(t, dir)
	defer l.end(t)
	err := runBroker([]string{"PORT=0", "QUEEN_RAFT_DIR=" + dir}, make(chan os.Signal), io.Discard, io.Discard)
	if err == nil || !strings.Contains(err.Error(), dir) {
		t.Errorf("a second broker on the same directory: %v", err)
	}
}

func TestTakenPortStopsTheStart(t *testing.T) {
	l := start(t, t.TempDir())
	defer l.end(t)
	port := l.url[strings.LastIndexByte(l.url, ':')+1:]
	err := runBroker([]string{"PORT=" + port, "QUEEN_BIND_ADDR=127.0.0.1", "QUEEN_RAFT_DIR=" + t.TempDir()}, make(chan os.Signal), io.Discard, io.Discard)
	if err == nil || !strings.Contains(err.Error(), "PORT") {
		t.Errorf("a taken port: %v", err)
	}
}

// endingEngine ends as a test says.
type endingEngine struct {
	err  error
	left time.Duration // how long Stop was given
}

func (e *endingEngine) Stop(ctx context.Context) error {
	deadline, _ := ctx.Deadline()
	e.left = time.Until(deadline)
	return e.err
}

// TestStopWithoutACheckpointIsNoFailure: what the next start can replay is not
// lost, so the exit status is 0; what failed for real is told.
func TestStopWithoutACheckpointIsNoFailure(t *testing.T) {
	var out bytes.Buffer
	log := slog.New(slog.NewTextHandler(&out, nil))
	e := &endingEngine{err: fmt.Errorf("stop: %w: %w", raftlog.ErrCutShort, context.DeadlineExceeded)}
	if err := stopEngine(e, time.Now().Add(finishEngine), log); err != nil {
		t.Errorf("a checkpoint that did not fit: %v", err)
	}
	if !strings.Contains(out.String(), "level=WARN") || e.left < 4*time.Second {
		t.Errorf("%v were left; log: %s", e.left, &out)
	}
	e.err = fmt.Errorf("stop: work was still in flight: %w", context.DeadlineExceeded)
	if err := stopEngine(e, time.Now(), log); !errors.Is(err, e.err) {
		t.Errorf("work in flight: %v", err)
	}
}
