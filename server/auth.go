package server

import (
	"net/http"
	"net/url"
	"strings"

	"queen/server/rawjson"
)

// authorized checks the caller's token against the level of the route; false: it
// has answered. It runs before anything else of the request is looked at.
func (x *exchange) authorized() bool {
	v := x.s.cfg.Tokens
	if v == nil || x.rt.level == public || x.s.skips(x.c.Request.URL) {
		return true
	}
	who, err := v.Verify(x.c.Request.Context(), x.c.Request.Header.Get("Authorization"))
	switch {
	case err != nil:
		x.c.Writer.Header()["Www-Authenticate"] = bearerLine
		x.refuse(http.StatusUnauthorized, err.Error())
		return false
	case !who.Roles.Pass(x.rt.level):
		x.refuse(http.StatusForbidden, "Insufficient permissions")
		return false
	}
	x.sub = who.Subject
	return true
}

var bearerLine = []string{"Bearer"}

// skips reports whether a path is left out of the checks.
func (s *Server) skips(u *url.URL) bool {
	path := u.RawPath // as the router sees it
	if path == "" {
		path = u.Path
	}
	for _, p := range s.cfg.SkipPaths {
		if path == p || len(p) > 1 && p[len(p)-1] == '/' && strings.HasPrefix(path, p) {
			return true
		}
	}
	return false
}

// refuse answers with the error body of authorization and tenancy.
func (x *exchange) refuse(status int, text string) {
	x.out = append(x.out[:0], `{"error":`...)
	x.out = append(rawjson.AppendString(x.out, text), '}')
	_ = x.answer(status)
}
