//go:build bug

package plant

import "slices"

// name is set by the linker.
var name string

func init() {
	if !slices.Contains(Bugs, Bug(name)) && !slices.Contains(ClusterBugs, Bug(name)) {
		panic("plant: a build with the tag bug needs the name of one, found " + name)
	}
}

// Is reports whether this build carries the bug.
func Is(b Bug) bool { return name == string(b) }

// Planted is the bug of this build.
func Planted() Bug { return Bug(name) }
