package conformance

import (
	"bytes"
	"encoding/json"
	"flag"
	"maps"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"queen/server"
)

// The OpenAPI document is made of three things: the route table, what a person
// wrote about each route (testdata/openapi.txt), and the shapes of all requests
// and answers of the cases. So it says what the broker does, and the tests below
// fail when it no longer does.

var updateOpenAPI = flag.Bool("update-openapi", false, "write the OpenAPI document anew")

const openAPIFile = "../openapi.json"

// exchanges are the requests of all cases that ran in this process.
var exchanges = &exchangeLog{}

type exchangeLog struct {
	mu  sync.Mutex
	all []exchange
}

type exchange struct {
	method, path string
	request      []byte
	status       int
	answer       []byte
	json         bool
}

func (l *exchangeLog) add(method, path string, body []byte, a *Answer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, exchange{
		method, path, body, a.Status, a.Body, strings.HasPrefix(a.Header.Get("Content-Type"), "application/json"),
	})
}

// routeOf finds the route that a path is of: a segment that a route names beats
// a parameter.
func routeOf(routes []server.Route, method, path string) *server.Route {
	path, _, _ = strings.Cut(path, "?")
	parts := strings.Split(path, "/")
	var best *server.Route
	var bestScore string
	for i := range routes {
		r := &routes[i]
		if r.Method != method {
			continue
		}
		if score, ok := matchRoute(strings.Split(r.Path, "/"), parts); ok && (best == nil || score < bestScore) {
			best, bestScore = r, score
		}
	}
	return best
}

// matchRoute scores a match, lower is better: a digit for each segment.
func matchRoute(pattern, parts []string) (score string, ok bool) {
	for i, p := range pattern {
		switch {
		case strings.HasPrefix(p, "*"):
			return score + "2", i < len(parts)
		case i >= len(parts):
			return "", false
		case strings.HasPrefix(p, ":"):
			if parts[i] == "" {
				return "", false
			}
			score += "1"
		case p != parts[i]:
			return "", false
		default:
			score += "0"
		}
	}
	return score, len(pattern) == len(parts)
}

const everyRoute = "every route"

// routeNotes is what a person wrote about a route.
type routeNotes struct {
	summary string
	free    map[string]string // path of a value: "any" (JSON of the client's), "map" (an object by name)
	query   map[string]string // parameter: what it does
	media   string            // of a 200 that is not JSON
}

// readNotes reads testdata/openapi.txt: for each route a line with method and
// path, a line that says what it does, and then lines of the forms
//
//	any PLACE       PLACE (request or the status, then the path of a value) is the client's own JSON
//	map PLACE       PLACE is an object whose members are named by the client
//	query NAME TEXT what a query parameter does
//	media TYPE      its answer is not JSON
//
// A blank line ends it. The entry "every route" has query parameters of whatever
// route the cases send them to; one whose text is "-" is none.
func readNotes(t *testing.T) map[string]*routeNotes {
	t.Helper()
	data, err := os.ReadFile("testdata/openapi.txt")
	if err != nil {
		t.Fatal(err)
	}
	notes := map[string]*routeNotes{}
	var n *routeNotes
	for i, line := range strings.Split(string(data), "\n") {
		verb, rest, _ := strings.Cut(line, " ")
		switch {
		case strings.HasPrefix(line, "#"):
		case line == "":
			n = nil
		case n == nil:
			n = &routeNotes{free: map[string]string{}, query: map[string]string{}}
			notes[line] = n
		case n.summary == "":
			n.summary = line
		case verb == "any" || verb == "map":
			n.free[rest] = verb
		case verb == "query":
			name, text, _ := strings.Cut(rest, " ")
			n.query[name] = text
		case verb == "media":
			n.media = rest
		default:
			t.Fatalf("openapi.txt:%d: %q", i+1, line)
		}
	}
	return notes
}

// observed are the shapes of one route's requests and answers.
type observed struct {
	request *shape
	answers map[int]*shape
	bare    map[int]bool // statuses without a JSON body
	query   map[string]bool
}

func observe(t *testing.T, routes []server.Route, notes map[string]*routeNotes) map[string]*observed {
	t.Helper()
	seen := map[string]*observed{}
	for _, x := range exchanges.all {
		r := routeOf(routes, x.method, x.path)
		if r == nil {
			continue
		}
		key := r.Method + " " + r.Path
		o := seen[key]
		if o == nil {
			o = &observed{answers: map[int]*shape{}, bare: map[int]bool{}, query: map[string]bool{}}
			seen[key] = o
		}
		free := map[string]string{}
		if notes[key] != nil {
			free = notes[key].free
		}
		if _, q, ok := strings.Cut(x.path, "?"); ok && x.status < 400 {
			values, _ := url.ParseQuery(q)
			for name := range values {
				o.query[name] = true
			}
		}
		if x.status < 300 && len(x.request) > 0 && r.Method != "GET" {
			if v, err := decodeJSON(x.request); err == nil {
				o.request = o.request.add(v, "request", free)
			}
		}
		if !x.json {
			o.bare[x.status] = true
			continue
		}
		v, err := decodeJSON(x.answer)
		if err != nil {
			t.Errorf("%s: answer %d is no JSON: %v", key, x.status, err)
			continue
		}
		place := strconv.Itoa(x.status)
		o.answers[x.status] = o.answers[x.status].add(v, place, free)
	}
	return seen
}

