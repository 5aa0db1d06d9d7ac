// Package history checks what a broker answered against what can be read from
// it later. Drivers book each call with what they know of its fate, read
// everything back after a crash or at the end, and hand it in; the first thing
// that contradicts the books is an error that says what it is.
//
// What is checked: every answered message is there once, at its offset, and
// nothing that was refused is (Messages); all parts of a transaction are there
// or none (Unit, Steps); what a group settled is not delivered to it again and
// everything else is (Group); timers fire once and not early (Timers); values
// and counters are exact (Registers, Counters).
//
// The types belong to one goroutine, or to a lock of the caller.
package history

// Fate is what a driver knows of a call.
type Fate int

// Fates of a call.
const (
	Unknown  Fate = iota // sent, and no answer that decides: maybe
	Answered             // the broker said that it is done
	Refused              // the broker said that it is not
)

func (f Fate) String() string {
	return [...]string{"unknown", "answered", "refused"}[f]
}

// StreamName names a partition of a queue in the books.
func StreamName(queue, partition string) string { return queue + "/" + partition }
