package recovery

import "testing"

// The windows of a start are bounded together, until they would be too small.
func TestWindows(t *testing.T) {
	for _, c := range []struct{ logs, want int }{{0, 1 << 20}, {1, 1 << 20}, {64, 1 << 20}, {256, 256 << 10}, {5000, 64 << 10}} {
		if got := windowOf(c.logs); got != c.want {
			t.Errorf("%d logs: windows of %d bytes, expected %d", c.logs, got, c.want)
		}
	}
}
