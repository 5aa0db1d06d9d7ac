package fsm

import (
	"encoding/binary"
	"fmt"
	"os"
	"runtime/debug"
	"testing"
	"time"
)

// Every list is read in slices, at no row, one, a slice's number, one more and a
// million. How many rows a read has visited is not taken from what it says of
// itself: what lies behind its slice is taken away, so that a look at it panics.

// listing is one list over a state.
type listing struct {
	name  string
	slice int // rows that one read may visit
	// walk reads the whole list; read is called after each read with its rows.
	walk func(s *State, read func(rows int, more bool))
	rows func(n int) int // of the whole list; nil: n
}

// listedState is a state whose lists have n rows each, of one kind.
type listedState struct {
	kind  string
	build func(t testing.TB, n int) *State
	// behind takes away all rows behind the first k of every list.
	behind func(s *State, k int)
	lists  []listing
}

func loadRows(t testing.TB, fill func(load func(rowObject)), queues, partitions, groups int) *State {
	m := New(Config{DedupBytes: 1 << 20})
	fill(func(o rowObject) {
		if err := m.LoadRow(o.appendKey(nil), o.encode(nil)); err != nil {
			t.Fatal(err)
		}
	})
	s := newState()
	s.time = startTime
	s.meta.queue, s.meta.partition, s.meta.group = uint64(queues)+1, uint64(partitions)+1, uint64(groups)+1
	if err := m.LoadRow([]byte{rowMeta}, s.encodeMeta(nil)); err != nil {
		t.Fatal(err)
	}
	if err := m.Ready(0); err != nil {
		t.Fatal(err)
	}
	m.s.now = startTime
	return m.s
}

// partitionsState: queue a has n partitions with two messages each. Group g
// leases the second one on each; group h has read nothing.
func partitionsState(t testing.TB, n int) *State {
	return loadRows(t, func(load func(rowObject)) {
		q := &queue{id: 1, tenant: tenantA, name: "a", opts: DefaultOptions(), created: startTime}
		g := &group{id: 1, q: q, name: "g", mode: SubscribeAll, created: startTime, startPartition: uint64(n) + 1}
		load(q)
		load(g)
		load(&group{id: 2, q: q, name: "h", mode: SubscribeAll, created: startTime, startPartition: uint64(n) + 1})
		var id [16]byte
		for i := range n {
			p := &partition{id: uint64(i) + 1, q: q, name: fmt.Sprint("p", i), created: startTime, lastAppend: startTime - int64(n-i), next: 2}
			load(p)
			binary.BigEndian.PutUint64(id[:], uint64(i)+1)
			load(&cursor{p: p, g: g, committed: 0, lease: &lease{id: id, from: 1, end: 1, expires: startTime + 1<<40}})
		}
	}, 1, n, 2)
}

