package main

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
)

func TestTableIsSound(t *testing.T) {
	seen := map[string]bool{}
	areas := map[string]bool{}
	last := ""
	for i := range settings {
		s := &settings[i]
		if seen[s.name] {
			t.Errorf("%s stands twice", s.name)
		}
		seen[s.name] = true
		if s.area != last {
			if areas[s.area] {
				t.Errorf("area %s is torn apart at %s", s.area, s.name)
			}
			areas[s.area], last = true, s.area
		}
		if s.effect == used && s.help == "" {
			t.Errorf("%s has no help", s.name)
		}
		if s.def != "" {
			if err := s.check(s.def); err != nil {
				t.Errorf("default: %v", err)
			}
		}
	}
}

func TestParse(t *testing.T) {
	for _, c := range []struct {
		env  string
		name string // that the refusal has to name; empty: taken
		want string
	}{
		{"PORT=7000", "", "7000"}, {"PORT=", "", "6632"}, {"PORT=abc", "PORT", ""}, {"PORT=-1", "", "6632"}, {"PORT=0", "", "0"},
		{"QUEEN_LOG_JSON=yes", "", "yes"}, {"QUEEN_LOG_JSON=TRUE", "", "TRUE"}, {"QUEEN_LOG_JSON=2", "QUEEN_LOG_JSON", ""},
		{"QUEEN_RAFT_SEGMENT_BYTES=0", "", "67108864"}, {"QUEEN_RAFT_SEGMENT_BYTES=64MB", "QUEEN_RAFT_SEGMENT_BYTES", ""},
		{"QUEEN_RAFT_DISK_HIGH_PCT=90.5", "", "90.5"}, {"QUEEN_RAFT_DISK_HIGH_PCT=0", "QUEEN_RAFT_DISK_HIGH_PCT", ""},
		{"QUEEN_RAFT_DISK_HIGH_PCT=101", "QUEEN_RAFT_DISK_HIGH_PCT", ""},
		{"JWT_ENABLED=maybe", "JWT_ENABLED", ""}, {"JWT_ENABLED=off", "", "off"}, {"QUEEN_ENCRYPTION_KEY=00", "QUEEN_ENCRYPTION_KEY", ""},
		{"QUEEN_RAFT_REPLICATOR=local", "", "local"},
		{"QUEEN_RAFT_GROUPS=1", "", "1"}, {"QUEEN_RAFT_GROUPS=2", "QUEEN_RAFT_GROUPS", ""},
		{"QUEEN_CRASH_POINT=nowhere", "QUEEN_CRASH_POINT", ""}, {"QUEEN_CRASH_POINT=write.sync.before:0", "QUEEN_CRASH_POINT", ""},
		{"QUEEN_CRASH_POINT=write.sync.before:3", "", "write.sync.before:3"}, {"QUEEN_CRASH_POINT=", "", ""}, {"QUEEN_LANES=junk", "", "junk"},
	} {
		v, err := parse([]string{c.env})
		name, _, _ := strings.Cut(c.env, "=")
		switch {
		case c.name == "" && err != nil:
			t.Errorf("%s: %v", c.env, err)
		case c.name != "" && (err == nil || !strings.HasPrefix(err.Error(), c.name+"=")):
			t.Errorf("%s: error %v does not name the variable", c.env, err)
		case err == nil && v.text(name) != c.want:
			t.Errorf("%s: %q, want %q", c.env, v.text(name), c.want)
		}
	}
}

func TestBuild(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	for _, c := range []struct {
		env  []string
		name string
	}{
		{nil, ""},
		{[]string{"QUEEN_BIND_ADDR=127.0.0.1:80"}, "QUEEN_BIND_ADDR"},
		{[]string{"QUEEN_BIND_ADDR=::1"}, ""},
		{[]string{"QUEEN_BIND_ADDR=[::1]"}, ""},
		{[]string{"PORT=70000"}, "PORT"},
		{[]string{"QUEEN_TLS_CERT=x"}, "QUEEN_TLS_CERT"},
		{[]string{"QUEEN_TENANCY_HEADER=true"}, "QUEEN_TENANCY_HEADER"},
		{[]string{"QUEEN_TENANCY_HEADER=true", "QUEEN_KV_TRUSTED_PROXY=1"}, ""},
		{[]string{"DEFAULT_SUBSCRIPTION_MODE=all"}, ""},
		{[]string{"DEFAULT_SUBSCRIPTION_MODE=some"}, "DEFAULT_SUBSCRIPTION_MODE"},
		{[]string{"QUEEN_RAFT_DISK_LOW_PCT=95"}, "QUEEN_RAFT_DISK_LOW_PCT"},
	} {
		v, err := parse(c.env)
		if err != nil {
			t.Fatal(err)
		}
		_, err = build(v, log)
		if (err == nil) != (c.name == "") || err != nil && !strings.HasPrefix(err.Error(), c.name+"=") {
			t.Errorf("%v: %v", c.env, err)
		}
	}
	if v, _ := parse([]string{"LOG_LEVEL=loud"}); v != nil {
		if _, err := newLogger(v, &bytes.Buffer{}); err == nil || !strings.Contains(err.Error(), "LOG_LEVEL") {
			t.Errorf("LOG_LEVEL=loud: %v", err)
		}
	}
}

