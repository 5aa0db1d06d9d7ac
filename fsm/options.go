package fsm

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Options are the options of a queue, as contract names them.
type Options struct {
	Namespace, Task             string
	LeaseTime                   int64 // seconds
	RetryLimit                  int64
	DeadLetterQueue             bool
	DLQAfterMaxRetries          bool
	DedupWindowSeconds          int64
	DelayedProcessing           int64 // seconds
	WindowBuffer                int64 // seconds
	RetentionEnabled            bool
	RetentionSeconds            int64
	CompletedRetentionSeconds   int64
	MaxWaitTimeSeconds          int64
	EncryptionEnabled           bool
	MinPopWaitTime              int64 // milliseconds, stored only
	RetentionSinkHold           string
	RetentionSinkHoldMaxSeconds int64
	Priority                    int64
	TTL                         int64
	MaxSize                     int64
	RetryDelay                  int64 // milliseconds
	RetryBackoff                bool
	MaxDeliveries               int64
}

// OptionKind is the JSON type of an option.
type OptionKind uint8

// Kinds of option.
const (
	OptionString OptionKind = iota + 1
	OptionInt
	OptionBool
)

// OptionDef describes one option. The table's order is that of answers and of
// the stored row: new options go to the end.
type OptionDef struct {
	Name    string
	Kind    OptionKind
	str     func(*Options) *string
	num     func(*Options) *int64
	flag    func(*Options) *bool
	defStr  string
	defNum  int64
	defFlag bool
}

func strOpt(name string, f func(*Options) *string) OptionDef {
	return OptionDef{Name: name, Kind: OptionString, str: f}
}

func numOpt(name string, def int64, f func(*Options) *int64) OptionDef {
	return OptionDef{Name: name, Kind: OptionInt, num: f, defNum: def}
}

func flagOpt(name string, def bool, f func(*Options) *bool) OptionDef {
	return OptionDef{Name: name, Kind: OptionBool, flag: f, defFlag: def}
}

// OptionDefs lists all options. It is never changed.
var OptionDefs = []OptionDef{
	strOpt("namespace", func(o *Options) *string { return &o.Namespace }),
	strOpt("task", func(o *Options) *string { return &o.Task }),
	numOpt("leaseTime", 300, func(o *Options) *int64 { return &o.LeaseTime }),
	numOpt("retryLimit", 3, func(o *Options) *int64 { return &o.RetryLimit }),
	flagOpt("deadLetterQueue", true, func(o *Options) *bool { return &o.DeadLetterQueue }),
	flagOpt("dlqAfterMaxRetries", true, func(o *Options) *bool { return &o.DLQAfterMaxRetries }),
	numOpt("dedupWindowSeconds", 3600, func(o *Options) *int64 { return &o.DedupWindowSeconds }),
	numOpt("delayedProcessing", 0, func(o *Options) *int64 { return &o.DelayedProcessing }),
	numOpt("windowBuffer", 0, func(o *Options) *int64 { return &o.WindowBuffer }),
	flagOpt("retentionEnabled", false, func(o *Options) *bool { return &o.RetentionEnabled }),
	numOpt("retentionSeconds", 0, func(o *Options) *int64 { return &o.RetentionSeconds }),
	numOpt("completedRetentionSeconds", 0, func(o *Options) *int64 { return &o.CompletedRetentionSeconds }),
	numOpt("maxWaitTimeSeconds", 0, func(o *Options) *int64 { return &o.MaxWaitTimeSeconds }),
	flagOpt("encryptionEnabled", false, func(o *Options) *bool { return &o.EncryptionEnabled }),
	numOpt("minPopWaitTime", 0, func(o *Options) *int64 { return &o.MinPopWaitTime }),
	strOpt("retentionSinkHold", func(o *Options) *string { return &o.RetentionSinkHold }),
	numOpt("retentionSinkHoldMaxSeconds", 604800, func(o *Options) *int64 { return &o.RetentionSinkHoldMaxSeconds }),
	numOpt("priority", 0, func(o *Options) *int64 { return &o.Priority }),
	numOpt("ttl", 3600, func(o *Options) *int64 { return &o.TTL }),
	numOpt("maxSize", 0, func(o *Options) *int64 { return &o.MaxSize }),
	numOpt("retryDelay", 1000, func(o *Options) *int64 { return &o.RetryDelay }),
	flagOpt("retryBackoff", false, func(o *Options) *bool { return &o.RetryBackoff }),
	numOpt("maxDeliveries", 0, func(o *Options) *int64 { return &o.MaxDeliveries }),
}

