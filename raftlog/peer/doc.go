// Package peer carries what the nodes of a cluster say to each other, on a port
// of its own: raft's messages on long-lived streams, one connection in each
// direction for all groups, and calls of clients on their way to the leader.
//
// # A connection
//
// Every request, the one that opens a stream too, is HTTP and names the cluster's
// token, which is compared in constant time before anything else of it is looked
// at. A stream is a request that is answered with 101; from then on frames go from
// the dialler to the listener. A node that cannot be reached is tried again after
// a growing pause; what was to be sent meanwhile is dropped, for raft sends it
// again.
//
//	POST /raft/v1/stream      opens a stream, see hello
//	ANY  /raft/v1/forward/... a client's call, the rest is its path
//
// # Format of a frame (version 1, little endian)
//
//	pos  size  field
//	0    4     length of what follows, at most 160 MiB
//	4    4     group
//	8    8     broker time that has been reached, microseconds; 0: not known
//	16   8     commit index of the sender
//	24   8     first index that a follower may ask for; 0: not from a leader
//	32   8     term of the leader whose clock had reached the time
//	40   ..    messages: each a u32 length and raft's protobuf
//
// A frame without messages keeps a quiet connection alive.
//
// # Who is who
//
// A node is its id, its cluster, and an instance: random bytes that were made with
// its directory (Registry). A voter whose directory was wiped comes with its old id
// and another instance; it has forgotten its votes and is refused, and so is a node
// of another cluster. A node that has promised more than it knows of now, in terms
// or in entries, runs on an older copy of its disk, and is refused. A node that is
// refused by any other takes no part any more, and says so.
//
// A new node takes part once it has met all others: so every one of them knows
// every instance from the start, and a wiped one finds nobody who does not.
package peer
