package powercut

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"queen/internal/history"
	"queen/internal/vfs"
	"queen/raftlog"
	"queen/recovery"
	"queen/tools/internal/api"
)

// outcome is what damage to a file comes to.
type outcome string

const (
	// harmless: the broker starts, its state is the same, and every message can
	// be read.
	harmless outcome = "harmless"
	// refused: the broker does not start, changes nothing, names the file and
	// says what the operator can do.
	refused outcome = "refused"
	// either: harmless or refused, as the end of the file happens to be.
	either outcome = "harmless or refused"
	// found: the broker starts with the same state, since a start reads no old
	// sealed file; whoever reads there gets an error and health says so (B16).
	found outcome = "found"
	// unread: found, or harmless when the file has no message that is read.
	unread outcome = "found or harmless"
)

// damages are what happens to files, by name.
var damages = map[string]func(data []byte) []byte{
	"deleted":   nil,
	"emptied":   func([]byte) []byte { return nil },
	"truncated": func(b []byte) []byte { return b[:len(b)/2] },
	"zeroed":    func(b []byte) []byte { return make([]byte, len(b)) },
	"garbled": func(b []byte) []byte { // past the header of a large file
		from := 64
		if len(b) < 2*from {
			from = len(b) / 4
		}
		for i := from; i < len(b); i += 32 {
			b[i] ^= 0x5a
		}
		return b
	},
}

type row = map[string]outcome

func all(o outcome) row {
	return row{"deleted": o, "emptied": o, "truncated": o, "zeroed": o, "garbled": o}
}

// damageTable has a row of five for each kind of file. Kinds are what kindOf
// makes of a listing.
var damageTable = map[string]row{
	"LOCK":           all(harmless), // it holds nothing
	"RESERVE":        all(harmless), // nor does it
	"FORMAT":         all(refused),
	"raft/state":     all(refused),
	"raft/state.tmp": all(harmless), // of a write that did not finish
	// While the log reaches back to its first entry, a checkpoint only saves time.
	// Where files were freed, a start without it is refused. A bad row below
	// a good footer is another matter (TestRowsDamage).
	"checkpoint/rows":  all(either),
	"log/idx":          all(harmless), // derived
	"log/dedup":        all(harmless),
	"log/merged idx":   all(harmless),
	"log/merged dedup": all(harmless),
	// Behind its end there may be prepared space.
	"log/seg, newest": {"deleted": refused, "emptied": refused, "truncated": either, "zeroed": refused, "garbled": refused},
	// At its end stand pads, which say what is durable and hold nothing.
	"log/q0 seg, newest": all(either),
	"log/seg, sealed":    {"deleted": refused, "emptied": refused, "truncated": refused, "zeroed": refused, "garbled": unread},
	// Below the checkpoint nobody needs what the system log says, but for a value that a row names.
	"log/q0 seg, sealed": {"deleted": refused, "emptied": refused, "truncated": refused, "zeroed": refused, "garbled": unread},
}

var digits = regexp.MustCompile(`^[0-9]+\.`)

// kindOf names the kind of a file of a data directory.
func kindOf(name string, newest bool) string {
	rel := strings.TrimPrefix(name, dataDir+"/")
	dir, base := path.Split(rel)
	system := strings.HasSuffix(dir, "/q0/")
	dir = strings.Split(dir, "/")[0]
	ext := strings.TrimPrefix(path.Ext(base), ".")
	switch {
	case dir == "":
		return base
	case dir == "log" && ext == "seg" && newest && system:
		return "log/q0 seg, newest"
	case dir == "log" && ext == "seg" && newest:
		return "log/seg, newest"
	case dir == "log" && ext == "seg" && system:
		return "log/q0 seg, sealed"
	case dir == "log" && ext == "seg":
		return "log/seg, sealed"
	case dir == "log" && strings.HasPrefix(base, "l") && (ext == "idx" || ext == "dedup"):
		return "log/merged " + ext
	case digits.MatchString(base):
		return dir + "/" + ext
	}
	return dir + "/" + base
}

