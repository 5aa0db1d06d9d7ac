package raftlog

import (
	"fmt"
	"slices"
	"sort"

	"go.etcd.io/raft/v3"
	pb "go.etcd.io/raft/v3/raftpb"
)

// TermRun says that the entries from First on, up to the next run, are of Term.
type TermRun struct {
	First uint64
	Term  uint64
}

// memLog is raft's Storage. It reads no file (F18): raft calls it from the
// loop, inside Step and Ready. The terms of the whole log are a table of runs;
// of the entries those above the applied index are kept, because raft fetches
// every committed entry from here once more to hand it out, and, where there are
// followers, a window of those before, which one that lags a little asks for.
//
// Invariant: runs[0].First == first-1, runs rise, and ents are consecutive and
// end at last.
//
// It belongs to the loop and is not safe for concurrent use.
type memLog struct {
	hard *pb.HardState
	conf *pb.ConfState

	first uint64 // index of the first entry that raft may ask for
	last  uint64
	runs  []TermRun
	ents  []*pb.Entry

	applied uint64
	window  int64 // bytes of entries that are kept although they are applied, for followers
	size    int64 // bytes of ents

	// What was read ahead for followers that are further behind, a run for each,
	// and where runs are wanted that are not here.
	ahead  [][]*pb.Entry
	missed []uint64
}

// aheadRuns is how many followers are served from the disk at once.
const aheadRuns = 4

var _ raft.Storage = (*memLog)(nil)

// newMemLog starts with a log that is empty but for its terms: runs cover
// [first-1, last], and ents are the entries that are not applied yet.
func newMemLog(hard *pb.HardState, conf *pb.ConfState, first, last uint64, runs []TermRun, ents []*pb.Entry) (*memLog, error) {
	if first == 0 || last+1 < first || len(runs) == 0 || runs[0].First != first-1 {
		return nil, fmt.Errorf("raft log: entries [%d, %d] with terms %v", first, last, runs)
	}
	if n := len(ents); n > 0 && ents[n-1].GetIndex() != last {
		return nil, fmt.Errorf("raft log: newest unapplied entry is %d, the log ends at %d", ents[n-1].GetIndex(), last)
	}
	l := &memLog{hard: hard, conf: conf, first: first, last: last, runs: runs, ents: ents}
	for _, e := range ents {
		l.size += entrySize(e)
	}
	return l, nil
}

// InitialState returns what the state file and the replay gave.
func (l *memLog) InitialState() (*pb.HardState, *pb.ConfState, error) {
	return l.hard, l.conf, nil
}

// FirstIndex follows the newest footer's from.
func (l *memLog) FirstIndex() (uint64, error) { return l.first, nil }

// LastIndex is the newest entry that is durable here.
func (l *memLog) LastIndex() (uint64, error) { return l.last, nil }

// Snapshot has none: the log is never gone while one node serves it.
func (l *memLog) Snapshot() (*pb.Snapshot, error) {
	return nil, raft.ErrSnapshotTemporarilyUnavailable
}

// Term returns the term of entry i.
func (l *memLog) Term(i uint64) (uint64, error) {
	if i+1 < l.first {
		return 0, raft.ErrCompacted
	}
	if i > l.last {
		return 0, raft.ErrUnavailable
	}
	return l.term(i), nil
}

func (l *memLog) term(i uint64) uint64 {
	k := sort.Search(len(l.runs), func(k int) bool { return l.runs[k].First > i })
	return l.runs[k-1].Term
}

// entryOverhead is what an entry costs beside its data where sizes are
// limited: term, index, type and their tags.
const entryOverhead = 24

func entrySize(e *pb.Entry) int64 { return int64(len(e.GetData())) + entryOverhead }

// Entries returns consecutive entries from lo on. What is no longer in memory
// is compacted as far as raft is concerned.
func (l *memLog) Entries(lo, hi, maxSize uint64) ([]*pb.Entry, error) {
	base := l.last + 1 - uint64(len(l.ents))
	if hi > l.last+1 {
		return nil, raft.ErrUnavailable
	}
	var ents []*pb.Entry
	switch {
	case lo < l.first:
		return nil, raft.ErrCompacted
	case lo >= base:
		ents = l.ents[lo-base : hi-base]
	default:
		if ents = l.readAhead(lo, min(hi, base)); len(ents) == 0 {
			return nil, raft.ErrCompacted // for now: raft asks again at the next heartbeat
		}
	}
	var size uint64
	for i, e := range ents {
		size += uint64(len(e.GetData())) + entryOverhead
		if size > maxSize && i > 0 {
			ents = ents[:i]
			break
		}
	}
	return append([]*pb.Entry(nil), ents...), nil
}

