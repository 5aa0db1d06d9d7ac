package server

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"queen/fsm"
	"queen/server/rawjson"
)

// Limits of the locks route, which have no setting.
const (
	maxLockOps   = 64
	maxLockSlots = 4096 // named by a call: an acquire counts its limit, a get as many as it lists
	maxLockName  = 256  // bytes; of an owner too
)

// lockProblem is why a call of the locks route is refused.
type lockProblem struct{ reason, detail string }

func badLock(reason, detail string) *lockProblem { return &lockProblem{reason, detail} }

// lockFields are the members of one lock operation, as sent.
type lockFields struct {
	op, name, owner         []byte
	hasOp, hasName          bool
	hasOwner                bool   // present and not null
	ownerText               bool   // it is a string
	ttl, token, slot, limit []byte // raw; nil: absent or null
	tenant                  bool
}

func (f *lockFields) take(s *rawjson.Scanner, key []byte) {
	switch string(key) {
	case "op":
		f.op, f.hasOp = s.Text()
	case "name":
		f.name, f.hasName = s.Text()
	case "owner":
		if f.hasOwner = s.Kind() != rawjson.Null; f.hasOwner {
			f.owner, f.ownerText = s.Text()
		} else {
			s.Skip()
		}
	case "ttlSeconds":
		f.ttl = notNull(s)
	case "token":
		f.token = notNull(s)
	case "slot":
		f.slot = notNull(s)
	case "limit":
		f.limit = notNull(s)
	case "tenant", "tenantId", "tenant_id":
		s.Skip()
		f.tenant = true
	default:
		s.Skip()
	}
}

// parseLockBody reads {"operations": [...]}, or the bare array.
func parseLockBody(w *work) (p *lockProblem) {
	sc := &w.scan
	sc.Reset(w.body)
	isArray := false
	read := func() {
		if isArray = sc.Kind() == rawjson.Array; !isArray {
			sc.Skip()
			return
		}
		p = parseLockArray(w)
	}
	if sc.Kind() == rawjson.Object {
		for ok := sc.EnterObject(); ok; ok = sc.NextMember() {
			if string(sc.Key()) == "operations" {
				read()
			} else {
				sc.Skip()
			}
		}
	} else {
		read()
	}
	switch err := sc.End(); {
	case err != nil:
		return badLock("locks_bad_body", err.Error())
	case !isArray:
		return badLock("locks_bad_body", "the body needs an array named operations")
	case p == nil && len(w.locks.Ops) == 0:
		return badLock("locks_bad_body", "there are no operations")
	}
	return p
}

func parseLockArray(w *work) (first *lockProblem) {
	sc := &w.scan
	w.locks.Ops = w.locks.Ops[:0]
	n := 0
	for ok := sc.EnterArray(); ok; ok = sc.NextElement() {
		n++
		if sc.Kind() != rawjson.Object {
			sc.Skip()
			if first == nil {
				first = badLock("locks_bad_request", "an operation is no object")
			}
			continue
		}
		var f lockFields
		for ok := sc.EnterObject(); ok; ok = sc.NextMember() {
			f.take(sc, sc.Key())
		}
		if first != nil || sc.Err() != nil || n > maxLockOps {
			continue
		}
		var op fsm.LockOp
		if op, first = f.operation(); first == nil {
			w.locks.Ops = append(w.locks.Ops, op)
		}
	}
	if n > maxLockOps {
		return badLock("locks_too_many_ops", "more than 64 operations in one call")
	}
	if first != nil {
		return first
	}
	return checkLocks(w.locks.Ops)
}

