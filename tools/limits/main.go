// Command limits runs a broker under a small limit of open files (B65): 1,024
// descriptors, 5,000 queues with a log each, 1,000 idle connections, and files
// that roll and are sealed all the time. Everything that was answered has to be
// there, before and after a kill, and the broker never runs out of descriptors.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"queen/internal/history"
	"queen/tools/internal/api"
	"queen/tools/internal/broker"
)

func main() {
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	var l limits
	flag.StringVar(&l.queen, "queen", "bin/queen", "the broker's binary")
	flag.StringVar(&l.dir, "dir", "limits-data", "scratch directory; wiped, and kept after a failure")
	flag.IntVar(&l.files, "files", 1024, "open files that the broker may have")
	flag.IntVar(&l.queues, "queues", 5000, "queues")
	flag.IntVar(&l.idle, "idle", 1000, "idle connections")
	flag.Parse()
	if err := l.run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "limits:", err)
		os.Exit(1)
	}
}

type limits struct {
	queen, dir          string
	files, queues, idle int

	book *history.Messages
	sent int
	most int // descriptors that were seen open
}

// rounds is how many messages each queue gets; each round touches all logs.
const rounds = 4

func (l *limits) run(ctx context.Context) error {
	if err := os.RemoveAll(l.dir); err != nil {
		return err
	}
	o, err := l.options()
	if err != nil {
		return err
	}
	l.book = history.NewMessages()
	p, err := broker.Start(ctx, o)
	if err != nil {
		return err
	}
	defer func() { p.Kill() }()
	begun := time.Now()
	c := api.New(p.URL(), time.Minute)
	for round := range rounds {
		if round == 1 {
			closeIdle := l.openIdle(p.Addr())
			defer closeIdle()
		}
		if err := l.push(ctx, c, p, round); err != nil {
			return fmt.Errorf("round %d: %w; the end of %s:\n%s", round, err, p.Log, p.Tail(15))
		}
	}
	pushed := time.Since(begun)
	p.Kill()
	begun = time.Now()
	if p, err = broker.Start(ctx, o); err != nil {
		return err
	}
	started := time.Since(begun)
	if err := l.readAll(ctx, api.New(p.URL(), time.Minute), p); err != nil {
		return fmt.Errorf("%w; the end of %s:\n%s", err, p.Log, p.Tail(15))
	}
	fmt.Printf("%d queues, %d messages in %v, start after a kill %v, at most %d of %d descriptors open beside %d idle connections\n",
		l.queues, l.sent, pushed.Round(time.Millisecond), started.Round(time.Millisecond), l.most, l.files, l.idle)
	if err := p.Stop(10 * time.Second); err != nil {
		return err
	}
	return os.RemoveAll(l.dir)
}

// options wraps the binary in a script that lowers the limit.
func (l *limits) options() (o broker.Options, err error) {
	queen, err := filepath.Abs(l.queen)
	if err != nil {
		return o, err
	}
	script := filepath.Join(l.dir, "queen.sh")
	text := fmt.Sprintf("#!/bin/sh\nulimit -n %d || exit 1\nexec %s \"$@\"\n", l.files, queen)
	if err := errors.Join(os.MkdirAll(l.dir, 0o755), os.WriteFile(script, []byte(text), 0o755)); err != nil {
		return o, err
	}
	port, err := broker.FreePort()
	return broker.Options{Binary: script, Dir: filepath.Join(l.dir, "data"), Port: port,
		Env: []string{"QUEEN_RAFT_SEGMENT_BYTES=4096", "QUEEN_UNSEALED_MAX_BYTES=1048576"}}, err
}

// openIdle opens connections and says nothing on them. Those over the broker's
// bound wait in the kernel's queue, or are not taken.
func (l *limits) openIdle(addr string) (closeAll func()) {
	var conns []net.Conn
	for range l.idle {
		conn, err := net.DialTimeout("tcp", addr, time.Second)
		if err != nil {
			break
		}
		conns = append(conns, conn)
	}
	return func() {
		for _, c := range conns {
			c.Close()
		}
	}
}

const perCall = 100

// push gives each queue a message, many queues a call.
func (l *limits) push(ctx context.Context, c *api.Client, p *broker.Process, round int) error {
	for from := 0; from < l.queues; from += perCall {
		var items []api.Item
		var pushes []*history.Push
		for q := from; q < min(from+perCall, l.queues); q++ {
			id := fmt.Sprintf("m%d-%d", round, q)
			items = append(items, api.Item{Queue: queueName(q), TransactionID: id, Payload: noise(q, round)})
			pushes = append(pushes, &history.Push{ID: id, Stream: history.StreamName(queueName(q), "Default"), Offset: -1, Fate: history.Answered})
		}
		got, err := c.Push(ctx, items...)
		if err != nil {
			return err
		}
		for i, x := range pushes {
			if got[i].Status != "queued" {
				return fmt.Errorf("push to %s: %s", items[i].Queue, got[i].Status)
			}
			x.Offset = got[i].Offset
		}
		l.book.Add(pushes...)
		l.sent += len(items)
		if err := l.count(p); err != nil {
			return err
		}
	}
	return nil
}

func queueName(q int) string { return "q" + strconv.Itoa(q) }

// noise makes files of 4 KiB roll every other message.
func noise(q, round int) string {
	b := make([]byte, 2000)
	x := uint64(q*rounds+round)*2654435761 + 1
	for i := range b {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		b[i] = 'a' + byte(x%26)
	}
	return string(b)
}

// count notes how many descriptors the broker has open.
func (l *limits) count(p *broker.Process) error {
	open, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", p.PID()))
	if err != nil {
		return err
	}
	if l.most = max(l.most, len(open)); len(open) >= l.files {
		return fmt.Errorf("%d descriptors are open, the limit is %d", len(open), l.files)
	}
	return nil
}

// readAll reads every queue and balances the books.
func (l *limits) readAll(ctx context.Context, c *api.Client, p *broker.Process) error {
	query := url.Values{"consumerGroup": {"check"}, "subscriptionMode": {"all"}, "commitOnDelivery": {"true"}}
	for q := range l.queues {
		ms, err := c.Pop(ctx, queueName(q), query)
		if err != nil {
			return err
		}
		for _, m := range ms {
			if err := l.book.Read(history.StreamName(queueName(q), m.Partition), m.TransactionID, m.Offset); err != nil {
				return err
			}
		}
		if q%perCall == 0 {
			if err := l.count(p); err != nil {
				return err
			}
		}
	}
	return l.book.Balance()
}
