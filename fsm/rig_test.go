package fsm

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/cespare/xxhash/v2"

	"queen/index"
	"queen/internal/entry"
)

// A rig drives a machine as a group and an edge do, without files or
// goroutines: it commits every entry at once, keeps what the queue logs would
// hold, answers look-ups from that, and lets a second machine apply each entry.
type rig struct {
	// reported: a delivery was reported after the last cycle; an edge does that
	// with a call, which brings another cycle at once.
	reported bool
	t        fataler
	cfg      Config
	m        *Machine
	// twin applies every entry, each `applies` times; its digest must be that
	// of m. Nil: not checked.
	twin    *Machine
	applies int

	now, last int64
	seq       uint64   // for ids
	entries   [][]byte // entry i has index i+1
	digests   []uint64 // after entry i
	store     store
	batches   bool       // the edge leaves the ids of a batch with its lease
	letters   [][16]byte // dead letters in the order of their filing

	rows    []rowRecord // the checkpoint
	from    int         // entries that the checkpoint covers
	taking  *taking
	answers int
}

type fataler interface {
	Helper()
	Fatalf(format string, args ...any)
}

type taking struct {
	full bool
	from int
	rows []rowRecord
}

// rowRecord is one record of a checkpoint: a row, a deleted row (value nil) or
// a deleted range.
type rowRecord struct {
	key, value []byte
	hi         []byte
}

const startTime = int64(1_800_000_000_000_000)

const tenantA = "00000000-0000-0000-0000-000000000001"

func newRig(t fataler, cfg Config) *rig {
	if cfg.DedupBytes == 0 {
		cfg.DedupBytes = 1 << 20 // a machine is made faster with a small memory
	}
	r := &rig{t: t, cfg: cfg, m: New(cfg), twin: New(cfg), applies: 1, now: startTime, batches: true}
	r.store.init()
	r.lead()
	return r
}

// lead tells the machine that it leads, as the first entry of a term does.
func (r *rig) lead() {
	if err := r.m.Apply(uint64(len(r.entries)), 1, nil); err != nil {
		r.t.Fatalf("apply of raft's empty entry: %v", err)
	}
	r.m.Lead(1)
}

// id mints a unique id that looks like a UUIDv7.
func (r *rig) id() (id [16]byte) {
	r.seq++
	binary.BigEndian.PutUint64(id[8:], r.seq)
	id[0], id[6], id[8] = 1, 0x70, 0x80
	return id
}

func (r *rig) call(body any) *Call {
	c := &Call{Tenant: tenantA, Body: body}
	c.Done = func(err error) {
		if err != nil {
			r.t.Fatalf("%T was answered with %v", body, err)
		}
		r.answers++
		if p := claimOf(c); p != nil {
			r.received(p)
		}
		c.Done = func(error) { r.t.Fatalf("%T was answered twice", body) }
	}
	return c
}

// received is what an edge does with a pop's answer before it sends it: it
// reads the messages and leaves their ids with the lease.
func (r *rig) received(p *Pop) {
	if p.CommitOnDelivery {
		r.reported = true
		r.m.planDelivered(&Delivered{Claims: p.Claims})
	}
	for _, cl := range p.Claims {
		if cl.Batch == nil || !r.batches {
			continue
		}
		var items []BatchItem
		r.store.deliver(cl, func(offset uint64, m *entry.Message) {
			txn := m.AppendTxn(nil)
			items = append(items, BatchItem{Offset: offset, Hash: xxhash.Sum64(txn), Txn: string(txn)})
		})
		cl.Batch.Store(items)
	}
}

// plan runs one cycle at the rig's time, commits its entry and lets it be
// answered.
func (r *rig) plan(calls ...*Call) Plan {
	r.t.Helper()
	if r.now <= r.last {
		r.now = r.last + 1
	}
	r.last, r.reported = r.now, false
	p := r.m.Plan(r.now, calls)
	if p.Now != nil {
		p.Now()
	}
	if p.Data != nil {
		r.commit(p.Data)
	}
	if p.Answer != nil {
		p.Answer(nil)
	}
	return p
}

