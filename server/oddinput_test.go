package server

import (
	"cmp"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// oddValues stand in the place of each value of a good body.
var oddValues = []string{
	`null`, `true`, `{}`, `[]`, `[[{}]]`, `-1`, `1.5`, `1e400`, `9007199254740993`, `99999999999999999999`, `""`, `" "`, `"\ud800"`, `"\u0000"`,
	`"\"\\\u002f"`, `"` + strings.Repeat("x", 600) + `"`, "\"\xff\"", "\"\x01\"", strings.Repeat("[", 10_000) + strings.Repeat("]", 10_000), ``,
}

// oddParams stand in the place of each parameter of a path.
var oddParams = []string{"%00", "%FF", "%C3%28", "%ED%A0%80", "%2F", "%2e%2e", "%22%5C", "%F0%9F%93%A6", "+", "%20", "-1", "99999999999999999999", strings.Repeat("x", 600)}

// oddQueries are appended to each path.
var oddQueries = []string{
	"limit=x", "limit=-1", "limit=0", "limit=99999999999999999999", "offset=%FF", "limit=1&limit=2", "after=%00", "from=yesterday", "to=%ZZ", "%00=1", "=", "&&",
	"queue=%ED%A0%80", "batch=x", "partitions=-3", "interval=never", "dryRun=perhaps", "a=" + strings.Repeat("y", 5000),
}

var (
	valueInBody = regexp.MustCompile(`[:\[]("[^"]*"|-?[0-9]+|true|false)`)
	paramInPath = regexp.MustCompile(`[:*][A-Za-z]+`)
)

// oddRequests is what is sent to a route, from a request that is good for it.
func oddRequests(key, path, body string, each func(path, body string)) {
	for _, at := range valueInBody.FindAllStringSubmatchIndex(body, -1) {
		for _, odd := range oddValues {
			each(path, body[:at[2]]+odd+body[at[3]:])
		}
	}
	for at := range body {
		each(path, body[:at])
		each(path, body[:at]+string(rune(body[at]^0x11))+body[at+1:])
	}
	for _, odd := range append([]string{" ", "\xff\xfe", body + "x", body + body}, oddValues...) {
		each(path, odd)
	}
	if len(body) > 0 && body[0] == '{' {
		each(path, body[:len(body)-1]+`,"unknown":[1,{"a":null}],`+body[1:]) // unknown, and each member twice
	}
	_, pattern, _ := strings.Cut(key, " ")
	for _, at := range paramInPath.FindAllStringIndex(pattern, -1) {
		for _, odd := range oddParams {
			each(paramInPath.ReplaceAllString(pattern[:at[0]], "vault-q")+odd+paramInPath.ReplaceAllString(pattern[at[1]:], "vault-q"), body)
		}
	}
	mark := "?"
	if strings.Contains(path, "?") {
		mark = "&"
	}
	for _, odd := range oddQueries {
		each(path+mark+odd, body)
	}
}

// TestB66EveryRoute sends odd requests to every route of the table: whatever
// comes, the answer parses and is no failure of the broker, and what is refused
// has no effect.
func TestB66EveryRoute(t *testing.T) {
	b := startTenants(t)
	owner := tenantID("ccc", 0)
	var pairs []string
	for name, id := range b.vault(owner) {
		pairs = append(pairs, name, id)
	}
	fill := strings.NewReplacer(pairs...)
	engine := b.s.engine.(*Broker)
	state := func() [2]any {
		digest, _, err := engine.Digest()
		if err != nil {
			t.Fatal(err)
		}
		return [2]any{digest, engine.Status().Commit}
	}
	sent := 0
	table := slices.Clone(routes) // what removes comes last
	slices.SortStableFunc(table, func(a, b route) int {
		return cmp.Compare(strings.Index(a.method, "DELETE"), strings.Index(b.method, "DELETE"))
	})
	for _, rt := range table {
		key := rt.method + " " + rt.path
		row, ok := tenantRoutes[key]
		if !ok {
			row = tenantRow{path: rt.path}
		}
		if testing.Short() && rt.method == "GET" {
			continue
		}
		oddRequests(key, fill.Replace(row.path), fill.Replace(row.body), func(path, body string) {
			sent++
			var rec *httptest.ResponseRecorder
			// A redrive that an earlier request began may go on meanwhile: then the same once more.
			for tries := 0; ; tries++ {
				before := state()
				rec = b.ask(owner, rt.method, path, body)
				if refused := rec.Code >= 400; !refused || state() == before {
					break
				}
				if tries == 3 {
					t.Errorf("%s %.200s %.300q: refused with %d, and the state changed: %.300s", rt.method, path, body, rec.Code, rec.Body)
					break
				}
			}
			answer, kind := rec.Body.Bytes(), rec.Header().Get("Content-Type")
			switch {
			case rec.Code >= 500:
				t.Errorf("%s %.200s %.300q: %d %.300s", rt.method, path, body, rec.Code, answer)
			case rec.Code == http.StatusNoContent && len(answer) == 0, strings.HasPrefix(kind, "text/plain"):
			case kind != "application/json" || !json.Valid(answer):
				t.Errorf("%s %.200s %.300q: %d, an answer that does not parse (%s): %.300q", rt.method, path, body, rec.Code, kind, answer)
			}
		})
	}
	if rec := b.ask(owner, "GET", "/health", ""); rec.Code != http.StatusOK {
		t.Errorf("after %d odd requests: %d %s", sent, rec.Code, rec.Body)
	}
	t.Logf("%d requests", sent)
}
