package fsm

import (
	"bytes"
	"encoding/hex"
	"fmt"

	"queen/index"
	"queen/internal/entry"
)

// Rows and effects for people: what tools show of a checkpoint and of entries.
// The decoding is that of the state itself.

// RowKind is the kind of a row. The numbers are those on disk.
type RowKind uint8

// Kinds of rows.
const (
	RowMeta      RowKind = rowMeta
	RowQueue     RowKind = rowQueue
	RowPartition RowKind = rowPartition
	RowGroup     RowKind = rowGroup
	RowCursor    RowKind = rowCursor
	RowSettled   RowKind = rowSettled
	RowLetter    RowKind = rowLetter
	RowKV        RowKind = rowKV
	RowTimer     RowKind = rowTimer
	RowRedrive   RowKind = rowRedrive
	RowOutcome   RowKind = rowOutcome
	RowSwitches  RowKind = rowSwitches
	RowStats     RowKind = rowStats
	RowGroupMark RowKind = rowGroupMark
)

var rowKindNames = map[RowKind]string{
	RowMeta: "meta", RowQueue: "queue", RowPartition: "partition", RowGroup: "group", RowCursor: "cursor",
	RowSettled: "settled", RowLetter: "letter", RowKV: "kv", RowTimer: "timer", RowRedrive: "redrive",
	RowOutcome: "outcome", RowStats: "stats", RowSwitches: "switches",
	RowGroupMark: "group-mark",
}

func (k RowKind) String() string {
	if name, ok := rowKindNames[k]; ok {
		return name
	}
	return fmt.Sprintf("kind-%d", uint8(k))
}

// ParseRowKind is the inverse of RowKind.String for the kinds above.
func ParseRowKind(name string) (RowKind, bool) {
	for k, n := range rowKindNames {
		if n == name {
			return k, true
		}
	}
	return 0, false
}

// RowField is one named part of a row: a string, a number, a bool, []byte, or
// []index.Range.
type RowField struct {
	Name  string
	Value any
}

// RowInfo is a decoded row. Fields are in the order of the format; those of
// the key come first.
type RowInfo struct {
	Kind      RowKind
	Queue     uint64 // 0: the row belongs to none
	Partition uint64 // 0: the row belongs to none
	Group     uint64 // 0: the row belongs to none
	Fields    []RowField
}

// Field gives a field's value, or nil.
func (r *RowInfo) Field(name string) any {
	for _, f := range r.Fields {
		if f.Name == name {
			return f.Value
		}
	}
	return nil
}

func (r *RowInfo) add(name string, v any) { r.Fields = append(r.Fields, RowField{name, v}) }

// DecodeRow decodes a row; with a nil value, only its key. An error says that
// this build did not write it; what was decoded by then is in the result.
func DecodeRow(key, value []byte) (RowInfo, error) {
	var r RowInfo
	if len(key) == 0 {
		return r, errShortRow
	}
	r.Kind = RowKind(key[0])
	k := rowReader{b: key[1:]}
	switch r.Kind {
	case RowMeta, RowSwitches:
	case RowQueue:
		r.queueID(&k)
	case RowPartition:
		r.queueID(&k)
		r.partitionID(&k)
	case RowGroup, RowGroupMark:
		r.queueID(&k)
		r.groupID(&k)
	case RowCursor:
		r.queueID(&k)
		r.partitionID(&k)
		r.groupID(&k)
	case RowSettled:
		r.queueID(&k)
		r.partitionID(&k)
		r.groupID(&k)
		r.add("set", settledSetName(k.byte()))
		r.add("chunk", k.be64())
	case RowLetter:
		r.queueID(&k)
		r.add("id", textOfID(k.id()))
	case RowKV:
		return r, r.decodeKV(key[1:], value)
	case RowTimer:
		return r, r.decodeTimer(string(key[1:]), value)
	case RowRedrive:
		return r, r.decodeRedrive(string(key[1:]), value)
	case RowOutcome:
		r.add("id", k.be64())
	case RowStats:
		return r, r.decodeStats(key, value)
	default:
		return r, fmt.Errorf("row of unknown kind %d: it was written by a newer build", key[0])
	}
	if err := k.end(); err != nil || value == nil {
		return r, err
	}
	return r, r.decodeValue(value)
}

