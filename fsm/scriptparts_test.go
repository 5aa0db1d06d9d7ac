package fsm

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"queen/internal/entry"
)

// More of the script language: key/value, timers, transactions, queues, state.

// kvOps reads "put ns/key=value ttl=5 expect=3 required; get ns/key; ...".
func (s *script) kvOps(text string) (ops []KVOp) {
	for _, part := range strings.Split(text, ";") {
		ops = append(ops, s.kvOp(strings.Fields(part)))
	}
	return ops
}

func (s *script) kvOp(f []string) KVOp {
	kinds := map[string]KVOpKind{
		"put": KVPut, "putIfAbsent": KVPutIfAbsent, "delete": KVDelete, "incr": KVIncr, "check": KVCheck,
		"get": KVGet, "getMany": KVGetMany, "getPrefix": KVGetPrefix,
	}
	op := KVOp{Kind: kinds[f[0]], Limit: 100}
	place, value, _ := strings.Cut(f[1], "=")
	op.NS, op.Key, _ = strings.Cut(place, "/")
	op.Value = []byte(value)
	if op.Kind == KVGetMany {
		op.Keys = strings.Split(op.Key, ",")
	}
	op.Prefix = op.Key
	for _, w := range f[2:] {
		k, v, _ := strings.Cut(w, "=")
		switch k {
		case "ttl":
			op.TTL = atoi(v)
		case "expect":
			op.HasExpect, op.Expect = true, atoi(v)
		case "required":
			op.Required = true
		case "by":
			op.Delta = number(v)
		case "min":
			op.HasMin, op.Min = true, number(v)
		case "max":
			op.HasMax, op.Max = true, number(v)
		case "limit":
			op.Limit = int(atoi(v))
		case "after":
			op.After = v
		case "keysOnly":
			op.KeysOnly = true
		default:
			s.t.Fatalf("unknown word %q of a kv operation", w)
		}
	}
	return op
}

func number(text string) float64 {
	v, err := strconv.ParseFloat(text, 64)
	if err != nil {
		panic(err)
	}
	return v
}

func kvCallText(kv *KV) string {
	if kv.Failed >= 0 {
		r := &kv.Ops[kv.Failed].Result
		return fmt.Sprintf("kv: failed %d %s version %d value %s", kv.Failed, r.Reason, r.Version, r.Value)
	}
	return "kv: " + kvText(kv.Ops)
}

func kvText(ops []KVOp) string {
	var out []string
	for i := range ops {
		op := &ops[i]
		r := &op.Result
		text := ""
		switch op.Kind {
		case KVGet:
			text = "absent"
			if r.Found {
				text = fmt.Sprintf("%s version %d expires %s updated %s", r.Value, r.Version, since(r.Expires), since(r.Updated))
			}
		case KVGetMany, KVGetPrefix:
			for _, row := range r.Rows {
				text += fmt.Sprintf("%s=%s@%d ", row.Key, row.Value, row.Version)
			}
			text += fmt.Sprintf("missing %v", r.Missing)
			if r.Truncated {
				text += " truncated after " + r.NextAfter
			}
		default:
			text = fmt.Sprintf("applied version %d", r.Version)
			if !r.Applied {
				text = fmt.Sprintf("%s version %d", r.Reason, r.Version)
			}
			if r.Value != nil {
				text += " value " + string(r.Value)
			}
		}
		out = append(out, text)
	}
	return strings.Join(out, "; ")
}

// timerOps reads "set q/p key delay [txn=] [size=]; cancel q key [txn=]".
func (s *script) timerOps(text string) (ops []TimerOp) {
	for _, part := range strings.Split(text, ";") {
		words, opts := options(part)
		ops = append(ops, s.timerOp(words, opts))
	}
	return ops
}

func (s *script) timerOp(words []string, opts map[string]string) TimerOp {
	q, p, _ := strings.Cut(words[1], "/")
	op := TimerOp{Cancel: words[0] == "cancel", Queue: q, Partition: p, Key: words[2]}
	txn, has := opts["txn"]
	if has {
		op.Txn = []byte(txn)
	}
	if op.Cancel {
		return op
	}
	op.DelayMs = micros(words[3]) / 1000
	payload := []byte(`"t"`)
	if size, ok := opts["size"]; ok {
		payload = []byte(strings.Repeat("x", int(atoi(size))))
	}
	it := s.r.item(q, p, txn, payload)
	op.MessageID, op.Message = it.ID, it.Packed
	return op
}

func timerText(ops []TimerOp) string {
	var out []string
	for i := range ops {
		op := &ops[i]
		text := op.Status
		if op.OK == (op.Status == "absent") {
			text += " (ok wrong)"
		}
		if op.Cancel {
			text += " txn " + shortTxn(op.OldTxn)
		} else {
			text += " at " + since(op.DeliverAt)
		}
		out = append(out, text)
	}
	return strings.Join(out, ", ")
}

// shortTxn prints a minted transactionId as "-".
func shortTxn(txn []byte) string {
	if len(txn) == 36 {
		return "-"
	}
	return string(txn)
}

