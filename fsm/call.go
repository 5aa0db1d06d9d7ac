package fsm

import (
	"sync/atomic"

	"queen/index"
	"queen/internal/entry"
)

// Call is one command on its way through the planner. The edge builds it, the
// planner fills in the result fields of Body, and Done is called when the
// result is true (or never will be). Until Done has been called the edge must
// not read results or reuse bytes that the call refers to; from then on nobody
// else touches either. Strings are kept by the state, so they must be the
// call's own. Values in results may be the state's: they are never written again.
type Call struct {
	Tenant string // 36 bytes, lower case
	// Body is one of *Push, *Pop, *Ack, *Extend, *Txn, *KV, *Locks, *Timers,
	// *Configure, *DeleteQueue, *ReplayDeadLetter, *PurgeDeadLetters,
	// *Redrive, *CancelRedrive, *DeleteLetters, *Locate, *Watch,
	// *HandBack, *Delivered, *ReleaseParked, *Read, *Seek, *DeleteGroup,
	// *PauseGroup, *Subscribe, *ReleaseWorker.
	Body any
	// Size is a rough number of bytes that the call may add to an entry.
	Size int
	// Done is called once, from the group's loop (or the goroutine that
	// resolves lookups): it must not block.
	Done func(err error)
	// Gone is set by the edge when nobody waits for the answer any more. A
	// waiting pop is then dropped; a command that was not planned yet is
	// planned all the same unless it is a pop.
	Gone atomic.Bool
	// Marks are kept by whoever drives the machine.
	Marks Marks
	// Misfit is a result: a payload has another form than its queue keeps, so
	// nothing was done. What is to have which form stands in the body.
	Misfit bool

	// Key makes the outcome of the call kept; nil: it is not.
	Key *Keyed

	needs []need
	// internal calls are the machine's own: a failed look-up is planned too.
	internal bool
}

// Marks are when a call passed its stations, in nanoseconds of a clock of the
// driver's; 0: it did not. The planner neither reads nor writes them.
type Marks struct {
	Plan              int64 // the planner began to look at it, for the first time
	Prepare, Prepared int64 // its look-ups, the last ones
	Replan            int64 // the planner began to look at it, for the last time
	Planned           int64 // and was done
}

// callError reaches Done when a call was not decided here.
type callError string

func (e callError) Error() string { return string(e) }

// Errors that Done can get. The outcome of a write is then unknown.
const (
	// ErrNotLeader: this node cannot plan. Retry on the leader.
	ErrNotLeader = callError("this node does not lead")
	// ErrStopped: the broker is stopping.
	ErrStopped = callError("the broker is stopping")
)

// PayloadForm is how a payload is kept. The planner knows which form a queue
// keeps and never looks inside: the edge seals and opens.
type PayloadForm uint8

// Forms of a payload.
const (
	FormAny    PayloadForm = iota // as it is: not compared with what the queue keeps
	FormClear                     // not sealed
	FormSealed                    // sealed with the key of the node that took it
)

// Push stores items. Not atomic across partitions: each item has its status.
type Push struct {
	Items  []PushItem
	Groups []PushGroup // made by GroupItems
}

// PushItem is one message to store.
type PushItem struct {
	Queue, Partition string
	ID               [16]byte // minted by the edge, UUIDv7
	Txn              []byte   // the transactionId; nil: minted, its text is that of ID
	TxnHash          uint64   // xxhash64 of the transactionId's text (not mixed with a partition)
	Packed           []byte   // the message as entry.AppendMessage encodes it
	DupOf            int      // index of the first item of this call with the same key; -1: none. Made by GroupItems
	Form             PayloadForm

	// Result.
	Status PushStatus
	Offset uint64
	// StoredID is the id of the message that a keyed push is a duplicate of; zero
	// when nothing of it is left.
	StoredID [16]byte
	// PartitionID and QueueID are set for queued and duplicate items. A
	// duplicate that is not of this call (DupOf < 0) was stored by another: its
	// message id is read from (QueueID, PartitionID, Offset).
	QueueID, PartitionID uint64
	Want                 PayloadForm // after a misfit: the form that Packed has to get; FormAny: the one it has

	storedAt int64 // when the original was appended
}

