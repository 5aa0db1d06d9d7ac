package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"time"

	"queen/internal/history"
	"queen/tools/internal/api"
)

// verify reads back what is new since the last round and balances the book.
func (k *killer) verify(ctx context.Context) error {
	if err := k.read(ctx, "in", func(m api.Message) error {
		return k.book.Read(history.StreamName("in", m.Partition), m.TransactionID, m.Offset)
	}); err != nil {
		return err
	}
	for i := range fanQueues {
		if err := k.read(ctx, fanQueue(i), func(m api.Message) error { return k.readFan(fanQueue(i), m) }); err != nil {
			return err
		}
	}
	if err := k.read(ctx, "audit", k.readAudit); err != nil {
		return err
	}
	for q := range outQueues {
		if err := k.read(ctx, "out"+strconv.Itoa(q), k.readOutput); err != nil {
			return err
		}
	}
	if err := k.readTimers(ctx); err != nil {
		return err
	}
	if err := k.book.Balance(); err != nil {
		return err
	}
	if err := k.compareKV(ctx); err != nil {
		return err
	}
	return k.compareDepth(ctx)
}

// read hands the messages that the checking group has not had to f.
func (k *killer) read(ctx context.Context, queue string, f func(m api.Message) error) error {
	query := url.Values{"consumerGroup": {"check"}, "subscriptionMode": {"all"}, "commitOnDelivery": {"true"}, "batch": {"5000"},
		"partitions": {"64"}}
	for {
		ms, err := k.api.Pop(ctx, queue, query)
		if err != nil || len(ms) == 0 {
			return err
		}
		for _, m := range ms {
			if err := f(m); err != nil {
				return err
			}
		}
	}
}

// readFan also compares the content.
func (k *killer) readFan(queue string, m api.Message) error {
	var b fanBody
	if err := json.Unmarshal(m.Data, &b); err != nil {
		return fmt.Errorf("%s offset %d: %w", queue, m.Offset, err)
	}
	if sum := crc32.ChecksumIEEE([]byte(b.Pad)); sum != b.Sum {
		return fmt.Errorf("%s offset %d: the sum of %d bytes of content is %08x, expected %08x", queue, m.Offset, len(b.Pad), sum, b.Sum)
	}
	return k.book.Read(history.StreamName(queue, m.Partition), m.TransactionID, m.Offset)
}

func (k *killer) readAudit(m api.Message) error {
	var b auditBody
	if err := json.Unmarshal(m.Data, &b); err != nil {
		return fmt.Errorf("audit %s offset %d: %w", m.Partition, m.Offset, err)
	}
	return k.book.ReadAudit(m.Partition, b.Step, b.First, b.Last)
}

func (k *killer) readOutput(m api.Message) error {
	var b outputBody
	if err := json.Unmarshal(m.Data, &b); err != nil {
		return fmt.Errorf("output %s offset %d: %w", m.Partition, m.Offset, err)
	}
	if m.Offset != b.Source {
		return fmt.Errorf("output %s: the output of input %d is at offset %d", m.Partition, b.Source, m.Offset)
	}
	return k.book.ReadOutput(m.Partition, b.Step, b.Source)
}

