package fsm

// share is how many partitions a pop is given that leaves the choice to the
// broker: the ready ones, shared among the pops that wait, so that one consumer
// drains many partitions at once and many consumers have one each. Those that
// the group has not met yet count as ready while it still looks for them.
func (g *group) share() int {
	ready := int64(g.ready)
	if g.sweeping() {
		ready += g.q.counts.full - g.counts.full
	}
	return int(min(max(ready/int64(max(g.waiters.n, 1)), 1), maxClaims))
}
