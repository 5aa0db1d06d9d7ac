package main

import (
	"bytes"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"queen/fsm"
	"queen/index"
	"queen/internal/entry"
	"queen/recovery"
)

// The state that a start would find: the rows of the checkpoint, and then the
// effects of the entries that it would replay. A tool that asks for a part of
// it is given everything as it goes by and keeps what it wants.

// rowSink takes rows as they go by. Slices are valid during the call only.
type rowSink struct {
	// row takes a row; value nil: it is gone.
	row func(key, value []byte)
	// gone removes the rows with lo <= key < hi.
	gone func(lo, hi []byte)
	// sets takes a settle or a reset.
	sets func(fsm.Effect)
	// appended takes an append of a replayed entry.
	appended func(*recovery.PartAt)
}

// LoadRow implements index.RowLoader.
func (s *rowSink) LoadRow(key, value []byte) error {
	s.row(key, value)
	return nil
}

// LoadDeleteRange implements index.RowLoader.
func (s *rowSink) LoadDeleteRange(lo, hi []byte) error {
	if s.gone != nil {
		s.gone(lo, hi)
	}
	return nil
}

func (s *rowSink) effects(b []byte) error {
	return fsm.ScanEffects(b, func(e fsm.Effect) error {
		switch e.Kind {
		case fsm.EffectPut:
			s.row(e.Key, e.Value)
		case fsm.EffectDelete:
			s.row(e.Key, nil)
		case fsm.EffectDeleteRange:
			return s.LoadDeleteRange(e.Lo, e.Hi)
		default:
			if s.sets != nil {
				s.sets(e)
			}
		}
		return nil
	})
}

func checkpointDir(s *recovery.Snapshot) string { return path.Join(s.Dir, "checkpoint") }

// loadCheckpoint gives the rows of the newest finished checkpoint to sink.
func loadCheckpoint(s *recovery.Snapshot, sink *rowSink) error {
	if s.FooterErr != nil {
		return s.FooterErr
	}
	var err error
	for range 5 {
		var r *index.Rows
		if r, _, err = index.OpenRows(s.FS, checkpointDir(s), sink); err == nil {
			return r.Close()
		}
		if !recovery.Vanished(err) {
			return err
		}
	}
	return err
}

// covered leaves out the files that a start does not read: sealed, and all of
// it in the checkpoint.
func covered(s *recovery.Snapshot) func(*recovery.SnapshotLog, *recovery.SnapshotFile) bool {
	return func(_ *recovery.SnapshotLog, f *recovery.SnapshotFile) bool {
		return f.Table != nil && f.Table.MaxIndex <= s.Footer.From
	}
}

// replay gives the effects of the entries from the checkpoint's From on to
// sink, up to the last one that a start would keep.
func replay(s *recovery.Snapshot, last uint64, sink *rowSink) error {
	err := s.Walk(recovery.Walk{
		Skip: covered(s),
		Entry: func(e *recovery.EntryAt) error {
			if e.Index > last {
				return errEnough
			}
			if e.Index <= s.Footer.From || e.Entry == nil || e.Head.Type != 0 || len(e.Entry.GetData()) == 0 {
				return nil
			}
			parsed, err := entry.Parse(e.Entry.GetData())
			if err != nil {
				return fmt.Errorf("entry %d: %w", e.Index, err)
			}
			if err := sink.effects(parsed.Effects); err != nil {
				return fmt.Errorf("entry %d: %w", e.Index, err)
			}
			if sink.appended != nil {
				for i := range e.Parts {
					if e.Parts[i].Kind == entry.KindAppend {
						sink.appended(&e.Parts[i])
					}
				}
			}
			return nil
		},
	})
	if errors.Is(err, errEnough) {
		return nil
	}
	return err
}

// through gives the whole state to sink.
func (t *tool) through(s *recovery.Snapshot, v *recovery.Verdict, sink *rowSink) error {
	if err := loadCheckpoint(s, sink); err != nil {
		t.out.textf("the checkpoint does not count: %v", err)
	}
	return replay(s, v.Last, sink)
}

// partitionRef is a partition that was looked for by name.
type partitionRef struct {
	tenant, queueName, name string
	queue, partition        uint64
}

// findPartitions looks for QUEUE/NAME; with slashes in names there may be
// several. No match is an error.
func (t *tool) findPartitions(s *recovery.Snapshot, v *recovery.Verdict, text string) ([]partitionRef, error) {
	if !strings.Contains(text, "/") {
		return nil, fmt.Errorf("%w: %q is not QUEUE/NAME", errUsage, text)
	}
	type named struct{ queue, name string }
	var wanted []named
	for i, c := range text {
		if c == '/' {
			wanted = append(wanted, named{text[:i], text[i+1:]})
		}
	}
	type queueName struct {
		tenant, name string
	}
	queues := make(map[uint64]queueName)
	parts := make(map[uint64]partitionRef) // of a name that is wanted
	sink := &rowSink{row: func(key, value []byte) {
		r, err := fsm.DecodeRow(key, value)
		if err != nil {
			return // verify reports it
		}
		switch name, _ := r.Field("name").(string); {
		case r.Kind == fsm.RowQueue && value == nil:
			delete(queues, r.Queue)
		case r.Kind == fsm.RowQueue:
			tenant, _ := r.Field("tenant").(string)
			if deleted, _ := r.Field("deleted").(bool); deleted {
				delete(queues, r.Queue)
			} else if slices.ContainsFunc(wanted, func(w named) bool { return w.queue == name }) {
				queues[r.Queue] = queueName{tenant, name}
			}
		case r.Kind == fsm.RowPartition && value == nil:
			delete(parts, r.Partition)
		case r.Kind == fsm.RowPartition:
			if slices.ContainsFunc(wanted, func(w named) bool { return w.name == name }) {
				parts[r.Partition] = partitionRef{queue: r.Queue, partition: r.Partition, name: name}
			}
		}
	}}
	if err := t.through(s, v, sink); err != nil {
		return nil, err
	}
	var found []partitionRef
	for _, p := range parts {
		q, ok := queues[p.queue]
		if !ok || t.opt.Tenant != "" && t.opt.Tenant != q.tenant || !slices.Contains(wanted, named{q.name, p.name}) {
			continue
		}
		p.tenant, p.queueName = q.tenant, q.name
		found = append(found, p)
	}
	slices.SortFunc(found, func(a, b partitionRef) int { return int(int64(a.partition) - int64(b.partition)) })
	if len(found) == 0 {
		return nil, fmt.Errorf("no partition %q in the checkpoint or the entries after it", text)
	}
	return found, nil
}

// inRange reports whether lo <= key < hi; an empty hi is no end.
func inRange(key, lo, hi []byte) bool {
	return bytes.Compare(lo, key) <= 0 && (len(hi) == 0 || bytes.Compare(key, hi) < 0)
}
