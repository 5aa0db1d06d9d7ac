package raftlog

import (
	"errors"
	"fmt"
	"log/slog"

	"go.etcd.io/raft/v3"
	pb "go.etcd.io/raft/v3/raftpb"

	"queen/internal/invariants"
	"queen/internal/plant"
)

// core is the deterministic part of a group: raft, the state machine, the
// plans in flight and the checkpoint's progress. It is driven in turns, reads
// no clock and no file, and starts nothing; what it wants done it says through
// ports. Everything in it belongs to the loop.
type core struct {
	cfg   Config
	ports ports
	log   *memLog
	rn    *raft.RawNode
	m     Machine
	now   Times // of the running turn
	dead  error // why nothing is planned or answered any more

	// raft's view, updated from Ready.
	isLeader bool
	lead     uint64 // who leads, as far as raft knows; 0: nobody
	term     uint64
	vote     uint64
	commit   uint64
	sentHard State // what the log writer was told last

	// leading: raft leads in leadTerm, an entry of that term was applied, and
	// the machine was told. The only state in which a plan is made (F1).
	leading  bool
	leadTerm uint64

	applied     uint64
	appliedTerm uint64

	calls    []any
	clock    brokerTime
	note     timeNote
	lastTime int64 // time of the newest planned entry
	wake     int64 // broker time of the machine's next own work; 0: none
	more     bool

	planSeq     uint64    // plans with data made so far
	releasedSeq uint64    // of those, answered
	unmatched   []planned // proposed, index not known yet; empty between turns
	inflight    []planned // proposed, not applied; rising index
	inflightLen int64     // bytes

	reads    []readWait
	looks    []lookWait
	nextRead uint64 // context of the next ReadIndex

	conf      Membership
	confIndex uint64
	confSaved uint64

	reread  *reread // the state is being read again (F7); nil: it is not
	retreat retreat // this node gives leadership away; see lead.go
	peers   peers   // what was heard of the others; see peers.go

	writes    []int64 // when each outstanding write was issued, oldest first
	lastWrite int64   // when the newest entry was issued
	padded    uint64  // durable index that a pad says

	ckpt     checkpoint
	stopping bool
}

// planned is a plan with effects on its way through raft.
type planned struct {
	seq    uint64
	term   uint64
	index  uint64
	calls  int // of its cycle
	size   int
	answer func(error)
	// lost: the state was read again since and does not hold its effects any more.
	lost bool
}

// readWait is a cycle without effects that waits until it is known to be true.
type readWait struct {
	after     uint64 // planSeq before it: those entries come first
	ask       uint64 // first ReadIndex context that was asked after it was judged
	confirmed bool
	index     uint64 // applied must reach it
	answer    func(error)
}

// ports are the ways out of the core. None may block or call back.
type ports struct {
	write    func(appendRequest)
	pad      func(commit uint64)
	saveConf func(Membership, uint64)
	send     func(Parcel)
	prepare  func(calls []any)
	// refuse answers calls that are for another node; nil: they wait.
	refuse func(calls []any, err error)
	// reread starts to read the state again, up to entry upTo; nil: it cannot be.
	reread func(upTo uint64)
	// readAhead starts to read entries from from on, applied ones, for a follower;
	// nil: they cannot be read.
	readAhead func(from, upTo uint64)
	// keep tells what the log will keep once the footer is durable that is about
	// to be written; nil: nobody cares.
	keep       func(KeptLog)
	sealBefore func(t int64)
	rows       rowsPort
	fatal      func(error)
}

// appendRequest is a MsgStorageAppend on its way to the log writer.
type appendRequest struct {
	entries   []*pb.Entry
	hard      bool // term and vote changed
	term      uint64
	vote      uint64
	commit    uint64 // known to the loop when it was sent
	responses []*pb.Message
}

// start is what a boot hands to the core.
type coreStart struct {
	state   State
	first   uint64 // footer's from + 1
	runs    []TermRun
	last    uint64
	applied uint64
	commit  uint64
	ents    []*pb.Entry // unapplied ones
	footer  uint64      // from of the newest footer
}

