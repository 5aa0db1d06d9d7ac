package index

import (
	"slices"
	"sort"
)

// fileMemory is where the appends and values of one unsealed file are. Its
// owner locks.
type fileMemory struct {
	seq     uint64
	parts   map[uint64][]memoryAppend // rising by first offset
	values  []memoryValue             // rising by id
	appends uint64
	minTime int64
	maxTime int64
}

// memoryAppend is an append in 24 bytes: a file has some hundred thousand.
type memoryAppend struct {
	first    uint64
	time     int64
	posCount uint64 // position << countBits | count
}

const countBits = 24 // a record of 256 MiB has no room for more messages

type memoryValue struct {
	id  uint64
	pos int64
}

func newFileMemory(seq uint64) *fileMemory {
	return &fileMemory{seq: seq, parts: make(map[uint64][]memoryAppend)}
}

func (m *fileMemory) ref(partition uint64, a memoryAppend) AppendRef {
	return AppendRef{Seq: m.seq, Pos: int64(a.posCount >> countBits), Partition: partition,
		First: a.first, Count: uint32(a.posCount & (1<<countBits - 1)), Time: a.time}
}

// add takes an append. They come in the order of the log, so offsets rise; one
// that is added again (a rebuild) replaces the former.
func (m *fileMemory) add(r *AppendRef) {
	a := memoryAppend{first: r.First, time: r.Time, posCount: uint64(r.Pos)<<countBits | uint64(r.Count)}
	list := m.parts[r.Partition]
	if n := len(list); n == 0 || list[n-1].first < a.first {
		m.parts[r.Partition] = append(list, a)
	} else if i, found := slices.BinarySearchFunc(list, a.first, compareFirst); found {
		list[i] = a
		return
	} else {
		m.parts[r.Partition] = slices.Insert(list, i, a)
	}
	if m.appends++; m.appends == 1 || r.Time < m.minTime {
		m.minTime = r.Time
	}
	if m.appends == 1 || r.Time > m.maxTime {
		m.maxTime = r.Time
	}
}

func compareFirst(a memoryAppend, first uint64) int { return compareUint(a.first, first) }

func (m *fileMemory) addValue(id uint64, pos int64) {
	v := memoryValue{id, pos}
	if n := len(m.values); n == 0 || m.values[n-1].id < id {
		m.values = append(m.values, v)
	} else if i, found := m.findValue(id); found {
		m.values[i] = v
	} else {
		m.values = slices.Insert(m.values, i, v)
	}
}

func (m *fileMemory) findValue(id uint64) (int, bool) {
	return slices.BinarySearchFunc(m.values, id, func(v memoryValue, id uint64) int { return compareUint(v.id, id) })
}

// cut forgets what lies at or after pos.
func (m *fileMemory) cut(pos int64) {
	m.appends, m.minTime, m.maxTime = 0, 0, 0
	for p, list := range m.parts { // the order reaches nothing
		list = slices.DeleteFunc(list, func(a memoryAppend) bool { return int64(a.posCount>>countBits) >= pos })
		if len(list) == 0 {
			delete(m.parts, p)
			continue
		}
		m.parts[p] = list
		if m.appends == 0 || list[0].time < m.minTime {
			m.minTime = list[0].time
		}
		m.maxTime = max(m.maxTime, list[len(list)-1].time)
		m.appends += uint64(len(list))
	}
	m.values = slices.DeleteFunc(m.values, func(v memoryValue) bool { return v.pos >= pos })
}

// floor is the place of the last append of a partition at or before from; -1:
// there is none.
func floorAppend(list []memoryAppend, from uint64) int {
	return sort.Search(len(list), func(i int) bool { return list[i].first > from }) - 1
}

// collect appends up to max refs of the partition to out: from the append that
// holds from, or else the first after it, on. floor tells whether there is one
// at or before from.
func (m *fileMemory) collect(partition, from uint64, max int, out []AppendRef) (_ []AppendRef, floor bool) {
	list := m.parts[partition]
	i := floorAppend(list, from)
	floor = i >= 0
	if i < 0 || list[i].first+list[i].posCount&(1<<countBits-1) <= from {
		i++
	}
	if i < len(list) {
		list = list[i:min(len(list), i+max)]
		out = slices.Grow(out, len(list))
		for _, a := range list {
			out = append(out, m.ref(partition, a))
		}
	}
	return out, floor
}

// sorted calls fn for every append, rising by partition and offset.
func (m *fileMemory) sorted(fn func(AppendRef)) {
	for _, p := range m.partitions() {
		for _, a := range m.parts[p] {
			fn(m.ref(p, a))
		}
	}
}

func (m *fileMemory) partitions() []uint64 {
	ps := make([]uint64, 0, len(m.parts))
	for p := range m.parts {
		ps = append(ps, p)
	}
	slices.Sort(ps)
	return ps
}

// bytes is about what the memory takes.
func (m *fileMemory) bytes() int64 {
	return int64(len(m.parts))*80 + int64(m.appends)*30 + int64(cap(m.values))*16
}
