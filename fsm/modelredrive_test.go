package fsm

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"queen/internal/entry"
)

// Redrives in the model: a job is the set of letters that were there and match.
// When a letter is moved is the machine's choice; which, in what order, what
// becomes of it and that none is moved twice or left is not.

type mJob struct {
	tenant               string
	q                    *mQueue
	toQueue, toPartition string
	limit, rate          int64
	set                  map[*mLetter]bool // true: tried
	created              int64
	total, moved         int64
	duplicates, failed   int64
	cancelled            bool
}

func (x *modelRun) redriveCall() (any, string) {
	if n := len(x.jobIDs); n > 0 && x.oneIn(5) {
		c := &CancelRedrive{ID: x.jobIDs[n-1-x.pick(min(n, 3))]}
		return c, fmt.Sprintf("cancel redrive %x", c.ID)
	}
	r := &Redrive{
		ID: x.r.id(), Queue: x.queueName(), Group: x.groupName(), AnyGroup: !x.oneIn(4), Contains: choose(x, "", "", "", "e1", "Retr"),
		Limit: choose(x, int64(0), 0, 1, 3), Rate: choose(x, int64(0), 0, 10, 1000), DryRun: x.oneIn(6),
	}
	if ids := sortedLetters(x.m.letters); len(ids) > 0 {
		r.Queue = x.m.letters[ids[x.pick(len(ids))]].q.name
	} else if !x.oneIn(6) {
		return x.ack() // nothing to move
	}
	if x.oneIn(4) {
		r.From = x.r.now - choose(x, int64(1000), 2_000_000)
	}
	if x.oneIn(4) {
		r.To = x.r.now - choose(x, int64(1), 1_000_000)
	}
	if x.oneIn(2) {
		r.ToQueue = x.queueName()
	}
	if x.oneIn(2) {
		r.ToPartition = x.partName()
	}
	return r, fmt.Sprintf("redrive %x of %s group %s %v error %q from %d to %d limit %d rate %d dry %v to %q/%q", r.ID, r.Queue, r.Group, r.AnyGroup,
		r.Contains, r.From-startTime, r.To-startTime, r.Limit, r.Rate, r.DryRun, r.ToQueue, r.ToPartition)
}

func (x *modelRun) redrive(tenant string, r *Redrive) {
	m := x.m
	q := m.queue(tenant, r.Queue)
	if q == nil {
		m.expect("redrive of no queue", r.Outcome, "no_queue")
		return
	}
	j := &mJob{
		tenant: tenant, q: q, toQueue: r.ToQueue, toPartition: r.ToPartition, limit: r.Limit, rate: r.Rate, created: m.now, set: map[*mLetter]bool{},
	}
	for _, l := range m.letters {
		if l.q == q && l.group != TimerGroup && (r.AnyGroup || l.group == r.Group) && strings.Contains(l.err, r.Contains) &&
			l.failed >= r.From && (r.To == 0 || l.failed <= r.To) {
			j.set[l] = false
		}
	}
	if j.total = int64(len(j.set)); j.limit > 0 {
		j.total = min(j.total, j.limit)
	}
	m.expect("total of a redrive", r.Job.Total, j.total)
	if r.DryRun {
		m.expect("dry run of a redrive", r.Outcome, "dry")
		m.expect("letters that a dry run shows", int64(len(r.Sample)), j.total)
		return
	}
	m.expect("redrive", r.Outcome, "started")
	x.jobs[r.ID] = j
	x.jobIDs = append(x.jobIDs, r.ID)
}

func (x *modelRun) cancelRedrive(tenant string, c *CancelRedrive) {
	j := x.jobs[c.ID]
	x.m.expect("a job to cancel", c.Found, j != nil && j.tenant == tenant)
	if c.Found {
		j.cancelled = c.Job.State == "cancelled"
		x.m.expect("a cancelled job runs", c.Job.State == "running", false)
	}
}

// redriven takes over what a slice has done.
func (x *modelRun) redriven(part *redrivePart) {
	if part == nil || part.done == 0 || part == x.judgedPart {
		return
	}
	x.judgedPart = part
	m, j := x.m, x.jobs[part.job.id]
	if j == nil || j.cancelled {
		m.fail("a slice of job %x, which does not run", part.job.id)
		return
	}
	for i := range part.items[:part.done] {
		x.redrivenLetter(j, &part.items[i])
	}
	if n := j.moved + j.duplicates + j.failed; j.limit > 0 && n > j.limit || j.rate > 0 && n > 1+(m.now-j.created)*j.rate/1_000_000 {
		m.fail("job %x has done %d letters after %d us: limit %d, rate %d", part.job.id, n, m.now-j.created, j.limit, j.rate)
	}
}

