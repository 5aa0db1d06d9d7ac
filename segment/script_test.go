package segment

import (
	"errors"
	"fmt"
	"io"
	"path"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"queen/internal/vfs"
)

// TestScripts runs testdata/script/*. The commands, with [optional] arguments:
//
//	new [seed=N]                  an empty memory file system
//	open [segment-bytes=N] [id=N] open the log in directory log/q7
//	append N...                   records of N bytes; record i is filled with the letter of i
//	flush, sync, synced-by-fs, roll, park, close, remove
//	segments                      the files and whether the log is dirty
//	scan [file=N] [from=N]        one file, or all
//	read file=N pos=N [len=N]
//	truncate file=N pos=N         Truncate
//	remove-file file=N            RemoveSegment
//	crash keep=P, kill            of the file system; open comes next
//	flip file=N pos=N [mask=N]    damage
//	resize file=N size=N          cut a file behind the log's back, or add zeros
//	patch file=N pos=N hex=BYTES  overwrite
//	header file=N [version=N] [id=N] [generation=N]  overwrite the header with a valid one
//	copy file=N to=N              copy a file to another number
//	copy-record file=N pos=N len=N to=N  copy bytes within the file
//	fail op=NAME n=N              the n-th call of a kind fails
//	count                         calls of the file system since the last count
//	disk                          names and sizes of the files
func TestScripts(t *testing.T) {
	t.Parallel()
	datadriven.Walk(t, "testdata/script", func(t *testing.T, file string) {
		t.Parallel()
		s := &script{fsys: vfs.NewMem(1)}
		datadriven.RunTest(t, file, func(t *testing.T, d *datadriven.TestData) string {
			return s.run(t, d)
		})
	})
}

const scriptDir = "log/q7"

type script struct {
	fsys  *vfs.Mem
	log   *Log
	count vfs.Counts
	next  int
}

var errInjected = errors.New("injected")

var scriptOps = map[string]vfs.Op{
	"write": vfs.OpWrite, "short-write": vfs.OpShortWrite, "sync": vfs.OpSync, "syncdir": vfs.OpSyncDir,
	"create": vfs.OpCreate, "open": vfs.OpOpen, "close": vfs.OpClose, "remove": vfs.OpRemove, "truncate": vfs.OpTruncate,
	"read": vfs.OpRead,
}

func (s *script) run(t *testing.T, d *datadriven.TestData) string {
	result := func(err error) string {
		if err != nil {
			return err.Error() + "\n"
		}
		return "ok\n"
	}
	file := FileName(uint64(number(t, d, "file", 1)))
	name := path.Join(scriptDir, file)
	seq, pos := uint64(number(t, d, "file", 1)), int64(number(t, d, "pos", 0))
	switch d.Cmd {
	case "new":
		s.fsys, s.next, s.count = vfs.NewMem(uint64(number(t, d, "seed", 1))), 0, vfs.Counts{}
		return ""
	case "open":
		var err error
		s.log, err = Open(Options{
			FS: s.fsys, Dir: scriptDir, ID: uint64(number(t, d, "id", 7)), SegmentBytes: int64(number(t, d, "segment-bytes", 0)),
		})
		return result(err)
	case "append":
		return s.append(t, d)
	case "flush":
		return result(s.log.Flush())
	case "sync":
		return result(s.log.Sync())
	case "synced-by-fs":
		if err := s.fsys.SyncAll("/"); err != nil {
			return result(err)
		}
		return result(s.log.SyncedByFS())
	case "roll":
		return result(s.log.Roll())
	case "park":
		return result(s.log.Park())
	case "close":
		return result(s.log.Close())
	case "remove":
		return result(s.log.Remove())
	case "segments":
		return s.segments()
	case "scan":
		if d.HasArg("file") {
			return s.scan(seq, int64(number(t, d, "from", 0)))
		}
		var out strings.Builder
		for _, info := range s.log.Segments() {
			out.WriteString(s.scan(info.Seq, 0))
		}
		return out.String()
	case "read":
		return s.read(seq, pos, uint32(number(t, d, "len", 0)))
	case "truncate":
		return result(s.log.Truncate(seq, pos))
	case "remove-file":
		return result(s.log.RemoveSegment(seq))
	case "crash":
		var keep float64
		var text string
		d.ScanArgs(t, "keep", &text)
		if _, err := fmt.Sscan(text, &keep); err != nil {
			t.Fatal(err)
		}
		s.fsys, s.count = s.fsys.Crash(keep), vfs.Counts{}
		return ""
	case "kill":
		s.fsys, s.count = s.fsys.Kill(), vfs.Counts{}
		return ""
	case "flip":
		return result(s.fsys.Flip(name, pos, byte(number(t, d, "mask", 1))))
	case "resize":
		return result(s.edit(name, func(f vfs.File) error { return f.Truncate(int64(number(t, d, "size", 0))) }))
	case "patch":
		var text string
		d.ScanArgs(t, "hex", &text)
		var b []byte
		if _, err := fmt.Sscanf(text, "%x", &b); err != nil {
			t.Fatal(err)
		}
		return result(s.edit(name, func(f vfs.File) error { return write(f, b, pos) }))
	case "header":
		h := header{version: uint32(number(t, d, "version", 1)), id: uint64(number(t, d, "id", 7)), seq: seq, generation: uint64(number(t, d, "generation", 1))}
		b, _ := h.encode()
		return result(s.edit(name, func(f vfs.File) error { return write(f, b[:], 0) }))
	case "copy":
		b, err := vfs.ReadFile(s.fsys, name)
		if err != nil {
			return result(err)
		}
		return result(vfs.ReplaceFile(s.fsys, path.Join(scriptDir, FileName(uint64(number(t, d, "to", 0)))), b))
	case "copy-record":
		b := make([]byte, number(t, d, "len", 0))
		return result(s.edit(name, func(f vfs.File) error {
			if _, err := f.ReadAt(b, pos); err != nil {
				return err
			}
			return write(f, b, int64(number(t, d, "to", 0)))
		}))
	case "fail":
		var op string
		d.ScanArgs(t, "op", &op)
		s.fsys.FailNth(scriptOps[op], number(t, d, "n", 1), errInjected)
		return ""
	case "count":
		return s.counts()
	case "disk":
		return s.disk(t)
	}
	t.Fatalf("%s: unknown command %s", d.Pos, d.Cmd)
	return ""
}

