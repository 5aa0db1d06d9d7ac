package peer

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	pb "go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"queen/raftlog"
)

const (
	frameHead = 36 // behind the length
	// maxFrame bounds a frame: the largest entry is 96 MiB and something.
	maxFrame = 160 << 20
	// readStep is how much memory a length on the wire is believed at once.
	readStep = 1 << 20
)

var errFrame = errors.New("malformed frame")

// appendFrame appends a frame to dst.
func appendFrame(dst []byte, group uint32, p *raftlog.Parcel) ([]byte, error) {
	at := len(dst)
	dst = append(dst, 0, 0, 0, 0)
	dst = binary.LittleEndian.AppendUint32(dst, group)
	dst = binary.LittleEndian.AppendUint64(dst, uint64(p.Time))
	dst = binary.LittleEndian.AppendUint64(dst, p.Commit)
	dst = binary.LittleEndian.AppendUint64(dst, p.Keep)
	dst = binary.LittleEndian.AppendUint64(dst, p.TimeTerm)
	for _, m := range p.Messages {
		from := len(dst)
		dst = append(dst, 0, 0, 0, 0)
		var err error
		if dst, err = (proto.MarshalOptions{}).MarshalAppend(dst, m); err != nil {
			return dst[:at], fmt.Errorf("encode a message: %w", err)
		}
		binary.LittleEndian.PutUint32(dst[from:], uint32(len(dst)-from-4))
	}
	if n := len(dst) - at - 4; n > maxFrame {
		return dst[:at], fmt.Errorf("%w: %d bytes, at most %d are sent", errFrame, n, maxFrame)
	}
	binary.LittleEndian.PutUint32(dst[at:], uint32(len(dst)-at-4))
	return dst, nil
}

// readFrame reads a frame. What a length promises is allocated as it arrives.
func readFrame(r io.Reader, buf []byte) (body, kept []byte, err error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, buf, err
	}
	n := int(binary.LittleEndian.Uint32(head[:]))
	if n < frameHead || n > maxFrame {
		return nil, buf, fmt.Errorf("%w: length %d, expected %d to %d", errFrame, n, frameHead, maxFrame)
	}
	buf = buf[:0]
	for len(buf) < n {
		step := min(n-len(buf), max(readStep, len(buf)))
		from := len(buf)
		buf = append(buf, make([]byte, step)...)
		if _, err := io.ReadFull(r, buf[from:]); err != nil {
			return nil, buf, err
		}
	}
	return buf, buf, nil
}

// parseFrame takes a frame apart. The parcel shares no memory with b.
func parseFrame(b []byte) (group uint32, p *raftlog.Parcel, err error) {
	if len(b) < frameHead {
		return 0, nil, fmt.Errorf("%w: %d bytes", errFrame, len(b))
	}
	group = binary.LittleEndian.Uint32(b)
	p = &raftlog.Parcel{
		Time: int64(binary.LittleEndian.Uint64(b[4:])), Commit: binary.LittleEndian.Uint64(b[12:]), Keep: binary.LittleEndian.Uint64(b[20:]),
		TimeTerm: binary.LittleEndian.Uint64(b[28:]),
	}
	for b = b[frameHead:]; len(b) > 0; {
		if len(b) < 4 || uint64(binary.LittleEndian.Uint32(b)) > uint64(len(b)-4) {
			return 0, nil, fmt.Errorf("%w: a message is cut off", errFrame)
		}
		n := binary.LittleEndian.Uint32(b)
		m := &pb.Message{}
		if err := proto.Unmarshal(b[4:4+n], m); err != nil {
			return 0, nil, fmt.Errorf("%w: %w", errFrame, err)
		}
		p.Messages = append(p.Messages, m)
		b = b[4+n:]
	}
	return group, p, nil
}
