package rawjson

import (
	"math"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// appendUnescaped appends the text of a checked string's inside. whole is false
// when that has a lone surrogate, which is no character: U+FFFD stands for it.
func appendUnescaped(dst, raw []byte) (text []byte, whole bool) {
	whole = true
	for i := 0; i < len(raw); {
		c := raw[i]
		if c != '\\' {
			dst = append(dst, c)
			i++
			continue
		}
		i += 2
		switch c := raw[i-1]; c {
		case 'b':
			dst = append(dst, '\b')
		case 'f':
			dst = append(dst, '\f')
		case 'n':
			dst = append(dst, '\n')
		case 'r':
			dst = append(dst, '\r')
		case 't':
			dst = append(dst, '\t')
		case 'u':
			r, n := unescapeRune(raw[i:])
			dst = utf8.AppendRune(dst, r)
			whole = whole && (r != utf8.RuneError || isReplacement(raw[i:i+n]))
			i += n
		default:
			dst = append(dst, c)
		}
	}
	return dst, whole
}

// isReplacement reports whether the digits of an escape are those of U+FFFD itself.
func isReplacement(b []byte) bool {
	r, _ := hex4(b)
	return r == utf8.RuneError
}

// unescapeRune reads what follows a \u: one code unit, or two when they are a
// surrogate pair. A lone surrogate is U+FFFD and leaves what follows alone.
func unescapeRune(b []byte) (r rune, n int) {
	r, _ = hex4(b)
	if !utf16.IsSurrogate(r) {
		return r, 4
	}
	if len(b) >= 10 && b[4] == '\\' && b[5] == 'u' {
		if low, ok := hex4(b[6:]); ok {
			if pair := utf16.DecodeRune(r, low); pair != utf8.RuneError {
				return pair, 10
			}
		}
	}
	return utf8.RuneError, 4
}

// Int reads a number that is whole and fits: plain digits, or a fraction or
// exponent form of a whole number below 2^53. raw is a checked number.
func Int(raw []byte) (n int64, ok bool) {
	if n, err := strconv.ParseInt(string(raw), 10, 64); err == nil {
		return n, true
	}
	f, err := strconv.ParseFloat(string(raw), 64)
	if err != nil || f != math.Trunc(f) || math.Abs(f) >= 1<<53 {
		return 0, false
	}
	return int64(f), true
}

// Float reads a finite number. raw is a checked number.
func Float(raw []byte) (f float64, ok bool) {
	f, err := strconv.ParseFloat(string(raw), 64)
	return f, err == nil
}

// AppendCompact appends raw, a checked value, without the white space between
// its tokens. What the tokens look like is kept: digits, escapes, order.
func AppendCompact(dst, raw []byte) []byte {
	from := 0
	for i := 0; i < len(raw); {
		switch raw[i] {
		case '"':
			i = stringEnd(raw, i)
		case ' ', '\t', '\n', '\r':
			dst = append(dst, raw[from:i]...)
			i++
			from = i
		default:
			i++
		}
	}
	return append(dst, raw[from:]...)
}

func stringEnd(raw []byte, i int) int {
	for i++; i < len(raw); i++ {
		switch raw[i] {
		case '\\':
			i++
		case '"':
			return i + 1
		}
	}
	return i
}
