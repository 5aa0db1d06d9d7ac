package history

import (
	"fmt"
	"time"
)

// Timer is one schedule. A schedule of the same key that replaces it, or a
// cancel, takes it back.
type Timer struct {
	ID   string
	Due  time.Time // the earliest moment at which it may fire
	Fate Fate
	Back Fate  // of what takes it back; Refused when nothing does
	Unit *Unit // the transaction that scheduled it; nil: it has a fate of its own

	fired bool
}

// Timers is what was scheduled and what has fired.
type Timers struct{ all map[string]*Timer }

// NewTimers returns empty books.
func NewTimers() *Timers { return &Timers{all: map[string]*Timer{}} }

// Add books a timer.
func (b *Timers) Add(t *Timer) { b.all[t.ID] = t }

func (t *Timer) fate() Fate {
	if t.Unit != nil {
		return t.Unit.Fate
	}
	return t.Fate
}

// Fired books the message of a timer, appended at at by the broker's clock.
func (b *Timers) Fired(id string, at time.Time) error {
	t := b.all[id]
	switch {
	case t == nil:
		return fmt.Errorf("timer %s was never scheduled", id)
	case t.fired:
		return fmt.Errorf("timer %s fired twice", id)
	case t.fate() == Refused:
		return fmt.Errorf("timer %s was refused and fired", id)
	case t.Back == Answered:
		return fmt.Errorf("timer %s was taken back and fired", id)
	case at.Before(t.Due):
		return fmt.Errorf("timer %s fired %v early", id, t.Due.Sub(at))
	}
	t.fired = true
	return nil
}

// Balance closes a reading after everything due has fired.
func (b *Timers) Balance() error {
	for _, t := range b.all { // the first that is wrong, whichever that is
		if t.fate() == Answered && t.Back == Refused && !t.fired {
			return fmt.Errorf("timer %s of %v did not fire", t.ID, t.Due)
		}
	}
	return nil
}
