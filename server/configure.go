package server

import (
	"net/http"
	"strconv"

	"queen/fsm"
	"queen/server/rawjson"
)

// configureBody is a configure request, read.
type configureBody struct {
	queue    string
	hasQueue bool
	replace  bool
	set      []fsm.OptionValue
	ignored  []string
	invalid  string // option that a refusal names beside the prose
	bad      string
	code     string
	hasKey   bool // the node has an encryption key
}

func (b *configureBody) refuse(code, prose string) {
	if b.bad == "" {
		b.bad, b.code = prose, code
	}
}

// topLevel are members that may be options: all but queue, mode and options
// count only when the body has no options object.
type rawMember struct {
	name string
	raw  []byte
}

func parseConfigure(w *work, hasKey bool) (b configureBody) {
	b.hasKey = hasKey
	sc := &w.scan
	sc.Reset(w.body)
	var (
		top        []rawMember
		options    []byte
		hasOptions bool
	)
	isObject := sc.Kind() == rawjson.Object
	if !isObject {
		sc.Skip()
	} else {
		for ok := sc.EnterObject(); ok; ok = sc.NextMember() {
			name := string(sc.Key())
			switch name {
			case "queue":
				text, isString := sc.Text()
				b.queue, b.hasQueue = string(text), isString
			case "mode":
				b.takeMode(sc)
			case "options":
				hasOptions = sc.Kind() != rawjson.Null
				options = sc.Raw()
			default:
				top = append(top, rawMember{name, sc.Raw()})
			}
		}
	}
	if err := sc.End(); err != nil {
		return configureBody{bad: err.Error(), code: "bad_body"}
	}
	switch {
	case !isObject:
		return configureBody{bad: "the body is no object", code: "bad_body"}
	case !b.hasQueue:
		return configureBody{bad: "queue is missing or not a string", code: "bad_request"}
	case hasOptions && options[0] != '{':
		return configureBody{bad: "options is not an object", code: "bad_body"}
	}
	if hasOptions {
		top = labels(top)
		top = append(top, members(options)...)
	}
	for _, m := range top {
		b.take(m)
	}
	return b
}

func (b *configureBody) takeMode(sc *rawjson.Scanner) {
	b.replace = false
	if sc.Kind() == rawjson.Null {
		sc.Skip()
		return
	}
	text, _ := sc.Text()
	switch string(text) {
	case "merge":
	case "replace":
		b.replace = true
	default:
		b.refuse("bad_request", `mode is neither "merge" nor "replace"`)
	}
}

// labels keeps what is folded into an options object: a namespace or task that
// is a string with something in it.
func labels(top []rawMember) (kept []rawMember) {
	for _, m := range top {
		if (m.name == "namespace" || m.name == "task") && m.raw[0] == '"' && len(m.raw) > 2 {
			kept = append(kept, m)
		}
	}
	return kept
}

// members lists the members of a checked object.
func members(raw []byte) (list []rawMember) {
	var sc rawjson.Scanner
	sc.Reset(raw)
	for ok := sc.EnterObject(); ok; ok = sc.NextMember() {
		name := string(sc.Key())
		list = append(list, rawMember{name, sc.Raw()})
	}
	return list
}

// take adds one option; a later one of the same name wins.
func (b *configureBody) take(m rawMember) {
	def, known := fsm.FindOption(m.name)
	if !known {
		if m.name != "replace" {
			b.ignored = append(b.ignored, m.name)
		}
		return
	}
	v := fsm.OptionValue{Name: m.name}
	var sc rawjson.Scanner
	sc.Reset(m.raw)
	kind := sc.Kind()
	ok := true
	switch {
	case kind == rawjson.Null:
		v.Null = true
	case def.Kind == fsm.OptionString:
		var text []byte
		text, ok = sc.Text()
		v.Str = string(text)
	case def.Kind == fsm.OptionBool:
		v.Flag, ok = sc.Bool()
	default:
		v.Num, ok = rawjson.Int(m.raw)
		ok = ok && kind == rawjson.Number
	}
	if !ok {
		b.refuse("bad_request", m.name+" has the wrong type: it must be "+kindName(def.Kind)+" or null")
		return
	}
	b.checkOption(&v)
	b.set = append(b.set, v)
}

func kindName(k fsm.OptionKind) string {
	switch k {
	case fsm.OptionString:
		return "a string"
	case fsm.OptionBool:
		return "true or false"
	default:
		return "a whole number"
	}
}

