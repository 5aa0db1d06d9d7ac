#!/bin/sh
# Starts three nodes of bin/queen on this machine for `make cluster`, and says how
# to try them. Ctrl-C stops all; a node that was killed is started again with
# `tools/cluster.sh N`.
set -eu
cd "$(dirname "$0")/.."
DIR=${QUEEN_CLUSTER_DIR:-./queen-cluster}
PORT=${PORT:-6641} # the nodes take this one and the next two
RAFT=${RAFT_PORT:-7401}

address() { # of node $1 from port $2 on
	echo "127.0.0.1:$(($2 + $1 - 1))"
}

peers=
for n in 1 2 3; do
	peers=$peers${peers:+,}$n=$(address $n "$RAFT")/$(address $n "$PORT")
done

node() {
	mkdir -p "$DIR/$1"
	PORT=$((PORT + $1 - 1)) QUEEN_BIND_ADDR=127.0.0.1 QUEEN_RAFT_DIR=$DIR/$1 \
		QUEEN_RAFT_REPLICATOR=raft QUEEN_RAFT_NODE_ID=$1 QUEEN_RAFT_PEERS=$peers \
		QUEEN_RAFT_LISTEN=$(address "$1" "$RAFT") QUEEN_RAFT_TOKEN=${QUEEN_RAFT_TOKEN:-on-this-machine-only} \
		exec bin/queen serve
}

if [ $# -gt 0 ]; then
	node "$1"
fi

pids=
stop() {
	# shellcheck disable=SC2086 # a list
	kill $pids 2>/dev/null || true
	wait
}
trap stop INT TERM EXIT
for n in 1 2 3; do
	node $n 2>>"$DIR-$n.log" >/dev/null &
	pids="$pids $!"
done
n=0
until curl -fsS -o /dev/null "http://$(address 1 "$PORT")/health" 2>/dev/null; do
	n=$((n + 1))
	[ "$n" -lt 300 ] || { echo "the cluster does not come up; see $DIR-1.log"; exit 1; }
	sleep 0.1
done
cat <<EOT

three nodes of queen listen on $(address 1 "$PORT"), $(address 2 "$PORT") and $(address 3 "$PORT");
data in $DIR/, logs in $DIR-*.log, processes$pids. Ctrl-C stops them. To try:

  curl -s http://$(address 1 "$PORT")/health           # who leads
  curl -sw '\n' http://$(address 2 "$PORT")/api/v1/push -H 'Content-Type: application/json' -d '{"items":[{"queue":"hello","payload":{"n":1}}]}'
  kill -9 ${pids##* }                                  # node 3; the others go on
  curl -sw '\n' 'http://$(address 1 "$PORT")/api/v1/pop/queue/hello?batch=10&autoAck=true'
  tools/cluster.sh 3                                   # node 3 comes back

EOT
wait
