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
	var b [30]byte
	b[0], b[5], b[8], b[11], b[14], b[17], b[20] = '"', '-', '-', 'T', ':', ':', '.'
	put2(b[1:], year/100)
	put2(b[3:], year%100)
	put2(b[6:], month)
	put2(b[9:], day)
	put2(b[12:], sec/3600)
	put2(b[15:], sec/60%60)
	put2(b[18:], sec%60)
	put2(b[21:], frac/10_000)
	put2(b[23:], frac/100%100)
	put2(b[25:], frac%100)
	end := 21 + digits
	b[end], b[end+1] = 'Z', '"'
	return append(dst, b[:end+2]...)
}

// pairs holds the two digits of each number below 100.
var pairs = func() (t [200]byte) {
	for i := range 100 {
		t[2*i], t[2*i+1] = byte('0'+i/10), byte('0'+i%10)
	}
	return t
}()

func put2(b []byte, n int64) {
	b[0], b[1] = pairs[2*n], pairs[2*n+1]
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
