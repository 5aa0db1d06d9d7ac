package rawjson

import (
	"time"
	"unicode/utf8"
)

const hexDigits = "0123456789abcdef"

// plain marks the bytes that stand for themselves inside a string.
var plain = func() (t [256]bool) {
	for c := ' '; c < 256; c++ {
		t[c] = c != '"' && c != '\\' && c < utf8.RuneSelf
	}
	return t
}()

// AppendString appends text as a JSON string. Bytes that are not UTF-8 become
// U+FFFD, so the result is always valid.
func AppendString[T string | []byte](dst []byte, text T) []byte {
	dst = append(dst, '"')
	from := 0
	for i := 0; i < len(text); {
		c := text[i]
		if plain[c] {
			i++
			continue
		}
		if c >= utf8.RuneSelf {
			r, n := decodeRune(text[i:])
			if r != utf8.RuneError || n > 1 {
				i += n
				continue
			}
			dst = append(append(dst, text[from:i]...), "\ufffd"...)
		} else {
			dst = appendEscaped(append(dst, text[from:i]...), c)
		}
		i++
		from = i
	}
	return append(append(dst, text[from:]...), '"')
}

func decodeRune[T string | []byte](text T) (rune, int) {
	var head [utf8.UTFMax]byte
	n := copy(head[:], text)
	return utf8.DecodeRune(head[:n])
}

func appendEscaped(dst []byte, c byte) []byte {
	switch c {
	case '"', '\\':
		return append(dst, '\\', c)
	case '\n':
		return append(dst, '\\', 'n')
	case '\r':
		return append(dst, '\\', 'r')
	case '\t':
		return append(dst, '\\', 't')
	default:
		return append(dst, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
	}
}

// AppendBool appends true or false.
func AppendBool(dst []byte, v bool) []byte {
	if v {
		return append(dst, "true"...)
	}
	return append(dst, "false"...)
}

// AppendMicros appends a time, microseconds since the epoch, as a quoted UTC
// time stamp with 6 digits of fraction.
func AppendMicros(dst []byte, micros int64) []byte { return appendTime(dst, micros, 6) }

// AppendMillis is AppendMicros with 3 digits, the rest cut off.
func AppendMillis(dst []byte, micros int64) []byte { return appendTime(dst, micros, 3) }

const (
	microsPerDay = 24 * 60 * 60 * 1_000_000
	lastMicros   = 253402300799_999999 // the end of the year 9999
)

func appendTime(dst []byte, micros int64, digits int) []byte {
	if micros < 0 || micros > lastMicros {
		// Outside of what the fixed layout can say; such a time is a bug
		// elsewhere, and still has to come out as JSON.
		return append(append(append(dst, '"'), time.UnixMicro(micros).UTC().Format(time.RFC3339Nano)...), '"')
	}
	year, month, day := civil(micros / microsPerDay)
	rest := micros % microsPerDay
	sec, frac := rest/1_000_000, rest%1_000_000
	dst = append(dst, '"')
	dst = appendPadded(dst, year, 4)
	dst = appendPadded(append(dst, '-'), month, 2)
	dst = appendPadded(append(dst, '-'), day, 2)
	dst = appendPadded(append(dst, 'T'), sec/3600, 2)
	dst = appendPadded(append(dst, ':'), sec/60%60, 2)
	dst = appendPadded(append(dst, ':'), sec%60, 2)
	if digits == 3 {
		frac /= 1000
	}
	dst = appendPadded(append(dst, '.'), frac, digits)
	return append(dst, 'Z', '"')
}

// civil turns days since the epoch, not negative, into a date. Years are
// counted from March 1st of year 0, so that a leap day ends its year; a cycle
// of 400 years has 146097 days.
func civil(days int64) (year, month, day int64) {
	days += 719468
	era := days / 146097
	inEra := days % 146097
	yearOfEra := (inEra - inEra/1460 + inEra/36524 - inEra/146096) / 365
	inYear := inEra - (365*yearOfEra + yearOfEra/4 - yearOfEra/100)
	fromMarch := (5*inYear + 2) / 153
	day = inYear - (153*fromMarch+2)/5 + 1
	month = fromMarch + 3
	year = era*400 + yearOfEra
	if month > 12 {
		month -= 12
		year++
	}
	return year, month, day
}

func appendPadded(dst []byte, n int64, width int) []byte {
	var b [6]byte
	for i := width - 1; i >= 0; i-- {
		b[i] = byte('0' + n%10)
		n /= 10
	}
	return append(dst, b[:width]...)
}
