package vfs

import (
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/cockroachdb/datadriven"
	"pgregory.net/rapid"
)

// TestCrash runs the scripts testdata/crash. Each line of the input is a call:
//
//	write NAME POS TEXT   truncate NAME SIZE   sync NAME   create NAME
//	mkdir DIR  remove NAME  removeall NAME  rename OLD NEW  syncdir DIR  syncall
//	fail OP N             the N-th call of that kind fails
//
// and the commands are: do (run the lines), crash (argument keep), kill, and
// new (argument seed). Each prints the tree afterwards; 0 stands for a zero byte.
func TestCrash(t *testing.T) {
	t.Parallel()
	m := NewMem(1)
	datadriven.RunTest(t, "testdata/crash", func(t *testing.T, d *datadriven.TestData) string {
		var out strings.Builder
		switch d.Cmd {
		case "new":
			var seed int
			d.ScanArgs(t, "seed", &seed)
			m = NewMem(uint64(seed))
			return ""
		case "do":
			for line := range strings.Lines(d.Input) {
				if err := call(m, strings.Fields(line)); err != nil {
					fmt.Fprintln(&out, err)
				}
			}
		case "crash":
			var keep string
			d.ScanArgs(t, "keep", &keep)
			p, err := strconv.ParseFloat(keep, 64)
			must(t, err)
			m = m.Crash(p)
		case "kill":
			m = m.Kill()
		}
		return out.String() + tree(t, m, "/") + "\n"
	})
}

var opsByName = map[string]Op{"sync": OpSync, "write": OpWrite, "shortwrite": OpShortWrite, "syncdir": OpSyncDir, "syncall": OpSyncAll, "any": OpAny}

var errInjected = errors.New("injected")

func call(m *Mem, words []string) error {
	withFile := func(fn func(f File) error) error {
		f, err := m.OpenReadWrite(words[1])
		if errors.Is(err, fs.ErrNotExist) {
			f, err = m.Create(words[1])
		}
		if err != nil {
			return err
		}
		return errors.Join(fn(f), f.Close())
	}
	number := func(i int) int64 {
		n, err := strconv.ParseInt(words[i], 10, 64)
		if err != nil {
			panic(err)
		}
		return n
	}
	switch words[0] {
	case "create":
		f, err := m.Create(words[1])
		if err != nil {
			return err
		}
		return f.Close()
	case "write":
		return withFile(func(f File) error {
			_, err := f.WriteAt([]byte(words[3]), number(2))
			return err
		})
	case "truncate":
		return withFile(func(f File) error { return f.Truncate(number(2)) })
	case "sync":
		return withFile(func(f File) error { return f.Sync() })
	case "mkdir":
		return m.MkdirAll(words[1])
	case "remove":
		return m.Remove(words[1])
	case "removeall":
		return m.RemoveAll(words[1])
	case "rename":
		return m.Rename(words[1], words[2])
	case "syncdir":
		return m.SyncDir(words[1])
	case "syncall":
		return m.SyncAll("/")
	case "fail":
		m.FailNth(opsByName[words[1]], int(number(2)), errInjected)
		return nil
	}
	panic("unknown call " + words[0])
}

func TestCrashedFileSystemFailsEveryCall(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*Mem) *Mem{
		"crash": func(m *Mem) *Mem { return m.Crash(0.5) },
		"kill":  (*Mem).Kill,
	} {
		m := NewMem(1)
		put(t, m, "a", "x", true)
		f, err := m.OpenReadWrite("a")
		must(t, err)
		_, err = m.Lock("LOCK")
		must(t, err)
		must(t, m.SyncDir("/"))
		next := end(m)
		drop := func(_ any, err error) error { return err }
		for what, err := range map[string]error{
			"create": drop(m.Create("b")), "open": drop(m.Open("a")), "remove": m.Remove("a"), "rename": m.Rename("a", "b"),
			"mkdir": m.MkdirAll("d"), "list": drop(m.List("/")), "stat": drop(m.Stat("a")), "syncdir": m.SyncDir("/"),
			"syncall": m.SyncAll("/"), "lock": drop(m.Lock("LOCK")), "usage": drop(m.Usage("/")), "removeall": m.RemoveAll("a"),
			"read": drop(f.ReadAt(make([]byte, 1), 0)), "write": drop(f.WriteAt([]byte("y"), 0)), "sync": f.Sync(),
			"truncate": f.Truncate(0), "size": drop(f.Size()), "close": f.Close(), "flip": m.Flip("a", 0, 1),
		} {
			mustFail(t, name+": "+what, err, ErrCrashed)
		}
		if got := get(t, next, "a"); got != "x" {
			t.Fatalf("%s: %q", name, got)
		}
		lock, err := next.Lock("LOCK")
		must(t, err)
		must(t, lock.Close())
	}
}