// do runs cycles until every look-up is made and no budget is left over.
func (r *rig) do(calls ...*Call) {
	r.t.Helper()
	for n := 0; ; n++ {
		if n == 100 {
			r.t.Fatalf("calls are prepared again and again")
		}
		p := r.plan(calls...)
		calls = p.Prepare
		for _, c := range calls {
			r.resolve(c)
		}
		if len(calls) == 0 && !p.More {
			return
		}
	}
}

func (r *rig) resolve(c *Call) {
	r.t.Helper()
	if err := c.Resolve(&r.store, r.store.appendTimes); err != nil {
		r.t.Fatalf("look-ups of %T: %v", c.Body, err)
	}
}

// run is do for one call body.
func run[T any](r *rig, body T) T {
	r.t.Helper()
	r.do(r.call(body))
	return body
}

func (r *rig) commit(data []byte) {
	r.t.Helper()
	e, err := entry.Parse(data)
	if err != nil {
		r.t.Fatalf("entry %d: %v", len(r.entries)+1, err)
	}
	if n := len(r.entries); n > 0 && e.Time <= entryTime(r.entries[n-1]) {
		r.t.Fatalf("entry %d has time %d, not above that of the one before", n+1, e.Time)
	}
	r.entries = append(r.entries, data)
	r.store.add(&e)
	r.letters = append(r.letters, r.newLetters()...)
	if r.twin == nil {
		return
	}
	for range r.applies {
		if err := r.twin.Apply(uint64(len(r.entries)), 1, data); err != nil {
			r.t.Fatalf("apply: %v", err)
		}
	}
	d := r.m.Digest()
	r.digests = append(r.digests, d)
	if got := r.twin.Digest(); got != d {
		r.t.Fatalf("entry %d: digest of the machine that planned it is %016x, of the one that applied it %016x\n%s",
			len(r.entries), d, got, diffRows(r.m, r.twin))
	}
}

func entryTime(data []byte) int64 { return int64(binary.LittleEndian.Uint64(data[2:])) }

func (r *rig) newLetters() (ids [][16]byte) {
	for id := range r.m.s.letters {
		if !slices.Contains(r.letters, id) {
			ids = append(ids, id)
		}
	}
	slices.SortFunc(ids, func(a, b [16]byte) int { return bytes.Compare(a[:], b[:]) })
	return ids
}

// seal makes everything that was appended so far part of sealed files.
func (r *rig) seal() {
	r.store.sealed = r.last
	r.m.SealedThrough(r.last)
}

// Checkpoints.

func (r *rig) beginCapture(full bool) {
	r.taking = &taking{full: full, from: len(r.entries)}
	r.m.BeginCapture(full)
}

// captureSome emits a slice of the capture. When all rows are out it finishes
// the capture and checks that it loads (F5, F13).
func (r *rig) captureSome(max int) (done bool) {
	r.t.Helper()
	k := r.taking
	done = r.m.CaptureSome(max,
		func(key, value []byte) {
			if value != nil {
				value = slices.Clone(value)
			}
			k.rows = append(k.rows, rowRecord{key: slices.Clone(key), value: value})
		},
		func(lo, hi []byte) {
			k.rows = append(k.rows, rowRecord{key: slices.Clone(lo), hi: slices.Clone(hi)})
		})
	if done {
		r.endCapture(true)
	}
	return done
}

func (r *rig) endCapture(ok bool) {
	k := r.taking
	r.taking = nil
	r.m.EndCapture(ok)
	if !ok {
		return
	}
	if k.full {
		r.rows = nil
	}
	r.rows = append(r.rows, k.rows...)
	r.from = k.from
	r.checkLoad()
}

func (r *rig) checkpoint(full bool) {
	r.t.Helper()
	r.beginCapture(full)
	for !r.captureSome(3) {
	}
}

// load makes a machine of the checkpoint and the entries after it.
func (r *rig) load() *Machine {
	r.t.Helper()
	m := New(r.cfg)
	for _, row := range r.rows {
		var err error
		if row.hi != nil {
			err = m.LoadDeleteRange(row.key, row.hi)
		} else {
			err = m.LoadRow(row.key, row.value)
		}
		if err != nil {
			r.t.Fatalf("load: %v", err)
		}
	}
	for i := range r.from {
		e, _ := entry.Parse(r.entries[i])
		if e.Time <= r.store.sealed {
			continue
		}
		for _, a := range e.Appends {
			if err := m.Remember(a); err != nil {
				r.t.Fatalf("remember: %v", err)
			}
		}
	}
	for i := r.from; i < len(r.entries); i++ {
		if err := m.Apply(uint64(i+1), 1, r.entries[i]); err != nil {
			r.t.Fatalf("replay: %v", err)
		}
	}
	if err := m.Ready(r.store.sealed); err != nil {
		r.t.Fatalf("ready: %v", err)
	}
	return m
}

