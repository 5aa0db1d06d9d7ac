#!/bin/sh
# A pipeline of three stages, exactly once.
#
#   raw -> parse -> parsed -> enrich -> enriched -> total -> results
#
# Each stage pops a batch under a lease and commits one call: the ack of the
# batch, one output for each input, and its counters. Whatever is sent twice
# counts once: the producer sends every message again, and each stage loses the
# answer to every other call and sends the same call again, which the broker
# refuses.
#
# Needs a broker at QUEEN_URL (http://127.0.0.1:6632), sh and curl.
set -eu
. "$(dirname "$0")/../lib.sh"
count=12

# The work of each stage: a payload in, a payload out.
parse() { n=${1#n=} && echo "$n"; }
enrich() { echo "$(($1 * $1))"; }
total() { echo "$1"; }

# stage NAME SOURCE TARGET runs NAME on SOURCE until it is empty. It counts the
# repeats that were refused in $refused.
stage() {
	steps=0
	while :; do
		popped=$(get "/api/v1/pop/queue/$2-$run?batch=4&consumerGroup=$1&subscriptionMode=all")
		[ -n "$popped" ] || break
		items= n=0
		for m in $(echo "$popped" | messages | tr -d ' '); do
			txn=$(echo "$m" | field transactionId)
			out=$("$1" "$(echo "$m" | field data)")
			items="$items,{\"queue\":\"$3-$run\",\"partition\":\"$(echo "$m" | field partition)\",\"transactionId\":\"$txn\",\"payload\":$out}"
			n=$((n + 1))
		done
		lease=$(echo "$popped" | field leaseId)
		# The ack of the last message settles the whole batch.
		body="{\"operations\":[
		  {\"type\":\"ack\",\"transactionId\":\"$txn\",\"partitionId\":\"$(echo "$popped" | field partitionId)\",\"consumerGroup\":\"$1\",\"leaseId\":\"$lease\"},
		  {\"type\":\"push\",\"items\":[${items#,}]}],
		 \"requiredLeases\":[\"$lease\"],
		 \"kv\":[{\"op\":\"incr\",\"ns\":\"pipeline\",\"key\":\"$run:$1\",\"delta\":$n,\"ttlSeconds\":86400}]}"
		[ "$(post /api/v1/transaction "$body" | field success)" = true ] || check "stage $1 commits" true false
		steps=$((steps + 1))
		[ $((steps % 2)) -eq 1 ] || continue
		# The answer was lost: the same call again.
		again=$(post /api/v1/transaction "$body")
		case "$(echo "$again" | field success) $(echo "$again" | field reason)" in
		"false rejected_ack" | "false duplicate" | "false kv_precondition") refused=$((refused + 1)) ;;
		*) check "stage $1, a repeated step" refused "$again" ;;
		esac
	done
}

items= odd= even=
for n in $(seq 1 $count); do
	if [ $((n % 2)) -eq 1 ]; then p=odd odd="$odd$((n * n)) "; else p=even even="$even$((n * n)) "; fi
	items="$items,{\"queue\":\"raw-$run\",\"partition\":\"$p\",\"transactionId\":\"m-$n\",\"payload\":\"n=$n\"}"
done
post /api/v1/push "{\"items\":[${items#,}]}" >/dev/null
again=$(post /api/v1/push "{\"items\":[${items#,}]}" | fields status | grep -c duplicate)
check "messages of the producer's second try that were duplicates" $count "$again"

refused=0
stage parse raw parsed
stage enrich parsed enriched
stage total enriched results
check "repeated steps were refused" true "$([ $refused -gt 0 ] && echo true)"

for name in parse enrich total; do
	check "messages counted by $name" $count "$(get "/api/v1/kv/pipeline/$run:$name" | field value)"
done
results() { get "/api/v1/pop/queue/results-$run/partition/$1?consumerGroup=reader&subscriptionMode=all&commitOnDelivery=true" | fields data | tr '\n' ' '; }
check "results in odd, in order" "$odd" "$(results odd)"
check "results in even, in order" "$even" "$(results even)"
