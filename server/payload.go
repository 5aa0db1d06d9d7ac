package server

import (
	"fmt"

	"github.com/klauspost/compress/zstd"

	"queen/internal/entry"
	"queen/server/envelope"
	"queen/server/rawjson"
)

// packer compresses and opens payloads. It may be used from many goroutines.
//
// A payload is compressed once, by itself, and only when that pays: from 1 KiB
// on, and when it saves an eighth. A consumer gets the bytes that were sent.
type packer struct {
	enc *zstd.Encoder // nil: payloads are stored as they are
	dec *zstd.Decoder
	key *envelope.Key // nil: payloads are neither sealed nor opened
}

const (
	minPacked = 1 << 10
	// maxUnpacked bounds what a stored frame may grow to. No body is larger
	// than what made it, so only damage could reach this.
	maxUnpacked = 256 << 20
)

func newPacker(level int, key *envelope.Key) (*packer, error) {
	p := &packer{key: key}
	var err error
	if level > 0 {
		// Records have their own checksum, and a broker with many idle
		// connections should not keep a window for each.
		p.enc, err = zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.EncoderLevelFromZstd(level)),
			zstd.WithEncoderCRC(false), zstd.WithLowerEncoderMem(true), zstd.WithEncoderConcurrency(2), zstd.WithWindowSize(1<<20))
		if err != nil {
			return nil, fmt.Errorf("zstd level %d: %w", level, err)
		}
	}
	p.dec, err = zstd.NewReader(nil, zstd.WithDecoderConcurrency(0), zstd.WithDecoderMaxMemory(maxUnpacked), zstd.WithDecoderLowmem(true))
	return p, err
}

func (p *packer) close() {
	if p.enc != nil {
		_ = p.enc.Close()
	}
	p.dec.Close()
}

// appendMessage appends m to dst as it is stored, its payload compressed when
// that pays.
func (p *packer) appendMessage(dst []byte, m *entry.Message) []byte {
	p.compress(m)
	return entry.AppendMessage(dst, m)
}

// compress compresses the payload of m when that pays.
func (p *packer) compress(m *entry.Message) {
	if p.enc == nil || len(m.Payload) < minPacked {
		return
	}
	small := p.enc.EncodeAll(m.Payload, make([]byte, 0, len(m.Payload)))
	if len(small) <= len(m.Payload)-len(m.Payload)/8 {
		m.Payload, m.Zstd = small, true
	}
}

// appendPayload appends the payload of m as it was sent: what was sealed is
// opened, if this node's key opens it, whatever its queue says now.
func (p *packer) appendPayload(dst []byte, m *entry.Message) ([]byte, error) {
	if p.key == nil {
		return p.appendStored(dst, m)
	}
	if !m.Zstd {
		if plain, ok := p.key.Open(m.Payload); ok {
			return append(dst, plain...), nil
		}
		return append(dst, m.Payload...), nil
	}
	from := len(dst)
	dst, err := p.appendStored(dst, m)
	if err != nil {
		return dst, err
	}
	if plain, ok := p.key.Open(dst[from:]); ok {
		dst = append(dst[:from], plain...)
	}
	return dst, nil
}

// appendStored appends the payload of m as it is kept, not compressed.
func (p *packer) appendStored(dst []byte, m *entry.Message) ([]byte, error) {
	if !m.Zstd {
		return append(dst, m.Payload...), nil
	}
	out, err := p.dec.DecodeAll(m.Payload, dst)
	if err != nil {
		return dst, fmt.Errorf("payload is no zstd frame: %w", err)
	}
	return out, nil
}

// unpack opens a frame that a client sent, up to limit bytes.
func (p *packer) unpack(frame []byte, limit int) (data []byte, tooLarge bool, err error) {
	var h zstd.Header
	if err := h.Decode(frame); err != nil {
		return nil, false, err
	}
	if h.HasFCS && h.FrameContentSize > uint64(limit) {
		return nil, true, nil
	}
	// A frame that does not tell its size is opened under a reader of its own
	// that stops at the limit.
	dec, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(uint64(limit)))
	if err != nil {
		return nil, false, err
	}
	defer dec.Close()
	data, err = dec.DecodeAll(frame, nil)
	if err == zstd.ErrDecoderSizeExceeded {
		return nil, true, nil
	}
	return data, false, err
}

// jsonPayload is a timer's payload as JSON: itself, or, when it is none, its
// text as a JSON string.
func jsonPayload(data []byte) []byte {
	if rawjson.Valid(data) {
		return data
	}
	return rawjson.AppendString(nil, data)
}
