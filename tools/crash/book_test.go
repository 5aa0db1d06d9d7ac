package main

import (
	"strings"
	"testing"
)

// history is a small run: three inputs in p, steps a (0..1) and b (2), both
// with timers.
func history(t *testing.T, fateB fate) *book {
	t.Helper()
	b := newBook()
	for i, id := range []string{"i0", "i1", "i2"} {
		b.addPushes([]*pushed{{id: id, stream: "in/p", offset: int64(i), fate: answered}})
		if err := b.readPush("in/p", id, int64(i)); err != nil {
			t.Fatal(err)
		}
	}
	b.addAttempt(&attempt{id: "a", partition: "p", first: 0, last: 1, fate: answered, timer: true})
	b.addAttempt(&attempt{id: "b", partition: "p", first: 2, last: 2, fate: fateB, timer: true})
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
func step(b *book, id string, lo, hi int64) error {
	err := b.readAudit("p", id, lo, hi)
	for o := lo; o <= hi; o++ {
		err = first(err, b.readOutput("p", id, o))
	}
	return first(err, b.readFired(id))
}

func TestBookBalances(t *testing.T) {
	for _, c := range []struct {
		fate  fate
		there bool
	}{{answered, true}, {unknown, true}, {unknown, false}, {refused, false}} {
		b := history(t, c.fate)
		err := step(b, "a", 0, 1)
		count, last := int64(2), "a"
		if c.there {
			err = first(err, step(b, "b", 2, 2))
			count, last = 3, "b"
		}
		marker := map[bool]string{true: "b"}[c.there]
		if err = first(err, b.balance(), b.counts("p", count, last), b.marker(b.attempts["b"], marker)); err != nil {
			t.Errorf("%v, there %v: %v", c.fate, c.there, err)
		}
		if b.attempts["b"].fate == unknown {
			t.Errorf("%v, there %v: still unknown after the balance", c.fate, c.there)
		}
	}
}

func TestBookFindsViolations(t *testing.T) {
	for name, c := range map[string]struct {
		fate fate // of step b
		read func(b *book) error
		want string
	}{
		"answered step lost": {answered, func(b *book) error { return first(step(b, "a", 0, 1), b.balance()) }, "answered and is not there"},
		"refused step there": {refused, func(b *book) error { return first(step(b, "a", 0, 1), step(b, "b", 2, 2)) }, "was refused"},
		"step twice":         {answered, func(b *book) error { return first(step(b, "a", 0, 1), b.readAudit("p", "a", 0, 1)) }, "there twice"},
		"steps out of order": {answered, func(b *book) error { return step(b, "b", 2, 2) }, "out of order"},
		"output lost": {answered, func(b *book) error {
			return first(b.readAudit("p", "a", 0, 1), b.readOutput("p", "a", 1))
		}, "lost, repeated"},
		"last output lost": {answered, func(b *book) error {
			return first(b.readAudit("p", "a", 0, 1), b.readOutput("p", "a", 0), b.readFired("a"), step(b, "b", 2, 2))
		}, "lost, repeated"},
		"output without audit": {unknown, func(b *book) error {
			return first(step(b, "a", 0, 1), b.readOutput("p", "b", 2))
		}, "half there"},
		"audit without output": {unknown, func(b *book) error {
			return first(step(b, "a", 0, 1), b.readAudit("p", "b", 2, 2), b.readFired("b"), b.balance())
		}, "half there"},
		"timer lost": {answered, func(b *book) error {
			return first(b.readAudit("p", "a", 0, 1), b.readOutput("p", "a", 0), b.readOutput("p", "a", 1), step(b, "b", 2, 2), b.balance())
		}, "did not fire"},
		"timer twice":        {answered, func(b *book) error { return first(step(b, "a", 0, 1), b.readFired("a")) }, "fired twice"},
		"timer without step": {unknown, func(b *book) error { return first(step(b, "a", 0, 1), b.readFired("b")) }, "is not there"},
		"count twice":        {unknown, func(b *book) error { return first(step(b, "a", 0, 1), b.counts("p", 4, "a")) }, "applied twice"},
		"marker lost":        {unknown, func(b *book) error { return first(step(b, "a", 0, 1), b.marker(b.attempts["a"], "")) }, "marker says"},
		"marker without step": {unknown, func(b *book) error {
			return first(step(b, "a", 0, 1), b.marker(b.attempts["b"], "b"))
		}, "marker says"},
		"push lost": {answered, func(b *book) error {
			b.addPushes([]*pushed{{id: "i3", stream: "in/p", offset: 3, fate: answered}})
			return b.balance()
		}, "is not there"},
		"push twice": {answered, func(b *book) error { return b.readPush("in/p", "i2", 3) }, "there twice"},
		"push moved": {answered, func(b *book) error {
			b.addPushes([]*pushed{{id: "i3", stream: "in/p", offset: 4, fate: answered}})
			return b.readPush("in/p", "i3", 3)
		}, "was answered 4"},
		"push half there": {answered, func(b *book) error {
			x, y := &pushed{id: "x", stream: "a/p", offset: -1}, &pushed{id: "x", stream: "b/p", offset: -1}
			x.with, y.with = []*pushed{x, y}, []*pushed{x, y}
			b.addPushes([]*pushed{x, y})
			return first(b.readPush("b/p", "x", 0), b.balance())
		}, "half there"},
		"input gap": {answered, func(b *book) error { return b.readPush("in/p", "i3", 4) }, "a gap"},
	} {
		b := history(t, c.fate)
		err := c.read(b)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: found %v, want an error with %q", name, err, c.want)
		}
	}
}
