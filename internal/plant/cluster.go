package plant

// Bugs that only a cluster has, each with what it breaks. tools/sim-bugs.sh reads
// their names.
const (
	// VoteNotSynced: a vote is sent and not in the state file (I3).
	VoteNotSynced Bug = "vote-not-synced"
	// AckBeforeDurable: a follower acknowledges entries that no sync has covered (I3).
	AckBeforeDurable Bug = "ack-before-durable"
	// AnswerByIndex: a call is answered when its index commits, whoever's entry
	// that is (F7).
	AnswerByIndex Bug = "answer-by-index"
	// StaleRead: a read is answered without asking whether this node still leads (F11).
	StaleRead Bug = "stale-read"
	// WallClockLease: a new leader goes by its own wall clock (F14).
	WallClockLease Bug = "wall-clock-lease"
	// RefusedProposal: what raft refuses stays in the state (F2).
	RefusedProposal Bug = "refused-proposal"
	// ApplyUncommitted: a boot applies entries that nothing says are committed (F6).
	ApplyUncommitted Bug = "apply-uncommitted"
)

// ClusterBugs lists them.
var ClusterBugs = []Bug{VoteNotSynced, AckBeforeDurable, AnswerByIndex, StaleRead, WallClockLease, RefusedProposal, ApplyUncommitted}
