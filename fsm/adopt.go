package fsm

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
)

// Adoption watches the rows and entries that were saved of a damaged log go by,
// in their order, and then makes the rows without which what was saved could
// not be reached: of queues and partitions whose own rows were lost, and
// counters above every id that is in use. It keeps about 50 bytes of each
// queue and partition.
type Adoption struct {
	meta       counters // as the last row of the counters says
	used       counters // above everything that was seen
	time       int64
	tenant     string                // of some queue
	queues     map[uint64]bool       // that have or had a row
	wanted     map[uint64]bool       // that partitions belong to
	partitions map[uint64]bool       // that have or had a row
	orphans    map[uint64]*partition // that have messages and no row
}

// NewAdoption returns one that has seen nothing.
func NewAdoption() *Adoption {
	return &Adoption{queues: map[uint64]bool{}, wanted: map[uint64]bool{}, partitions: map[uint64]bool{}, orphans: map[uint64]*partition{}}
}

// Row takes a row; value nil: it is gone.
func (a *Adoption) Row(key, value []byte) {
	r, err := DecodeRow(key, value)
	if err != nil {
		return // whoever loads the row refuses it
	}
	u := &a.used
	u.queue, u.partition, u.group = max(u.queue, r.Queue+1), max(u.partition, r.Partition+1), max(u.group, r.Group+1)
	if id, ok := r.Field("value").(uint64); ok {
		u.value = max(u.value, id+1)
	}
	switch r.Kind {
	case RowMeta:
		s := newState()
		if s.decodeMeta(value) == nil {
			a.meta, a.time = s.meta, max(a.time, s.time)
		}
	case RowQueue:
		a.queues[r.Queue] = true
		if tenant, _ := r.Field("tenant").(string); tenant != "" {
			a.tenant = tenant
		}
	case RowPartition:
		a.partitions[r.Partition] = true
		delete(a.orphans, r.Partition)
		if value != nil {
			a.wanted[r.Queue] = true
		}
	case RowKV:
		if version, ok := r.Field("version").(int64); ok {
			u.kvVersion = max(u.kvVersion, version+1)
		}
	}
}

// DeleteRange takes the removal of the rows with lo <= key < hi.
func (a *Adoption) DeleteRange(lo, hi []byte) {
	if len(lo) == 0 || lo[0] != rowPartition {
		return
	}
	maps.DeleteFunc(a.orphans, func(id uint64, p *partition) bool {
		key := partitionKey(nil, p)
		return bytes.Compare(lo, key) <= 0 && bytes.Compare(key, hi) < 0
	})
}

// Entry takes an entry's effects and then its appends.
func (a *Adoption) Entry(effects []byte, timeMicros int64) error {
	a.time = max(a.time, timeMicros)
	return ScanEffects(effects, func(e Effect) error {
		switch e.Kind {
		case EffectPut, EffectDelete:
			a.Row(e.Key, e.Value)
		case EffectDeleteRange:
			a.DeleteRange(e.Lo, e.Hi)
		}
		return nil
	})
}

// Append takes an append of an entry that is replayed.
func (a *Adoption) Append(queueID, partitionID, first uint64, count uint32, timeMicros int64) {
	if a.partitions[partitionID] {
		return
	}
	p := a.orphans[partitionID]
	if p == nil {
		p = &partition{id: partitionID, q: &queue{id: queueID}, name: salvagedName(partitionID), created: timeMicros}
		a.orphans[partitionID] = p
		a.wanted[queueID] = true
		a.used.queue, a.used.partition = max(a.used.queue, queueID+1), max(a.used.partition, partitionID+1)
	}
	p.next, p.lastAppend = first+uint64(count), timeMicros
}

func salvagedName(id uint64) string { return fmt.Sprintf("salvaged-%d", id) }

// defaultTenant is the tenant of a queue of which nothing else is known: that
// of a broker without tenants.
const defaultTenant = "00000000-0000-0000-0000-000000000001"

// Effects gives the effects that make the missing rows, for an entry after all
// others at timeMicros; nil when there is nothing to make. queues and
// partitions are how many got a new name.
func (a *Adoption) Effects() (effects []byte, timeMicros int64, queues, partitions int) {
	put := func(key, value []byte) {
		effects = append(effects, effectPut)
		effects = putString(putString(effects, key), value)
	}
	for _, id := range slices.Sorted(maps.Keys(a.wanted)) {
		if a.queues[id] {
			continue
		}
		q := &queue{id: id, tenant: a.tenant, name: salvagedName(id), created: a.time, opts: DefaultOptions()}
		if q.tenant == "" {
			q.tenant = defaultTenant
		}
		put(queueKey(nil, q), q.encode(nil))
		queues++
	}
	for _, id := range slices.Sorted(maps.Keys(a.orphans)) {
		p := a.orphans[id]
		put(partitionKey(nil, p), p.encode(nil))
		partitions++
	}
	s := newState()
	s.time = a.time
	was := s.meta
	s.meta = counters{
		queue: max(was.queue, a.meta.queue, a.used.queue), partition: max(was.partition, a.meta.partition, a.used.partition),
		group: max(was.group, a.meta.group, a.used.group), value: max(was.value, a.meta.value, a.used.value),
		letter: max(was.letter, a.meta.letter), kvVersion: max(was.kvVersion, a.meta.kvVersion, a.used.kvVersion),
	}
	if s.meta != a.meta && (s.meta != was || len(effects) > 0) {
		put([]byte{rowMeta}, s.encodeMeta(nil))
	}
	return effects, a.time, queues, partitions
}
