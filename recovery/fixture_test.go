package recovery

import (
	"reflect"
	"testing"

	"queen/raftlog"
)

// The bytes of FORMAT are pinned: every later build must read them.
func TestFormatFixture(t *testing.T) {
	const want = "queen data directory\nversion=1\ncluster=00112233445566778899aabbccddeeff\nnode=1\nshards=16\nxxhash64=504c869d69a1559b\n"
	id := Identity{Version: 1, Cluster: "00112233445566778899aabbccddeeff", Node: 1, Shards: 16}
	if got := string(id.encode()); got != want {
		t.Errorf("FORMAT is now %q, want %q", got, want)
	}
	got, err := decodeIdentity("FORMAT", []byte(want))
	if err != nil || got != id {
		t.Errorf("%+v, %v", got, err)
	}
	for i := range want {
		for _, mask := range []byte{1, 0x40} {
			bad := []byte(want)
			bad[i] ^= mask
			if got, err := decodeIdentity("FORMAT", bad); err == nil && got == id {
				t.Errorf("byte %d changed and was not noticed", i)
			}
		}
		if _, err := decodeIdentity("FORMAT", []byte(want[:i])); err == nil {
			t.Errorf("%d bytes of it are taken", i)
		}
	}
}

func TestClaimsRoundTrip(t *testing.T) {
	for _, claims := range [][]raftlog.LogClaim{
		{},
		{{Log: 0, Seqs: []uint64{1}, End: 64}},
		{{Log: 0, Seqs: []uint64{1, 2, 3, 7, 9, 10}, End: 1 << 40}, {Log: 1 << 60, Seqs: []uint64{5}}},
	} {
		b := encodeExtra(claims, raftlog.KeptLog{})
		got, _, err := decodeExtra(b)
		if err != nil || len(got) != len(claims) || len(claims) > 0 && !reflect.DeepEqual(got, claims) {
			t.Errorf("%v became %v, %v", claims, got, err)
		}
		for i := 1; i < len(b); i++ {
			if _, _, err := decodeExtra(b[:i]); err == nil {
				t.Errorf("%v: %d of %d bytes are taken", claims, i, len(b))
			}
		}
	}
	if _, _, err := decodeExtra([]byte{1, 1, 0, 1, 1, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f, 0}); err == nil {
		t.Error("a run of 2^40 files is taken")
	}
}
