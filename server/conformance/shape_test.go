package conformance

import (
	"encoding/json"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// shape is what values of one place have in common.
type shape struct {
	count   int
	types   map[string]int // JSON Schema types
	format  string         // of all strings: "" is not known yet, "-" is none
	members map[string]*shape
	objects int
	element *shape
	free    string
}

var (
	uuidText = regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$`)
	timeText = regexp.MustCompile(`^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z$`)
)

// unknownMembers are what the cases send to see that it is ignored.
var unknownMembers = []string{"u", "x", "y", "z", "colour", "unknown", "unknownField"}

// add merges a value into s, which may be nil. free are the places whose values
// are not looked into.
func (s *shape) add(v any, place string, free map[string]string) *shape {
	if s == nil {
		s = &shape{types: map[string]int{}}
	}
	s.count++
	if s.free = free[place]; s.free == "any" {
		return s
	}
	switch v := v.(type) {
	case nil:
		s.types["null"]++
	case bool:
		s.types["boolean"]++
	case json.Number:
		if strings.ContainsAny(v.String(), ".eE") {
			s.types["number"]++
		} else {
			s.types["integer"]++
		}
	case string:
		s.types["string"]++
		s.addFormat(v)
	case []any:
		s.types["array"]++
		for _, e := range v {
			s.element = s.element.add(e, place+"[]", free)
		}
	case map[string]any:
		s.types["object"]++
		s.objects++
		if s.members == nil {
			s.members = map[string]*shape{}
		}
		for _, name := range slices.Sorted(maps.Keys(v)) {
			if strings.HasPrefix(place, "request") && slices.Contains(unknownMembers, name) {
				continue
			}
			if s.free == "map" {
				s.element = s.element.add(v[name], place+".*", free)
				continue
			}
			s.members[name] = s.members[name].add(v[name], place+"."+name, free)
		}
	}
	return s
}

func (s *shape) addFormat(text string) {
	f := "-"
	switch {
	case uuidText.MatchString(text):
		f = "uuid"
	case timeText.MatchString(text):
		f = "date-time"
	}
	if s.format == "" {
		s.format = f
	}
	if s.format != f {
		s.format = "-"
	}
}

// schema is the JSON Schema of the place. required: a member that all objects
// have is required.
func (s *shape) schema(required bool) map[string]any {
	out := map[string]any{}
	if s == nil || s.free == "any" {
		return out
	}
	types := slices.Sorted(maps.Keys(s.types))
	if slices.Contains(types, "number") {
		types = slices.DeleteFunc(types, func(t string) bool { return t == "integer" })
	}
	if len(types) == 1 {
		out["type"] = types[0]
	} else {
		out["type"] = types
	}
	if s.format != "" && s.format != "-" {
		out["format"] = s.format
	}
	if s.types["array"] > 0 {
		out["items"] = s.element.schema(required)
	}
	if s.types["object"] == 0 {
		return out
	}
	if s.free == "map" {
		out["additionalProperties"] = s.element.schema(required)
		return out
	}
	properties, always := map[string]any{}, []string{}
	for name, m := range s.members {
		properties[name] = m.schema(required)
		if m.count == s.objects {
			always = append(always, name)
		}
	}
	out["properties"] = properties
	if required && len(always) > 0 {
		slices.Sort(always)
		out["required"] = always
	}
	return out
}
