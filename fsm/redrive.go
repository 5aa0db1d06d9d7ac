package fsm

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"

	"github.com/cespare/xxhash/v2"

	"queen/internal/entry"
)

// A redrive moves the dead letters of a queue in bulk: each as a replay does it,
// the copy's append and the letter's removal in one entry. It is a job: a row
// says which letters it is about and how far it has come, and the leader works
// on it in slices, one a cycle, so that it goes on after a restart and a change
// of the leader. The row is written in the entry of what it counts, so no letter
// is moved twice.

// States of a redrive; the numbers are stored.
const (
	redriveRunning   = 0
	redriveDone      = 1
	redriveCancelled = 2
)

var redriveStates = [...]string{"running", "done", "cancelled"}

const (
	// redriveSlice bounds how many letters a cycle moves, letterSlice how many it
	// looks at.
	redriveSlice = 64
	// maxRedrives bounds the running jobs of a tenant, keptRedrives those that
	// have ended and can still be asked for: the oldest go first.
	maxRedrives  = 16
	keptRedrives = 100
	// maxRedriveRate is the highest rate, records a second; a job without one is
	// as fast as its slices are.
	maxRedriveRate = 1_000_000
	// longestNames is what a queue's name and that of a partition may have
	// together, bytes: a copy may go to a queue with a longer name.
	longestNames = 411
	// redriveSample is how many letters a dry run lists.
	redriveSample = 100
)

type redriveJob struct {
	id                   [16]byte
	tenant               string
	queueID              uint64
	queue                string
	filter               letterFilter
	toQueue, toPartition string // empty: the letter's own
	limit, rate          int64  // letters; letters a second. 0: no bound
	created, ended       int64  // microseconds; ended 0: running
	state                byte

	total, moved, duplicates, failed int64
	after, last                      [16]byte // looked through up to after; nothing beyond last
	next                             int64    // by its rate nothing is moved before

	// Not part of the row.
	at    [16]byte // looked through up to here: nothing between after and at counts
	dirty bool
	dead  bool
}

// letterFilter selects the letters of a job.
type letterFilter struct {
	group, contains string
	anyGroup        bool
	from, to        int64 // time of the failure, microseconds, inclusive; 0: open
}

func (f *letterFilter) matches(l *deadLetter) bool {
	return l.group != TimerGroup && (f.anyGroup || l.group == f.group) && l.failed >= f.from && (f.to == 0 || l.failed <= f.to) &&
		strings.Contains(l.err, f.contains)
}

// Redrive starts a job that moves the dead letters of a queue, those that are
// there now, the oldest failure first. Those of timers are left out: they have
// no message to move.
type Redrive struct {
	ID                   [16]byte // minted by the edge, rising with time
	Queue, Group         string
	AnyGroup             bool
	Contains             string // part of the error text
	From, To             int64  // time of the failure, microseconds, inclusive; 0: open
	ToQueue, ToPartition string // empty: the letter's own
	Limit, Rate          int64  // letters; letters a second, at most 1,000,000. 0: no bound
	DryRun               bool

	// Result: Outcome is started, dry (counted only), no_queue, too_many, or sealed:
	// the destination is another queue, which keeps sealed payloads.
	Outcome string
	Job     RedriveInfo
	Sample  []DeadLetterInfo // dry run: the first letters that would be moved

	begun  bool
	q      *queue
	at     string // looked through up to here
	last   string
	counts int64
}

// CancelRedrive ends a job; what it has moved stays moved. One that has ended
// is left as it is.
type CancelRedrive struct {
	ID [16]byte

	Found bool // result
	Job   RedriveInfo
}

// RedriveInfo is what a listing shows of a job.
type RedriveInfo struct {
	ID                               [16]byte
	State                            string // running, done, cancelled
	Queue, Group                     string
	AnyGroup                         bool
	Total, Moved, Duplicates, Failed int64
	Created, Ended                   int64 // microseconds; Ended 0: running
}

func (j *redriveJob) info() RedriveInfo {
	return RedriveInfo{
		ID: j.id, State: redriveStates[j.state], Queue: j.queue, Group: j.filter.group, AnyGroup: j.filter.anyGroup,
		Total: j.total, Moved: j.moved, Duplicates: j.duplicates, Failed: j.failed, Created: j.created, Ended: j.ended,
	}
}

