package raftlog

import (
	"math/bits"
	"slices"

	"queen/index"
	"queen/segment"
)

// This file estimates what is left of the files of a log, and chooses what is worth doing.

// share is what is left of a file, by its side tables.
type share struct {
	FileInfo
	last   bool // the newest file of the log
	marked bool // an end mark is in it
	kinds  [shareKinds]sampled
	ids    uint64 // messages of which only the ids are left
	seen   uint64 // appends and values that tables tell of
}

const (
	shareAppends = iota
	shareIDs
	shareValues
	shareKinds
)

// sampled counts records; of some the size was read.
type sampled struct {
	n, samples uint64
	bytes      int64 // of the samples
}

// wants tells whether the record that was just counted is to be sampled: less and less often.
func (s *sampled) wants() bool {
	return bits.OnesCount64(s.n) == 1 || s.n%4096 == 0 && s.samples < 64
}

func (s *sampled) total() int64 {
	if s.samples == 0 {
		return 0
	}
	return int64(s.n) * s.bytes / int64(s.samples)
}

func (s *share) left() uint64 {
	return s.kinds[shareAppends].n + s.kinds[shareIDs].n + s.kinds[shareValues].n
}

// Sizes of ids records: what each takes, and each message in it, about.
const (
	idsRecord  = segment.RecordHeaderSize + 32
	idsMessage = 48
)

// size is about how large the file would be rewritten.
func (s *share) size() int64 {
	ids := min(s.kinds[shareIDs].total(), int64(s.kinds[shareIDs].n)*idsRecord+int64(s.ids)*idsMessage)
	return segment.HeaderSize + s.kinds[shareAppends].total() + s.kinds[shareValues].total() + ids
}

// shares looks at the sealed files of which no entry is above the checkpoint.
func (j *judge) shares(q *QueueLog, held []uint64) ([]*share, error) {
	q.busy.Lock()
	defer q.busy.Unlock()
	list, bySeq := q.shares(j.from, held)
	if len(bySeq) == 0 {
		return nil, nil
	}
	var failed error
	count := func(s *share, kind int, pos int64) {
		k := &s.kinds[kind]
		if k.n++; k.wants() && failed == nil {
			size, err := q.Log.RecordSize(s.Seq, pos)
			k.samples, k.bytes, failed = k.samples+1, k.bytes+size, err
		}
	}
	err := q.Index.Walk(func(r index.AppendRef) {
		s := bySeq[r.Seq]
		if s == nil {
			return
		}
		s.seen++
		switch j.append(r.Partition, r.First, r.Count, r.Time) {
		case whole:
			count(s, shareAppends, r.Pos)
		case idsOnly:
			count(s, shareIDs, r.Pos)
			s.ids += uint64(r.Count)
		}
	}, func(id, seq uint64, pos int64) {
		if s := bySeq[seq]; s != nil {
			if s.seen++; j.kept.Value(id) {
				count(s, shareValues, pos)
			}
		}
	})
	if err == nil {
		err = failed
	}
	// A file may be judged by its tables only when they tell of all that was in it when it was sealed.
	described := make(map[uint64]index.FileInfo)
	for _, f := range q.Index.Files() {
		described[f.Seq] = f
	}
	for i, s := range list {
		if s == nil {
			continue
		}
		if d, ok := described[s.Seq]; !ok || d.Generation != s.Generation || d.Size != s.Size || s.seen != d.Appends+d.Values {
			list[i] = nil
		}
	}
	return list, err
}

// shares lists the files that may be judged, in order; nil stands for one that may not.
func (q *QueueLog) shares(from uint64, held []uint64) (list []*share, bySeq map[uint64]*share) {
	q.mu.Lock()
	defer q.mu.Unlock()
	bySeq = make(map[uint64]*share)
	for i, f := range q.mu.files {
		if !f.Sealed || f.MaxIndex > from || slices.Contains(held, f.Seq) {
			list = append(list, nil)
			continue
		}
		s := &share{FileInfo: f, last: i == len(q.mu.files)-1}
		for _, m := range q.mu.ends {
			s.marked = s.marked || m.Seq == f.Seq
		}
		list = append(list, s)
		bySeq[f.Seq] = s
	}
	return list, bySeq
}

// job is one thing to do about a log.
type job struct {
	q     *QueueLog
	kind  jobKind
	seqs  []uint64 // rising
	sizes int64    // of these files now
}

type jobKind uint8

const (
	jobRemove  jobKind = iota + 1 // files of which nothing is left
	jobRewrite                    // one file becomes smaller
	jobMerge                      // several become one
	jobLog                        // the whole log
)

// Files smaller than a part of a full one are merged, mergeLeast of them or more; a merged file is at most half a full one.
const (
	smallPart  = 8
	mergeLeast = 4
	// wastePart: rewriting must free this part of a full file at least.
	wastePart = 64
)

// jobs chooses what to do. Files that are not worth it stay as they are.
func (j *judge) jobs(q *QueueLog, shares []*share) (out []job) {
	removed := job{q: q, kind: jobRemove}
	for i := 0; i < len(shares); i++ {
		s := shares[i]
		if s == nil {
			continue
		}
		if run := j.run(shares[i:]); len(run) > 0 {
			out = append(out, mergeJob(q, run))
			i += len(run) - 1
			continue
		}
		switch size := s.size(); {
		case s.left() == 0 && !s.last && !s.marked:
			removed.seqs = append(removed.seqs, s.Seq)
			removed.sizes += s.Size
		case (s.Size-size)*100 >= s.Size*int64(j.cfg.CompactMinDeadPct) && s.Size-size >= j.cfg.SegmentBytes/wastePart:
			out = append(out, job{q: q, kind: jobRewrite, seqs: []uint64{s.Seq}, sizes: s.Size})
		}
	}
	if len(removed.seqs) > 0 {
		out = append(out, removed)
	}
	return out
}

// run is the small files at the start of a list that are worth merging; nil: none. Files of which nothing is left
// go with them.
func (j *judge) run(shares []*share) []*share {
	small, total, n := 0, int64(0), 0
	for i, s := range shares {
		if s == nil || s.last || i > 0 && s.marked {
			break
		}
		size := s.size()
		if size > j.cfg.SegmentBytes/smallPart || total+size > j.cfg.SegmentBytes/2 {
			break
		}
		if s.left() == 0 {
			if small == 0 {
				break // it is removed by itself
			}
			continue
		}
		small, total, n = small+1, total+size, i+1
	}
	if small < mergeLeast {
		return nil
	}
	return shares[:n]
}

func mergeJob(q *QueueLog, run []*share) job {
	jb := job{q: q, kind: jobMerge}
	for _, s := range run {
		jb.seqs = append(jb.seqs, s.Seq)
		jb.sizes += s.Size
	}
	return jb
}
