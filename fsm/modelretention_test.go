package fsm

import "slices"

// Retention in the model: what the machine removes must be allowed by the rules, and in the end everything that they
// name is gone. When in between it happens is the machine's choice.

// allowed reports whether retention may take a message at time now.
func (p *mPart) allowed(o int, now int64) bool {
	opts, age := &p.q.opts, now-p.msgs[o].time
	older := func(seconds int64) bool { return seconds > 0 && age > seconds*1_000_000 }
	switch {
	case opts.RetentionEnabled && older(opts.RetentionSeconds), older(opts.MaxWaitTimeSeconds):
		return true
	case opts.RetentionEnabled && older(opts.CompletedRetentionSeconds):
		return p.passed(o)
	}
	return false
}

// passed reports whether groups read the partition, and all of them have passed an offset.
func (p *mPart) passed(o int) bool {
	read := false
	for _, g := range p.q.groups {
		switch c := p.cursors[g.name]; {
		case c != nil:
			if read = true; c.floor < int64(o) {
				return false
			}
		case g.mode != SubscribeNew || !g.old[p]:
			return false // it begins with what is there, or somewhere in it
		}
	}
	return read
}

// retain takes over what the pass at the end of a cycle has removed.
func (x *modelRun) retain() {
	for _, q := range x.m.queues {
		real := x.r.m.s.findQueue(q.tenant, q.name)
		if real == nil {
			continue // other checks find that
		}
		for _, p := range slices.Clone(q.order) {
			if p.id == 0 {
				continue
			}
			if rp := x.r.m.s.partitions[p.id]; rp != nil {
				x.moveStart(p.id, rp.start)
			} else {
				x.dropPart(p)
			}
		}
	}
}

// moveStart checks a new log start, and takes it over.
func (x *modelRun) moveStart(id, start uint64) {
	for _, q := range x.m.queues {
		for _, p := range q.order {
			if p.id == id && start > p.start {
				x.m.moveStart(p, start)
			}
		}
	}
}

func (m *model) moveStart(p *mPart, start uint64) {
	if start > uint64(len(p.msgs)) {
		m.fail("%s/%s: log start %d, there are %d messages", p.q.name, p.name, start, len(p.msgs))
		return
	}
	for o := p.start; o < start; o++ {
		if !p.allowed(int(o), m.now) {
			m.fail("%s/%s: retention has taken offset %d of %d, pushed at %d, at %d; options %+v", p.q.name, p.name, o, len(p.msgs), p.msgs[o].time-startTime, m.now-startTime, p.q.opts)
			return
		}
	}
	p.start = start
	for _, c := range p.cursors {
		if c.floor < int64(start)-1 {
			c.floor, c.retries = int64(start)-1, 0
			c.normalise()
		}
	}
}

// dropPart checks that a partition which is gone was idle.
func (x *modelRun) dropPart(p *mPart) {
	m := x.m
	m.moveStart(p, uint64(len(p.msgs))) // it was emptied a moment before
	quiet := max(m.cfg.PartitionCleanup, m.cfg.TxnWindowMin, p.q.opts.DedupWindowSeconds*1_000_000)
	letters := 0
	for _, l := range m.letters {
		if l.q == p.q && l.part == p.name && l.timerKey == "" {
			letters++
		}
	}
	leased := false
	for _, c := range p.cursors {
		leased = leased || c.live(m.now) != nil
	}
	if m.cfg.PartitionCleanup < 0 || int(p.start) < len(p.msgs) || letters > 0 || leased || m.now-max(p.lastAppend(), p.created) < quiet {
		m.fail("%s/%s was removed: %d messages from %d on, %d dead letters, leased %v, last append %d, now %d", p.q.name, p.name, len(p.msgs), p.start,
			letters, leased, p.lastAppend()-startTime, m.now-startTime)
		return
	}
	delete(p.q.parts, p.name)
	p.q.order = slices.DeleteFunc(p.q.order, func(o *mPart) bool { return o == p })
}

// settleRetention lets a whole pass run, and expects that it has left nothing that the rules take.
func (x *modelRun) settleRetention() {
	if x.planted != nil {
		return
	}
	m := x.r.m
	x.r.now += m.cfg.RetentionEvery + 1_000_000
	x.cycle(nil)
	x.settleHeld()
	x.r.now += m.cfg.RetentionEvery + 1_000_000
	begun := x.r.now
	for n := 0; n < 200 && (m.ret.began < begun || m.ret.walking || len(x.held) > 0); n++ {
		x.cycle(nil)
		x.settleHeld()
		x.r.now += 10
	}
	for _, q := range x.m.queues {
		for _, p := range q.order {
			if o := int(p.start); o < len(p.msgs) && p.allowed(o, begun) {
				x.m.fail("%s/%s: a whole pass has left offset %d, pushed at %d, at %d; options %+v", q.name, p.name, o, p.msgs[o].time-startTime, begun-startTime, q.opts)
			}
		}
	}
	x.check()
	x.compare()
}