// PushStatus is the fate of one item.
type PushStatus uint8

// Fates of an item.
const (
	Queued PushStatus = iota + 1
	Duplicate
	Refused // the planned append of its partition is over Config.EntryBytes
)

// PushGroup is the items of one partition, in request order.
type PushGroup struct {
	Queue, Partition string
	Items            []int
}

// SubscriptionMode says where a group starts.
type SubscriptionMode uint8

// Subscription modes; the numbers are stored in group rows.
const (
	SubscribeDefault SubscriptionMode = 0 // the broker's default
	SubscribeNew     SubscriptionMode = 1
	SubscribeAll     SubscriptionMode = 2
	SubscribeFrom    SubscriptionMode = 3
)

// QueueMode is the name of the group of pops that name none.
const QueueMode = "__QUEUE_MODE__"

// TimerGroup is the group under which timers that cannot fire are filed.
const TimerGroup = "__timer__"

// Pop claims messages under a lease.
type Pop struct {
	Queue                     string // empty: discovery by Namespace and Task
	Partition                 string // empty: the broker picks
	Namespace                 string // discovery; matched when MatchNamespace
	Task                      string
	MatchNamespace, MatchTask bool

	Group            string
	Mode             SubscriptionMode
	From             int64 // SubscribeFrom: microseconds
	Batch            int   // messages over all partitions, at least 1
	Partitions       int   // 1..64
	LeaseSeconds     int64 // 0: the queue's leaseTime (discovery: 60)
	CommitOnDelivery bool
	LeaseID          [16]byte // minted by the edge
	Worker           string
	// Conflate: a group that this pop registers conflates. Not with QueueMode.
	Conflate bool
	// DefaultPartitions: the caller named no number of partitions, and Partitions
	// is chosen here: 1, or for a group that conflates Batch, at most 64.
	DefaultPartitions bool
	// AutoPartitions: Partitions is chosen when the pop is served: its share of
	// the ready partitions among the pops that wait, 1 to 64. Not when the group
	// conflates.
	AutoPartitions bool
	// WaitMicros is how long the pop may wait for messages; 0: not at all. The
	// reply margin is already taken off.
	WaitMicros int64

	// Result. No claims: nothing delivered (204).
	Claims []*Claim
	// Poisoned are messages that this pop put aside on its way (maxDeliveries).
	Poisoned []Poisoned
	// Conflates: the group conflates. Conflict: it was asked for, and the group
	// was registered without.
	Conflates, Conflict bool
	Paused              bool // no claims, and the group is paused

	parked   bool
	deadline int64
	// Of a claim that comes with the commit of a call (next.go).
	certain  bool // its call has committed
	hopeless bool // a look-up failed: it gets nothing
}

// Poisoned is a message that was handed out alone maxDeliveries times, and whose
// leases all expired.
type Poisoned struct {
	Queue, Partition string
	PartitionID      uint64
	Offset           uint64
	Deliveries       int
	Filed            bool // in the dead-letter queue; false: dropped, it is off
}

// Claim is what a pop got of one partition.
type Claim struct {
	Queue, Partition     string
	QueueID, PartitionID uint64
	From, To             uint64        // inclusive offsets of what is delivered
	Settled              []index.Range // holes inside: already settled, not delivered
	Count                int           // messages: To-From+1 less the holes
	Attempt              int           // deliveryAttempt
	Expires              int64         // lease end, microseconds; 0 with CommitOnDelivery
	// Batch is where the edge leaves the transactionIds that it read, so that
	// acks of the lease need no look-up. Nil with CommitOnDelivery.
	Batch *Batch

	// At is the time of the claim, microseconds; the edge tells Lag how old the
	// messages were then.
	At  int64
	Lag *LagMeter

	group uint64 // id
	span  uint64 // the first unsettled offset that it covers: From, or below with conflation
	after int64  // CommitOnDelivery: committed once it was claimed
}

