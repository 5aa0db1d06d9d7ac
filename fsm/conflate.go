package fsm

import "queen/index"

// Conflation: a group that wants to know how things stand, and not how they got
// there, is handed only the newest message of a partition. Its lease covers all
// from the cursor to that message, so an ack of it settles what it replaces, and
// what is appended after the claim stays pending. Whether a group conflates is
// decided once, with where it starts.

// maxClaims is the largest number of partitions that a pop claims.
const maxClaims = 64

// forgetGroups is what a pop knows before it has come to a group.
func (p *Pop) forgetGroups() {
	p.Conflates, p.Conflict = false, false
	if p.DefaultPartitions {
		p.Partitions = 1
		if p.Queue == "" && p.Conflate {
			p.Partitions = min(p.Batch, maxClaims) // of groups that may differ: what was asked for decides
		}
	}
}

// meets tells a pop whether the group that it came to conflates.
func (p *Pop) meets(g *group) {
	switch {
	case !g.conflates:
		p.Conflict = p.Conflict || p.Conflate
		return
	case p.DefaultPartitions && p.Queue != "":
		p.Partitions = min(p.Batch, maxClaims) // one message each
	}
	p.Conflates = true
}

// target is the message that a claim of a cursor is about, which is the one that
// dies with its worker: the first unsettled one, and for a group that conflates
// the newest of those that are visible. limit is what visible said of first.
func (m *Machine) target(call *Call, c *cursor, first, limit uint64) (offset uint64, unknown bool) {
	if !c.g.conflates {
		return first, false
	}
	for limit < c.p.next {
		further, _, unknown := m.visible(call, c.p, limit)
		if unknown {
			return first, true
		}
		if further <= limit {
			break
		}
		limit = further
	}
	return c.unsettledBefore(limit), false
}

// unsettledBefore is the highest offset below limit that is not settled. The
// caller knows that there is one.
func (c *cursor) unsettledBefore(limit uint64) uint64 {
	if c.sets == nil {
		return limit - 1
	}
	var lo, hi uint64 // the last run of settled offsets that begins below limit
	known := false
	c.sets.settled.Ranges(func(a, b uint64) bool {
		if a >= limit {
			return false
		}
		if !known || a != hi+1 {
			lo = a
		}
		hi, known = b, true
		return true
	})
	if known && hi >= limit-1 {
		return lo - 1
	}
	return limit - 1
}

// newestOf is what a conflating group gets of [first, limit): the message at
// newest. Settled holds the holes of all that it covers, for the way back.
func (c *cursor) newestOf(first, limit, newest uint64) *Claim {
	if first >= limit {
		return nil
	}
	cl := &Claim{
		Queue: c.p.q.name, Partition: c.p.name, QueueID: c.p.q.id, PartitionID: c.p.id, From: newest, To: newest, Count: 1, span: first,
	}
	if c.sets != nil {
		c.sets.settled.Ranges(func(lo, hi uint64) bool {
			if lo > newest {
				return false
			}
			cl.Settled = append(cl.Settled, index.Range{Lo: lo, Hi: hi})
			return true
		})
	}
	return cl
}

// conflated counts the messages that completed acks up to top settle although
// nobody was handed them. It is asked before the cursor moves.
func (p *ackPlan) conflated(c *cursor, top int64) int64 {
	from := max(c.committed+1, int64(c.p.start))
	n := top - from + 1
	if c.sets != nil {
		c.sets.settled.Ranges(func(lo, hi uint64) bool {
			if int64(lo) > top {
				return false
			}
			n -= min(int64(hi), top) - max(int64(lo), from) + 1
			return true
		})
	}
	named := make(map[uint64]struct{}, 1)
	for i := range p.judged {
		if j := &p.judged[i]; j.apply && j.c == c && int64(j.offset) >= from {
			named[j.offset] = struct{}{}
		}
	}
	return max(n-int64(len(named)), 0)
}
