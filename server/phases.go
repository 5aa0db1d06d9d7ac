package server

import (
	"time"

	"queen/fsm"
	"queen/server/spans"
)

// Phases of a call: edge (until the planner looks at it for the first time),
// prepare (look-ups off the loop, when it needs any), plan, commit (until the
// outcome is known; of a pop, the wait is in it) and render. Times are taken by
// the edge and by the adapter that drives the planner, which reads no clock.

// processStart is what marks are relative to.
var processStart = time.Now()

// mark is the time now.
func mark() int64 { return int64(time.Since(processStart)) }

// phases is what is known of a call whose outcome came. The zero value: nothing.
type phases struct {
	marks fsm.Marks
	done  int64
}

func (p *phases) known() bool { return p.done > 0 && p.marks.Planned > 0 }

// each names the phases in their order, with begin and end.
func (p *phases) each(start, end int64, fn func(name string, from, to int64)) {
	m := &p.marks
	first := m.Plan
	fn("edge", start, first)
	plan := first
	if m.Prepared > 0 {
		fn("prepare", m.Prepare, m.Prepared)
		plan = max(m.Replan, m.Prepared)
	}
	fn("plan", plan, m.Planned)
	fn("commit", m.Planned, p.done)
	fn("render", p.done, end)
}

// phaseArgs are the phases for a log line, in microseconds.
func (x *exchange) phaseArgs(took time.Duration) (args []any) {
	if !x.phases.known() {
		return nil
	}
	start := int64(x.start.Sub(processStart))
	x.phases.each(start, start+int64(took), func(name string, from, to int64) {
		args = append(args, name+"_us", max(to-from, 0)/1000)
	})
	return args
}

// recordSpans sends the spans of a call that has ended.
func (x *exchange) recordSpans(status int, took time.Duration) {
	c := &spans.Call{
		Header: x.c.Request.Header, Method: x.rt.method, Route: x.rt.path, RequestID: x.id, Status: status,
		Start: x.start, End: x.start.Add(took),
	}
	if c.Method == "" {
		c.Method = x.c.Request.Method
	}
	if x.phases.known() {
		start := int64(x.start.Sub(processStart))
		at := func(m int64) time.Time { return x.start.Add(time.Duration(m - start)) }
		x.phases.each(start, start+int64(took), func(name string, from, to int64) {
			c.Phases = append(c.Phases, spans.Phase{Name: name, Start: at(from), End: at(max(from, to))})
		})
	}
	x.s.cfg.Spans.Record(c)
}
