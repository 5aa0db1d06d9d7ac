package server

import (
	"net/url"
	"strings"
	"unicode/utf8"

	"queen/server/rawjson"
)

// textMember reads the value of a string member; null counts as absent. A value
// of another type leaves the member's name in wrong.
func textMember(s *rawjson.Scanner, name string, wrong *string) (b []byte, present bool) {
	if s.Kind() == rawjson.Null {
		s.Skip()
		return nil, false
	}
	b, isString := s.Text()
	if !isString {
		*wrong = name
	}
	return b, isString
}

func trimSpace(s string) string { return strings.TrimSpace(s) }

func textOfID(id [16]byte) string { return string(appendID(nil, id)[1:37]) }

// validText reports whether a name from a path or query can be said in JSON.
func validText(s string) bool { return utf8.ValidString(s) }

// unescapePath percent-decodes a path segment; a plus sign is a plus sign.
func unescapePath(s string) (string, bool) {
	if strings.IndexByte(s, '%') < 0 {
		return s, validText(s)
	}
	v, err := url.PathUnescape(s)
	return v, err == nil && validText(v)
}

// query calls fn for the parameters of a raw query, in order. It returns false
// when one is no valid escape or not UTF-8, or when fn does.
func query(raw string, fn func(name, value string) bool) bool {
	for raw != "" {
		var pair string
		pair, raw, _ = strings.Cut(raw, "&")
		if pair == "" {
			continue
		}
		name, value, _ := strings.Cut(pair, "=")
		name, ok1 := unescapeQuery(name)
		value, ok2 := unescapeQuery(value)
		if !ok1 || !ok2 || !fn(name, value) {
			return false
		}
	}
	return true
}

func unescapeQuery(s string) (string, bool) {
	if strings.IndexByte(s, '%') < 0 && strings.IndexByte(s, '+') < 0 {
		return s, validText(s)
	}
	v, err := url.QueryUnescape(s)
	return v, err == nil && validText(v)
}

// namesFit reports whether queue and the longest other name of a call fit into
// a key of the store.
func namesFit(queue string, others ...string) bool {
	longest := 0
	for _, o := range others {
		longest = max(longest, len(o))
	}
	return len(queue)+longest <= nameBytes
}

// partitionLen is the length of the partition's name, which is the default one
// when a body names none.
func partitionLen(named bool, name []byte) int {
	if named {
		return len(name)
	}
	return len(defaultPartition)
}
