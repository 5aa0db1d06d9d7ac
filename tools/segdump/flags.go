package main

import (
	"flag"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"time"
)

// options are the flags of all commands.
type options struct {
	JSON bool

	Index     uintRange
	Time      timeRange
	Partition string
	Kinds     string
	Key       string
	Payload   bool
	History   bool
	List      bool
	Limit     int
	Tenant    string
	Quick     bool
	Shards    int
}

// parse reads the flags of a command, which may stand between its arguments,
// and returns the arguments.
func (o *options) parse(name string, args []string, stderr io.Writer) (rest []string, err error) {
	o.Index, o.Time, o.Shards = everyUint, everyTime, -1
	f := flag.NewFlagSet("segdump "+name, flag.ContinueOnError)
	f.SetOutput(stderr)
	f.Usage = func() {
		fmt.Fprintf(stderr, "usage: segdump %s %s [flags]\n", name, commands[name].args)
		f.PrintDefaults()
	}
	f.BoolVar(&o.JSON, "json", false, "one JSON object a line")
	switch name {
	case "ls":
		f.BoolVar(&o.Quick, "quick", false, "read no records: no ranges of files without side tables, no live share")
	case "dump":
		f.Var(&o.Index, "index", "entries, `A..B`, A.. or one number")
		f.Var(&o.Time, "time", "times of appends and entries, `A..B`: RFC 3339 or microseconds")
		f.StringVar(&o.Partition, "partition", "", "appends of this partition: its id or `QUEUE/NAME`")
		f.StringVar(&o.Kinds, "kind", "", "kinds of records, separated by commas: append, entry, stub, value, pad; of rows as in rows")
		f.BoolVar(&o.Payload, "payload", false, "show payloads, decompressed")
		f.IntVar(&o.Limit, "limit", 0, "records of a file; 0 = all")
		f.StringVar(&o.Tenant, "tenant", "", "tenant of QUEUE/NAME; empty = any")
	case "entry":
		f.BoolVar(&o.Payload, "payload", false, "show payloads, decompressed")
	case "partition":
		f.BoolVar(&o.Payload, "payload", false, "show messages with their payloads, decompressed")
		f.IntVar(&o.Limit, "limit", 50, "appends shown; 0 = all")
		f.StringVar(&o.Tenant, "tenant", "", "tenant of the queue; empty = any")
	case "dedup":
		f.BoolVar(&o.List, "list", false, "list what is in the tables")
		f.IntVar(&o.Limit, "limit", 0, "entries listed of a table; 0 = all")
	case "rows":
		f.StringVar(&o.Kinds, "kind", "", "kinds, separated by commas: meta, queue, partition, group, cursor, settled, letter, kv, timer")
		f.StringVar(&o.Key, "key", "", "rows whose key starts with these bytes: `hex`, kind first (03 = partitions)")
		f.BoolVar(&o.History, "history", false, "every record of the file in its order, also those that a later one replaced")
		f.IntVar(&o.Limit, "limit", 0, "rows shown; 0 = all")
	case "salvage":
		f.IntVar(&o.Shards, "shards", -1, "QUEEN_QLOG_SHARDS of the directory, when its FORMAT file is lost")
	}
	for {
		if err := f.Parse(args); err != nil {
			if err == flag.ErrHelp {
				return nil, err
			}
			return nil, fmt.Errorf("%w: %v", errUsage, err)
		}
		if f.NArg() == 0 {
			return rest, nil
		}
		rest = append(rest, f.Arg(0))
		args = f.Args()[1:]
	}
}

// uintRange is a range of numbers, both included: "5", "5..9", "5..", "..9".
type uintRange struct{ lo, hi uint64 }

var everyUint = uintRange{0, math.MaxUint64}

func (r *uintRange) String() string {
	if *r == everyUint || *r == (uintRange{}) {
		return ""
	}
	return fmt.Sprintf("%d..%d", r.lo, r.hi)
}

func (r *uintRange) Set(text string) (err error) {
	lo, hi, found := strings.Cut(text, "..")
	if !found {
		hi = lo
	}
	*r = everyUint
	if lo != "" {
		if r.lo, err = strconv.ParseUint(lo, 10, 64); err != nil {
			return fmt.Errorf("%q is no number", lo)
		}
	}
	if hi != "" {
		if r.hi, err = strconv.ParseUint(hi, 10, 64); err != nil {
			return fmt.Errorf("%q is no number", hi)
		}
	}
	return nil
}

func (r *uintRange) has(v uint64) bool { return r.lo <= v && v <= r.hi }

// timeRange is a range of times in microseconds, both included.
type timeRange struct{ lo, hi int64 }

var everyTime = timeRange{math.MinInt64, math.MaxInt64}

func (r *timeRange) String() string {
	if *r == everyTime || *r == (timeRange{}) {
		return ""
	}
	return stamp(r.lo) + ".." + stamp(r.hi)
}

func (r *timeRange) Set(text string) (err error) {
	lo, hi, found := strings.Cut(text, "..")
	if !found {
		return fmt.Errorf("a range is FROM..TO, either of which may be left out")
	}
	*r = everyTime
	if lo != "" {
		if r.lo, err = parseTime(lo); err != nil {
			return err
		}
	}
	if hi != "" {
		r.hi, err = parseTime(hi)
	}
	return err
}

func (r *timeRange) has(v int64) bool { return r.lo <= v && v <= r.hi }

func parseTime(text string) (int64, error) {
	if micros, err := strconv.ParseInt(text, 10, 64); err == nil {
		return micros, nil
	}
	at, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		return 0, fmt.Errorf("%q is neither microseconds nor RFC 3339", text)
	}
	return at.UnixMicro(), nil
}

// kindSet is the kinds that --kind names; nil: all.
func kindSet(list string, known func(string) bool) (map[string]bool, error) {
	if list == "" {
		return nil, nil
	}
	kinds := make(map[string]bool)
	for _, k := range strings.Split(list, ",") {
		k = strings.TrimSpace(k)
		if !known(k) {
			return nil, fmt.Errorf("%w: unknown kind %q; segdump dump -h and rows -h list them", errUsage, k)
		}
		kinds[k] = true
	}
	return kinds, nil
}
