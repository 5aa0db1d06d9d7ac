// Command queen is the broker.
//
//	queen serve      run it; every setting is an environment variable
//	queen version    print the version
//
// serve prints its address when it is ready, and ends with status 0 on SIGTERM
// or SIGINT once the calls in flight are answered. It ends with status 1, and
// a line that starts with FATAL, when it must not start or cannot go on.
package main

import (
	"fmt"
	"io"
	"os"
)

const usage = `usage:
  queen serve [--help]   run the broker; --help lists the settings
  queen version          print the version
`

func main() { os.Exit(run(os.Args[1:], os.Environ(), os.Stdout, os.Stderr)) }

// run is main without the process: it returns the exit status.
func run(args, environ []string, stdout, stderr io.Writer) int {
	if len(args) == 0 {
		fmt.Fprint(stderr, usage)
		return 2
	}
	switch args[0] {
	case "serve":
		return serve(args[1:], environ, stdout, stderr)
	case "version", "--version":
		fmt.Fprintln(stdout, versionLine())
		return 0
	case "help", "--help", "-h":
		fmt.Fprint(stdout, usage)
		return 0
	default:
		fmt.Fprintf(stderr, "queen: unknown command %q\n%s", args[0], usage)
		return 2
	}
}
