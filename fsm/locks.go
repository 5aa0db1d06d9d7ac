package fsm

import (
	"bytes"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Locks and semaphores are key/value rows: a permit is the row <name>#<slot> of
// LockNamespace, its token is the row's version, and it lasts as long as the row
// lives. So nothing else is stored, a token only rises, a guard is an ordinary
// check, and whoever may write keys may break a lock.

// LockNamespace is the key/value namespace of the permits.
const LockNamespace = "queen-locks"

// LockOpKind is the kind of a lock operation.
type LockOpKind uint8

// Lock operations.
const (
	LockAcquire LockOpKind = iota + 1
	LockRenew
	LockRelease
	LockGet
)

// Write reports whether the operation can change a row.
func (k LockOpKind) Write() bool { return k != LockGet }

// Bounds of lock operations.
const (
	MaxLockLimit   = 1024 // permits of one lock
	MaxLockHolders = 1000 // that one answer lists
)

// LockOp is one lock operation, already valid in shape.
type LockOp struct {
	Kind  LockOpKind
	Name  string
	Owner string // empty: none was named
	TTL   int64  // seconds; acquire and renew
	Token int64  // renew and release
	Slot  int    // renew and release
	Limit int    // acquire: permits that there are, 1..MaxLockLimit

	Result LockResult
}

// LockResult is the outcome of one lock operation.
type LockResult struct {
	Won     bool   // acquired, renewed, released; get: held
	Already bool   // acquire: the owner holds it, nothing was written
	Slot    int    // of the permit
	Token   int64  // of the permit that was won
	Owner   string // of the permit that was won; empty: none
	// Holders are the live permits, by slot, when the operation lost or only reads.
	Holders []LockHolder
}

// LockHolder is one live permit.
type LockHolder struct {
	Slot                    int
	Owner                   string // empty: none was named
	Token                   int64
	Since, Renewed, Expires int64 // microseconds; Expires 0: never
}

// Locks is a call of the locks route. Its operations are independent of each
// other: each is judged and applied by itself, and those of a long call are
// spread over several entries.
type Locks struct {
	Ops []LockOp
	// Disabled: KV is turned off, nothing was done. Operations of a long call may
	// have been before that.
	Disabled bool

	next int // how far it has come
}

// lockSlice is about how many rows a cycle looks at for one call of locks (F24).
const lockSlice = 2048

func (m *Machine) planLocks(c *Call, l *Locks) verdict {
	if l.Disabled = m.s.switches.KVOff; l.Disabled {
		return answered
	}
	for budget := lockSlice; l.next < len(l.Ops); l.next++ {
		if budget <= 0 && c.Key == nil { // a kept outcome is in the entry of all its effects
			return unfinished
		}
		m.planLock(c.Tenant, &l.Ops[l.next], &budget)
	}
	return answered
}

// committed reports whether the call wrote anything: one that only lost is judged
// anew when it comes again.
func (l *Locks) committed() bool {
	return !l.Disabled && slices.ContainsFunc(l.Ops, func(op LockOp) bool { return op.Result.Won && !op.Result.Already && op.Kind.Write() })
}

func (m *Machine) planLock(tenant string, op *LockOp, budget *int) {
	op.Result = LockResult{Slot: op.Slot}
	base := kvKey(tenant, LockNamespace, op.Name+"#")
	switch op.Kind {
	case LockAcquire:
		m.acquire(base, op, budget)
	case LockRenew:
		m.renew(base, op)
	case LockRelease:
		if row, _ := m.s.kv.Get(permitKey(base, op.Slot)); row.live(m.now) && row.version == op.Token {
			m.deleteKV(row)
			op.Result.Won = true
		}
	}
	*budget--
	if op.Kind == LockGet || !op.Result.Won {
		op.Result.Holders = m.holders(base, budget)
		op.Result.Won = op.Kind == LockGet && len(op.Result.Holders) > 0
	}
}

func permitKey(base string, slot int) string { return base + strconv.Itoa(slot) }

// acquire gives an owner the permit that it has, or the first free one.
func (m *Machine) acquire(base string, op *LockOp, budget *int) {
	free := -1
	var old *kvRow // an expired row of the free slot
	for slot := range op.Limit {
		*budget--
		row, _ := m.s.kv.Get(permitKey(base, slot))
		if !row.live(m.now) {
			if free < 0 {
				free, old = slot, row
			}
			if op.Owner == "" {
				break // nobody to be recognised
			}
			continue
		}
		if p := parsePermit(row.value); op.Owner != "" && p.owner == op.Owner {
			op.Result = LockResult{Won: true, Already: true, Slot: slot, Token: row.version, Owner: op.Owner}
			return
		}
	}
	if free < 0 {
		return
	}
	row := m.writeKV(permitKey(base, free), old, appendPermit(nil, op.Owner, m.now), lifetime(m.now, op.TTL))
	op.Result = LockResult{Won: true, Slot: free, Token: row.version, Owner: op.Owner}
}

// renew gives a permit a new token and a new lifetime. An owner that comes with
// an older token of its own is carried through: the answer that had the newer one
// may have been lost.
func (m *Machine) renew(base string, op *LockOp) {
	row, _ := m.s.kv.Get(permitKey(base, op.Slot))
	if !row.live(m.now) || op.Token > row.version {
		return
	}
	p := parsePermit(row.value)
	if row.version != op.Token && (op.Owner == "" || p.owner != op.Owner) {
		return
	}
	if p.since == 0 {
		p.since = row.updated
	}
	if op.Owner != "" {
		p.owner = op.Owner
	}
	row = m.writeKV(row.key, row, appendPermit(nil, p.owner, p.since), lifetime(m.now, op.TTL))
	op.Result = LockResult{Won: true, Slot: op.Slot, Token: row.version, Owner: p.owner}
}

// holders lists the live permits of a lock, by slot. Of a lock among whose keys
// somebody put thousands that are no permits, it may list fewer.
func (m *Machine) holders(base string, budget *int) (list []LockHolder) {
	rows := lockSlice
	m.s.kv.Ascend(base, func(key string, row *kvRow) bool {
		if !strings.HasPrefix(key, base) || rows == 0 {
			return false
		}
		rows--
		slot, ok := parseSlot(key[len(base):])
		if !ok || !row.live(m.now) {
			return true
		}
		p := parsePermit(row.value)
		if p.since == 0 {
			p.since = row.updated
		}
		list = append(list, LockHolder{
			Slot: slot, Owner: p.owner, Token: row.version, Since: p.since, Renewed: row.updated, Expires: row.expires,
		})
		return true
	})
	*budget -= lockSlice - rows
	slices.SortFunc(list, func(a, b LockHolder) int { return a.Slot - b.Slot })
	return list[:min(len(list), MaxLockHolders)]
}

// parseSlot reads the number behind the # of a permit's key, as permitKey writes it.
func parseSlot(text string) (slot int, ok bool) {
	n, err := strconv.Atoi(text)
	return n, err == nil && n >= 0 && n < MaxLockLimit && strconv.Itoa(n) == text
}

// permit is what the value of a permit's row says: {"owner":"...","since":"..."}.
type permit struct {
	owner string // empty: none
	since int64  // microseconds; 0: not known
}

const (
	permitHead   = `{"owner":`
	permitSince  = `,"since":"`
	permitLayout = "2006-01-02T15:04:05.000000Z"
	// maxPermit bounds the values that are read as a permit's: an owner has at
	// most 256 bytes, which are six times as many when all of them are escaped.
	maxPermit = 2048
)

func appendPermit(dst []byte, owner string, since int64) []byte {
	dst = append(dst, permitHead...)
	if owner == "" {
		dst = append(dst, "null"...)
	} else {
		dst = appendQuoted(dst, owner)
	}
	dst = append(dst, permitSince...)
	dst = time.UnixMicro(since).UTC().AppendFormat(dst, permitLayout)
	return append(dst, '"', '}')
}

// appendQuoted writes text as a JSON string. A valid owner has no control
// characters, so the two characters of the grammar are all that is escaped.
func appendQuoted(dst []byte, text string) []byte {
	dst = append(dst, '"')
	for i := range len(text) {
		if text[i] == '"' || text[i] == '\\' {
			dst = append(dst, '\\')
		}
		dst = append(dst, text[i])
	}
	return append(dst, '"')
}

// parsePermit reads a permit's value. One that was put there as a key is read as
// far as it has the form: with its owner first.
func parsePermit(value []byte) (p permit) {
	rest, ok := bytes.CutPrefix(value, []byte(permitHead))
	if !ok || len(value) > maxPermit || len(rest) == 0 {
		return p
	}
	end := 0
	if rest[0] == '"' {
		for end = 1; end < len(rest) && rest[end] != '"'; end++ {
			if rest[end] == '\\' {
				end++
			}
		}
		if end >= len(rest) {
			return p
		}
		text := rest[1:end]
		if bytes.IndexByte(text, '\\') < 0 {
			p.owner = string(text)
		} else if json.Unmarshal(rest[:end+1], &p.owner) != nil {
			p.owner = ""
		}
		end++
	} else if bytes.HasPrefix(rest, []byte("null")) {
		end = len("null")
	}
	if since, ok := bytes.CutPrefix(rest[end:], []byte(permitSince)); ok && len(since) == len(permitLayout)+2 {
		if t, err := time.Parse(permitLayout, string(since[:len(permitLayout)])); err == nil && t.UnixMicro() > 0 {
			p.since = t.UnixMicro()
		}
	}
	return p
}