func (r *rig) checkLoad() *Machine {
	r.t.Helper()
	m := r.load()
	if want, got := r.m.Digest(), m.Digest(); want != got {
		r.t.Fatalf("digest of the running machine is %016x, of one made of the checkpoint and entries %d to %d %016x\n%s",
			want, r.from+1, len(r.entries), got, diffRows(r.m, m))
	}
	return m
}

// restart puts a machine that was read from disk into the place of the running
// one. Pops that wait get an error; what is known of leased batches is lost.
func (r *rig) restart() {
	r.t.Helper()
	for _, w := range r.m.takeParked() {
		w.call.Done = func(error) {}
	}
	if r.taking != nil {
		r.endCapture(false)
	}
	r.m = r.checkLoad()
	r.lead()
	if r.twin != nil {
		// What is dirty there differs, so the twin's captures are tested too.
		r.twin = New(r.cfg)
		for i, data := range r.entries {
			if err := r.twin.Apply(uint64(i+1), 1, data); err != nil {
				r.t.Fatalf("apply: %v", err)
			}
		}
	}
}

// diffRows names the rows that differ between two machines.
func diffRows(a, b *Machine) string {
	x, y := allRows(a), allRows(b)
	var keys []string
	for k := range x {
		keys = append(keys, k)
	}
	for k := range y {
		if _, ok := x[k]; !ok {
			keys = append(keys, k)
		}
	}
	slices.Sort(keys)
	out := ""
	for _, k := range keys {
		if v, w := x[k], y[k]; v != w {
			out += fmt.Sprintf("row %x: %x against %x\n", k, v, w)
		}
	}
	return out
}

// allRows are the rows of a machine's state.
func allRows(m *Machine) map[string]string {
	rows := map[string]string{string(byte(rowMeta)): string(m.s.encodeMeta(nil))}
	put := func(key, value []byte) { rows[string(key)] = string(value) }
	m.s.walk(&rowWalk{}, 1<<62, func(o rowObject) {
		if !o.alive() {
			return
		}
		put(o.appendKey(nil), o.encode(nil))
		if c, ok := o.(*cursor); ok {
			c.chunkRows(put)
		}
	})
	return rows
}

// store is what the queue logs would hold. Ids of appends at or before sealed
// can be looked up; newer ones are only in the machine's memory.
type store struct {
	parts  map[uint64]*storedPart
	values map[uint64]entry.Value
	sealed int64
	fail   error // every look-up fails with it
}

type storedPart struct {
	queue    uint64
	messages [][]byte // by offset
	times    []int64
	runs     []appendRun
}

func (s *store) init() {
	s.parts, s.values = map[uint64]*storedPart{}, map[uint64]entry.Value{}
}

func (s *store) add(e *entry.Entry) {
	for _, a := range e.Appends {
		p := s.parts[a.Partition]
		if p == nil {
			p = &storedPart{queue: a.Queue}
			s.parts[a.Partition] = p
		}
		if uint64(len(p.messages)) != a.First {
			panic(fmt.Sprintf("append at offset %d of partition %d, which has %d messages", a.First, a.Partition, len(p.messages)))
		}
		rest := a.Messages
		for range a.Count {
			_, after, err := entry.NextMessage(rest)
			if err != nil {
				panic(err)
			}
			p.messages = append(p.messages, rest[:len(rest)-len(after)])
			p.times = append(p.times, a.Time)
			rest = after
		}
		p.runs = append(p.runs, appendRun{a.First, a.Count, a.Time})
	}
	for _, v := range e.Values {
		s.values[v.ID] = v
	}
}

func (s *store) message(partition, offset uint64) entry.Message {
	m, _, err := entry.NextMessage(s.parts[partition].messages[offset])
	if err != nil {
		panic(err)
	}
	return m
}