func newCore(cfg Config, p ports, s coreStart) (*core, error) {
	hard := &pb.HardState{Term: new(s.state.Term), Vote: new(s.state.Vote), Commit: new(s.commit)}
	log, err := newMemLog(hard, s.state.Conf.ConfState(), s.first, s.last, s.runs, s.ents)
	if err != nil {
		return nil, err
	}
	c := &core{
		cfg: cfg, ports: p, log: log, m: cfg.Machine,
		term: s.state.Term, vote: s.state.Vote, commit: s.commit, sentHard: s.state,
		applied: s.applied, appliedTerm: log.term(s.applied), lastTime: cfg.Machine.Time(),
		conf: s.state.Conf, confIndex: s.state.ConfIndex, confSaved: s.state.ConfIndex,
		nextRead: 1,
	}
	c.ckpt.from = s.footer
	log.applied = s.applied
	if !s.state.Conf.OnlyVoter(cfg.NodeID) {
		log.window = recentBytes
	}
	c.rn, err = raft.NewRawNode(&raft.Config{
		ID: cfg.NodeID, ElectionTick: cfg.ElectionTicks, HeartbeatTick: heartbeatTicks,
		Storage: log, Applied: s.applied,
		AsyncStorageWrites: true, PreVote: true, CheckQuorum: true,
		DisableProposalForwarding: true,
		MaxSizePerMsg:             maxSizePerMsg,
		MaxInflightMsgs:           maxInflightMsgs,
		MaxCommittedSizePerReady:  maxApplying,
		Logger:                    raftLogger{cfg.Logger},
	})
	return c, err
}

// fail stops the core: nothing is planned, proposed or answered after it.
func (c *core) fail(err error) {
	if c.dead == nil {
		c.dead = err
		c.ports.fatal(err)
	}
}

// campaign asks for an election at once: the only voter waits for nobody.
func (c *core) campaign() {
	if err := c.rn.Campaign(); err != nil {
		c.cfg.Logger.Warn("campaign refused", "err", err)
	}
}

// step takes a message from a peer. A proposal is refused: what is in the log
// was planned on the state of the node that proposed it (F1).
func (c *core) step(m *pb.Message) {
	if c.dead != nil || m.GetType() == pb.MsgProp {
		return
	}
	c.track(m)
	if err := c.rn.Step(m); err != nil && !errors.Is(err, raft.ErrStepPeerNotFound) {
		c.cfg.Logger.Debug("message not taken", "type", m.GetType().String(), "err", err)
	}
}

func (c *core) tick(t Times) {
	if c.dead != nil {
		return
	}
	c.now = t
	c.rn.Tick()
	c.askAgain()
	c.watchLeadership()
	c.watchFollowers()
	if last := c.log.last; last != c.padded && len(c.writes) == 0 && t.Mono-c.lastWrite >= int64(quietBeforePad) {
		c.padded = last
		c.ports.pad(c.commit)
	}
}

// stopped reports whether a group that stops has nothing left to do.
func (c *core) stopped() bool {
	if c.dead != nil {
		return true
	}
	return c.idle() && c.reread == nil && len(c.writes) == 0 && c.ckpt.phase == ckptIdle && !c.checkpointDue()
}

// oldestWrite is when the oldest outstanding write was issued; 0: none is.
func (c *core) oldestWrite() int64 {
	if len(c.writes) == 0 {
		return 0
	}
	return c.writes[0]
}

// wakeAt is the broker time at which the machine wants a turn; 0: none.
func (c *core) wakeAt() int64 {
	if !c.leading || c.stopping || c.dead != nil {
		return 0
	}
	return c.wake
}

func (c *core) brokerNow() int64 { return c.clock.at(c.now) }

// written takes the log writer's word that a request is durable, in order.
func (c *core) written(r appendRequest) {
	if c.dead != nil {
		return
	}
	c.writes = c.writes[1:]
	c.log.append(r.entries)
	for _, m := range r.responses {
		if m.GetTo() != c.cfg.NodeID {
			c.send([]*pb.Message{m})
			continue
		}
		if err := c.rn.Step(m); err != nil {
			c.fail(fmt.Errorf("raft refused a response of its own log: %w", err))
			return
		}
	}
}

// submit queues calls for the next cycle.
func (c *core) submit(calls []any) { c.calls = append(c.calls, calls...) }

