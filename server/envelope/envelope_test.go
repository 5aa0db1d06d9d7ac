package envelope

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

const keyText = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"

func mustKey(t testing.TB, text string) *Key {
	t.Helper()
	k, err := Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func TestKeys(t *testing.T) {
	for _, text := range []string{"", keyText[:62], keyText + "20", strings.Replace(keyText, "0", "g", 1), " " + keyText[1:], keyText[:63] + " "} {
		if k, err := Parse(text); k != nil || err != ErrKey {
			t.Errorf("%q: %v", text, err)
		}
	}
	mustKey(t, strings.ToUpper(keyText))
}

func TestRoundTrip(t *testing.T) {
	k, other := mustKey(t, keyText), mustKey(t, strings.Repeat("ab", 32))
	rapid.Check(t, func(t *rapid.T) {
		payload := rapid.SliceOf(rapid.Byte()).Draw(t, "payload")
		sealed := k.Append([]byte("before"), payload)[len("before"):]
		if !json.Valid(sealed) || len(payload) > 8 && bytes.Contains(sealed, payload) {
			t.Fatalf("sealed: %s", sealed)
		}
		if plain, ok := k.Open(sealed); !ok || !bytes.Equal(plain, payload) {
			t.Fatalf("opened: %q %v", plain, ok)
		}
		if _, ok := other.Open(sealed); ok {
			t.Fatal("another key opens it")
		}
		if again := k.Append(nil, payload); bytes.Equal(again, sealed) {
			t.Fatal("the same payload was sealed the same way twice")
		}
		i := rapid.IntRange(0, len(sealed)-1).Draw(t, "at")
		changed := bytes.Clone(sealed)
		changed[i] ^= 1 << rapid.IntRange(0, 7).Draw(t, "bit")
		if plain, ok := k.Open(changed); ok && !bytes.Equal(plain, payload) {
			t.Fatalf("a changed envelope opens as %q", plain)
		}
	})
}

// TestKnownEnvelope: the parts are what the format says, made without this
// package's writer.
func TestKnownEnvelope(t *testing.T) {
	raw, _ := hex.DecodeString(keyText)
	block, _ := aes.NewCipher(raw)
	aead, _ := cipher.NewGCM(block)
	iv := []byte("0123456789ab----") // the last four are ignored
	out := aead.Seal(nil, iv[:12], []byte(`{"order":1}`), nil)
	b := base64.StdEncoding.EncodeToString
	text, tag := b(out[:len(out)-16]), b(out[len(out)-16:])
	k := mustKey(t, keyText)
	for _, form := range []string{
		`{"encrypted":"` + text + `","iv":"` + b(iv) + `","authTag":"` + tag + `"}`,
		` { "authTag" : "` + tag + `",` + "\n\t" + `"iv":"` + b(iv) + `", "encrypted":"` + text + `" } `,
		`{"\u0065ncrypted":"` + strings.ReplaceAll(text, "/", `\/`) + `","iv":"` + b(iv) + `","authTag":"` + tag + `"}`,
	} {
		if plain, ok := k.Open([]byte(form)); !ok || string(plain) != `{"order":1}` {
			t.Errorf("%s: %q %v", form, plain, ok)
		}
	}
	for _, form := range []string{
		`{"encrypted":"` + text + `","iv":"` + b(iv) + `"}` + strings.Repeat(" ", 60),
		`{"encrypted":"` + text + `","iv":"` + b(iv) + `","authTag":"` + tag + `","more":1}`,
		`{"encrypted":"` + text + `","iv":"` + b(iv) + `","authTag":"` + tag + `","iv":"` + b(iv) + `"}`,
		`[{"encrypted":"` + text + `","iv":"` + b(iv) + `","authTag":"` + tag + `"}]`,
		`{"encrypted":"` + text + `","iv":"` + b(iv[:12]) + `","authTag":"` + tag + `"}`,
		`{"encrypted":"` + text + `","iv":"` + b(iv) + `","authTag":"` + b(out[len(out)-15:]) + `"}`,
		`{"encrypted":"` + strings.TrimRight(text, "=") + `","iv":"` + b(iv) + `","authTag":"` + tag + `"}`,
		`{"encrypted":7,"iv":"` + b(iv) + `","authTag":"` + tag + `"}`,
		`{"encrypted":"` + text + `","iv":"` + b(iv) + `","authTag":"` + tag + `"} x`,
		`{}`, ``, `null`, `"` + strings.Repeat("x", 100) + `"`,
	} {
		if plain, ok := k.Open([]byte(form)); ok {
			t.Errorf("%s opens as %q", form, plain)
		}
	}
}

func FuzzOpen(f *testing.F) {
	k := mustKey(f, keyText)
	f.Add(k.Append(nil, []byte(`{"a":1}`)))
	f.Add([]byte(`{"encrypted":"","iv":"AAAAAAAAAAAAAAAAAAAAAA==","authTag":"AAAAAAAAAAAAAAAAAAAAAA=="}`))
	f.Add([]byte(`{"iv":"`))
	f.Fuzz(func(t *testing.T, payload []byte) {
		before := bytes.Clone(payload)
		if plain, ok := k.Open(payload); ok && len(plain) > len(payload) {
			t.Errorf("%d bytes opened as %d", len(payload), len(plain))
		}
		if !bytes.Equal(before, payload) {
			t.Error("the payload was written to")
		}
	})
}

func BenchmarkNoEnvelope(b *testing.B) {
	k := mustKey(b, keyText)
	payload := []byte(`{"order":1,"cents":4200,"note":"` + strings.Repeat("x", 200) + `"}`)
	b.ReportAllocs()
	for b.Loop() {
		if _, ok := k.Open(payload); ok {
			b.Fatal("opened")
		}
	}
}
