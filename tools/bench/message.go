package main

import (
	"encoding/base64"
	"math/rand/v2"
	"strconv"
)

const (
	rawBytes   = 256 // random bytes of a message
	textBytes  = (rawBytes + 2) / 3 * 4
	valueBytes = 64 // of the KV value
	ttl        = "86400"
)

// noise is base64 text of random bytes that payloads are cut from. It is large
// beside what one entry of the broker's log holds, so that a compressor does not
// meet a piece again.
var noise = func() []byte {
	raw := make([]byte, 12<<20)
	rng := rand.NewChaCha8([32]byte{1})
	rng.Read(raw)
	text := make([]byte, base64.StdEncoding.EncodedLen(len(raw)))
	base64.StdEncoding.Encode(text, raw)
	return text
}()

// source makes messages for one goroutine: ids that nobody else makes, payloads
// from the noise.
type source struct {
	rng    *rand.Rand
	prefix string
	n      uint64 // ids made
	at     int    // next byte of the noise
}

func (s *session) source(worker int) *source {
	rng := rand.New(rand.NewPCG(uint64(s.run), uint64(worker)))
	return &source{rng: rng, prefix: s.tag + hexPad(uint64(worker), 3), at: rng.IntN(len(noise))}
}

// id appends a new transactionId, 16 characters.
func (s *source) id(b []byte) []byte {
	s.n++
	b = append(b, s.prefix...)
	return appendHex(b, s.n, 7)
}

// text appends the next n bytes of the noise: each source walks through it from a
// place of its own, in order, which costs fewer cache misses than jumping about.
func (s *source) text(b []byte, n int) []byte {
	if s.at+n > len(noise) {
		s.at = 0
	}
	b = append(b, noise[s.at:s.at+n]...)
	s.at += n
	return b
}

// item appends one element of a push's items.
func (s *source) item(b []byte, queue, partition []byte) []byte {
	b = s.itemHead(b, queue, partition)
	b = s.text(b, textBytes)
	return append(b, `"}`...)
}

// itemDue is item with a time (Unix ns) as the first 16 characters of the text.
func (s *source) itemDue(b []byte, queue, partition []byte, due int64) []byte {
	b = s.itemHead(b, queue, partition)
	b = appendHex(b, uint64(due), 16)
	b = s.text(b, textBytes-16)
	return append(b, `"}`...)
}

func (s *source) itemHead(b, queue, partition []byte) []byte {
	b = append(b, `{"queue":"`...)
	b = append(b, queue...)
	b = append(b, `","partition":"`...)
	b = append(b, partition...)
	b = append(b, `","transactionId":"`...)
	b = s.id(b)
	return append(b, `","payload":"`...)
}

// dueOf reads the time that itemDue wrote.
func dueOf(text []byte) (int64, bool) {
	if len(text) < 16 {
		return 0, false
	}
	v, err := strconv.ParseUint(string(text[:16]), 16, 64)
	return int64(v), err == nil
}

// partition appends the name of partition p.
func partitionName(b []byte, p int) []byte {
	return strconv.AppendInt(append(b, 'p'), int64(p), 10)
}

func appendHex(b []byte, v uint64, digits int) []byte {
	const hex = "0123456789abcdef"
	for i := digits - 1; i >= 0; i-- {
		b = append(b, hex[v>>(4*i)&15])
	}
	return b
}

func hexPad(v uint64, digits int) string { return string(appendHex(nil, v, digits)) }
