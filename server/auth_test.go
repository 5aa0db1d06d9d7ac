package server

import (
	"bufio"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"queen/server/tokens"
)

// listedRoutes reads the list of routes: the level of each "METHOD path".
func listedRoutes(t *testing.T) map[string]string {
	t.Helper()
	f, err := os.Open("testdata/routes.txt")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	list := map[string]string{}
	for sc := bufio.NewScanner(f); sc.Scan(); {
		fields := strings.Fields(sc.Text())
		if len(fields) == 0 || fields[0] == "#" {
			continue
		}
		key := strings.Join(fields[:2], " ")
		if _, twice := list[key]; twice || len(fields) != 3 {
			t.Fatalf("cannot read %q", sc.Text())
		}
		list[key] = fields[2]
	}
	return list
}

// TestLevelsOfRoutes compares three things: what the router answers, the table
// that it is made from, and the list of routes, which was written by hand.
func TestLevelsOfRoutes(t *testing.T) {
	listed := listedRoutes(t)
	s := newTestServer(t, &fakeEngine{}, func(c *Config) { c.Pprof = true })
	table := map[string]bool{}
	for _, rt := range slices.Concat(routes, profiles) {
		key := rt.method + " " + rt.path
		if table[key] {
			t.Errorf("%s stands twice in the table", key)
		}
		table[key] = true
		if want, ok := listed[key]; !ok {
			t.Errorf("%s is not in testdata/routes.txt: add it with its level", key)
		} else if rt.level.String() != want {
			t.Errorf("%s has the level %s, the list says %s", key, rt.level, want)
		}
	}
	for _, r := range s.router.Routes() {
		key := r.Method + " " + r.Path
		if !table[key] {
			t.Errorf("the router answers %s, which is not in the table: nothing would guard it", key)
		}
		delete(table, key)
	}
	for key := range table {
		t.Errorf("%s is in the table, and the router does not answer it", key)
	}
}

// TestRouteWithoutLevelIsRefused: a table with a hole makes no server.
func TestRouteWithoutLevelIsRefused(t *testing.T) {
	was := routes
	defer func() { routes = was }()
	routes = append(slices.Clone(routes), route{method: "GET", path: "/hole", handle: (*Server).serveStatus})
	if _, err := New(Config{Engine: &fakeEngine{t: t}}); err == nil || !strings.Contains(err.Error(), "GET /hole") {
		t.Errorf("%v", err)
	}
}

const testSecret = "a secret of the tests"

func tokenOf(t testing.TB, claims jwt.MapClaims) string {
	t.Helper()
	text, err := jwt.NewWithClaims(jwt.SigningMethodHS256, claims).SignedString([]byte(testSecret))
	if err != nil {
		t.Fatal(err)
	}
	return "Bearer " + text
}

