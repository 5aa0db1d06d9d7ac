package retention

import (
	"bytes"
	"fmt"
	"log/slog"
	"path"
	"strings"
	"sync"
	"testing"
	"time"

	"queen/raftlog"
)

const scrubEvery = 100 * time.Second

// scrubbed is a rig on a worn directory, all of it sealed and checkpointed, whose scrub is fast.
func scrubbed(t *testing.T) *rig {
	r := worn(t, 0)
	r.group = func(c *raftlog.Config) {
		c.ScrubEvery, c.ScrubBytes, c.ScrubRows, c.SealAge = scrubEvery, 1<<30, 1<<30, time.Second
	}
	r.start()
	r.reclaim()
	return r
}

func (r *rig) scrub() raftlog.Scrubbed { return r.b.Status().Scrub }

// scrubPass lets a pass of the scrub end.
func (r *rig) scrubPass() raftlog.Scrubbed {
	r.t.Helper()
	was := r.scrub().Passes
	r.await(func() bool {
		r.clock.advance(scrubEvery / 10)
		return r.scrub().Passes > was
	})
	return r.scrub()
}

// kinds gives one file of each kind that the scrub reads, by a name for it.
func (r *rig) kinds() map[string]string {
	r.t.Helper()
	kinds := map[string]string{}
	logs, err := r.fs.List("data/log")
	if err != nil {
		r.t.Fatal(err)
	}
	for _, l := range logs {
		dir := path.Join("data/log", l.Name)
		infos, err := r.fs.List(dir)
		if err != nil {
			r.t.Fatal(err)
		}
		have := map[string]bool{}
		for _, i := range infos {
			have[i.Name] = true
		}
		for _, i := range infos {
			kind := path.Ext(i.Name)
			switch base := strings.TrimSuffix(i.Name, kind); {
			case strings.HasPrefix(base, "l"):
				kind = "merged " + kind
			case kind == ".seg" && !have[base+".idx"]:
				continue // not sealed, or described by a merged table
			}
			kinds[kind] = path.Join(dir, i.Name)
		}
	}
	rows, err := r.fs.List("data/checkpoint")
	if err != nil {
		r.t.Fatal(err)
	}
	kinds[".rows"] = path.Join("data/checkpoint", rows[len(rows)-1].Name)
	return kinds
}

// A flipped bit anywhere in any kind of file is found by one pass, told in one line, and makes the node unwell until a
// pass finds nothing. What is derived is made again meanwhile; the node serves all the time.
func TestScrubFindsEveryKind(t *testing.T) {
	base := scrubbed(t)
	want := base.holds()
	if s := base.scrubPass(); s.Findings != 0 || s.Last.Files < 5 || s.Last.Rows < 50 || s.Last.Bytes < 50<<10 {
		t.Fatalf("a pass over sound files: %+v", s)
	}
	kinds := base.kinds()
	for _, kind := range []string{".seg", ".idx", ".dedup", ".rows"} {
		if kinds[kind] == "" {
			t.Fatalf("no %s among %v", kind, kinds)
		}
	}
	base.stop()
	image, passed := base.fs, base.clock.passed
	for kind, file := range kinds {
		for _, at := range []string{"start", "middle", "end"} {
			t.Run(kind+" "+at, func(t *testing.T) {
				var log lines
				r := &rig{t: t, fs: image.Clone(), clock: newClock(), seq: 1 << 40, group: base.group, logger: slog.New(slog.NewTextHandler(&log, nil))}
				r.clock.passed = passed
				r.start()
				info, err := r.fs.Stat(file)
				if err != nil {
					t.Fatal(err)
				}
				pos := map[string]int64{"start": 3, "middle": info.Size / 2, "end": info.Size - 3}[at]
				if err := r.fs.Flip(file, pos, 4); err != nil {
					t.Fatal(err)
				}
				s := r.scrubPass()
				if s.Last.Findings != 1 || s.Findings != 1 || !strings.Contains(s.Damage, file) {
					t.Fatalf("after a flip at %d of %d bytes of %s: %+v", pos, info.Size, file, s)
				}
				told := log.with("the scrub has found damage")
				if len(told) != 1 {
					t.Fatalf("%d lines: %q", len(told), told)
				}
				for _, part := range []string{"file=" + file, "pos=", "expected=", "found=", "do="} {
					if !strings.Contains(told[0], part) {
						t.Errorf("no %q in %s", part, told[0])
					}
				}
				if kind == ".seg" {
					r.push("c", "p0", fmt.Sprint("served", at), "still")
					r.gone()
					return
				}
				r.checkpoint() // rows get a new file
				if s := r.scrubPass(); s.Last.Findings != 0 || s.Damage != "" {
					t.Errorf("it was not made again: %+v", s)
				}
				if got := r.holds(); len(got) != len(want) {
					t.Errorf("%d messages and values, want %d", len(got), len(want))
				}
				r.kill()
				if got := r.holds(); len(got) != len(want) {
					t.Errorf("after a start: %d messages and values, want %d", len(got), len(want))
				}
				r.stop()
			})
		}
	}
}

