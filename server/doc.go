// Package server is the HTTP front end of the broker: routes, request and
// answer shapes, limits, long polls, admission, payload compression, metrics.
// It translates and decides nothing about storage; what a call does is planned
// by the state machine behind Engine.
//
// A request goes through one exchange (its route, id, tenant, answer buffer)
// and one work (the body and everything that the call refers to). Both are
// pooled. The rule that makes pooling safe stands at work: what was submitted
// belongs to the engine until Call.Done, also when nobody waits any more.
//
// A Server may be used by any number of goroutines. It starts one goroutine
// (the disk watch, from New to Close) and, for a call whose client left before
// its outcome was known, one until the outcome comes; Close waits for both.
package server