// kinds lists the files of a data directory by kind.
func kinds(fs *vfs.Mem) map[string][]string {
	out := map[string][]string{}
	var walk func(dir string)
	walk = func(dir string) {
		infos, err := fs.List(dir)
		if err != nil {
			panic(err) // it is there
		}
		last := ""
		for _, i := range infos {
			if path.Ext(i.Name) == ".seg" {
				last = i.Name // the list is sorted
			}
		}
		for _, i := range infos {
			name := path.Join(dir, i.Name)
			if i.Dir {
				walk(name)
				continue
			}
			k := kindOf(name, i.Name == last)
			out[k] = append(out[k], name)
		}
	}
	walk(dataDir)
	return out
}

// fullDirectory makes a directory that has every kind of file, in the bubble
// that it is used in.
func fullDirectory(t *testing.T) (*epoch, *vfs.Mem) {
	e := newEpoch(t, 1)
	e.storage.Group = raftlog.Config{SegmentBytes: 1 << 10, CheckpointInterval: 5 * time.Second}
	e.storage.ReserveBytes = 1 << 10
	n, err := e.startWatched(e.fs)
	if err != nil {
		t.Fatal(err)
	}
	// Its payload keeps a file of the system log, which go with the checkpoints else.
	later := api.TimerOp{Op: "schedule", Queue: "later", TimerKey: "t", DelayMs: 30 * 86400_000, Payload: []byte(`"` + strings.Repeat("p", 900) + `"`)}
	if _, err := n.Timers(n.dead, later); err != nil {
		t.Fatal(err)
	}
	for range 40 {
		if err := e.load(n); err != nil {
			t.Fatal(err)
		}
	}
	time.Sleep(10 * time.Second) // timers fire, what can be sealed is, a checkpoint and a pad follow
	if err := errors.Join(e.b.verify(n.dead, n, e.clients, true), e.b.drain(n.dead, n)); err != nil {
		t.Fatal(err)
	}
	time.Sleep(10 * time.Second)
	left := n.fs.Kill()
	n.gone()
	f, err := left.Create(dataDir + "/raft/state.tmp")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt([]byte("half a"), 0); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(f.Sync(), left.SyncDir(dataDir+"/raft")); err != nil { // it is to survive the crash
		t.Fatal(err)
	}
	return e, left.Crash(0.5)
}

// TestEveryKindOfFileDamaged: each kind of file in a listing has five rows, and
// each of them comes to what the row says.
func TestEveryKindOfFileDamaged(t *testing.T) {
	bubble(t, func(t *testing.T) {
		e, base := fullDirectory(t)
		have := kinds(base)
		for kind := range have {
			for name := range damages {
				if damageTable[kind][name] == "" {
					t.Errorf("no row says what a %s file of kind %q comes to: %v", name, kind, have[kind])
				}
			}
		}
		intact, refusal, err := e.outcomeOf(base.Clone())
		if err := errors.Join(refusal, err); err != nil || intact.sick {
			t.Fatalf("%v, sick: %v", err, intact.sick)
		}
		for _, kind := range slices.Sorted(maps.Keys(damageTable)) {
			files := have[kind]
			if len(files) == 0 {
				t.Errorf("the directory has no file of kind %q", kind)
				continue
			}
			some := files[len(files)/2 : len(files)/2+1]
			if *flagAll {
				some = files
			}
			for _, file := range some {
				for _, name := range slices.Sorted(maps.Keys(damages)) {
					if err := e.checkDamage(base, file, name, damageTable[kind][name], intact); err != nil {
						t.Errorf("%s %s: %v", file, name, err)
					}
				}
			}
		}
	})
}

