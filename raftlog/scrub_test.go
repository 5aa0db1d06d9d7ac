package raftlog

import (
	"fmt"
	"testing"
	"time"

	pb "go.etcd.io/raft/v3/raftpb"

	"queen/index"
	"queen/internal/vfs"
)

// jumpClock moves to the time that the scrub waits for.
type jumpClock struct{ Times }

func (c *jumpClock) Now() Times      { return c.Times }
func (c *jumpClock) NewTimer() Timer { return nil }

// newScrubRig makes a scrubber over some sealed files with tables, and a checkpoint of so many rows.
func newScrubRig(t *testing.T, cfg *Config, rows int) *scrubber {
	fsys := vfs.NewMem(1)
	w := newWriter(t, fsys, 0)
	w.store.opt.SegmentBytes = 16 << 10
	for i := range uint64(400) {
		if err := w.syncNow(appendRequest{entries: []*pb.Entry{planOf(i+1, 1, []uint64{1, 2})}}); err != nil {
			t.Fatal(err)
		}
	}
	w.store.SetApplied(400)
	for _, q := range w.store.Logs() {
		q.retire()
		files, _ := q.sealable(400)
		for _, f := range files {
			if err := q.seal(f); err != nil {
				t.Fatal(err)
			}
		}
		if n := len(files); n < 3 && q.ID != SystemLog {
			t.Fatalf("log q%d has %d sealed files", q.ID, n)
		}
	}
	r, _, err := index.OpenRows(fsys, "d/checkpoint", nil)
	if err == nil {
		err = r.Begin(true)
	}
	for i := range rows {
		if err == nil {
			err = r.Put(fmt.Append(nil, "key", i), []byte("value"))
		}
	}
	if err == nil {
		err = r.Finish(index.Footer{From: 1, To: 1})
	}
	if err != nil {
		t.Fatal(err)
	}
	cfg.FS, cfg.Dir = fsys, "d"
	*cfg = cfg.WithDefaults()
	return newScrubber(w.store, cfg, r.Snapshot, func(file string) { t.Errorf("%s is said to be damaged", file) })
}

// The scrub reads what its pace allows in any stretch of time, and not more; at that pace it goes on to the end.
func TestScrubKeepsItsPace(t *testing.T) {
	const bytes, rows, atOnce = 32 << 10, 50, 4 << 10
	clock := &jumpClock{Times{Mono: 1}}
	cfg := Config{Clock: clock, ScrubEvery: time.Hour, ScrubBytes: bytes, ScrubRows: rows}
	s := newScrubRig(t, &cfg, 1234)
	snap, err := s.snapshot()
	if err != nil {
		t.Fatal(err)
	}
	checkpoint := snap.Size() // counted when all of it has been read
	var waits int
	s.wait = func(until int64) bool {
		waits++
		seconds := float64(clock.Mono-1) / 1e9
		got := s.status()
		files := got.Bytes
		if files > 0 {
			files -= checkpoint
		}
		// What was read since the last wait is paid for by this one.
		if float64(got.Rows)/rows+float64(files)/bytes > seconds+float64(rows/soonPart)/rows+float64(atOnce+2<<10)/bytes {
			t.Errorf("%d rows and %d bytes in %.3f s", got.Rows, files, seconds)
		}
		clock.Wall += (until - clock.Mono) / 1000
		clock.Mono = max(clock.Mono, until)
		return true
	}
	if err := s.pass(); err != nil {
		t.Fatal(err)
	}
	last := s.status().Last
	if last.Findings != 0 || last.Rows != 1235 || last.Files < 6 || waits < 50 {
		t.Fatalf("%d waits: %+v", waits, last)
	}
	least := float64(last.Rows)/rows + float64(last.Bytes-checkpoint)/bytes
	if took := float64(last.Ended-last.Begun) / 1e6; took < least-0.001 || took > least+0.001 {
		t.Errorf("a pass of %d bytes and %d rows took %.3f s, at the pace it is %.3f", last.Bytes, last.Rows, took, least)
	}
	clock.Wall = last.Ended
	if next := s.nextPass() - clock.Mono; next != int64(time.Hour)-(last.Ended-last.Begun)*1000 {
		t.Errorf("the next pass begins after %v", time.Duration(next))
	}
}
