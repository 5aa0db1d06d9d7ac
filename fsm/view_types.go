package fsm

// QueueInfo is what a listing shows of a queue.
type QueueInfo struct {
	ID                         uint64
	Name                       string
	Created                    int64 // microseconds
	Options                    Options
	Partitions                 int
	Total, Pending, Processing int64 // retained; behind the slowest group; of these under a live lease
	Completed, DeadLetters     int64
}

// PartitionInfo is what a queue's detail shows of a partition.
type PartitionInfo struct {
	ID                         uint64
	Name                       string
	Created                    int64
	LogStart, Next             uint64
	LastAppend                 int64
	Total, Pending, Processing int64
	DeadLetters                int64
}

// DepthInfo is the backlog of a queue, for one group or the slowest.
type DepthInfo struct {
	Group                              string // whose backlog it is
	HasGroup                           bool   // the queue has it
	Conflates                          bool   // the group gets only the newest message of a partition
	Pending, Processing                int64
	PartitionsPending, PartitionsReady int64
}

// PartitionDepth is the backlog of one partition.
type PartitionDepth struct {
	Name                string
	Pending, Processing int64
}

// DeadLetterInfo is one dead letter. Its content is a message as package entry
// encodes it: Content, or when that is empty the value ContentID in the log of
// ContentQueue.
type DeadLetterInfo struct {
	ID               [16]byte
	Queue, Partition string
	QueueID          uint64
	PartitionID      uint64
	Offset           uint64
	Group            string
	Error            string
	RetryCount       int64
	Failed           int64 // microseconds
	Content          []byte
	ContentID        uint64
	ContentQueue     uint64
}

// TimerInfo is one pending timer. Message and ValueID as in DeadLetterInfo
// (value queue 0).
type TimerInfo struct {
	Queue, Partition, Key string
	DeliverAt             int64
	Txn                   []byte // text
	MessageID             [16]byte
	Attempts              int64
	LastError             string
	Created, Updated      int64
	Message               []byte
	ValueID               uint64
}

// Methods of State that the edge calls inside Read. Each looks at a slice's worth
// at most; what more or next says goes on in another read:
//
//	Queues(tenant, after string, limit int) (rows []QueueInfo, more bool) // by name, after exclusive
//	Queue(tenant, name string) (QueueInfo, bool)
//	Partitions(tenant, queue string, offset, limit int) (rows []PartitionInfo, more bool)
//	Depth(tenant, queue, group string, named bool) (DepthInfo, bool)
//	Depths(tenant, queue string, d *DepthInfo, named bool, from, limit int) (rows []PartitionDepth, more bool)
//	DeadLetters(tenant string, f *DeadLetterFilter) (rows []DeadLetterInfo, more bool) // newest failure first
//	LettersAt(tenant string, partition uint64, offset *uint64, after string) (rows []DeadLetterInfo, next string)
//	RedriveJobs(tenant string) []RedriveInfo // newest first
//	RedriveJob(tenant string, id [16]byte) (RedriveInfo, bool)
//	Bounds(tenant, queue, partition string) PartitionBounds
//	PartitionsByName(tenant, queue, after string, limit int) (rows []ChangedPartition, found, more bool)
//	Changed(tenant, queue string, w *ChangedWalk) (rows []ChangedPartition, found, more bool)
//	BrowseQueues(tenant string, f *BrowseFilter, after string) (rows []BrowseQueue, next string)
//	Recent(queueID uint64, w *RecentWalk) (rows []RecentPartition, bound int64, more bool) // newest write first
//	Judge(rows []MessageState, each func(GroupState)) (decided int)
//	Timer(tenant, queue, key string) (TimerInfo, bool)
//	ListTimers(tenant, queue, after string, limit int) (rows []TimerInfo, more bool)
//	CountTimers(tenant, queue, prefix, after string) (n int, next string)
//	Groups(tenant, after string, limit int) (rows []GroupInfo, more bool) // by name and queue, after: GroupInfo.Cursor, exclusive
//	GroupsNamed(tenant, name, after string, limit int) (rows []GroupInfo, more bool)
//	GroupPartitions(tenant, group, queue string, from uint64, limit int) (rows []GroupPartition, next uint64)
//	GroupPartition(tenant, group, queue, partition string) (GroupPartition, bool)
//	Settled(tenant, group, queue string, ids, offsets []uint64) int64
//	Leases(tenant string, f *LeaseFilter) (rows []LeaseInfo, more bool)
