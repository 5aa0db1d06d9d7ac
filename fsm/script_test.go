package fsm

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cespare/xxhash/v2"
	"github.com/cockroachdb/datadriven"

	"queen/internal/entry"
)

// The tables of the contract are scripts in testdata. A case starts with `new`.
// `do` plans its input lines one after the other, `together` in one cycle (and
// those that look-ups need); `at` and `after` move the clock first. They print
// what was answered. One line is one call:
//
//	push a/p:m1 a/p:m2#300 a/q:-      ids, "-" mints one, letter(N) is that of a replay; #bytes of payload
//	pop q [part=] [g=] [batch=] [parts=] [lease=] [mode=all|new] [from=TIME]
//	    [wait=DUR] [seconds=] [cod] [ns=] [task=] [as=NAME]
//	ack [g=] a/p:m1[:status[:lease]]...   [err=TEXT] [delay=DUR]
//	extend LEASE seconds
//	handback NAME | gone NAME             of a pop that was given a name
//	kv OP [; OP]...                       put ns/k=v [ttl=] [expect=] [required] ...
//	timer OP [; OP]...                    set q/p key delay [txn=] [size=]; cancel q key
//	txn PART [; PART]...                  ack ..., push ..., kv OP, timer OP, pos q/p g offset|forget
//	configure q [replace] option=value... | delete q | replay N [q/p] | purge q [g=]
//
// Times are given and printed as distances from the start of the case.
func TestScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			s := &script{t: t}
			datadriven.RunTest(t, file, s.run)
			if s.r != nil {
				s.end()
			}
		})
	}
}

type script struct {
	t     *testing.T
	r     *rig
	named map[string]*Call
	order []*Call // pops that wait, and their names
	names map[*Call]string
}

func (s *script) run(t *testing.T, d *datadriven.TestData) string {
	defer func() {
		if e := recover(); e != nil {
			t.Fatalf("%s: panic: %v", d.Pos, e)
		}
	}()
	switch d.Cmd {
	case "new":
		if s.r != nil {
			s.end()
		}
		s.begin(d)
		return ""
	case "do":
		return s.each(d.Input)
	case "together":
		return s.cycle(d.Input)
	case "at", "after":
		dur, err := time.ParseDuration(d.CmdArgs[0].Key)
		if err != nil {
			t.Fatalf("%s: %v", d.Pos, err)
		}
		base := s.r.now
		if d.Cmd == "at" {
			base = startTime
		}
		s.r.now = base + dur.Microseconds()
		if strings.TrimSpace(d.Input) == "" {
			return s.cycle("")
		}
		return s.each(d.Input)
	case "restart":
		s.r.checkpoint(d.HasArg("full"))
		if d.HasArg("entry") {
			d.ScanArgs(t, "entry", &s.r.cfg.EntryBytes)
		}
		s.r.restart()
		s.order = nil
		return ""
	case "crash": // the next start replays what came after the last checkpoint
		s.r.restart()
		s.order = nil
		return ""
	case "seal":
		s.r.seal()
		return ""
	case "fail":
		s.r.store.fail = nil
		if !d.HasArg("off") {
			s.r.store.fail = os.ErrInvalid
		}
		return ""
	case "state":
		return s.state(d.CmdArgs[0].Key)
	}
	t.Fatalf("%s: unknown directive %q", d.Pos, d.Cmd)
	return ""
}

func (s *script) begin(d *datadriven.TestData) {
	var cfg Config
	for _, a := range d.CmdArgs {
		n := 0
		if len(a.Vals) > 0 {
			n, _ = strconv.Atoi(a.Vals[0])
		}
		switch a.Key {
		case "entry":
			cfg.EntryBytes = n
		case "dedup":
			cfg.DedupBytes = int64(n)
		case "mode-all":
			cfg.DefaultMode = SubscribeAll
		case "sweep":
			cfg.KVSweepLimit = n
		case "fire":
			cfg.TimerFireBatch = n
		case "nobatch":
		default:
			s.t.Fatalf("%s: unknown setting %q", d.Pos, a.Key)
		}
	}
	s.r = newRig(s.t, cfg)
	s.r.applies = 2
	s.r.batches = !d.HasArg("nobatch")
	s.named, s.names, s.order = map[string]*Call{}, map[*Call]string{}, nil
}

// end checks that the case's state can be read back.
func (s *script) end() {
	s.r.checkpoint(true)
	s.r.restart()
}

func (s *script) each(input string) string {
	out := ""
	for _, line := range strings.Split(input, "\n") {
		if line = strings.TrimSpace(line); line != "" {
			out += s.cycle(line)
		}
	}
	return out
}

