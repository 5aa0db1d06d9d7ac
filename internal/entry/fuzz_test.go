package entry

import (
	"bytes"
	"slices"
	"testing"

	gofuzz "github.com/google/gofuzz"
)

// sample is what gofuzz fills for the corpora: an entry as a planner makes it.
type sample struct {
	Time    int64
	Touches []uint64
	Appends []struct {
		Queue, Partition, First uint64
		Messages                []sampleMessage
	}
	Values []struct {
		ID, Queue uint64
		Data      []byte
	}
	Effects []byte
	Head    Head
	Index   uint64
}

type sampleMessage struct {
	ID, Trace       [16]byte
	HasTrace, Zstd  bool
	Txn, Producer   []byte
	Payload         []byte
	MintedByTheNode bool
}

func (m *sampleMessage) message() Message {
	out := Message{ID: m.ID, Minted: m.MintedByTheNode, HasTrace: m.HasTrace, Zstd: m.Zstd, ProducerSub: m.Producer, Payload: m.Payload}
	if !out.Minted {
		out.Txn = m.Txn
	}
	if m.HasTrace {
		out.TraceID = m.Trace
	}
	return out
}

func (s *sample) encode() []byte {
	var b Builder
	b.Effects = append(b.Effects, s.Effects...)
	for _, q := range s.Touches {
		b.Touch(q)
	}
	for i := range s.Appends {
		a := &s.Appends[i]
		var all [][]byte
		for j := range a.Messages {
			m := a.Messages[j].message()
			all = append(all, AppendMessage(nil, &m))
		}
		if len(all) > 0 {
			b.Append(a.Queue, a.Partition, a.First, s.Time, len(all), all...)
		}
	}
	for _, v := range s.Values {
		b.Value(v.ID, v.Queue, v.Data)
	}
	return b.Encode(s.Time)
}

// samples are entries that gofuzz built, always the same ones.
func samples(n int64) (out []sample) {
	for seed := range n {
		var s sample
		gofuzz.NewWithSeed(seed).NilChance(0.1).NumElements(0, 4).Fuzz(&s)
		slices.Sort(s.Head.Logs)
		s.Head.Logs = slices.Compact(append(s.Head.Logs, 1<<63))
		out = append(out, s)
	}
	return out
}

// FuzzEntry: what parses encodes to the same bytes, every append of it can be
// read to its end, and nothing is larger than the input.
func FuzzEntry(f *testing.F) {
	for _, s := range samples(24) {
		b := s.encode()
		f.Add(b)
		f.Add(b[:len(b)-len(b)/3])
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		e, err := Parse(data)
		if err != nil {
			return
		}
		if again := encodeAgain(&e); !bytes.Equal(again, data) {
			t.Fatalf("%x encodes again to %x", data, again)
		}
		for i := range e.Appends {
			a := &e.Appends[i]
			rest := a.Messages
			for n := uint32(0); n < a.Count && err == nil; n++ {
				_, rest, err = NextMessage(rest)
			}
		}
	})
}

// encodeAgain is Builder.Encode without what a builder adds by itself.
func encodeAgain(e *Entry) []byte {
	b := Builder{Effects: e.Effects, touches: e.Touches}
	for i := range e.Appends {
		b.appends = appendBlock(b.appends, e.Appends[i].Raw)
		b.nApp++
	}
	for _, v := range e.Values {
		b.Value(v.ID, v.Queue, v.Data)
	}
	return b.Encode(e.Time)
}

func appendBlock(dst, block []byte) []byte {
	dst = append(dst, byte(len(block)), byte(len(block)>>8), byte(len(block)>>16), byte(len(block)>>24))
	return append(dst, block...)
}

// FuzzMessage: a message that parses encodes to one that parses to the same.
func FuzzMessage(f *testing.F) {
	for _, s := range samples(24) {
		for _, a := range s.Appends {
			for i := range a.Messages {
				m := a.Messages[i].message()
				f.Add(AppendMessage(nil, &m))
			}
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m, rest, err := NextMessage(b)
		if err != nil {
			return
		}
		if len(rest) > len(b) || !bytes.Equal(rest, b[len(b)-len(rest):]) {
			t.Fatalf("the rest of %x is %x", b, rest)
		}
		again, rest, err := NextMessage(AppendMessage(nil, &m))
		if err != nil || len(rest) != 0 || !sameMessage(&again, &m) {
			t.Fatalf("%+v encodes to %+v (rest %x): %v", m, again, rest, err)
		}
	})
}

func sameMessage(a, b *Message) bool {
	return a.ID == b.ID && a.Minted == b.Minted && bytes.Equal(a.Txn, b.Txn) && a.HasTrace == b.HasTrace && a.TraceID == b.TraceID &&
		bytes.Equal(a.ProducerSub, b.ProducerSub) && a.Zstd == b.Zstd && bytes.Equal(a.Payload, b.Payload)
}

// FuzzRecord: a record body that parses encodes to the same bytes, and an entry
// record joins only to what its hash says.
func FuzzRecord(f *testing.F) {
	for i, s := range samples(24) {
		data := s.encode()
		e, err := Parse(data)
		if err != nil {
			f.Fatal(err)
		}
		s.Head.Hash = Hash(data)
		f.Add(AppendEntryRecord(nil, s.Index, &s.Head, data, &e))
		f.Add(AppendRawEntryRecord(nil, s.Index, &s.Head, s.Effects))
		f.Add(AppendStubRecord(nil, s.Index, &s.Head))
		f.Add(AppendPadRecord(nil, s.Index, s.Index/2))
		for j := range e.Appends {
			f.Add(AppendAppendRecord(nil, s.Index, i, e.Appends[j].Raw))
		}
		for _, v := range e.Values {
			f.Add(AppendValueRecord(nil, s.Index, i, v))
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := ParseRecord(b)
		if err != nil {
			return
		}
		var again []byte
		switch r.Kind {
		case KindAppend:
			again = AppendAppendRecord(nil, r.Index, int(r.Ordinal), r.Append.Raw)
		case KindValue:
			again = AppendValueRecord(nil, r.Index, int(r.Ordinal), r.Value)
		case KindPad:
			again = AppendPadRecord(nil, r.Index, r.Commit)
		case KindStub:
			again = AppendStubRecord(nil, r.Index, &r.Head)
		case KindEntry:
			again = append(appendHead(appendPrefix(nil, KindEntry, r.Index), &r.Head), 0)
			if r.split {
				again[len(again)-1] = 1
			}
			again = append(again, r.body...)
			appends, values := r.Parts()
			if appends > 1<<10 || values > 1<<10 {
				return
			}
			if data, err := r.Join(make([][]byte, appends), make([]Value, values)); err == nil && Hash(data) != r.Head.Hash {
				t.Fatalf("joined to %x, which is not of hash %016x", data, r.Head.Hash)
			}
		}
		if !bytes.Equal(again, b) {
			t.Fatalf("%x encodes again to %x", b, again)
		}
	})
}