// checkDamage damages a copy and compares what comes of it.
func (e *epoch) checkDamage(base *vfs.Mem, file, name string, want outcome, intact reading) error {
	fs := base.Clone()
	if err := damage(fs, file, damages[name]); err != nil {
		return err
	}
	before := contents(fs)
	got, refusal, err := e.outcomeOf(fs)
	if err != nil {
		return err
	}
	if refusal == nil {
		return compareStart(got, intact, want)
	}
	text := refusal.Error()
	switch {
	case want != refused && want != either:
		return fmt.Errorf("refused, the table says %s: %w", want, refusal)
	case !errors.Is(refusal, recovery.ErrRefused):
		return fmt.Errorf("failed to start, and that is no refusal: %w", refusal)
	case !strings.Contains(text, file) && !(name == "deleted" && strings.Contains(text, path.Dir(file))):
		return fmt.Errorf("the refusal does not name the file: %w", refusal)
	}
	if !strings.Contains(text, "nothing was changed. ") || strings.Contains(text, "\n") {
		return fmt.Errorf("the refusal does not say what to do, in one line: %w", refusal)
	}
	return unchanged(before, contents(fs))
}

// compareStart judges a broker that started.
func compareStart(got, intact reading, want outcome) error {
	o := harmless
	switch {
	case got.digest != intact.digest:
		return fmt.Errorf("started with another state: digest %x, want %x", got.digest, intact.digest)
	case got.sick:
		o = found
	case got.messages != intact.messages:
		return fmt.Errorf("started and has %d messages, want %d, and health is good", got.messages, intact.messages)
	}
	if o != want && !(want == either && o == harmless) && want != unread {
		return fmt.Errorf("%s, the table says %s", o, want)
	}
	return nil
}

func damage(fs *vfs.Mem, file string, change func([]byte) []byte) error {
	if change == nil {
		return fs.Remove(file)
	}
	data, err := vfs.ReadFile(fs, file)
	if err != nil {
		return err
	}
	data = change(data)
	f, err := fs.Create(file)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(data, 0)
	return errors.Join(err, f.Sync(), f.Close())
}

// unchanged compares what a refused start left with what it found.
func unchanged(before, after map[string][]byte) error {
	for file, data := range before {
		if now, ok := after[file]; !ok || !bytes.Equal(now, data) {
			return fmt.Errorf("the refusal changed or removed %s", file)
		}
	}
	for file := range after {
		if _, ok := before[file]; !ok {
			return fmt.Errorf("the refusal made %s", file)
		}
	}
	return nil
}

// contents reads all files but the lock, which a start makes anew.
func contents(fs *vfs.Mem) map[string][]byte {
	out := map[string][]byte{}
	for kind, files := range kinds(fs) {
		for _, file := range files {
			data, err := vfs.ReadFile(fs, file)
			if err != nil {
				panic(err) // it was listed
			}
			if kind != "LOCK" {
				out[file] = data
			}
		}
	}
	return out
}

// reading is what a broker that started says of itself.
type reading struct {
	digest   uint64
	messages int
	sick     bool
}

// outcomeOf starts a broker and reads every message; refusal says why it did
// not start.
func (e *epoch) outcomeOf(fs *vfs.Mem) (r reading, refusal, err error) {
	n, refusal := start(fs, e.storage, e.cfg)
	if refusal != nil {
		return r, refusal, nil
	}
	defer n.gone()
	if r.digest, _, err = n.eng.Digest(); err != nil {
		return r, nil, err
	}
	for _, queue := range e.queues() {
		if r.messages, err = readAll(n, queue, r.messages); err != nil {
			return r, nil, err
		}
	}
	r.sick = n.Health(n.dead) != nil
	return r, nil, nil
}

// queues lists the queues that clients have pushed to.
func (e *epoch) queues() []string {
	names := []string{"fired"}
	for q := range queues {
		names = append(names, queueName(q))
	}
	for _, c := range e.clients {
		if c.scratch.exists == history.Answered {
			names = append(names, c.scratchName())
		}
	}
	return names
}

// readAll counts the messages of a queue that a new group gets. Unreadable ones
// are left out, or are an error of the call.
func readAll(n *node, queue string, count int) (int, error) {
	query := url.Values{"consumerGroup": {"audit"}, "subscriptionMode": {"all"}, "commitOnDelivery": {"true"}, "batch": {"1000"}}
	for {
		ms, err := n.Pop(n.dead, queue, query)
		var status *api.StatusError
		if errors.As(err, &status) && status.Status == http.StatusInternalServerError {
			return count, nil // health tells
		}
		if err != nil || len(ms) == 0 {
			return count, err
		}
		count += len(ms)
	}
}
