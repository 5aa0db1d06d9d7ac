// Package envelope seals payloads, so that a data directory, a backup or a
// stolen disk shows none of them, and opens them again.
//
// # FORMAT of a sealed payload
//
// AES-256-GCM over the JSON of the payload, without associated data, as JSON:
//
//	{"encrypted":"<ciphertext>","iv":"<16 bytes>","authTag":"<16 bytes>"}
//
// each in standard base64 with padding. The nonce is the first 12 bytes of iv;
// all 16 are random. The order of the members does not matter to a reader, nor
// white space between them; a fourth member, or one of another kind, makes it a
// payload like any other.
//
// Random nonces are safe for some 2^40 payloads under one key: at 10,000 a
// second that takes three years, and even then two of them meet with a chance
// below one in 10,000.
package envelope

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"errors"

	"queen/server/rawjson"
)

// Key seals and opens. It may be used by any number of goroutines.
type Key struct{ aead cipher.AEAD }

const (
	keyBytes   = 32
	ivBytes    = 16
	nonceBytes = 12
	tagBytes   = 16
)

// ErrKey reports a key that is not 64 hex digits. It does not show the key.
var ErrKey = errors.New("a key is 64 hex digits (32 bytes)")

// Parse reads a key: exactly 64 hex digits.
func Parse(text string) (*Key, error) {
	raw, err := hex.DecodeString(text)
	if err != nil || len(raw) != keyBytes {
		return nil, ErrKey
	}
	block, err := aes.NewCipher(raw)
	if err != nil {
		return nil, err
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		return nil, err
	}
	return &Key{aead: aead}, nil
}

// Append appends the envelope of payload to dst.
func (k *Key) Append(dst, payload []byte) []byte {
	var iv [ivBytes]byte
	_, _ = rand.Read(iv[:]) // it never fails
	sealed := k.aead.Seal(make([]byte, 0, len(payload)+tagBytes), iv[:nonceBytes], payload, nil)
	text, tag := sealed[:len(payload)], sealed[len(payload):]
	enc := base64.StdEncoding
	dst = append(dst, `{"encrypted":"`...)
	dst = enc.AppendEncode(dst, text)
	dst = append(dst, `","iv":"`...)
	dst = enc.AppendEncode(dst, iv[:])
	dst = append(dst, `","authTag":"`...)
	dst = enc.AppendEncode(dst, tag)
	return append(dst, `"}`...)
}

// Open returns what an envelope holds. ok is false for every other payload, and
// for one that another key sealed or that was changed: that is data as it is.
func (k *Key) Open(payload []byte) (plain []byte, ok bool) {
	f, ok := fields(payload)
	if !ok {
		return nil, false
	}
	enc := base64.StdEncoding
	var iv, tag [ivBytes + 2]byte // decoding rounds up to threes
	if enc.DecodedLen(len(f.iv)) > len(iv) || enc.DecodedLen(len(f.tag)) > len(tag) {
		return nil, false
	}
	n, err := enc.Decode(iv[:], f.iv)
	if err != nil || n != ivBytes {
		return nil, false
	}
	if n, err = enc.Decode(tag[:], f.tag); err != nil || n != tagBytes {
		return nil, false
	}
	buf := make([]byte, enc.DecodedLen(len(f.text)), enc.DecodedLen(len(f.text))+tagBytes)
	if n, err = enc.Decode(buf, f.text); err != nil {
		return nil, false
	}
	buf = append(buf[:n], tag[:tagBytes]...)
	plain, err = k.aead.Open(buf[:0], iv[:nonceBytes], buf, nil)
	return plain, err == nil
}

// sealedFields are the members of an envelope, not decoded yet.
type sealedFields struct{ text, iv, tag []byte }

// shortest is the length of the envelope of no bytes at all, without spaces.
const shortest = len(`{"encrypted":"","iv":"","authTag":""}`) + 24 + 24

// fields reads the members of an envelope; false: it is none.
func fields(payload []byte) (f sealedFields, ok bool) {
	if len(payload) < shortest || !mayBe(payload) {
		return f, false
	}
	var sc rawjson.Scanner
	sc.Reset(payload)
	seen := 0
	for more := sc.EnterObject(); more; more = sc.NextMember() {
		var into *[]byte
		switch string(sc.Key()) {
		case "encrypted":
			into = &f.text
		case "iv":
			into = &f.iv
		case "authTag":
			into = &f.tag
		}
		if into == nil || *into != nil {
			return f, false
		}
		text, isString := sc.Text()
		if !isString {
			return f, false
		}
		if *into = text; text == nil {
			*into = []byte{}
		}
		seen++
	}
	return f, seen == 3 && sc.End() == nil
}

// mayBe looks at the first member's name only, so that a payload that is no
// envelope costs next to nothing.
func mayBe(payload []byte) bool {
	i := spaces(payload, 0)
	if i == len(payload) || payload[i] != '{' {
		return false
	}
	i = spaces(payload, i+1)
	if i+2 > len(payload) || payload[i] != '"' {
		return false
	}
	switch payload[i+1] {
	case 'e', 'i', 'a', '\\':
		return true
	default:
		return false
	}
}

func spaces(b []byte, i int) int {
	for i < len(b) && (b[i] == ' ' || b[i] == '\t' || b[i] == '\n' || b[i] == '\r') {
		i++
	}
	return i
}
