package history

import (
	"strings"
	"testing"
)

// small is a short run: three inputs in p, steps a (0..1) and b (2), both
// with timers.
func small(t *testing.T, fateB Fate) *Steps {
	t.Helper()
	b := NewSteps()
	for i, id := range []string{"i0", "i1", "i2"} {
		b.Add(&Push{ID: id, Stream: "in/p", Offset: int64(i), Fate: Answered})
		if err := b.Read("in/p", id, int64(i)); err != nil {
			t.Fatal(err)
		}
	}
	b.AddStep(&Step{ID: "a", Partition: "p", First: 0, Last: 1, Fate: Answered, Timer: true})
	b.AddStep(&Step{ID: "b", Partition: "p", First: 2, Last: 2, Fate: fateB, Timer: true})
	return b
}

func first(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// step reads back all parts of one step.
func step(b *Steps, id string, lo, hi int64) error {
	err := b.ReadAudit("p", id, lo, hi)
	for o := lo; o <= hi; o++ {
		err = first(err, b.ReadOutput("p", id, o))
	}
	return first(err, b.ReadFired(id))
}

func TestBookBalances(t *testing.T) {
	for _, c := range []struct {
		fate  Fate
		there bool
	}{{Answered, true}, {Unknown, true}, {Unknown, false}, {Refused, false}} {
		b := small(t, c.fate)
		err := step(b, "a", 0, 1)
		count, last := int64(2), "a"
		if c.there {
			err = first(err, step(b, "b", 2, 2))
			count, last = 3, "b"
		}
		marker := map[bool]string{true: "b"}[c.there]
		if err = first(err, b.Balance(), b.Counts("p", count, last), b.Marker(b.steps["b"], marker)); err != nil {
			t.Errorf("%v, there %v: %v", c.fate, c.there, err)
		}
		if b.steps["b"].Fate == Unknown {
			t.Errorf("%v, there %v: still unknown after the balance", c.fate, c.there)
		}
	}
}

func TestBookFindsViolations(t *testing.T) {
	for name, c := range map[string]struct {
		fate Fate // of step b
		read func(b *Steps) error
		want string
	}{
		"answered step lost": {Answered, func(b *Steps) error { return first(step(b, "a", 0, 1), b.Balance()) }, "answered and is not there"},
		"refused step there": {Refused, func(b *Steps) error { return first(step(b, "a", 0, 1), step(b, "b", 2, 2)) }, "was refused"},
		"step twice":         {Answered, func(b *Steps) error { return first(step(b, "a", 0, 1), b.ReadAudit("p", "a", 0, 1)) }, "there twice"},
		"steps out of order": {Answered, func(b *Steps) error { return step(b, "b", 2, 2) }, "out of order"},
		"output lost": {Answered, func(b *Steps) error {
			return first(b.ReadAudit("p", "a", 0, 1), b.ReadOutput("p", "a", 1))
		}, "lost, repeated"},
		"last output lost": {Answered, func(b *Steps) error {
			return first(b.ReadAudit("p", "a", 0, 1), b.ReadOutput("p", "a", 0), b.ReadFired("a"), step(b, "b", 2, 2))
		}, "lost, repeated"},
		"output without audit": {Unknown, func(b *Steps) error {
			return first(step(b, "a", 0, 1), b.ReadOutput("p", "b", 2))
		}, "half there"},
		"audit without output": {Unknown, func(b *Steps) error {
			return first(step(b, "a", 0, 1), b.ReadAudit("p", "b", 2, 2), b.ReadFired("b"), b.Balance())
		}, "half there"},
		"timer lost": {Answered, func(b *Steps) error {
			return first(b.ReadAudit("p", "a", 0, 1), b.ReadOutput("p", "a", 0), b.ReadOutput("p", "a", 1), step(b, "b", 2, 2), b.Balance())
		}, "did not fire"},
		"timer twice":        {Answered, func(b *Steps) error { return first(step(b, "a", 0, 1), b.ReadFired("a")) }, "fired twice"},
		"timer without step": {Unknown, func(b *Steps) error { return first(step(b, "a", 0, 1), b.ReadFired("b")) }, "is not there"},
		"count twice":        {Unknown, func(b *Steps) error { return first(step(b, "a", 0, 1), b.Counts("p", 4, "a")) }, "applied twice"},
		"marker lost":        {Unknown, func(b *Steps) error { return first(step(b, "a", 0, 1), b.Marker(b.steps["a"], "")) }, "marker says"},
		"marker without step": {Unknown, func(b *Steps) error {
			return first(step(b, "a", 0, 1), b.Marker(b.steps["b"], "b"))
		}, "marker says"},
		"push lost": {Answered, func(b *Steps) error {
			b.Add(&Push{ID: "i3", Stream: "in/p", Offset: 3, Fate: Answered})
			return b.Balance()
		}, "is not there"},
		"push twice": {Answered, func(b *Steps) error { return b.Read("in/p", "i2", 3) }, "there twice"},
		"push moved": {Answered, func(b *Steps) error {
			b.Add(&Push{ID: "i3", Stream: "in/p", Offset: 4, Fate: Answered})
			return b.Read("in/p", "i3", 3)
		}, "was answered 4"},
		"push half there": {Answered, func(b *Steps) error {
			u := &Unit{ID: "x"}
			b.Add(&Push{ID: "x", Stream: "a/p", Offset: -1, Unit: u}, &Push{ID: "x", Stream: "b/p", Offset: -1, Unit: u})
			return first(b.Read("b/p", "x", 0), b.Balance())
		}, "half there"},
		"input gap": {Answered, func(b *Steps) error { return b.Read("in/p", "i3", 4) }, "a gap"},
	} {
		b := small(t, c.fate)
		err := c.read(b)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: found %v, want an error with %q", name, err, c.want)
		}
	}
}
