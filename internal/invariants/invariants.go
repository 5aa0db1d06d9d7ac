// Package invariants holds checks of our own rules that can be compiled away.
//
// Cheap checks run always and return errors where bytes or callers can break
// them. What is here is for rules that only a bug of ours can break and that
// cost too much to look at in production: they run in builds with the tag
// "invariants" and in race builds. A check whose arguments cost something
// stands inside
//
//	if invariants.Enabled {
//		invariants.Check(sorted(rows), "rows of %s rise", name)
//	}
//
// which the compiler removes when Enabled is false.
package invariants

import "fmt"

// Check panics when rule does not hold and checks are compiled in. format
// names the rule that broke and the values that broke it.
func Check(rule bool, format string, args ...any) {
	if Enabled && !rule {
		panic("invariant broken: " + fmt.Sprintf(format, args...))
	}
}
