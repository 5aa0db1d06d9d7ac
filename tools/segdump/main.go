// Command segdump reads a data directory without the broker: live or stopped,
// without the broker's lock, and without changing anything.
//
//	segdump ls DIR                        files, kinds, versions, ranges, sizes, live share
//	segdump dump DIR FILE...              records of files, filtered
//	segdump entry DIR N                   the copies of an entry, and what a start makes of it
//	segdump partition DIR QUEUE/NAME      a partition's row, cursors, leases and appends
//	segdump dedup DIR                     side tables, compared with their segments
//	segdump rows DIR                      the checkpoint, decoded
//	segdump verify DIR                    everything checked; goes on after an error
//	segdump salvage DIR OUT               what is readable, as a directory that a broker opens
//
// Flags may stand anywhere on the line; segdump COMMAND -h lists them. With
// --json each line of the output is one JSON object. The exit status is 0, 1
// when verify, dedup, entry or salvage found something wrong, and 2 for wrong
// usage and for a directory that cannot be read.
//
// Sizes are bytes, times of JSON output microseconds since the epoch. README.md
// beside this file explains the output.
package main

import (
	"bufio"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"time"

	"queen/internal/vfs"
	"queen/recovery"
)

// Exit statuses.
const (
	exitClean    = 0
	exitFindings = 1
	exitTrouble  = 2
)

// errUsage: the command line is wrong.
var errUsage = errors.New("usage")

// command is one of the commands: the names of its arguments, its flags, and
// what it does. A true result means that something is wrong with the data.
type command struct {
	args string
	min  int // arguments behind DIR
	max  int // -1: any number
	run  func(t *tool, args []string) (findings bool, err error)
}

var commands = map[string]command{
	"ls":        {"DIR", 0, 0, (*tool).ls},
	"dump":      {"DIR FILE...", 1, -1, (*tool).dump},
	"entry":     {"DIR N", 1, 1, (*tool).entry},
	"partition": {"DIR QUEUE/NAME", 1, 1, (*tool).partition},
	"dedup":     {"DIR", 0, 0, (*tool).dedup},
	"rows":      {"DIR", 0, 0, (*tool).rows},
	"verify":    {"DIR", 0, 0, (*tool).verify},
	"salvage":   {"DIR OUT", 1, 1, (*tool).salvage},
}

const usage = `usage: segdump COMMAND DIR [ARG...] [--json] [flags]
  ls DIR                     files, kinds, versions, ranges, sizes, live share
  dump DIR FILE...           records of files; --index, --partition, --time, --kind, --payload
  entry DIR N                copies of entry N in all logs, and the verdict of a start
  partition DIR QUEUE/NAME   a partition's row, cursors, leases, appends
  dedup DIR                  side tables, compared with their segments
  rows DIR                   the checkpoint; --kind, --key, --history
  verify DIR                 check everything; exit status 1 when something is wrong
  salvage DIR OUT            what is readable, as a directory that a broker opens
segdump COMMAND -h lists the flags of a command. Nothing is ever written to DIR.
`

// tool is one run of a command.
type tool struct {
	fs  vfs.FS
	dir string
	out printer
	opt options

	// settle waits before the directory is looked at again, when it looks like
	// one whose last write did not end.
	settle func()
	// inUse tells whether a process holds the directory's lock.
	inUse func(dir string) bool
}

func main() {
	t := &tool{fs: vfs.OS(), settle: func() { time.Sleep(settleStep) }, inUse: lockHeld}
	os.Exit(t.main(os.Args[1:], os.Stdout, os.Stderr))
}

// main runs a command line and returns the exit status.
func (t *tool) main(args []string, stdout, stderr io.Writer) int {
	w := bufio.NewWriterSize(stdout, 64<<10)
	t.out.w = w
	findings, err := t.run(args, stderr)
	if ferr := w.Flush(); err == nil && ferr != nil {
		err = fmt.Errorf("write the output: %w", ferr)
	}
	switch {
	case errors.Is(err, flag.ErrHelp):
		return exitClean
	case errors.Is(err, errUsage):
		fmt.Fprintf(stderr, "segdump: %v\n%s", err, usage)
		return exitTrouble
	case err != nil:
		fmt.Fprintf(stderr, "segdump: %v\n", err)
		return exitTrouble
	case findings:
		return exitFindings
	}
	return exitClean
}

func (t *tool) run(args []string, stderr io.Writer) (findings bool, err error) {
	if len(args) == 0 {
		return false, fmt.Errorf("%w: no command", errUsage)
	}
	name := args[0]
	if name == "help" || name == "-h" || name == "--help" {
		fmt.Fprint(t.out.w, usage)
		return false, nil
	}
	c, ok := commands[name]
	if !ok {
		// Flags may come first, too.
		for i, a := range args {
			if cmd, found := commands[a]; found {
				c, ok, name = cmd, true, a
				args = append([]string{a}, append(args[:i:i], args[i+1:]...)...)
				break
			}
		}
	}
	if !ok {
		return false, fmt.Errorf("%w: unknown command %q", errUsage, name)
	}
	rest, err := t.opt.parse(name, args[1:], stderr)
	if err != nil {
		return false, err
	}
	if len(rest) < 1+c.min || c.max >= 0 && len(rest) > 1+c.max {
		return false, fmt.Errorf("%w: %s takes %s", errUsage, name, c.args)
	}
	t.out.json = t.opt.JSON
	t.dir = rest[0]
	info, err := t.fs.Stat(t.dir)
	if err != nil {
		return false, fmt.Errorf("%s: %w", t.dir, err)
	}
	if !info.Dir {
		return false, fmt.Errorf("%s is not a directory", t.dir)
	}
	return c.run(t, rest[1:])
}

// snapshot looks at the directory; it has to be one of a broker.
func (t *tool) snapshot() (*recovery.Snapshot, error) {
	s, err := recovery.TakeSnapshot(t.fs, t.dir)
	if err != nil {
		return nil, err
	}
	if len(s.Logs) == 0 && s.IdentityErr != nil && s.StateErr != nil && s.Footer.To == 0 {
		return nil, fmt.Errorf("%s is not a data directory: %w", t.dir, s.IdentityErr)
	}
	return s, nil
}

// judged is a snapshot and what a start would do with it. It is taken again
// when files went away under the judge.
func (t *tool) judged() (*recovery.Snapshot, recovery.Verdict, error) {
	for i := 0; ; i++ {
		s, err := t.snapshot()
		if err != nil {
			return nil, recovery.Verdict{}, err
		}
		v := s.Check()
		if !recovery.Vanished(v.Refused) || i == 5 {
			return s, v, nil
		}
		if changed, err := s.Changed(); err != nil || !changed {
			return s, v, err
		}
	}
}