func partitionsLists() []listing {
	list := func(name string, slice int, next func() func(s *State) (int, bool)) listing {
		return listing{name: name, slice: slice, walk: func(s *State, read func(int, bool)) {
			step := next()
			for more := true; more; {
				var rows int
				rows, more = step(s)
				read(rows, more)
			}
		}}
	}
	groupPartitions := func(group string) func() func(s *State) (int, bool) {
		return func() func(s *State) (int, bool) {
			next := uint64(1)
			return func(s *State) (int, bool) {
				var page []GroupPartition
				page, next = s.GroupPartitions(tenantA, group, "a", next, 1000)
				return len(page), next != 0
			}
		}
	}
	return []listing{
		list("Partitions", viewSlice/3, func() func(*State) (int, bool) {
			at := 0
			return func(s *State) (int, bool) {
				page, more := s.Partitions(tenantA, "a", at, 1000)
				at += len(page)
				return len(page), more
			}
		}),
		list("Depths", viewSlice/2, func() func(*State) (int, bool) {
			at := 0
			return func(s *State) (int, bool) {
				page, more := s.Depths(tenantA, "a", &DepthInfo{Group: "h", HasGroup: true}, true, at, 1000)
				at += len(page)
				return len(page), more
			}
		}),
		list("FindPartitions", viewSlice, func() func(*State) (int, bool) {
			f, at := QueueFilter{Limit: 1 << 40}, 0
			return func(s *State) (int, bool) {
				page, more := s.FindPartitions(tenantA, &f, &at)
				return len(page), more
			}
		}),
		list("GroupPartitions of a reader", viewSlice/2, groupPartitions("g")),
		list("GroupPartitions of what lags", viewSlice/2, groupPartitions("h")),
		list("Leases", viewSlice/2, func() func(*State) (int, bool) {
			f := LeaseFilter{Limit: 1000}
			return func(s *State) (int, bool) {
				page, more := s.Leases(tenantA, &f)
				return len(page), more
			}
		}),
		list("Recent", viewSlice/4, func() func(*State) (int, bool) {
			w := RecentWalk{}
			return func(s *State) (int, bool) {
				page, _, more := s.Recent(1, &w)
				return len(page), more
			}
		}),
		list("Changed", viewSlice, func() func(*State) (int, bool) {
			w := ChangedWalk{}
			return func(s *State) (int, bool) {
				page, _, more := s.Changed(tenantA, "a", &w)
				return len(page), more
			}
		}),
	}
}

// groupsState: queue b has n groups.
func groupsState(t testing.TB, n int) *State {
	return loadRows(t, func(load func(rowObject)) {
		q := &queue{id: 1, tenant: tenantA, name: "b", opts: DefaultOptions(), created: startTime}
		load(q)
		for i := range n {
			load(&group{id: uint64(i) + 1, q: q, name: fmt.Sprintf("g%07d", i), created: startTime})
		}
	}, 1, 0, n)
}

func groupsLists() []listing {
	return []listing{{name: "Groups", slice: viewSlice, walk: func(s *State, read func(int, bool)) {
		after := ""
		for more := true; more; {
			var page []GroupInfo
			if page, more = s.Groups(tenantA, after, viewSlice); len(page) > 0 {
				after = page[len(page)-1].Cursor()
			}
			read(len(page), more)
		}
	}}}
}

// lettersState: the place of the first message of partition p of queue a has n
// dead letters. All but the newest were left by timers.
func lettersState(t testing.TB, n int) *State {
	s := loadRows(t, func(load func(rowObject)) {
		q := &queue{id: 1, tenant: tenantA, name: "a", opts: DefaultOptions(), created: startTime}
		load(q)
		load(&partition{id: 1, q: q, name: "p", created: startTime, lastAppend: startTime, next: 1})
	}, 1, 1, 0)
	q, p := s.queues[1], s.partitions[1]
	for i := range n {
		l := &deadLetter{id: timeID(startTime / 1000), q: q, partitionID: 1, partition: "p", group: TimerGroup, failed: startTime}
		binary.BigEndian.PutUint64(l.id[8:], uint64(i))
		if i == n-1 {
			l.group = "g"
		}
		s.addLetter(l)
		p.letters++
	}
	return s
}

func lettersLists() []listing {
	at := func(offset *uint64) func(s *State, read func(int, bool)) {
		return func(s *State, read func(int, bool)) {
			after := ""
			for more := true; more; more = after != "" {
				var page []DeadLetterInfo
				page, after = s.LettersAt(tenantA, 1, offset, after)
				read(len(page), after != "")
			}
		}
	}
	letters := func(f DeadLetterFilter) func(s *State, read func(int, bool)) {
		return func(s *State, read func(int, bool)) {
			f := f
			for more := true; more; {
				var page []DeadLetterInfo
				page, more = s.DeadLetters(tenantA, &f)
				read(len(page), more)
			}
		}
	}
	one := func(n int) int { return min(n, 1) }
	return []listing{
		{name: "DeadLetters", slice: letterSlice, walk: letters(DeadLetterFilter{Limit: 1 << 40})},
		{name: "DeadLetters of a queue", slice: letterSlice, walk: letters(DeadLetterFilter{Limit: 1 << 40, Queue: "a"})},
		{name: "DeadLetters of a group", slice: letterSlice, walk: letters(DeadLetterFilter{Limit: 1 << 40, Queue: "a", Group: "g"}), rows: one},
		{name: "LettersAt a partition", slice: letterSlice, walk: at(nil)},
		{name: "LettersAt an offset", slice: letterSlice, walk: at(new(uint64)), rows: one},
		{name: "Judge", slice: viewSlice, rows: one, walk: func(s *State, read func(int, bool)) {
			rows := []MessageState{{PartitionID: 1}}
			for done := 0; done == 0; {
				done = s.Judge(rows, nil)
				filed := 0
				if done > 0 && rows[0].Status == StatusDeadLetter {
					filed = 1
				}
				read(filed, done == 0)
			}
		}},
	}
}

