package main

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
)

// TestTokenSettings: what a start is refused for, and that no refusal shows a
// secret.
func TestTokenSettings(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	for _, c := range []struct {
		env  []string
		name string // of the refusal; empty: none
		on   bool
	}{
		{nil, "", false},
		{[]string{"JWT_ENABLED=false", "JWT_ALGORITHM=junk"}, "", false},
		{[]string{"JWT_ENABLED=true", "JWT_SECRET=hidden"}, "", true},
		{[]string{"JWT_ENABLED=true"}, "JWT_ENABLED", false},
		{[]string{"JWT_ENABLED=true", "JWT_SECRET=hidden", "JWT_ALGORITHM=junk"}, "JWT_ALGORITHM", false},
		{[]string{"JWT_ENABLED=true", "JWT_SECRET=hidden", "JWT_ALGORITHM=RS256"}, "JWT_ALGORITHM", false},
		{[]string{"JWT_ENABLED=true", "JWT_SECRET=hidden", "JWT_ALGORITHM=auto"}, "", true},
		{[]string{"JWT_ENABLED=true", "JWT_PUBLIC_KEY=junk", "JWT_ALGORITHM=RS256"}, "JWT_PUBLIC_KEY", false},
		{[]string{"JWT_ENABLED=true", "JWT_JWKS_URL=hidden", "JWT_ALGORITHM=EdDSA"}, "JWT_JWKS_URL", false},
	} {
		v, err := parse(c.env)
		if err != nil {
			t.Fatal(err)
		}
		made, err := newVerifier(v, log)
		switch {
		case c.name == "" && err != nil, (made != nil) != c.on:
			t.Errorf("%v: %v %v", c.env, made != nil, err)
		case c.name != "" && (err == nil || !strings.HasPrefix(err.Error(), c.name+"=") || strings.Contains(err.Error(), "hidden")):
			t.Errorf("%v: %v", c.env, err)
		}
		if made != nil {
			made.Close()
		}
	}
}

// TestSecretsAreNotPrinted covers every setting that is marked as one.
func TestSecretsAreNotPrinted(t *testing.T) {
	var env []string
	secrets := map[string]bool{"QUEEN_ENCRYPTION_KEY": false, "JWT_SECRET": false, "QUEEN_RAFT_TOKEN": false, "JWT_JWKS_URL": false}
	for i := range settings {
		if s := &settings[i]; s.secret {
			secrets[s.name] = true
			if s.kind == sealKey {
				if _, err := parse([]string{s.name + "=h1dd3n"}); err == nil || strings.Contains(err.Error(), "h1dd3n") {
					t.Errorf("%s of the wrong form: %v", s.name, err)
				}
				continue
			}
			env = append(env, s.name+"=h1dd3n")
		}
	}
	for name, marked := range secrets {
		if !marked {
			t.Errorf("%s is not marked as a secret", name)
		}
	}
	v, err := parse(env)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	v.print(slog.New(slog.NewTextHandler(&out, nil)))
	printHelp(&out)
	if strings.Contains(out.String(), "h1dd3n") || !strings.Contains(out.String(), "JWT_SECRET=***") {
		t.Errorf("%s", &out)
	}
	if got := skipPaths(v); len(got) != 4 || got[0] != "/health" || got[3] != "/" {
		t.Errorf("skip paths %q", got)
	}
}
