package vfs

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// onBoth runs a test on the real file system and on the memory one: they have
// to agree on everything that callers see.
func onBoth(t *testing.T, test func(t *testing.T, fsys FS, dir string)) {
	t.Run("os", func(t *testing.T) {
		t.Parallel()
		test(t, OS(), t.TempDir())
	})
	t.Run("mem", func(t *testing.T) {
		t.Parallel()
		m := NewMem(1)
		must(t, m.MkdirAll("/tmp/x"))
		test(t, m, "/tmp/x")
	})
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func mustFail(t *testing.T, what string, err, target error) {
	t.Helper()
	if !errors.Is(err, target) {
		t.Fatalf("%s: got %v, want %v", what, err, target)
	}
}

func put(t *testing.T, fsys FS, name, content string, sync bool) {
	t.Helper()
	f, err := fsys.Create(name)
	must(t, err)
	_, err = f.WriteAt([]byte(content), 0)
	must(t, err)
	if sync {
		must(t, f.Sync())
	}
	must(t, f.Close())
}

func get(t *testing.T, fsys FS, name string) string {
	t.Helper()
	b, err := ReadFile(fsys, name)
	must(t, err)
	return string(b)
}

// tree lists everything below dir as "name=content" and "name/".
func tree(t *testing.T, fsys FS, dir string) string {
	t.Helper()
	var parts []string
	var walk func(dir, prefix string)
	walk = func(dir, prefix string) {
		infos, err := fsys.List(dir)
		must(t, err)
		for _, e := range infos {
			name := filepath.Join(dir, e.Name)
			if e.Dir {
				parts = append(parts, prefix+e.Name+"/")
				walk(name, prefix+e.Name+"/")
				continue
			}
			content := get(t, fsys, name)
			if int64(len(content)) != e.Size {
				t.Fatalf("%s: listed with %d bytes, has %d", name, e.Size, len(content))
			}
			parts = append(parts, fmt.Sprintf("%s%s=%s", prefix, e.Name, strings.ReplaceAll(content, "\x00", "0")))
		}
	}
	walk(dir, "")
	return strings.Join(parts, " ")
}

func TestFiles(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, fsys FS, dir string) {
		name := filepath.Join(dir, "a")
		f, err := fsys.Create(name)
		must(t, err)
		_, err = f.WriteAt([]byte("hello"), 3)
		must(t, err)
		must(t, f.Sync())
		size, err := f.Size()
		must(t, err)
		if got := get(t, fsys, name); got != "\x00\x00\x00hello" || size != 8 {
			t.Fatalf("%q, size %d", got, size)
		}
		b := make([]byte, 10)
		if n, err := f.ReadAt(b, 6); n != 2 || err != io.EOF {
			t.Fatalf("read over the end: %d, %v", n, err)
		}
		if n, err := f.ReadAt(b[:2], 6); n != 2 || err != nil {
			t.Fatalf("read up to the end: %d, %v", n, err)
		}
		if n, err := f.ReadAt(b, 60); n != 0 || err != io.EOF {
			t.Fatalf("read behind the end: %d, %v", n, err)
		}
		must(t, f.Truncate(4))
		must(t, f.Truncate(6))
		if got := get(t, fsys, name); got != "\x00\x00\x00h\x00\x00" {
			t.Fatalf("after truncate: %q", got)
		}
		must(t, fsys.Remove(name))
		if n, err := f.ReadAt(b[:1], 3); n != 1 || err != nil || b[0] != 'h' {
			t.Fatalf("a removed file stays readable through its handle: %d, %v", n, err)
		}
		must(t, f.Close())
		mustFail(t, "second close", f.Close(), fs.ErrClosed)
		_, err = f.ReadAt(b, 0)
		mustFail(t, "read after close", err, fs.ErrClosed)
	})
}

func TestReadOnlyHandleRefusesWrites(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, fsys FS, dir string) {
		put(t, fsys, filepath.Join(dir, "a"), "x", true)
		f, err := fsys.Open(filepath.Join(dir, "a"))
		must(t, err)
		defer f.Close()
		if _, err := f.WriteAt([]byte("y"), 0); err == nil {
			t.Fatal("a read-only handle took a write")
		}
	})
}

func TestDirectories(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, fsys FS, dir string) {
		at := func(parts ...string) string { return filepath.Join(append([]string{dir}, parts...)...) }
		must(t, fsys.MkdirAll(at("d", "e")))
		must(t, fsys.MkdirAll(at("d", "e")))
		put(t, fsys, at("d", "b"), "B", true)
		put(t, fsys, at("d", "a"), "A", true)
		put(t, fsys, at("d", "e", "c"), "C", true)
		if got, want := tree(t, fsys, dir), "d/ d/a=A d/b=B d/e/ d/e/c=C"; got != want {
			t.Fatalf("%s, want %s", got, want)
		}
		must(t, fsys.Rename(at("d", "a"), at("d", "e", "c")))
		must(t, fsys.Rename(at("d", "e"), at("f")))
		if got, want := tree(t, fsys, dir), "d/ d/b=B f/ f/c=A"; got != want {
			t.Fatalf("%s, want %s", got, want)
		}
		info, err := fsys.Stat(at("f", "c"))
		if want := (Info{Name: "c", Size: 1}); err != nil || info != want {
			t.Fatalf("%+v, %v", info, err)
		}
		must(t, fsys.SyncDir(at("f")))
		must(t, fsys.SyncAll(dir))
		must(t, fsys.RemoveAll(at("f")))
		must(t, fsys.RemoveAll(at("f")))
		if got, want := tree(t, fsys, dir), "d/ d/b=B"; got != want {
			t.Fatalf("%s, want %s", got, want)
		}
		usage, err := fsys.Usage(dir)
		if err != nil || usage.Total == 0 || usage.Free > usage.Total {
			t.Fatalf("%+v, %v", usage, err)
		}
	})
}