// timersState: queue a has n timers that wait.
func timersState(t testing.TB, n int) *State {
	s := newState()
	for i := range n {
		name := fmt.Sprintf("k%07d", i)
		key := timerKey(tenantA, "a", name)
		s.timers.Set(key, &timer{key: key, tenant: tenantA, queue: "a", name: name, due: startTime, heapIdx: -1})
	}
	return s
}

func timersLists() []listing {
	return []listing{
		{name: "ListTimers", slice: 500, walk: func(s *State, read func(int, bool)) {
			after := ""
			for more := true; more; {
				var page []TimerInfo
				if page, more = s.ListTimers(tenantA, "a", after, 500); len(page) > 0 {
					after = page[len(page)-1].Key
				}
				read(len(page), more)
			}
		}},
		{name: "CountTimers", slice: viewSlice, walk: func(s *State, read func(int, bool)) {
			after := ""
			for more := true; more; more = after != "" {
				var n int
				n, after = s.CountTimers(tenantA, "a", "", after)
				read(n, after != "")
			}
		}},
	}
}

// keysState: namespace n has n keys, and there are as many names of traces.
func keysState(t testing.TB, n int) *State {
	s := newState()
	s.now = startTime
	q := &queue{id: 1, tenant: traceTenant, name: tenantA, opts: DefaultOptions()}
	s.queues[1], s.queueName[traceTenant+tenantA] = q, q
	name := traceName{next: 1, last: startTime, days: []traceDay{{uint64(startTime / dayMicros), 1, 1}}}
	value, trace := []byte("1"), name.encode()
	for i := range n {
		key := fmt.Sprintf("k%07d", i)
		s.kv.Set(kvKey(tenantA, "n", key), &kvRow{value: value, version: 1, heapIdx: -1})
		s.kv.Set(traceRowKey(tenantA, key), &kvRow{value: trace, version: 1, heapIdx: -1})
	}
	return s
}

func keysLists() []listing {
	return []listing{
		{name: "ReadKVPage", slice: viewSlice, walk: func(s *State, read func(int, bool)) {
			p, rows := KVPage{NS: "n", Limit: 1 << 40, MaxBytes: 1 << 40}, 0
			for !p.Done {
				s.ReadKVPage(tenantA, &p)
				read(len(p.Rows)-rows, !p.Done)
				rows = len(p.Rows)
			}
		}},
		{name: "TraceNames", slice: 500, walk: func(s *State, read func(int, bool)) {
			after := ""
			for more := true; more; {
				rows := 0
				after, more = s.TraceNames(tenantA, after, 500, func(TraceNameInfo) { rows++ })
				read(rows, more)
			}
		}},
	}
}

