package main

import (
	"errors"
	"fmt"
	"math"
	"strings"

	"github.com/klauspost/compress/zstd"

	"queen/fsm"
	"queen/internal/entry"
	"queen/segment"
)

// How a record is shown.

func kindName(k entry.Kind) string {
	switch k {
	case entry.KindAppend:
		return "append"
	case entry.KindEntry:
		return "entry"
	case entry.KindStub:
		return "stub"
	case entry.KindValue:
		return "value"
	case entry.KindPad:
		return "pad"
	case entry.KindIDs:
		return "ids"
	}
	return fmt.Sprintf("kind-%d", k)
}

func isRecordKind(name string) bool {
	for k := entry.KindAppend; k <= entry.KindIDs; k++ {
		if kindName(k) == name {
			return true
		}
	}
	return false
}

// raft's entry types.
func entryType(t uint8) string {
	switch t {
	case 0:
		return "normal"
	case 1:
		return "conf-change"
	case 2:
		return "conf-change-v2"
	}
	return fmt.Sprintf("type-%d", t)
}

func headMembers(h *entry.Head) object {
	return object{
		{"term", h.Term}, {"type", entryType(h.Type)}, {"hash", fmt.Sprintf("%016x", h.Hash)},
		{"logs", h.Logs}, {"commit", h.Commit}, {"durable", h.Durable},
	}
}

func headText(h *entry.Head) string {
	return fmt.Sprintf("term %d %s hash %016x, %d copies in %s, commit %d durable %d",
		h.Term, entryType(h.Type), h.Hash, len(h.Logs), logNames(h.Logs), h.Commit, h.Durable)
}

// showRecord writes one record of a segment file.
func (t *tool) showRecord(pos, end int64, r *entry.Record) error {
	o := object{{"pos", pos}, {"end", end}, {"kind", kindName(r.Kind)}, {"index", r.Index}}
	var b strings.Builder
	fmt.Fprintf(&b, "pos %d %s", pos, kindName(r.Kind))
	switch r.Kind {
	case entry.KindPad:
		o = append(o, member{"commit", r.Commit})
		fmt.Fprintf(&b, " durable %d commit %d", r.Index, r.Commit)
	case entry.KindAppend, entry.KindIDs:
		a := &r.Append
		messages, text := t.messages(a)
		o = append(o, member{"ordinal", r.Ordinal}, member{"queueId", a.Queue}, member{"partitionId", a.Partition},
			member{"first", a.First}, member{"count", a.Count}, member{"time", a.Time}, member{"messages", messages})
		fmt.Fprintf(&b, " of entry %d: part %d, queue %d partition %d offsets %s, %s, %d bytes%s",
			r.Index, r.Ordinal, a.Queue, a.Partition, numbers(a.First, a.First+uint64(a.Count)-1), stamp(a.Time), end-pos, text)
	case entry.KindValue:
		v := &r.Value
		o = append(o, member{"ordinal", r.Ordinal}, member{"valueId", v.ID}, member{"queueId", v.Queue}, member{"size", len(v.Data)})
		fmt.Fprintf(&b, " of entry %d: part %d, value %d of queue %d, %d bytes", r.Index, r.Ordinal, v.ID, v.Queue, end-pos)
		if t.opt.Payload {
			o = append(o, member{"message", storedMessage(v.Data)})
			if m, _, err := entry.NextMessage(v.Data); err == nil {
				b.WriteString(t.messageText(&m, "value"))
			} else {
				b.WriteString("\n    " + dataText(v.Data))
			}
		}
	case entry.KindEntry, entry.KindStub:
		o = append(o, headMembers(&r.Head)...)
		fmt.Fprintf(&b, " %d: %s", r.Index, headText(&r.Head))
		if r.Kind == entry.KindEntry {
			appends, values := r.Parts()
			o = append(o, member{"appends", appends}, member{"values", values})
			fmt.Fprintf(&b, ", %d appends %d values", appends, values)
			if at, effects, ok := r.Split(); ok {
				list, text := effectsOf(effects)
				o = append(o, member{"time", at}, member{"effects", list})
				fmt.Fprintf(&b, ", %s%s", stamp(at), text)
			}
		}
	}
	return t.out.emit(o, b.String())
}

