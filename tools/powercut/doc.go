// Package powercut tests the whole broker, HTTP included, on a disk in memory
// that forgets what was not synced.
//
// Clients send random calls of every kind to a real server over connections in
// memory, until the power goes at a random call of the file system: what was
// synced stays, of the rest a random part. The broker starts again on what is
// left, everything is read back, and the books (internal/history) must balance.
// The faults beside it are failing calls, a full disk and damaged files.
//
// Everything runs in bubbles of testing/synctest: time passes when all wait, so
// leases run out and timers fire in no time. A seed fixes the calls, the moment
// of each cut and what it keeps; which goroutine runs first is the scheduler's.
//
//	go test ./tools/powercut                           some seconds
//	make powercut CUTS=10000                           many cuts
//	go test ./tools/powercut -run TestPowerCuts -seed=7 -cuts=10    one seed again
package powercut
