package rawjson

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"pgregory.net/rapid"
)

// texts are verdicts that are easy to get wrong, both ways.
var texts = []string{
	``, ` `, `null`, ` null `, `nul`, `nulll`, `true`, `false`, `fals`, `True`, `NaN`, `Infinity`, `-Infinity`,
	`0`, `-0`, `00`, `01`, `-01`, `1.`, `.1`, `-.1`, `1.0`, `1e5`, `1E+5`, `1e`, `1e+`, `1.5e-3`, `0e0`, `0x1`, `+1`, `-`, `--1`, `1_000`,
	`123456789012345678901234567890`, `1e400`, `-1.`, `2.e3`, `1 2`,
	`""`, `"a"`, `"`, `"a`, `"\"`, `"\""`, `"\\"`, `"\/"`, `"\b\f\n\r\t"`, `"\a"`, `"\x00"`, `"\u"`, `"\u12"`, `"\u12g4"`, `"\u0000"`, `"\uD834\uDD1E"`,
	`"\uD800"`, `"\uDC00\uD800"`, `"\uD800x"`, `"\uD800\u0041"`, "\"\x00\"", "\"\x1f\"", "\"\t\"", "\"\n\"", "\"\x7f\"", `'a'`,
	`"1234567"`, `"12345678"`, `"123456789"`, `"1234567\n"`, `"12345678\n12345678"`, "\"1234567\x01\"",
	`[]`, `[ ]`, `[1]`, `[1,]`, `[,1]`, `[1,,2]`, `[1 2]`, `[`, `]`, `[1`, `[[]]`, `[[]`, `[]]`, `[1]x`, `[1],`, `["a",1,true,null,{}]`,
	`{}`, `{ }`, `{"a":1}`, `{"a" : 1 , "b":2}`, `{"a":1,}`, `{,"a":1}`, `{"a"}`, `{"a":}`, `{a:1}`, `{1:1}`, `{"a":1 "b":2}`, `{"a":1,"a":2}`,
	`{"a":{"b":[{"c":[]}]}}`, `{"a":[}`, `{"a":{]}`, `[{}`, `{"a":1]`, `[1}`, `{"\u0061":1}`, `{"a":1}{`, "\xef\xbb\xbf{}", "[1]\v", "[1]\u00a0", "[\u2028]", `[1] // c`, `/*c*/1`,
	"\t\r\n [1]\n", `{"":0}`, `[""]`, `[-]`, `[1.e1]`, `["a"`, `["a",`, `{"a"`, `{"a":`, `{"a":1`, `{"a":1,`, `{"a":1,"`, `#1`, `{null:null}`, `{"a":"b",,"c":"d"}`,
}

func TestVerdictsAgreeWithEncodingJSON(t *testing.T) {
	for _, text := range texts {
		if got, want := Valid([]byte(text)), json.Valid([]byte(text)); got != want {
			t.Errorf("%q: valid %v, encoding/json says %v", text, got, want)
		}
	}
}

func TestInvalidUTF8(t *testing.T) {
	for _, text := range []string{"\"\xff\"", "\"\xc3\"", "\"\xed\xa0\x80\"", "\"\xf4\x90\x80\x80\"", "[\"ok\",\"\xc0\xaf\"]", "\xfe"} {
		if Valid([]byte(text)) {
			t.Errorf("%q was taken", text)
		}
	}
	for _, text := range []string{"\"\u00e9\"", "\"\U0001F4E6 box\"", "[\"\u65e5\u672c\"]"} {
		if !Valid([]byte(text)) {
			t.Errorf("%q was refused", text)
		}
	}
}

func TestDepth(t *testing.T) {
	for _, c := range []struct {
		open, shut string
	}{{"[", "]"}, {`{"a":`, "}"}, {`[{"a":`, "}]"}} {
		per := len(strings.ReplaceAll(strings.ReplaceAll(c.open, `"a":`, ""), " ", ""))
		fits := strings.Repeat(c.open, MaxDepth/per) + "1" + strings.Repeat(c.shut, MaxDepth/per)
		if !Valid([]byte(fits)) {
			t.Errorf("%s at the limit was refused", c.open)
		}
		if over := "[" + fits + "]"; Valid([]byte(over)) {
			t.Errorf("%s over the limit was taken", c.open)
		}
	}
	if Valid(bytes.Repeat([]byte("["), 1_000_000)) {
		t.Error("a million brackets were taken")
	}
}

