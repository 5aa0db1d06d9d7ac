package tokens

import (
	"context"
	"crypto/ed25519"
	"crypto/rsa"
	"errors"
	"slices"
	"strings"

	"github.com/golang-jwt/jwt/v5"
)

// Refusal is why a token does not count. Its text goes to the client.
type Refusal string

func (r Refusal) Error() string { return string(r) }

// Refusals, as clients know them.
const (
	ErrNoToken     = Refusal("Authentication required")
	ErrExpired     = Refusal("Token has expired")
	ErrNotYet      = Refusal("Token not yet valid")
	ErrFuture      = Refusal("Token issued in the future")
	ErrSignature   = Refusal("Invalid token signature")
	ErrIssuer      = Refusal("Invalid token issuer")
	ErrAudience    = Refusal("Invalid token audience")
	ErrUnknownKey  = Refusal("Unknown key ID")
	ErrHeader      = Refusal("Bad token header")
	ErrUnsupported = Refusal("Unsupported token algorithm")
)

// Identity is who a token says that the caller is.
type Identity struct {
	Subject string // empty: the token has none
	Roles   Roles
}

// Verifier checks tokens.
type Verifier struct {
	cfg        Config
	algorithms []string
	public     any     // *rsa.PublicKey, ed25519.PublicKey or nil
	keys       *keySet // nil: no URL, or a public key was given
	parser     *jwt.Parser
}

// New makes a verifier, and fetches the key set when there is a URL: one that
// does not answer is no refusal, tokens are refused until it does. It returns a
// *ConfigError for settings that cannot work.
func New(cfg Config) (*Verifier, error) {
	cfg.defaults()
	v := &Verifier{cfg: cfg}
	var err error
	if v.algorithms, err = algorithms(cfg.Algorithm); err != nil {
		return nil, err
	}
	if v.public, err = parsePublicKey(cfg.PublicKey); err != nil {
		return nil, err
	}
	if err := cfg.checkKeys(v.public); err != nil {
		return nil, err
	}
	v.parser = jwt.NewParser(jwt.WithLeeway(cfg.Skew), jwt.WithIssuedAt(), jwt.WithTimeFunc(cfg.Clock))
	if cfg.JWKSURL != "" && v.public == nil && !strings.HasPrefix(cfg.Algorithm, "HS") {
		v.keys = newKeySet(&v.cfg)
	}
	return v, nil
}

// Close ends what New started.
func (v *Verifier) Close() {
	if v.keys != nil {
		v.keys.close()
	}
}

// Verify checks the value of an Authorization header: "Bearer" in any case and
// a token, or the token alone. An error is a Refusal. ctx bounds the waiting for
// a key that is not known yet.
func (v *Verifier) Verify(ctx context.Context, header string) (Identity, error) {
	text := bearer(header)
	if text == "" {
		return Identity{}, ErrNoToken
	}
	claims := jwt.MapClaims{}
	_, err := v.parser.ParseWithClaims(text, claims, func(t *jwt.Token) (any, error) { return v.key(ctx, t) })
	if err != nil {
		return Identity{}, refusalOf(err)
	}
	if v.cfg.Issuer != "" && claims["iss"] != v.cfg.Issuer {
		return Identity{}, ErrIssuer
	}
	if aud, err := claims.GetAudience(); v.cfg.Audience != "" && (err != nil || !slices.Contains(aud, v.cfg.Audience)) {
		return Identity{}, ErrAudience
	}
	subject, _ := claims["sub"].(string)
	return Identity{Subject: subject, Roles: v.roles(claims)}, nil
}

// bearer cuts the token out of a header.
func bearer(header string) string {
	const prefix = "bearer "
	header = strings.TrimSpace(header)
	if len(header) >= len(prefix) && strings.EqualFold(header[:len(prefix)], prefix) {
		return strings.TrimSpace(header[len(prefix):])
	}
	if strings.EqualFold(header, "bearer") || strings.ContainsAny(header, " \t") {
		return "" // another scheme, or none
	}
	return header
}

// key is the key that the token's signature is checked with. The kind of key
// follows from the algorithm, so that a public key is never taken for a secret.
func (v *Verifier) key(ctx context.Context, t *jwt.Token) (any, error) {
	alg := t.Method.Alg()
	if !slices.Contains(v.algorithms, alg) {
		return nil, ErrUnsupported
	}
	if _, critical := t.Header["crit"]; critical {
		return nil, ErrHeader // extensions that must be understood, and are not
	}
	if strings.HasPrefix(alg, "HS") {
		if len(v.cfg.Secret) == 0 {
			return nil, ErrUnsupported
		}
		return v.cfg.Secret, nil
	}
	if v.public != nil {
		if !fits(v.public, alg) {
			return nil, ErrUnsupported
		}
		return v.public, nil
	}
	if v.keys == nil {
		return nil, ErrUnsupported
	}
	kid, isText := t.Header["kid"].(string)
	if _, present := t.Header["kid"]; present && !isText {
		return nil, ErrHeader
	}
	return v.keys.find(ctx, kid, alg)
}

// fits reports whether a key is of the kind that an algorithm uses.
func fits(key any, alg string) bool {
	switch key.(type) {
	case *rsa.PublicKey:
		return strings.HasPrefix(alg, "RS")
	case ed25519.PublicKey:
		return alg == "EdDSA"
	default:
		return false
	}
}

// refusalOf names an error of the parser.
func refusalOf(err error) error {
	var own Refusal
	switch {
	case errors.As(err, &own):
		return own
	case errors.Is(err, jwt.ErrTokenMalformed):
		return ErrHeader
	case errors.Is(err, jwt.ErrTokenUnverifiable):
		return ErrUnsupported // an alg that is missing or unknown
	case errors.Is(err, jwt.ErrTokenSignatureInvalid):
		return ErrSignature
	case errors.Is(err, jwt.ErrTokenExpired):
		return ErrExpired
	case errors.Is(err, jwt.ErrTokenNotValidYet):
		return ErrNotYet
	case errors.Is(err, jwt.ErrTokenUsedBeforeIssued):
		return ErrFuture
	default:
		return ErrHeader // a claim of the wrong type
	}
}

// roles reads both claims: one role, and a list of them.
func (v *Verifier) roles(claims jwt.MapClaims) (r Roles) {
	if one, ok := claims[v.cfg.RoleClaim].(string); ok {
		r |= v.role(one)
	}
	list, _ := claims[v.cfg.RolesClaim].([]any)
	for _, e := range list {
		if name, ok := e.(string); ok {
			r |= v.role(name)
		}
	}
	return r
}

func (v *Verifier) role(name string) Roles {
	switch name {
	case v.cfg.RoleAdmin:
		return RoleAdmin
	case v.cfg.RoleReadWrite:
		return RoleReadWrite
	case v.cfg.RoleReadOnly:
		return RoleReadOnly
	case v.cfg.RoleWriteOnly:
		return RoleWriteOnly
	default:
		return 0
	}
}