// deliver gives the messages of a claim.
func (s *store) deliver(cl *Claim, fn func(offset uint64, m *entry.Message)) {
	for o := cl.From; o <= cl.To; o++ {
		hole := slices.ContainsFunc(cl.Settled, func(r index.Range) bool { return r.Lo <= o && o <= r.Hi })
		if !hole {
			m := s.message(cl.PartitionID, o)
			fn(o, &m)
		}
	}
}

func (s *store) part(queue, partition uint64) (*storedPart, error) {
	if s.fail != nil {
		return nil, s.fail
	}
	p := s.parts[partition]
	if p == nil {
		return &storedPart{queue: queue}, nil
	}
	if p.queue != queue {
		return nil, fmt.Errorf("partition %d is of queue %d, not %d", partition, p.queue, queue)
	}
	return p, nil
}

func (s *store) ReadMessages(queue, partition, from, to uint64, fn func(uint64, int64, *entry.Message) error) error {
	p, err := s.part(queue, partition)
	if err != nil {
		return err
	}
	for o := from; o <= to && o < uint64(len(p.messages)); o++ {
		m := s.message(partition, o)
		if err := fn(o, p.times[o], &m); err != nil {
			return err
		}
	}
	return nil
}

func (s *store) FindTime(queue, partition uint64, t int64) (uint64, bool, error) {
	p, err := s.part(queue, partition)
	if err != nil {
		return 0, false, err
	}
	for o, at := range p.times {
		if at >= t {
			return uint64(o), true, nil
		}
	}
	return 0, false, nil
}

func (s *store) FindTxn(queue, partition uint64, txn []byte, fn func(uint64, int64, [16]byte) bool) error {
	p, err := s.part(queue, partition)
	if err != nil {
		return err
	}
	for o := len(p.messages) - 1; o >= 0; o-- {
		m := s.message(partition, uint64(o))
		if p.times[o] <= s.sealed && bytes.Equal(m.AppendTxn(nil), txn) && !fn(uint64(o), p.times[o], m.ID) {
			return nil
		}
	}
	return nil
}

var errNoValue = errors.New("no such value")

func (s *store) Value(id, queue uint64) ([]byte, error) {
	if s.fail != nil {
		return nil, s.fail
	}
	v, ok := s.values[id]
	if !ok || v.Queue != queue {
		return nil, errNoValue
	}
	return v.Data, nil
}

func (s *store) appendTimes(queue, partition, from uint64, max int, fn func(uint64, uint32, int64)) error {
	p, err := s.part(queue, partition)
	if err != nil {
		return err
	}
	for _, run := range p.runs {
		if run.end() > from && max > 0 {
			fn(run.first, run.count, run.time)
			max--
		}
	}
	return nil
}

// item makes a message to push. txn empty: the minted id is the transactionId.
func (r *rig) item(queue, partition, txn string, payload []byte) PushItem {
	it := PushItem{Queue: queue, Partition: partition, ID: r.id()}
	m := entry.Message{ID: it.ID, Minted: txn == "", Payload: payload}
	if txn != "" {
		it.Txn = []byte(txn)
		m.Txn = it.Txn
	}
	it.TxnHash = xxhash.Sum64(m.AppendTxn(nil))
	it.Packed = entry.AppendMessage(nil, &m)
	return it
}

func newPush(items ...PushItem) *Push {
	p := &Push{Items: items}
	p.GroupItems()
	return p
}

// partition finds a live partition by name.
func (r *rig) partition(queue, name string) *partition {
	q := r.m.s.findQueue(tenantA, queue)
	if q == nil {
		return nil
	}
	return q.byName[name]
}

func (r *rig) partitionID(queue, name string) uint64 {
	if p := r.partition(queue, name); p != nil {
		return p.id
	}
	return 0
}

func leaseID(name string) (id [16]byte) {
	copy(id[:], name)
	return id
}

func TestRigRuns(t *testing.T) {
	r := newRig(t, Config{})
	r.applies = 2
	run(r, newPush(r.item("a", "p", "m1", []byte("1")), r.item("a", "p", "m2", []byte("2"))))
	p := run(r, &Pop{Queue: "a", Group: QueueMode, Batch: 10, Partitions: 1, LeaseID: leaseID("L1")})
	if len(p.Claims) != 1 || p.Claims[0].Count != 2 {
		t.Fatalf("claims %+v, want one of two messages", p.Claims)
	}
	r.checkpoint(true)
	r.restart()
}
