#!/bin/sh
# A consumer whose handler fails.
#
# The loop survives it: the message is nacked as failed with the error's text,
# one retry is charged, and the message comes back. Job 3 fails once and then
# works. Job 4 always fails: with a retry limit of 1 it is tried twice and then
# filed as a dead letter, with its error, and the loop goes on to job 5.
#
# Needs a broker at QUEEN_URL (http://127.0.0.1:6632), sh and curl.
set -eu
. "$(dirname "$0")/../lib.sh"
queue=jobs-$run
handled= tried=

# handler JOB prints why it failed.
handler() {
	if [ "$1" = 3 ] && [ "$(echo "$tried" | tr ' ' '\n' | grep -c '^3$')" = 1 ]; then
		echo "the printer was off"
		return 1
	fi
	if [ "$1" = 4 ]; then
		echo "job 4 cannot be read"
		return 1
	fi
}

# consume runs until the queue is empty. One message a pop: a batch is settled
# whole.
consume() {
	while :; do
		popped=$(get "/api/v1/pop/queue/$queue?batch=1&consumerGroup=printers&subscriptionMode=all")
		[ -n "$popped" ] || return 0
		job=$(echo "$popped" | field data)
		tried="$tried$job "
		if why=$(handler "$job"); then
			status='"completed"'
			handled="$handled$job "
		else
			status="\"failed\",\"error\":\"$why\""
		fi
		acked=$(post /api/v1/ack "{\"transactionId\":\"$(echo "$popped" | field transactionId)\",\"partitionId\":\"$(echo "$popped" | field partitionId)\",
		  \"leaseId\":\"$(echo "$popped" | field leaseId)\",\"consumerGroup\":\"printers\",\"status\":$status}")
		[ "$(echo "$acked" | field success)" = true ] || check "ack" success "$acked"
	done
}

post /api/v1/configure "{\"queue\":\"$queue\",\"options\":{\"retryLimit\":1}}" >/dev/null
items=
for n in 1 2 3 4 5; do items="$items,{\"queue\":\"$queue\",\"payload\":$n}"; done
post /api/v1/push "{\"items\":[${items#,}]}" >/dev/null
consume
check "jobs done, in order" "1 2 3 5 " "$handled"
check "jobs tried, in order" "1 2 3 3 4 4 5 " "$tried"
dead=$(get "/api/v1/dlq?queue=$queue")
check "dead letters" "4: job 4 cannot be read" "$(echo "$dead" | fields data | tr '\n' ' ' | sed 's/ $//'): $(echo "$dead" | fields errorMessage)"
check "jobs left" 0 "$(get "/api/v1/resources/queues/$queue/depth?group=printers" | field pending)"