// turn does everything that can be done now. It reports whether it should be
// called again at once.
func (c *core) turn(t Times) (again bool) {
	if c.dead != nil {
		return false
	}
	c.now = t
	c.ready()
	planned := c.planAll()
	c.releaseReads()
	c.releaseLooks()
	c.passOn()
	c.readAheadForFollowers()
	again = c.checkpointStep(planned)
	if invariants.Enabled {
		c.check()
	}
	return (again || c.wantsPlan()) && c.dead == nil
}

// check looks at the rules that hold between turns.
func (c *core) check() {
	if c.dead != nil {
		return
	}
	invariants.Check(c.applied <= c.commit && c.applied <= c.log.last, "applied %d <= commit %d, durable %d", c.applied, c.commit, c.log.last)
	invariants.Check(len(c.unmatched) == 0, "%d plans without an index after their turn", len(c.unmatched))
	for i, p := range c.inflight {
		invariants.Check(p.index > c.applied && (i == 0 || p.index > c.inflight[i-1].index), "planned indexes rise above applied %d: %d", c.applied, p.index)
	}
	invariants.Check(len(c.inflight) > 0 || c.inflightLen == 0, "%d bytes in flight without an entry", c.inflightLen)
}

// ready takes out of raft whatever it has, until it has nothing more.
func (c *core) ready() {
	for c.dead == nil && c.rn.HasReady() {
		rd := c.rn.Ready()
		if rd.HardState != nil && !raft.IsEmptyHardState(rd.HardState) {
			c.term, c.vote, c.commit = rd.GetTerm(), rd.GetVote(), rd.GetCommit()
		}
		if rd.SoftState != nil {
			c.isLeader, c.lead = rd.RaftState == raft.StateLeader, rd.Lead
		}
		c.checkRole()
		c.match(rd.Entries)
		c.deliver(rd.Messages)
		for _, rs := range rd.ReadStates {
			c.confirm(rs)
		}
	}
}

// checkRole follows raft out of leadership. A new term of the same leader is
// a new leadership.
func (c *core) checkRole() {
	if !c.isLeader && len(c.retreat.done) > 0 {
		c.retreated(true)
	}
	if !c.leading || (c.isLeader && c.term == c.leadTerm) {
		return
	}
	c.follow("leadership was lost")
	c.cfg.Logger.Info("no longer leading", slog.Uint64("term", c.term), slog.Int("undecided", len(c.inflight)))
}

// match gives the plans that were proposed in this turn their indexes, which
// only Ready knows: raft puts entries of its own in between (F1).
func (c *core) match(ents []*pb.Entry) {
	for _, e := range ents {
		if len(c.unmatched) == 0 {
			return
		}
		if e.GetType() != pb.EntryNormal || len(e.GetData()) == 0 {
			continue
		}
		p := c.unmatched[0]
		if e.GetTerm() != p.term || len(e.GetData()) != p.size {
			c.fail(fmt.Errorf("entry %d of term %d has %d bytes, the plan proposed in term %d has %d: matching broke",
				e.GetIndex(), e.GetTerm(), len(e.GetData()), p.term, p.size))
			return
		}
		p.index = e.GetIndex()
		c.unmatched = c.unmatched[1:]
		c.inflight = append(c.inflight, p)
	}
}

func (c *core) deliver(msgs []*pb.Message) {
	var peers []*pb.Message
	for _, m := range msgs {
		switch m.GetTo() {
		case raft.LocalAppendThread:
			c.write(m)
		case raft.LocalApplyThread:
			c.handedOut(m)
		default:
			peers = append(peers, m)
		}
		if c.dead != nil {
			return
		}
	}
	if len(peers) > 0 {
		c.send(peers)
	}
}

// send gives messages to peers, with what every one of them may want to know.
func (c *core) send(msgs []*pb.Message) {
	p := Parcel{Messages: msgs, Commit: c.commit}
	p.Time, p.TimeTerm = c.timeBound()
	if c.isLeader {
		p.Keep = c.peers.keep
	}
	c.ports.send(p)
}

