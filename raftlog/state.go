package raftlog

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"path"

	"github.com/cespare/xxhash/v2"
	pb "go.etcd.io/raft/v3/raftpb"

	"queen/internal/vfs"
)

// ErrNewerFormat reports a file of a format version that this build does not
// read. The file is fine: run the build that wrote it, or a newer one.
var ErrNewerFormat = errors.New("newer format than this build reads")

// ErrDamaged reports a file that is not what this package wrote.
var ErrDamaged = errors.New("corrupt")

// State is what the state file holds: what raft must not forget, and nothing
// that changes with each commit (F6).
type State struct {
	Term uint64
	Vote uint64
	// Conf is the membership as of entry ConfIndex. A conf change at or below
	// ConfIndex is not applied again.
	Conf      Membership
	ConfIndex uint64
	// Cut is the index of a cut that has begun; 0: none. A boot that finds it
	// finishes the cut before it judges anything (I5).
	Cut uint64
}

// Membership is raft's configuration.
type Membership struct {
	Voters         []uint64
	Learners       []uint64
	VotersOutgoing []uint64
	LearnersNext   []uint64
	AutoLeave      bool
}

// ConfState is m as raft wants it.
func (m Membership) ConfState() *pb.ConfState {
	return &pb.ConfState{
		Voters: m.Voters, Learners: m.Learners, VotersOutgoing: m.VotersOutgoing,
		LearnersNext: m.LearnersNext, AutoLeave: new(m.AutoLeave),
	}
}

// MembershipOf is raft's configuration as the state file keeps it.
func MembershipOf(cs *pb.ConfState) Membership {
	return Membership{
		Voters: cs.GetVoters(), Learners: cs.GetLearners(), VotersOutgoing: cs.GetVotersOutgoing(),
		LearnersNext: cs.GetLearnersNext(), AutoLeave: cs.GetAutoLeave(),
	}
}

// OnlyVoter reports whether id alone decides what is committed.
func (m Membership) OnlyVoter(id uint64) bool {
	return len(m.Voters) == 1 && m.Voters[0] == id && len(m.VotersOutgoing) == 0
}

// stateVersion is the format of the state file that this build writes.
const stateVersion = 1

const (
	stateMagic = "queenst\x00"
	stateName  = "state"
	// stateMax bounds what is read of a state file: a membership has a few
	// dozen ids, not thousands.
	stateMax = 64 << 10
)

// encode gives the bytes of a state file; doc.go has the table.
func (s *State) encode() []byte {
	b := append([]byte(nil), stateMagic...)
	b = binary.LittleEndian.AppendUint32(b, stateVersion)
	for _, v := range []uint64{s.Term, s.Vote, s.ConfIndex, s.Cut} {
		b = binary.LittleEndian.AppendUint64(b, v)
	}
	leave := byte(0)
	if s.Conf.AutoLeave {
		leave = 1
	}
	b = append(b, leave)
	for _, ids := range [][]uint64{s.Conf.Voters, s.Conf.Learners, s.Conf.VotersOutgoing, s.Conf.LearnersNext} {
		b = binary.LittleEndian.AppendUint32(b, uint32(len(ids)))
		for _, id := range ids {
			b = binary.LittleEndian.AppendUint64(b, id)
		}
	}
	return binary.LittleEndian.AppendUint64(b, xxhash.Sum64(b))
}

func decodeState(name string, b []byte) (State, error) {
	var s State
	damaged := func(what string, args ...any) (State, error) {
		return State{}, fmt.Errorf("state file %s: %s: %w", name, fmt.Sprintf(what, args...), ErrDamaged)
	}
	if len(b) < len(stateMagic)+4 || string(b[:len(stateMagic)]) != stateMagic {
		return damaged("magic expected %q, found %q in %d bytes", stateMagic, b[:min(len(b), len(stateMagic))], len(b))
	}
	if v := binary.LittleEndian.Uint32(b[8:]); v > stateVersion {
		return State{}, fmt.Errorf("state file %s: version %d, this build reads up to %d: %w", name, v, stateVersion, ErrNewerFormat)
	} else if v != stateVersion {
		return damaged("version expected %d, found %d", stateVersion, v)
	}
	if len(b) < 12+8 {
		return damaged("%d bytes, cut off", len(b))
	}
	body, sum := b[:len(b)-8], binary.LittleEndian.Uint64(b[len(b)-8:])
	if h := xxhash.Sum64(body); h != sum {
		return damaged("xxhash64 expected %016x, found %016x", sum, h)
	}
	rest := body[12:]
	if len(rest) < 33 {
		return damaged("%d bytes, cut off", len(b))
	}
	for _, f := range []*uint64{&s.Term, &s.Vote, &s.ConfIndex, &s.Cut} {
		*f = binary.LittleEndian.Uint64(rest)
		rest = rest[8:]
	}
	if rest[0] > 1 {
		return damaged("auto leave expected 0 or 1, found %d", rest[0])
	}
	s.Conf.AutoLeave = rest[0] == 1
	rest = rest[1:]
	for _, ids := range []*[]uint64{&s.Conf.Voters, &s.Conf.Learners, &s.Conf.VotersOutgoing, &s.Conf.LearnersNext} {
		if len(rest) < 4 {
			return damaged("membership is cut off")
		}
		n := uint64(binary.LittleEndian.Uint32(rest))
		rest = rest[4:]
		if n*8 > uint64(len(rest)) {
			return damaged("%d members in %d bytes", n, len(rest))
		}
		for range n {
			*ids = append(*ids, binary.LittleEndian.Uint64(rest))
			rest = rest[8:]
		}
	}
	if len(rest) != 0 {
		return damaged("%d bytes too many", len(rest))
	}
	return s, nil
}

// LoadState reads dir/state. found is false when there is none. It writes
// nothing.
func LoadState(fsys vfs.FS, dir string) (s State, found bool, err error) {
	name := path.Join(dir, stateName)
	info, err := fsys.Stat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return State{}, false, nil
	}
	if err == nil && info.Size > stateMax {
		return State{}, false, fmt.Errorf("state file %s: %d bytes, expected at most %d: %w", name, info.Size, stateMax, ErrDamaged)
	}
	var b []byte
	if err == nil {
		b, err = vfs.ReadFile(fsys, name)
	}
	if err != nil {
		return State{}, false, fmt.Errorf("state file %s: %w", name, err)
	}
	s, err = decodeState(name, b)
	return s, err == nil, err
}

// SaveState replaces dir/state durably: a reader finds the old state or the
// new one, whatever happens in between.
func SaveState(fsys vfs.FS, dir string, s *State) error {
	return vfs.ReplaceFile(fsys, path.Join(dir, stateName), s.encode())
}