// FindOption looks an option up by its name.
func FindOption(name string) (OptionDef, bool) {
	for _, d := range OptionDefs {
		if d.Name == name {
			return d, true
		}
	}
	return OptionDef{}, false
}

// OptionValue is one option as a caller sent it.
type OptionValue struct {
	Name string
	Null bool // back to the default
	Str  string
	Num  int64
	Flag bool
}

// DefaultOptions are those of a queue that configure creates.
func DefaultOptions() Options {
	var o Options
	for i := range OptionDefs {
		OptionDefs[i].reset(&o)
	}
	return o
}

// PushLeaseTime is the leaseTime of a queue that a push, a pop or a timer creates, in seconds.
const PushLeaseTime = 60

func (d *OptionDef) reset(o *Options) {
	switch d.Kind {
	case OptionString:
		*d.str(o) = d.defStr
	case OptionInt:
		*d.num(o) = d.defNum
	case OptionBool:
		*d.flag(o) = d.defFlag
	}
}

// Set puts v, whose name is known, into o. Negative numbers read as 0.
func (o *Options) Set(v OptionValue) {
	d, ok := FindOption(v.Name)
	if !ok {
		return
	}
	if v.Null {
		d.reset(o)
		return
	}
	switch d.Kind {
	case OptionString:
		*d.str(o) = v.Str
	case OptionInt:
		*d.num(o) = max(v.Num, 0)
	case OptionBool:
		*d.flag(o) = v.Flag
	}
	o.MinPopWaitTime = min(o.MinPopWaitTime, 60000)
}

// Get reads an option by its definition; only the value of its kind is set.
func (o *Options) Get(d OptionDef) (s string, n int64, b bool) {
	switch d.Kind {
	case OptionString:
		s = *d.str(o)
	case OptionInt:
		n = *d.num(o)
	case OptionBool:
		b = *d.flag(o)
	}
	return s, n, b
}

// DeadLetters reports whether an exhausted message is filed rather than dropped.
func (o *Options) DeadLetters() bool { return o.DeadLetterQueue || o.DLQAfterMaxRetries }

var errShortRow = errors.New("row is cut off")

// longestSpan bounds what an option adds to broker time, in microseconds
// (36,000 years), so that no sum leaves the range.
const longestSpan = int64(1) << 60

// span is n units of so many microseconds.
func span(n, unit int64) int64 {
	if n > longestSpan/unit {
		return longestSpan
	}
	return n * unit
}

func (o *Options) window() int64 { return span(o.DedupWindowSeconds, 1_000_000) }
func (o *Options) delay() int64  { return span(o.DelayedProcessing, 1_000_000) }
func (o *Options) quiet() int64  { return span(o.WindowBuffer, 1_000_000) }

func (o *Options) encode(dst []byte) []byte {
	dst = append(dst, byte(len(OptionDefs)))
	for _, d := range OptionDefs {
		s, n, b := o.Get(d)
		switch d.Kind {
		case OptionString:
			dst = binary.AppendUvarint(dst, uint64(len(s)))
			dst = append(dst, s...)
		case OptionInt:
			dst = binary.AppendVarint(dst, n)
		case OptionBool:
			if b {
				n = 1
			}
			dst = append(dst, byte(n))
		}
	}
	return dst
}

func (o *Options) decode(r *rowReader) error {
	*o = DefaultOptions()
	n := int(r.byte())
	if n > len(OptionDefs) {
		return fmt.Errorf("row has %d options, this build knows %d", n, len(OptionDefs))
	}
	for _, d := range OptionDefs[:n] {
		switch d.Kind {
		case OptionString:
			*d.str(o) = string(r.bytes())
		case OptionInt:
			*d.num(o) = r.varint()
		case OptionBool:
			*d.flag(o) = r.byte() != 0
		}
	}
	return r.err
}

// form is how the queue keeps payloads.
func (o *Options) form() PayloadForm {
	if o.EncryptionEnabled {
		return FormSealed
	}
	return FormClear
}
