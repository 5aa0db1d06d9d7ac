#!/bin/sh
# Starts bin/queen in the foreground for `make run`, and says how to try it once
# it is healthy.
set -eu
cd "$(dirname "$0")/.."
PORT=${PORT:-6632}
QUEEN_RAFT_DIR=${QUEEN_RAFT_DIR:-./queen-data}
QUEEN_BIND_ADDR=${QUEEN_BIND_ADDR:-127.0.0.1}
export PORT QUEEN_RAFT_DIR QUEEN_BIND_ADDR
url=http://127.0.0.1:$PORT

hello() {
	n=0
	until curl -fsS -o /dev/null "$url/health" 2>/dev/null; do
		n=$((n + 1))
		[ "$n" -lt 300 ] || return 0
		sleep 0.1
	done
	cat <<EOT

queen listens on $url, data in $QUEEN_RAFT_DIR (ctrl-C stops it). To try:

  curl -sw '\\n' $url/api/v1/push -H 'Content-Type: application/json' -d '{"items":[{"queue":"hello","payload":{"n":1}}]}'
  curl -sw '\\n' '$url/api/v1/pop/queue/hello?batch=10&autoAck=true'
  curl -sw '\\n' $url/api/v1/transaction -H 'Content-Type: application/json' -d '{"operations":[{"type":"push","items":[{"queue":"hello","payload":{"n":2}}]}],"kv":[{"op":"putIfAbsent","ns":"once","key":"n2","value":1,"forever":true,"required":true}]}'

EOT
}
hello &
exec bin/queen serve