// effectsOf decodes the effects of an entry; what does not decode is shown as
// the error that it is.
func effectsOf(b []byte) (list []object, text string) {
	var lines strings.Builder
	list = []object{}
	err := fsm.ScanEffects(b, func(e fsm.Effect) error {
		o := object{{"effect", e.Kind.String()}}
		fmt.Fprintf(&lines, "\n    %s ", e.Kind)
		switch e.Kind {
		case fsm.EffectPut, fsm.EffectDelete:
			r, err := fsm.DecodeRow(e.Key, e.Value)
			o = append(o, member{"row", rowObject(&r)})
			lines.WriteString(rowText(&r))
			if err != nil {
				o = append(o, member{"error", err.Error()})
				fmt.Fprintf(&lines, " (%v)", err)
			}
		case fsm.EffectDeleteRange:
			o = append(o, member{"lo", fmt.Sprintf("%x", e.Lo)}, member{"hi", fmt.Sprintf("%x", e.Hi)})
			fmt.Fprintf(&lines, "%x to %x", e.Lo, e.Hi)
		default:
			o = append(o, member{"queueId", e.Queue}, member{"partitionId", e.Partition}, member{"groupId", e.Group})
			fmt.Fprintf(&lines, "queueId=%d partitionId=%d groupId=%d", e.Queue, e.Partition, e.Group)
			if e.Kind == fsm.EffectSettle {
				o = append(o, member{"set", e.Set}, member{"ranges", pairs(e.Ranges)})
				fmt.Fprintf(&lines, " set=%s ranges=%s", e.Set, rangesText(e.Ranges))
			}
		}
		list = append(list, o)
		return nil
	})
	if err != nil {
		list = append(list, object{{"error", err.Error()}})
		fmt.Fprintf(&lines, "\n    %v", err)
	}
	return list, lines.String()
}

// messages shows the messages of an append.
func (t *tool) messages(a *entry.Append) (list []object, text string) {
	var lines strings.Builder
	list = []object{}
	err := eachMessage(a, func(offset uint64, m *entry.Message) error {
		list = append(list, append(object{{"offset", offset}}, messageObject(m, t.opt.Payload)...))
		lines.WriteString(t.messageText(m, fmt.Sprintf("offset %d", offset)))
		return nil
	})
	if err != nil {
		list = append(list, object{{"error", err.Error()}})
		fmt.Fprintf(&lines, "\n    %v", err)
	}
	return list, lines.String()
}

func eachMessage(a *entry.Append, fn func(offset uint64, m *entry.Message) error) error {
	rest := a.Messages
	for i := range uint64(a.Count) {
		m, r, err := entry.NextMessage(rest)
		if err != nil {
			return fmt.Errorf("message %d of %d: %w", i, a.Count, err)
		}
		rest = r
		if err := fn(a.First+i, &m); err != nil {
			return err
		}
	}
	if len(rest) != 0 {
		return fmt.Errorf("%d bytes after the last message", len(rest))
	}
	return nil
}

func messageObject(m *entry.Message, withPayload bool) object {
	o := object{{"id", string(entry.AppendUUID(nil, m.ID))}, {"transactionId", string(m.AppendTxn(nil))}}
	if m.HasTrace {
		o = append(o, member{"traceId", string(entry.AppendUUID(nil, m.TraceID))})
	}
	if len(m.ProducerSub) > 0 {
		o = append(o, member{"producerSub", string(m.ProducerSub)})
	}
	o = append(o, member{"zstd", m.Zstd}, member{"size", len(m.Payload)})
	if withPayload {
		plain, err := payload(m)
		if err != nil {
			return append(o, member{"payloadError", err.Error()})
		}
		o = append(o, member{"payload", data(plain)})
	}
	return o
}

func (t *tool) messageText(m *entry.Message, what string) string {
	text := fmt.Sprintf("\n    %s id %s", what, entry.AppendUUID(nil, m.ID))
	if !m.Minted {
		text += fmt.Sprintf(" transactionId %q", m.Txn)
	}
	text += fmt.Sprintf(" payload %d bytes", len(m.Payload))
	if m.Zstd {
		text += " zstd"
	}
	if t.opt.Payload {
		plain, err := payload(m)
		if err != nil {
			return text + "\n      " + err.Error()
		}
		text += "\n      " + dataText(plain)
	}
	return text
}

// maxUnpacked bounds what a payload may grow to: no request was larger.
const maxUnpacked = 256 << 20

var unpacker, _ = zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(maxUnpacked))

// payload is a message's payload as it was sent.
func payload(m *entry.Message) ([]byte, error) {
	if !m.Zstd {
		return m.Payload, nil
	}
	out, err := unpacker.DecodeAll(m.Payload, nil)
	if err != nil {
		return nil, fmt.Errorf("payload is no zstd frame: %w", err)
	}
	return out, nil
}

// gapText describes bytes that hold no record.
func gapText(g *segment.Gap) string {
	text := fmt.Sprintf("pos %d..%d: no record: %s: expected %s, found %s", g.Pos, g.End, g.What, g.Expected, g.Found)
	if g.Unsearched > 0 {
		text += fmt.Sprintf(", %d bytes not searched", g.Unsearched)
	}
	return text
}

func gapObject(g *segment.Gap) object {
	return object{{"pos", g.Pos}, {"end", g.End}, {"kind", "gap"}, {"what", g.What}, {"expected", g.Expected}, {"found", g.Found}, {"unsearched", g.Unsearched}}
}

// errEnough ends a scan that has shown what was asked for.
var errEnough = errors.New("enough")

// limiter counts what is shown.
type limiter struct{ left int }

func newLimiter(limit int) *limiter {
	if limit <= 0 {
		limit = math.MaxInt
	}
	return &limiter{limit}
}

func (l *limiter) take() error {
	if l.left == 0 {
		return errEnough
	}
	l.left--
	return nil
}