func TestErrors(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, fsys FS, dir string) {
		at := func(parts ...string) string { return filepath.Join(append([]string{dir}, parts...)...) }
		put(t, fsys, at("file"), "x", true)
		must(t, fsys.MkdirAll(at("full")))
		put(t, fsys, at("full", "x"), "x", true)
		must(t, fsys.MkdirAll(at("empty")))
		fail := func(what string, target error, call func() error) {
			t.Helper()
			mustFail(t, what, call(), target)
		}
		drop := func(_ any, err error) error { return err }
		fail("open missing", fs.ErrNotExist, func() error { return drop(fsys.Open(at("no"))) })
		fail("open for writing missing", fs.ErrNotExist, func() error { return drop(fsys.OpenReadWrite(at("no"))) })
		fail("create in missing directory", fs.ErrNotExist, func() error { return drop(fsys.Create(at("no", "a"))) })
		fail("create below a file", syscall.ENOTDIR, func() error { return drop(fsys.Create(at("file", "a"))) })
		fail("create a directory's name", syscall.EISDIR, func() error { return drop(fsys.Create(at("full"))) })
		fail("remove missing", fs.ErrNotExist, func() error { return fsys.Remove(at("no")) })
		fail("remove full directory", syscall.ENOTEMPTY, func() error { return fsys.Remove(at("full")) })
		fail("rename missing", fs.ErrNotExist, func() error { return fsys.Rename(at("no"), at("a")) })
		// Go gives EEXIST for a directory as target, the kernel EISDIR.
		if err := fsys.Rename(at("file"), at("empty")); err == nil {
			t.Fatal("a file replaced a directory")
		}
		fail("rename directory over file", syscall.ENOTDIR, func() error { return fsys.Rename(at("empty"), at("file")) })
		fail("mkdir over file", syscall.ENOTDIR, func() error { return fsys.MkdirAll(at("file", "a")) })
		fail("list missing", fs.ErrNotExist, func() error { return drop(fsys.List(at("no"))) })
		fail("stat missing", fs.ErrNotExist, func() error { return drop(fsys.Stat(at("no"))) })
		fail("sync missing directory", fs.ErrNotExist, func() error { return fsys.SyncDir(at("no")) })
		must(t, fsys.Remove(at("empty")))
	})
}

func TestLock(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, fsys FS, dir string) {
		name := filepath.Join(dir, "LOCK")
		lock, err := fsys.Lock(name)
		must(t, err)
		if _, err := fsys.Lock(name); !errors.Is(err, ErrLocked) || !strings.Contains(err.Error(), name) {
			t.Fatalf("second holder: %v", err)
		}
		must(t, lock.Close())
		lock, err = fsys.Lock(name)
		must(t, err)
		must(t, lock.Close())
	})
}

func TestReplaceFile(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, fsys FS, dir string) {
		name := filepath.Join(dir, "state")
		for _, content := range []string{"one", "", "three"} {
			must(t, ReplaceFile(fsys, name, []byte(content)))
			if got := tree(t, fsys, dir); got != "state="+content {
				t.Fatalf("%s after writing %q", got, content)
			}
		}
	})
}

func TestConcurrentUse(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, fsys FS, dir string) {
		var wg sync.WaitGroup
		shared, err := fsys.Create(filepath.Join(dir, "shared"))
		must(t, err)
		for i := range 8 {
			wg.Go(func() {
				own := filepath.Join(dir, fmt.Sprint("f", i))
				for j := range 30 {
					if err := ReplaceFile(fsys, own, []byte(fmt.Sprint(i, " ", j))); err != nil {
						t.Error(err)
					}
					if _, err := shared.WriteAt([]byte{byte('a' + i)}, int64(i)); err != nil {
						t.Error(err)
					}
					if _, err := fsys.List(dir); err != nil {
						t.Error(err)
					}
					if j%10 == 0 {
						if err := shared.Sync(); err != nil {
							t.Error(err)
						}
					}
				}
			})
		}
		wg.Wait()
		must(t, shared.Close())
		want := "f0=0 29 f1=1 29 f2=2 29 f3=3 29 f4=4 29 f5=5 29 f6=6 29 f7=7 29 shared=abcdefgh"
		if got := tree(t, fsys, dir); got != want {
			t.Fatalf("%s, want %s", got, want)
		}
	})
}