// readTimers waits until the timers of all applied steps have fired.
func (k *killer) readTimers(ctx context.Context) error {
	fired := func(m api.Message) error {
		var b inputBody
		if err := json.Unmarshal(m.Data, &b); err != nil {
			return fmt.Errorf("fired %s offset %d: %w", m.Partition, m.Offset, err)
		}
		return k.book.ReadFired(b.N)
	}
	for end := time.Now().Add(10 * time.Second); ; {
		if err := k.read(ctx, "fired", fired); err != nil {
			return err
		}
		if k.book.TimersDue() == 0 || time.Now().After(end) {
			return nil // the balance says what is missing
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// compareKV compares counters, newest steps and the round's markers.
func (k *killer) compareKV(ctx context.Context) error {
	ps := k.book.Partitions()
	counts, err := k.api.KVGetMany(ctx, "count", ps)
	if err != nil {
		return err
	}
	last, err := k.api.KVGetMany(ctx, "last", ps)
	if err != nil {
		return err
	}
	for _, p := range ps {
		var n int64
		var id string
		if err := errors.Join(json.Unmarshal(counts[p], &n), json.Unmarshal(last[p], &id)); err != nil {
			return fmt.Errorf("partition %s: KV count %q, last %q: %w", p, counts[p], last[p], err)
		}
		if err := k.book.Counts(p, n, id); err != nil {
			return err
		}
	}
	return k.compareMarkers(ctx)
}

func (k *killer) compareMarkers(ctx context.Context) error {
	for some := range slices.Chunk(k.book.TakeMarkers(), 200) {
		keys := map[string]bool{} // a retried batch has the marker of the first try
		for _, a := range some {
			keys[markerKey(a)] = true
		}
		rows, err := k.api.KVGetMany(ctx, "once", slices.Sorted(maps.Keys(keys)))
		if err != nil {
			return err
		}
		for _, a := range some {
			var id string
			if row, ok := rows[markerKey(a)]; ok {
				if err := json.Unmarshal(row, &id); err != nil {
					return fmt.Errorf("marker %s: %w in %s", markerKey(a), err, row)
				}
			}
			if err := k.book.Marker(a, id); err != nil {
				return err
			}
		}
	}
	return nil
}

// compareDepth compares the group's backlog with inputs that no step covers.
func (k *killer) compareDepth(ctx context.Context) error {
	var want int64
	for p := range partitions {
		name := partitionName(p)
		want += k.book.Inputs(name) - k.book.Covered(name)
	}
	got, _, err := k.api.Depth(ctx, "in", group)
	if err != nil {
		return err
	}
	if got != want {
		return fmt.Errorf("group %s has %d inputs left, expected %d: its cursor and the steps disagree", group, got, want)
	}
	return nil
}

// sendAgain sends transactions without an answer once more: those with a key, and
// half of the others. Their
// fate is known by now: an applied one has to be refused, or with a key to be
// answered as it was, and another one may be committed now, once.
func (k *killer) sendAgain(ctx context.Context, bodies map[string]api.Transaction) error {
	for _, id := range slices.Sorted(maps.Keys(bodies)) {
		a := k.book.Step(id)
		if a.Seen() {
			k.applied++
		}
		key := keyOf(id)
		if key == "" && k.rng.IntN(2) == 0 {
			continue
		}
		k.retried++
		v, err := k.api.TransactKeyed(ctx, bodies[id], key)
		if err != nil {
			return err
		}
		if key != "" {
			if err := k.checkKept(ctx, a, v, bodies[id]); err != nil {
				return err
			}
			if a.Seen() {
				k.replayed++
				continue
			}
		}
		switch {
		case a.Seen() && v.Success:
			return fmt.Errorf("step %s had been applied before the kill, and was committed again", id)
		case v.Success:
			a.Fate = history.Answered
			k.book.AddStep(a)
		case v.Reason != "rejected_ack" && v.Reason != "duplicate" && v.Reason != "kv_precondition":
			return fmt.Errorf("step %s, sent again: %s: %s", id, v.Reason, v.Error)
		}
	}
	return nil
}

// checkKept checks what a step with a key is answered after a kill: one that was
// applied gets its answer, and every further time the same one.
func (k *killer) checkKept(ctx context.Context, a *history.Step, v api.Verdict, t api.Transaction) error {
	switch {
	case v.Replayed != a.Seen():
		return fmt.Errorf("step %s with a key, applied before the kill: %v, was answered from what is kept: %v (success %v, %s)",
			a.ID, a.Seen(), v.Replayed, v.Success, v.Reason)
	case v.Replayed && !v.Success:
		return fmt.Errorf("step %s was applied, and its kept answer says %s", a.ID, v.Reason)
	case !v.Success:
		return nil
	}
	again, err := k.api.TransactKeyed(ctx, t, keyOf(a.ID))
	if err != nil {
		return err
	}
	if !again.Replayed || again.ID != v.ID || len(again.Results) != len(v.Results) {
		return fmt.Errorf("step %s, sent once more, was answered %s (from what is kept: %v), before that %s", a.ID, again.ID, again.Replayed, v.ID)
	}
	for i := range v.Results {
		if string(again.Results[i]) != string(v.Results[i]) {
			return fmt.Errorf("step %s, sent once more: result %d is %s, before that %s", a.ID, i, again.Results[i], v.Results[i])
		}
	}
	return nil
}
