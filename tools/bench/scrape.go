package main

import (
	"fmt"
	"io"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

// scrape is one reading of the broker's Prometheus metrics: samples by name with
// their labels.
type scrape map[string]float64

func (s *session) scrape() (scrape, error) {
	resp, err := http.Get(s.base + "/metrics/prometheus")
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("metrics: status %d: %.300s", resp.StatusCode, text)
	}
	return parseScrape(string(text)), err
}

func parseScrape(text string) scrape {
	all := scrape{}
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		i := strings.LastIndexByte(line, ' ')
		if i < 0 || line[0] == '#' {
			continue
		}
		if v, err := strconv.ParseFloat(line[i+1:], 64); err == nil {
			all[line[:i]] = v
		}
	}
	return all
}

// bucket is one bucket of a histogram: samples above the bound before it and not
// above its own.
type bucket struct {
	UpTo float64 `json:"upTo"` // seconds; the last one has none
	N    int64   `json:"n"`
}

// histogram is what a histogram got between two readings, empty buckets left out.
func histogram(before, after scrape, name string) (out []bucket) {
	type cumulative struct{ le, n float64 }
	var all []cumulative
	for key, n := range after {
		rest, ok := strings.CutPrefix(key, name+`_bucket{le="`)
		if !ok {
			continue
		}
		le, err := strconv.ParseFloat(strings.TrimSuffix(rest, `"}`), 64)
		if err != nil {
			continue
		}
		all = append(all, cumulative{le, n - before[key]})
	}
	slices.SortFunc(all, func(a, b cumulative) int {
		if a.le < b.le {
			return -1
		}
		return 1
	})
	last := 0.0
	for _, c := range all {
		if n := int64(c.n - last); n > 0 {
			if math.IsInf(c.le, 1) {
				c.le = 0
			}
			out = append(out, bucket{c.le, n})
		}
		last = c.n
	}
	return out
}

// atQuantile is the upper bound of the bucket that holds the sample at q.
func atQuantile(h []bucket, q float64) float64 {
	total := int64(0)
	for _, b := range h {
		total += b.N
	}
	left := int64(q * float64(total))
	for _, b := range h {
		if left -= b.N; left < 0 {
			return b.UpTo
		}
	}
	return 0
}
