package conformance

import (
	"fmt"
	"os"
	"regexp"
	"strings"
)

// script is a data file: its cases, and the fixtures that it defines.
type script struct {
	name     string
	cases    []*testCase
	fixtures map[string]*testCase
}

// testCase is one case, or a fixture.
type testCase struct {
	file     string
	line     int
	name     string
	rows     []string
	settings []string
	steps    []step
}

// step is one line of a case, or one request.
type step struct {
	line    int
	verb    string // use, set, advance, begin, end, abort, request, parked, restart, crash, sync, unanswered, shutdown, push, pop, ack, kv, timer, dlq
	args    string
	request *request
	want    *want
}

type request struct {
	method, path string
	headers      []string
	body         string
}

// want is the answer that a request must get.
type want struct {
	line    int
	status  string
	state   string // "", unchanged, changed
	headers []string
	body    string
}

var (
	methodLine = regexp.MustCompile(`^(GET|POST|PUT|DELETE|PATCH|HEAD|OPTIONS) (\S.*)$`)
	statusLine = regexp.MustCompile(`^([1-5]\d\d)(?:, state (unchanged|changed))?(?: (.*))?$`)
	headerLine = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9-]*: `)
	verbs      = regexp.MustCompile(`^(rows|setting|use|set|advance|abort|parked|restart|crash|sync|unanswered|shutdown|push|pop|ack|kv|timer|dlq) (.*)$`)
)

func readScript(path string) (*script, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	return parseScript(path, string(data))
}

// parseScript reads a data file.
func parseScript(path, data string) (*script, error) {
	s := &script{name: path, fixtures: map[string]*testCase{}}
	p := &scriptParser{path: path, lines: strings.Split(data, "\n")}
	for p.pos < len(p.lines) {
		line := p.lines[p.pos]
		name, isCase := strings.CutPrefix(line, "case ")
		fixture, isFixture := strings.CutPrefix(line, "fixture ")
		switch {
		case isCase:
			p.current = &testCase{file: path, line: p.pos + 1, name: name}
			s.cases = append(s.cases, p.current)
		case isFixture:
			p.current = &testCase{file: path, line: p.pos + 1, name: fixture}
			s.fixtures[fixture] = p.current
		case line == "" || line[0] == '#':
		case p.current == nil:
			return nil, p.errorf("a case expected")
		default:
			if err := p.step(); err != nil {
				return nil, err
			}
			continue
		}
		p.pos++
	}
	return s, nil
}

type scriptParser struct {
	path    string
	lines   []string
	pos     int
	current *testCase
}

func (p *scriptParser) errorf(format string, args ...any) error {
	return fmt.Errorf("%s:%d: %s", p.path, p.pos+1, fmt.Sprintf(format, args...))
}

// step reads the step that starts at the current line.
func (p *scriptParser) step() error {
	line := p.lines[p.pos]
	st := step{line: p.pos + 1}
	if name, ok := strings.CutPrefix(line, "begin "); ok {
		st.verb, st.args = "begin", name
		p.pos++
		return p.requestStep(st, false)
	}
	if name, ok := strings.CutPrefix(line, "end "); ok {
		st.verb, st.args = "end", name
		p.pos++
		return p.wantStep(st)
	}
	if methodLine.MatchString(line) {
		st.verb = "request"
		return p.requestStep(st, true)
	}
	m := verbs.FindStringSubmatch(line)
	if m == nil {
		return p.errorf("cannot read %q", line)
	}
	p.pos++
	switch m[1] {
	case "rows":
		p.current.rows = append(p.current.rows, strings.Fields(m[2])...)
	case "setting":
		p.current.settings = append(p.current.settings, m[2])
	default:
		st.verb, st.args = m[1], m[2]
		p.current.steps = append(p.current.steps, st)
	}
	return nil
}

// block takes the lines up to a blank one, without comments.
func (p *scriptParser) block() []string {
	var lines []string
	for ; p.pos < len(p.lines) && p.lines[p.pos] != ""; p.pos++ {
		if p.lines[p.pos][0] != '#' {
			lines = append(lines, p.lines[p.pos])
		}
	}
	return lines
}

func (p *scriptParser) requestStep(st step, wanted bool) error {
	start := p.pos
	lines := p.block()
	m := methodLine.FindStringSubmatch(lines[0])
	if m == nil {
		return p.errorf("a request expected at line %d", start+1)
	}
	st.request = &request{method: m[1], path: m[2]}
	var body []string
	i := 1
	for ; i < len(lines); i++ {
		if statusLine.MatchString(lines[i]) {
			break
		}
		if len(body) == 0 && headerLine.MatchString(lines[i]) {
			st.request.headers = append(st.request.headers, lines[i])
			continue
		}
		body = append(body, lines[i])
	}
	st.request.body = strings.Join(body, "\n")
	switch {
	case wanted && i == len(lines):
		return p.errorf("the request at line %d has no answer", start+1)
	case !wanted && i < len(lines):
		return p.errorf("the request of begin at line %d has an answer", start+1)
	case wanted:
		st.want = parseWant(lines[i:], start+1+i)
	}
	p.current.steps = append(p.current.steps, st)
	return nil
}

func (p *scriptParser) wantStep(st step) error {
	start := p.pos
	lines := p.block()
	if len(lines) == 0 || !statusLine.MatchString(lines[0]) {
		return p.errorf("an answer expected at line %d", start+1)
	}
	st.want = parseWant(lines, start+1)
	p.current.steps = append(p.current.steps, st)
	return nil
}

func parseWant(lines []string, line int) *want {
	m := statusLine.FindStringSubmatch(lines[0])
	w := &want{line: line, status: m[1], state: m[2]}
	var body []string
	if m[3] != "" {
		body = append(body, m[3])
	}
	for _, l := range lines[1:] {
		if len(body) == 0 && headerLine.MatchString(l) {
			w.headers = append(w.headers, l)
			continue
		}
		body = append(body, l)
	}
	w.body = strings.Join(body, "\n")
	return w
}
