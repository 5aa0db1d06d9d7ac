package fsm

import "sort"

// What readings see of the statistics, and of queues added up. Each looks at a slice's worth and goes on in another read.

// StatPoint is a bucket of a series.
type StatPoint struct {
	Start int64 // microseconds
	Tally
}

// StatRange selects buckets: of so many minutes, those that overlap [From, To].
type StatRange struct {
	Width    int64 // minutes, one of those of StatWidth
	From, To int64 // microseconds
}

// StatWidth is the width of the buckets, in minutes, that show the time from from to to: narrow ones for a short time, but
// not narrower than what is kept that far back. total: of a tenant's series.
func (s *State) StatWidth(from, to int64, total bool) int64 {
	now := max(s.now, s.time)
	spans := [len(statTiers)]int64{60, 6 * 60, 24 * 60, 7 * 24 * 60, 0}
	for tier := range statTiers[:len(statTiers)-1] {
		t := &statTiers[tier]
		keep := t.keep
		if total {
			keep = t.total
		}
		if to-from <= spans[tier]*microsPerMinute && now-from <= keep*microsPerMinute {
			return t.width
		}
	}
	return statTiers[len(statTiers)-1].width
}

// StatSince is from when on buckets of a width are kept, in microseconds.
func (s *State) StatSince(width int64, total bool) int64 {
	for _, t := range statTiers {
		if t.width != width || t.keep == 0 {
			continue
		}
		if total {
			t.keep = t.total
		}
		return max(s.now, s.time) - t.keep*microsPerMinute
	}
	return 0
}

// points are the buckets of a range, oldest first. The running minute is in them.
func (s *series) points(r *StatRange) (out []StatPoint) {
	tier := sort.Search(len(statTiers), func(i int) bool { return statTiers[i].width >= r.Width })
	if tier == len(statTiers) {
		return nil
	}
	width := statTiers[tier].width
	from, to := r.From/microsPerMinute/width*width, r.To/microsPerMinute
	for _, row := range s.rows[tier][s.at(tier, from):] {
		if int64(row.start) > to {
			break
		}
		p := StatPoint{Start: int64(row.start) * microsPerMinute}
		if p.decode(row.enc) == nil {
			out = append(out, p)
		}
	}
	if s.minute == 0 {
		return out
	}
	start := s.minute / width * width
	if start < from || start > to {
		return out
	}
	cur := s.cur
	s.lag.peek(&cur)
	if s.q != nil {
		s.sample(&cur)
	}
	if n := len(out); n > 0 && out[n-1].Start == start*microsPerMinute {
		out[n-1].Add(&cur)
		return out
	}
	return append(out, StatPoint{Start: start * microsPerMinute, Tally: cur})
}

// Stats are the buckets of all queues of a tenant together, oldest first; those that counted nothing are not there.
func (s *State) Stats(tenant string, r *StatRange) []StatPoint {
	t, ok := s.totals.Get(tenant)
	if !ok {
		return nil
	}
	return t.points(r)
}

// QueueFilter selects queues by name and labels. A listing that was not finished goes on with the same filter.
type QueueFilter struct {
	Queue, Namespace, Task string
	HasNamespace, HasTask  bool
	From, To               int64 // microseconds; the queue existed, and was pushed to, in this time. 0: open
	Offset, Limit          int   // how many to skip and to list; counted down
	after                  string
	begun                  bool
}

func (f *QueueFilter) matches(q *queue) bool {
	return (!f.HasNamespace || q.opts.Namespace == f.Namespace) && (!f.HasTask || q.opts.Task == f.Task) &&
		(f.From == 0 || max(q.lastAppend, q.created) >= f.From) && (f.To == 0 || q.created <= f.To)
}

// each calls fn for the queues of a tenant that match, a slice's worth of what fn says they cost. more: there are others, and the
// same filter goes on behind these. fn returns false when it has seen enough.
func (f *QueueFilter) each(s *State, tenant string, fn func(*queue) (work int, enough bool)) (more bool) {
	if f.Queue != "" {
		if q := s.findQueue(tenant, f.Queue); q != nil && f.matches(q) {
			fn(q)
		}
		return false
	}
	work := 0
	s.queueOrder.Ascend(tenant+f.after, func(_ string, q *queue) bool {
		if q.tenant != tenant {
			return false
		}
		if f.begun && q.name == f.after {
			return true
		}
		if more = work > viewSlice; more {
			return false
		}
		work++
		if f.matches(q) {
			n, enough := fn(q)
			if enough {
				more = true
				return false
			}
			work += n
		}
		f.after, f.begun = q.name, true
		return true
	})
	return more
}

// FindQueues lists queues that match, by name. more: f.Limit of them were listed and there are others, or a slice was looked
// at: f.Limit tells which, it is 0 in the first case.
func (s *State) FindQueues(tenant string, f *QueueFilter) (out []QueueInfo, more bool) {
	more = f.each(s, tenant, func(q *queue) (int, bool) {
		switch {
		case f.Offset > 0:
			f.Offset--
			return 0, false
		case f.Limit == 0:
			return 0, true
		}
		f.Limit--
		out = append(out, s.queueInfo(q))
		return 1 + len(q.groups), false
	})
	return out, more
}

