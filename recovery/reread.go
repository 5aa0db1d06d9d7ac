package recovery

import (
	"errors"
	"fmt"
	"math"

	"queen/index"
	"queen/raftlog"
)

// reread is the read half of a boot beside a running group (F7): the rows of a
// checkpoint, and then the log up to an entry that is applied. Entries up to
// there are in no cut's reach, and what reclaim would replace is held still.
func reread(s *raftlog.Store, rows *index.RowsSnapshot, upTo uint64, machine raftlog.Machine, stop func() bool) error {
	defer s.Freeze()()
	var footer index.Footer
	if rows != nil {
		footer = rows.Footer
		if err := rows.Load(machine); err != nil {
			return fmt.Errorf("load the checkpoint: %w", err)
		}
	}
	if footer.To > upTo {
		return fmt.Errorf("the checkpoint holds entries up to %d: %w", footer.To, raftlog.ErrNotAllThere)
	}
	m := &image{
		machine: machine, live: upTo, confDone: upTo, maxTerm: math.MaxUint64, stop: stop,
		footer: raftlog.Footer{From: footer.From, To: upTo, FromTerm: footer.FromTerm, ToTerm: footer.ToTerm, Time: footer.Time},
	}
	defer func() {
		for _, c := range m.all {
			c.stop()
		}
	}()
	logs := s.Logs()
	files := make([][]scanFile, len(logs))
	reading := 0
	for i, q := range logs {
		if files[i] = liveFiles(q, footer.From, upTo); len(files[i]) > 0 {
			reading++
		}
	}
	for i, q := range logs {
		if len(files[i]) > 0 {
			m.all = append(m.all, newCursorUpTo(q, files[i], windowOf(reading), m.note, upTo))
		}
	}
	err := m.run()
	if errors.Is(err, errGivenUp) {
		return err
	}
	if m.last != upTo {
		// A running writer leaves half a record behind the last one now and then:
		// what a cursor says counts only when something is missing.
		return errors.Join(fmt.Errorf("entry %d: %s: %w", m.last+1, m.missingText(), raftlog.ErrNotAllThere), err)
	}
	return machine.Ready(s.SealedOnly())
}

// errGivenUp: the group stops meanwhile.
var errGivenUp = errors.New("given up")

// liveFiles lists the files of a running log that hold what no row or table
// knows: the unsealed ones, and what was sealed since the checkpoint.
func liveFiles(q *raftlog.QueueLog, from, upTo uint64) (files []scanFile) {
	all := q.Files()
	for i, f := range all {
		if f.Sealed && f.MaxIndex <= from || f.MinIndex > upTo || f.MinIndex == 0 {
			continue
		}
		files = append(files, scanFile{seq: f.Seq, size: f.Size, sealed: f.Sealed, newest: i == len(all)-1})
	}
	return files
}
