// Package index answers where things are: the offset, time, transactionId or
// value id of a message to its record (LogIndex over side tables), the recent
// transactionIds (DedupMemory), the acked offsets of a cursor (OffsetSet), and
// the checkpointed rows of the state (Rows).
//
// It knows nothing of raft, effects, or what is in a record. It starts no
// goroutine, reads no clock, and touches files only through vfs.FS.
//
// What may run at once: OffsetSet and DedupMemory belong to one goroutine, the
// loop. Rows belongs to one goroutine. LogIndex takes adds from the log's
// writer and look-ups from any number of goroutines; its maintenance (Seal,
// MergeSome, DropFile, Cut, Reconcile) may run beside both and serialises itself.
//
// Positions and dedup tables are derived: they can be rebuilt from the
// segments, so damage in them is reported, never fatal. Rows are not derived:
// damage in them refuses a boot.
//
// FORMAT.md beside this file has the byte formats of .idx, .dedup and .rows
// files and of encoded offset sets.
package index
