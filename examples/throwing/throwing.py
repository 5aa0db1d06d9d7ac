#!/usr/bin/env python3
"""A consumer whose handler throws.

The loop survives it: the message is nacked as failed with the error's text, one
retry is charged, and the message comes back. Job 3 throws once and then works.
Job 4 always throws: with a retry limit of 1 it is tried twice and then filed as
a dead letter, with its error, and the loop goes on to job 5.

Needs a broker at QUEEN_URL (http://127.0.0.1:6632) and nothing but Python 3.
"""
import json
import os
import sys
import time
import urllib.request

URL = os.environ.get("QUEEN_URL", "http://127.0.0.1:6632")
QUEUE = f"jobs-py-{os.getpid()}-{int(time.time())}"


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


tries = {}  # job -> how often its handler ran
handled = []


def handler(job):
    tries[job] = tries.get(job, 0) + 1
    if job == 3 and tries[job] == 1:
        raise RuntimeError("the printer was off")
    if job == 4:
        raise RuntimeError("job 4 cannot be read")
    handled.append(job)


def consume():
    """Runs until the queue is empty. One message a pop: a batch is settled whole."""
    while answer := call("GET", f"/api/v1/pop/queue/{QUEUE}?batch=1&consumerGroup=printers&subscriptionMode=all"):
        m = answer["messages"][0]
        ack = {"transactionId": m["transactionId"], "partitionId": m["partitionId"], "leaseId": m["leaseId"], "consumerGroup": "printers"}
        try:
            handler(m["data"])
            ack["status"] = "completed"
        except Exception as e:
            ack["status"], ack["error"] = "failed", str(e)
        done = call("POST", "/api/v1/ack", ack)[0]
        if not done["success"]:
            sys.exit(f"FAIL ack: {done}")


call("POST", "/api/v1/configure", {"queue": QUEUE, "options": {"retryLimit": 1}})
call("POST", "/api/v1/push", {"items": [{"queue": QUEUE, "payload": n} for n in range(1, 6)]})
consume()
check("jobs done, in order", [1, 2, 3, 5], handled)
check("tries of each job", {1: 1, 2: 1, 3: 2, 4: 2, 5: 1}, tries)
dead = call("GET", f"/api/v1/dlq?queue={QUEUE}")["messages"]
check("dead letters", [(4, "job 4 cannot be read")], [(d["data"], d["errorMessage"]) for d in dead])
depth = call("GET", f"/api/v1/resources/queues/{QUEUE}/depth?group=printers")
check("jobs left", 0, depth["pending"])
