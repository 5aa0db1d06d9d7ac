package fsm

import (
	"math"
	"slices"
	"sort"

	"queen/index"

	"github.com/tidwall/btree"
)

// State is everything that the log has decided: queues, partitions, groups,
// cursors, key/value rows, timers, dead letters and the counters that mint
// ids. It is written by one goroutine only, that of its Machine.
//
// Each object below is one row (rows.go) plus what is derived from the rows:
// name look-ups, ready lists, heaps. While a checkpoint and the log are read,
// rows may refer to others that are missing or not there yet (a fuzzy
// checkpoint): such objects stand as placeholders with exists false, and what
// is derived is built once, at the end (F13).
type State struct {
	time int64 // of the newest entry
	now  int64 // of the newest planning cycle, for reads: leases end without an entry
	meta counters

	queueName  map[string]*queue // tenant + name
	queues     map[uint64]*queue
	queueOrder btree.Map[string, *queue] // as queueName, for listings
	partitions map[uint64]*partition
	groups     map[uint64]*group
	kv         btree.Map[string, *kvRow]
	kvSpaces   btree.Map[string, *kvSpace] // by tenant + namespace; counted at apply
	switches   switches
	timers     btree.Map[string, *timer]
	letters    map[[16]byte]*deadLetter
	// letterOrder holds the same by tenant and id, which is by time.
	letterOrder btree.Map[string, *deadLetter]
	redrives    btree.Map[string, *redriveJob] // by tenant and id, which is by time

	outcomes outcomes

	totals btree.Map[string, *series] // statistics of tenants
	dead   []*queue                   // deleted, waiting for the sweeper
	dying  []*group                   // incarnations that have ended, waiting for the sweeper

	groupOrder btree.Map[string, *group] // by groupKeyOf, for listings
}

// counters mint ids. Each names the next one to give out, so a row written
// later is never below one written earlier.
type counters struct {
	queue, partition, group uint64
	value                   uint64
	letter                  uint64
	kvVersion               int64
}

type queue struct {
	id           uint64
	tenant, name string
	opts         Options
	created      int64
	deleted      bool // the row stays until the sweeper has removed the rest
	exists       bool
	dirty        bool

	parts    []*partition // by id, which is by creation
	unsorted bool         // parts are not in order (while loading)
	byName   map[string]*partition
	groups   []*group // by id
	byGroup  map[string]*group
	dying    []*group // ended incarnations that still have cursors
	leased   int      // cursors with a lease, live or not
	counts   queueCounts
	reviewed int                            // partitions whose cursors know the newest options; reviewDone: all
	letters  btree.Map[string, *deadLetter] // by id, which is by time
	recency  recency
	names    *nameOrder // nil: nobody has asked for it
	// byPlace holds the letters by partition, offset and id.
	byPlace btree.Map[string, *deadLetter]

	stats      *series // where it is counted; nil: nothing was yet
	parked     int64   // pops that wait
	lastAppend int64   // the newest one of its partitions
}

type partition struct {
	id         uint64
	q          *queue
	name       string
	created    int64
	lastAppend int64
	next       uint64      // the offset that the next message gets
	start      uint64      // log start: the lowest retained offset
	cursors    []*cursor   // by id of their group
	counted    int64       // what the queue's counters hold of it
	delay      *visibility // delayedProcessing only
	letters    int32
	place      uint64 // in the order of the queue's recency; 0: in none
	block      *recencyBlock
	slot       int32 // in block
	oldest     int64 // no retained message was appended before; 0: not known, or there is none. Not part of the row
	exists     bool
	dirty      bool
}

type group struct {
	id      uint64
	q       *queue
	name    string
	mode    SubscriptionMode
	from    int64 // SubscribeFrom, microseconds
	created int64
	// startPartition is the partition counter when the group registered: a
	// partition with a lower id existed then.
	startPartition uint64
	conflates      bool       // gets only the newest message of a partition; decided with the start
	mark           *groupMark // nil: none
	exists         bool
	dirty          bool

	rule  startRule // where it starts, as the rows say
	epoch uint32    // counts changes of the rule
	swept uint64    // partition id up to which a sweeper has looked
	// Derived. The ready list holds the cursors that a pop can claim, oldest
	// first; sweep is how far the queue's partitions have been looked at for
	// cursors that do not exist yet (all and from only).
	readyHead, readyTail *cursor
	ready                int
	sweep                int
	waiters              waiters
	counts               groupCounts
	pending              bool // in Machine.hot: something became ready, or a pop came
}

// cursor is where a group reads a partition: everything at or below committed
// is settled, and the offsets in sets too.
type cursor struct {
	p          *partition
	g          *group
	prev, succ *cursor // ready list
	lease      *lease
	released   *releasedLease
	sets       *settledSets
	metadata   *string    // stored with a position; nil: none
	suspect    *suspicion // maxDeliveries; nil: none
	counted    cursorCount
	committed  int64  // -1: nothing
	firstTry   uint64 // first offset of the last delivered batch
	delayUntil int64
	holdUntil  int64 // not part of the row: a batch is in the edge's hands, or unreadable
	wakeAt     int64 // when to look again (heap), 0: not in the heap
	heapIdx    int32
	epoch      uint32 // the group's when this was made
	attempt    int32  // deliveries of a batch that starts at firstTry
	retries    int32  // failed acks charged
	row        bool   // has a row; a cursor without one is derived (a sweep found it)
	dirty      bool
	inReady    bool
	tallied    bool // counted among the group's cursors
	consumed   bool // and among those that have passed a message
}