func (r *RowInfo) queueID(k *rowReader) { r.Queue = k.be64(); r.add("queueId", r.Queue) }
func (r *RowInfo) partitionID(k *rowReader) {
	r.Partition = k.be64()
	r.add("partitionId", r.Partition)
}
func (r *RowInfo) groupID(k *rowReader) { r.Group = k.be64(); r.add("groupId", r.Group) }

func textOfID(id [16]byte) string { return string(entry.AppendUUID(nil, id)) }

func settledSetName(set byte) string {
	switch set {
	case 0:
		return "settled"
	case 1:
		return "other"
	}
	return fmt.Sprintf("set-%d", set)
}

// decodeValue adds the fields of a value, decoded as the state decodes it.
func (r *RowInfo) decodeValue(value []byte) error {
	switch r.Kind {
	case RowMeta:
		s := newState()
		err := s.decodeMeta(value)
		c := &s.meta
		r.add("time", s.time)
		for _, f := range []RowField{{"nextQueue", c.queue}, {"nextPartition", c.partition}, {"nextGroup", c.group}, {"nextValue", c.value}, {"nextLetter", c.letter}, {"nextKVVersion", c.kvVersion}} {
			r.add(f.Name, f.Value)
		}
		return err
	case RowQueue:
		var q queue
		err := q.decode(value)
		r.add("tenant", q.tenant)
		r.add("name", q.name)
		r.add("created", q.created)
		r.add("deleted", q.deleted)
		for _, d := range OptionDefs {
			switch s, n, b := q.opts.Get(d); d.Kind {
			case OptionString:
				r.add(d.Name, s)
			case OptionInt:
				r.add(d.Name, n)
			case OptionBool:
				r.add(d.Name, b)
			}
		}
		return err
	case RowPartition:
		var p partition
		err := p.decode(value)
		r.add("name", p.name)
		r.add("created", p.created)
		r.add("lastAppend", p.lastAppend)
		r.add("next", p.next)
		r.add("logStart", p.start)
		return err
	case RowGroup:
		var g group
		err := g.decode(value)
		r.add("name", g.name)
		r.add("mode", uint64(g.mode))
		r.add("from", g.from)
		r.add("created", g.created)
		r.add("startPartition", g.startPartition)
		if g.conflates {
			r.add("conflates", true)
		}
		return err
	case RowGroupMark:
		var k groupMark
		err := k.decode(value)
		r.add("deleted", k.deleted)
		r.add("paused", k.paused)
		if rule := k.rule; rule != nil {
			for _, f := range []RowField{{"startMode", uint64(rule.mode)}, {"startFrom", rule.from}, {"beforePartition", rule.partition},
				{"moved", rule.moved}, {"placed", rule.placed}} {
				r.add(f.Name, f.Value)
			}
		}
		return err
	case RowCursor:
		return r.decodeCursor(value)
	case RowSwitches:
		var s switches
		err := s.decode(value)
		r.add("kvOff", s.KVOff)
		r.add("timersScheduleOff", s.ScheduleOff)
		r.add("timersFireOff", s.FireOff)
		return err
	case RowSettled:
		ranges, err := index.DecodeRanges(value)
		r.add("ranges", ranges)
		return err
	case RowOutcome:
		return r.decodeOutcome(value)
	case RowLetter:
		var l deadLetter
		err := l.decode(value)
		r.Partition = l.partitionID
		for _, f := range []RowField{{"partitionId", l.partitionID}, {"partition", l.partition}, {"offset", l.offset}, {"group", l.group}, {"error", l.err},
			{"retries", l.retries}, {"failed", l.failed}, {"value", l.value}, {"message", l.message}} {
			r.add(f.Name, f.Value)
		}
		return err
	}
	return nil
}

