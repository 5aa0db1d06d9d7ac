package main

import (
	"fmt"
	"slices"
)

// fate is what the driver knows of a call.
type fate int

const (
	unknown  fate = iota // sent, and no answer that decides: maybe
	answered             // the broker said that it is done
	refused              // the broker said that it is not
)

func (f fate) String() string {
	return [...]string{"unknown", "answered", "refused"}[f]
}

// attempt is one transaction of a worker. Its audit message, its outputs, its
// counts and its marker are one entry of the broker's log.
type attempt struct {
	id          string
	partition   string
	first, last int64 // offsets of the input messages
	fate        fate
	timer       bool // it scheduled a timer
	seen        bool // its audit message was read back
	fired       bool // its timer's message was read back
}

// pushed is one message of a producer. A stream is a partition of a queue.
type pushed struct {
	id     string
	stream string
	offset int64 // as answered; -1 when it was not
	fate   fate
	seen   bool
	with   []*pushed // all messages of its transaction; nil when it came by the push route
}

// streamName names a partition of a queue in the book.
func streamName(queue, partition string) string { return queue + "/" + partition }

// book is everything that was sent and everything that was read back. Reads come
// in partition order, each message once; so a difference is found when it is
// read, or at the end of the round by balance.
//
// A book belongs to one goroutine.
type book struct {
	attempts map[string]*attempt
	pushes   map[string]*pushed // by stream and id
	next     map[string]int64   // stream of pushes -> next offset to read
	audit    map[string]int64   // partition -> next input offset that an audit record starts at
	out      map[string]int64   // partition -> next source offset of an output
	last     map[string]string  // partition -> attempt of the newest audit record

	open    []*attempt // of the round, to be balanced
	sent    []*pushed
	markers []*attempt // of the round, to be compared with KV
}

func newBook() *book {
	return &book{
		attempts: map[string]*attempt{}, pushes: map[string]*pushed{}, next: map[string]int64{}, audit: map[string]int64{},
		out: map[string]int64{}, last: map[string]string{},
	}
}

// addAttempt and addPushes book calls whose fate is as known when the load ended.
func (b *book) addAttempt(a *attempt) {
	b.attempts[a.id] = a
	b.open = append(b.open, a)
	b.markers = append(b.markers, a)
}

func (b *book) addPushes(ps []*pushed) {
	for _, p := range ps {
		b.pushes[p.stream+" "+p.id] = p
	}
	b.sent = append(b.sent, ps...)
}

// readPush books one message that a producer pushed.
func (b *book) readPush(stream, id string, offset int64) error {
	if want := b.next[stream]; offset != want {
		return fmt.Errorf("%s: read offset %d, expected %d: a gap or a repeat", stream, offset, want)
	}
	b.next[stream]++
	p := b.pushes[stream+" "+id]
	switch {
	case p == nil:
		return fmt.Errorf("%s offset %d: id %s was never pushed", stream, offset, id)
	case p.seen:
		return fmt.Errorf("%s offset %d: id %s is there twice", stream, offset, id)
	case p.fate == refused:
		return fmt.Errorf("%s offset %d: id %s was refused", stream, offset, id)
	case p.offset >= 0 && p.offset != offset:
		return fmt.Errorf("%s: id %s is at offset %d, and was answered %d", stream, id, offset, p.offset)
	}
	p.seen, p.offset = true, offset
	return nil
}

// inputs returns how many input messages of a partition were read.
func (b *book) inputs(partition string) int64 { return b.next[streamName("in", partition)] }

// readAudit books one audit message: its step was applied.
func (b *book) readAudit(partition, id string, first, last int64) error {
	a := b.attempts[id]
	switch {
	case a == nil:
		return fmt.Errorf("audit %s: step %s was never sent", partition, id)
	case a.seen:
		return fmt.Errorf("audit %s: step %s is there twice", partition, id)
	case a.fate == refused:
		return fmt.Errorf("audit %s: step %s was refused and is there", partition, id)
	case a.partition != partition || a.first != first || a.last != last:
		return fmt.Errorf("audit %s %d..%d: step %s was for %s %d..%d", partition, first, last, id, a.partition, a.first, a.last)
	case first != b.audit[partition]:
		return fmt.Errorf("audit %s: step %s starts at input %d, expected %d: a step is lost, repeated or out of order",
			partition, id, first, b.audit[partition])
	}
	a.seen = true
	b.audit[partition] = last + 1
	b.last[partition] = id
	return nil
}