func TestRatesNeedTenancyOrASetting(t *testing.T) {
	rateOf := func(env ...string) float64 {
		v, err := parse(env)
		if err != nil {
			t.Fatal(err)
		}
		c, err := build(v, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		return c.server.Limits.KVWriteRate
	}
	if r := rateOf(); r != 0 {
		t.Errorf("without tenancy: %v", r)
	}
	if r := rateOf("QUEEN_TENANCY_HEADER=1", "QUEEN_KV_TRUSTED_PROXY=1"); r != 100 {
		t.Errorf("with tenancy: %v", r)
	}
	if r := rateOf("QUEEN_KV_WRITE_RATE=7"); r != 7 {
		t.Errorf("given: %v", r)
	}
	for want, env := range map[float64][]string{
		0:    nil,
		2000: {"QUEEN_TENANCY_HEADER=1", "QUEEN_KV_TRUSTED_PROXY=1"},
		9:    {"QUEEN_KV_CELL_RATE=9"},
	} {
		v, err := parse(env)
		if err != nil {
			t.Fatal(err)
		}
		c, err := build(v, slog.New(slog.DiscardHandler))
		if err != nil || c.server.Limits.KVCellRate != want || c.server.RequireGrant {
			t.Errorf("%v: rate of the node %v, %v; want %v", env, c.server.Limits.KVCellRate, err, want)
		}
	}
}

func TestPrintMasksSecretsAndNamesWhatIsIdle(t *testing.T) {
	v, err := parse([]string{"JWT_SECRET=hush", "QUEEN_LANES=4", "QUEEN_NO_SUCH=1", "PORT=7001"})
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	v.print(slog.New(slog.NewTextHandler(&out, nil)))
	text := out.String()
	for _, want := range []string{"PORT=7001", "QUEEN_LANES", "QUEEN_NO_SUCH", "area=storage"} {
		if !strings.Contains(text, want) {
			t.Errorf("%s is not printed", want)
		}
	}
	if strings.Contains(text, "hush") {
		t.Error("a secret is printed")
	}
	if n := strings.Count(text, "QUEEN_LANES"); n != 1 {
		t.Errorf("QUEEN_LANES is named %d times", n)
	}
}

func TestHelpListsEverything(t *testing.T) {
	var out bytes.Buffer
	if code := run([]string{"serve", "--help"}, nil, &out, &out); code != 0 {
		t.Fatal(code)
	}
	for i := range settings {
		if !strings.Contains(out.String(), settings[i].name) {
			t.Errorf("%s is missing", settings[i].name)
		}
	}
	out.Reset()
	if run([]string{"version"}, nil, &out, &out); !strings.HasPrefix(out.String(), "queen ") {
		t.Error(out.String())
	}
	if code := run([]string{"nonsense"}, nil, &out, &out); code != 2 {
		t.Error(code)
	}
}

func TestBadSettingStopsTheStart(t *testing.T) {
	var out, errs bytes.Buffer
	if code := run([]string{"serve"}, []string{"QUEEN_PPROF=perhaps"}, &out, &errs); code != 1 {
		t.Error(code)
	}
	if !strings.Contains(errs.String(), "FATAL: QUEEN_PPROF=") {
		t.Error(errs.String())
	}
}

func TestTransientBackoffReachesThePlanner(t *testing.T) {
	for _, c := range []struct {
		env  []string
		want int64 // microseconds
	}{{nil, 1_000_000}, {[]string{"QUEEN_SWEEPER_TRANSIENT_BACKOFF_MS=250"}, 250_000}} {
		v, err := parse(c.env)
		if err != nil {
			t.Fatal(err)
		}
		cfg, err := build(v, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		if got := cfg.storage.Planner.TimerTransientBackoff; got != c.want {
			t.Errorf("%v: %d, want %d", c.env, got, c.want)
		}
	}
}