func (r *RowInfo) decodeCursor(value []byte) error {
	var c cursor
	err := c.decode(value)
	r.add("committed", c.committed)
	r.add("firstTry", c.firstTry)
	r.add("attempt", int64(c.attempt))
	r.add("retries", int64(c.retries))
	r.add("delayUntil", c.delayUntil)
	if l := c.lease; l != nil {
		r.add("leaseId", textOfID(l.id))
		r.add("leaseFrom", l.from)
		r.add("leaseEnd", l.end)
		r.add("leaseExpires", l.expires)
		r.add("leaseWorker", l.worker)
	}
	if l := c.released; l != nil {
		r.add("releasedId", textOfID(l.id))
		r.add("releasedCompleted", l.completed)
	}
	if c.metadata != nil {
		r.add("metadata", *c.metadata)
	}
	return err
}

func (r *RowInfo) decodeOutcome(value []byte) error {
	var o outcome
	if err := o.decode(value); err != nil {
		return err
	}
	r.add("tenant", o.name[:tenantLength])
	r.add("route", OutcomeRoute(o.name[tenantLength]).String())
	r.add("key", o.name[tenantLength+1:])
	r.add("request", hex.EncodeToString(o.hash[:]))
	r.add("at", o.at)
	r.add("status", uint64(o.status))
	r.add("asksNext", o.asked)
	r.add("answer", o.answer)
	if n := o.next; n != nil {
		r.add("nextQueue", n.Queue)
		r.add("nextGroup", n.Group)
		r.add("nextLeaseId", textOfID(n.LeaseID))
		r.add("nextClaims", uint64(len(n.Claims)))
	}
	return nil
}

const tenantLength = 36

func (r *RowInfo) decodeKV(key, value []byte) error {
	if len(key) < tenantLength {
		return errShortRow
	}
	ns, name, found := bytes.Cut(key[tenantLength:], []byte{0})
	if !found {
		return errShortRow
	}
	r.add("tenant", string(key[:tenantLength]))
	r.add("namespace", string(ns))
	r.add("key", string(name))
	if value == nil {
		return nil
	}
	var k kvRow
	err := k.decode(value)
	r.add("version", k.version)
	r.add("expires", k.expires)
	r.add("updated", k.updated)
	r.add("value", k.value)
	return err
}

func (r *RowInfo) decodeTimer(key string, value []byte) error {
	var t timer
	if value == nil {
		r.add("rowKey", hex.EncodeToString([]byte(key)))
		return nil
	}
	err := t.decode(key, value)
	for _, f := range []RowField{{"tenant", t.tenant}, {"queue", t.queue}, {"timerKey", t.name}, {"partition", t.partition}, {"deliverAt", t.deliverAt}, {"due", t.due},
		{"transactionId", string(t.txn)}, {"messageId", textOfID(t.messageID)}, {"attempts", t.attempts}, {"lastError", t.lastError},
		{"created", t.created}, {"updated", t.updated}, {"value", t.value}, {"size", int64(t.size)}, {"message", t.message}} {
		r.add(f.Name, f.Value)
	}
	return err
}

func (r *RowInfo) decodeStats(key, value []byte) error {
	k, err := parseStatKey(key)
	if err != nil {
		return err
	}
	if r.Queue = k.queue; k.queue != 0 {
		r.add("queueId", k.queue)
	} else {
		r.add("tenant", k.tenant)
	}
	r.add("minutes", statTiers[k.tier].width)
	r.add("start", int64(k.start)*microsPerMinute)
	if value == nil {
		return nil
	}
	var t Tally
	err = t.decode(value)
	for i := range TallyFields {
		r.add(TallyFields[i].Name, TallyFields[i].Get(&t))
	}
	return err
}

