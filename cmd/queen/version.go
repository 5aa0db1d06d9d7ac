package main

import (
	"fmt"
	"runtime"
	"runtime/debug"
)

// version is set by the build: -ldflags "-X main.version=...".
var version = "devel"

func versionLine() string {
	line := fmt.Sprintf("queen %s (%s, %s/%s)", version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				line += " " + s.Value
			}
		}
	}
	return line
}
