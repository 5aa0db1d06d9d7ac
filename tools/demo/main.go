// Command demo shows the broker's main promise on a payment step, over HTTP, on
// a broker of its own: a free port and a scratch folder.
//
// A worker takes a payment request under a lease, charges the card at a
// provider, and commits one step: the request is acked, a receipt is pushed, the
// order's state is written, a reminder is scheduled, and a marker says that this
// payment was charged, all in one call. The provider sends its event twice, and
// the marker refuses the second one. Then the broker is killed with -9: once
// between two steps, once with a step half received, once with a step sent and
// not answered. After each restart every part of every step is read back.
//
// Each check is a line with what was expected and what was found. The first
// difference ends the demo with exit code 1.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"queen/tools/internal/api"
	"queen/tools/internal/broker"
)

func main() {
	queen := flag.String("queen", "bin/queen", "the broker's binary")
	dir := flag.String("dir", "", "scratch directory; a temporary one by default")
	keep := flag.Bool("keep", false, "keep the scratch directory")
	flag.Parse()
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	if err := run(ctx, os.Stdout, *queen, *dir, *keep); err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
	fmt.Println("demo: every check held")
}

func run(ctx context.Context, out io.Writer, queen, dir string, keep bool) error {
	dir, err := scratch(dir)
	if err != nil {
		return err
	}
	d := &demo{ctx: ctx, out: out, queen: queen, dir: dir}
	defer d.end()
	if err := d.start(); err != nil {
		return err
	}
	for _, scene := range d.scenes() {
		fmt.Fprintln(out, scene.title)
		if err := scene.play(); err != nil {
			fmt.Fprintf(out, "the data directory and the broker's log are kept: %s\n", dir)
			return err
		}
	}
	if keep {
		fmt.Fprintln(out, "kept:", dir)
		return nil
	}
	return os.RemoveAll(dir)
}

func scratch(dir string) (string, error) {
	if dir == "" {
		return os.MkdirTemp("", "queen-demo-")
	}
	return dir, os.MkdirAll(dir, 0o755)
}

// demo is a broker and what it has been told so far.
type demo struct {
	ctx    context.Context
	out    io.Writer
	queen  string
	dir    string
	proc   *broker.Process
	api    *api.Client
	reader int   // numbers the groups that read back
	done   []int // payments whose step is committed, in order
}

func (d *demo) start() error {
	p, err := broker.Start(d.ctx, broker.Options{Binary: d.queen, Dir: filepath.Join(d.dir, "data"), Ready: 20 * time.Second})
	if err != nil {
		return err
	}
	d.proc = p
	d.api = api.New(p.URL(), 10*time.Second)
	return nil
}

// restart starts the broker again on what the kill left.
func (d *demo) restart() error {
	d.api.Close()
	return d.start()
}

func (d *demo) end() {
	if d.proc != nil {
		d.proc.Kill()
	}
}

// check compares one thing. found is printed as it is compared.
type check struct {
	what            string
	expected, found any
}

// checks prints a line for each check, up to the first difference, which is its
// error.
func (d *demo) checks(list ...check) error {
	for _, c := range list {
		expected, found := fmt.Sprint(c.expected), fmt.Sprint(c.found)
		if expected != found {
			fmt.Fprintf(d.out, "  FAIL  %s: expected %s, found %s\n", c.what, expected, found)
			return fmt.Errorf("%s: expected %s, found %s", c.what, expected, found)
		}
		fmt.Fprintf(d.out, "  ok    %s: expected %s, found %s\n", c.what, expected, found)
	}
	return nil
}