// RedriveJobs lists the jobs of a tenant, the newest first; there are at most
// maxRedrives + keptRedrives.
func (s *State) RedriveJobs(tenant string) (out []RedriveInfo) {
	s.redrives.Descend(tenant+"\xff", func(key string, j *redriveJob) bool {
		if !strings.HasPrefix(key, tenant) {
			return false
		}
		out = append(out, j.info())
		return true
	})
	return out
}

// RedriveJob describes one job.
func (s *State) RedriveJob(tenant string, id [16]byte) (RedriveInfo, bool) {
	j, ok := s.redrives.Get(redriveOrder(tenant, id))
	if !ok {
		return RedriveInfo{}, false
	}
	return j.info(), true
}

func redriveOrder(tenant string, id [16]byte) string { return tenant + string(id[:]) }

// planRedrive counts what there is to move, in slices, and then starts the job.
func (m *Machine) planRedrive(tenant string, r *Redrive) verdict {
	if !r.begun {
		r.begun, r.q = true, m.s.findQueue(tenant, r.Queue)
		if r.q != nil {
			r.last, _, _ = r.q.letters.Max()
		}
	}
	if r.q == nil || r.q.deleted {
		r.Outcome = "no_queue"
		return answered
	}
	filter := letterFilter{group: r.Group, contains: r.Contains, anyGroup: r.AnyGroup, from: r.From, to: r.To}
	if m.countLetters(r, &filter) {
		return unfinished
	}
	if r.Limit > 0 {
		r.counts = min(r.counts, r.Limit)
	}
	if m.sealsElsewhere(tenant, r.Queue, r.ToQueue) {
		r.Outcome = "sealed"
		return answered
	}
	j := &redriveJob{
		id: r.ID, tenant: tenant, queueID: r.q.id, queue: r.Queue, filter: filter, toQueue: r.ToQueue, toPartition: r.ToPartition,
		limit: r.Limit, rate: min(r.Rate, maxRedriveRate), created: m.now, next: m.now, total: r.counts,
	}
	copy(j.last[:], r.last)
	r.Outcome, r.Job = "dry", j.info()
	if r.DryRun {
		return answered
	}
	if !m.makeRoom(tenant) {
		r.Outcome = "too_many"
		return answered
	}
	r.Outcome = "started"
	m.s.redrives.Set(redriveOrder(tenant, j.id), j)
	m.redriving.jobs = append(m.redriving.jobs, j)
	m.put(j)
	return answered
}

// sealsElsewhere reports whether copies would go to another queue that keeps
// sealed payloads. A job moves payloads as they are: only the edge could seal
// them.
func (m *Machine) sealsElsewhere(tenant, from, to string) bool {
	if to == "" || to == from {
		return false
	}
	q := m.s.findQueue(tenant, to)
	return q != nil && q.opts.form() == FormSealed
}

// countLetters counts a slice of what a job would move; true: there is more.
func (m *Machine) countLetters(r *Redrive, f *letterFilter) (more bool) {
	seen := 0
	r.q.letters.Ascend(r.at, func(key string, l *deadLetter) bool {
		switch {
		case key == r.at:
			return true
		case key > r.last || r.Limit > 0 && r.counts >= r.Limit:
			return false
		case seen == letterSlice:
			more = true
			return false
		}
		seen++
		r.at = key
		if f.matches(l) {
			if r.counts++; r.DryRun && len(r.Sample) < redriveSample {
				r.Sample = append(r.Sample, l.info())
			}
		}
		return true
	})
	return more
}

// makeRoom removes the oldest ended job of a tenant that has too many; false:
// too many of its jobs run.
func (m *Machine) makeRoom(tenant string) bool {
	running := 0
	var ended []*redriveJob
	m.s.redrives.Ascend(tenant, func(key string, j *redriveJob) bool {
		if !strings.HasPrefix(key, tenant) {
			return false
		}
		if j.state == redriveRunning {
			running++
		} else {
			ended = append(ended, j)
		}
		return true
	})
	if running >= maxRedrives {
		return false
	}
	for ; len(ended) > keptRedrives-1; ended = ended[1:] {
		ended[0].dead = true
		m.s.redrives.Delete(redriveOrder(tenant, ended[0].id))
		m.remove(ended[0])
	}
	return true
}

