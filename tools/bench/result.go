package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"queen/tools/internal/broker"
)

// Result is one run as it is printed and kept. Latencies are in milliseconds:
// for step of the transaction (P) and of pop and transaction (Cycle), for push
// of the call, for e2e from due to received (P) and to acked (Cycle).
type Result struct {
	At       string `json:"at"`
	Workload string `json:"workload"`
	Run      int    `json:"run"` // 0 = the median of the runs before
	Via      string `json:"via,omitempty"`
	Batch    int    `json:"batch,omitempty"`
	Workers  int    `json:"workers,omitempty"`
	Rate     int    `json:"rate,omitempty"`

	Seconds  float64 `json:"seconds"`
	Ops      int64   `json:"ops"`
	OpsPerS  float64 `json:"opsPerS"` // steps, calls
	MsgsPerS float64 `json:"msgsPerS"`
	P50      float64 `json:"p50"`
	P99      float64 `json:"p99"`
	P999     float64 `json:"p999"`
	Cycle50  float64 `json:"cycle50,omitempty"`
	Cycle99  float64 `json:"cycle99,omitempty"`
	Cycle999 float64 `json:"cycle999,omitempty"`

	ServerCPU    float64         `json:"serverCPU"` // seconds per 1,000 operations
	ClientCPU    float64         `json:"clientCPU"`
	RSSMB        float64         `json:"rssMB"`
	DeviceBytes  float64         `json:"deviceBytesPerMsg"`
	Fsyncs       int64           `json:"fsyncs"` // in the window; -1 = the broker does not tell
	FsyncsPerOp  float64         `json:"fsyncsPerOp,omitempty"`
	EmptyRSSMB   float64         `json:"emptyRSSMB,omitempty"`
	LoadedRSSMB  float64         `json:"loadedRSSMB,omitempty"`  // right after the load, before idling
	BytesEach    float64         `json:"bytesEach,omitempty"`    // (RSS - empty RSS) / number
	Probes       []Probe         `json:"fdatasync,omitempty"`    // of the same directory, right after
	OverProbe50  float64         `json:"overProbe50,omitempty"`  // P50 - p50 of the broker's write mode
	OverProbe99  float64         `json:"overProbe99,omitempty"`  // P99 - the same p50
	OutputsCheck string          `json:"outputsCheck,omitempty"` // how outputs were counted
	Hold         *HoldResult     `json:"hold,omitempty"`
	Overload     *OverloadResult `json:"overload,omitempty"`
	Note         string          `json:"note,omitempty"`
}

func newResult(c *Config, lanes []*lane, before, after broker.Usage) *Result {
	r := &Result{
		At: before.At.UTC().Format(time.RFC3339), Workload: c.Workload, Via: c.Via, Batch: c.Batch, Workers: c.Workers, Rate: c.Rate,
		Seconds: after.At.Sub(before.At).Seconds(),
	}
	var lat, cycle []time.Duration
	var msgs int64
	for _, l := range lanes {
		r.Ops += l.ops
		msgs += l.msgs
		lat = append(lat, l.lat...)
		cycle = append(cycle, l.cycle...)
	}
	slices.Sort(lat)
	slices.Sort(cycle)
	r.OpsPerS, r.MsgsPerS = float64(r.Ops)/r.Seconds, float64(msgs)/r.Seconds
	r.P50, r.P99, r.P999 = ms(quantile(lat, .5)), ms(quantile(lat, .99)), ms(quantile(lat, .999))
	r.Cycle50, r.Cycle99, r.Cycle999 = ms(quantile(cycle, .5)), ms(quantile(cycle, .99)), ms(quantile(cycle, .999))
	r.Fsyncs = -1
	if r.Ops == 0 {
		return r
	}
	ops := float64(r.Ops)
	r.ServerCPU = (after.Server - before.Server) / ops * 1000
	r.ClientCPU = (after.Client - before.Client) / ops * 1000
	r.DeviceBytes = float64(after.Device-before.Device) / float64(msgs)
	if before.Fsyncs >= 0 && after.Fsyncs >= 0 {
		r.Fsyncs = after.Fsyncs - before.Fsyncs
		r.FsyncsPerOp = float64(r.Fsyncs) / ops
	}
	return r
}

func ms(d time.Duration) float64 { return float64(d) / 1e6 }

// median returns the run of median throughput.
func median(all []*Result) *Result {
	s := slices.Clone(all)
	slices.SortFunc(s, func(a, b *Result) int {
		switch {
		case a.OpsPerS < b.OpsPerS:
			return -1
		case a.OpsPerS > b.OpsPerS:
			return 1
		}
		return 0
	})
	return s[(len(s)-1)/2]
}

const (
	rateHead = "%-10s %-6s %5s %7s %9s %9s %8s %8s %8s %8s %8s %8s %9s %9s %7s %9s %8s  %s\n"
	rateLine = "%-10s %-6s %5d %7d %9.0f %9.0f %8.3f %8.3f %8.3f %8.3f %8.3f %8.3f %9.4f %9.4f %7.0f %9.0f %8d  %s\n"
)

// print writes the run as a line of a table, with the head before it.
func (r *Result) print(w io.Writer, head bool) {
	run := fmt.Sprint(r.Run)
	if r.Run == 0 {
		run = "median"
	}
	if r.EmptyRSSMB > 0 {
		fmt.Fprintf(w, "%s: VmRSS empty %.1f MB, after the load %.1f MB, after idling %.1f MB", r.Workload, r.EmptyRSSMB, r.LoadedRSSMB, r.RSSMB)
		fmt.Fprintf(w, "; %.0f bytes for each of %d; loaded at %.0f msg/s  %s\n", r.BytesEach, r.Ops, r.MsgsPerS, r.Note)
		return
	}
	if head {
		fmt.Fprintf(w, rateHead, "workload", "run", "batch", "workers", "ops/s", "msg/s", "p50 ms", "p99", "p999", "cycle50", "cyc99", "cyc999",
			"cpu s/1k", "client", "rss MB", "dev B/msg", "fsyncs", "note")
	}
	name := r.Workload
	if r.Via == "transaction" {
		name = "push(txn)"
	}
	fmt.Fprintf(w, rateLine, name, run, r.Batch, r.Workers, r.OpsPerS, r.MsgsPerS, r.P50, r.P99, r.P999, r.Cycle50, r.Cycle99, r.Cycle999,
		r.ServerCPU, r.ClientCPU, r.RSSMB, r.DeviceBytes, r.Fsyncs, r.Note)
	if r.Overload != nil {
		r.Overload.print(w)
	}
	if r.Hold != nil {
		r.Hold.print(w)
	}
	for _, p := range r.Probes {
		fmt.Fprintf(w, "           fdatasync, %s\n", p)
	}
	if len(r.Probes) > 0 {
		fmt.Fprintf(w, "           over the p50 of %s: p50 +%.3f ms, p99 +%.3f ms\n", r.Probes[0].Mode, r.OverProbe50, r.OverProbe99)
	}
}

// record appends the run to the results file.
func (r *Result) record(path string) error {
	if path == "" {
		return nil
	}
	line, err := json.Marshal(r)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	if _, err = f.Write(append(line, '\n')); err != nil {
		f.Close()
		return err
	}
	return f.Close()
}
