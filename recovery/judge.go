package recovery

import (
	"errors"
	"fmt"
	"log/slog"
	"path"

	"queen/index"
	"queen/internal/crashpoint"
	"queen/internal/entry"
	"queen/raftlog"
	"queen/segment"
)

// read scans the logs and replays what is complete.
func (b *boot) read() (*image, error) {
	if err := b.checkFiles(); err != nil {
		return nil, err
	}
	m := &image{
		machine:  b.cfg.Group.Machine,
		footer:   raftlog.Footer{From: b.footer.From, To: b.footer.To, FromTerm: b.footer.FromTerm, ToTerm: b.footer.ToTerm, Time: b.footer.Time},
		single:   b.state.Conf.OnlyVoter(b.cfg.Group.NodeID),
		believe:  b.believe,
		confDone: b.state.ConfIndex,
		maxTerm:  b.state.Term,
	}
	defer func() {
		for _, c := range m.all {
			c.stop()
		}
	}()
	logs := b.store.Logs()
	files := make([][]scanFile, len(logs))
	reading := 0
	for i, q := range logs {
		var err error
		if files[i], err = b.filesOf(q); err != nil {
			return nil, err
		}
		if len(files[i]) > 0 {
			reading++
		} else if err := checkNewest(q); err != nil {
			return nil, err
		}
	}
	for i, q := range logs {
		m.all = append(m.all, newCursor(q, files[i], windowOf(reading), m.note))
	}
	if err := m.run(); err != nil {
		return nil, err
	}
	return m, nil
}

// checkNewest reads the newest file of a log of which nothing else is read. The
// log goes on behind it, so it has to end with a record; it is sealed, so what
// is not one is damage.
func checkNewest(q *raftlog.QueueLog) error {
	segments := q.Log.Segments()
	if len(segments) == 0 {
		return nil
	}
	seq := segments[len(segments)-1].Seq
	_, err := q.Log.Scan(seq, 0, nil)
	var torn *segment.TornError
	if errors.As(err, &torn) {
		return &RefuseError{File: torn.File, Pos: torn.Pos, What: "a sealed file is damaged: " + torn.What, Expected: torn.Expected, Found: torn.Found,
			Err: segment.ErrCorrupt}
	}
	if err != nil {
		return scanError(place{q, seq, 0}, err)
	}
	return nil
}

// All logs are read at once, each through a window. These are bytes.
const (
	windowsTotal = 64 << 20
	windowMin    = 64 << 10 // smaller ones would cost more reads than memory
	windowMax    = 1 << 20
)

// windowOf is the window of each of n logs.
func windowOf(n int) int { return min(max(windowsTotal/max(n, 1), windowMin), windowMax) }

// reconcile learns which files are sealed. A file that is shorter than its
// side table says has lost what was durable: a table is made from a file that
// never changes again (I4).
func (b *boot) reconcile() error {
	b.sealed = make(map[uint64]map[uint64]index.FileInfo)
	for _, q := range b.store.Logs() {
		segments := q.Log.Segments()
		ids := make([]index.FileID, 0, len(segments))
		bySeq := make(map[uint64]segment.SegmentInfo, len(segments))
		for _, s := range segments {
			ids = append(ids, index.FileID{Seq: s.Seq, Generation: s.Generation, Size: s.Size})
			bySeq[s.Seq] = s
		}
		for _, t := range q.Index.Files() {
			if s, ok := bySeq[t.Seq]; ok && s.Generation == t.Generation && s.Size < t.Size {
				return lost(path.Join(q.Log.Dir(), segment.FileName(s.Seq)), "the file is shorter than it was when it was sealed",
					fmt.Sprintf("%d bytes", t.Size), fmt.Sprintf("%d bytes", s.Size))
			}
		}
		q.Index.Reconcile(ids)
		for _, err := range q.Index.Problems() {
			b.cfg.Group.Logger.Warn("a side table is damaged and is made again", slog.Uint64("log", q.ID), slog.Any("err", err))
		}
		sealed := make(map[uint64]index.FileInfo)
		for _, t := range q.Index.Files() {
			sealed[t.Seq] = t
		}
		b.sealed[q.ID] = sealed
	}
	return nil
}

