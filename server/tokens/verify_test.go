package tokens

import (
	"context"
	"crypto"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

var (
	now    = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	secret = []byte("a secret of the tests")
	rsaKey = func() *rsa.PrivateKey {
		k, err := rsa.GenerateKey(rand.Reader, 2048)
		if err != nil {
			panic(err)
		}
		return k
	}()
	otherRSA = func() *rsa.PrivateKey {
		k, err := rsa.GenerateKey(rand.Reader, 2048)
		if err != nil {
			panic(err)
		}
		return k
	}()
	edKey = func() ed25519.PrivateKey {
		_, k, err := ed25519.GenerateKey(rand.Reader)
		if err != nil {
			panic(err)
		}
		return k
	}()
)

func pemOf(t *testing.T, public crypto.PublicKey) string {
	t.Helper()
	der, err := x509.MarshalPKIXPublicKey(public)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}))
}

type claims = jwt.MapClaims

// sign makes a token; more are pairs of header fields.
func sign(t *testing.T, alg string, key any, c claims, more ...any) string {
	t.Helper()
	token := jwt.NewWithClaims(jwt.GetSigningMethod(alg), c)
	for i := 0; i+1 < len(more); i += 2 {
		token.Header[more[i].(string)] = more[i+1]
	}
	text, err := token.SignedString(key)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func verifier(t *testing.T, cfg Config) *Verifier {
	t.Helper()
	cfg.Clock = func() time.Time { return now }
	v, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(v.Close)
	return v
}

func at(d time.Duration) int64 { return now.Add(d).Unix() }

func TestRefusals(t *testing.T) {
	public := pemOf(t, &rsaKey.PublicKey)
	hs := Config{Secret: secret, Skew: 30 * time.Second}
	with := func(change func(*Config)) Config { c := hs; change(&c); return c }
	issuer := with(func(c *Config) { c.Issuer = "who" })
	audience := with(func(c *Config) { c.Audience = "queen" })
	auto := Config{Algorithm: "auto", Secret: secret, PublicKey: public}
	good := sign(t, "HS256", secret, claims{"sub": "me"})
	parts := strings.Split(good, ".")
	raw := func(s string) string { return base64.RawURLEncoding.EncodeToString([]byte(s)) }
	for _, c := range []struct {
		name  string
		cfg   Config
		token string
		want  error
	}{
		{"good", hs, good, nil},
		{"no header", hs, "", ErrNoToken},
		{"only the scheme", hs, "Bearer ", ErrNoToken},
		{"another scheme", hs, "Basic dXNlcjpwYXNz", ErrNoToken},
		{"not expired", hs, sign(t, "HS256", secret, claims{"exp": at(time.Second)}), nil},
		{"expired within the skew", hs, sign(t, "HS256", secret, claims{"exp": at(-29 * time.Second)}), nil},
		{"expired", hs, sign(t, "HS256", secret, claims{"exp": at(-31 * time.Second)}), ErrExpired},
		{"not yet within the skew", hs, sign(t, "HS256", secret, claims{"nbf": at(29 * time.Second)}), nil},
		{"not yet", hs, sign(t, "HS256", secret, claims{"nbf": at(31 * time.Second)}), ErrNotYet},
		{"issued within the skew", hs, sign(t, "HS256", secret, claims{"iat": at(29 * time.Second)}), nil},
		{"issued later", hs, sign(t, "HS256", secret, claims{"iat": at(31 * time.Second)}), ErrFuture},
		{"a time that is none", hs, sign(t, "HS256", secret, claims{"exp": "never"}), ErrHeader},
		{"another secret", hs, sign(t, "HS256", []byte("other"), claims{}), ErrSignature},
		{"another payload", hs, parts[0] + "." + raw(`{"sub":"you","role":"admin"}`) + "." + parts[2], ErrSignature},
		{"no signature", hs, parts[0] + "." + parts[1] + ".", ErrSignature},
		{"two parts", hs, parts[0] + "." + parts[1], ErrHeader},
		{"no token at all", hs, "junk", ErrHeader},
		{"header is no JSON", hs, raw("junk") + "." + parts[1] + "." + parts[2], ErrHeader},
		{"extensions", hs, sign(t, "HS256", secret, claims{}, "crit", []string{"x"}), ErrHeader},
		{"alg none", hs, sign(t, "none", jwt.UnsafeAllowNoneSignatureType, claims{"role": "admin"}), ErrUnsupported},
		{"alg none under auto", auto, sign(t, "none", jwt.UnsafeAllowNoneSignatureType, claims{"role": "admin"}), ErrUnsupported},
		{"alg unknown", hs, raw(`{"alg":"XX1"}`) + "." + parts[1] + "." + parts[2], ErrUnsupported},
		{"alg missing", hs, raw(`{"typ":"JWT"}`) + "." + parts[1] + "." + parts[2], ErrUnsupported},
		{"alg not admitted", hs, sign(t, "HS512", secret, claims{}), ErrUnsupported},
		{"an ECDSA alg under auto", auto, raw(`{"alg":"ES256"}`) + "." + parts[1] + "." + parts[2], ErrUnsupported},
		{"the public key as a secret", Config{Algorithm: "auto", PublicKey: public}, sign(t, "HS256", []byte(public), claims{}), ErrUnsupported},
		{"the public key as a secret beside a secret", auto, sign(t, "HS256", []byte(public), claims{}), ErrSignature},
		{"EdDSA with an RSA key", auto, sign(t, "EdDSA", edKey, claims{}), ErrUnsupported},
		{"RS256 of another key", Config{Algorithm: "RS256", PublicKey: public}, sign(t, "RS256", otherRSA, claims{}), ErrSignature},
		{"issuer", issuer, sign(t, "HS256", secret, claims{"iss": "who"}), nil},
		{"another issuer", issuer, sign(t, "HS256", secret, claims{"iss": "whom"}), ErrIssuer},
		{"no issuer", issuer, good, ErrIssuer},
		{"audience", audience, sign(t, "HS256", secret, claims{"aud": "queen"}), nil},
		{"audience in a list", audience, sign(t, "HS256", secret, claims{"aud": []string{"king", "queen"}}), nil},
		{"another audience", audience, sign(t, "HS256", secret, claims{"aud": []string{"king"}}), ErrAudience},
		{"no audience", audience, good, ErrAudience},
		{"an audience of a strange type", audience, sign(t, "HS256", secret, claims{"aud": 7}), ErrAudience},
	} {
		t.Run(c.name, func(t *testing.T) {
			header := c.token
			if !strings.Contains(header, " ") && header != "" {
				header = "Bearer " + header
			}
			_, err := verifier(t, c.cfg).Verify(context.Background(), header)
			if !errors.Is(err, c.want) {
				t.Errorf("%v, want %v", err, c.want)
			}
		})
	}
}

// TestAlgorithms: which alg values each setting admits, with the key of each.
func TestAlgorithms(t *testing.T) {
	rsaPEM, edPEM := pemOf(t, &rsaKey.PublicKey), pemOf(t, edKey.Public())
	tokens := map[string]string{"EdDSA": sign(t, "EdDSA", edKey, claims{})}
	for _, alg := range []string{"HS256", "HS384", "HS512"} {
		tokens[alg] = sign(t, alg, secret, claims{})
	}
	for _, alg := range []string{"RS256", "RS384", "RS512"} {
		tokens[alg] = sign(t, alg, rsaKey, claims{})
	}
	for _, c := range []struct {
		setting, pem string
		admits       string
	}{
		{"", "", "HS256"}, {"HS256", "", "HS256"}, {"HS384", "", "HS384"}, {"HS512", "", "HS512"},
		{"RS256", rsaPEM, "RS256 RS384 RS512"}, {"RS384", rsaPEM, "RS384"}, {"RS512", rsaPEM, "RS512"},
		{"EdDSA", edPEM, "EdDSA"},
		{"auto", rsaPEM, "HS256 HS384 HS512 RS256 RS384 RS512"}, {"auto", edPEM, "HS256 HS384 HS512 EdDSA"},
		{"auto", "", "HS256 HS384 HS512"},
		{"RS256", strings.ReplaceAll(rsaPEM, "\n", `\n`), "RS256 RS384 RS512"},
	} {
		v := verifier(t, Config{Algorithm: c.setting, Secret: secret, PublicKey: c.pem})
		for alg, token := range tokens {
			_, err := v.Verify(context.Background(), token)
			if admitted := strings.Contains(" "+c.admits+" ", " "+alg+" "); admitted != (err == nil) || !admitted && err != ErrUnsupported {
				t.Errorf("%s: a token with %s: %v", c.setting, alg, err)
			}
		}
	}
}

func TestHeaderForms(t *testing.T) {
	v := verifier(t, Config{Secret: secret})
	token := sign(t, "HS256", secret, claims{"sub": "me"})
	for _, h := range []string{"Bearer " + token, "bearer " + token, "BEARER   " + token, token, "  " + token + " "} {
		if id, err := v.Verify(context.Background(), h); err != nil || id.Subject != "me" {
			t.Errorf("%.12q...: %+v %v", h, id, err)
		}
	}
}

func TestRoles(t *testing.T) {
	custom := Config{Secret: secret, RoleClaim: "r", RolesClaim: "rs", RoleAdmin: "boss", RoleReadWrite: "rw", RoleReadOnly: "ro", RoleWriteOnly: "wo"}
	for _, c := range []struct {
		cfg    Config
		claims claims
		want   Roles
	}{
		{Config{Secret: secret}, claims{}, 0},
		{Config{Secret: secret}, claims{"role": "admin"}, RoleAdmin},
		{Config{Secret: secret}, claims{"role": "read-write"}, RoleReadWrite},
		{Config{Secret: secret}, claims{"roles": []string{"read-only", "write-only", "other"}}, RoleReadOnly | RoleWriteOnly},
		{Config{Secret: secret}, claims{"role": "read-only", "roles": []string{"admin"}}, RoleReadOnly | RoleAdmin},
		{Config{Secret: secret}, claims{"role": []string{"admin"}, "roles": "admin"}, 0},
		{Config{Secret: secret}, claims{"roles": []any{7, nil, claims{"role": "admin"}}, "nested": claims{"role": "admin"}}, 0},
		{Config{Secret: secret}, claims{"role": "Admin"}, 0},
		{custom, claims{"r": "boss", "rs": []string{"rw", "ro", "wo"}}, RoleAdmin | RoleReadWrite | RoleReadOnly | RoleWriteOnly},
		{custom, claims{"role": "admin", "roles": []string{"admin"}, "r": "admin"}, 0},
	} {
		id, err := verifier(t, c.cfg).Verify(context.Background(), sign(t, "HS256", secret, c.claims))
		if err != nil || id.Roles != c.want {
			t.Errorf("%v: roles %b, want %b (%v)", c.claims, id.Roles, c.want, err)
		}
	}
}

func TestPass(t *testing.T) {
	for _, c := range []struct {
		role Roles
		pass string // of public, read-only, write-only, read-write, admin, none
	}{
		{0, "+-----"}, {RoleReadOnly, "++----"}, {RoleWriteOnly, "+-+---"}, {RoleReadWrite, "++++--"}, {RoleAdmin, "+++++-"},
		{RoleReadOnly | RoleWriteOnly, "+++---"},
	} {
		got := ""
		for _, a := range []Access{Public, ReadOnly, WriteOnly, ReadWrite, Admin, 0} {
			if c.role.Pass(a) {
				got += "+"
			} else {
				got += "-"
			}
		}
		if got != c.pass {
			t.Errorf("roles %b pass %s, want %s", c.role, got, c.pass)
		}
	}
}

func TestConfigRefusals(t *testing.T) {
	rsaPEM, edPEM := pemOf(t, &rsaKey.PublicKey), pemOf(t, edKey.Public())
	for _, c := range []struct {
		cfg     Config
		setting string
	}{
		{Config{}, "JWT_ENABLED"},
		{Config{Algorithm: "RS256"}, "JWT_ENABLED"},
		{Config{Algorithm: "HS1024", Secret: secret}, "JWT_ALGORITHM"},
		{Config{Algorithm: "none", Secret: secret}, "JWT_ALGORITHM"},
		{Config{Algorithm: "RS256", Secret: secret}, "JWT_ALGORITHM"},
		{Config{Algorithm: "EdDSA", Secret: secret}, "JWT_ALGORITHM"},
		{Config{Algorithm: "HS256", PublicKey: rsaPEM}, "JWT_ALGORITHM"},
		{Config{Algorithm: "RS256", PublicKey: edPEM}, "JWT_PUBLIC_KEY"},
		{Config{Algorithm: "EdDSA", PublicKey: rsaPEM}, "JWT_PUBLIC_KEY"},
		{Config{Algorithm: "RS256", PublicKey: "junk"}, "JWT_PUBLIC_KEY"},
		{Config{Algorithm: "RS256", PublicKey: strings.Replace(rsaPEM, "MII", "AAA", 1)}, "JWT_PUBLIC_KEY"},
		{Config{Algorithm: "RS256", JWKSURL: "ftp://keys"}, "JWT_JWKS_URL"},
		{Config{Algorithm: "RS256", JWKSURL: "keys.json"}, "JWT_JWKS_URL"},
	} {
		v, err := New(c.cfg)
		var refused *ConfigError
		if v != nil || !errors.As(err, &refused) || refused.Setting != c.setting {
			t.Errorf("%+v: %v, want a refusal of %s", c.cfg, err, c.setting)
		}
	}
}
