package conformance

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"queen/internal/invariants"
)

// run is one case being run against a broker of its own.
type run struct {
	t        *testing.T
	broker   *Broker
	fixtures map[string]*testCase
	settings []string
	vars     map[string]string
	pending  map[string]*pendingCall

	releaseSync func() // while syncs are held

	// crashes makes the power go before every request that is not beside
	// another one: no answer may depend on what only memory held.
	crashes bool
}

// pendingCall is a request of "begin" that waits for its "end".
type pendingCall struct {
	cancel context.CancelFunc
	answer chan answered
}

type answered struct {
	answer *Answer
	err    error
}

// runCase runs the case with the given name for ${q}.
func runCase(t *testing.T, c *testCase, fixtures map[string]*testCase, q string, crashes bool) {
	settings, err := settingsOf(c.settings)
	if err != nil {
		t.Fatalf("%s:%d: %v", c.file, c.line, err)
	}
	b, err := Start(settings)
	if err != nil {
		t.Fatalf("%s:%d: start the broker: %v", c.file, c.line, err)
	}
	b.Observe = exchanges.add
	r := &run{
		t: t, broker: b, fixtures: fixtures, settings: c.settings, crashes: crashes,
		vars: map[string]string{"q": q}, pending: map[string]*pendingCall{},
	}
	defer func() {
		if r.releaseSync != nil {
			r.releaseSync()
		}
		for _, p := range r.pending {
			p.cancel()
			<-p.answer
		}
		if err := b.Close(); err != nil {
			t.Errorf("%s:%d: close the broker: %v", c.file, c.line, err)
		}
	}()
	r.steps(c)
}

// powerCut crashes the broker before a request, where the run asks for it.
func (r *run) powerCut(st *step) error {
	calls := map[string]bool{"request": true, "push": true, "pop": true, "ack": true, "kv": true, "timer": true, "dlq": true}
	if !r.crashes || !calls[st.verb] || len(r.pending) > 0 || r.releaseSync != nil {
		return nil
	}
	if invariants.Enabled && st.line%3 != 0 {
		return nil // a race build is slow: one request in three
	}
	settings, err := settingsOf(r.settings)
	if err != nil {
		return err
	}
	return r.broker.Crash(settings)
}

// settingsOf reads NAME=VALUE pairs.
func settingsOf(pairs []string) (map[string]string, error) {
	settings := map[string]string{}
	for _, s := range pairs {
		name, v, ok := strings.Cut(s, "=")
		if !ok {
			return nil, fmt.Errorf("%q is not NAME=VALUE", s)
		}
		settings[name] = v
	}
	return settings, nil
}

func (r *run) restart(args string, how func(map[string]string) error) error {
	pairs := strings.Fields(args)
	if args == "as before" {
		pairs = r.settings
	}
	settings, err := settingsOf(pairs)
	if err != nil {
		return err
	}
	r.settings = pairs
	return how(settings)
}

func (r *run) steps(c *testCase) {
	for i := range c.steps {
		if err := r.step(&c.steps[i]); err != nil {
			r.t.Fatalf("%s:%d: %v", c.file, c.steps[i].line, err)
		}
	}
}

func (r *run) step(st *step) error {
	if err := r.powerCut(st); err != nil {
		return err
	}
	if st.verb == "request" {
		return r.request(st)
	}
	args := st.args
	if st.verb != "set" { // set expands its value only
		var err error
		if args, err = r.expand(args); err != nil {
			return err
		}
	}
	switch st.verb {
	case "use":
		f := r.fixtures[args]
		if f == nil {
			return fmt.Errorf("no fixture %q", args)
		}
		r.steps(f)
		return nil
	case "set":
		name, text, _ := strings.Cut(args, " = ")
		v, err := r.expand(text)
		r.vars[name] = v
		return err
	case "advance":
		d, err := time.ParseDuration(args)
		if err != nil {
			return err
		}
		return r.broker.Advance(d)
	case "parked":
		n, err := strconv.Atoi(args)
		if err != nil {
			return err
		}
		return r.broker.AwaitParked(n)
	case "sync":
		return r.sync(args)
	case "unanswered":
		return r.unanswered(args)
	case "shutdown":
		return r.broker.Shutdown()
	case "restart":
		return r.restart(args, r.broker.Restart)
	case "crash":
		return r.restart(args, r.broker.Crash)
	case "begin":
		return r.begin(args, st.request)
	case "end":
		return r.end(args, st.want)
	case "abort":
		return r.abort(args)
	}
	return r.shorthand(st.verb, args)
}

// request sends a request and compares its answer, and the state around it.
func (r *run) request(st *step) error {
	violation, err := r.requestOnce(st)
	if err != nil || violation == nil {
		return err
	}
	// What the broker owes by itself (the rest of a queue's deletion) may have
	// been done meanwhile. What was refused can be sent again.
	if err := r.broker.Settle(); err != nil {
		return err
	}
	violation, err = r.requestOnce(st)
	return errors.Join(violation, err)
}

func (r *run) requestOnce(st *step) (violation, err error) {
	before, err := r.broker.State()
	if err != nil {
		return nil, err
	}
	a, err := r.send(context.Background(), st.request)
	if err != nil {
		return nil, err
	}
	if err := r.compare(st.want, a); err != nil {
		return nil, err
	}
	after, err := r.broker.State()
	if err != nil {
		return nil, err
	}
	if st.want.state == "changed" && before == after {
		return nil, fmt.Errorf("the state did not change (commit index %d)", after.Commit)
	}
	return compareState(st.want, a, before, after), nil
}

