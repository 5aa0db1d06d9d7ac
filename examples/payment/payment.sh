#!/bin/sh
# A payment step, exactly once.
#
# A worker takes a payment request under a lease, charges the card, and commits
# everything that follows from it in one call: the ack, a receipt, the order's
# state, a reminder, and a marker that says "this payment was charged". When the
# provider sends its event again, under another id, the marker refuses the step.
#
# Needs a broker at QUEEN_URL (http://127.0.0.1:6632), sh and curl.
set -eu
. "$(dirname "$0")/../lib.sh"

# take pushes the provider's event $1 and pops it.
take() {
	post /api/v1/push "{\"items\":[{\"queue\":\"payments-$run\",\"partition\":\"card-7\",\"transactionId\":\"$1\",\"payload\":{\"order\":1,\"cents\":4200}}]}" >/dev/null
	popped=$(get "/api/v1/pop/queue/payments-$run?batch=1&consumerGroup=chargers&subscriptionMode=all&wait=true&timeout=5000")
	txn=$(echo "$popped" | field transactionId)
	partition=$(echo "$popped" | field partitionId)
	lease=$(echo "$popped" | field leaseId)
}

# step commits the whole effect of the charged payment.
step() {
	reminder=$(printf '{"order":1,"cents":4200}' | base64)
	post /api/v1/transaction "{
	  \"operations\": [
	    {\"type\":\"ack\",\"transactionId\":\"$txn\",\"partitionId\":\"$partition\",\"consumerGroup\":\"chargers\",\"leaseId\":\"$lease\"},
	    {\"type\":\"push\",\"items\":[{\"queue\":\"receipts-$run\",\"partition\":\"card-7\",\"payload\":{\"order\":1,\"cents\":4200}}]}],
	  \"requiredLeases\": [\"$lease\"],
	  \"kv\": [
	    {\"op\":\"put\",\"ns\":\"orders\",\"key\":\"$run:1\",\"value\":\"charged\",\"ttlSeconds\":86400},
	    {\"op\":\"putIfAbsent\",\"ns\":\"charged\",\"key\":\"$run:1\",\"value\":1,\"ttlSeconds\":86400,\"required\":true}],
	  \"timers\": [{\"op\":\"schedule\",\"queue\":\"reminders-$run\",\"timerKey\":\"$run:1\",\"delayMs\":300,\"payload\":\"$reminder\"}]}"
}

# all prints the orders in queue $1, as a group that reads it for the first time.
all() {
	get "/api/v1/pop/queue/$1-$run?consumerGroup=reader&subscriptionMode=all&commitOnDelivery=true&wait=true&timeout=5000" | fields order | tr '\n' ' '
}

take evt-1
check "the step is committed" true "$(step | field success)"

take evt-1-again
refused=$(step)
check "the second step is committed" false "$(echo "$refused" | field success)"
check "its reason" kv_precondition "$(echo "$refused" | field reason)"
acked=$(post /api/v1/ack "{\"transactionId\":\"$txn\",\"partitionId\":\"$partition\",\"consumerGroup\":\"chargers\",\"leaseId\":\"$lease\"}")
check "the event is acked by itself" true "$(echo "$acked" | field success)"

check "state of the order" charged "$(get "/api/v1/kv/orders/$run:1" | field value)"
check "reminders" "1 " "$(all reminders)"
check "receipts" "1 " "$(all receipts)"
check "payments left" 0 "$(get "/api/v1/resources/queues/payments-$run/depth?group=chargers" | field pending)"