func (m *Machine) planCancelRedrive(tenant string, r *CancelRedrive) verdict {
	j, ok := m.s.redrives.Get(redriveOrder(tenant, r.ID))
	if r.Found = ok; !ok {
		return answered
	}
	if j.state == redriveRunning {
		m.endRedrive(j, redriveCancelled)
		m.put(j)
	}
	r.Job = j.info()
	return answered
}

func (m *Machine) endRedrive(j *redriveJob, state byte) {
	j.state, j.ended = state, m.now
	m.redriving.jobs = slices.DeleteFunc(m.redriving.jobs, func(o *redriveJob) bool { return o == j })
}

// redriving is the leader's work on the jobs. None of it is a row.
type redriving struct {
	jobs    []*redriveJob // that run, by tenant and id
	turn    int           // whose turn it is
	slice   *redrivePart  // the newest one
	waiting bool          // it waits for look-ups
	values  int           // how many payloads a slice reads: less when they are large
}

// redrivePart is a slice of a job. When payloads or ids have to be read it is
// planned again once they are.
type redrivePart struct {
	job     *redriveJob
	items   []redriveItem
	through [16]byte // of what was looked at
	whole   bool     // nothing is left behind
	done    int      // items that are decided
}

type redriveItem struct {
	l       *deadLetter
	push    *Push
	outcome string // moved, duplicate, failed; gone: somebody else was faster
}

// gone reports whether the letter was replayed or purged, or its queue deleted,
// since the slice was cut.
func (it *redriveItem) gone() bool { return it.l.dead || it.l.q.deleted }

// PauseJobs holds back what moves messages by itself and can wait: the volume
// is full. It is safe to call at any time.
func (m *Machine) PauseJobs(pause bool) { m.paused.Store(pause) }

// pausedWake is how often, in microseconds, a paused job looks again.
const pausedWake = 1_000_000

// nextRedrive is when a job has something to do; 0: never.
func (m *Machine) nextRedrive() (wake int64) {
	r := &m.redriving
	if r.waiting {
		return 0
	}
	for _, j := range r.jobs {
		if wake == 0 || j.next < wake {
			wake = j.next
		}
	}
	if wake == 0 {
		return 0
	}
	if m.paused.Load() {
		return max(wake, m.now+pausedWake)
	}
	return max(wake, m.now+1)
}

// redrive works on one job whose turn it is.
func (m *Machine) redrive() {
	r := &m.redriving
	if len(r.jobs) == 0 || r.waiting || m.paused.Load() {
		return
	}
	for range r.jobs {
		r.turn = (r.turn + 1) % len(r.jobs)
		if j := r.jobs[r.turn]; j.next <= m.now {
			m.redriveJob(j)
			return
		}
	}
}

func (m *Machine) redriveJob(j *redriveJob) {
	q := m.s.queues[j.queueID]
	if q == nil || q.deleted {
		m.endRedrive(j, redriveCancelled) // with its letters
		m.put(j)
		return
	}
	part := m.cutRedrive(j, q)
	c := &Call{Tenant: j.tenant, Body: part, internal: true, Done: func(error) {}}
	m.redriving.slice = part
	m.route(c, m.planRedrivePart(c, part))
}

// cutRedrive takes the next letters of a job.
func (m *Machine) cutRedrive(j *redriveJob, q *queue) *redrivePart {
	part := &redrivePart{job: j, through: j.at, whole: true}
	room, values, seen := j.quota(m.now), max(m.redriving.values, 1), 0
	after := string(j.at[:])
	if j.at == ([16]byte{}) {
		after = ""
	}
	last := string(j.last[:])
	q.letters.Ascend(after, func(key string, l *deadLetter) bool {
		if key == after {
			return true
		}
		if key > last {
			return false
		}
		if seen == letterSlice || len(part.items) == room || values == 0 {
			part.whole = false
			return false
		}
		seen++
		part.through = l.id
		if j.filter.matches(l) {
			part.items = append(part.items, redriveItem{l: l})
			if l.value != 0 {
				values--
			}
		}
		return true
	})
	return part
}