// compareState applies G3: what was refused changed nothing.
func compareState(w *want, a *Answer, before, after State) error {
	mustStay := w.state == "unchanged" || w.state == "" && refused(a)
	if mustStay && before != after {
		return fmt.Errorf("an answer that must change nothing did: before %+v, after %+v, answer %d %s",
			before, after, a.Status, short(string(a.Body)))
	}
	return nil
}

var lostGate = regexp.MustCompile(`^\s*\{"(transactionId":"[^"]*","success":false|ok":false,"reason":"kv_precondition)`)

func refused(a *Answer) bool {
	return a.Status >= 400 && a.Status < 500 || a.Status == http.StatusOK && lostGate.Match(a.Body)
}

func (r *run) send(ctx context.Context, q *request) (*Answer, error) {
	path, err := r.expand(q.path)
	if err != nil {
		return nil, err
	}
	body, err := r.expand(q.body)
	if err != nil {
		return nil, err
	}
	header := http.Header{"Content-Type": {"application/json"}}
	for _, line := range q.headers {
		if line, err = r.expand(line); err != nil {
			return nil, err
		}
		name, v, _ := strings.Cut(line, ": ")
		header.Set(name, v)
	}
	return r.broker.Do(ctx, q.method, path, header, []byte(body))
}

func (r *run) begin(name string, q *request) error {
	ctx, cancel := context.WithCancel(context.Background())
	p := &pendingCall{cancel: cancel, answer: make(chan answered, 1)}
	r.pending[name] = p
	go func() {
		a, err := r.send(ctx, q)
		p.answer <- answered{a, err}
	}()
	return nil
}

func (r *run) end(name string, w *want) error {
	p := r.pending[name]
	if p == nil {
		return fmt.Errorf("no request %q was begun", name)
	}
	select {
	case a := <-p.answer:
		p.answer <- a
		if a.err != nil {
			return a.err
		}
		return r.compare(w, a.answer)
	case <-time.After(patience):
		return fmt.Errorf("request %q was not answered", name)
	}
}

// sync holds the disk's syncs, waits until one is held, or lets them go on.
func (r *run) sync(how string) error {
	switch how {
	case "hold":
		r.releaseSync = r.broker.fs.HoldSync()
	case "held":
		r.broker.fs.WaitHeld(1)
	case "release":
		r.releaseSync()
		r.releaseSync = nil
	default:
		return fmt.Errorf("sync hold, held or release, found %q", how)
	}
	return nil
}

func (r *run) unanswered(name string) error {
	p := r.pending[name]
	if p == nil {
		return fmt.Errorf("no request %q was begun", name)
	}
	select {
	case a := <-p.answer:
		return fmt.Errorf("request %q was answered: %v %v", name, a.answer, a.err)
	default:
		return nil
	}
}

func (r *run) abort(name string) error {
	p := r.pending[name]
	if p == nil {
		return fmt.Errorf("no request %q was begun", name)
	}
	p.cancel()
	a := <-p.answer
	p.answer <- a
	if a.err == nil {
		return fmt.Errorf("request %q was answered before it was aborted: %d", name, a.answer.Status)
	}
	return nil
}

// compare checks an answer against the expected one and against the rules that
// hold for every answer.
func (r *run) compare(w *want, a *Answer) error {
	found := fmt.Sprintf("answer %d %s", a.Status, short(string(a.Body)))
	if strconv.Itoa(a.Status) != w.status {
		return fmt.Errorf("line %d: expected status %s, %s", w.line, w.status, found)
	}
	if err := wellFormed(a); err != nil {
		return fmt.Errorf("line %d: %w, %s", w.line, err, found)
	}
	for _, h := range w.headers {
		h, err := r.expand(h)
		if err != nil {
			return err
		}
		name, v, _ := strings.Cut(h, ": ")
		if got := a.Header.Get(name); got != v {
			return fmt.Errorf("line %d: header %s: expected %q, found %q", w.line, name, v, got)
		}
	}
	if w.body == "" {
		return nil
	}
	src, err := r.expand(w.body)
	if err != nil {
		return err
	}
	pat, err := parsePattern(src)
	if err != nil {
		return fmt.Errorf("line %d: expected body: %w", w.line, err)
	}
	v, err := parseValue(string(a.Body))
	if err != nil {
		return fmt.Errorf("line %d: %w, %s", w.line, err, found)
	}
	if err := pat.match("$", v, &matchContext{now: r.broker.Now(), keep: r.keep}); err != nil {
		return fmt.Errorf("line %d: %w, in %s", w.line, err, found)
	}
	return nil
}

func (r *run) keep(name, v string) { r.vars[name] = v }

// wellFormed checks what holds for every answer (errors-limits.md 1 and 3).
func wellFormed(a *Answer) error {
	ct := a.Header.Get("Content-Type")
	switch {
	case a.Status == http.StatusNoContent && len(a.Body) > 0:
		return fmt.Errorf("a 204 with a body")
	case a.Status == http.StatusNoContent:
	case a.Status == http.StatusTooManyRequests || a.Status == http.StatusServiceUnavailable:
		if _, err := strconv.Atoi(a.Header.Get("Retry-After")); err != nil {
			return fmt.Errorf("Retry-After: expected whole seconds, found %q", a.Header.Get("Retry-After"))
		}
		fallthrough
	case a.Status != http.StatusRequestEntityTooLarge && !strings.HasPrefix(ct, "text/plain"):
		if !strings.HasPrefix(ct, "application/json") {
			return fmt.Errorf("content type %q", ct)
		}
		if _, err := parseValue(string(a.Body)); err != nil {
			return err
		}
	}
	if a.Header.Get("X-Request-Id") == "" {
		return fmt.Errorf("no x-request-id")
	}
	return nil
}
