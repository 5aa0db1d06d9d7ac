// Package rawjson reads and writes JSON text without building values.
//
// A Scanner walks over a body once and hands out slices of it; payloads are
// taken as the bytes that were sent. It accepts exactly RFC 8259 text in valid
// UTF-8, nested at most MaxDepth deep. The Append functions write the few
// shapes that answers are made of. Nothing here starts goroutines or keeps
// state between bodies; a Scanner serves one goroutine.
//
// Where it differs from encoding/json on purpose: invalid UTF-8 is an error,
// the depth limit is lower, member names are matched as they are spelled, and
// a value is never converted unless it is asked for.
package rawjson
