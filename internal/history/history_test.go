package history

import (
	"strings"
	"testing"
	"time"
)

// expect runs the steps of a history and compares the first contradiction;
// "" expects none.
func expect(t *testing.T, name, want string, errs ...error) {
	t.Helper()
	err := first(errs...)
	if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
		t.Errorf("%s: found %v, want %q", name, err, want)
	}
}

func TestUnit(t *testing.T) {
	for _, c := range []struct {
		fate Fate
		a, b bool
		want string
	}{
		{Answered, true, true, ""}, {Answered, true, false, "not there"}, {Answered, false, false, "not there"},
		{Refused, false, false, ""}, {Refused, false, true, "was refused"},
		{Unknown, true, true, ""}, {Unknown, false, false, ""}, {Unknown, true, false, "half there"}, {Unknown, false, true, "half there"},
	} {
		u := &Unit{ID: "u", Fate: c.fate}
		expect(t, c.fate.String(), c.want, u.Saw("a", c.a), u.Saw("b", c.b))
		u.Settle()
		if c.want == "" && (u.Fate == Answered) != c.a {
			t.Errorf("%v, there: %v: settled as %v", c.fate, c.a, u.Fate)
		}
	}
}

func TestGroup(t *testing.T) {
	for _, c := range []struct {
		name, want string
		run        func(g *Group) error
	}{
		{"settled", "", func(g *Group) error { g.Settled("s", 0); g.Settled("s", 1); return g.Balance("s", 2) }},
		{"a message is lost", "it is lost", func(g *Group) error { g.Settled("s", 1); return g.Balance("s", 2) }},
		{"delivered after its ack", "again after its ack", func(g *Group) error {
			g.Settled("s", 0)
			return g.Delivered("s", []int64{0}, g.Begin())
		}},
		{"delivered while it was acked", "", func(g *Group) error {
			begun := g.Begin()
			g.Settled("s", 0)
			return g.Delivered("s", []int64{0}, begun)
		}},
		{"an ack without an answer", "", func(g *Group) error {
			g.MaybeSettled("s", 0)
			return first(g.Delivered("s", []int64{0}, g.Begin()), g.Balance("s", 1))
		}},
		{"out of order", "delivered after", func(g *Group) error { return g.Delivered("s", []int64{1, 0}, g.Begin()) }},
		{"filed twice", "twice", func(g *Group) error { return first(g.Filed("s", 0), g.Filed("s", 0)) }},
		{"filed and completed", "was completed", func(g *Group) error { g.Settled("s", 0); return g.Filed("s", 0) }},
		{"filed and delivered", "after it was filed", func(g *Group) error { return first(g.Filed("s", 0), g.Delivered("s", []int64{0}, g.Begin())) }},
	} {
		expect(t, c.name, c.want, c.run(NewGroup("g")))
	}
}

func TestTimers(t *testing.T) {
	due := time.Unix(100, 0)
	for _, c := range []struct {
		name, want string
		timer      Timer
		fired      int
		at         time.Time
	}{
		{"fired", "", Timer{Fate: Answered, Back: Refused}, 1, due},
		{"twice", "fired twice", Timer{Fate: Answered, Back: Refused}, 2, due},
		{"early", "early", Timer{Fate: Answered, Back: Refused}, 1, due.Add(-time.Microsecond)},
		{"lost", "did not fire", Timer{Fate: Answered, Back: Refused}, 0, due},
		{"cancelled", "", Timer{Fate: Answered, Back: Answered}, 0, due},
		{"cancelled and fired", "taken back", Timer{Fate: Answered, Back: Answered}, 1, due},
		{"cancel without an answer", "", Timer{Fate: Answered}, 1, due},
		{"no answer", "", Timer{Back: Refused}, 0, due},
		{"refused", "was refused", Timer{Fate: Refused, Back: Refused}, 1, due},
		{"of a refused transaction", "was refused", Timer{Back: Refused, Unit: &Unit{Fate: Refused}}, 1, due},
		{"of an answered transaction", "did not fire", Timer{Back: Refused, Unit: &Unit{Fate: Answered}}, 0, due},
	} {
		b := NewTimers()
		c.timer.ID, c.timer.Due = "t", due
		b.Add(&c.timer)
		var errs []error
		for range c.fired {
			errs = append(errs, b.Fired("t", c.at))
		}
		expect(t, c.name, c.want, append(errs, b.Balance())...)
	}
	expect(t, "never scheduled", "never scheduled", NewTimers().Fired("t", due))
}

func TestRegisters(t *testing.T) {
	b := NewRegisters()
	expect(t, "empty", "", b.Read("k", ""))
	b.Set("k", "1", Answered)
	expect(t, "answered", "", b.Read("k", "1"))
	expect(t, "lost", "only", b.Read("k", ""))
	b.Set("k", "2", Unknown)
	b.Set("k", "3", Refused)
	expect(t, "refused", "only", b.Read("k", "3"))
	expect(t, "no answer, done", "", b.Read("k", "2"))
	expect(t, "and taken back", "only", b.Read("k", "1"))
}

func TestCounters(t *testing.T) {
	b := NewCounters()
	b.Add("c", 5, Answered)
	b.Add("c", 1, Unknown)
	b.Add("c", 2, Unknown)
	b.Add("c", 64, Refused)
	expect(t, "no answer, one done", "", b.Read("c", 7))
	expect(t, "the other one later", "explain", b.Read("c", 8))
	b.AddUnit("c", 3, &Unit{Fate: Answered})
	b.AddUnit("c", 4, &Unit{Fate: Refused})
	expect(t, "units", "", b.Read("c", 10))
	b.Add("c", 1, Answered)
	expect(t, "lost", "explain", b.Read("c", 10))
	b.AddUnit("c", 4, &Unit{})
	expect(t, "undecided", "not known", b.Read("c", 11))
}
