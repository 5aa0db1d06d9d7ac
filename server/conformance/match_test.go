package conformance

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// pattern is an expected value: a literal, an object or array of patterns, or a
// wildcard (name and arguments as doc.go lists them).
type pattern struct {
	literal  *value
	kind     kind // object or array
	fields   []patternField
	elems    []pattern
	open     bool // ends in ...
	wildcard string
	args     []value
	arg      string // near, near3, raw: the text after the name
	as       string // variable that keeps the value
}

type patternField struct {
	name    string
	pattern pattern
}

// matchContext is what a match needs besides the value.
type matchContext struct {
	now  time.Time // broker time
	keep func(name, value string)
}

// parsePattern reads an expected body whose variables have been replaced.
func parsePattern(s string) (pattern, error) {
	p := &patternParser{jsonParser{s: s}}
	pat, err := p.pattern()
	if err != nil {
		return pattern{}, err
	}
	p.space()
	if p.pos != len(p.s) {
		return pattern{}, p.errorf("text after the expected body")
	}
	return pat, nil
}

type patternParser struct{ jsonParser }

func (p *patternParser) pattern() (pattern, error) {
	p.space()
	switch p.peek() {
	case '{':
		return p.objectPattern()
	case '[':
		return p.arrayPattern()
	case '<':
		return p.wildcardPattern()
	}
	v, err := p.value(0)
	return pattern{literal: &v}, err
}

func (p *patternParser) dots() bool {
	if p.space(); strings.HasPrefix(p.s[p.pos:], "...") {
		p.pos += 3
		return true
	}
	return false
}

func (p *patternParser) next(end byte) (done bool, err error) {
	p.space()
	c := p.peek()
	p.pos++
	if c != end && c != ',' {
		return false, p.errorf("a comma or %c expected", end)
	}
	return c == end, nil
}

func (p *patternParser) objectPattern() (pattern, error) {
	pat := pattern{kind: object}
	p.pos++
	if p.space(); p.peek() == '}' {
		p.pos++
		return pat, nil
	}
	for {
		if pat.open = p.dots(); !pat.open {
			if p.peek() != '"' {
				return pat, p.errorf("a field name expected")
			}
			name, err := p.string()
			if err != nil {
				return pat, err
			}
			if p.space(); p.peek() != ':' {
				return pat, p.errorf("a colon expected")
			}
			p.pos++
			fp, err := p.pattern()
			if err != nil {
				return pat, err
			}
			pat.fields = append(pat.fields, patternField{name, fp})
		}
		done, err := p.next('}')
		if done || err != nil {
			return pat, err
		}
		if pat.open {
			return pat, p.errorf("... must come last")
		}
	}
}

func (p *patternParser) arrayPattern() (pattern, error) {
	pat := pattern{kind: array}
	p.pos++
	if p.space(); p.peek() == ']' {
		p.pos++
		return pat, nil
	}
	for {
		if pat.open = p.dots(); !pat.open {
			e, err := p.pattern()
			if err != nil {
				return pat, err
			}
			pat.elems = append(pat.elems, e)
		}
		done, err := p.next(']')
		if done || err != nil {
			return pat, err
		}
		if pat.open {
			return pat, p.errorf("... must come last")
		}
	}
}

var wildcardName = regexp.MustCompile(`^<([a-z0-9]+)`)
var wildcardAs = regexp.MustCompile(`^as ([A-Za-z][A-Za-z0-9_]*)`)
var timeOffset = regexp.MustCompile(`^[+-][0-9a-z.]+`)

func (p *patternParser) wildcardPattern() (pattern, error) {
	m := wildcardName.FindStringSubmatch(p.s[p.pos:])
	if m == nil || !slices.Contains(wildcards, m[1]) {
		return pattern{}, p.errorf("no such wildcard")
	}
	pat := pattern{wildcard: m[1]}
	p.pos += len(m[0])
	if pat.wildcard == "raw" {
		rest, _, _ := strings.Cut(p.s[p.pos:], "\n")
		end := strings.LastIndexByte(rest, '>')
		if end < 1 {
			return pat, p.errorf("<raw without end")
		}
		pat.arg = rest[1:end]
		p.pos += end + 1
		return pat, nil
	}
	for {
		p.space()
		rest := p.s[p.pos:]
		if strings.HasPrefix(rest, ">") {
			p.pos++
			return pat, nil
		}
		if m := wildcardAs.FindStringSubmatch(rest); m != nil {
			pat.as = m[1]
			p.pos += len(m[0])
			continue
		}
		if off := timeOffset.FindString(rest); off != "" && strings.HasPrefix(pat.wildcard, "near") {
			pat.arg = off
			p.pos += len(off)
			continue
		}
		v, err := p.value(0)
		if err != nil {
			return pat, err
		}
		pat.args = append(pat.args, v)
	}
}

var wildcards = []string{"uuid", "digits", "string", "text", "bool", "int", "number", "any", "object", "array",
	"time", "time3", "near", "near3", "absent", "starts", "contains", "oneof", "not", "above", "raw"}

