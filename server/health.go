package server

import (
	"net/http"

	"queen/server/rawjson"
)

// Format is the data format of this build, as health tells it.
const dataFormat = 1

func (s *Server) serveHealth(x *exchange) {
	st := s.engine.Status()
	reason := st.Reason
	switch sick := s.sick.Load(); {
	case s.stopping.Load():
		reason = "the node is stopping"
	case sick != nil:
		reason = *sick
	case s.disk.spent.Load():
		reason = "the data volume is full and its reserve is used up"
	}
	code, word := http.StatusOK, "healthy"
	if reason != "" {
		code, word = http.StatusServiceUnavailable, "settling"
	}
	dst := append(x.out[:0], `{"status":"`...)
	dst = append(append(dst, word...), '"')
	if reason != "" {
		dst = rawjson.AppendString(append(dst, `,"reason":`...), reason)
	}
	dst = append(dst, `,"engine":"raft","version":`...)
	dst = rawjson.AppendString(dst, s.cfg.Version)
	dst = append(dst, `,"raft":`...)
	dst = appendRaft(dst, &st)
	dst = append(dst, `,"storageReady":true,`...)
	dst = appendInt(dst, "clusterVersion", dataFormat)
	dst = appendInt(append(dst, ','), "kinds", dataFormat)
	x.out = append(dst, '}', '}')
	_ = x.answer(code)
}

func (s *Server) serveStatus(x *exchange) {
	x.out = append(x.out[:0], `{"status":"ok","engine":"raft","version":`...)
	x.out = append(rawjson.AppendString(x.out, s.cfg.Version), '}')
	_ = x.answer(http.StatusOK)
}
