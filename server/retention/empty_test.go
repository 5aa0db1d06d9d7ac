package retention

import (
	"path"
	"slices"
	"testing"

	"queen/raftlog"
	"queen/segment"
)

// A power cut can leave a log of which only the header of its first file is
// durable. The entry that made the queue is cut, and the next queue gets its id:
// the log is not that of a deleted queue.
func TestEmptyLogOfALostQueueIsNotRemoved(t *testing.T) {
	r := newRig(t, 0)
	id := r.configure("before")
	r.stop()
	id++
	dir := path.Join("data/log", raftlog.LogDirName(id))
	l, err := segment.Open(segment.Options{FS: r.fs, Dir: dir, ID: id})
	if err == nil {
		_, err = l.Append([]byte("lost"))
	}
	if err == nil {
		err = l.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	f, err := r.fs.OpenReadWrite(path.Join(dir, segment.FileName(1)))
	if err == nil {
		err = f.Truncate(segment.HeaderSize)
	}
	if err == nil {
		err = f.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	r.start()
	r.checkpoint()
	if got := r.configure("after"); got != id {
		t.Fatalf("the queue has id %d, want %d", got, id)
	}
	r.push("after", "p", "t", "kept")
	r.reclaim()
	r.powerCut()
	if got := r.holds(); !slices.Equal(got, []string{"after/p kept"}) {
		t.Errorf("the message is gone: %q", got)
	}
	r.stop()
}
