package index

import (
	"encoding/binary"
	"path"

	"github.com/cespare/xxhash/v2"

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