func testTokens(t testing.TB) *tokens.Verifier {
	t.Helper()
	v, err := tokens.New(tokens.Config{Secret: []byte(testSecret)})
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// TestEveryRouteAsksForItsLevel sends a request to every route of the table
// with each role: it gets past the check exactly when the list says so.
func TestEveryRouteAsksForItsLevel(t *testing.T) {
	passes := map[string]string{ // by level
		"public":     "none nobody read-only write-only read-write admin",
		"read-only":  "read-only read-write admin",
		"write-only": "write-only read-write admin",
		"read-write": "read-write admin",
		"admin":      "admin",
	}
	listed := listedRoutes(t)
	s := newTestServer(t, &fakeEngine{}, func(c *Config) { c.Tokens = testTokens(t) })
	for _, rt := range routes {
		level := listed[rt.method+" "+rt.path]
		path := strings.NewReplacer("*", "x", ":", "x").Replace(rt.path)
		for _, role := range []string{"none", "nobody", "read-only", "write-only", "read-write", "admin"} {
			var header []string
			if role != "none" {
				header = []string{"Authorization", tokenOf(t, jwt.MapClaims{"role": role})}
			}
			rec := ask(s, rt.method, path, "{", header...)
			passed := rec.Code != http.StatusUnauthorized && rec.Code != http.StatusForbidden
			if want := strings.Contains(" "+passes[level]+" ", " "+role+" "); passed != want {
				t.Errorf("%s %s (%s) with role %s: status %d", rt.method, rt.path, level, role, rec.Code)
			}
			switch {
			case passed:
			case role == "none":
				expect(t, rec, http.StatusUnauthorized, `{"error":"Authentication required"}`)
			default:
				expect(t, rec, http.StatusForbidden, `{"error":"Insufficient permissions"}`)
			}
		}
	}
}

// TestUnlistedPathsAskForReadWrite: also a path that does not exist tells a
// stranger nothing.
func TestUnlistedPathsAskForReadWrite(t *testing.T) {
	s := newTestServer(t, &fakeEngine{}, func(c *Config) { c.Tokens = testTokens(t) })
	for _, path := range []string{"/api/v1/nothing", "/nothing", "/debug/pprof/heap", "/api/v1/push/"} {
		expect(t, ask(s, "POST", path, ""), http.StatusUnauthorized)
		for role, want := range map[string]int{"read-only": 403, "write-only": 403, "read-write": 404, "admin": 404} {
			expect(t, ask(s, "POST", path, "", "Authorization", tokenOf(t, jwt.MapClaims{"role": role})), want)
		}
	}
}

func TestTokenTexts(t *testing.T) {
	s := newTestServer(t, &fakeEngine{}, func(c *Config) { c.Tokens = testTokens(t) })
	for _, c := range []struct{ header, text string }{
		{"", "Authentication required"},
		{"Bearer x.y.z", "Bad token header"},
		{tokenOf(t, jwt.MapClaims{"role": "admin", "exp": time.Now().Add(-time.Hour).Unix()}), "Token has expired"},
		{tokenOf(t, jwt.MapClaims{"role": "admin"}) + "x", "Invalid token signature"},
	} {
		rec := ask(s, "GET", "/status", "", "Authorization", c.header)
		if rec.Code != http.StatusUnauthorized || rec.Body.String() != `{"error":"`+c.text+`"}` || rec.Header().Get("Content-Type") != "application/json" {
			t.Errorf("%q: %d %s", c.header, rec.Code, rec.Body)
		}
	}
}

func TestSkippedPaths(t *testing.T) {
	s := newTestServer(t, &fakeEngine{}, func(c *Config) {
		c.Tokens, c.SkipPaths = testTokens(t), []string{"/status", "/api/v1/timers/open/", "/"}
	})
	for path, want := range map[string]int{
		"/status": 200, "/status/": 401, "/api/v1/resources/queues": 401,
		"/api/v1/timers/open/key": 200, "/api/v1/timers/open": 401, "/api/v1/timers/openly/key": 401,
		"/api/v1/timers/open%2Fkey": 401, "/%73tatus": 401, "/": 404,
	} {
		if rec := ask(s, "GET", path, ""); rec.Code != want {
			t.Errorf("%s: %d, want %d", path, rec.Code, want)
		}
	}
}

func TestProfilesAreForAdmins(t *testing.T) {
	s := newTestServer(t, &fakeEngine{}, func(c *Config) { c.Tokens, c.Pprof = testTokens(t), true })
	for _, path := range []string{"/debug/pprof/", "/debug/pprof/cmdline", "/debug/pprof/heap", "/debug/pprof/goroutine"} {
		expect(t, ask(s, "GET", path, ""), http.StatusUnauthorized)
		expect(t, ask(s, "GET", path, "", "Authorization", tokenOf(t, jwt.MapClaims{"role": "read-write"})), http.StatusForbidden)
		expect(t, ask(s, "GET", path, "", "Authorization", tokenOf(t, jwt.MapClaims{"role": "admin"})), http.StatusOK)
	}
	off := newTestServer(t, &fakeEngine{}, nil)
	expect(t, ask(off, "GET", "/debug/pprof/heap", ""), http.StatusNotFound, "no_such_route")
}
