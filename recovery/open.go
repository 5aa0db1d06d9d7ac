package recovery

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"path"
	"slices"
	"time"

	"queen/index"
	"queen/internal/crashpoint"
	"queen/internal/vfs"
	"queen/raftlog"
)

// Config says what to open.
type Config struct {
	Group raftlog.Config
	// NewClusterID is the cluster id of a directory that is made; empty: ClusterID, or a minted one.
	NewClusterID string
	// ClusterID is 32 hex digits that the nodes of a cluster share; empty takes
	// the directory's, or mints one when the directory is new.
	ClusterID string
	// Reserve is what a start on a full volume releases; nil: nothing.
	Reserve *Reserve
	// Voters are the nodes of a new cluster, for a directory that is made; empty:
	// this node alone. A directory that is there has its own membership.
	Voters []uint64
	// Random mints the cluster id; nil: crypto/rand.
	Random io.Reader
}

// Report says what a start found and did.
type Report struct {
	Identity Identity
	New      bool   // the directory was made
	From, To uint64 // of the checkpoint; 0: there was none
	Last     uint64 // newest entry kept
	Replayed int    // entries with effects that were replayed
	Cut      uint64 // first index that was cut; 0: nothing was
	CutSeen  int    // entries that were cut and could have been answered
	Took     time.Duration
}

const checkpointDir = "checkpoint"

// Open starts a group on a data directory: from nothing, from a clean stop or
// from a crash. It returns an error that wraps ErrInUse, ErrNewerFormat or
// ErrRefused when it must not start, and changes nothing then.
func Open(cfg Config) (*raftlog.Group, Report, error) {
	found, report, err := Recover(cfg)
	if err != nil {
		return nil, report, err
	}
	g, err := raftlog.Start(cfg.Group, found)
	if err != nil {
		return nil, report, errors.Join(err, found.Close())
	}
	return g, report, nil
}

// Recover is everything of Open but the start of the group: the directory is
// locked, judged, cut where it has to be, and replayed into the machine.
// Whoever does not start a group on the result closes it.
func Recover(cfg Config) (raftlog.Boot, Report, error) {
	cfg.Group = cfg.Group.WithDefaults()
	if cfg.Random == nil {
		cfg.Random = rand.Reader
	}
	begun := cfg.Group.Clock.Now()
	lock, err := takeLock(&cfg)
	if err != nil {
		return raftlog.Boot{}, Report{}, err
	}
	b := &boot{cfg: &cfg, fs: cfg.Group.FS, dir: cfg.Group.Dir}
	found, err := b.open(lock)
	if err != nil {
		if left := errors.Join(b.abandon(), lock.Close()); left != nil {
			cfg.Group.Logger.Warn("after the start failed, not all could be closed", slog.Any("err", left))
		}
		return raftlog.Boot{}, b.report, AdviseFull(err, b.dir)
	}
	b.report.Took = time.Duration(cfg.Group.Clock.Now().Mono - begun.Mono)
	cfg.Group.Logger.Info("data directory open", slog.String("dir", b.dir), slog.String("cluster", b.report.Identity.Cluster),
		slog.Uint64("from", b.report.From), slog.Uint64("last", b.report.Last), slog.Int("replayed", b.report.Replayed),
		slog.Uint64("cut", b.report.Cut), slog.Duration("took", b.report.Took))
	return found, b.report, nil
}

func takeLock(cfg *Config) (io.Closer, error) {
	fsys, dir := cfg.Group.FS, cfg.Group.Dir
	if _, err := fsys.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		if err := fsys.MkdirAll(dir); err != nil {
			return nil, fmt.Errorf("make the data directory: %w", err)
		}
		if err := fsys.SyncDir(path.Dir(dir)); err != nil {
			return nil, fmt.Errorf("make the data directory: %w", err)
		}
	}
	name := path.Join(dir, lockName)
	lock, err := fsys.Lock(name)
	if errors.Is(err, vfs.ErrLocked) {
		return nil, fmt.Errorf("%s is locked: another broker runs on this directory; stop it, or use another directory: %w", name, errors.Join(ErrInUse, err))
	}
	if err != nil {
		return nil, fmt.Errorf("lock %s: %w", name, err)
	}
	return lock, nil
}

