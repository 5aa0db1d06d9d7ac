package conformance

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// kind is the JSON type of a value.
type kind byte

const (
	null kind = iota
	boolean
	number
	text
	array
	object
)

func (k kind) String() string {
	return [...]string{"null", "bool", "number", "string", "array", "object"}[k]
}

// value is a JSON value that keeps the bytes it was read from, because the
// contract speaks of bytes: payloads come back as they were sent, and numbers
// keep their digits.
type value struct {
	kind   kind
	raw    string
	str    string // text
	fields []field
	elems  []value
}

type field struct {
	name  string
	value value
}

func (v *value) field(name string) (value, bool) {
	for _, f := range v.fields {
		if f.name == name {
			return f.value, true
		}
	}
	return value{}, false
}

// parseValue reads one JSON text, strictly: trailing bytes, repeated keys and
// invalid UTF-8 are errors, as an answer of the broker must have none.
func parseValue(s string) (value, error) {
	p := &jsonParser{s: s}
	v, err := p.value(0)
	if err != nil {
		return value{}, err
	}
	p.space()
	if p.pos != len(p.s) {
		return value{}, p.errorf("text after the value")
	}
	return v, nil
}

type jsonParser struct {
	s   string
	pos int
}

func (p *jsonParser) errorf(format string, args ...any) error {
	near := p.s[max(0, p.pos-20):min(len(p.s), p.pos+20)]
	return fmt.Errorf("JSON, byte %d near %q: %s", p.pos, near, fmt.Sprintf(format, args...))
}

func (p *jsonParser) space() {
	for p.pos < len(p.s) && strings.IndexByte(" \t\r\n", p.s[p.pos]) >= 0 {
		p.pos++
	}
}

func (p *jsonParser) peek() byte {
	if p.pos < len(p.s) {
		return p.s[p.pos]
	}
	return 0
}

func (p *jsonParser) value(depth int) (value, error) {
	if depth > 100000 {
		return value{}, p.errorf("nested too deeply")
	}
	p.space()
	start := p.pos
	v, err := p.bare(depth)
	v.raw = p.s[start:p.pos]
	return v, err
}

func (p *jsonParser) bare(depth int) (value, error) {
	switch c := p.peek(); {
	case c == '{':
		return p.object(depth)
	case c == '[':
		return p.array(depth)
	case c == '"':
		s, err := p.string()
		return value{kind: text, str: s}, err
	case c == '-' || c >= '0' && c <= '9':
		return value{kind: number}, p.number()
	case strings.HasPrefix(p.s[p.pos:], "true"):
		p.pos += 4
		return value{kind: boolean}, nil
	case strings.HasPrefix(p.s[p.pos:], "false"):
		p.pos += 5
		return value{kind: boolean}, nil
	case strings.HasPrefix(p.s[p.pos:], "null"):
		p.pos += 4
		return value{kind: null}, nil
	}
	return value{}, p.errorf("no value")
}

func (p *jsonParser) object(depth int) (value, error) {
	v := value{kind: object}
	p.pos++
	for first := true; ; first = false {
		p.space()
		if p.peek() == '}' && first {
			p.pos++
			return v, nil
		}
		if p.peek() != '"' {
			return v, p.errorf("a field name expected")
		}
		name, err := p.string()
		if err != nil {
			return v, err
		}
		if _, ok := v.field(name); ok {
			return v, p.errorf("field %q twice", name)
		}
		if p.space(); p.peek() != ':' {
			return v, p.errorf("a colon expected")
		}
		p.pos++
		fv, err := p.value(depth + 1)
		if err != nil {
			return v, err
		}
		v.fields = append(v.fields, field{name, fv})
		p.space()
		c := p.peek()
		p.pos++
		if c == '}' {
			return v, nil
		}
		if c != ',' {
			return v, p.errorf("a comma or } expected")
		}
	}
}

func (p *jsonParser) array(depth int) (value, error) {
	v := value{kind: array}
	p.pos++
	for first := true; ; first = false {
		p.space()
		if p.peek() == ']' && first {
			p.pos++
			return v, nil
		}
		e, err := p.value(depth + 1)
		if err != nil {
			return v, err
		}
		v.elems = append(v.elems, e)
		p.space()
		c := p.peek()
		p.pos++
		if c == ']' {
			return v, nil
		}
		if c != ',' {
			return v, p.errorf("a comma or ] expected")
		}
	}
}

