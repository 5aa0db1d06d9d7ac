package rawjson

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"unicode/utf8"
)

// MaxDepth is how deep arrays and objects may nest.
const MaxDepth = 512

// Kind is the type of a JSON value, judged by its first byte.
type Kind uint8

// Kinds of value. Invalid stands for no value: a stray byte, or the end.
const (
	Invalid Kind = iota
	Object
	Array
	String
	Number
	Bool
	Null
)

// SyntaxError says where a text stops being JSON. Pos counts bytes from 0.
type SyntaxError struct {
	Pos  int
	What string
}

func (e *SyntaxError) Error() string {
	return fmt.Sprintf("not JSON at byte %d: %s", e.Pos, e.What)
}

// Scanner walks over one JSON text. Errors stick: after the first one every
// method returns zero values and every loop ends, so that callers check Err
// once, at the end.
//
// A body is walked like this; each branch has to consume one value:
//
//	if s.Kind() == rawjson.Object {
//		for ok := s.EnterObject(); ok; ok = s.NextMember() {
//			switch string(s.Key()) {
//			case "queue":
//				name, isString := s.Text()
//			default:
//				s.Skip()
//			}
//		}
//	}
//	err := s.End()
type Scanner struct {
	data    []byte
	pos     int
	depth   int
	err     *SyntaxError
	scratch []byte // unescaped strings
}

// Reset starts over with data. Slices handed out before stay valid as long as
// the old data is left alone, except those of strings that had escapes.
func (s *Scanner) Reset(data []byte) {
	s.data, s.pos, s.depth, s.err, s.scratch = data, 0, 0, nil, s.scratch[:0]
	if !utf8.Valid(data) {
		s.pos = firstInvalid(data)
		s.fail("invalid UTF-8")
		return
	}
	s.space()
}

// Release lets go of the data, and of the buffer for unescaped strings when it
// has grown past keep bytes.
func (s *Scanner) Release(keep int) {
	scratch := s.scratch
	if cap(scratch) > keep {
		scratch = nil
	}
	*s = Scanner{scratch: scratch[:0]}
}

func firstInvalid(b []byte) int {
	for i := 0; i < len(b); {
		r, n := utf8.DecodeRune(b[i:])
		if r == utf8.RuneError && n <= 1 {
			return i
		}
		i += n
	}
	return len(b)
}

// Err is the first error, nil when there was none so far.
func (s *Scanner) Err() error {
	if s.err == nil {
		return nil
	}
	return s.err
}

func (s *Scanner) fail(what string) {
	if s.err == nil {
		s.err = &SyntaxError{Pos: s.pos, What: what}
	}
	s.pos = len(s.data)
}

// End checks that nothing but white space follows and returns the first error.
func (s *Scanner) End() error {
	if s.err == nil {
		s.space()
		if s.pos < len(s.data) {
			s.fail("bytes after the value")
		}
	}
	return s.Err()
}

func (s *Scanner) space() {
	if s.pos < len(s.data) && s.data[s.pos] > ' ' {
		return
	}
	s.manySpaces()
}

func (s *Scanner) manySpaces() {
	for s.pos < len(s.data) {
		switch s.data[s.pos] {
		case ' ', '\t', '\n', '\r':
			s.pos++
		default:
			return
		}
	}
}

var kinds = [256]Kind{
	'{': Object, '[': Array, '"': String, 't': Bool, 'f': Bool, 'n': Null, '-': Number,
	'0': Number, '1': Number, '2': Number, '3': Number, '4': Number,
	'5': Number, '6': Number, '7': Number, '8': Number, '9': Number,
}

// Kind tells the kind of the next value without consuming it. Where no value
// stands the kind is Invalid; Skip then records the error.
func (s *Scanner) Kind() Kind {
	if s.pos >= len(s.data) {
		return Invalid
	}
	return kinds[s.data[s.pos]]
}

// EnterObject consumes the brace of an object and reports whether it has a
// member; the next call is then Key. The next value must be an object.
func (s *Scanner) EnterObject() bool { return s.enter('{', '}', "object expected") }

// EnterArray consumes the bracket of an array and reports whether it has an
// element, which is then the next value. The next value must be an array.
func (s *Scanner) EnterArray() bool { return s.enter('[', ']', "array expected") }

