// Package raftlog is the replicated log: it splits an entry into the records
// of queue logs, keeps raft's Storage over them, drives go.etcd.io/raft, and
// drives the state machine that it declares in Machine. What an effect means
// it does not know.
//
// # Parts
//
// core is a group's deterministic part: raft, the machine, the plans in flight
// and the checkpoint's progress, driven in turns (core.go, plan.go,
// checkpoint.go). logWriter is the log writer as a state machine: write, the
// logs whose sync is due, synced (writer.go). Neither starts anything or reads
// a clock, so that a simulator can drive both. Around them stand goroutines:
// the loop (turns.go), the writer with its sync workers (writerloop.go), the
// rows writer (rowsloop.go), the sealer (sealer.go), the reclaimer (reclaim.go), the scrubber
// (scrub.go) and the preparers (prepare.go). A turn is run by whoever brings something in and finds the core
// free, the submitter of a call or the log writer; by the loop otherwise. Package recovery finds out what a directory holds and hands it
// to Start.
//
// # A turn
//
// A turn takes what has gathered in the inbox, steps what the log writer
// reports into raft, takes out of raft what is committed, answers it, plans
// the calls that wait, proposes the entry, and hands it to the log writer. So
// an entry's index is known, and its bytes are on their way to the disk, in
// the turn that planned it.
//
//   - Planning needs raft to lead in the term that the machine was told, with an
//     entry of it applied and no transfer under way (F1, F2). When a proposal is
//     refused, or raft decides somebody else's entry where one was planned here,
//     the state holds effects that are in no log: it is dropped and read again
//     beside the loop, while votes and appends go on (F7; lead.go, reread.go).
//   - A call that comes to a node that does not lead is refused as soon as
//     another one does; nothing of it is in the log.
//   - An answer with effects is released by (term, index) when raft hands the
//     entry out: committed, and durable here. One without waits for what was
//     planned before it and for a ReadIndex of its cycle (F11).
//   - MaxInFlight entries may be in flight. With two, the next cycle is planned
//     while the fsync of the last one runs, as soon as it would be as large as
//     that one; else when that one has committed.
//
// # Writing
//
// Everything that is queued when the log writer looks is written together and
// synced once: one fdatasync for each log touched, side by side, or one syncfs
// for more than eight (F19). Term and vote are made durable before the entries
// that came with them; a commit index alone is never written (F6). Positions
// are given to look-ups when the bytes are in the file, before the sync:
// nobody asks for what has not committed. An error of the disk is fatal (I3).
//
// # Format of the state file, raft/state (version 1, little endian)
//
// Replaced whole: written beside as state.tmp, synced, renamed, directory
// synced.
//
//	pos  size  field
//	0    8     magic "queenst\0"
//	8    4     version, 1; a reader refuses a higher one by it
//	12   8     term
//	20   8     vote: raft id, 0 none
//	28   8     index of the newest membership change in it
//	36   8     cut mark: index of a cut that has begun, 0 none (I5)
//	44   1     auto leave: 1 when raft leaves a joint membership by itself
//	45   ..    voters, learners, outgoing voters, next learners: each a 4-byte
//	           count and 8 bytes for each raft id
//	end  8     xxhash64 of every byte before
//
// Anything else is damage: a node that does not know its vote must not run.
// The other formats: records in package entry, files in package segment, side
// tables and rows in package index, the directory in package recovery.
//
// # Several nodes
//
// Every message travels in a Parcel with what any peer may want to know: how far
// the broker's time has come (I10, F14), the commit index, and from a leader the
// first index that a follower may still ask for. raft's first index follows the
// checkpoint, held back for followers that were heard of lately, and a footer says
// so, so that a start knows the terms of what is kept (package recovery). Entries
// are in memory above the applied index and for a window below it; a follower that
// is further behind is served from the logs, by a reader of its own (F18; ahead.go).
// A leader whose disk does not answer gives its leadership away (F17; lead.go).
//
// # Not here yet
//
// Snapshots: a follower that is behind the log stays there. Membership changes are
// applied and nobody proposes any. Reclaim does not know of files that a snapshot
// would pin.
package raftlog
