package server

import (
	"net/http"
	"strconv"

	"queen/fsm"
	"queen/server/rawjson"
)

func (s *Server) serveLocks(x *exchange) {
	w := s.getWork(x)
	if !x.readBody(w) {
		s.putWork(w)
		return
	}
	if p := parseLockBody(w); p != nil {
		s.putWork(w)
		x.failReason(http.StatusBadRequest, "locks_bad_request", p.reason, p.detail)
		return
	}
	if !x.granted() || x.keyed() && !x.takeKey(w, fsm.OutcomeLocks, lockParts(w.locks.Ops), w.appendLocks) {
		s.putWork(w)
		return
	}
	writes, grows := false, false
	for i := range w.locks.Ops {
		kind := w.locks.Ops[i].Kind
		writes = writes || kind.Write()
		grows = grows || kind == fsm.LockAcquire || kind == fsm.LockRenew
	}
	if !x.spendRate(x.tenant, writes) || grows && (x.storageFull() || !x.admitWhole(w)) {
		s.putWork(w)
		return
	}
	size := len(w.body) + 128*len(w.locks.Ops)
	if err := s.run(w, &w.locks, size, x.remaining(s.cfg.Limits.CallTimeout), nil); err != nil {
		s.ended(w, err)
		x.undecided(err)
		return
	}
	switch {
	case s.answerKnown(x, w):
		return
	case w.locks.Disabled:
		s.putWork(w)
		x.kvDisabled()
		return
	case w.call.Key != nil && w.keyed.Kept:
		x.out = append(x.out[:0], w.keyed.Body...)
	default:
		x.out = w.appendLocks(x.out[:0])
	}
	s.metrics.lockOps.Add(int64(len(w.locks.Ops)))
	s.putWork(w)
	_ = x.answer(http.StatusOK)
}

// lockParts is how many bounded parts the answer can have: an operation that
// loses, or only reads, lists the holders.
func lockParts(ops []fsm.LockOp) int { return len(ops) * (1 + fsm.MaxLockHolders) }

func (w *work) appendLocks(dst []byte) []byte {
	dst = append(dst, `{"results":[`...)
	for i := range w.locks.Ops {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = appendLockResult(dst, i, &w.locks.Ops[i])
	}
	return append(dst, ']', '}')
}

// lockVerbs are the names of the operations, and of the field with the verdict.
var lockVerbs = map[fsm.LockOpKind][2]string{
	fsm.LockAcquire: {"acquire", "acquired"}, fsm.LockRenew: {"renew", "renewed"},
	fsm.LockRelease: {"release", "released"}, fsm.LockGet: {"get", "held"},
}

func appendLockResult(dst []byte, index int, op *fsm.LockOp) []byte {
	r, verb := &op.Result, lockVerbs[op.Kind]
	dst = append(dst, `{"index":`...)
	dst = strconv.AppendInt(dst, int64(index), 10)
	dst = append(append(dst, `,"op":"`...), verb[0]...)
	dst = append(dst, `","name":`...)
	dst = rawjson.AppendString(dst, op.Name)
	dst = append(append(dst, `,"`...), verb[1]...)
	dst = append(dst, `":`...)
	dst = rawjson.AppendBool(dst, r.Won)
	switch {
	case op.Kind == fsm.LockGet:
	case op.Kind == fsm.LockAcquire && !r.Won:
		dst = append(dst, `,"reason":"held"`...)
	case !r.Won:
		dst = appendInt(append(dst, `,"reason":"lost",`...), "slot", int64(op.Slot))
	default:
		dst = appendInt(append(dst, ','), "slot", int64(r.Slot))
	}
	if r.Won && (op.Kind == fsm.LockAcquire || op.Kind == fsm.LockRenew) {
		dst = appendInt(append(dst, ','), "token", r.Token)
		if op.Kind == fsm.LockAcquire {
			dst = appendOwner(append(dst, ','), r.Owner)
		}
		if r.Already {
			dst = append(dst, `,"already":true`...)
		}
		dst = appendGuard(append(dst, ','), op.Name, r)
	}
	if op.Kind == fsm.LockGet || !r.Won {
		dst = appendHolders(append(dst, ','), r.Holders)
	}
	return append(dst, '}')
}

func appendOwner(dst []byte, owner string) []byte {
	dst = append(dst, `"owner":`...)
	if owner == "" {
		return append(dst, "null"...)
	}
	return rawjson.AppendString(dst, owner)
}

// appendGuard appends the operation that lets a transaction commit only while the
// permit is held under this token.
func appendGuard(dst []byte, name string, r *fsm.LockResult) []byte {
	dst = append(dst, `"guard":{"op":"check","ns":"`+fsm.LockNamespace+`","key":`...)
	dst = rawjson.AppendString(dst, name+"#"+strconv.Itoa(r.Slot))
	dst = appendInt(append(dst, ','), "expect", r.Token)
	return append(dst, `,"required":true}`...)
}

func appendHolders(dst []byte, holders []fsm.LockHolder) []byte {
	dst = append(dst, `"holders":[`...)
	for i := range holders {
		h := &holders[i]
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = appendInt(append(dst, '{'), "slot", int64(h.Slot))
		dst = appendOwner(append(dst, ','), h.Owner)
		dst = appendInt(append(dst, ','), "token", h.Token)
		dst = append(dst, `,"since":`...)
		dst = rawjson.AppendMicros(dst, h.Since)
		dst = append(dst, `,"renewedAt":`...)
		dst = rawjson.AppendMicros(dst, h.Renewed)
		dst = append(dst, `,"expiresAt":`...)
		dst = append(appendExpiry(dst, h.Expires), '}')
	}
	return append(dst, ']')
}