func (s *script) cycle(input string) string {
	var calls []*Call
	var printers []func() string
	for _, line := range strings.Split(input, "\n") {
		if line = strings.TrimSpace(line); line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		verb, rest, _ := strings.Cut(line, " ")
		body, print := s.parse(verb, strings.TrimSpace(rest))
		if body == nil {
			continue
		}
		c := s.r.call(body)
		if p, ok := body.(*Pop); ok {
			print = s.waitFor(c, p)
		}
		calls = append(calls, c)
		printers = append(printers, print)
	}
	before := s.messages()
	s.r.do(calls...)
	var out strings.Builder
	for _, c := range s.order {
		if p := c.Body.(*Pop); p != nil && s.names[c] != "" && !s.r.waits(c) {
			fmt.Fprintf(&out, "%s: %s\n", s.names[c], s.popText(p))
			s.names[c] = ""
		}
	}
	for _, print := range printers {
		if text := print(); text != "" {
			out.WriteString(text + "\n")
		}
	}
	if len(calls) == 0 {
		out.WriteString(s.appended(before))
	}
	return out.String()
}

func (r *rig) waits(c *Call) bool {
	for _, w := range r.m.deadlines {
		if w.call == c {
			return true
		}
	}
	return false
}

// waitFor prints a pop at once or, when it waits, after the cycle that answers it.
func (s *script) waitFor(c *Call, p *Pop) func() string {
	name := "pop"
	for n, o := range s.named {
		if o == nil {
			name, s.named[n] = n, c
		}
	}
	return func() string {
		if s.r.waits(c) {
			s.order = append(s.order, c)
			s.names[c] = name
			return name + ": waits"
		}
		return name + ": " + s.popText(p)
	}
}

func (s *script) popText(p *Pop) string {
	if len(p.Claims) == 0 {
		return "empty"
	}
	var out []string
	for _, cl := range p.Claims {
		text := ""
		if p.Queue == "" {
			text = cl.Queue + "/"
		}
		text += cl.Partition
		n := 0
		s.r.store.deliver(cl, func(o uint64, m *entry.Message) {
			txn := string(m.AppendTxn(nil))
			if m.Minted {
				txn = "-"
			}
			text += fmt.Sprintf(" %d=%s", o, txn)
			n++
		})
		if n != cl.Count {
			text += fmt.Sprintf(" (says %d)", cl.Count)
		}
		text += fmt.Sprintf(" attempt %d", cl.Attempt)
		if cl.Expires != 0 {
			text += " until " + since(cl.Expires)
		}
		out = append(out, text)
	}
	return strings.Join(out, ", ")
}

func since(t int64) string {
	if t == 0 {
		return "-"
	}
	// Cycles are a microsecond apart: of no interest here.
	return time.Duration((t - startTime) * 1000).Round(time.Millisecond).String()
}

// messages counts what each partition holds; appended tells what came since.
func (s *script) messages() map[uint64]int {
	n := map[uint64]int{}
	for id, p := range s.r.store.parts {
		n[id] = len(p.messages)
	}
	return n
}

func (s *script) appended(before map[uint64]int) string {
	out := ""
	s.r.m.s.queueOrder.Scan(func(_ string, q *queue) bool {
		for _, p := range q.parts {
			for o := before[p.id]; o < int(p.next); o++ {
				m := s.r.store.message(p.id, uint64(o))
				txn := string(m.AppendTxn(nil))
				if m.Minted {
					txn = "-"
				}
				out += fmt.Sprintf("appended %s/%s %d=%s\n", q.name, p.name, o, txn)
			}
		}
		return true
	})
	return out
}

// options splits "a k=v flag" into plain words and settings.
func options(text string) (words []string, opts map[string]string) {
	opts = map[string]string{}
	for _, w := range strings.Fields(text) {
		if k, v, ok := strings.Cut(w, "="); ok && !strings.ContainsAny(k, "/:") {
			opts[k] = v
		} else {
			words = append(words, w)
		}
	}
	return words, opts
}

func (s *script) parse(verb, rest string) (body any, print func() string) {
	words, opts := options(rest)
	switch verb {
	case "push":
		p := newPush(s.items(words)...)
		return p, func() string { return "push: " + pushText(p) }
	case "pop":
		return s.pop(words, opts), nil
	case "ack":
		a := &Ack{Items: s.acks(words, opts)}
		return a, func() string { return "ack: " + ackText(a.Items) }
	case "extend":
		e := &Extend{LeaseID: leaseID(words[0]), Seconds: atoi(words[1])}
		return e, func() string { return fmt.Sprintf("extend: %d until %s", e.Renewed, since(e.Expires)) }
	case "gone":
		s.named[words[0]].Gone.Store(true)
		return nil, nil
	case "handback":
		p := s.named[words[0]].Body.(*Pop)
		return &HandBack{LeaseID: p.LeaseID, Claims: p.Claims}, func() string { return "" }
	case "kv":
		kv := &KV{Ops: s.kvOps(rest)}
		return kv, func() string { return kvCallText(kv) }
	case "timer":
		tm := &Timers{Ops: s.timerOps(rest)}
		return tm, func() string { return "timer: " + timerText(tm.Ops) }
	case "txn":
		t := s.txn(rest)
		return t, func() string { return s.txnText(t) }
	case "configure":
		return s.configure(words, opts)
	case "delete":
		d := &DeleteQueue{Queue: words[0]}
		return d, func() string { return fmt.Sprintf("delete: existed %v", d.Existed) }
	case "replay":
		return s.replay(words)
	case "purge":
		g, one := opts["g"]
		p := &PurgeDeadLetters{Queue: words[0], Group: g, AnyGroup: !one}
		return p, func() string { return fmt.Sprintf("purge: %d", p.Deleted) }
	}
	s.t.Fatalf("unknown call %q", verb)
	return nil, nil
}

