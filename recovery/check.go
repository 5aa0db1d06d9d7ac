package recovery

import (
	"errors"
	"fmt"
	"path"

	"queen/internal/entry"
	"queen/internal/vfs"
	"queen/raftlog"
)

// Verdict is what a start on a directory would do.
type Verdict struct {
	// Refused is why it would not start; nil: it would.
	Refused error
	From    uint64 // of the checkpoint: entries up to it are not replayed
	Last    uint64 // newest entry that it keeps
	// Stopped is the first entry above Last; Missing says what is not there of
	// it, "" when the logs end there.
	Stopped uint64
	Missing string
	// Cut is the first index that it would cut; 0: nothing. CutSeen counts the
	// entries above Last that the logs hold records of: they could have been answered.
	Cut     uint64
	CutSeen int
	// Proven is the highest index that something proves durable, and by what.
	Proven   uint64
	ProvenBy string
	// Mark is the index of a cut that was interrupted and that it would finish
	// first; 0: none.
	Mark uint64
}

// Check judges the directory with the code of a start (Open): the verdict is
// the same, and nothing is locked, written or cut. Rows and effects are not
// decoded. It reads what a start reads: the log above the checkpoint and the
// files that are not sealed.
func (s *Snapshot) Check() Verdict {
	v := Verdict{From: s.Footer.From}
	b := &boot{fs: s.FS, dir: s.Dir, state: s.State, footer: s.Footer, rowsAt: s.rowsAt, claims: s.Claims, believe: s.believed}
	b.cfg = &Config{Group: raftlog.Config{
		FS: s.FS, Dir: s.Dir, NodeID: s.Identity.Node, Shards: s.Identity.Shards, OpenFiles: 2 * openFiles, Machine: blindMachine{},
	}.WithDefaults()}
	img, err := s.check(b, &v)
	if img != nil {
		v.Last, v.Stopped, v.Missing, v.Proven, v.ProvenBy = img.last, img.stopped, img.missing, img.claim, img.claimBy
		if s.Footer.To > v.Proven {
			v.Proven, v.ProvenBy = s.Footer.To, "the newest checkpoint"
		}
		if err == nil && img.cuts() {
			v.Cut = img.stopped
			if img.seen >= img.stopped {
				v.CutSeen = int(img.seen - img.stopped + 1)
			}
		}
	}
	v.Refused = err
	if b.store != nil {
		_ = b.store.Close() // only read
	}
	return v
}

func (s *Snapshot) check(b *boot, v *Verdict) (img *image, err error) {
	if s.IdentityErr != nil {
		return nil, s.IdentityErr
	}
	if err := s.checkState(b); err != nil {
		return nil, err
	}
	if s.FooterErr != nil {
		return nil, rowsError(path.Join(s.Dir, checkpointDir), s.FooterErr)
	}
	if err := s.openStore(b); err != nil {
		return nil, err
	}
	if v.Mark = s.State.Cut; v.Mark != 0 {
		if err := s.pretendCut(b); err != nil {
			return nil, err
		}
	}
	if img, err = b.read(); err != nil {
		return img, err
	}
	return img, b.judge(img)
}

// checkState is loadState without its writes: of a directory with data.
func (s *Snapshot) checkState(b *boot) error {
	if s.StateErr == nil {
		return b.wantDirs()
	}
	err := b.loadState()
	if errors.Is(err, ErrReadOnly) || err == nil {
		return s.StateErr // a new directory, which a start would make
	}
	return err
}

func (s *Snapshot) openStore(b *boot) (err error) {
	if b.store, err = raftlog.OpenStore(b.storeOptions()); err != nil {
		return b.storeError(err)
	}
	return b.reconcile()
}

// pretendCut looks at the logs as they are once an interrupted cut is done.
func (s *Snapshot) pretendCut(b *boot) error {
	for _, q := range b.store.Logs() {
		p, ok, err := firstFrom(q, b.sealed[q.ID], s.State.Cut)
		if err != nil {
			return err
		}
		if ok {
			s.frozen.cutAt(q.Log.Dir(), p.seq, p.pos)
		}
	}
	_ = b.store.Close() // only read
	return s.openStore(b)
}

// believed reports whether the claims of a record count.
func (s *Snapshot) believed(it *item) bool {
	l := s.Log(it.at.q.ID)
	if l == nil {
		return false
	}
	f := l.File(it.at.seq)
	return f != nil && it.at.pos < f.Proven
}

// cuts reports whether there is anything to cut.
func (m *image) cuts() bool {
	for _, c := range m.all {
		if c.cutAt.seq != 0 || c.bad != nil && !c.bad.zeros {
			return true
		}
	}
	return false
}

// blindMachine takes a replay and keeps nothing.
type blindMachine struct{ raftlog.Machine }

func (blindMachine) Apply(uint64, uint64, []byte) error { return nil }
func (blindMachine) Remember(entry.Append) error        { return nil }

// SaveIdentity writes the FORMAT file of a new directory, durably.
func SaveIdentity(fsys vfs.FS, dir string, id Identity) error {
	if id.Cluster == "" || id.Node == 0 || id.Shards < 0 {
		return fmt.Errorf("identity %+v: cluster, node or shards are missing", id)
	}
	id.Version = FormatVersion
	return vfs.ReplaceFile(fsys, path.Join(dir, formatName), id.encode())
}
