package server

import (
	"cmp"
	"container/heap"
	"errors"
	"net/http"
	"slices"

	"queen/fsm"
	"queen/raftlog"
)

// Browsing lists messages newest first, over one partition, a queue or all
// queues. The partitions of each queue come in the order of their last write, in
// slices, and are merged by the time of their newest message that is still to be
// listed; where that is says the log's index, which knows times and offsets. So a
// page looks at the partitions that it shows and at those that were written
// after its window, and reads the payloads of its own rows only.

const (
	browseLimit    = 200
	maxBrowseLimit = 1000
	browseWindow   = 3600_000_000 // microseconds
	minute         = 60_000_000
	// browseAppends is how many appends one look into the index lists, and
	// browseJudged how many messages of a partition are judged at once when the
	// listing is about one status.
	browseAppends = 32
	browseJudged  = 256
	// maxBrowseOffset is the most rows that can be skipped.
	maxBrowseOffset = 1_000_000
)

type browseFilter struct {
	fsm.BrowseFilter
	status        fsm.MessageStatus
	limit, offset int
	to            int64 // microseconds, exclusive
}

var browseStatuses = map[string]fsm.MessageStatus{
	"pending": fsm.StatusPending, "processing": fsm.StatusProcessing, "completed": fsm.StatusCompleted,
	"dead_letter": fsm.StatusDeadLetter, "failed": fsm.StatusDeadLetter,
}

func parseBrowse(raw string, now int64) (f browseFilter, bad string) {
	f.limit, f.From, f.to = browseLimit, max(now-browseWindow, 0), now
	ok := query(raw, func(name, value string) bool {
		if value == "" {
			return true
		}
		var n int64
		parsed := true
		switch name {
		case "queue":
			f.Queue = value
		case "partition":
			f.Partition = value
		case "namespace", "ns":
			f.Namespace = value
		case "task":
			f.Task = value
		case "status":
			f.status, parsed = browseStatuses[value]
		case "limit":
			n, parsed = parseCount(value)
			f.limit = int(min(max(n, 1), maxBrowseLimit))
		case "offset":
			n, parsed = parseCount(value)
			if f.offset = int(min(max(n, 0), maxBrowseOffset+1)); f.offset > maxBrowseOffset {
				parsed = false
			}
		case "from":
			f.From, parsed = parseTime(value)
		case "to":
			f.to, parsed = parseTime(value)
		}
		if !parsed {
			bad = name + " is not valid"
		}
		return parsed
	})
	if !ok && bad == "" {
		bad = "the query has an escape that does not parse"
	}
	f.to = (f.to + minute - 1) / minute * minute
	return f, bad
}

// browse is one call.
type browse struct {
	s      *Server
	x      *exchange
	f      browseFilter
	until  int64 // messages before it, microseconds
	reader raftlog.Reader
	feeds  browseFeeds
	heads  browseHeads
	opened map[uint64]bool
	skip   int
	rows   []browseRow
	mode   browseMode
	detail bool // of one message: whether it is sealed counts
}

// browseFeed gives the partitions of a queue, in slices.
type browseFeed struct {
	queue fsm.BrowseQueue
	walk  fsm.RecentWalk
	bound int64 // nothing that is still to come is newer
}

// browseFeeds is a heap of queues, that whose next partition may be the newest
// first: there may be very many, and a page needs few of them.
type browseFeeds []*browseFeed

func (h browseFeeds) Len() int           { return len(h) }
func (h browseFeeds) Less(i, j int) bool { return h[i].bound > h[j].bound }
func (h browseFeeds) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *browseFeeds) Push(v any)        { *h = append(*h, v.(*browseFeed)) }
func (h *browseFeeds) Pop() any {
	old := *h
	f := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	return f
}

// browseMode is who reads the queues that were looked at.
type browseMode struct {
	queueMode bool
	groups    int
}

// browsePart is a partition with the message that comes next.
type browsePart struct {
	queue   *fsm.BrowseQueue
	id      uint64
	name    string
	start   uint64
	offset  uint64               // the message that comes next
	time    int64                // when it was pushed
	appends []raftlog.AppendTime // rising; the last one holds offset
	judged  []fsm.MessageState   // by status: what is known of offset and below, the next one last
	whole   bool                 // nothing is left
	first   uint64               // of the append that holds offset
}

// browseRow is a row of the page.
type browseRow struct {
	queue     *fsm.BrowseQueue
	partition string
	first     uint64 // of its append
	state     fsm.MessageState
	message   []byte // rendered
	read      bool
	sealed    bool // a browse of one message only
}

