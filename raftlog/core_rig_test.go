package raftlog

import (
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	pb "go.etcd.io/raft/v3/raftpb"

	"queen/internal/entry"
)

// coreRig drives a core by hand: its log writer, rows writer and peers are
// lists that a test looks at and answers when it likes.
type coreRig struct {
	t      testing.TB
	c      *core
	m      *rigMachine
	now    Times
	writes []appendRequest // not completed yet
	hards  int             // requests with a changed term or vote
	sent   []*pb.Message
	pads   []uint64
	confs  []Membership
	rows   rigRows
	looked int // calls handed out for look-ups
	fatal  error
}

type rigRows struct {
	begun, abandoned int
	full             []bool
	rows             int
	finished         []Footer
	compact          bool
	pending          []int
}

func (r *rigRows) needsCompaction() bool { return r.compact }
func (r *rigRows) begin(full bool)       { r.begun++; r.full = append(r.full, full) }
func (r *rigRows) put(b *rowBatch)       { r.rows += b.len(); r.pending = append(r.pending, b.bytes()) }
func (r *rigRows) finish(f Footer)       { r.finished = append(r.finished, f) }
func (r *rigRows) abandon()              { r.abandoned++ }

// rigMachine plans each call as it says: *rigCall.
type rigMachine struct {
	leads, follows int
	term           uint64
	plans          int
	nows           []int64
	applied        []uint64
	wake           int64
	more           bool
	prepare        []any // of the next plan
	captureRows    int
	ended          []bool
	time           int64
	lateApplies    int // Apply after Lead
}

// rigBuilder makes the bytes of an entry.
type rigBuilder struct{ b entry.Builder }

func (b *rigBuilder) data(now int64) []byte {
	b.b.Effects = []byte{1}
	return b.b.Encode(now)
}

// rigCall is a call: with effects when data is set.
type rigCall struct {
	effects bool
	answers []error
}

func (m *rigMachine) Lead(term uint64) { m.leads, m.term = m.leads+1, term }
func (m *rigMachine) Follow()          { m.follows++ }
func (m *rigMachine) Plan(now int64, calls []any) Plan {
	m.plans++
	m.nows = append(m.nows, now)
	p := Plan{Wake: m.wake, More: m.more, Prepare: m.prepare}
	m.wake, m.more, m.prepare = 0, false, nil
	var b entry.Builder
	for _, c := range calls {
		if c.(*rigCall).effects {
			b.Effects = append(b.Effects, 1)
		}
	}
	if len(calls) > 0 {
		p.Answer = func(err error) {
			for _, c := range calls {
				c := c.(*rigCall)
				c.answers = append(c.answers, err)
			}
		}
	}
	if !b.Empty() {
		p.Data = b.Encode(now)
		m.time = now
	}
	return p
}
func (m *rigMachine) Apply(index, _ uint64, data []byte) error {
	m.applied = append(m.applied, index)
	if m.leads > m.follows {
		m.lateApplies++
	}
	e, err := entry.Parse(data)
	m.time = e.Time
	return err
}
func (m *rigMachine) Remember(entry.Append) error       { return nil }
func (m *rigMachine) SealedThrough(int64)               {}
func (m *rigMachine) LoadRow(_, _ []byte) error         { return nil }
func (m *rigMachine) LoadDeleteRange(_, _ []byte) error { return nil }
func (m *rigMachine) Ready(int64) error                 { return nil }
func (m *rigMachine) BeginCapture(bool)                 {}
func (m *rigMachine) EndCapture(ok bool)                { m.ended = append(m.ended, ok) }
func (m *rigMachine) Time() int64                       { return m.time }
func (m *rigMachine) CaptureSome(n int, put func(key, value []byte), _ func(lo, hi []byte)) bool {
	for ; n > 0 && m.captureRows > 0; n-- {
		put([]byte("k"), []byte("v"))
		m.captureRows--
	}
	return m.captureRows == 0
}

// newRig starts node 1 of the given voters on an empty log.
func newRig(t testing.TB, voters ...uint64) *coreRig {
	return newRigAt(t, coreStart{state: State{Conf: Membership{Voters: voters}}, first: 1, runs: []TermRun{{}}})
}

