package server

import (
	"net/http"
	"strconv"

	"queen/fsm"
	"queen/server/rawjson"
)

const defaultExtend = 60 // seconds

func (s *Server) serveExtend(x *exchange) {
	lease, ok := x.param("leaseId")
	if !ok {
		x.fail(http.StatusBadRequest, "bad_request", badPathName)
		return
	}
	w := s.getWork(x)
	if !x.readBody(w) {
		s.putWork(w)
		return
	}
	ext := &fsm.Extend{Seconds: extendSeconds(w)}
	// Text that is no lease id matches no lease; it is asked for all the same,
	// so that nothing tells the two apart.
	ext.LeaseID, _ = parseID(lease)
	if err := s.run(w, ext, 64, x.remaining(s.cfg.Limits.CallTimeout), nil); err != nil {
		s.ended(w, err)
		x.undecided(err)
		return
	}
	s.putWork(w)
	x.out = appendExtend(x.out[:0], lease, ext)
	_ = x.answer(http.StatusOK)
}

// extendSeconds reads the body, which is never refused for its shape.
func extendSeconds(w *work) int64 {
	sc := &w.scan
	sc.Reset(w.body)
	if sc.Kind() != rawjson.Object {
		return defaultExtend
	}
	seconds := int64(defaultExtend)
	for ok := sc.EnterObject(); ok; ok = sc.NextMember() {
		if string(sc.Key()) != "seconds" || sc.Kind() != rawjson.Number {
			sc.Skip()
			continue
		}
		raw := sc.Raw()
		if f, ok := rawjson.Float(raw); ok {
			seconds = int64(min(max(f, 1), maxLeaseSecond))
		}
	}
	if sc.End() != nil {
		return defaultExtend
	}
	return seconds
}

func appendExtend(dst []byte, lease string, ext *fsm.Extend) []byte {
	dst = append(dst, `{"leaseId":`...)
	dst = rawjson.AppendString(dst, lease)
	dst = append(dst, `,"success":`...)
	dst = rawjson.AppendBool(dst, ext.Renewed > 0)
	dst = append(dst, `,"renewed":`...)
	dst = strconv.AppendInt(dst, int64(ext.Renewed), 10)
	for _, name := range [...]string{`,"newExpiresAt":`, `,"expiresAt":`, `,"lease_expires_at":`} {
		dst = append(dst, name...)
		if ext.Renewed > 0 {
			dst = rawjson.AppendMillis(dst, ext.Expires)
		} else {
			dst = append(dst, "null"...)
		}
	}
	return append(dst, '}')
}
