package server

import (
	"net/http"
	"net/http/pprof"
)

// profiles are served when profiling is on, at their level.
var profiles = []route{
	{method: "GET", path: "/debug/pprof/", level: admin, handle: profile(pprof.Index)},
	{method: "GET", path: "/debug/pprof/cmdline", level: admin, handle: profile(pprof.Cmdline)},
	{method: "GET", path: "/debug/pprof/profile", level: admin, handle: profile(pprof.Profile)},
	{method: "GET", path: "/debug/pprof/symbol", level: admin, handle: profile(pprof.Symbol)},
	{method: "POST", path: "/debug/pprof/symbol", level: admin, handle: profile(pprof.Symbol)},
	{method: "GET", path: "/debug/pprof/trace", level: admin, handle: profile(pprof.Trace)},
	{method: "GET", path: "/debug/pprof/:profile", level: admin, handle: profile(pprof.Index)},
}

func profile(h http.HandlerFunc) func(*Server, *exchange) {
	return func(_ *Server, x *exchange) {
		x.parked = true // a profile takes the time that was asked for
		h(x.c.Writer, x.c.Request)
	}
}
