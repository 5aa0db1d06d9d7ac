package fsm

import (
	"fmt"
	"slices"
	"testing"
)

// B41: a batch of five; every combination of the four statuses, in one call and
// in five, in request order and reversed, with what the edge left of the batch
// and without (a leader that never saw the delivery). Each message ends as
// done, pending or dead-lettered, and in exactly one of them.
func TestAckOrder(t *testing.T) {
	const n = 5
	for combo := range 1 << (2 * n) {
		var status [n]AckStatus
		for i := range n {
			status[i] = AckStatus(combo >> (2 * i) & 3)
		}
		for variant := range 8 {
			together, reversed, known := variant&1 == 0, variant&2 == 0, variant&4 == 0
			if reversed && !known {
				continue
			}
			order := []int{0, 1, 2, 3, 4}
			if reversed {
				slices.Reverse(order)
			}
			want := endOfBatch(status[:], order, together)
			got := ackBatch(t, status[:], order, together, known)
			if got != want {
				t.Fatalf("statuses %v in order %v, one call %v: ends as %s, want %s", status, order, together, got, want)
			}
		}
	}
}

// endOfBatch says what becomes of each message: d done, p pending, x dead.
func endOfBatch(status []AckStatus, order []int, together bool) string {
	end := []byte("ppppp")
	if together {
		stop := len(status)
		for i, s := range status {
			if s == Failed || s == Retry {
				stop = min(stop, i)
			}
		}
		for i, s := range status {
			switch s {
			case Completed:
				end[i] = 'd'
			case DeadLetter:
				end[i] = 'x'
			}
		}
		return string(end)
	}
	// Each call is judged on what the earlier ones left. A nack, a dead letter
	// and the end of the batch release the lease; what comes then is refused
	// or a repeat: it changes nothing.
	live := true
	for _, i := range order {
		if !live || end[i] != 'p' {
			continue
		}
		below := func(to int) {
			for j := range to {
				if end[j] == 'p' {
					end[j] = 'd'
				}
			}
		}
		below(i)
		switch status[i] {
		case Completed:
			end[i] = 'd'
			live = i < len(status)-1
		case DeadLetter:
			end[i] = 'x'
			live = false
		default:
			live = false
		}
	}
	return string(end)
}

func ackBatch(t *testing.T, status []AckStatus, order []int, together, known bool) string {
	r := newRig(t, Config{DedupBytes: 1 << 15})
	r.twin, r.batches = nil, known
	var items []PushItem
	for i := range status {
		items = append(items, r.item("a", "p", fmt.Sprint("m", i), nil))
	}
	run(r, newPush(items...))
	pop := func(lease string) *Pop {
		return run(r, &Pop{Queue: "a", Group: QueueMode, Batch: 10, Partitions: 1, LeaseID: leaseID(lease)})
	}
	pop("L")
	var acks []AckItem
	for _, i := range order {
		acks = append(acks, r.ack("a", "p", QueueMode, fmt.Sprint("m", i), "L", status[i]))
	}
	if together {
		run(r, &Ack{Items: acks})
	} else {
		for i := range acks {
			run(r, &Ack{Items: acks[i : i+1]})
		}
	}
	// What is still leased comes back when the lease is over.
	r.now += 61_000_000
	end := []byte("ddddd")
	for _, cl := range pop("M").Claims {
		for _, o := range claimOffsets(cl) {
			end[o] = 'p'
		}
	}
	letters, _ := r.m.s.DeadLetters(tenantA, &DeadLetterFilter{Queue: "a", Limit: 10})
	for _, l := range letters {
		if end[l.Offset] != 'd' {
			t.Fatalf("statuses %v: offset %d is dead-lettered and pending, or twice", status, l.Offset)
		}
		end[l.Offset] = 'x'
	}
	return string(end)
}
