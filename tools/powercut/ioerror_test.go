package powercut

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"queen/index"
	"queen/internal/vfs"
	"queen/raftlog"
	"queen/recovery"
	"queen/segment"
)

// TestIOErrorIsNoDamage: a disk that says no during a start is neither a torn
// tail nor damage. The start fails with the disk's error and the file, changes
// nothing, and the next one finds everything as it was.
func TestIOErrorIsNoDamage(t *testing.T) {
	bubble(t, func(t *testing.T) {
		e, base := fullDirectory(t)
		intact, refusal, err := e.outcomeOf(base.Clone())
		if err := errors.Join(refusal, err); err != nil {
			t.Fatal(err)
		}
		for _, op := range []vfs.Op{vfs.OpRead, vfs.OpOpen, vfs.OpStat, vfs.OpList, vfs.OpLock, vfs.OpUsage} {
			places := 0
			for nth, reached := 1, true; reached; nth = nextPlace(nth) {
				if reached, err = e.failReading(base, op, nth, intact); err != nil {
					t.Errorf("%v number %d: %v", op, nth, err)
				}
				if reached {
					places++
				}
			}
			t.Logf("%v: %d places", op, places)
			if places == 0 {
				t.Errorf("a start makes no call %v", op)
			}
		}
	})
}

// failReading lets one call of a start fail.
func (e *epoch) failReading(base *vfs.Mem, op vfs.Op, nth int, intact reading) (reached bool, err error) {
	fs := base.Clone()
	before := contents(fs)
	fs.FailNth(op, nth, errDisk)
	n, told := start(fs, e.storage, e.cfg)
	if n != nil {
		n.gone()
	}
	reached = fs.Counts().Failed > 0
	switch {
	case !reached:
		return false, nil
	case told == nil && n.eng.Report().Cut == 0:
		// What is derived can be made again, and some reads come after the start.
	case told == nil:
		return true, fmt.Errorf("it started and cut at entry %d", n.eng.Report().Cut)
	case !errors.Is(told, errDisk), strings.Contains(told.Error(), "\n"):
		return true, fmt.Errorf("the start failed with %w", told)
	case errors.Is(told, recovery.ErrRefused), errors.Is(told, segment.ErrTorn), errors.Is(told, segment.ErrCorrupt),
		errors.Is(told, index.ErrCorrupt), errors.Is(told, raftlog.ErrDamaged), strings.Contains(told.Error(), "corrupt"), strings.Contains(told.Error(), "torn"):
		return true, fmt.Errorf("an I/O error is taken for damage: %w", told)
	default:
		if err := unchanged(before, contents(fs.Kill())); err != nil {
			return true, err
		}
	}
	got, refusal, err := e.outcomeOf(fs.Crash(0.5))
	if err := errors.Join(refusal, err); err != nil {
		return true, fmt.Errorf("the next start: %w", err)
	}
	if got != intact {
		return true, fmt.Errorf("the next start has %+v, want %+v", got, intact)
	}
	return true, nil
}