// quota is how many letters may be moved now: by its rate, of which at most a
// second's worth is made up for, and by its limit.
func (j *redriveJob) quota(now int64) int {
	n := int64(redriveSlice)
	if j.rate > 0 {
		n = min(n, 1+(now-max(j.next, now-1_000_000))*j.rate/1_000_000)
	}
	if j.limit > 0 {
		n = min(n, j.limit-j.tried())
	}
	return int(max(n, 0))
}

func (j *redriveJob) tried() int64 { return j.moved + j.duplicates + j.failed }

// planRedrivePart moves the letters of a slice, as many as go into the entry.
func (m *Machine) planRedrivePart(c *Call, part *redrivePart) verdict {
	r := &m.redriving
	if part != r.slice {
		return instantly // from before this node led anew
	}
	r.waiting = false
	j := part.job
	if j.state != redriveRunning || m.paused.Load() {
		return instantly
	}
	lookup := false
	for i := range part.items {
		if it := &part.items[i]; !it.gone() {
			lookup = m.judgeRedrive(c, j, it) || lookup
		}
	}
	if lookup {
		r.waiting = true
		return again
	}
	size := m.b.Size()
	for i := range part.items {
		if i > 0 && m.b.Size() >= m.cfg.CycleBytes {
			part.through, part.whole = part.items[i-1].l.id, false
			break
		}
		part.done++
		m.moveLetter(c, j, &part.items[i])
	}
	m.adaptValues(m.b.Size() - size)
	m.advanceRedrive(j, part)
	for i := range part.items {
		part.items[i].push = nil // the slice stays until the next one
	}
	return instantly
}

// adaptValues lets the next slice read more payloads, or fewer when these were
// large: they are in memory together.
func (m *Machine) adaptValues(bytes int) {
	r := &m.redriving
	switch {
	case bytes > m.cfg.CycleBytes/2:
		r.values = max(1, r.values/2)
	case bytes < m.cfg.CycleBytes/8:
		r.values = min(max(1, 2*r.values), redriveSlice)
	}
}

// judgeRedrive makes the copy of a letter and judges its push. lookup:
// something must be read first.
func (m *Machine) judgeRedrive(c *Call, j *redriveJob, it *redriveItem) (lookup bool) {
	if it.push == nil {
		content := it.l.message
		if it.l.value != 0 {
			n := c.needAt(need{kind: needValue, queue: it.l.q.id, value: it.l.value})
			if n == nil {
				return true
			}
			if n.err != nil {
				it.outcome = "failed"
				return false
			}
			content = n.data
		}
		msg, _, err := entry.NextMessage(content)
		if err != nil {
			it.outcome = "failed"
			return false
		}
		to := func(own, other string) string {
			if other != "" {
				return other
			}
			return own
		}
		queue, partition := to(it.l.q.name, j.toQueue), to(it.l.partition, j.toPartition)
		if len(queue)+len(partition) > longestNames || m.sealsElsewhere(j.tenant, it.l.q.name, queue) {
			it.outcome = "failed"
			return false
		}
		txn := entry.AppendUUID([]byte("dlq:"), it.l.id)
		msg.ID, msg.Minted, msg.Txn = it.l.id, false, txn // a letter has one copy
		it.push = &Push{Items: []PushItem{{
			Queue: queue, Partition: partition, ID: msg.ID, Txn: txn, TxnHash: xxhash.Sum64(txn), Packed: entry.AppendMessage(nil, &msg),
		}}}
		it.push.GroupItems()
	}
	lookup = m.judgePush(c, it.push)
	if q := m.s.findQueue(c.Tenant, it.push.Items[0].Queue); q != nil && c.failed(q.byName[it.push.Items[0].Partition], it.push.Items[0].Txn) {
		it.outcome = "failed" // whether the copy is there could not be read
	}
	return lookup
}

