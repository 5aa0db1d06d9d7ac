package server

import (
	"net/http"
	"time"

	"queen/raftlog"
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
	case reason == "":
		reason = st.Scrub.Damage
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
	st := s.engine.Status()
	x.out = append(appendScrub(append(rawjson.AppendString(x.out, s.cfg.Version), `,"scrub":`...), &st.Scrub), '}')
	_ = x.answer(http.StatusOK)
}

// appendScrub appends what the scrub has done and found.
func appendScrub(dst []byte, sc *raftlog.Scrubbed) []byte {
	dst = rawjson.AppendBool(append(dst, `{"running":`...), sc.Running)
	dst = appendInt(append(dst, ','), "passes", sc.Passes)
	dst = appendInt(append(dst, ','), "findings", sc.Findings)
	dst = append(dst, `,"damage":`...)
	if sc.Damage == "" {
		dst = append(dst, "null"...)
	} else {
		dst = rawjson.AppendString(dst, sc.Damage)
	}
	dst = append(dst, `,"lastPass":`...)
	if sc.Last.Ended == 0 {
		return append(dst, "null}"...)
	}
	for i, at := range []struct {
		name   string
		micros int64
	}{{"startedAt", sc.Last.Begun}, {"endedAt", sc.Last.Ended}} {
		dst = append(append(dst, "{,"[i]), '"')
		dst = append(append(dst, at.name...), `":"`...)
		dst = append(time.UnixMicro(at.micros).UTC().AppendFormat(dst, time.RFC3339), '"')
	}
	dst = appendInt(append(dst, ','), "files", sc.Last.Files)
	dst = appendInt(append(dst, ','), "bytes", sc.Last.Bytes)
	dst = appendInt(append(dst, ','), "rows", sc.Last.Rows)
	dst = appendInt(append(dst, ','), "findings", sc.Last.Findings)
	return append(dst, '}', '}')
}