// readAhead gives what was read ahead from lo on, and asks for more in time.
func (l *memLog) readAhead(lo, hi uint64) []*pb.Entry {
	for i, run := range l.ahead {
		first, end := run[0].GetIndex(), run[len(run)-1].GetIndex()+1
		if lo < first || lo >= end {
			continue
		}
		if lo-first >= uint64(len(run))/2 {
			l.want(end) // the second half is being sent: the next run is due
		}
		l.ahead[0], l.ahead[i] = l.ahead[i], l.ahead[0]
		return run[lo-first : min(hi, end)-first]
	}
	l.want(lo)
	return nil
}

func (l *memLog) want(from uint64) {
	if base := l.last + 1 - uint64(len(l.ents)); from < base && !slices.Contains(l.missed, from) {
		l.missed = append(l.missed, from)
	}
}

// addAhead takes a run that was read ahead. The run used least lately makes room.
func (l *memLog) addAhead(run []*pb.Entry) {
	if len(run) == 0 {
		return
	}
	from := run[0].GetIndex()
	l.ahead = slices.DeleteFunc(l.ahead, func(r []*pb.Entry) bool { return r[0].GetIndex() == from })
	l.ahead = append([][]*pb.Entry{run}, l.ahead[:min(len(l.ahead), 2*aheadRuns-1)]...)
}

// runsFrom are the terms of the entries from first-1 to last.
func (l *memLog) runsFrom(first, last uint64) (runs []TermRun) {
	runs = []TermRun{{First: first - 1, Term: l.term(first - 1)}}
	for _, r := range l.runs {
		if r.First > first-1 && r.First <= last {
			runs = append(runs, r)
		}
	}
	return runs
}

// append takes entries that have become durable. Entries from ents[0] on that
// were there before are replaced (raft's truncation of a conflicting tail).
func (l *memLog) append(ents []*pb.Entry) {
	if len(ents) == 0 {
		return
	}
	at := ents[0].GetIndex()
	if at > l.last+1 || at < l.first {
		panic(fmt.Sprintf("raftlog: entry %d appended to a log of [%d, %d]", at, l.first, l.last))
	}
	l.truncate(at)
	for _, e := range ents {
		if l.term(l.last) != e.GetTerm() {
			l.runs = append(l.runs, TermRun{First: e.GetIndex(), Term: e.GetTerm()})
		}
		l.ents = append(l.ents, e)
		l.size += entrySize(e)
		l.last = e.GetIndex()
	}
}

func (l *memLog) truncate(at uint64) {
	if at > l.last {
		return
	}
	drop := int(min(l.last+1-at, uint64(len(l.ents))))
	for _, e := range l.ents[len(l.ents)-drop:] {
		l.size -= entrySize(e)
	}
	clear(l.ents[len(l.ents)-drop:])
	l.ents = l.ents[:len(l.ents)-drop]
	l.last = at - 1
	for len(l.runs) > 1 && l.runs[len(l.runs)-1].First >= at {
		l.runs = l.runs[:len(l.runs)-1]
	}
}

// release drops entries at or below applied, which raft has handed out, as far
// as the window for followers does not keep them.
func (l *memLog) release(applied uint64) {
	l.applied = applied
	base := l.last + 1 - uint64(len(l.ents))
	n := 0
	for n < len(l.ents) && base+uint64(n) <= applied && (l.window == 0 || l.size > l.window) {
		l.size -= entrySize(l.ents[n])
		l.ents[n] = nil
		n++
	}
	if l.ents = l.ents[n:]; len(l.ents) == 0 {
		l.ents = nil
	}
}

// compact moves the first index to from+1; the term of from is kept.
func (l *memLog) compact(from uint64) {
	if from < l.first || from > l.last {
		return
	}
	t := l.term(from)
	k := sort.Search(len(l.runs), func(k int) bool { return l.runs[k].First > from })
	l.runs = append([]TermRun{{First: from, Term: t}}, l.runs[k:]...)
	l.first = from + 1
}
