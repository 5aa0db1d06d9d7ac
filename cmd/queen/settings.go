package main

import (
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strconv"
	"strings"

	"queen/internal/crashpoint"
	"queen/server/envelope"
)

// kind is how the value of a setting is written.
type kind uint8

const (
	text       kind = iota // taken as it is
	flag                   // true/false, 1/0, yes/no, on/off
	count                  // whole number; one below least keeps the default
	percent                // number from 0 to 100
	crashPoint             // a point of package crashpoint
	sealKey                // key of package envelope
)

// effect is what a setting does in this build.
type effect uint8

const (
	used   effect = iota
	idle          // accepted; the part that it belongs to is not in this build, or does not exist here
	barred        // a value stops the start: without the part it belongs to, running would be wrong
)

// setting is one environment variable. The table of them drives parsing, help
// and the printed configuration.
type setting struct {
	area, name string
	kind       kind
	def        string // as a value; empty: unset
	help       string
	least      int64 // of a count
	secret     bool
	effect     effect
	fine       string // of a barred setting: the value that asks for nothing
}

func (s *setting) label() string {
	switch {
	case s.def == "":
		return "unset"
	case s.secret:
		return masked
	default:
		return s.def
	}
}

// values are the settings of one start.
type values struct {
	raw     map[string]string // those that were given and count
	unknown []string          // variables that look like settings and are none
}

// settingError names the variable that stops the start.
type settingError struct{ name, value, problem string }

func (e *settingError) Error() string {
	return fmt.Sprintf("%s=%q: %s", e.name, e.value, e.problem)
}

var byName = func() map[string]*setting {
	m := make(map[string]*setting, len(settings))
	for i := range settings {
		m[settings[i].name] = &settings[i]
	}
	return m
}()

// parse reads the settings out of an environment. An empty variable is unset.
func parse(environ []string) (*values, error) {
	v := &values{raw: map[string]string{}}
	for _, pair := range environ {
		name, value, _ := strings.Cut(pair, "=")
		s := byName[name]
		if s == nil {
			if strings.HasPrefix(name, "QUEEN_") {
				v.unknown = append(v.unknown, name)
			}
			continue
		}
		if value == "" {
			continue
		}
		if err := s.check(value); err != nil {
			return nil, err
		}
		if s.kind == count && !s.counts(value) {
			continue // keeps its default
		}
		v.raw[name] = value
	}
	slices.Sort(v.unknown)
	return v, nil
}

func (s *setting) check(value string) error {
	problem := ""
	switch s.kind {
	case flag:
		if _, ok := parseFlag(value); !ok {
			problem = "not a boolean (true/false, 1/0, yes/no, on/off)"
		}
	case count:
		if _, err := strconv.ParseInt(value, 10, 64); err != nil {
			problem = "not a whole number"
		}
	case percent:
		if p, err := strconv.ParseFloat(value, 64); err != nil || !(p > 0 && p <= 100) {
			problem = "not a percentage above 0 and up to 100"
		}
	case sealKey:
		if _, err := envelope.Parse(value); err != nil {
			problem = err.Error()
		}
	case crashPoint:
		if err := crashpoint.Check(value); err != nil {
			problem = err.Error()
		}
	}
	if problem == "" && s.effect == barred && value != s.fine && !s.asksNothing(value) {
		problem = "this build does not have that; unset it"
	}
	if problem != "" && s.secret {
		value = masked
	}
	if problem != "" {
		return &settingError{s.name, value, problem}
	}
	return nil
}

// asksNothing tells whether a barred setting has a value that means off.
func (s *setting) asksNothing(value string) bool {
	on, ok := parseFlag(value)
	return s.kind == flag && ok && !on
}

func (s *setting) counts(value string) bool {
	n, err := strconv.ParseInt(value, 10, 64)
	return err == nil && n >= s.least
}

func parseFlag(s string) (on, ok bool) {
	switch strings.ToLower(s) {
	case "true", "1", "yes", "on":
		return true, true
	case "false", "0", "no", "off":
		return false, true
	default:
		return false, false
	}
}

// text is a setting's value; its default when it was not given.
func (v *values) text(name string) string {
	s := byName[name]
	if s == nil {
		panic("queen: no setting named " + name)
	}
	if raw, ok := v.raw[name]; ok {
		return raw
	}
	return s.def
}

// shown is the value of a setting as it may be printed.
func (v *values) shown(name string) string {
	value := v.text(name)
	if value != "" && byName[name].secret {
		return masked
	}
	return value
}

// masked stands for a secret.
const masked = "***"

func (v *values) given(name string) bool { return v.raw[name] != "" }

func (v *values) flag(name string) bool {
	on, _ := parseFlag(v.text(name))
	return on
}

// count is a setting's number; 0 when it has neither value nor default.
func (v *values) count(name string) int64 {
	n, _ := strconv.ParseInt(v.text(name), 10, 64)
	return n
}

func (v *values) percent(name string) float64 {
	p, _ := strconv.ParseFloat(v.text(name), 64)
	return p
}

// print logs the effective configuration, one line for each area, secrets
// masked, and names once what was given and does nothing.
func (v *values) print(log *slog.Logger) {
	var area string
	var line []any
	flush := func() {
		if len(line) > 0 {
			log.Info("configuration", append([]any{"area", area}, line...)...)
		}
		line = nil
	}
	var without []string
	for i := range settings {
		s := &settings[i]
		if s.effect != used {
			if v.given(s.name) && s.effect == idle {
				without = append(without, s.name)
			}
			continue
		}
		if s.area != area {
			flush()
			area = s.area
		}
		value := v.shown(s.name)
		if value == "" {
			value = "unset"
		}
		line = append(line, s.name, value)
	}
	flush()
	if len(without) > 0 {
		log.Warn("settings without effect in this build", "names", strings.Join(without, " "))
	}
	if len(v.unknown) > 0 {
		log.Warn("variables that are no settings", "names", strings.Join(v.unknown, " "))
	}
}

// printHelp lists every setting with its default.
func printHelp(w io.Writer) {
	fmt.Fprint(w, "usage: queen serve\n\nSettings are environment variables. Booleans take true/false, 1/0, yes/no, on/off;\nan empty variable counts as unset. Defaults stand in parentheses.\n")
	area := ""
	for i := range settings {
		s := &settings[i]
		if s.effect == idle {
			continue
		}
		if s.area != area {
			area = s.area
			fmt.Fprintf(w, "\n%s\n", area)
		}
		help := s.help
		if s.effect == barred {
			help += "; not in this build, stops the start"
		}
		fmt.Fprintf(w, "  %-32s %s (%s)\n", s.name, help, s.label())
	}
	fmt.Fprint(w, "\naccepted, without effect in this build\n")
	line := " "
	for i := range settings {
		if settings[i].effect != idle {
			continue
		}
		if len(line)+len(settings[i].name) > 96 {
			fmt.Fprintln(w, line)
			line = " "
		}
		line += " " + settings[i].name
	}
	fmt.Fprintln(w, line)
}
