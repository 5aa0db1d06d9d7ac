package main

import "golang.org/x/sys/unix"

// descriptors divides the process's limit of open files: the log keeps its
// files open within one part, connections take another, and the rest is for
// everything else, so that no client can take what a write needs.
func descriptors() (files, connections int) {
	const others = 64
	var r unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &r); err != nil || r.Cur > 1<<20 {
		return 512, 1 << 20
	}
	limit := int(r.Cur)
	files = min(max(limit/4, 32), 512)
	return files, max(limit-files-others, 16)
}
