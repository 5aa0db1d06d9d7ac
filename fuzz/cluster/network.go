package main

import (
	"container/heap"

	pb "go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"queen/raftlog"
)

// network carries messages as bytes, so that no node shares memory with another.
type network struct {
	w       *world
	flying  packets
	seq     uint64
	cut     [8][8]bool // from, to
	lossPct int
	slow    int64 // longest delay, nanoseconds
}

type packet struct {
	at       int64
	seq      uint64
	from, to int
	bytes    []byte
	time     int64
	timeTerm uint64
	keep     uint64
	commit   uint64
}

// send takes a parcel apart: each message finds its own way.
func (t *network) send(n *node, p raftlog.Parcel) {
	w := t.w
	for _, m := range p.Messages {
		b, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
		if err != nil {
			w.fail("a message cannot be encoded: %v", err)
		}
		w.totals.Packets++
		from, to := int(n.id)-1, int(m.GetTo())-1
		copies := 1
		switch {
		case t.cut[from][to] || w.rng.IntN(100) < t.lossPct:
			copies = 0
			w.totals.Lost++
		case w.rng.IntN(50) == 0:
			copies = 2
		}
		for range copies {
			t.seq++
			delay := 50_000 + w.rng.Int64N(max(t.slow, 500_000))
			heap.Push(&t.flying, packet{at: w.now + delay, seq: t.seq, from: from, to: to, bytes: b, time: p.Time, timeTerm: p.TimeTerm, commit: p.Commit, keep: p.Keep})
		}
	}
}

// deliver brings the message that is due to its node; false: none is.
func (t *network) deliver() bool {
	w := t.w
	if len(t.flying) == 0 || t.flying[0].at > w.now {
		return false
	}
	p := heap.Pop(&t.flying).(packet)
	n := w.nodes[p.to]
	if n.step == nil || t.cut[p.from][p.to] {
		w.totals.Lost++
		return true
	}
	m := &pb.Message{}
	if err := proto.Unmarshal(p.bytes, m); err != nil {
		w.fail("a message cannot be decoded: %v", err)
	}
	w.noteTrace('m', uint64(p.from)<<8|uint64(p.to), uint64(w.now)^uint64(len(p.bytes)))
	if w.now < n.paused { // it waits in a socket
		p.at = n.paused
		t.seq++
		p.seq = t.seq
		heap.Push(&t.flying, p)
		return true
	}
	n.timed = n.timed || p.time != 0
	n.step.Receive(&raftlog.Parcel{Messages: []*pb.Message{m}, Time: p.time, TimeTerm: p.timeTerm, Commit: p.commit, Keep: p.keep})
	return true
}

func (t *network) next() int64 {
	if len(t.flying) == 0 {
		return 1 << 62
	}
	return t.flying[0].at
}

// heal ends every cut and loss.
func (t *network) heal() {
	t.cut, t.lossPct, t.slow = [8][8]bool{}, 0, 0
}

type packets []packet

func (h packets) Len() int { return len(h) }
func (h packets) Less(i, j int) bool {
	return h[i].at < h[j].at || h[i].at == h[j].at && h[i].seq < h[j].seq
}
func (h packets) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *packets) Push(x any)   { *h = append(*h, x.(packet)) }
func (h *packets) Pop() any {
	old := *h
	p := old[len(old)-1]
	*h = old[:len(old)-1]
	return p
}
