// Package retention holds the tests of retention and reclaim on the whole engine: planner, log, files and boot on the
// memory file system, with a clock that moves only when it is told to.
package retention