func (s *Scanner) enter(open, shut byte, what string) bool {
	if s.pos >= len(s.data) || s.data[s.pos] != open {
		s.fail(what)
		return false
	}
	if s.depth++; s.depth > MaxDepth {
		s.fail("nested too deep")
		return false
	}
	s.pos++
	s.space()
	if s.pos < len(s.data) && s.data[s.pos] == shut {
		s.pos++
		s.depth--
		return false
	}
	return s.err == nil
}

// NextMember goes on after a member's value; false ends the object.
func (s *Scanner) NextMember() bool { return s.next('}') }

// NextElement goes on after an element; false ends the array.
func (s *Scanner) NextElement() bool { return s.next(']') }

func (s *Scanner) next(shut byte) bool {
	if d := s.data; s.pos+1 < len(d) && d[s.pos] == ',' && d[s.pos+1] > ' ' {
		s.pos++ // after an error nothing is left to see here
		return true
	}
	if s.err != nil {
		return false
	}
	s.space()
	if s.pos < len(s.data) {
		switch s.data[s.pos] {
		case ',':
			s.pos++
			s.space()
			return true
		case shut:
			s.pos++
			s.depth--
			return false
		}
	}
	s.fail("comma or end of object or array expected")
	return false
}

// Key consumes a member's name and its colon. The slice is valid until Reset.
func (s *Scanner) Key() []byte {
	if s.pos >= len(s.data) || s.data[s.pos] != '"' {
		s.fail("member name expected")
		return nil
	}
	name, _ := s.text()
	s.colon()
	return name
}

func (s *Scanner) colon() {
	if d := s.data; s.pos+1 < len(d) && d[s.pos] == ':' && d[s.pos+1] > ' ' {
		s.pos++
		return
	}
	s.space()
	if s.pos >= len(s.data) || s.data[s.pos] != ':' {
		s.fail("colon expected")
		return
	}
	s.pos++
	s.space()
}

// Text consumes the next value. When it is a string, the result is its text,
// valid until Reset (and as long as the data is left alone). Otherwise the value
// is skipped and isString is false. A string with a lone surrogate is no text:
// two that differ would read the same.
func (s *Scanner) Text() (text []byte, isString bool) {
	if s.Kind() != String {
		s.Skip()
		return nil, false
	}
	text, whole := s.text()
	return text, whole && s.err == nil
}

// text reads a string; whole is false when it has a lone surrogate.
func (s *Scanner) text() (text []byte, whole bool) {
	start := s.pos + 1
	escaped := s.skipString()
	if s.err != nil {
		return nil, false
	}
	raw := s.data[start : s.pos-1 : s.pos-1]
	if !escaped {
		return raw, true
	}
	from := len(s.scratch)
	s.scratch, whole = appendUnescaped(s.scratch, raw)
	return s.scratch[from:len(s.scratch):len(s.scratch)], whole
}

// Bool consumes the next value; ok is false when it is no boolean.
func (s *Scanner) Bool() (v, ok bool) {
	if s.Kind() != Bool {
		s.Skip()
		return false, false
	}
	v = s.data[s.pos] == 't'
	s.Skip()
	return v, s.err == nil
}

// Raw consumes the next value, of any kind, and returns its bytes as sent.
func (s *Scanner) Raw() []byte {
	start := s.pos
	s.Skip()
	if s.err != nil {
		return nil
	}
	return s.data[start:s.pos:s.pos]
}

// Skip consumes the next value, checking all of it.
func (s *Scanner) Skip() {
	// One bit per open container: 1 object, 0 array.
	var stack [MaxDepth / 64]uint64
	base := s.depth
	for s.err == nil {
		opened := false
		switch s.Kind() {
		case String:
			s.skipString()
		case Number:
			s.skipNumber()
		case Bool, Null:
			s.skipLiteral()
		case Object:
			if opened = s.EnterObject(); opened {
				stack[(s.depth-1)/64] |= 1 << ((s.depth - 1) % 64)
				s.member()
			}
		case Array:
			if opened = s.EnterArray(); opened {
				stack[(s.depth-1)/64] &^= 1 << ((s.depth - 1) % 64)
			}
		default:
			s.fail("value expected")
		}
		for !opened {
			if s.err != nil || s.depth == base {
				return
			}
			if stack[(s.depth-1)/64]>>((s.depth-1)%64)&1 == 1 {
				if opened = s.next('}'); opened {
					s.member()
				}
			} else {
				opened = s.next(']')
			}
		}
	}
}

