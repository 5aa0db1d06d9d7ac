package main

import "testing"

func TestHistogramOfTwoScrapes(t *testing.T) {
	before := parseScrape("# HELP h x\nh_bucket{le=\"0.001\"} 5\nh_bucket{le=\"0.01\"} 7\nh_bucket{le=\"+Inf\"} 7\nh_count 7\nother{a=\"b c\"} 3\n")
	after := parseScrape("h_bucket{le=\"0.001\"} 995\nh_bucket{le=\"0.01\"} 1006\nh_bucket{le=\"+Inf\"} 1007\n")
	if before[`other{a="b c"}`] != 3 || before["h_count"] != 7 {
		t.Fatalf("scraped %v", before)
	}
	h := histogram(before, after, "h")
	if len(h) != 3 || h[0] != (bucket{.001, 990}) || h[1] != (bucket{.01, 9}) || h[2] != (bucket{0, 1}) {
		t.Fatalf("buckets %v", h)
	}
	if p50, p995, most := atQuantile(h, .5), atQuantile(h, .995), atQuantile(h, 1-1e-12); p50 != .001 || p995 != .01 || most != 0 {
		t.Fatalf("p50 %v, p99.5 %v, most %v", p50, p995, most)
	}
}

func TestTenths(t *testing.T) {
	all := make([]float64, 101)
	for i := range all {
		all[i] = float64(i)
	}
	if got := tenths(all); len(got) != 11 || got[0] != 0 || got[5] != 50 || got[10] != 100 {
		t.Fatalf("tenths %v", got)
	}
}