// checkLocks holds the bounds that concern a call as a whole.
func checkLocks(ops []fsm.LockOp) *lockProblem {
	slots := 0
	for i := range ops {
		switch op := &ops[i]; op.Kind {
		case fsm.LockAcquire:
			slots += op.Limit
		case fsm.LockGet:
			slots += fsm.MaxLockHolders
		default:
			slots++
		}
		for j := range i {
			if ops[j].Name == ops[i].Name {
				return badLock("locks_duplicate_in_call", "two operations of one call name the same lock")
			}
		}
	}
	if slots > maxLockSlots {
		return badLock("locks_too_many_keys", "more than 4096 slots named by one call: an acquire counts its limit, a get 1000")
	}
	return nil
}

// operation makes the operation that the fields describe.
func (f *lockFields) operation() (op fsm.LockOp, p *lockProblem) {
	switch string(f.op) {
	case "acquire":
		op.Kind = fsm.LockAcquire
	case "renew":
		op.Kind = fsm.LockRenew
	case "release":
		op.Kind = fsm.LockRelease
	case "get":
		op.Kind = fsm.LockGet
	default:
		return op, badLock("locks_unknown_op", "op is missing or none of acquire, renew, release and get")
	}
	switch {
	case f.tenant:
		return op, badLock("locks_tenant_not_an_input", "an operation names a tenant")
	case !f.hasName || !validLockText(f.name) || strings.IndexByte(string(f.name), '#') >= 0:
		return op, badLock("locks_bad_name", "name is missing, not of 1 to 256 bytes, or has a # or a control character")
	case f.hasOwner && (!f.ownerText || !validLockText(f.owner)):
		return op, badLock("locks_bad_owner", "owner is no string of 1 to 256 bytes without control characters")
	}
	op.Name, op.Owner, op.Limit = string(f.name), string(f.owner), 1
	if op.Kind == fsm.LockAcquire && f.limit != nil {
		n, ok := wholeNumber(f.limit)
		if !ok || n < 1 || n > fsm.MaxLockLimit {
			return op, badLock("locks_bad_limit", "limit is no whole number from 1 to 1024")
		}
		op.Limit = int(n)
	}
	if op.Kind == fsm.LockAcquire || op.Kind == fsm.LockRenew {
		if p := f.lifetime(&op); p != nil {
			return op, p
		}
	}
	if op.Kind == fsm.LockRenew || op.Kind == fsm.LockRelease {
		return op, f.permit(&op)
	}
	return op, nil
}

func (f *lockFields) lifetime(op *fsm.LockOp) *lockProblem {
	if f.ttl == nil {
		return badLock("locks_ttl_required", "ttlSeconds is missing: a lock always ends")
	}
	n, ok := wholeNumber(f.ttl)
	if !ok || n <= 0 {
		return badLock("locks_bad_ttl", "ttlSeconds is no whole number above 0")
	}
	op.TTL = min(n, maxSeconds)
	return nil
}

// permit reads which permit a renew or release is about.
func (f *lockFields) permit(op *fsm.LockOp) *lockProblem {
	if f.token == nil {
		return badLock("locks_token_required", "token is missing")
	}
	n, ok := wholeNumber(f.token)
	if !ok || n <= 0 {
		return badLock("locks_bad_token", "token is no whole number above 0")
	}
	op.Token = n
	if f.slot != nil {
		n, ok := wholeNumber(f.slot)
		if !ok || n < 0 || n >= fsm.MaxLockLimit {
			return badLock("locks_bad_slot", "slot is no whole number from 0 to 1023")
		}
		op.Slot = int(n)
	}
	return nil
}

// wholeNumber reads a JSON number; a string with digits is none.
func wholeNumber(raw []byte) (int64, bool) {
	n, ok := rawjson.Int(raw)
	return n, ok && isNumber(raw)
}

// validLockText reports whether a name or owner has a length and characters that
// are allowed.
func validLockText(text []byte) bool {
	if len(text) == 0 || len(text) > maxLockName {
		return false
	}
	for rest := text; len(rest) > 0; {
		r, n := utf8.DecodeRune(rest)
		if unicode.IsControl(r) {
			return false
		}
		rest = rest[n:]
	}
	return true
}