func (s *script) txn(text string) *Txn {
	t := &Txn{}
	for _, part := range strings.Split(text, ";") {
		words, opts := options(part)
		switch words[0] {
		case "ack":
			t.Acks = append(t.Acks, s.acks(words[1:], opts)...)
		case "push":
			t.Push.Items = append(t.Push.Items, s.items(words[1:])...)
		case "kv":
			t.KV = append(t.KV, s.kvOp(strings.Fields(part)[1:]))
		case "timer":
			t.Timers = append(t.Timers, s.timerOp(words[1:], opts))
		case "pos":
			q, p, _ := strings.Cut(words[1], "/")
			pos := Position{Queue: q, Partition: p, Group: words[2], Metadata: opts["meta"]}
			if opts["mode"] == "all" {
				pos.Mode = SubscribeAll
			}
			if pos.Forget = words[3] == "forget"; !pos.Forget {
				pos.Offset = uint64(atoi(words[3]))
			}
			t.Positions = append(t.Positions, pos)
		default:
			s.t.Fatalf("unknown part of a transaction %q", words[0])
		}
	}
	t.Push.GroupItems()
	return t
}

func (s *script) txnText(t *Txn) string {
	if t.Reason != "" {
		text := "txn: " + t.Reason
		if t.Reason == ReasonKVPrecondition {
			r := &t.KV[t.KVFailed].Result
			text += fmt.Sprintf(" %d %s version %d value %s", t.KVFailed, r.Reason, r.Version, r.Value)
		} else {
			text += " (" + t.Error + ")"
		}
		return text
	}
	out := []string{"txn: committed"}
	if len(t.Acks) > 0 {
		out = append(out, "ack "+ackText(t.Acks))
	}
	if len(t.Push.Items) > 0 {
		out = append(out, "push "+pushText(&t.Push))
	}
	if len(t.KV) > 0 {
		out = append(out, "kv "+kvText(t.KV))
	}
	if len(t.Timers) > 0 {
		out = append(out, "timer "+timerText(t.Timers))
	}
	return strings.Join(out, "; ")
}

func (s *script) configure(words []string, opts map[string]string) (any, func() string) {
	c := &Configure{Queue: words[0], Replace: slices.Contains(words, "replace")}
	for _, def := range OptionDefs {
		v, ok := opts[def.Name]
		if !ok {
			continue
		}
		o := OptionValue{Name: def.Name, Null: v == "null", Str: v, Flag: v == "true"}
		if def.Kind == OptionInt && !o.Null {
			o.Num = atoi(v)
		}
		c.Set = append(c.Set, o)
	}
	return c, func() string {
		out := fmt.Sprintf("configure: queue %d", c.QueueID)
		def := DefaultOptions()
		for _, d := range OptionDefs {
			vs, vn, vb := c.Options.Get(d)
			ds, dn, db := def.Get(d)
			if vs != ds || vn != dn || vb != db {
				switch d.Kind {
				case OptionString:
					out += fmt.Sprintf(" %s=%s", d.Name, vs)
				case OptionInt:
					out += fmt.Sprintf(" %s=%d", d.Name, vn)
				default:
					out += fmt.Sprintf(" %s=%v", d.Name, vb)
				}
			}
		}
		return out
	}
}

func (s *script) replay(words []string) (any, func() string) {
	r := &ReplayDeadLetter{Item: PushItem{ID: s.r.id()}}
	if n := int(atoi(words[0])); n < len(s.r.letters) {
		r.ID = s.r.letters[n]
	}
	if len(words) > 1 {
		r.Queue, r.Partition, _ = strings.Cut(words[1], "/")
	}
	return r, func() string {
		out := "replay: " + r.Outcome
		if r.Outcome == "moved" || r.Outcome == "duplicate" {
			out += fmt.Sprintf(" to %s/%s %d, was %s of %s", r.ToQueue, r.ToPartition, r.Item.Offset, r.OriginalTxn, r.Group)
		}
		return out
	}
}

// state prints a queue: partitions with their cursors, groups, dead letters.
func (s *script) state(name string) string {
	q := s.r.m.s.findQueue(tenantA, name)
	if q == nil {
		return "no such queue"
	}
	var out strings.Builder
	for _, g := range q.groups {
		fmt.Fprintf(&out, "group %s mode %d\n", g.name, g.mode)
	}
	for _, p := range q.parts {
		fmt.Fprintf(&out, "partition %s next %d\n", p.name, p.next)
		for _, c := range p.cursors {
			fmt.Fprintf(&out, "  %s%s\n", c.g.name, cursorText(c))
		}
	}
	q.letters.Scan(func(_ string, l *deadLetter) bool {
		content := l.message
		if l.value != 0 {
			content = s.r.store.values[l.value].Data
		}
		m, _, err := entry.NextMessage(content)
		text := fmt.Sprintf("%s (%d bytes)", m.AppendTxn(nil), len(m.Payload))
		if err != nil {
			text = err.Error()
		}
		fmt.Fprintf(&out, "letter %s/%d of %s: %s retries %d error %q\n", l.partition, l.offset, l.group, text, l.retries, l.err)
		return true
	})
	return out.String()
}

func cursorText(c *cursor) string {
	text := fmt.Sprintf(" at %d", c.committed)
	if !c.row {
		text += " without a row"
	}
	if c.sets != nil {
		for i, set := range []string{"settled", "other"} {
			text += " " + set
			ranges := [](func(func(lo, hi uint64) bool)){c.sets.settled.Ranges, c.sets.other.Ranges}[i]
			ranges(func(lo, hi uint64) bool {
				text += fmt.Sprintf(" %d-%d", lo, hi)
				return true
			})
		}
	}
	if c.lease != nil {
		text += fmt.Sprintf(" lease %s %d-%d until %s", strings.TrimRight(string(c.lease.id[:]), "\x00"), c.lease.from, c.lease.end, since(c.lease.expires))
	}
	if c.retries > 0 {
		text += fmt.Sprintf(" retries %d", c.retries)
	}
	return text
}