// boot is one start.
type boot struct {
	cfg    *Config
	fs     vfs.FS
	dir    string
	report Report

	state  raftlog.State
	store  *raftlog.Store
	rows   *index.Rows
	footer index.Footer
	rowsAt string // file of the footer, or where one should be
	claims []raftlog.LogClaim
	kept   raftlog.KeptLog                      // of the log below the checkpoint
	sealed map[uint64]map[uint64]index.FileInfo // by log and file
	// believe tells whose claims count (I2); nil: everybody's. See Snapshot.
	believe func(*item) bool
}

// abandon closes what was opened, after an error.
func (b *boot) abandon() error {
	var errs []error
	if b.store != nil {
		errs = append(errs, b.store.Close())
	}
	if b.rows != nil {
		errs = append(errs, b.rows.Close())
	}
	return errors.Join(errs...)
}

// open is the story of a start.
func (b *boot) open(lock io.Closer) (none raftlog.Boot, err error) {
	id, err := ensureIdentity(b.cfg)
	if err != nil {
		return none, err
	}
	b.report.Identity = id
	if err := b.releaseReserve(); err != nil {
		return none, err
	}
	if err := b.loadState(); err != nil {
		return none, err
	}
	if b.store, err = raftlog.OpenStore(b.storeOptions()); err != nil {
		return none, b.storeError(err)
	}
	crashpoint.Hit("boot.opened")
	if err := b.reconcile(); err != nil {
		return none, err
	}
	if err := b.finishCut(); err != nil {
		return none, err
	}
	if err := b.loadRows(); err != nil {
		return none, err
	}
	crashpoint.Hit("boot.rows.loaded")
	img, err := b.read()
	if err != nil {
		return none, err
	}
	crashpoint.Hit("boot.read")
	if err := b.judge(img); err != nil {
		return none, err
	}
	if err := b.cut(img); err != nil {
		return none, err
	}
	if err := b.makeDurable(img); err != nil {
		return none, err
	}
	crashpoint.Hit("boot.durable")
	if err := b.cfg.Group.Machine.Ready(b.store.SealedOnly()); err != nil {
		return none, fmt.Errorf("build the state: %w", err)
	}
	b.report.From, b.report.To, b.report.Last, b.report.Replayed = b.footer.From, b.footer.To, img.last, img.replays
	return raftlog.Boot{
		Store: b.store, Rows: b.rows, State: b.state, Footer: img.footer,
		Terms: append(b.termsBelow(), img.terms...), Last: img.last, Applied: img.applied, Commit: img.committed(), Unapplied: img.pending,
		Replayed: img.replays, Lock: lock,
		Extra: func(s *raftlog.Store) []byte { return encodeExtra(s.Claims(), s.Kept()) },
		Kept:  b.kept, Entries: readEntries, Reread: reread,
	}, nil
}

func (b *boot) storeOptions() raftlog.StoreOptions {
	g := &b.cfg.Group
	return raftlog.StoreOptions{FS: b.fs, Dir: b.dir, Layout: raftlog.Layout{Shards: g.Shards}, SegmentBytes: g.SegmentBytes, OpenFiles: g.OpenFiles, Logger: g.Logger}
}

func (b *boot) storeError(err error) error {
	if errors.Is(err, raftlog.ErrForeign) {
		return &RefuseError{File: path.Join(b.dir, "log"), Pos: -1, What: "it does not belong here", Err: err, Do: "Move it out of the data directory"}
	}
	return newerOr(err)
}

// newerOr marks an error of a newer file format as what it is.
func newerOr(err error) error {
	if isNewer(err) {
		return fmt.Errorf("%w: %w", ErrNewerFormat, err)
	}
	return err
}

