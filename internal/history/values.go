package history

import (
	"fmt"
	"slices"
)

// Registers are values that one writer each sets, one after another.
type Registers struct{ may map[string][]string }

// NewRegisters returns registers that all hold "".
func NewRegisters() *Registers { return &Registers{may: map[string][]string{}} }

// Set books a write.
func (b *Registers) Set(name, value string, fate Fate) {
	switch fate {
	case Answered:
		b.may[name] = []string{value}
	case Unknown:
		b.may[name] = append(b.possible(name), value)
	}
}

func (b *Registers) possible(name string) []string {
	if v, ok := b.may[name]; ok {
		return v
	}
	return []string{""}
}

// Read books a read; "" is a value that is not there.
func (b *Registers) Read(name, value string) error {
	if may := b.possible(name); !slices.Contains(may, value) {
		return fmt.Errorf("%s holds %q, and only %q was written last", name, value, may)
	}
	b.may[name] = []string{value}
	return nil
}

// Names lists the registers that were written, sorted.
func (b *Registers) Names() []string {
	var names []string
	for name := range b.may {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// Counters are sums that many add to at once.
type Counters struct{ all map[string]*counter }

type counter struct {
	sum   int64
	maybe []int64 // additions without an answer
	units []counted
}

type counted struct {
	unit  *Unit
	delta int64
}

// NewCounters returns counters that are all 0.
func NewCounters() *Counters { return &Counters{all: map[string]*counter{}} }

func (b *Counters) of(name string) *counter {
	if b.all[name] == nil {
		b.all[name] = &counter{}
	}
	return b.all[name]
}

// Add books an addition by itself.
func (b *Counters) Add(name string, delta int64, fate Fate) {
	switch c := b.of(name); fate {
	case Answered:
		c.sum += delta
	case Unknown:
		c.maybe = append(c.maybe, delta)
	}
}

// AddUnit books an addition that is part of a transaction.
func (b *Counters) AddUnit(name string, delta int64, unit *Unit) {
	c := b.of(name)
	c.units = append(c.units, counted{unit, delta})
}

// Read compares the value with what was added. The fates of all units are
// known by then.
func (b *Counters) Read(name string, value int64) error {
	c := b.of(name)
	for _, u := range c.units {
		switch u.unit.Fate {
		case Answered:
			c.sum += u.delta
		case Unknown:
			return fmt.Errorf("counter %s: the fate of transaction %s is not known", name, u.unit.ID)
		}
	}
	c.units = nil
	if !reachable(value-c.sum, c.maybe) {
		return fmt.Errorf("counter %s is %d: the answered additions make %d, and none of those without an answer (%v) explain the rest",
			name, value, c.sum, c.maybe)
	}
	c.sum, c.maybe = value, nil
	return nil
}

// reachable reports whether some of the deltas sum up to want. There are few:
// one for each client that a crash caught.
func reachable(want int64, deltas []int64) bool {
	if want == 0 {
		return true
	}
	for i, d := range deltas {
		if reachable(want-d, deltas[i+1:]) {
			return true
		}
	}
	return false
}

// Names lists the counters, sorted.
func (b *Counters) Names() []string {
	var names []string
	for name := range b.all {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}
