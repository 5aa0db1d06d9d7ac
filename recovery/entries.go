package recovery

import (
	"fmt"
	"io"

	pb "go.etcd.io/raft/v3/raftpb"

	"queen/raftlog"
)

// entries reads a stretch of the log beside a running group: applied entries,
// which no cut reaches, and which reclaim leaves alone from raft's first index on.
type entries struct {
	m    *image
	upTo uint64
	next *pb.Entry
}

// readEntries gives the entries from one to another, both included.
func readEntries(s *raftlog.Store, from, upTo uint64) raftlog.EntrySource {
	e := &entries{upTo: upTo, m: &image{live: upTo, footer: raftlog.Footer{From: from - 1, To: upTo}}}
	e.m.emit = func(next *pb.Entry) { e.next = next }
	logs := s.Logs()
	files := make([][]scanFile, len(logs))
	reading := 0
	for i, q := range logs {
		if files[i] = filesBetween(q, from, upTo); len(files[i]) > 0 {
			reading++
		}
	}
	for i, q := range logs {
		if len(files[i]) > 0 {
			e.m.all = append(e.m.all, newCursorUpTo(q, files[i], windowOf(reading), e.m.note, upTo))
		}
	}
	e.m.begin()
	return e
}

// Next implements raftlog.EntrySource.
func (e *entries) Next() (*pb.Entry, error) {
	for e.next = nil; e.next == nil; {
		if len(e.m.cursors) == 0 && e.m.last < e.upTo {
			e.m.stopAt(e.m.last+1, missingEverywhere, place{})
		}
		switch {
		case e.m.stopped != 0:
			err := fmt.Errorf("entry %d: %s: %w", e.m.last+1, e.m.missingText(), raftlog.ErrNotAllThere)
			for _, c := range e.m.all {
				if c.err != nil {
					err = fmt.Errorf("%w: %w", err, c.err)
				}
			}
			return nil, err
		case e.m.last == e.upTo:
			return nil, io.EOF
		}
		if err := e.m.step(); err != nil {
			return nil, err
		}
	}
	return e.next, nil
}

// Close implements raftlog.EntrySource.
func (e *entries) Close() {
	for _, c := range e.m.all {
		c.stop()
	}
}

// filesBetween lists the files of a running log that hold records of entries
// from one to another.
func filesBetween(q *raftlog.QueueLog, from, upTo uint64) (files []scanFile) {
	all := q.Files()
	for i, f := range all {
		if f.MinIndex != 0 && f.MaxIndex >= from && f.MinIndex <= upTo {
			files = append(files, scanFile{seq: f.Seq, size: f.Size, sealed: f.Sealed, newest: i == len(all)-1})
		}
	}
	return files
}
