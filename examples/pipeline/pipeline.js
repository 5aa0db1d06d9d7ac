#!/usr/bin/env node
// A pipeline of three stages, exactly once.
//
//   raw -> parse -> parsed -> enrich -> enriched -> total -> results
//
// Each stage pops a batch under a lease and commits one call: the ack of the
// batch, one output for each input, and its counters. Whatever is sent twice
// counts once: the producer sends every message again, and each stage loses the
// answer to every other call and sends the same call again, which the broker
// refuses.
//
// Needs a broker at QUEEN_URL (http://127.0.0.1:6632) and Node 18 or later.
'use strict';

const base = process.env.QUEEN_URL || 'http://127.0.0.1:6632';
const run = `js-${process.pid}-${Date.now()}`; // names of this run
const count = 20;
const doneBefore = ['rejected_ack', 'duplicate', 'kv_precondition']; // how a repeated step is refused

async function call(method, path, body) {
  const resp = await fetch(base + path, {
    method, headers: { 'Content-Type': 'application/json' }, body: body === undefined ? undefined : JSON.stringify(body),
  });
  const text = await resp.text();
  if (!resp.ok) throw new Error(`${method} ${path}: status ${resp.status}: ${text}`);
  return text ? JSON.parse(text) : null;
}

function check(what, expected, found) {
  const [e, f] = [JSON.stringify(expected), JSON.stringify(found)];
  if (e !== f) {
    console.error(`FAIL ${what}: expected ${e}, found ${f}`);
    process.exit(1);
  }
  console.log(`ok   ${what}: ${f}`);
}

async function pop(queue, group, params) {
  const query = new URLSearchParams({ consumerGroup: group, subscriptionMode: 'all', ...params });
  const answer = await call('GET', `/api/v1/pop/queue/${queue}-${run}?${query}`);
  return answer ? answer.messages : [];
}

function commit(target, messages, outputs, name) {
  const last = messages[messages.length - 1]; // its ack settles the whole batch
  return call('POST', '/api/v1/transaction', {
    operations: [
      { type: 'ack', transactionId: last.transactionId, partitionId: last.partitionId, consumerGroup: name, leaseId: last.leaseId },
      {
        type: 'push',
        items: messages.map((m, i) => ({
          queue: `${target}-${run}`, partition: m.partition, transactionId: m.transactionId, payload: outputs[i],
        })),
      },
    ],
    requiredLeases: [last.leaseId],
    kv: [{ op: 'incr', ns: 'pipeline', key: `${run}:${name}`, delta: messages.length, ttlSeconds: 86400 }],
  });
}

// stage runs until its input is empty and returns how often a repeat was refused.
async function stage(name, source, target, work) {
  let refused = 0;
  for (let steps = 1; ; steps++) {
    const messages = await pop(source, name, { batch: 4 });
    if (messages.length === 0) return refused;
    const outputs = messages.map((m) => work(m.data));
    const verdict = await commit(target, messages, outputs, name);
    if (!verdict.success) throw new Error(`stage ${name}: ${JSON.stringify(verdict)}`);
    if (steps % 2 === 1) { // the answer was lost: the same call again
      const again = await commit(target, messages, outputs, name);
      if (again.success || !doneBefore.includes(again.reason)) throw new Error(`stage ${name}, a repeated step: ${JSON.stringify(again)}`);
      refused++;
    }
  }
}

async function main() {
  const numbers = Array.from({ length: count }, (_, i) => i + 1);
  const items = numbers.map((n) => ({
    queue: `raw-${run}`, partition: n % 2 ? 'odd' : 'even', transactionId: `m-${n}`, payload: `n=${n}`,
  }));
  await call('POST', '/api/v1/push', { items });
  const again = await call('POST', '/api/v1/push', { items });
  check("messages that the producer's second try added", 0, again.filter((r) => r.status !== 'duplicate').length);

  let refused = await stage('parse', 'raw', 'parsed', (text) => ({ n: Number(text.slice(2)) }));
  refused += await stage('enrich', 'parsed', 'enriched', (m) => ({ ...m, square: m.n ** 2 }));
  refused += await stage('total', 'enriched', 'results', (m) => m.square);
  check('repeated steps were refused', true, refused > 0);

  for (const name of ['parse', 'enrich', 'total']) {
    check(`messages counted by ${name}`, count, (await call('GET', `/api/v1/kv/pipeline/${run}:${name}`)).value);
  }
  const results = await pop('results', 'reader', { commitOnDelivery: 'true', partitions: 2 });
  for (const [partition, odd] of [['odd', 1], ['even', 0]]) {
    check(`results in ${partition}, in order`, numbers.filter((n) => n % 2 === odd).map((n) => n * n),
      results.filter((m) => m.partition === partition).map((m) => m.data));
  }
}

main().catch((err) => {
  console.error('FAIL', err);
  process.exit(1);
});
