package fsm

// This file says which messages of a partition are deliverable yet.

// visibility follows which messages of a partition with delayedProcessing are
// deliverable: all below through, then run by run. Append times of a partition
// never decrease, so a later run is never deliverable before an earlier one.
type visibility struct {
	through uint64      // every offset below is deliverable
	runs    []appendRun // consecutive; what follows them is read from disk when its turn comes
	delay   int64       // the option that this was made for, microseconds
}

// maxRuns bounds the memory of one partition's append times.
const maxRuns = 4096

func (r appendRun) end() uint64 { return r.first + uint64(r.count) }

// appended notes the time of an append, while its queue delays.
func (p *partition) appended(first uint64, now int64) {
	delay := p.q.opts.delay()
	if delay == 0 {
		return
	}
	if p.delay == nil || p.delay.delay != delay {
		p.delay = &visibility{delay: delay}
	}
	v := p.delay
	if n := len(v.runs); n > 0 && (n >= maxRuns || v.runs[n-1].end() != first) {
		return
	}
	v.runs = append(v.runs, appendRun{first, uint32(p.next - first), now})
}

// visible says up to which offset (exclusive) a partition delivers, and
// otherwise when to look again. unknown: append times must be read from disk;
// with a call, the look-up is asked for.
func (m *Machine) visible(c *Call, p *partition, first uint64) (limit uint64, wake int64, unknown bool) {
	if w := p.q.opts.quiet(); w > 0 {
		if quiet := p.lastAppend + w; m.now < quiet {
			return 0, quiet, false
		}
	}
	delay := p.q.opts.delay()
	if delay == 0 || m.now >= p.lastAppend+delay {
		p.delay = nil
		return p.next, 0, false
	}
	if p.delay == nil || p.delay.delay != delay {
		p.delay = &visibility{delay: delay}
	}
	v := p.delay
	if c != nil && !v.covers(first) {
		v.take(c, p, first)
	}
	for len(v.runs) > 0 && v.runs[0].time+delay <= m.now {
		v.through = max(v.through, v.runs[0].end())
		v.runs = v.runs[1:]
	}
	switch {
	case v.through > first:
		return v.through, 0, false
	case v.covers(first):
		return 0, v.runs[0].time + delay, false
	case first == p.next-1:
		return 0, p.lastAppend + delay, false // the newest message: its time is known
	}
	if c != nil {
		c.needAt(need{kind: needTimes, queue: p.q.id, partition: p.id, offset: first})
	}
	return 0, 0, true
}

func (v *visibility) covers(offset uint64) bool {
	return v.through > offset || len(v.runs) > 0 && v.runs[0].first <= offset
}

// take puts looked-up append times before those that are known and follow them.
func (v *visibility) take(c *Call, p *partition, first uint64) {
	for i := range c.needs {
		n := &c.needs[i]
		if n.kind == needTimes && n.done && n.partition == p.id && n.offset <= first {
			if runs := n.runs; len(runs) > 0 {
				for _, r := range v.runs {
					if r.first == runs[len(runs)-1].end() {
						runs = append(runs, r)
					}
				}
				v.runs = runs
			}
			n.done, n.runs = false, nil // used up: asked again when it did not help
		}
	}
}