// countUp counts deliveries and failures. A consumer that hands a batch back at
// once, for weeks, reaches the end of the type: there the count stays (B68).
func countUp(n int32) int32 {
	if n == math.MaxInt32 {
		return n
	}
	return n + 1
}

// settledSets are offsets above committed that are settled: all of them, and
// those of them that were filed or dropped rather than completed.
type settledSets struct {
	settled, other index.OffsetSet
}

type lease struct {
	id      [16]byte
	from    uint64
	end     uint64 // last offset of the batch
	expires int64
	worker  string

	// Not part of the row.
	batch   *Batch
	c       *cursor
	sibling *lease // next lease with the same id: a pop of several partitions has one
	seq     uint64 // rises with each lease that is given
	older   *lease // of the same worker
	newer   *lease
	listed  bool // with its worker
}

// What a lease's release did to messages.
const (
	releasedNacked  = 0
	releasedFiled   = 1
	releasedDropped = 2
)

// releasedLease is the last lease that was released, and what its release did,
// so that the same ack sent again gets the same answer.
type releasedLease struct {
	id        [16]byte
	completed bool                // a completed ack was among those that released it
	acts      *[3]index.OffsetSet // nil: nothing was nacked, filed or dropped
}

type kvRow struct {
	key     string // tenant, ns, NUL, key
	value   []byte
	version int64
	expires int64 // 0: never
	updated int64
	heapIdx int32
	dirty   bool
	dead    bool
}

type timer struct {
	key              string // timerRowKey
	tenant           string
	queue, partition string
	name             string
	deliverAt        int64 // not before; pushed out by back-off
	due              int64 // as scheduled
	txn              []byte
	messageID        [16]byte
	message          []byte // nil: value
	value            uint64
	size             int // bytes of the message
	attempts         int64
	lastError        string
	created, updated int64
	heapIdx          int32
	dirty            bool
	dead             bool
	firing           bool // its value is being read
}

type deadLetter struct {
	id          [16]byte
	q           *queue
	partitionID uint64
	partition   string
	offset      uint64
	group       string
	err         string
	retries     int64
	failed      int64
	message     []byte // nil: value in the queue's log
	value       uint64
	dirty       bool
	dead        bool
}

func newState() *State {
	return &State{
		meta:       counters{queue: 1, partition: 1, group: 1, value: 1, letter: 1, kvVersion: 1},
		queueName:  map[string]*queue{},
		queues:     map[uint64]*queue{},
		partitions: map[uint64]*partition{},
		groups:     map[uint64]*group{},
		letters:    map[[16]byte]*deadLetter{},
		outcomes:   outcomes{byName: map[string]*outcome{}},
	}
}

// findQueue looks a live queue up by name.
func (s *State) findQueue(tenant, name string) *queue {
	var buf [128]byte
	return s.queueName[string(append(append(buf[:0], tenant...), name...))]
}

// findPartition looks a partition up by id; another tenant's is not found.
func (s *State) findPartition(tenant string, id uint64) *partition {
	p := s.partitions[id]
	if p == nil || p.q.deleted || p.q.tenant != tenant {
		return nil
	}
	return p
}

func (p *partition) cursor(g *group) *cursor {
	if i := p.cursorAt(g); i < len(p.cursors) && p.cursors[i].g == g {
		return p.cursors[i]
	}
	return nil
}

// cursorAt is where the cursor of a group stands, or would.
func (p *partition) cursorAt(g *group) int {
	if n := len(p.cursors); n == 0 || p.cursors[n-1].g.id < g.id {
		return n
	}
	return sort.Search(len(p.cursors), func(i int) bool { return p.cursors[i].g.id >= g.id })
}

// addCursor puts a new cursor into its place.
func (p *partition) addCursor(c *cursor) {
	p.cursors = slices.Insert(p.cursors, p.cursorAt(c.g), c)
}

// settled reports whether an offset is settled for the cursor's group.
func (c *cursor) settled(offset uint64) bool {
	if int64(offset) <= c.committed {
		return true
	}
	return c.sets != nil && c.sets.settled.Contains(offset)
}

// firstUnsettled is the lowest offset that the group has not settled and that
// is retained or still to come.
func (c *cursor) firstUnsettled() uint64 {
	first := max(uint64(c.committed+1), c.p.start)
	if c.sets != nil {
		first = c.sets.settled.NextAbsent(first)
	}
	return first
}

// liveLease is the cursor's lease when it has not expired at now.
func (c *cursor) liveLease(now int64) *lease {
	if c.lease != nil && now < c.lease.expires {
		return c.lease
	}
	return nil
}
