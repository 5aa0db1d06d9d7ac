package server

import (
	"errors"
	"sync"
	"sync/atomic"

	"queen/fsm"
	"queen/internal/entry"
)

// sealing remembers which queues keep sealed payloads, so that a message is
// mostly packed in the right form before it is planned. It is a guess: the
// planner compares the form with the queue's option, on the state as of that
// call, and hands back what does not fit (fsm.Call.Misfit). Nothing is in it
// until a call was handed back, so a broker without such queues only reads n.
type sealing struct {
	n      atomic.Int64
	queues sync.Map // of queueName; its values mean nothing
}

// queueName is a queue of a tenant.
type queueName struct{ tenant, queue string }

// guess is the form that a queue probably keeps.
func (s *sealing) guess(tenant, queue string) fsm.PayloadForm {
	if s.n.Load() == 0 {
		return fsm.FormClear
	}
	if _, sealed := s.queues.Load(queueName{tenant, queue}); sealed {
		return fsm.FormSealed
	}
	return fsm.FormClear
}

// learn takes over what the planner said.
func (s *sealing) learn(tenant, queue string, form fsm.PayloadForm) {
	key := queueName{tenant, queue}
	if form == fsm.FormSealed {
		if _, known := s.queues.LoadOrStore(key, true); !known {
			s.n.Add(1)
		}
		return
	}
	if _, known := s.queues.LoadAndDelete(key); known {
		s.n.Add(-1)
	}
}

// errNoKey: the call would store a payload in a queue that keeps only sealed
// ones. Nothing was applied.
var errNoKey = errors.New("the queue has encryptionEnabled and this node has no QUEEN_ENCRYPTION_KEY; nothing was applied")

// errUnsettled: the queue's option changed every time that the call was planned.
var errUnsettled = errors.New("encryptionEnabled changes all the time")

// maxRefits bounds how often one call is packed anew: once, unless the option
// changes under it.
const maxRefits = 8

// refit gives the payloads of a call that was handed back the form that their
// queues keep. The work is the caller's. Invariant: only a node with a key learns
// of queues that keep sealed ones, so whoever guesses so can seal.
func (s *Server) refit(w *work, body any) error {
	switch b := body.(type) {
	case *fsm.Push:
		return s.refitItems(w, b.Items)
	case *fsm.Txn:
		if err := s.refitItems(w, b.Push.Items); err != nil {
			return err
		}
		return s.refitTimers(w, b.Timers)
	case *fsm.Timers:
		return s.refitTimers(w, b.Ops)
	case *fsm.ReplayDeadLetter:
		return s.refitReplay(b)
	default:
		return errUnsettled // no other call has payloads
	}
}

func (s *Server) refitItems(w *work, items []fsm.PushItem) (err error) {
	for i := range items {
		it := &items[i]
		if it.Want == fsm.FormAny {
			continue
		}
		if it.Packed, err = s.repacked(w, it.Packed, it.Want); err != nil {
			return err
		}
		s.sealing.learn(w.call.Tenant, it.Queue, it.Want)
		it.Form, it.Want = it.Want, fsm.FormAny
	}
	return nil
}

func (s *Server) refitTimers(w *work, ops []fsm.TimerOp) (err error) {
	for i := range ops {
		op := &ops[i]
		if op.Want == fsm.FormAny {
			continue
		}
		if op.Message, err = s.repacked(w, op.Message, op.Want); err != nil {
			return err
		}
		s.sealing.learn(w.call.Tenant, op.Queue, op.Want)
		op.Form, op.Want = op.Want, fsm.FormAny
	}
	return nil
}

// repacked is a packed message in another form.
func (s *Server) repacked(w *work, packed []byte, form fsm.PayloadForm) ([]byte, error) {
	m, _, err := entry.NextMessage(packed)
	if err != nil {
		return nil, err
	}
	if err := s.packer.reform(&m, form); err != nil {
		return nil, err
	}
	return s.pack(w, &m), nil
}

// refitReplay makes the copy of a dead letter. The letter has the form of the
// message that it was; a clear one may look sealed, and is then opened, as it is
// for every reader.
func (s *Server) refitReplay(r *fsm.ReplayDeadLetter) error {
	m, _, err := entry.NextMessage(r.Stored)
	if err != nil {
		return err
	}
	if err := s.packer.reform(&m, r.Want); err != nil {
		return err
	}
	s.packer.compress(&m)
	r.Payload, r.Form = &m, r.Want
	return nil
}

// reform gives the payload of m a form, whatever it has now: it is opened if it
// is sealed, and then sealed if it is to be. It is not compressed afterwards.
func (p *packer) reform(m *entry.Message, form fsm.PayloadForm) error {
	if form == fsm.FormSealed && p.key == nil {
		return errNoKey
	}
	plain, err := p.appendPayload(nil, m)
	if err != nil {
		return err
	}
	if m.Payload, m.Zstd = plain, false; form == fsm.FormSealed {
		m.Payload = p.key.Append(nil, plain)
	}
	return nil
}

// sealed reports whether a message's payload is one that this node opens.
func (p *packer) sealed(m *entry.Message) bool {
	if p.key == nil {
		return false
	}
	stored, err := p.appendStored(nil, m)
	if err != nil {
		return false
	}
	_, ok := p.key.Open(stored)
	return ok
}
