package fsm

import "fmt"

// Switches are what an operator has turned off: one row of the whole state, which
// is there only while something is off.
type Switches struct {
	KVOff       bool // no key/value and lock calls, no transactions with KV
	ScheduleOff bool // no new timers; pending ones fire, cancels work
	FireOff     bool // no timer fires; what became due fires later, oldest first
}

// SetSwitches changes some of the switches; nil: as it was.
type SetSwitches struct {
	KV, Schedule, Fire *bool // on

	Result Switches
}

// switches is their row. Its value is the flags, as a uvarint that is not 0.
type switches struct {
	Switches
	dirty bool
}

const (
	switchKV       = 1
	switchSchedule = 2
	switchFire     = 4
	switchFlags    = 7
)

func (s *switches) flags() (flags uint64) {
	for _, f := range []struct {
		off  bool
		flag uint64
	}{{s.KVOff, switchKV}, {s.ScheduleOff, switchSchedule}, {s.FireOff, switchFire}} {
		if f.off {
			flags |= f.flag
		}
	}
	return flags
}

func (s *switches) appendKey(dst []byte) []byte { return append(dst, rowSwitches) }
func (s *switches) alive() bool                 { return s.flags() != 0 }
func (s *switches) setDirty(v bool) bool        { return swap(&s.dirty, v) }
func (s *switches) encode(dst []byte) []byte    { return appendUvarints(dst, s.flags()) }

func (s *switches) decode(b []byte) error {
	r := rowReader{b: b}
	flags := r.uvarint()
	if r.err == nil && (flags == 0 || flags&^switchFlags != 0) {
		return fmt.Errorf("switches %#x, this build reads %#x: they were written by a newer build, start that one", flags, switchFlags)
	}
	s.Switches = Switches{KVOff: flags&switchKV != 0, ScheduleOff: flags&switchSchedule != 0, FireOff: flags&switchFire != 0}
	return r.end()
}

// loadSwitches takes their row; value nil: everything is on.
func (m *Machine) loadSwitches(value []byte, changed bool) error {
	s := &m.s.switches
	if value == nil {
		s.Switches = Switches{}
		return nil
	}
	if changed {
		m.touch(s)
	}
	return s.decode(value)
}

// Switches tells what is off.
func (s *State) Switches() Switches { return s.switches.Switches }

func (m *Machine) planSwitches(c *SetSwitches) verdict {
	s := &m.s.switches
	was := s.Switches
	for _, f := range []struct {
		on  *bool
		off *bool
	}{{c.KV, &s.KVOff}, {c.Schedule, &s.ScheduleOff}, {c.Fire, &s.FireOff}} {
		if f.on != nil {
			*f.off = !*f.on
		}
	}
	switch {
	case s.Switches == was:
	case s.alive():
		m.put(s)
	default:
		m.remove(s)
	}
	c.Result = s.Switches
	return answered
}

// schedules reports whether one of the operations sets a timer.
func schedules(ops []TimerOp) bool {
	for i := range ops {
		if !ops[i].Cancel {
			return true
		}
	}
	return false
}

// refuseSwitched refuses a transaction with a part that is turned off.
func (m *Machine) refuseSwitched(t *Txn) bool {
	switch s := &m.s.switches; {
	case s.KVOff && len(t.KV) > 0:
		t.refuse(ReasonKVDisabled, "KV is turned off by an operator; transaction rolled back")
	case s.ScheduleOff && schedules(t.Timers):
		t.refuse(ReasonTimersDisabled, "the scheduling of timers is turned off by an operator; transaction rolled back")
	default:
		return false
	}
	return true
}
