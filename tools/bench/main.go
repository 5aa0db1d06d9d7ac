// Command bench measures a broker from outside, over HTTP, with the load of its
// own machine: client and broker share the cores, as the machine's user would.
//
//	bench step        consume-transform-produce: pop a batch, then one transaction
//	                  that settles it, pushes as many outputs, puts one KV value
//	                  and one required put-if-absent marker
//	bench push        64 producers in a closed loop, over 200 partitions
//	bench e2e         fixed rate, from the moment a message is due to the moment a
//	                  waiting consumer has it
//	bench partitions  memory per partition, with one group, at 1 million
//	bench retained    memory with 10 million retained messages, after idling
//	bench hold        how long anything holds the broker's loop while steps run over
//	                  1 million partitions and 100,000 keys; then a restart after kill -9
//	bench overload    the rate of pushes that is sustained, what happens at three times
//	                  that, and how soon it is over
//
// Each run starts its own broker (-queen) with default settings on a fresh data
// directory under -dir, which should be on the disk that is to be measured, or
// uses a running one (-url, and -pid for its CPU and memory). A run is -warmup
// and then -dur of measuring; with -runs 3 the run of median throughput is
// reported as well. Percentiles are exact: every latency is kept and sorted.
//
// A message is a JSON string, the base64 text of 256 random bytes, and has a
// transactionId of its own. Payloads do not compress beyond base64's own 6 bits
// in 8.
//
// -json appends one line for each run, and one with "run": 0 for the median.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"
)

// Config is what the flags say.
type Config struct {
	Workload string

	Queen, URL, Dir string
	PID             int
	Env             []string
	Keep            bool
	Warmup, Dur     time.Duration
	Idle            time.Duration
	Runs            int
	JSON, Profile   string

	Parts, Batch, Workers int
	Messages              int
	Rate                  int
	Producers, Consumers  int
	Via                   string
	AckAll                bool
	Claim                 bool
	Next, Keyed           bool
	Verify                string
	ProbeSize             int
	Big, Keys             int
	Conns                 int
	Times, Sustained      float64
	Probe                 time.Duration
	Poll                  time.Duration
}

type listFlag []string

func (l *listFlag) String() string     { return strings.Join(*l, " ") }
func (l *listFlag) Set(v string) error { *l = append(*l, v); return nil }

