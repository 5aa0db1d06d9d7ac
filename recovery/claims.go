package recovery

import (
	"encoding/binary"
	"errors"
	"fmt"
	"path"

	"queen/raftlog"
	"queen/segment"
)

// Versions of what a footer says about the logs. The second one has what is kept
// below the checkpoint for followers; where that is nothing, the first is written.
const (
	claimsVersion = 1
	keptVersion   = 2
)

var errClaims = errors.New("the footer's list of logs does not parse")

// encodeExtra is what a footer says about the logs; doc.go has the format.
func encodeExtra(claims []raftlog.LogClaim, kept raftlog.KeptLog) []byte {
	b := encodeClaims(claims)
	if kept.First == 0 || kept.First > kept.From {
		return b
	}
	b[0] = keptVersion
	b = binary.AppendUvarint(b, kept.First)
	b = binary.AppendUvarint(b, uint64(len(kept.Runs)))
	for _, r := range kept.Runs {
		b = binary.AppendUvarint(b, r.First)
		b = binary.AppendUvarint(b, r.Term)
	}
	return b
}

func encodeClaims(claims []raftlog.LogClaim) []byte {
	b := []byte{claimsVersion}
	b = binary.AppendUvarint(b, uint64(len(claims)))
	for _, c := range claims {
		b = binary.AppendUvarint(b, c.Log)
		runs := seqRuns(c.Seqs)
		b = binary.AppendUvarint(b, uint64(len(runs)))
		for _, r := range runs {
			b = binary.AppendUvarint(b, r[0])
			b = binary.AppendUvarint(b, r[1])
		}
		b = binary.AppendUvarint(b, uint64(c.End))
	}
	return b
}

// seqRuns gives rising numbers as pairs of first and count.
func seqRuns(seqs []uint64) (runs [][2]uint64) {
	for _, s := range seqs {
		if n := len(runs); n > 0 && runs[n-1][0]+runs[n-1][1] == s {
			runs[n-1][1]++
			continue
		}
		runs = append(runs, [2]uint64{s, 1})
	}
	return runs
}

func decodeExtra(b []byte) ([]raftlog.LogClaim, raftlog.KeptLog, error) {
	var kept raftlog.KeptLog
	if len(b) == 0 {
		return nil, kept, nil
	}
	version := b[0]
	if version != claimsVersion && version != keptVersion {
		return nil, kept, fmt.Errorf("%w: version %d", errClaims, version)
	}
	b = b[1:]
	next := func() (v uint64, err error) {
		v, n := binary.Uvarint(b)
		if n <= 0 {
			return 0, errClaims
		}
		b = b[n:]
		return v, nil
	}
	count, err := next()
	if err != nil || count > uint64(len(b)) {
		return nil, kept, errClaims
	}
	out := make([]raftlog.LogClaim, 0, count)
	for range count {
		c, err := decodeClaim(next)
		if err != nil {
			return nil, kept, err
		}
		out = append(out, c)
	}
	if version == keptVersion {
		if kept, err = decodeKept(next, len(b)); err != nil {
			return nil, kept, err
		}
	}
	if len(b) != 0 {
		return nil, kept, errClaims
	}
	return out, kept, nil
}

func decodeKept(next func() (uint64, error), left int) (k raftlog.KeptLog, err error) {
	if k.First, err = next(); err != nil {
		return k, err
	}
	n, err := next()
	if err != nil || n == 0 || n > uint64(left) || k.First == 0 {
		return k, errClaims
	}
	for i := range n {
		var r raftlog.TermRun
		if r.First, err = next(); err == nil {
			r.Term, err = next()
		}
		switch {
		case err != nil:
			return k, err
		case i == 0 && r.First != k.First-1, i > 0 && r.First <= k.Runs[i-1].First:
			return k, errClaims
		}
		k.Runs = append(k.Runs, r)
	}
	return k, nil
}

// maxClaimedFiles bounds what a run of files can make us allocate.
const maxClaimedFiles = 1 << 24

func decodeClaim(next func() (uint64, error)) (c raftlog.LogClaim, err error) {
	if c.Log, err = next(); err != nil {
		return c, err
	}
	runs, err := next()
	if err != nil {
		return c, err
	}
	for range runs {
		first, err := next()
		if err != nil {
			return c, err
		}
		n, err := next()
		if err != nil {
			return c, err
		}
		if n > maxClaimedFiles || len(c.Seqs)+int(n) > maxClaimedFiles {
			return c, errClaims
		}
		for i := range n {
			c.Seqs = append(c.Seqs, first+i)
		}
	}
	end, err := next()
	c.End = int64(end)
	return c, err
}

// checkFiles compares the files of the logs with what the newest checkpoint
// says was there: a log or a file that is gone was not torn, it was lost (B17).
// It may also be that the file went rightly and a newer checkpoint is what was
// lost, so a refusal says which one was read.
func (b *boot) checkFiles() error {
	for _, c := range b.claims {
		q := b.store.Log(c.Log)
		logDir := path.Join(b.dir, "log", raftlog.LogDirName(c.Log))
		if q == nil {
			return lost(logDir, "the log is gone", fmt.Sprintf("%d files, listed by the checkpoint of entry %d in %s", len(c.Seqs), b.footer.To, b.rowsAt), "none")
		}
		sizes := make(map[uint64]int64)
		for _, s := range q.Log.Segments() {
			sizes[s.Seq] = s.Size
		}
		for i, seq := range c.Seqs {
			file := path.Join(logDir, segment.FileName(seq))
			size, ok := sizes[seq]
			if !ok {
				return lost(file, "the file is gone", fmt.Sprintf("a file that the checkpoint of entry %d in %s lists", b.footer.To, b.rowsAt), "none")
			}
			if i == len(c.Seqs)-1 && size < c.End {
				return lost(file, "the file is shorter than it was when the checkpoint was taken", fmt.Sprintf("at least %d bytes, by the checkpoint of entry %d in %s", c.End, b.footer.To, b.rowsAt), fmt.Sprintf("%d bytes", size))
			}
		}
	}
	return nil
}

func lost(file, what, expected, found string) error {
	return &RefuseError{File: file, Pos: -1, What: what, Expected: expected, Found: found}
}

// checkEnds compares where the readable part of a log ends with what the
// checkpoint says was durable.
func (b *boot) checkEnds(cursors []*cursor) error {
	byLog := make(map[uint64]raftlog.LogClaim, len(b.claims))
	for _, c := range b.claims {
		byLog[c.Log] = c
	}
	for _, c := range cursors {
		claim := byLog[c.q.ID]
		if c.bad == nil || len(claim.Seqs) == 0 {
			continue
		}
		last := claim.Seqs[len(claim.Seqs)-1]
		if c.bad.at.seq > last || c.bad.at.seq == last && c.bad.at.pos >= claim.End {
			continue
		}
		return &RefuseError{File: c.bad.at.file(), Pos: c.bad.at.pos, What: "unreadable in the part that a checkpoint knows to be durable (" + c.bad.what + ")",
			Expected: fmt.Sprintf("records up to byte %d of file %d, by the checkpoint of entry %d in %s", claim.End, last, b.footer.To, b.rowsAt), Found: "none from here on", Err: c.bad.err}
	}
	return nil
}