func listedStates() []listedState {
	return []listedState{
		{"partitions", partitionsState, func(s *State, k int) {
			q := s.queues[1]
			for i := k; i < len(q.parts); i++ {
				if i < len(q.parts)-k { // Recent begins at the end
					*q.parts[i] = partition{place: q.parts[i].place} // q is nil: q.name, q.groups panic
				}
			}
		}, partitionsLists()},
		{"groups", groupsState, func(s *State, k int) { takeAway(s.groupOrder.Scan, s.groupOrder.Set, k, 0) }, groupsLists()},
		{"letters", lettersState, func(s *State, k int) {
			takeAway(s.letterOrder.Scan, s.letterOrder.Set, k, k)
			takeAway(s.queues[1].letters.Scan, s.queues[1].letters.Set, k, k)
			takeAway(s.queues[1].byPlace.Scan, s.queues[1].byPlace.Set, k, k)
		}, lettersLists()},
		{"timers", timersState, func(s *State, k int) { takeAway(s.timers.Scan, s.timers.Set, k, 0) }, timersLists()},
		{"keys", keysState, nil, keysLists()},
	}
}

// takeAway makes nil of the values of an order, except the first k and the last.
func takeAway[V any](scan func(func(string, *V) bool), set func(string, *V) (*V, bool), k, last int) {
	var keys []string
	scan(func(key string, _ *V) bool {
		keys = append(keys, key)
		return true
	})
	for i := k; i < len(keys)-last; i++ {
		set(keys[i], nil)
	}
}

func TestListsOfAMillion(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(500)) // most of the time goes into building
	for _, st := range listedStates() {
		t.Run(st.kind, func(t *testing.T) {
			for _, at := range []string{"0", "1", "slice", "slice+1", "1e6"} {
				built := map[int]*State{}
				for _, l := range st.lists {
					n := map[string]int{"0": 0, "1": 1, "slice": l.slice, "slice+1": l.slice + 1, "1e6": 1_000_000}[at]
					if n == 1_000_000 && os.Getenv("MILLION") == "" {
						n = 20_000
					}
					if built[n] == nil {
						built[n] = st.build(t, n)
					}
					walkWhole(t, &l, built[n], n)
				}
				if at != "1e6" || st.behind == nil {
					continue
				}
				for _, s := range built {
					st.behind(s, viewSlice+1)
					for _, l := range st.lists {
						firstRead(t, &l, s)
					}
				}
			}
		})
	}
}

// walkWhole reads a list to its end: each read gives a slice at most, goes on
// where the last one was, and no row is missed or comes twice.
func walkWhole(t *testing.T, l *listing, s *State, n int) {
	t.Helper()
	rows, reads, most := 0, 0, 0
	l.walk(s, func(got int, more bool) {
		rows, reads, most = rows+got, reads+1, max(most, got)
		if reads > 2*n/l.slice+3 {
			t.Fatalf("%s of %d: %d reads, and it has not ended", l.name, n, reads)
		}
	})
	want := n
	if l.rows != nil {
		want = l.rows(n)
	}
	if rows != want || most > l.slice || reads < n/l.slice {
		t.Errorf("%s of %d: %d rows, want %d, in %d reads of up to %d", l.name, n, rows, want, reads, most)
	}
}

// firstRead makes one read of a list whose rows behind the slice are taken away.
func firstRead(t *testing.T, l *listing, s *State) {
	t.Helper()
	type enough struct{}
	defer func() {
		if r := recover(); r != nil && r != any(enough{}) {
			t.Errorf("%s: the first read looks at what lies behind its slice: %v", l.name, r)
		}
	}()
	l.walk(s, func(int, bool) { panic(enough{}) })
	t.Errorf("%s: no read was made", l.name)
}

// BenchmarkLists prints the longest single read of each list at a million rows.
func BenchmarkLists(b *testing.B) {
	for _, st := range listedStates() {
		b.Run(st.kind, func(b *testing.B) {
			s := st.build(b, 1_000_000)
			for _, l := range st.lists {
				b.Run(l.name, func(b *testing.B) {
					worst := time.Duration(0)
					for range b.N {
						begun := time.Now()
						l.walk(s, func(int, bool) {
							worst = max(worst, time.Since(begun))
							begun = time.Now()
						})
					}
					b.ReportMetric(float64(worst.Microseconds()), "µs-longest-read")
				})
			}
		})
	}
}