func atoi(text string) int64 {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		panic(err)
	}
	return n
}

func micros(text string) int64 {
	d, err := time.ParseDuration(text)
	if err != nil {
		panic(err)
	}
	return d.Microseconds()
}

// items reads queue/partition:txn#bytes.
func (s *script) items(words []string) (items []PushItem) {
	for _, w := range words {
		w, size, _ := strings.Cut(w, "#")
		place, txn, _ := strings.Cut(w, ":")
		q, p, _ := strings.Cut(place, "/")
		if n, ok := strings.CutPrefix(txn, "letter("); ok {
			txn = "dlq:" + string(entry.AppendUUID(nil, s.r.letters[atoi(n[:len(n)-1])]))
		}
		payload := []byte(strconv.Quote(txn))
		if size != "" {
			payload = []byte(strings.Repeat("x", int(atoi(size))))
		}
		if txn == "-" {
			txn = ""
		}
		items = append(items, s.r.item(q, p, txn, payload))
	}
	return items
}

func pushText(p *Push) string {
	var out []string
	for i := range p.Items {
		it := &p.Items[i]
		switch it.Status {
		case Queued:
			out = append(out, fmt.Sprintf("queued %d", it.Offset))
		case Duplicate:
			out = append(out, fmt.Sprintf("duplicate %d", it.Offset))
		case Refused:
			out = append(out, "refused")
		default:
			out = append(out, "?")
		}
	}
	return strings.Join(out, ", ")
}

func (s *script) pop(words []string, opts map[string]string) *Pop {
	p := &Pop{Group: QueueMode, Batch: 200, Partitions: 1, LeaseID: leaseID("lease")}
	if len(words) > 0 && words[0] != "cod" {
		p.Queue = words[0]
	}
	for _, w := range words {
		p.CommitOnDelivery = p.CommitOnDelivery || w == "cod"
	}
	for k, v := range opts {
		switch k {
		case "part":
			p.Partition = v
		case "g":
			p.Group = v
		case "batch":
			p.Batch = int(atoi(v))
		case "parts":
			p.Partitions = int(atoi(v))
		case "lease":
			p.LeaseID = leaseID(v)
		case "mode":
			p.Mode = map[string]SubscriptionMode{"new": SubscribeNew, "all": SubscribeAll}[v]
		case "from":
			p.Mode, p.From = SubscribeFrom, startTime+micros(v)
		case "wait":
			p.WaitMicros = micros(v)
		case "seconds":
			p.LeaseSeconds = atoi(v)
		case "ns":
			p.Namespace, p.MatchNamespace = v, true
		case "task":
			p.Task, p.MatchTask = v, true
		case "as":
			s.named[v] = nil
		default:
			s.t.Fatalf("unknown pop option %q", k)
		}
	}
	return p
}

// acks reads queue/partition:txn[:status[:lease]]; "#id" in the place of
// queue/partition is a partition id.
func (s *script) acks(words []string, opts map[string]string) (items []AckItem) {
	group := QueueMode
	if g, ok := opts["g"]; ok {
		group = g
	}
	for _, w := range words {
		f := strings.Split(w, ":")
		it := AckItem{Txn: []byte(f[1]), TxnHash: xxhash.Sum64String(f[1]), Group: group, Error: opts["err"]}
		if id, ok := strings.CutPrefix(f[0], "#"); ok {
			it.PartitionID = uint64(atoi(id))
		} else {
			q, p, _ := strings.Cut(f[0], "/")
			it.PartitionID = s.r.partitionID(q, p)
		}
		if len(f) > 2 {
			it.Status = ParseAckStatus(f[2])
		}
		if len(f) > 3 {
			it.HasLease, it.LeaseID = true, leaseID(f[3])
		}
		if d, ok := opts["delay"]; ok {
			it.DelayMs = micros(d) / 1000
		}
		items = append(items, it)
	}
	return items
}

func ackText(items []AckItem) string {
	var out []string
	for i := range items {
		it := &items[i]
		text := "ok"
		if !it.Success {
			text = it.Err
		}
		for _, f := range []struct {
			on   bool
			name string
		}{{it.LeaseReleased, "released"}, {it.DLQ, "dlq"}, {it.Dropped, "dropped"}, {it.Noop, "noop"}} {
			if f.on {
				text += " " + f.name
			}
		}
		out = append(out, text)
	}
	return strings.Join(out, ", ")
}
