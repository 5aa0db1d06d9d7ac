package main

import (
	"fmt"
	"testing"

	"github.com/cespare/xxhash/v2"

	"queen/fsm"
	"queen/internal/entry"
)

// short is what a seed runs in tests.
var short = goal{commands: 700, disruptions: 12, minutes: 1}

// TestSeeds is a bounded part of make sim.
func TestSeeds(t *testing.T) {
	seeds := uint64(3)
	if testing.Short() {
		seeds = 2
	}
	for seed := range seeds {
		r := run(seed, short, nil)
		if r.err != nil {
			t.Fatal(failure(seed, short, r.err))
		}
		if r.totals.Commands < short.commands || r.totals.disruptions() < short.disruptions || r.totals.SimSeconds < short.minutes*60 {
			t.Errorf("seed %d did not reach its goal: %+v", seed, r.totals)
		}
	}
}

// One seed gives one history, to the last step (F25).
func TestOneSeedRunsTwice(t *testing.T) {
	a, b := run(3, short, nil), run(3, short, nil)
	if a.hash != b.hash || fmt.Sprint(a.totals) != fmt.Sprint(b.totals) {
		t.Errorf("the traces of one seed are %016x and %016x\n%+v\n%+v", a.hash, b.hash, a.totals, b.totals)
	}
	if c := run(4, short, nil); c.hash == a.hash {
		t.Errorf("two seeds have the trace %016x", a.hash)
	}
}

// The book must notice what it is there for: see tools/crash-bugs.sh for bugs of the
// broker; these are answers that are wrong.
func TestTheBookRefuses(t *testing.T) {
	// Each makes the book wrong, as soon as there is something to be wrong about; what may be over before anybody looks is
	// made wrong again and again.
	again := map[string]bool{"a lost timer": true, "a lease given twice": true, "a lost outcome": true, "another answer": true}
	for name, wrong := range map[string]func(*world) (done bool){
		"a lost key": func(w *world) (done bool) {
			for _, id := range sortedKeys(w.book.kv.rows) {
				delete(w.book.kv.rows, id)
				done = true
			}
			return done
		},
		"a lost message": func(w *world) bool {
			p := w.book.parts[sortedKeys(w.book.parts)[0]]
			p.ids = p.ids[:len(p.ids)-1]
			return true
		},
		"a lost timer": func(w *world) bool {
			done := len(w.book.timers) > 0
			clear(w.book.timers)
			return done
		},
		"a lost outcome": func(w *world) bool {
			done := len(w.book.outcomes) > 0
			clear(w.book.outcomes)
			return done
		},
		"another answer": func(w *world) (done bool) {
			for key, first := range w.book.outcomes {
				first.body = append(first.body, 'x')
				w.book.outcomes[key] = first
				done = true
			}
			return done
		},
		"a moved cursor": func(w *world) (done bool) {
			for _, c := range w.book.cursors {
				c.floor++
				done = true
			}
			return done
		},
		"a lease given twice": func(w *world) (done bool) {
			for _, c := range w.book.cursors {
				if c.lease != nil {
					c.lease.expires += 3_600_000_000
					done = true
				}
			}
			return done
		},
	} {
		t.Run(name, func(t *testing.T) {
			done := false
			r := runWith(1, goal{commands: 1000, disruptions: 3, minutes: 1}, nil, func(w *world) {
				if (!done || again[name]) && w.totals.Commands >= 400 && w.node != nil && len(w.book.plans) == 0 {
					done = wrong(w) || done
				}
			})
			if !done {
				t.Fatal("the seed never came to where it could be wrong")
			}
			if r.err == nil {
				t.Error("nothing was noticed")
			}
		})
	}
}

func BenchmarkSeed(b *testing.B) {
	for i := range b.N {
		run(uint64(2+i), goal{commands: 10_000, disruptions: 20, minutes: 10}, nil)
	}
}

// began is a world whose process runs and in which nothing breaks.
func began(t *testing.T) *world {
	t.Cleanup(seedRaft(1))
	w := newWorld(1, short, nil)
	w.load.draining = true
	w.up()
	return w
}

// violation is the rule that something broke; nil: none.
func violation(f func()) (err error) {
	defer func() {
		switch v := recover().(type) {
		case nil:
		case errViolation:
			err = v
		default:
			panic(v)
		}
	}()
	f()
	return nil
}

// The end of a run waits for leases however long they are: their messages come out.
func TestTheEndWaitsForLeases(t *testing.T) {
	w := began(t)
	err := violation(func() {
		l := w.load
		p := &fsm.Push{Items: []fsm.PushItem{l.item("q1", "p0")}}
		p.GroupItems()
		w.ask(l.command(p))
		pop := &fsm.Pop{Queue: "q1", Group: allGroup, Batch: 1, Partitions: 1, LeaseSeconds: 300, LeaseID: l.id()}
		l.subscribe(pop)
		w.ask(l.command(pop))
		if len(pop.Claims) != 1 {
			t.Fatalf("%d claims", len(pop.Claims))
		}
		w.drain()
	})
	if err != nil {
		t.Error(err)
	}
}

// An ack names a transactionId. Of two messages that have it, the window between
// them over, it means the lower one that is not settled.
func TestAckOfARepeatedTransactionID(t *testing.T) {
	w := began(t)
	err := violation(func() {
		l := w.load
		for range 2 {
			it := l.item("q1", "p0")
			it.Txn, it.TxnHash = []byte("twice"), xxhash.Sum64String("twice")
			it.Packed = entry.AppendMessage(nil, &entry.Message{ID: it.ID, Txn: it.Txn, Payload: []byte("1")})
			w.book.msgs[it.ID].txn, w.book.msgs[it.ID].hash = "twice", xxhash.Sum64String("1")
			p := &fsm.Push{Items: []fsm.PushItem{it}}
			p.GroupItems()
			w.ask(l.command(p))
			w.chaos.skew += (dedupWindow + 1) * 1_000_000
			w.pass(1)
			w.restart() // broker time follows the wall clock of a boot
		}
		pop := &fsm.Pop{Queue: "q1", Group: allGroup, Batch: 2, Partitions: 1, LeaseSeconds: 20, LeaseID: l.id()}
		l.subscribe(pop)
		got := l.command(pop)
		w.ask(got)
		if err := w.read(got, pop); err != nil {
			t.Fatal(err)
		}
		d := got.got[0]
		if len(d.messages) != 2 {
			t.Fatalf("%d messages", len(d.messages))
		}
		// The client means the first one twice: the second time it is the other one.
		for i := range 2 {
			ack := &fsm.Ack{Items: []fsm.AckItem{{
				Txn: []byte("twice"), TxnHash: xxhash.Sum64String("twice"), PartitionID: d.claim.PartitionID, Group: allGroup, HasLease: true, LeaseID: d.lease,
			}}}
			c := l.command(ack)
			c.acks = d.messages[:1]
			w.ask(c)
			if cur := w.book.cursor(d.claim.PartitionID, allGroup); !ack.Items[0].Success || ack.Items[0].Noop || cur.floor != int64(i) {
				t.Fatalf("ack %d: %+v, settled up to %d", i, ack.Items[0], cur.floor)
			}
		}
		w.drain()
	})
	if err != nil {
		t.Error(err)
	}
}