func TestTextAgreesWithEncodingJSON(t *testing.T) {
	for _, text := range texts {
		var want string
		if json.Unmarshal([]byte(text), &want) != nil || strings.TrimSpace(text) == "null" {
			continue
		}
		var s Scanner
		s.Reset([]byte(text))
		got, ok := s.Text()
		lone := want != strings.ReplaceAll(want, "\ufffd", "") && !strings.Contains(strings.ToLower(text), `\ufffd`) && !strings.Contains(text, "\ufffd")
		if err := s.End(); err != nil || ok == lone || ok && string(got) != want {
			t.Errorf("%s: %q %v %v, want %q, a lone surrogate: %v", text, got, ok, err, want, lone)
		}
	}
}

// walk rebuilds a text through the pull interface, so that the interface and
// Skip are held against each other.
func walk(s *Scanner, dst []byte) []byte {
	switch s.Kind() {
	case Object:
		dst = append(dst, '{')
		n := 0
		for ok := s.EnterObject(); ok; ok = s.NextMember() {
			if n++; n > 1 {
				dst = append(dst, ',')
			}
			dst = append(AppendString(dst, s.Key()), ':')
			dst = walk(s, dst)
		}
		return append(dst, '}')
	case Array:
		dst = append(dst, '[')
		n := 0
		for ok := s.EnterArray(); ok; ok = s.NextElement() {
			if n++; n > 1 {
				dst = append(dst, ',')
			}
			dst = walk(s, dst)
		}
		return append(dst, ']')
	case String:
		text, _ := s.Text()
		return AppendString(dst, text)
	default:
		return append(dst, s.Raw()...)
	}
}

func checkText(t *testing.T, data []byte) {
	valid := Valid(data)
	if utf8.Valid(data) && depth(data) < MaxDepth {
		if want := json.Valid(data); valid != want {
			t.Fatalf("%q: valid %v, encoding/json says %v", data, valid, want)
		}
	}
	var s Scanner
	s.Reset(data)
	out := walk(&s, nil)
	if err := s.End(); (err == nil) != valid {
		t.Fatalf("%q: walk says %v, Valid %v", data, err, valid)
	}
	if !valid {
		return
	}
	var a, b any
	if json.Unmarshal(data, &a) == nil {
		if err := json.Unmarshal(out, &b); err != nil {
			t.Fatalf("%q came out as %q: %v", data, out, err)
		}
	}
	compact := AppendCompact(nil, data)
	var want bytes.Buffer
	if json.Compact(&want, data) == nil && !bytes.Equal(compact, want.Bytes()) {
		t.Fatalf("%q: compact %q, want %q", data, compact, want.Bytes())
	}
}

func depth(b []byte) int { return bytes.Count(b, []byte("[")) + bytes.Count(b, []byte("{")) }

func FuzzScanner(f *testing.F) {
	for _, text := range texts {
		f.Add([]byte(text))
	}
	f.Fuzz(checkText)
}

