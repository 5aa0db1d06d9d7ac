package main

import (
	"io"
	"log/slog"
	"strings"
)

// newLogger makes the logger that the settings ask for.
func newLogger(v *values, w io.Writer) (*slog.Logger, error) {
	level, ok := parseLevel(v.text("LOG_LEVEL"))
	if !ok {
		return nil, &settingError{"LOG_LEVEL", v.text("LOG_LEVEL"), "not a level (debug, info, warn, error)"}
	}
	// A filter for parts of another engine may stand here; its first plain
	// level is what we can follow.
	for _, part := range strings.Split(v.text("RUST_LOG"), ",") {
		if l, ok := parseLevel(strings.TrimSpace(part)); ok {
			level = l
			break
		}
	}
	o := &slog.HandlerOptions{Level: level}
	if v.flag("QUEEN_LOG_JSON") {
		return slog.New(slog.NewJSONHandler(w, o)), nil
	}
	return slog.New(slog.NewTextHandler(w, o)), nil
}

const levelOff = slog.Level(1000)

func parseLevel(s string) (slog.Level, bool) {
	switch strings.ToLower(s) {
	case "trace", "debug":
		return slog.LevelDebug, true
	case "info":
		return slog.LevelInfo, true
	case "warn", "warning":
		return slog.LevelWarn, true
	case "error":
		return slog.LevelError, true
	case "off":
		return levelOff, true
	default:
		return 0, false
	}
}
