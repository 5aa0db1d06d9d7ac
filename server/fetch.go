package server

import (
	"errors"
	"net/http"
	"time"

	"queen/fsm"
	"queen/internal/entry"
	"queen/raftlog"
	"queen/server/rawjson"
)

// fetch is one call of the fetch route: what has been read of each entry so far.
type fetch struct {
	s       *Server
	x       *exchange
	req     readRequest
	bounds  []fsm.PartitionBounds
	parts   []fetched
	bytes   int64 // payloads of all entries
	settled bool  // more would not come: an error, or a bound was reached
}

type fetched struct {
	records []byte
	next    uint64 // the offset that comes next
	bytes   int64
	full    bool
	err     string
}

func (s *Server) serveFetch(x *exchange) {
	req, ok := s.readRequest(x, func(r *readRequest) {
		for i := range r.entries {
			if !r.entries[i].hasOffset {
				r.refuse("an entry has no offset")
			}
		}
	})
	if !ok {
		return
	}
	f := &fetch{s: s, x: x, req: req, parts: make([]fetched, len(req.entries))}
	for i := range f.parts {
		f.parts[i].next = uint64(req.entries[i].offset)
	}
	wait := time.Duration(req.maxWait) * time.Millisecond
	x.parked = wait > 0
	for {
		if f.bounds, ok = s.bounds(x, req.entries); !ok {
			return
		}
		f.read()
		left := wait - s.cfg.Clock().Sub(x.start) - s.cfg.Limits.ReplyMargin
		if f.settled || f.bytes >= req.minBytes || left <= 0 || s.stopping.Load() {
			break
		}
		if more, answered := f.await(left); answered {
			return
		} else if !more {
			break
		}
	}
	x.out = f.answer(x.out[:0])
	_ = x.answer(http.StatusOK)
}

// await waits until one of the partitions has more; more is false when the time
// is over. answered: the call is over.
func (f *fetch) await(left time.Duration) (more, answered bool) {
	w := f.s.getWork(f.x)
	watch := &fsm.Watch{WaitMicros: left.Microseconds(), Places: make([]fsm.WatchPlace, len(f.parts))}
	for i := range f.parts {
		e := &f.req.entries[i]
		watch.Places[i] = fsm.WatchPlace{Queue: e.queue, Partition: e.partition, Offset: f.parts[i].next}
	}
	err := f.s.run(w, watch, 0, left+f.s.cfg.Limits.ReplyMargin, f.x.c.Request.Context().Done())
	switch {
	case err == nil:
		f.s.putWork(w)
		return true, false
	case errors.Is(err, errTimeout):
		return false, false
	}
	f.s.ended(w, err)
	f.x.undecided(err)
	return false, true
}

// read reads on in every entry.
func (f *fetch) read() {
	for i := range f.parts {
		p, e, b := &f.parts[i], &f.req.entries[i], &f.bounds[i]
		switch {
		case p.full || p.err != "":
		case !b.QueueFound:
			p.err = unknownPartition
		case !b.Found:
		case p.next < b.Start || p.next > b.Next:
			if p.bytes == 0 && p.records == nil {
				p.err = offsetOutOfRange
			}
			p.full = true
		case p.next < b.Next:
			f.readPart(p, e, b)
		}
		f.settled = f.settled || p.full || p.err != ""
	}
}

var errFull = errors.New("the bound of an answer is reached")