// readOutput books one output. Outputs are read after the audit records.
func (b *book) readOutput(partition, id string, source int64) error {
	want := b.out[partition]
	if source != want {
		return fmt.Errorf("output %s: read the output of input %d, expected %d: lost, repeated or out of order", partition, source, want)
	}
	b.out[partition]++
	a := b.attempts[id]
	if a == nil || !a.seen || source < a.first || source > a.last || a.partition != partition {
		return fmt.Errorf("output %s of input %d: step %s is half there: its audit record is not, or names other inputs", partition, source, id)
	}
	return nil
}

// readFired books one message of a timer.
func (b *book) readFired(id string) error {
	a := b.attempts[id]
	switch {
	case a == nil || !a.timer:
		return fmt.Errorf("timer of step %s was never scheduled", id)
	case a.fired:
		return fmt.Errorf("timer of step %s fired twice", id)
	case !a.seen:
		return fmt.Errorf("timer of step %s fired, and the step is not there", id)
	}
	a.fired = true
	return nil
}

// timersDue returns how many timers of applied steps have not been read yet.
func (b *book) timersDue() (n int) {
	for _, a := range b.attempts {
		if a.seen && a.timer && !a.fired {
			n++
		}
	}
	return n
}

// partitions returns the partitions that have audit records, sorted.
func (b *book) partitions() []string {
	var ps []string
	for p := range b.audit {
		ps = append(ps, p)
	}
	slices.Sort(ps)
	return ps
}

// balance closes the round: everything was read, so what was not seen is not
// there. Unknown attempts get their fate.
func (b *book) balance() error {
	for _, p := range b.sent {
		if p.fate == answered && !p.seen {
			return fmt.Errorf("push %s to %s was answered at offset %d and is not there", p.id, p.stream, p.offset)
		}
		for _, q := range p.with {
			if q.seen != p.seen {
				return fmt.Errorf("push %s of one transaction is half there: in %s: %v, in %s: %v", p.id, p.stream, p.seen, q.stream, q.seen)
			}
		}
	}
	for _, a := range b.open {
		if a.fate == answered && !a.seen {
			return fmt.Errorf("step %s of %s (inputs %d..%d) was answered and is not there", a.id, a.partition, a.first, a.last)
		}
	}
	for _, p := range b.partitions() {
		if b.audit[p] != b.out[p] {
			return fmt.Errorf("partition %s: steps cover inputs below %d, outputs those below %d: a step is half there", p, b.audit[p], b.out[p])
		}
		if n := b.inputs(p); b.audit[p] > n {
			return fmt.Errorf("partition %s: steps cover inputs below %d, and there are %d", p, b.audit[p], n)
		}
	}
	if n := b.timersDue(); n > 0 {
		return fmt.Errorf("%d timers of applied steps did not fire", n)
	}
	for _, a := range b.open {
		if a.fate == unknown {
			a.fate = refused
			if a.seen {
				a.fate = answered
			}
		}
	}
	for _, p := range b.sent { // one that is read from now on was never pushed
		delete(b.pushes, p.stream+" "+p.id)
	}
	b.open, b.sent = nil, nil
	return nil
}

// counts compares what KV counts for a partition with the steps that were read.
func (b *book) counts(partition string, count int64, last string) error {
	if count != b.audit[partition] {
		return fmt.Errorf("partition %s: KV counts %d inputs, the audit records %d: a step was applied twice or in part", partition, count,
			b.audit[partition])
	}
	if last != b.last[partition] {
		return fmt.Errorf("partition %s: KV names step %q as the newest, the audit records %q", partition, last, b.last[partition])
	}
	return nil
}

// marker compares the value of a step's marker ("" when absent).
func (b *book) marker(a *attempt, value string) error {
	if a.seen != (value == a.id) {
		return fmt.Errorf("step %s of %s: its audit record is there: %v; its marker says %q", a.id, a.partition, a.seen, value)
	}
	return nil
}
