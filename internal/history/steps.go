package history

import (
	"fmt"
	"slices"
)

// Step is one transaction of a worker. Its audit message, its outputs, its
// counts and its marker are one entry of the broker's log.
type Step struct {
	ID          string
	Partition   string
	First, Last int64 // offsets of the input messages
	Fate        Fate
	Timer       bool // it scheduled a timer

	seen  bool // its audit message was read back
	fired bool // its timer's message was read back
}

// Seen reports whether the step was found to be applied.
func (a *Step) Seen() bool { return a.seen }

// Steps are the books of workers that take steps: an input queue "in", an audit
// record and outputs for each step. Audit records are read before outputs, and
// the messages of timers last.
type Steps struct {
	*Messages
	steps map[string]*Step
	audit map[string]int64  // partition -> next input offset that an audit record starts at
	out   map[string]int64  // partition -> next source offset of an output
	last  map[string]string // partition -> step of the newest audit record

	open    []*Step // to be balanced
	markers []*Step // to be compared with KV
}

// NewSteps returns empty books.
func NewSteps() *Steps {
	return &Steps{
		Messages: NewMessages(), steps: map[string]*Step{}, audit: map[string]int64{},
		out: map[string]int64{}, last: map[string]string{},
	}
}

// AddStep books a step, or books it again when it was sent again.
func (b *Steps) AddStep(a *Step) {
	b.steps[a.ID] = a
	b.open = append(b.open, a)
	b.markers = append(b.markers, a)
}

// Step returns a step by its id.
func (b *Steps) Step(id string) *Step { return b.steps[id] }

// Len is the number of steps that were ever sent.
func (b *Steps) Len() int { return len(b.steps) }

// Covered returns how many inputs of a partition the applied steps cover.
func (b *Steps) Covered(partition string) int64 { return b.audit[partition] }

// TakeMarkers returns the steps whose markers were not compared yet, and takes
// them for compared.
func (b *Steps) TakeMarkers() []*Step {
	m := b.markers
	b.markers = nil
	return m
}

// Inputs returns how many input messages of a partition were read.
func (b *Steps) Inputs(partition string) int64 { return b.Count(StreamName("in", partition)) }

// ReadAudit books one audit message: its step was applied.
func (b *Steps) ReadAudit(partition, id string, first, last int64) error {
	a := b.steps[id]
	switch {
	case a == nil:
		return fmt.Errorf("audit %s: step %s was never sent", partition, id)
	case a.seen:
		return fmt.Errorf("audit %s: step %s is there twice", partition, id)
	case a.Fate == Refused:
		return fmt.Errorf("audit %s: step %s was refused and is there", partition, id)
	case a.Partition != partition || a.First != first || a.Last != last:
		return fmt.Errorf("audit %s %d..%d: step %s was for %s %d..%d", partition, first, last, id, a.Partition, a.First, a.Last)
	case first != b.audit[partition]:
		return fmt.Errorf("audit %s: step %s starts at input %d, expected %d: a step is lost, repeated or out of order",
			partition, id, first, b.audit[partition])
	}
	a.seen = true
	b.audit[partition] = last + 1
	b.last[partition] = id
	return nil
}

// ReadOutput books one output. Outputs are read after the audit records.
func (b *Steps) ReadOutput(partition, id string, source int64) error {
	want := b.out[partition]
	if source != want {
		return fmt.Errorf("output %s: read the output of input %d, expected %d: lost, repeated or out of order", partition, source, want)
	}
	b.out[partition]++
	a := b.steps[id]
	if a == nil || !a.seen || source < a.First || source > a.Last || a.Partition != partition {
		return fmt.Errorf("output %s of input %d: step %s is half there: its audit record is not, or names other inputs", partition, source, id)
	}
	return nil
}

// ReadFired books one message of a timer.
func (b *Steps) ReadFired(id string) error {
	a := b.steps[id]
	switch {
	case a == nil || !a.Timer:
		return fmt.Errorf("timer of step %s was never scheduled", id)
	case a.fired:
		return fmt.Errorf("timer of step %s fired twice", id)
	case !a.seen:
		return fmt.Errorf("timer of step %s fired, and the step is not there", id)
	}
	a.fired = true
	return nil
}

// TimersDue returns how many timers of applied steps have not been read yet.
func (b *Steps) TimersDue() (n int) {
	for _, a := range b.steps {
		if a.seen && a.Timer && !a.fired {
			n++
		}
	}
	return n
}

// Partitions returns the partitions that have audit records, sorted.
func (b *Steps) Partitions() []string {
	var ps []string
	for p := range b.audit {
		ps = append(ps, p)
	}
	slices.Sort(ps)
	return ps
}

// Balance closes the round: everything was read, so what was not seen is not
// there. Unknown attempts get their fate.
func (b *Steps) Balance() error {
	if err := b.Messages.Balance(); err != nil {
		return err
	}
	for _, a := range b.open {
		if a.Fate == Answered && !a.seen {
			return fmt.Errorf("step %s of %s (inputs %d..%d) was answered and is not there", a.ID, a.Partition, a.First, a.Last)
		}
	}
	for _, p := range b.Partitions() {
		if b.audit[p] != b.out[p] {
			return fmt.Errorf("partition %s: steps cover inputs below %d, outputs those below %d: a step is half there", p, b.audit[p], b.out[p])
		}
		if n := b.Inputs(p); b.audit[p] > n {
			return fmt.Errorf("partition %s: steps cover inputs below %d, and there are %d", p, b.audit[p], n)
		}
	}
	if n := b.TimersDue(); n > 0 {
		return fmt.Errorf("%d timers of applied steps did not fire", n)
	}
	for _, a := range b.open {
		if a.Fate == Unknown {
			a.Fate = Refused
			if a.seen {
				a.Fate = Answered
			}
		}
	}
	b.open = nil
	return nil
}

// Counts compares what KV counts for a partition with the steps that were read.
func (b *Steps) Counts(partition string, count int64, last string) error {
	if count != b.audit[partition] {
		return fmt.Errorf("partition %s: KV counts %d inputs, the audit records %d: a step was applied twice or in part", partition, count,
			b.audit[partition])
	}
	if last != b.last[partition] {
		return fmt.Errorf("partition %s: KV names step %q as the newest, the audit records %q", partition, last, b.last[partition])
	}
	return nil
}

// Marker compares the value of a step's marker ("" when absent).
func (b *Steps) Marker(a *Step, value string) error {
	if a.seen != (value == a.ID) {
		return fmt.Errorf("step %s of %s: its audit record is there: %v; its marker says %q", a.ID, a.Partition, a.seen, value)
	}
	return nil
}
