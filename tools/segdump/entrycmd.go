package main

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"queen/internal/entry"
	"queen/recovery"
)

// entry shows what all logs hold of one entry, and what a start makes of it.
func (t *tool) entry(args []string) (bool, error) {
	n, err := strconv.ParseUint(args[0], 10, 64)
	if err != nil || n == 0 {
		return false, fmt.Errorf("%w: %q is not the number of an entry", errUsage, args[0])
	}
	s, v, err := t.judged()
	if err != nil {
		return false, err
	}
	found, bad := false, true
	err = s.Walk(recovery.Walk{
		Skip: func(_ *recovery.SnapshotLog, f *recovery.SnapshotFile) bool {
			return f.Table != nil && (n < f.Table.MinIndex || n > f.Table.MaxIndex)
		},
		Entry: func(e *recovery.EntryAt) error {
			switch {
			case e.Index > n:
				return errEnough
			case e.Index < n:
				return nil
			}
			found, bad = true, e.Problem != nil
			return t.showEntry(s, &v, e)
		},
	})
	if err != nil && !errors.Is(err, errEnough) {
		return false, err
	}
	if found {
		return bad || n > v.Last && v.Refused == nil, nil
	}
	what := judgeAbsent(s, &v, n)
	return true, t.out.emit(object{{"index", n}, {"state", what.state}, {"verdict", what.text}}, fmt.Sprintf("entry %d: no record of it in any log\n  %s", n, what.text))
}

// judgement is what a start makes of an entry.
type judgement struct {
	state string // kept, covered, cut, damaged, absent
	text  string
}

// judge puts a start's verdict on the directory into words about one entry.
func judge(s *recovery.Snapshot, v *recovery.Verdict, e *recovery.EntryAt) judgement {
	whole := e.Problem == nil
	switch {
	case e.Index <= s.Footer.From && whole:
		return judgement{"covered", fmt.Sprintf("the checkpoint of entry %d holds its effects; a start does not replay it", s.Footer.From)}
	case e.Index <= s.Footer.From:
		return judgement{"damaged", fmt.Sprintf("the checkpoint of entry %d holds its effects, so a start may not notice; what is missing of it cannot be read", s.Footer.From)}
	case whole && e.Index <= v.Last:
		return judgement{"kept", "a start keeps it and replays it"}
	case e.Index <= v.Proven:
		return judgement{"damaged", fmt.Sprintf("a start refuses: %s proves everything up to entry %d durable", v.ProvenBy, v.Proven)}
	case v.Refused != nil && v.Stopped == 0:
		return judgement{"damaged", "a start refuses: " + v.Refused.Error()}
	case e.Index == v.Stopped:
		return judgement{"cut", fmt.Sprintf("a start cuts it, and everything after it, from every log: nothing above entry %d is proven durable", v.Proven)}
	case whole:
		return judgement{"cut", fmt.Sprintf("it is whole, but a start cuts it: entry %d before it is not", v.Stopped)}
	}
	return judgement{"cut", fmt.Sprintf("a start cuts everything from entry %d on", v.Stopped)}
}

func judgeAbsent(s *recovery.Snapshot, v *recovery.Verdict, n uint64) judgement {
	switch {
	case n <= s.Footer.From:
		return judgement{"absent", fmt.Sprintf("the checkpoint of entry %d holds its effects; its records are gone or were freed", s.Footer.From)}
	case n <= v.Proven:
		return judgement{"damaged", fmt.Sprintf("a start refuses: %s proves everything up to entry %d durable", v.ProvenBy, v.Proven)}
	case n == v.Stopped && v.Cut != 0:
		return judgement{"cut", "a start cuts everything after it"}
	}
	return judgement{"absent", fmt.Sprintf("the logs end at entry %d", v.Last)}
}

