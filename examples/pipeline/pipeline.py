#!/usr/bin/env python3
"""A pipeline of three stages, exactly once.

raw -> parse -> parsed -> enrich -> enriched -> total -> results

Each stage pops a batch under a lease and commits one call: the ack of the batch,
one output for each input, and its counters. Whatever is sent twice counts once:
the producer sends every message again, and each stage loses the answer to every
other call and sends the same call again, which the broker refuses.

Needs a broker at QUEEN_URL (http://127.0.0.1:6632) and nothing but Python 3.
"""
import json
import os
import sys
import time
import urllib.request

URL = os.environ.get("QUEEN_URL", "http://127.0.0.1:6632")
RUN = f"py-{os.getpid()}-{int(time.time())}"  # names of this run
COUNT = 20
DONE_BEFORE = ("rejected_ack", "duplicate", "kv_precondition")  # how a repeated step is refused


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
    answer = call("GET", f"/api/v1/pop/queue/{queue}-{RUN}?consumerGroup={group}&subscriptionMode=all&{query}")
    return answer["messages"] if answer else []


def commit(source, target, messages, outputs, name):
    last = messages[-1]  # its ack settles the whole batch
    return call("POST", "/api/v1/transaction", {
        "operations": [
            {"type": "ack", "transactionId": last["transactionId"], "partitionId": last["partitionId"], "consumerGroup": name,
             "leaseId": last["leaseId"]},
            {"type": "push", "items": [
                {"queue": f"{target}-{RUN}", "partition": m["partition"], "transactionId": m["transactionId"], "payload": out}
                for m, out in zip(messages, outputs)]},
        ],
        "requiredLeases": [last["leaseId"]],
        "kv": [{"op": "incr", "ns": "pipeline", "key": f"{RUN}:{name}", "delta": len(messages), "ttlSeconds": 86400}],
    })


def stage(name, source, target, work):
    """Runs a stage until its input is empty; returns how often a repeat was refused."""
    refused = steps = 0
    while messages := pop(source, name, batch=4):
        outputs = [work(m["data"]) for m in messages]
        verdict = commit(source, target, messages, outputs, name)
        if not verdict["success"]:
            sys.exit(f"FAIL stage {name}: {verdict}")
        steps += 1
        if steps % 2 == 1:  # the answer was lost: the same call again
            again = commit(source, target, messages, outputs, name)
            if again["success"] or again["reason"] not in DONE_BEFORE:
                sys.exit(f"FAIL stage {name}, a repeated step: {again}")
            refused += 1
    return refused


items = [{"queue": f"raw-{RUN}", "partition": "odd" if n % 2 else "even", "transactionId": f"m-{n}", "payload": f"n={n}"}
         for n in range(1, COUNT + 1)]
call("POST", "/api/v1/push", {"items": items})
again = call("POST", "/api/v1/push", {"items": items})
check("messages that the producer's second try added", 0, sum(r["status"] != "duplicate" for r in again))

refused = stage("parse", "raw", "parsed", lambda text: {"n": int(text.removeprefix("n="))})
refused += stage("enrich", "parsed", "enriched", lambda m: {**m, "square": m["n"] ** 2})
refused += stage("total", "enriched", "results", lambda m: m["square"])
check("repeated steps were refused", True, refused > 0)

for name in ("parse", "enrich", "total"):
    check(f"messages counted by {name}", COUNT, call("GET", f"/api/v1/kv/pipeline/{RUN}:{name}")["value"])
results = pop("results", "reader", commitOnDelivery="true", partitions=2)
for partition, first in (("odd", 1), ("even", 2)):
    check(f"results in {partition}, in order", [n * n for n in range(first, COUNT + 1, 2)],
          [m["data"] for m in results if m["partition"] == partition])
