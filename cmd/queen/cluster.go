package main

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"queen/raftlog/peer"
	"queen/server"
)

// nodeID is the raft id of this node: a number, or the trailing number of the
// host's name plus one, as a StatefulSet numbers its pods.
func nodeID(v *values, hostname string) (uint64, error) {
	text := v.text("QUEEN_RAFT_NODE_ID")
	if text != "ordinal" {
		id, err := strconv.ParseUint(text, 10, 63)
		if err != nil || id == 0 {
			return 0, &settingError{"QUEEN_RAFT_NODE_ID", text, "neither a number from 1 on nor ordinal"}
		}
		return id, nil
	}
	digits := len(hostname)
	for digits > 0 && hostname[digits-1] >= '0' && hostname[digits-1] <= '9' {
		digits--
	}
	n, err := strconv.ParseUint(hostname[digits:], 10, 32)
	if err != nil {
		return 0, &settingError{"QUEEN_RAFT_NODE_ID", text, fmt.Sprintf("the host's name %q (HOSTNAME) does not end in a number", hostname)}
	}
	return n + 1, nil
}

// hostname is HOSTNAME, or what the system says.
func hostname(v *values) string {
	if name := v.text("HOSTNAME"); name != "" {
		return name
	}
	name, _ := os.Hostname() // none is as good as one without a number
	return name
}

// clusterConfig is the cluster that the settings name; nil: this node is alone.
func clusterConfig(v *values, id uint64, log *slog.Logger) (*server.ClusterConfig, string, error) {
	replicator, peers := v.text("QUEEN_RAFT_REPLICATOR"), v.text("QUEEN_RAFT_PEERS")
	switch replicator {
	case "local":
		if peers != "" {
			return nil, "", &settingError{"QUEEN_RAFT_PEERS", peers, "a list of peers needs QUEEN_RAFT_REPLICATOR=raft"}
		}
		return nil, "", nil
	case "raft", "openraft":
	default:
		return nil, "", &settingError{"QUEEN_RAFT_REPLICATOR", replicator, "neither local nor raft"}
	}
	if peers == "" {
		return nil, "", &settingError{"QUEEN_RAFT_REPLICATOR", replicator, "needs QUEEN_RAFT_PEERS, the list of members: id=raft_addr/http_addr,..."}
	}
	members, err := parsePeers(peers)
	if err != nil {
		return nil, "", err
	}
	c := &server.ClusterConfig{
		Members: members, Token: v.text("QUEEN_RAFT_TOKEN"),
		ReadyLagEntries: uint64(v.count("QUEEN_RAFT_READY_LAG_ENTRIES")), ReadyLag: time.Duration(v.count("QUEEN_RAFT_READY_LAG_MS")) * time.Millisecond,
	}
	listen := v.text("QUEEN_RAFT_LISTEN")
	own := false
	for _, m := range members {
		if m.ID != id {
			continue
		}
		own = true
		if listen == "" {
			_, port, _ := net.SplitHostPort(m.Raft)
			listen = net.JoinHostPort("0.0.0.0", port)
		}
	}
	if !own {
		return nil, "", &settingError{"QUEEN_RAFT_NODE_ID", strconv.FormatUint(id, 10), "is not in QUEEN_RAFT_PEERS=" + peers}
	}
	if c.Token == "" {
		log.Warn("QUEEN_RAFT_TOKEN is not set: whoever reaches the raft port can write to the log", "listen", listen)
	}
	c.ServerTLS, c.ClientTLS, err = peerTLS(v)
	return c, listen, err
}

// parsePeers reads id=raft_addr/http_addr,...
func parsePeers(text string) (members []peer.Member, err error) {
	bad := func(item, problem string) error {
		return &settingError{"QUEEN_RAFT_PEERS", text, fmt.Sprintf("%q %s; expected is id=raft_addr/http_addr,..., both addresses host:port", item, problem)}
	}
	seen := map[uint64]bool{}
	for item := range strings.SplitSeq(text, ",") {
		item = strings.TrimSpace(item)
		number, addrs, ok := strings.Cut(item, "=")
		id, err := strconv.ParseUint(number, 10, 63)
		if !ok || err != nil || id == 0 {
			return nil, bad(item, "has no id")
		}
		if seen[id] {
			return nil, bad(item, "has an id that came before")
		}
		seen[id] = true
		m := peer.Member{ID: id}
		m.Raft, m.HTTP, _ = strings.Cut(addrs, "/")
		for _, addr := range []string{m.Raft, m.HTTP} {
			if _, port, err := net.SplitHostPort(addr); err != nil || port == "" {
				return nil, bad(item, fmt.Sprintf("has the address %q", addr))
			}
		}
		members = append(members, m)
	}
	return members, nil
}

// peerTLS is what nodes use among each other: both sides show a certificate that
// the authority has signed. Nil: plain connections.
func peerTLS(v *values) (srv, client *tls.Config, err error) {
	certFile, keyFile, caFile := v.text("QUEEN_RAFT_TLS_CERT"), v.text("QUEEN_RAFT_TLS_KEY"), v.text("QUEEN_RAFT_TLS_CA")
	if certFile == "" && keyFile == "" && caFile == "" {
		return nil, nil, nil
	}
	if certFile == "" || keyFile == "" || caFile == "" {
		return nil, nil, &settingError{"QUEEN_RAFT_TLS_CERT", certFile, "QUEEN_RAFT_TLS_CERT, QUEEN_RAFT_TLS_KEY and QUEEN_RAFT_TLS_CA are given all or not at all"}
	}
	cert, err := tls.LoadX509KeyPair(certFile, keyFile)
	if err != nil {
		return nil, nil, &settingError{"QUEEN_RAFT_TLS_CERT", certFile, err.Error()}
	}
	pem, err := os.ReadFile(caFile)
	if err != nil {
		return nil, nil, &settingError{"QUEEN_RAFT_TLS_CA", caFile, err.Error()}
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, nil, &settingError{"QUEEN_RAFT_TLS_CA", caFile, "holds no certificate"}
	}
	srv = &tls.Config{Certificates: []tls.Certificate{cert}, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert, MinVersion: tls.VersionTLS13, NextProtos: []string{"http/1.1"}}
	client = &tls.Config{Certificates: []tls.Certificate{cert}, RootCAs: pool, MinVersion: tls.VersionTLS13}
	return srv, client, nil
}

// listenForPeers opens the raft port.
func listenForPeers(c *server.ClusterConfig, address string) error {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return fmt.Errorf("listen on %s (QUEEN_RAFT_LISTEN): %w", address, err)
	}
	c.Listener = l
	return nil
}

// electionTicks is raft's election timeout in ticks of 100 ms.
func electionTicks(v *values) int {
	return int(min(max(v.count("QUEEN_RAFT_ELECTION_MS")/100, 3), 600))
}