func (s *Scanner) member() {
	if s.pos >= len(s.data) || s.data[s.pos] != '"' {
		s.fail("member name expected")
		return
	}
	s.skipString()
	s.colon()
}

const (
	ones  = 0x0101010101010101
	highs = 0x8080808080808080
)

// skipString consumes a string, whose quote is the next byte, and reports
// whether it has escapes. It looks at 8 bytes at once: the lowest flagged byte
// of each mask is exact (only bytes above it can be flagged falsely), so the
// lowest of all is.
func (s *Scanner) skipString() (escaped bool) {
	d, i := s.data, s.pos+1
	for {
		for i+8 <= len(d) {
			v := binary.LittleEndian.Uint64(d[i:])
			q, b := v^(ones*'"'), v^(ones*'\\')
			m := ((v-ones*' ')&^v | (q-ones)&^q | (b-ones)&^b) & highs
			if m != 0 {
				i += bits.TrailingZeros64(m) >> 3
				break
			}
			i += 8
		}
		for i < len(d) && d[i] != '"' && d[i] != '\\' && d[i] >= ' ' {
			i++
		}
		s.pos = i
		switch {
		case i >= len(d):
			s.fail("string without end")
			return escaped
		case d[i] == '"':
			s.pos = i + 1
			return escaped
		case d[i] != '\\':
			s.fail("control character in a string")
			return escaped
		}
		escaped = true
		n := escapeLen(d[i:])
		if n == 0 {
			s.fail("bad escape")
			return escaped
		}
		i += n
	}
}

// escapeLen is the length of the escape that b starts with; 0: none.
func escapeLen(b []byte) int {
	if len(b) < 2 {
		return 0
	}
	switch b[1] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return 2
	case 'u':
		if _, ok := hex4(b[2:]); ok {
			return 6
		}
	}
	return 0
}

func hex4(b []byte) (r rune, ok bool) {
	if len(b) < 4 {
		return 0, false
	}
	for _, c := range b[:4] {
		switch {
		case c >= '0' && c <= '9':
			c -= '0'
		case c >= 'a' && c <= 'f':
			c -= 'a' - 10
		case c >= 'A' && c <= 'F':
			c -= 'A' - 10
		default:
			return 0, false
		}
		r = r<<4 | rune(c)
	}
	return r, true
}

func (s *Scanner) skipNumber() {
	d, i := s.data, s.pos
	if d[i] == '-' {
		i++
	}
	switch {
	case i < len(d) && d[i] == '0':
		i++
	default:
		if i = digits(d, i); i < 0 {
			s.fail("bad number")
			return
		}
	}
	if i < len(d) && d[i] == '.' {
		if i = digits(d, i+1); i < 0 {
			s.fail("bad number")
			return
		}
	}
	if i < len(d) && (d[i] == 'e' || d[i] == 'E') {
		i++
		if i < len(d) && (d[i] == '+' || d[i] == '-') {
			i++
		}
		if i = digits(d, i); i < 0 {
			s.fail("bad number")
			return
		}
	}
	s.pos = i
}

// digits returns where the digits from i on end; -1: there is none.
func digits(d []byte, i int) int {
	from := i
	for i < len(d) && d[i] >= '0' && d[i] <= '9' {
		i++
	}
	if i == from {
		return -1
	}
	return i
}

func (s *Scanner) skipLiteral() {
	word := "true"
	switch s.data[s.pos] {
	case 'f':
		word = "false"
	case 'n':
		word = "null"
	}
	if len(s.data)-s.pos < len(word) || string(s.data[s.pos:s.pos+len(word)]) != word {
		s.fail("bad literal")
		return
	}
	s.pos += len(word)
}

// Valid reports whether b is one JSON text as a Scanner takes it.
func Valid(b []byte) bool {
	var s Scanner
	s.Reset(b)
	s.Skip()
	return s.End() == nil
}