func (r *RowInfo) decodeRedrive(key string, value []byte) error {
	if len(key) != tenantLength+16 {
		return errShortRow
	}
	r.add("tenant", key[:tenantLength])
	r.add("id", textOfID([16]byte([]byte(key[tenantLength:]))))
	if value == nil {
		return nil
	}
	var j redriveJob
	err := j.decode(value)
	r.Queue = j.queueID
	state := "unknown"
	if int(j.state) < len(redriveStates) {
		state = redriveStates[j.state]
	}
	for _, f := range []RowField{{"queueId", j.queueID}, {"queue", j.queue}, {"state", state}, {"anyGroup", j.filter.anyGroup}, {"group", j.filter.group},
		{"errorContains", j.filter.contains}, {"from", j.filter.from}, {"to", j.filter.to}, {"toQueue", j.toQueue}, {"toPartition", j.toPartition},
		{"limit", j.limit}, {"rate", j.rate}, {"created", j.created}, {"ended", j.ended}, {"total", j.total}, {"moved", j.moved},
		{"duplicates", j.duplicates}, {"failed", j.failed}, {"next", j.next}, {"after", textOfID(j.after)}, {"last", textOfID(j.last)}} {
		r.add(f.Name, f.Value)
	}
	return err
}

// EffectKind is the kind of an effect. The numbers are those on disk.
type EffectKind uint8

// Kinds of effects.
const (
	EffectPut         EffectKind = effectPut
	EffectDelete      EffectKind = effectDelete
	EffectDeleteRange EffectKind = effectDeleteRange
	EffectSettle      EffectKind = effectSettle
	EffectReset       EffectKind = effectReset
)

func (k EffectKind) String() string {
	switch k {
	case EffectPut:
		return "put"
	case EffectDelete:
		return "delete"
	case EffectDeleteRange:
		return "delete-range"
	case EffectSettle:
		return "settle"
	case EffectReset:
		return "reset"
	}
	return fmt.Sprintf("effect-%d", uint8(k))
}

// Effect is one effect of an entry. Slices alias the entry.
type Effect struct {
	Kind       EffectKind
	Key, Value []byte // put, delete (no value)
	Lo, Hi     []byte // delete range
	// Settle and reset are about the sets of one cursor.
	Queue, Partition, Group uint64
	Set                     string // settle: "settled" or "other"
	Ranges                  []index.Range
}

// ScanEffects calls fn for the effects of an entry in their order, until it
// returns an error, which is returned. Bytes that are no effect are an error.
func ScanEffects(b []byte, fn func(Effect) error) error {
	r := rowReader{b: b}
	for len(r.b) > 0 && r.err == nil {
		e := Effect{Kind: EffectKind(r.byte())}
		switch e.Kind {
		case EffectPut:
			e.Key, e.Value = r.bytes(), r.bytes()
		case EffectDelete:
			e.Key = r.bytes()
		case EffectDeleteRange:
			e.Lo, e.Hi = r.bytes(), r.bytes()
		case EffectSettle:
			e.Queue, e.Partition, e.Group, e.Set = r.uvarint(), r.uvarint(), r.uvarint(), settledSetName(r.byte())
			enc := r.bytes()
			if r.err == nil {
				var err error
				if e.Ranges, err = index.DecodeRanges(enc); err != nil {
					return err
				}
			}
		case EffectReset:
			e.Queue, e.Partition, e.Group = r.uvarint(), r.uvarint(), r.uvarint()
		default:
			return fmt.Errorf("effect of unknown kind %d: this entry was written by a newer build", uint8(e.Kind))
		}
		if r.err != nil {
			return r.err
		}
		if err := fn(e); err != nil {
			return err
		}
	}
	return r.err
}

// RowKey is the key of a row of a kind whose key has only ids in it: of a
// queue, partition, group or cursor, or the common start of the keys of a
// cursor's sets.
func RowKey(kind RowKind, ids ...uint64) []byte { return rowKey(nil, byte(kind), ids...) }
