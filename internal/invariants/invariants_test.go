package invariants

import (
	"strings"
	"testing"
)

func TestCheckPanicsOnlyWhenEnabled(t *testing.T) {
	Check(true, "holds")
	defer func() {
		got := recover()
		if (got != nil) != Enabled {
			t.Fatalf("panic %v with Enabled %v", got, Enabled)
		}
		if got != nil && !strings.Contains(got.(string), "applied 7 <= committed 5") {
			t.Fatalf("the message does not name the values: %v", got)
		}
	}()
	Check(false, "applied %d <= committed %d", 7, 5)
}