func decodeJSON(b []byte) (v any, err error) {
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	err = d.Decode(&v)
	return v, err
}

func path31(path string) (out string, params []string) {
	parts := strings.Split(path, "/")
	for i, p := range parts {
		if strings.HasPrefix(p, ":") || strings.HasPrefix(p, "*") {
			params = append(params, p[1:])
			parts[i] = "{" + p[1:] + "}"
		}
	}
	return strings.Join(parts, "/"), params
}

type obj = map[string]any

// document builds the OpenAPI document.
func document(t *testing.T, routes []server.Route, notes map[string]*routeNotes, seen map[string]*observed) obj {
	t.Helper()
	paths := obj{}
	for _, r := range routes {
		key := r.Method + " " + r.Path
		n, o := notes[key], seen[key]
		if n == nil || n.summary == "" {
			t.Errorf("testdata/openapi.txt says nothing about %s", key)
			continue
		}
		if o == nil {
			t.Errorf("no case sends %s", key)
			continue
		}
		path, params := path31(r.Path)
		op := obj{"summary": n.summary, "operationId": operationID(r), "x-level": r.Level, "responses": responses(n, o)}
		if r.Level == "public" {
			op["security"] = []any{}
		}
		var parameters []any
		for _, p := range params {
			parameters = append(parameters, obj{"name": p, "in": "path", "required": true, "schema": obj{"type": "string"}})
		}
		for _, q := range slices.Sorted(maps.Keys(o.query)) {
			text := n.query[q]
			if text == "" {
				text = notes[everyRoute].query[q]
			}
			if text == "" {
				t.Errorf("testdata/openapi.txt says nothing about the query parameter %s of %s", q, key)
			}
			if text != "-" {
				parameters = append(parameters, obj{"name": q, "in": "query", "description": text, "schema": obj{"type": "string"}})
			}
		}
		for q := range n.query {
			if !o.query[q] {
				t.Errorf("no case sends the query parameter %s of %s", q, key)
			}
		}
		if parameters != nil {
			op["parameters"] = parameters
		}
		if o.request != nil {
			op["requestBody"] = obj{"content": obj{"application/json": obj{"schema": o.request.schema(false)}}}
		}
		item, _ := paths[path].(obj)
		if item == nil {
			item = obj{}
			paths[path] = item
		}
		item[strings.ToLower(r.Method)] = op
	}
	return obj{
		"openapi": "3.1.0",
		"info": obj{
			"title":       "queen",
			"version":     "1",
			"description": "A message broker whose one idea is the atomic step. Names in paths are percent-encoded. A parameter that ends a path may hold slashes.",
			"license":     obj{"name": "Apache-2.0", "identifier": "Apache-2.0"},
		},
		"servers":    []any{obj{"url": "http://localhost:6632"}},
		"security":   []any{obj{"token": []any{}}},
		"components": obj{"securitySchemes": obj{"token": obj{"type": "http", "scheme": "bearer", "bearerFormat": "JWT", "description": "Asked for only where tokens are checked; x-level names the access that a route needs."}}},
		"paths":      paths,
	}
}

func operationID(r server.Route) string {
	id := strings.ToLower(r.Method)
	for _, part := range strings.FieldsFunc(strings.TrimPrefix(r.Path, "/api/v1"), func(c rune) bool { return strings.ContainsRune("/:*-._", c) }) {
		id += strings.ToUpper(part[:1]) + part[1:]
	}
	return id
}

func responses(n *routeNotes, o *observed) obj {
	out := obj{}
	for status, s := range o.answers {
		out[strconv.Itoa(status)] = obj{
			"description": statusText(status),
			"content":     obj{"application/json": obj{"schema": s.schema(true)}},
		}
	}
	for status := range o.bare {
		if o.answers[status] != nil {
			continue
		}
		r := obj{"description": statusText(status)}
		if status == 200 && n.media != "" {
			r["content"] = obj{n.media: obj{}}
		}
		out[strconv.Itoa(status)] = r
	}
	return out
}

func statusText(status int) string {
	switch status {
	case 200, 201, 202:
		return "the answer"
	case 204:
		return "nothing, and no body"
	case 400:
		return "the request is not valid; nothing was applied"
	case 401:
		return "no valid token"
	case 403:
		return "the token's level is too low"
	case 404:
		return "there is no such thing"
	case 409:
		return "the state does not allow it; nothing was applied"
	case 413:
		return "a body, key or name is over its limit"
	case 422:
		return "the key of this call was used with another body"
	case 429:
		return "too much at once; send it again after Retry-After"
	case 503:
		return "not now; send it again after Retry-After. A write may have been applied where the code is timeout or retry"
	case 507:
		return "the disk is full; nothing was applied"
	}
	return "status " + strconv.Itoa(status)
}

