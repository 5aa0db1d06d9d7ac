package main

import (
	"errors"
	"log/slog"
	"strings"
	"time"

	"queen/server/tokens"
)

// newVerifier makes what checks tokens; nil: they are not checked. It fetches
// the key set when the settings name one.
func newVerifier(v *values, log *slog.Logger) (*tokens.Verifier, error) {
	if !v.flag("JWT_ENABLED") {
		return nil, nil
	}
	t, err := tokens.New(tokens.Config{
		Algorithm: v.text("JWT_ALGORITHM"),
		Secret:    []byte(v.text("JWT_SECRET")),
		PublicKey: v.text("JWT_PUBLIC_KEY"),
		JWKSURL:   v.text("JWT_JWKS_URL"),
		Refresh:   time.Duration(v.count("JWT_JWKS_REFRESH_INTERVAL")) * time.Second,
		Timeout:   time.Duration(v.count("JWT_JWKS_TIMEOUT_MS")) * time.Millisecond,
		Skew:      time.Duration(v.count("JWT_CLOCK_SKEW")) * time.Second,
		Issuer:    v.text("JWT_ISSUER"), Audience: v.text("JWT_AUDIENCE"),
		RoleClaim: v.text("JWT_ROLES_CLAIM"), RolesClaim: v.text("JWT_ROLES_ARRAY_CLAIM"),
		RoleAdmin: v.text("JWT_ROLE_ADMIN"), RoleReadWrite: v.text("JWT_ROLE_READ_WRITE"),
		RoleReadOnly: v.text("JWT_ROLE_READ_ONLY"), RoleWriteOnly: v.text("JWT_ROLE_WRITE_ONLY"),
		Logger: log,
	})
	var refused *tokens.ConfigError
	if errors.As(err, &refused) {
		return nil, &settingError{refused.Setting, v.shown(refused.Setting), refused.Problem}
	}
	return t, err
}

// skipPaths are the paths of JWT_SKIP_PATHS.
func skipPaths(v *values) (paths []string) {
	for _, p := range strings.Split(v.text("JWT_SKIP_PATHS"), ",") {
		if p = strings.TrimSpace(p); p != "" {
			paths = append(paths, p)
		}
	}
	return paths
}
