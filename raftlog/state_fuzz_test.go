package raftlog

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"testing"

	"github.com/cespare/xxhash/v2"
	gofuzz "github.com/google/gofuzz"
)

// FuzzState: any bytes are a state or an error that says what is wrong, and what
// is a state encodes to the same bytes. With fix the checksum is made right, so
// that what stands behind it is reached.
func FuzzState(f *testing.F) {
	fixture, err := os.ReadFile("testdata/state.v1")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(fixture, false)
	for seed := range int64(20) {
		var s State
		gofuzz.NewWithSeed(seed).NumElements(0, 5).Fuzz(&s)
		b := s.encode()
		f.Add(b, seed%2 == 0)
		f.Add(b[:len(b)-len(b)/4], true)
	}
	f.Fuzz(func(t *testing.T, b []byte, fix bool) {
		if fix && len(b) >= 8 {
			b = binary.LittleEndian.AppendUint64(bytes.Clone(b[:len(b)-8]), xxhash.Sum64(b[:len(b)-8]))
		}
		s, err := decodeState("state", b)
		switch {
		case err == nil:
			if again := s.encode(); !bytes.Equal(again, b) {
				t.Fatalf("%x encodes again to %x", b, again)
			}
		case !errors.Is(err, ErrDamaged) && !errors.Is(err, ErrNewerFormat):
			t.Fatal(err)
		}
	})
}