// loadState reads term, vote and membership. A directory without a state file
// is new, unless it has logs or a checkpoint: then the file was lost, and a
// node that forgot its vote must not run.
func (b *boot) loadState() error {
	dir := raftlog.StateDir(b.dir)
	st, found, err := raftlog.LoadState(b.fs, dir)
	switch {
	case errors.Is(err, raftlog.ErrNewerFormat):
		return fmt.Errorf("%w: %w", ErrNewerFormat, err)
	case errors.Is(err, raftlog.ErrDamaged):
		return &RefuseError{File: path.Join(dir, "state"), Pos: -1, What: "term, vote and membership cannot be read", Err: err,
			Do: "Remove this node from its cluster and add it anew, or restore the directory from a backup"}
	case err != nil:
		return err
	case found:
		b.state = st
		return b.wantDirs()
	}
	for _, name := range []string{"log", checkpointDir} {
		infos, err := b.fs.List(path.Join(b.dir, name))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("list %s: %w", name, err)
		}
		if len(infos) > 0 {
			return &RefuseError{File: path.Join(dir, "state"), Pos: -1, What: "the file is gone and there is data", Expected: "a file", Found: path.Join(name, infos[0].Name),
				Do: "Remove this node from its cluster and add it anew, or restore the directory from a backup"}
		}
	}
	b.report.New = true
	return b.makeState(dir)
}

// wantDirs refuses a directory whose logs or checkpoint are gone as a whole:
// they were made before the state file was.
func (b *boot) wantDirs() error {
	for _, name := range []string{"log", checkpointDir} {
		dir := path.Join(b.dir, name)
		if _, err := b.fs.Stat(dir); errors.Is(err, fs.ErrNotExist) {
			return &RefuseError{File: dir, Pos: -1, What: "the directory is gone", Expected: "a directory", Found: "none"}
		} else if err != nil {
			return fmt.Errorf("stat %s: %w", dir, err)
		}
	}
	return nil
}

// makeState makes a new directory's subdirectories and its first state: the
// voters of a new cluster, or this node alone.
func (b *boot) makeState(dir string) error {
	for _, d := range []string{dir, path.Join(b.dir, checkpointDir), path.Join(b.dir, "log")} {
		if err := b.fs.MkdirAll(d); err != nil {
			return fmt.Errorf("make %s: %w", d, err)
		}
	}
	if err := b.fs.SyncDir(b.dir); err != nil {
		return fmt.Errorf("sync %s: %w", b.dir, err)
	}
	voters := b.cfg.Voters
	if len(voters) == 0 {
		voters = []uint64{b.cfg.Group.NodeID}
	}
	b.state = raftlog.State{Conf: raftlog.Membership{Voters: voters}}
	return raftlog.SaveState(b.fs, dir, &b.state)
}

// termsBelow are the terms of the entries below the checkpoint that are kept for
// followers.
func (b *boot) termsBelow() []raftlog.TermRun {
	runs := b.kept.Runs
	for len(runs) > 0 && runs[len(runs)-1].First >= b.footer.From {
		runs = runs[:len(runs)-1] // the image begins there
	}
	return slices.Clone(runs)
}

func (b *boot) loadRows() (err error) {
	dir := path.Join(b.dir, checkpointDir)
	b.rows, b.footer, err = index.OpenRows(b.fs, dir, b.cfg.Group.Machine)
	if err != nil {
		return rowsError(dir, err)
	}
	b.rowsAt = b.rows.File()
	if b.claims, b.kept, err = decodeExtra(b.footer.Extra); err != nil {
		return &RefuseError{File: dir, Pos: -1, What: "footer of the checkpoint", Err: err}
	}
	return nil
}

// makeDurable syncs what a killed process left in the page cache: it is
// readable, and counts only once it is durable. What nothing proves to be so is
// written again first, because a sync may have failed before, and this one would
// not tell. Tables of no use go.
func (b *boot) makeDurable(img *image) error {
	unclean := false
	for _, c := range img.all {
		at, ok := c.above(img.claim)
		if !ok {
			continue
		}
		unclean = true
		if err := c.q.Log.WriteAgain(at.seq, at.pos); err != nil {
			return fmt.Errorf("log q%d: %w", c.q.ID, err)
		}
	}
	if unclean {
		if err := b.rows.WriteAgain(); err != nil {
			return err
		}
	}
	if err := b.rows.Sync(); err != nil {
		return fmt.Errorf("sync the checkpoint: %w", err)
	}
	for _, q := range b.store.Logs() {
		if err := q.Index.RemoveGarbage(); err != nil {
			return fmt.Errorf("index of log q%d: %w", q.ID, err)
		}
	}
	if err := b.store.SyncFound(); err != nil {
		return err
	}
	return b.store.RemoveGarbage()
}
