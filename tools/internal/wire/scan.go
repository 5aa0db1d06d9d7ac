package wire

import (
	"bytes"
	"strconv"
)

// The scanners below find fields in a broker's answer by their names, without
// decoding it. They are right for answers whose payloads hold no quote, which
// the drivers that use them see to.

// Field returns the value that follows the first `"name":` at or after pos, and
// the position behind it. A string comes without its quotes and with its escapes
// as sent; an array or object is returned as its first byte only. ok is false
// when there is no such name.
func Field(b []byte, pos int, name string) (value []byte, next int, ok bool) {
	for pos < len(b) {
		i := bytes.Index(b[pos:], quoted(name))
		if i < 0 {
			return nil, len(b), false
		}
		pos += i + len(name) + 2
		at := skipSpace(b, pos)
		if at >= len(b) || b[at] != ':' {
			continue // a value that reads like the name
		}
		value, next = valueAt(b, skipSpace(b, at+1))
		return value, next, value != nil
	}
	return nil, len(b), false
}

// Last is Field for the last occurrence of the name.
func Last(b []byte, name string) (value []byte, ok bool) {
	q := quoted(name)
	for end := len(b); ; {
		i := bytes.LastIndex(b[:end], q)
		if i < 0 {
			return nil, false
		}
		at := skipSpace(b, i+len(q))
		if at < len(b) && b[at] == ':' {
			value, _ = valueAt(b, skipSpace(b, at+1))
			return value, value != nil
		}
		end = i
	}
}

// Int is Field for a number; missing and malformed are -1.
func Int(b []byte, name string) int64 {
	v, _, ok := Field(b, 0, name)
	if !ok {
		return -1
	}
	n, err := strconv.ParseInt(string(v), 10, 64)
	if err != nil {
		return -1
	}
	return n
}

// Count returns how often the name occurs as a key.
func Count(b []byte, name string) (n int) {
	q := quoted(name)
	for {
		i := bytes.Index(b, q)
		if i < 0 {
			return n
		}
		b = b[i+len(q):]
		if at := skipSpace(b, 0); at < len(b) && b[at] == ':' {
			n++
		}
	}
}

// True reports whether the first value of the name is true.
func True(b []byte, name string) bool {
	v, _, ok := Field(b, 0, name)
	return ok && string(v) == "true"
}

func valueAt(b []byte, at int) (value []byte, next int) {
	if at >= len(b) {
		return nil, len(b)
	}
	switch b[at] {
	case '"':
		for i := at + 1; i < len(b); i++ {
			j := bytes.IndexByte(b[i:], '"')
			if j < 0 {
				return nil, len(b)
			}
			i += j
			if !escaped(b, at+1, i) {
				return b[at+1 : i : i], i + 1
			}
		}
		return nil, len(b)
	case '{', '[':
		return b[at : at+1 : at+1], at + 1
	}
	end := at
	for end < len(b) && b[end] != ',' && b[end] != '}' && b[end] != ']' && b[end] > ' ' {
		end++
	}
	return b[at:end:end], end
}

// escaped reports whether the byte at i follows an odd run of backslashes.
func escaped(b []byte, start, i int) bool {
	n := 0
	for i--; i >= start && b[i] == '\\'; i-- {
		n++
	}
	return n%2 == 1
}

func skipSpace(b []byte, at int) int {
	for at < len(b) && b[at] <= ' ' {
		at++
	}
	return at
}

// quoted returns the name in quotes; the names in use are interned, so that a
// hot loop does not build them again.
func quoted(name string) []byte {
	if q, ok := names[name]; ok {
		return q
	}
	return []byte(`"` + name + `"`)
}

var names = func() map[string][]byte {
	m := map[string][]byte{}
	for _, n := range []string{
		"transactionId", "partitionId", "partition", "leaseId", "data", "offset", "status", "success", "reason", "messages", "total",
	} {
		m[n] = []byte(`"` + n + `"`)
	}
	return m
}()