func main() {
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	c, err := parse(os.Args[1:])
	if err == nil {
		err = runs(ctx, c)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

const usage = `usage: bench step|push|e2e|partitions|retained|hold|overload [flags]; bench WORKLOAD -h lists them`

func parse(args []string) (*Config, error) {
	if len(args) == 0 {
		return nil, errors.New(usage)
	}
	c := &Config{Workload: args[0]}
	f := flag.NewFlagSet("bench "+c.Workload, flag.ExitOnError)
	f.StringVar(&c.Queen, "queen", "bin/queen", "the broker's binary")
	f.StringVar(&c.URL, "url", "", "measure this running broker instead of starting one")
	f.IntVar(&c.PID, "pid", 0, "with -url: the broker's process id, for CPU and memory")
	f.StringVar(&c.Dir, "dir", "bench-data", "scratch directory on the disk to measure; wiped")
	f.Var((*listFlag)(&c.Env), "env", "setting of the broker, NAME=value; may be repeated")
	f.BoolVar(&c.Keep, "keep", false, "keep the data directory of the last run")
	f.DurationVar(&c.Warmup, "warmup", 2*time.Second, "time before measuring")
	f.DurationVar(&c.Dur, "dur", 15*time.Second, "time measured")
	f.IntVar(&c.Runs, "runs", 3, "runs, each on a fresh broker; the median is reported")
	f.StringVar(&c.JSON, "json", "", "append results to this file, one JSON object a line")
	f.StringVar(&c.Profile, "profile", "", "write a CPU profile of the broker in the window (starts it with QUEEN_PPROF=true)")
	f.IntVar(&c.Parts, "parts", 200, "partitions")
	switch c.Workload {
	case "overload":
		f.IntVar(&c.Batch, "batch", 10, "messages of a call")
		f.IntVar(&c.Consumers, "consumers", 4, "consumers")
		f.IntVar(&c.Conns, "conns", 1000, "connections that the calls are offered over")
		f.Float64Var(&c.Times, "times", 3, "how much of the sustained rate is offered")
		f.Float64Var(&c.Sustained, "sustained", 0, "the sustained rate, calls a second; 0 = look for it")
		f.DurationVar(&c.Probe, "probe", 10*time.Second, "time of each try while the sustained rate is looked for")
	case "hold":
		c.Verify = "count"
		f.IntVar(&c.Big, "n", 1_000_000, "partitions with a cursor that stand there")
		f.IntVar(&c.Keys, "keys", 100_000, "keys that stand there")
		f.IntVar(&c.Batch, "batch", 10, "messages of a step")
		f.IntVar(&c.Workers, "workers", 64, "workers")
		f.IntVar(&c.Rate, "rate", 0, "steps per second, open loop; 0 = as fast as it goes")
		f.IntVar(&c.Messages, "messages", 0, "messages to preload; 0 = enough for 12,000 steps/s")
		f.IntVar(&c.ProbeSize, "probe-size", 4096, "with -rate: bytes of a write of the fdatasync probe")
	case "step":
		f.IntVar(&c.Batch, "batch", 10, "messages of a step")
		f.IntVar(&c.Workers, "workers", 64, "workers")
		f.IntVar(&c.Messages, "messages", 0, "messages to preload; 0 = enough for 12,000 steps/s")
		f.IntVar(&c.Rate, "rate", 0, "steps per second, open loop; 0 = as fast as it goes")
		f.DurationVar(&c.Poll, "poll", 0, "read every route of a dashboard once in this time, from another client; 0 = not at all")
		f.BoolVar(&c.AckAll, "ack-all", false, "ack each message of a batch; an ack settles what is below it too, so the last is enough")
		f.BoolVar(&c.Next, "next", false, "one call a step: the transaction claims the next batch")
		f.BoolVar(&c.Keyed, "keyed", false, "send each transaction with an Idempotency-Key of its own")
		f.StringVar(&c.Verify, "verify", "count", "how outputs are checked: count (the broker's counters) or drain (read all of them)")
		f.IntVar(&c.ProbeSize, "probe-size", 4096, "with -rate: bytes of a write of the fdatasync probe")
	case "push":
		f.IntVar(&c.Batch, "batch", 1, "messages of a call")
		f.IntVar(&c.Workers, "producers", 64, "producers")
		f.StringVar(&c.Via, "via", "push", "push or transaction")
	case "e2e":
		f.IntVar(&c.Producers, "producers", 16, "producers")
		f.IntVar(&c.Consumers, "consumers", 4, "consumers")
		f.IntVar(&c.Rate, "rate", 1000, "messages per second")
		f.IntVar(&c.ProbeSize, "probe-size", 4096, "bytes of a write of the fdatasync probe")
	case "partitions":
		f.IntVar(&c.Messages, "n", 1_000_000, "partitions to create")
		f.BoolVar(&c.Claim, "claim", true, "claim and ack the message of every partition")
		f.DurationVar(&c.Idle, "idle", 60*time.Second, "idle time before memory is read")
	case "retained":
		f.IntVar(&c.Messages, "n", 10_000_000, "messages to retain")
		f.DurationVar(&c.Idle, "idle", 60*time.Second, "idle time before memory is read")
	default:
		return nil, fmt.Errorf("unknown workload %q; %s", c.Workload, usage)
	}
	if c.Workload == "overload" {
		c.Dur = 10 * time.Minute
	}
	f.Parse(args[1:])
	if f.NArg() > 0 {
		return nil, fmt.Errorf("unexpected argument %q", f.Arg(0))
	}
	return c, c.check()
}

func (c *Config) check() error {
	switch {
	case c.Parts < 1 || c.Runs < 1:
		return fmt.Errorf("-parts and -runs have to be at least 1")
	case c.Batch < 1 && (c.Workload == "step" || c.Workload == "push"):
		return fmt.Errorf("-batch has to be at least 1")
	case c.Workload == "push" && c.Via != "push" && c.Via != "transaction":
		return fmt.Errorf("-via %q: expected push or transaction", c.Via)
	case c.Workload == "step" && c.Verify != "count" && c.Verify != "drain":
		return fmt.Errorf("-verify %q: expected count or drain", c.Verify)
	}
	if c.Workload == "partitions" || c.Workload == "retained" || c.Workload == "hold" || c.Workload == "overload" {
		c.Runs = 1
	}
	if c.Workload == "partitions" || c.Workload == "retained" || c.Workload == "overload" {
		if c.URL != "" && c.PID == 0 {
			return fmt.Errorf("%s measures memory: -url needs -pid", c.Workload)
		}
	}
	if (c.Workload == "step" || c.Workload == "hold") && c.Messages == 0 {
		rate := 12_000
		if c.Rate > 0 {
			rate = c.Rate
		}
		c.Messages = int(float64(rate*c.Batch) * (c.Warmup + c.Dur + time.Second).Seconds())
	}
	return nil
}

// workloads measure one run; each reports what it saw in the window.
var workloads = map[string]func(*session) (*Result, error){
	"step": step, "push": push, "e2e": e2e, "partitions": partitions, "retained": retained, "hold": hold, "overload": overload,
}

func runs(ctx context.Context, c *Config) error {
	var all []*Result
	for i := range c.Runs {
		r, err := oneRun(ctx, c, i+1)
		if err != nil {
			return fmt.Errorf("%s, run %d: %w", c.Workload, i+1, err)
		}
		r.Run = i + 1
		r.print(os.Stdout, i == 0)
		if err := r.record(c.JSON); err != nil {
			return err
		}
		all = append(all, r)
	}
	if len(all) == 1 {
		return nil
	}
	m := *median(all)
	m.Run = 0
	m.print(os.Stdout, false)
	return m.record(c.JSON)
}

func oneRun(ctx context.Context, c *Config, n int) (*Result, error) {
	s, err := open(ctx, c, n)
	if err != nil {
		return nil, err
	}
	r, err := workloads[c.Workload](s)
	if cerr := s.close(); err == nil {
		err = cerr
	}
	return r, err
}
