package raftlog

import (
	"testing"
	"time"

	"queen/segment"
)

// A table that is made again while reclaim replaces its segment, whose new file is in place and not yet told to
// everybody, does not make the segment one that is lost.
func TestMendBesideAReplacedFile(t *testing.T) {
	cfg := Config{Clock: &jumpClock{}, ScrubEvery: time.Hour}
	s := newScrubRig(t, &cfg, 1)
	q := s.store.find(1)
	seq := q.Files()[0].Seq
	n := 0
	rw, err := q.Log.Rewrite([]uint64{seq}, func(add func([]byte) (int64, error)) error {
		_, err := q.Log.Scan(seq, 0, func(_ int64, body []byte) error {
			if n++; n%2 == 0 {
				return nil
			}
			_, err := add(body)
			return err
		})
		return err
	})
	if err == nil {
		err = rw.Swap()
	}
	if err != nil {
		t.Fatal(err)
	}
	rw.Show()
	if err := q.mendFile(seq); err != nil || len(q.mends.lost) > 0 {
		t.Errorf("%v; lost: %v", err, q.mends.lost)
	}
	// Damage of the file that is meant is kept, for this content of it only.
	damaged := q.Files()[1].Seq
	if err := cfg.FS.(interface {
		Flip(string, int64, byte) error
	}).Flip("d/log/q1/"+segment.FileName(damaged), 100, 1); err != nil {
		t.Fatal(err)
	}
	if err := q.mendFile(damaged); err == nil || len(q.mends.lost) != 1 {
		t.Errorf("%v; lost: %v", err, q.mends.lost)
	}
	q.mu.files[1].Generation++
	if q.mends.lost[segmentID{damaged, q.Files()[1].Generation}] != nil {
		t.Error("another content is said to be lost")
	}
}