// Batch keeps the transactionIds of a leased batch for as long as this node
// leads. The edge stores once, before the pop is answered.
type Batch struct{ items atomic.Pointer[[]BatchItem] }

// BatchItem is one message of a leased batch.
type BatchItem struct {
	Offset uint64
	Hash   uint64 // xxhash64 of Txn
	Txn    string
}

// Store sets the batch's items, in offset order.
func (b *Batch) Store(items []BatchItem) { b.items.Store(&items) }

// AckStatus is what an ack says of a message.
type AckStatus uint8

// Ack statuses.
const (
	Completed AckStatus = iota
	Failed
	Retry
	DeadLetter
)

// ParseAckStatus reads a status as the wire has it: absent is completed, the
// synonyms success, acked and ok too, and anything else unknown is failed.
func ParseAckStatus(s string) AckStatus {
	switch s {
	case "", "completed", "success", "acked", "ok":
		return Completed
	case "retry":
		return Retry
	case "dlq":
		return DeadLetter
	default:
		return Failed
	}
}

// AckItem settles one message of a (partition, group).
type AckItem struct {
	Txn         []byte
	TxnHash     uint64 // xxhash64 of Txn
	PartitionID uint64 // 0: not a known form, no such partition
	Group       string
	HasLease    bool
	LeaseID     [16]byte // zero with HasLease: text that is no lease id; matches none
	Status      AckStatus
	Error       string
	DelayMs     int64

	// Result.
	Success       bool
	Err           string // stable text; empty on success
	LeaseReleased bool
	DLQ           bool
	Noop          bool
	Dropped       bool
	// Conflates: the ack completed something of a group that conflates; Conflated
	// is the number of messages that it settled without their delivery.
	Conflates bool
	Conflated int64
}

// Ack settles messages; each item is judged by itself, those of one
// (partition, group) together.
type Ack struct {
	Items []AckItem
	Next  *Pop // claimed with the commit; nil: nothing is
}

// Extend moves the expiry of every live lease with an id.
type Extend struct {
	LeaseID [16]byte
	Seconds int64

	// Result.
	Renewed int
	Expires int64 // the earliest new expiry, microseconds
}

// HandBack gives back what a pop claimed and nobody received.
type HandBack struct {
	LeaseID [16]byte
	Claims  []*Claim
	// Unreadable: a payload could not be read. The partitions are left alone for
	// a while, so that they do not keep the group from the others.
	Unreadable bool
}

// Delivered tells that the claims of a pop with CommitOnDelivery went out. Until
// then, or until they are handed back, their partitions are not delivered
// further: a batch that could not be read can still go back.
type Delivered struct{ Claims []*Claim }

// KVOpKind is the kind of a key/value operation.
type KVOpKind uint8

// Key/value operations.
const (
	KVGet KVOpKind = iota + 1
	KVGetMany
	KVGetPrefix
	KVPut
	KVPutIfAbsent
	KVDelete
	KVIncr
	KVCheck
)

// Write reports whether the operation can change a row.
func (k KVOpKind) Write() bool {
	return k == KVPut || k == KVPutIfAbsent || k == KVDelete || k == KVIncr
}

// KVOp is one key/value operation, already valid in shape.
type KVOp struct {
	Kind      KVOpKind
	NS, Key   string
	Keys      []string // getMany
	Prefix    string
	After     string
	Limit     int // getPrefix, 1..1000
	KeysOnly  bool
	Value     []byte // compact JSON
	TTL       int64  // seconds; 0: forever
	HasExpect bool
	Expect    int64
	Delta     float64
	HasMin    bool
	HasMax    bool
	Min, Max  float64
	Required  bool

	Result KVResult

	key string // of the row
	row *kvRow // as the operation was judged on it; nil: none, it may have expired
}

