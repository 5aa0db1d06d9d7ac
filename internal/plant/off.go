//go:build !bug

package plant

// Is reports whether this build carries the bug: never.
func Is(Bug) bool { return false }

// Planted is the bug of this build: none.
func Planted() Bug { return "" }
