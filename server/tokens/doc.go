// Package tokens checks the bearer tokens (JWT) of requests: their signature,
// times, issuer and audience, and what their roles may do. It knows keys and
// claims, not routes: which access a route asks for stands in the server's
// route table.
//
// A Verifier may be used by any number of goroutines. With a key set behind a
// URL it starts one goroutine, which Close ends and waits for.
package tokens