func newRigAt(t testing.TB, s coreStart) *coreRig {
	t.Helper()
	r := &coreRig{t: t, m: &rigMachine{}, now: Times{Mono: 1e9, Wall: 1_000_000}}
	cfg := Config{NodeID: 1, Machine: r.m, Logger: slog.New(slog.DiscardHandler), Fatal: func(error) {}}.WithDefaults()
	var err error
	r.c, err = newCore(cfg, ports{
		write: func(a appendRequest) {
			if a.hard {
				r.hards++
			}
			r.writes = append(r.writes, a)
		},
		pad:        func(commit uint64) { r.pads = append(r.pads, commit) },
		saveConf:   func(m Membership, _ uint64) { r.confs = append(r.confs, m) },
		send:       func(p Parcel) { r.sent = append(r.sent, p.Messages...) },
		prepare:    func(calls []any) { r.looked += len(calls) },
		sealBefore: func(int64) {},
		rows:       &r.rows,
		fatal:      func(err error) { r.fatal = err },
	}, s)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// turn passes a microsecond and runs turns until nothing is left to do.
func (r *coreRig) turn() {
	for range 10_000 {
		r.now.Mono += 1000
		r.now.Wall++
		if !r.c.turn(r.now) {
			return
		}
	}
	r.t.Fatal("the core never comes to rest")
}

// complete makes the n oldest writes durable.
func (r *coreRig) complete(n int) {
	for range n {
		w := r.writes[0]
		r.writes = r.writes[1:]
		r.c.written(w)
		r.turn()
	}
}

// settle completes writes until there are none.
func (r *coreRig) settle() {
	r.turn()
	for len(r.writes) > 0 && r.c.dead == nil {
		r.complete(1)
	}
}

func (r *coreRig) tick(n int) {
	for range n {
		r.now.Mono += int64(100 * time.Millisecond)
		r.now.Wall += 100_000
		r.c.tick(r.now)
		r.turn()
	}
}

func (r *coreRig) call(effects bool) *rigCall {
	c := &rigCall{effects: effects}
	r.c.submit([]any{c})
	return c
}

// from steps a message of a peer in the core's term.
func (r *coreRig) from(id uint64, typ pb.MessageType, edit ...func(*pb.Message)) {
	m := &pb.Message{Type: typ.Enum(), From: new(id), To: new(uint64(1)), Term: new(r.c.term)}
	for _, e := range edit {
		e(m)
	}
	r.c.step(m)
	r.turn()
}

func inTerm(t uint64) func(*pb.Message)  { return func(m *pb.Message) { m.Term = new(t) } }
func atIndex(i uint64) func(*pb.Message) { return func(m *pb.Message) { m.Index = new(i) } }

// elect makes node 1 of three the leader, with an applied entry of its term.
func (r *coreRig) elect() {
	r.t.Helper()
	r.c.campaign()
	r.settle()
	r.from(2, pb.MsgPreVoteResp, inTerm(r.c.term+1))
	r.settle()
	r.from(2, pb.MsgVoteResp)
	r.settle()
	if !r.c.isLeader {
		r.t.Fatal("not elected")
	}
	r.ack(2)
	if !r.c.leading {
		r.t.Fatal("elected, and not leading")
	}
}

// ack makes a follower acknowledge everything that the leader has.
func (r *coreRig) ack(id uint64) {
	last := r.c.rn.Status().Progress[1].Match
	r.from(id, pb.MsgAppResp, atIndex(max(last, r.lastIndex())))
	r.settle()
}

func (r *coreRig) lastIndex() uint64 { return r.c.log.last }

func (c *rigCall) String() string {
	switch {
	case len(c.answers) == 0:
		return "waiting"
	case len(c.answers) > 1:
		return fmt.Sprintf("answered %d times", len(c.answers))
	case c.answers[0] == nil:
		return "ok"
	case errors.Is(c.answers[0], ErrNotLeader):
		return "not leader"
	case errors.Is(c.answers[0], ErrAbandoned):
		return "abandoned"
	}
	return c.answers[0].Error()
}

func (r *coreRig) want(c *rigCall, state string) {
	r.t.Helper()
	if got := c.String(); got != state {
		r.t.Fatalf("the call is %s, want %s", got, state)
	}
}
