package index

import (
	"encoding/binary"
	"flag"
	"path"
	"strconv"
	"testing"

	"github.com/cespare/xxhash/v2"
	"pgregory.net/rapid"

	"queen/internal/vfs"
)

func readAll(t interface{ Fatal(...any) }, fs vfs.FS, name string) []byte {
	f, err := fs.Open(name)
	check(t, err)
	defer f.Close()
	n, err := f.Size()
	check(t, err)
	b := make([]byte, n)
	if n > 0 {
		_, err = f.ReadAt(b, 0)
		check(t, err)
	}
	return b
}

func writeAll(t interface{ Fatal(...any) }, fs vfs.FS, name string, b []byte) {
	check(t, fs.MkdirAll(path.Dir(name)))
	f, err := fs.Create(name)
	check(t, err)
	_, err = f.WriteAt(b, 0)
	check(t, err)
	check(t, f.Close())
}

func appendSum(b []byte) []byte { return binary.LittleEndian.AppendUint64(b, xxhash.Sum64(b)) }

// checkSome is rapid.Check with fewer runs, for properties that take long. A
// -rapid.checks on the command line above the default decides instead.
func checkSome(t *testing.T, runs int, prop func(*rapid.T)) {
	f := flag.Lookup("rapid.checks")
	if before := f.Value.String(); before == f.DefValue {
		check(t, flag.Set(f.Name, strconv.Itoa(runs)))
		defer flag.Set(f.Name, before)
	}
	rapid.Check(t, prop)
}
