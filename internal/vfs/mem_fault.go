package vfs

import (
	"fmt"
	"sync"
	"sync/atomic"
)

// Op is a kind of call, for FailNth and hooks.
type Op uint8

// Kinds of calls. OpAny matches every call; OpShortWrite matches writes and
// makes the one that fails write its first half.
const (
	OpAny Op = iota
	OpCreate
	OpOpen
	OpRead
	OpWrite
	OpShortWrite
	OpSync
	OpTruncate
	OpClose
	OpRemove
	OpRemoveAll
	OpRename
	OpMkdir
	OpList
	OpStat
	OpSyncDir
	OpSyncAll
	OpLock
	OpUsage
	numOps
)

var opNames = [numOps]string{
	OpAny: "any", OpCreate: "create", OpOpen: "open", OpRead: "read", OpWrite: "write", OpShortWrite: "short write",
	OpSync: "fdatasync", OpTruncate: "truncate", OpClose: "close", OpRemove: "remove", OpRemoveAll: "removeall",
	OpRename: "rename", OpMkdir: "mkdir", OpList: "list", OpStat: "stat", OpSyncDir: "fsync directory",
	OpSyncAll: "syncfs", OpLock: "lock", OpUsage: "statfs",
}

func (o Op) String() string {
	if o < numOps {
		return opNames[o]
	}
	return fmt.Sprintf("op %d", uint8(o))
}

// Counts says how often each kind of call was made, failed ones included.
type Counts struct {
	Create, Open, Read, Write, Sync, Truncate, Close      int64
	Remove, RemoveAll, Rename, Mkdir, List, Stat, SyncDir int64
	SyncAll, Lock, Usage                                  int64
	BytesRead, BytesWritten                               int64
	Failed                                                int64 // faults of FailNth that have happened
}

type callState struct {
	counts                  [numOps]atomic.Int64
	bytesRead, bytesWritten atomic.Int64
	failed                  atomic.Int64
	hook                    atomic.Pointer[func(Op, string) error]
	armed                   atomic.Bool
	faults                  struct {
		sync.Mutex
		list []fault
	}
}

type fault struct {
	op   Op
	left int // calls to go; 1 is the next one
	err  error
}

// Counts returns the calls made so far through m.
func (m *Mem) Counts() Counts {
	n := func(op Op) int64 { return m.calls.counts[op].Load() }
	return Counts{
		Create: n(OpCreate), Open: n(OpOpen), Read: n(OpRead), Write: n(OpWrite), Sync: n(OpSync),
		Truncate: n(OpTruncate), Close: n(OpClose), Remove: n(OpRemove), RemoveAll: n(OpRemoveAll),
		Rename: n(OpRename), Mkdir: n(OpMkdir), List: n(OpList), Stat: n(OpStat), SyncDir: n(OpSyncDir),
		SyncAll: n(OpSyncAll), Lock: n(OpLock), Usage: n(OpUsage),
		BytesRead: m.calls.bytesRead.Load(), BytesWritten: m.calls.bytesWritten.Load(),
		Failed: m.calls.failed.Load(),
	}
}

// FailNth makes the n-th call of a kind from now (1: the next) fail with err,
// once. A call that fails has no effect, with these exceptions: OpShortWrite
// writes the first half; a failed sync leaves what it covered in doubt, for
// ever, whatever a later sync says; a file whose Close fails is closed.
// Several faults may be armed at once, each with a count of its own.
func (m *Mem) FailNth(op Op, n int, err error) {
	m.calls.faults.Lock()
	defer m.calls.faults.Unlock()
	m.calls.faults.list = append(m.calls.faults.list, fault{op, n, err})
	m.calls.armed.Store(true)
}

// SetHook has fn called before every call, with its kind and name and without
// a lock held; an error that it returns fails the call. nil takes it away. The
// hook may call Crash: the call that it was called for then fails.
func (m *Mem) SetHook(fn func(op Op, name string) error) {
	if fn == nil {
		m.calls.hook.Store(nil)
		return
	}
	m.calls.hook.Store(&fn)
}

// begin counts a call and says whether it is to fail.
func (m *Mem) begin(op Op, name string) error {
	_, err := m.beginAny(op, name)
	return err
}

// beginWrite also says how many bytes to write.
func (m *Mem) beginWrite(name string, size int) (limit int, err error) {
	matched, err := m.beginAny(OpWrite, name)
	switch {
	case err == nil:
		return size, nil
	case matched == OpShortWrite:
		return size / 2, err
	default:
		return 0, err
	}
}

func (m *Mem) beginAny(op Op, name string) (matched Op, err error) {
	m.calls.counts[op].Add(1)
	if hook := m.calls.hook.Load(); hook != nil {
		if err := (*hook)(op, name); err != nil {
			return op, err
		}
	}
	if !m.calls.armed.Load() {
		return op, nil
	}
	return m.nextFault(op)
}

func (m *Mem) nextFault(op Op) (matched Op, err error) {
	m.calls.faults.Lock()
	defer m.calls.faults.Unlock()
	kept := m.calls.faults.list[:0]
	for _, f := range m.calls.faults.list {
		if f.op == op || f.op == OpAny || f.op == OpShortWrite && op == OpWrite {
			f.left--
		}
		if f.left == 0 {
			matched, err = f.op, f.err
			m.calls.failed.Add(1)
			continue
		}
		kept = append(kept, f)
	}
	m.calls.faults.list = kept
	m.calls.armed.Store(len(kept) > 0)
	return matched, err
}

// holdState lets Sync and SyncAll wait.
type holdState struct {
	sync.Mutex
	cond    *sync.Cond
	holds   int
	waiting int
}

// HoldSync makes every Sync and SyncAll that is called from now on wait until
// release is called. A held sync covers what was written before it was called,
// not what was written while it waited. Crash ends the waiting with ErrCrashed.
func (m *Mem) HoldSync() (release func()) {
	m.hold.Lock()
	defer m.hold.Unlock()
	m.hold.holds++
	return sync.OnceFunc(func() {
		m.hold.Lock()
		defer m.hold.Unlock()
		m.hold.holds--
		m.hold.cond.Broadcast()
	})
}

// WaitHeld returns when at least n syncs are being held.
func (m *Mem) WaitHeld(n int) {
	m.hold.Lock()
	defer m.hold.Unlock()
	for m.hold.waiting < n {
		m.hold.cond.Wait()
	}
}

func (m *Mem) waitWhileHeld() {
	m.hold.Lock()
	defer m.hold.Unlock()
	if m.hold.holds == 0 {
		return
	}
	m.hold.waiting++
	m.hold.cond.Broadcast()
	for m.hold.holds > 0 && !m.dead.Load() {
		m.hold.cond.Wait()
	}
	m.hold.waiting--
}