var (
	uuidForm  = regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$`)
	digitForm = regexp.MustCompile(`^[0-9]+$`)
	intForm   = regexp.MustCompile(`^-?[0-9]+$`)
	timeForm  = regexp.MustCompile(`^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}\.\d{6}Z$`)
	time3Form = regexp.MustCompile(`^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}\.\d{3}Z$`)
)

// match compares v with the pattern and says where they differ.
func (pat *pattern) match(at string, v value, c *matchContext) error {
	switch {
	case pat.literal != nil:
		if !pat.literal.equal(v) {
			return fmt.Errorf("%s: expected %s, found %s", at, pat.literal.raw, short(v.raw))
		}
		return nil
	case pat.wildcard != "":
		if err := pat.matchWildcard(v, c); err != nil {
			return fmt.Errorf("%s: %w, found %s", at, err, short(v.raw))
		}
		if pat.as != "" {
			s := v.raw
			if v.kind == text {
				s = v.str
			}
			c.keep(pat.as, s)
		}
		return nil
	case v.kind != pat.kind:
		return fmt.Errorf("%s: expected an %s, found %s", at, pat.kind, short(v.raw))
	case pat.kind == object:
		return pat.matchObject(at, v, c)
	default:
		return pat.matchArray(at, v, c)
	}
}

func (pat *pattern) matchObject(at string, v value, c *matchContext) error {
	for i := range pat.fields {
		f := &pat.fields[i]
		fv, ok := v.field(f.name)
		absent := f.pattern.wildcard == "absent"
		switch {
		case absent && ok:
			return fmt.Errorf("%s.%s: expected no such field, found %s", at, f.name, short(fv.raw))
		case absent:
		case !ok:
			return fmt.Errorf("%s: no field %q, found %s", at, f.name, short(v.raw))
		default:
			if err := f.pattern.match(at+"."+f.name, fv, c); err != nil {
				return err
			}
		}
	}
	for _, f := range v.fields {
		known := slices.ContainsFunc(pat.fields, func(p patternField) bool { return p.name == f.name })
		if !known && !pat.open {
			return fmt.Errorf("%s: field %q (%s) not expected", at, f.name, short(f.value.raw))
		}
	}
	return nil
}

func (pat *pattern) matchArray(at string, v value, c *matchContext) error {
	if len(v.elems) < len(pat.elems) || len(v.elems) > len(pat.elems) && !pat.open {
		return fmt.Errorf("%s: expected %d elements, found %d: %s", at, len(pat.elems), len(v.elems), short(v.raw))
	}
	for i := range pat.elems {
		if err := pat.elems[i].match(fmt.Sprintf("%s[%d]", at, i), v.elems[i], c); err != nil {
			return err
		}
	}
	return nil
}

func (pat *pattern) matchWildcard(v value, c *matchContext) error {
	form := func(k kind, ok bool, what string) error {
		if v.kind != k || !ok {
			return fmt.Errorf("expected %s", what)
		}
		return nil
	}
	switch pat.wildcard {
	case "any":
		return nil
	case "uuid":
		return form(text, uuidForm.MatchString(v.str), "a UUID")
	case "digits":
		return form(text, digitForm.MatchString(v.str), "a string of digits")
	case "string":
		return form(text, true, "a string")
	case "text":
		return form(text, v.str != "", "a string that is not empty")
	case "bool":
		return form(boolean, true, "a bool")
	case "int":
		return form(number, intForm.MatchString(v.raw), "an integer")
	case "number":
		return form(number, true, "a number")
	case "object":
		return form(object, true, "an object")
	case "array":
		return form(array, true, "an array")
	case "time":
		return form(text, timeForm.MatchString(v.str), "a time with 6 fractional digits")
	case "time3":
		return form(text, time3Form.MatchString(v.str), "a time with 3 fractional digits")
	case "near":
		return pat.matchNear(v, timeForm, c)
	case "near3":
		return pat.matchNear(v, time3Form, c)
	case "raw":
		return form(v.kind, v.raw == pat.arg, "the bytes "+pat.arg)
	case "absent":
		return fmt.Errorf("<absent> stands for a field of an object only")
	default:
		return pat.matchArgs(v)
	}
}

func (pat *pattern) matchNear(v value, form *regexp.Regexp, c *matchContext) error {
	off := time.Duration(0)
	if pat.arg != "" {
		var err error
		if off, err = time.ParseDuration(pat.arg); err != nil {
			return err
		}
	}
	want := c.now.Add(off)
	got, err := time.Parse(time.RFC3339Nano, v.str)
	if v.kind != text || !form.MatchString(v.str) || err != nil || got.Sub(want).Abs() > 2*time.Second {
		return fmt.Errorf("expected a time near %s (form %s)", want.UTC().Format(time.RFC3339Nano), form)
	}
	return nil
}

func (pat *pattern) matchArgs(v value) error {
	raws := make([]string, len(pat.args))
	for i, a := range pat.args {
		raws[i] = a.raw
	}
	want := strings.Join(raws, " ")
	if len(pat.args) == 0 {
		return fmt.Errorf("<%s> needs a value", pat.wildcard)
	}
	first := pat.args[0]
	ok := false
	switch pat.wildcard {
	case "starts":
		ok = v.kind == text && strings.HasPrefix(v.str, first.str)
	case "contains":
		ok = v.kind == text && strings.Contains(v.str, first.str)
	case "oneof":
		ok = slices.ContainsFunc(pat.args, v.equal)
	case "not":
		ok = !first.equal(v)
	case "above":
		low, err1 := strconv.ParseInt(first.raw, 10, 64)
		got, err2 := strconv.ParseInt(v.raw, 10, 64)
		ok = err1 == nil && err2 == nil && got > low
	}
	if !ok {
		return fmt.Errorf("expected <%s %s>", pat.wildcard, want)
	}
	return nil
}

// short cuts a long text for a message.
func short(s string) string {
	if len(s) > 400 {
		return s[:300] + "…" + s[len(s)-60:]
	}
	return s
}
