package fsm

import (
	"container/heap"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

// Planted bugs: each breaks the machine between two planning cycles, in a way
// that no row shows at once, and the model has to find it.

type notes map[*cursor]*lease

// dedupWindowPlant judges pushes with a window that is one unit too long.
type dedupWindowPlant struct {
	shifted bool
	queues  map[uint64]bool // those that were there before the cycle
}

func (p *dedupWindowPlant) before(r *rig, calls []*Call) {
	p.shifted = !slices.ContainsFunc(calls, func(c *Call) bool { _, ok := c.Body.(*Configure); return ok })
	p.queues = map[uint64]bool{}
	for id := range r.m.s.queues {
		p.queues[id] = true
	}
	p.shift(r, 1)
}

func (p *dedupWindowPlant) after(r *rig, _ []*Call) { p.shift(r, -1) }

func (p *dedupWindowPlant) shift(r *rig, by int64) {
	for _, q := range r.m.s.queues {
		if p.shifted && q.opts.DedupWindowSeconds > 0 && p.queues[q.id] {
			q.opts.DedupWindowSeconds += by
		}
	}
}

// nackKeepsLeasePlant forgets to release the lease of a nacked batch.
type nackKeepsLeasePlant struct{ held notes }

func (p *nackKeepsLeasePlant) before(r *rig, _ []*Call) { p.held = leasesOf(r) }

func (p *nackKeepsLeasePlant) after(r *rig, _ []*Call) {
	for c, l := range p.held {
		if c.lease == nil && c.released != nil && c.released.id == l.id && c.released.acts != nil && !c.released.acts[releasedNacked].Empty() {
			r.m.setLease(c, l)
			r.m.refresh(c)
		}
	}
}

func leasesOf(r *rig) notes {
	held := notes{}
	for _, p := range r.m.s.partitions {
		for _, c := range p.cursors {
			if c.lease != nil && !p.q.deleted {
				held[c] = c.lease
			}
		}
	}
	return held
}

// redeliveryForgetsPlant loses the settled messages above the cursor once a
// redelivery is leased.
type redeliveryForgetsPlant struct{ held notes }

func (p *redeliveryForgetsPlant) before(r *rig, _ []*Call) { p.held = leasesOf(r) }

func (p *redeliveryForgetsPlant) after(r *rig, _ []*Call) {
	for c, l := range leasesOf(r) {
		if p.held[c] != l {
			c.sets = nil
			r.m.count(c) // the model is to find it, not the counters
		}
	}
}

// wholeAgainPlant hands an expired batch out whole: it forgets what expired.
type wholeAgainPlant struct{}

func (wholeAgainPlant) before(r *rig, _ []*Call) {
	for c := range suspicions(r) {
		c.suspect = nil
	}
}

func (wholeAgainPlant) after(*rig, []*Call) {}

// chargedTwicePlant counts an expired lease of a single message twice.
type chargedTwicePlant struct{ counts map[*cursor]suspicion }

func (p *chargedTwicePlant) before(r *rig, _ []*Call) { p.counts = suspicions(r) }

func (p *chargedTwicePlant) after(r *rig, _ []*Call) {
	for c, s := range suspicions(r) {
		if old := p.counts[c]; s.at == old.at && s.count == old.count+1 {
			c.suspect.count++
		}
	}
}

// nackChargedPlant charges a message that its worker gave back.
type nackChargedPlant struct{ held notes }

func (p *nackChargedPlant) before(r *rig, _ []*Call) { p.held = leasesOf(r) }

func (p *nackChargedPlant) after(r *rig, _ []*Call) {
	for c, l := range p.held {
		if c.lease == nil && c.released != nil && c.released.id == l.id && c.suspect != nil && c.suspect.at == c.firstUnsettled() {
			c.suspect.count++
		}
	}
}

func suspicions(r *rig) map[*cursor]suspicion {
	all := map[*cursor]suspicion{}
	for _, p := range r.m.s.partitions {
		for _, c := range p.cursors {
			if c.suspect != nil {
				all[c] = *c.suspect
			}
		}
	}
	return all
}

// versionReusePlant gives the version of a deleted key out again.
type versionReusePlant struct{ rows int64 }

func (p *versionReusePlant) before(r *rig, _ []*Call) { p.rows = int64(r.m.s.kv.Len()) }

func (p *versionReusePlant) after(r *rig, _ []*Call) {
	if int64(r.m.s.kv.Len()) < p.rows {
		r.m.s.meta.kvVersion--
	}
}

// cancelledFiresPlant leaves a cancelled timer where the firing pass finds it.
type cancelledFiresPlant struct{ pending []*timer }

func (p *cancelledFiresPlant) before(r *rig, _ []*Call) {
	p.pending = append([]*timer(nil), r.m.due...)
}

func (p *cancelledFiresPlant) after(r *rig, calls []*Call) {
	for _, c := range calls {
		t, ok := c.Body.(*Timers)
		if !ok {
			continue
		}
		for i := range t.Ops {
			if op := &t.Ops[i]; op.Cancel && op.OK {
				p.revive(r, timerKey(c.Tenant, op.Queue, op.Key))
			}
		}
	}
}

func (p *cancelledFiresPlant) revive(r *rig, key string) {
	for _, t := range p.pending {
		if _, again := r.m.s.timers.Get(key); t.key == key && t.dead && !again {
			t.dead = false
			heap.Push(&r.m.due, t)
		}
	}
}

// found is how a run ends that finds a difference.
type found struct{ text string }

type finder struct{}

func (finder) Helper()                   {}
func (finder) Fatalf(f string, a ...any) { panic(found{fmt.Sprintf(f, a...)}) }

func TestModelFindsPlantedBugs(t *testing.T) {
	for name, planted := range map[string]func() plant{
		"dedup window a unit too long":          func() plant { return &dedupWindowPlant{} },
		"nack keeps the lease":                  func() plant { return &nackKeepsLeasePlant{} },
		"settled set forgotten on redelivery":   func() plant { return &redeliveryForgetsPlant{} },
		"expired batch handed out whole":        func() plant { return wholeAgainPlant{} },
		"expired single lease charged twice":    func() plant { return &chargedTwicePlant{} },
		"nack charged as a delivery":            func() plant { return &nackChargedPlant{} },
		"version of a deleted key given again":  func() plant { return &versionReusePlant{} },
		"timer fires although it was cancelled": func() plant { return &cancelledFiresPlant{} },
	} {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(200) {
				if text := runPlanted(seed, planted()); text != "" {
					t.Logf("found in run %d: %.120s", seed, text)
					return
				}
			}
			t.Error("the model found nothing in 200 runs")
		})
	}
}

func runPlanted(seed uint64, p plant) (text string) {
	defer func() {
		if e := recover(); e != nil {
			f, ok := e.(found)
			if !ok {
				panic(e)
			}
			text = f.text
		}
	}()
	rnd := rand.New(rand.NewPCG(seed, 1))
	x := newModelRun(finder{}, rnd.IntN)
	x.planted = p
	x.r.twin = nil // the model is to find it, not the comparison of digests
	x.run(stepsPerRun)
	return ""
}

// TestModelRunsAreClean: without a bug, the same runs find nothing.
func TestModelRunsAreClean(t *testing.T) {
	for seed := range uint64(20) {
		if text := runPlanted(seed, noPlant{}); text != "" {
			t.Fatalf("run %d: %s", seed, text)
		}
	}
}

type noPlant struct{}

func (noPlant) before(*rig, []*Call) {}
func (noPlant) after(*rig, []*Call)  {}