// write hands a MsgStorageAppend to the log writer. Only a changed term or
// vote is a hard state worth a write; a commit index is not (F6).
func (c *core) write(m *pb.Message) {
	r := appendRequest{entries: m.GetEntries(), commit: c.commit, responses: m.GetResponses()}
	if m.Term != nil && (m.GetTerm() != c.sentHard.Term || m.GetVote() != c.sentHard.Vote) {
		r.hard, r.term, r.vote = !plant.Is(plant.VoteNotSynced) || len(r.entries) > 0, m.GetTerm(), m.GetVote()
		c.sentHard.Term, c.sentHard.Vote = r.term, r.vote
	}
	if len(r.entries) == 0 && !r.hard && len(r.responses) == 0 {
		return // a commit index, and nobody waits for it
	}
	if plant.Is(plant.AckBeforeDurable) {
		for _, resp := range r.responses {
			if resp.GetTo() != c.cfg.NodeID {
				c.send([]*pb.Message{resp})
			}
		}
	}
	c.writes = append(c.writes, c.now.Mono)
	if len(r.entries) > 0 {
		c.lastWrite = c.now.Mono
	}
	c.ports.write(r)
}

// apply takes committed entries that are durable here. Those that this node
// planned are in the state already and are answered now; others are applied. It
// stops, and keeps what is left, when the state has to be read again first.
func (c *core) apply(m *pb.Message) {
	ents := m.GetEntries()
	for i, e := range ents {
		done, err := c.applyEntry(e)
		if err != nil {
			c.fail(err)
			return
		}
		if !done {
			m.Entries = ents[i:]
			c.reread.held = append(c.reread.held, m)
			return
		}
	}
	for _, r := range m.GetResponses() {
		if err := c.rn.Step(r); err != nil {
			c.fail(fmt.Errorf("raft refused that entries were applied: %w", err))
			return
		}
	}
	c.log.release(c.applied)
}

// applyEntry applies one entry; done is false when that has to wait until the
// state was read again.
func (c *core) applyEntry(e *pb.Entry) (done bool, err error) {
	index, term := e.GetIndex(), e.GetTerm()
	if index != c.applied+1 {
		return false, fmt.Errorf("entry %d handed out after %d", index, c.applied)
	}
	own := len(c.inflight) > 0 && c.inflight[0].index == index
	switch {
	case own && plant.Is(plant.AnswerByIndex):
		c.release()
	case own && c.inflight[0].term != term:
		return false, c.overruled(index, term)
	case own:
		if c.inflight[0].lost {
			if err := c.applyToMachine(e); err != nil {
				return false, err
			}
		}
		c.release()
	case e.GetType() != pb.EntryNormal:
		if err := c.applyConf(e); err != nil {
			return false, err
		}
	case len(e.GetData()) > 0:
		if len(c.inflight) > 0 {
			return false, fmt.Errorf("entry %d of term %d was not planned here, and plans from %d on are undecided", index, term, c.inflight[0].index)
		}
		if err := c.applyToMachine(e); err != nil {
			return false, err
		}
		c.ckpt.bytes += int64(len(e.GetData()))
	}
	c.applied, c.appliedTerm = index, term
	c.maybeLead()
	return true, nil
}

func (c *core) applyToMachine(e *pb.Entry) error {
	if err := c.m.Apply(e.GetIndex(), e.GetTerm(), e.GetData()); err != nil {
		return fmt.Errorf("apply entry %d of term %d: %w", e.GetIndex(), e.GetTerm(), err)
	}
	c.lastTime = max(c.lastTime, c.m.Time())
	return nil
}

// release answers the oldest plan in flight.
func (c *core) release() {
	p := c.inflight[0]
	c.inflight[0] = planned{}
	c.inflight = c.inflight[1:]
	if len(c.inflight) == 0 {
		c.inflight = nil
	}
	c.inflightLen -= int64(p.size)
	c.releasedSeq = p.seq
	if p.answer != nil {
		p.answer(nil)
	}
}

// applyConf applies a membership change once (F6).
func (c *core) applyConf(e *pb.Entry) error {
	cc, err := unmarshalConf(e)
	if err != nil {
		return err
	}
	if e.GetIndex() <= c.confIndex {
		return nil
	}
	c.conf, c.confIndex = MembershipOf(c.rn.ApplyConfChange(cc)), e.GetIndex()
	c.ports.saveConf(c.conf, c.confIndex)
	return nil
}
