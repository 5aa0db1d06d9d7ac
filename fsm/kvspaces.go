package fsm

import (
	"strings"

	"queen/internal/invariants"
)

// What the console shows of key/value namespaces. Their sizes are counted where a
// row comes and goes, at apply too, so nobody has to look at all keys (F24).

// kvSpace counts the rows of one namespace of one tenant.
type kvSpace struct{ keys int64 }

// spaceOf is the part of a row's key that names tenant and namespace.
func spaceOf(key string) string {
	if i := strings.IndexByte(key, 0); i >= 0 {
		return key[:i]
	}
	return key
}

// countKey notes that a row came (by 1) or went (by -1).
func (s *State) countKey(key string, by int64) {
	name := spaceOf(key)
	space, ok := s.kvSpaces.Get(name)
	if !ok {
		space = &kvSpace{}
		s.kvSpaces.Set(strings.Clone(name), space) // the row's key may go
	}
	if space.keys += by; space.keys == 0 {
		s.kvSpaces.Delete(name)
	}
}

// KVSpace is one namespace. Keys counts expired rows too, until they are swept.
type KVSpace struct {
	Name string
	Keys int64
}

// KVSpaces lists namespaces, those after the given one in the order of their
// bytes, a slice's worth; more: there are others after them.
func (s *State) KVSpaces(tenant, after string) (list []KVSpace, more bool) {
	s.kvSpaces.Ascend(tenant+after, func(name string, space *kvSpace) bool {
		ns, ok := strings.CutPrefix(name, tenant)
		switch {
		case !ok:
			return false
		case ns == after && after != "":
			return true
		}
		if more = len(list) == viewSlice; !more {
			list = append(list, KVSpace{ns, space.keys})
		}
		return !more
	})
	return list, more
}

// KVPage is a page of a namespace that is being read, a slice of it at a time.
type KVPage struct {
	NS, Prefix string
	At         string // keys behind it; moves on while the page is read
	Limit      int    // rows, at least 1
	MaxBytes   int    // of values; the row that crosses it is the last one
	KeysOnly   bool
	Expired    bool // also rows whose lifetime is over

	// Result, complete when Done.
	Rows      []KVRow
	Over      []bool // of each row: its lifetime is over
	Bytes     int
	Truncated bool // there are more rows
	Done      bool
}

// ReadKVPage goes on with a page, for a slice's worth of rows.
func (s *State) ReadKVPage(tenant string, p *KVPage) {
	base := kvKey(tenant, p.NS, "")
	now, looked := max(s.now, s.time), 0
	p.Done = true
	s.kv.Ascend(base+max(p.Prefix, p.At), func(full string, row *kvRow) bool {
		key, ok := strings.CutPrefix(full, base)
		if !ok || !strings.HasPrefix(key, p.Prefix) {
			return false
		}
		if key == p.At && key != "" {
			return true
		}
		if looked == viewSlice {
			p.Done = false
			return false
		}
		looked++
		over := !row.live(now)
		if !over || p.Expired {
			if p.Truncated = len(p.Rows) == p.Limit || p.Bytes >= p.MaxBytes; p.Truncated {
				return false
			}
			p.Rows, p.Over = append(p.Rows, row.result(key, p.KeysOnly)), append(p.Over, over)
			if !p.KeysOnly {
				p.Bytes += len(row.value)
			}
		}
		p.At = key
		return true
	})
}

// checkSpaces compares the counters of namespaces with what is counted anew.
func (s *State) checkSpaces() {
	if s.kv.Len() > recountLimit {
		return
	}
	want := map[string]int64{}
	s.kv.Scan(func(key string, _ *kvRow) bool {
		want[spaceOf(key)]++
		return true
	})
	s.kvSpaces.Scan(func(name string, space *kvSpace) bool {
		invariants.Check(space.keys == want[name], "the counter of namespace %q: kept %d, counted %d", name, space.keys, want[name])
		delete(want, name)
		return true
	})
	invariants.Check(len(want) == 0, "namespaces without a counter: %v", want)
}
