package recovery

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strconv"
	"strings"

	"github.com/cespare/xxhash/v2"

	"queen/internal/vfs"
)

// FormatVersion is the directory format that this build makes and reads.
const FormatVersion = 1

const (
	formatName  = "FORMAT"
	lockName    = "LOCK"
	formatTitle = "queen data directory"
	sumKey      = "xxhash64="
)

// Identity says whose a data directory is.
type Identity struct {
	Version int
	Cluster string // 32 hex digits
	Node    uint64
	Shards  int
}

func (id *Identity) encode() []byte {
	body := fmt.Sprintf("%s\nversion=%d\ncluster=%s\nnode=%d\nshards=%d\n", formatTitle, id.Version, id.Cluster, id.Node, id.Shards)
	return fmt.Appendf([]byte(body), "%s%016x\n", sumKey, xxhash.Sum64String(body))
}

// decodeIdentity reads a FORMAT file. The version is looked at before the
// rest: a newer build may have changed everything below it.
func decodeIdentity(name string, b []byte) (Identity, error) {
	var id Identity
	bad := func(what, expected, found string) (Identity, error) {
		return Identity{}, &RefuseError{File: name, Pos: -1, What: what, Expected: expected, Found: found,
			Do: "Restore the file from a backup of this directory; it never changes after the directory was made"}
	}
	lines := strings.Split(string(b), "\n")
	if len(lines) < 2 || lines[0] != formatTitle {
		return bad("first line", strconv.Quote(formatTitle), strconv.Quote(lines[0]))
	}
	v, ok := strings.CutPrefix(lines[1], "version=")
	version, err := strconv.Atoi(v)
	if !ok || err != nil || version < 1 {
		return bad("second line", "version=<number>", strconv.Quote(lines[1]))
	}
	if version > FormatVersion {
		return Identity{}, fmt.Errorf("%s: directory format %d, this build reads up to %d: run the build that made it, or a newer one: %w", name, version, FormatVersion, ErrNewerFormat)
	}
	at := strings.LastIndex(string(b), sumKey)
	if at < 0 {
		return bad("last line", sumKey+"<16 hex digits>", "none")
	}
	want := fmt.Sprintf("%s%016x\n", sumKey, xxhash.Sum64(b[:at]))
	if got := string(b[at:]); got != want {
		return bad("checksum", strings.TrimSpace(want), strconv.Quote(got))
	}
	id.Version = version
	for _, line := range lines[2:] {
		key, value, _ := strings.Cut(line, "=")
		switch key {
		case "cluster":
			id.Cluster = value
		case "node":
			id.Node, err = strconv.ParseUint(value, 10, 64)
		case "shards":
			id.Shards, err = strconv.Atoi(value)
		}
		if err != nil {
			return bad(key, "a number", strconv.Quote(value))
		}
	}
	if id.Cluster == "" || id.Node == 0 || id.Shards < 0 {
		return bad("content", "cluster, node and shards", strconv.Quote(string(b)))
	}
	return id, nil
}

// LoadIdentity reads the FORMAT file of a data directory; found is false when
// there is none.
func LoadIdentity(fsys vfs.FS, dir string) (id Identity, found bool, err error) {
	name := path.Join(dir, formatName)
	b, err := vfs.ReadFile(fsys, name)
	if errors.Is(err, fs.ErrNotExist) {
		return Identity{}, false, nil
	}
	if err != nil {
		return Identity{}, false, fmt.Errorf("read %s: %w", name, err)
	}
	id, err = decodeIdentity(name, b)
	return id, err == nil, err
}

// ensureIdentity loads the directory's identity and compares it with what this
// node was told, or makes it when the directory is new.
func ensureIdentity(cfg *Config) (Identity, error) {
	fsys, dir := cfg.Group.FS, cfg.Group.Dir
	name := path.Join(dir, formatName)
	id, found, err := LoadIdentity(fsys, dir)
	if err != nil {
		return id, err
	}
	if !found {
		if err := refuseOrphans(fsys, dir, name); err != nil {
			return id, err
		}
		return makeIdentity(cfg, name)
	}
	differs := func(what, setting string, expected, got any) error {
		return &RefuseError{File: name, Pos: -1, What: what, Expected: fmt.Sprint(expected) + " (" + setting + ")", Found: fmt.Sprint(got),
			Do: "Start with the setting that the directory was made with, or with another directory"}
	}
	switch {
	case id.Node != cfg.Group.NodeID:
		return id, differs("node id", "as configured", cfg.Group.NodeID, id.Node)
	case id.Shards != cfg.Group.Shards:
		return id, differs("number of shared logs", "QUEEN_QLOG_SHARDS", cfg.Group.Shards, id.Shards)
	case cfg.ClusterID != "" && id.Cluster != cfg.ClusterID:
		return id, differs("cluster id", "as configured", cfg.ClusterID, id.Cluster)
	}
	return id, nil
}

// refuseOrphans refuses a directory that has data and no FORMAT: a new node
// must not settle on top of it.
func refuseOrphans(fsys vfs.FS, dir, name string) error {
	infos, err := fsys.List(dir)
	if err != nil {
		return fmt.Errorf("list %s: %w", dir, err)
	}
	for _, info := range infos {
		if info.Name == lockName || info.Name == formatName+".tmp" || info.Name == reserveName {
			continue
		}
		return &RefuseError{File: name, Pos: -1, What: "the directory is not empty and has no " + formatName, Expected: "a file", Found: info.Name,
			Do: "Restore the file from a backup, or start with an empty directory"}
	}
	return nil
}

func makeIdentity(cfg *Config, name string) (Identity, error) {
	id := Identity{Version: FormatVersion, Cluster: cfg.ClusterID, Node: cfg.Group.NodeID, Shards: cfg.Group.Shards}
	if id.Cluster == "" {
		id.Cluster = cfg.NewClusterID
	}
	if id.Cluster == "" {
		var raw [16]byte
		if _, err := io.ReadFull(cfg.Random, raw[:]); err != nil {
			return id, fmt.Errorf("make a cluster id: %w", err)
		}
		id.Cluster = hex.EncodeToString(raw[:])
	}
	return id, vfs.ReplaceFile(cfg.Group.FS, name, id.encode())
}