// QueueStats are the buckets of one queue.
type QueueStats struct {
	Queue  string
	Points []StatPoint // oldest first
}

// QueueStats lists the buckets of the queues that match and have a series of their own, by name. Queues without buckets in the
// range are left out; f.Limit counts down the listed ones.
func (s *State) QueueStats(tenant string, f *QueueFilter, r *StatRange) (out []QueueStats, more bool) {
	more = f.each(s, tenant, func(q *queue) (int, bool) {
		if q.stats == nil || q.stats.q != q {
			return 0, false
		}
		if f.Limit == 0 {
			return 0, true
		}
		points := q.stats.points(r)
		if len(points) == 0 {
			return 1, false
		}
		f.Limit--
		out = append(out, QueueStats{q.name, points})
		return 1 + 2*len(points), false
	})
	return out, more
}

// QueueSums are queues added up.
type QueueSums struct {
	Queues, Partitions                                int64
	Total, Pending, Processing, Completed, DeadLetter int64
	Leased, Parked                                    int64   // partitions under a live lease, counted for each group; pops that wait
	WithLetters                                       int64   // queues with dead letters
	Offsets                                           []int64 // Pending of each queue
	// Lags is the average age, in microseconds, of the messages of each queue at their delivery, and LagMax the highest, over Recent.
	// A queue that delivered nothing is not among them.
	Lags   []int64
	LagMax []int64
}

// SumQueues adds the queues that match to sums. recent is the range of Lags; nil: they are not asked for.
func (s *State) SumQueues(tenant string, f *QueueFilter, recent *StatRange, sums *QueueSums) (more bool) {
	return f.each(s, tenant, func(q *queue) (int, bool) {
		_, owed := q.slowest()
		sums.Queues++
		sums.Partitions += int64(len(q.parts))
		sums.Total += q.counts.total
		sums.Pending += owed.pending
		sums.Processing += owed.processing
		sums.Completed += q.counts.total - owed.pending
		sums.Parked += q.parked
		if n := int64(q.letters.Len()); n > 0 {
			sums.DeadLetter += n
			sums.WithLetters++
		}
		for _, g := range q.groups {
			sums.Leased += g.counts.leased
		}
		sums.Offsets = append(sums.Offsets, owed.pending)
		work := len(q.groups)
		if recent != nil && q.stats != nil && q.stats.q == q {
			var t Tally
			points := q.stats.points(recent)
			for i := range points {
				t.Add(&points[i].Tally)
			}
			if t.LagMessages > 0 {
				sums.Lags = append(sums.Lags, t.LagSum/t.LagMessages)
				sums.LagMax = append(sums.LagMax, t.LagMax)
			}
			work += 2 + len(points)
		}
		return work, false
	})
}

// LabelSums are the queues of a namespace or a task, added up.
type LabelSums struct{ Queues, Partitions, Total, Pending int64 }

// SumLabels adds the queues that match to sums by namespace, or by task.
func (s *State) SumLabels(tenant string, f *QueueFilter, tasks bool, sums map[string]LabelSums) (more bool) {
	return f.each(s, tenant, func(q *queue) (int, bool) {
		label := q.opts.Namespace
		if tasks {
			label = q.opts.Task
		}
		_, owed := q.slowest()
		l := sums[label]
		l.Queues++
		l.Partitions += int64(len(q.parts))
		l.Total += q.counts.total
		l.Pending += owed.pending
		sums[label] = l
		return 1 + len(q.groups), false
	})
}

// PartitionPlace is a partition in a listing across queues.
type PartitionPlace struct {
	Queue, Name    string
	ID             uint64
	LogStart, Next uint64
	LastAppend     int64 // microseconds; 0: nothing was appended
}

// FindPartitions lists partitions of the queues that match, by the queue's name and in the order of their creation; f.Offset
// and f.Limit count partitions. A queue that is skipped as a whole costs the same whatever it holds. after is where the listing of
// its last queue goes on (the number of its partitions that were listed), 0 at first.
func (s *State) FindPartitions(tenant string, f *QueueFilter, after *int) (out []PartitionPlace, more bool) {
	budget := viewSlice
	more = f.each(s, tenant, func(q *queue) (int, bool) {
		parts := q.parts[min(*after, len(q.parts)):]
		skip := min(f.Offset, len(parts))
		f.Offset -= skip
		*after += skip
		parts = parts[skip:]
		n := min(len(parts), f.Limit, budget)
		for _, p := range parts[:n] {
			out = append(out, PartitionPlace{q.name, p.name, p.id, p.start, p.next, p.lastAppend})
		}
		*after += n
		f.Limit -= n
		budget -= n
		if n < len(parts) {
			return n, true // by the limit, or for this slice
		}
		*after = 0
		return n, false
	})
	if f.Queue != "" {
		q := s.findQueue(tenant, f.Queue)
		more = q != nil && *after > 0
	}
	return out, more
}
