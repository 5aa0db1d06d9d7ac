// Command sim runs the broker's core on a simulated disk and clock, in one
// goroutine, from one seed: raft, planner, log writer, rows writer, sealer and
// recovery are the real ones, and whatever can happen in some order happens in
// an order that the seed decides. Clients send random commands of every kind;
// processes are killed, the power goes, calls of the file system fail, clocks
// jump; after each of these the broker boots again and everything that it has is
// compared with what it has said.
//
// # What is checked
//
// The book (book.go) follows the history as it was planned: an answer is
// compared with it when it is given, and the whole state after each boot.
//
//   - An answered write is there after every boot, and a boot never finds a
//     state that was not planned: its digest is that of some entry, none older
//     than the newest answered one. After a clean stop it is the newest.
//   - Every message of every partition is read from disk: ids, payloads, order;
//     each id once, and none of a call that was refused or lost. All parts of a
//     transaction are there, or none.
//   - A claim starts exactly at the first message that is not settled, its holes
//     are the settled ones, and no other lease is live.
//   - Key/value results are those of a map that makes the operations one after
//     the other in the order of planning, each between its call and its answer:
//     so they are linearizable. Versions, expiry and counters included.
//   - A timer fires once, not before its time, unless it was cancelled or
//     replaced before; at the end none is left.
//   - Dead letters are those that acks filed, with their messages.
//   - A call that is sent again under its key gets the first answer, and has no
//     second effect; what is kept of it is there after every boot.
//   - At the end every message of every group comes out; the end waits for leases.
//
// A failure prints the seed; the same seed runs the same history, call by call.
package main