func TestScannerProperties(t *testing.T) {
	fragment := rapid.SampledFrom([]string{
		`{`, `}`, `[`, `]`, `,`, `:`, `"a"`, `"`, `\`, `\u`, `00e9`, `1`, `-`, `.5`, `e9`, `true`, `null`, ` `, "\n", `"queue":`, `"12345678"`, "\u00e9", "\x01",
	})
	rapid.Check(t, func(t *rapid.T) {
		data := strings.Join(rapid.SliceOfN(fragment, 0, 12).Draw(t, "parts"), "")
		valid := Valid([]byte(data))
		if want := json.Valid([]byte(data)); valid != want {
			t.Fatalf("%q: valid %v, encoding/json says %v", data, valid, want)
		}
	})
}

func TestAppendString(t *testing.T) {
	for _, text := range []string{"", "plain", "a\"b\\c/d", "\x00\x01\b\f\n\r\t\x1f\x7f", "\u00e9\u65e5\U0001F4E6\u2028", "bad \xff\xc3 bytes", "\xed\xa0\x80", "end\xe6\x97"} {
		for _, out := range [][]byte{AppendString(nil, text), AppendString(nil, []byte(text))} {
			var got string
			if err := json.Unmarshal(out, &got); err != nil {
				t.Errorf("%q: %q: %v", text, out, err)
			}
			if want := strings.ToValidUTF8(text, "\ufffd"); utf8.ValidString(text) && got != want {
				t.Errorf("%q came back as %q", text, got)
			}
			if !utf8.Valid(out) {
				t.Errorf("%q: not UTF-8: %q", text, out)
			}
		}
	}
}

func TestAppendTime(t *testing.T) {
	check := func(micros int64) {
		at := time.UnixMicro(micros).UTC()
		if got, want := string(AppendMicros(nil, micros)), at.Format(`"2006-01-02T15:04:05.000000Z"`); got != want {
			t.Errorf("%d: %s, want %s", micros, got, want)
		}
		if got, want := string(AppendMillis(nil, micros)), at.Format(`"2006-01-02T15:04:05.000Z"`); got != want {
			t.Errorf("%d: %s, want %s", micros, got, want)
		}
	}
	for _, micros := range []int64{0, 1, 999_999, 1_000_000, 1709164800000000, 1709251199999999, 951782400000000, 4107542400000000, lastMicros} {
		check(micros)
	}
	rapid.Check(t, func(t *rapid.T) { check(rapid.Int64Range(0, lastMicros).Draw(t, "micros")) })
	if !json.Valid(AppendMicros(nil, -5)) || !json.Valid(AppendMicros(nil, lastMicros+1)) {
		t.Error("times out of range are not JSON")
	}
}

func TestNumbers(t *testing.T) {
	for text, want := range map[string]int64{"0": 0, "-0": 0, "12": 12, "-3": -3, "1.0": 1, "1e3": 1000, "9007199254740993": 9007199254740993} {
		if n, ok := Int([]byte(text)); !ok || n != want {
			t.Errorf("%s: %d %v", text, n, ok)
		}
	}
	for _, text := range []string{"1.5", "1e300", "99999999999999999999", "-1e-1"} {
		if n, ok := Int([]byte(text)); ok {
			t.Errorf("%s read as %d", text, n)
		}
	}
	if _, ok := Float([]byte("1e400")); ok {
		t.Error("1e400 is not finite")
	}
}

func TestErrorsStick(t *testing.T) {
	var s Scanner
	s.Reset([]byte(`{"a":[1,x]}`))
	s.EnterObject()
	s.Key()
	s.Raw()
	if s.Err() == nil || s.NextMember() || s.Kind() != Invalid {
		t.Error("the scanner went on after an error")
	}
	if err := s.End(); err == nil || !strings.Contains(err.Error(), "byte 8") {
		t.Errorf("position: %v", err)
	}
}

var pushBody = func() []byte {
	var b bytes.Buffer
	b.WriteString(`{"items":[`)
	for i := range 10 {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(`{"queue":"parcels","partition":"van-12","transactionId":"scan-7700123456","payload":"` + strings.Repeat("Ab9z", 86) + `"}`)
	}
	b.WriteString(`]}`)
	return b.Bytes()
}()

func BenchmarkScan(b *testing.B) {
	b.SetBytes(int64(len(pushBody)))
	b.ReportAllocs()
	var s Scanner
	for b.Loop() {
		s.Reset(pushBody)
		for ok := s.EnterObject(); ok; ok = s.NextMember() {
			s.Key()
			for ok := s.EnterArray(); ok; ok = s.NextElement() {
				for ok := s.EnterObject(); ok; ok = s.NextMember() {
					switch string(s.Key()) {
					case "payload":
						s.Raw()
					default:
						s.Text()
					}
				}
			}
		}
		if s.End() != nil {
			b.Fatal(s.Err())
		}
	}
}

func BenchmarkAppendTime(b *testing.B) {
	var dst []byte
	for b.Loop() {
		dst = AppendMicros(dst[:0], 1709164800123456)
	}
}
