package main

import (
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Probe is what the disk alone takes for a durable write: write, then fdatasync,
// of each of some files at once, until the last one is done.
type Probe struct {
	Mode string  `json:"mode"`
	P50  float64 `json:"p50"` // ms
	P99  float64 `json:"p99"`
}

func (p Probe) String() string {
	return fmt.Sprintf("%s: p50 %.3f ms, p99 %.3f ms", p.Mode, p.P50, p.P99)
}

// probeDisk measures the write modes that a log can have, in dir. The first
// probe is the broker's: each write makes the file grow.
func probeDisk(dir string, size int) ([]Probe, error) {
	var out []Probe
	for _, m := range []struct {
		mode  string
		files int
		ready bool // the space was written and synced before
	}{{"growing file", 1, false}, {"2 growing files", 2, false}, {"prepared file", 1, true}} {
		p, err := probe(dir, fmt.Sprintf("%s, %d bytes", m.mode, size), m.files, size, m.ready)
		if err != nil {
			return nil, fmt.Errorf("fdatasync probe: %w", err)
		}
		out = append(out, p)
	}
	return out, nil
}

func probe(dir, mode string, files, size int, ready bool) (Probe, error) {
	const writes = 1500
	data := make([]byte, size)
	rand.Read(data)
	fs := make([]*os.File, files)
	for i := range fs {
		f, err := os.Create(filepath.Join(dir, fmt.Sprintf("probe-%d", i)))
		if err != nil {
			return Probe{}, err
		}
		defer os.Remove(f.Name())
		defer f.Close()
		if ready {
			if _, err := f.WriteAt(make([]byte, writes*size), 0); err != nil {
				return Probe{}, err
			}
		}
		if err := f.Sync(); err != nil {
			return Probe{}, err
		}
		fs[i] = f
	}
	lat := make([]time.Duration, writes)
	errs := make([]error, files)
	for n := range lat {
		start := time.Now()
		var wg sync.WaitGroup
		for i, f := range fs[1:] {
			wg.Go(func() { errs[i+1] = durable(f, data, int64(n*size)) })
		}
		errs[0] = durable(fs[0], data, int64(n*size))
		wg.Wait()
		lat[n] = time.Since(start)
		for _, err := range errs {
			if err != nil {
				return Probe{}, err
			}
		}
	}
	slices.Sort(lat)
	return Probe{Mode: mode, P50: ms(quantile(lat, .5)), P99: ms(quantile(lat, .99))}, nil
}

func durable(f *os.File, data []byte, pos int64) error {
	if _, err := f.WriteAt(data, pos); err != nil {
		return err
	}
	return unix.Fdatasync(int(f.Fd()))
}
