package conformance

import (
	"strings"
	"testing"
	"time"
)

// TestMatch checks the matcher itself, both ways: a suite whose matcher accepts
// too much proves nothing.
func TestMatch(t *testing.T) {
	const id = `"019a2f3f-01c2-7b10-8f3e-5d20c6a4be71"`
	for _, c := range []struct {
		pattern, value string
		ok             bool
	}{
		{`{"a": 1}`, `{"a":1}`, true},
		{`{"a": 1}`, `{"a":1,"b":2}`, false},
		{`{"a": 1, ...}`, `{"a":1,"b":2}`, true},
		{`{"a": 1, ...}`, `{"b":2}`, false},
		{`{"a": 1.0}`, `{"a":1}`, false},
		{`{"a": <absent>, ...}`, `{"b":2}`, true},
		{`{"a": <absent>, ...}`, `{"a":null}`, false},
		{`{"a": null}`, `{"a":null}`, true},
		{`{"a": null}`, `{}`, false},
		{`[1, ...]`, `[1,2,3]`, true},
		{`[1, 2]`, `[1,2,3]`, false},
		{`[1, 2, 3]`, `[1,2]`, false},
		{`[]`, `[]`, true},
		{`[]`, `{}`, false},
		{`<uuid>`, id, true},
		{`<uuid>`, `"019a"`, false},
		{`<digits>`, `"31"`, true},
		{`<digits>`, `31`, false},
		{`<int>`, `31`, true},
		{`<int>`, `31.5`, false},
		{`<time>`, `"2026-11-03T08:15:27.004118Z"`, true},
		{`<time>`, `"2026-11-03T08:15:27.004Z"`, false},
		{`<time3>`, `"2026-11-03T08:15:27.004Z"`, true},
		{`<near +90s>`, `"2026-01-01T00:01:30.000001Z"`, true},
		{`<near +90s>`, `"2026-01-01T00:01:40.000001Z"`, false},
		{`<near3>`, `"2026-01-01T00:00:01.000Z"`, true},
		{`<starts "QDUP ">`, `"QDUP x"`, true},
		{`<starts "QDUP ">`, `"QTXN x"`, false},
		{`<contains "b">`, `"abc"`, true},
		{`<oneof "a" null>`, `null`, true},
		{`<oneof "a" null>`, `"b"`, false},
		{`<not null>`, `1`, true},
		{`<not null>`, `null`, false},
		{`<above 7>`, `8`, true},
		{`<above 7>`, `7`, false},
		{`{"a": <raw {"x":  1.0}>}`, `{"a":{"x":  1.0}}`, true},
		{`{"a": <raw {"x":  1.0}>}`, `{"a":{"x": 1.0}}`, false},
		{`"é"`, `"\u00e9"`, true},
		{`9007199254740993`, `9007199254740993`, true},
		{`9007199254740993`, `9007199254740992`, false},
	} {
		pat, err := parsePattern(c.pattern)
		if err != nil {
			t.Errorf("%s: %v", c.pattern, err)
			continue
		}
		v, err := parseValue(c.value)
		if err != nil {
			t.Errorf("%s: %v", c.value, err)
			continue
		}
		mc := &matchContext{now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), keep: func(string, string) {}}
		if err := pat.match("$", v, mc); (err == nil) != c.ok {
			t.Errorf("%s against %s: expected match %v, found error %v", c.pattern, c.value, c.ok, err)
		}
	}
}

func TestMatchKeeps(t *testing.T) {
	pat, err := parsePattern(`{"id": <uuid as L>, "n": <int as n>}`)
	if err != nil {
		t.Fatal(err)
	}
	v, err := parseValue(`{"n": 7, "id": "019a2f3f-01c2-7b10-8f3e-5d20c6a4be71"}`)
	if err != nil {
		t.Fatal(err)
	}
	kept := map[string]string{}
	if err := pat.match("$", v, &matchContext{keep: func(k, v string) { kept[k] = v }}); err != nil {
		t.Fatal(err)
	}
	if kept["n"] != "7" || kept["L"] != "019a2f3f-01c2-7b10-8f3e-5d20c6a4be71" {
		t.Errorf("kept %v", kept)
	}
}

// TestParseValueRefuses checks that an answer which is not good JSON is seen.
func TestParseValueRefuses(t *testing.T) {
	for _, s := range []string{``, `{`, `{"a":1,"a":2}`, `[1,]`, `01`, `1.`, `"\x"`, "\"\xff\"", "\"\n\"", `{} {}`, `nul`, `{"a"}`} {
		if _, err := parseValue(s); err == nil {
			t.Errorf("%q was taken", s)
		}
	}
}

func TestExpand(t *testing.T) {
	r := &run{vars: map[string]string{"q": "c1", "L": "x"}}
	for in, want := range map[string]string{
		`a ${q}-${L}`:                  `a c1-x`,
		`${repeat ab 3}`:               `ababab`,
		`${each 3 {"k":"${q}#"}}`:      `{"k":"c11"},{"k":"c12"},{"k":"c13"}`,
		`${b64 {"a":"${q}"}}`:          `eyJhIjoiYzEifQ==`,
		`${hex ff00}`:                  "\xff\x00",
		`${nest 3}`:                    `[[[]]]`,
		`${escape a/b}`:                `a%2Fb`,
		`[${each 2 "${repeat k 2}#"}]`: `["kk1","kk2"]`,
	} {
		got, err := r.expand(in)
		if err != nil || got != want {
			t.Errorf("%s: expected %q, found %q, error %v", in, want, got, err)
		}
	}
	for _, in := range []string{`${none}`, `${q`, `${what x}`} {
		if _, err := r.expand(in); err == nil {
			t.Errorf("%s was taken", in)
		}
	}
}

func TestScriptParse(t *testing.T) {
	src := strings.Join([]string{
		`# comment`, `fixture base`, `push q m1..m3`, ``,
		`case 1, row 2: something`, `rows a/1 b/2`, `setting X=1`, `use base`, ``,
		`POST /x`, `X-Y: z`, `{"a":`, ` 1}`, `# comment`, `200, state unchanged {"b":`, `  2}`, ``,
		`begin w`, `GET /y`, ``, `end w`, `204`, ``,
	}, "\n")
	s, err := parseScript("t", src)
	if err != nil {
		t.Fatal(err)
	}
	if len(s.cases) != 1 || len(s.fixtures["base"].steps) != 1 {
		t.Fatalf("cases %d", len(s.cases))
	}
	c := s.cases[0]
	if len(c.rows) != 2 || len(c.settings) != 1 || len(c.steps) != 4 {
		t.Fatalf("case %+v", c)
	}
	q, w := c.steps[1].request, c.steps[1].want
	if q.body != "{\"a\":\n 1}" || len(q.headers) != 1 || w.status != "200" || w.state != "unchanged" || w.body != "{\"b\":\n  2}" {
		t.Errorf("request %+v want %+v", q, w)
	}
	for _, bad := range []string{"push q m1", "case a\nPOST /x\n{}", "case a\nwhat", "case a\nbegin w\nGET /y\n200"} {
		if _, err := parseScript("t", bad); err == nil {
			t.Errorf("%q was taken", bad)
		}
	}
}