// filesOf lists the files of a log that have to be read: all that are not
// sealed, for what only memory would know of them, and the sealed ones with
// entries above the checkpoint. It tells the store what is known of the others.
func (b *boot) filesOf(q *raftlog.QueueLog) ([]scanFile, error) {
	segments := q.Log.Segments()
	infos := make([]raftlog.FileInfo, 0, len(segments))
	var files []scanFile
	var base raftlog.EndMark // where what is not read ends
	for i, s := range segments {
		if i > 0 && s.Seq != segments[i-1].Seq+1 && !b.claimedGap(q.ID, max(segments[i-1].Seq, segments[i-1].Covers), s.Seq) {
			return nil, &RefuseError{File: path.Join(q.Log.Dir(), segment.FileName(segments[i-1].Seq+1)), Pos: -1, What: "a file is gone from the middle of a log",
				Expected: fmt.Sprintf("file %d, or a checkpoint in %s that knows that it was freed", segments[i-1].Seq+1, b.rowsAt), Found: fmt.Sprintf("file %d after file %d", s.Seq, segments[i-1].Seq)}
		}
		info := raftlog.FileInfo{Seq: s.Seq, Generation: s.Generation, Size: s.Size, Active: s.Active}
		t, sealed := b.sealed[q.ID][s.Seq]
		if sealed {
			info.Sealed, info.Active = true, false
			info.MinIndex, info.MaxIndex, info.MinTime, info.MaxTime = t.MinIndex, t.MaxIndex, t.MinTime, t.MaxTime
		}
		covered := sealed && t.MaxIndex <= b.footer.From
		if covered && len(files) == 0 {
			base = raftlog.EndMark{Index: t.MaxIndex, Seq: s.Seq, End: s.Size, Time: t.MaxTime}
		}
		if !covered {
			files = append(files, scanFile{seq: s.Seq, size: s.Size, sealed: sealed, newest: i == len(segments)-1})
		}
		infos = append(infos, info)
	}
	q.SetFiles(infos, base)
	return files, nil
}

// claimedGap reports whether the checkpoint knows that the files between two
// were freed.
func (b *boot) claimedGap(log, before, after uint64) bool {
	if after == before+1 {
		return true // the file before covers what is missing
	}
	for _, c := range b.claims {
		if c.Log != log || len(c.Seqs) == 0 || c.Seqs[len(c.Seqs)-1] < after {
			continue
		}
		for _, s := range c.Seqs {
			if s > before && s < after {
				return false
			}
		}
		return true
	}
	return false
}

// judge decides whether what was found may be started on: the run of complete
// entries must reach everything that is proven durable (I2).
func (b *boot) judge(m *image) error {
	if err := b.checkEnds(m.all); err != nil {
		return err
	}
	proven, by := m.claim, m.claimBy
	if b.footer.To > proven {
		proven, by = b.footer.To, "the newest checkpoint"
	}
	if proven < m.stopped {
		return nil
	}
	e := &RefuseError{File: path.Join(b.dir, "log"), Pos: -1, Index: m.stopped, What: "durable data is gone: " + m.missingText(),
		Expected: fmt.Sprintf("every entry up to %d, which %s proves durable", proven, by), Found: fmt.Sprintf("a complete run up to %d", m.last)}
	if b.footer.To == 0 && m.stopped == 1 && m.missing == missingEverywhere {
		// A log is freed from its start only once a checkpoint is durable.
		e.File, e.What = b.rowsAt, "durable data is gone: no finished checkpoint, and the logs do not go back to entry 1"
		return e
	}
	if m.missAt.seq != 0 {
		e.File, e.Pos = m.missAt.file(), m.missAt.pos
	}
	if bad := m.suspect(); bad != nil {
		e.File, e.Pos, e.Err = bad.at.file(), bad.at.pos, bad.err
		if e.Err == nil {
			e.Err = errors.New(bad.what)
		}
	}
	return e
}

// suspect is the place that an operator wants to look at when data is gone.
// Zeros stand at the end of most logs, so they are it only when nothing else is.
func (m *image) suspect() (bad *badEnd) {
	for _, c := range m.all {
		if c.bad != nil && (bad == nil || bad.zeros && !c.bad.zeros) {
			bad = c.bad
		}
	}
	return bad
}

