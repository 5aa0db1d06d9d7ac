package server

import (
	"net/http"
	"os"
	"strings"
)

// What a node tells of its raft group. This build has one member: itself.

type raftStatus struct {
	NodeID         uint64 `json:"nodeId"`
	Role           string `json:"role"`
	Leader         *int64 `json:"leader"` // node id; null: none is known
	Term           uint64 `json:"term"`
	Log            uint64 `json:"log"`
	Committed      uint64 `json:"committed"`
	Applied        uint64 `json:"applied"`
	Durable        uint64 `json:"durable"`
	Lag            int64  `json:"lag"` // milliseconds
	StorageFull    bool   `json:"storageFull"`
	ClusterVersion int    `json:"clusterVersion"`
	Kinds          int    `json:"kinds"`
}

func (st *Status) leader() *int64 {
	if !st.HasLeader {
		return nil
	}
	id := int64(st.NodeID)
	return &id
}

func (s *Server) serveRaftStatus(x *exchange) {
	st := s.engine.Status()
	x.answerJSON(http.StatusOK, raftStatus{
		NodeID: st.NodeID, Role: st.Role, Leader: st.leader(), Term: st.Term, Log: st.Log, Committed: st.Commit, Applied: st.Applied,
		Durable: st.Durable, StorageFull: s.disk.full.Load(), ClusterVersion: dataFormat, Kinds: dataFormat,
	})
}

type raftMember struct {
	NodeID        uint64 `json:"nodeId"`
	Name          string `json:"name"`
	HTTP          string `json:"http"`
	Raft          string `json:"raft"`
	Role          string `json:"role"`
	Voter         bool   `json:"voter"`
	Live          bool   `json:"live"`
	Term          uint64 `json:"term"`
	Applied       uint64 `json:"applied"`
	Commit        uint64 `json:"commit"`
	Lag           int64  `json:"lag"`
	StoreBytes    int64  `json:"storeBytes"`
	AnonBytes     int64  `json:"anonBytes"`
	UptimeSeconds int64  `json:"uptimeSeconds"`
}

func (s *Server) serveRaftMembers(x *exchange) {
	st := s.engine.Status()
	name, _ := os.Hostname()
	x.answerJSON(http.StatusOK, map[string]any{"clusterId": st.Cluster, "leader": st.leader(), "members": []raftMember{{
		NodeID: st.NodeID, Name: name, HTTP: x.c.Request.Host, Role: st.Role, Voter: true, Live: st.Role != "stopped", Term: st.Term,
		Applied: st.Applied, Commit: st.Commit, StoreBytes: st.LogBytes, AnonBytes: anonymousBytes(),
		UptimeSeconds: int64(s.cfg.Clock().Sub(s.started).Seconds()),
	}}})
}

func (s *Server) serveRaftLiveness(x *exchange) {
	st := s.engine.Status()
	x.answerJSON(http.StatusOK, map[string]any{"members": []map[string]any{{"nodeId": st.NodeID, "live": st.Role != "stopped", "ageMs": 0}}})
}

// anonymousBytes is the anonymous memory of this process; 0 where it cannot be told.
func anonymousBytes() int64 {
	data, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(data)) {
		if rest, ok := strings.CutPrefix(line, "RssAnon:"); ok {
			n, _ := parseCount(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")))
			return n << 10
		}
	}
	return 0
}
