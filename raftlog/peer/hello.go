package peer

import (
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"net/http"
	"strconv"

	pb "go.etcd.io/raft/v3/raftpb"
)

// Header lines of a request between nodes.
const (
	headerToken    = "X-Queen-Raft-Token"
	headerCluster  = "X-Queen-Cluster"
	headerNode     = "X-Queen-Node"     // id of the sender
	headerTo       = "X-Queen-To"       // id of the node that it means to reach
	headerInstance = "X-Queen-Instance" // of the sender
	headerKnows    = "X-Queen-Knows"    // instance under which it knows the receiver
	headerTerm     = "X-Queen-Term"
	headerLast     = "X-Queen-Last" // newest durable entry
	// headerRefused marks an answer that says that the sender must not take part.
	headerRefused = "X-Queen-Refused"

	streamPath  = "/raft/v1/stream"
	forwardPath = "/raft/v1/forward"
	upgradeName = "queen-raft/1"
)

// Standing is what a node can say for itself: it must never become less.
type Standing struct {
	Term   uint64
	Last   uint64 // newest durable entry
	Commit uint64
}

// hello is how a node introduces itself.
type hello struct {
	cluster          string
	from, to         uint64
	instance, knows  string
	term, last       uint64
	malformed, token string
}

func (h *hello) write(to http.Header) {
	to.Set(headerToken, h.token)
	to.Set(headerCluster, h.cluster)
	to.Set(headerNode, strconv.FormatUint(h.from, 10))
	to.Set(headerTo, strconv.FormatUint(h.to, 10))
	to.Set(headerInstance, h.instance)
	to.Set(headerKnows, h.knows)
	to.Set(headerTerm, strconv.FormatUint(h.term, 10))
	to.Set(headerLast, strconv.FormatUint(h.last, 10))
}

func readHello(from http.Header) (h hello) {
	number := func(name string) uint64 {
		n, err := strconv.ParseUint(from.Get(name), 10, 64)
		if err != nil {
			h.malformed = name
		}
		return n
	}
	h.cluster, h.instance, h.knows = from.Get(headerCluster), from.Get(headerInstance), from.Get(headerKnows)
	h.from, h.to, h.term, h.last = number(headerNode), number(headerTo), number(headerTerm), number(headerLast)
	return h
}

// allowed compares the token in constant time.
func (t *Transport) allowed(r *http.Request) bool {
	got := sha256.Sum256([]byte(r.Header.Get(headerToken)))
	return subtle.ConstantTimeCompare(got[:], t.token[:]) == 1
}

// judge decides whether a node that says hello may take part; "" means yes. bars
// tells that it is the sender, for good, who must not.
func (t *Transport) judge(h *hello) (problem string, bars bool, err error) {
	self := t.cfg.NodeID
	switch {
	case h.malformed != "":
		return "header " + h.malformed + " does not parse", false, nil
	case h.cluster != t.cfg.ClusterID:
		return fmt.Sprintf("node %d belongs to cluster %s, and this is node %d of cluster %s: one of the two has a wrong peer list or the wrong directory", h.from, h.cluster, self, t.cfg.ClusterID), true, nil
	case h.to != self:
		return fmt.Sprintf("this is node %d and not node %d: an address in the peer list is wrong", self, h.to), false, nil
	case h.from == self || t.link(h.from) == nil:
		return fmt.Sprintf("node %d is no member of this cluster", h.from), false, nil
	case h.knows != "" && h.knows != t.cfg.Registry.Self():
		t.bar(fmt.Sprintf("node %d knows another disk of this node: %s", h.from, wayOut(self)))
		return fmt.Sprintf("this is another disk of node %d than the one that you know: %s", self, wayOut(self)), false, nil
	}
	ok, err := t.cfg.Registry.Meet(h.from, h.instance)
	switch {
	case err != nil:
		return "", false, err
	case !ok:
		return fmt.Sprintf("node %d has another disk than the one that is known: it has forgotten its votes and entries: %s", h.from, wayOut(h.from)), true, nil
	}
	if s := t.link(h.from).seen(); h.term < s.Term || h.last < s.Last {
		return fmt.Sprintf("node %d has an older copy of its disk: it knows of term %d and entry %d, and was at term %d and entry %d when it was heard of last: %s",
			h.from, h.term, h.last, s.Term, s.Last, wayOut(h.from)), true, nil
	}
	return "", false, nil
}

func wayOut(id uint64) string {
	return fmt.Sprintf("start it with the newest directory that node %d ever ran on, or remove node %d from the membership and add it anew with an empty one", id, id)
}

// witnessed takes what a message of a node proves that the node has promised.
func (s *Standing) witnessed(m *pb.Message, commit uint64) {
	switch m.GetType() {
	case pb.MsgPreVote, pb.MsgPreVoteResp:
		return // of a term that nobody has promised anything in
	case pb.MsgAppResp:
		if !m.GetReject() {
			s.Last = max(s.Last, min(m.GetIndex(), commit))
		}
	}
	s.Term = max(s.Term, m.GetTerm())
}
