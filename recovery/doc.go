// Package recovery opens a data directory: it takes the lock, checks whose
// directory it is, finishes a cut that a crash interrupted, loads the
// checkpoint, scans the queue logs, judges their tails, replays, and starts
// the group. Everything that it does not understand stops the start; the one
// exception is a tail that no record proves durable (architecture, I1 and I2).
//
// # Files of a data directory
//
//	LOCK                 held while a process runs; its content means nothing
//	FORMAT               whose directory this is, see below
//	raft/state           term, vote, membership, cut mark: package raftlog
//	checkpoint/*.rows    rows of the state: package index
//	log/q<id>/*.seg      queue logs: package segment, records in package entry
//	log/q<id>/*.idx etc. side tables, derived: package index
//
// # FORMAT
//
// Text, written once and durably when the directory is made, never changed:
//
//	queen data directory
//	version=1
//	cluster=<32 hex digits>
//	node=<raft id of this node, decimal>
//	shards=<QUEEN_QLOG_SHARDS, decimal>
//	xxhash64=<16 hex digits: of every byte before this line>
//
// version counts directory formats; a build refuses a higher one by it. shards
// is how queues map onto logs: it cannot change, because the records of an
// entry are found through it (F9).
//
// # What a footer says about the logs
//
// Footer.Extra of a checkpoint lists, for each log, the files that it had and
// where its newest applied record ended. What a footer names is durable, so a
// log that ends before it, or lacks one of the files, is damaged; claims in
// records (I2) say nothing about entries that the checkpoint covers. Files that
// reclaim is about to remove are left out: a hole before a file that is listed
// is explained by that, or by the header of a rewritten file before it.
//
//	1   version, 1
//	    uvarint number of logs, rising by id, each:
//	    uvarint log id
//	    uvarint number of runs of files, each: uvarint first, uvarint count
//	    uvarint end of the newest record in the last file; 0: not known
//
// Version 2 is what a node of several writes while its log is kept below the
// checkpoint for a follower that is behind. It ends in
//
//	uvarint first index that is kept, uvarint number of terms, each:
//	uvarint first index, uvarint term; the first one is of the entry before
package recovery
