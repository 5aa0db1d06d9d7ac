package main

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"queen/fsm"
	"queen/index"
	"queen/internal/entry"
)

// printer writes what a command found: text for people, or one JSON object a
// line. Write errors are met by the flush at the end.
type printer struct {
	w    io.Writer
	json bool
}

// emit writes v as a line of JSON, or the text.
func (p *printer) emit(v any, text string) error {
	if !p.json {
		_, err := fmt.Fprintln(p.w, text)
		return err
	}
	e := json.NewEncoder(p.w)
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

// textf writes a line that JSON output does not have.
func (p *printer) textf(format string, args ...any) {
	if !p.json {
		fmt.Fprintf(p.w, format+"\n", args...)
	}
}

// stamp is a time in microseconds as text.
func stamp(micros int64) string {
	if micros == 0 {
		return "-"
	}
	return time.UnixMicro(micros).UTC().Format("2006-01-02T15:04:05.000000Z")
}

// numbers is "5" or "5..9".
func numbers[T int | int64 | uint64](lo, hi T) string {
	if lo == hi {
		return fmt.Sprint(lo)
	}
	return fmt.Sprintf("%d..%d", lo, hi)
}

// logNames is a list of logs as text.
func logNames(ids []uint64) string {
	var b strings.Builder
	for i, id := range ids {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, "q%d", id)
	}
	return b.String()
}

// object is a JSON object that keeps the order of its members.
type object []member

type member struct {
	name  string
	value any
}

func (o object) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	b.WriteByte('{')
	for i, m := range o {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.Quote(m.name))
		b.WriteByte(':')
		e := json.NewEncoder(&b)
		e.SetEscapeHTML(false)
		if err := e.Encode(m.value); err != nil {
			return nil, err
		}
		b.Truncate(b.Len() - 1) // Encode ends with a line feed
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

// timeFields are the fields of rows that are times in microseconds.
var timeFields = map[string]bool{
	"time": true, "created": true, "lastAppend": true, "from": true, "delayUntil": true, "leaseExpires": true,
	"failed": true, "expires": true, "updated": true, "deliverAt": true, "due": true,
}

// rowObject is a decoded row for JSON.
func rowObject(r *fsm.RowInfo) object {
	o := object{{"kind", r.Kind.String()}}
	for _, f := range r.Fields {
		v := f.Value
		switch x := v.(type) {
		case []byte:
			if f.Name == "message" {
				v = storedMessage(x)
			} else {
				v = data(x)
			}
		case []index.Range:
			v = pairs(x)
		}
		o = append(o, member{f.Name, v})
	}
	return o
}

// rowText is a decoded row for people. Fields that are zero are left out.
func rowText(r *fsm.RowInfo) string {
	var b strings.Builder
	b.WriteString(r.Kind.String())
	for _, f := range r.Fields {
		var text string
		switch x := f.Value.(type) {
		case string:
			if x == "" {
				continue
			}
			text = strconv.Quote(x)
			if strings.HasSuffix(f.Name, "Id") || f.Name == "id" || f.Name == "set" {
				text = x
			}
		case bool:
			if !x {
				continue
			}
			text = "true"
		case []byte:
			if len(x) == 0 {
				continue
			}
			text = dataText(x)
			if f.Name == "message" {
				text = fmt.Sprintf("%d bytes", len(x))
			}
		case []index.Range:
			text = rangesText(x)
		case int64:
			if x == 0 && f.Name != "committed" {
				continue
			}
			text = fmt.Sprint(x)
			if timeFields[f.Name] {
				text = stamp(x)
			}
		case uint64:
			if x == 0 && !strings.HasSuffix(f.Name, "Id") && f.Name != "next" && f.Name != "logStart" && f.Name != "leaseFrom" && f.Name != "leaseEnd" && f.Name != "offset" {
				continue
			}
			text = fmt.Sprint(x)
		}
		fmt.Fprintf(&b, " %s=%s", f.Name, text)
	}
	return b.String()
}

func rangesText(ranges []index.Range) string {
	var b strings.Builder
	for i, r := range ranges {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(numbers(r.Lo, r.Hi))
	}
	return b.String()
}

func pairs(ranges []index.Range) [][2]uint64 {
	out := make([][2]uint64, 0, len(ranges))
	for _, r := range ranges {
		out = append(out, [2]uint64{r.Lo, r.Hi})
	}
	return out
}

// data is bytes for JSON: the JSON that they are, or their text, or base64.
func data(b []byte) any {
	switch {
	case json.Valid(b):
		return json.RawMessage(bytes.Clone(b))
	case utf8.Valid(b):
		return string(b)
	}
	return map[string]string{"base64": base64.StdEncoding.EncodeToString(b)}
}

// dataText is bytes for people.
func dataText(b []byte) string {
	if utf8.Valid(b) {
		if json.Valid(b) && !bytes.ContainsAny(b, "\n\r") {
			return string(b)
		}
		return strconv.Quote(string(b))
	}
	return "base64:" + base64.StdEncoding.EncodeToString(b)
}

// storedMessage is a message of a row for JSON; null when the row names a value.
func storedMessage(b []byte) any {
	if len(b) == 0 {
		return nil
	}
	m, _, err := entry.NextMessage(b)
	if err != nil {
		return object{{"error", err.Error()}, {"bytes", data(b)}}
	}
	return messageObject(&m, true)
}
