package fsm

import (
	"testing"

	"queen/internal/entry"
)

// Bytes that this code did not write give an error or a state, never a panic or
// an endless loop, also when the state is then built and planned on.

func FuzzApply(f *testing.F) {
	r := filled(finder{}) // panics where a test would fail
	for _, data := range r.entries {
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		m := r.load()
		if err := m.Apply(1<<20, 1, data); err == nil {
			tryMachine(m)
		}
	})
}

func FuzzEffects(f *testing.F) {
	r := filled(finder{}) // panics where a test would fail
	for _, data := range r.entries {
		e, err := entry.Parse(data)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(e.Effects)
	}
	f.Fuzz(func(t *testing.T, effects []byte) {
		m := r.load()
		if err := m.applyEffects(effects); err == nil {
			tryMachine(m)
		}
	})
}

func FuzzLoadRow(f *testing.F) {
	r := filled(finder{}) // panics where a test would fail
	r.checkpoint(true)
	for _, row := range r.rows {
		f.Add(row.key, row.value, false)
		f.Add(row.key, append(row.key[:len(row.key):len(row.key)], 0xff), true)
	}
	f.Fuzz(func(t *testing.T, key, value []byte, remove bool) {
		m := r.load()
		var err error
		if remove {
			err = m.LoadDeleteRange(key, value)
		} else {
			err = m.LoadRow(key, value)
		}
		if err == nil {
			tryMachine(m)
		}
	})
}

// tryMachine builds what is derived and plans a little on it.
func tryMachine(m *Machine) {
	if m.Ready(0) != nil {
		return
	}
	m.Digest()
	m.Lead(2)
	done := func(error) {}
	pop := &Call{Tenant: tenantA, Body: &Pop{Queue: "a", Group: "g", Batch: 10, Partitions: 3}, Done: done}
	ack := &Call{Tenant: tenantA, Body: &Ack{Items: []AckItem{{Txn: []byte("m2"), PartitionID: 1, Group: "g"}}}, Done: done}
	m.Plan(m.Time()+1, []*Call{pop, ack})
	m.View().Depth(tenantA, "a", "g", true)
	m.View().Queues(tenantA, "", 10)
}
