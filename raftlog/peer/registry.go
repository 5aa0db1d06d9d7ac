package peer

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/cespare/xxhash/v2"

	"queen/internal/vfs"
)

// Registry is which instances of the nodes this one has met, durably: the file
// raft/peers of the data directory. It is safe for concurrent use.
//
// # Format of raft/peers (text, replaced whole)
//
//	queen peers
//	version=1
//	self=<32 hex digits: instance of this node>
//	<id>=<32 hex digits>   for each node that was met, by rising id
//	xxhash64=<16 hex digits: of every byte before this line>
type Registry struct {
	fs   vfs.FS
	name string
	self string

	mu struct {
		sync.Mutex
		known map[uint64]string
	}
}

// ErrRegistry: raft/peers cannot be read. Without it this node does not know who
// it is: remove it from its cluster and add it anew.
var ErrRegistry = errors.New("the list of known nodes cannot be read")

const (
	registryTitle = "queen peers"
	sumKey        = "xxhash64="
	instanceBytes = 16
)

// OpenRegistry reads dir/peers, or makes it with a new instance of this node.
func OpenRegistry(fsys vfs.FS, dir string, random io.Reader) (*Registry, error) {
	r := &Registry{fs: fsys, name: path.Join(dir, "peers")}
	r.mu.known = make(map[uint64]string)
	b, err := vfs.ReadFile(fsys, r.name)
	if errors.Is(err, fs.ErrNotExist) {
		var raw [instanceBytes]byte
		if _, err := io.ReadFull(random, raw[:]); err != nil {
			return nil, fmt.Errorf("make an instance id: %w", err)
		}
		r.self = hex.EncodeToString(raw[:])
		return r, r.saveLocked()
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", r.name, err)
	}
	return r, r.decode(string(b))
}

// Self is this node's instance.
func (r *Registry) Self() string { return r.self }

// Known is the instance of a node, "" when it was never met.
func (r *Registry) Known(id uint64) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mu.known[id]
}

// Complete reports whether all of the nodes were met.
func (r *Registry) Complete(ids []uint64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return !slices.ContainsFunc(ids, func(id uint64) bool { return r.mu.known[id] == "" })
}

// Meet notes, durably, the instance of a node that was not met before. It
// reports whether that is the one that is known.
func (r *Registry) Meet(id uint64, instance string) (ok bool, err error) {
	if !validInstance(instance) {
		return false, nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if have := r.mu.known[id]; have != "" {
		return have == instance, nil
	}
	r.mu.known[id] = instance
	if err := r.saveLocked(); err != nil {
		delete(r.mu.known, id)
		return false, err
	}
	return true, nil
}

// Forget drops a node that is no member any more: its id may come back with
// another instance.
func (r *Registry) Forget(id uint64) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mu.known[id] == "" {
		return nil
	}
	delete(r.mu.known, id)
	return r.saveLocked()
}

func validInstance(s string) bool {
	b, err := hex.DecodeString(s)
	return err == nil && len(b) == instanceBytes
}

func (r *Registry) saveLocked() error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\nversion=1\nself=%s\n", registryTitle, r.self)
	for _, id := range slices.Sorted(maps.Keys(r.mu.known)) {
		fmt.Fprintf(&b, "%d=%s\n", id, r.mu.known[id])
	}
	body := b.String()
	return vfs.ReplaceFile(r.fs, r.name, fmt.Appendf(nil, "%s%s%016x\n", body, sumKey, xxhash.Sum64String(body)))
}

func (r *Registry) decode(s string) error {
	bad := func(what string) error { return fmt.Errorf("%s: %s: %w", r.name, what, ErrRegistry) }
	at := strings.LastIndex(s, sumKey)
	if at < 0 || s[at:] != fmt.Sprintf("%s%016x\n", sumKey, xxhash.Sum64String(s[:at])) {
		return bad("the checksum does not fit")
	}
	lines := strings.Split(strings.TrimSuffix(s[:at], "\n"), "\n")
	if len(lines) < 3 || lines[0] != registryTitle || lines[1] != "version=1" {
		return bad(fmt.Sprintf("version expected 1, found %.40q", strings.Join(lines[:min(len(lines), 2)], " ")))
	}
	self, ok := strings.CutPrefix(lines[2], "self=")
	if !ok || !validInstance(self) {
		return bad("this node's own instance is missing")
	}
	r.self = self
	for _, line := range lines[3:] {
		id, instance, _ := strings.Cut(line, "=")
		n, err := strconv.ParseUint(id, 10, 64)
		if err != nil || n == 0 || !validInstance(instance) {
			return bad(fmt.Sprintf("line %.80q", line))
		}
		r.mu.known[n] = instance
	}
	return nil
}