// KVResult is the outcome of one operation.
type KVResult struct {
	Applied   bool
	Found     bool
	Value     []byte // nil: none
	Version   int64
	Expires   int64 // microseconds; 0: forever
	Updated   int64 // microseconds
	Reason    string
	Rows      []KVRow
	Missing   []string
	Truncated bool
	NextAfter string // getPrefix; empty: none
}

// KVRow is one row of a read.
type KVRow struct {
	Key     string
	Value   []byte
	Version int64
	Expires int64
	Updated int64
}

// KV is a call of the key/value route: reads and writes, one entry.
type KV struct {
	Ops []KVOp
	// Failed is the index of the first lost required operation; -1: none.
	Failed int
	// Disabled: KV is turned off, nothing was done.
	Disabled bool
}

// TimerOp is one timer operation, already valid in shape.
type TimerOp struct {
	Cancel           bool
	Queue, Partition string
	Key              string
	DelayMs          int64
	Txn              []byte   // nil: the message id's text
	MessageID        [16]byte // minted by the edge
	// Message is the message that the fire appends, as entry.AppendMessage
	// encodes it (its id is MessageID).
	Message []byte
	Form    PayloadForm // of the message
	// Encrypted: the request says that the payload is sealed. A transaction is
	// refused for it when the queue keeps sealed ones.
	Encrypted bool

	// Result.
	Want      PayloadForm // as in PushItem
	OK        bool
	Status    string // scheduled, rescheduled, cancelled, absent
	DeliverAt int64
	// OldTxn is the transactionId of the timer that a cancel removed.
	OldTxn []byte
}

// Timers is a call of the timers route.
type Timers struct {
	Ops []TimerOp
	// Disabled: scheduling is turned off, nothing was done. A result.
	Disabled bool
}

// Position sets or forgets where a group reads a partition.
type Position struct {
	Queue, Partition, Group string
	Forget                  bool
	Offset                  uint64 // next offset the group reads
	Metadata                string
	Mode                    SubscriptionMode
}

// Txn is the atomic step.
type Txn struct {
	Acks      []AckItem
	Push      Push
	Positions []Position
	KV        []KVOp
	Timers    []TimerOp
	Next      *Pop // claimed with the commit; nil: nothing is
	// DryRun: the call is judged, its results are foretold, and nothing is done.
	DryRun bool

	// Result. Reason is empty when the call committed.
	Reason string
	Error  string
	// KVFailed is the index in KV of the lost gate when Reason is kv_precondition.
	KVFailed int
}

// Configure creates a queue or changes its options.
type Configure struct {
	Queue   string
	Replace bool
	Set     []OptionValue

	// Result.
	QueueID uint64
	Options Options
}

// DeleteQueue removes a queue with all it holds.
type DeleteQueue struct {
	Queue string

	Existed bool // result
}

// ReplayDeadLetter moves a dead letter back into a queue.
type ReplayDeadLetter struct {
	ID               [16]byte
	Queue, Partition string // empty: the source's
	// Form is that of Payload. FormAny: the payload goes as it is stored, and
	// only into a queue that keeps clear ones. FormClear without a payload: it is
	// asked for, as a misfit.
	Form    PayloadForm
	Payload *entry.Message

	// Result: Outcome moved, duplicate, gone or timer (a __timer__ letter: refused).
	Outcome              string
	ToQueue, ToPartition string
	Group                string
	OriginalTxn          []byte
	Item                 PushItem
	// After a misfit: the form that the destination keeps, and the message as it
	// is stored, in memory of its own.
	Want   PayloadForm
	Stored []byte
}

// PurgeDeadLetters removes the dead letters of a queue (and group).
type PurgeDeadLetters struct {
	Queue    string
	Group    string
	AnyGroup bool

	Deleted int // result

	after, last string // how far it has come, and where it ends
}

// Read runs Do on the loop, on the state as of everything planned before. Do
// must be short (well under 1 ms) and must keep nothing of the state.
type Read struct {
	Do func(s *State)
}
