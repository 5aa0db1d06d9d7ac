package conformance

import (
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/klauspost/compress/zstd"
)

// expand replaces ${...} in s. Functions may hold further ${...} in their text.
func (r *run) expand(s string) (string, error) {
	var b strings.Builder
	for {
		i := strings.Index(s, "${")
		if i < 0 {
			b.WriteString(s)
			return b.String(), nil
		}
		b.WriteString(s[:i])
		inner, rest, ok := cutBraces(s[i+2:])
		if !ok {
			return "", fmt.Errorf("${ without end in %q", short(s))
		}
		out, err := r.expandOne(inner)
		if err != nil {
			return "", err
		}
		b.WriteString(out)
		s = rest
	}
}

// cutBraces cuts s at the } that closes the ${ before it.
func cutBraces(s string) (inner, rest string, ok bool) {
	depth := 1
	for i := range len(s) {
		switch s[i] {
		case '{':
			depth++
		case '}':
			if depth--; depth == 0 {
				return s[:i], s[i+1:], true
			}
		}
	}
	return "", "", false
}

func (r *run) expandOne(inner string) (string, error) {
	if off, ok := strings.CutPrefix(inner, "now"); ok && (off == "" || strings.ContainsRune("+-", rune(off[0]))) {
		d := time.Duration(0)
		if off != "" {
			var err error
			if d, err = time.ParseDuration(off); err != nil {
				return "", err
			}
		}
		return r.broker.Now().Add(d).UTC().Format("2006-01-02T15:04:05.000000Z"), nil
	}
	name, arg, isFunc := strings.Cut(inner, " ")
	if !isFunc {
		v, ok := r.vars[name]
		if !ok {
			return "", fmt.Errorf("variable %q has no value yet", name)
		}
		return v, nil
	}
	if name == "each" {
		count, item, _ := strings.Cut(arg, " ")
		n, err := strconv.Atoi(count)
		if err != nil {
			return "", fmt.Errorf("${each N TEXT}: %w", err)
		}
		parts := make([]string, n)
		for i := range parts {
			if parts[i], err = r.expand(strings.ReplaceAll(item, "#", strconv.Itoa(i+1))); err != nil {
				return "", err
			}
		}
		return strings.Join(parts, ","), nil
	}
	arg, err := r.expand(arg)
	if err != nil {
		return "", err
	}
	if name == "token" {
		return r.token(arg)
	}
	return applyFunction(name, arg)
}

// token signs a token with the JWT_SECRET of the case. A claim that is a
// duration is a time, that far from now.
func (r *run) token(arg string) (string, error) {
	settings, err := settingsOf(r.settings)
	if err != nil {
		return "", err
	}
	claims := jwt.MapClaims{}
	for _, pair := range strings.Fields(arg) {
		name, text, ok := strings.Cut(pair, "=")
		if !ok {
			return "", fmt.Errorf("${token CLAIM=VALUE...}, found %q", arg)
		}
		if d, err := time.ParseDuration(text); err == nil {
			claims[name] = r.broker.Now().Add(d).Unix()
		} else {
			claims[name] = text
		}
	}
	return jwt.NewWithClaims(jwt.SigningMethodHS256, claims).SignedString([]byte(settings["JWT_SECRET"]))
}

func applyFunction(name, arg string) (string, error) {
	switch name {
	case "repeat":
		i := strings.LastIndexByte(arg, ' ')
		n, err := strconv.Atoi(arg[i+1:])
		if i < 0 || err != nil {
			return "", fmt.Errorf("${repeat TEXT N}, found %q", arg)
		}
		return strings.Repeat(arg[:i], n), nil
	case "nest":
		n, err := strconv.Atoi(arg)
		return strings.Repeat("[", n) + strings.Repeat("]", n), err
	case "b64":
		return base64.StdEncoding.EncodeToString([]byte(arg)), nil
	case "zstd":
		enc, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1))
		if err != nil {
			return "", err
		}
		return base64.StdEncoding.EncodeToString(enc.EncodeAll([]byte(arg), nil)), nil
	case "hex":
		b, err := hex.DecodeString(arg)
		return string(b), err
	case "noise":
		n, err := strconv.Atoi(arg)
		return noise(n), err
	case "rollback":
		return `{"transactionId": <uuid>, "success": false, "reason": "` + arg + `", "error": <text>, "results": []}`, nil
	case "engine":
		return `{"error": <text>, "code": "` + arg + `"}`, nil
	case "refusal":
		code, reason, _ := strings.Cut(arg, " ")
		return `{"error": "` + code + `", "reason": "` + reason + `", "detail": <text>}`, nil
	case "escape":
		return url.PathEscape(arg), nil
	}
	return "", fmt.Errorf("no function %q", name)
}

// noise is text that does not compress well, the same for every call.
func noise(n int) string {
	const letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
	b := make([]byte, n)
	x := uint64(1)
	for i := range b {
		x = x*6364136223846793005 + 1442695040888963407
		b[i] = letters[x>>58]
	}
	return string(b)
}
