package tokens

import (
	"crypto/ed25519"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// Config is what tokens are checked against. Zero fields take the defaults
// named at them. The setting that a refusal names stands behind each field.
type Config struct {
	Algorithm string // JWT_ALGORITHM: HS256, HS384, HS512, RS256 (RS384 and RS512, too), RS384, RS512, EdDSA or auto; HS256
	Secret    []byte // JWT_SECRET: key of HS*
	PublicKey string // JWT_PUBLIC_KEY: PEM of an RSA or Ed25519 key; wins over JWKSURL
	JWKSURL   string // JWT_JWKS_URL

	Refresh time.Duration // JWT_JWKS_REFRESH_INTERVAL; 1 h
	Timeout time.Duration // JWT_JWKS_TIMEOUT_MS, of one fetch; 5 s
	Skew    time.Duration // JWT_CLOCK_SKEW, for exp, nbf and iat; 0 is none

	Issuer   string // JWT_ISSUER; empty: not checked
	Audience string // JWT_AUDIENCE; empty: not checked

	RoleClaim  string // JWT_ROLES_CLAIM: claim with one role; role
	RolesClaim string // JWT_ROLES_ARRAY_CLAIM: claim with a list of roles; roles
	// Names of the roles; admin, read-write, read-only, write-only.
	RoleAdmin, RoleReadWrite, RoleReadOnly, RoleWriteOnly string

	Clock  func() time.Time // time.Now
	Client *http.Client     // fetches the key set
	Logger *slog.Logger
}

// ConfigError is a configuration that tokens cannot be checked with.
type ConfigError struct {
	Setting string // the environment variable that it is about
	Problem string
}

func (e *ConfigError) Error() string { return e.Setting + ": " + e.Problem }

func (c *Config) defaults() {
	text := func(s *string, def string) {
		if *s == "" {
			*s = def
		}
	}
	text(&c.Algorithm, "HS256")
	text(&c.RoleClaim, "role")
	text(&c.RolesClaim, "roles")
	text(&c.RoleAdmin, "admin")
	text(&c.RoleReadWrite, "read-write")
	text(&c.RoleReadOnly, "read-only")
	text(&c.RoleWriteOnly, "write-only")
	if c.Refresh <= 0 {
		c.Refresh = time.Hour
	}
	if c.Timeout <= 0 {
		c.Timeout = 5 * time.Second
	}
	if c.Clock == nil {
		c.Clock = time.Now
	}
	if c.Client == nil {
		c.Client = &http.Client{}
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
}

// algorithms are the alg values that a setting admits.
func algorithms(setting string) ([]string, error) {
	switch setting {
	case "HS256", "HS384", "HS512", "RS384", "RS512", "EdDSA":
		return []string{setting}, nil
	case "RS256":
		return []string{"RS256", "RS384", "RS512"}, nil
	case "auto":
		return []string{"HS256", "HS384", "HS512", "RS256", "RS384", "RS512", "EdDSA"}, nil
	default:
		return nil, &ConfigError{"JWT_ALGORITHM", "none of HS256, HS384, HS512, RS256, RS384, RS512, EdDSA and auto"}
	}
}

// checkKeys refuses settings under which no token could ever pass.
func (c *Config) checkKeys(public any) error {
	symmetric := strings.HasPrefix(c.Algorithm, "HS")
	switch {
	case len(c.Secret) == 0 && c.PublicKey == "" && c.JWKSURL == "":
		return &ConfigError{"JWT_ENABLED", "there is no key: set JWT_SECRET, JWT_PUBLIC_KEY or JWT_JWKS_URL"}
	case symmetric && len(c.Secret) == 0:
		return &ConfigError{"JWT_ALGORITHM", c.Algorithm + " needs JWT_SECRET"}
	case !symmetric && c.Algorithm != "auto" && c.PublicKey == "" && c.JWKSURL == "":
		return &ConfigError{"JWT_ALGORITHM", c.Algorithm + " needs JWT_PUBLIC_KEY or JWT_JWKS_URL, a secret is no public key"}
	}
	_, isRSA := public.(*rsa.PublicKey)
	_, isEd := public.(ed25519.PublicKey)
	if isEd && strings.HasPrefix(c.Algorithm, "RS") || isRSA && c.Algorithm == "EdDSA" {
		return &ConfigError{"JWT_PUBLIC_KEY", "the key is of another kind than JWT_ALGORITHM asks for"}
	}
	if c.JWKSURL != "" {
		u, err := url.Parse(c.JWKSURL)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
			return &ConfigError{"JWT_JWKS_URL", "no http or https URL"}
		}
	}
	return nil
}

// parsePublicKey reads a PEM block; nil: text is empty.
func parsePublicKey(text string) (any, error) {
	if text == "" {
		return nil, nil
	}
	// An environment variable often carries its line breaks escaped.
	block, _ := pem.Decode([]byte(strings.ReplaceAll(text, `\n`, "\n")))
	if block == nil {
		return nil, &ConfigError{"JWT_PUBLIC_KEY", "no PEM block"}
	}
	var key any
	var err error
	switch block.Type {
	case "PUBLIC KEY":
		key, err = x509.ParsePKIXPublicKey(block.Bytes)
	case "RSA PUBLIC KEY":
		key, err = x509.ParsePKCS1PublicKey(block.Bytes)
	case "CERTIFICATE":
		var cert *x509.Certificate
		if cert, err = x509.ParseCertificate(block.Bytes); err == nil {
			key = cert.PublicKey
		}
	default:
		err = fmt.Errorf("a block of type %q", block.Type)
	}
	if err != nil {
		return nil, &ConfigError{"JWT_PUBLIC_KEY", "no public key: " + err.Error()}
	}
	switch key.(type) {
	case *rsa.PublicKey, ed25519.PublicKey:
		return key, nil
	default:
		return nil, &ConfigError{"JWT_PUBLIC_KEY", "neither an RSA nor an Ed25519 key"}
	}
}