func (m *image) missingText() string {
	if m.missing == "" {
		return "the logs end before it"
	}
	return m.missing
}

// cut takes everything from the first incomplete entry on out of every log,
// and what is unreadable behind their ends (I1, I5). Zeros behind the last
// record stay: they are space for the next one.
func (b *boot) cut(m *image) error {
	plan := make([]place, 0, len(m.all))
	for _, c := range m.all {
		switch {
		case c.cutAt.seq != 0:
			plan = append(plan, c.cutAt)
		case c.bad != nil && c.bad.zeros:
			b.store.EndLog(c.q, c.bad.at.seq, c.bad.at.pos)
		case c.bad != nil:
			plan = append(plan, c.bad.at)
		}
	}
	if len(plan) == 0 {
		return nil
	}
	b.report.Cut = m.stopped
	if m.seen >= m.stopped {
		b.report.CutSeen = int(m.seen - m.stopped + 1)
	}
	b.cfg.Group.Logger.Warn("torn tail cut: none of it is proven durable",
		slog.Uint64("index", m.stopped), slog.String("missing", m.missingText()), slog.Int("logs", len(plan)),
		slog.Int("entries_that_could_have_been_answered", b.report.CutSeen), slog.Uint64("proven_durable", m.claim))
	return b.cutMarked(m.stopped, plan)
}

// cutMarked cuts logs under a mark, so that a crash in between is finished by
// the next boot.
func (b *boot) cutMarked(index uint64, plan []place) error {
	dir := raftlog.StateDir(b.dir)
	b.state.Cut = index
	if err := raftlog.SaveState(b.fs, dir, &b.state); err != nil {
		return err
	}
	crashpoint.Hit("boot.cut.marked")
	for _, p := range plan {
		if err := b.store.CutLog(p.q, p.seq, p.pos); err != nil {
			return err
		}
		crashpoint.Hit("boot.cut.log")
	}
	b.state.Cut = 0
	return raftlog.SaveState(b.fs, dir, &b.state)
}

// finishCut redoes a cut that a crash interrupted, before anything is judged
// (F3): a log that was not cut yet would still prove what is being taken away.
func (b *boot) finishCut() error {
	if b.state.Cut == 0 {
		return nil
	}
	var plan []place
	for _, q := range b.store.Logs() {
		p, ok, err := firstFrom(q, b.sealed[q.ID], b.state.Cut)
		if err != nil {
			return err
		}
		if ok {
			plan = append(plan, p)
		}
	}
	b.cfg.Group.Logger.Warn("a cut that was interrupted is finished", slog.Uint64("index", b.state.Cut), slog.Int("logs", len(plan)))
	return b.cutMarked(b.state.Cut, plan)
}

// firstFrom finds the first record of a log that belongs to entry from or a
// later one. Sealed files hold none.
func firstFrom(q *raftlog.QueueLog, sealed map[uint64]index.FileInfo, from uint64) (p place, found bool, err error) {
	for _, s := range q.Log.Segments() {
		if _, ok := sealed[s.Seq]; ok {
			continue
		}
		_, err := q.Log.Scan(s.Seq, 0, func(pos int64, body []byte) error {
			rec, err := entry.ParseRecord(body)
			if err != nil {
				return err
			}
			if rec.Index >= from {
				p, found = place{q, s.Seq, pos}, true
				return errStopped
			}
			return nil
		})
		if found {
			return p, true, nil
		}
		if err != nil && !errors.Is(err, segment.ErrTorn) { // a torn end is judged later
			return p, false, scanError(place{q, s.Seq, 0}, err)
		}
	}
	return p, false, nil
}

func isNewer(err error) bool {
	return errors.Is(err, segment.ErrNewerFormat) || errors.Is(err, index.ErrNewerFormat) || errors.Is(err, raftlog.ErrNewerFormat)
}

// rowsError turns damage of the checkpoint into a refusal: rows are derived
// from nothing else.
func rowsError(dir string, err error) error {
	var corrupt *index.CorruptError
	switch {
	case errors.As(err, &corrupt):
		return &RefuseError{File: dir, Pos: -1, What: "the checkpoint is damaged", Err: err}
	case isNewer(err):
		return newerOr(err)
	}
	return fmt.Errorf("load the checkpoint: %w", err)
}
