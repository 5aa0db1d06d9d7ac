package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"path"

	"queen/fsm"
	"queen/index"
	"queen/recovery"
)

// rows shows the newest finished checkpoint. To know which record of a key is
// the last one it keeps 24 bytes of each row; with --history it keeps nothing.
func (t *tool) rows(_ []string) (bool, error) {
	s, err := t.snapshot()
	if err != nil {
		return false, err
	}
	kinds, err := kindSet(t.opt.Kinds, func(k string) bool { _, ok := fsm.ParseRowKind(k); return ok })
	if err != nil {
		return false, err
	}
	prefix, err := hex.DecodeString(t.opt.Key)
	if err != nil {
		return false, fmt.Errorf("%w: --key %q: %v", errUsage, t.opt.Key, err)
	}
	files, err := rowsFiles(s)
	if err != nil {
		return false, err
	}
	if s.FooterErr != nil {
		t.out.textf("the checkpoint does not count: %v", s.FooterErr)
	}
	for i := len(files) - 1; i >= 0; i-- {
		c, err := t.lastRows(s, files[i])
		if err != nil {
			return false, err
		}
		if c.end == 0 {
			t.out.textf("%s: no finished checkpoint in it", t.short(files[i]))
			continue
		}
		return s.FooterErr != nil, t.showRows(s, c, kinds, prefix)
	}
	return s.FooterErr != nil, nil
}

// rowsFiles lists the checkpoint files, oldest first.
func rowsFiles(s *recovery.Snapshot) (files []string, err error) {
	infos, err := s.FS.List(checkpointDir(s))
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", checkpointDir(s), err)
	}
	for _, i := range infos {
		if path.Ext(i.Name) == ".rows" && !i.Dir {
			files = append(files, path.Join(checkpointDir(s), i.Name))
		}
	}
	return files, nil
}

type rowHash [16]byte

func hashOf(key []byte) rowHash {
	sum := sha256.Sum256(key)
	return rowHash(sum[:16])
}

type keyAt struct {
	key rowHash
	pos int64
}

type goneRange struct {
	pos    int64
	lo, hi []byte
}

// checkpoint is which records of a rows file count.
type checkpoint struct {
	file    string
	end     int64 // position of the last footer; 0: none
	footer  index.Footer
	footers int
	last    map[rowHash]int64
	gone    []goneRange
}

func (t *tool) lastRows(s *recovery.Snapshot, file string) (*checkpoint, error) {
	c := &checkpoint{file: file, last: map[rowHash]int64{}}
	var keys []keyAt // since the footer before: they count with the next one
	var gone []goneRange
	_, err := index.ScanRows(s.FS, file, func(pos int64, r index.RowRecord) error {
		switch r.Kind {
		case index.RowPut, index.RowDelete:
			if !t.opt.History {
				keys = append(keys, keyAt{hashOf(r.Key), pos})
			}
		case index.RowDeleteRange:
			if !t.opt.History {
				gone = append(gone, goneRange{pos, bytes.Clone(r.Lo), bytes.Clone(r.Hi)})
			}
		case index.RowFooter:
			c.end, c.footer = pos, r.Footer
			c.footer.Extra = bytes.Clone(r.Footer.Extra)
			c.footers++
			for _, k := range keys {
				c.last[k.key] = k.pos
			}
			c.gone = append(c.gone, gone...)
			keys, gone = keys[:0], nil
		}
		return nil
	})
	if errors.Is(err, index.ErrCorrupt) {
		err = nil // a torn tail, or damage that the footer's error tells of
	}
	return c, err
}

// counts reports whether the put at pos is the last word on its key.
func (c *checkpoint) counts(pos int64, key []byte) bool {
	if c.last[hashOf(key)] != pos {
		return false
	}
	for _, g := range c.gone {
		if g.pos > pos && inRange(key, g.lo, g.hi) {
			return false
		}
	}
	return true
}

func (t *tool) showRows(s *recovery.Snapshot, c *checkpoint, kinds map[string]bool, prefix []byte) error {
	counts := map[string]int{}
	shown := newLimiter(t.opt.Limit)
	_, err := index.ScanRows(s.FS, c.file, func(pos int64, r index.RowRecord) error {
		if pos > c.end {
			return errEnough
		}
		if !t.opt.History && (r.Kind != index.RowPut || !c.counts(pos, r.Key)) {
			return nil
		}
		o, text, kind := rowRecord(pos, &r)
		if kinds != nil && !kinds[kind] || len(prefix) > 0 && !bytes.HasPrefix(r.Key, prefix) {
			return nil
		}
		counts[kind]++
		if shown.take() != nil {
			return nil
		}
		if !t.opt.History {
			o, text = o[2].value.(object), fmt.Sprintf("%s key=%x", text[len(fmt.Sprintf("pos %d put ", pos)):], r.Key)
			o = append(o, member{"rowKey", fmt.Sprintf("%x", r.Key)})
		}
		return t.out.emit(o, text)
	})
	if err != nil && !errors.Is(err, errEnough) && !errors.Is(err, index.ErrCorrupt) {
		return err
	}
	t.out.textf("%s: %s", t.short(c.file), footerText(&c.footer))
	for k := range fsm.RowKind(math.MaxUint8) {
		if n := counts[k.String()]; n > 0 {
			t.out.textf("  %d %s", n, k)
		}
	}
	return nil
}
