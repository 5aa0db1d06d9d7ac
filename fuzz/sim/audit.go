package main

import (
	"errors"
	"fmt"

	"queen/fsm"
	"queen/internal/entry"
	"queen/raftlog"
)

// audit compares what a process that has just booted holds with the book: every
// message of every partition, as it is read from disk, the timers, the dead
// letters.
func (b *book) audit(n *node) {
	s := n.machine.View()
	seen := map[uint64]bool{}
	for _, q := range allQueues(s) {
		if b.gone[q.ID] {
			b.w.fail("queue %s (%d) was deleted, and is there after the boot", q.Name, q.ID)
		}
		for _, info := range allPartitions(s, q.Name) {
			p := b.parts[info.ID]
			if p == nil && info.Next == 0 {
				continue // made by a position
			}
			if p == nil || info.Next != uint64(len(p.ids)) || p.name != info.Name {
				b.w.fail("partition %d (%s/%s) ends at %d after the boot; the book has %+v", info.ID, q.Name, info.Name, info.Next, p)
			}
			seen[info.ID] = true
			if b.readAll(n, info.ID, p) != nil {
				return // an armed fault
			}
		}
	}
	for _, id := range sortedKeys(b.parts) {
		if p := b.parts[id]; !seen[id] && !b.gone[p.queue] {
			b.w.fail("partition %d (%s/%s) with %d messages is gone after the boot", id, p.qname, p.name, len(p.ids))
		}
	}
	b.auditTimers(s)
	b.auditLetters(n, s)
	b.auditOutcomes(n, s)
}

// The listings of the state come in slices; these put them together.

func allQueues(s *fsm.State) (all []fsm.QueueInfo) {
	for more, after := true, ""; more; {
		var some []fsm.QueueInfo
		some, more = s.Queues(tenant, after, 1000)
		if all = append(all, some...); len(all) > 0 {
			after = all[len(all)-1].Name
		}
	}
	return all
}

func allPartitions(s *fsm.State, queue string) (all []fsm.PartitionInfo) {
	for more := true; more; {
		var some []fsm.PartitionInfo
		some, more = s.Partitions(tenant, queue, len(all), 1000)
		all = append(all, some...)
	}
	return all
}

func allLetters(s *fsm.State, limit int) (all []fsm.DeadLetterInfo) {
	filter := fsm.DeadLetterFilter{Limit: limit}
	for more := true; more; {
		var some []fsm.DeadLetterInfo
		some, more = s.DeadLetters(tenant, &filter)
		all = append(all, some...)
	}
	return all
}

// readAll reads a partition from disk.
func (b *book) readAll(n *node, id uint64, p *part) error {
	if len(p.ids) == 0 {
		return nil
	}
	next := uint64(0)
	if len(p.ids) > auditTail && b.w.rng.IntN(8) > 0 {
		next = uint64(len(p.ids) - auditTail) // the older ones were read before
	}
	err := n.step.Reader().ReadMessages(p.queue, id, next, 1<<62, func(offset uint64, _ int64, m *entry.Message) error {
		if offset != next || offset >= uint64(len(p.ids)) || m.ID != p.ids[offset] || payloadHash(m) != b.msgs[m.ID].hash {
			b.w.fail("partition %d (%s/%s): expected message %d of %d, read message %x at %d", id, p.qname, p.name, next, len(p.ids), m.ID, offset)
		}
		next++
		return nil
	})
	if err != nil {
		if !isInjected(err) {
			b.w.fail("partition %d (%s/%s) cannot be read after the boot: %v", id, p.qname, p.name, err)
		}
		return err
	}
	if next != uint64(len(p.ids)) {
		b.w.fail("partition %d (%s/%s) has %d messages on disk, and ends at %d", id, p.qname, p.name, next, len(p.ids))
	}
	return nil
}

// auditTail is how many messages of a partition every boot reads; one in
// eight reads all.
const auditTail = 40

func (b *book) auditTimers(s *fsm.State) {
	if n := s.Counts().Timers; n != len(b.timers) {
		b.w.fail("%d timers are pending after the boot, expected %d", n, len(b.timers))
	}
	for _, id := range sortedKeys(b.timers) {
		t := b.timers[id]
		info, ok := s.Timer(tenant, t.queue, t.key)
		if !ok || info.MessageID != t.id || info.DeliverAt != t.due {
			b.w.fail("timer %s (due %d) after the boot: found %v, due %d", id, t.due, ok, info.DeliverAt)
		}
	}
}

func (b *book) auditLetters(n *node, s *fsm.State) {
	have := map[letterKey]int{}
	b.w.load.letters = b.w.load.letters[:0]
	for _, l := range allLetters(s, 1<<30) {
		content := l.Content
		if len(content) == 0 {
			var err error
			if content, err = n.step.Reader().Value(l.ContentID, l.ContentQueue); err != nil {
				if isInjected(err) {
					return
				}
				b.w.fail("the message of a dead letter of %s/%s cannot be read: %v", l.Queue, l.Partition, err)
			}
		}
		m, _, err := entry.NextMessage(content)
		if err != nil {
			b.w.fail("the message of a dead letter of %s/%s does not parse: %v", l.Queue, l.Partition, err)
		}
		key := letterKey{l.PartitionID, l.Offset, l.Group, payloadHash(&m)}
		have[key]++
		b.w.load.letters = append(b.w.load.letters, letter{l.ID, key})
		if have[key] > b.letters[key] {
			b.w.fail("a dead letter of %s/%s offset %d for %s that nothing has filed", l.Queue, l.Partition, l.Offset, l.Group)
		}
	}
	for key, want := range b.letters { // order has no effect: the first missing one ends the run
		if have[key] != want {
			b.w.fail("%d dead letters of partition %d offset %d for %s, expected %d", have[key], key.part, key.offset, key.group, want)
		}
	}
}

// read is what an edge does with the claims of a pop before it answers.
func (w *world) read(c *command, p *fsm.Pop) error {
	r := w.node.step.Reader()
	for _, cl := range p.Claims {
		d := &delivery{claim: cl, lease: p.LeaseID, group: p.Group, commits: p.CommitOnDelivery}
		settled := cl.Settled
		err := r.ReadMessages(cl.QueueID, cl.PartitionID, cl.From, cl.To, func(offset uint64, _ int64, m *entry.Message) error {
			for len(settled) > 0 && settled[0].Hi < offset {
				settled = settled[1:]
			}
			if len(settled) > 0 && settled[0].Lo <= offset {
				return nil
			}
			known := w.book.msgs[m.ID]
			if known == nil || known.hash != payloadHash(m) {
				w.fail("call %d: delivered message %x of %s/%s offset %d is none that was sent", c.n, m.ID, cl.Queue, cl.Partition, offset)
			}
			d.messages = append(d.messages, delivered{offset, string(m.AppendTxn(nil)), m.ID})
			return nil
		})
		if errors.Is(err, raftlog.ErrNoLog) {
			return err
		}
		if err != nil {
			return fmt.Errorf("read %s/%s %d to %d: %w", cl.Queue, cl.Partition, cl.From, cl.To, err)
		}
		if len(d.messages) != cl.Count {
			w.fail("call %d: a claim of %d messages of %s/%s from %d on, %d are there", c.n, cl.Count, cl.Queue, cl.Partition, cl.From, len(d.messages))
		}
		c.got = append(c.got, d)
	}
	return nil
}