func (p *jsonParser) string() (string, error) {
	p.pos++
	var b strings.Builder
	for p.pos < len(p.s) {
		c := p.s[p.pos]
		switch {
		case c == '"':
			p.pos++
			return b.String(), nil
		case c == '\\':
			r, err := p.escape()
			if err != nil {
				return "", err
			}
			b.WriteRune(r)
		case c < 0x20:
			return "", p.errorf("control byte %#x in a string", c)
		default:
			run := p.plain()
			if !utf8.ValidString(run) {
				return "", p.errorf("invalid UTF-8")
			}
			p.pos += len(run)
			if b.Len() == 0 && p.peek() == '"' {
				p.pos++
				return run, nil
			}
			b.WriteString(run)
		}
	}
	return "", p.errorf("string without end")
}

// plain is the text up to the next quote, escape or control byte.
func (p *jsonParser) plain() string {
	rest := p.s[p.pos:]
	if i := strings.IndexFunc(rest, func(r rune) bool { return r == '"' || r == '\\' || r < 0x20 }); i >= 0 {
		return rest[:i]
	}
	return rest
}

func (p *jsonParser) escape() (rune, error) {
	if p.pos+1 >= len(p.s) {
		return 0, p.errorf("escape without end")
	}
	c := p.s[p.pos+1]
	p.pos += 2
	if i := strings.IndexByte(`"\/bfnrt`, c); i >= 0 {
		return rune("\"\\/\b\f\n\r\t"[i]), nil
	}
	if c != 'u' {
		return 0, p.errorf("unknown escape")
	}
	r, err := p.hex4()
	if err != nil || r < 0xd800 || r >= 0xe000 {
		return r, err
	}
	// A pair of surrogates is one rune; a lone one reads as the replacement rune.
	if r < 0xdc00 && strings.HasPrefix(p.s[p.pos:], `\u`) {
		save := p.pos
		p.pos += 2
		low, err := p.hex4()
		if err == nil && low >= 0xdc00 && low < 0xe000 {
			return 0x10000 + (r-0xd800)<<10 + (low - 0xdc00), nil
		}
		p.pos = save
	}
	return utf8.RuneError, nil
}

func (p *jsonParser) hex4() (rune, error) {
	if p.pos+4 > len(p.s) {
		return 0, p.errorf("escape without end")
	}
	n, err := strconv.ParseUint(p.s[p.pos:p.pos+4], 16, 32)
	if err != nil {
		return 0, p.errorf("bad escape")
	}
	p.pos += 4
	return rune(n), nil
}

func (p *jsonParser) number() error {
	digits := func() int {
		start := p.pos
		for p.peek() >= '0' && p.peek() <= '9' {
			p.pos++
		}
		return p.pos - start
	}
	if p.peek() == '-' {
		p.pos++
	}
	lead := p.peek()
	if n := digits(); n == 0 || n > 1 && lead == '0' {
		return p.errorf("bad number")
	}
	if p.peek() == '.' {
		p.pos++
		if digits() == 0 {
			return p.errorf("bad fraction")
		}
	}
	if c := p.peek(); c == 'e' || c == 'E' {
		p.pos++
		if c := p.peek(); c == '+' || c == '-' {
			p.pos++
		}
		if digits() == 0 {
			return p.errorf("bad exponent")
		}
	}
	return nil
}

// equal compares values: strings by their text, numbers by their digits,
// objects without regard to the order of their fields.
func (v value) equal(w value) bool {
	if v.kind != w.kind {
		return false
	}
	switch v.kind {
	case text:
		return v.str == w.str
	case array:
		if len(v.elems) != len(w.elems) {
			return false
		}
		for i := range v.elems {
			if !v.elems[i].equal(w.elems[i]) {
				return false
			}
		}
		return true
	case object:
		if len(v.fields) != len(w.fields) {
			return false
		}
		for _, f := range v.fields {
			if o, ok := w.field(f.name); !ok || !f.value.equal(o) {
				return false
			}
		}
		return true
	default:
		return v.raw == w.raw
	}
}