// A file that is gone is damage, too.
func TestScrubMissesAFile(t *testing.T) {
	r := scrubbed(t)
	file := r.kinds()[".seg"]
	if err := r.fs.Remove(file); err != nil {
		t.Fatal(err)
	}
	now := r.clock.Now().Wall
	s := r.scrubPass()
	for s.Last.Begun <= now { // it may have been past the file already
		s = r.scrubPass()
	}
	if s.Last.Findings != 1 || !strings.Contains(s.Damage, file) {
		t.Errorf("%+v", s)
	}
	r.gone()
}

// Files that reclaim removes, rewrites and merges under a pass are no damage, wherever in them it stands.
func TestScrubBesideReclaim(t *testing.T) {
	for _, pace := range []int64{16 << 10, 64 << 10, 256 << 10} {
		t.Run(fmt.Sprint(pace), func(t *testing.T) {
			r := worn(t, 0)
			r.group = func(c *raftlog.Config) {
				c.ScrubEvery, c.ScrubBytes, c.ScrubRows, c.SealAge = 20*time.Second, pace, 1000, time.Second
			}
			r.start()
			c, beside := r.b.Reclaimed(), 0
			for i := 0; i < 40 || r.scrub().Passes == 0 && i < 400; i++ {
				was, freed := r.scrub(), c.Files.Load()+c.Rewrites.Load()+c.Merges.Load()
				r.checkpoint()
				if now := r.scrub(); (was.Running || now.Bytes > was.Bytes) && c.Files.Load()+c.Rewrites.Load()+c.Merges.Load() > freed {
					beside++
				}
				r.push("c", "p1", fmt.Sprint("more", r.seq), text)
			}
			s := r.scrub()
			if s.Findings != 0 {
				t.Errorf("%+v", s)
			}
			if s.Passes == 0 || beside == 0 || c.Rewrites.Load() == 0 || c.Files.Load() == 0 || c.Logs.Load() == 0 {
				t.Errorf("passes %d, beside reclaim %d; rewrites %d, files %d, merges %d, logs %d", s.Passes, beside, c.Rewrites.Load(), c.Files.Load(), c.Merges.Load(), c.Logs.Load())
			}
			r.stop()
		})
	}
}

// A checkpoint that is found damaged when files are to be freed by it ends nothing: a new one takes its place.
func TestReclaimMeetsADamagedCheckpoint(t *testing.T) {
	r := worn(t, 0)
	r.start()
	want := len(r.holds())
	r.checkpoint()
	rows, err := r.fs.List("data/checkpoint")
	if err != nil {
		t.Fatal(err)
	}
	if err := r.fs.Flip(path.Join("data/checkpoint", rows[len(rows)-1].Name), rows[len(rows)-1].Size/2, 1); err != nil {
		t.Fatal(err)
	}
	c := r.b.Reclaimed()
	for c.Failures.Load() == 0 {
		r.putKey()
		r.clock.advance(time.Minute)
		r.await(func() bool { return c.Failures.Load() > 0 || len(r.fatal) > 0 || r.b.Status().InFlight == 0 })
		if len(r.fatal) > 0 {
			t.Fatal(<-r.fatal)
		}
	}
	r.reclaim()
	r.kill()
	if got := len(r.holds()); got != want {
		t.Errorf("%d messages and values, want %d", got, want)
	}
	r.stop()
}

// lines is a log that can be looked into while it is written.
type lines struct {
	mu  sync.Mutex
	all bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all.Write(p)
}

// with gives the lines that have a text in them.
func (l *lines) with(part string) (out []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range strings.Lines(l.all.String()) {
		if strings.Contains(line, part) {
			out = append(out, line)
		}
	}
	return out
}