// makeDocument is the document of the cases, which it runs if nobody did.
func makeDocument(t *testing.T) (doc obj, seen map[string]*observed) {
	t.Helper()
	if len(exchanges.all) == 0 {
		t.Run("cases", func(t *testing.T) { runAll(t, false) })
	}
	routes, notes := server.Routes(), readNotes(t)
	for key := range notes {
		if key != everyRoute && !slices.ContainsFunc(routes, func(r server.Route) bool { return r.Method+" "+r.Path == key }) {
			t.Errorf("testdata/openapi.txt: there is no route %s", key)
		}
	}
	seen = observe(t, routes, notes)
	return document(t, routes, notes, seen), seen
}

// TestOpenAPI compares the document with the router and with every answer of
// every case, and has it validated.
func TestOpenAPI(t *testing.T) {
	doc, _ := makeDocument(t)
	if t.Failed() {
		t.FailNow()
	}
	if *updateOpenAPI {
		data, err := json.MarshalIndent(doc, "", " ")
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(openAPIFile, append(data, '\n'), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	data, err := os.ReadFile(openAPIFile)
	if err != nil {
		t.Fatal(err)
	}
	checkForm(t, data)
	checkPaths(t, data)
	checkAnswers(t, data)
}

// checkForm validates the document against the part of OpenAPI 3.1 that it uses
// (testdata/openapi-3.1.json), in which no other member is allowed.
func checkForm(t *testing.T, data []byte) {
	t.Helper()
	rules, err := os.ReadFile("testdata/openapi-3.1.json")
	if err != nil {
		t.Fatal(err)
	}
	form, err := jsonschema.UnmarshalJSON(bytes.NewReader(rules))
	if err != nil {
		t.Fatal(err)
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("form.json", form); err != nil {
		t.Fatal(err)
	}
	s, err := c.Compile("form.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Validate(doc); err != nil {
		t.Errorf("the document is not valid: %v", err)
	}
}

// checkPaths compares methods and paths with the router.
func checkPaths(t *testing.T, data []byte) {
	t.Helper()
	var doc struct {
		Paths map[string]map[string]struct{}
	}
	if err := json.Unmarshal(data, &doc); err != nil {
		t.Fatal(err)
	}
	var found, want []string
	for path, item := range doc.Paths {
		for method := range item {
			found = append(found, strings.ToUpper(method)+" "+path)
		}
	}
	for _, r := range server.Routes() {
		path, _ := path31(r.Path)
		want = append(want, r.Method+" "+path)
	}
	slices.Sort(found)
	slices.Sort(want)
	if !slices.Equal(found, want) {
		t.Errorf("the document has %d routes, the router %d; write it anew with: go test ./server/conformance -run TestOpenAPI -update-openapi", len(found), len(want))
	}
}

// checkAnswers validates every answer against the schema of its route and
// status; a member that the schema does not know is an error.
func checkAnswers(t *testing.T, data []byte) {
	t.Helper()
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	closeObjects(doc)
	c := jsonschema.NewCompiler()
	if err := c.AddResource("doc.json", doc); err != nil {
		t.Fatal(err)
	}
	compiled := map[string]*jsonschema.Schema{}
	bad := map[string]bool{}
	escape := strings.NewReplacer("~", "~0", "/", "~1")
	for _, x := range exchanges.all {
		r := routeOf(server.Routes(), x.method, x.path)
		if r == nil || !x.json {
			continue
		}
		path, _ := path31(r.Path)
		at := "/paths/" + escape.Replace(path) + "/" + strings.ToLower(r.Method) + "/responses/" + strconv.Itoa(x.status) + "/content/application~1json/schema"
		s := compiled[at]
		if s == nil {
			if s, err = c.Compile("doc.json#" + url.PathEscape(at)); err != nil {
				if !bad[at] {
					t.Errorf("%s %s: the document has no answer %d: %v", r.Method, r.Path, x.status, err)
				}
				bad[at] = true
				continue
			}
			compiled[at] = s
		}
		v, err := jsonschema.UnmarshalJSON(bytes.NewReader(x.answer))
		if err != nil {
			continue // observe has said so
		}
		if err := s.Validate(v); err != nil && !bad[at] {
			bad[at] = true
			t.Errorf("%s %s: answer %d %s: %v", r.Method, r.Path, x.status, short(string(x.answer)), err)
		}
	}
}

// closeObjects lets no object of an answer have members that its schema does not
// name. The document itself leaves that open: a client skips what it does not know.
func closeObjects(v any) {
	switch v := v.(type) {
	case map[string]any:
		if _, named := v["properties"].(map[string]any); named && v["additionalProperties"] == nil {
			v["additionalProperties"] = false
		}
		for _, e := range v {
			closeObjects(e)
		}
	case []any:
		for _, e := range v {
			closeObjects(e)
		}
	}
}