func (x *modelRun) redrivenLetter(j *mJob, it *redriveItem) {
	m := x.m
	id, l := it.l.id, m.letters[it.l.id]
	if it.outcome == "gone" {
		if l != nil && m.queue(l.q.tenant, l.q.name) == l.q {
			m.fail("letter %x is there, and a redrive says that it is gone", id)
		}
		return
	}
	if l == nil { // filed in this cycle: its id is not known yet
		content := it.l.message
		if it.l.value != 0 {
			content = x.r.store.values[it.l.value].Data
		}
		for _, k := range sortedLetters(m.letters) {
			if k[1] == 0xff && m.letters[k].same(it.l.info(), content) {
				id, l = k, m.letters[k]
				break
			}
		}
	}
	if tried, ours := j.set[l]; l == nil || !ours || tried {
		m.fail("letter %x is not the job's, or was done before", id)
		return
	}
	for other, o := range m.letters {
		if tried, ours := j.set[o]; ours && !tried && other[1] != 0xff && id[1] != 0xff && bytes.Compare(other[:], id[:]) < 0 {
			m.fail("letter %x is done before %x, which failed earlier", id, other)
		}
	}
	j.set[l] = true
	queue, partition := j.toQueue, j.toPartition
	if queue == "" {
		queue = l.q.name
	}
	if partition == "" {
		partition = l.part
	}
	msg, _, err := entry.NextMessage(l.raw)
	if err != nil {
		m.fail("letter %x: %v", id, err)
		return
	}
	push := &PushItem{Queue: queue, Partition: partition, Txn: []byte("dlq:" + uuidText(it.l.id))}
	msg.ID, msg.Minted, msg.Txn = it.l.id, false, push.Txn
	push.Packed = entry.AppendMessage(nil, &msg)
	status, _ := m.judgePush(j.tenant, []*PushItem{push})
	m.expect("fate of a letter", it.outcome, map[PushStatus]string{Queued: "moved", Duplicate: "duplicate", Refused: "failed"}[status[0]])
	switch status[0] {
	case Queued:
		j.moved++
		m.append(m.needPart(m.needQueue(j.tenant, queue), partition), []mMsg{{string(push.Txn), push.Packed, m.now}})
		delete(m.letters, id)
	case Duplicate:
		j.duplicates++
	default:
		j.failed++
	}
}

func sortedLetters(letters map[[16]byte]*mLetter) (ids [][16]byte) {
	for id := range letters {
		ids = append(ids, id)
	}
	slices.SortFunc(ids, func(a, b [16]byte) int { return bytes.Compare(a[:], b[:]) })
	return ids
}

// compareJobs checks what listings say of the jobs.
func (x *modelRun) compareJobs() {
	n := 0
	for _, tenant := range []string{tenantA, otherTenant} {
		for _, got := range x.r.m.s.RedriveJobs(tenant) {
			n++
			j := x.jobs[got.ID]
			if j == nil || j.tenant != tenant {
				x.m.fail("job %x is not known", got.ID)
				return
			}
			x.m.expect("counts of a job", fmt.Sprint(got.Total, got.Moved, got.Duplicates, got.Failed), fmt.Sprint(j.total, j.moved, j.duplicates, j.failed))
			if got.State == "done" {
				x.m.expectDone(got.ID, j)
			}
		}
	}
	x.m.expect("jobs", n, len(x.jobs))
}

func (m *model) expectDone(id [16]byte, j *mJob) {
	if j.limit > 0 && j.moved+j.duplicates+j.failed == j.limit {
		return
	}
	for lid, l := range m.letters {
		if tried, ours := j.set[l]; ours && !tried {
			m.fail("job %x is done and has left letter %x", id, lid)
		}
	}
}

// settleRedrives lets every job come to its end.
func (x *modelRun) settleRedrives() {
	for n := 0; x.planted == nil && (x.r.m.nextRedrive() != 0 || x.r.m.redriving.waiting); n++ {
		if n > 2000 {
			x.m.fail("a redrive does not end")
			break
		}
		x.r.now = max(x.r.now, x.r.m.nextRedrive())
		x.cycle(nil)
		x.settleHeld()
	}
	x.compareJobs()
	x.check()
}