// browseHeads is a heap of partitions, that with the newest message first.
type browseHeads []*browsePart

func (h browseHeads) Len() int { return len(h) }
func (h browseHeads) Less(i, j int) bool {
	return compareHeads(h[i], h[j]) < 0
}
func (h browseHeads) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *browseHeads) Push(v any)   { *h = append(*h, v.(*browsePart)) }
func (h *browseHeads) Pop() any {
	old := *h
	p := old[len(old)-1]
	*h = old[:len(old)-1]
	return p
}

func compareHeads(a, b *browsePart) int {
	return cmp.Or(cmp.Compare(b.time, a.time), cmp.Compare(b.id, a.id))
}

func (s *Server) serveMessages(x *exchange) {
	var now int64
	if !s.read(x, func(st *fsm.State) { now = st.Now() }) {
		return
	}
	f, bad := parseBrowse(x.c.Request.URL.RawQuery, now)
	if bad != "" {
		x.fail(http.StatusBadRequest, "bad_request", bad)
		return
	}
	b := &browse{
		s: s, x: x, f: f, until: min(f.to, now+1), reader: s.engine.Reader(), opened: map[uint64]bool{}, skip: f.offset,
	}
	if !b.findQueues() {
		return
	}
	if err := b.collect(); err != nil {
		b.failed(err)
		return
	}
	if !b.judgeRows() {
		return
	}
	b.readRows()
	x.out = b.answer(x.out[:0])
	_ = x.answer(http.StatusOK)
}

// errAnswered: a read of the state has ended the call.
var errAnswered = errors.New("answered")

func (b *browse) failed(err error) {
	if err != errAnswered {
		b.x.undecided(err)
	}
}

// findQueues lists the queues that the filter selects and that were written
// since the window begins. false: it has answered.
func (b *browse) findQueues() bool {
	tenant, after := b.x.tenant, ""
	for more := true; more; more = after != "" {
		var page []fsm.BrowseQueue
		from := after
		after = ""
		if !b.s.read(b.x, func(st *fsm.State) { page, after = st.BrowseQueues(tenant, &b.f.BrowseFilter, from) }) {
			return false
		}
		for i := range page {
			b.mode.queueMode = b.mode.queueMode || page[i].HasQueueMode
			b.mode.groups += page[i].Groups
			if page[i].Written {
				bound := min(page[i].LastAppend, b.until) // what is written from now on is not in the window
				b.feeds = append(b.feeds, &browseFeed{queue: page[i], walk: fsm.RecentWalk{From: b.f.From}, bound: bound})
			}
		}
	}
	heap.Init(&b.feeds)
	return true
}

// collect fills the page.
func (b *browse) collect() error {
	for len(b.rows) < b.f.limit {
		if len(b.feeds) > 0 && (len(b.heads) == 0 || b.heads[0].time <= b.feeds[0].bound) {
			more, err := b.feed(b.feeds[0])
			if err != nil {
				return err
			}
			if more {
				heap.Fix(&b.feeds, 0)
			} else {
				heap.Pop(&b.feeds)
			}
			continue
		}
		if len(b.heads) == 0 {
			return nil
		}
		if err := b.take(b.heads[0]); err != nil {
			return err
		}
	}
	return nil
}

// feed opens the next partitions of a queue; more: others may come.
func (b *browse) feed(f *browseFeed) (more bool, err error) {
	if p := f.queue.Partition; p != nil {
		return false, b.open(&f.queue, p)
	}
	var parts []fsm.RecentPartition
	if !b.s.read(b.x, func(st *fsm.State) { parts, f.bound, more = st.Recent(f.queue.ID, &f.walk) }) {
		return false, errAnswered
	}
	for i := range parts {
		if err := b.open(&f.queue, &parts[i]); err != nil {
			return false, err
		}
	}
	f.bound = min(f.bound, b.until)
	b.prune()
	return more, nil
}

// prune forgets partitions that cannot come on the page any more: every one
// before them has a row.
func (b *browse) prune() {
	n := b.skip + b.f.limit - len(b.rows)
	if len(b.heads) <= 2*n+64 {
		return
	}
	slices.SortFunc(b.heads, compareHeads) // a sorted list is a heap
	clear(b.heads[n:])
	b.heads = b.heads[:n]
}

