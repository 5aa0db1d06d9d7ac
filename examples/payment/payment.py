#!/usr/bin/env python3
"""A payment step, exactly once.

A worker takes a payment request under a lease, charges the card, and commits
everything that follows from it in one call: the ack, a receipt, the order's
state, a reminder, and a marker that says "this payment was charged". When the
provider sends its event again, under another id, the marker refuses the step.

Needs a broker at QUEEN_URL (http://127.0.0.1:6632) and nothing but Python 3.
"""
import base64
import json
import os
import sys
import time
import urllib.request

URL = os.environ.get("QUEEN_URL", "http://127.0.0.1:6632")
RUN = f"py-{os.getpid()}-{int(time.time())}"  # names of this run
PAYMENTS, RECEIPTS, REMINDERS = f"payments-{RUN}", f"receipts-{RUN}", f"reminders-{RUN}"


def call(method, path, body=None):
    data = None if body is None else json.dumps(body).encode()
    req = urllib.request.Request(URL + path, data, {"Content-Type": "application/json"}, method=method)
    with urllib.request.urlopen(req, timeout=30) as resp:
        text = resp.read()
        return json.loads(text) if text else None


def check(what, expected, found):
    if expected != found:
        sys.exit(f"FAIL {what}: expected {expected!r}, found {found!r}")
    print(f"ok   {what}: {found!r}")


def pop(queue, group, **params):
    query = "&".join(f"{k}={v}" for k, v in params.items())
    answer = call("GET", f"/api/v1/pop/queue/{queue}?consumerGroup={group}&subscriptionMode=all&wait=true&timeout=5000&{query}")
    return answer["messages"] if answer else []


def push_payment(event):
    item = {"queue": PAYMENTS, "partition": "card-7", "transactionId": event, "payload": {"order": 1, "cents": 4200}}
    return call("POST", "/api/v1/push", {"items": [item]})


def step(message):
    """The whole effect of a charged payment, as one transaction."""
    payment = message["data"]
    order = f"{RUN}:{payment['order']}"
    return call("POST", "/api/v1/transaction", {
        "operations": [
            {"type": "ack", "transactionId": message["transactionId"], "partitionId": message["partitionId"],
             "consumerGroup": "chargers", "leaseId": message["leaseId"]},
            {"type": "push", "items": [{"queue": RECEIPTS, "partition": "card-7", "payload": payment}]},
        ],
        "requiredLeases": [message["leaseId"]],
        "kv": [
            {"op": "put", "ns": "orders", "key": order, "value": "charged", "ttlSeconds": 86400},
            {"op": "putIfAbsent", "ns": "charged", "key": order, "value": 1, "ttlSeconds": 86400, "required": True},
        ],
        "timers": [{"op": "schedule", "queue": REMINDERS, "timerKey": order, "delayMs": 300,
                    "payload": base64.b64encode(json.dumps(payment).encode()).decode()}],
    })


push_payment("evt-1")
message = pop(PAYMENTS, "chargers", batch=1)[0]
check("the step is committed", True, step(message)["success"])

push_payment("evt-1-again")
again = pop(PAYMENTS, "chargers", batch=1)[0]
refused = step(again)
check("the second step is committed", False, refused["success"])
check("its reason", "kv_precondition", refused["reason"])
acked = call("POST", "/api/v1/ack", {"transactionId": again["transactionId"], "partitionId": again["partitionId"],
                                     "consumerGroup": "chargers", "leaseId": again["leaseId"]})
check("the event is acked by itself", True, acked[0]["success"])

check("state of the order", "charged", call("GET", f"/api/v1/kv/orders/{RUN}:1")["value"])
reminders = pop(REMINDERS, "reminded", commitOnDelivery="true")
check("reminders", [1], [m["data"]["order"] for m in reminders])
check("receipts", [1], [m["data"]["order"] for m in pop(RECEIPTS, "audit", commitOnDelivery="true")])
depth = call("GET", f"/api/v1/resources/queues/{PAYMENTS}/depth?group=chargers")
check("payments left", 0, depth["pending"])
