package main

import "queen/internal/vfs"

// chaos breaks things, when the seed says so.
type chaos struct {
	w      *world
	nextAt int   // commands after which something breaks
	healAt int64 // when the network is whole again; 0: it is
}

func (c *chaos) plan() {
	per := max(c.w.goal.commands/(c.w.goal.faults+5), 1)
	c.nextAt = c.w.totals.Commands + 1 + c.w.rng.IntN(2*per)
}

// strike lets something break when it is time. Where nothing goes on because too
// much is broken, time brings the next fault.
func (c *chaos) strike() {
	w := c.w
	if c.healAt != 0 && w.now >= c.healAt {
		w.logf("the network is whole again")
		c.healAt = 0
		w.net.heal()
	}
	if w.totals.Commands < c.nextAt {
		return
	}
	c.plan()
	w.totals.Faults++
	n := w.nodes[w.rng.IntN(len(w.nodes))]
	if w.rng.IntN(2) == 0 { // most of it is worth most on the leader
		for _, l := range w.nodes {
			if l.step != nil && l.step.Leading() {
				n = l
			}
		}
	}
	w.noteTrace('x', n.id, uint64(w.now))
	switch k := w.rng.IntN(12); k {
	case 0, 1:
		c.end(n, func() *vfs.Mem { w.totals.Kills++; return n.disk.Kill() }, "killed")
	case 2, 3:
		c.end(n, func() *vfs.Mem { w.totals.PowerCuts++; return n.disk.Crash(w.rng.Float64()) }, "power cut")
	case 4:
		w.logf("the power goes everywhere")
		for _, n := range w.nodes {
			c.end(n, func() *vfs.Mem { w.totals.PowerCuts++; return n.disk.Crash(w.rng.Float64()) }, "power cut")
		}
	case 5, 6:
		c.isolate(n)
	case 7:
		c.rough()
	case 8:
		w.totals.Pauses++
		n.paused = w.now + w.rng.Int64N(6*second)
		w.logf("node %d is paused for %.1f s", n.id, float64(n.paused-w.now)/1e9)
	case 9:
		w.totals.Hangs++
		n.hung = w.now + w.rng.Int64N(8*second)
		w.logf("the disk of node %d hangs for %.1f s", n.id, float64(n.hung-w.now)/1e9)
	case 10:
		n.skew += choose[int64](w.rng, -3_600_000_000, -300_000_000, 1_000_000, 300_000_000, 7_200_000_000)
		w.logf("the wall clock of node %d jumps to %+d s", n.id, n.skew/1_000_000)
	case 11:
		if n.step != nil {
			w.logf("node %d hands leadership over", n.id)
			n.step.HandOver(3 * 1e9)
		}
	}
}

func (c *chaos) end(n *node, disk func() *vfs.Mem, how string) {
	if n.step != nil {
		n.die(disk(), how)
	}
}

// isolate cuts links: those of one node in both directions or in one, or all
// between two halves.
func (c *chaos) isolate(n *node) {
	w := c.w
	w.totals.Partitions++
	at := int(n.id) - 1
	kind := w.rng.IntN(4)
	for other := range w.nodes {
		if other == at {
			continue
		}
		switch kind {
		case 0, 1:
			w.net.cut[at][other], w.net.cut[other][at] = true, true
		case 2:
			w.net.cut[at][other] = true
		case 3:
			w.net.cut[other][at] = w.rng.IntN(2) == 0
		}
	}
	c.healAt = w.now + w.rng.Int64N(choose(w.rng, 2*second, 15*second))
	w.logf("links of node %d are cut (%d) for %.1f s", n.id, kind, float64(c.healAt-w.now)/1e9)
}

// rough makes the network lose and hold back messages.
func (c *chaos) rough() {
	w := c.w
	w.net.lossPct, w.net.slow = w.rng.IntN(40), w.rng.Int64N(second)
	c.healAt = w.now + w.rng.Int64N(10*second)
	w.logf("the network loses %d%% and delays by up to %d ms", w.net.lossPct, w.net.slow/1_000_000)
}