func (s *script) disk(t *testing.T) string {
	infos, err := s.fsys.List("log/q7")
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for _, i := range infos {
		fmt.Fprintf(&b, "%s %d\n", i.Name, i.Size)
	}
	return b.String()
}

func number(t *testing.T, d *datadriven.TestData, key string, without int) int {
	n := without
	if d.HasArg(key) {
		d.ScanArgs(t, key, &n)
	}
	return n
}

func write(f vfs.File, b []byte, pos int64) error {
	_, err := f.WriteAt(b, pos)
	return err
}

func (s *script) edit(name string, fn func(f vfs.File) error) error {
	f, err := s.fsys.OpenReadWrite(name)
	if err != nil {
		return err
	}
	return errors.Join(fn(f), f.Sync(), f.Close())
}

func letter(i int) byte { return byte('a' + i%26) }

func (s *script) append(t *testing.T, d *datadriven.TestData) string {
	var out strings.Builder
	for _, arg := range d.CmdArgs {
		var n int
		if _, err := fmt.Sscan(arg.Key, &n); err != nil {
			t.Fatal(err)
		}
		ref, err := s.log.AppendFunc(func(dst []byte) []byte {
			for range n {
				dst = append(dst, letter(s.next))
			}
			return dst
		})
		if err != nil {
			fmt.Fprintln(&out, err)
			continue
		}
		fmt.Fprintf(&out, "%c: file %d pos %d len %d\n", letter(s.next), ref.Seq, ref.Pos, ref.Len)
		s.next++
	}
	return out.String()
}

func (s *script) segments() string {
	var out strings.Builder
	for _, info := range s.log.Segments() {
		fmt.Fprintf(&out, "file %d generation %d size %d", info.Seq, info.Generation, info.Size)
		if info.Active {
			out.WriteString(" active")
		}
		if info.Err != nil {
			fmt.Fprintf(&out, " (%v)", info.Err)
		}
		out.WriteByte('\n')
	}
	seq, size := s.log.Active()
	fmt.Fprintf(&out, "appends go to file %d pos %d, dirty %v\n", seq, size, s.log.Dirty())
	return out.String()
}

func (s *script) scan(seq uint64, from int64) string {
	var out strings.Builder
	fmt.Fprintf(&out, "file %d:", seq)
	end, err := s.log.Scan(seq, from, func(pos int64, body []byte) error {
		fmt.Fprintf(&out, " %s@%d", show(body), pos)
		return nil
	})
	var size int64
	for _, info := range s.log.Segments() {
		if info.Seq == seq {
			size = info.Size
		}
	}
	fmt.Fprintf(&out, " end %d of %d\n", end, size)
	if err != nil {
		fmt.Fprintf(&out, "  %v\n", err)
	}
	return out.String()
}

// show writes a body of one letter as letter and length.
func show(body []byte) string {
	if strings.Trim(string(body), string(body[:1])) == "" {
		return fmt.Sprintf("%c*%d", body[0], len(body))
	}
	return fmt.Sprintf("%q", body)
}

func (s *script) read(seq uint64, pos int64, length uint32) string {
	body, err := s.log.Read(Ref{seq, pos, length}, nil)
	if err != nil {
		return err.Error() + "\n"
	}
	out := show(body)
	if length == 0 {
		_, next, err := s.log.ReadAt(seq, pos, make([]byte, 0, 16))
		if err != nil {
			return err.Error() + "\n"
		}
		_, _, err = s.log.ReadAt(seq, next, nil)
		out += fmt.Sprintf(", next %d, end %v", next, errors.Is(err, io.EOF))
	}
	return out + "\n"
}

func (s *script) counts() string {
	now, old := s.fsys.Counts(), s.count
	s.count = now
	return fmt.Sprintf("create %d open %d read %d write %d (%d bytes) sync %d syncdir %d close %d\n",
		now.Create-old.Create, now.Open-old.Open, now.Read-old.Read, now.Write-old.Write, now.BytesWritten-old.BytesWritten,
		now.Sync-old.Sync, now.SyncDir-old.SyncDir, now.Close-old.Close)
}