// moveLetter decides one letter, whose look-ups are made.
func (m *Machine) moveLetter(c *Call, j *redriveJob, it *redriveItem) {
	if it.gone() {
		it.outcome = "gone"
		return
	}
	if it.outcome == "" {
		m.judgeRedrive(c, j, it) // once more: an earlier one may have made its partition
	}
	if it.outcome == "" {
		switch it.push.Items[0].Status {
		case Queued:
			m.emitGroup(j.tenant, it.push, &it.push.Groups[0])
			m.deleteLetter(it.l)
			it.outcome = "moved"
		case Duplicate:
			it.outcome = "duplicate"
		default:
			it.outcome = "failed"
		}
	}
	switch it.outcome {
	case "moved":
		j.moved++
	case "duplicate":
		j.duplicates++
	default:
		j.failed++
	}
}

// advanceRedrive writes how far a job has come, when that counts.
func (m *Machine) advanceRedrive(j *redriveJob, part *redrivePart) {
	before, n := j.at, int64(part.done)
	j.at = part.through
	ended := part.whole || j.limit > 0 && j.tried() >= j.limit
	if n == 0 && !ended {
		if before == j.at {
			panic("fsm: a slice of a redrive that looks at nothing")
		}
		return
	}
	j.after = j.at
	if j.rate > 0 {
		j.next = max(j.next, m.now-1_000_000) + n*1_000_000/j.rate
	}
	if ended {
		m.endRedrive(j, redriveDone)
	}
	m.put(j)
}

// buildRedrives makes the list of jobs that run.
func (m *Machine) buildRedrives() {
	m.redriving = redriving{}
	m.s.redrives.Scan(func(_ string, j *redriveJob) bool {
		j.at = j.after
		if j.state == redriveRunning {
			m.redriving.jobs = append(m.redriving.jobs, j)
		}
		return true
	})
}

// Rows.

func (j *redriveJob) appendKey(dst []byte) []byte {
	return append(append(append(dst, rowRedrive), j.tenant...), j.id[:]...)
}

func (j *redriveJob) alive() bool          { return !j.dead }
func (j *redriveJob) setDirty(v bool) bool { return swap(&j.dirty, v) }

func (j *redriveJob) encode(dst []byte) []byte {
	f := &j.filter
	dst = append(dst, j.state, flag(f.anyGroup))
	dst = appendUvarints(dst, j.queueID)
	for _, text := range []string{j.queue, f.group, f.contains, j.toQueue, j.toPartition} {
		dst = putString(dst, text)
	}
	for _, n := range []int64{f.from, f.to, j.limit, j.rate, j.created, j.ended, j.total, j.moved, j.duplicates, j.failed, j.next} {
		dst = binary.AppendVarint(dst, n)
	}
	return append(append(dst, j.after[:]...), j.last[:]...)
}

func (j *redriveJob) decode(b []byte) error {
	r := rowReader{b: b}
	f := &j.filter
	j.state, f.anyGroup, j.queueID = r.byte(), r.byte() != 0, r.uvarint()
	for _, text := range []*string{&j.queue, &f.group, &f.contains, &j.toQueue, &j.toPartition} {
		*text = r.string()
	}
	for _, n := range []*int64{&f.from, &f.to, &j.limit, &j.rate, &j.created, &j.ended, &j.total, &j.moved, &j.duplicates, &j.failed, &j.next} {
		*n = r.varint()
	}
	j.after, j.last = r.id(), r.id()
	if r.err == nil && (int(j.state) >= len(redriveStates) || j.rate < 0 || j.rate > maxRedriveRate || j.limit < 0) {
		return fmt.Errorf("a redrive in state %d with rate %d and limit %d", j.state, j.rate, j.limit)
	}
	return r.end()
}

// loadRedrive takes the row of a job; key is the part of its key behind the kind.
func (m *Machine) loadRedrive(key string, value []byte, changed bool) error {
	if len(key) != tenantLength+16 {
		return errShortRow
	}
	if old, _ := m.s.redrives.Get(key); old != nil {
		old.dead = true
		m.s.redrives.Delete(key)
	}
	if value == nil {
		return nil
	}
	j := &redriveJob{tenant: key[:tenantLength], id: [16]byte([]byte(key[tenantLength:]))}
	if err := j.decode(value); err != nil {
		return err
	}
	m.s.redrives.Set(key, j)
	if changed {
		m.touch(j)
	}
	return nil
}
