package main

import (
	"slices"

	"github.com/cespare/xxhash/v2"

	"queen/fsm"
)

// drain ends a run: a clean stop, a boot, and then every group takes and acks
// what there is until nothing is left. What was stored and never settled must
// come out.
func (w *world) drain() {
	l := w.load
	l.draining = true
	w.chaos.nextAt = 1 << 60
	w.chaos.armed = nil
	w.up()
	w.settleDown()
	w.restart()
	// Over when nothing comes out although, for a whole wait, nothing was to come that takes longer.
	for round, quiet := 0, false; ; round++ {
		any := w.takeAll()
		if !any && quiet {
			break
		}
		if round == 50 {
			w.fail("messages come out again and again, or %d timers do not fire", len(w.book.timers))
		}
		quiet = len(w.book.timers) == 0 && !w.leased()
		w.wait(70e9) // holds end, timers are due
	}
	w.complete()
	w.settleDown()
	w.restart()
}

// up boots until a process runs.
func (w *world) up() {
	for w.node == nil {
		w.boot()
		w.chaos.nextAt = 1 << 60
	}
}

// restart stops the process and starts it again; nothing is broken any more.
func (w *world) restart() {
	if !w.stop() {
		w.fail("a clean stop failed at the end")
	}
	w.up()
}

// settleDown waits until every call is answered. A fault that is still to strike
// may end the process meanwhile.
func (w *world) settleDown() {
	for range 10_000_000 {
		if w.node == nil {
			w.up()
		}
		if !slices.ContainsFunc(w.load.clients, func(c *client) bool { return c.busy != nil }) && len(w.book.plans) == 0 {
			return
		}
		w.act(false)
		w.look()
	}
	w.fail("a call is never answered")
}

func (w *world) wait(nanos int64) {
	for until := w.now.Mono + nanos; w.now.Mono < until; {
		w.act(false)
		w.look()
	}
}

// ask makes one call and waits for its answer.
func (w *world) ask(cmd *command) {
	w.load.submit(-1, cmd)
	for range 10_000_000 {
		if cmd.done && len(w.book.plans) == 0 {
			if cmd.err != nil {
				w.fail("call %d of the end is answered with %v", cmd.n, cmd.err)
			}
			return
		}
		w.act(false)
		w.look()
		if w.node == nil {
			w.fail("the process died at the end")
		}
	}
	w.fail("call %d of the end is never answered", cmd.n)
}

// takeAll pops and acks for every group of every queue. It reports whether there
// was anything.
func (w *world) takeAll() (any bool) {
	l := w.load
	for _, queue := range slices.Concat(lasting, mortal) {
		for _, group := range groups {
			for {
				p := &fsm.Pop{Queue: queue, Group: group, Batch: 500, Partitions: 64, LeaseSeconds: 10, LeaseID: l.id()}
				l.subscribe(p)
				cmd := l.command(p)
				w.ask(cmd)
				if len(p.Claims) == 0 {
					break
				}
				any = true
				if err := w.read(cmd, p); err != nil {
					w.fail("a message cannot be read at the end: %v", err)
				}
				w.ask(l.settleAll(cmd, p))
			}
		}
	}
	return any
}

// leased reports whether a lease may live longer than a wait at the end.
func (w *world) leased() bool {
	soon := w.node.step.BrokerTime() + 60e6
	for key, c := range w.book.cursors { // order has no effect
		if c.lease != nil && c.lease.expires > soon && !w.book.gone[w.book.parts[key.part].queue] {
			return true
		}
	}
	return false
}

// settleAll completes a whole batch.
func (l *load) settleAll(got *command, p *fsm.Pop) *command {
	if p.CommitOnDelivery {
		return l.command(&fsm.Delivered{Claims: p.Claims})
	}
	ack := &fsm.Ack{}
	c := l.command(ack)
	for _, d := range got.got {
		m := d.messages[len(d.messages)-1] // an ack is cumulative
		ack.Items = append(ack.Items, fsm.AckItem{
			Txn: []byte(m.txn), TxnHash: xxhash.Sum64String(m.txn), PartitionID: d.claim.PartitionID, Group: d.group, HasLease: true, LeaseID: d.lease,
		})
		c.acks = append(c.acks, m)
	}
	return c
}

// complete: every group that reads everything has settled everything.
func (w *world) complete() {
	for _, id := range sortedKeys(w.book.parts) {
		p := w.book.parts[id]
		if w.book.gone[p.queue] {
			continue
		}
		for _, g := range []string{fsm.QueueMode, allGroup, onceGroup} {
			cur := w.book.cursor(id, g)
			cur.absorb()
			if cur.known && cur.floor != int64(len(p.ids))-1 || !cur.known && g != onceGroup {
				w.fail("at the end %s has settled %s/%s up to %d; it has %d messages", g, p.qname, p.name, cur.floor, len(p.ids))
			}
		}
	}
}