const (
	minSinkHold = 60
	maxSinkHold = 31536000
	maxSinkName = 64
)

func (b *configureBody) checkOption(v *fsm.OptionValue) {
	if v.Null || b.bad != "" {
		return
	}
	switch v.Name {
	case "retentionSinkHold":
		if len(v.Str) > maxSinkName || !sinkName(v.Str) {
			b.bad, b.invalid = "retentionSinkHold must match [A-Za-z0-9._-]{0,64}", v.Name
		}
	case "retentionSinkHoldMaxSeconds":
		if v.Num < minSinkHold || v.Num > maxSinkHold {
			b.bad, b.invalid = "retentionSinkHoldMaxSeconds must be between 60 and 31536000", v.Name
		}
	case "encryptionEnabled":
		if v.Flag && !b.hasKey {
			b.refuse("bad_request", "encryptionEnabled needs QUEEN_ENCRYPTION_KEY on the node, and none is set")
		}
	}
}

func sinkName(s string) bool {
	for i := range len(s) {
		c := s[i]
		if !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '.' || c == '_' || c == '-') {
			return false
		}
	}
	return true
}

func (s *Server) serveConfigure(x *exchange) {
	w := s.getWork(x)
	if !x.readBody(w) {
		s.putWork(w)
		return
	}
	b := parseConfigure(w, s.packer.key != nil)
	switch {
	case b.invalid != "":
		s.putWork(w)
		x.out = rawjson.AppendString(append(x.out[:0], `{"error":`...), b.bad)
		x.out = rawjson.AppendString(append(x.out, `,"invalid":`...), b.invalid)
		x.out = append(x.out, '}')
		_ = x.answer(http.StatusBadRequest)
		return
	case b.bad != "":
		s.putWork(w)
		x.fail(http.StatusBadRequest, b.code, b.bad)
		return
	case len(b.queue) > nameBytes:
		s.putWork(w)
		x.fail(http.StatusRequestEntityTooLarge, "name_too_long", tooLongNames)
		return
	case x.storageFull() || !x.admitWhole(w):
		s.putWork(w)
		return
	}
	call := &fsm.Configure{Queue: b.queue, Replace: b.replace, Set: b.set}
	if err := s.run(w, call, 512, x.remaining(s.cfg.Limits.CallTimeout), nil); err != nil {
		s.ended(w, err)
		x.undecided(err)
		return
	}
	s.putWork(w)
	x.out = appendConfigured(x.out[:0], call, b.ignored)
	_ = x.answer(http.StatusOK)
}

func appendConfigured(dst []byte, c *fsm.Configure, ignored []string) []byte {
	dst = append(dst, `{"configured":true,"queueId":"`...)
	dst = strconv.AppendUint(dst, c.QueueID, 10)
	dst = append(dst, `","partitionId":null,"queue":`...)
	dst = rawjson.AppendString(dst, c.Queue)
	dst = append(dst, `,"namespace":`...)
	dst = rawjson.AppendString(dst, c.Options.Namespace)
	dst = append(dst, `,"task":`...)
	dst = rawjson.AppendString(dst, c.Options.Task)
	dst = append(dst, `,"storage":"segments","options":`...)
	dst = appendOptions(dst, &c.Options, false)
	if len(ignored) > 0 {
		dst = append(dst, `,"ignored":[`...)
		for i, name := range ignored {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = rawjson.AppendString(dst, name)
		}
		dst = append(dst, ']')
	}
	return append(dst, '}')
}

// appendOptions appends the options as an object; withLabels adds namespace
// and task.
func appendOptions(dst []byte, o *fsm.Options, withLabels bool) []byte {
	dst = append(dst, '{')
	first := true
	for _, d := range fsm.OptionDefs {
		if !withLabels && (d.Name == "namespace" || d.Name == "task") {
			continue
		}
		if !first {
			dst = append(dst, ',')
		}
		first = false
		dst = append(append(append(dst, '"'), d.Name...), `":`...)
		str, num, flag := o.Get(d)
		switch d.Kind {
		case fsm.OptionString:
			dst = rawjson.AppendString(dst, str)
		case fsm.OptionInt:
			dst = strconv.AppendInt(dst, num, 10)
		default:
			dst = rawjson.AppendBool(dst, flag)
		}
	}
	return append(dst, '}')
}