func TestCrashIsAFunctionOfTheSeed(t *testing.T) {
	t.Parallel()
	outcome := func(seed uint64) string {
		m := NewMem(seed)
		must(t, m.MkdirAll("d"))
		for i := range 20 {
			put(t, m, fmt.Sprint("d/f", i), strings.Repeat("x", i), i%2 == 0)
			if i == 10 {
				must(t, m.SyncAll("/"))
			}
		}
		return tree(t, m.Crash(0.5), "/")
	}
	if a, b := outcome(7), outcome(7); a != b {
		t.Fatalf("one seed, two outcomes:\n%s\n%s", a, b)
	}
	if outcome(7) == outcome(8) {
		t.Fatal("the seed has no effect")
	}
}

// TestCrashKeepsWhatWasSynced drives one file with random writes and syncs
// beside a plain copy: after any crash each byte is one that was there at the
// last sync or was written since, and with keep 0 and 1 exactly the old or the
// new content is there.
func TestCrashKeepsWhatWasSynced(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		m := NewMem(rapid.Uint64().Draw(rt, "seed"))
		f, err := m.Create("f")
		if err != nil {
			rt.Fatal(err)
		}
		if err := m.SyncDir("/"); err != nil {
			rt.Fatal(err)
		}
		var now, synced []byte
		var sizes = []int{0}                  // since the last sync
		possible := make([]map[byte]bool, 64) // by position
		reset := func() {
			for i := range possible {
				possible[i] = map[byte]bool{0: true}
			}
			for i, c := range synced {
				possible[i] = map[byte]bool{c: true}
			}
			sizes = []int{len(synced)}
		}
		reset()
		rt.Repeat(map[string]func(*rapid.T){
			"write": func(rt *rapid.T) {
				pos := rapid.IntRange(0, 40).Draw(rt, "pos")
				data := rapid.SliceOfN(rapid.Byte(), 1, 20).Draw(rt, "data")
				if _, err := f.WriteAt(data, int64(pos)); err != nil {
					rt.Fatal(err)
				}
				now = append(now, make([]byte, max(0, pos+len(data)-len(now)))...)
				copy(now[pos:], data)
				for i, c := range data {
					possible[pos+i][c] = true
				}
				sizes = append(sizes, len(now), pos+len(data))
			},
			"truncate": func(rt *rapid.T) {
				size := rapid.IntRange(0, 60).Draw(rt, "size")
				if err := f.Truncate(int64(size)); err != nil {
					rt.Fatal(err)
				}
				now = append(now[:min(size, len(now))], make([]byte, max(0, size-len(now)))...)
				for i := range possible {
					possible[i][0] = true
				}
				sizes = append(sizes, size)
			},
			"sync": func(rt *rapid.T) {
				if err := f.Sync(); err != nil {
					rt.Fatal(err)
				}
				synced = append([]byte(nil), now...)
				reset()
			},
			"": func(rt *rapid.T) {
				for keep, want := range map[float64][]byte{0: synced, 1: now} {
					if got, err := ReadFile(m.Clone().Crash(keep), "f"); err != nil || string(got) != string(want) {
						rt.Fatalf("keep %v: %q, want %q, %v", keep, got, want, err)
					}
				}
				got, err := ReadFile(m.Clone().Crash(0.5), "f")
				if err != nil {
					rt.Fatal(err)
				}
				for i, c := range got {
					if !possible[i][c] {
						rt.Fatalf("byte %d is %d, which nobody wrote", i, c)
					}
				}
				if len(got) > maxOf(sizes) {
					rt.Fatalf("size %d, written were %v", len(got), sizes)
				}
			},
		})
	})
}

func maxOf(sizes []int) int {
	m := 0
	for _, s := range sizes {
		m = max(m, s)
	}
	return m
}

func TestFailNth(t *testing.T) {
	t.Parallel()
	m := NewMem(1)
	f, err := m.Create("a")
	must(t, err)
	m.FailNth(OpWrite, 2, errInjected)
	for i, want := range []error{nil, errInjected, nil} {
		if _, err := f.WriteAt([]byte("x"), int64(i)); !errors.Is(err, want) {
			t.Fatalf("write %d: %v, want %v", i, err, want)
		}
	}
	if got := get(t, m, "a"); got != "x\x00x" {
		t.Fatalf("%q", got)
	}
	m.FailNth(OpShortWrite, 1, errInjected)
	if n, err := f.WriteAt([]byte("abcdef"), 0); n != 3 || !errors.Is(err, errInjected) {
		t.Fatalf("short write: %d, %v", n, err)
	}
	if got := get(t, m, "a"); got != "abc" {
		t.Fatalf("%q", got)
	}
	m.FailNth(OpAny, 3, errInjected)
	m.FailNth(OpStat, 1, errInjected)
	_, err = m.Stat("a")
	mustFail(t, "stat", err, errInjected)
	_, err = m.Stat("a")
	must(t, err)
	_, err = m.Stat("a")
	mustFail(t, "third call", err, errInjected)
	if c := m.Counts(); c.Failed != 4 || c.Write != 4 || c.Create != 1 || c.BytesWritten != 5 {
		t.Fatalf("%+v", c)
	}
	m.FailNth(OpClose, 1, errInjected)
	mustFail(t, "close", f.Close(), errInjected)
	_, err = f.Size()
	mustFail(t, "use after a failed close", err, fs.ErrClosed)
}

