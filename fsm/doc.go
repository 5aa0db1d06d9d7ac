// Package fsm is the state machine: what the broker knows, and how a command
// becomes effects on it.
//
// A Machine holds a State. On the node that leads, Plan judges calls (call.go)
// on the state and emits effects, which are rows (rows.go): absolute facts that
// any node can apply, once or twice, with the same result. Elsewhere, and
// during a boot, Apply applies entries. A call's checks only read; after the
// last one has passed its effects are emitted, so a refusal needs no undo.
//
// The package is a function of its inputs: it reads no clock, no environment
// and no random source, starts no goroutine and touches no file. Time arrives
// with Plan; what needs the disk is asked for as look-ups (lookup.go) and made
// off the loop. Nothing iterates a map where the order could reach an effect.
//
// One goroutine owns a Machine. The one exception is Batch, which an edge
// fills while the machine runs.
package fsm