func (t *tool) showEntry(s *recovery.Snapshot, v *recovery.Verdict, e *recovery.EntryAt) error {
	what := judge(s, v, e)
	o := object{{"index", e.Index}, {"state", what.state}, {"whole", e.Problem == nil}, {"verdict", what.text}, {"problem", problemText(e.Problem)}, {"missing", append([]uint64{}, e.Missing...)}}
	var b strings.Builder
	fmt.Fprintf(&b, "entry %d: %s", e.Index, what.state)
	if e.Head != nil {
		o = append(o, headMembers(e.Head)[:4]...)
		fmt.Fprintf(&b, ", term %d %s hash %016x, %d copies in %s", e.Head.Term, entryType(e.Head.Type), e.Head.Hash, len(e.Head.Logs), logNames(e.Head.Logs))
	}
	copies, parts := []object{}, []object{}
	for i := range e.Copies {
		c := &e.Copies[i]
		o := object{{"log", c.Log}, {"file", t.short(c.File)}, {"pos", c.Pos}, {"kind", kindName(c.Kind)}, {"agrees", agrees(e, c)}}
		copies = append(copies, append(o, headMembers(&c.Head)...))
		differs := ""
		if !agrees(e, c) {
			differs = ", DIFFERS: " + headText(&c.Head)
		}
		fmt.Fprintf(&b, "\n  copy  q%d %s %s pos %d: commit %d durable %d%s", c.Log, kindName(c.Kind), t.short(c.File), c.Pos, c.Head.Commit, c.Head.Durable, differs)
	}
	for _, id := range e.Missing {
		fmt.Fprintf(&b, "\n  copy  q%d MISSING", id)
	}
	for i := range e.Parts {
		p := &e.Parts[i]
		parts = append(parts, partObject(t, p))
		fmt.Fprintf(&b, "\n  part  q%d %s %d %s pos %d: %s", p.Log, kindName(p.Kind), p.Ordinal, t.short(p.File), p.Pos, partText(p))
	}
	o = append(o, member{"copies", copies}, member{"parts", parts})
	if e.Problem != nil {
		fmt.Fprintf(&b, "\n  problem: %v", e.Problem)
	} else if e.Head.Type == 0 && len(e.Entry.GetData()) > 0 {
		parsed, err := entry.Parse(e.Entry.GetData())
		if err != nil {
			return err
		}
		list, text := effectsOf(parsed.Effects)
		o = append(o, member{"time", parsed.Time}, member{"touches", parsed.Touches}, member{"effects", list})
		fmt.Fprintf(&b, "\n  planned %s%s", stamp(parsed.Time), text)
		if t.opt.Payload {
			messages := []object{}
			for i := range parsed.Appends {
				list, text := t.messages(&parsed.Appends[i])
				messages = append(messages, list...)
				fmt.Fprintf(&b, "\n  append %d%s", i, text)
			}
			o = append(o, member{"messages", messages})
		}
	}
	fmt.Fprintf(&b, "\n  %s", what.text)
	return t.out.emit(o, b.String())
}

func agrees(e *recovery.EntryAt, c *recovery.PartAt) bool {
	h := e.Head
	return h != nil && h.Term == c.Head.Term && h.Type == c.Head.Type && h.Hash == c.Head.Hash && fmt.Sprint(h.Logs) == fmt.Sprint(c.Head.Logs)
}

func partObject(t *tool, p *recovery.PartAt) object {
	o := object{{"log", p.Log}, {"file", t.short(p.File)}, {"pos", p.Pos}, {"kind", kindName(p.Kind)}, {"ordinal", p.Ordinal}, {"queueId", p.Queue}}
	if p.Kind == entry.KindValue {
		return append(o, member{"valueId", p.Value})
	}
	return append(o, member{"partitionId", p.Partition}, member{"first", p.First}, member{"count", p.Count}, member{"time", p.Time})
}

func partText(p *recovery.PartAt) string {
	if p.Kind == entry.KindValue {
		return fmt.Sprintf("value %d of queue %d, %d bytes", p.Value, p.Queue, p.End-p.Pos)
	}
	return fmt.Sprintf("queue %d partition %d offsets %s, %d bytes", p.Queue, p.Partition, numbers(p.First, p.First+uint64(p.Count)-1), p.End-p.Pos)
}

func problemText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