func TestHook(t *testing.T) {
	t.Parallel()
	m := NewMem(1)
	var seen []string
	var after *Mem
	m.SetHook(func(op Op, name string) error {
		seen = append(seen, op.String()+" "+name)
		if op == OpSync {
			after = m.Crash(0)
		}
		return nil
	})
	f, err := m.Create("a")
	must(t, err)
	mustFail(t, "sync that crashes", f.Sync(), ErrCrashed)
	m.SetHook(nil)
	if got, want := strings.Join(seen, ", "), "create a, fdatasync a"; got != want {
		t.Fatalf("%s, want %s", got, want)
	}
	if got := tree(t, after, "/"); got != "" {
		t.Fatalf("%q survived", got)
	}
}

func TestCapacity(t *testing.T) {
	t.Parallel()
	m := NewMem(1)
	m.SetCapacity(10)
	f, err := m.Create("a")
	must(t, err)
	n, err := f.WriteAt([]byte("0123456789ab"), 0)
	if n != 10 || !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("%d, %v", n, err)
	}
	_, err = f.WriteAt([]byte("x"), 0)
	must(t, err)
	g, err := m.Create("b")
	must(t, err)
	_, err = g.WriteAt([]byte("x"), 5)
	mustFail(t, "write into a full volume", err, syscall.ENOSPC)
	free := func() uint64 {
		u, err := m.Usage("/")
		must(t, err)
		return u.Free
	}
	if got := free(); got != 0 {
		t.Fatalf("%d free", got)
	}
	must(t, f.Truncate(7))
	if n, err := g.WriteAt([]byte("xyz"), 2); n != 1 || !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("%d, %v", n, err)
	}
	must(t, m.Rename("b", "a"))
	if got := free(); got != 7 {
		t.Fatalf("%d free after the larger file was replaced", got)
	}
	if got := m.Crash(0); got.disk.used.Load() != 0 || got.disk.capacity.Load() != 10 {
		t.Fatalf("%d used after losing everything", got.disk.used.Load())
	}
}

func TestHoldSync(t *testing.T) {
	t.Parallel()
	m := NewMem(1)
	f, err := m.Create("a")
	must(t, err)
	must(t, m.SyncDir("/"))
	_, err = f.WriteAt([]byte("before"), 0)
	must(t, err)
	release := m.HoldSync()
	results := make(chan error, 2)
	go func() { results <- f.Sync() }()
	m.WaitHeld(1)
	go func() { results <- m.SyncAll("/") }()
	m.WaitHeld(2)
	_, err = f.WriteAt([]byte(" after"), 6)
	must(t, err)
	select {
	case err := <-results:
		t.Fatalf("a held sync returned: %v", err)
	default:
	}
	if got := get(t, m.Clone().Crash(0), "a"); got != "" {
		t.Fatalf("%q is durable before the sync returned", got)
	}
	release()
	release()
	must(t, <-results)
	must(t, <-results)
	if got := get(t, m.Clone().Crash(0), "a"); got != "before" {
		t.Fatalf("%q is durable, the sync began after %q", got, "before")
	}
	m.HoldSync()
	go func() { results <- f.Sync() }()
	m.WaitHeld(1)
	m.Crash(0)
	mustFail(t, "held sync in a crash", <-results, ErrCrashed)
}

func TestCloneIsIndependent(t *testing.T) {
	t.Parallel()
	m := NewMem(1)
	put(t, m, "a", "synced", true)
	must(t, m.SyncDir("/"))
	put(t, m, "b", "not synced", false)
	must(t, m.Rename("a", "c"))
	c := m.Clone()
	must(t, c.Flip("c", 0, 0x20))
	put(t, c, "d", "", true)
	must(t, m.RemoveAll("b"))
	if got, want := tree(t, m, "/"), "c=synced"; got != want {
		t.Fatalf("%s, want %s", got, want)
	}
	if got, want := tree(t, c, "/"), "b=not synced c=Synced d="; got != want {
		t.Fatalf("%s, want %s", got, want)
	}
	if got, want := tree(t, c.Crash(0), "/"), "a=Synced"; got != want {
		t.Fatalf("%s, want %s", got, want)
	}
	if got, want := tree(t, m.Crash(0), "/"), "a=synced"; got != want {
		t.Fatalf("%s, want %s", got, want)
	}
}

func TestFlipOutside(t *testing.T) {
	t.Parallel()
	m := NewMem(1)
	put(t, m, "a", "x", true)
	if m.Flip("a", 1, 1) == nil || m.Flip("b", 0, 1) == nil {
		t.Fatal("flipped what is not there")
	}
}

func BenchmarkMemAppendSync(b *testing.B) {
	m := NewMem(1)
	f, err := m.Create("a")
	if err != nil {
		b.Fatal(err)
	}
	page := make([]byte, 4096)
	b.SetBytes(int64(len(page)))
	for i := range b.N {
		if _, err := f.WriteAt(page, int64(i%16384)*4096); err != nil {
			b.Fatal(err)
		}
		if err := f.Sync(); err != nil {
			b.Fatal(err)
		}
	}
}