// open looks for the newest message of a partition that the listing is about.
func (b *browse) open(q *fsm.BrowseQueue, r *fsm.RecentPartition) error {
	if b.opened[r.ID] || r.Start == r.Next {
		return nil
	}
	b.opened[r.ID] = true
	below := r.Next
	if r.LastAppend >= b.until {
		offset, found, err := b.reader.FindTime(q.ID, r.ID, b.until)
		if err != nil {
			return err
		}
		if found {
			below = offset
		}
	}
	p := &browsePart{queue: q, id: r.ID, name: r.Name, start: r.Start}
	if err := b.seek(p, below); err != nil || p.whole {
		return err
	}
	heap.Push(&b.heads, p)
	return nil
}

// seek moves a partition to its newest message below an offset that the listing
// is about.
func (b *browse) seek(p *browsePart, below uint64) error {
	for {
		if err := b.step(p, below); err != nil || p.whole || b.f.status == fsm.StatusNone {
			return err
		}
		match, err := b.judge(p)
		if err != nil || match {
			return err
		}
		below = p.offset
	}
}

// step moves a partition to its newest message below an offset.
func (b *browse) step(p *browsePart, below uint64) error {
	p.whole = true
	if below <= p.start {
		return nil
	}
	for n := len(p.appends); n > 0 && p.appends[n-1].First >= below; n-- {
		p.appends = p.appends[:n-1]
	}
	if len(p.appends) == 0 {
		from := p.start
		if below-p.start > browseAppends {
			from = below - browseAppends // each append has one message at least
		}
		list, err := b.reader.AppendTimes(p.queue.ID, p.id, from, browseAppends)
		if errors.Is(err, raftlog.ErrNoLog) {
			return nil // the queue is gone
		}
		if err != nil {
			return err
		}
		for len(list) > 0 && list[len(list)-1].First >= below {
			list = list[:len(list)-1]
		}
		if len(list) == 0 {
			return nil // retention was faster
		}
		p.appends = list
	}
	last := p.appends[len(p.appends)-1]
	p.offset, p.time, p.first = min(below, last.First+uint64(last.Count))-1, last.Time, last.First
	p.whole = p.time < b.f.From || p.offset < p.start
	return nil
}

// judge says whether the message that comes next has the status that is listed.
func (b *browse) judge(p *browsePart) (match bool, err error) {
	for len(p.judged) > 0 && p.judged[len(p.judged)-1].Offset > p.offset {
		p.judged = p.judged[:len(p.judged)-1]
	}
	if len(p.judged) == 0 {
		lo := p.first // one append has one time
		if p.offset-lo >= browseJudged {
			lo = p.offset - browseJudged + 1
		}
		for o := lo; o <= p.offset; o++ {
			p.judged = append(p.judged, fsm.MessageState{PartitionID: p.id, Offset: o, Time: p.time})
		}
		if !b.s.judgeMessages(b.x, p.judged) {
			return false, errAnswered
		}
	}
	r := &p.judged[len(p.judged)-1]
	return !r.Gone && r.Status == b.f.status, nil
}

// judgeMessages judges messages in slices; false: it has answered.
func (s *Server) judgeMessages(x *exchange, rows []fsm.MessageState) bool {
	for done := 0; done < len(rows); {
		n := 0
		if !s.read(x, func(st *fsm.State) { n = st.Judge(rows[done:], nil) }) {
			return false
		}
		done += n
	}
	return true
}

// take puts the next message of the first partition on the page, or skips it.
func (b *browse) take(p *browsePart) error {
	if b.skip > 0 {
		b.skip--
	} else {
		row := browseRow{queue: p.queue, partition: p.name, first: p.first}
		row.state = fsm.MessageState{PartitionID: p.id, Offset: p.offset, Time: p.time}
		b.rows = append(b.rows, row)
	}
	if err := b.seek(p, p.offset); err != nil {
		return err
	}
	if p.whole {
		heap.Pop(&b.heads)
	} else {
		heap.Fix(&b.heads, 0)
	}
	return nil
}

// judgeRows finds out where each row of the page stands; what is gone leaves it.
func (b *browse) judgeRows() bool {
	states := make([]fsm.MessageState, len(b.rows))
	for i := range b.rows {
		states[i] = b.rows[i].state
	}
	if !b.s.judgeMessages(b.x, states) {
		return false
	}
	for i := range b.rows {
		b.rows[i].state = states[i]
	}
	b.rows = slices.DeleteFunc(b.rows, func(r browseRow) bool { return r.state.Gone })
	return true
}