// readPart reads records of one entry up to its bounds.
func (f *fetch) readPart(p *fetched, e *readEntry, b *fsm.PartitionBounds) {
	err := f.s.engine.Reader().ReadMessages(b.QueueID, b.PartitionID, p.next, b.Next-1, func(offset uint64, micros int64, m *entry.Message) error {
		if offset != p.next {
			return raftlog.ErrNoLog // retention was faster
		}
		was := len(p.records)
		dst := p.records
		if was > 0 {
			dst = append(dst, ',')
		}
		dst = appendInt(append(dst, '{'), "offset", int64(offset))
		dst = append(dst, `,"transactionId":`...)
		dst = rawjson.AppendString(dst, m.AppendTxn(nil))
		dst = append(dst, `,"payload":`...)
		at := len(dst)
		dst, err := f.s.packer.appendPayload(dst, m)
		if err != nil {
			return err
		}
		size := int64(len(dst) - at)
		if was > 0 && p.bytes+size > e.maxBytes || f.bytes > 0 && f.bytes+size > maxAnswerBytes {
			return errFull
		}
		dst = append(dst, `,"ts":`...)
		dst = rawjson.AppendMicros(dst, micros)
		p.records = append(dst, '}')
		p.bytes, f.bytes = p.bytes+size, f.bytes+size
		p.next++
		return nil
	})
	switch {
	case errors.Is(err, errFull):
		p.full = true
	case errors.Is(err, raftlog.ErrNoLog), err == nil && p.next < b.Next:
		if p.full = true; p.records == nil {
			p.err = offsetOutOfRange
		}
	case err != nil:
		f.s.log.Error("a stored message cannot be read", "request", f.x.id, "queue", e.queue, "partition", e.partition, "offset", p.next, "error", err)
		f.s.unwell("a stored payload cannot be read; see the log")
		if p.full = true; p.records == nil {
			p.err = storageError
		}
	}
}

func (f *fetch) answer(dst []byte) []byte {
	dst = append(dst, `{"entries":[`...)
	for i := range f.parts {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = appendEntryHead(dst, &f.req.entries[i])
		dst = appendBounds(dst, &f.bounds[i])
		dst = append(dst, `,"records":[`...)
		dst = append(append(dst, f.parts[i].records...), ']')
		dst = append(appendEntryError(dst, f.parts[i].err), '}')
		f.parts[i].records = nil
	}
	return append(dst, ']', '}')
}

func (s *Server) serveFetchOffsets(x *exchange) {
	req, ok := s.readRequest(x, func(r *readRequest) {
		for i := range r.entries {
			if r.entries[i].timeRaw == nil {
				r.refuse("an entry has no timestamp")
			}
		}
	})
	if !ok {
		return
	}
	bounds, ok := s.bounds(x, req.entries)
	if !ok {
		return
	}
	out := append(x.out[:0], `{"entries":[`...)
	for i := range req.entries {
		if i > 0 {
			out = append(out, ',')
		}
		out = s.appendOffset(out, x, &req.entries[i], &bounds[i])
	}
	x.out = append(out, ']', '}')
	_ = x.answer(http.StatusOK)
}

// appendOffset appends the first retained offset at or after the time of an
// entry. It is looked up off the loop.
func (s *Server) appendOffset(dst []byte, x *exchange, e *readEntry, b *fsm.PartitionBounds) []byte {
	offset, micros, found, code := uint64(0), int64(0), false, ""
	switch {
	case !b.QueueFound:
		code = unknownPartition
	case b.Start < b.Next && e.time <= b.LastAppend:
		var err error
		if offset, micros, found, err = s.offsetAt(b, e.time); err != nil {
			s.log.Error("the offset of a time cannot be read", "request", x.id, "queue", e.queue, "partition", e.partition, "error", err)
			code = storageError
		}
	}
	dst = appendEntryHead(dst, e)
	dst = append(append(dst, `,"timestamp":`...), e.timeRaw...)
	if found && code == "" {
		dst = appendInt(append(dst, ','), "offset", int64(offset))
		dst = rawjson.AppendMicros(append(dst, `,"ts":`...), micros)
	} else {
		dst = append(dst, `,"offset":null,"ts":null`...)
	}
	dst = appendBounds(dst, b)
	return append(appendEntryError(dst, code), '}')
}

// offsetAt is the first retained offset of a partition that was appended at or
// after t, and when it was.
func (s *Server) offsetAt(b *fsm.PartitionBounds, t int64) (offset uint64, micros int64, found bool, err error) {
	r := s.engine.Reader()
	if offset, found, err = r.FindTime(b.QueueID, b.PartitionID, t); err != nil || !found {
		return 0, 0, false, err
	}
	offset = max(offset, b.Start)
	times, err := r.AppendTimes(b.QueueID, b.PartitionID, offset, 1)
	if errors.Is(err, raftlog.ErrNoLog) || err == nil && len(times) == 0 {
		return 0, 0, false, nil // gone meanwhile
	}
	if err != nil {
		return 0, 0, false, err
	}
	return max(offset, times[0].First), times[0].Time, true, nil
}
