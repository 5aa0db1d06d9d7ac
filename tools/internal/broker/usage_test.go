package broker

import (
	"os"
	"testing"
)

func TestMetric(t *testing.T) {
	text := []byte("# HELP a help\n# TYPE a counter\na 3\na_count{log=\"0\",x=\"}\"} 2\na_count{log=\"1\"} 4e1 123\nab 7\n")
	for name, want := range map[string]int64{"a": 3, "a_count": 42, "b": -1, "a_c": -1} {
		if got := metric(text, name); got != want {
			t.Errorf("metric %s is %d, want %d", name, got, want)
		}
	}
}

func TestMeasureUsage(t *testing.T) {
	a := MeasureUsage(os.Getpid(), "")
	for range 50_000_000 / 1000 {
		_ = make([]byte, 1000)
	}
	b := MeasureUsage(os.Getpid(), "")
	if b.Client < a.Client || b.Server < a.Server || b.Device < a.Device {
		t.Errorf("a counter went back: %+v, then %+v", a, b)
	}
	if b.Fsyncs != -1 {
		t.Errorf("fsyncs without a broker: %d, want -1", b.Fsyncs)
	}
	if RSS(os.Getpid()) <= 0 {
		t.Error("no resident memory")
	}
}
